//! How Python programs wait on ports: for so many seconds, for so many looks, and open to signals.

use crate::call::{SIGNALS_EVERY, is_interrupted};
use crate::port_error::refused;
use pyo3::prelude::*;
use ringfold::cuda::port::{CancelToken, Deadline, Wait};
use std::sync::LazyLock;
use std::time::Duration;

/// Cancels waits when a signal's handler has raised something.
static SIGNALS: LazyLock<CancelToken> = LazyLock::new(|| CancelToken::new(SIGNALS_EVERY, is_interrupted));

/// A wait that a signal's handler ends. None is for ever; so is a number of looks below zero.
pub(crate) fn watched(py: Python<'_>, timeout: Option<f64>, looks: Option<i64>) -> PyResult<Wait<'static>> {
    let patience = match timeout {
        Some(seconds) if seconds.is_nan() => {
            return Err(refused(py, "a timeout is a number of seconds"));
        }
        // Longer than anyone lives is for ever.
        Some(seconds) => Duration::try_from_secs_f64(seconds.max(0.0)).ok(),
        None => None,
    };
    Ok(Wait {
        deadline: patience.map_or(Deadline::NEVER, Deadline::after),
        checks_max: looks.and_then(|looks| u64::try_from(looks).ok()),
        cancel: Some(&SIGNALS),
    })
}
