//! Proxies and their channels, for Python.

use crate::call::{detached, try_detached, wait_interruptible};
use crate::exception::{ToException, port_error};
use crate::fork_guard::DetachedGuard;
use crate::port::{Port, wait_of};
use crate::port_memory::PortMemory;
use crate::port_semaphore::{PortSemaphore, PortSemaphoreCursor};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use ringfold::cuda::port::device_handle::HANDLE_SIZES;
use ringfold::cuda::port::trigger::{MemoryId, SemaphoreId};
use ringfold::cuda::port::{PortError, ProxyService, Put, SemaphoreKind, Wait};

/// A proxy thread. It stops with the object.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct PortProxy {
    proxy: DetachedGuard<ProxyService>,
}

/// A semaphore as an argument: with a cursor, or without one.
#[derive(FromPyObject)]
enum AnySemaphore<'py> {
    Cursor(PyRef<'py, PortSemaphoreCursor>),
    Semaphore(PyRef<'py, PortSemaphore>),
}

#[pymethods]
impl PortProxy {
    #[new]
    #[pyo3(signature = (port=None, fifo_size=512))]
    fn new(py: Python<'_>, port: Option<&Port>, fifo_size: usize) -> PyResult<Self> {
        let port = port.map(|port| port.port.get(py)).transpose()?.cloned();
        let proxy = ProxyService::new(port, fifo_size).map_err(|error| error.to_exception(py))?;
        Ok(Self { proxy: DetachedGuard::new(proxy) })
    }

    /// Adds memory; returns its number.
    fn add_memory(&self, py: Python<'_>, memory: &PortMemory) -> PyResult<u16> {
        let added = self.proxy.get(py)?.add_memory(memory.memory.get(py)?.clone());
        added.map(|id| id.0).map_err(|error| error.to_exception(py))
    }

    /// Adds a semaphore; returns its number.
    fn add_semaphore(&self, py: Python<'_>, semaphore: AnySemaphore<'_>) -> PyResult<u16> {
        let cursor = match semaphore {
            AnySemaphore::Cursor(cursor) => cursor.cursor.get(py)?.clone(),
            AnySemaphore::Semaphore(semaphore) => semaphore.cursor(py, SemaphoreKind::HostToDevice)?,
        };
        let added = self.proxy.get(py)?.add_semaphore(cursor);
        added.map(|id| id.0).map_err(|error| error.to_exception(py))
    }

    /// A channel between two memories.
    fn channel(&self, py: Python<'_>, semaphore_id: u16, dst: u16, src: u16) -> PyResult<PortChannel> {
        let channel = self.proxy.get(py)?.channel(SemaphoreId(semaphore_id), MemoryId(dst), MemoryId(src));
        PortChannel::of(py, channel)
    }

    /// A channel whose kernels name the memories with each put.
    fn base_channel(&self, py: Python<'_>, semaphore_id: u16) -> PyResult<PortChannel> {
        let channel = self.proxy.get(py)?.base_channel(SemaphoreId(semaphore_id));
        PortChannel::of(py, channel)
    }

    /// Starts the thread.
    fn start(&self, py: Python<'_>) -> PyResult<()> {
        let proxy = self.proxy.get(py)?;
        try_detached(py, || proxy.start())
    }

    /// Ends the thread when it has done what was pushed.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let proxy = self.proxy.get(py)?;
        match detached(py, || wait_interruptible(None, |timeout| proxy.stop_within(timeout)))? {
            Some(end) => end.map_err(|error| error.to_exception(py)),
            None => Err(port_error(py, "aborted", 0, "interrupted while the proxy stopped")),
        }
    }

    /// Why the proxy failed; None while it works.
    fn failure(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.proxy.get(py)?.failure().map(|error| error.to_string()))
    }
}

/// A channel through a proxy, for the host and, by its handle, for kernels.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct PortChannel {
    channel: DetachedGuard<ringfold::cuda::port::PortChannel>,
}

#[pymethods]
impl PortChannel {
    /// The device handle: 96 bytes, or 88 of a base channel.
    #[getter]
    fn handle<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let channel = self.channel.get(py)?;
        let handle = try_detached(py, || channel.device_handle())?;
        Ok(PyBytes::new(py, &handle))
    }

    /// Copies bytes to the other side.
    fn put(&self, py: Python<'_>, dst_offset: u64, src_offset: u64, nbytes: u64) -> PyResult<()> {
        let put = Put { target_offset: dst_offset, source_offset: src_offset, bytes: nbytes };
        self.call(py, None, -1, |channel, wait| channel.put(put, wait))
    }

    /// Signals the other side, after all earlier puts.
    fn signal(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, None, -1, |channel, wait| channel.signal(wait))
    }

    /// Copies bytes, then signals.
    fn put_with_signal(&self, py: Python<'_>, dst_offset: u64, src_offset: u64, nbytes: u64) -> PyResult<()> {
        let put = Put { target_offset: dst_offset, source_offset: src_offset, bytes: nbytes };
        self.call(py, None, -1, |channel, wait| channel.put_with_signal(put, wait))
    }

    /// Copies bytes, signals, and waits until the bytes may be changed.
    #[pyo3(signature = (dst_offset, src_offset, nbytes, timeout=None))]
    fn put_with_signal_and_flush(
        &self,
        py: Python<'_>,
        dst_offset: u64,
        src_offset: u64,
        nbytes: u64,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let put = Put { target_offset: dst_offset, source_offset: src_offset, bytes: nbytes };
        self.call(py, timeout, -1, |channel, wait| channel.put_with_signal_and_flush(put, wait))
    }

    /// Waits until all puts are done.
    #[pyo3(signature = (timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.call(py, timeout, -1, |channel, wait| channel.flush(wait))
    }

    /// Waits for the next signal of the other side, for at most `spins` checks.
    #[pyo3(signature = (timeout=None, spins=-1))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>, spins: i64) -> PyResult<()> {
        self.call(py, timeout, spins, |channel, wait| channel.wait(wait))
    }

    /// Takes a signal of the other side, if there is one.
    fn poll(&self, py: Python<'_>) -> PyResult<bool> {
        let channel = self.channel.get(py)?;
        try_detached(py, || channel.poll())
    }
}

impl PortChannel {
    fn of(py: Python<'_>, channel: Result<ringfold::cuda::port::PortChannel, PortError>) -> PyResult<Self> {
        let channel = channel.map_err(|error| error.to_exception(py))?;
        Ok(Self { channel: DetachedGuard::new(channel) })
    }

    fn call(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        checks_max: i64,
        call: impl FnOnce(&ringfold::cuda::port::PortChannel, Wait<'_>) -> Result<(), PortError> + Send,
    ) -> PyResult<()> {
        let (channel, wait) = (self.channel.get(py)?, wait_of(py, timeout, checks_max)?);
        try_detached(py, || call(channel, wait))
    }
}

/// The sizes of device handles, by their names in the device headers.
#[pyfunction]
pub(crate) fn port_handle_sizes(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let sizes = PyDict::new(py);
    for (name, bytes) in HANDLE_SIZES {
        sizes.set_item(name, bytes)?;
    }
    Ok(sizes)
}
