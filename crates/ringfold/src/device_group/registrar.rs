//! Registers the memory that operations use with the other ranks, while they go on.
//!
//! A thread offers allocations to the other ranks, opens theirs, and notices freed ones. The ranks' threads talk by notes on
//! a topic of the device group. An operation on memory that not all ranks have opened goes through staging areas.

use super::launch_queue::LaunchQueue;
use super::launch_watch::LaunchWatch;
use super::transfers::TransferQueues;
use crate::{Error, Group};
use core::fmt::Write as _;
use core::time::Duration;
use parking_lot::{Condvar, Mutex};
use ringfold_cuda::device_arena::{DeviceArena, MemoryOffer, SlotId, Standing};
use ringfold_proto::cause::Wait;
use std::collections::HashSet;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// How often freed memory is looked for.
const SWEEP: Duration = Duration::from_secs(1);
/// How long a caller waits until memory is registered.
const REGISTER_MAX: Duration = Duration::from_secs(1);
/// How often a rank tries to close memory of others: the driver closes it when no kernel runs.
const CLOSING_PAUSE: Duration = Duration::from_millis(5);
/// The most requests and notes that wait for the thread. A rank has at most some thousand registrations.
const REQUESTS_MAX: usize = 8192;
/// The most addresses that wait to be offered.
const WANTED_MAX: usize = 1024;

/// What the thread is asked.
enum Request {
    /// Memory at this address was used, and is not registered.
    Register(u64),
    /// The other ranks should close the allocation at this address.
    Forget(u64),
    /// A rank's note.
    Note(usize, String),
    /// To end.
    End,
}

/// What ranks tell each other about an allocation of the sender, or of the receiver.
#[derive(PartialEq, Debug)]
pub(crate) enum Message {
    /// Open this allocation of the sender.
    Offer(SlotId, MemoryOffer),
    /// The sender has opened it.
    Opened(SlotId),
    /// The sender cannot open it.
    Refused(SlotId, String),
    /// Close this allocation of the sender.
    Forget(SlotId),
    /// The sender has closed it.
    Forgotten(SlotId),
}

/// The calls of this rank.
pub(super) struct Calls {
    pub(super) collectives: Arc<Mutex<LaunchQueue>>,
    pub(super) transfers: Arc<TransferQueues>,
}

/// How many collectives, and how many transfers of each chain, were issued.
type Issued = (u64, Vec<u64>);

impl Calls {
    fn are_idle(&self) -> bool {
        self.collectives.lock().is_idle() && self.transfers.is_idle()
    }

    fn issued(&self) -> Issued {
        (self.collectives.lock().issued(), self.transfers.issued())
    }

    fn have_ended(&self, (collectives, transfers): &Issued) -> bool {
        self.collectives.lock().has_ended(*collectives) && self.transfers.have_ended(transfers)
    }
}

/// The registrations of a device group.
pub(super) struct Registrar {
    group: Group,
    topic: u64,
    requests: SyncSender<Request>,
    /// Until the thread starts.
    inbox: Mutex<Option<Receiver<Request>>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Addresses that were passed to the thread, and that it has not looked at.
    wanted: Mutex<HashSet<u64>>,
    progress: Mutex<Progress>,
    changed: Condvar,
    /// The oldest collective that is not done.
    launches: Mutex<LaunchWatch>,
}

#[derive(Default)]
struct Progress {
    /// Requests and notes that the thread has handled.
    handled: u64,
    has_ended: bool,
}

impl Registrar {
    /// Opens the topic: a collective call.
    pub(super) fn new(group: &Group) -> Result<Self, Error> {
        let (requests, inbox) = mpsc::sync_channel(REQUESTS_MAX);
        let notes = requests.clone();
        let topic = group.listen_to_notes(Box::new(move |from, text| {
            // The thread may have ended. A note beyond the limit is lost; then memory is not registered.
            if let Err(TrySendError::Full(_)) = notes.try_send(Request::Note(from, text)) {
                tracing::warn!(from, "dropped a message about registered memory: too many are waiting");
            }
        }))?;
        let inbox = Mutex::new(Some(inbox));
        Ok(Self { group: group.clone(), topic, requests, inbox, shared: Arc::default() })
    }

    /// What the arena calls with unregistered memory.
    pub(super) fn on_unregistered(&self) -> Box<dyn Fn(u64) + Send + Sync> {
        let (requests, shared) = (self.requests.clone(), self.shared.clone());
        Box::new(move |address| {
            let mut wanted = shared.wanted.lock();
            let is_new = wanted.len() < WANTED_MAX && !wanted.contains(&address);
            if is_new && requests.try_send(Request::Register(address)).is_ok() {
                wanted.insert(address);
            }
        })
    }

