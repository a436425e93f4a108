//! The cost of a method. All numbers are integers, so that all ranks compute the same cost.

use crate::method::Task;
use crate::parts::Span;
use ringfold_proto::tuning::TransportCosts;

/// The work of the busiest rank.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Cost {
    /// The length of the longest chain of dependent transfers.
    pub hops: u64,
    /// The maximum of the frames that it sends and receives.
    pub frames: u64,
    /// Bytes that it sends.
    pub sent_bytes: u64,
    /// Bytes that it receives.
    pub received_bytes: u64,
    /// Bytes that it reduces.
    pub reduced_bytes: u64,
}

impl Cost {
    /// The cost of empty frames.
    pub fn empty(hops: u64, frames: u64) -> Self {
        Self { hops, frames, ..Self::default() }
    }

    /// The estimated time in nanoseconds; transfers cost `moved_percent` of their price.
    pub fn estimate_ns(&self, prices: &TransportCosts, moved_percent: u64) -> u64 {
        let times = |amount: u64, price: u32| amount.saturating_mul(u64::from(price));
        let kib = |bytes: u64, price: u32| (u128::from(bytes) * u128::from(price) / 1024) as u64;
        let moved = kib(self.sent_bytes.max(self.received_bytes), prices.sent_ns_per_kib);
        times(self.hops, prices.hop_ns)
            .saturating_add(times(self.frames, prices.frame_ns))
            .saturating_add((u128::from(moved) * u128::from(moved_percent) / 100) as u64)
            .saturating_add(kib(self.reduced_bytes, prices.reduced_ns_per_kib))
    }
}

/// The sizes that determine the cost of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// The number of other ranks.
    pub others: u64,
    /// The whole tensor.
    pub whole: Amount,
    /// The longest part.
    pub longest: Amount,
    /// The shortest part.
    pub shortest: Amount,
    /// The sum of all parts.
    pub parts: Amount,
    /// The largest frame: a chunk, or the whole tensor if that is shorter.
    pub chunk: Amount,
}

/// The size of some elements.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Amount {
    /// Bytes on the wire.
    pub bytes: u64,
    /// Bytes in memory.
    pub memory_bytes: u64,
    /// The number of frames.
    pub frames: u64,
}

impl Amount {
    fn zip(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            bytes: f(self.bytes, other.bytes),
            memory_bytes: f(self.memory_bytes, other.memory_bytes),
            frames: f(self.frames, other.frames),
        }
    }

    /// The product with a number.
    pub fn times(self, n: u64) -> Self {
        self.zip(self, |amount, _| amount.saturating_mul(n))
    }

    /// The sum.
    pub fn and(self, other: Self) -> Self {
        self.zip(other, u64::saturating_add)
    }

    /// The difference.
    pub fn without(self, other: Self) -> Self {
        self.zip(other, u64::saturating_sub)
    }

    /// The cost of sending this amount, receiving another, and reducing a third.
    pub fn sent(self, hops: u64, received: Self, reduced: Self) -> Cost {
        Cost {
            hops,
            frames: self.frames.max(received.frames),
            sent_bytes: self.bytes,
            received_bytes: received.bytes,
            reduced_bytes: reduced.memory_bytes,
        }
    }
}

impl Sizes {
    /// The sizes of a task.
    pub fn of(task: &Task) -> Self {
        let amount = |span: Span| task.amount(span.count);
        let parts = task.parts();
        let all = || (0..task.world()).map(|index| parts.part(index));
        let zero = Span { start: 0, count: 0 };
        let elements_max = u64::from(task.chunking().elements_max);
        Self {
            others: task.world() as u64 - 1,
            whole: amount(task.whole()),
            longest: amount(parts.longest()),
            shortest: amount(all().min_by_key(|part| part.count).unwrap_or(zero)),
            parts: all().map(amount).fold(Amount::default(), Amount::and),
            chunk: task.amount(task.descriptor.count.min(elements_max)),
        }
    }

    /// The amount over each edge while all parts travel around the ring: all parts but one, or the longest part with its
    /// pipeline if the others are too short to hide it.
    pub fn around(&self) -> Amount {
        let first = Amount { frames: self.longest.frames.min(1), ..self.longest };
        let fill = if self.longest.frames > 1 { self.chunk } else { first };
        let alone = self.longest.and(fill.times(self.others.saturating_sub(1)));
        let together = self.parts.without(self.shortest);
        if alone.bytes > together.bytes { alone } else { together }
    }

    /// The amount over each edge while the whole tensor travels along a chain through all ranks, in chunks.
    pub fn along(&self) -> Amount {
        self.whole.and(self.chunk.times(self.others.saturating_sub(1)))
    }
}
