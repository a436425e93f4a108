//! What ranks tell each other of their memory.

use super::Place;
use super::layout::{Layout, WORLD_MAX};
use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::gpu_memory::GpuMemory;
use crate::ipc::{IpcMemory, IpcRecord};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::OnceLock;

/// Memory that others may open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryOffer {
    /// A number that this process alone has, as far as chance goes.
    process: u64,
    /// Where it is, in that process.
    address: u64,
    record: IpcRecord,
}

impl MemoryOffer {
    /// How many bytes it is written in.
    pub const BYTES: usize = 16 + IpcRecord::BYTES;

    /// Memory of this process.
    pub fn of(address: u64, bytes: usize) -> Result<Self, CudaError> {
        Ok(Self { process: process_number(), address, record: IpcRecord::export(address, bytes)? })
    }

    /// The offer in bytes.
    pub fn encode(&self) -> Vec<u8> {
        let numbers = [self.process, self.address].into_iter().flat_map(u64::to_le_bytes);
        numbers.chain(self.record.encode()).collect()
    }

    /// The offer that these bytes are; none if they are none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (numbers, record) = bytes.split_at_checked(16)?;
        let number = |at: usize| numbers[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        Some(Self { process: number(0)?, address: number(8)?, record: IpcRecord::decode(record)? })
    }

    pub(super) fn open(&self, gpu: &Gpu) -> Result<Place, CudaError> {
        if self.process == process_number() {
            if self.record.gpu != gpu.uuid()? {
                return Err(CudaError::Unsupported(
                    "ranks that are threads of one process must be on one CUDA device to reach each other's memory".into(),
                ));
            }
            return Ok(Place::Here(self.address));
        }
        IpcMemory::open(&self.record, gpu).map(Place::Mapped)
    }

    pub(super) fn bytes(&self) -> usize {
        usize::try_from(self.record.bytes).unwrap_or(usize::MAX)
    }

    pub(super) fn gpu(&self) -> [u8; 16] {
        self.record.gpu
    }
}

fn process_number() -> u64 {
    static NUMBER: OnceLock<(u32, u64)> = OnceLock::new();
    let (process, number) = *NUMBER.get_or_init(|| {
        let mut chance = RandomState::new().build_hasher();
        chance.write_u32(std::process::id());
        (std::process::id(), chance.finish())
    });
    // A forked child has the number of its parent, but not its memory.
    number ^ u64::from(process ^ std::process::id())
}

/// A rank's new arena.
pub struct ArenaOffer {
    pub(super) gpu: Gpu,
    pub(super) memory: GpuMemory,
    pub(super) me: usize,
    offer: MemoryOffer,
}

/// What others know of it.
pub(super) struct Decoded {
    pub(super) memory: MemoryOffer,
    pub(super) multiprocessors: u32,
}

impl ArenaOffer {
    /// How many bytes it is written in.
    pub const BYTES: usize = 8 + MemoryOffer::BYTES;

    /// Makes the arena of a rank.
    pub fn new(gpu: &Gpu, me: usize, world: usize) -> Result<Self, CudaError> {
        if world > WORLD_MAX {
            return Err(CudaError::Unsupported(format!(
                "collectives on CUDA devices are for {WORLD_MAX} ranks at most, and there are {world}"
            )));
        }
        let memory = GpuMemory::zeroed(gpu, Layout::of(world).bytes())?;
        let offer = MemoryOffer::of(memory.address(), memory.len())?;
        Ok(Self { gpu: *gpu, memory, me, offer })
    }

    /// What the others are to be told.
    pub fn encode(&self) -> Vec<u8> {
        let multiprocessors = u64::from(self.gpu.sms()).to_le_bytes();
        multiprocessors.into_iter().chain(self.offer.encode()).collect()
    }
}

pub(super) fn decode(bytes: &[u8]) -> Option<Decoded> {
    let (multiprocessors, memory) = bytes.split_at_checked(8)?;
    let multiprocessors = u64::from_le_bytes(multiprocessors.try_into().ok()?);
    // A device with more than that is yet to be built.
    let multiprocessors = u32::try_from(multiprocessors).ok().filter(|count| (1..1 << 16).contains(count))?;
    Some(Decoded { memory: MemoryOffer::decode(memory)?, multiprocessors })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> MemoryOffer {
        let record =
            IpcRecord { handle: [7; 64], gpu: [9; 16], allocation_bytes: 1 << 21, offset: 512, bytes: 4096 };
        MemoryOffer { process: 77, address: 0x7f00_0000_0200, record }
    }

    #[test]
    fn an_offer_survives_being_written_and_half_of_one_is_none() {
        let bytes = offer().encode();
        assert_eq!(bytes.len(), MemoryOffer::BYTES);
        assert_eq!(MemoryOffer::decode(&bytes), Some(offer()));
        assert_eq!(MemoryOffer::decode(&bytes[..20]), None);
        assert_eq!(MemoryOffer::decode(&[]), None);
    }

    #[test]
    fn an_arena_of_a_device_without_multiprocessors_is_none() {
        let with = |count: u64| [&count.to_le_bytes()[..], &offer().encode()].concat();
        assert_eq!(decode(&with(132)).map(|arena| arena.multiprocessors), Some(132));
        assert!(decode(&with(0)).is_none() && decode(&with(1 << 40)).is_none());
    }
}
