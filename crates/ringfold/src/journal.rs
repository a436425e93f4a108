//! One stream of events: what masters, peers and ranks of this process post here goes to all readers.
//!
//! Readers are the log (through `tracing`), the flight recorder (a file, by the setting `flight_dir`), and observers in this
//! process ([`observe`], [`subscribe`]). Nothing else records what happened. Without a reader, an event costs
//! a few comparisons.

mod record;
mod recorder;
#[cfg(test)]
mod tests;

pub use record::{JournalEvent, Printable, Record, write_text_line};
pub use recorder::record_text;
pub use ringfold_flight::{FlightHeader, FlightLog, FlightRecord, format_micros, format_time, parse_micros};
pub use ringfold_proto::event::{Event, Level, LinkTransport, OpTally, PeerEvent};

use crate::settings::Settings;
use core::time::Duration;
use parking_lot::{Mutex, RwLock};
use record::ShortOp;
use recorder::Recorder;
use ringfold_fabric::clock;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, LazyLock};

/// The recorder holds short operations as one line; at most so long.
const TALLY_MAX: Duration = Duration::from_millis(100);

/// A committed operation is short if it takes less. Short ones are not recorded one by one.
pub(crate) const SHORT_OP_MAX: Duration = Duration::from_millis(1);

/// What posts events.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SourceKind {
    /// The master of an elastic run.
    Master,
    /// A peer of an elastic run.
    Peer,
    /// A rank of a group.
    Rank,
    /// A relay.
    Relay,
}

impl SourceKind {
    /// The name in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Master => "master",
            Self::Peer => "peer",
            Self::Rank => "rank",
            Self::Relay => "relay",
        }
    }

    /// The target in logs.
    pub fn target(self) -> &'static str {
        match self {
            Self::Master => "ringfold::master",
            Self::Peer => "ringfold::peer",
            Self::Rank => "ringfold::group",
            Self::Relay => "ringfold::relay",
        }
    }
}

/// One master, peer, rank or relay of this process. Its events are posted here.
#[derive(Debug)]
pub struct Source {
    kind: SourceKind,
    name: String,
    recorder: Option<Arc<Recorder>>,
    /// Short operations since the last record.
    tally: Mutex<Option<PendingTally>>,
}

#[derive(Debug)]
struct PendingTally {
    tally: OpTally,
    /// When the first one began, and when the tally was begun.
    began: Duration,
    since: Duration,
}

impl Source {
    /// A new source. The first one of a process opens the flight recorder, if there is to be one.
    pub(crate) fn new(kind: SourceKind, name: impl Into<String>, settings: &Settings) -> Arc<Self> {
        let recorder = recorder::open(kind, settings);
        Arc::new(Self { kind, name: name.into(), recorder, tally: Mutex::default() })
    }

    /// What it is.
    pub fn kind(&self) -> SourceKind {
        self.kind
    }

    /// Its name in records.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether anybody reads about single operations. If not, they need not be posted.
    pub(crate) fn wants_ops(&self) -> bool {
        self.recorder.is_some() || has_observers() || is_logged(self.kind, Level::Debug)
    }

    /// Whether anybody reads about failed and long operations.
    pub(crate) fn wants_long_ops(&self) -> bool {
        self.wants_ops() || is_logged(self.kind, Level::Info)
    }

    /// Passes an event to all readers. Never waits for one, except for a log that blocks.
    pub(crate) fn post(self: &Arc<Self>, event: impl Into<JournalEvent>) {
        let event = event.into();
        let level = event.level();
        let (is_logged, is_observed) = (is_logged(self.kind, level), has_observers());
        let short = event.short_op();
        if let (Some(recorder), Some(op)) = (&self.recorder, &short) {
            self.count_short(recorder, op);
        }
        let is_recorded = self.recorder.is_some() && short.is_none();
        if !is_logged && !is_observed && !is_recorded {
            return;
        }
        let recorder = self.recorder.as_ref().filter(|_| is_recorded);
        // What was counted comes first, also by its time.
        recorder.inspect(|recorder| self.flush_tally(recorder));
        let record = Arc::new(Record::new(self.clone(), level, event));
        recorder.inspect(|recorder| recorder.record(&record));
        if is_observed {
            let observers = OBSERVERS.read();
            observers.iter().for_each(|(_, observer)| observer(&record));
        }
        if is_logged {
            log(&record);
        }
    }

    /// Adds a short operation to the tally.
    fn count_short(self: &Arc<Self>, recorder: &Recorder, op: &ShortOp) {
        let now = clock::since_boot();
        let mut pending = self.tally.lock();
        let counted = pending.get_or_insert_with(|| PendingTally {
            tally: OpTally {
                first: op.op,
                last: op.op,
                count: 0,
                sent_bytes: 0,
                received_bytes: 0,
                span: Duration::ZERO,
                longest: Duration::ZERO,
            },
            began: now.saturating_sub(op.duration),
            since: now,
        });
        let tally = &mut counted.tally;
        tally.last = op.op;
        tally.count += 1;
        tally.sent_bytes += op.sent_bytes;
        tally.received_bytes += op.received_bytes;
        tally.longest = tally.longest.max(op.duration);
        tally.span = now.saturating_sub(counted.began);
        if now.saturating_sub(counted.since) >= TALLY_MAX {
            let counted = pending.take();
            drop(pending);
            self.record_tally(recorder, counted);
        }
    }

