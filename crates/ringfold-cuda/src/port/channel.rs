//! One end of a way through a proxy: what a program on the host puts and signals with, and what kernels are given.

use crate::port::proxy::Desk;
use crate::port::trigger::{MemoryId, SemaphoreId, TriggerFields, TriggerKind};
use crate::port::{PortError, SemaphoreFace};
use ringfold_fabric::waiter::{Deadline, Wait};
use std::sync::Arc;

/// A channel to another rank. Clones are the same channel.
///
/// What is put and signalled through it arrives in that order. It keeps what the proxy knows, but not its thread.
#[derive(Clone)]
pub struct PortChannel {
    desk: Arc<Desk>,
    id: SemaphoreId,
    face: SemaphoreFace,
    /// What is written and what is read, unless that is told with each put.
    memories: Option<(MemoryId, MemoryId)>,
}

/// What is put where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Put {
    /// Where in the memory that is written.
    pub target_offset: u64,
    /// Where in the memory that is read.
    pub source_offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

impl PortChannel {
    pub(crate) fn new(
        desk: Arc<Desk>,
        id: SemaphoreId,
        face: SemaphoreFace,
        memories: Option<(MemoryId, MemoryId)>,
    ) -> Self {
        Self { desk, id, face, memories }
    }

    /// Has bytes copied to the other side.
    pub fn put(&self, put: Put, wait: Wait<'_>) -> Result<(), PortError> {
        self.push(TriggerKind::DATA, Some(put), wait).map(drop)
    }

    /// Signals to the other side, behind what was put before.
    pub fn signal(&self, wait: Wait<'_>) -> Result<(), PortError> {
        self.push(TriggerKind::FLAG, None, wait).map(drop)
    }

    /// Has bytes copied, and signals behind them.
    pub fn put_with_signal(&self, put: Put, wait: Wait<'_>) -> Result<(), PortError> {
        self.push(TriggerKind::DATA.and(TriggerKind::FLAG), Some(put), wait).map(drop)
    }

    /// Has bytes copied, signals behind them, and waits until the bytes may be changed.
    pub fn put_with_signal_and_flush(&self, put: Put, wait: Wait<'_>) -> Result<(), PortError> {
        let kind = TriggerKind::DATA.and(TriggerKind::FLAG).and(TriggerKind::SYNC);
        let at = self.push(kind, Some(put), wait)?;
        self.desk.sync(at, wait)
    }

    /// Waits until all that was put through the proxy to this rank has left, and its bytes may be changed.
    pub fn flush(&self, wait: Wait<'_>) -> Result<(), PortError> {
        let at = self.push(TriggerKind::SYNC, None, wait)?;
        self.desk.sync(at, wait)
    }

    /// Waits for the next signal of the other side.
    pub fn wait(&self, wait: Wait<'_>) -> Result<(), PortError> {
        self.face.wait(wait)
    }

    /// Whether the other side has signalled once more.
    pub fn poll(&self) -> Result<bool, PortError> {
        self.face.poll()
    }

    /// What waits for the signals.
    pub fn semaphore(&self) -> &SemaphoreFace {
        &self.face
    }

    /// What kernels are given: 96 bytes, or 88 for a channel that is told the memories with each put.
    pub fn device_handle(&self) -> Result<Vec<u8>, PortError> {
        match self.memories {
            Some(memories) => Ok(self.desk.handle(self.id, &self.face, memories)?.bytes().to_vec()),
            None => Ok(self.desk.base_handle(self.id, &self.face)?.bytes().to_vec()),
        }
    }

    /// Pushes. Waits for room as long as the caller says, or else as long as kernels do.
    fn push(&self, kind: TriggerKind, put: Option<Put>, wait: Wait<'_>) -> Result<u64, PortError> {
        self.face.semaphore().connection().check()?;
        let mut fields = TriggerFields { kind, semaphore: self.id, ..Default::default() };
        if let Some(Put { target_offset, source_offset, bytes }) = put {
            let (target, source) = self.memories.ok_or_else(|| {
                PortError::Argument("this channel has no memories: kernels tell them with each put".into())
            })?;
            fields = TriggerFields { target, target_offset, source, source_offset, bytes, ..fields };
        }
        let spin = self.face.semaphore().connection().port().abort_page().spin();
        let deadline = wait.deadline.instant().map_or_else(|| Deadline::after(spin), Deadline::from);
        self.desk.push(&fields, Wait { deadline, ..wait })
    }
}

impl core::fmt::Debug for PortChannel {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(out, "PortChannel({:?})", self.face.semaphore().connection())
    }
}
