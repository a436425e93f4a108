//! The four fixed blocks that open every connection: hello, welcome, proof and verdict.
//!
//! These layouts never change, so that any two versions can tell each other why they are incompatible. All numbers are
//! little-endian. Reserved bytes are sent as zeros and ignored, but proofs cover them. [`crate::handshake`] describes
//! the order of the blocks.
#![allow(missing_docs)] // Fields are named for what they hold.

use crate::handshake::CertificateProblem;
use crate::id::{EpochId, GroupId, Incarnation, PeerId, RunId};
use core::fmt;
use zerocopy::byteorder::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The dialler's first block, decoded.
///
/// ```
/// use ringfold_proto::hello::{Features, Hello, Nonce, Purpose, VersionRange};
/// use ringfold_proto::id::{EpochId, PeerId, RunId};
///
/// let hello = Hello {
///     versions: VersionRange::SUPPORTED,
///     purpose: Purpose::Control,
///     has_secret: true,
///     features: Features::default(),
///     run: RunId(0),
///     session: PeerId(7),
///     epoch: EpochId::default(),
///     nonce: Nonce([1; 32]),
/// };
/// assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    pub versions: VersionRange,
    pub purpose: Purpose,
    /// Whether the dialler has a secret. It distinguishes a wrong token from a missing one.
    pub has_secret: bool,
    pub features: Features,
    /// The run that it wants to join, zero for any.
    pub run: RunId,
    pub session: PeerId,
    /// The epoch whose key is the secret; zeros on a control connection.
    pub epoch: EpochId,
    pub nonce: Nonce,
}

/// The purpose of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Purpose {
    /// Control messages between a peer and its master.
    Control = 1,
    /// Data frames between two members.
    Data = 2,
    /// A member fetches shared state from another.
    State = 3,
    /// A member measures its link to another.
    Probe = 4,
    /// Puts into the windows of two ranks.
    Window = 5,
    /// One leg of a connection between two members that goes through a relay.
    Relay = 6,
    /// Messages from one master to another.
    Masters = 7,
    /// Questions of `ringfold doctor`.
    Doctor = 8,
    /// An observer asks a master for the status of the run.
    Observe = 9,
    /// The same, and commands of an operator.
    Admin = 10,
}

impl Purpose {
    pub const ALL: [Self; 10] = [
        Self::Control,
        Self::Data,
        Self::State,
        Self::Probe,
        Self::Window,
        Self::Relay,
        Self::Masters,
        Self::Doctor,
        Self::Observe,
        Self::Admin,
    ];

    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|p| *p as u8 == number)
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Control => "control",
            Self::Data => "data",
            Self::State => "state",
            Self::Probe => "probe",
            Self::Window => "window",
            Self::Relay => "relay",
            Self::Masters => "masters",
            Self::Doctor => "doctor",
            Self::Observe => "observe",
            Self::Admin => "admin",
        })
    }
}

/// The protocol versions that one end supports, inclusive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VersionRange {
    pub min: u16,
    pub max: u16,
}

impl VersionRange {
    pub const SUPPORTED: Self = Self { min: 1, max: 1 };

    /// The newest version that both ends support.
    ///
    /// ```
    /// use ringfold_proto::hello::VersionRange;
    /// let old = VersionRange { min: 1, max: 2 };
    /// assert_eq!(old.newest_common(VersionRange { min: 2, max: 5 }), Some(2));
    /// assert_eq!(old.newest_common(VersionRange { min: 3, max: 5 }), None);
    /// ```
    pub fn newest_common(self, other: Self) -> Option<u16> {
        let newest = self.max.min(other.max);
        (newest >= self.min.max(other.min)).then_some(newest)
    }

    pub fn contains(self, version: u16) -> bool {
        (self.min..=self.max).contains(&version)
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min == self.max {
            write!(f, "version {}", self.min)
        } else {
            write!(f, "versions {} to {}", self.min, self.max)
        }
    }
}

/// Optional features, one bit each. A connection uses those that both ends support.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Features(pub u64);

