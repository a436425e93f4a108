//! Launches of the kernels of collectives. All ranks must launch the same ones in the same order.

use super::layout::THREADS;
use super::{DeviceArena, FoldKernels, KernelKind, PeerMemory};
use crate::device_memory::DeviceMemory;
use crate::error::CudaError;
use crate::function::{Dim3, Function};
use crate::stream::Stream;
use core::ops::Range;
use core::time::Duration;

/// What all calls have.
#[derive(Clone, Copy, Default, Debug)]
pub struct CallOptions {
    /// Hash of the operation; equal on all ranks.
    pub fingerprint: u64,
    /// How long its kernels wait for a rank; that of the page if it is zero.
    pub timeout: Duration,
    /// Whether the launch is captured in a graph.
    pub is_captured: bool,
}

/// The arguments of an all-reduce. Counts are in elements of the kernel's type.
#[derive(Clone, Debug)]
pub struct AllReduceCall<'a> {
    /// The memory to read.
    pub source: &'a DeviceMemory,
    /// The memory to write.
    pub target: &'a DeviceMemory,
    /// Elements.
    pub count: u64,
    /// The part that this rank computes for all.
    pub fold: Range<u64>,
    /// What it shares with all calls.
    pub common: CallOptions,
}

/// The arguments of an exchange: each rank gives a stretch of memory to each rank.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeCall<'a> {
    /// The memory that the stretches are in, on this rank's device.
    pub memory: &'a [&'a DeviceMemory],
    /// Address and bytes of what each rank gets, this one included.
    pub gives: &'a [(u64, u64)],
    /// Where to store what each rank gives. If it is folded, all are the same.
    pub takes: &'a [(u64, u64)],
    /// Whether all ranks get the same stretch of a rank.
    pub is_alike: bool,
    /// The bytes of the largest stretch of all ranks, if all ranks know it.
    pub agreed: Option<u64>,
    /// What it shares with all calls.
    pub common: CallOptions,
}

/// The phases of a large call; see `Phase` in the source.
const WHOLE: u32 = 0;
const MEET: u32 = 1;
const WORK: u32 = 2;
const PART: u32 = 3;

/// The code of an empty stretch.
const NOTHING: u64 = u64::MAX;

impl DeviceArena {
    /// Queues an all-reduce.
    ///
    /// As for copies, the creator of the [`DeviceMemory`] promises that no work uses it meanwhile that is not ordered
    /// with the stream.
    pub fn all_reduce(
        &self,
        kernels: &FoldKernels,
        call: &AllReduceCall<'_>,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let specialisation = kernels.specialisation();
        let element = specialisation.element_bytes as u64;
        let (source, target) = (call.source, call.target);
        let wanted = call.count * element;
        let is_whole = source.len() as u64 >= wanted && target.len() as u64 >= wanted;
        let is_aligned = source.address().is_multiple_of(element) && target.address().is_multiple_of(element);
        let is_here = [source, target].iter().all(|memory| memory.ordinal() == Some(self.gpu.ordinal()));
        let is_kernel = specialisation.world == self.world() && specialisation.kind == KernelKind::AllReduce;
        if !is_whole || !is_aligned || !is_here || !is_kernel {
            return Err(CudaError::Argument(format!("invalid memory for an all-reduce: {call:?}")));
        }
        let is_small = wanted <= self.packet_limit;
        let (source_code, target_code) = if is_small {
            (0, 0)
        } else {
            let code = |memory: &DeviceMemory| {
                self.code(memory.address(), memory.len() as u64, call.common.is_captured)
            };
            (code(source), code(target))
        };
        let fold_count = call.fold.end.saturating_sub(call.fold.start);
        let words = [source.address(), target.address(), call.count, call.fold.start, fold_count];
        let words = words.into_iter().chain([source_code, target_code]);
        let bulk = wanted.div_ceil(self.world() as u64);
        self.launch(kernels, words, &call.common, is_small.then_some(wanted).ok_or(bulk), stream)
    }