    /// Starts the thread.
    pub(super) fn start(&self, arena: &Arc<DeviceArena>, calls: Calls) -> Result<(), Error> {
        let Some(inbox) = self.inbox.lock().take() else { return Ok(()) };
        let (group, topic, shared) = (self.group.clone(), self.topic, self.shared.clone());
        let clerk = Clerk {
            group,
            topic,
            arena: Arc::downgrade(arena),
            calls,
            shared,
            leaving: Vec::new(),
            closing: Vec::new(),
            has_warned: false,
        };
        std::thread::Builder::new()
            .name("ringfold-registrar".into())
            .spawn(move || clerk.work(&inbox))
            .map_err(|error| Error::System(format!("failed to start a thread: {error}")))?;
        Ok(())
    }

    /// Registers an allocation, and waits a moment until all ranks have opened it. Returns why that is not possible.
    ///
    /// Not longer: the driver may keep a rank from opening memory until its kernels end, which may wait for this rank.
    pub(super) fn register(&self, arena: &DeviceArena, address: u64) -> Result<(), String> {
        let deadline = Instant::now() + REGISTER_MAX;
        let mut progress = self.shared.progress.lock();
        let mut is_asked = false;
        loop {
            match arena.standing(address).map_err(|error| error.to_string())? {
                Standing::Ready => return Ok(()),
                Standing::Refused(why) => return Err(why),
                Standing::Unknown if !is_asked => {
                    let _ = self.requests.try_send(Request::Register(address));
                    is_asked = true;
                }
                Standing::Unknown | Standing::Pending(_) => {}
            }
            if progress.has_ended || self.shared.changed.wait_until(&mut progress, deadline).timed_out() {
                return Ok(());
            }
        }
    }

    /// Makes the other ranks close an allocation, and waits a moment until they have.
    pub(super) fn deregister(&self, arena: &DeviceArena, address: u64) {
        let deadline = Instant::now() + SWEEP;
        let mut progress = self.shared.progress.lock();
        let before = progress.handled;
        let _ = self.requests.try_send(Request::Forget(address));
        let is_done = |progress: &Progress| {
            progress.has_ended
                || progress.handled > before
                    && !matches!(arena.standing(address), Ok(Standing::Ready | Standing::Pending(_)))
        };
        while !is_done(&progress) && !self.shared.changed.wait_until(&mut progress, deadline).timed_out() {}
    }

    /// What is known of the wait of this rank's collectives for another rank; none if they do not wait for long.
    pub(super) fn describe_wait(&self, rank: usize) -> Option<Wait> {
        self.shared.launches.lock().describe(rank)
    }

    /// Ends the thread, and waits for that until the deadline.
    pub(super) fn end(&self, deadline: Instant) {
        let _ = self.requests.try_send(Request::End);
        let is_running = self.inbox.lock().is_none();
        let mut progress = self.shared.progress.lock();
        while is_running
            && !progress.has_ended
            && !self.shared.changed.wait_until(&mut progress, deadline).timed_out()
        {}
    }
}

/// The thread.
struct Clerk {
    group: Group,
    topic: u64,
    arena: Weak<DeviceArena>,
    calls: Calls,
    shared: Arc<Shared>,
    /// Memory of this rank that others are told to close when the calls that may use it have ended.
    leaving: Vec<(SlotId, Issued)>,
    /// Memory of other ranks that is closed when this rank's kernels have ended: the driver would block until then.
    closing: Vec<(usize, SlotId, Box<dyn Send>)>,
    has_warned: bool,
}

impl Clerk {
    fn work(mut self, inbox: &Receiver<Request>) {
        let mut has_registered = false;
        loop {
            let request = if !self.closing.is_empty() || !self.leaving.is_empty() {
                inbox.recv_timeout(CLOSING_PAUSE)
            } else {
                inbox.recv_timeout(SWEEP)
            };
            let Some(arena) = self.arena.upgrade() else { break };
            match request {
                Ok(Request::End) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(Request::Register(address)) => self.register(&arena, address),
                Ok(Request::Forget(address)) => {
                    if let Some(what) = arena.forget(address) {
                        self.leave(what);
                    }
                }
                Ok(Request::Note(from, text)) => match Message::decode(&text) {
                    Some(message) => self.hear(&arena, from, message),
                    None => tracing::warn!(from, "ignored an invalid message about registered memory"),
                },
                Err(RecvTimeoutError::Timeout) => {
                    if has_registered {
                        self.sweep(&arena);
                    }
                    self.watch_launches();
                }
            }
            self.tell_left();
            self.close_unused();
            has_registered = arena.has_registered();
            drop(arena);
            self.shared.progress.lock().handled += 1;
            self.shared.changed.notify_all();
        }
        self.shared.launches.lock().stop();
        self.shared.progress.lock().has_ended = true;
        self.shared.changed.notify_all();
    }

    fn register(&mut self, arena: &DeviceArena, address: u64) {
        // Before it is looked at: what is used from now on is passed again.
        self.shared.wanted.lock().remove(&address);
        self.sweep(arena);
        match arena.offer(address) {
            Ok(Some((what, offer))) => self.tell_all(&Message::Offer(what, offer)),
            Ok(None) => {}
            Err(error) if !self.has_warned => {
                self.has_warned = true;
                tracing::warn!(%error, "large CUDA tensors go through staging areas");
            }
            Err(_) => {}
        }
    }

