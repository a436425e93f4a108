//! Connections between two ports: ordered writes and word updates in the peer's memory.

use super::Port;
use super::cuda_transport::CudaTransport;
use super::error::PortError;
use super::registered_memory::{MemoryAt, RegisteredMemory};
use super::shared_memory_transport::SharedMemoryTransport;
use super::tcp_transport::{TcpTransport, explain};
use super::transport::Transport;
use crate::release_queue::ConnectionHold;
use crate::{CudaError, Gpu};
use core::sync::atomic::{AtomicU64, Ordering};
use ringfold_fabric::channel;
use std::sync::Arc;
use std::time::Instant;

/// A connection to a peer. Operations complete in order, without the peer's help.
///
/// Clones share the connection; any thread may use it. After the last clone is dropped, written data still arrives if
/// that takes no longer than about a second.
#[derive(Clone)]
pub struct Connection {
    inner: Arc<ConnectionState>,
}

pub(super) struct ConnectionState {
    port: Port,
    transport: Transport,
    peer: i32,
    path: DataPath,
    /// The TCP connection, which also detects the peer's death; none for a connection of a port with itself.
    channels: Option<channel::Connection>,
    // Dropped last: until then releases of memory, which may wait for kernels, are deferred.
    _hold: ConnectionHold,
}

pub(super) enum DataPath {
    Tcp(TcpTransport),
    Shared(SharedMemoryTransport),
    Cuda(CudaTransport),
}

impl Connection {
    pub(super) fn new(
        port: Port,
        transport: Transport,
        peer: i32,
        path: DataPath,
        channels: Option<channel::Connection>,
    ) -> Self {
        Self {
            inner: Arc::new(ConnectionState {
                port,
                transport,
                peer,
                path,
                channels,
                _hold: ConnectionHold::new(),
            }),
        }
    }

    pub(super) fn state(&self) -> &Arc<ConnectionState> {
        &self.inner
    }

    /// Writes bytes to the peer's memory. The source is read until a flush.
    pub fn write(
        &self,
        dst: &RegisteredMemory,
        dst_offset: u64,
        src: &RegisteredMemory,
        src_offset: u64,
        bytes: u64,
    ) -> Result<(), PortError> {
        dst.check(dst_offset, bytes)?;
        src.check(src_offset, bytes)?;
        self.check_target(dst)?;
        self.check()?;
        if bytes == 0 {
            return Ok(());
        }
        let (dst, src) = ((dst, dst_offset), (src, src_offset));
        match &self.inner.path {
            DataPath::Tcp(path) => path.write(dst, src, bytes),
            DataPath::Shared(path) => path.write(dst, src, bytes),
            DataPath::Cuda(path) => path.write(dst, src, bytes, None),
        }
    }

