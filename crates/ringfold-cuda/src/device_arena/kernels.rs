//! Kernels specialised for an element type, operation and world size, cached in memory and on disk.

use super::layout::ArenaLayout;
use crate::error::CudaError;
use crate::function::Function;
use crate::gpu::Gpu;
use crate::headers;
use crate::kernel_image;
use crate::module::Module;
use crate::nvrtc::{CompileRequest, Compiler};
use core::sync::atomic::{AtomicUsize, Ordering};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::{Arc, LazyLock};

pub(super) const HEADERS: &[(&str, &str)] = &[
    ("access.cuh", include_str!("../../kernels/access.cuh")),
    ("arena.cuh", include_str!("../../kernels/arena.cuh")),
    ("element.cuh", include_str!("../../kernels/element.cuh")),
];

/// No fused multiply-add: results must be bit-identical to those of the CPU kernels.
pub(super) const OPTIONS: &[&str] = &["--fmad=false", "--std=c++17"];

/// The most threads that compile kernels.
const COMPILERS_MAX: usize = 4;

/// What a kernel does with the operands of the ranks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KernelKind {
    /// Each rank gets the fold of all ranks' operands.
    AllReduce,
    /// Each rank folds what the ranks give to it.
    Fold,
    /// Each rank stores what the ranks give to it.
    Move,
    /// One rank sends to another.
    Transfer,
    /// Signals of windows.
    Window,
    /// The device hands pieces to the host.
    Bridge,
    /// One rank folds the operands of all, without waiting for anybody.
    Combine,
}

impl KernelKind {
    fn source(self) -> (&'static str, &'static str) {
        match self {
            Self::AllReduce => ("all_reduce.cu", include_str!("../../kernels/all_reduce.cu")),
            Self::Fold | Self::Move => ("exchange.cu", include_str!("../../kernels/exchange.cu")),
            Self::Transfer => ("transfer.cu", include_str!("../../kernels/transfer.cu")),
            Self::Window => ("window.cu", include_str!("../../kernels/window.cu")),
            Self::Bridge => ("bridge.cu", include_str!("../../kernels/bridge.cu")),
            Self::Combine => ("combine.cu", include_str!("../../kernels/combine.cu")),
        }
    }

    fn functions(self) -> &'static [&'static str] {
        match self {
            Self::AllReduce | Self::Fold | Self::Move => &["ringfold_small", "ringfold_bulk"],
            Self::Transfer => &["ringfold_small", "ringfold_meet", "ringfold_pull", "ringfold_batch"],
            Self::Window => &["ringfold_signal", "ringfold_wait"],
            Self::Bridge => &["ringfold_hand_over", "ringfold_take_back"],
            Self::Combine => &["ringfold_combine"],
        }
    }
}

/// The parameters of a compilation. Names are those of `element.cuh`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Specialisation {
    /// The element type, such as `F32`.
    pub element: &'static str,
    /// The element's size.
    pub element_bytes: usize,
    /// The operation, such as `Sum`.
    pub op: &'static str,
    /// The number of ranks.
    pub world: usize,
    /// What is done with the operands.
    pub kind: KernelKind,
}

/// The loaded kernels of a specialisation.
pub struct FoldKernels {
    specialisation: Specialisation,
    /// In the order of [`KernelKind::functions`].
    functions: Vec<Function>,
}

type LoadedKernels = HashMap<(i32, Specialisation), Arc<FoldKernels>>;

/// The kernels that this process has loaded. Locked while one compiles, since ranks of one process need the same ones.
static LOADED: LazyLock<Mutex<LoadedKernels>> = LazyLock::new(Mutex::default);

impl FoldKernels {
    /// The kernels of a specialisation, if they are loaded.
    pub fn loaded(gpu: &Gpu, specialisation: &Specialisation) -> Option<Arc<Self>> {
        LOADED.lock().get(&(gpu.ordinal(), *specialisation)).cloned()
    }

    /// Loads the kernels of a specialisation, through an on-disk `cache` if given.
    ///
    /// Loading may wait for all running kernels, so none of them may depend on the calling thread.
    pub fn load(
        gpu: &Gpu,
        specialisation: &Specialisation,
        compiler: &Compiler,
        cache: Option<&Path>,
    ) -> Result<Arc<Self>, CudaError> {
        let mut loaded = LOADED.lock();
        let key = (gpu.ordinal(), *specialisation);
        if let Some(kernels) = loaded.get(&key) {
            return Ok(kernels.clone());
        }
        let image = specialisation.image(&gpu.arch(), compiler, cache)?;
        let kernels = Arc::new(Self::from_image(gpu, specialisation, &image)?);
        loaded.insert(key, kernels.clone());
        Ok(kernels)
    }

