//! Registered memory and channels: put, signal, wait, flush and abort, between two endpoints.
//!
//! A put writes local bytes into a segment of the other end. Everything on a connection happens in order: when a signal
//! arrives, all puts before it have arrived. Nothing outside of registered memory is ever written; an attempt aborts the
//! connection, with the reason.
//!
//! ```
//! use ringfold_fabric::channel::{ChannelId, Endpoint};
//! use ringfold_fabric::memory::Memory;
//! use std::net::{TcpListener, TcpStream};
//! use std::time::{Duration, Instant};
//!
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let stream = TcpStream::connect(listener.local_addr()?)?;
//! let (ann, bob) = (Endpoint::new("ann")?, Endpoint::new("bob")?);
//! let to_bob = ann.connect("bob", vec![stream])?.channel(ChannelId(0));
//! let to_ann = bob.connect("ann", vec![listener.accept()?.0])?.channel(ChannelId(0));
//!
//! let hers = ann.register(Memory::from(b"hello".to_vec()))?;
//! let his = bob.register(Memory::zeroed(100))?;
//! // The handle is sent to her by other means.
//! to_bob.put_with_signal(hers.part(0..5)?, his.handle().at(10))?;
//! to_ann.wait(Instant::now() + Duration::from_secs(10))?;
//! let mut got = [0; 5];
//! his.read(10, &mut got)?;
//! assert_eq!(&got, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod connection_state;
mod endpoint;
mod error;
mod incoming;
mod outbox;
mod segment;
pub(crate) mod wire;

pub use endpoint::Endpoint;
pub use error::ChannelError;
pub use segment::{Handle, Part, Place, Segment, SegmentId, Sink};

use connection_state::{ConnectionState, FailureCallback};
use core::sync::atomic::{AtomicBool, Ordering};
use endpoint::{ConnectionId, Shared};
use std::sync::Arc;
use std::time::Instant;

/// The number of a channel, the same at both ends. Each has its own count of signals.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChannelId(pub u32);

/// A position behind the puts of a connection at some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark(u64);

/// Puts and signals to one other end, and waits for its signals. Clones are the same channel.
#[derive(Clone, Debug)]
pub struct Channel {
    connection: Connection,
    id: ChannelId,
}

/// Connects two endpoints. When it and its channels are dropped it ends, after what is queued was sent.
#[derive(Clone, Debug)]
pub struct Connection {
    handle: Arc<ConnectionHandle>,
}

/// Keeps a connection until it is dropped.
#[derive(Debug)]
struct ConnectionHandle {
    shared: Arc<Shared>,
    id: ConnectionId,
    peer: String,
    has_failed: Arc<AtomicBool>,
}

impl Channel {
    /// The name of the other end.
    pub fn peer(&self) -> &str {
        self.connection.peer()
    }

    /// Puts local bytes there. They are read until the put is flushed; changes before that may be sent, or not.
    pub fn put(&self, from: Part, to: Place) -> Result<(), ChannelError> {
        self.send(Some((from, to)), None)
    }

    /// Signals the other end, behind all puts so far.
    pub fn signal(&self) -> Result<(), ChannelError> {
        self.send(None, Some(self.id.0))
    }

    /// Puts, and signals behind it.
    pub fn put_with_signal(&self, from: Part, to: Place) -> Result<(), ChannelError> {
        self.send(Some((from, to)), Some(self.id.0))
    }

    fn send(&self, put: Option<(Part, Place)>, signal: Option<u32>) -> Result<(), ChannelError> {
        if let Some((from, to)) = &put {
            check_fits(to, from.range.len())?;
        }
        self.connection.act(|state| state.send(put, signal))?
    }

    /// Sets an aligned word of the other end, behind all puts so far. A reader there sees the old value or the new one,
    /// and with the new one all that was put before.
    pub fn set_word(&self, to: Place, value: u64) -> Result<(), ChannelError> {
        check_fits(&to, size_of::<u64>())?;
        self.connection.act(|state| state.send_word(to, value))?
    }

    /// Waits until everything so far is in place. The other end answers without a call of its user.
    pub fn confirm(&self, deadline: Instant) -> Result<(), ChannelError> {
        let number = self.connection.act(ConnectionState::ask)??;
        self.connection.wait(deadline, "take what was put", |state| state.answered(number))
    }

    /// Waits for the other end's next signal, and takes it.
    pub fn wait(&self, deadline: Instant) -> Result<(), ChannelError> {
        self.connection.wait(deadline, "signal", |state| state.take_signal(self.id.0))
    }

    /// Takes the other end's next signal, if it has arrived.
    pub fn poll(&self) -> Result<bool, ChannelError> {
        let ConnectionHandle { shared, id, .. } = &*self.connection.handle;
        Ok(shared.poll(*id, |state| state.take_signal(self.id.0))?.is_some())
    }

