//! Ports, for Python.

use crate::call::{SIGNALS_EVERY, detached, is_interrupted, try_detached};
use crate::exception::invalid_port_argument;
use crate::fork_guard::DetachedGuard;
use crate::group::Group;
use crate::port_connection::PortConnection;
use crate::port_memory::PortMemory;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ringfold::cuda::port::{
    CancelToken, Deadline, Offer, PutPath, Transport, Wait, leave_all_ports, stop_proxies,
};
use std::net::IpAddr;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// The longest timeout, in seconds: a year.
const TIMEOUT_MAX: f64 = 365.0 * 86400.0;

/// Cancels waits when a signal handler has raised an exception.
static SIGNALS: LazyLock<CancelToken> = LazyLock::new(|| CancelToken::new(SIGNALS_EVERY, is_interrupted));

/// One rank's side of all its connections.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct Port {
    pub(crate) port: DetachedGuard<ringfold::cuda::port::Port>,
}

/// One side's offer of a connection.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct PortOffer {
    offer: DetachedGuard<Offer>,
}

#[pymethods]
impl Port {
    /// Listens at one address of this host, or at all.
    #[new]
    #[pyo3(signature = (name, host=None))]
    fn new(py: Python<'_>, name: &str, host: Option<&str>) -> PyResult<Self> {
        let invalid = |host, error| invalid_port_argument(py, &format!("invalid host {host:?}: {error}"));
        let host = host.map(|host| host.parse::<IpAddr>().map_err(|error| invalid(host, error)));
        let host = host.transpose()?;
        let port = try_detached(py, || ringfold::cuda::port::Port::open(name, host))?;
        Ok(Self { port: DetachedGuard::new(port) })
    }

    /// Registers memory of the host or a device by its address. `file` is its descriptor and offset, if it has one.
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
        PortMemory::register(py, self.port.get(py)?, (address, nbytes), transports, file, keep)
    }

    /// The memory of another port, by its record.
    fn remote(&self, py: Python<'_>, record: &[u8]) -> PyResult<PortMemory> {
        let port = self.port.get(py)?;
        try_detached(py, || port.remote(record)).map(PortMemory::of)
    }

    /// Offers a connection for the memory of a device; -1 is the host.
    ///
    /// `through_host`: this side's puts over CUDA IPC go through host memory.
    #[pyo3(signature = (transport, device=-1, through_host=false))]
    fn offer(&self, py: Python<'_>, transport: u32, device: i32, through_host: bool) -> PyResult<PortOffer> {
        let port = self.port.get(py)?;
        let transport = Transport::from_bit(transport)
            .ok_or_else(|| invalid_port_argument(py, &format!("unknown transport {transport:#x}")))?;
        let offer = try_detached(py, || port.offer(transport, (device >= 0).then_some(device)))?;
        let put_path = if through_host { PutPath::ThroughHost } else { PutPath::Direct };
        Ok(PortOffer { offer: DetachedGuard::new(offer.with_put_path(put_path)) })
    }

    /// Connects to the port that made the other offer.
    #[pyo3(signature = (offer, theirs, peer, timeout=30.0))]
    fn connect(
        &self,
        py: Python<'_>,
        offer: &PortOffer,
        theirs: &[u8],
        peer: i32,
        timeout: f64,
    ) -> PyResult<PortConnection> {
        let (port, offer) = (self.port.get(py)?, offer.offer.get(py)?);
        let deadline = Instant::now() + timeout_of(py, timeout)?;
        try_detached(py, || port.connect(offer, theirs, peer, deadline)).map(PortConnection::of)
    }

    /// Aborts the port when the group fails, with the group's error text.
    fn watch(&self, py: Python<'_>, group: &Group) -> PyResult<()> {
        let port = self.port.get(py)?.downgrade();
        let group = group.group.of_group(py)?;
        detached(py, || {
            group.on_failure(move |error| {
                if let Some(port) = port.upgrade() {
                    port.abort(&error.to_string());
                }
            });
        })
    }

    /// Aborts it: all waits on it end, here and in kernels.
    fn abort(&self, py: Python<'_>, why: &str) -> PyResult<()> {
        let port = self.port.get(py)?;
        detached(py, || port.abort(why))
    }

    /// Why the port failed; None while it works.
    fn failure(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let port = self.port.get(py)?;
        detached(py, || port.failure())
    }

    /// Leaves all peers: pending writes are delivered, and no peer sees a failure.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let port = self.port.get(py)?;
        detached(py, || port.leave())
    }

    /// Sets how long waits in kernels may take.
    fn set_spin_seconds(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let spin = timeout_of(py, seconds)?;
        self.port.get(py)?.abort_page().set_spin_timeout(spin);
        Ok(())
    }
}

#[pymethods]
impl PortOffer {
    /// The record for the other side. It contains a key: any process that has it can connect.
    #[getter]
    fn record<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.offer.get(py)?.record()))
    }
}

/// Leaves all ports at the end of the program, unless an uncaught exception ends it: then peers see a lost rank.
#[pyfunction]
pub(crate) fn leave_ports(py: Python<'_>) -> PyResult<()> {
    let is_regular = py.import("sys")?.getattr_opt("last_value")?.is_none_or(|value| value.is_none());
    detached(py, || {
        stop_proxies();
        if is_regular {
            leave_all_ports();
        }
    })
}

/// A timeout of so many seconds, a year at most.
pub(crate) fn timeout_of(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    if seconds.is_nan() || seconds < 0.0 {
        let text = format!("invalid timeout {seconds}: must be a number of seconds >= 0");
        return Err(invalid_port_argument(py, &text));
    }
    Ok(Duration::from_secs_f64(seconds.min(TIMEOUT_MAX)))
}

/// A wait that signal handlers can end. No timeout, or a negative `checks_max`, is no limit.
pub(crate) fn wait_of(py: Python<'_>, timeout: Option<f64>, checks_max: i64) -> PyResult<Wait<'static>> {
    if timeout.is_some_and(f64::is_nan) {
        return Err(invalid_port_argument(py, "invalid timeout nan: must be a number of seconds"));
    }
    let timeout = timeout.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok());
    Ok(Wait {
        deadline: timeout.map_or(Deadline::NEVER, Deadline::after),
        checks_max: u64::try_from(checks_max).ok(),
        cancel: Some(&SIGNALS),
    })
}
