//! The handshake: both ends agree on a version and a run, and prove a shared secret without sending it.
//!
//! ```text
//!  dialler                                   acceptor
//!     │ Hello    versions, purpose, who, nonce  →│  selects the secret by the hello
//!     │← Welcome  status, version, who, nonce    │
//!     │ Proof    HMAC(secret, dialler ‖ …)      →│  in constant time
//!     │← Verdict  status, HMAC(secret, acceptor ‖ …)
//! ```
//!
//! The secret is the join token on a connection to a master or a relay, and the epoch's key on all others. Without a token the secret is
//! empty, and the exchange is the same. A proof is an HMAC-SHA256 over a label with the role and over all bytes of both
//! earlier blocks, including both nonces. So it cannot be replayed (the other nonce is new) or reflected (the role
//! differs, and an end rejects its own id), and no byte of the blocks can be changed in transit. The dialler proves first:
//! a process that can only reach a listener learns nothing that depends on the secret.
//!
//! The handshake does not encrypt what follows it: that is done by TLS or QUIC below it. Then the proofs also cover a value of the
//! encrypted session, and an end can only use the id that belongs to its keys ([`Binding`]). Without encryption an attacker on the
//! path can read and change what follows.
//!
//! [`DialerHandshake`] and [`AcceptorHandshake`] are pure. They accept bytes in any pieces. After an error `poll_output`
//! may return bytes that tell the other end the reason: send them, then close. **The driver sets deadlines**: it must
//! limit the time from connect to [`Established`], and the number of connections that are not established.
//!
//! ```
//! use ringfold_proto::handshake::{AcceptorHandshake, DialerHandshake, Identity, Secret, DialTarget};
//! use ringfold_proto::hello::{Hello, Nonce};
//! use ringfold_proto::id::{PeerId, RunId};
//!
//! // Real nonces are random.
//! let me = Identity::new(PeerId(7), RunId(0));
//! let mut dialler = DialerHandshake::new(me, DialTarget::master(), Secret::token("sesame"), Nonce([1; 32]));
//! let mut acceptor = AcceptorHandshake::new(Identity::new(PeerId(0), RunId(99)), Nonce([2; 32]));
//! let secrets = |_: &Hello| Ok(Secret::token("sesame"));
//! let (mut accepted, mut reached) = (None, None);
//! while accepted.is_none() || reached.is_none() {
//!     let sent = dialler.poll_output();
//!     accepted = acceptor.handle_bytes(&mut &sent[..], &secrets)?;
//!     let answer = acceptor.poll_output();
//!     reached = dialler.handle_bytes(&mut &answer[..])?;
//! }
//! assert_eq!(accepted.unwrap().peer, PeerId(7));
//! assert_eq!(reached.unwrap().run, RunId(99));
//! # Ok::<(), ringfold_proto::handshake::HandshakeError>(())
//! ```
#![allow(missing_docs)] // Fields are named for what they hold.

mod acceptor;
mod certificate;
mod dialer;

pub use acceptor::{AcceptorHandshake, SecretLookup};
pub use certificate::{CertificateProblem, Role};
pub use dialer::{DialTarget, DialerHandshake};

use crate::hello::{ConnectionRejection, Features, Hello, Proof, Purpose, Verdict, VersionRange, Welcome};
use crate::id::{EpochId, PeerId, RunId};
use core::fmt;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// What one end states about itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Its id; zero for a master.
    pub peer: PeerId,
    /// Its run, zero if unknown.
    pub run: RunId,
    pub versions: VersionRange,
    pub features: Features,
}

impl Identity {
    /// An identity with the versions and features of this build.
    pub fn new(peer: PeerId, run: RunId) -> Self {
        Self { peer, run, versions: VersionRange::SUPPORTED, features: Features::SUPPORTED }
    }
}

/// The secret that both ends must know: a join token, an epoch's key, or none. It is never printed.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret {
    bytes: Vec<u8>,
    /// Others that an acceptor accepts, while tokens are replaced.
    others: Vec<Vec<u8>>,
}

impl Secret {
    pub const NONE: Self = Self { bytes: Vec::new(), others: Vec::new() };

    /// A join token. An empty token is no secret.
    pub fn token(token: &str) -> Self {
        Self { bytes: token.as_bytes().to_vec(), others: Vec::new() }
    }

