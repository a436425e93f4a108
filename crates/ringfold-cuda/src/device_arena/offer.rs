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
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Memory that others may open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct MemoryOffer {
    /// A number that this process alone has, as far as chance goes.
    process: u64,
    /// Where it is, in that process.
    address: u64,
    record: IpcRecord,
}

impl MemoryOffer {
    /// Memory of this process.
    pub fn of(address: u64, bytes: usize) -> Result<Self, CudaError> {
        Ok(Self { process: process_number(), address, record: IpcRecord::export(address, bytes)? })
    }

    /// The offer in bytes.
    pub fn encode(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }

    /// The offer that these bytes are; none if they are none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Self::read_from_bytes(bytes).ok().filter(|offer| offer.record.is_valid())
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
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Decoded {
    /// Within 16 bits.
    pub(super) multiprocessors: u64,
    pub(super) memory: MemoryOffer,
}

impl ArenaOffer {
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
        Decoded { multiprocessors: self.gpu.sms().into(), memory: self.offer }.as_bytes().to_vec()
    }
}

pub(super) fn decode(bytes: &[u8]) -> Option<Decoded> {
    let decoded = Decoded::read_from_bytes(bytes).ok()?;
    // No device has more multiprocessors than that.
    let is_valid = (1..1 << 16).contains(&decoded.multiprocessors) && decoded.memory.record.is_valid();
    is_valid.then_some(decoded)
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
        let offer = offer();
        let bytes = offer.as_bytes();
        assert_eq!(MemoryOffer::decode(bytes), Some(offer));
        for length in 0..bytes.len() {
            assert_eq!(MemoryOffer::decode(&bytes[..length]), None);
        }
        assert_eq!(MemoryOffer::decode(&[bytes, &[0]].concat()), None);
    }

    #[test]
    fn an_arena_of_a_device_without_multiprocessors_is_none() {
        let with = |count: u64| [&count.to_le_bytes()[..], offer().as_bytes()].concat();
        assert_eq!(decode(&with(132)).map(|arena| arena.multiprocessors), Some(132));
        assert!(decode(&with(0)).is_none() && decode(&with(1 << 40)).is_none());
    }
}
