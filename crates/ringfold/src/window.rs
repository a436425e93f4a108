//! Windows: memory of each rank of a group that the other ranks can write.

pub(crate) mod offer;
mod opening;
mod work;

pub use work::WindowWork;

use crate::error::{invalid, wait_for_cause};
use crate::group::{WatchedWait, WindowHub};
use crate::{Error, Group, limits};
use opening::{Opened, Opening};
use parking_lot::Mutex;
use ringfold_fabric::channel::{Channel, ChannelError, Handle, Mark, Segment};
use ringfold_fabric::limits::LONG_WAIT;
use ringfold_fabric::memory::{Memory, RawMemory, View, lend};
use ringfold_fabric::shared_memory::{FileTicket, MappedMemory, SharedMemory};
use ringfold_fabric::signal_counters::SignalCounters;
use ringfold_fabric::waiter::{Deadline, Policy};
use ringfold_proto::cause::{Cause, PeerName, Wait};
use ringfold_proto::epoch::EpochDescription;
use ringfold_proto::group_call::{GroupCall, GroupCallKind};
use ringfold_proto::id::Rank;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Memory of all ranks of a group, for one-sided communication.
///
/// A put writes into a rank's memory. A signal notifies a rank: it arrives after all earlier puts of the same rank in the
/// same window. Each wait consumes one signal. Between ranks on one host that expose [shared memory](SharedMemory) a put
/// is a copy, and a signal sets a word in memory; everything else uses TCP.
///
/// ```
/// use ringfold::{Bootstrap, Group, SharedMemory};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let file = std::env::temp_dir().join(format!("ringfold-window-{}", std::process::id()));
/// let ranks = (0..2).map(|rank| {
///     let at = Bootstrap::File(file.clone());
///     std::thread::spawn(move || -> Result<(), ringfold::Error> {
///         let group = Group::builder().rank(rank).world(2).bootstrap(at).connect()?;
///         let window = group.window(SharedMemory::create(100).unwrap(), &[])?;
///         let other = 1 - rank;
///         window.put(b"hello", other, 10, None)?;
///         window.signal(other, None)?;
///         window.wait_signal(other, None)?;
///         let mut got = [0; 5];
///         window.read(rank, 10, &mut got)?;
///         assert_eq!(&got, b"hello");
///         window.close()
///     })
/// });
/// for rank in ranks.collect::<Vec<_>>() {
///     rank.join().unwrap()?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct Window {
    inner: Arc<WindowInner>,
}

/// The memory that a rank exposes in a window.
#[derive(Debug)]
pub enum WindowMemory {
    /// Private memory of this process; the other ranks write it over TCP.
    Private(Memory),
    /// Shared memory, which ranks on this host map.
    Shared(SharedMemory),
}

impl From<Memory> for WindowMemory {
    fn from(memory: Memory) -> Self {
        Self::Private(memory)
    }
}

impl From<SharedMemory> for WindowMemory {
    fn from(memory: SharedMemory) -> Self {
        Self::Shared(memory)
    }
}

impl WindowMemory {
    fn into_parts(self) -> (RawMemory, Option<(OwnedFd, FileTicket)>) {
        match self {
            Self::Private(memory) => (memory.into(), None),
            Self::Shared(shared) => {
                let ticket = shared.ticket();
                let (memory, file) = shared.into_parts();
                match ticket {
                    Ok(ticket) => (memory, Some((file, ticket))),
                    Err(error) => {
                        tracing::debug!(%error, "the memory of a window is not shared: creating its ticket failed");
                        (memory, None)
                    }
                }
            }
        }
    }
}

/// The state of a window, shared with its works.
struct WindowInner {
    group: Group,
    hub: Arc<WindowHub>,
    description: EpochDescription,
    own: ExposedMemory,
    /// Where this rank receives signals through memory.
    signals: Arc<SignalCounters>,
    peers: Vec<PeerWindow>,
    about: Vec<Vec<u8>>,
    /// How waits for signals spin and sleep.
    policy: Policy,
}

struct ExposedMemory {
    memory: OwnMemory,
    /// Kept open: other ranks open it through this process.
    _file: Option<OwnedFd>,
}

