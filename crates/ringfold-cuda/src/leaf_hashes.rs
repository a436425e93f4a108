//! Hashes of tensors on a device: XXH3-128 of each leaf, with the bits of the host.

use crate::default_stream_mark::DefaultStreamMark;
use crate::device_memory::DeviceMemory;
use crate::error::CudaError;
use crate::event::Event;
use crate::function::{Dim3, Function};
use crate::gpu::Gpu;
use crate::kernel_image;
use crate::module::Module;
use crate::nvrtc::{CompileRequest, Compiler};
use crate::pinned::Pinned;
use crate::stream_lease::StreamLease;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const SOURCE: &str = include_str!("../kernels/hash.cu");
const OPTION: &str = "--std=c++17";

/// Shorter leaves are copied to the host: XXH3 hashes them differently. As in `hash.cu`.
const LONG_MIN: usize = 241;
const COPY_BYTES: usize = 256;

const THREADS: u32 = 256;
const WARP: u32 = 32;

/// Blocks for each multiprocessor, whose warps take leaf after leaf.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;

/// What the host needs to hash a tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Leaf {
    /// The XXH3-128 of the leaf.
    Hash(u128),
    /// The bytes of a leaf that is too short for the kernel.
    Short(Vec<u8>),
}

/// A leaf, as the kernel reads it.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct LeafJob {
    address: u64,
    bytes: u32,
    copy: u32,
}

#[derive(Clone, Copy, FromBytes, KnownLayout, Immutable)]
#[repr(C)]
struct LeafResult {
    low: u64,
    high: u64,
}

/// The loaded kernel of each device. Locked while it compiles.
static LOADED: LazyLock<Mutex<HashMap<i32, Arc<Function>>>> = LazyLock::new(Mutex::default);

/// Returns the leaves of each tensor, of `leaf_bytes` each but for the last one. The kernels follow the mark.
///
/// # Panics
/// If leaves are longer than 4 GiB.
pub fn hash_leaves(
    tensors: &[DeviceMemory],
    leaf_bytes: usize,
    after: &DefaultStreamMark,
    compiler: &Compiler,
    cache: Option<&Path>,
) -> Result<Vec<Vec<Leaf>>, CudaError> {
    assert!(u32::try_from(leaf_bytes).is_ok_and(|bytes| bytes > 0), "invalid leaf of {leaf_bytes} bytes");
    let mut ordinals: Vec<_> = tensors.iter().filter_map(DeviceMemory::ordinal).collect();
    ordinals.sort_unstable();
    ordinals.dedup();
    let start = |ordinal: i32| LeafBatch::start(ordinal, tensors, leaf_bytes, after, compiler, cache);
    // All devices work at once. A batch that is dropped waits for its kernel.
    let batches = ordinals.into_iter().map(start).collect::<Result<Vec<_>, _>>()?;
    let mut leaves: Vec<Vec<Leaf>> = tensors.iter().map(|_| Vec::new()).collect();
    for batch in batches {
        batch.finish(&mut leaves)?;
    }
    Ok(leaves)
}

/// The leaves of all tensors on one device, being hashed.
struct LeafBatch {
    stream: StreamLease,
    /// For each leaf, its tensor.
    owners: Vec<usize>,
    jobs: Vec<LeafJob>,
    /// The jobs, then the hashes, then the bytes of short leaves. The device reads and writes it directly.
    block: Pinned,
    end: Event,
    is_finished: bool,
}

