//! The four fixed blocks that open every connection: hello, welcome, proof and verdict.
//!
//! These layouts are fixed for ever, so that any two versions can at least tell each other why they
//! do not talk. All numbers are little-endian. Reserved bytes are sent as zeros and ignored by the
//! receiver, but proofs cover them: they can be given a meaning later, and nobody can change them on
//! the way. [`crate::handshake`] says in which order the blocks travel, and why.

use crate::id::{EpochId, GroupId, Incarnation, PeerId, RunId};
use core::fmt;
use zerocopy::byteorder::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The dialler's first bytes, decoded.
///
/// ```
/// use ringfold_proto::hello::{Features, Hello, Nonce, Purpose, VersionRange};
/// use ringfold_proto::id::{EpochId, PeerId, RunId};
///
/// let hello = Hello {
///     versions: VersionRange::OURS,
///     purpose: Purpose::Control,
///     guarded: true,
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
    /// The versions that the dialler speaks.
    pub versions: VersionRange,
    /// What the connection is for.
    pub purpose: Purpose,
    /// Whether the dialler has a secret to prove; lets errors tell a wrong token from a missing one.
    pub guarded: bool,
    /// What the dialler can do beyond its version.
    pub features: Features,
    /// The run that it wants to be part of, [`RunId`] zero for any.
    pub run: RunId,
    /// Who dials.
    pub session: PeerId,
    /// The epoch whose key it holds; zeros on a control connection.
    pub epoch: EpochId,
    /// Its part of the challenge: never used before, unpredictable.
    pub nonce: Nonce,
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Purpose {
    /// A peer talks to its master.
    Control = 1,
    /// Two members exchange data frames.
    Data = 2,
    /// One member fetches shared state from another.
    State = 3,
    /// One member measures the way to another.
    Probe = 4,
    /// Two members put into each other's windows.
    Window = 5,
}

impl Purpose {
    /// All purposes.
    pub const ALL: [Self; 5] = [Self::Control, Self::Data, Self::State, Self::Probe, Self::Window];

    /// The purpose with this number.
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
        })
    }
}

/// The versions of the protocol that one side speaks, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VersionRange {
    /// The oldest.
    pub min: u16,
    /// The newest.
    pub max: u16,
}

impl VersionRange {
    /// What this build speaks.
    pub const OURS: Self = Self { min: 1, max: 1 };

    /// The newest version that both sides speak.
    ///
    /// ```
    /// use ringfold_proto::hello::VersionRange;
    /// let old = VersionRange { min: 1, max: 2 };
    /// assert_eq!(old.meet(VersionRange { min: 2, max: 5 }), Some(2));
    /// assert_eq!(old.meet(VersionRange { min: 3, max: 5 }), None);
    /// ```
    pub fn meet(self, other: Self) -> Option<u16> {
        let newest = self.max.min(other.max);
        (newest >= self.min.max(other.min)).then_some(newest)
    }

    /// Whether a version is one of these.
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

/// What one side can do beyond its version, one bit each; a connection uses what both can do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Features(pub u64);

impl Features {
    /// Data frames may carry a checksum of their payload.
    pub const CHECKSUM: Self = Self(1);

