//! CUDA devices, for Python.

use crate::call::released;
use crate::port_error::of_cuda;
use pyo3::prelude::*;
use ringfold::cuda::{Gpu, headers};

/// Why no CUDA device can be used here; None if one can.
#[pyfunction]
pub(crate) fn cuda_why_not(py: Python<'_>) -> PyResult<Option<String>> {
    released(py, || Gpu::why_not().map(|error| error.to_string()))
}

/// How many CUDA devices there are; 0 without a driver.
#[pyfunction]
pub(crate) fn cuda_count(py: Python<'_>) -> PyResult<usize> {
    released(py, || Gpu::count().unwrap_or(0))
}

/// The number of the device that this thread has turned to, or 0.
#[pyfunction]
pub(crate) fn cuda_current(py: Python<'_>) -> PyResult<i32> {
    released(py, Gpu::current_ordinal)?.map_err(|error| of_cuda(py, &error))
}

/// What code for a device is compiled for: `sm_90`, say.
#[pyfunction]
pub(crate) fn cuda_arch(py: Python<'_>, ordinal: i32) -> PyResult<String> {
    released(py, || Gpu::open(ordinal).map(|gpu| gpu.arch()))?.map_err(|error| of_cuda(py, &error))
}

/// How many multiprocessors a device has.
#[pyfunction]
pub(crate) fn cuda_multiprocessors(py: Python<'_>, ordinal: i32) -> PyResult<u32> {
    released(py, || Gpu::open(ordinal).map(|gpu| gpu.sms()))?.map_err(|error| of_cuda(py, &error))
}

/// The number of the device whose memory an address is in; None if it is the host's, or nobody's.
#[pyfunction]
pub(crate) fn cuda_device_of(py: Python<'_>, address: u64) -> PyResult<Option<i32>> {
    let gpu = released(py, || Gpu::of_address(address))?.map_err(|error| of_cuda(py, &error))?;
    Ok(gpu.map(|gpu| gpu.ordinal()))
}

/// The device headers: the names that they are included by, and their texts.
#[pyfunction]
pub(crate) fn cuda_headers(py: Python<'_>) -> PyResult<Bound<'_, pyo3::types::PyDict>> {
    let dict = pyo3::types::PyDict::new(py);
    for (name, text) in headers::HEADERS {
        dict.set_item(name, text)?;
    }
    Ok(dict)
}
