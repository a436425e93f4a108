//! Code for CUDA devices, for Python.

use crate::call::try_detached;
use crate::fork_guard::DetachedGuard;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use ringfold::cuda::{Dim3, Function, Gpu, Module};

/// Code that is loaded on a device.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct CudaModule {
    module: DetachedGuard<Module>,
}

#[pymethods]
impl CudaModule {
    /// Loads a cubin, a fatbin or PTX.
    #[new]
    fn new(py: Python<'_>, image: &[u8], ordinal: i32) -> PyResult<Self> {
        let module = try_detached(py, || Module::load(&Gpu::open(ordinal)?, image))?;
        Ok(Self { module: DetachedGuard::new(module) })
    }

    /// A kernel, by its name in the code.
    fn function(&self, py: Python<'_>, name: &str) -> PyResult<CudaFunction> {
        let module = self.module.get(py)?;
        let function = try_detached(py, || module.function(name))?;
        Ok(CudaFunction { function: DetachedGuard::new(function) })
    }
}

/// A kernel.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct CudaFunction {
    function: DetachedGuard<Function>,
}

#[pymethods]
impl CudaFunction {
    /// Launches it on a stream. `stream` is the driver's handle; 0 is the default stream.
    fn launch(
        &self,
        py: Python<'_>,
        params: &[u8],
        grid: (u32, u32, u32),
        block: (u32, u32, u32),
        shared: u32,
        stream: usize,
    ) -> PyResult<()> {
        let function = self.function.get(py)?;
        let [grid, block] = [grid, block].map(|(x, y, z)| Dim3 { x, y, z });
        // SAFETY: the caller promises that parameters, memory and stream are what the kernel expects, as in any language:
        // nothing here can check it.
        try_detached(py, || unsafe { function.launch(params, grid, block, shared, stream) })
    }

    /// How many blocks of so many threads run on one multiprocessor at a time.
    fn max_active_blocks(&self, py: Python<'_>, threads: u32, shared: u32) -> PyResult<u32> {
        let function = self.function.get(py)?;
        try_detached(py, || function.max_active_blocks(threads, shared))
    }

    /// Its resource needs, and the size of its parameters in bytes (-1 if the driver does not report it).
    #[getter]
    fn attributes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let function = self.function.get(py)?;
        let (needs, dict) = (function.attributes(), PyDict::new(py));
        dict.set_item("registers", needs.registers)?;
        dict.set_item("shared_bytes", needs.shared_bytes)?;
        dict.set_item("constant_bytes", needs.constant_bytes)?;
        dict.set_item("local_bytes", needs.local_bytes)?;
        dict.set_item("max_threads", needs.max_threads)?;
        let bytes = function.parameter_bytes().and_then(|bytes| i64::try_from(bytes).ok());
        dict.set_item("parameter_bytes", bytes.unwrap_or(-1))?;
        Ok(dict)
    }

    /// Its name in the code.
    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        self.function.get(py).map(|function| function.name().to_owned())
    }
}