    /// What both can do.
    pub fn both(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether all of `other` is among these.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// 32 bytes that one side uses once. They come from the driver's cryptographic generator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Nonce(pub [u8; 32]);

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nonce({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}

/// What the acceptor makes of a hello, or of a proof.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    /// Go on.
    Ok,
    /// No version is spoken by both.
    Version,
    /// The acceptor serves another run.
    WrongRun,
    /// The acceptor wants a secret to be proven and the dialler has none.
    SecretMissing,
    /// The dialler wants a secret to be proven and the acceptor has none.
    SecretUnexpected,
    /// The dialler's proof does not fit the acceptor's secret.
    BadProof,
    /// The acceptor does not want this connection.
    Refused(Refusal),
}

/// Why an acceptor does not want a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Refusal {
    /// It has no key for the claimed epoch: not yet, or no longer.
    #[error("it does not know that epoch (yet)")]
    UnknownEpoch,
    /// The dialler is not a member of the claimed epoch.
    #[error("the dialler is not a member of that epoch")]
    NotAMember,
    /// This acceptor does not serve connections of that purpose.
    #[error("it serves no such connections")]
    WrongPurpose,
    /// The dialler bears the acceptor's own id: it dialled itself, or was reflected.
    #[error("it was dialled by itself")]
    Itself,
    /// It has as many connections as it can bear.
    #[error("it has too many connections")]
    Full,
    /// It is about to go away.
    #[error("it is closing")]
    Closing,
    /// A reason that this version does not know.
    #[error("reason {0}, which this version does not know")]
    Other(u8),
}

impl Status {
    /// The number on the wire.
    pub fn number(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Version => 1,
            Self::WrongRun => 2,
            Self::SecretMissing => 3,
            Self::SecretUnexpected => 4,
            Self::BadProof => 5,
            Self::Refused(Refusal::UnknownEpoch) => 16,
            Self::Refused(Refusal::NotAMember) => 17,
            Self::Refused(Refusal::WrongPurpose) => 18,
            Self::Refused(Refusal::Itself) => 19,
            Self::Refused(Refusal::Full) => 20,
            Self::Refused(Refusal::Closing) => 21,
            Self::Refused(Refusal::Other(number)) => number,
        }
    }

    /// The status with this number. Every number is one: what is not known is a refusal.
    pub fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Ok,
            1 => Self::Version,
            2 => Self::WrongRun,
            3 => Self::SecretMissing,
            4 => Self::SecretUnexpected,
            5 => Self::BadProof,
            16 => Self::Refused(Refusal::UnknownEpoch),
            17 => Self::Refused(Refusal::NotAMember),
            18 => Self::Refused(Refusal::WrongPurpose),
            19 => Self::Refused(Refusal::Itself),
            20 => Self::Refused(Refusal::Full),
            21 => Self::Refused(Refusal::Closing),
            other => Self::Refused(Refusal::Other(other)),
        }
    }
}

/// The acceptor's answer to a hello, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// The version that the connection will speak, 0 if none.
    pub version: u16,
    /// What the acceptor makes of the hello.
    pub status: Status,
    /// Whether the acceptor has a secret to prove.
    pub guarded: bool,
    /// The versions that the acceptor speaks.
    pub versions: VersionRange,
    /// What both can do.
    pub features: Features,
    /// The run that the acceptor serves.
    pub run: RunId,
    /// Who accepts; zero for a master.
    pub session: PeerId,
    /// Its part of the challenge: never used before, unpredictable.
    pub nonce: Nonce,
}

/// The dialler's proof that it knows the secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proof(pub [u8; 32]);

/// The acceptor's last word, with its own proof where the dialler's held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// What the acceptor makes of the proof.
    pub status: Status,
    /// The acceptor's proof that it knows the secret; zeros unless the status is [`Status::Ok`].
    pub proof: [u8; 32],
}

/// Why bytes are none of the four blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadBlock {
    /// Too few bytes.
    #[error("the block has {need} bytes, not {have}")]
    Length {
        /// The size of the block.
        need: usize,
        /// What there was.
        have: usize,
    },
    /// The first bytes are not Ringfold's.
    #[error("it does not begin like Ringfold")]
    Magic,
    /// The purpose is none that this version knows.
    #[error("purpose {0} is not known")]
    Purpose(u8),
}

const GUARDED: u8 = 1;

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

/// The block at the front of `bytes`, if there are enough and they begin with `magic`.
fn layout<'b, L: FromBytes + KnownLayout + Immutable + Unaligned>(
    bytes: &'b [u8],
    magic: &[u8; 8],
) -> Result<&'b L, BadBlock> {
    let (layout, _) = L::ref_from_prefix(bytes)
        .map_err(|_| BadBlock::Length { need: size_of::<L>(), have: bytes.len() })?;
    if bytes.starts_with(magic) { Ok(layout) } else { Err(BadBlock::Magic) }
}