    fn flush_tally(self: &Arc<Self>, recorder: &Recorder) {
        let counted = self.tally.lock().take();
        self.record_tally(recorder, counted);
    }

    fn record_tally(self: &Arc<Self>, recorder: &Recorder, counted: Option<PendingTally>) {
        if let Some(PendingTally { tally, .. }) = counted {
            recorder.record(&Record::new(self.clone(), Level::Debug, tally.into()));
        }
    }
}

/// An observer: gets each record of this process, on the thread that posts it, and must neither block nor panic.
type Observer = Box<dyn Fn(&Arc<Record>) + Send + Sync>;

static OBSERVERS: LazyLock<RwLock<Vec<(u64, Observer)>>> = LazyLock::new(RwLock::default);
static OBSERVER_COUNT: AtomicUsize = AtomicUsize::new(0);
static OBSERVER_NUMBER: AtomicU64 = AtomicU64::new(0);

fn has_observers() -> bool {
    OBSERVER_COUNT.load(Ordering::Relaxed) > 0
}

/// An observer's registration, which ends when this is dropped.
#[derive(Debug)]
#[must_use = "dropping it ends the observation"]
pub struct Observation(u64);

/// Calls a function with each record of this process from now on, until the returned value is dropped.
///
/// The function runs on the thread that posts the event, which may hold locks of the engine: it must return at once, must not
/// call into Ringfold, and must not panic. It sees every operation, also short ones, which the recorder only counts. To
/// follow one master compare [`Record::source`].
pub fn observe(observer: impl Fn(&Arc<Record>) + Send + Sync + 'static) -> Observation {
    let number = OBSERVER_NUMBER.fetch_add(1, Ordering::Relaxed);
    OBSERVERS.write().push((number, Box::new(observer)));
    OBSERVER_COUNT.fetch_add(1, Ordering::Relaxed);
    Observation(number)
}

impl Drop for Observation {
    fn drop(&mut self) {
        OBSERVER_COUNT.fetch_sub(1, Ordering::Relaxed);
        OBSERVERS.write().retain(|(number, _)| *number != self.0);
    }
}

/// The records of this process from now on, as a queue of at most `capacity`. Records that do not fit are dropped.
pub fn subscribe(capacity: usize) -> Subscription {
    let (sender, records) = sync_channel(capacity);
    let dropped = Arc::new(AtomicU64::new(0));
    let missed = dropped.clone();
    let observation = observe(move |record| {
        if sender.try_send(record.clone()).is_err() {
            missed.fetch_add(1, Ordering::Relaxed);
        }
    });
    Subscription { records, dropped, _observation: observation }
}

/// A queue of records. See [`subscribe`].
#[derive(Debug)]
pub struct Subscription {
    /// The records that were not taken.
    pub records: Receiver<Arc<Record>>,
    dropped: Arc<AtomicU64>,
    _observation: Observation,
}

impl Subscription {
    /// How many records did not fit.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<Record>>> = const { RefCell::new(None) };
}

/// The record that this thread passes to the log now, if any. A log uses it for the fields of typed events.
pub fn current() -> Option<Arc<Record>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Ends the current record, also if the log panics.
struct Current;

impl Current {
    fn set(record: &Arc<Record>) -> Self {
        CURRENT.set(Some(record.clone()));
        Self
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        CURRENT.set(None);
    }
}

/// Calls a macro of `tracing` with the target and level of a record, which have to be constants.
macro_rules! at_level {
    ($kind:expr, $level:expr, $call:ident) => {
        match $kind {
            SourceKind::Master => at_level!(@ "ringfold::master", $level, $call),
            SourceKind::Peer => at_level!(@ "ringfold::peer", $level, $call),
            SourceKind::Rank => at_level!(@ "ringfold::group", $level, $call),
            SourceKind::Relay => at_level!(@ "ringfold::relay", $level, $call),
        }
    };
    (@ $target:literal, $level:expr, $call:ident) => {
        match $level {
            Level::Debug => $call!($target, DEBUG),
            Level::Info => $call!($target, INFO),
            Level::Warn => $call!($target, WARN),
            Level::Error => $call!($target, ERROR),
        }
    };
}

fn is_logged(kind: SourceKind, level: Level) -> bool {
    macro_rules! enabled {
        ($target:literal, $level:ident) => {
            tracing::event_enabled!(target: $target, tracing::Level::$level)
        };
    }
    at_level!(kind, level, enabled)
}

fn log(record: &Arc<Record>) {
    let _current = Current::set(record);
    let text = Printable(&record.event);
    macro_rules! event {
        ($target:literal, $level:ident) => {
            tracing::event!(target: $target, tracing::Level::$level, "{text}")
        };
    }
    at_level!(record.source.kind, record.level, event);
}