    /// Drops signals of the other end that were not waited for.
    pub fn forget_signals(&self) {
        // After the end there are none.
        let _ = self.connection.act(|state| state.forget_signals(self.id.0));
    }

    /// Waits until the puts so far no longer read local memory. They may not have arrived; the other end can signal that.
    pub fn flush(&self, deadline: Instant) -> Result<(), ChannelError> {
        self.flush_to(self.mark(), deadline)
    }

    /// A mark behind the puts so far.
    pub fn mark(&self) -> Mark {
        Mark(self.connection.act(|state| state.last_put()).unwrap_or_default())
    }

    /// As [`Channel::flush`], for the puts before a mark.
    pub fn flush_to(&self, mark: Mark, deadline: Instant) -> Result<(), ChannelError> {
        self.connection.wait(deadline, "take what was put", |state| state.flushed(mark.0))
    }

    /// Whether the puts before a mark no longer read local memory.
    pub fn is_flushed(&self, mark: Mark) -> Result<bool, ChannelError> {
        let ConnectionHandle { shared, id, .. } = &*self.connection.handle;
        Ok(shared.poll(*id, |state| state.flushed(mark.0))?.is_some())
    }

    /// Aborts the connection and all its channels. All waits on it, here and at the other end, fail at once with the
    /// name of this end and the reason. What is queued is not sent any more.
    pub fn abort(&self, why: &str) {
        self.connection.abort(why);
    }
}

/// Whether so many bytes fit into the segment.
fn check_fits(to: &Place, bytes: usize) -> Result<(), ChannelError> {
    if to.holds(bytes) {
        return Ok(());
    }
    let (at, of) = (to.offset, to.handle.bytes());
    Err(ChannelError::Misuse(format!("{bytes} bytes at {at} do not fit into a segment of {of} bytes")))
}

impl Connection {
    fn new(shared: Arc<Shared>, id: ConnectionId, peer: String, has_failed: Arc<AtomicBool>) -> Self {
        Self { handle: Arc::new(ConnectionHandle { shared, id, peer, has_failed }) }
    }

    fn act<T>(&self, action: impl FnOnce(&mut ConnectionState) -> T) -> Result<T, ChannelError> {
        self.handle.shared.act(self.handle.id, action)
    }

    fn wait<T>(
        &self,
        deadline: Instant,
        awaited: &'static str,
        ready: impl FnMut(&mut ConnectionState) -> Option<Result<T, ChannelError>>,
    ) -> Result<T, ChannelError> {
        self.handle.shared.wait(self.handle.id, deadline, awaited, ready)
    }

    /// The name of the other end.
    pub fn peer(&self) -> &str {
        &self.handle.peer
    }

    /// The channel of that number.
    pub fn channel(&self, id: ChannelId) -> Channel {
        Channel { connection: self.clone(), id }
    }

    /// Whether it was lost or aborted.
    pub fn is_over(&self) -> bool {
        self.act(|state| state.is_over()).unwrap_or(true)
    }

    /// Why it was lost or aborted, if it was.
    pub fn failure(&self) -> Option<ChannelError> {
        // Called before everything that is sent, so it must be cheap.
        if !self.handle.has_failed.load(Ordering::Acquire) {
            return None;
        }
        self.act(|state| state.failure().cloned()).unwrap_or_else(Some)
    }

    /// Waits until something that the other end puts is there, or the connection is lost or aborted: what is there then
    /// still counts. The waiting thread drives the sockets meanwhile, as with [`Channel::wait`].
    pub fn wait_for(
        &self,
        deadline: Instant,
        mut is_there: impl FnMut() -> bool,
    ) -> Result<(), ChannelError> {
        self.wait(deadline, "put", |state| match state.failure() {
            _ if is_there() => Some(Ok(())),
            Some(failure) => Some(Err(failure.clone())),
            None => None,
        })
    }

    /// Calls back once when it is lost or the other end aborts it, from the thread that detects it, without a lock. That
    /// thread does nothing else meanwhile, so the callback should return soon.
    pub fn when_over(&self, callback: impl FnOnce(&ChannelError) + Send + 'static) {
        let mut callback: Option<FailureCallback> = Some(Box::new(callback));
        let failed = self.act(|state| state.set_callback(&mut callback));
        if let (Some(callback), Some(failure)) = (callback, failed.unwrap_or_else(Some)) {
            callback(&failure);
        }
    }

    /// Whether everything was sent, and both ends are done with it.
    pub fn is_closed(&self) -> bool {
        self.act(|state| state.is_closed()).unwrap_or(true)
    }

    /// Ends it as if all handles were dropped. What is queued is still sent.
    pub fn leave(&self) {
        let _ = self.act(ConnectionState::leave);
    }

    /// Aborts it; see [`Channel::abort`].
    pub fn abort(&self, why: &str) {
        let _ = self.act(|state| state.abort(why));
    }
}

impl Drop for ConnectionHandle {
    fn drop(&mut self) {
        self.shared.forget(self.id);
    }
}
