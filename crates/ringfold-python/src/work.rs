//! An all-reduce that goes on while Python computes.

use crate::call::{SIGNALS_EVERY, blocking, is_interrupted};
use crate::owned::Owned;
use parking_lot::Mutex;
use pyo3::prelude::*;
use ringfold::{Error, ReduceInfo};
use ringfold_bindings::result::{During, Failure};
use ringfold_bindings::session::Session;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An operation that was launched.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct Work {
    session: Owned<Arc<Session>>,
    tag: u64,
    end: Mutex<Option<Result<ReduceInfo, Failure>>>,
}

/// How it ended: the result's number, its text, whether it is retryable, the kind of failure, the world, and the bytes
/// sent and received.
type End = (i32, String, bool, &'static str, u32, u64, u64);

impl Work {
    /// Of the operation that was launched under this tag.
    pub(crate) fn new(session: Arc<Session>, tag: u64) -> Self {
        Self { session: Owned::new(session), tag, end: Mutex::new(None) }
    }

    /// Waits for so long, or to the end; none if it has not ended by then.
    fn wait_until(&self, until: Option<Instant>) -> Result<Option<Result<ReduceInfo, Failure>>, Failure> {
        let session = self.session.require()?;
        loop {
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if let Some(end) = self.wait_for(session, left.min(SIGNALS_EVERY)) {
                return Ok(Some(end));
            }
            // It may be asked for again: nothing is lost by leaving off. A signal's handler may ask as well, so nothing
            // is held while it runs.
            if left <= SIGNALS_EVERY || is_interrupted() {
                return Ok(None);
            }
        }
    }

    /// Waits for a moment.
    fn wait_for(&self, session: &Session, patience: Duration) -> Option<Result<ReduceInfo, Failure>> {
        // Another thread may wait already.
        let mut end = self.end.try_lock_for(patience)?;
        if end.is_some() {
            return end.clone();
        }
        let Some((work, taken)) = session.in_flight.claim(self.tag) else {
            // Whoever left the run has let go of it.
            *end = Some(Err(session.failed(&Error::Left, During::Reduce)));
            return end.clone();
        };
        let Some(outcome) = work.wait_for(patience) else {
            taken.launched(work);
            return None;
        };
        *end = Some(outcome.map_err(|e| session.failed(&e, During::Reduce)));
        end.clone()
    }
}

#[pymethods]
impl Work {
    /// Waits for the end, for so many seconds if that is said. None if it has not ended by then.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<End>> {
        let patience = timeout.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)));
        // Longer than anyone lives is for ever.
        let until = patience.and_then(Result::ok).and_then(|patience| Instant::now().checked_add(patience));
        let end = blocking(py, || self.wait_until(until))?;
        Ok(end.map(|end| match end {
            Ok(info) => (0, String::new(), false, "", info.world, info.tx_bytes, info.rx_bytes),
            Err(failure) => (failure.code as i32, failure.text, failure.is_retryable, failure.kind, 0, 0, 0),
        }))
    }

    /// Whether it has ended.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        blocking(py, || {
            let session = self.session.require()?;
            let is_known = self.end.try_lock().is_some_and(|end| end.is_some());
            Ok(is_known || session.in_flight.is_done(self.tag))
        })
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // Nobody can ask for it any more. It runs on, and its tensors are kept until it has ended.
        if self.end.get_mut().is_none()
            && let Some(session) = self.session.here()
        {
            drop(session.in_flight.claim(self.tag));
        }
    }
}
