//! Sockets, memory and channels: every system call of Ringfold. It moves bytes and never interprets them.

// Records on the wire and in shared memory are structs in the byte order of all supported platforms.
#[cfg(target_endian = "big")]
compile_error!("only little-endian platforms are supported");

pub mod arena;
mod arrival;
pub mod channel;
pub mod clock;
mod closing;
pub mod connection;
pub mod connection_limits;
pub mod dialer;
pub mod flight_file;
mod futex;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod handshake;
pub mod host;
pub mod join_token;
pub mod limits;
pub mod link;
pub mod listener;
pub mod medium;
pub mod memory;
pub mod mesh;
pub mod order;
pub mod poller;
pub mod probe;
pub mod process_memory;
pub mod quic;
pub mod random;
pub mod reactor;
pub mod relay;
pub mod rendezvous;
pub mod segment;
pub mod shared_buffer;
pub mod shared_bytes;
pub mod shared_link;
pub mod shared_memory;
mod shared_ring;
pub mod signal_counters;
pub mod slots;
pub mod staged_dial;
pub mod tls;
mod token_bucket;
pub mod traffic;
mod transport;
pub mod waiter;
mod watched;
pub mod worker_pool;
