//! Serving: sends requested content directly from user memory, or from a copy of device memory.

use super::Counts;
use super::active_connections::ActiveConnections;
use super::limits::{ASSIGNMENT_WAIT_MAX, IDLE_MAX, SERVED_MAX, STRIDE_BYTES, UNREAD_MAX};
use super::wire::{Header, Request};
use crate::shared_state::TensorContent;
use core::ops::Range;
use parking_lot::{Condvar, Mutex};
use ringfold_fabric::connection::BlockingConnection;
use ringfold_kernels::LEAF_BYTES;
use ringfold_proto::dtype::DType;
use ringfold_proto::id::PeerId;
use std::collections::HashMap;
use std::io::{self, BufReader, IoSlice, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The entries that are served, and the connections of fetchers.
pub(super) struct Serving {
    connections: Arc<ActiveConnections>,
    /// By key; unknown before the first assignment.
    held: Mutex<HeldEntries>,
    changed: Condvar,
    counts: Arc<Counts>,
}

enum HeldEntries {
    /// Before the first assignment.
    Unknown,
    These(HashMap<String, HeldEntry>),
    Closed,
}

/// One entry that can be served.
#[derive(Clone)]
pub(super) struct HeldEntry {
    pub(super) dtype: DType,
    pub(super) count: u64,
    pub(super) hash: u128,
    pub(super) content: Arc<TensorContent>,
}

impl Serving {
    /// Fetchers wait until it is [opened](Self::open).
    pub(super) fn new(counts: Arc<Counts>) -> Arc<Self> {
        let connections = ActiveConnections::new(SERVED_MAX);
        Arc::new(Self {
            connections,
            held: Mutex::new(HeldEntries::Unknown),
            changed: Condvar::new(),
            counts,
        })
    }

    /// Serves these entries from now on.
    pub(super) fn open(&self, held: impl Iterator<Item = (String, HeldEntry)>) {
        *self.held.lock() = HeldEntries::These(held.collect());
        self.changed.notify_all();
    }

    /// Whether entries may be read.
    pub(super) fn is_open(&self) -> bool {
        matches!(*self.held.lock(), HeldEntries::These(_))
    }

    /// Ends it. When this returns, no thread reads an entry.
    pub(super) fn close(&self) {
        *self.held.lock() = HeldEntries::Closed;
        self.changed.notify_all();
        self.connections.close();
    }

    /// Serves a fetcher on a new thread.
    pub(super) fn serve(self: &Arc<Self>, peer: PeerId, stream: BlockingConnection) {
        let serving = self.clone();
        let run = move || {
            if let Err(error) = serving.serve_requests(peer, &stream) {
                tracing::debug!("serving state to {peer} ended: {error}");
            }
        };
        if let Err(error) = std::thread::Builder::new().name("ringfold-serve".into()).spawn(run) {
            tracing::warn!("failed to serve state to {peer}: {error}");
        }
    }

    fn serve_requests(&self, peer: PeerId, stream: &BlockingConnection) -> io::Result<()> {
        let _pass = self.connections.enter(peer, stream)?;
        stream.set_read_timeout(Some(IDLE_MAX))?;
        stream.set_write_timeout(Some(UNREAD_MAX))?;
        let mut requests = BufReader::new(stream);
        while let Some(request) = Request::read(&mut requests)? {
            match self.find(&request)? {
                Some((content, range)) => {
                    self.send(stream, content.read(range).map_err(io::Error::other)?)?;
                }
                None => {
                    tracing::debug!("{peer} requested {:?}, which is not held here", request.key);
                    (&mut &*stream).write_all(&Header::NotHeld.encode())?;
                }
            }
        }
        Ok(())
    }

    /// The requested bytes, if they are held here.
    fn find(&self, request: &Request) -> io::Result<Option<(Arc<TensorContent>, Range<usize>)>> {
        let mut held = self.held.lock();
        let end = Instant::now() + ASSIGNMENT_WAIT_MAX;
        while let HeldEntries::Unknown = *held {
            if self.changed.wait_until(&mut held, end).timed_out() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "timed out waiting for an assignment"));
            }
        }
        let HeldEntries::These(entries) = &*held else {
            return Err(io::Error::other("the transfer has ended"));
        };
        let Some(held_entry) = entries.get(&request.key).filter(|h| h.is(request)) else { return Ok(None) };
        let range = leaf_range(held_entry.content.len(), request.first_leaf, request.leaves);
        Ok(range.map(|range| (held_entry.content.clone(), range)))
    }

    fn send(&self, stream: &BlockingConnection, bytes: &[u8]) -> io::Result<()> {
        let header = Header::Leaves(bytes.len() as u64).encode();
        let (mut head, mut body) = (&header[..], bytes);
        while !head.is_empty() || !body.is_empty() {
            let stride = &body[..body.len().min(STRIDE_BYTES)];
            let sent = match (&mut &*stream).write_vectored(&[IoSlice::new(head), IoSlice::new(stride)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                sent => sent?,
            };
            let of_head = sent.min(head.len());
            (head, body) = (&head[of_head..], &body[sent - of_head..]);
            self.counts.tx_bytes.fetch_add((sent - of_head) as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl HeldEntry {
    fn is(&self, request: &Request) -> bool {
        (self.dtype, self.count, self.hash) == (request.dtype, request.count, request.hash)
    }
}

/// The byte range of leaves in an entry; none if it has no such leaves.
fn leaf_range(bytes: usize, first_leaf: u64, leaves: u64) -> Option<Range<usize>> {
    let end = first_leaf.checked_add(leaves)?;
    if leaves == 0 || end > bytes.div_ceil(LEAF_BYTES) as u64 {
        return None;
    }
    Some(first_leaf as usize * LEAF_BYTES..(end as usize * LEAF_BYTES).min(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_existing_leaves_have_a_range() {
        let bytes = 3 * LEAF_BYTES + 5;
        assert_eq!(leaf_range(bytes, 0, 4), Some(0..bytes));
        assert_eq!(leaf_range(bytes, 3, 1), Some(3 * LEAF_BYTES..bytes));
        assert_eq!(leaf_range(bytes, 1, 2), Some(LEAF_BYTES..3 * LEAF_BYTES));
        for (first, leaves) in [(0, 0), (0, 5), (4, 1), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX)] {
            assert_eq!(leaf_range(bytes, first, leaves), None, "{first} {leaves}");
        }
        assert_eq!(leaf_range(0, 0, 1), None);
    }
}
