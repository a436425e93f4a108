//! The bridge between a device and a thread of its host: page-locked memory through which pieces of tensors go.
//!
//! Kernels hand pieces over and take them back in the same order, so that work on streams continues without the host's
//! threads that queued it, also in graphs. What the thread has to do with a piece is a number that goes with it.

use super::{DeviceArena, FoldKernels};
use crate::device_memory::DeviceMemory;
use crate::error::CudaError;
use crate::function::Dim3;
use crate::gpu::Gpu;
use crate::gpu_memory::GpuMemory;
use crate::host_words::HostWords;
use crate::port::abort_page::AbortPage;
use crate::stream::Stream;
use core::ops::Range;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::Arc;

/// The most pieces that are handed over and not taken back.
pub const BRIDGE_SLOTS: usize = 4;

/// The most bytes of a piece.
pub const BRIDGE_PIECE_BYTES: usize = 32 << 20;

/// The size of the ring of jobs.
pub(super) const JOBS: usize = 2 * BRIDGE_SLOTS;

/// The words of the host: counts, each in its own cache line, and the jobs.
const HANDED: usize = 0;
const RETURNED: usize = 8;
const FIRST_JOB: usize = 16;

/// The device's side: it hands pieces over, on streams.
pub struct DeviceBridge {
    shared: Arc<SharedBridge>,
    kernels: Arc<FoldKernels>,
}

/// The host's side, for one thread.
pub struct HostBridge {
    shared: Arc<SharedBridge>,
    taken: u32,
}

struct SharedBridge {
    gpu: Gpu,
    pieces: HostWords,
    words: HostWords,
    /// How many the device has handed over, and taken back.
    counts: GpuMemory,
    page: Arc<AbortPage>,
    page_address: u64,
}

/// A part of a tensor, and the slot that it goes through.
#[derive(Clone, Debug)]
pub struct BridgePiece<'a> {
    /// One of [`BRIDGE_SLOTS`].
    pub slot: usize,
    /// The tensor.
    pub memory: &'a DeviceMemory,
    /// The bytes of it; at most [`BRIDGE_PIECE_BYTES`].
    pub range: Range<usize>,
}

impl DeviceBridge {
    /// Allocates a bridge. It may wait for kernels.
    pub fn open(arena: &DeviceArena, kernels: Arc<FoldKernels>) -> Result<(Self, HostBridge), CudaError> {
        let gpu = *arena.gpu();
        let shared = Arc::new(SharedBridge {
            gpu,
            pieces: gpu.map_host_words(BRIDGE_SLOTS * BRIDGE_PIECE_BYTES)?,
            words: gpu.map_host_words((FIRST_JOB + JOBS) * 8)?,
            counts: GpuMemory::zeroed(&gpu, 8)?,
            page: arena.page().clone(),
            page_address: arena.page().device_address()?,
        });
        Ok((Self { shared: shared.clone(), kernels }, HostBridge { shared, taken: 0 }))
    }

    /// Queues a copy of a piece to its slot, and hands it over, unless the group has failed. The slot must have been taken back.
    pub fn hand_over(&self, piece: &BridgePiece<'_>, job: u64, stream: &Stream) -> Result<(), CudaError> {
        let (slot, address, bytes) = self.places(piece)?;
        // SAFETY: the slot has room for the piece, which is in the tensor; the memory is the arena's matter, see `all_reduce`.
        unsafe { stream.copy(slot, address, bytes) }?;
        let own = self.shared.counts.address();
        self.launch("ringfold_hand_over", own, HANDED, (job, Duration::ZERO), stream)
    }

    /// Queues a wait for the oldest piece that is handed over, and a copy of its slot to the tensor.
    ///
    /// It waits more than twice as long as the call's timeout, or the page's if that is zero; then the group fails.
    pub fn take_back(
        &self,
        piece: &BridgePiece<'_>,
        timeout: Duration,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let (slot, address, bytes) = self.places(piece)?;
        let own = self.shared.counts.address() + 4;
        self.launch("ringfold_take_back", own, RETURNED, (0, timeout), stream)?;
        // SAFETY: as in `hand_over`.
        unsafe { stream.copy(address, slot, bytes) }
    }

    /// Frees it. Unless all its work is done, the memory is leaked.
    pub fn close(self, is_done: bool) {
        if !is_done || self.shared.page.is_set() {
            core::mem::forget(self.shared);
        }
    }

    /// The addresses of a piece's slot and of the piece, and its size.
    fn places(&self, piece: &BridgePiece<'_>) -> Result<(u64, u64, usize), CudaError> {
        let BridgePiece { slot, memory, range } = piece;
        let bytes = range.end.saturating_sub(range.start);
        if *slot >= BRIDGE_SLOTS || bytes > BRIDGE_PIECE_BYTES || range.end > memory.len() {
            return Err(CudaError::Argument(format!("invalid piece of a tensor: {piece:?}")));
        }
        let at = self.shared.pieces.device_address() + (slot * BRIDGE_PIECE_BYTES) as u64;
        Ok((at, memory.address() + range.start as u64, bytes))
    }

    fn launch(
        &self,
        name: &str,
        own: u64,
        word: usize,
        (job, timeout): (u64, Duration),
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let SharedBridge { gpu, words, page_address, .. } = &*self.shared;
        let at = |word: usize| words.device_address() + (word * 8) as u64;
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let parameters = [own, at(word), at(FIRST_JOB), job, *page_address, timeout];
        let parameters: Vec<u8> = parameters.into_iter().flat_map(u64::to_ne_bytes).collect();
        let one = Dim3 { x: 1, y: 1, z: 1 };
        let _current = gpu.make_current()?;
        // SAFETY: the parameters are those of `Params` in the source; the memory lives until the bridge is closed, which
        // follows the end of the kernels.
        unsafe { self.kernels.function(name)?.launch(&parameters, one, one, 0, stream.raw()) }
    }
}

impl HostBridge {
    /// The page through which kernels report failures.
    pub fn page(&self) -> &AbortPage {
        &self.shared.page
    }

    /// The job of the oldest piece that has been handed over, if there is one.
    pub fn job(&self) -> Option<u64> {
        let handed = self.shared.words.word(HANDED).load(Ordering::Acquire) as u32;
        let number = self.taken.wrapping_add(1);
        if (handed.wrapping_sub(number)).cast_signed() < 0 {
            return None;
        }
        Some(self.shared.words.word(FIRST_JOB + number as usize % JOBS).load(Ordering::Relaxed))
    }

    /// The first bytes of a slot whose piece has been handed over.
    ///
    /// # Panics
    /// If the slot does not exist, or is smaller.
    pub fn piece(&mut self, slot: usize, bytes: usize) -> &mut [u8] {
        assert!(slot < BRIDGE_SLOTS && bytes <= BRIDGE_PIECE_BYTES, "{bytes} bytes in slot {slot}");
        let pieces = &self.shared.pieces;
        // SAFETY: the bytes are in the memory, which lives as long as this value. The device does not touch a slot between
        // handing it over and taking it back; a job with a wrong slot would mix up data, as a wrong copy does.
        unsafe { core::slice::from_raw_parts_mut(pieces.start().add(slot * BRIDGE_PIECE_BYTES), bytes) }
    }

    /// Gives the oldest piece back.
    pub fn give_back(&mut self) {
        self.taken = self.taken.wrapping_add(1);
        self.shared.words.word(RETURNED).store(u64::from(self.taken), Ordering::Release);
    }
}
