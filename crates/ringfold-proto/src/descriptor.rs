//! The arguments of a collective, and the fingerprint by which peers detect that theirs differ.
#![allow(missing_docs)] // Fields are named for what they hold.

use crate::dtype::DType;
use crate::id::Rank;
use crate::integrity::Integrity;
use crate::quantization::Quantization;
use crate::reduce_op::ReduceOp;
use crate::tuning::Algorithm;
use core::fmt;
use serde::{Deserialize, Serialize};

/// A collective.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Collective {
    /// All ranks get the reduction of all buffers.
    AllReduce,
    /// Rank r gets the r-th part of the reduction.
    ReduceScatter,
    /// All ranks get the parts of all ranks, in rank order.
    AllGather,
    /// All ranks get the root's buffer.
    Broadcast { root: Rank },
    /// No rank leaves before all ranks have entered.
    Barrier,
    /// The root gets the reduction of all buffers.
    Reduce { root: Rank },
    /// The root gets the parts of all ranks.
    Gather { root: Rank },
    /// Each rank gets its part of the root's buffer.
    Scatter { root: Rank },
    /// Each rank gets its part of every buffer.
    AllToAll,
    /// One rank sends its buffer to another. The other ranks do not take part.
    Transfer { from: Rank, to: Rank },
}

impl Collective {
    /// A number for each collective, whatever its ranks.
    pub fn number(self) -> u64 {
        self.table_row().0
    }

    /// The number in fingerprints, the name in texts, and the root.
    fn table_row(self) -> (u64, &'static str, Option<Rank>) {
        match self {
            Self::AllReduce => (1, "all-reduce", None),
            Self::ReduceScatter => (2, "reduce-scatter", None),
            Self::AllGather => (3, "all-gather", None),
            Self::Broadcast { root } => (4, "broadcast from", Some(root)),
            Self::Barrier => (5, "barrier", None),
            Self::Reduce { root } => (6, "reduce to", Some(root)),
            Self::Gather { root } => (7, "gather to", Some(root)),
            Self::Scatter { root } => (8, "scatter from", Some(root)),
            Self::AllToAll => (9, "all-to-all", None),
            Self::Transfer { .. } => (10, "transfer", None),
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        let (_, name, root) = self.table_row();
        if root.is_some() { name.split(' ').next().unwrap_or(name) } else { name }
    }

    /// The root, if it has one.
    pub fn root(self) -> Option<Rank> {
        self.table_row().2
    }

    /// The name of the call, as in programs.
    pub fn call(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Broadcast { .. } => "broadcast",
            Self::Barrier => "barrier",
            Self::Reduce { .. } => "reduce",
            Self::Gather { .. } => "gather",
            Self::Scatter { .. } => "scatter",
            Self::AllToAll => "all_to_all",
            Self::Transfer { .. } => "send or recv",
        }
    }
}

/// A weight in a weighted average. Stored as bits, so that descriptors compare and hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Weight(u64);

impl Weight {
    pub const ONE: Self = Self(0x3ff0_0000_0000_0000);

    /// A weight; `None` if it is negative, infinite or not a number.
    pub fn new(value: f64) -> Option<Self> {
        (value.is_finite() && value >= 0.0).then(|| Self(value.to_bits()))
    }

    pub fn value(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self::ONE
    }
}

/// A collective as one peer called it.
///
/// `count` is the number of elements of the *whole*: for all-reduce, reduce, broadcast and transfer the buffer, for
/// reduce-scatter, scatter and all-to-all the input, for all-gather and gather the output. It is 0 for a barrier, and
/// where only pairs of ranks know their sizes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(into = "WireDescriptor", try_from = "WireDescriptor")]
pub struct Descriptor {
    pub collective: Collective,
    pub count: u64,
    pub dtype: DType,
    pub op: ReduceOp,
    /// The quantization on the wire.
    pub quantization: Option<Quantization>,
    /// This peer's weight in a weighted average. Either all peers have one or none; the values may differ. The sum of the
    /// weights is the last element, and `count` includes it.
    pub weight: Option<Weight>,
    /// Only plans whose operand order depends on the members alone.
    pub reproducible: bool,
    /// Contributions are kept apart, so that survivors can resume the operation when a member is lost.
    pub resume: bool,
    /// What is checked beside the arguments.
    pub integrity: Integrity,
    /// Operations of higher priority go first. Peers may differ.
    pub priority: u8,
    /// This peer's deadline in milliseconds, 0 for the default. Peers may differ.
    pub deadline_ms: u32,
}

