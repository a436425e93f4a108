//! What a method costs, so that the cheapest can be taken. Whole numbers of what all ranks share: all of them
//! must come to the same sum.

use crate::method::Task;
use crate::parts::Span;
use ringfold_proto::tuning::Prices;

/// What the busiest rank does, and how often ranks wait for each other.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Cost {
    /// How often one rank waits for what another must have got first, one after the other.
    pub hops: u64,
    /// Frames that the busiest rank sends, or takes if those are more.
    pub frames: u64,
    /// Bytes that it sends.
    pub sent_bytes: u64,
    /// Bytes that it gets.
    pub received_bytes: u64,
    /// Bytes that it combines with others.
    pub reduced_bytes: u64,
}

impl Cost {
    /// Hops and frames without bytes.
    pub fn empty(hops: u64, frames: u64) -> Self {
        Self { hops, frames, ..Self::default() }
    }

    /// The time that it should take, in nanoseconds, where moving costs so many percent of its price.
    pub fn estimate_ns(&self, prices: &Prices, moved_percent: u64) -> u64 {
        let times = |amount: u64, price: u32| amount.saturating_mul(u64::from(price));
        let kib = |bytes: u64, price: u32| (u128::from(bytes) * u128::from(price) / 1024) as u64;
        let moved = kib(self.sent_bytes.max(self.received_bytes), prices.sent_ns_per_kib);
        times(self.hops, prices.hop_ns)
            .saturating_add(times(self.frames, prices.frame_ns))
            .saturating_add((u128::from(moved) * u128::from(moved_percent) / 100) as u64)
            .saturating_add(kib(self.reduced_bytes, prices.reduced_ns_per_kib))
    }
}

/// The sizes from which costs are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Ranks beside oneself.
    pub others: u64,
    /// The whole.
    pub whole: Amount,
    /// The longest of its parts.
    pub longest: Amount,
    /// The shortest one.
    pub shortest: Amount,
    /// All parts, each cut on its own.
    pub parts: Amount,
    /// What one frame holds at most: a chunk, or the whole if that is shorter.
    pub chunk: Amount,
}

/// Some elements, and the frames that they travel in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Amount {
    /// On the wire.
    pub bytes: u64,
    /// In memory.
    pub memory_bytes: u64,
    /// How many.
    pub frames: u64,
}

impl Amount {
    /// So many times.
    pub fn times(self, n: u64) -> Self {
        Self {
            bytes: self.bytes.saturating_mul(n),
            memory_bytes: self.memory_bytes.saturating_mul(n),
            frames: self.frames.saturating_mul(n),
        }
    }

    /// Both.
    pub fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
            frames: self.frames.saturating_add(other.frames),
        }
    }

    /// All but what is in the other.
    pub fn without(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            memory_bytes: self.memory_bytes.saturating_sub(other.memory_bytes),
            frames: self.frames.saturating_sub(other.frames),
        }
    }

    /// What it costs to send this, to get that, and to combine a third.
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
    /// Those of a task.
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

    /// What passes each edge while everyone's part travels around the ring, all of them at once: everything but
    /// one part, or the longest part's way if the others are too short to hide it.
    pub fn around(&self) -> Amount {
        let first = Amount { frames: self.longest.frames.min(1), ..self.longest };
        let fill = if self.longest.frames > 1 { self.chunk } else { first };
        let alone = self.longest.and(fill.times(self.others.saturating_sub(1)));
        let together = self.parts.without(self.shortest);
        if alone.bytes > together.bytes { alone } else { together }
    }

    /// What passes each edge while the whole travels along a chain through all ranks, chunk after chunk.
    pub fn along(&self) -> Amount {
        self.whole.and(self.chunk.times(self.others.saturating_sub(1)))
    }
}