impl LeafBatch {
    fn start(
        ordinal: i32,
        tensors: &[DeviceMemory],
        leaf_bytes: usize,
        after: &DefaultStreamMark,
        compiler: &Compiler,
        cache: Option<&Path>,
    ) -> Result<Self, CudaError> {
        let gpu = Gpu::open(ordinal)?;
        let kernel = load(&gpu, compiler, cache)?;
        let (mut owners, mut jobs, mut copies) = (Vec::new(), Vec::new(), 0);
        for (owner, tensor) in tensors.iter().enumerate().filter(|(_, t)| t.ordinal() == Some(ordinal)) {
            for offset in (0..tensor.len()).step_by(leaf_bytes) {
                let bytes = leaf_bytes.min(tensor.len() - offset);
                owners.push(owner);
                jobs.push(LeafJob {
                    address: tensor.address() + offset as u64,
                    bytes: bytes as u32,
                    copy: copies,
                });
                copies += u32::from(bytes < LONG_MIN);
            }
        }
        let device = gpu.0;
        let table = size_of_val(&jobs[..]);
        let block = Pinned::acquire(device, 2 * table + copies as usize * COPY_BYTES)?;
        // SAFETY: the block has so many bytes, and nothing else uses it.
        unsafe { core::ptr::copy_nonoverlapping(jobs.as_bytes().as_ptr(), block.start(), table) };
        // With unified addressing, page-locked memory has the same address on devices.
        let base = block.start().addr() as u64;
        let parameters = [base, jobs.len() as u64, base + table as u64, base + 2 * table as u64];
        let warps = u32::try_from(jobs.len()).unwrap_or(u32::MAX).div_ceil(THREADS / WARP);
        let blocks = warps.clamp(1, gpu.sms() * BLOCKS_PER_MULTIPROCESSOR);
        let (grid, threads) = (Dim3 { x: blocks, y: 1, z: 1 }, Dim3 { x: THREADS, y: 1, z: 1 });
        let stream = StreamLease::take(device)?;
        after.make_wait(&stream, ordinal)?;
        // SAFETY: the parameters are those of the kernel. Tensors and block outlive it: the batch waits for it.
        unsafe { kernel.launch(parameters.as_bytes(), grid, threads, 0, stream.raw()) }?;
        let end = stream.record_event().inspect_err(|_| stream.drain())?;
        Ok(Self { stream, owners, jobs, block, end, is_finished: false })
    }

    /// Waits for the kernel, and adds the leaves to those of their tensors.
    fn finish(mut self, leaves: &mut [Vec<Leaf>]) -> Result<(), CudaError> {
        self.end.wait()?;
        self.is_finished = true;
        let table = size_of_val(&self.jobs[..]);
        for (index, (job, owner)) in self.jobs.iter().zip(&self.owners).enumerate() {
            let bytes = job.bytes as usize;
            let (at, count) = if bytes < LONG_MIN {
                (2 * table + job.copy as usize * COPY_BYTES, bytes)
            } else {
                (table + index * size_of::<LeafResult>(), size_of::<LeafResult>())
            };
            // SAFETY: the range is in the block, and the kernel, which has ended, was the last to write it.
            let found = unsafe { core::slice::from_raw_parts(self.block.start().add(at), count) };
            let hash =
                |result: LeafResult| Leaf::Hash(u128::from(result.high) << 64 | u128::from(result.low));
            leaves[*owner].push(match LeafResult::read_from_bytes(found) {
                Ok(result) if bytes >= LONG_MIN => hash(result),
                _ => Leaf::Short(found.to_vec()),
            });
        }
        Ok(())
    }
}

impl Drop for LeafBatch {
    fn drop(&mut self) {
        if !self.is_finished && self.end.wait().is_err() {
            self.stream.drain();
        }
    }
}

fn load(gpu: &Gpu, compiler: &Compiler, cache: Option<&Path>) -> Result<Arc<Function>, CudaError> {
    let mut loaded = LOADED.lock();
    if let Some(kernel) = loaded.get(&gpu.ordinal()) {
        return Ok(kernel.clone());
    }
    let kernel =
        Module::load(gpu, &image(&gpu.arch(), compiler, cache)?)?.function("ringfold_hash_leaves")?;
    let kernel = Arc::new(kernel);
    loaded.insert(gpu.ordinal(), kernel.clone());
    Ok(kernel)
}

fn image(arch: &str, compiler: &Compiler, cache: Option<&Path>) -> Result<Vec<u8>, CudaError> {
    let mut hash = DefaultHasher::new();
    (SOURCE, OPTION, compiler.version()).hash(&mut hash);
    let file = format!("hash-{arch}-{:016x}.cubin", hash.finish());
    let options = [OPTION.to_owned()];
    let request = CompileRequest {
        source: SOURCE,
        name: "hash.cu",
        arch,
        options: &options,
        ..CompileRequest::default()
    };
    kernel_image::load(&request, &file, compiler, cache)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_compiles() {
        match Compiler::load(None) {
            Err(why) => eprintln!("skipped: {why}"),
            Ok(compiler) => {
                let image = image("sm_90", compiler, None).unwrap();
                assert!(image.starts_with(b"\x7fELF"));
            }
        }
    }
}
