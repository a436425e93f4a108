//! Values that only the process that made them may use.

use crate::call::drop_detached;
use crate::exception::{invalid_group_argument, invalid_port_argument};
use pyo3::prelude::*;
use ringfold_bindings::result::{CallError, ResultCode};

/// A value with threads and connections, which a forked child must neither use nor drop.
///
/// The child has a copy of the memory, but not of the threads, and the connections belong to its parent.
pub(crate) struct ForkGuard<T> {
    process: u32,
    /// None only while it is dropped.
    value: Option<T>,
}

impl<T> ForkGuard<T> {
    /// Binds a value to this process.
    pub(crate) fn new(value: T) -> Self {
        Self { process: std::process::id(), value: Some(value) }
    }

    /// The value; None in a forked child.
    pub(crate) fn get(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.process == std::process::id())
    }

    /// The value, or a failure in a forked child.
    pub(crate) fn require(&self) -> Result<&T, CallError> {
        self.get().ok_or_else(|| {
            let text = format!(
                "invalid use after a fork: this object belongs to process {}; make a new one in this process",
                self.process
            );
            CallError::new(ResultCode::InvalidUsage, text)
        })
    }

    /// The value, or a `GroupError` in a forked child.
    pub(crate) fn of_group(&self, py: Python<'_>) -> PyResult<&T> {
        self.require().map_err(|failure| invalid_group_argument(py, &failure.text))
    }
}

impl<T> Drop for ForkGuard<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            core::mem::forget(self.value.take());
        }
    }
}

/// A [`ForkGuard`] whose value is dropped without the interpreter's lock.
///
/// Dropping memory of a device or a part of a port may wait for a thread or a kernel, which may wait for another
/// Python thread.
pub(crate) struct DetachedGuard<T: Send> {
    /// None only while it is dropped.
    guard: Option<ForkGuard<T>>,
}

impl<T: Send> DetachedGuard<T> {
    /// Binds a value to this process.
    pub(crate) fn new(value: T) -> Self {
        Self { guard: Some(ForkGuard::new(value)) }
    }

    /// The value, or a `PortError` in a forked child.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<&T> {
        let Some(guard) = &self.guard else { unreachable!("the value is being dropped") };
        guard.require().map_err(|failure| invalid_port_argument(py, &failure.text))
    }
}

impl<T: Send> Drop for DetachedGuard<T> {
    fn drop(&mut self) {
        drop_detached(self.guard.take());
    }
}
