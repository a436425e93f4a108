//! The commands, which the wheel installs as scripts.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ringfold_cli::command::named;
use ringfold_cli::invocation::Invocation;
use std::ffi::OsString;

/// Runs the command of this name to its end, and returns its exit code. `again` is how to start `ringfold` once more.
#[pyfunction]
pub(crate) fn command(
    py: Python<'_>,
    name: &str,
    arguments: Vec<OsString>,
    again: Vec<OsString>,
) -> PyResult<i32> {
    let again = Invocation::of(again);
    py.detach(|| named(name, arguments, &again))
        .ok_or_else(|| PyValueError::new_err(format!("{name} is no command")))
}
