//! Registered memory and channels: put, signal, wait, flush and abort, between two who know each other.
//!
//! A put writes bytes of ours into a segment of the other end's. Everything on a connection happens in the order
//! in which it was asked for: when a signal has come, so have all puts before it. Nothing outside of registered
//! memory is ever written; whoever tries is aborted, and told why.
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
//! // The handle gets to her somehow.
//! to_bob.put_with_signal(hers.part(0..5)?, his.handle().at(10))?;
//! to_ann.wait(Instant::now() + Duration::from_secs(10))?;
//! let mut got = [0; 5];
//! his.read(10, &mut got)?;
//! assert_eq!(&got, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod endpoint;
mod error;
mod incoming;
mod line;
mod outbox;
mod segment;
mod wire;

pub use endpoint::Endpoint;
pub use error::ChannelError;
pub use segment::{Handle, Part, Place, Segment, SegmentId, Sink};

use core::sync::atomic::{AtomicBool, Ordering};
use endpoint::{LineId, Shared};
use std::sync::Arc;
use std::time::Instant;

/// Signals are counted by channel; the two ends of one have the same number.
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

/// What connects two endpoints. It ends, and what is queued still goes out, when it and its channels are gone.
#[derive(Clone, Debug)]
pub struct Connection {
    held: Arc<HeldLine>,
}

/// A connection is kept until this is dropped.
#[derive(Debug)]
struct HeldLine {
    shared: Arc<Shared>,
    id: LineId,
    peer: String,
    has_failed: Arc<AtomicBool>,
}

impl Channel {
    /// Who is at the other end.
    pub fn peer(&self) -> &str {
        self.connection.peer()
    }

    /// Puts bytes of ours there. They are read until the put is flushed: what is written to them before may be
    /// sent, or not.
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
        if let Some((from, to)) = &put
            && !to.holds(from.range.len())
        {
            return Err(ChannelError::Misuse(format!(
                "{} bytes at {} do not fit into a segment of {} bytes",
                from.range.len(),
                to.offset,
                to.handle.bytes()
            )));
        }
        self.connection.held.shared.act(self.connection.held.id, |line| line.send(put, signal))?
    }

    /// Sets an aligned word of the other end's, behind all puts so far. Whoever reads it there sees the old value or the
    /// new one, and with the new one all that was put before.
    pub fn set_word(&self, to: Place, value: u64) -> Result<(), ChannelError> {
        if !to.holds(size_of::<u64>()) {
            let (at, bytes) = (to.offset, to.handle.bytes());
            let words = format!("a word at {at} does not fit into a segment of {bytes} bytes");
            return Err(ChannelError::Misuse(words));
        }
        self.connection.held.shared.act(self.connection.held.id, |line| line.send_word(to, value))?
    }

    /// Waits until all so far is where it belongs: the other end tells, without anyone calling anything there.
    pub fn confirm(&self, deadline: Instant) -> Result<(), ChannelError> {
        let HeldLine { shared, id, .. } = &*self.connection.held;
        let number = shared.act(*id, line::Line::ask)??;
        shared.wait(*id, deadline, "take what was put", |line| line.answered(number))
    }

    /// Waits for the other end's next signal, and takes it.
    pub fn wait(&self, deadline: Instant) -> Result<(), ChannelError> {
        let HeldLine { shared, id, .. } = &*self.connection.held;
        shared.wait(*id, deadline, "signal", |line| line.take_signal(self.id.0))
    }

    /// Takes the other end's next signal, if it is here.
    pub fn poll(&self) -> Result<bool, ChannelError> {
        let HeldLine { shared, id, .. } = &*self.connection.held;
        Ok(shared.poll(*id, |line| line.take_signal(self.id.0))?.is_some())
    }

    /// Forgets the other end's signals that nobody has waited for.
    pub fn forget_signals(&self) {
        // After the end there are none.
        let _ =
            self.connection.held.shared.act(self.connection.held.id, |line| line.forget_signals(self.id.0));
    }

    /// Waits until the puts so far no longer read our memory. They may not have arrived yet; whether they have
    /// is the other end's to signal.
    pub fn flush(&self, deadline: Instant) -> Result<(), ChannelError> {
        self.flush_to(self.mark(), deadline)
    }

    /// A mark behind the puts so far.
    pub fn mark(&self) -> Mark {
        let HeldLine { shared, id, .. } = &*self.connection.held;
        Mark(shared.act(*id, |line| line.last_put()).unwrap_or_default())
    }

    /// As [`Channel::flush`], for the puts before a mark.
    pub fn flush_to(&self, mark: Mark, deadline: Instant) -> Result<(), ChannelError> {
        let HeldLine { shared, id, .. } = &*self.connection.held;
        shared.wait(*id, deadline, "take what was put", |line| line.flushed(mark.0))
    }

    /// Whether the puts before a mark no longer read our memory.
    pub fn is_flushed(&self, mark: Mark) -> Result<bool, ChannelError> {
        let HeldLine { shared, id, .. } = &*self.connection.held;
        Ok(shared.poll(*id, |line| line.flushed(mark.0))?.is_some())
    }

    /// Gives up the connection and all its channels. Everyone who waits on it, here and at the other end, is
    /// told at once by whom and why; what is queued is not sent any more.
    pub fn abort(&self, why: &str) {
        self.connection.abort(why);
    }
}

