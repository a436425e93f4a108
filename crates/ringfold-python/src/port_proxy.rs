//! Proxies and the channels through them, for Python.

use crate::call::{released, wait_until};
use crate::port::Port;
use crate::port_error::{of_kind, of_port, refused};
use crate::port_memory::PortMemory;
use crate::port_owned::PortOwned;
use crate::port_semaphore::{PortSemaphore, PortSemaphoreFace};
use crate::port_wait::watched;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use ringfold::cuda::port::device_handle::HANDLE_SIZES;
use ringfold::cuda::port::trigger::{MemoryId, SemaphoreId};
use ringfold::cuda::port::{PortError, ProxyService, Put, SemaphoreKind, Wait};

/// A proxy. It stops with the object.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct PortProxy {
    proxy: PortOwned<ProxyService>,
}

/// What a proxy is given: a semaphore, or a face of one.
#[derive(FromPyObject)]
enum AnySemaphore<'py> {
    Face(PyRef<'py, PortSemaphoreFace>),
    Semaphore(PyRef<'py, PortSemaphore>),
}

#[pymethods]
impl PortProxy {
    #[new]
    #[pyo3(signature = (port=None, fifo_size=512))]
    fn new(py: Python<'_>, port: Option<&Port>, fifo_size: usize) -> PyResult<Self> {
        let port = port.map(|port| port.here(py)).transpose()?.cloned();
        let proxy = ProxyService::new(port, fifo_size).map_err(|error| of_port(py, &error))?;
        Ok(Self { proxy: PortOwned::new(proxy) })
    }

    /// Makes memory known, and says its number.
    fn add_memory(&self, py: Python<'_>, memory: &PortMemory) -> PyResult<u16> {
        let added = self.here(py)?.add_memory(memory.here(py)?.clone());
        added.map(|id| id.0).map_err(|error| of_port(py, &error))
    }

    /// Makes a semaphore known, and says its number.
    fn add_semaphore(&self, py: Python<'_>, semaphore: AnySemaphore<'_>) -> PyResult<u16> {
        let face = match semaphore {
            AnySemaphore::Face(face) => face.here(py)?.clone(),
            AnySemaphore::Semaphore(semaphore) => {
                semaphore.face(py, SemaphoreKind::HostToDevice)?.here(py)?.clone()
            }
        };
        self.here(py)?.add_semaphore(face).map(|id| id.0).map_err(|error| of_port(py, &error))
    }

    /// A channel between two memories.
    fn channel(&self, py: Python<'_>, semaphore_id: u16, dst: u16, src: u16) -> PyResult<PortChannel> {
        let channel = self.here(py)?.channel(SemaphoreId(semaphore_id), MemoryId(dst), MemoryId(src));
        PortChannel::of(py, channel)
    }

    /// A channel whose kernels tell the memories with each put.
    fn base_channel(&self, py: Python<'_>, semaphore_id: u16) -> PyResult<PortChannel> {
        let channel = self.here(py)?.base_channel(SemaphoreId(semaphore_id));
        PortChannel::of(py, channel)
    }

    /// Starts the thread.
    fn start(&self, py: Python<'_>) -> PyResult<()> {
        let proxy = self.here(py)?;
        released(py, || proxy.start())?.map_err(|error| of_port(py, &error))
    }

    /// Has the thread do what was pushed, and ends it.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let proxy = self.here(py)?;
        match released(py, || wait_until(None, |patience| proxy.stop_within(patience)))? {
            Some(end) => end.map_err(|error| of_port(py, &error)),
            None => Err(of_kind(py, "aborted", 0, "the proxy was stopped, but not waited for")),
        }
    }

    /// What has failed, in words.
    fn failure(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.here(py)?.failure().map(|error| error.to_string()))
    }
}

impl PortProxy {
    fn here(&self, py: Python<'_>) -> PyResult<&ProxyService> {
        self.proxy.require().map_err(|failure| refused(py, &failure.text))
    }
}

/// A channel through a proxy: what the host puts with, and what kernels are given.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct PortChannel {
    channel: PortOwned<ringfold::cuda::port::PortChannel>,
}

#[pymethods]
impl PortChannel {
    /// What kernels are given: 96 bytes, or 88.
    #[getter]
    fn handle<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let channel = self.here(py)?;
        let handle = released(py, || channel.device_handle())?;
        Ok(PyBytes::new(py, &handle.map_err(|error| of_port(py, &error))?))
    }

    /// Has bytes copied to the other side.
    fn put(&self, py: Python<'_>, dst_offset: u64, src_offset: u64, nbytes: u64) -> PyResult<()> {
        let put = Put { target_offset: dst_offset, source_offset: src_offset, bytes: nbytes };
        self.call(py, None, |channel, wait| channel.put(put, wait))
    }

    /// Signals to the other side, behind what was put before.
    fn signal(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, None, |channel, wait| channel.signal(wait))
    }

    /// Has bytes copied, and signals behind them.
    fn put_with_signal(&self, py: Python<'_>, dst_offset: u64, src_offset: u64, nbytes: u64) -> PyResult<()> {
        let put = Put { target_offset: dst_offset, source_offset: src_offset, bytes: nbytes };
        self.call(py, None, |channel, wait| channel.put_with_signal(put, wait))
    }

    /// Has bytes copied, signals behind them, and waits until the bytes may be changed.
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
        self.call(py, timeout, |channel, wait| channel.put_with_signal_and_flush(put, wait))
    }

    /// Waits until all that was put has left.
    #[pyo3(signature = (timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.call(py, timeout, |channel, wait| channel.flush(wait))
    }

    /// Waits for the next signal of the other side.
    #[pyo3(signature = (timeout=None, spins=-1))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>, spins: i64) -> PyResult<()> {
        let checks_max = u64::try_from(spins).ok();
        self.call(py, timeout, |channel, wait| channel.wait(Wait { checks_max, ..wait }))
    }

    /// Whether the other side has signalled once more.
    fn poll(&self, py: Python<'_>) -> PyResult<bool> {
        let channel = self.here(py)?;
        released(py, || channel.poll())?.map_err(|error| of_port(py, &error))
    }
}

impl PortChannel {
    fn of(py: Python<'_>, channel: Result<ringfold::cuda::port::PortChannel, PortError>) -> PyResult<Self> {
        let channel = channel.map_err(|error| of_port(py, &error))?;
        Ok(Self { channel: PortOwned::new(channel) })
    }

    fn here(&self, py: Python<'_>) -> PyResult<&ringfold::cuda::port::PortChannel> {
        self.channel.require().map_err(|failure| refused(py, &failure.text))
    }

    fn call(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        call: impl FnOnce(&ringfold::cuda::port::PortChannel, Wait<'_>) -> Result<(), PortError> + Send,
    ) -> PyResult<()> {
        let (channel, wait) = (self.here(py)?, watched(py, timeout, None)?);
        released(py, || call(channel, wait))?.map_err(|error| of_port(py, &error))
    }
}

/// The sizes of what kernels are given, by their names in the device headers.
#[pyfunction]
pub(crate) fn port_handle_sizes(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let sizes = PyDict::new(py);
    for (name, bytes) in HANDLE_SIZES {
        sizes.set_item(name, bytes)?;
    }
    Ok(sizes)
}
