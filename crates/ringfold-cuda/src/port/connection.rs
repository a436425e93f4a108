//! What connects two ports: writes into the other side's memory, and words behind them.

use super::Port;
use super::error::PortError;
use super::registered_memory::RegisteredMemory;
use super::transport::Transport;
use std::sync::Arc;
use std::time::Instant;

/// A connection with one other rank. Everything on it happens in the order in which it was asked for, and goes on
/// without the other side's help. Clones are the same connection; it may be used by any thread.
///
/// When the last clone is gone, what was written still arrives, if that takes no longer than a second or so.
#[derive(Clone)]
pub struct Connection {
    inner: Arc<Inner>,
}

struct Inner {
    port: Port,
    transport: Transport,
    peer: i32,
}

impl Connection {
    /// Writes bytes of ours into the other side's memory. They are read until this is flushed.
    pub fn write(
        &self,
        dst: &RegisteredMemory,
        dst_offset: u64,
        src: &RegisteredMemory,
        src_offset: u64,
        bytes: u64,
    ) -> Result<(), PortError> {
        let _ = (dst, dst_offset, src, src_offset, bytes);
        Err(RegisteredMemory::later())
    }

    /// Sets an aligned word of the other side's memory, behind all writes so far. Whoever reads it there sees the old
    /// value or the new one, and with the new one everything that was written before.
    pub fn update(&self, dst: &RegisteredMemory, dst_offset: u64, value: u64) -> Result<(), PortError> {
        let _ = (dst, dst_offset, value);
        Err(RegisteredMemory::later())
    }

    /// Sets a word of the host's memory here, and one of the other side's as [`Connection::update`] does.
    ///
    /// # Safety
    /// `src` is the address of an aligned word of the host's memory that may be written.
    pub unsafe fn update_and_sync(
        &self,
        dst: &RegisteredMemory,
        dst_offset: u64,
        src: u64,
        value: u64,
    ) -> Result<(), PortError> {
        let _ = src;
        self.update(dst, dst_offset, value)
    }

    /// Waits until everything so far is where it belongs.
    pub fn flush(&self, deadline: Instant) -> Result<(), PortError> {
        let _ = deadline;
        Err(RegisteredMemory::later())
    }

    /// The way that it takes.
    pub fn transport(&self) -> Transport {
        self.inner.transport
    }

    /// The rank at the other side.
    pub fn peer(&self) -> i32 {
        self.inner.peer
    }

    /// The port that it belongs to.
    pub fn port(&self) -> &Port {
        &self.inner.port
    }

    /// Whether nothing more comes or goes on it: the other side died or left, or the port was given up.
    pub fn is_over(&self) -> bool {
        self.check().is_err()
    }

    /// Nothing, or why the connection is over. What came before that has come: whoever waits for something looks for
    /// it first, and asks this after.
    pub fn check(&self) -> Result<(), PortError> {
        self.inner.port.check()
    }
}

impl core::fmt::Debug for Connection {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(out, "Connection(with rank {} over {})", self.inner.peer, self.inner.transport)
    }
}
