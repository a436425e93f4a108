//! Memory through which ranks on CUDA devices carry out collectives, and the kernels that do.
//!
//! Each rank has an arena in its device's memory, which all others have mapped: flags, packets and staging areas, see
//! `kernels/collectives.cu`. Ranks of other processes open it by its `IpcRecord`; ranks that are threads of one
//! process have its address already.

mod kernels;
mod layout;
mod offer;

pub use kernels::{FoldKernels, Specialisation};
pub use layout::{BLOCKS_MAX, WORLD_MAX};
pub use offer::{ArenaOffer, MemoryOffer};

use crate::device_memory::DeviceMemory;
use crate::error::CudaError;
use crate::event::Event;
use crate::function::{Block, Grid};
use crate::gpu::Gpu;
use crate::gpu_memory::GpuMemory;
use crate::ipc::{IpcMemory, buffer_id};
use crate::limits::ZEROING_MAX;
use crate::port::abort_page::AbortPage;
use crate::stream::Stream;
use layout::{Layout, SLOT_SHIFT, SLOTS_MAX, THREADS};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;

/// A rank's arena, and those of all others.
pub struct DeviceArena {
    gpu: Gpu,
    me: usize,
    layout: Layout,
    /// None only while it is dropped.
    own: Option<GpuMemory>,
    /// Where each rank's arena is, here.
    arenas: Vec<Place>,
    /// Where each rank's registered memory is, here: a row for each slot, a word for each rank.
    table: GpuMemory,
    slots: Mutex<Vec<Slot>>,
    page: Arc<AbortPage>,
    page_address: u64,
    /// Blocks of all ranks together fit their devices if each rank has so many at most.
    blocks_max: u32,
}

/// Memory of some rank that kernels of this process reach.
#[derive(Clone)]
enum Place {
    Here(u64),
    Mapped(IpcMemory),
}

/// Memory of all ranks that was registered together.
struct Slot {
    start: u64,
    bytes: u64,
    /// Tells it from memory that was allocated at the same address later.
    buffer_id: u64,
    _own: DeviceMemory,
    /// What keeps the others' open.
    _theirs: Vec<Place>,
}

/// One collective, as a kernel is asked for it. Counts and offsets are of elements as the kernel takes them.
#[derive(Clone, Copy, Debug)]
pub struct FoldCall<'a> {
    /// What is read.
    pub source: &'a DeviceMemory,
    /// What is written.
    pub target: &'a DeviceMemory,
    /// Elements of the source.
    pub count: u64,
    /// What this rank computes for all: where that begins in everyone's source and target, and how long it is.
    pub fold: FoldPlace,
    /// Of what was asked for; equal on all ranks.
    pub fingerprint: u64,
}

/// What one rank computes for all.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FoldPlace {
    /// The first element, in sources.
    pub source: u64,
    /// The first element, in targets.
    pub target: u64,
    /// How many elements.
    pub count: u64,
}

impl Place {
    fn address(&self) -> u64 {
        match self {
            Self::Here(address) => *address,
            Self::Mapped(memory) => memory.address(),
        }
    }
}

