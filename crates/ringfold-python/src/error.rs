//! Failures as exceptions.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use ringfold_bindings::result::Failure;

/// The class that Python users catch; it is written in Python.
static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// The exception that a failure is.
pub(crate) fn raised(py: Python<'_>, failure: &Failure) -> PyErr {
    match CLASS.import(py, "ringfold._error", "PCCLError") {
        Ok(class) => {
            let arguments = (failure.code as i32, failure.text.clone(), failure.is_retryable, failure.kind);
            // The class makes an instance of the subclass that belongs to the result.
            class.call1(arguments).map_or_else(|error| error, PyErr::from_value)
        }
        Err(error) => error,
    }
}
