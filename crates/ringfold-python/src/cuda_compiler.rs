//! The compiler for CUDA kernels, for Python.

use crate::call::try_detached;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use ringfold::cuda::nvrtc::{self, CompileRequest, Compiler};
use std::path::PathBuf;

/// Folders of NVRTC in a directory of Python packages.
const PACKAGED: [&str; 3] = ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "nvidia/cu12/lib"];

/// Compiles a source: to a cubin for `sm_90` and the like, to PTX for `compute_90` and the like.
///
/// `nvrtc` is the path of the library; None searches for it.
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
    add_search_dirs(py)?;
    let defines = defines.iter().map(|(name, value)| Ok((name.extract()?, value.extract()?)));
    let defines = defines.collect::<PyResult<Vec<(String, String)>>>()?;
    let image = try_detached(py, || {
        let (defines, include_dirs, options) = (&defines, &include_dirs, &options);
        let request = CompileRequest { source, name, arch, defines, include_dirs, headers: &[], options };
        Compiler::load(nvrtc.as_deref())?.compile(&request)
    })?;
    Ok(PyBytes::new(py, &image))
}

/// The path and version of the compiler library; PortError if there is none.
#[pyfunction]
#[pyo3(signature = (nvrtc=None))]
pub(crate) fn cuda_compiler(py: Python<'_>, nvrtc: Option<PathBuf>) -> PyResult<(PathBuf, (i32, i32))> {
    add_search_dirs(py)?;
    let compiler = try_detached(py, || Compiler::load(nvrtc.as_deref()))?;
    Ok((compiler.path().to_owned(), compiler.version()))
}

/// Adds this interpreter's package folders to the search for the compiler.
pub(crate) fn add_search_dirs(py: Python<'_>) -> PyResult<()> {
    let path = py.import("sys")?.getattr("path")?;
    let dirs = path.try_iter()?.filter_map(|item| item.ok()?.extract::<PathBuf>().ok());
    let dirs = dirs.flat_map(|dir| PACKAGED.map(|packaged| dir.join(packaged)));
    nvrtc::add_search_dirs(dirs.filter(|dir| dir.is_dir()));
    Ok(())
}
