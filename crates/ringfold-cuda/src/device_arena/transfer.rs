//! Launches of the kernels of sends and receives.

use super::layout::{
    BATCH_BLOCKS, BATCH_MAX, BATCH_THREADS, SMALL_TRANSFER_BYTES, THREADS, TRANSFERS_MAX, transfer_blocks,
};
use super::{CallOptions, DeviceArena, FoldKernels};
use crate::device_memory::DeviceMemory;
use crate::error::CudaError;
use crate::function::{Dim3, Function};
use crate::stream::Stream;

/// A send or a receive.
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    /// Whether it is a send.
    pub is_send: bool,
    /// The other rank.
    pub peer: usize,
    /// What is sent, or where the message is stored.
    pub memory: &'a DeviceMemory,
    /// Hash of what both ranks must agree on.
    pub fingerprint: u64,
    /// What [`DeviceArena::code_of`] returns for it.
    pub code: u64,
}

impl Transfer<'_> {
    /// Whether it goes in packets: the sender does not wait for the receiver.
    pub fn is_small(&self) -> bool {
        !Self::is_large(self.memory.len())
    }

    /// Whether so many bytes are too many for packets.
    pub fn is_large(bytes: usize) -> bool {
        bytes > SMALL_TRANSFER_BYTES
    }
}

/// The steps of a transfer; see `Transfer` in the source.
const SEND: u32 = 1;
const ANNOUNCE: u32 = 2;
const AWAIT: u32 = 4;
const SMALL: u32 = 8;

/// The most blocks of a small transfer.
const SMALL_BLOCKS_MAX: u32 = 4;

/// The grid of a launch: blocks, rows of blocks, and threads of a block.
struct Grid(u32, u32, u32);

impl DeviceArena {
    /// The position of a large send in registered memory; 0 if it is not registered, or for other transfers.
    pub fn code_of(&self, transfer: &Transfer<'_>, is_captured: bool) -> u64 {
        let memory = transfer.memory;
        let is_read = transfer.is_send && !transfer.is_small();
        if is_read { self.code(memory.address(), memory.len() as u64, is_captured) } else { 0 }
    }

