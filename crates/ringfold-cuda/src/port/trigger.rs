//! Triggers: requests of 16 bytes to a proxy, from kernels or the host.
//!
//! ```text
//! fst   size 0..32, source offset 32..64
//! snd   destination offset 0..32, source memory 32..41, destination memory 41..50, kind 50..53, semaphore 53..63, lap 63
//! ```
//!
//! The last bit is reserved for the [FIFO](crate::port::Fifo): it distinguishes consecutive laps.

/// Bits of a memory id.
pub const MEMORY_ID_BITS: u32 = 9;
/// Bits of a semaphore id.
pub const SEMAPHORE_ID_BITS: u32 = 10;
/// The most memories of a proxy.
pub const MEMORIES_MAX: usize = 1 << MEMORY_ID_BITS;
/// The most semaphores of a proxy.
pub const SEMAPHORES_MAX: usize = 1 << SEMAPHORE_ID_BITS;

/// The bit that distinguishes consecutive laps.
pub(crate) const LAP_BIT: u64 = 1 << 63;

const SOURCE_MEMORY_AT: u32 = 32;
const TARGET_MEMORY_AT: u32 = SOURCE_MEMORY_AT + MEMORY_ID_BITS;
const KIND_AT: u32 = TARGET_MEMORY_AT + MEMORY_ID_BITS;
const KIND_BITS: u32 = 3;
const SEMAPHORE_AT: u32 = KIND_AT + KIND_BITS;

/// An encoded trigger. Its lap bit is zero outside of a FIFO.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Trigger {
    /// The first eight bytes.
    pub fst: u64,
    /// The last eight bytes.
    pub snd: u64,
}

/// The operations of a trigger, executed in the order data, flag, sync.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TriggerKind(u8);

/// The id of a memory in a proxy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct MemoryId(pub u16);

/// The id of a semaphore in a proxy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct SemaphoreId(pub u16);

/// A decoded trigger.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TriggerFields {
    /// The operations.
    pub kind: TriggerKind,
    /// The semaphore, which determines the connection.
    pub semaphore: SemaphoreId,
    /// The memory to write.
    pub target: MemoryId,
    /// The offset in the target.
    pub target_offset: u64,
    /// The memory to read.
    pub source: MemoryId,
    /// The offset in the source.
    pub source_offset: u64,
    /// The number of bytes.
    pub bytes: u64,
}

/// A field that a trigger cannot represent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid {what} {value} of a put through a proxy: must be at most {max}")]
pub struct TriggerError {
    what: &'static str,
    value: u64,
    max: u64,
}

impl TriggerKind {
    /// Copy bytes to the peer.
    pub const DATA: Self = Self(1);
    /// Signal the peer, after all earlier puts.
    pub const FLAG: Self = Self(2);
    /// Wait until all earlier writes are complete.
    pub const SYNC: Self = Self(4);

    /// The union.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether it contains all operations of `other`.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether there is no operation.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Trigger {
    /// Creates a trigger from arbitrary words; clears the lap bit.
    pub const fn of_words(fst: u64, snd: u64) -> Self {
        Self { fst, snd: snd & !LAP_BIT }
    }

    /// Encodes fields.
    pub fn of(fields: &TriggerFields) -> Result<Self, TriggerError> {
        let bytes = within("size", fields.bytes, u64::from(u32::MAX))?;
        let source_offset = within("source offset", fields.source_offset, u64::from(u32::MAX))?;
        let target_offset = within("destination offset", fields.target_offset, u64::from(u32::MAX))?;
        let last_memory = MEMORIES_MAX as u64 - 1;
        let source = within("source memory id", fields.source.0.into(), last_memory)?;
        let target = within("destination memory id", fields.target.0.into(), last_memory)?;
        let semaphore = within("semaphore id", fields.semaphore.0.into(), SEMAPHORES_MAX as u64 - 1)?;
        Ok(Self {
            fst: bytes | source_offset << 32,
            snd: target_offset
                | source << SOURCE_MEMORY_AT
                | target << TARGET_MEMORY_AT
                | u64::from(fields.kind.0) << KIND_AT
                | semaphore << SEMAPHORE_AT,
        })
    }

    /// Decodes the trigger. Any sixteen bytes are valid.
    pub const fn fields(self) -> TriggerFields {
        TriggerFields {
            kind: TriggerKind(bits(self.snd, KIND_AT, KIND_BITS) as u8),
            semaphore: SemaphoreId(bits(self.snd, SEMAPHORE_AT, SEMAPHORE_ID_BITS) as u16),
            target: MemoryId(bits(self.snd, TARGET_MEMORY_AT, MEMORY_ID_BITS) as u16),
            target_offset: bits(self.snd, 0, 32),
            source: MemoryId(bits(self.snd, SOURCE_MEMORY_AT, MEMORY_ID_BITS) as u16),
            source_offset: bits(self.fst, 32, 32),
            bytes: bits(self.fst, 0, 32),
        }
    }
}

const fn bits(word: u64, at: u32, count: u32) -> u64 {
    (word >> at) & ((1 << count) - 1)
}

fn within(what: &'static str, value: u64, max: u64) -> Result<u64, TriggerError> {
    if value <= max { Ok(value) } else { Err(TriggerError { what, value, max }) }
}

#[cfg(test)]
mod tests;
