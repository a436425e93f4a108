//! Connections of ports, for Python.

use crate::call::{released, wait_until};
use crate::port::patience;
use crate::port_error::{of_kind, of_port, refused};
use crate::port_memory::PortMemory;
use crate::port_owned::PortOwned;
use pyo3::prelude::*;
use ringfold::cuda::port::Connection;
use std::time::Instant;

/// A connection with another rank.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct PortConnection {
    connection: PortOwned<Connection>,
}

impl PortConnection {
    pub(crate) fn of(connection: Connection) -> Self {
        Self { connection: PortOwned::new(connection) }
    }

    pub(crate) fn here(&self, py: Python<'_>) -> PyResult<&Connection> {
        self.connection.require().map_err(|failure| refused(py, &failure.text))
    }
}

#[pymethods]
impl PortConnection {
    /// Writes bytes of ours into the other side's memory.
    fn write(
        &self,
        py: Python<'_>,
        dst: &PortMemory,
        dst_offset: u64,
        src: &PortMemory,
        src_offset: u64,
        nbytes: u64,
    ) -> PyResult<()> {
        let (connection, dst, src) = (self.here(py)?, dst.here(py)?, src.here(py)?);
        let written = released(py, || connection.write(dst, dst_offset, src, src_offset, nbytes))?;
        written.map_err(|error| of_port(py, &error))
    }

    /// Sets an aligned word of the other side's memory, behind all writes.
    fn update(&self, py: Python<'_>, dst: &PortMemory, dst_offset: u64, value: u64) -> PyResult<()> {
        let (connection, dst) = (self.here(py)?, dst.here(py)?);
        released(py, || connection.update(dst, dst_offset, value))?.map_err(|error| of_port(py, &error))
    }

    /// As `update`, and sets the word of the host's memory at an address to the same value.
    fn update_and_sync(
        &self,
        py: Python<'_>,
        dst: &PortMemory,
        dst_offset: u64,
        src_address: u64,
        value: u64,
    ) -> PyResult<()> {
        let (connection, dst) = (self.here(py)?, dst.here(py)?);
        // SAFETY: that it is the address of a word which may be written is what the caller says, as with any address that
        // Python is given.
        let updated =
            released(py, || unsafe { connection.update_and_sync(dst, dst_offset, src_address, value) })?;
        updated.map_err(|error| of_port(py, &error))
    }

    /// Waits until everything so far is where it belongs.
    #[pyo3(signature = (timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let connection = self.here(py)?;
        let until = timeout
            .map(|seconds| patience(py, seconds))
            .transpose()?
            .map(|patience| Instant::now() + patience);
        let flushed = released(py, || {
            wait_until(until, |patience| match connection.flush(Instant::now() + patience) {
                Err(error) if error.kind() == "timeout" => None,
                end => Some(end),
            })
        })?;
        match flushed {
            Some(end) => end.map_err(|error| of_port(py, &error)),
            None => {
                let words = format!("waited in vain for rank {} to take what was written", connection.peer());
                Err(of_kind(py, "timeout", 0, &words))
            }
        }
    }

    /// Nothing, or why it is over, as an exception.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let connection = self.here(py)?;
        released(py, || connection.check())?.map_err(|error| of_port(py, &error))
    }

    #[getter]
    fn transport(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.here(py)?.transport().bit())
    }

    #[getter]
    fn peer(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.here(py)?.peer())
    }

    #[getter]
    fn is_over(&self, py: Python<'_>) -> PyResult<bool> {
        let connection = self.here(py)?;
        released(py, || connection.is_over())
    }
}
