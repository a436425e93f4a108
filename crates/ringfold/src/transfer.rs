//! The transfer of one sync: fetches what this peer lacks from its sources, and serves other peers.
//!
//! Each connection has a thread and blocks. A thread that accesses a tensor is registered in [`ActiveConnections`]; ending
//! a transfer shuts these connections down and waits for their threads before the tensors are released (R4). A thread that
//! still dials holds no tensor and is not waited for.

mod active_connections;
mod deal;
mod entry_target;
mod fetch;
mod fetch_plan;
mod limits;
mod part;
mod serve;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

use crate::Error;
use crate::shared_state::{DeviceContent, SyncedTensor, TensorContent};
use core::time::Duration;
pub(crate) use entry_target::AllocateTarget;
use fetch::Fetch;
use part::{Part, cut, cut_later};
use ringfold_fabric::connection::BlockingConnection;
use ringfold_fabric::memory::Memory;
use ringfold_proto::dtype::DType;
use ringfold_proto::id::PeerId;
use ringfold_proto::shared_state::Assignment;
use serve::{HeldEntry, Serving};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Connects to a source within a time.
pub(crate) type Connect = Arc<dyn Fn(PeerId, Duration) -> io::Result<BlockingConnection> + Send + Sync>;

/// Called with the number of an assignment and whether everything was fetched, by a thread that holds no tensor.
pub(crate) type Done = Arc<dyn Fn(u64, bool) + Send + Sync>;

/// Serving and fetching of one sync call.
pub(crate) struct Transfer {
    tensors: Vec<Tensor>,
    serving: Arc<Serving>,
    fetch: Option<Arc<Fetch>>,
    connect: Connect,
    done: Done,
    counts: Arc<Counts>,
    /// The bytes of the assignment, and those that were received before it.
    fetching: Option<(u64, u64)>,
}

/// Bytes that were transferred.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Moved {
    /// Sent.
    pub(crate) tx_bytes: u64,
    /// Received, valid or not.
    pub(crate) rx_bytes: u64,
}

/// Fetched bytes of an entry.
pub(crate) struct Fetched {
    /// The index of the entry in the state.
    pub(crate) entry: usize,
    /// The offset in the entry.
    pub(crate) offset: usize,
    /// The bytes.
    pub(crate) memory: Memory,
}

/// One tensor of the state.
struct Tensor {
    key: String,
    dtype: DType,
    count: u64,
    bytes: usize,
    /// Its hash when the call was made.
    hash: u128,
    content: Content,
}

enum Content {
    /// As it was when the call was made.
    Own(Arc<TensorContent>),
    /// Being replaced by the elected content. During a fetch, the fetch has the parts.
    /// The old content is kept to the end: dropping it may wait for a device.
    Replaced { target: u128, parts: Vec<Part>, old: Option<Box<DeviceContent>> },
}

/// Counts transferred bytes.
#[derive(Default)]
struct Counts {
    tx_bytes: AtomicU64,
    rx_bytes: AtomicU64,
}

impl Transfer {
    /// Serves and fetches nothing before the first assignment. `hashes` are those of the tensors.
    ///
    /// # Panics
    /// If there are not as many hashes as tensors.
    pub(crate) fn new(tensors: Vec<SyncedTensor>, hashes: Vec<u128>, connect: Connect, done: Done) -> Self {
        assert_eq!(tensors.len(), hashes.len(), "each tensor has a hash");
        let counts = Arc::new(Counts::default());
        let tensors =
            tensors.into_iter().zip(hashes).map(|(tensor, hash)| Tensor::new(tensor, hash)).collect();
        Self {
            tensors,
            serving: Serving::new(counts.clone()),
            fetch: None,
            connect,
            done,
            counts,
            fetching: None,
        }
    }

    /// Begins an assignment. An earlier one is stopped, and not reported unless a thread is about to; what it fetched is
    /// kept if the same content is elected again.
    ///
    /// `done` is called once, if there is anything to fetch. It is also called, with `false`, if nothing is to be
    /// fetched but an earlier assignment has overwritten what this peer is now taken to hold.
    pub(crate) fn assign(&mut self, number: u64, assignment: Assignment) {
        self.stop_fetching();
        let wanted: BTreeMap<usize, u128> =
            assignment.fetch.iter().map(|f| (f.entry as usize, f.hash)).collect();
        let mut possible = wanted.keys().all(|entry| *entry < self.tensors.len());
        let own = |t: &Tensor| matches!(t.content, Content::Own(_));
        if self.serving.is_open()
            && self.tensors.iter().enumerate().any(|(i, t)| own(t) && wanted.contains_key(&i))
        {
            // Served entries are about to be overwritten. Their fetchers connect again for the rest.
            self.serving.close();
            self.serving = Serving::new(self.counts.clone());
        }
        let bytes = wanted.keys().filter_map(|entry| self.tensors.get(*entry)).map(|t| t.bytes as u64).sum();
        self.fetching = (bytes > 0).then(|| (bytes, self.counts.rx_bytes.load(Ordering::Relaxed)));
        let part_bytes = part::part_bytes(bytes, assignment.sources.len());
        let mut parts = BTreeMap::new();
        for (entry, tensor) in self.tensors.iter_mut().enumerate() {
            match wanted.get(&entry) {
                Some(target) => possible &= tensor.replace(entry, *target, part_bytes, &mut parts),
                None => possible &= own(tensor),
            }
        }
        self.serving.open(self.tensors.iter().filter_map(Tensor::held_entry));
        if !wanted.is_empty() || !possible {
            let orders = parts.into_iter().map(|(entry, parts)| self.order(entry, parts)).collect();
            let callbacks = (self.connect.clone(), self.done.clone(), self.counts.clone());
            self.fetch = Some(Fetch::start(number, orders, assignment.sources, callbacks, possible));
        }
    }

