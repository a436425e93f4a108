//! The commands that the wheel installs as scripts.

use crate::cuda_compiler::add_search_dirs;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ringfold_cli::command::named;
use ringfold_cli::invocation::Invocation;
use std::ffi::OsString;

/// Runs a command to its end, and returns its exit code. `again` is the command line that starts `ringfold`.
#[pyfunction]
pub(crate) fn command(
    py: Python<'_>,
    name: &str,
    arguments: Vec<OsString>,
    again: Vec<OsString>,
) -> PyResult<i32> {
    add_search_dirs(py)?;
    let again = Invocation::of(again);
    py.detach(|| named(name, arguments, &again))
        .ok_or_else(|| PyValueError::new_err(format!("unknown command {name:?}")))
}
