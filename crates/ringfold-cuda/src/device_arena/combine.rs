//! The kernel that folds the operands of all ranks on one of them.

use super::kernels::{FoldKernels, KernelKind, Specialisation};
use super::layout::THREADS;
use crate::error::CudaError;
use crate::function::Dim3;
use crate::gpu::Gpu;
use crate::nvrtc::Compiler;
use crate::stream::Stream;
use std::path::Path;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Bytes that a block folds before another one is worth starting.
const BLOCK_BYTES: u64 = 64 << 10;

/// Blocks for each multiprocessor: enough loads in flight for the speed of memory.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 2;

/// A kernel that folds the operands of all ranks. It waits for nothing.
pub struct CombineKernel {
    kernels: Arc<FoldKernels>,
    blocks_max: u32,
}

impl CombineKernel {
    /// Loads the kernel of an element type, operation and number of ranks; the kind is ignored.
    pub fn load(
        gpu: &Gpu,
        specialisation: &Specialisation,
        compiler: &Compiler,
        cache: Option<&Path>,
    ) -> Result<Self, CudaError> {
        let specialisation = Specialisation { kind: KernelKind::Combine, ..*specialisation };
        let kernels = FoldKernels::load(gpu, &specialisation, compiler, cache)?;
        Ok(Self { kernels, blocks_max: gpu.sms() * BLOCKS_PER_MULTIPROCESSOR })
    }

    /// Queues a fold of `bytes` at each source, in order, into the target.
    ///
    /// # Panics
    /// If there are not as many sources as ranks.
    ///
    /// # Safety
    /// All sources and the target have so many bytes until the kernel has ended, aligned to elements. Nothing writes to them
    /// meanwhile in a way that matters to the caller.
    pub(super) unsafe fn launch(
        &self,
        sources: &[u64],
        target: u64,
        bytes: u64,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        assert_eq!(sources.len(), self.kernels.specialisation().world, "each rank has an operand");
        if bytes == 0 {
            return Ok(());
        }
        let parameters = [sources, &[target, bytes]].concat();
        let blocks = u32::try_from(bytes.div_ceil(BLOCK_BYTES)).unwrap_or(u32::MAX).min(self.blocks_max);
        let (grid, block) = (Dim3 { x: blocks, y: 1, z: 1 }, Dim3 { x: THREADS, y: 1, z: 1 });
        let function = self.kernels.function("ringfold_combine")?;
        // SAFETY: the parameters are those of the kernel; the rest is the caller's promise.
        unsafe { function.launch(parameters.as_bytes(), grid, block, 0, stream.raw()) }
    }
}

debug_as!(CombineKernel, self => "{:?}", self.kernels.specialisation());
