//! How the ranks of a group find each other, as Python passes it.

use crate::call::store_exception;
use crate::exception::connect_error;
use crate::fork_guard::ForkGuard;
use pyo3::exceptions::PyException;
use pyo3::intern;
use pyo3::prelude::*;
use ringfold::{AddressExchange, Bootstrap};
use std::io;
use std::sync::Arc;

/// A listener of rank 0 that the other ranks connect to. It closes when it is dropped.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct BootstrapListener {
    listener: ForkGuard<ringfold::BootstrapListener>,
}

#[pymethods]
impl BootstrapListener {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let listener = ringfold::BootstrapListener::open().map_err(|error| connect_error(py, &error))?;
        Ok(Self { listener: ForkGuard::new(listener) })
    }

    /// One line of text with the address, for the other ranks.
    #[getter]
    fn announcement(&self, py: Python<'_>) -> PyResult<String> {
        self.listener.of_group(py).map(ringfold::BootstrapListener::announcement)
    }
}

/// The bootstrap that an argument stands for: a listener, an announcement, (host, port), or an address exchange.
pub(crate) fn bootstrap(at: &Bound<'_, PyAny>) -> PyResult<Bootstrap> {
    if let Ok(listener) = at.cast::<BootstrapListener>() {
        return Ok(Bootstrap::Listener(listener.get().listener.of_group(at.py())?.clone()));
    }
    if let Ok((host, port)) = at.extract::<(String, u16)>() {
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        return Ok(Bootstrap::Address(format!("{host}:{port}")));
    }
    if let Ok(announcement) = at.extract::<String>() {
        return Ok(Bootstrap::Announcement(announcement));
    }
    Ok(Bootstrap::Exchange(Arc::new(PythonExchange { object: at.clone().unbind() })))
}

/// An address exchange that is written in Python: a key of a store, mostly.
struct PythonExchange {
    object: Py<PyAny>,
}

impl PythonExchange {
    /// Calls methods of the object with the interpreter attached.
    fn with<T>(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> io::Result<T> {
        let called = Python::try_attach(|py| {
            call(self.object.bind(py)).map_err(|error| {
                let text = io::Error::other(error.to_string());
                if !error.is_instance_of::<PyException>(py) {
                    // Ctrl-C while Python ran: the bootstrap stops, and the caller sees this exception.
                    store_exception(error);
                }
                text
            })
        });
        called.unwrap_or_else(|| Err(io::Error::other("the interpreter exits")))
    }
}

impl AddressExchange for PythonExchange {
    fn post(&self, text: &str) -> io::Result<()> {
        self.with(|object| object.call_method1(intern!(object.py(), "post"), (text,)).map(drop))
    }

    fn read(&self) -> io::Result<Option<String>> {
        self.with(|object| object.call_method0(intern!(object.py(), "read"))?.extract())
    }

    fn withdraw(&self) {
        // A stale announcement does no harm: nobody listens at its address.
        let _ = self.with(|object| object.call_method0(intern!(object.py(), "withdraw")).map(drop));
    }

    fn describe(&self) -> String {
        let text = self.with(|object| object.call_method0(intern!(object.py(), "describe"))?.extract());
        text.unwrap_or_else(|_| "an address exchange in Python".into())
    }
}