    /// Queues an exchange. What is said of [`all_reduce`](Self::all_reduce) holds for its memory.
    pub fn exchange(
        &self,
        kernels: &FoldKernels,
        call: &ExchangeCall<'_>,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let specialisation = kernels.specialisation();
        let (element, world) = (specialisation.element_bytes as u64, self.world());
        let is_there = |(address, bytes): &(u64, u64)| {
            let holds = |memory: &&DeviceMemory| {
                memory.ordinal() == Some(self.gpu.ordinal())
                    && *address >= memory.address()
                    && address - memory.address() <= memory.len() as u64
                    && *bytes <= memory.len() as u64 - (address - memory.address())
            };
            (address | bytes).is_multiple_of(element) && (*bytes == 0 || call.memory.iter().any(holds))
        };
        let is_kernel = specialisation.world == world && specialisation.kind != KernelKind::AllReduce;
        let is_complete = call.gives.len() == world && call.takes.len() == world;
        let are_there = call.gives.iter().chain(call.takes).all(is_there);
        if !is_kernel || !is_complete || !are_there {
            return Err(CudaError::Argument(format!("invalid memory for an exchange: {call:?}")));
        }
        let small = call.agreed.filter(|bytes| *bytes <= self.packet_limit);
        let mut codes = vec![0; world];
        if small.is_none() {
            for (rank, (address, bytes)) in call.gives.iter().enumerate() {
                let is_read = *bytes > 0 && rank != self.rank;
                codes[rank] =
                    if is_read { self.code(*address, *bytes, call.common.is_captured) } else { NOTHING };
            }
            if codes.contains(&0) {
                codes.fill(0);
            }
        }
        fn addresses(stretches: &[(u64, u64)]) -> impl Iterator<Item = u64> + '_ {
            stretches.iter().map(|stretch| stretch.0)
        }
        fn sizes(stretches: &[(u64, u64)]) -> impl Iterator<Item = u64> + '_ {
            stretches.iter().map(|stretch| stretch.1)
        }
        let words = addresses(call.gives)
            .chain(sizes(call.gives))
            .chain(codes)
            .chain(addresses(call.takes))
            .chain(sizes(call.takes))
            .chain([u64::from(call.is_alike)]);
        // All ranks use the same number of blocks.
        let work = small.ok_or(call.agreed.map_or(u64::MAX, |bytes| {
            if specialisation.kind == KernelKind::Fold { bytes } else { bytes.saturating_mul(world as u64) }
        }));
        self.launch(kernels, words, &call.common, work, stream)
    }

    /// Launches with these parameters before those that all kernels share. `work` is the bytes of a rank in packets, or else
    /// those that one rank processes.
    fn launch(
        &self,
        kernels: &FoldKernels,
        words: impl Iterator<Item = u64>,
        common: &CallOptions,
        work: Result<u64, u64>,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let mut parameters: Vec<u8> = words.chain(self.links(common)).flat_map(u64::to_ne_bytes).collect();
        let (function, blocks, threads): (&Function, u64, u32) = match work {
            Ok(bytes) => {
                let packets = bytes.div_ceil(8).max(1) as u32;
                let threads = packets.next_multiple_of(32).min(THREADS);
                (kernels.function("ringfold_small")?, u64::from(packets.div_ceil(THREADS)), threads)
            }
            Err(bytes) => {
                (kernels.function("ringfold_bulk")?, bytes.div_ceil(u64::from(THREADS) * 16), THREADS)
            }
        };
        let blocks = blocks.clamp(1, u64::from(self.blocks_max)) as u32;
        let phases: &[(u32, u32, u32)] = if work.is_err() && self.is_shared {
            &[(MEET, 1, 32), (WORK, blocks, threads), (PART, 1, 32)]
        } else {
            &[(WHOLE, blocks, threads)]
        };
        let at = parameters.len() - size_of::<u32>();
        for (phase, blocks, threads) in phases {
            parameters[at..].copy_from_slice(&phase.to_ne_bytes());
            let (grid, block) = (Dim3 { x: *blocks, y: 1, z: 1 }, Dim3 { x: *threads, y: 1, z: 1 });
            // SAFETY: the parameters are those of `Params` in the source, for this world; arenas, table and page live as long
            // as this, which waits for the kernels before it is dropped; the memory has the sizes that the kernel uses.
            unsafe { function.launch(&parameters, grid, block, 0, stream.raw()) }?;
        }
        Ok(())
    }

    /// The parameters that all kernels share: `Links` in the source.
    pub(super) fn links(&self, options: &CallOptions) -> impl Iterator<Item = u64> + '_ {
        let timeout = u64::try_from(options.timeout.as_nanos()).unwrap_or(u64::MAX);
        let links = [options.fingerprint, timeout, self.table.address(), self.page_address].into_iter();
        links.chain(self.arenas.iter().map(PeerMemory::address)).chain([self.rank as u64])
    }
}
