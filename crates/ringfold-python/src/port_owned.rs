//! What belongs to the process that made it, and is let go of without the interpreter's lock.

use crate::cuda_memory::let_go;
use crate::owned::Owned;
use ringfold_bindings::result::Failure;

/// Something of a port. Its end may wait for a thread, or for a kernel that another Python thread is to end.
pub(crate) struct PortOwned<T: Send> {
    /// None only while it is dropped.
    owned: Option<Owned<T>>,
}

impl<T: Send> PortOwned<T> {
    /// It belongs to this process.
    pub(crate) fn new(value: T) -> Self {
        Self { owned: Some(Owned::new(value)) }
    }

    /// The value, or the words for those who use it in a child.
    pub(crate) fn require(&self) -> Result<&T, Failure> {
        match &self.owned {
            Some(owned) => owned.require(),
            None => unreachable!("nobody has it while it is dropped"),
        }
    }
}

impl<T: Send> Drop for PortOwned<T> {
    fn drop(&mut self) {
        let_go(self.owned.take());
    }
}