enum OwnMemory {
    /// Not written by channels.
    Held(Mutex<RawMemory>),
    Registered(Segment),
}

/// The window of one rank, as this rank uses it.
struct PeerWindow {
    bytes: usize,
    mapped: Option<MappedMemory>,
    to: PutPath,
    /// Whether that rank's signals arrive over TCP, rather than through memory.
    signals_by_tcp: bool,
    /// If either of the two ranks uses TCP.
    channels: Option<PeerChannels>,
    consumed: Mutex<ConsumedSignals>,
}

/// How puts and signals reach a rank.
enum PutPath {
    Own,
    /// Its mapped memory, and its signals in memory.
    Mapped(SignalCounters),
    /// TCP, with the handle of its memory.
    Tcp(Handle),
}

/// The TCP channels to a rank.
struct PeerChannels {
    puts: Channel,
    /// Signals that an end has made its last put.
    end: Channel,
}

/// The number of signals of a rank that waits have consumed.
#[derive(Default)]
struct ConsumedSignals {
    /// Signals through memory, modulo 2³².
    rings: u32,
    /// Signals over TCP that belong to dropped waits.
    owed: u64,
}

impl Window {
    pub(crate) fn open(group: &Group, memory: WindowMemory, about: &[u8]) -> Result<Self, Error> {
        if about.len() > limits::WINDOW_ABOUT_BYTES_MAX {
            return Err(invalid!(
                "invalid user data of a window: {} bytes, at most {} are supported",
                about.len(),
                limits::WINDOW_ABOUT_BYTES_MAX
            ));
        }
        let (description, hub) = group.window_context()?;
        let mut opened = hub.open();
        let number = *opened;
        *opened = opened.wrapping_add(1);
        let opening = Opening { group, hub: hub.clone(), description: description.clone(), number };
        let Opened { own, signals, peers, about } = opening.run(memory, about)?;
        drop(opened);
        hub.watch(&signals);
        let policy = Policy::SIGNAL.for_cores(group.has_own_core());
        let group = group.clone();
        Ok(Self {
            inner: Arc::new(WindowInner { group, hub, description, own, signals, peers, about, policy }),
        })
    }

    /// The group of the window.
    pub fn group(&self) -> &Group {
        &self.inner.group
    }

    /// The size of a rank's memory in bytes.
    pub fn bytes(&self, rank: usize) -> Result<usize, Error> {
        self.inner.peer(rank).map(|peer| peer.bytes)
    }

    /// The user data that a rank attached to its memory.
    pub fn about(&self, rank: usize) -> Result<&[u8], Error> {
        self.inner.peer(rank).map(|_| &*self.inner.about[rank])
    }

    /// Whether a rank's memory is mapped into this process, or its own.
    pub fn is_mapped(&self, rank: usize) -> Result<bool, Error> {
        self.inner.peer(rank).map(|peer| !matches!(peer.to, PutPath::Tcp(_)) || peer.mapped.is_some())
    }

    /// The file of another rank's mapped memory, and the offset in it.
    pub fn file(&self, rank: usize) -> Result<Option<(BorrowedFd<'_>, u64)>, Error> {
        let peer = self.inner.peer(rank)?;
        Ok(peer.mapped.as_ref().map(|mapped| (mapped.file(), mapped.offset())))
    }

    /// Copies from a rank's memory: its own, or one that is [mapped](Self::is_mapped).
    pub fn read(&self, rank: usize, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        let peer = self.inner.peer(rank)?;
        self.inner.check(rank, peer, offset, into.len())?;
        match (&peer.to, &peer.mapped) {
            (PutPath::Own, _) => self.inner.own.read(offset, into),
            (_, Some(mapped)) => mapped.read(offset, into),
            _ if into.is_empty() => {}
            _ => {
                let name = self.inner.name(rank);
                return Err(Error::Misuse(format!(
                    "unsupported read: the memory of {name} is not mapped here"
                )));
            }
        }
        Ok(())
    }

    /// Writes bytes into a rank's memory, and returns when they are sent. Later signals arrive after them.
    ///
    /// Without a timeout the group's applies. If the bytes cannot be sent in time the group fails.
    pub fn put(&self, from: &[u8], to: usize, offset: usize, timeout: Option<Duration>) -> Result<(), Error> {
        lend(from, |view| self.begin_put(view, to, offset, timeout)?.wait())
    }

