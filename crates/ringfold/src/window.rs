//! Windows: memory that each rank of a group lays open for the others to write.

mod offer;
mod opening;
mod work;

pub use work::WindowWork;

use crate::group::Lobby;
use crate::{Error, Group, limits};
use opening::{Opened, Opening};
use parking_lot::Mutex;
use ringfold_fabric::bells::Bells;
use ringfold_fabric::channel::{Channel, ChannelError, Handle, Mark, Segment};
use ringfold_fabric::memory::{Memory, View, lend};
use ringfold_fabric::shared_memory::{FileTicket, MappedMemory, SharedMemory};
use ringfold_fabric::waiter::{Deadline, Policy};
use ringfold_proto::cause::{Cause, PeerName};
use ringfold_proto::epoch::EpochDescription;
use ringfold_proto::id::Rank;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Memory of all ranks of a group, which each of them can write without the others' help.
///
/// A put writes into a rank's memory. A signal tells a rank that what was put before it is there: it arrives behind all
/// puts of the same window and from the same rank. Each wait takes one signal. Between ranks of one host that have laid
/// open [shared memory](SharedMemory), a put is a copy and a signal a word in memory; all else goes over TCP.
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
///         window.signal(other)?;
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
    pane: Arc<Pane>,
}

/// What a rank lays open in a window.
#[derive(Debug)]
pub enum WindowMemory {
    /// Memory that only this process has: the others reach it over TCP.
    Private(Memory),
    /// Memory that those of this host can map.
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
    fn into_parts(self) -> (Memory, Option<(OwnedFd, FileTicket)>) {
        match self {
            Self::Private(memory) => (memory, None),
            Self::Shared(shared) => {
                let ticket = shared.ticket();
                let (memory, file) = shared.into_parts();
                match ticket {
                    Ok(ticket) => (memory, Some((file, ticket))),
                    Err(error) => {
                        tracing::debug!(%error, "memory of a window can't be shared");
                        (memory, None)
                    }
                }
            }
        }
    }
}

/// A window from within.
struct Pane {
    group: Group,
    lobby: Arc<Lobby>,
    description: EpochDescription,
    own: Own,
    /// Where this rank hears signals.
    bells: Arc<Bells>,
    sides: Vec<Side>,
    about: Vec<Vec<u8>>,
    /// How it waits for signals.
    policy: Policy,
}

/// What this rank lays open.
struct Own {
    memory: OwnMemory,
    /// Others open it as long as it is open here.
    _file: Option<OwnedFd>,
}

enum OwnMemory {
    /// No channel writes it.
    Held(Mutex<Memory>),
    Registered(Segment),
}

/// What this rank has to do with another one, or with itself.
struct Side {
    bytes: usize,
    mapped: Option<MappedMemory>,
    to: Way,
    /// Whether its signals come over the line; else they ring a bell.
    hears_line: bool,
    /// If one of the two needs it.
    line: Option<Line>,
    taken: Mutex<Taken>,
}

/// How puts and signals get to a rank.
enum Way {
    Own,
    /// What was mapped, and its bells.
    Memory(Bells),
    /// The line, and what names its memory there.
    Line(Handle),
}

struct Line {
    puts: Channel,
    /// On which each end tells that it will put nothing more.
    end: Channel,
}

/// Signals of a rank that were waited for.
#[derive(Default)]
struct Taken {
    /// How many rings, modulo the size of the number.
    rings: u32,
    /// How many of those that come over the line belong to waits that nobody waits for any more.
    owed: u64,
}

impl Window {
    pub(crate) fn open(group: &Group, memory: WindowMemory, about: &[u8]) -> Result<Self, Error> {
        if about.len() > limits::WINDOW_ABOUT_BYTES_MAX {
            return Err(Error::BadArgument(format!(
                "{} bytes about a window's memory are too many: {} are allowed",
                about.len(),
                limits::WINDOW_ABOUT_BYTES_MAX
            )));
        }
        let (description, lobby) = group.surroundings()?;
        let mut opened = lobby.open();
        let number = *opened;
        *opened = opened.wrapping_add(1);
        let opening = Opening { group, lobby: lobby.clone(), description: description.clone(), number };
        let Opened { own, bells, sides, about } = opening.run(memory, about)?;
        drop(opened);
        lobby.watch(&bells);
        let policy = Policy::SIGNAL.for_ranks(group.world());
        let group = group.clone();
        Ok(Self { pane: Arc::new(Pane { group, lobby, description, own, bells, sides, about, policy }) })
    }

