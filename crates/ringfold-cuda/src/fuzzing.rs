//! Entry points of the fuzz targets in `fuzz/`: decoders of the records that ranks exchange.

use crate::device_arena::MemoryOffer;
use crate::device_arena::offer::ArenaRecord;
use crate::device_arena::window::WindowRecord;
use crate::ipc::IpcRecord;
use crate::port::memory_record::MemoryRecord;
use crate::port::offer::OfferRecord;
use zerocopy::IntoBytes;

/// The name of a target, and its function: passes bytes to decoders, encodes and decodes again what they accept, and
/// returns whether any accepted them.
pub type Decoder = (&'static str, fn(&[u8]) -> bool);

/// The targets.
pub const DECODERS: &[Decoder] =
    &[("port_records", check_port_records), ("device_records", check_device_records)];

fn check_port_records(bytes: &[u8]) -> bool {
    let (offer, memory) = (OfferRecord::decode(bytes), MemoryRecord::decode(bytes));
    if let Some(offer) = &offer {
        assert_eq!(OfferRecord::decode(&offer.encode()).as_ref(), Some(offer));
    }
    if let Some(memory) = &memory {
        assert_eq!(MemoryRecord::decode(&memory.encode()).as_ref(), Some(memory));
    }
    offer.is_some() || memory.is_some()
}

fn check_device_records(bytes: &[u8]) -> bool {
    let (ipc, memory) = (IpcRecord::decode(bytes), MemoryOffer::decode(bytes));
    if let Some(ipc) = ipc {
        assert_eq!(ipc.encode(), bytes);
    }
    if let Some(memory) = memory {
        assert_eq!(memory.encode(), bytes);
    }
    let (arena, window) = (ArenaRecord::decode(bytes), WindowRecord::decode(bytes, 8));
    if let Some(arena) = &arena {
        assert_eq!(arena.as_bytes(), bytes);
    }
    if let Some(window) = &window {
        assert!(bytes.starts_with(window.as_bytes()));
    }
    ipc.is_some() || memory.is_some() || arena.is_some() || window.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::{memory_record, offer};
    use ringfold_fuzz::Seed;

    fn seeds() -> Vec<Seed> {
        let ipc =
            IpcRecord { handle: [7; 64], gpu: [9; 16], allocation_bytes: 1 << 21, offset: 512, bytes: 4096 };
        let numbers = |all: &[u64]| all.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
        let offered = [numbers(&[77, 0x7f00_0000_0200]), ipc.encode()].concat();
        let arena = [numbers(&[132, 1 << 20, 1]), offered.clone()].concat();
        let window = [offered.clone(), offered.clone(), numbers(&[4096])].concat();
        let devices = [ipc.encode(), offered, arena, window];
        let offers = offer::tests::examples().map(|record| ("port_records", record.encode()));
        let memories = memory_record::tests::examples().map(|record| ("port_records", record.encode()));
        offers
            .into_iter()
            .chain(memories)
            .chain(devices.into_iter().map(|bytes| ("device_records", bytes)))
            .collect()
    }

    #[test]
    fn changed_inputs_of_the_corpus_are_survived() {
        ringfold_fuzz::test_decoders(DECODERS, &seeds());
    }
}
