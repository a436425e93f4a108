//! Which parts are wanted, who may send them, and what came of it. No thread, no socket.

use super::fetch::Order;
use super::limits::{
    BRISK, OWED_BYTES_MAX, OWED_BYTES_SLOW_MAX, PART_BYTES_MAX, SOURCES_MAX, STRAGGLE_FACTOR, STRAGGLE_MIN,
};
use super::part::Part;
use core::time::Duration;
use ringfold_kernels::{LEAF_BYTES, LeafHash, root_hash};
use ringfold_proto::id::PeerId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

/// The state of one assignment.
pub(super) struct Board {
    /// By entry; those that are right are gone.
    jobs: BTreeMap<usize, Job>,
    /// Parts that wait to be fetched.
    queue: VecDeque<Part>,
    queued_bytes: u64,
    sources: Vec<Source>,
    /// Whether all is here, once that is known.
    pub(super) outcome: Option<bool>,
    /// Parts of entries that are right.
    right: Vec<Part>,
}

/// An entry that is not yet here.
struct Job {
    key: String,
    target: u128,
    bytes: u64,
    parts: usize,
    arrived: Vec<Part>,
    /// After a wrong hash, one source alone has to send it all, so that it is known who lies.
    solo: Option<PeerId>,
    /// Those who had their turn alone.
    tried: BTreeSet<PeerId>,
    /// What came from whom when the hash was wrong for the first time.
    suspect: Vec<(LeafHash, PeerId)>,
}

struct Source {
    peer: PeerId,
    standing: Standing,
    /// The worker that speaks with it; an earlier one has nothing to say any more.
    worker: u64,
    /// The part that is being waited for: since when, and its bytes.
    awaited: Option<(Instant, u64)>,
    /// What it has sent while it was waited for, and how long that took.
    sent_bytes: u64,
    waited: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// Not yet needed.
    Reserve,
    /// A worker speaks with it.
    Active,
    /// Others were much faster; used again if they are all lost.
    Slow,
    /// It is gone, has not what we need, or lies.
    Lost,
}

impl Source {
    /// How long it takes for so many bytes, as far as is known.
    fn time_for(&self, bytes: u64) -> Option<Duration> {
        (self.sent_bytes > 0).then(|| self.waited.mul_f64(bytes as f64 / self.sent_bytes as f64))
    }
}

impl Board {
    pub(super) fn new(orders: Vec<Order>, sources: &[PeerId]) -> Self {
        let mut board = Self {
            jobs: BTreeMap::new(),
            queue: VecDeque::new(),
            queued_bytes: 0,
            sources: Vec::new(),
            outcome: None,
            right: Vec::new(),
        };
        for &peer in sources {
            if board.sources.iter().all(|s| s.peer != peer) {
                let standing = Standing::Reserve;
                board.sources.push(Source {
                    peer,
                    standing,
                    worker: 0,
                    awaited: None,
                    sent_bytes: 0,
                    waited: Duration::ZERO,
                });
            }
        }
        for Order { entry, key, target, bytes, parts, .. } in orders {
            let (solo, tried, suspect) = (None, BTreeSet::new(), Vec::new());
            let job =
                Job { key, target, bytes, parts: parts.len(), arrived: Vec::new(), solo, tried, suspect };
            board.jobs.insert(entry, job);
            let (there, missing): (Vec<_>, Vec<_>) = parts.into_iter().partition(|p| p.missing() == 0);
            missing.into_iter().for_each(|part| board.push_back(part));
            // One without a byte is here, or can't be had.
            if there.is_empty() {
                board.settle(entry);
            }
            there.into_iter().for_each(|part| board.arrived(part));
        }
        board.conclude();
        board
    }

    /// The next part that this source may send, if it is not to owe too much.
    pub(super) fn take(&mut self, peer: PeerId, owed_bytes: u64) -> Option<Part> {
        if self.outcome.is_some() {
            return None;
        }
        let active = self.sources.iter().filter(|s| s.standing == Standing::Active).count().max(1) as u64;
        let pace = self.source(peer).and_then(|s| s.time_for(PART_BYTES_MAX as u64));
        let slow = pace.is_none_or(|pace| pace > BRISK);
        let most = if slow { OWED_BYTES_SLOW_MAX } else { OWED_BYTES_MAX };
        // Towards the end nobody takes more than its share, so that all end together.
        if owed_bytes > 0 && owed_bytes >= most.min(self.queued_bytes / active) {
            return None;
        }
        let jobs = &self.jobs;
        let may = |part: &Part| jobs.get(&part.entry).is_some_and(|j| j.solo.is_none_or(|solo| solo == peer));
        let part = self.queue.iter().position(may).and_then(|at| self.queue.remove(at))?;
        self.queued_bytes -= part.missing() as u64;
        Some(part)
    }

