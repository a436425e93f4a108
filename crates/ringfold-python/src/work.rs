//! An all-reduce of a run that goes on while Python computes.

use crate::call::{try_detached, wait_interruptible};
use crate::fork_guard::ForkGuard;
use parking_lot::Mutex;
use pyo3::prelude::*;
use ringfold::{Error, ReduceInfo};
use ringfold_bindings::communicator_handle::CommunicatorHandle;
use ringfold_bindings::result::{ApiCall, CallError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A started all-reduce.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct Work {
    handle: ForkGuard<Arc<CommunicatorHandle>>,
    tag: u64,
    end: Mutex<Option<Result<ReduceInfo, CallError>>>,
}

/// Result code, error text, is_retryable, kind of failure, world size, bytes sent, bytes received.
type WorkResult = (i32, String, bool, &'static str, u32, u64, u64);

impl Work {
    /// The operation that was started with this tag.
    pub(crate) fn new(handle: Arc<CommunicatorHandle>, tag: u64) -> Self {
        Self { handle: ForkGuard::new(handle), tag, end: Mutex::new(None) }
    }

    fn wait_for(
        &self,
        handle: &CommunicatorHandle,
        timeout: Duration,
    ) -> Option<Result<ReduceInfo, CallError>> {
        // Another thread may hold the lock while it waits.
        let mut end = self.end.try_lock_for(timeout)?;
        if end.is_some() {
            return end.clone();
        }
        let Some((work, reservation)) = handle.in_flight.take_launched(self.tag) else {
            // The handle has left the run, and dropped its operations.
            *end = Some(Err(handle.record_error(&Error::Left, ApiCall::Reduce)));
            return end.clone();
        };
        let Some(outcome) = work.wait_for(timeout) else {
            reservation.keep(work);
            return None;
        };
        *end = Some(outcome.map_err(|e| handle.record_error(&e, ApiCall::Reduce)));
        end.clone()
    }
}

#[pymethods]
impl Work {
    /// Waits for the end, up to `timeout` seconds. None if it has not ended by then; it may be waited for again.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<WorkResult>> {
        // What a Duration cannot hold is for ever.
        let timeout = timeout.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok());
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let end = try_detached(py, || -> Result<_, CallError> {
            let handle = self.handle.require()?;
            // A signal handler may wait for the same work, so nothing is locked while it runs.
            Ok(wait_interruptible(deadline, |timeout| self.wait_for(handle, timeout)))
        })?;
        Ok(end.map(|end| match end {
            Ok(info) => (0, String::new(), false, "", info.world, info.tx_bytes, info.rx_bytes),
            Err(failure) => (failure.code as i32, failure.text, failure.is_retryable, failure.kind, 0, 0, 0),
        }))
    }

    /// Whether it has ended.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        try_detached(py, || -> Result<_, CallError> {
            let handle = self.handle.require()?;
            let is_known = self.end.try_lock().is_some_and(|end| end.is_some());
            Ok(is_known || handle.in_flight.is_done(self.tag))
        })
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // The operation goes on, and its tensors are kept until it has ended.
        if self.end.get_mut().is_none()
            && let Some(handle) = self.handle.get()
        {
            drop(handle.in_flight.take_launched(self.tag));
        }
    }
}
