//! Calls that wait: without the interpreter's lock, and open to signals.

use crate::error::raised;
use pyo3::prelude::*;
use ringfold_bindings::result::Failure;
use std::cell::RefCell;
use std::sync::OnceLock;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// How often a thread that waits looks whether a signal has arrived.
pub(crate) const SIGNALS_EVERY: Duration = Duration::from_millis(100);

/// How long a thread whose call has ended while the interpreter ends waits for that; far longer than it takes.
const END_OF_INTERPRETER_MAX: Duration = Duration::from_secs(10);

thread_local! {
    /// What a signal's handler raised while this thread waited.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// The thread that ends the interpreter, once it does.
static ENDER: OnceLock<ThreadId> = OnceLock::new();

/// The interpreter ends soon, by this thread: no other one comes back to Python from a call of ours.
#[pyfunction]
pub(crate) fn interpreter_ends() {
    let _ = ENDER.set(std::thread::current().id());
}

/// The call that this thread waits in is to end with this exception.
pub(crate) fn keep_raised(error: PyErr) {
    RAISED.with_borrow_mut(|raised| *raised = Some(error));
}

/// Runs the handlers of signals that have arrived. Whether one of them raised an exception, which the call that waits
/// is to end with.
pub(crate) fn is_interrupted() -> bool {
    if RAISED.with_borrow(Option::is_some) {
        return true;
    }
    // Python runs handlers on the main thread alone. Other threads do not ask: an interpreter that ends meanwhile would
    // end a thread that asks for its lock, in the midst of our frames.
    if rustix::thread::gettid() != rustix::process::getpid() {
        return false;
    }
    // An interpreter that ends can't be asked; whoever waits then waits on.
    let outcome = Python::try_attach(|py| py.check_signals());
    match outcome {
        Some(Err(error)) => {
            keep_raised(error);
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
    released(py, call)?.map_err(|failure| raised(py, &failure))
}

/// Makes a call without the interpreter's lock. What a signal's handler raised meanwhile is what it ends with.
#[inline]
pub(crate) fn released<T: Send>(py: Python<'_>, call: impl FnOnce() -> T + Send) -> PyResult<T> {
    let outcome = py.detach(|| {
        let outcome = call();
        // A daemon thread's call ends when the communicator leaves at the end of the program. Nobody wants to hear
        // of that, and soon there will be no interpreter to come back to.
        if ENDER.get().is_some_and(|ender| *ender != std::thread::current().id()) {
            std::thread::sleep(END_OF_INTERPRETER_MAX);
        }
        outcome
    });
    match RAISED.take() {
        Some(error) => Err(error),
        None => Ok(outcome),
    }
}

/// Waits by turns until something has come, until a time, or until a signal's handler has something to say. It may be
/// asked for again: nothing is lost by leaving off.
pub(crate) fn wait_until<T>(until: Option<Instant>, wait_for: impl Fn(Duration) -> Option<T>) -> Option<T> {
    loop {
        let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
        if let Some(end) = wait_for(left.min(SIGNALS_EVERY)) {
            return Some(end);
        }
        if left <= SIGNALS_EVERY || is_interrupted() {
            return None;
        }
    }
}