impl Features {
    /// Operations may check their payloads and results ([`Integrity`](crate::integrity::Integrity)).
    pub const INTEGRITY: Self = Self(1);
    /// A sync of the shared state may run beside collectives.
    pub const SYNC_BESIDE: Self = Self(2);
    /// Peers may be the ranks of a replica, which join and leave together.
    pub const REPLICAS: Self = Self(4);
    /// A peer may be asked to examine its host and its neighbours.
    pub const EXAMINE: Self = Self(8);
    /// Those of this build.
    pub const SUPPORTED: Self =
        Self(Self::INTEGRITY.0 | Self::SYNC_BESIDE.0 | Self::REPLICAS.0 | Self::EXAMINE.0);

    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// 32 bytes of the driver's cryptographic generator, used once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Nonce(pub [u8; 32]);

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nonce({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}

/// The acceptor's answer to a hello, or to a proof.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    /// Accepted so far.
    Ok,
    Version,
    WrongRun,
    /// The acceptor requires a secret, and the dialler has none.
    SecretMissing,
    /// The dialler has a secret, and the acceptor has none.
    SecretUnexpected,
    BadProof,
    Rejected(ConnectionRejection),
}

/// Why an acceptor rejects a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum ConnectionRejection {
    /// It has no key for the epoch: not yet, or no longer.
    #[error("unknown epoch (not known yet, or no longer)")]
    UnknownEpoch,
    #[error("the dialler is not a member of that epoch")]
    NotAMember,
    /// It does not accept connections of that purpose.
    #[error("unsupported purpose")]
    WrongPurpose,
    /// The dialler has the acceptor's own id: it dialled itself, or its blocks were reflected.
    #[error("the dialler has the acceptor's own id")]
    Itself,
    #[error("too many connections")]
    Full,
    #[error("shutting down")]
    Closing,
    /// The dialler does not encrypt, and the acceptor requires it.
    #[error("connections to it must be encrypted, and this end does not encrypt")]
    Plaintext,
    /// The dialler's id does not belong to its keys.
    #[error("the dialler's id does not belong to its keys")]
    WrongKeys,
    /// The dialler's certificate does not allow the connection.
    #[error("the certificate of the dialler {0}")]
    Certificate(CertificateProblem),
    /// It has neither a token nor certificates that tell operators from others.
    #[error("this master takes no commands: start it with --admin-token-file, or with certificates")]
    NoAdmin,
    #[error("unknown reason {0}")]
    Other(u8),
}

impl Status {
    const NUMBERS: [(u8, Self); 22] = [
        (0, Self::Ok),
        (1, Self::Version),
        (2, Self::WrongRun),
        (3, Self::SecretMissing),
        (4, Self::SecretUnexpected),
        (5, Self::BadProof),
        (16, Self::Rejected(ConnectionRejection::UnknownEpoch)),
        (17, Self::Rejected(ConnectionRejection::NotAMember)),
        (18, Self::Rejected(ConnectionRejection::WrongPurpose)),
        (19, Self::Rejected(ConnectionRejection::Itself)),
        (20, Self::Rejected(ConnectionRejection::Full)),
        (21, Self::Rejected(ConnectionRejection::Closing)),
        (22, Self::Rejected(ConnectionRejection::Plaintext)),
        (23, Self::Rejected(ConnectionRejection::WrongKeys)),
        (24, Self::Rejected(ConnectionRejection::Certificate(CertificateProblem::Missing))),
        (25, Self::Rejected(ConnectionRejection::Certificate(CertificateProblem::WrongCa))),
        (26, Self::Rejected(ConnectionRejection::Certificate(CertificateProblem::Expired))),
        (27, Self::Rejected(ConnectionRejection::Certificate(CertificateProblem::NotYetValid))),
        (28, Self::Rejected(ConnectionRejection::Certificate(CertificateProblem::Revoked))),
        (29, Self::Rejected(ConnectionRejection::Certificate(CertificateProblem::WrongRole))),
        (30, Self::Rejected(ConnectionRejection::Certificate(CertificateProblem::Invalid))),
        (31, Self::Rejected(ConnectionRejection::NoAdmin)),
    ];

