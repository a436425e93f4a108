//! Calls without the interpreter's lock, which signals can interrupt.

use crate::exception::{ToException, invalid_group_argument};
use pyo3::prelude::*;
use std::cell::RefCell;
use std::sync::OnceLock;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// How often a waiting thread checks for signals.
pub(crate) const SIGNALS_EVERY: Duration = Duration::from_millis(100);

/// How long a thread whose call ends during interpreter exit sleeps: far longer than the exit takes.
const INTERPRETER_EXIT_MAX: Duration = Duration::from_secs(10);

thread_local! {
    /// The exception that a signal handler raised while this thread waited.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// The thread that runs the interpreter's exit, once it has begun.
static EXIT_THREAD: OnceLock<ThreadId> = OnceLock::new();

/// Announces that this thread begins the interpreter's exit: no other thread returns to Python from a call here.
#[pyfunction]
pub(crate) fn begin_interpreter_exit() {
    let _ = EXIT_THREAD.set(std::thread::current().id());
}

/// Stores the exception that the current call of this thread raises when it returns.
pub(crate) fn store_exception(error: PyErr) {
    RAISED.with_borrow_mut(|raised| *raised = Some(error));
}

/// Runs the handlers of pending signals. True if one of them raised an exception: the waiting call ends with it.
pub(crate) fn is_interrupted() -> bool {
    if RAISED.with_borrow(Option::is_some) {
        return true;
    }
    // Python runs handlers only on the main thread. Other threads do not ask for the interpreter's lock, because an
    // interpreter that exits meanwhile would end them inside our frames.
    if rustix::thread::gettid() != rustix::process::getpid() {
        return false;
    }
    // While the interpreter exits there is none to attach to, and the wait goes on.
    match Python::try_attach(|py| py.check_signals()) {
        Some(Err(error)) => {
            store_exception(error);
            true
        }
        _ => false,
    }
}

/// Makes a call without the interpreter's lock, and raises its error.
#[inline]
pub(crate) fn try_detached<T: Send, E: ToException + Send>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, E> + Send,
) -> PyResult<T> {
    detached(py, call)?.map_err(|error| error.to_exception(py))
}

/// Makes a call without the interpreter's lock. Raises what a signal handler raised meanwhile.
#[inline]
pub(crate) fn detached<T: Send>(py: Python<'_>, call: impl FnOnce() -> T + Send) -> PyResult<T> {
    let outcome = py.detach(|| {
        let outcome = call();
        // The call of a daemon thread ends when the program's communicators leave at exit. Its result is not needed,
        // and there may be no interpreter to return to.
        if EXIT_THREAD.get().is_some_and(|thread| *thread != std::thread::current().id()) {
            std::thread::sleep(INTERPRETER_EXIT_MAX);
        }
        outcome
    });
    match RAISED.take() {
        Some(error) => Err(error),
        None => Ok(outcome),
    }
}

/// Makes a call without the interpreter's lock from a destructor, which may run while the interpreter exits.
pub(crate) fn finish_detached(call: impl FnOnce() + Send) {
    let mut call = Some(call);
    let _ = Python::try_attach(|py| py.detach(|| call.take().map(|call| call())));
    // An interpreter that exits has no other threads to keep waiting.
    if let Some(call) = call {
        call();
    }
}

/// Drops a value without the interpreter's lock.
pub(crate) fn drop_detached<T: Send>(value: T) {
    finish_detached(|| drop(value));
}

/// Waits in short steps until `wait_for` returns a value, the deadline has passed, or a signal handler raises.
pub(crate) fn wait_interruptible<T>(
    deadline: Option<Instant>,
    wait_for: impl Fn(Duration) -> Option<T>,
) -> Option<T> {
    loop {
        let left = deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
        if let Some(end) = wait_for(left.min(SIGNALS_EVERY)) {
            return Some(end);
        }
        if left <= SIGNALS_EVERY || is_interrupted() {
            return None;
        }
    }
}

/// The time limit of an operation in seconds; what a `Duration` cannot hold is for ever. Not 0: an operation that ends at once
/// would fail its group.
pub(crate) fn time_limit(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    if seconds > 0.0 {
        return Ok(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX));
    }
    let text = format!("invalid timeout {seconds}: must be a number of seconds > 0");
    Err(invalid_group_argument(py, &text))
}

/// How long to wait for something, in seconds. Negative is 0; what a `Duration` cannot hold is for ever.
pub(crate) fn duration(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    if seconds.is_nan() {
        return Err(invalid_group_argument(py, "invalid timeout nan: must be a number of seconds"));
    }
    Ok(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX))
}

/// The end of a timeout in seconds that begins now; None without one, or for ever.
pub(crate) fn deadline(py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Instant>> {
    let timeout = timeout.map(|seconds| duration(py, seconds)).transpose()?;
    Ok(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
}
