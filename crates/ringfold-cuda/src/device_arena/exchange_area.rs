//! Device memory in which one process offers its part of an operation to others of its host.
//!
//! The first half holds the input of the owner, the second half its result. Others only read. A reader may be late: it reads
//! whatever is there, and its result is not used.

use super::PeerMemory;
use super::combine::CombineKernel;
use super::offer::MemoryOffer;
use crate::default_stream_mark::DefaultStreamMark;
use crate::device_memory::DeviceMemory;
use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::gpu_memory::GpuMemory;
use crate::stream::Stream;
use core::ops::Range;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// The halves start at multiples of this.
const ALIGN: usize = 256;

/// The areas of this process: sizes by address. Offers by peers of this process are compared with them.
static OWN: Mutex<BTreeMap<u64, usize>> = Mutex::new(BTreeMap::new());

/// An area of this process, and the stream of its work.
pub struct ExchangeArea {
    memory: GpuMemory,
    stream: Stream,
    offer: MemoryOffer,
}

/// An area of another member.
pub struct PeerArea {
    memory: PeerMemory,
    bytes: usize,
}

impl ExchangeArea {
    /// Allocates an area for inputs of up to `bytes`.
    pub fn allocate(gpu: &Gpu, bytes: usize) -> Result<Self, CudaError> {
        let memory = GpuMemory::zeroed(gpu, 2 * bytes.next_multiple_of(ALIGN))?;
        let offer = MemoryOffer::of(memory.address(), memory.len())?;
        let area = Self { memory, stream: gpu.create_stream()?, offer };
        OWN.lock().insert(area.start(), area.memory.len());
        Ok(area)
    }

    /// The device.
    pub fn gpu(&self) -> Gpu {
        self.memory.gpu()
    }

    /// The longest input.
    pub fn capacity(&self) -> usize {
        self.memory.len() / 2
    }

    /// Encodes what others need to open it.
    pub fn offer(&self) -> Vec<u8> {
        self.offer.encode()
    }

    /// Queues a copy of the input, after the mark.
    pub fn load(&self, source: &DeviceMemory, after: &DefaultStreamMark) -> Result<(), CudaError> {
        self.check(0..source.len())?;
        self.follow(source, after)?;
        // SAFETY: the area holds so many bytes, and `DeviceMemory` vouches for the source; the owner of the area waits for
        // its work before it is used otherwise.
        unsafe { self.stream.copy(self.memory.address(), source.address(), source.len()) }
    }

    /// Queues a fold of a range of all inputs, which are given in order; none is the own one. The result is in the second
    /// half.
    pub fn fold(
        &self,
        kernel: &CombineKernel,
        inputs: &[Option<&PeerArea>],
        range: Range<usize>,
    ) -> Result<(), CudaError> {
        self.check(range.clone())?;
        let start = range.start as u64;
        let mut sources = Vec::with_capacity(inputs.len());
        for input in inputs {
            sources.push(match input {
                None => self.memory.address() + start,
                Some(peer) => peer.checked(&range)?.memory.address() + start,
            });
        }
        let target = self.result_start() + start;
        // SAFETY: the ranges are within their areas. Areas of others may be overwritten if the operation was aborted, which
        // does not matter.
        unsafe { kernel.launch(&sources, target, range.len() as u64, &self.stream) }
    }

    /// Queues a copy of a range of another member's result.
    pub fn gather(&self, from: &PeerArea, range: Range<usize>) -> Result<(), CudaError> {
        self.check(range.clone())?;
        let start = range.start as u64;
        let source = from.checked(&range)?.memory.address() + (from.bytes / 2) as u64 + start;
        let target = self.result_start() + start;
        // SAFETY: as above.
        unsafe { self.stream.copy(target, source, range.len()) }
    }

    /// Queues a copy of the result, after the mark.
    pub fn store(&self, target: &DeviceMemory, after: &DefaultStreamMark) -> Result<(), CudaError> {
        self.check(0..target.len())?;
        self.follow(target, after)?;
        // SAFETY: as above.
        unsafe { self.stream.copy(target.address(), self.result_start(), target.len()) }
    }