    /// The group whose window it is.
    pub fn group(&self) -> &Group {
        &self.pane.group
    }

    /// How many bytes a rank has laid open.
    pub fn bytes(&self, rank: usize) -> Result<usize, Error> {
        self.pane.side(rank).map(|side| side.bytes)
    }

    /// What a rank has told about its memory.
    pub fn about(&self, rank: usize) -> Result<&[u8], Error> {
        self.pane.side(rank).map(|_| &*self.pane.about[rank])
    }

    /// Whether a rank's memory can be read and written as if it were this rank's own.
    pub fn is_mapped(&self, rank: usize) -> Result<bool, Error> {
        self.pane.side(rank).map(|side| !matches!(side.to, Way::Line(_)) || side.mapped.is_some())
    }

    /// The file that another rank's memory lies in, and where, for those who map it by other means.
    pub fn file(&self, rank: usize) -> Result<Option<(BorrowedFd<'_>, u64)>, Error> {
        let side = self.pane.side(rank)?;
        Ok(side.mapped.as_ref().map(|mapped| (mapped.file(), mapped.offset())))
    }

    /// Copies from a rank's memory: this rank's own, or one that is [mapped](Self::is_mapped).
    pub fn read(&self, rank: usize, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        let side = self.pane.side(rank)?;
        self.pane.check(rank, side, offset, into.len())?;
        match (&side.to, &side.mapped) {
            (Way::Own, _) => self.pane.own.read(offset, into),
            (_, Some(mapped)) => mapped.read(offset, into),
            _ if into.is_empty() => {}
            _ => {
                let name = self.pane.name(rank);
                return Err(Error::Misuse(format!("the memory of {name} can't be read from here")));
            }
        }
        Ok(())
    }

    /// Writes bytes into a rank's memory. When it returns they are on their way, and a signal that is sent now arrives
    /// behind them. Without a timeout it has as long as the group's operations; if it can't be sent in that time the
    /// group is over.
    pub fn put(&self, from: &[u8], to: usize, offset: usize, timeout: Option<Duration>) -> Result<(), Error> {
        lend(from, |view| self.begin_put(view, to, offset, timeout)?.wait())
    }

    /// As [`Window::put`], without waiting until the bytes are no longer read.
    pub fn begin_put(
        &self,
        from: View,
        to: usize,
        offset: usize,
        timeout: Option<Duration>,
    ) -> Result<WindowWork, Error> {
        let until = self.pane.deadline(timeout);
        let mark = self.pane.put(from, to, offset, until)?;
        Ok(WindowWork::put(self.pane.clone(), to, mark, until))
    }

    /// Tells a rank that what was put into its memory before is there.
    pub fn signal(&self, to: usize) -> Result<(), Error> {
        self.pane.signal(to)
    }

    /// Waits for a rank's next signal, and takes it. If it is late nothing is broken, and it may be waited for again.
    /// Without a timeout it has as long as the group's operations.
    pub fn wait_signal(&self, from: usize, timeout: Option<Duration>) -> Result<(), Error> {
        self.begin_wait_signal(from, timeout)?.wait()
    }

    /// As [`Window::wait_signal`], without waiting. Whoever drops the work lets it take the signal all the same.
    pub fn begin_wait_signal(&self, from: usize, timeout: Option<Duration>) -> Result<WindowWork, Error> {
        self.pane.side(from)?;
        if self.pane.group.is_retired() {
            return Err(Error::Left);
        }
        Ok(WindowWork::signal(self.pane.clone(), from, self.pane.deadline(timeout)))
    }

    /// Ends the window, when all ranks have come to this: then all puts have arrived, and nobody writes this rank's
    /// memory any more. A window that is merely dropped leaves the others to find out.
    pub fn close(&self) -> Result<(), Error> {
        let until = self.pane.deadline(None);
        let lined = || self.pane.sides.iter().enumerate().filter_map(|(r, s)| Some((r, s.line.as_ref()?)));
        for (rank, line) in lined() {
            line.end.signal().map_err(|error| self.pane.explain(rank, error))?;
        }
        for (rank, line) in lined() {
            line.end.wait(until).map_err(|error| match error {
                ChannelError::Deadline { .. } => self.pane.give_up_waiting(rank),
                error => self.pane.explain(rank, error),
            })?;
            line.puts.forget_signals();
        }
        self.pane.group.barrier()
    }
}