impl Connection {
    fn new(shared: Arc<Shared>, id: LineId, peer: String, has_failed: Arc<AtomicBool>) -> Self {
        Self { held: Arc::new(HeldLine { shared, id, peer, has_failed }) }
    }

    /// Who is at the other end.
    pub fn peer(&self) -> &str {
        &self.held.peer
    }

    /// The channel of that number.
    pub fn channel(&self, id: ChannelId) -> Channel {
        Channel { connection: self.clone(), id }
    }

    /// Whether it was lost or given up.
    pub fn is_over(&self) -> bool {
        self.held.shared.act(self.held.id, |line| line.is_over()).unwrap_or(true)
    }

    /// How it was lost or given up, if it was.
    pub fn failure(&self) -> Option<ChannelError> {
        // Asked before everything that is sent, so it costs nothing as long as all is well.
        if !self.held.has_failed.load(Ordering::Acquire) {
            return None;
        }
        self.held.shared.act(self.held.id, |line| line.failure().cloned()).unwrap_or_else(Some)
    }

    /// Waits until something is there that the other end puts, or the connection is lost or given up: then what is there
    /// still counts. Whoever waits moves the sockets meanwhile, as with [`Channel::wait`].
    pub fn wait_for(
        &self,
        deadline: Instant,
        mut is_there: impl FnMut() -> bool,
    ) -> Result<(), ChannelError> {
        let HeldLine { shared, id, .. } = &*self.held;
        shared.wait(*id, deadline, "put", |line| match line.failure() {
            _ if is_there() => Some(Ok(())),
            Some(failure) => Some(Err(failure.clone())),
            None => None,
        })
    }

    /// Has something done once when it is lost or the other end gives it up, by the thread that finds out, without a lock. It
    /// should return soon: that thread is not available for anything else meanwhile.
    pub fn when_over(&self, alarm: impl FnOnce(&ChannelError) + Send + 'static) {
        let mut alarm: Option<line::Alarm> = Some(Box::new(alarm));
        let failed = self.held.shared.act(self.held.id, |line| line.set_alarm(&mut alarm));
        if let (Some(alarm), Some(failure)) = (alarm, failed.unwrap_or_else(Some)) {
            alarm(&failure);
        }
    }

    /// Whether nothing is under way any more: all has gone out that will, and both ends are done with it.
    pub fn is_closed(&self) -> bool {
        self.held.shared.act(self.held.id, |line| line.is_closed()).unwrap_or(true)
    }

    /// Takes leave of the other end, as if everyone here had let go of it. What is queued still goes out.
    pub fn leave(&self) {
        let _ = self.held.shared.act(self.held.id, line::Line::leave);
    }

    /// Gives it up; see [`Channel::abort`].
    pub fn abort(&self, why: &str) {
        let _ = self.held.shared.act(self.held.id, |line| line.abort(why));
    }
}

impl Drop for HeldLine {
    fn drop(&mut self) {
        self.shared.forget(self.id);
    }
}
