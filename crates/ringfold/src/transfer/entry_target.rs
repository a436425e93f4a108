//! Memory that an entry is fetched into, if it is not the tensor itself.

use crate::Error;
use parking_lot::Mutex;
use ringfold_fabric::memory::Memory;

/// Allocates memory for a tensor.
pub(crate) type AllocateTarget = Box<dyn Fn() -> Result<Memory, Error> + Send + Sync>;

/// Memory for the parts of an entry. The threads that fetch allocate it: locking the pages of a large tensor takes seconds.
pub(super) struct EntryTarget {
    allocate: AllocateTarget,
    part_bytes: usize,
    /// By index of the part; none before it is allocated.
    pieces: Mutex<Option<Vec<Option<Memory>>>>,
}

impl EntryTarget {
    pub(super) fn new(allocate: AllocateTarget, part_bytes: usize) -> Self {
        Self { allocate, part_bytes, pieces: Mutex::default() }
    }

    /// Allocates the memory of all parts, unless it is allocated.
    pub(super) fn allocate(&self) -> Result<(), Error> {
        let mut pieces = self.pieces.lock();
        if pieces.is_none() {
            let memory = (self.allocate)()?;
            *pieces = Some(split(memory, self.part_bytes).into_iter().map(Some).collect());
        }
        Ok(())
    }

    /// Takes the memory of a part; none before it is allocated.
    pub(super) fn take(&self, part: usize) -> Option<Memory> {
        self.pieces.lock().as_mut()?.get_mut(part)?.take()
    }
}

/// Splits memory into pieces of so many bytes.
pub(super) fn split(memory: Memory, bytes: usize) -> Vec<Memory> {
    let (mut pieces, mut rest) = (Vec::new(), memory);
    while !rest.is_empty() {
        let at = bytes.min(rest.len());
        let (piece, more) = rest.split_at(at);
        pieces.push(piece);
        rest = more;
    }
    pieces
}
