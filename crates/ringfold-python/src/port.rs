//! Ports, for Python.

use crate::call::released;
use crate::group::Group;
use crate::port_connection::PortConnection;
use crate::port_error::{of_port, refused};
use crate::port_memory::PortMemory;
use crate::port_owned::PortOwned;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ringfold::cuda::port::{Offer, Transport, leave_all, wind_up};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// One rank's side of all its connections.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct Port {
    port: PortOwned<ringfold::cuda::port::Port>,
}

/// This side's part of a connection to be.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct PortOffer {
    offer: PortOwned<Offer>,
}

#[pymethods]
impl Port {
    /// Listens at one address of this host, or at all.
    #[new]
    #[pyo3(signature = (name, host=None))]
    fn new(py: Python<'_>, name: &str, host: Option<&str>) -> PyResult<Self> {
        let host = host
            .map(|host| host.parse::<IpAddr>().map_err(|error| refused(py, &format!("{host:?}: {error}"))));
        let host = host.transpose()?;
        let port = released(py, || ringfold::cuda::port::Port::open(name, host))?;
        Ok(Self { port: PortOwned::new(port.map_err(|error| of_port(py, &error))?) })
    }

    /// Registers memory of the host or of a device by its address. `file` is where in which file it lies, if it does.
    #[pyo3(signature = (address, nbytes, transports, file=None, keep=None))]
    fn register(
        &self,
        py: Python<'_>,
        address: u64,
        nbytes: u64,
        transports: u32,
        file: Option<(i32, u64)>,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<PortMemory> {
        PortMemory::register(py, self.here(py)?, (address, nbytes), transports, file, keep)
    }

    /// The memory that another port has told of.
    fn remote(&self, py: Python<'_>, record: &[u8]) -> PyResult<PortMemory> {
        let port = self.here(py)?;
        let memory = released(py, || port.remote(record))?;
        memory.map(PortMemory::of).map_err(|error| of_port(py, &error))
    }

    /// Offers a connection; the device is -1 for the host.
    #[pyo3(signature = (transport, device=-1))]
    fn offer(&self, py: Python<'_>, transport: u32, device: i32) -> PyResult<PortOffer> {
        let port = self.here(py)?;
        let way = Transport::from_bit(transport)
            .ok_or_else(|| refused(py, &format!("{transport} is not the number of one transport")))?;
        let offer = released(py, || port.offer(way, (device >= 0).then_some(device)))?;
        Ok(PortOffer { offer: PortOwned::new(offer.map_err(|error| of_port(py, &error))?) })
    }

    /// Connects with whoever made the other offer.
    #[pyo3(signature = (offer, theirs, peer, timeout=30.0))]
    fn connect(
        &self,
        py: Python<'_>,
        offer: &PortOffer,
        theirs: &[u8],
        peer: i32,
        timeout: f64,
    ) -> PyResult<PortConnection> {
        let port = self.here(py)?;
        let offer = offer.offer.require().map_err(|failure| refused(py, &failure.text))?;
        let deadline = Instant::now() + patience(py, timeout)?;
        let connection = released(py, || port.connect(offer, theirs, peer, deadline))?;
        connection.map(PortConnection::of).map_err(|error| of_port(py, &error))
    }

    /// The port is given up when the group fails, with its words.
    fn watch(&self, py: Python<'_>, group: &Group) -> PyResult<()> {
        let port = self.here(py)?.downgrade();
        let group = group.here(py)?;
        released(py, || {
            group.when_over(move |error| {
                if let Some(port) = port.upgrade() {
                    port.abort(&error.to_string());
                }
            });
        })
    }

    /// Gives it up: whoever waits on it, here or in a kernel, leaves off.
    fn abort(&self, py: Python<'_>, why: &str) -> PyResult<()> {
        let port = self.here(py)?;
        released(py, || port.abort(why))
    }

    /// Why it is over, if it is.
    fn failure(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let port = self.here(py)?;
        released(py, || port.failure())
    }

    /// Takes leave of all others: what was written arrives, and nobody misses this port.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let port = self.here(py)?;
        released(py, || port.leave())
    }

    /// How long kernels wait before they give up.
    fn set_spin_seconds(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let spin = patience(py, seconds)?;
        self.here(py)?.abort_page().set_spin(spin);
        Ok(())
    }
}

impl Port {
    pub(crate) fn here(&self, py: Python<'_>) -> PyResult<&ringfold::cuda::port::Port> {
        self.port.require().map_err(|failure| refused(py, &failure.text))
    }
}

#[pymethods]
impl PortOffer {
    /// What the other side needs. It has a key in it: whoever knows it can connect.
    #[getter]
    fn record<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let offer = self.offer.require().map_err(|failure| refused(py, &failure.text))?;
        Ok(PyBytes::new(py, &offer.record()))
    }
}

/// At the end of the program all ports take leave, unless it ends by an exception that nobody caught: then others shall
/// miss this rank.
#[pyfunction]
pub(crate) fn leave_ports(py: Python<'_>) -> PyResult<()> {
    let is_well = py.import("sys")?.getattr_opt("last_value")?.is_none_or(|value| value.is_none());
    released(py, || {
        wind_up();
        if is_well {
            leave_all();
        }
    })
}

/// So many seconds; a year at most, which no clock runs out of.
pub(crate) fn patience(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    if seconds.is_nan() || seconds < 0.0 {
        return Err(refused(py, &format!("{seconds} is no number of seconds to wait")));
    }
    Ok(Duration::from_secs_f64(seconds.min(365.0 * 86400.0)))
}
