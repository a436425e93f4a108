//! The kernel that folds the operands of all ranks on one of them.

use super::kernels::{KernelKind, Specialisation};
use super::layout::THREADS;
use crate::error::CudaError;
use crate::function::{Dim3, Function};
use crate::gpu::Gpu;
use crate::module::Module;
use crate::nvrtc::Compiler;
use crate::stream::Stream;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use zerocopy::IntoBytes;

/// Bytes that a block folds before another one is worth starting.
const BLOCK_BYTES: u64 = 64 << 10;

/// Blocks for each multiprocessor: enough loads in flight for the speed of memory.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 2;

type LoadedKernels = HashMap<(i32, Specialisation), Arc<CombineKernel>>;

/// Locked while one compiles, since peers of one process need the same ones.
static LOADED: LazyLock<Mutex<LoadedKernels>> = LazyLock::new(Mutex::default);

/// A kernel that folds the operands of all ranks. It waits for nothing.
pub struct CombineKernel {
    function: Function,
    world: usize,
    blocks_max: u32,
}

impl CombineKernel {
    /// Loads the kernel of an element type, operation and number of ranks; the kind is ignored.
    pub fn load(
        gpu: &Gpu,
        specialisation: &Specialisation,
        compiler: &Compiler,
        cache: Option<&Path>,
    ) -> Result<Arc<Self>, CudaError> {
        let specialisation = Specialisation { kind: KernelKind::Combine, ..*specialisation };
        let mut loaded = LOADED.lock();
        let key = (gpu.ordinal(), specialisation);
        if let Some(kernel) = loaded.get(&key) {
            return Ok(kernel.clone());
        }
        let image = specialisation.image(&gpu.arch(), compiler, cache)?;
        let function = Module::load(gpu, &image)?.function("ringfold_combine")?;
        let blocks_max = gpu.sms() * BLOCKS_PER_MULTIPROCESSOR;
        let kernel = Arc::new(Self { function, world: specialisation.world, blocks_max });
        loaded.insert(key, kernel.clone());
        Ok(kernel)
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
        assert_eq!(sources.len(), self.world, "each rank has an operand");
        if bytes == 0 {
            return Ok(());
        }
        let parameters = [sources, &[target, bytes]].concat();
        let blocks = u32::try_from(bytes.div_ceil(BLOCK_BYTES)).unwrap_or(u32::MAX).min(self.blocks_max);
        let (grid, block) = (Dim3 { x: blocks, y: 1, z: 1 }, Dim3 { x: THREADS, y: 1, z: 1 });
        // SAFETY: the parameters are those of the kernel; the rest is the caller's promise.
        unsafe { self.function.launch(parameters.as_bytes(), grid, block, 0, stream.raw()) }
    }
}

debug_as!(CombineKernel, self => "{:?} for {} ranks", self.function, self.world);
