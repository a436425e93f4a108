//! Sockets, memory and channels: every system call of Ringfold. It moves bytes and never interprets them.

pub mod arena;
pub mod bells;
pub mod channel;
pub mod clock;
pub mod door;
mod futex;
pub mod host;
pub mod knock;
pub mod limits;
pub mod link;
pub mod medium;
pub mod memory;
pub mod mesh;
pub mod order;
pub mod poller;
pub mod probe;
pub mod random;
pub mod reactor;
pub mod rendezvous;
pub mod segment;
pub mod shared_link;
pub mod shared_memory;
pub mod slots;
pub mod socket;
pub mod spin;
pub mod waiter;
