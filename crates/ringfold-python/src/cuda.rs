//! CUDA devices, for Python.

use crate::call::{detached, try_detached};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use ringfold::cuda::{Driver, Gpu, headers};

/// Whether there are a CUDA driver and a device.
#[pyfunction]
pub(crate) fn has_cuda(py: Python<'_>) -> bool {
    py.detach(Driver::is_usable)
}

/// Why no CUDA device can be used; None if one can.
#[pyfunction]
pub(crate) fn cuda_unavailable_reason(py: Python<'_>) -> PyResult<Option<String>> {
    detached(py, || Gpu::unavailable_reason().map(|error| error.to_string()))
}

/// The number of CUDA devices; 0 without a driver.
#[pyfunction]
pub(crate) fn cuda_count(py: Python<'_>) -> PyResult<usize> {
    detached(py, || Gpu::count().unwrap_or(0))
}

/// The number of this thread's current device, or 0.
#[pyfunction]
pub(crate) fn cuda_current(py: Python<'_>) -> PyResult<i32> {
    try_detached(py, Gpu::current_ordinal)
}

/// The architecture of a device for the compiler, such as `sm_90`.
#[pyfunction]
pub(crate) fn cuda_arch(py: Python<'_>, ordinal: i32) -> PyResult<String> {
    try_detached(py, || Gpu::open(ordinal).map(|gpu| gpu.arch()))
}

/// The number of multiprocessors of a device.
#[pyfunction]
pub(crate) fn cuda_multiprocessors(py: Python<'_>, ordinal: i32) -> PyResult<u32> {
    try_detached(py, || Gpu::open(ordinal).map(|gpu| gpu.sms()))
}

/// The number of the device whose memory an address is in; None for host memory and unknown addresses.
#[pyfunction]
pub(crate) fn cuda_device_of(py: Python<'_>, address: u64) -> PyResult<Option<i32>> {
    try_detached(py, || Gpu::of_address(address).map(|gpu| gpu.map(|gpu| gpu.ordinal())))
}

/// The device headers: include names and texts.
#[pyfunction]
pub(crate) fn cuda_headers(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    for (name, text) in headers::HEADERS {
        dict.set_item(name, text)?;
    }
    Ok(dict)
}