    /// As [`Window::put`], without waiting until the bytes are sent.
    pub fn begin_put(
        &self,
        from: View,
        to: usize,
        offset: usize,
        timeout: Option<Duration>,
    ) -> Result<WindowWork, Error> {
        let until = self.inner.deadline(timeout);
        let mark = self.inner.put(from, to, offset, until)?;
        Ok(WindowWork::put(self.inner.clone(), to, mark, until))
    }

    /// Signals a rank, after all earlier puts to it. Returns when the signal is queued.
    ///
    /// Without a timeout the group's applies. If the signal cannot be queued in time, because too many puts to that rank
    /// wait, the group fails.
    pub fn signal(&self, to: usize, timeout: Option<Duration>) -> Result<(), Error> {
        self.inner.signal(to, timeout)
    }

    /// Waits for the next signal of a rank, and consumes it.
    ///
    /// Without a timeout the group's applies. After [`Error::TimedOut`] the caller may wait again.
    pub fn wait_signal(&self, from: usize, timeout: Option<Duration>) -> Result<(), Error> {
        self.begin_wait_signal(from, timeout)?.wait()
    }

    /// As [`Window::wait_signal`], without waiting. A dropped work still consumes its signal.
    pub fn begin_wait_signal(&self, from: usize, timeout: Option<Duration>) -> Result<WindowWork, Error> {
        self.inner.peer(from)?;
        if self.inner.group.is_retired() {
            return Err(Error::Left);
        }
        Ok(WindowWork::signal(self.inner.clone(), from, self.inner.deadline(timeout)))
    }

    /// Closes the window: a collective call, after which all puts have arrived.
    ///
    /// Then no rank writes this rank's memory. Dropping a window does not notify the other ranks.
    pub fn close(&self) -> Result<(), Error> {
        let until = self.inner.deadline(None);
        let by_tcp =
            || self.inner.peers.iter().enumerate().filter_map(|(r, p)| Some((r, p.channels.as_ref()?)));
        for (rank, channels) in by_tcp() {
            channels.end.signal().map_err(|error| self.inner.explain(rank, error))?;
        }
        for (rank, channels) in by_tcp() {
            self.inner.wait_for_end(rank, &channels.end, until)?;
            channels.puts.forget_signals();
        }
        self.inner.group.barrier()
    }
}

impl core::fmt::Debug for Window {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let bytes: Vec<_> = self.inner.peers.iter().map(|peer| peer.bytes).collect();
        f.debug_struct("Window").field("group", &self.inner.group).field("bytes", &bytes).finish()
    }
}

impl ExposedMemory {
    fn read(&self, offset: usize, into: &mut [u8]) {
        match &self.memory {
            OwnMemory::Held(memory) => memory.lock().read(offset, into),
            // The caller has checked the range.
            OwnMemory::Registered(segment) => drop(segment.read(offset, into)),
        }
    }

    fn write(&self, offset: usize, from: &[u8]) {
        match &self.memory {
            OwnMemory::Held(memory) => memory.lock().write(offset, from),
            OwnMemory::Registered(segment) => drop(segment.write(offset, from)),
        }
    }
}

impl WindowInner {
    fn peer(&self, rank: usize) -> Result<&PeerWindow, Error> {
        self.peers
            .get(rank)
            .ok_or_else(|| invalid!("rank {rank} is out of range: ranks are 0 to {}", self.peers.len() - 1))
    }

    fn check(&self, rank: usize, peer: &PeerWindow, offset: usize, bytes: usize) -> Result<(), Error> {
        match offset.checked_add(bytes) {
            Some(end) if end <= peer.bytes => Ok(()),
            _ => Err(invalid!(
                "{bytes} bytes at {offset} are past the end of the window of {}, which has {} bytes",
                self.name(rank),
                peer.bytes
            )),
        }
    }

    fn deadline(&self, timeout: Option<Duration>) -> Instant {
        limits::deadline_after(timeout.unwrap_or_else(|| self.group.timeout()))
    }

