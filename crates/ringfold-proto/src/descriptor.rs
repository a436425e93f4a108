//! What a collective is asked to do, and the fingerprint by which peers notice that they were asked
//! for different things.

use crate::dtype::DType;
use crate::id::Rank;
use crate::quantization::Quantization;
use crate::reduce_op::ReduceOp;
use crate::tuning::Algorithm;
use core::fmt;
use serde::{Deserialize, Serialize};

/// Which collective.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Collective {
    /// Everyone gets the reduction of everyone's buffer.
    AllReduce,
    /// Rank r gets the r-th part of the reduction.
    ReduceScatter,
    /// Everyone gets everyone's part, in rank order.
    AllGather,
    /// Everyone gets the root's buffer.
    Broadcast {
        /// Whose buffer it is.
        root: Rank,
    },
    /// Nobody leaves before everyone has come.
    Barrier,
    /// The root ends with the combination of everyone's data.
    Reduce {
        /// Whose result it is.
        root: Rank,
    },
    /// The root ends with everyone's parts.
    Gather {
        /// Who gets them.
        root: Rank,
    },
    /// Everyone ends with its part of the root's data.
    Scatter {
        /// Whose data it is.
        root: Rank,
    },
    /// Everyone ends with its part of everyone's data.
    AllToAll,
    /// One rank's data goes to one other; nobody else takes part.
    Transfer {
        /// Whose data it is.
        from: Rank,
        /// Who gets it.
        to: Rank,
    },
}

impl Collective {
    /// Its number in fingerprints, its name in messages, and its root.
    fn row(self) -> (u64, &'static str, Option<Rank>) {
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
}

/// A share in a weighted average. Kept as bits, so that descriptors compare and hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Weight(u64);

impl Weight {
    /// The weight of a peer that names none.
    pub const ONE: Self = Self(0x3ff0_0000_0000_0000);

    /// A weight; `None` if it is negative, infinite or not a number.
    pub fn new(value: f64) -> Option<Self> {
        (value.is_finite() && value >= 0.0).then(|| Self(value.to_bits()))
    }

    /// The weight as a number.
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
/// `count` is the number of elements of the *whole*: for all-reduce, reduce, broadcast and transfer the
/// buffer, for reduce-scatter, scatter and all-to-all the input, for all-gather and gather the output. A barrier
/// has none, and neither has what only pairs of ranks know the sizes of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Descriptor {
    /// Which collective.
    pub collective: Collective,
    /// Elements of the whole.
    pub count: u64,
    /// Their type.
    pub dtype: DType,
    /// What is done with them.
    pub op: ReduceOp,
    /// Fewer bits on the wire.
    pub quantization: Option<Quantization>,
    /// This peer's share in a weighted average; peers may differ in it, and all of them have one or none.
    /// The sum of the weights is then the last of the elements, and `count` includes it.
    pub weight: Option<Weight>,
    /// Only plans whose operand order depends on member order alone.
    pub reproducible: bool,
    /// Higher goes first where operations compete; peers may differ.
    pub priority: u8,
    /// How long this peer is willing to wait, 0 for the default; peers may differ.
    pub deadline_ms: u32,
}

impl Descriptor {
    /// An all-reduce without quantisation, weight or deadline of its own.
    pub fn all_reduce(count: u64, dtype: DType, op: ReduceOp) -> Self {
        Self {
            collective: Collective::AllReduce,
            count,
            dtype,
            op,
            quantization: None,
            weight: None,
            reproducible: false,
            priority: 0,
            deadline_ms: 0,
        }
    }

    /// The same for another collective.
    pub fn with_collective(self, collective: Collective) -> Self {
        Self { collective, ..self }
    }

    /// Bytes of the whole.
    pub fn bytes(&self) -> u64 {
        self.count.saturating_mul(self.dtype.bytes() as u64)
    }

    /// The part of the descriptor that all peers must agree on; what is left out may differ.
    pub fn shared(&self) -> Self {
        Self { weight: self.weight.map(|_| Weight::ONE), priority: 0, deadline_ms: 0, ..*self }
    }

    /// What every data frame carries: 64 bits over all that must be equal for bytes to fit together.
    pub fn fingerprint(&self, algorithm: Algorithm, chunk_bytes: u32) -> u64 {
        let (number, _, root) = self.collective.row();
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
            | algorithm as u64;
        [root, self.count, quantization, shape, u64::from(chunk_bytes)].into_iter().fold(0x5bd1_e995, mix)
    }
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.collective, self.collective.row()) {
            (Collective::Barrier, (_, name, _)) => return f.write_str(name),
            (Collective::Transfer { from, to }, (_, name, _)) => write!(f, "{name} from {from} to {to}")?,
            (_, (_, name, Some(root))) => write!(f, "{name} {root}")?,
            (_, (_, name, None)) => f.write_str(name)?,
        }
        // The sum of the weights travels as one more element, which is no business of the user's.
        let count = self.count.saturating_sub(u64::from(self.weight.is_some()));
        write!(f, " ({} of {count} x {}", self.op, self.dtype)?;
        if self.weight.is_some() {
            write!(f, ", weighted")?;
        }
        if let Some(q) = self.quantization {
            write!(f, ", {:?} to {}", q.algorithm, q.dtype)?;
        }
        write!(f, ")")
    }
}

/// A 64-bit mixer (the finaliser of a well-known hash): every input bit changes half of the output's.
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
    fn fingerprints_ignore_what_peers_may_choose_and_see_all_else() {
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
    fn a_weight_is_a_finite_share() {
        assert_eq!(Weight::ONE.value(), 1.0);
        assert!(Weight::new(f64::NAN).is_none() && Weight::new(-1.0).is_none());
    }
}
