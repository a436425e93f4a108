//! Encrypted connections: TLS 1.3 below the handshake.
//!
//! Every process has keys of its own, made when it starts, and shows a certificate for them that it signed itself. Who the
//! other end is, the handshake inside the session proves: its proofs cover a value that TLS derives from the session's keys,
//! so nobody can sit in between. A peer's id is a hash of its public key, so nobody can use the id of another.

mod exporter;
mod records;
mod security;
mod session;

pub(crate) use security::{BINDING_LABEL, peer_of};
pub use security::{Encryption, Security, SecurityError, insecure_by_environment};
pub(crate) use session::{TlsSession, Wire};