    pub fn number(self) -> u8 {
        match self {
            Self::Rejected(ConnectionRejection::Other(number)) => number,
            known => Self::NUMBERS
                .iter()
                .find(|(_, status)| *status == known)
                .map_or(u8::MAX, |(number, _)| *number),
        }
    }

    /// The status with this number. Unknown numbers are rejections.
    pub fn from_number(number: u8) -> Self {
        let known = Self::NUMBERS.iter().find(|(known, _)| *known == number);
        known.map_or(Self::Rejected(ConnectionRejection::Other(number)), |(_, status)| *status)
    }
}

/// The acceptor's answer to a hello, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// The version of the connection, 0 if none.
    pub version: u16,
    pub status: Status,
    pub has_secret: bool,
    pub versions: VersionRange,
    pub features: Features,
    pub run: RunId,
    /// The id of the acceptor; zero for a master.
    pub session: PeerId,
    pub nonce: Nonce,
}

/// The dialler's proof that it knows the secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proof(pub [u8; 32]);

/// The acceptor's answer to the proof, with its own proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    pub status: Status,
    /// The acceptor's proof that it knows the secret; zeros unless the status is [`Status::Ok`].
    pub proof: [u8; 32],
}

/// Why a block is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidBlock {
    #[error("invalid block of {have} bytes: must be {need}")]
    Length { need: usize, have: usize },
    #[error("invalid magic")]
    Magic,
    #[error("unknown purpose {0}")]
    Purpose(u8),
}

const HAS_SECRET: u8 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HelloLayout {
    magic: [u8; 8],
    version_min: U16,
    version_max: U16,
    purpose: u8,
    flags: u8,
    reserved: [u8; 2],
    features: U64,
    run: U128,
    session: U128,
    group: U32,
    reserved_too: U32,
    incarnation: U64,
    counter: U64,
    nonce: [u8; 32],
    reserved_last: [u8; 16],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WelcomeLayout {
    magic: [u8; 8],
    version: U16,
    status: u8,
    flags: u8,
    version_min: U16,
    version_max: U16,
    features: U64,
    run: U128,
    session: U128,
    nonce: [u8; 32],
    reserved: [u8; 40],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct VerdictLayout {
    magic: [u8; 8],
    status: u8,
    reserved: [u8; 23],
    proof: [u8; 32],
}

/// The block at the start of `bytes`, if it is complete and starts with `magic`.
fn decode_layout<'b, L: FromBytes + KnownLayout + Immutable + Unaligned>(
    bytes: &'b [u8],
    magic: &[u8; 8],
) -> Result<&'b L, InvalidBlock> {
    let (layout, _) = L::ref_from_prefix(bytes)
        .map_err(|_| InvalidBlock::Length { need: size_of::<L>(), have: bytes.len() })?;
    if bytes.starts_with(magic) { Ok(layout) } else { Err(InvalidBlock::Magic) }
}

impl Hello {
    pub const BYTES: usize = size_of::<HelloLayout>();
    pub const MAGIC: [u8; 8] = *b"RINGFOLD";

    pub fn encode(&self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(HelloLayout {
            magic: Self::MAGIC,
            version_min: self.versions.min.into(),
            version_max: self.versions.max.into(),
            purpose: self.purpose as u8,
            flags: if self.has_secret { HAS_SECRET } else { 0 },
            reserved: [0; 2],
            features: self.features.0.into(),
            run: self.run.0.into(),
            session: self.session.0.into(),
            group: self.epoch.group.0.into(),
            reserved_too: 0.into(),
            incarnation: self.epoch.incarnation.0.into(),
            counter: self.epoch.counter.into(),
            nonce: self.nonce.0,
            reserved_last: [0; 16],
        })
    }