impl core::fmt::Debug for Window {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let bytes: Vec<_> = self.pane.sides.iter().map(|side| side.bytes).collect();
        f.debug_struct("Window").field("group", &self.pane.group).field("bytes", &bytes).finish()
    }
}

impl Own {
    fn read(&self, offset: usize, into: &mut [u8]) {
        match &self.memory {
            OwnMemory::Held(memory) => {
                into.copy_from_slice(&memory.lock().as_slice()[offset..offset + into.len()]);
            }
            // Whoever asks has looked that it is within.
            OwnMemory::Registered(segment) => drop(segment.read(offset, into)),
        }
    }

    fn write(&self, offset: usize, from: &[u8]) {
        match &self.memory {
            OwnMemory::Held(memory) => {
                memory.lock().as_mut_slice()[offset..offset + from.len()].copy_from_slice(from);
            }
            OwnMemory::Registered(segment) => drop(segment.write(offset, from)),
        }
    }
}

impl Pane {
    fn side(&self, rank: usize) -> Result<&Side, Error> {
        self.sides.get(rank).ok_or_else(|| {
            Error::BadArgument(format!(
                "rank {rank} is out of range: ranks are 0 to {}",
                self.sides.len() - 1
            ))
        })
    }

    fn check(&self, rank: usize, side: &Side, offset: usize, bytes: usize) -> Result<(), Error> {
        match offset.checked_add(bytes) {
            Some(end) if end <= side.bytes => Ok(()),
            _ => Err(Error::BadArgument(format!(
                "{bytes} bytes at {offset} are past the end of the window of {}, which has {} bytes",
                self.name(rank),
                side.bytes
            ))),
        }
    }

    fn deadline(&self, timeout: Option<Duration>) -> Instant {
        let now = Instant::now();
        let timeout = timeout.unwrap_or_else(|| self.group.timeout());
        now.checked_add(timeout).unwrap_or(now + limits::OPERATION_MAX * 1000)
    }

    /// Puts. If something of it is still to be sent: a mark behind it.
    fn put(&self, from: View, to: usize, offset: usize, until: Instant) -> Result<Option<Mark>, Error> {
        let side = self.side(to)?;
        self.check(to, side, offset, from.len())?;
        self.refuse(to)?;
        match (&side.to, &side.mapped, &side.line) {
            _ if from.is_empty() => {}
            (Way::Own, ..) => {
                // In other languages it may be a part of the very memory.
                let copy = from.as_slice().to_vec();
                self.own.write(offset, &copy);
            }
            (Way::Memory(_), Some(mapped), _) => mapped.write(offset, from.as_slice()),
            (Way::Line(handle), _, Some(line)) => loop {
                match line.puts.put(from.clone().into(), handle.at(offset as u64)) {
                    Ok(()) => return Ok(Some(line.puts.mark())),
                    Err(ChannelError::Full { .. }) => self.flush(to, line.puts.mark(), until)?,
                    Err(error) => return Err(self.explain(to, error)),
                }
            },
            _ => return Err(Error::Internal("there is no way to a rank of a window".into())),
        }
        Ok(None)
    }

    /// Waits until puts have left. If they do not in time, the group is over: the memory must not be read any more,
    /// and what was sent is half a put.
    fn flush(&self, to: usize, mark: Mark, until: Instant) -> Result<(), Error> {
        match self.flush_for_now(to, mark, until)? {
            true => Ok(()),
            false => Err(self.give_up_waiting(to)),
        }
    }

    /// Waits until puts have left. Whether they have in time.
    fn flush_for_now(&self, to: usize, mark: Mark, until: Instant) -> Result<bool, Error> {
        let Some(line) = &self.side(to)?.line else { return Ok(true) };
        match line.puts.flush_to(mark, until) {
            Ok(()) => Ok(true),
            Err(ChannelError::Deadline { .. }) => Ok(false),
            Err(error) => Err(self.explain(to, error)),
        }
    }

    fn signal(&self, to: usize) -> Result<(), Error> {
        let side = self.side(to)?;
        self.refuse(to)?;
        let me = Rank::from_index(self.group.rank());
        match (&side.to, &side.line) {
            (Way::Own, _) => self.bells.ring(me),
            (Way::Memory(bells), _) => bells.ring(me),
            (Way::Line(_), Some(line)) => loop {
                match line.puts.signal() {
                    Ok(()) => break,
                    Err(ChannelError::Full { .. }) => {
                        self.flush(to, line.puts.mark(), self.deadline(None))?;
                    }
                    Err(error) => return Err(self.explain(to, error)),
                }
            },
            _ => return Err(Error::Internal("there is no way to a rank of a window".into())),
        }
        Ok(())
    }

