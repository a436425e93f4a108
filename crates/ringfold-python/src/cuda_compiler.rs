//! The compiler for kernels, for Python.

use crate::call::released;
use crate::port_error::of_kind;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use ringfold::cuda::nvrtc::{self, CompileError, Compiler, Job};
use std::path::PathBuf;

/// Where Python packages keep the library, from a directory of packages on.
const PACKAGED: [&str; 3] = ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "nvidia/cu12/lib"];

/// Compiles a source: a cubin for `sm_90` and the like, PTX for `compute_90` and the like. `nvrtc` is the library, if it is
/// not to be looked for.
#[pyfunction]
#[pyo3(signature = (source, name, arch, defines, include_dirs, options, nvrtc=None))]
#[expect(clippy::too_many_arguments, reason = "callers name what they mean")]
pub(crate) fn cuda_compile<'py>(
    py: Python<'py>,
    source: &str,
    name: &str,
    arch: &str,
    defines: &Bound<'py, PyDict>,
    include_dirs: Vec<PathBuf>,
    options: Vec<String>,
    nvrtc: Option<PathBuf>,
) -> PyResult<Bound<'py, PyBytes>> {
    hint(py)?;
    let defines = defines.iter().map(|(name, value)| Ok((name.extract()?, value.extract()?)));
    let defines = defines.collect::<PyResult<Vec<(String, String)>>>()?;
    let image = released(py, || {
        let (defines, include_dirs, options) = (&defines, &include_dirs, &options);
        let job = Job { source, name, arch, defines, include_dirs, headers: &[], options };
        Compiler::load(nvrtc.as_deref())?.compile(&job)
    })?;
    match image {
        Ok(image) => Ok(PyBytes::new(py, &image)),
        Err(error) => Err(raised(py, &error)),
    }
}

/// The library that compiles, and its version; PortError if there is none.
#[pyfunction]
#[pyo3(signature = (nvrtc=None))]
pub(crate) fn cuda_compiler(py: Python<'_>, nvrtc: Option<PathBuf>) -> PyResult<(PathBuf, (i32, i32))> {
    hint(py)?;
    let compiler = released(py, || Compiler::load(nvrtc.as_deref()))?.map_err(|error| raised(py, &error))?;
    Ok((compiler.path().to_owned(), compiler.version()))
}

/// Tells the search for the compiler where this interpreter's packages are.
pub(crate) fn hint(py: Python<'_>) -> PyResult<()> {
    let path = py.import("sys")?.getattr("path")?;
    let dirs = path.try_iter()?.filter_map(|item| item.ok()?.extract::<PathBuf>().ok());
    let dirs = dirs.flat_map(|dir| PACKAGED.map(|packaged| dir.join(packaged)));
    nvrtc::hint(dirs.filter(|dir| dir.is_dir()));
    Ok(())
}

/// The exception that a failure to compile is.
#[cold]
pub(crate) fn raised(py: Python<'_>, error: &CompileError) -> PyErr {
    let kind = match error {
        CompileError::NoCompiler(_) => "unsupported",
        CompileError::Rejected { .. } => "argument",
        _ => "system",
    };
    of_kind(py, kind, 0, &error.to_string())
}
