//! Failures of groups as exceptions.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use ringfold::{Cause, Error};

/// The class that Python users catch; it is written in Python.
static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// The exception that an error of a group is.
#[cold]
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let text = match error {
        Error::Left => "the communicator was finalized".into(),
        error => error.to_string(),
    };
    of_kind(py, kind(error), &text)
}

/// The exception for a group that could not be formed, for whatever reason.
#[cold]
pub(crate) fn not_formed(py: Python<'_>, error: &Error) -> PyErr {
    match kind(error) {
        kind @ ("argument" | "system") => of_kind(py, kind, &error.to_string()),
        _ => of_kind(py, "meeting", &error.to_string()),
    }
}

/// The exception for an argument that can't be used.
#[cold]
pub(crate) fn refused(py: Python<'_>, text: &str) -> PyErr {
    of_kind(py, "argument", text)
}

fn of_kind(py: Python<'_>, kind: &str, text: &str) -> PyErr {
    match CLASS.import(py, "ringfold._error", "GroupError") {
        Ok(class) => PyErr::from_type(class.clone(), (text.to_owned(), kind.to_owned())),
        Err(error) => error,
    }
}

/// What sort of failure it is, in a word.
fn kind(error: &Error) -> &'static str {
    match error {
        Error::Over(cause) => match **cause {
            Cause::Timeout { .. } => "timeout",
            Cause::PeerLost { .. } | Cause::LinkLost { .. } => "lost",
            Cause::Mismatch { .. } => "mismatch",
            Cause::Unable { .. } => "system",
            Cause::EpochEnded | Cause::GivenUp { .. } => "aborted",
        },
        Error::Misuse(_) | Error::BadArgument(_) => "argument",
        Error::Late(_) => "timeout",
        Error::Left => "left",
        Error::Interrupted | Error::LeftOff => "aborted",
        Error::NoGroup(_) | Error::Bind(_) => "meeting",
        _ => "system",
    }
}
