//! Semaphores of ports, for Python.

use crate::call::released;
use crate::port::Port;
use crate::port_connection::PortConnection;
use crate::port_error::{of_port, refused};
use crate::port_memory::PortMemory;
use crate::port_owned::PortOwned;
use crate::port_wait::watched;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ringfold::cuda::port::{Semaphore, SemaphoreFace, SemaphoreKind, SemaphoreOffer, Transport, WordPlace};

/// This side's part of a semaphore to be.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct PortSemaphoreOffer {
    offer: PortOwned<SemaphoreOffer>,
    connection: Py<PortConnection>,
}

/// A semaphore.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct PortSemaphore {
    semaphore: PortOwned<Semaphore>,
    #[pyo3(get)]
    connection: Py<PortConnection>,
}

/// One who waits for a semaphore.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct PortSemaphoreFace {
    face: PortOwned<SemaphoreFace>,
}

#[pymethods]
impl PortSemaphoreOffer {
    /// Makes this side's word: where kernels see it, or not, or where it lies best for the connection.
    #[new]
    #[pyo3(signature = (port, connection, on_device=None))]
    fn new(
        py: Python<'_>,
        port: &Port,
        connection: &Bound<'_, PortConnection>,
        on_device: Option<bool>,
    ) -> PyResult<Self> {
        port.here(py)?;
        let way = connection.get().here(py)?;
        let place = match (on_device, way.transport()) {
            (None, transport) => WordPlace::of(transport),
            (Some(true), Transport::CudaIpc) => WordPlace::Device,
            (Some(true), _) => WordPlace::Mapped,
            (Some(false), _) => WordPlace::Host,
        };
        let offer = released(py, || SemaphoreOffer::new(way, place))?.map_err(|error| of_port(py, &error))?;
        Ok(Self { offer: PortOwned::new(offer), connection: connection.clone().unbind() })
    }

    /// What the other side has to know.
    #[getter]
    fn record<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.here(py)?.record()))
    }

    /// The semaphore, once the other side has told of its word.
    fn join(&self, py: Python<'_>, theirs: &[u8]) -> PyResult<PortSemaphore> {
        let offer = self.here(py)?;
        let semaphore = released(py, || offer.join(theirs))?.map_err(|error| of_port(py, &error))?;
        Ok(PortSemaphore { semaphore: PortOwned::new(semaphore), connection: self.connection.clone_ref(py) })
    }
}

impl PortSemaphoreOffer {
    fn here(&self, py: Python<'_>) -> PyResult<&SemaphoreOffer> {
        self.offer.require().map_err(|failure| refused(py, &failure.text))
    }
}

#[pymethods]
impl PortSemaphore {
    /// For kernels that wait for hosts.
    fn host_to_device(&self, py: Python<'_>) -> PyResult<PortSemaphoreFace> {
        self.face(py, SemaphoreKind::HostToDevice)
    }

    /// For hosts that wait for hosts.
    fn host_to_host(&self, py: Python<'_>) -> PyResult<PortSemaphoreFace> {
        self.face(py, SemaphoreKind::HostToHost)
    }

    /// For kernels that wait for kernels.
    fn memory(&self, py: Python<'_>) -> PyResult<PortSemaphoreFace> {
        self.face(py, SemaphoreKind::Memory)
    }
}

impl PortSemaphore {
    pub(crate) fn face(&self, py: Python<'_>, kind: SemaphoreKind) -> PyResult<PortSemaphoreFace> {
        let semaphore = self.semaphore.require().map_err(|failure| refused(py, &failure.text))?;
        Ok(PortSemaphoreFace { face: PortOwned::new(SemaphoreFace::new(semaphore, kind)) })
    }
}

#[pymethods]
impl PortSemaphoreFace {
    /// Signals to the other side.
    fn signal(&self, py: Python<'_>) -> PyResult<()> {
        let face = self.here(py)?;
        released(py, || face.signal())?.map_err(|error| of_port(py, &error))
    }

    /// Whether there is a signal that was not waited for; then it is now.
    fn poll(&self, py: Python<'_>) -> PyResult<bool> {
        let face = self.here(py)?;
        released(py, || face.poll())?.map_err(|error| of_port(py, &error))
    }

    /// Waits for the next signal.
    #[pyo3(signature = (timeout=None, spins=-1))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>, spins: i64) -> PyResult<()> {
        let (face, wait) = (self.here(py)?, watched(py, timeout, Some(spins))?);
        released(py, || face.wait(wait))?.map_err(|error| of_port(py, &error))
    }

    /// What kernels are given.
    #[getter]
    fn handle<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let face = self.here(py)?;
        let handle = released(py, || match face.kind() {
            SemaphoreKind::Memory => face.memory_handle().map(|handle| handle.bytes().to_vec()),
            _ => face.host_handle().map(|handle| handle.bytes().to_vec()),
        })?;
        Ok(PyBytes::new(py, &handle.map_err(|error| of_port(py, &error))?))
    }
}

impl PortSemaphoreFace {
    pub(crate) fn here(&self, py: Python<'_>) -> PyResult<&SemaphoreFace> {
        self.face.require().map_err(|failure| refused(py, &failure.text))
    }
}

/// What kernels write into mapped memory of another rank with.
#[pyfunction]
#[pyo3(signature = (semaphore, dst, src, packet_buffer=None))]
pub(crate) fn memory_channel_handle<'py>(
    py: Python<'py>,
    semaphore: &PortSemaphoreFace,
    dst: &PortMemory,
    src: &PortMemory,
    packet_buffer: Option<&PortMemory>,
) -> PyResult<Bound<'py, PyBytes>> {
    let face = semaphore.here(py)?;
    let (dst, src) = (dst.here(py)?, src.here(py)?);
    let packet_buffer = packet_buffer.map(|memory| memory.here(py)).transpose()?;
    let handle = released(py, || face.memory_channel(dst, src, packet_buffer))?;
    Ok(PyBytes::new(py, handle.map_err(|error| of_port(py, &error))?.bytes()))
}