    /// Puts. Returns a mark behind the put if it is not completely sent.
    fn put(&self, from: View, to: usize, offset: usize, until: Instant) -> Result<Option<Mark>, Error> {
        let peer = self.peer(to)?;
        self.check(to, peer, offset, from.len())?;
        self.check_peer(to)?;
        match (&peer.to, &peer.mapped, &peer.channels) {
            _ if from.is_empty() => {}
            (PutPath::Own, ..) => {
                // The source may overlap this memory in other languages.
                let copy = from.as_slice().to_vec();
                self.own.write(offset, &copy);
            }
            (PutPath::Mapped(_), Some(mapped), _) => mapped.write(offset, from.as_slice()),
            (PutPath::Tcp(handle), _, Some(channels)) => loop {
                match channels.puts.put(from.clone().into(), handle.at(offset as u64)) {
                    Ok(()) => return Ok(Some(channels.puts.mark())),
                    Err(ChannelError::Full { .. }) => self.flush(to, channels.puts.mark(), until)?,
                    Err(error) => return Err(self.explain(to, error)),
                }
            },
            _ => return Err(Error::Internal("a rank of a window has no transport".into())),
        }
        Ok(None)
    }

    /// Waits until puts are sent. If that times out the group fails: a part of the put is sent already.
    fn flush(&self, to: usize, mark: Mark, until: Instant) -> Result<(), Error> {
        let kind = GroupCallKind::Put { to: Rank::from_index(to) };
        self.watched(to, kind, until, |until| self.try_flush(to, mark, until))
    }

    /// Waits until a rank has made its last put, which it signals on a channel of its own.
    fn wait_for_end(&self, rank: usize, end: &Channel, until: Instant) -> Result<(), Error> {
        self.watched(rank, GroupCallKind::CloseWindow, until, |until| match end.wait(until) {
            Ok(()) => Ok(true),
            Err(ChannelError::Deadline { .. }) => Ok(false),
            Err(error) => Err(self.explain(rank, error)),
        })
    }

    /// Waits for a rank, and has the group report it if it takes long. If `wait` times out the group fails.
    fn watched(
        &self,
        rank: usize,
        kind: GroupCallKind,
        until: Instant,
        wait: impl Fn(Instant) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let began = Instant::now();
        if wait(until.min(began + LONG_WAIT))? {
            return Ok(());
        }
        let watched = self.group.watch(GroupCall::plain(kind), rank, began, until);
        if wait(until)? { Ok(()) } else { Err(self.fail_group(rank, watched.as_ref())) }
    }

    /// Waits until puts are sent. Returns whether they were in time.
    fn try_flush(&self, to: usize, mark: Mark, until: Instant) -> Result<bool, Error> {
        let Some(channels) = &self.peer(to)?.channels else { return Ok(true) };
        match channels.puts.flush_to(mark, until) {
            Ok(()) => Ok(true),
            Err(ChannelError::Deadline { .. }) => Ok(false),
            Err(error) => Err(self.explain(to, error)),
        }
    }

    fn signal(&self, to: usize, timeout: Option<Duration>) -> Result<(), Error> {
        let peer = self.peer(to)?;
        self.check_peer(to)?;
        let me = Rank::from_index(self.group.rank());
        match (&peer.to, &peer.channels) {
            (PutPath::Own, _) => self.signals.signal(me),
            (PutPath::Mapped(signals), _) => signals.signal(me),
            (PutPath::Tcp(_), Some(channels)) => {
                let until = self.deadline(timeout);
                loop {
                    match channels.puts.signal() {
                        Ok(()) => break,
                        Err(ChannelError::Full { .. }) => self.flush(to, channels.puts.mark(), until)?,
                        Err(error) => return Err(self.explain(to, error)),
                    }
                }
            }
            _ => return Err(Error::Internal("a rank of a window has no transport".into())),
        }
        Ok(())
    }

    /// Waits for a signal, and consumes it. Returns whether there was one in time.
    fn take_signal(&self, from: usize, until: Instant) -> Result<bool, Error> {
        let peer = self.peer(from)?;
        match &peer.channels {
            Some(channels) if peer.signals_by_tcp => {
                self.take_tcp_signal(from, &channels.puts, &peer.consumed, until)
            }
            _ => self.take_memory_signal(from, &peer.consumed, until),
        }
    }