impl Hello {
    /// The size on the wire.
    pub const BYTES: usize = size_of::<HelloLayout>();
    /// How it begins.
    pub const MAGIC: [u8; 8] = *b"RINGFOLD";

    /// The bytes on the wire.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(HelloLayout {
            magic: Self::MAGIC,
            version_min: self.versions.min.into(),
            version_max: self.versions.max.into(),
            purpose: self.purpose as u8,
            flags: if self.guarded { GUARDED } else { 0 },
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

    /// Reads the first [`Self::BYTES`] of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadBlock> {
        let layout: &HelloLayout = layout(bytes, &Self::MAGIC)?;
        Ok(Self {
            versions: VersionRange { min: layout.version_min.get(), max: layout.version_max.get() },
            purpose: Purpose::from_number(layout.purpose).ok_or(BadBlock::Purpose(layout.purpose))?,
            guarded: layout.flags & GUARDED != 0,
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
    /// The size on the wire.
    pub const BYTES: usize = size_of::<WelcomeLayout>();
    /// How it begins: unlike a hello, so that an echo is not taken for an answer.
    pub const MAGIC: [u8; 8] = *b"RFWELCOM";

    /// The bytes on the wire.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(WelcomeLayout {
            magic: Self::MAGIC,
            version: self.version.into(),
            status: self.status.number(),
            flags: if self.guarded { GUARDED } else { 0 },
            version_min: self.versions.min.into(),
            version_max: self.versions.max.into(),
            features: self.features.0.into(),
            run: self.run.0.into(),
            session: self.session.0.into(),
            nonce: self.nonce.0,
            reserved: [0; 40],
        })
    }

    /// Reads the first [`Self::BYTES`] of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadBlock> {
        let layout: &WelcomeLayout = layout(bytes, &Self::MAGIC)?;
        Ok(Self {
            version: layout.version.get(),
            status: Status::from_number(layout.status),
            guarded: layout.flags & GUARDED != 0,
            versions: VersionRange { min: layout.version_min.get(), max: layout.version_max.get() },
            features: Features(layout.features.get()),
            run: RunId(layout.run.get()),
            session: PeerId(layout.session.get()),
            nonce: Nonce(layout.nonce),
        })
    }
}

impl Proof {
    /// The size on the wire.
    pub const BYTES: usize = 32;
}

impl Verdict {
    /// The size on the wire.
    pub const BYTES: usize = size_of::<VerdictLayout>();
    /// The bytes before the proof, which the proof covers.
    pub const COVERED_BYTES: usize = Self::BYTES - Proof::BYTES;
    /// How it begins.
    pub const MAGIC: [u8; 8] = *b"RFVERDCT";

    /// The bytes on the wire.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(VerdictLayout {
            magic: Self::MAGIC,
            status: self.status.number(),
            reserved: [0; 23],
            proof: self.proof,
        })
    }

    /// Reads the first [`Self::BYTES`] of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadBlock> {
        let layout: &VerdictLayout = layout(bytes, &Self::MAGIC)?;
        Ok(Self { status: Status::from_number(layout.status), proof: layout.proof })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_are_fixed_for_ever() {
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
            guarded: false,
            versions: VersionRange::OURS,
            features: Features::CHECKSUM,
            run: RunId(1),
            session: PeerId(2),
            nonce: Nonce([3; 32]),
        };
        let mut bytes = welcome.encode();
        bytes[Welcome::BYTES - 40..].fill(0xff);
        assert_eq!(Welcome::decode(&bytes), Ok(welcome));
    }

    #[test]
    fn an_inverted_range_meets_nothing() {
        let inverted = VersionRange { min: 9, max: 1 };
        assert_eq!(inverted.meet(VersionRange { min: 0, max: u16::MAX }), None);
    }
}
