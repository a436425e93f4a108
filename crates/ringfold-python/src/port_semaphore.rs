//! Semaphores of ports, for Python.

use crate::call::try_detached;
use crate::fork_guard::DetachedGuard;
use crate::port::{Port, wait_of};
use crate::port_connection::PortConnection;
use crate::port_memory::PortMemory;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ringfold::cuda::port::device_handle::HandleBytes;
use ringfold::cuda::port::{
    Semaphore, SemaphoreCursor, SemaphoreKind, SemaphoreOffer, Transport, WordLocation,
};

/// One side's offer of a semaphore.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct PortSemaphoreOffer {
    offer: DetachedGuard<SemaphoreOffer>,
    connection: Py<PortConnection>,
}

/// A semaphore between two ranks.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct PortSemaphore {
    semaphore: DetachedGuard<Semaphore>,
    #[pyo3(get)]
    connection: Py<PortConnection>,
}

/// One user of a semaphore, with its own count of the signals it has waited for.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct PortSemaphoreCursor {
    pub(crate) cursor: DetachedGuard<SemaphoreCursor>,
}

#[pymethods]
impl PortSemaphoreOffer {
    /// Allocates this side's word: on the device or not, or, with None, where it is fastest for the connection.
    #[new]
    #[pyo3(signature = (port, connection, on_device=None))]
    fn new(
        py: Python<'_>,
        port: &Port,
        connection: &Bound<'_, PortConnection>,
        on_device: Option<bool>,
    ) -> PyResult<Self> {
        port.port.get(py)?;
        let link = connection.get().connection.get(py)?;
        let location = match (on_device, link.transport()) {
            (None, transport) => WordLocation::of(transport),
            (Some(true), Transport::CudaIpc) => WordLocation::Device,
            (Some(true), _) => WordLocation::Mapped,
            (Some(false), _) => WordLocation::Host,
        };
        let offer = try_detached(py, || SemaphoreOffer::new(link, location))?;
        Ok(Self { offer: DetachedGuard::new(offer), connection: connection.clone().unbind() })
    }

    /// The record for the other side.
    #[getter]
    fn record<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.offer.get(py)?.record()))
    }

    /// The semaphore, made with the other side's record.
    fn join(&self, py: Python<'_>, theirs: &[u8]) -> PyResult<PortSemaphore> {
        let offer = self.offer.get(py)?;
        let semaphore = DetachedGuard::new(try_detached(py, || offer.join(theirs))?);
        Ok(PortSemaphore { semaphore, connection: self.connection.clone_ref(py) })
    }
}

#[pymethods]
impl PortSemaphore {
    /// For kernels that wait for hosts.
    fn host_to_device(&self, py: Python<'_>) -> PyResult<PortSemaphoreCursor> {
        self.cursor(py, SemaphoreKind::HostToDevice).map(PortSemaphoreCursor::of)
    }

    /// For hosts that wait for hosts.
    fn host_to_host(&self, py: Python<'_>) -> PyResult<PortSemaphoreCursor> {
        self.cursor(py, SemaphoreKind::HostToHost).map(PortSemaphoreCursor::of)
    }

    /// For kernels that wait for kernels.
    fn memory(&self, py: Python<'_>) -> PyResult<PortSemaphoreCursor> {
        self.cursor(py, SemaphoreKind::Memory).map(PortSemaphoreCursor::of)
    }
}

impl PortSemaphore {
    pub(crate) fn cursor(&self, py: Python<'_>, kind: SemaphoreKind) -> PyResult<SemaphoreCursor> {
        self.semaphore.get(py).map(|semaphore| SemaphoreCursor::new(semaphore, kind))
    }
}

impl PortSemaphoreCursor {
    fn of(cursor: SemaphoreCursor) -> Self {
        Self { cursor: DetachedGuard::new(cursor) }
    }
}

#[pymethods]
impl PortSemaphoreCursor {
    /// Signals the other side.
    fn signal(&self, py: Python<'_>) -> PyResult<()> {
        let cursor = self.cursor.get(py)?;
        try_detached(py, || cursor.signal())
    }

    /// Takes a signal of the other side, if there is one.
    fn poll(&self, py: Python<'_>) -> PyResult<bool> {
        let cursor = self.cursor.get(py)?;
        try_detached(py, || cursor.poll())
    }

    /// Waits for the next signal, for at most `spins` checks.
    #[pyo3(signature = (timeout=None, spins=-1))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>, spins: i64) -> PyResult<()> {
        let (cursor, wait) = (self.cursor.get(py)?, wait_of(py, timeout, spins)?);
        try_detached(py, || cursor.wait(wait))
    }

    /// The device handle.
    #[getter]
    fn handle<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let cursor = self.cursor.get(py)?;
        let handle = try_detached(py, || match cursor.kind() {
            SemaphoreKind::Memory => cursor.memory_handle().map(|handle| handle.bytes().to_vec()),
            _ => cursor.host_handle().map(|handle| handle.bytes().to_vec()),
        })?;
        Ok(PyBytes::new(py, &handle))
    }
}

/// The device handle of a memory channel, with which kernels write mapped memory of another rank.
#[pyfunction]
#[pyo3(signature = (semaphore, dst, src, packet_buffer=None))]
pub(crate) fn memory_channel_handle<'py>(
    py: Python<'py>,
    semaphore: &PortSemaphoreCursor,
    dst: &PortMemory,
    src: &PortMemory,
    packet_buffer: Option<&PortMemory>,
) -> PyResult<Bound<'py, PyBytes>> {
    let cursor = semaphore.cursor.get(py)?;
    let (dst, src) = (dst.memory.get(py)?, src.memory.get(py)?);
    let packet_buffer = packet_buffer.map(|memory| memory.memory.get(py)).transpose()?;
    let handle = try_detached(py, || cursor.memory_channel(dst, src, packet_buffer))?;
    Ok(PyBytes::new(py, handle.bytes()))
}
