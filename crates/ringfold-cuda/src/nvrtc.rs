//! NVRTC, the run-time compiler for kernels. It is loaded on first use and needs no device.
//!
//! It comes with CUDA and with Python packages. It has no headers of the host's compiler; [`host_headers`] provides the
//! common ones.

mod api;
pub mod host_headers;
mod search;

pub use search::add_search_dirs;

use crate::headers;
use api::{Api, Program};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

const STANDARD: &str = "-std=c++20";

/// Why a compilation failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// There is no compiler, or it does not work.
    #[error("no compiler for CUDA kernels (NVRTC): {0}")]
    NoCompiler(String),
    /// The source or an option is invalid.
    #[error("{name} does not compile for {arch}:\n{log}")]
    Rejected {
        /// The source's name.
        name: String,
        /// The target architecture.
        arch: String,
        /// The compiler's log.
        log: String,
    },
    /// NVRTC itself failed.
    #[error("the compiler for CUDA kernels (NVRTC) failed: {0}")]
    Failed(String),
}

/// A source and its compile options.
#[derive(Clone, Copy, Default, Debug)]
pub struct CompileRequest<'a> {
    /// The source.
    pub source: &'a str,
    /// The source's name in errors.
    pub name: &'a str,
    /// The target: such as `sm_90` for a cubin, `compute_90` for PTX.
    pub arch: &'a str,
    /// Macros and their values; an empty value means 1.
    pub defines: &'a [(String, String)],
    /// Include directories, searched before those of CUDA.
    pub include_dirs: &'a [PathBuf],
    /// In-memory headers: name and text. The device headers are always included.
    pub headers: &'a [(&'a str, &'a str)],
    /// More options. A `-std` option replaces C++20.
    pub options: &'a [String],
}

/// A loaded NVRTC library.
pub struct Compiler {
    api: Api,
    path: PathBuf,
    version: (i32, i32),
    include_dirs: Vec<PathBuf>,
}

/// The loaded compilers, by requested path. They are never unloaded.
static LOADED: LazyLock<Mutex<HashMap<Option<PathBuf>, &'static Compiler>>> = LazyLock::new(Mutex::default);

impl Compiler {
    /// Loads the compiler at `path`, or searches for one.
    ///
    /// Searched in order: the library that `RINGFOLD_NVRTC` names, a library that is already loaded, the loader's path,
    /// the CUDA toolkit, and the directories of [`add_search_dirs`].
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

    /// The version, such as (13, 0).
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The library's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directories of CUDA's headers; empty if they were not found.
    pub fn include_dirs(&self) -> &[PathBuf] {
        &self.include_dirs
    }

    /// Compiles a source to a cubin or PTX for [`Module::load`](crate::Module::load).
    pub fn compile(&self, request: &CompileRequest<'_>) -> Result<Vec<u8>, CompileError> {
        let options = self.options(request)?;
        let (mut names, mut texts) = (Vec::new(), Vec::new());
        let known = host_headers::ALL.iter().chain(headers::HEADERS).filter(|(name, _)| {
            // The caller's headers take precedence.
            request.headers.iter().all(|(given, _)| given != name)
        });
        for (name, text) in request.headers.iter().chain(known) {
            names.push(c_string(name)?);
            texts.push(c_string(text)?);
        }
        let (source, name) = (c_string(request.source)?, c_string(request.name)?);
        let program = Program::create(&self.api, &source, &name, &texts, &names)?;
        program.compile(&options).map_err(|log| CompileError::Rejected {
            name: request.name.to_owned(),
            arch: request.arch.to_owned(),
            log: log.trim_end().to_owned(),
        })?;
        if request.arch.starts_with("compute_") { program.ptx() } else { program.cubin() }
    }

    fn options(&self, request: &CompileRequest<'_>) -> Result<Vec<CString>, CompileError> {
        let is_standard = |option: &String| option.starts_with("-std") || option.starts_with("--std");
        let mut options = vec![
            format!("--gpu-architecture={}", request.arch),
            format!("--pre-include={}", host_headers::PRELUDE),
        ];
        if !request.options.iter().any(is_standard) {
            options.push(STANDARD.to_owned());
        }
        for (name, value) in request.defines {
            options.push(match value.as_str() {
                "" => format!("--define-macro={name}"),
                value => format!("--define-macro={name}={value}"),
            });
        }
        for dir in request.include_dirs.iter().chain(&self.include_dirs) {
            options.push(format!("--include-path={}", dir.display()));
        }
        options.extend(request.options.iter().cloned());
        options.iter().map(|option| c_string(option)).collect()
    }
}

debug_as!(Compiler, self => "NVRTC {}.{} at {}", self.version.0, self.version.1, self.path.display());

fn c_string(text: &str) -> Result<CString, CompileError> {
    CString::new(text).map_err(|_| {
        let name = text.chars().take(40).collect::<String>().replace('\0', "\\0");
        CompileError::Rejected { name, arch: "any device".into(), log: "the text contains a NUL byte".into() }
    })
}
