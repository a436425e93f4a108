//! An operation of a group that runs while Python computes.

use crate::call::{deadline, detached, wait_interruptible};
use crate::exception::ToException;
use crate::fork_guard::ForkGuard;
use pyo3::prelude::*;

/// A started operation. It goes on if this object is dropped.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct GroupWork {
    work: ForkGuard<ringfold::GroupWork>,
}

impl GroupWork {
    pub(crate) fn new(work: ringfold::GroupWork) -> Self {
        Self { work: ForkGuard::new(work) }
    }
}

#[pymethods]
impl GroupWork {
    /// Waits for the end, up to `timeout` seconds. False if it has not ended by then.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let (work, deadline) = (self.work.of_group(py)?, deadline(py, timeout)?);
        let end = detached(py, || wait_interruptible(deadline, |timeout| work.wait_for(timeout)))?;
        let Some(end) = end else { return Ok(false) };
        // Dropped here, with the interpreter's lock; elsewhere they would wait for a thread that has it.
        drop(work.take_buffers());
        end.map(|_| true).map_err(|error| error.to_exception(py))
    }

    /// Whether it has ended.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.work.of_group(py).map(ringfold::GroupWork::is_done)
    }
}
