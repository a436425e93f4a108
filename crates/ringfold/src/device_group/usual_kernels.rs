//! The kernels that are loaded before the first call of a group, if the process has several groups on the device.
//!
//! Loading kernels waits for those of this process that run. If ranks call several groups in different orders, a running kernel
//! may wait for a rank that itself waits to load kernels; so these must be there before.

use super::element::{self, KernelElement};
use core::time::Duration;
use ringfold_cuda::device_arena::{DeviceArena, FoldKernels, KernelKind, Specialisation};
use ringfold_cuda::nvrtc::Compiler;
use ringfold_cuda::{CudaError, Gpu};
use ringfold_proto::dtype::DType;
use ringfold_proto::reduce_op::ReduceOp;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// A load that takes longer has waited for kernels, not for the compiler.
const LONG_LOAD: Duration = Duration::from_secs(3);

/// The types and reductions of gradients and parameters.
const REDUCED: [DType; 2] = [DType::F32, DType::BF16];
const REDUCTIONS: [ReduceOp; 2] = [ReduceOp::Sum, ReduceOp::Avg];
/// One type of each size, for operations that only move data.
const MOVED: [DType; 4] = [DType::U8, DType::U16, DType::U32, DType::U64];

/// Loads the usual kernels of all groups on the device of this one, unless it is alone there. Says so if there are too few
/// hardware queues for them.
pub(super) fn load(arena: &DeviceArena, compiler: &Compiler, cache: Option<&Path>) -> Result<(), CudaError> {
    let mut worlds = arena.other_worlds();
    if worlds.is_empty() {
        return Ok(());
    }
    if let Some((groups, queues)) = arena.missing_queues() {
        tracing::warn!(
            "{groups} groups use CUDA device {}, but this process has {queues} hardware queues. If ranks call the groups in different \
             orders, the calls may wait for each other: start the processes with CUDA_DEVICE_MAX_CONNECTIONS={}",
            arena.gpu().ordinal(),
            (groups + 1).next_power_of_two()
        );
    }
    worlds.insert(arena.world());
    let all: Vec<_> = worlds.into_iter().filter(|world| *world > 1).flat_map(of_world).collect();
    FoldKernels::load_all(arena.gpu(), &all, compiler, cache)
}

/// Loads kernels that are not usual, when they are needed.
pub(super) fn load_late(
    gpu: &Gpu,
    wanted: &Specialisation,
    compiler: &Compiler,
    cache: Option<&Path>,
) -> Result<Arc<FoldKernels>, CudaError> {
    let began = Instant::now();
    let kernels = FoldKernels::load(gpu, wanted, compiler, cache)?;
    if began.elapsed() > LONG_LOAD {
        tracing::warn!(
            "loading the kernels of {} for {} took {:.1} s, because it waits for running kernels of this process. If ranks call several \
             groups in different orders, make the first call of each type and operation in the same order on all ranks",
            wanted.op,
            wanted.element,
            began.elapsed().as_secs_f32()
        );
    }
    Ok(kernels)
}

fn of_world(world: usize) -> Vec<Specialisation> {
    let kernels = |element: KernelElement, op: &'static str, kind| Specialisation {
        element: element.name,
        element_bytes: element.bytes,
        op,
        world,
        kind,
    };
    let mut all: Vec<_> =
        MOVED.map(|dtype| kernels(element::moved(dtype), element::MOVE, KernelKind::Move)).into();
    for dtype in REDUCED {
        for op in REDUCTIONS.into_iter().filter_map(|op| element::operation(op, dtype).ok()) {
            let kinds = [KernelKind::AllReduce, KernelKind::Fold];
            all.extend(kinds.map(|kind| kernels(element::reduced(dtype), op, kind)));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_world_has_each_of_its_kernels_once() {
        let all = of_world(4);
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), 12);
        assert!(all.iter().all(|each| each.world == 4));
    }
}
