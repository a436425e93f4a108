//! All integration tests of this crate, as one program: it is linked once. A new file needs a line here.

mod alone;
mod communicator;
mod cuda;
mod group;
mod group_aside;
mod group_buffers;
mod group_end;
mod group_meeting;
mod group_processes;
mod group_restoring;
mod group_retiring;
mod group_watch;
mod master;
mod panicking_log;
mod sharing;
mod window;
