//! Code for CUDA devices, for Python.

use crate::call::released;
use crate::cuda_memory::let_go;
use crate::owned::Owned;
use crate::port_error::{of_cuda, refused};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use ringfold::cuda::{Block, Function, Gpu, Grid, Module};

/// Code that is loaded into a device.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct CudaModule {
    /// None only while it is dropped.
    module: Option<Owned<Module>>,
}

#[pymethods]
impl CudaModule {
    /// Loads a cubin, a fatbin, or PTX.
    #[new]
    fn new(py: Python<'_>, image: &[u8], ordinal: i32) -> PyResult<Self> {
        let module = released(py, || Module::load(&Gpu::open(ordinal)?, image))?;
        let module = module.map_err(|error| of_cuda(py, &error))?;
        Ok(Self { module: Some(Owned::new(module)) })
    }

    /// A kernel, by the name that it has in the code.
    fn function(&self, py: Python<'_>, name: &str) -> PyResult<CudaFunction> {
        let module = here(py, self.module.as_ref())?;
        let function = released(py, || module.function(name))?.map_err(|error| of_cuda(py, &error))?;
        Ok(CudaFunction { function: Some(Owned::new(function)) })
    }
}

impl Drop for CudaModule {
    fn drop(&mut self) {
        let_go(self.module.take());
    }
}

/// A kernel.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct CudaFunction {
    /// None only while it is dropped.
    function: Option<Owned<Function>>,
}

#[pymethods]
impl CudaFunction {
    /// Launches it on a stream, by the driver's handle of that; 0 is the default stream.
    fn launch(
        &self,
        py: Python<'_>,
        params: &[u8],
        grid: (u32, u32, u32),
        block: (u32, u32, u32),
        shared: u32,
        stream: usize,
    ) -> PyResult<()> {
        let function = here(py, self.function.as_ref())?;
        let grid = Grid { x: grid.0, y: grid.1, z: grid.2 };
        let block = Block { x: block.0, y: block.1, z: block.2 };
        // SAFETY: that parameters, memory and stream are what the kernel expects is what a kernel's caller promises, in
        // Python as in any language: nothing here can know.
        let launched = released(py, || unsafe { function.launch(params, grid, block, shared, stream) })?;
        launched.map_err(|error| of_cuda(py, &error))
    }

    /// How many blocks of so many threads run on one multiprocessor at a time.
    fn max_active_blocks(&self, py: Python<'_>, threads: u32, shared: u32) -> PyResult<u32> {
        let function = here(py, self.function.as_ref())?;
        released(py, || function.max_active_blocks(threads, shared))?.map_err(|error| of_cuda(py, &error))
    }

    /// What it needs of a device, and how many bytes its parameters have (-1 if the driver does not tell).
    #[getter]
    fn attributes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let function = here(py, self.function.as_ref())?;
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

    /// Its name.
    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        here(py, self.function.as_ref()).map(|function| function.name().to_owned())
    }
}

impl Drop for CudaFunction {
    fn drop(&mut self) {
        let_go(self.function.take());
    }
}

fn here<'a, T>(py: Python<'_>, owned: Option<&'a Owned<T>>) -> PyResult<&'a T> {
    owned.and_then(Owned::here).ok_or_else(|| refused(py, "code of a CUDA device can't be used after a fork"))
}