    /// Loads the kernels of many specialisations. What is not in the cache is compiled by several threads.
    pub fn load_all(
        gpu: &Gpu,
        specialisations: &[Specialisation],
        compiler: &Compiler,
        cache: Option<&Path>,
    ) -> Result<(), CudaError> {
        let arch = gpu.arch();
        let mut loaded = LOADED.lock();
        let missing: Vec<_> =
            specialisations.iter().filter(|each| !loaded.contains_key(&(gpu.ordinal(), **each))).collect();
        let (next, images) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            let compile = || {
                while let Some(each) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let image = each.image(&arch, compiler, cache);
                    images.lock().push((**each, image));
                }
            };
            let threads =
                std::thread::available_parallelism().map_or(1, |cores| cores.get().min(COMPILERS_MAX));
            for _ in 1..threads.min(missing.len()) {
                scope.spawn(compile);
            }
            compile();
        });
        for (each, image) in images.into_inner() {
            let kernels = Self::from_image(gpu, &each, &image?)?;
            loaded.insert((gpu.ordinal(), each), Arc::new(kernels));
        }
        Ok(())
    }

    fn from_image(gpu: &Gpu, specialisation: &Specialisation, image: &[u8]) -> Result<Self, CudaError> {
        let module = Module::load(gpu, image)?;
        let names = specialisation.kind.functions().iter();
        let functions = names.map(|name| module.function(name)).collect::<Result<_, _>>()?;
        Ok(Self { specialisation: *specialisation, functions })
    }

    /// A kernel, by its name.
    pub(super) fn function(&self, name: &str) -> Result<&Function, CudaError> {
        let is_it = |function: &&Function| function.name() == name;
        self.functions
            .iter()
            .find(is_it)
            .ok_or_else(|| CudaError::Argument(format!("invalid kernels: none of them is {name}")))
    }

    /// The specialisation.
    pub fn specialisation(&self) -> &Specialisation {
        &self.specialisation
    }
}

impl Specialisation {
    /// Returns the code for an architecture, from the cache or compiled.
    pub fn image(&self, arch: &str, compiler: &Compiler, cache: Option<&Path>) -> Result<Vec<u8>, CudaError> {
        let options: Vec<String> = OPTIONS.iter().map(|option| (*option).to_owned()).collect();
        let defines = self.macros();
        let (name, source) = self.kind.source();
        let request = CompileRequest {
            source,
            name,
            arch,
            defines: &defines,
            include_dirs: &[],
            headers: HEADERS,
            options: &options,
        };
        kernel_image::load(&request, &self.file_name(arch, compiler.version()), compiler, cache)
    }

    fn macros(&self) -> Vec<(String, String)> {
        let text = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut macros = ArenaLayout::of(self.world).macros();
        macros.push(text("RF_WORLD", &self.world.to_string()));
        macros.push(text("RF_ELEMENT", self.element));
        macros.push(text("RF_OP", self.op));
        macros.push(text("RF_FOLD", if self.kind == KernelKind::Fold { "1" } else { "0" }));
        macros
    }

    /// A file name that depends on everything that the code depends on.
    fn file_name(&self, arch: &str, version: (i32, i32)) -> String {
        let mut hash = DefaultHasher::new();
        (self.kind.source(), HEADERS, headers::HEADERS, OPTIONS, self.macros(), version).hash(&mut hash);
        let Self { element, op, world, .. } = self;
        let what = match self.kind {
            KernelKind::AllReduce => format!("all-reduce-{op}"),
            KernelKind::Fold => format!("fold-{op}"),
            KernelKind::Move => "move".to_owned(),
            KernelKind::Transfer => "transfer".to_owned(),
            KernelKind::Window => "window".to_owned(),
            KernelKind::Bridge => "bridge".to_owned(),
            KernelKind::Combine => format!("combine-{op}"),
        };
        format!("{what}-{element}-{world}-{arch}-{:016x}.cubin", hash.finish())
    }
}

#[cfg(test)]
mod tests;