    /// Decodes the first [`Self::BYTES`] of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidBlock> {
        let layout: &HelloLayout = decode_layout(bytes, &Self::MAGIC)?;
        Ok(Self {
            versions: VersionRange { min: layout.version_min.get(), max: layout.version_max.get() },
            purpose: Purpose::from_number(layout.purpose).ok_or(InvalidBlock::Purpose(layout.purpose))?,
            has_secret: layout.flags & HAS_SECRET != 0,
            features: Features(layout.features.get()),
            run: RunId(layout.run.get()),
            session: PeerId(layout.session.get()),
            epoch: EpochId {
                group: GroupId(layout.group.get()),
                incarnation: Incarnation(layout.incarnation.get()),
                counter: layout.counter.get(),
            },
            nonce: Nonce(layout.nonce),
        })
    }
}

impl Welcome {
    pub const BYTES: usize = size_of::<WelcomeLayout>();
    /// Its first bytes: not those of a hello, so that an echo is not mistaken for an answer.
    pub const MAGIC: [u8; 8] = *b"RFWELCOM";

    pub fn encode(&self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(WelcomeLayout {
            magic: Self::MAGIC,
            version: self.version.into(),
            status: self.status.number(),
            flags: if self.has_secret { HAS_SECRET } else { 0 },
            version_min: self.versions.min.into(),
            version_max: self.versions.max.into(),
            features: self.features.0.into(),
            run: self.run.0.into(),
            session: self.session.0.into(),
            nonce: self.nonce.0,
            reserved: [0; 40],
        })
    }

    /// Decodes the first [`Self::BYTES`] of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidBlock> {
        let layout: &WelcomeLayout = decode_layout(bytes, &Self::MAGIC)?;
        Ok(Self {
            version: layout.version.get(),
            status: Status::from_number(layout.status),
            has_secret: layout.flags & HAS_SECRET != 0,
            versions: VersionRange { min: layout.version_min.get(), max: layout.version_max.get() },
            features: Features(layout.features.get()),
            run: RunId(layout.run.get()),
            session: PeerId(layout.session.get()),
            nonce: Nonce(layout.nonce),
        })
    }
}

impl Proof {
    pub const BYTES: usize = 32;
}

impl Verdict {
    pub const BYTES: usize = size_of::<VerdictLayout>();
    /// The bytes before the proof, which the proof covers.
    pub const COVERED_BYTES: usize = Self::BYTES - Proof::BYTES;
    pub const MAGIC: [u8; 8] = *b"RFVERDCT";

    pub fn encode(&self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(VerdictLayout {
            magic: Self::MAGIC,
            status: self.status.number(),
            reserved: [0; 23],
            proof: self.proof,
        })
    }

    /// Decodes the first [`Self::BYTES`] of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidBlock> {
        let layout: &VerdictLayout = decode_layout(bytes, &Self::MAGIC)?;
        Ok(Self { status: Status::from_number(layout.status), proof: layout.proof })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_never_change() {
        let sizes = [Hello::BYTES, Welcome::BYTES, Proof::BYTES, Verdict::BYTES, Verdict::COVERED_BYTES];
        assert_eq!(sizes, [128, 128, 32, 64, 32]);
    }

    #[test]
    fn every_status_number_comes_back_as_itself() {
        for number in 0..=u8::MAX {
            assert_eq!(Status::from_number(number).number(), number);
        }
    }

    #[test]
    fn reserved_bytes_are_ignored() {
        let welcome = Welcome {
            version: 1,
            status: Status::Ok,
            has_secret: false,
            versions: VersionRange::SUPPORTED,
            features: Features::INTEGRITY,
            run: RunId(1),
            session: PeerId(2),
            nonce: Nonce([3; 32]),
        };
        let mut bytes = welcome.encode();
        bytes[Welcome::BYTES - 40..].fill(0xff);
        assert_eq!(Welcome::decode(&bytes), Ok(welcome));
    }

    #[test]
    fn an_inverted_range_has_no_common_version() {
        let inverted = VersionRange { min: 9, max: 1 };
        assert_eq!(inverted.newest_common(VersionRange { min: 0, max: u16::MAX }), None);
    }
}