    /// Waits for a signal until a time. Whether it came, and was taken.
    fn hear(&self, from: usize, until: Instant) -> Result<bool, Error> {
        let side = self.side(from)?;
        match &side.line {
            Some(line) if side.hears_line => self.hear_on_line(from, &line.puts, &side.taken, until),
            _ => self.hear_bell(from, &side.taken, until),
        }
    }

    fn hear_on_line(
        &self,
        from: usize,
        line: &Channel,
        taken: &Mutex<Taken>,
        until: Instant,
    ) -> Result<bool, Error> {
        loop {
            if let Some(error) = self.lobby.ended() {
                return Err(error);
            }
            let heard = if Instant::now() >= until { line.poll() } else { line.wait(until).map(|()| true) };
            match heard {
                Ok(true) => {
                    let mut taken = taken.lock();
                    if taken.owed == 0 {
                        return Ok(true);
                    }
                    taken.owed -= 1;
                }
                Ok(false) | Err(ChannelError::Deadline { .. }) => return Ok(false),
                Err(error) => return Err(self.explain(from, error)),
            }
        }
    }

    fn hear_bell(&self, from: usize, taken: &Mutex<Taken>, until: Instant) -> Result<bool, Error> {
        let rank = Rank::from_index(from);
        let rings = |taken: &Taken| self.bells.rung(rank).wrapping_sub(taken.rings) as i32;
        loop {
            let events = self.lobby.events();
            if let Some(error) = self.lobby.ended() {
                return Err(error);
            }
            // What someone signalled before it left counts; so whether it has left is looked at first.
            let departed = self.lobby.departed(rank, || self.peer(from));
            {
                let mut taken = taken.lock();
                if rings(&taken) > 0 {
                    taken.rings = taken.rings.wrapping_add(1);
                    return Ok(true);
                }
            }
            if let Some(error) = departed {
                return Err(error);
            }
            if Deadline::from(until).is_over() {
                return Ok(false);
            }
            let is_enough = || rings(&taken.lock()) > 0 || self.lobby.events() != events;
            self.bells.wait(rank, self.policy, until.into(), is_enough);
        }
    }

    /// A wait that nobody waits for any more still takes its signal.
    fn owe(&self, from: usize) {
        if let Some(side) = self.sides.get(from) {
            let mut taken = side.taken.lock();
            if side.hears_line {
                taken.owed += 1;
            } else {
                taken.rings = taken.rings.wrapping_add(1);
            }
        }
    }

    /// Nothing can be put or signalled where nobody is.
    fn refuse(&self, to: usize) -> Result<(), Error> {
        if self.group.is_retired() {
            return Err(self.lobby.ended().unwrap_or(Error::Left));
        }
        if self.lobby.events() == 0 {
            return Ok(());
        }
        let refusal = self.lobby.ended();
        let refusal = refusal.or_else(|| self.lobby.departed(Rank::from_index(to), || self.peer(to)));
        refusal.map_or(Ok(()), Err)
    }

    /// A line has failed. Why, the group most likely knows in a moment.
    fn explain(&self, rank: usize, error: ChannelError) -> Error {
        if let ChannelError::Misuse(why) = error {
            return Error::BadArgument(why);
        }
        let until = Instant::now() + limits::FAULT_NEWS_MAX;
        loop {
            if let Err(known) = self.refuse(rank) {
                return known;
            }
            if Instant::now() >= until {
                return Error::System(format!("the window's way to {}: {error}", self.name(rank)));
            }
            std::thread::sleep(limits::FAULT_NEWS_PAUSE);
        }
    }

    /// A rank has taken too long with what can't be left off.
    fn give_up_waiting(&self, rank: usize) -> Error {
        self.group.give_up(Cause::Timeout { waited_for: vec![self.peer(rank)] });
        self.lobby.ended().unwrap_or(Error::Left)
    }

    fn late(&self, from: usize) -> Error {
        Error::Late(format!("waited in vain for a signal of {}", self.name(from)))
    }

    fn name(&self, rank: usize) -> &str {
        &self.description.members[rank].name
    }

    fn peer(&self, rank: usize) -> PeerName {
        self.description.members[rank].named()
    }
}
