//! The compiler for kernels, NVRTC, which is loaded when someone asks for it. It needs no device.
//!
//! It comes with CUDA, and with Python packages that need it. It has no headers of a host's compiler; sources that
//! include the usual ones find small ones of ours, see [`stand_ins`].

mod api;
mod search;
pub mod stand_ins;

pub use search::hint;

use crate::headers;
use api::{Api, Program};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// What sources are compiled as unless they say otherwise.
const STANDARD: &str = "-std=c++20";

/// Why something was not compiled.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// There is no compiler, or it does not work.
    #[error("no compiler for CUDA kernels here: {0}")]
    NoCompiler(String),
    /// The source is wrong, or an option is.
    #[error("{name} does not compile for {arch}:\n{log}")]
    Rejected {
        /// The source's name.
        name: String,
        /// What it was compiled for.
        arch: String,
        /// What the compiler says.
        log: String,
    },
    /// The compiler itself failed.
    #[error("the compiler for CUDA kernels failed: {0}")]
    Failed(String),
}

/// What is compiled, and how.
#[derive(Clone, Copy, Default, Debug)]
pub struct Job<'a> {
    /// The source.
    pub source: &'a str,
    /// The name that errors call it.
    pub name: &'a str,
    /// `sm_90` and the like for code of a device, `compute_90` and the like for PTX.
    pub arch: &'a str,
    /// Macros that are defined, and as what; nothing is 1.
    pub defines: &'a [(String, String)],
    /// Where headers are looked for, besides those of CUDA and ours.
    pub include_dirs: &'a [PathBuf],
    /// Headers that are included from here, by name. Ours need not be named.
    pub headers: &'a [(&'a str, &'a str)],
    /// Whatever else the compiler is told. A standard here is used instead of C++20.
    pub options: &'a [String],
}

/// NVRTC.
pub struct Compiler {
    api: Api,
    path: PathBuf,
    version: (i32, i32),
    include_dirs: Vec<PathBuf>,
}

/// Compilers that are loaded, by what was asked for. They stay: unloading one has never done anybody good.
static LOADED: LazyLock<Mutex<HashMap<Option<PathBuf>, &'static Compiler>>> = LazyLock::new(Mutex::default);

impl Compiler {
    /// The compiler in this library, or the one that is found: one that `RINGFOLD_NVRTC` names, one that is loaded already, one on the loader's path, one of
    /// CUDA's toolkit, or one where someone has [hinted](hint) that it might be.
    pub fn load(path: Option<&Path>) -> Result<&'static Self, CompileError> {
        let mut loaded = LOADED.lock();
        let key = path.map(Path::to_owned);
        if let Some(compiler) = loaded.get(&key) {
            return Ok(compiler);
        }
        let api = search::find(path).map_err(CompileError::NoCompiler)?;
        let version = api.version().map_err(CompileError::NoCompiler)?;
        let path = api.path();
        let include_dirs = search::include_dirs(&path);
        let compiler: &'static Self = Box::leak(Box::new(Self { api, path, version, include_dirs }));
        loaded.insert(key, compiler);
        Ok(compiler)
    }

    /// Its version, 13.0 say.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The library.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where CUDA's own headers are; empty if they were not found.
    pub fn include_dirs(&self) -> &[PathBuf] {
        &self.include_dirs
    }

    /// Compiles a source into a cubin, or into PTX, which [`Module::load`](crate::Module::load) takes.
    pub fn compile(&self, job: &Job<'_>) -> Result<Vec<u8>, CompileError> {
        let options = self.options(job)?;
        let (mut names, mut texts) = (Vec::new(), Vec::new());
        let known = stand_ins::ALL.iter().chain(headers::HEADERS).filter(|(name, _)| {
            // Whoever brings a header of this name wants that one.
            job.headers.iter().all(|(given, _)| given != name)
        });
        for (name, text) in job.headers.iter().chain(known) {
            names.push(plain(name)?);
            texts.push(plain(text)?);
        }
        let program = Program::create(&self.api, &plain(job.source)?, &plain(job.name)?, &texts, &names)?;
        program.compile(&options).map_err(|log| CompileError::Rejected {
            name: job.name.to_owned(),
            arch: job.arch.to_owned(),
            log: log.trim_end().to_owned(),
        })?;
        if job.arch.starts_with("compute_") { program.ptx() } else { program.cubin() }
    }

    fn options(&self, job: &Job<'_>) -> Result<Vec<CString>, CompileError> {
        let is_standard = |option: &String| option.starts_with("-std") || option.starts_with("--std");
        let mut options =
            vec![format!("--gpu-architecture={}", job.arch), format!("--pre-include={}", stand_ins::PRELUDE)];
        if !job.options.iter().any(is_standard) {
            options.push(STANDARD.to_owned());
        }
        for (name, value) in job.defines {
            options.push(match value.as_str() {
                "" => format!("--define-macro={name}"),
                value => format!("--define-macro={name}={value}"),
            });
        }
        for dir in job.include_dirs.iter().chain(&self.include_dirs) {
            options.push(format!("--include-path={}", dir.display()));
        }
        options.extend(job.options.iter().cloned());
        options.iter().map(|option| plain(option)).collect()
    }
}

impl core::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "NVRTC {}.{} at {}", self.version.0, self.version.1, self.path.display())
    }
}

fn plain(text: &str) -> Result<CString, CompileError> {
    CString::new(text).map_err(|_| {
        let name = text.chars().take(40).collect::<String>().replace('\0', "\\0");
        CompileError::Rejected { name, arch: "any device".into(), log: "there is a zero in the text".into() }
    })
}
