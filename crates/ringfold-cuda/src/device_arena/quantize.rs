//! Quantised all-reduces: the kernels, and the memory in which their integers are offered to others.
//!
//! The first half of an area holds the quantised input and then the quantised results of its owner; the second half holds
//! the result.

use super::exchange_area::{ExchangeArea, PeerArea};
use super::kernels::{HEADERS, OPTIONS};
use crate::default_stream_mark::DefaultStreamMark;
use crate::device_memory::DeviceMemory;
use crate::error::CudaError;
use crate::function::{Dim3, Function};
use crate::gpu::Gpu;
use crate::kernel_image;
use crate::module::Module;
use crate::nvrtc::{CompileRequest, Compiler};
use crate::pinned::Pinned;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use zerocopy::{Immutable, IntoBytes};

const SOURCE: &str = include_str!("../../kernels/quantize.cu");
const THREADS: u32 = 512;
const BLOCKS_PER_MULTIPROCESSOR: u32 = 4;

/// The parameters of a compilation. Names are those of `element.cuh`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QuantizedSpecialisation {
    /// The element type, such as `F32`.
    pub element: &'static str,
    /// The largest finite element, as a number of C++.
    pub element_max: &'static str,
    /// The operation, such as `Sum`.
    pub op: &'static str,
    /// The number of ranks.
    pub world: usize,
    /// The type of the integers, its smallest and its largest value, in C++.
    pub integer: [&'static str; 3],
    /// Whether the parameters of a chunk are its smallest and largest value; otherwise scale and zero point.
    pub is_min_max: bool,
}

/// A chunk of a quantised tensor, as the kernels read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct QuantizedChunk {
    /// The first element.
    pub first: u64,
    /// The offset of its quantised form, a multiple of 16.
    pub wire: u64,
    /// The number of elements.
    pub count: u32,
    /// The rank that reduces it.
    pub owner: u32,
}

/// The loaded kernels of a specialisation.
pub struct QuantizeKernels {
    encode: Function,
    settle: Function,
    decode: Function,
    world: usize,
    blocks_max: u32,
}

type LoadedKernels = HashMap<(i32, QuantizedSpecialisation), Arc<QuantizeKernels>>;

/// Locked while one compiles, since peers of one process need the same ones.
static LOADED: LazyLock<Mutex<LoadedKernels>> = LazyLock::new(Mutex::default);

impl QuantizeKernels {
    /// Loads the kernels of a specialisation.
    pub fn load(
        gpu: &Gpu,
        specialisation: &QuantizedSpecialisation,
        compiler: &Compiler,
        cache: Option<&Path>,
    ) -> Result<Arc<Self>, CudaError> {
        let mut loaded = LOADED.lock();
        let key = (gpu.ordinal(), *specialisation);
        if let Some(kernels) = loaded.get(&key) {
            return Ok(kernels.clone());
        }
        let module = Module::load(gpu, &specialisation.image(&gpu.arch(), compiler, cache)?)?;
        let kernels = Arc::new(Self {
            encode: module.function("ringfold_encode")?,
            settle: module.function("ringfold_settle")?,
            decode: module.function("ringfold_decode")?,
            world: specialisation.world,
            blocks_max: gpu.sms() * BLOCKS_PER_MULTIPROCESSOR,
        });
        loaded.insert(key, kernels.clone());
        Ok(kernels)
    }
}

impl QuantizedSpecialisation {
    fn image(&self, arch: &str, compiler: &Compiler, cache: Option<&Path>) -> Result<Vec<u8>, CudaError> {
        let defines = self.macros();
        let mut hash = DefaultHasher::new();
        (SOURCE, HEADERS, OPTIONS, &defines, compiler.version()).hash(&mut hash);
        let Self { element, op, world, .. } = self;
        let file = format!("quantized-{op}-{element}-{world}-{arch}-{:016x}.cubin", hash.finish());
        let options: Vec<String> = OPTIONS.iter().map(|option| (*option).to_owned()).collect();
        let request = CompileRequest {
            source: SOURCE,
            name: "quantize.cu",
            arch,
            defines: &defines,
            include_dirs: &[],
            headers: HEADERS,
            options: &options,
        };
        kernel_image::load(&request, &file, compiler, cache)
    }

    fn macros(&self) -> Vec<(String, String)> {
        let [integer, integer_min, integer_max] = self.integer;
        let (world, threads) = (self.world.to_string(), THREADS.to_string());
        let all = [
            ("RF_WORLD", &*world),
            ("RF_THREADS", &threads),
            ("RF_ELEMENT", self.element),
            ("RF_ELEMENT_MAX", self.element_max),
            ("RF_OP", self.op),
            ("RF_INTEGER", integer),
            ("RF_INTEGER_MIN", integer_min),
            ("RF_INTEGER_MAX", integer_max),
            ("RF_IS_MIN_MAX", if self.is_min_max { "1" } else { "0" }),
        ];
        all.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
    }
}

