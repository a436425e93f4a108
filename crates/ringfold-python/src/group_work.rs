//! An operation of a group that goes on while Python computes.

use crate::call::{released, wait_until};
use crate::group_error::{raised, refused};
use crate::owned::Owned;
use pyo3::prelude::*;
use std::time::{Duration, Instant};

/// An operation that was begun. Dropping it lets it run on.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct GroupWork {
    work: Owned<ringfold::GroupWork>,
}

impl GroupWork {
    pub(crate) fn new(work: ringfold::GroupWork) -> Self {
        Self { work: Owned::new(work) }
    }

    fn here(&self, py: Python<'_>) -> PyResult<&ringfold::GroupWork> {
        self.work.require().map_err(|failure| refused(py, &failure.text))
    }
}

#[pymethods]
impl GroupWork {
    /// Waits for the end, for so many seconds if that is said. False if it has not ended by then.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let work = self.here(py)?;
        let patience = timeout.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)));
        // Longer than anyone lives is for ever.
        let until = patience.and_then(Result::ok).and_then(|patience| Instant::now().checked_add(patience));
        let end = released(py, || wait_until(until, |patience| work.wait_for(patience)))?;
        if end.is_none() {
            return Ok(false);
        }
        // Here the tensors can be let go of at once; elsewhere that would wait for someone with the interpreter's lock.
        drop(work.take_buffers());
        end.transpose().map(|end| end.is_some()).map_err(|error| raised(py, &error))
    }

    /// Whether it has ended.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.here(py).map(ringfold::GroupWork::is_done)
    }
}
