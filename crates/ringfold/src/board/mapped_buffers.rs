//! Shared buffers of the other ranks that this rank has mapped.
//!
//! Mapping a buffer costs more than reading it, so mappings are kept: until the owner frees the buffer, or, if a rank uses very
//! many, until others were used more lately.

use ringfold_fabric::segment::Ticket;
use ringfold_fabric::shared_buffer::MappedBuffer;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The mapped buffers of a rank's board. The most recently used ones are last.
#[derive(Debug, Default)]
pub(super) struct MappedBuffers {
    buffers: Vec<Arc<MappedBuffer>>,
    /// How many collectives have read buffers in place.
    uses: Arc<AtomicU64>,
}

impl MappedBuffers {
    /// Mappings that are kept. A process may have 65530.
    const KEPT_MAX: usize = 1024;

    /// The buffer of a ticket; maps it if it is not mapped.
    pub(super) fn find(&mut self, ticket: &Ticket) -> io::Result<Arc<MappedBuffer>> {
        let known = self.buffers.iter().rposition(|buffer| buffer.ticket() == ticket);
        let buffer = match known {
            Some(at) => self.buffers.remove(at),
            None => Arc::new(MappedBuffer::open(ticket)?),
        };
        if self.buffers.len() == Self::KEPT_MAX {
            self.buffers.remove(0);
        }
        self.buffers.push(buffer.clone());
        Ok(buffer)
    }

    /// Unmaps the buffers that their owners have freed.
    pub(super) fn drop_freed(&mut self) {
        self.buffers.retain(|buffer| !buffer.is_freed());
    }

    pub(super) fn note_use(&self) {
        self.uses.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn uses(&self) -> &Arc<AtomicU64> {
        &self.uses
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.buffers.len()
    }
}
