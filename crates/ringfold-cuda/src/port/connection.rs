//! What connects two ports: writes into the other side's memory, and words behind them.

use super::Port;
use super::cuda_road::CudaRoad;
use super::error::PortError;
use super::registered_memory::RegisteredMemory;
use super::shared_road::SharedRoad;
use super::tcp_road::{TcpRoad, explain};
use super::transport::Transport;
use crate::cleaner::Hold;
use crate::{CudaError, Gpu};
use core::sync::atomic::{AtomicU64, Ordering};
use ringfold_fabric::channel;
use std::sync::Arc;
use std::time::Instant;

/// A connection with one other rank. Everything on it happens in the order in which it was asked for, and goes on
/// without the other side's help. Clones are the same connection; it may be used by any thread.
///
/// When the last clone is gone, what was written still arrives, if that takes no longer than a second or so.
#[derive(Clone)]
pub struct Connection {
    inner: Arc<Link>,
}

/// A connection from within.
pub(super) struct Link {
    port: Port,
    transport: Transport,
    peer: i32,
    road: Road,
    /// What the two sides know of each other's end by; none if both are one.
    line: Option<channel::Connection>,
    /// The last to go: until then nothing makes the driver wait for kernels, which may wait for what is written here.
    _hold: Hold,
}

/// How bytes get to the other side.
pub(super) enum Road {
    Tcp(TcpRoad),
    Shared(SharedRoad),
    Cuda(CudaRoad),
}

impl Connection {
    pub(super) fn new(
        port: Port,
        transport: Transport,
        peer: i32,
        road: Road,
        line: Option<channel::Connection>,
    ) -> Self {
        Self { inner: Arc::new(Link { port, transport, peer, road, line, _hold: Hold::new() }) }
    }

    pub(super) fn link(&self) -> &Arc<Link> {
        &self.inner
    }

    /// Writes bytes of ours into the other side's memory. They are read until this is flushed.
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
        match &self.inner.road {
            Road::Tcp(road) => road.write(dst, dst_offset, src, src_offset, bytes),
            Road::Shared(road) => road.write(dst, dst_offset, src, src_offset, bytes),
            Road::Cuda(road) => road.write(dst, dst_offset, src, src_offset, bytes),
        }
    }

    /// Sets an aligned word of the other side's memory, behind all writes so far. Whoever reads it there sees the old
    /// value or the new one, and with the new one everything that was written before.
    pub fn update(&self, dst: &RegisteredMemory, dst_offset: u64, value: u64) -> Result<(), PortError> {
        dst.check_word(dst_offset)?;
        self.check_target(dst)?;
        self.check()?;
        match &self.inner.road {
            Road::Tcp(road) => road.update(dst, dst_offset, value),
            Road::Shared(road) => road.update(dst, dst_offset, value),
            Road::Cuda(road) => road.update(dst, dst_offset, value),
        }
    }

    /// Sets a word of the host's memory here, and one of the other side's as [`Connection::update`] does.
    ///
    /// # Safety
    /// `src` is the address of a word of the host's memory that may be written.
    pub unsafe fn update_and_sync(
        &self,
        dst: &RegisteredMemory,
        dst_offset: u64,
        src: u64,
        value: u64,
    ) -> Result<(), PortError> {
        let word = core::ptr::with_exposed_provenance_mut::<u64>(usize::try_from(src).unwrap_or(0));
        if word.is_null() || !word.is_aligned() {
            return Err(PortError::Argument(format!("{src:#x} is not the address of an aligned word")));
        }
        self.update(dst, dst_offset, value)?;
        // SAFETY: the caller's promise; it is aligned.
        unsafe { AtomicU64::from_ptr(word) }.store(value, Ordering::Release);
        Ok(())
    }

    /// Waits until everything so far is where it belongs.
    pub fn flush(&self, deadline: Instant) -> Result<(), PortError> {
        self.check()?;
        let flushed = match &self.inner.road {
            Road::Tcp(road) => road.flush(deadline),
            Road::Shared(road) => road.flush(deadline),
            Road::Cuda(road) => road.flush(deadline, || self.check()),
        };
        // Why the port is over says more than what that did to this wait.
        flushed.map_err(|error| match error {
            PortError::Aborted(_) | PortError::Lost { .. } => self.inner.port.check().err().unwrap_or(error),
            error => error,
        })
    }

    /// The way that it takes.
    pub fn transport(&self) -> Transport {
        self.inner.transport
    }

    /// The device that works for it; if none does, the one that the calling thread has turned to.
    pub(super) fn gpu(&self) -> Result<Gpu, CudaError> {
        match &self.inner.road {
            Road::Cuda(road) => road.gpu(),
            Road::Tcp(_) | Road::Shared(_) => Gpu::current(),
        }
    }

    /// The rank at the other side.
    pub fn peer(&self) -> i32 {
        self.inner.peer
    }

    /// What words of the host come by, if they come over TCP: whoever waits for one moves it.
    pub(super) fn wire(&self) -> Option<&channel::Connection> {
        match &self.inner.road {
            Road::Tcp(_) => self.inner.line.as_ref(),
            Road::Shared(_) | Road::Cuda(_) => None,
        }
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
        self.inner.port.check()?;
        match self.inner.line.as_ref().and_then(channel::Connection::failure) {
            None => Ok(()),
            Some(failure) => Err(explain(failure, self.inner.peer)),
        }
    }

    fn check_target(&self, dst: &RegisteredMemory) -> Result<(), PortError> {
        if dst.transports().has(self.inner.transport) {
            return Ok(());
        }
        Err(PortError::Argument(format!(
            "the memory that is to be written was not registered for {}, which this connection uses",
            self.inner.transport
        )))
    }
}

impl Link {
    /// Memory of this device may be written from or into soon.
    pub(super) fn prepare(&self, gpu: Gpu) -> Result<(), CudaError> {
        match &self.road {
            Road::Tcp(road) => road.prepare(gpu),
            Road::Shared(_) | Road::Cuda(_) => Ok(()),
        }
    }

    /// Gives it up, and tells the other side why.
    pub(super) fn abort(&self, why: &str) {
        if let Some(line) = &self.line {
            line.abort(why);
        }
    }

    /// Whether nothing is under way on it any more.
    pub(super) fn is_closed(&self) -> bool {
        let is_idle = match &self.road {
            Road::Cuda(road) => road.is_idle(),
            Road::Tcp(_) | Road::Shared(_) => true,
        };
        is_idle && self.line.as_ref().is_none_or(channel::Connection::is_closed)
    }

    /// Takes leave of the other side.
    pub(super) fn leave(&self) {
        if let Some(line) = &self.line {
            line.leave();
        }
    }
}

impl core::fmt::Debug for Connection {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(out, "Connection(with rank {} over {})", self.inner.peer, self.inner.transport)
    }
}