    /// Has the group report a collective that waits for ranks that have not launched it.
    fn watch_launches(&self) {
        // A thread that launches may hold the lock for long.
        let Some(mut calls) = self.calls.collectives.try_lock() else { return };
        if let Ok(unfinished) = calls.unfinished() {
            let done = calls.issued() - unfinished as u64;
            drop(calls);
            self.shared.launches.lock().look(&self.group, done, unfinished);
        }
    }

    fn sweep(&mut self, arena: &DeviceArena) {
        for what in arena.forget_freed() {
            self.leave(what);
        }
    }

    /// Makes the others close an allocation, once the calls that may use it have ended.
    fn leave(&mut self, what: SlotId) {
        self.leaving.push((what, self.calls.issued()));
    }

    fn tell_left(&mut self) {
        let calls = &self.calls;
        let left: Vec<_> = self.leaving.extract_if(.., |(_, issued)| calls.have_ended(issued)).collect();
        for (what, _) in left {
            self.tell_all(&Message::Forget(what));
        }
    }

    fn close_unused(&mut self) {
        if !self.closing.is_empty() && self.calls.are_idle() {
            for (owner, what, memory) in core::mem::take(&mut self.closing) {
                drop(memory);
                self.tell(&[owner], &Message::Forgotten(what));
            }
        }
    }

    fn hear(&mut self, arena: &DeviceArena, from: usize, message: Message) {
        match message {
            Message::Offer(what, offer) => {
                let answer = match arena.open(from, what, &offer) {
                    Ok(()) => Message::Opened(what),
                    Err(error) => Message::Refused(what, format!("rank {}: {error}", self.group.rank())),
                };
                self.tell(&[from], &answer);
            }
            Message::Opened(what) => arena.note_opened(what, from),
            Message::Refused(what, why) => {
                if arena.note_refused(what, why) {
                    self.leave(what);
                }
            }
            Message::Forget(what) => {
                if let Some(memory) = arena.take_opened(from, what) {
                    self.closing.push((from, what, Box::new(memory)));
                } else {
                    self.tell(&[from], &Message::Forgotten(what));
                }
            }
            Message::Forgotten(what) => arena.note_forgotten(what, from),
        }
    }

    fn tell_all(&self, message: &Message) {
        let me = self.group.rank();
        let others: Vec<_> = (0..self.group.world()).filter(|rank| *rank != me).collect();
        self.tell(&others, message);
    }

    fn tell(&self, ranks: &[usize], message: &Message) {
        // If the group has failed, nothing is registered any more.
        if let Err(error) = self.group.send_note(ranks, self.topic, &message.encode()) {
            tracing::debug!(%error, "failed to tell other ranks about registered memory");
        }
    }
}

impl Message {
    pub(crate) fn encode(&self) -> String {
        let (kind, what, rest) = match self {
            Self::Offer(what, offer) => ("offer", what, hex(&offer.encode())),
            Self::Opened(what) => ("opened", what, String::new()),
            Self::Refused(what, why) => ("refused", what, why.chars().take(1024).collect()),
            Self::Forget(what) => ("forget", what, String::new()),
            Self::Forgotten(what) => ("forgotten", what, String::new()),
        };
        format!("{kind} {} {} {rest}", what.slot, what.id)
    }

    pub(crate) fn decode(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, ' ');
        let kind = parts.next()?;
        let what = SlotId { slot: parts.next()?.parse().ok()?, id: parts.next()?.parse().ok()? };
        let rest = parts.next()?;
        Some(match kind {
            "offer" => Self::Offer(what, MemoryOffer::decode(&unhex(rest)?)?),
            "opened" => Self::Opened(what),
            "refused" => Self::Refused(what, rest.to_owned()),
            "forget" => Self::Forget(what),
            "forgotten" => Self::Forgotten(what),
            _ => return None,
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| {
            let text = core::str::from_utf8(pair).ok().filter(|text| text.len() == 2)?;
            u8::from_str_radix(text, 16).ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_decoded_as_they_were_encoded() {
        let what = SlotId { slot: 7, id: u64::MAX };
        for message in [
            Message::Opened(what),
            Message::Refused(what, "rank 1: no such device".into()),
            Message::Forget(what),
            Message::Forgotten(what),
        ] {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(unhex(&hex(&bytes)), Some(bytes));
    }

    #[test]
    fn invalid_messages_are_rejected() {
        for text in [
            "",
            "offer",
            "offer 1 2 ",
            "offer 1 2 zz",
            "offer 1 2 abc",
            "opened x 2 ",
            "opened 1 -2 ",
            "other 1 2 ",
            "opened 99999999999 2 ",
        ] {
            assert_eq!(Message::decode(text), None, "{text}");
        }
    }
}