    /// Queues transfers, at most one with each rank in each direction. All are small, or none is and at most one is a receive.
    ///
    /// Transfers with one rank in one direction are queued one after the other; the ranks do that in the same order. What
    /// is said of [`all_reduce`](Self::all_reduce) holds for the memory.
    pub fn transfer(
        &self,
        kernels: &FoldKernels,
        transfers: &[Transfer<'_>],
        options: &CallOptions,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        self.check_transfers(kernels, transfers, TRANSFERS_MAX)?;
        let all: Vec<_> = transfers.iter().collect();
        if transfers.iter().all(Transfer::is_small) {
            let most = transfers.iter().map(|transfer| transfer.memory.len()).max().unwrap_or(0);
            let packets = most.div_ceil(8).max(1) as u32;
            let threads = packets.next_multiple_of(32).min(THREADS);
            // Few blocks: those of receives wait.
            let blocks = packets.div_ceil(THREADS).min(SMALL_BLOCKS_MAX);
            let grid = Grid(blocks, transfers.len() as u32, threads);
            let small = kernels.function("ringfold_small")?;
            return self.launch_transfers::<TRANSFERS_MAX>(small, &all, 0, options, grid, stream);
        }
        self.transfer_large(kernels, &all, options, stream)
    }

    /// Queues any transfers, which may wait for each other's ranks. Those with one rank in one direction keep their order.
    pub fn transfer_batch(
        &self,
        kernels: &FoldKernels,
        transfers: &[Transfer<'_>],
        options: &CallOptions,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        self.check_transfers(kernels, transfers, usize::MAX)?;
        let function = kernels.function("ringfold_batch")?;
        for part in transfers.chunks(BATCH_MAX) {
            let mut part: Vec<_> = part.iter().collect();
            let chain = |transfer: &&Transfer<'_>| (transfer.peer, transfer.is_send);
            part.sort_by_key(chain);
            let chains = part.chunk_by(|one, next| chain(one) == chain(next)).count() as u32;
            let blocks = (BATCH_BLOCKS / chains.max(1)).max(1);
            let grid = Grid(blocks, chains, BATCH_THREADS);
            self.launch_transfers::<BATCH_MAX>(function, &part, ANNOUNCE | AWAIT, options, grid, stream)?;
        }
        Ok(())
    }

    fn check_transfers(
        &self,
        kernels: &FoldKernels,
        transfers: &[Transfer<'_>],
        most: usize,
    ) -> Result<(), CudaError> {
        let is_valid = |transfer: &Transfer<'_>| {
            transfer.peer < self.world()
                && transfer.peer != self.rank
                && !transfer.memory.is_empty()
                && transfer.memory.ordinal() == Some(self.gpu.ordinal())
        };
        let is_for_us = kernels.specialisation().world == self.world() && transfers.len() <= most;
        if is_for_us && transfers.iter().all(is_valid) {
            return Ok(());
        }
        Err(CudaError::Argument(format!("invalid memory for a transfer: {transfers:?}")))
    }

    fn transfer_large(
        &self,
        kernels: &FoldKernels,
        transfers: &[&Transfer<'_>],
        options: &CallOptions,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let is_pushed = |transfer: &Transfer<'_>| transfer.is_send && transfer.code == 0;
        let needs_second = transfers.iter().any(|transfer| !transfer.is_send || is_pushed(transfer));
        // A send that needs no other kernel waits in the first one.
        let first = if needs_second { ANNOUNCE } else { ANNOUNCE | AWAIT };
        let meet = kernels.function("ringfold_meet")?;
        let launch = |function: &Function, some: &[&Transfer<'_>], steps: u32, grid: Grid| {
            self.launch_transfers::<TRANSFERS_MAX>(function, some, steps, options, grid, stream)
        };
        launch(meet, transfers, first, Grid(transfers.len() as u32, 1, 32))?;
        if !needs_second {
            return Ok(());
        }
        let few = transfer_blocks(self.world()) as u32;
        for &transfer in transfers {
            let (function, blocks) = if !transfer.is_send {
                // Nothing waits for these blocks, so they may use the whole device.
                let blocks = transfer.memory.len().div_ceil(THREADS as usize * 16) as u32;
                (kernels.function("ringfold_pull")?, blocks.clamp(few, self.gpu.sms().max(few)))
            } else if is_pushed(transfer) {
                (kernels.function("ringfold_push")?, few)
            } else {
                continue;
            };
            launch(function, &[transfer], 0, Grid(blocks, 1, THREADS))?;
        }
        let sends: Vec<_> = transfers.iter().copied().filter(|transfer| transfer.is_send).collect();
        if sends.is_empty() {
            return Ok(());
        }
        launch(meet, &sends, AWAIT, Grid(sends.len() as u32, 1, 32))
    }

    /// Launches a kernel for up to `MAX` transfers, with these steps.
    fn launch_transfers<const MAX: usize>(
        &self,
        function: &Function,
        transfers: &[&Transfer<'_>],
        steps: u32,
        options: &CallOptions,
        Grid(blocks, rows, threads): Grid,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        const WORDS: usize = 5;
        let mut words = vec![0; WORDS * MAX];
        for (at, transfer) in words.chunks_exact_mut(WORDS).zip(transfers) {
            let kind = if transfer.is_send { SEND } else { 0 } | if transfer.is_small() { SMALL } else { 0 };
            let steps = steps | kind;
            let who = transfer.peer as u64 | u64::from(steps) << 32;
            let memory = transfer.memory;
            at.copy_from_slice(&[
                memory.address(),
                memory.len() as u64,
                transfer.code,
                transfer.fingerprint,
                who,
            ]);
        }
        let parameters: Vec<u8> =
            words.into_iter().chain(self.links(options)).flat_map(u64::to_ne_bytes).collect();
        let (grid, block) = (Dim3 { x: blocks, y: rows, z: 1 }, Dim3 { x: threads, y: 1, z: 1 });
        // SAFETY: as for collectives: the parameters are those of `Params` in the source.
        unsafe { function.launch(&parameters, grid, block, 0, stream.raw()) }
    }
}
