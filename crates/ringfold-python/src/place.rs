//! Where the ranks of a group meet, as Python tells it.

use crate::call::keep_raised;
use crate::group_error::{not_formed, refused};
use crate::owned::Owned;
use pyo3::exceptions::PyException;
use pyo3::intern;
use pyo3::prelude::*;
use ringfold::{Bootstrap, Notice};
use std::io;
use std::sync::Arc;

/// A door where rank 0 can be met, open until it is let go of.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct MeetingPlace {
    place: Owned<ringfold::MeetingPlace>,
}

#[pymethods]
impl MeetingPlace {
    /// It listens from now on.
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let place = ringfold::MeetingPlace::open().map_err(|error| not_formed(py, &error))?;
        Ok(Self { place: Owned::new(place) })
    }

    /// One line that tells the others where it is.
    #[getter]
    fn announcement(&self, py: Python<'_>) -> PyResult<String> {
        self.here(py).map(ringfold::MeetingPlace::announcement)
    }
}

impl MeetingPlace {
    fn here(&self, py: Python<'_>) -> PyResult<&ringfold::MeetingPlace> {
        self.place.require().map_err(|failure| refused(py, &failure.text))
    }
}

/// Where to meet: a place, an announcement, a host and a port, or an object with the methods of a notice board.
pub(crate) fn bootstrap(at: &Bound<'_, PyAny>) -> PyResult<Bootstrap> {
    if let Ok(place) = at.cast::<MeetingPlace>() {
        return Ok(Bootstrap::Place(place.get().here(at.py())?.clone()));
    }
    if let Ok((host, port)) = at.extract::<(String, u16)>() {
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        return Ok(Bootstrap::Address(format!("{host}:{port}")));
    }
    if let Ok(told) = at.extract::<String>() {
        return Ok(Bootstrap::Told(told));
    }
    Ok(Bootstrap::Notice(Arc::new(Board { object: at.clone().unbind() })))
}

/// A notice board that is written in Python: a key of a store, mostly.
struct Board {
    object: Py<PyAny>,
}

impl Board {
    /// Calls a method, with the interpreter attached.
    fn with<T>(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> io::Result<T> {
        let called = Python::try_attach(|py| {
            call(self.object.bind(py)).map_err(|error| {
                let words = io::Error::other(error.to_string());
                if !error.is_instance_of::<PyException>(py) {
                    // Ctrl-C while Python ran: the meeting is left off, and this is what it ends with.
                    keep_raised(error);
                }
                words
            })
        });
        called.unwrap_or_else(|| Err(io::Error::other("the interpreter ends")))
    }
}

impl Notice for Board {
    fn post(&self, text: &str) -> io::Result<()> {
        self.with(|board| board.call_method1(intern!(board.py(), "post"), (text,)).map(drop))
    }

    fn read(&self) -> io::Result<Option<String>> {
        self.with(|board| board.call_method0(intern!(board.py(), "read"))?.extract())
    }

    fn withdraw(&self) {
        // One that stays misleads nobody.
        let _ = self.with(|board| board.call_method0(intern!(board.py(), "withdraw")).map(drop));
    }

    fn describe(&self) -> String {
        let said = self.with(|board| board.call_method0(intern!(board.py(), "describe"))?.extract());
        said.unwrap_or_else(|_| "a notice board".into())
    }
}
