//! The shared memory and kernels of collectives between CUDA devices.
//!
//! Each rank has an arena in device memory, which all others have mapped: flags, packets and staging areas, see
//! `kernels/arena.cuh`. Ranks of other processes open it by its `IpcRecord`; ranks that are threads of one process
//! use its address.

mod all_reduce_graph;
mod bridge;
mod combine;
mod device_share;
mod exchange_area;
mod kernels;
mod launch;
mod layout;
pub(crate) mod offer;
mod packet_limits;
mod quantize;
mod registry;
mod transfer;
mod weight;
pub(crate) mod window;

pub use all_reduce_graph::AllReduceGraph;
pub use bridge::{BRIDGE_PIECE_BYTES, BRIDGE_SLOTS, BridgePiece, DeviceBridge, HostBridge};
pub use combine::CombineKernel;
pub use exchange_area::{ExchangeArea, PeerArea};
pub use kernels::{FoldKernels, KernelKind, Specialisation};
pub use launch::{AllReduceCall, CallOptions, ExchangeCall};
pub use layout::{BLOCKS_MAX, WORLD_MAX};
pub use offer::{ArenaOffer, MemoryOffer};
pub use packet_limits::{packet_capacity, shipped_packet_limit};
pub use quantize::{QuantizeKernels, QuantizedChunk, QuantizedExchange, QuantizedSpecialisation};
pub use registry::{SlotId, Standing};
pub use transfer::Transfer;
pub use weight::WeightKernels;
pub use window::{DeviceWindow, WindowOffer};

use crate::device_memory::DeviceMemory;
use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::gpu_memory::GpuMemory;
use crate::ipc::{IpcMemory, allocation_at, buffer_id};
use crate::limits::ZEROING_MAX;
use crate::port::abort_page::AbortPage;
use crate::stream::Stream;
use device_share::DeviceShare;
use layout::{ArenaLayout, SLOTS_MAX};
use offer::ArenaRecord;
use parking_lot::Mutex;
use registry::Registry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

/// A rank's arena, with mappings of all others.
pub struct DeviceArena {
    gpu: Gpu,
    rank: usize,
    layout: ArenaLayout,
    /// The most bytes that are sent in packets; the same on all ranks.
    packet_limit: u64,
    /// None only while it is dropped.
    own: Option<GpuMemory>,
    arenas: Vec<PeerMemory>,
    /// Local addresses of registered memory: a row for each slot, a word for each rank.
    table: GpuMemory,
    registry: Mutex<Registry>,
    /// Registered memory of other ranks, by rank and slot.
    opened: Mutex<HashMap<(usize, u32), PeerMemory>>,
    /// Called with an address of memory that is not registered, but would be used in place if it were.
    on_unregistered: Box<dyn Fn(u64) + Send + Sync>,
    page: Arc<AbortPage>,
    page_address: u64,
    /// The most blocks per rank such that the blocks of all ranks run at the same time.
    blocks_max: u32,
    /// The most blocks of a batch of transfers.
    batch_blocks: u32,
    /// Whether another group used a device of a rank before this one: then large calls are several kernels, see `Phase` in the
    /// source. The same on all ranks.
    is_shared: bool,
    share: DeviceShare,
}

