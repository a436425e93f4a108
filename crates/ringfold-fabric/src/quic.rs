//! QUIC over UDP, for long links: congestion control of our own, whatever the kernel uses for TCP.
//!
//! An endpoint has one UDP socket and one thread, which runs the protocol ([`quinn_proto`]) and copies bytes between each
//! connection and a local socket. The rest of the program sees the other end of that socket: a stream of bytes with
//! readiness, back pressure and an end, like TCP.

mod congestion;
mod endpoint;
mod pipe;

pub use endpoint::QuicEndpoint;
pub use pipe::{QuicState, QuicStream};
