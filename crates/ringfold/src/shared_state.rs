//! Shared state: tensors that the peers of a group keep equal.

mod hashing;
mod tensor_content;

#[cfg(test)]
pub(crate) use hashing::hash_slices;
pub(crate) use hashing::{TensorBytes, hash_all};
pub(crate) use tensor_content::{DeviceContent, TensorContent};

use crate::error::invalid;
use crate::{Element, Error};
use ringfold_cuda::DeviceMemory;
use ringfold_fabric::memory::{Memory, lend_all_mut};
use ringfold_proto::dtype::DType;
use ringfold_proto::limits;
use std::collections::HashSet;
use zerocopy::IntoBytes;

/// Tensors that all peers of a group keep equal, and the revision of their content.
///
/// The entries borrow the caller's memory, and a sync may write to it. Keys, types, lengths and order must be the
/// same on all peers.
///
/// ```
/// use ringfold::SharedState;
///
/// let (mut weights, mut step) = (vec![0.5_f32; 1000], [7_u64]);
/// let state = SharedState::new(3).add("weights", &mut weights).add("step", &mut step);
/// assert_eq!(state.revision(), 3);
/// ```
#[derive(Debug)]
pub struct SharedState<'a> {
    revision: u64,
    entries: Vec<Entry<'a>>,
}

struct Entry<'a> {
    key: String,
    dtype: DType,
    bytes: &'a mut [u8],
    allow_content_inequality: bool,
}

impl<'a> SharedState<'a> {
    /// A state without tensors, at this revision.
    pub fn new(revision: u64) -> Self {
        Self { revision, entries: Vec::new() }
    }

    /// Adds a tensor whose content shall be the same on all peers.
    pub fn add<T: Element>(self, key: &str, data: &'a mut [T]) -> Self {
        self.with(key, data, false)
    }

    /// Adds a tensor whose content may differ: only new peers receive the elected content.
    pub fn add_unequal<T: Element>(self, key: &str, data: &'a mut [T]) -> Self {
        self.with(key, data, true)
    }

    /// The revision of the content.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Sets the revision of the content.
    pub fn set_revision(&mut self, revision: u64) {
        self.revision = revision;
    }

    /// Lends all entries to `user`, and returns when they are no longer accessed.
    pub(crate) fn lend<R>(&mut self, user: impl FnOnce(Vec<StateTensor>) -> R) -> R {
        let entries = self.entries.iter_mut();
        let (names, bytes): (Vec<_>, Vec<_>) =
            entries.map(|e| ((e.key.clone(), e.dtype, e.allow_content_inequality), &mut *e.bytes)).unzip();
        lend_all_mut(bytes, |memories| {
            let tensor = |((key, dtype, allow_content_inequality), memory)| StateTensor {
                key,
                dtype,
                memory: StateMemory::Host(memory),
                allow_content_inequality,
            };
            user(names.into_iter().zip(memories).map(tensor).collect())
        })
    }

    fn with<T: Element>(mut self, key: &str, data: &'a mut [T], allow_content_inequality: bool) -> Self {
        let (key, dtype, bytes) = (key.to_owned(), T::DTYPE, data.as_mut_bytes());
        self.entries.push(Entry { key, dtype, bytes, allow_content_inequality });
        self
    }
}

impl core::fmt::Debug for Entry<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}: {} bytes of {}", self.key, self.bytes.len(), self.dtype)
    }
}

/// One tensor of a shared state, for callers that manage memory themselves.
#[derive(Debug)]
pub struct StateTensor {
    /// The name of the tensor.
    pub key: String,
    /// The type of the elements.
    pub dtype: DType,
    /// The content.
    pub memory: StateMemory,
    /// Whether the content may differ: only a peer that syncs for the first time receives the elected one.
    pub allow_content_inequality: bool,
}

impl StateTensor {
    pub(crate) fn count(&self) -> u64 {
        (self.memory.len() / self.dtype.bytes()) as u64
    }
}

/// The memory of a tensor. Where it is does not matter for the comparison of states.
#[derive(Debug)]
pub enum StateMemory {
    /// Host memory.
    Host(Memory),
    /// Memory of a CUDA device. Written only after a sync has succeeded.
    Device(DeviceMemory),
}