    /// Parts that a source was asked for and did not send, or not all of.
    pub(super) fn give_back(&mut self, parts: impl DoubleEndedIterator<Item = Part>) {
        for part in parts.rev() {
            self.queued_bytes += part.missing() as u64;
            self.queue.push_front(part);
        }
    }

    /// All leaves of a part are here.
    pub(super) fn arrived(&mut self, part: Part) {
        let entry = part.entry;
        let Some(job) = self.jobs.get_mut(&entry) else { return self.right.push(part) };
        job.arrived.push(part);
        if job.arrived.len() == job.parts {
            self.settle(entry);
        }
        self.conclude();
    }

    /// A source now sends a part of so many bytes, or nothing.
    pub(super) fn await_from(&mut self, peer: PeerId, bytes: Option<u64>) {
        let Some(source) = self.sources.iter_mut().find(|s| s.peer == peer) else { return };
        let now = Instant::now();
        if let Some((since, bytes)) = source.awaited.take() {
            source.waited += now - since;
            source.sent_bytes += bytes;
        }
        source.awaited = bytes.map(|bytes| (now, bytes));
    }

    /// The source stopped in the middle of a part.
    pub(super) fn break_off(&mut self, peer: PeerId) {
        if let Some(source) = self.sources.iter_mut().find(|s| s.peer == peer) {
            source.awaited = None;
        }
    }

    /// A source is of no more use. Its parts have been given back.
    pub(super) fn lose(&mut self, peer: PeerId) {
        self.set(peer, Standing::Lost);
        self.conclude();
    }

    /// A source that keeps an idle one waiting, which would have been much faster. It may be cut off.
    pub(super) fn straggler(&mut self, idle: PeerId) -> Option<PeerId> {
        let idle = self.source(idle).filter(|s| s.sent_bytes > 0)?;
        let late = |s: &&Source| {
            s.awaited.is_some_and(|(since, bytes)| {
                let mine = idle.time_for(bytes).unwrap_or_default();
                since.elapsed() > STRAGGLE_MIN.max(mine * STRAGGLE_FACTOR)
            })
        };
        // What only one source may send, this one can't take over.
        let alone = |s: &&Source| self.jobs.values().any(|j| j.solo == Some(s.peer));
        let mut active =
            self.sources.iter().filter(|s| s.standing == Standing::Active && s.peer != idle.peer);
        let peer = active.find(|s| late(s) && !alone(s))?.peer;
        self.set(peer, Standing::Slow);
        Some(peer)
    }

    /// The sources that shall get a worker now, and the workers' numbers.
    pub(super) fn recruit(&mut self) -> Vec<(PeerId, u64)> {
        if self.outcome.is_some() {
            return Vec::new();
        }
        let solos: BTreeSet<_> = self.jobs.values().filter_map(|j| j.solo).collect();
        let mut active = self.sources.iter().filter(|s| s.standing == Standing::Active).count();
        let mut recruits = Vec::new();
        for standing in [Standing::Reserve, Standing::Slow] {
            for source in self.sources.iter_mut().filter(|s| s.standing == standing) {
                let room = if standing == Standing::Slow { active == 0 } else { active < SOURCES_MAX };
                if room || solos.contains(&source.peer) {
                    (source.standing, source.worker) = (Standing::Active, source.worker + 1);
                    active += 1;
                    recruits.push((source.peer, source.worker));
                }
            }
        }
        recruits
    }

    /// Whether this worker is to go on with its source.
    pub(super) fn is_active(&self, peer: PeerId, worker: u64) -> bool {
        let active = |s: &Source| s.standing == Standing::Active && s.worker == worker;
        self.outcome.is_none() && self.source(peer).is_some_and(active)
    }

    /// All parts that are here, for whoever comes next.
    pub(super) fn drain(&mut self) -> Vec<Part> {
        let mut parts = core::mem::take(&mut self.right);
        parts.extend(self.queue.drain(..));
        parts.extend(core::mem::take(&mut self.jobs).into_values().flat_map(|job| job.arrived));
        self.queued_bytes = 0;
        parts
    }

