//! How two ends of a connection find out that they may talk: versions, run, and a shared secret that
//! each proves to the other without sending it.
//!
//! ```text
//!  dialler                                   acceptor
//!     │ Hello    versions, purpose, who, nonce  →│  picks the secret by what the hello claims
//!     │← Welcome  status, version, who, nonce    │
//!     │ Proof    HMAC(secret, dialler ‖ …)      →│  in constant time
//!     │← Verdict  status, HMAC(secret, acceptor ‖ …)
//! ```
//!
//! The secret is the join token on a control connection and the epoch's key on all others; no token
//! is the empty secret, and runs the same exchange. A proof is an HMAC-SHA256 over a label with the
//! role, and over every byte of both blocks before it, hence over both nonces. So a proof can't be
//! replayed (the other side's nonce is new), nor reflected (the role differs, and nobody accepts its
//! own id), and nothing in the blocks can be changed on the way. The dialler proves first: whoever can
//! merely reach a listener learns nothing that depends on the secret.
//!
//! A hijacked *wire* is another matter: the handshake does not encrypt what follows. That is for TLS.
//!
//! [`Dialler`] and [`Acceptor`] are pure. Bytes go in, in any pieces; bytes come out of `poll_output`,
//! also after an error, where they tell the other side why: send them, then close. **Deadlines are the
//! driver's**: a machine waits for the rest of a block for ever, so the driver must bound the time from
//! connect to [`Established`], and the number of connections that are not established.
//!
//! ```
//! use ringfold_proto::handshake::{Acceptor, Dialler, Identity, Secret, Target};
//! use ringfold_proto::hello::{Hello, Nonce};
//! use ringfold_proto::id::{PeerId, RunId};
//!
//! // In earnest, nonces are random.
//! let me = Identity::new(PeerId(7), RunId(0));
//! let mut dialler = Dialler::new(me, Target::master(), Secret::token("sesame"), Nonce([1; 32]));
//! let mut acceptor = Acceptor::new(Identity::new(PeerId(0), RunId(99)), Nonce([2; 32]));
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

mod acceptor;
mod dialler;

pub use acceptor::{Acceptor, SecretFor};
pub use dialler::{Dialler, Target};

use crate::hello::{Features, Hello, Proof, Purpose, Refusal, Verdict, VersionRange, Welcome};
use crate::id::{EpochId, PeerId, RunId};
use core::fmt;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// What one end says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Who it is; zero for a master.
    pub peer: PeerId,
    /// The run that it is part of, zero for one that does not know it yet.
    pub run: RunId,
    /// The versions that it speaks.
    pub versions: VersionRange,
    /// What it can do beyond that.
    pub features: Features,
}

impl Identity {
    /// An end with the versions and features of this build.
    pub fn new(peer: PeerId, run: RunId) -> Self {
        Self { peer, run, versions: VersionRange::OURS, features: Features::default() }
    }
}

/// What both sides must know: a join token, an epoch's key, or nothing. It is never printed.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// The secret of those who have none.
    pub const NONE: Self = Self(Vec::new());

    /// The token that guards a master. An empty one is none.
    pub fn token(token: &str) -> Self {
        Self(token.as_bytes().to_vec())
    }

    /// The key of an epoch, as the master gave it to its members.
    pub fn epoch_key(key: &[u8; 32]) -> Self {
        Self(key.to_vec())
    }

    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_none() { "Secret(none)" } else { "Secret(..)" })
    }
}

/// A connection whose two ends have proven themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Established {
    /// The other end; zero if it is a master.
    pub peer: PeerId,
    /// What the connection is for.
    pub purpose: Purpose,
    /// The epoch whose key was proven; zeros on a control connection.
    pub epoch: EpochId,
    /// The run that both are part of; zero if neither knows.
    pub run: RunId,
    /// The version that the connection speaks.
    pub version: u16,
    /// What both can do.
    pub features: Features,
}

