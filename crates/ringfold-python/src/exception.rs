//! Failures as the exception classes of `ringfold._error`.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use ringfold::cuda::CudaError;
use ringfold::cuda::nvrtc::CompileError;
use ringfold::cuda::port::PortError;
use ringfold::{Cause, Error};
use ringfold_bindings::result::CallError;

/// The Python module that defines the exception classes.
const MODULE: &str = "ringfold._error";

/// An error that Python programs see as an exception.
pub(crate) trait ToException {
    fn to_exception(&self, py: Python<'_>) -> PyErr;
}

impl ToException for CallError {
    #[cold]
    fn to_exception(&self, py: Python<'_>) -> PyErr {
        static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        match CLASS.import(py, MODULE, "PCCLError") {
            Ok(class) => {
                let arguments = (self.code as i32, self.text.clone(), self.is_retryable, self.kind);
                // The call returns an instance of the subclass for this result code.
                class.call1(arguments).map_or_else(|error| error, PyErr::from_value)
            }
            Err(error) => error,
        }
    }
}

/// Errors of groups.
impl ToException for Error {
    #[cold]
    fn to_exception(&self, py: Python<'_>) -> PyErr {
        let text = match self {
            Self::Left => "the communicator was finalized".into(),
            error => error.to_string(),
        };
        group_error(py, kind(self), &text)
    }
}

impl ToException for CudaError {
    #[cold]
    fn to_exception(&self, py: Python<'_>) -> PyErr {
        port_error(py, self.kind(), self.code(), &self.to_string())
    }
}

impl ToException for PortError {
    #[cold]
    fn to_exception(&self, py: Python<'_>) -> PyErr {
        port_error(py, self.kind(), self.code(), &self.to_string())
    }
}

impl ToException for CompileError {
    #[cold]
    fn to_exception(&self, py: Python<'_>) -> PyErr {
        let kind = match self {
            Self::NoCompiler(_) => "unsupported",
            Self::Rejected { .. } => "argument",
            _ => "system",
        };
        port_error(py, kind, 0, &self.to_string())
    }
}

/// The exception for a group whose ranks could not connect.
#[cold]
pub(crate) fn connect_error(py: Python<'_>, error: &Error) -> PyErr {
    match kind(error) {
        kind @ ("argument" | "system") => group_error(py, kind, &error.to_string()),
        _ => group_error(py, "bootstrap", &error.to_string()),
    }
}

/// A `GroupError` for an invalid argument.
#[cold]
pub(crate) fn invalid_group_argument(py: Python<'_>, text: &str) -> PyErr {
    group_error(py, "argument", text)
}

/// A `PortError` for an invalid argument.
#[cold]
pub(crate) fn invalid_port_argument(py: Python<'_>, text: &str) -> PyErr {
    port_error(py, "argument", 0, text)
}

/// A `PortError`. `kind` is `cuda`, `argument`, `lost`, `timeout`, `aborted`, `system` or `unsupported`; `code` is
/// the error number of the driver or the operating system, or 0.
#[cold]
pub(crate) fn port_error(py: Python<'_>, kind: &str, code: i32, text: &str) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    match CLASS.import(py, MODULE, "PortError") {
        Ok(class) => PyErr::from_type(class.clone(), (text.to_owned(), kind.to_owned(), code)),
        Err(error) => error,
    }
}

fn group_error(py: Python<'_>, kind: &str, text: &str) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    match CLASS.import(py, MODULE, "GroupError") {
        Ok(class) => PyErr::from_type(class.clone(), (text.to_owned(), kind.to_owned())),
        Err(error) => error,
    }
}

/// The `kind` of a `GroupError`.
fn kind(error: &Error) -> &'static str {
    match error {
        Error::GroupFailed(cause) => match **cause {
            Cause::Timeout(_) => "timeout",
            Cause::PeerLost { .. } | Cause::LinkLost { .. } => "lost",
            Cause::Mismatch { .. } => "mismatch",
            Cause::Unable { .. } | Cause::Corrupted { .. } | Cause::ResultsDiffer { .. } => "system",
            Cause::EpochEnded | Cause::AbortedByUser { .. } => "aborted",
        },
        Error::Misuse(_) | Error::BadArgument(_) => "argument",
        Error::TimedOut(_) => "timeout",
        Error::Left => "left",
        Error::Interrupted | Error::WaitCancelled => "aborted",
        Error::BootstrapFailed(_) | Error::Bind(_) => "bootstrap",
        _ => "system",
    }
}
