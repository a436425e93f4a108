//! What a kernel, or a program on the host, asks a proxy to do: sixteen bytes.
//!
//! ```text
//! fst   size 0..32, source offset 32..64
//! snd   destination offset 0..32, source memory 32..41, destination memory 41..50, kind 50..53, semaphore 53..63, lap 63
//! ```
//!
//! The last bit belongs to the [FIFO](crate::port::Fifo): it tells a trigger of this lap from one of the lap before.

/// How many bits a memory's number has.
pub const MEMORY_ID_BITS: u32 = 9;
/// How many bits a semaphore's number has.
pub const SEMAPHORE_ID_BITS: u32 = 10;
/// How many memories a proxy knows at most.
pub const MEMORIES_MAX: usize = 1 << MEMORY_ID_BITS;
/// How many semaphores a proxy knows at most.
pub const SEMAPHORES_MAX: usize = 1 << SEMAPHORE_ID_BITS;

/// The bit that tells laps apart.
pub(crate) const LAP_BIT: u64 = 1 << 63;

const SOURCE_MEMORY_AT: u32 = 32;
const TARGET_MEMORY_AT: u32 = SOURCE_MEMORY_AT + MEMORY_ID_BITS;
const KIND_AT: u32 = TARGET_MEMORY_AT + MEMORY_ID_BITS;
const KIND_BITS: u32 = 3;
const SEMAPHORE_AT: u32 = KIND_AT + KIND_BITS;

/// A trigger as it lies in a FIFO. Its lap bit is zero outside of one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Trigger {
    /// The first eight bytes.
    pub fst: u64,
    /// The other eight.
    pub snd: u64,
}

/// What a trigger asks for; several together are done in this order: data, flag, sync.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TriggerKind(u8);

/// A memory's number in a proxy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct MemoryId(pub u16);

/// A semaphore's number in a proxy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct SemaphoreId(pub u16);

/// A trigger, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TriggerFields {
    /// What is asked for.
    pub kind: TriggerKind,
    /// Whose connection it is asked of.
    pub semaphore: SemaphoreId,
    /// The memory that is written.
    pub target: MemoryId,
    /// Where in it.
    pub target_offset: u64,
    /// The memory that is read.
    pub source: MemoryId,
    /// Where in it.
    pub source_offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// Why no trigger can say this.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} of a put through a proxy is {value}, and {most} at most")]
pub struct TriggerError {
    what: &'static str,
    value: u64,
    most: u64,
}

impl TriggerKind {
    /// Copy bytes to the other side.
    pub const DATA: Self = Self(1);
    /// Signal to the other side, behind what was put before.
    pub const FLAG: Self = Self(2);
    /// Wait until all that came before has left.
    pub const SYNC: Self = Self(4);

    /// Both.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of the other's is asked for.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether nothing is asked for.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// As it stands in a trigger.
    pub const fn bits(self) -> u8 {
        self.0
    }
}

impl Trigger {
    /// From words as anybody may have made them; the lap bit is not theirs.
    pub const fn of_words(fst: u64, snd: u64) -> Self {
        Self { fst, snd: snd & !LAP_BIT }
    }

    /// The trigger that says this.
    pub fn of(fields: &TriggerFields) -> Result<Self, TriggerError> {
        let bytes = within("the size", fields.bytes, u64::from(u32::MAX))?;
        let source_offset = within("the source's offset", fields.source_offset, u64::from(u32::MAX))?;
        let target_offset = within("the destination's offset", fields.target_offset, u64::from(u32::MAX))?;
        let last_memory = MEMORIES_MAX as u64 - 1;
        let source = within("the source's number", fields.source.0.into(), last_memory)?;
        let target = within("the destination's number", fields.target.0.into(), last_memory)?;
        let semaphore =
            within("the semaphore's number", fields.semaphore.0.into(), SEMAPHORES_MAX as u64 - 1)?;
        Ok(Self {
            fst: bytes | source_offset << 32,
            snd: target_offset
                | source << SOURCE_MEMORY_AT
                | target << TARGET_MEMORY_AT
                | u64::from(fields.kind.0) << KIND_AT
                | semaphore << SEMAPHORE_AT,
        })
    }

    /// What it says. Every sixteen bytes say something.
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

fn within(what: &'static str, value: u64, most: u64) -> Result<u64, TriggerError> {
    if value <= most { Ok(value) } else { Err(TriggerError { what, value, most }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_put_into_a_trigger_is_read_from_it(
            kind in 0_u8..8, semaphore in 0_u16..1024, target in 0_u16..512, source in 0_u16..512,
            target_offset in any::<u32>(), source_offset in any::<u32>(), bytes in any::<u32>(),
        ) {
            let fields = TriggerFields {
                kind: TriggerKind(kind),
                semaphore: SemaphoreId(semaphore),
                target: MemoryId(target),
                target_offset: target_offset.into(),
                source: MemoryId(source),
                source_offset: source_offset.into(),
                bytes: bytes.into(),
            };
            let trigger = Trigger::of(&fields).unwrap();
            prop_assert_eq!(trigger.fields(), fields);
            prop_assert_eq!(trigger.snd & LAP_BIT, 0);
            prop_assert_eq!(Trigger::of_words(trigger.fst, trigger.snd | LAP_BIT), trigger);
        }

        #[test]
        fn any_words_are_a_trigger_that_says_the_same_again(fst in any::<u64>(), snd in any::<u64>()) {
            let trigger = Trigger::of_words(fst, snd);
            prop_assert_eq!(Trigger::of(&trigger.fields()).unwrap(), trigger);
        }
    }

    #[test]
    fn fields_lie_where_kernels_write_them() {
        let fields = TriggerFields {
            kind: TriggerKind::DATA.and(TriggerKind::SYNC),
            semaphore: SemaphoreId(0x3ff),
            target: MemoryId(0x155),
            target_offset: 0x1234_5678,
            source: MemoryId(0x0aa),
            source_offset: 0x9abc_def0,
            bytes: 0x0fed_cba9,
        };
        let trigger = Trigger::of(&fields).unwrap();
        assert_eq!(trigger.fst, 0x9abc_def0_0fed_cba9);
        assert_eq!(trigger.snd, 0x1234_5678 | 0x0aa << 32 | 0x155 << 41 | 5 << 50 | 0x3ff << 53);
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let four_gib = 1_u64 << 32;
        let refusal = |fields: TriggerFields| Trigger::of(&fields).unwrap_err().to_string();
        let fields = TriggerFields::default();
        assert!(refusal(TriggerFields { bytes: four_gib, ..fields }).contains("the size"));
        assert!(refusal(TriggerFields { source_offset: four_gib, ..fields }).contains("the source's offset"));
        assert!(
            refusal(TriggerFields { target_offset: four_gib, ..fields }).contains("destination's offset")
        );
        assert!(
            refusal(TriggerFields { source: MemoryId(512), ..fields }).contains("is 512, and 511 at most")
        );
        assert!(refusal(TriggerFields { target: MemoryId(512), ..fields }).contains("destination's number"));
        assert!(refusal(TriggerFields { semaphore: SemaphoreId(1024), ..fields }).contains("semaphore"));
    }
}