/// Why two ends may not talk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The other end speaks something else altogether.
    #[error("the other end does not speak Ringfold")]
    NotRingfold,
    /// No version is spoken by both.
    #[error("no common version: we speak {ours}, the other end {theirs}")]
    Version {
        /// What we speak.
        ours: VersionRange,
        /// What the other end speaks.
        theirs: VersionRange,
    },
    /// The two ends are parts of different runs.
    #[error("the other end is part of {theirs}, we are part of {ours}")]
    WrongRun {
        /// Ours.
        ours: RunId,
        /// The other end's.
        theirs: RunId,
    },
    /// Someone else answered at that address.
    #[error("{found} answered where {expected} was expected")]
    WrongPeer {
        /// Whom we dialled.
        expected: PeerId,
        /// Who answered.
        found: PeerId,
    },
    /// The acceptor wants a token, the dialler has none.
    #[error("a join token is required, and the dialler has none")]
    TokenMissing,
    /// The dialler has a token, the acceptor none: it is not the master that the user meant to reach.
    #[error("the dialler has a join token, but the acceptor is not guarded by one")]
    TokenUnexpected,
    /// The dialler's token is not the acceptor's.
    #[error("the join token is wrong")]
    BadToken,
    /// The dialler does not hold the key of the epoch that it claims to be a member of.
    #[error("the dialler did not prove that it is a member of the epoch")]
    NotAMember,
    /// The acceptor did not prove that it knows the secret, although it took our proof of it.
    #[error("the acceptor did not prove that it knows the secret")]
    Impostor,
    /// The acceptor does not want the connection.
    #[error("the connection was refused: {0}")]
    Refused(Refusal),
    /// The other end said what nobody who follows the protocol would say.
    #[error("the other end broke the protocol: {0}")]
    Misbehaved(&'static str),
    /// The connection ended within the handshake.
    #[error("the connection ended before the {missing} was complete")]
    Truncated {
        /// The block that was waited for.
        missing: &'static str,
    },
}

impl HandshakeError {
    /// Whether dialling again may succeed without anyone changing anything.
    pub fn is_retryable(&self) -> bool {
        match self {
            // The epoch's description may still be on its way to the other member.
            Self::Refused(Refusal::UnknownEpoch | Refusal::Full) | Self::Truncated { .. } => true,
            Self::Refused(_) | Self::NotRingfold | Self::Version { .. } | Self::WrongRun { .. } => false,
            Self::WrongPeer { .. } | Self::TokenMissing | Self::TokenUnexpected | Self::BadToken => false,
            Self::NotAMember | Self::Impostor | Self::Misbehaved(_) => false,
        }
    }

    /// The error for a proof that does not hold, in the words of the connection's purpose.
    fn bad_proof(purpose: Purpose) -> Self {
        if purpose == Purpose::Control { Self::BadToken } else { Self::NotAMember }
    }
}

/// The bytes of both opening blocks, which every proof covers as they travelled.
#[derive(Clone)]
struct Transcript {
    hello: [u8; Hello::BYTES],
    welcome: [u8; Welcome::BYTES],
}

impl Transcript {
    /// What the dialler's proof is made of.
    fn dialler(&self, secret: &Secret) -> Hmac<Sha256> {
        keyed(secret, b"ringfold handshake 1: dialler   ").chain_update(self.hello).chain_update(self.welcome)
    }

    /// What the acceptor's proof is made of. It covers the verdict too: a refusal can't become consent.
    fn acceptor(
        &self,
        secret: &Secret,
        proof: &Proof,
        covered: &[u8; Verdict::COVERED_BYTES],
    ) -> Hmac<Sha256> {
        keyed(secret, b"ringfold handshake 1: acceptor  ")
            .chain_update(self.hello)
            .chain_update(self.welcome)
            .chain_update(proof.0)
            .chain_update(covered)
    }
}

/// Labels are of one length, so that no label is the beginning of another with its data.
fn keyed(secret: &Secret, label: &[u8; 32]) -> Hmac<Sha256> {
    Hmac::<Sha256>::new_from_slice(&secret.0).expect("HMAC takes keys of any length").chain_update(label)
}

/// Collects one fixed block at a time, and never takes a byte beyond it.
#[derive(Clone, Debug)]
struct Intake {
    bytes: [u8; Self::BYTES_MAX],
    have: usize,
}

impl Intake {
    const BYTES_MAX: usize = if Hello::BYTES > Welcome::BYTES { Hello::BYTES } else { Welcome::BYTES };

    fn new() -> Self {
        Self { bytes: [0; Self::BYTES_MAX], have: 0 }
    }

    /// Takes what the block still lacks from the front of `input`. The block, once it is complete.
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

    /// Whether what has arrived of a block can still become one with this magic. A stranger is told
    /// from its first byte, and need not send a whole block before it is turned away.
    fn may_begin(&self, magic: &[u8; 8]) -> bool {
        let seen = self.have.min(magic.len());
        self.bytes[..seen] == magic[..seen]
    }
}