    /// As [`Connection::write`], then [`Connection::update`] with a word: one operation of the device if possible.
    pub(super) fn write_and_update(
        &self,
        dst: MemoryAt<'_>,
        src: MemoryAt<'_>,
        bytes: u64,
        (word, value): (MemoryAt<'_>, u64),
    ) -> Result<(), PortError> {
        let DataPath::Cuda(path) = &self.inner.path else {
            self.write(dst.0, dst.1, src.0, src.1, bytes)?;
            return self.update(word.0, word.1, value);
        };
        dst.0.check(dst.1, bytes)?;
        src.0.check(src.1, bytes)?;
        word.0.check_word(word.1)?;
        self.check_target(dst.0)?;
        self.check_target(word.0)?;
        self.check()?;
        path.write(dst, src, bytes, Some((word, value)))
    }

    /// Atomically sets an aligned word of the peer's memory, with release order after all earlier writes.
    pub fn update(&self, dst: &RegisteredMemory, dst_offset: u64, value: u64) -> Result<(), PortError> {
        dst.check_word(dst_offset)?;
        self.check_target(dst)?;
        self.check()?;
        match &self.inner.path {
            DataPath::Tcp(path) => path.update(dst, dst_offset, value),
            DataPath::Shared(path) => path.update(dst, dst_offset, value),
            DataPath::Cuda(path) => path.update(dst, dst_offset, value),
        }
    }

    /// As [`Connection::update`], and also sets a word of host memory of this process.
    ///
    /// # Safety
    /// `src` is the address of a word of host memory that may be written.
    pub unsafe fn update_and_sync(
        &self,
        dst: &RegisteredMemory,
        dst_offset: u64,
        src: u64,
        value: u64,
    ) -> Result<(), PortError> {
        let word = core::ptr::with_exposed_provenance_mut::<u64>(usize::try_from(src).unwrap_or(0));
        if word.is_null() || !word.is_aligned() {
            return Err(PortError::Argument(format!(
                "invalid word address {src:#x}: not a multiple of 8, or null"
            )));
        }
        self.update(dst, dst_offset, value)?;
        // SAFETY: the caller's promise; it is aligned.
        unsafe { AtomicU64::from_ptr(word) }.store(value, Ordering::Release);
        Ok(())
    }

    /// Waits until all writes so far have arrived.
    pub fn flush(&self, deadline: Instant) -> Result<(), PortError> {
        self.check()?;
        let flushed = match &self.inner.path {
            DataPath::Tcp(path) => path.flush(deadline),
            DataPath::Shared(path) => path.flush(deadline),
            DataPath::Cuda(path) => path.flush(deadline, || {
                self.note_stalled_put();
                self.check()
            }),
        };
        // The port's own error says more than its effect on this wait.
        flushed.map_err(|error| match error {
            PortError::Aborted(_) | PortError::Lost { .. } => self.inner.port.check().err().unwrap_or(error),
            error => error,
        })
    }

    /// The transport.
    pub fn transport(&self) -> Transport {
        self.inner.transport
    }

    /// The device of the CUDA transport; for other transports the calling thread's current device.
    pub(super) fn gpu(&self) -> Result<Gpu, CudaError> {
        match &self.inner.path {
            DataPath::Cuda(path) => path.gpu(),
            DataPath::Tcp(_) | DataPath::Shared(_) => Gpu::current(),
        }
    }

    /// The peer's rank.
    pub fn peer(&self) -> i32 {
        self.inner.peer
    }

    /// The TCP connection, if words of host memory arrive through it: waiters make it progress.
    pub(super) fn tcp_channels(&self) -> Option<&channel::Connection> {
        match &self.inner.path {
            DataPath::Tcp(_) => self.inner.channels.as_ref(),
            DataPath::Shared(_) | DataPath::Cuda(_) => None,
        }
    }

    /// Notes in the port that the last write over CUDA IPC seems unable to start, if so. Called again and again.
    pub(super) fn note_stalled_put(&self) {
        if matches!(&self.inner.path, DataPath::Cuda(path) if path.is_stalled()) {
            self.inner.port.note_stalled_put();
        }
    }

    /// The port.
    pub fn port(&self) -> &Port {
        &self.inner.port
    }

    /// Whether the connection has ended: the peer died or left, or the port was aborted.
    pub fn is_over(&self) -> bool {
        self.check().is_err()
    }

    /// Fails if the connection has ended. Data from before may have arrived: waiters check for it first.
    pub fn check(&self) -> Result<(), PortError> {
        self.inner.port.check()?;
        match self.inner.channels.as_ref().and_then(channel::Connection::failure) {
            None => Ok(()),
            Some(failure) => Err(explain(failure, self.inner.peer)),
        }
    }

    fn check_target(&self, dst: &RegisteredMemory) -> Result<(), PortError> {
        if dst.transports().has(self.inner.transport) {
            return Ok(());
        }
        Err(PortError::Argument(format!(
            "the target memory is not registered for {}, the transport of this connection",
            self.inner.transport
        )))
    }
}

impl ConnectionState {
    /// Allocates what writes from memory of this device need.
    pub(super) fn prepare(&self, gpu: Gpu) -> Result<(), CudaError> {
        match &self.path {
            DataPath::Tcp(path) => path.prepare(gpu),
            DataPath::Shared(_) | DataPath::Cuda(_) => Ok(()),
        }
    }

    /// Aborts the connection, and sends the reason to the peer.
    pub(super) fn abort(&self, why: &str) {
        if let Some(channels) = &self.channels {
            channels.abort(why);
        }
    }

    /// Whether no data is in flight any more.
    pub(super) fn is_closed(&self) -> bool {
        let is_idle = match &self.path {
            DataPath::Cuda(path) => path.is_idle(),
            DataPath::Tcp(_) | DataPath::Shared(_) => true,
        };
        is_idle && self.channels.as_ref().is_none_or(channel::Connection::is_closed)
    }

    pub(super) fn leave(&self) {
        if let Some(channels) = &self.channels {
            channels.leave();
        }
    }
}

debug_as!(Connection, self => "Connection(with rank {} over {})", self.inner.peer, self.inner.transport);