/// A quantised all-reduce in an area.
pub struct QuantizedExchange<'a> {
    area: &'a ExchangeArea,
    kernels: Arc<QuantizeKernels>,
    /// The chunks, which the device reads directly.
    table: Pinned,
    chunk_count: usize,
    /// Bytes of all chunks in quantised form.
    wire_bytes: u64,
    me: usize,
}

impl<'a> QuantizedExchange<'a> {
    /// The capacity of an area for this many bytes in quantised form, and a result of `bytes`.
    pub fn capacity(wire_bytes: u64, bytes: usize) -> usize {
        bytes.max(usize::try_from(wire_bytes).unwrap_or(usize::MAX).saturating_mul(2))
    }

    /// Prepares an all-reduce of chunks, which have `wire_bytes` in quantised form. The own rank is `me`.
    pub fn new(
        area: &'a ExchangeArea,
        kernels: Arc<QuantizeKernels>,
        chunks: &[QuantizedChunk],
        wire_bytes: u64,
        me: usize,
    ) -> Result<Self, CudaError> {
        let table = Pinned::acquire(area.gpu().0, size_of_val(chunks))?;
        // SAFETY: the block has so many bytes, and nothing else uses it.
        unsafe {
            core::ptr::copy_nonoverlapping(chunks.as_bytes().as_ptr(), table.start(), size_of_val(chunks))
        };
        Ok(Self { area, kernels, table, chunk_count: chunks.len(), wire_bytes, me })
    }

    /// Queues the quantisation of the chunks of others, after the mark.
    pub fn encode(&self, source: &DeviceMemory, after: &DefaultStreamMark) -> Result<(), CudaError> {
        self.area.follow(source, after)?;
        self.launch(&self.kernels.encode, source, &vec![None; self.kernels.world])
    }

    /// Queues the reduction of the own chunks. The peers are given by rank; none is this one.
    pub fn settle(&self, source: &DeviceMemory, peers: &[Option<&PeerArea>]) -> Result<(), CudaError> {
        self.launch(&self.kernels.settle, source, peers)
    }

    /// Queues the reception of the chunks of others.
    pub fn decode(&self, source: &DeviceMemory, peers: &[Option<&PeerArea>]) -> Result<(), CudaError> {
        self.launch(&self.kernels.decode, source, peers)
    }

    fn launch(
        &self,
        kernel: &Function,
        source: &DeviceMemory,
        peers: &[Option<&PeerArea>],
    ) -> Result<(), CudaError> {
        let needed = Self::capacity(self.wire_bytes, source.len());
        self.area.check(0..needed)?;
        let own = self.area.start();
        let mut inputs = Vec::with_capacity(peers.len());
        for peer in peers {
            inputs.push(match peer {
                None => own,
                Some(peer) => peer.checked(&(0..needed))?.start(),
            });
        }
        let outputs: Vec<_> = inputs.iter().map(|input| input + self.wire_bytes).collect();
        // With unified addressing, page-locked memory has the same address on devices.
        let table = self.table.start().addr() as u64;
        let first =
            [source.address(), self.area.result_start(), table, self.chunk_count as u64, self.me as u64];
        let parameters = [&first[..], &inputs, &outputs].concat();
        let blocks = u32::try_from(self.chunk_count).unwrap_or(u32::MAX).clamp(1, self.kernels.blocks_max);
        let (grid, block) = (Dim3 { x: blocks, y: 1, z: 1 }, Dim3 { x: THREADS, y: 1, z: 1 });
        // SAFETY: the parameters are those of the kernels, and chunks are within tensor and areas. All memory lives until the
        // work is done: `drop` waits. Areas of others may be overwritten if the operation was aborted, which does not
        // matter.
        unsafe { kernel.launch(parameters.as_bytes(), grid, block, 0, self.area.stream().raw()) }
    }
}

impl Drop for QuantizedExchange<'_> {
    fn drop(&mut self) {
        // The device may still read the table.
        self.area.drain();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_and_integer_compiles() {
        let compiler = match Compiler::load(None) {
            Ok(compiler) => compiler,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        for (element, element_max, op, integer, is_min_max) in [
            ("F32", "3.4028234663852886e38", "Avg", ["unsigned char", "0.0", "255.0"], true),
            ("F16", "65504.0", "Sum", ["signed char", "-128.0", "127.0"], false),
            ("BF16", "3.3895313892515355e38", "Max", ["unsigned int", "0.0", "4294967295.0"], true),
            ("F64", "1.7976931348623157e308", "Min", ["int", "-2147483648.0", "2147483647.0"], false),
        ] {
            let wanted = QuantizedSpecialisation { element, element_max, op, world: 3, integer, is_min_max };
            let image = wanted.image("sm_90", compiler, None);
            assert!(image.unwrap().starts_with(b"\x7fELF"), "{wanted:?}");
        }
    }
}