    fn take_tcp_signal(
        &self,
        from: usize,
        channel: &Channel,
        consumed: &Mutex<ConsumedSignals>,
        until: Instant,
    ) -> Result<bool, Error> {
        loop {
            if let Some(error) = self.hub.ended() {
                return Err(error);
            }
            let signalled =
                if Instant::now() >= until { channel.poll() } else { channel.wait(until).map(|()| true) };
            match signalled {
                Ok(true) => {
                    let mut consumed = consumed.lock();
                    if consumed.owed == 0 {
                        return Ok(true);
                    }
                    consumed.owed -= 1;
                }
                Ok(false) | Err(ChannelError::Deadline { .. }) => return Ok(false),
                Err(error) => return Err(self.explain(from, error)),
            }
        }
    }

    fn take_memory_signal(
        &self,
        from: usize,
        consumed: &Mutex<ConsumedSignals>,
        until: Instant,
    ) -> Result<bool, Error> {
        let rank = Rank::from_index(from);
        let rings = |consumed: &ConsumedSignals| self.signals.count(rank).wrapping_sub(consumed.rings) as i32;
        loop {
            let events = self.hub.events();
            if let Some(error) = self.hub.ended() {
                return Err(error);
            }
            // Checked before the signals: those of a rank that has left still count.
            let departed = self.hub.departed(rank, || self.peer_name(from));
            {
                let mut consumed = consumed.lock();
                if rings(&consumed) > 0 {
                    consumed.rings = consumed.rings.wrapping_add(1);
                    return Ok(true);
                }
            }
            if let Some(error) = departed {
                return Err(error);
            }
            if Deadline::from(until).is_over() {
                return Ok(false);
            }
            let is_enough = || rings(&consumed.lock()) > 0 || self.hub.events() != events;
            self.signals.wait(rank, self.policy, until.into(), is_enough);
        }
    }

    /// A dropped wait still consumes its signal.
    fn skip_signal(&self, from: usize) {
        if let Some(peer) = self.peers.get(from) {
            let mut consumed = peer.consumed.lock();
            if peer.signals_by_tcp {
                consumed.owed += 1;
            } else {
                consumed.rings = consumed.rings.wrapping_add(1);
            }
        }
    }

    /// Fails if the group has failed or was left, or the rank has left.
    fn check_peer(&self, to: usize) -> Result<(), Error> {
        if self.group.is_retired() {
            return Err(self.hub.ended().unwrap_or(Error::Left));
        }
        if self.hub.events() == 0 {
            return Ok(());
        }
        let ended = self.hub.ended();
        let ended = ended.or_else(|| self.hub.departed(Rank::from_index(to), || self.peer_name(to)));
        ended.map_or(Ok(()), Err)
    }

    /// The cause of a failed channel, which the group usually knows a moment later.
    fn explain(&self, rank: usize, error: ChannelError) -> Error {
        if let ChannelError::Misuse(why) = error {
            return Error::BadArgument(why);
        }
        let failed =
            || Error::System(format!("the window's connection to {} failed: {error}", self.name(rank)));
        wait_for_cause(|| self.check_peer(rank).err()).unwrap_or_else(failed)
    }

    fn fail_group(&self, rank: usize, watched: Option<&WatchedWait>) -> Error {
        let wait = watched.and_then(|watched| watched.describe(rank));
        self.group
            .abort_with(Cause::Timeout(wait.unwrap_or_else(|| Wait::for_peers([self.peer_name(rank)]))));
        self.hub.ended().unwrap_or(Error::Left)
    }

    fn timed_out(&self, from: usize, watched: Option<&WatchedWait>) -> Error {
        let known = watched.and_then(|watched| watched.describe(from)).map(|wait| {
            let state = wait.missing.first().and_then(|missing| missing.state());
            wait.duration() + &state.map(|state| format!(" ({state})")).unwrap_or_default()
        });
        let known = known.unwrap_or_default();
        Error::TimedOut(format!("timed out waiting for a signal from {}{known}", self.name(from)))
    }

    fn name(&self, rank: usize) -> &str {
        &self.description.members[rank].name
    }

    fn peer_name(&self, rank: usize) -> PeerName {
        self.description.members[rank].peer_name()
    }
}
