//! The shared memory and kernels of collectives between CUDA devices.
//!
//! Each rank has an arena in device memory, which all others have mapped: flags, packets and staging areas, see
//! `kernels/arena.cuh`. Ranks of other processes open it by its `IpcRecord`; ranks that are threads of one process
//! use its address.

mod combine;
mod exchange_area;
mod kernels;
mod launch;
mod layout;
mod offer;
mod quantize;
mod weight;

pub use combine::CombineKernel;
pub use exchange_area::{ExchangeArea, PeerArea};
pub use kernels::{FoldKernels, KernelKind, Specialisation};
pub use launch::{AllReduceCall, CallOptions, ExchangeCall};
pub use layout::{BLOCKS_MAX, WORLD_MAX};
pub use offer::{ArenaOffer, MemoryOffer};
pub use quantize::{QuantizeKernels, QuantizedChunk, QuantizedExchange, QuantizedSpecialisation};
pub use weight::WeightKernels;

use crate::device_memory::DeviceMemory;
use crate::error::CudaError;
use crate::event::Event;
use crate::gpu::Gpu;
use crate::gpu_memory::GpuMemory;
use crate::ipc::{IpcMemory, buffer_id};
use crate::limits::ZEROING_MAX;
use crate::port::abort_page::AbortPage;
use crate::stream::Stream;
use layout::{ArenaLayout, SLOT_SHIFT, SLOTS_MAX};
use offer::ArenaRecord;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;

/// A rank's arena, with mappings of all others.
pub struct DeviceArena {
    gpu: Gpu,
    rank: usize,
    layout: ArenaLayout,
    /// None only while it is dropped.
    own: Option<GpuMemory>,
    arenas: Vec<PeerMemory>,
    /// Local addresses of registered memory: a row for each slot, a word for each rank.
    table: GpuMemory,
    slots: Mutex<Vec<RegisteredSlot>>,
    page: Arc<AbortPage>,
    page_address: u64,
    /// The most blocks per rank such that the blocks of all ranks run at the same time.
    blocks_max: u32,
}

/// A rank's memory that kernels of this process can access.
#[derive(Clone)]
enum PeerMemory {
    Local(u64),
    Mapped(IpcMemory),
}

/// Memory of all ranks that was registered together.
struct RegisteredSlot {
    start: u64,
    bytes: u64,
    /// Distinguishes it from a later allocation at the same address.
    buffer_id: u64,
    _own: DeviceMemory,
    /// Keeps the peers' memory open.
    _peers: Vec<PeerMemory>,
}

impl PeerMemory {
    fn address(&self) -> u64 {
        match self {
            Self::Local(address) => *address,
            Self::Mapped(memory) => memory.address(),
        }
    }
}