    /// A join token that is being replaced: a dialler proves the first one, an acceptor accepts all. Empty ones are left out.
    pub fn tokens<'t>(tokens: impl IntoIterator<Item = &'t str>) -> Self {
        let mut tokens =
            tokens.into_iter().filter(|token| !token.is_empty()).map(|token| token.as_bytes().to_vec());
        Self { bytes: tokens.next().unwrap_or_default(), others: tokens.collect() }
    }

    pub fn epoch_key(key: &[u8; 32]) -> Self {
        Self { bytes: key.to_vec(), others: Vec::new() }
    }

    pub fn is_none(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether a text that was shown is one of the secrets. How long that takes does not depend on the bytes that agree. No secret
    /// accepts nothing.
    pub fn accepts(&self, shown: &str) -> bool {
        let tag = |secret: &Self| {
            let mut mac = keyed_mac(secret, b"ringfold shown secret, compared ");
            // Keys that differ in zeros at their end are the same to an HMAC.
            mac.update(&(secret.bytes.len() as u64).to_le_bytes());
            mac
        };
        let shown = tag(&Self::token(shown)).finalize().into_bytes();
        let is_shown = |secret: Self| !secret.is_none() & tag(&secret).verify(&shown).is_ok();
        self.accepted().fold(false, |found, secret| found | is_shown(secret))
    }

    /// Each of the secrets that an acceptor accepts, alone.
    fn accepted(&self) -> impl Iterator<Item = Self> + '_ {
        let alone = |bytes: &Vec<u8>| Self { bytes: bytes.clone(), others: Vec::new() };
        core::iter::once(&self.bytes).chain(&self.others).map(alone)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_none() { "Secret(none)" } else { "Secret(..)" })
    }
}

/// The result of a successful handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Established {
    /// The other end; zero for a master.
    pub peer: PeerId,
    pub purpose: Purpose,
    /// The epoch whose key was proven; zeros on a control connection.
    pub epoch: EpochId,
    /// The run; zero if neither end knows it.
    pub run: RunId,
    pub version: u16,
    pub features: Features,
}

/// Why a handshake failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The other end uses another protocol.
    #[error("the other end does not speak the Ringfold protocol")]
    NotRingfold,
    #[error("no common version: this end supports {ours}, the other end {theirs}")]
    Version { ours: VersionRange, theirs: VersionRange },
    /// The ends belong to different runs.
    #[error("wrong run: this end belongs to {ours}, the other end to {theirs}")]
    WrongRun { ours: RunId, theirs: RunId },
    /// Another peer answered at that address.
    #[error("wrong peer: {found} answered instead of {expected}")]
    WrongPeer { expected: PeerId, found: PeerId },
    #[error("a join token is required, and the dialler has none")]
    TokenMissing,
    /// The dialler has a token, and the acceptor none: it is not the expected master.
    #[error("the dialler has a join token, but the acceptor has none")]
    TokenUnexpected,
    #[error("the token is wrong")]
    BadToken,
    /// The dialler does not have the key of the epoch.
    #[error("the dialler did not prove that it is a member of the epoch")]
    NotAMember,
    /// The acceptor accepted the proof, but did not prove that it knows the secret.
    #[error("the acceptor did not prove that it knows the secret")]
    Impostor,
    /// The other end uses an id that does not belong to its keys.
    #[error("the other end claims to be {claimed}, but has the keys of {owner}")]
    WrongKeys { claimed: PeerId, owner: PeerId },
    /// The acceptor's certificate does not show that it is who was dialled.
    #[error("the certificate of the acceptor {0}")]
    Certificate(CertificateProblem),
    #[error("connection rejected: {0}")]
    Rejected(ConnectionRejection),
    #[error("the other end violated the protocol: {0}")]
    Misbehaved(&'static str),
    #[error("the connection ended before the {missing} was complete")]
    Truncated { missing: &'static str },
}

impl HandshakeError {
    /// Whether a later attempt may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            // The other member may not have received the epoch yet.
            Self::Rejected(ConnectionRejection::UnknownEpoch | ConnectionRejection::Full)
            | Self::Truncated { .. } => true,
            Self::Rejected(_) | Self::NotRingfold | Self::Version { .. } | Self::WrongRun { .. } => false,
            Self::WrongPeer { .. } | Self::TokenMissing | Self::TokenUnexpected | Self::BadToken => false,
            Self::NotAMember | Self::Impostor | Self::WrongKeys { .. } | Self::Certificate(_) => false,
            Self::Misbehaved(_) => false,
        }
    }

    fn bad_proof(purpose: Purpose) -> Self {
        match purpose {
            Purpose::Data | Purpose::State | Purpose::Probe | Purpose::Window => Self::NotAMember,
            Purpose::Control
            | Purpose::Relay
            | Purpose::Masters
            | Purpose::Doctor
            | Purpose::Observe
            | Purpose::Admin => Self::BadToken,
        }
    }
}

