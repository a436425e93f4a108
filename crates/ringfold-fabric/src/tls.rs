//! Encrypted connections: TLS 1.3 below the handshake.
//!
//! Every process has keys of its own, made when it starts, and shows a certificate for them. Without certificates of a run it has signed
//! that itself, and the handshake inside the session proves who the other end is: its proofs cover a value that TLS derives from
//! the session's keys, so nobody can sit in between. With them (`certificates.rs`) the certificate says who the other end is. A peer's
//! id is a hash of its public key, so nobody can use the id of another.

mod certificates;
mod claims;
mod exporter;
pub mod issue;
mod records;
mod security;
mod session;

pub use certificates::{CertificateDates, PeerIdentity, TlsFiles};
pub(crate) use certificates::{TrustedRun, valid_until};
pub use claims::ClaimSigner;
pub use ringfold_proto::handshake::Role;
pub(crate) use security::TlsConfigs;
pub(crate) use security::{BINDING_LABEL, peer_of};
pub use security::{Encryption, Security, SecurityError};
pub(crate) use session::{TlsSession, Wire};
