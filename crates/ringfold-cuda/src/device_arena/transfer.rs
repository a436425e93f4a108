//! Launches of the kernels of sends and receives.

use super::layout::{SMALL_TRANSFER_BYTES, THREADS, TRANSFERS_MAX, transfer_blocks};
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

    /// Queues transfers that may wait for each other's ranks. All are small, or none is and at most one is a receive.
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
        let is_valid = |transfer: &Transfer<'_>| {
            let memory = transfer.memory;
            transfer.peer < self.world()
                && transfer.peer != self.rank
                && memory.ordinal() == Some(self.gpu.ordinal())
        };
        if kernels.specialisation().world != self.world()
            || transfers.len() > TRANSFERS_MAX
            || !transfers.iter().all(is_valid)
        {
            return Err(CudaError::Argument(format!("invalid memory for a transfer: {transfers:?}")));
        }
        if transfers.iter().all(Transfer::is_small) {
            let all: Vec<_> = transfers.iter().collect();
            let most = transfers.iter().map(|transfer| transfer.memory.len()).max().unwrap_or(0);
            let packets = most.div_ceil(8).max(1) as u32;
            let threads = packets.next_multiple_of(32).min(THREADS);
            // Few blocks: those of receives wait.
            let blocks = packets.div_ceil(THREADS).min(SMALL_BLOCKS_MAX);
            let grid = Grid(blocks, transfers.len() as u32, threads);
            return self.launch_transfers(
                kernels.function("ringfold_small")?,
                &all,
                0,
                options,
                grid,
                stream,
            );
        }
        self.transfer_large(kernels, transfers, options, stream)
    }

    fn transfer_large(
        &self,
        kernels: &FoldKernels,
        transfers: &[Transfer<'_>],
        options: &CallOptions,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let is_pushed = |transfer: &Transfer<'_>| transfer.is_send && transfer.code == 0;
        let needs_second = transfers.iter().any(|transfer| !transfer.is_send || is_pushed(transfer));
        // A send that needs no other kernel waits in the first one.
        let first = if needs_second { ANNOUNCE } else { ANNOUNCE | AWAIT };
        let meet = kernels.function("ringfold_meet")?;
        let all: Vec<_> = transfers.iter().collect();
        self.launch_transfers(meet, &all, first, options, Grid(all.len() as u32, 1, 32), stream)?;
        if !needs_second {
            return Ok(());
        }
        let few = transfer_blocks(self.world()) as u32;
        for transfer in transfers {
            let (function, blocks) = if !transfer.is_send {
                // Nothing waits for these blocks, so they may use the whole device.
                let blocks = transfer.memory.len().div_ceil(THREADS as usize * 16) as u32;
                (kernels.function("ringfold_pull")?, blocks.clamp(few, self.gpu.sms().max(few)))
            } else if is_pushed(transfer) {
                (kernels.function("ringfold_push")?, few)
            } else {
                continue;
            };
            self.launch_transfers(function, &[transfer], 0, options, Grid(blocks, 1, THREADS), stream)?;
        }
        let sends: Vec<_> = transfers.iter().filter(|transfer| transfer.is_send).collect();
        if sends.is_empty() {
            return Ok(());
        }
        self.launch_transfers(meet, &sends, AWAIT, options, Grid(sends.len() as u32, 1, 32), stream)
    }

    /// Launches a kernel for transfers, with these steps.
    fn launch_transfers(
        &self,
        function: &Function,
        transfers: &[&Transfer<'_>],
        steps: u32,
        options: &CallOptions,
        Grid(blocks, rows, threads): Grid,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        const WORDS: usize = 5;
        let mut words = [0; WORDS * TRANSFERS_MAX];
        for (at, transfer) in words.chunks_exact_mut(WORDS).zip(transfers) {
            let steps = steps | if transfer.is_send { SEND } else { 0 };
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
