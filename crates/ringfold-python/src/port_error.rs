//! Failures of ports and of CUDA as exceptions.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use ringfold::cuda::CudaError;
use ringfold::cuda::port::PortError;

/// The class that Python users catch; it is written in Python.
static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// The exception of a kind: `cuda`, `argument`, `lost`, `timeout`, `aborted`, `system` or `unsupported`. The code is
/// the driver's or the operating system's number, or 0.
#[cold]
pub(crate) fn of_kind(py: Python<'_>, kind: &str, code: i32, text: &str) -> PyErr {
    match CLASS.import(py, "ringfold._error", "PortError") {
        Ok(class) => PyErr::from_type(class.clone(), (text.to_owned(), kind.to_owned(), code)),
        Err(error) => error,
    }
}

/// The exception for an argument that can't be used.
#[cold]
pub(crate) fn refused(py: Python<'_>, text: &str) -> PyErr {
    of_kind(py, "argument", 0, text)
}

/// The exception that an error of CUDA is.
#[cold]
pub(crate) fn of_cuda(py: Python<'_>, error: &CudaError) -> PyErr {
    of_kind(py, error.kind(), error.code(), &error.to_string())
}

/// The exception that an error of a port is.
#[cold]
pub(crate) fn of_port(py: Python<'_>, error: &PortError) -> PyErr {
    of_kind(py, error.kind(), error.code(), &error.to_string())
}