impl DeviceArena {
    /// Opens what the others have offered. This rank's own offer is `mine`.
    pub fn join(mine: ArenaOffer, offers: &[Vec<u8>], page: Arc<AbortPage>) -> Result<Self, CudaError> {
        let ArenaOffer { gpu, memory: own, me, .. } = mine;
        let world = offers.len();
        let layout = Layout::of(world);
        let mut arenas = Vec::with_capacity(world);
        let mut crowds = Vec::with_capacity(world);
        for (rank, bytes) in offers.iter().enumerate() {
            let theirs = offer::decode(bytes)
                .ok_or_else(|| CudaError::Argument(format!("what rank {rank} offers is no arena")))?;
            if theirs.memory.bytes() < layout.bytes() {
                return Err(CudaError::Argument(format!("the arena of rank {rank} is too small")));
            }
            arenas.push(if rank == me { Place::Here(own.address()) } else { theirs.memory.open(&gpu)? });
            crowds.push((theirs.memory.gpu(), theirs.multiprocessors as u32));
        }
        let blocks_max = layout::blocks_max(&crowds).ok_or_else(|| {
            CudaError::Unsupported(
                "the kernels of all ranks on a device do not fit it at the same time".into(),
            )
        })?;
        let table = GpuMemory::zeroed(&gpu, SLOTS_MAX * world * 8)?;
        let page_address = page.device_address()?;
        let slots = Mutex::new(Vec::new());
        let own = Some(own);
        Ok(Self { gpu, me, layout, own, arenas, table, slots, page, page_address, blocks_max })
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The page that ends its kernels' waits.
    pub fn page(&self) -> &Arc<AbortPage> {
        &self.page
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.arenas.len()
    }

    /// How many slots are left for registered memory.
    pub fn slots_left(&self) -> usize {
        SLOTS_MAX - self.slots.lock().len()
    }

    /// Opens memory that the others have registered together with ours; it becomes usable by [`DeviceArena::add`].
    pub fn open(&self, own: &DeviceMemory, offers: &[Vec<u8>]) -> Result<OpenedMemory, CudaError> {
        let open = |(rank, bytes): (usize, &Vec<u8>)| {
            if rank == self.me {
                return Ok(Place::Here(own.address()));
            }
            MemoryOffer::decode(bytes)
                .ok_or_else(|| CudaError::Argument(format!("what rank {rank} registers is no memory")))?
                .open(&self.gpu)
        };
        let places = offers.iter().enumerate().map(open).collect::<Result<_, _>>()?;
        Ok(OpenedMemory { own: own.clone(), buffer_id: buffer_id(own.address())?, places })
    }

    /// Tensors in this memory are read and written in place from now on, if those of all ranks are in such memory.
    pub fn add(&self, opened: OpenedMemory) -> Result<(), CudaError> {
        let OpenedMemory { own, buffer_id, places } = opened;
        let mut slots = self.slots.lock();
        if slots.len() >= SLOTS_MAX {
            return Err(CudaError::Unsupported(format!(
                "no more than {SLOTS_MAX} pieces of memory can be registered"
            )));
        }
        let row: Vec<u8> = places.iter().flat_map(|place| place.address().to_ne_bytes()).collect();
        let at = self.table.address() + (slots.len() * row.len()) as u64;
        let stream = &self.gpu.0.aside;
        // SAFETY: the row is in the table, no kernel reads it before all ranks know of the slot, and the bytes stay until
        // the copy is done or, if that fails, are of pageable memory, which the driver has copied by the time it returns.
        unsafe { stream.copy(at, row.as_ptr().addr() as u64, row.len()) }?;
        stream.synchronize(Instant::now() + ZEROING_MAX)?;
        let (start, bytes) = (own.address(), own.len() as u64);
        slots.push(Slot { start, bytes, buffer_id, _own: own, _theirs: places });
        Ok(())
    }

    /// Where memory is among what was registered; 0 if it is not there.
    fn code(&self, memory: &DeviceMemory) -> u64 {
        let slots = self.slots.lock();
        let (address, bytes) = (memory.address(), memory.len() as u64);
        let covers = |slot: &Slot| {
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

    /// Whether a tensor would be read or written in place, as far as this rank knows.
    pub fn is_registered(&self, memory: &DeviceMemory) -> bool {
        self.code(memory) != 0
    }

    /// Queues a collective. All ranks do, in the same order, each after what it queued before.
    ///
    /// Until the kernel is done, nothing that is not ordered with the stream uses the memory; that is the promise of
    /// whoever made the [`DeviceMemory`], as for copies.
    pub fn launch(
        &self,
        kernels: &FoldKernels,
        call: &FoldCall<'_>,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let specialisation = kernels.specialisation();
        let element = specialisation.element_bytes as u64;
        let world = self.world() as u64;
        let (source, target) = (call.source, call.target);
        let wanted = call.count * element;
        let gathered = if specialisation.is_gather { wanted * world } else { wanted };
        let is_whole = source.len() as u64 >= wanted && target.len() as u64 >= gathered;
        let is_aligned = source.address().is_multiple_of(element) && target.address().is_multiple_of(element);
        let is_here = [source, target].iter().all(|memory| memory.ordinal() == Some(self.gpu.ordinal()));
        if !is_whole || !is_aligned || !is_here || specialisation.world != self.world() {
            return Err(CudaError::Argument(format!("{source:?} and {target:?} do not fit {call:?}")));
        }
        let packets = wanted.div_ceil(8);
        let is_small = wanted <= self.layout.packet_bytes() as u64;
        let (source_code, target_code) =
            if is_small { (0, 0) } else { (self.code(source), self.code(target)) };
        let mut parameters = Vec::with_capacity(16 * 8 + self.arenas.len() * 8);
        let FoldPlace { source: fold_source, target: fold_target, count: fold_count } = call.fold;
        for word in [source.address(), target.address(), call.count, fold_source, fold_target, fold_count]
            .into_iter()
            .chain([source_code, target_code, call.fingerprint, self.table.address(), self.page_address])
            .chain(self.arenas.iter().map(Place::address))
            .chain([self.me as u64])
        {
            parameters.extend_from_slice(&word.to_ne_bytes());
        }
        let (function, blocks, threads) = if is_small {
            let threads = (packets as u32).next_multiple_of(32).min(THREADS);
            (kernels.small(), (packets as u32).div_ceil(THREADS).min(self.blocks_max), threads)
        } else {
            let mine = if specialisation.is_gather { wanted } else { wanted.div_ceil(world) };
            let blocks = mine.div_ceil(u64::from(THREADS) * 16).clamp(1, u64::from(self.blocks_max));
            (kernels.bulk(), blocks as u32, THREADS)
        };
        let (grid, block) = (Grid { x: blocks, y: 1, z: 1 }, Block { x: threads, y: 1, z: 1 });
        // SAFETY: the parameters are those of `Params` in the source, for this world; arenas, table and page live as long as
        // this, which waits for the kernels before it goes; source and target are as long as the kernel takes them.
        unsafe { function.launch(&parameters, grid, block, 0, stream.raw()) }
    }

    /// Queues a copy.
    pub fn copy(&self, to: &DeviceMemory, from: &DeviceMemory, stream: &Stream) -> Result<(), CudaError> {
        if to.len() < from.len() {
            return Err(CudaError::Argument(format!("{from:?} do not fit into {to:?}")));
        }
        if to.address() == from.address() {
            return Ok(());
        }
        // SAFETY: both are there, by the promise of whoever made them, which is that of `launch`, too.
        unsafe { stream.copy(to.address(), from.address(), from.len()) }
    }

    /// Lets go of it when all that was queued by this rank is done, which is told by the event, if there is one. If that
    /// takes too long, or the ranks' kernels were not all done in good order, the memory stays for the rest of the process:
    /// kernels of others may still write to it.
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

    /// How many bytes of the device's memory it takes.
    pub fn bytes(&self) -> usize {
        self.layout.bytes()
    }
}

/// Memory of all ranks that is open here.
pub struct OpenedMemory {
    own: DeviceMemory,
    buffer_id: u64,
    places: Vec<Place>,
}
