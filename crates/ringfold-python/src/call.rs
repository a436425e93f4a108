//! Calls that wait: without the interpreter's lock, and open to signals.

use crate::error::raised;
use pyo3::prelude::*;
use ringfold_face::result::Failure;
use std::cell::RefCell;
use std::time::Duration;

/// How often a thread that waits looks whether a signal has arrived.
pub(crate) const SIGNALS_EVERY: Duration = Duration::from_millis(100);

thread_local! {
    /// What a signal's handler raised while this thread waited.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Runs the handlers of signals that have arrived. Whether one of them raised an exception, which the call that waits
/// is to end with.
pub(crate) fn is_interrupted() -> bool {
    // An interpreter that ends can't be asked; whoever waits then waits on.
    let outcome = Python::try_attach(|py| py.check_signals());
    match outcome {
        Some(Err(error)) => {
            RAISED.with(|raised| *raised.borrow_mut() = Some(error));
            true
        }
        _ => false,
    }
}

/// Makes a call that may wait. Other Python threads run meanwhile.
pub(crate) fn blocking<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, Failure> + Send,
) -> PyResult<T> {
    let outcome = py.detach(call);
    if let Some(error) = RAISED.take() {
        return Err(error);
    }
    outcome.map_err(|failure| raised(py, &failure))
}
