//! Windows: memory of each rank that the others read and write, and signals between them.
//!
//! Kernels of users and the two of `kernels/window.cu` share the header `torchcomms/window_device.hpp`.

use super::offer::MemoryOffer;
use super::{DeviceArena, FoldKernels, PeerMemory};
use crate::device_memory::DeviceMemory;
use crate::error::CudaError;
use crate::function::Dim3;
use crate::gpu::Gpu;
use crate::gpu_memory::GpuMemory;
use crate::port::abort_page::AbortPage;
use crate::stream::Stream;
use core::time::Duration;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The numbers of signals with one rank: `WindowSignals` in the header.
const SIGNAL_BYTES: usize = 16;

/// `DeviceWindow` in the header: what kernels get.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct WindowHandle {
    peers: u64,
    abort_page: u64,
    rank: i32,
    size: i32,
}

/// `WindowPeer` in the header: a rank's memory and signals, for kernels.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct PeerRow {
    memory: u64,
    bytes: u64,
    signals: u64,
}

/// A rank's side of a new window, to be offered to the others.
pub struct WindowOffer {
    memory: Option<DeviceMemory>,
    signals: GpuMemory,
    record: WindowRecord,
}

/// The encoded form of an offer.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct WindowRecord {
    signals: MemoryOffer,
    /// A copy of the offer of the signals if the rank has no memory.
    memory: MemoryOffer,
    /// Size of the memory.
    bytes: u64,
}

impl WindowRecord {
    /// Decodes the record of a rank; none if the bytes are invalid.
    pub(crate) fn decode(bytes: &[u8], world: usize) -> Option<Self> {
        let record = Self::read_from_bytes(bytes.get(..WindowOffer::BYTES)?).ok()?;
        let is_valid = record.signals.is_valid()
            && record.memory.is_valid()
            && record.bytes <= record.memory.bytes() as u64
            && record.signals.bytes() >= world * SIGNAL_BYTES;
        is_valid.then_some(record)
    }
}

impl WindowOffer {
    /// The size of an encoded offer.
    pub const BYTES: usize = size_of::<WindowRecord>();

    /// Prepares the memory of this rank, which may be none.
    pub fn new(arena: &DeviceArena, memory: Option<DeviceMemory>) -> Result<Self, CudaError> {
        let signals = GpuMemory::zeroed(arena.gpu(), arena.world() * SIGNAL_BYTES)?;
        let offered = MemoryOffer::of(signals.address(), signals.len())?;
        let memory = memory.filter(|memory| !memory.is_empty());
        let bytes = memory.as_ref().map_or(0, |memory| memory.len() as u64);
        let shared = match &memory {
            Some(memory) if memory.ordinal() != Some(arena.gpu().ordinal()) => {
                return Err(CudaError::Argument(format!("{memory:?} is not on {:?}", arena.gpu())));
            }
            Some(memory) => MemoryOffer::of(memory.address(), memory.len())?,
            None => offered,
        };
        Ok(Self { memory, signals, record: WindowRecord { signals: offered, memory: shared, bytes } })
    }

    /// Encodes the offer for the other ranks.
    pub fn encode(&self) -> Vec<u8> {
        self.record.as_bytes().to_vec()
    }
}

/// A window that all ranks have opened. Its calls queue work on streams.
pub struct DeviceWindow {
    gpu: Gpu,
    _signals: GpuMemory,
    /// This rank's memory.
    _memory: Option<DeviceMemory>,
    peers: Vec<PeerWindow>,
    page: Arc<AbortPage>,
    handle: WindowHandle,
    /// A copy of the handle, and the rows that it refers to.
    table: GpuMemory,
}

struct PeerWindow {
    memory: PeerMemory,
    bytes: u64,
    signals: PeerMemory,
}

impl DeviceWindow {
    /// Opens the memory of all ranks, given their encoded offers and this rank's own.
    pub fn open(arena: &DeviceArena, mine: WindowOffer, offers: &[Vec<u8>]) -> Result<Self, CudaError> {
        let WindowOffer { memory, signals, .. } = mine;
        let own_address = memory.as_ref().map_or(0, DeviceMemory::address);
        let own_bytes = memory.as_ref().map_or(0, |memory| memory.len() as u64);
        let open = |(peer, bytes): (usize, &Vec<u8>)| {
            if peer == arena.rank {
                let signals = PeerMemory::Local(signals.address());
                return Ok(PeerWindow { memory: PeerMemory::Local(own_address), bytes: own_bytes, signals });
            }
            let invalid = || CudaError::Argument(format!("invalid window offer from rank {peer}"));
            let record = WindowRecord::decode(bytes, arena.world()).ok_or_else(invalid)?;
            let (memory, signals) = (record.memory.open(&arena.gpu)?, record.signals.open(&arena.gpu)?);
            Ok(PeerWindow { memory, bytes: record.bytes, signals })
        };
        let peers = offers.iter().enumerate().map(open).collect::<Result<Vec<_>, _>>()?;
        let gpu = arena.gpu;
        let (table, handle) = write_table(&gpu, arena.rank, arena.page_address, &peers)?;
        let page = arena.page.clone();
        Ok(Self { gpu, _signals: signals, _memory: memory, peers, page, handle, table })
    }

