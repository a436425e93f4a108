//! All integration tests of this crate in one program, which is linked once. A new file needs a line here.

#[path = "../../ringfold-fabric/tests/suite/blocked.rs"]
mod blocked;
mod certificates;
mod claims;
mod communicator;
mod cuda;
mod error_feedback;
mod flipping_proxy;
mod group;
mod group_bootstrap;
mod group_buffers;
mod group_cancel;
mod group_end;
mod group_integrity;
mod group_notes;
mod group_processes;
mod group_restoring;
mod group_retiring;
mod http;
mod integrity;
mod master;
mod observing;
mod own_process;
mod panicking_log;
mod rank_threads;
mod replicas;
mod reproducible;
mod resuming;
mod shared_memory;
mod window;
