//! The records by which ranks open each other's memory.

use super::PeerMemory;
use super::device_share::DeviceShare;
use super::layout::{ArenaLayout, WORLD_MAX};
use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::gpu_memory::GpuMemory;
use crate::ipc::{IpcMemory, IpcRecord};
use crate::port::process_id;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Memory that other ranks may open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct MemoryOffer {
    /// A random id of the process.
    process: u64,
    address: u64,
    record: IpcRecord,
}

impl MemoryOffer {
    /// Creates the offer of memory of this process.
    pub fn of(address: u64, bytes: usize) -> Result<Self, CudaError> {
        Ok(Self { process: process_id() as u64, address, record: IpcRecord::export(address, bytes)? })
    }

    /// Encodes the offer.
    pub fn encode(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }

    /// Decodes an offer; none if the bytes are invalid.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Self::read_from_bytes(bytes).ok().filter(Self::is_valid)
    }

    pub(super) fn open(&self, gpu: &Gpu) -> Result<PeerMemory, CudaError> {
        if self.process == process_id() as u64 {
            if self.record.gpu != gpu.uuid()? {
                return Err(CudaError::Unsupported(
                    "ranks that are threads of one process must be on the same CUDA device".into(),
                ));
            }
            return Ok(PeerMemory::Local(self.address));
        }
        IpcMemory::open(&self.record, gpu).map(PeerMemory::Mapped)
    }

    /// Whether the memory lies within its allocation.
    pub(super) fn is_valid(&self) -> bool {
        self.record.is_valid()
    }

    /// Whether offset and size are multiples of these.
    pub(super) fn is_aligned(&self, offset: u64, bytes: u64) -> bool {
        self.record.offset.is_multiple_of(offset) && self.record.bytes.is_multiple_of(bytes)
    }

    /// The address, if it is memory of this process.
    pub(super) fn own_address(&self) -> Option<u64> {
        (self.process == process_id() as u64).then_some(self.address)
    }

    pub(super) fn bytes(&self) -> usize {
        usize::try_from(self.record.bytes).unwrap_or(usize::MAX)
    }

    pub(super) fn gpu(&self) -> [u8; 16] {
        self.record.gpu
    }
}

/// A rank's new arena, to be offered to the others.
pub struct ArenaOffer {
    pub(super) gpu: Gpu,
    pub(super) memory: GpuMemory,
    pub(super) rank: usize,
    offer: MemoryOffer,
    packet_limit: u64,
    pub(super) share: DeviceShare,
}

/// The encoded form of an arena offer.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct ArenaRecord {
    /// At most 16 bits.
    pub(super) multiprocessors: u64,
    /// The most bytes that this rank would send in packets.
    pub(super) packet_limit: u64,
    /// How many other groups of this process use the device.
    pub(super) other_groups: u64,
    pub(super) memory: MemoryOffer,
}

impl ArenaOffer {
    /// Allocates the arena of a rank. `group` is the same on all ranks, and differs from that of other groups; `packet_limit` is the
    /// most bytes to send in packets.
    pub fn new(
        gpu: &Gpu,
        (rank, world): (usize, usize),
        group: u64,
        packet_limit: u64,
    ) -> Result<Self, CudaError> {
        if world > WORLD_MAX {
            return Err(CudaError::Unsupported(format!(
                "unsupported world size {world} for collectives on CUDA devices: at most {WORLD_MAX} ranks"
            )));
        }
        let memory = GpuMemory::zeroed(gpu, ArenaLayout::of(world).bytes())?;
        let offer = MemoryOffer::of(memory.address(), memory.len())?;
        let share = DeviceShare::take(gpu.ordinal(), group, (rank, world));
        Ok(Self { gpu: *gpu, memory, rank, offer, packet_limit, share })
    }

    /// Encodes the offer for the other ranks.
    pub fn encode(&self) -> Vec<u8> {
        let (packet_limit, other_groups) = (self.packet_limit, self.share.other_groups() as u64);
        let multiprocessors = self.gpu.sms().into();
        ArenaRecord { multiprocessors, packet_limit, other_groups, memory: self.offer }.as_bytes().to_vec()
    }
}

impl ArenaRecord {
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let record = Self::read_from_bytes(bytes).ok()?;
        let is_valid = (1..1 << 16).contains(&record.multiprocessors) && record.memory.record.is_valid();
        is_valid.then_some(record)
    }
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
    fn an_offer_round_trips_and_truncated_ones_are_rejected() {
        let offer = offer();
        let bytes = offer.as_bytes();
        assert_eq!(MemoryOffer::decode(bytes), Some(offer));
        for length in 0..bytes.len() {
            assert_eq!(MemoryOffer::decode(&bytes[..length]), None);
        }
        assert_eq!(MemoryOffer::decode(&[bytes, &[0]].concat()), None);
    }

    #[test]
    fn invalid_multiprocessor_counts_are_rejected() {
        let decode = |count: u64| {
            ArenaRecord::decode(&[&count.to_le_bytes()[..], &[0; 16], offer().as_bytes()].concat())
        };
        assert_eq!(decode(132).map(|arena| arena.multiprocessors), Some(132));
        assert!(decode(0).is_none() && decode(1 << 40).is_none());
    }
}