    /// All parts of an entry are here: is it what was elected?
    fn settle(&mut self, entry: usize) {
        let Some(job) = self.jobs.get_mut(&entry).filter(|job| job.arrived.len() == job.parts) else {
            return;
        };
        job.arrived.sort_by_key(|part| part.first_leaf);
        let leaves: Vec<_> = job.arrived.iter().flat_map(Part::leaves).copied().collect();
        let hashes: Vec<_> = leaves.iter().map(|(hash, _)| *hash).collect();
        let givers: BTreeSet<_> = leaves.iter().map(|(_, giver)| *giver).collect();
        // A part could only be missing after a panic; then the entry can't be right.
        let whole = hashes.len() as u64 == job.bytes.div_ceil(LEAF_BYTES as u64);
        if whole && root_hash(&hashes, job.bytes).0 == job.target {
            let pairs = job.suspect.iter().zip(&leaves);
            let liars: BTreeSet<_> = pairs.filter(|(was, is)| was.0 != is.0).map(|(was, _)| was.1).collect();
            self.right.append(&mut job.arrived);
            self.jobs.remove(&entry);
            liars.into_iter().for_each(|liar| self.accuse(liar));
            return;
        }
        tracing::warn!("entry {:?} arrived with a wrong hash from {} sources", job.key, givers.len());
        if job.suspect.is_empty() {
            job.suspect = leaves;
        }
        if let (1, Some(liar)) = (givers.len(), givers.first()) {
            self.accuse(*liar);
        }
        self.begin_solo(entry);
    }

    /// Begins an entry anew, from one source alone.
    fn begin_solo(&mut self, entry: usize) {
        let Some(job) = self.jobs.get_mut(&entry) else { return };
        let suspected = |peer: PeerId| job.suspect.iter().any(|(_, giver)| *giver == peer);
        let usable = |s: &&Source| s.standing != Standing::Lost && !job.tried.contains(&s.peer);
        let next = self.sources.iter().filter(usable).map(|s| s.peer).min_by_key(|peer| suspected(*peer));
        // One without a byte can't be sent any better.
        let Some(next) = next.filter(|_| job.parts > 0) else {
            tracing::warn!("nobody sends what entry {:?} was elected to be", job.key);
            self.outcome.get_or_insert(false);
            return;
        };
        job.tried.insert(next);
        job.solo = Some(next);
        let arrived = core::mem::take(&mut job.arrived);
        let (again, others): (Vec<_>, Vec<_>) = self.queue.drain(..).partition(|p| p.entry == entry);
        self.queue.extend(others);
        self.queued_bytes = self.queue.iter().map(|p| p.missing() as u64).sum();
        arrived.into_iter().chain(again).for_each(|part| self.push_back(part.emptied()));
    }

    /// This source sent what is not the elected content.
    fn accuse(&mut self, peer: PeerId) {
        if self.source(peer).is_some_and(|s| s.standing != Standing::Lost) {
            tracing::warn!("{peer} sent other content than it claims to hold; it is not asked again");
            self.set(peer, Standing::Lost);
        }
    }

    /// Goes on without those who are lost, or finds that there is nothing to go on with.
    pub(super) fn conclude(&mut self) {
        if self.outcome.is_some() {
            return;
        }
        if self.jobs.is_empty() {
            self.outcome = Some(true);
            return;
        }
        let lost = |peer: PeerId| self.source(peer).is_none_or(|s| s.standing == Standing::Lost);
        let orphans: Vec<_> =
            self.jobs.iter().filter(|(_, j)| j.solo.is_some_and(lost)).map(|(entry, _)| *entry).collect();
        if self.sources.iter().all(|s| s.standing == Standing::Lost) {
            self.outcome = Some(false);
            return;
        }
        // Parts that the lost one still holds would be missed. It gives them back, and is lost once more then.
        for entry in orphans {
            let Some(job) = self.jobs.get(&entry) else { continue };
            let here = job.arrived.len() + self.queue.iter().filter(|p| p.entry == entry).count();
            if here == job.parts {
                self.begin_solo(entry);
            }
        }
    }

    fn push_back(&mut self, part: Part) {
        self.queued_bytes += part.missing() as u64;
        self.queue.push_back(part);
    }

    fn source(&self, peer: PeerId) -> Option<&Source> {
        self.sources.iter().find(|s| s.peer == peer)
    }

    fn set(&mut self, peer: PeerId, standing: Standing) {
        if let Some(source) = self.sources.iter_mut().find(|s| s.peer == peer) {
            (source.standing, source.awaited) = (standing, None);
        }
    }
}