/// The bytes of both opening blocks, which every proof covers.
#[derive(Clone)]
struct Transcript {
    hello: [u8; Hello::BYTES],
    welcome: [u8; Welcome::BYTES],
    /// A value of the encrypted session below; none without encryption.
    binding: Option<Binding>,
}

/// What an encrypted session below the handshake proves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Binding {
    /// A value that only the two ends of the session know. Proofs cover it, so nobody can sit between two sessions.
    pub exported: [u8; 32],
    /// The id that belongs to the keys of the other end. It can use no other.
    pub peer: PeerId,
    /// The role in the certificate of the other end, or what is wrong with it; none if this end uses no certificates.
    pub role: Option<Result<Role, CertificateProblem>>,
}

impl fmt::Debug for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Binding").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Binding {
    /// Checks that the other end may act as this, if this end uses certificates.
    fn check_role(&self, needed: Role) -> Result<(), CertificateProblem> {
        match self.role {
            None => Ok(()),
            Some(Ok(role)) if role.may_act_as(needed) => Ok(()),
            Some(Ok(_)) => Err(CertificateProblem::WrongRole),
            Some(Err(problem)) => Err(problem),
        }
    }
}

impl Transcript {
    /// The MAC of the dialler's proof.
    fn dialler_mac(&self, secret: &Secret) -> Hmac<Sha256> {
        keyed_mac(secret, b"ringfold handshake 1: dialler   ")
            .chain_update(self.hello)
            .chain_update(self.welcome)
            .chain_update(self.binding())
    }

    fn binding(&self) -> &[u8] {
        self.binding.as_ref().map_or(&[], |binding| &binding.exported)
    }

    /// The MAC of the acceptor's proof. It covers the verdict, so that a rejection cannot be changed to acceptance.
    fn acceptor_mac(
        &self,
        secret: &Secret,
        proof: &Proof,
        covered: &[u8; Verdict::COVERED_BYTES],
    ) -> Hmac<Sha256> {
        keyed_mac(secret, b"ringfold handshake 1: acceptor  ")
            .chain_update(self.hello)
            .chain_update(self.welcome)
            .chain_update(self.binding())
            .chain_update(proof.0)
            .chain_update(covered)
    }
}

/// All labels have the same length, so that no label is a prefix of another.
fn keyed_mac(secret: &Secret, label: &[u8; 32]) -> Hmac<Sha256> {
    Hmac::<Sha256>::new_from_slice(&secret.bytes).expect("HMAC takes keys of any length").chain_update(label)
}

/// Collects one fixed block at a time, and consumes no byte after it.
#[derive(Clone, Debug)]
struct BlockBuffer {
    bytes: [u8; Self::BYTES_MAX],
    have: usize,
}

impl BlockBuffer {
    const BYTES_MAX: usize = if Hello::BYTES > Welcome::BYTES { Hello::BYTES } else { Welcome::BYTES };

    fn new() -> Self {
        Self { bytes: [0; Self::BYTES_MAX], have: 0 }
    }

    /// Consumes missing bytes of the block from `input`. Returns the block once it is complete.
    fn take<const N: usize>(&mut self, input: &mut &[u8]) -> Option<[u8; N]> {
        let (taken, rest) = input.split_at(input.len().min(N - self.have));
        self.bytes[self.have..][..taken.len()].copy_from_slice(taken);
        self.have += taken.len();
        *input = rest;
        if self.have < N {
            return None;
        }
        self.have = 0;
        self.bytes.first_chunk().copied()
    }

    /// Whether the bytes of the block so far match this magic. Other protocols are rejected at their first byte.
    fn can_start_with(&self, magic: &[u8; 8]) -> bool {
        let seen = self.have.min(magic.len());
        self.bytes[..seen] == magic[..seen]
    }
}
