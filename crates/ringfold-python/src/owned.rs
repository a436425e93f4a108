//! What belongs to the process that made it.

use ringfold_bindings::result::{Failure, ResultCode};

/// Something with threads and connections. After a fork the child has its memory too, but neither its threads nor a part
/// of its own in what is said over the connections: it must not touch it, and must not even let go of it.
pub(crate) struct Owned<T> {
    process: u32,
    /// None only while it is dropped.
    value: Option<T>,
}

impl<T> Owned<T> {
    /// It belongs to this process.
    pub(crate) fn new(value: T) -> Self {
        Self { process: std::process::id(), value: Some(value) }
    }

    /// The value, in the process that it belongs to.
    pub(crate) fn here(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.process == std::process::id())
    }

    /// The value, or the words for those who use it in a child.
    pub(crate) fn require(&self) -> Result<&T, Failure> {
        self.here().ok_or_else(|| {
            Failure::new(
                ResultCode::InvalidUsage,
                format!(
                    "this object belongs to process {}, and was brought here by a fork: make a new one after the fork",
                    self.process
                ),
            )
        })
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            core::mem::forget(self.value.take());
        }
    }
}