    /// Waits for the work queued so far.
    pub fn wait(&self) -> Result<(), CudaError> {
        self.stream.record_event()?.wait()
    }

    /// Waits until no queued work is running, also after errors.
    pub fn drain(&self) {
        self.stream.drain();
    }

    pub(super) fn start(&self) -> u64 {
        self.memory.address()
    }

    /// The address of the result.
    pub(super) fn result_start(&self) -> u64 {
        self.memory.address() + self.capacity() as u64
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Makes later work follow what was queued on the device of a tensor.
    pub(super) fn follow(&self, tensor: &DeviceMemory, after: &DefaultStreamMark) -> Result<(), CudaError> {
        tensor.ordinal().map_or(Ok(()), |ordinal| after.make_wait(&self.stream, ordinal))
    }

    pub(super) fn check(&self, range: Range<usize>) -> Result<(), CudaError> {
        if range.start <= range.end && range.end <= self.capacity() {
            return Ok(());
        }
        Err(CudaError::Argument(format!("{range:?} exceeds an area of {} bytes", self.capacity())))
    }
}

impl Drop for ExchangeArea {
    fn drop(&mut self) {
        OWN.lock().remove(&self.start());
    }
}

debug_as!(ExchangeArea, self => "an area for {} bytes on {:?}", self.capacity(), self.gpu());

impl PeerArea {
    /// Opens the area of another member, for a device of this process.
    pub fn open(offer: &[u8], gpu: &Gpu) -> Result<Self, CudaError> {
        let offer = decode(offer, &OWN.lock())
            .ok_or_else(|| CudaError::Argument("invalid memory offer from another peer".into()))?;
        Ok(Self { memory: offer.open(gpu)?, bytes: offer.bytes() })
    }

    pub(super) fn start(&self) -> u64 {
        self.memory.address()
    }

    /// Fails if a range exceeds its halves.
    pub fn checked(&self, range: &Range<usize>) -> Result<&Self, CudaError> {
        if range.end <= self.bytes / 2 {
            return Ok(self);
        }
        Err(CudaError::Argument(format!(
            "invalid memory offer from another peer: {} bytes, {} are needed",
            self.bytes / 2,
            range.end
        )))
    }
}

debug_as!(PeerArea, self => "an area for {} bytes of another peer", self.bytes / 2);

/// Decodes the offer of an area; none if it is invalid, or names memory of this process that is none of its own areas.
fn decode(offer: &[u8], own: &BTreeMap<u64, usize>) -> Option<MemoryOffer> {
    let offer = MemoryOffer::decode(offer)?;
    let is_own = offer.own_address().is_none_or(|address| own.get(&address) == Some(&offer.bytes()));
    (is_own && offer.is_aligned(ALIGN as u64, 2 * ALIGN as u64)).then_some(offer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::process_id;

    #[test]
    fn offers_are_aligned_and_those_of_this_process_are_known() {
        let own = BTreeMap::from([(0x1000, 4096)]);
        let is_valid = |process: u64, address: u64, offset: u64, bytes: u64| {
            let numbers =
                |all: &[u64]| all.iter().flat_map(|number| number.to_ne_bytes()).collect::<Vec<_>>();
            let offer = [numbers(&[process, address]), vec![7; 80], numbers(&[1 << 20, offset, bytes])];
            decode(&offer.concat(), &own).is_some()
        };
        let me = process_id() as u64;
        assert!(is_valid(me, 0x1000, 0, 4096));
        assert!(!is_valid(me, 0x1000, 0, 8192) && !is_valid(me, 0x2000, 0, 4096));
        let other = me ^ 1;
        assert!(is_valid(other, 0x2000, 256, 512) && !is_valid(other, 0x2000, 128, 512));
        assert!(!is_valid(other, 0x2000, 256, 256) && !is_valid(other, 0x2000, 1 << 20, 512));
    }
}