impl DeviceArena {
    /// Opens the arenas of all ranks, given their encoded offers and this rank's own.
    pub fn join(mine: ArenaOffer, offers: &[Vec<u8>], page: Arc<AbortPage>) -> Result<Self, CudaError> {
        let ArenaOffer { gpu, memory: own, rank, .. } = mine;
        let world = offers.len();
        let layout = ArenaLayout::of(world);
        let mut arenas = Vec::with_capacity(world);
        let mut devices = Vec::with_capacity(world);
        for (peer, bytes) in offers.iter().enumerate() {
            let theirs = ArenaRecord::decode(bytes)
                .ok_or_else(|| CudaError::Argument(format!("invalid arena offer from rank {peer}")))?;
            if theirs.memory.bytes() < layout.bytes() {
                return Err(CudaError::Argument(format!("invalid arena offer from rank {peer}: too small")));
            }
            arenas.push(if peer == rank {
                PeerMemory::Local(own.address())
            } else {
                theirs.memory.open(&gpu)?
            });
            devices.push((theirs.memory.gpu(), theirs.multiprocessors as u32));
        }
        let blocks_max = layout::blocks_max(&devices).ok_or_else(|| {
            CudaError::Unsupported(
                "too many ranks on one CUDA device: their kernels do not run at the same time".into(),
            )
        })?;
        let table = GpuMemory::zeroed(&gpu, SLOTS_MAX * world * 8)?;
        let page_address = page.device_address()?;
        let slots = Mutex::new(Vec::new());
        let own = Some(own);
        Ok(Self { gpu, rank, layout, own, arenas, table, slots, page, page_address, blocks_max })
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The page that ends its kernels' waits.
    pub fn page(&self) -> &Arc<AbortPage> {
        &self.page
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.arenas.len()
    }

    /// The number of free slots for registered memory.
    pub fn slots_left(&self) -> usize {
        SLOTS_MAX - self.slots.lock().len()
    }

    /// Opens memory that all ranks register together; [`DeviceArena::add`] makes it usable.
    pub fn open(&self, own: &DeviceMemory, offers: &[Vec<u8>]) -> Result<OpenedMemory, CudaError> {
        let open = |(peer, bytes): (usize, &Vec<u8>)| {
            if peer == self.rank {
                return Ok(PeerMemory::Local(own.address()));
            }
            MemoryOffer::decode(bytes)
                .ok_or_else(|| CudaError::Argument(format!("invalid memory offer from rank {peer}")))?
                .open(&self.gpu)
        };
        let peers = offers.iter().enumerate().map(open).collect::<Result<_, _>>()?;
        Ok(OpenedMemory { own: own.clone(), buffer_id: buffer_id(own.address())?, peers })
    }

    /// Registers opened memory: tensors in it are used in place if all ranks' tensors are in registered memory.
    pub fn add(&self, opened: OpenedMemory) -> Result<(), CudaError> {
        let OpenedMemory { own, buffer_id, peers } = opened;
        let mut slots = self.slots.lock();
        if slots.len() >= SLOTS_MAX {
            return Err(CudaError::Unsupported(format!(
                "too many registered memories: at most {SLOTS_MAX} are supported"
            )));
        }
        let row: Vec<u8> = peers.iter().flat_map(|memory| memory.address().to_ne_bytes()).collect();
        let at = self.table.address() + (slots.len() * row.len()) as u64;
        let stream = &self.gpu.0.side_stream;
        // SAFETY: the row is in the table, no kernel reads it before all ranks know of the slot, and the bytes are pageable
        // memory, which the driver has read when the call returns.
        unsafe { stream.copy(at, row.as_ptr().addr() as u64, row.len()) }?;
        stream.synchronize(Instant::now() + ZEROING_MAX)?;
        let (start, bytes) = (own.address(), own.len() as u64);
        slots.push(RegisteredSlot { start, bytes, buffer_id, _own: own, _peers: peers });
        Ok(())
    }

    /// Slot and offset of registered memory, encoded for the kernels; 0 if it is not registered.
    fn code(&self, address: u64, bytes: u64) -> u64 {
        let slots = self.slots.lock();
        let covers = |slot: &RegisteredSlot| {
            address >= slot.start
                && address - slot.start <= slot.bytes
                && bytes <= slot.bytes - (address - slot.start)
        };
        let Some(index) = slots.iter().position(covers) else { return 0 };
        if buffer_id(address).ok() != Some(slots[index].buffer_id) {
            return 0;
        }
        (index as u64 + 1) << SLOT_SHIFT | (address - slots[index].start)
    }

    /// Whether a tensor of this rank is in registered memory.
    pub fn is_registered(&self, memory: &DeviceMemory) -> bool {
        self.code(memory.address(), memory.len() as u64) != 0
    }

    /// Queues a copy of the whole of `from`.
    pub fn copy(&self, to: &DeviceMemory, from: &DeviceMemory, stream: &Stream) -> Result<(), CudaError> {
        if to.len() < from.len() {
            return Err(CudaError::Argument(format!("invalid copy: {from:?} does not fit into {to:?}")));
        }
        if to.address() == from.address() {
            return Ok(());
        }
        // SAFETY: both are allocated, by the promise of their creators (see `all_reduce`).
        unsafe { stream.copy(to.address(), from.address(), from.len()) }
    }

    /// Frees the arena after the `last` event, which follows all work of this rank.
    ///
    /// After the deadline or a failed kernel the memory is leaked: kernels of other ranks may still write to it.
    pub fn close(mut self, last: Option<&Event>, deadline: Instant) {
        let is_done = last.is_none_or(|last| last.wait_until(deadline).is_ok());
        if !is_done || self.page.is_set() || self.page.error().is_some() {
            core::mem::forget(self.own.take());
            core::mem::forget(self.table.clone());
            core::mem::forget(self.page.clone());
            core::mem::forget(core::mem::take(&mut self.arenas));
            core::mem::forget(core::mem::take(&mut *self.slots.lock()));
        }
    }

    /// The device memory that it takes, in bytes.
    pub fn bytes(&self) -> usize {
        self.layout.bytes()
    }
}

/// Memory of all ranks, opened for registration.
pub struct OpenedMemory {
    own: DeviceMemory,
    buffer_id: u64,
    peers: Vec<PeerMemory>,
}
