//! Port channels: puts and signals through a proxy, from the host and from kernels.

use crate::port::device_handle::HandleBytes;
use crate::port::proxy::ProxyState;
use crate::port::trigger::{MemoryId, SemaphoreId, TriggerFields, TriggerKind};
use crate::port::{PortError, SemaphoreCursor};
use ringfold_fabric::waiter::{Deadline, Wait};
use std::sync::Arc;

/// A channel to a peer. Clones share the channel.
///
/// Puts and signals arrive in order. It keeps the proxy's state alive, but not its thread.
#[derive(Clone)]
pub struct PortChannel {
    state: Arc<ProxyState>,
    id: SemaphoreId,
    cursor: SemaphoreCursor,
    /// Target and source memory; none if each put names them.
    memories: Option<(MemoryId, MemoryId)>,
}

/// The arguments of a put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Put {
    /// Offset in the target memory.
    pub target_offset: u64,
    /// Offset in the source memory.
    pub source_offset: u64,
    /// The number of bytes.
    pub bytes: u64,
}

impl PortChannel {
    pub(crate) fn new(
        state: Arc<ProxyState>,
        id: SemaphoreId,
        cursor: SemaphoreCursor,
        memories: Option<(MemoryId, MemoryId)>,
    ) -> Self {
        Self { state, id, cursor, memories }
    }

    /// Requests a copy to the peer.
    pub fn put(&self, put: Put, wait: Wait<'_>) -> Result<(), PortError> {
        self.push(TriggerKind::DATA, Some(put), wait).map(drop)
    }

    /// Requests a signal to the peer, after all earlier puts.
    pub fn signal(&self, wait: Wait<'_>) -> Result<(), PortError> {
        self.push(TriggerKind::FLAG, None, wait).map(drop)
    }

    /// Requests a copy and a signal after it.
    pub fn put_with_signal(&self, put: Put, wait: Wait<'_>) -> Result<(), PortError> {
        self.push(TriggerKind::DATA.and(TriggerKind::FLAG), Some(put), wait).map(drop)
    }

    /// As [`Self::put_with_signal`], and waits until the source may be changed.
    pub fn put_with_signal_and_flush(&self, put: Put, wait: Wait<'_>) -> Result<(), PortError> {
        let kind = TriggerKind::DATA.and(TriggerKind::FLAG).and(TriggerKind::SYNC);
        let at = self.push(kind, Some(put), wait)?;
        self.state.sync(at, wait)
    }

    /// Waits until all puts to the peer are sent, and their sources may be changed.
    pub fn flush(&self, wait: Wait<'_>) -> Result<(), PortError> {
        let at = self.push(TriggerKind::SYNC, None, wait)?;
        self.state.sync(at, wait)
    }

    /// Waits for the next signal of the peer.
    pub fn wait(&self, wait: Wait<'_>) -> Result<(), PortError> {
        self.cursor.wait(wait)
    }

    /// Whether the peer has signalled once more.
    pub fn poll(&self) -> Result<bool, PortError> {
        self.cursor.poll()
    }

    /// The semaphore cursor that receives the peer's signals.
    pub fn semaphore(&self) -> &SemaphoreCursor {
        &self.cursor
    }

    /// The handle for kernels: 96 bytes, or 88 for a channel whose puts name the memories.
    pub fn device_handle(&self) -> Result<Vec<u8>, PortError> {
        match self.memories {
            Some(memories) => Ok(self.state.handle(self.id, &self.cursor, memories)?.bytes().to_vec()),
            None => Ok(self.state.base_handle(self.id, &self.cursor)?.bytes().to_vec()),
        }
    }

    /// Pushes a trigger. Waits for room until the caller's deadline, or else for the spin timeout of kernels.
    fn push(&self, kind: TriggerKind, put: Option<Put>, wait: Wait<'_>) -> Result<u64, PortError> {
        self.cursor.semaphore().connection().check()?;
        let mut fields = TriggerFields { kind, semaphore: self.id, ..Default::default() };
        if let Some(Put { target_offset, source_offset, bytes }) = put {
            let (target, source) = self.memories.ok_or_else(|| {
                PortError::Argument(
                    "invalid put: a base channel has no memories; only kernels can put".into(),
                )
            })?;
            fields = TriggerFields { target, target_offset, source, source_offset, bytes, ..fields };
        }
        let spin = self.cursor.semaphore().connection().port().abort_page().spin_timeout();
        let deadline = wait.deadline.instant().map_or_else(|| Deadline::after(spin), Deadline::from);
        self.state.push(&fields, Wait { deadline, ..wait })
    }
}

debug_as!(PortChannel, self => "PortChannel({:?})", self.cursor.semaphore().connection());
