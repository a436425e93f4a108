//! Connections of ports, for Python.

use crate::call::{detached, try_detached, wait_interruptible};
use crate::exception::{ToException, port_error};
use crate::fork_guard::DetachedGuard;
use crate::port::timeout_of;
use crate::port_memory::PortMemory;
use pyo3::prelude::*;
use ringfold::cuda::port::Connection;
use std::time::Instant;

/// A connection to another rank.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct PortConnection {
    pub(crate) connection: DetachedGuard<Connection>,
}

impl PortConnection {
    pub(crate) fn of(connection: Connection) -> Self {
        Self { connection: DetachedGuard::new(connection) }
    }
}

#[pymethods]
impl PortConnection {
    /// Writes bytes of this rank into the other rank's memory.
    fn write(
        &self,
        py: Python<'_>,
        dst: &PortMemory,
        dst_offset: u64,
        src: &PortMemory,
        src_offset: u64,
        nbytes: u64,
    ) -> PyResult<()> {
        let connection = self.connection.get(py)?;
        let (dst, src) = (dst.memory.get(py)?, src.memory.get(py)?);
        try_detached(py, || connection.write(dst, dst_offset, src, src_offset, nbytes))
    }

    /// Sets an aligned 8-byte word of the other rank's memory, after all earlier writes.
    fn update(&self, py: Python<'_>, dst: &PortMemory, dst_offset: u64, value: u64) -> PyResult<()> {
        let (connection, dst) = (self.connection.get(py)?, dst.memory.get(py)?);
        try_detached(py, || connection.update(dst, dst_offset, value))
    }

    /// As `update`, and also sets the word of host memory at `src_address` to the same value.
    fn update_and_sync(
        &self,
        py: Python<'_>,
        dst: &PortMemory,
        dst_offset: u64,
        src_address: u64,
        value: u64,
    ) -> PyResult<()> {
        let (connection, dst) = (self.connection.get(py)?, dst.memory.get(py)?);
        // SAFETY: the caller promises that it is the address of a word which may be written, as with any address that
        // Python passes.
        try_detached(py, || unsafe { connection.update_and_sync(dst, dst_offset, src_address, value) })
    }

    /// Waits until all earlier writes are in the other rank's memory.
    #[pyo3(signature = (timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let connection = self.connection.get(py)?;
        let timeout = timeout.map(|seconds| timeout_of(py, seconds)).transpose()?;
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let flushed = detached(py, || {
            wait_interruptible(deadline, |timeout| match connection.flush(Instant::now() + timeout) {
                Err(error) if error.kind() == "timeout" => None,
                end => Some(end),
            })
        })?;
        match flushed {
            Some(end) => end.map_err(|error| error.to_exception(py)),
            None => {
                let text = format!("timed out waiting for rank {} to receive the writes", connection.peer());
                Err(port_error(py, "timeout", 0, &text))
            }
        }
    }

    /// Raises if the connection has failed.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let connection = self.connection.get(py)?;
        try_detached(py, || connection.check())
    }

    #[getter]
    fn transport(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.connection.get(py)?.transport().bit())
    }

    #[getter]
    fn peer(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.connection.get(py)?.peer())
    }

    #[getter]
    fn is_over(&self, py: Python<'_>) -> PyResult<bool> {
        let connection = self.connection.get(py)?;
        detached(py, || connection.is_over())
    }
}