    /// The window for kernels, see the header: its bytes, and the address of a copy in device memory.
    ///
    /// It is valid until the window is closed, which must follow the end of the kernels.
    pub fn handle(&self) -> (Vec<u8>, u64) {
        (self.handle.as_bytes().to_vec(), self.table.address())
    }

    /// The size of a rank's memory.
    pub fn bytes(&self, rank: usize) -> Result<u64, CudaError> {
        self.peer(rank).map(|peer| peer.bytes)
    }

    /// The address of a rank's memory in this process.
    pub fn address(&self, rank: usize) -> Result<u64, CudaError> {
        self.peer(rank).map(|peer| peer.memory.address())
    }

    /// Queues a copy of `from` into a rank's memory.
    pub fn put(&self, from: &DeviceMemory, to: usize, offset: u64, stream: &Stream) -> Result<(), CudaError> {
        let target = self.place(to, offset, from.len())?;
        // SAFETY: the place is in memory that all ranks keep until the window is closed; the creator of `from` promises the
        // same for that.
        unsafe { stream.copy(target, from.address(), from.len()) }
    }

    /// Queues a copy of a part of a rank's memory.
    pub fn get(&self, to: &DeviceMemory, from: usize, offset: u64, stream: &Stream) -> Result<(), CudaError> {
        let source = self.place(from, offset, to.len())?;
        // SAFETY: as for `put`.
        unsafe { stream.copy(to.address(), source, to.len()) }
    }

    /// Queues a signal to a rank, which arrives after what was queued before.
    pub fn signal(&self, kernels: &FoldKernels, to: usize, stream: &Stream) -> Result<(), CudaError> {
        self.launch(kernels, "ringfold_signal", to, Duration::ZERO, stream)
    }

    /// Queues a wait for the next signal of a rank. After the timeout, or the page's if it is zero, the group fails.
    pub fn wait_signal(
        &self,
        kernels: &FoldKernels,
        from: usize,
        timeout: Duration,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        self.launch(kernels, "ringfold_wait", from, timeout, stream)
    }

    /// Frees it. Unless all ranks have ended their work, the memory is leaked: kernels of others may still use it.
    pub fn close(self, is_done: bool) {
        if !is_done || self.page.is_set() || self.page.error().is_some() {
            core::mem::forget(self);
        }
    }

    fn peer(&self, rank: usize) -> Result<&PeerWindow, CudaError> {
        let count = self.peers.len();
        self.peers.get(rank).ok_or_else(|| {
            CudaError::Argument(format!("rank {rank} is out of range: ranks are 0 to {}", count - 1))
        })
    }

    /// The address of bytes in a rank's memory.
    fn place(&self, rank: usize, offset: u64, bytes: usize) -> Result<u64, CudaError> {
        let peer = self.peer(rank)?;
        let end = offset.checked_add(bytes as u64).filter(|end| *end <= peer.bytes);
        if end.is_none() {
            return Err(CudaError::Argument(format!(
                "{bytes} bytes at offset {offset} are past the end of the window of rank {rank}, which has {} bytes",
                peer.bytes
            )));
        }
        Ok(peer.memory.address() + offset)
    }

    fn launch(
        &self,
        kernels: &FoldKernels,
        name: &str,
        peer: usize,
        timeout: Duration,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        self.peer(peer)?;
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let words = [timeout, peer as u64].map(u64::to_ne_bytes);
        let parameters = [self.handle.as_bytes(), words.as_flattened()].concat();
        let one = Dim3 { x: 1, y: 1, z: 1 };
        let _current = self.gpu.make_current()?;
        // SAFETY: the parameters are those of `Params` in the source; table, signals and page live until the window is closed,
        // which follows the end of the kernels.
        unsafe { kernels.function(name)?.launch(&parameters, one, one, 0, stream.raw()) }
    }
}

/// Writes what kernels of this rank need to device memory: the handle, then a row for each rank.
fn write_table(
    gpu: &Gpu,
    rank: usize,
    abort_page: u64,
    peers: &[PeerWindow],
) -> Result<(GpuMemory, WindowHandle), CudaError> {
    let row = |peer: &PeerWindow| PeerRow {
        // Without memory this is an address of the signals.
        memory: if peer.bytes == 0 { 0 } else { peer.memory.address() },
        bytes: peer.bytes,
        signals: peer.signals.address(),
    };
    let rows: Vec<PeerRow> = peers.iter().map(row).collect();
    let table = GpuMemory::zeroed(gpu, size_of::<WindowHandle>() + size_of_val(&*rows))?;
    let number = |rank| {
        i32::try_from(rank).map_err(|_| CudaError::Argument(format!("invalid number of ranks {rank}")))
    };
    let handle = WindowHandle {
        peers: table.address() + size_of::<WindowHandle>() as u64,
        abort_page,
        rank: number(rank)?,
        size: number(peers.len())?,
    };
    table.write(&[handle.as_bytes(), rows.as_bytes()].concat())?;
    Ok((table, handle))
}

#[cfg(test)]
mod tests;