impl StateMemory {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Host(memory) => memory.len(),
            Self::Device(memory) => memory.len(),
        }
    }

    pub(crate) fn on_host(&self) -> Option<&Memory> {
        match self {
            Self::Host(memory) => Some(memory),
            Self::Device(_) => None,
        }
    }

    pub(crate) fn on_device(&self) -> Option<&DeviceMemory> {
        match self {
            Self::Host(_) => None,
            Self::Device(memory) => Some(memory),
        }
    }
}

impl From<Memory> for StateMemory {
    fn from(memory: Memory) -> Self {
        Self::Host(memory)
    }
}

impl From<DeviceMemory> for StateMemory {
    fn from(memory: DeviceMemory) -> Self {
        Self::Device(memory)
    }
}

#[derive(Debug)]
pub(crate) struct SyncedTensor {
    pub(crate) key: String,
    pub(crate) dtype: DType,
    pub(crate) content: TensorContent,
}

/// Checks the number of tensors, their keys and lengths.
pub(crate) fn check(tensors: &[StateTensor]) -> Result<(), Error> {
    if tensors.len() > limits::STATE_ENTRIES_MAX {
        let (have, most) = (tensors.len(), limits::STATE_ENTRIES_MAX);
        return Err(invalid!("invalid shared state: {have} entries, at most {most} are supported"));
    }
    let mut keys = HashSet::new();
    for StateTensor { key, dtype, memory, .. } in tensors {
        if key.len() > limits::STATE_KEY_BYTES_MAX {
            let most = limits::STATE_KEY_BYTES_MAX;
            return Err(invalid!("invalid key {key:?}: longer than {most} bytes"));
        }
        if !keys.insert(key) {
            return Err(invalid!("duplicate key {key:?} in the shared state"));
        }
        if memory.len() % dtype.bytes() != 0 {
            let bytes = memory.len();
            return Err(invalid!(
                "invalid entry {key:?}: {bytes} bytes are not a multiple of the size of {dtype}"
            ));
        }
    }
    Ok(())
}

/// What may run while a shared state is synchronized; the same for all peers of the group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncCompany {
    /// Nothing: it is an error to start a collective meanwhile.
    Alone,
    /// Collectives of other threads. None of them may change the state.
    Collectives,
}

/// Statistics of a sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SyncInfo {
    /// The revision that all peers have now.
    pub revision: u64,
    /// Bytes of entries sent.
    pub tx_bytes: u64,
    /// Bytes of entries received.
    pub rx_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_lent_in_order_and_keep_what_the_borrower_wrote() {
        let (mut a, mut b, mut none) = ([1_u16, 2], [3.0_f64], [0_u8; 0]);
        let mut state = SharedState::new(5).add("a", &mut a).add_unequal("b", &mut b).add("none", &mut none);
        let layout = state.lend(|mut tensors| {
            assert!(check(&tensors).is_ok());
            let StateMemory::Host(memory) = &mut tensors[0].memory else { unreachable!() };
            memory.as_mut_slice()[0] = 9;
            tensors.iter().map(|t| (t.key.clone(), t.dtype, t.count())).collect::<Vec<_>>()
        });
        assert_eq!(
            layout,
            [("a".into(), DType::U16, 2), ("b".into(), DType::F64, 1), ("none".into(), DType::U8, 0)]
        );
        state.set_revision(6);
        assert_eq!(state.revision(), 6);
        assert_eq!((a, b), ([u16::from_ne_bytes([9, 1_u16.to_ne_bytes()[1]]), 2], [3.0]));
    }

    #[test]
    fn duplicate_keys_long_keys_and_partial_elements_are_rejected() {
        let tensor = |key: &str, bytes| StateTensor {
            key: key.into(),
            dtype: DType::F32,
            memory: Memory::zeroed(bytes).into(),
            allow_content_inequality: false,
        };
        assert!(check(&[tensor("a", 4), tensor("b", 0)]).is_ok());
        for bad in
            [vec![tensor("a", 4), tensor("a", 4)], vec![tensor("a", 5)], vec![tensor(&"k".repeat(257), 4)]]
        {
            assert!(matches!(check(&bad), Err(Error::BadArgument(_))));
        }
    }
}
