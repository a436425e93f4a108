use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn fields_round_trip(
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
    fn any_words_round_trip(fst in any::<u64>(), snd in any::<u64>()) {
        let trigger = Trigger::of_words(fst, snd);
        prop_assert_eq!(Trigger::of(&trigger.fields()).unwrap(), trigger);
    }
}

#[test]
fn fields_have_the_layout_of_the_device_headers() {
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
fn out_of_range_fields_are_named() {
    let four_gib = 1_u64 << 32;
    let error = |fields: TriggerFields| Trigger::of(&fields).unwrap_err().to_string();
    let fields = TriggerFields::default();
    assert!(error(TriggerFields { bytes: four_gib, ..fields }).contains("invalid size"));
    assert!(error(TriggerFields { source_offset: four_gib, ..fields }).contains("source offset"));
    assert!(error(TriggerFields { target_offset: four_gib, ..fields }).contains("destination offset"));
    assert!(error(TriggerFields { source: MemoryId(512), ..fields }).contains("must be at most 511"));
    assert!(error(TriggerFields { target: MemoryId(512), ..fields }).contains("destination memory id"));
    assert!(error(TriggerFields { semaphore: SemaphoreId(1024), ..fields }).contains("semaphore"));
}