    /// The bytes that were fetched of the last assignment, and all of them; none if nothing is to be fetched.
    pub(crate) fn progress(&self) -> Option<(u64, u64)> {
        let (bytes, before) = self.fetching?;
        let received = self.counts.rx_bytes.load(Ordering::Relaxed).saturating_sub(before);
        Some((received.min(bytes), bytes))
    }

    /// A member has connected to fetch state.
    pub(crate) fn serve(&mut self, peer: PeerId, connection: BlockingConnection) {
        self.serving.serve(peer, connection);
    }

    /// Why fetching failed, if that is this peer's fault.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.fetch.as_ref().and_then(|fetch| fetch.failure())
    }

    /// Stops serving and fetching at once, and releases the tensors.
    pub(crate) fn stop(self) -> Moved {
        self.finish().0
    }

    /// As [`Transfer::stop`], and returns what was to be fetched: everything, if the sync succeeded.
    pub(crate) fn finish(mut self) -> (Moved, Vec<Fetched>) {
        self.stop_fetching();
        self.serving.close();
        let replaced = self.tensors.drain(..).flat_map(|tensor| match tensor.content {
            Content::Own(_) => Vec::new(),
            Content::Replaced { parts, .. } => parts,
        });
        let fetched = replaced.filter_map(Part::into_fetched).collect();
        let moved = Moved {
            tx_bytes: self.counts.tx_bytes.load(Ordering::Relaxed),
            rx_bytes: self.counts.rx_bytes.load(Ordering::Relaxed),
        };
        (moved, fetched)
    }

    fn halt(&mut self) {
        self.stop_fetching();
        self.serving.close();
        self.tensors.clear();
    }

    fn stop_fetching(&mut self) {
        let Some(fetch) = self.fetch.take() else { return };
        for part in fetch.stop() {
            if let Content::Replaced { parts, .. } = &mut self.tensors[part.entry].content {
                parts.push(part);
            }
        }
    }

    fn order(&self, entry: usize, parts: Vec<Part>) -> fetch::FetchOrder {
        let tensor = &self.tensors[entry];
        let target = match tensor.content {
            Content::Own(_) => tensor.hash,
            Content::Replaced { target, .. } => target,
        };
        let (key, dtype, count) = (tensor.key.clone(), tensor.dtype, tensor.count);
        fetch::FetchOrder { entry, key, dtype, count, target, bytes: tensor.bytes as u64, parts }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.halt();
    }
}

impl Tensor {
    fn new(tensor: SyncedTensor, hash: u128) -> Self {
        let SyncedTensor { key, dtype, content } = tensor;
        let bytes = content.len();
        let count = (bytes / dtype.bytes()) as u64;
        Self { key, dtype, count, bytes, hash, content: Content::Own(Arc::new(content)) }
    }

    /// Adds its parts to those to be fetched. Returns whether it can be overwritten.
    fn replace(
        &mut self,
        entry: usize,
        target: u128,
        part_bytes: usize,
        wanted: &mut BTreeMap<usize, Vec<Part>>,
    ) -> bool {
        let away = Content::Replaced { target, parts: Vec::new(), old: None };
        let (parts, old) = match core::mem::replace(&mut self.content, away) {
            Content::Replaced { target: earlier, parts, old } => {
                let fresh = |part: Part| if earlier == target { part } else { part.emptied() };
                (parts.into_iter().map(fresh).collect(), old)
            }
            Content::Own(content) => match Arc::try_unwrap(content) {
                Ok(TensorContent::Host(memory)) => (cut(entry, memory, part_bytes), None),
                Ok(TensorContent::Device(content)) => (
                    cut_later(entry, self.bytes, content.allocate_target(), part_bytes),
                    Some(Box::new(content)),
                ),
                Err(own) => {
                    tracing::error!("failed to replace entry {:?}: it is still being served", self.key);
                    self.content = Content::Own(own);
                    return false;
                }
            },
        };
        self.content = Content::Replaced { target, parts: Vec::new(), old };
        wanted.insert(entry, parts);
        true
    }

    /// The entry for other peers, if it is unchanged since the call was made.
    fn held_entry(&self) -> Option<(String, HeldEntry)> {
        let Content::Own(content) = &self.content else { return None };
        let (dtype, count, hash, content) = (self.dtype, self.count, self.hash, content.clone());
        Some((self.key.clone(), HeldEntry { dtype, count, hash, content }))
    }
}
