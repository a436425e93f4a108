//! Launches of the kernels of sends and receives.

use super::layout::{BATCH_MAX, SMALL_TRANSFER_BYTES, THREADS, TRANSFERS_MAX, transfer_blocks};
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

    /// Queues transfers, at most one with each rank in each direction. All are small; or none is, at most one is a receive, and all
    /// sends are of registered memory.
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
        for mut part in batches(transfers) {
            part.sort_by_key(chain);
            let chains = part.chunk_by(|one, next| chain(one) == chain(next)).count() as u32;
            let grid = Grid(self.batch_blocks.min(chains), 1, THREADS);
            self.launch_transfers::<BATCH_MAX>(function, &part, 0, options, grid, stream)?;
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
        let (sends, receives): (Vec<&Transfer<'_>>, Vec<_>) =
            transfers.iter().partition(|transfer| transfer.is_send);
        // A send waits in the first kernel if there is no other.
        let first = if receives.is_empty() { ANNOUNCE | AWAIT } else { ANNOUNCE };
        let meet = kernels.function("ringfold_meet")?;
        let launch = |function: &Function, some: &[&Transfer<'_>], steps: u32, grid: Grid| {
            self.launch_transfers::<TRANSFERS_MAX>(function, some, steps, options, grid, stream)
        };
        let rows = |some: &[&Transfer<'_>]| Grid(some.len() as u32, 1, 32);
        launch(meet, transfers, first, rows(transfers))?;
        for receive in &receives {
            // Nothing waits for these blocks, so they may use the whole device.
            let few = transfer_blocks(self.world()) as u32;
            let blocks = receive.memory.len().div_ceil(THREADS as usize * 16) as u32;
            let blocks = blocks.clamp(few, self.gpu.sms().max(few));
            launch(kernels.function("ringfold_pull")?, &[receive], 0, Grid(blocks, 1, THREADS))?;
        }
        if sends.is_empty() || receives.is_empty() {
            return Ok(());
        }
        launch(meet, &sends, AWAIT, rows(&sends))
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

/// The chain of a transfer: those with one rank in one direction.
fn chain(transfer: &&Transfer<'_>) -> (usize, bool) {
    (transfer.peer, transfer.is_send)
}

/// Divides transfers among launches: the first of each chain, the second and so on, as many as fit.
///
/// All transfers up to some position in their chains are in one launch or before. So of all ranks' launches that wait, the one with
/// the lowest position has its counterpart running.
fn batches<'a, 'b>(transfers: &'a [Transfer<'b>]) -> Vec<Vec<&'a Transfer<'b>>> {
    let mut rounds: Vec<Vec<&Transfer<'_>>> = Vec::new();
    for (at, transfer) in transfers.iter().enumerate() {
        let position = transfers[..at].iter().filter(|other| chain(other) == chain(&transfer)).count();
        if position == rounds.len() {
            rounds.push(Vec::new());
        }
        rounds[position].push(transfer);
    }
    let mut batches: Vec<Vec<&Transfer<'_>>> = Vec::new();
    for round in rounds {
        match batches.last_mut().filter(|last| last.len() + round.len() <= BATCH_MAX) {
            Some(last) => last.extend(round),
            None => batches.push(round),
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_batches_are_divided_by_the_position_in_each_chain() {
        // SAFETY: nobody uses the memory; there is none.
        let memory = unsafe { DeviceMemory::borrowed(0, 0, Box::new(())) }.unwrap();
        let transfer = |index: u64| Transfer {
            is_send: index.is_multiple_of(2),
            peer: index as usize / 2 % 15,
            memory: &memory,
            fingerprint: index,
            code: 0,
        };
        let all: Vec<_> = (0..200).map(transfer).collect();
        let batches = batches(&all);
        assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [90, 90, 20]);
        let numbers = |batch: &[&Transfer<'_>]| batch.iter().map(|each| each.fingerprint).collect::<Vec<_>>();
        assert_eq!(numbers(&batches[1]), (90..180).collect::<Vec<_>>());
    }
}