impl Descriptor {
    /// An all-reduce with default options.
    pub fn all_reduce(count: u64, dtype: DType, op: ReduceOp) -> Self {
        Self {
            collective: Collective::AllReduce,
            count,
            dtype,
            op,
            quantization: None,
            weight: None,
            reproducible: false,
            resume: false,
            integrity: Integrity::NONE,
            priority: 0,
            deadline_ms: 0,
        }
    }

    pub fn with_collective(self, collective: Collective) -> Self {
        Self { collective, ..self }
    }

    pub fn bytes(&self) -> u64 {
        self.count.saturating_mul(self.dtype.bytes() as u64)
    }

    /// Whether survivors can resume it, if all pairs are linked.
    pub fn is_resumable(&self) -> bool {
        self.resume && self.collective == Collective::AllReduce && self.quantization.is_none()
    }

    /// The descriptor with the fields in which peers may differ set to defaults.
    pub fn shared(&self) -> Self {
        Self { weight: self.weight.map(|_| Weight::ONE), priority: 0, deadline_ms: 0, ..*self }
    }

    /// A hash of everything that must be equal on all peers. Every data frame carries it.
    pub fn fingerprint(&self, algorithm: Algorithm, chunk_bytes: u32) -> u64 {
        let (number, _, root) = self.collective.table_row();
        let root = match self.collective {
            Collective::Transfer { from, to } => 1 << 32 | u64::from(from.0) << 16 | u64::from(to.0),
            _ => number << 16 | root.map_or(0, |root| u64::from(root.0)),
        };
        let quantization =
            self.quantization.map_or(0, |q| 1 << 16 | (q.algorithm as u64) << 8 | u64::from(q.dtype as u8));
        let shape = u64::from(self.dtype as u8) << 40
            | u64::from(self.op as u8) << 32
            | u64::from(self.reproducible) << 24
            | u64::from(self.weight.is_some()) << 25
            | u64::from(self.integrity.bits()) << 26
            | u64::from(self.resume) << 28
            | algorithm as u64;
        [root, self.count, quantization, shape, u64::from(chunk_bytes)].into_iter().fold(0x5bd1_e995, mix)
    }
}

/// A descriptor as it is sent: `reproducible`, `integrity` and `resume` are one byte.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct WireDescriptor {
    collective: Collective,
    count: u64,
    dtype: DType,
    op: ReduceOp,
    quantization: Option<Quantization>,
    weight: Option<Weight>,
    /// Reproducible 1, the bits of integrity 2 and 4, resume 8.
    flags: u8,
    priority: u8,
    deadline_ms: u32,
}

impl From<Descriptor> for WireDescriptor {
    fn from(of: Descriptor) -> Self {
        let Descriptor { collective, count, dtype, op, quantization, weight, priority, deadline_ms, .. } = of;
        let flags = u8::from(of.reproducible) | of.integrity.bits() << 1 | u8::from(of.resume) << 3;
        Self { collective, count, dtype, op, quantization, weight, flags, priority, deadline_ms }
    }
}

impl TryFrom<WireDescriptor> for Descriptor {
    type Error = &'static str;

