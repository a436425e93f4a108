//! Shared buffers, for tensors that the other ranks of the host read in place.

use crate::call::detached;
use pyo3::exceptions::{PyMemoryError, PyOSError};
use pyo3::prelude::*;
use std::io;

/// Zeroed memory of this process that other ranks of the host can map to read. Freed when this object is.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct SharedBuffer {
    buffer: ringfold::SharedBuffer,
}

#[pymethods]
impl SharedBuffer {
    #[new]
    fn new(py: Python<'_>, nbytes: usize) -> PyResult<Self> {
        let buffer = detached(py, || ringfold::SharedBuffer::zeroed(nbytes))?.map_err(|error| {
            let text = format!("allocating {nbytes} bytes of shared memory failed: {error}");
            if error.kind() == io::ErrorKind::OutOfMemory {
                PyMemoryError::new_err(text)
            } else {
                PyOSError::new_err((error.raw_os_error(), text))
            }
        })?;
        Ok(Self { buffer })
    }

    /// Where it begins.
    #[getter]
    fn address(&self) -> usize {
        self.buffer.as_ptr().expose_provenance()
    }

    /// Its size.
    #[getter]
    fn nbytes(&self) -> usize {
        self.buffer.len()
    }
}
