//! The state that the peers of a group hold in common, as its user describes it.

mod hashing;

#[cfg(test)]
pub(crate) use hashing::hash_slices;
pub(crate) use hashing::{Arriving, hash_all};

use crate::{Element, Error};
use ringfold_cuda::DeviceMemory;
use ringfold_fabric::memory::{Memory, lend_all_mut};
use ringfold_proto::dtype::DType;
use ringfold_proto::limits;
use std::collections::HashSet;
use zerocopy::IntoBytes;

/// Tensors that all peers of a group shall hold alike, and the revision of their content.
///
/// The entries borrow the user's memory, and a sync may write to it. Keys, types, lengths and order must be the
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
    /// No tensors yet, at this revision.
    pub fn new(revision: u64) -> Self {
        Self { revision, entries: Vec::new() }
    }

    /// One more tensor, whose content shall be the same on all peers.
    pub fn add<T: Element>(self, key: &str, data: &'a mut [T]) -> Self {
        self.with(key, data, false)
    }

    /// One more tensor, whose content may differ; only who syncs for the first time is given the elected one.
    pub fn add_unequal<T: Element>(self, key: &str, data: &'a mut [T]) -> Self {
        self.with(key, data, true)
    }

    /// The revision that the content has.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The content has changed, or was found to be of this revision.
    pub fn set_revision(&mut self, revision: u64) {
        self.revision = revision;
    }

    /// Lends all entries to `user`, and returns when nobody touches them any more.
    pub(crate) fn lend<R>(&mut self, user: impl FnOnce(Vec<StateTensor>) -> R) -> R {
        let mut names = Vec::with_capacity(self.entries.len());
        let mut bytes = Vec::with_capacity(self.entries.len());
        for entry in &mut self.entries {
            names.push((entry.key.clone(), entry.dtype, entry.allow_content_inequality));
            bytes.push(&mut *entry.bytes);
        }
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

/// One tensor of a shared state, for those who deal in raw memory.
#[derive(Debug)]
pub struct StateTensor {
    /// The user's name for it.
    pub key: String,
    /// The type of its elements.
    pub dtype: DType,
    /// Its contents.
    pub memory: StateMemory,
    /// Peers may hold different contents; only who syncs for the first time is given the elected one.
    pub allow_content_inequality: bool,
}

impl StateTensor {
    /// How many elements it has.
    pub(crate) fn count(&self) -> u64 {
        (self.memory.len() / self.dtype.bytes()) as u64
    }
}

/// Where the contents of a tensor are. The same contents are the same state, wherever they are.
#[derive(Debug)]
pub enum StateMemory {
    /// On this host.
    Host(Memory),
    /// On a CUDA device. It is written only when a sync has succeeded.
    Device(DeviceMemory),
}

impl StateMemory {
    /// How many bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Host(memory) => memory.len(),
            Self::Device(memory) => memory.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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

/// One tensor of a shared state whose contents are on this host, if only as a copy.
#[derive(Debug)]
pub(crate) struct HostTensor {
    pub(crate) key: String,
    pub(crate) dtype: DType,
    pub(crate) memory: Memory,
}

/// Whether tensors can be a state at all.
pub(crate) fn check(tensors: &[StateTensor]) -> Result<(), Error> {
    if tensors.len() > limits::STATE_ENTRIES_MAX {
        let (have, most) = (tensors.len(), limits::STATE_ENTRIES_MAX);
        return Err(Error::BadArgument(format!("a shared state has at most {most} entries, and not {have}")));
    }
    let mut keys = HashSet::new();
    for StateTensor { key, dtype, memory, .. } in tensors {
        if key.len() > limits::STATE_KEY_BYTES_MAX {
            let most = limits::STATE_KEY_BYTES_MAX;
            return Err(Error::BadArgument(format!("the key {key:?} is longer than {most} bytes")));
        }
        if !keys.insert(key) {
            return Err(Error::BadArgument(format!("the key {key:?} is in the shared state twice")));
        }
        if memory.len() % dtype.bytes() != 0 {
            let bytes = memory.len();
            return Err(Error::BadArgument(format!(
                "the entry {key:?} has {bytes} bytes: not whole {dtype}"
            )));
        }
    }
    Ok(())
}

/// What a sync reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SyncInfo {
    /// The revision of the content that everyone has now.
    pub revision: u64,
    /// Bytes of entries that were sent.
    pub tx_bytes: u64,
    /// Bytes of entries that arrived.
    pub rx_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_lent_in_order_and_come_back_as_they_were_left() {
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
    fn a_key_twice_a_long_key_and_half_an_element_are_the_users_faults() {
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
