//! The kernels of weighted averages: they multiply inputs, and divide results.

use super::exchange_area::ExchangeArea;
use super::kernels::{HEADERS, OPTIONS};
use crate::default_stream_mark::DefaultStreamMark;
use crate::device_memory::DeviceMemory;
use crate::error::CudaError;
use crate::function::{Dim3, Function};
use crate::gpu::Gpu;
use crate::kernel_image;
use crate::module::Module;
use crate::nvrtc::{CompileRequest, Compiler};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use zerocopy::IntoBytes;

const SOURCE: &str = include_str!("../../kernels/weight.cu");
const THREADS: u32 = 512;
const BLOCKS_PER_MULTIPROCESSOR: u32 = 4;

type LoadedKernels = HashMap<(i32, &'static str), Arc<WeightKernels>>;

/// Locked while one compiles, since peers of one process need the same ones.
static LOADED: LazyLock<Mutex<LoadedKernels>> = LazyLock::new(Mutex::default);

/// The loaded kernels of a float type.
pub struct WeightKernels {
    scale: Function,
    divide: Function,
    blocks_max: u32,
}

impl WeightKernels {
    /// Loads the kernels of an element type, such as `F32`.
    pub fn load(
        gpu: &Gpu,
        element: &'static str,
        compiler: &Compiler,
        cache: Option<&Path>,
    ) -> Result<Arc<Self>, CudaError> {
        let mut loaded = LOADED.lock();
        if let Some(kernels) = loaded.get(&(gpu.ordinal(), element)) {
            return Ok(kernels.clone());
        }
        let module = Module::load(gpu, &image(element, &gpu.arch(), compiler, cache)?)?;
        let (scale, divide) = (module.function("ringfold_scale")?, module.function("ringfold_divide")?);
        let kernels = Arc::new(Self { scale, divide, blocks_max: gpu.sms() * BLOCKS_PER_MULTIPROCESSOR });
        loaded.insert((gpu.ordinal(), element), kernels.clone());
        Ok(kernels)
    }

    /// Queues `count` elements times a factor as the input of an area, after the mark.
    pub fn scale(
        &self,
        area: &ExchangeArea,
        source: &DeviceMemory,
        count: u64,
        factor: f64,
        after: &DefaultStreamMark,
    ) -> Result<(), CudaError> {
        area.check(0..source.len())?;
        area.follow(source, after)?;
        self.launch(&self.scale, area, [area.start(), source.address(), count, factor.to_bits()])
    }

    /// Queues the result of an area divided by a number as the content of a tensor, after the mark. The area stays as it is:
    /// others may still read it.
    pub fn divide(
        &self,
        area: &ExchangeArea,
        target: &DeviceMemory,
        count: u64,
        by: f64,
        after: &DefaultStreamMark,
    ) -> Result<(), CudaError> {
        area.check(0..target.len())?;
        area.follow(target, after)?;
        self.launch(&self.divide, area, [target.address(), area.result_start(), count, by.to_bits()])
    }

    fn launch(&self, kernel: &Function, area: &ExchangeArea, parameters: [u64; 4]) -> Result<(), CudaError> {
        let blocks = u32::try_from(parameters[2].div_ceil(THREADS.into())).unwrap_or(u32::MAX);
        let grid = Dim3 { x: blocks.clamp(1, self.blocks_max), y: 1, z: 1 };
        let block = Dim3 { x: THREADS, y: 1, z: 1 };
        // SAFETY: the parameters are those of the kernels; areas are as long as the tensors of their operations, and live
        // until their work is done.
        unsafe { kernel.launch(parameters.as_bytes(), grid, block, 0, area.stream().raw()) }
    }
}

fn image(element: &str, arch: &str, compiler: &Compiler, cache: Option<&Path>) -> Result<Vec<u8>, CudaError> {
    let define = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let defines = [define("RF_ELEMENT", element), define("RF_THREADS", &THREADS.to_string())];
    let mut hash = DefaultHasher::new();
    (SOURCE, HEADERS, OPTIONS, &defines, compiler.version()).hash(&mut hash);
    let file = format!("weight-{element}-{arch}-{:016x}.cubin", hash.finish());
    let options: Vec<String> = OPTIONS.iter().map(|option| (*option).to_owned()).collect();
    let request = CompileRequest {
        source: SOURCE,
        name: "weight.cu",
        arch,
        defines: &defines,
        include_dirs: &[],
        headers: HEADERS,
        options: &options,
    };
    kernel_image::load(&request, &file, compiler, cache)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_float_compiles() {
        match Compiler::load(None) {
            Err(why) => eprintln!("skipped: {why}"),
            Ok(compiler) => {
                for element in ["F16", "BF16", "F32", "F64"] {
                    let image = image(element, "sm_90", compiler, None);
                    assert!(image.unwrap().starts_with(b"\x7fELF"), "{element}");
                }
            }
        }
    }
}