    fn try_from(wire: WireDescriptor) -> Result<Self, Self::Error> {
        let WireDescriptor {
            collective,
            count,
            dtype,
            op,
            quantization,
            weight,
            flags,
            priority,
            deadline_ms,
        } = wire;
        if flags > 15 {
            return Err("unknown flags of a descriptor");
        }
        let integrity = Integrity::from_bits(flags >> 1 & 3).unwrap_or_default();
        let (reproducible, resume) = (flags & 1 != 0, flags & 8 != 0);
        Ok(Self {
            collective,
            count,
            dtype,
            op,
            quantization,
            weight,
            reproducible,
            resume,
            integrity,
            priority,
            deadline_ms,
        })
    }
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Collective::{AllReduce, Reduce, ReduceScatter};
        match (self.collective, self.collective.table_row()) {
            (Collective::Barrier, (_, name, _)) => return f.write_str(name),
            (Collective::Transfer { from, to }, (_, name, _)) => write!(f, "{name} from {from} to {to}")?,
            (_, (_, name, Some(root))) => write!(f, "{name} {root}")?,
            (_, (_, name, None)) => f.write_str(name)?,
        }
        // Users do not count the element for the sum of the weights.
        let count = self.count.saturating_sub(u64::from(self.weight.is_some()));
        f.write_str(" (")?;
        if matches!(self.collective, AllReduce | ReduceScatter | Reduce { .. }) {
            write!(f, "{} of ", self.op)?;
        }
        write!(f, "{count} x {}", self.dtype)?;
        let options = [
            (self.weight.is_some(), "weighted"),
            (self.reproducible, "reproducible"),
            (self.resume, "resume"),
        ];
        for (_, name) in options.into_iter().filter(|(is_on, _)| *is_on) {
            write!(f, ", {name}")?;
        }
        if let Some(q) = self.quantization {
            write!(f, ", {:?} to {}", q.algorithm, q.dtype)?;
        }
        if self.integrity != Integrity::NONE {
            write!(f, ", integrity {}", self.integrity)?;
        }
        write!(f, ")")
    }
}

/// Mixes a value into a 64-bit hash (the finalizer of SplitMix64).
pub fn mix(state: u64, value: u64) -> u64 {
    let mut x = state.rotate_left(23) ^ value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_cover_all_fields_that_must_be_equal() {
        let base = Descriptor {
            weight: Some(Weight::ONE),
            ..Descriptor::all_reduce(100, DType::F32, ReduceOp::Avg)
        };
        let print = |d: &Descriptor| d.fingerprint(Algorithm::Ring, 4096);
        let mine = Descriptor { weight: Weight::new(3.0), priority: 9, deadline_ms: 5, ..base };
        assert_eq!(print(&base), print(&mine));
        assert_eq!(base.shared(), mine.shared());
        let others = [
            Descriptor { count: 101, ..base },
            Descriptor { dtype: DType::I32, ..base },
            Descriptor { op: ReduceOp::Max, ..base },
            Descriptor { reproducible: true, ..base },
            Descriptor { resume: true, ..base },
            Descriptor { integrity: Integrity { payloads: true, results: false }, ..base },
            Descriptor { integrity: Integrity { payloads: false, results: true }, ..base },
            Descriptor { weight: None, ..base },
            base.with_collective(Collective::Broadcast { root: Rank(0) }),
            base.with_collective(Collective::Broadcast { root: Rank(1) }),
        ];
        for other in others {
            assert_ne!(print(&base), print(&other), "{other}");
        }
        assert_ne!(print(&base), base.fingerprint(Algorithm::Direct, 4096));
        assert_ne!(print(&base), base.fingerprint(Algorithm::Ring, 8192));
    }

    #[test]
    fn integrity_and_resume_are_sent_in_the_byte_of_reproducible() {
        let plain =
            Descriptor { reproducible: true, ..Descriptor::all_reduce(100, DType::F32, ReduceOp::Avg) };
        let encode = |d: &Descriptor| postcard::to_allocvec(d).unwrap();
        let mut bytes = encode(&plain);
        let at = bytes.len() - 3;
        for bits in 0..4 {
            bytes[at] = 1 | bits << 1;
            let checked = Descriptor { integrity: Integrity::from_bits(bits).unwrap(), ..plain };
            assert_eq!(encode(&checked), bytes);
            assert_eq!(postcard::from_bytes::<Descriptor>(&bytes), Ok(checked));
        }
        bytes[at] = 9;
        assert_eq!(postcard::from_bytes::<Descriptor>(&bytes), Ok(Descriptor { resume: true, ..plain }));
        bytes[at] = 16;
        assert!(postcard::from_bytes::<Descriptor>(&bytes).is_err());
    }

    #[test]
    fn a_weight_is_finite_and_not_negative() {
        assert_eq!(Weight::ONE.value(), 1.0);
        assert!(Weight::new(f64::NAN).is_none() && Weight::new(-1.0).is_none());
    }
}