/// A rank's memory that kernels of this process can access.
#[derive(Clone)]
enum PeerMemory {
    Local(u64),
    Mapped(IpcMemory),
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
    ///
    /// `on_unregistered` gets an address of each allocation that operations would use in place if it were registered.
    pub fn join(
        mine: ArenaOffer,
        offers: &[Vec<u8>],
        page: Arc<AbortPage>,
        on_unregistered: Box<dyn Fn(u64) + Send + Sync>,
    ) -> Result<Self, CudaError> {
        let ArenaOffer { gpu, memory: own, rank, share, .. } = mine;
        let world = offers.len();
        let layout = ArenaLayout::of(world);
        let mut arenas = Vec::with_capacity(world);
        let mut devices = Vec::with_capacity(world);
        let (mut packet_limit, mut other_groups) = (layout.packet_bytes() as u64, 0);
        for (peer, bytes) in offers.iter().enumerate() {
            let theirs = ArenaRecord::decode(bytes)
                .ok_or_else(|| CudaError::Argument(format!("invalid arena offer from rank {peer}")))?;
            if theirs.memory.bytes() < layout.bytes() {
                return Err(CudaError::Argument(format!("invalid arena offer from rank {peer}: too small")));
            }
            packet_limit = packet_limit.min(theirs.packet_limit);
            other_groups = other_groups.max(theirs.other_groups);
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
        let is_shared = other_groups > 0;
        if is_shared {
            let groups = u32::try_from(other_groups).unwrap_or(u32::MAX);
            packet_limit = packet_limit.min(layout::shared_packet_limit(&devices, groups));
        }
        let table = GpuMemory::zeroed(&gpu, SLOTS_MAX * world * 8)?;
        let page_address = page.device_address()?;
        let registry = Mutex::new(Registry::new(rank, world));
        let (own, opened) = (Some(own), Mutex::default());
        Ok(Self {
            gpu,
            rank,
            layout,
            packet_limit,
            own,
            arenas,
            table,
            registry,
            opened,
            on_unregistered,
            page,
            page_address,
            blocks_max,
            batch_blocks: layout::batch_blocks(&devices),
            is_shared,
            share,
        })
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The numbers of ranks of this process's other groups that were on the device before.
    pub fn other_worlds(&self) -> BTreeSet<usize> {
        self.share.other_worlds()
    }

    /// The numbers of this process's groups on the device and of its hardware queues, if calls of one group may wait behind those
    /// of another because there are too few queues.
    pub fn missing_queues(&self) -> Option<(usize, usize)> {
        self.share.missing_queues(&self.gpu)
    }

    /// The page that ends its kernels' waits.
    pub fn page(&self) -> &Arc<AbortPage> {
        &self.page
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.arenas.len()
    }

    /// Whether tensors of so many bytes are used in place if they are registered.
    pub fn is_bulk(&self, bytes: usize) -> bool {
        bytes as u64 > self.packet_limit
    }

    /// What is known of the allocation that an address is in.
    pub fn standing(&self, address: u64) -> Result<Standing, CudaError> {
        Ok(self.registry.lock().standing(buffer_id(address)?))
    }

    /// Prepares the allocation that an address is in for the other ranks. None if it needs no offer, or cannot be shared.
    pub fn offer(&self, address: u64) -> Result<Option<(SlotId, MemoryOffer)>, CudaError> {
        let allocation = allocation_at(address)?;
        let mut registry = self.registry.lock();
        if registry.standing(allocation.id) != Standing::Unknown {
            return Ok(None);
        }
        let bytes = usize::try_from(allocation.bytes).unwrap_or(usize::MAX);
        match MemoryOffer::of(allocation.start, bytes) {
            Ok(offer) => Ok(registry.offer(allocation).map(|slot| (slot, offer))),
            Err(error) => {
                registry.refuse(allocation.id, error.to_string());
                Err(error)
            }
        }
    }

    /// Opens an allocation of another rank, so that the kernels of this one find it.
    pub fn open(&self, owner: usize, what: SlotId, offer: &MemoryOffer) -> Result<(), CudaError> {
        if owner >= self.world() || owner == self.rank || what.slot as usize >= SLOTS_MAX {
            return Err(CudaError::Argument(format!("invalid memory offer from rank {owner}: {what:?}")));
        }
        let memory = offer.open(&self.gpu)?;
        let at = self.table.address() + (what.slot as usize * self.world() + owner) as u64 * 8;
        let stream = &self.gpu.0.side_stream;
        // Not a copy of pageable memory: the driver, locked, may wait for the stream then.
        // SAFETY: the word is in the table, and no kernel reads it before this rank has answered the offer.
        unsafe { stream.write_word(at, memory.address()) }?;
        stream.synchronize(Instant::now() + ZEROING_MAX)?;
        // What was in this slot before was closed before the owner used the slot again.
        self.opened.lock().insert((owner, what.slot), memory);
        Ok(())
    }

    /// Takes an allocation of another rank out of use. Dropping the result closes it, which may wait for kernels.
    pub fn take_opened(&self, owner: usize, what: SlotId) -> Option<impl Send + use<>> {
        self.opened.lock().remove(&(owner, what.slot))
    }

    /// A rank has opened an allocation of this one.
    pub fn note_opened(&self, what: SlotId, rank: usize) {
        self.registry.lock().note_opened(what, rank);
    }

    /// A rank has closed an allocation of this one.
    pub fn note_forgotten(&self, what: SlotId, rank: usize) {
        self.registry.lock().note_forgotten(what, rank);
    }

    /// A rank cannot open an allocation of this one: it is not used. The others must be told, if it returns true.
    pub fn note_refused(&self, what: SlotId, why: String) -> bool {
        let mut registry = self.registry.lock();
        registry.refuse(what.id, why);
        registry.forget(what)
    }

    /// Stops using the allocation that an address is in, unless a graph uses it. The others must be told of what it returns.
    pub fn forget(&self, address: u64) -> Option<SlotId> {
        let mut registry = self.registry.lock();
        let what = registry.slot_id(buffer_id(address).ok()?)?;
        registry.forget(what).then_some(what)
    }

    /// Stops using allocations that were freed. The others must be told of those that it returns.
    pub fn forget_freed(&self) -> Vec<SlotId> {
        let held = self.registry.lock().held();
        let is_freed = |id: u64, start: u64| buffer_id(start).ok() != Some(id);
        let freed = held.into_iter().filter(|(what, allocation)| is_freed(what.id, allocation.start));
        let freed: Vec<_> = freed.map(|(what, _)| what).collect();
        let mut registry = self.registry.lock();
        freed.into_iter().filter(|what| registry.forget(*what)).collect()
    }

    /// Whether any allocation of this rank is offered or registered.
    pub fn has_registered(&self) -> bool {
        !self.registry.lock().held().is_empty()
    }

    /// Slot and offset of registered memory, encoded for the kernels; 0 if it is not registered.
    fn code(&self, address: u64, bytes: u64, is_captured: bool) -> u64 {
        let Ok(id) = buffer_id(address) else { return 0 };
        let mut registry = self.registry.lock();
        let code = registry.code(address, bytes, id, is_captured);
        let is_unknown = code == 0 && registry.standing(id) == Standing::Unknown;
        drop(registry);
        if is_unknown {
            (self.on_unregistered)(address);
        }
        code
    }

    /// Whether a tensor of this rank is in registered memory.
    pub fn is_registered(&self, memory: &DeviceMemory) -> bool {
        buffer_id(memory.address())
            .is_ok_and(|id| self.registry.lock().code(memory.address(), memory.len() as u64, id, false) != 0)
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

    /// Frees the arena. `is_done`: all work of this rank has ended.
    ///
    /// Otherwise, after a failed kernel, or if a small message was not received, the memory is leaked: kernels of other ranks may
    /// still write to it.
    pub fn close(mut self, is_done: bool) {
        if !is_done || self.page.is_set() || self.page.error().is_some() || !self.is_all_received() {
            core::mem::forget(self.own.take());
            core::mem::forget(self.table.clone());
            core::mem::forget(self.page.clone());
            core::mem::forget(core::mem::take(&mut self.arenas));
            core::mem::forget(core::mem::take(&mut *self.opened.lock()));
        }
    }

    /// Whether the other ranks have received all small messages; they write that into the arena.
    fn is_all_received(&self) -> bool {
        let Some(own) = &self.own else { return false };
        let range = self.layout.pairs();
        let (mut pairs, stream) = (vec![0_u8; range.len()], &self.gpu.0.side_stream);
        let (to, from) = (pairs.as_mut_ptr().expose_provenance(), own.address() + range.start as u64);
        // SAFETY: the arena has these bytes, and so has the target, which is kept until the copy is done.
        let copied = unsafe { stream.copy(to as u64, from, pairs.len()) };
        if copied.is_err() || stream.synchronize(Instant::now() + ZEROING_MAX).is_err() {
            core::mem::forget(pairs);
            return false;
        }
        self.layout.is_all_received(&pairs)
    }

    /// The device memory that it takes, in bytes.
    pub fn bytes(&self) -> usize {
        self.layout.bytes()
    }
}
