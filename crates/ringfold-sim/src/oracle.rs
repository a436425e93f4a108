//! The checkers. They stand outside of the code: they know what users were promised and what users saw,
//! and nothing of how it came about.

use crate::buffer::{Buffer, SharedBuffer};
use crate::symbol::{Contribution, Symbol};
use ringfold_proto::epoch::{Attributes, EpochDescription};
use ringfold_proto::id::{CallId, EpochId, GroupId, OpId, Revision};
use ringfold_proto::time::Time;
use std::collections::BTreeMap;
use std::fmt;

/// A promise that was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// When it was noticed.
    pub at: Time,
    /// Which promise.
    pub promise: Promise,
    /// How it was broken.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}: {}", self.at, self.promise, self.what)
    }
}

/// What users are promised.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Promise {
    /// Every call returns within its deadline.
    CallsReturn,
    /// All members see the same outcome of an operation.
    OutcomesAreUnanimous,
    /// A result holds each participant's value exactly once, and all hold the same.
    ResultsAreRight,
    /// An aborted in-place buffer is unchanged, and a source is never written.
    BuffersArePutBack,
    /// Nothing touches user memory after a call has returned.
    MemoryIsTheUsers,
    /// Revisions move by the rules, and synced contents are equal.
    StateIsShared,
    /// All members of an epoch know the same membership and ring.
    MembershipAgrees,
    /// When the trouble is over, everyone who knocks is admitted and works with all others.
    TheRunRecovers,
    /// Peers do not accuse each other of breaking rules that nobody broke.
    NobodyIsAccused,
    /// After a committed operation the world attributes are those of its epoch, the same on all peers.
    WorldsAgree,
    /// No call fails because a peer whose state was rejected makes no calls.
    NobodyWaitsForRejected,
}

/// How a peer saw an operation end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// With this result.
    Committed(Vec<Symbol>),
    /// Put back.
    Aborted,
    /// The peer was no longer part of the run.
    Lost,
}

/// A sync as a peer saw it end.
#[derive(Clone, Debug)]
pub struct SyncSeen {
    /// Which life of the master answered.
    pub life: u64,
    /// The group.
    pub group: GroupId,
    /// Which sync of the group.
    pub round: u64,
    /// The revision.
    pub revision: Revision,
    /// What the tensors that must be equal hash to.
    pub contents: Vec<u128>,
}

#[derive(Debug, Default)]
struct OpHistory {
    contributions: BTreeMap<usize, Contribution>,
    members: Vec<usize>,
    seen: BTreeMap<usize, Seen>,
    /// The first peer at which it was committed, and the world attributes there.
    world: Option<(usize, Attributes)>,
}

#[derive(Clone, Debug)]
struct OpenCall {
    what: String,
    due: Time,
}

/// Everything that users saw.
#[derive(Debug, Default)]
pub struct Oracle {
    ops: BTreeMap<OpId, OpHistory>,
    calls: BTreeMap<(usize, CallId), OpenCall>,
    epochs: BTreeMap<EpochId, (EpochDescription, usize)>,
    /// The first who saw each sync end, and what it saw; by life of the master, group and round.
    syncs: BTreeMap<(u64, GroupId, u64), (usize, SyncSeen)>,
    resets: BTreeMap<GroupId, u64>,
    /// Peers that died or were put out.
    gone: BTreeMap<usize, Time>,
    master_lives: u64,
    /// Counts whenever a master forgets what it had of groups: by a new life, or by restoring an old one.
    sync_lives: u64,
    /// What was found.
    pub violations: Vec<Violation>,
    /// Operations that were committed, and those that were aborted, as peers saw them.
    pub committed: u64,
    /// See `committed`.
    pub aborted: u64,
    /// Completed syncs, as peers saw them.
    pub synced: u64,
}

impl Oracle {
    /// Notes a broken promise.
    pub fn accuse(&mut self, at: Time, promise: Promise, what: String) {
        self.violations.push(Violation { at, promise, what });
    }

    /// The master started another life.
    pub fn master_started(&mut self) {
        self.master_lives += 1;
        self.sync_lives += 1;
    }

    /// The master takes up an earlier life, and forgets what it had begun itself.
    pub fn restore_began(&mut self) {
        self.sync_lives += 1;
    }

    /// A peer is no longer part of the run.
    pub fn gone(&mut self, now: Time, peer: usize) {
        self.gone.insert(peer, now);
        self.calls.retain(|(p, _), _| *p != peer);
    }

    /// A user called.
    pub fn called(&mut self, peer: usize, call: CallId, what: String, due: Time) {
        self.calls.insert((peer, call), OpenCall { what, due });
    }

    /// A call returned.
    pub fn returned(&mut self, peer: usize, call: CallId) {
        self.calls.remove(&(peer, call));
    }

    /// A peer was frozen or slow for a while: its calls may take that much longer.
    pub fn delayed(&mut self, peer: usize, by: std::time::Duration) {
        for ((p, _), call) in &mut self.calls {
            if *p == peer {
                call.due = call.due + by;
            }
        }
    }

    /// Looks for calls that should have returned.
    pub fn look_at_clock(&mut self, now: Time) {
        let late: Vec<_> =
            self.calls.iter().filter(|(_, c)| c.due < now).map(|(k, c)| (*k, c.clone())).collect();
        for ((peer, call), open) in late {
            self.calls.remove(&(peer, call));
            self.accuse(now, Promise::CallsReturn, format!("p{peer}: {} has not returned", open.what));
        }
    }

    /// The calls that have not returned, for a report.
    pub fn open_calls(&self) -> String {
        let calls: Vec<_> = self.calls.iter().map(|((p, _), c)| format!("p{p} in {}", c.what)).collect();
        calls.join(", ")
    }

    /// A peer opened an epoch.
    pub fn opened(&mut self, now: Time, peer: usize, description: &EpochDescription) {
        let (first, by) =
            self.epochs.entry(description.id).or_insert_with(|| (description.clone(), peer)).clone();
        if first != *description {
            let what = format!("p{peer} and p{by} differ on {}", description.id);
            self.accuse(now, Promise::MembershipAgrees, what);
        }
        let mut ring: Vec<_> = description.ring.iter().map(|r| r.index()).collect();
        ring.sort_unstable();
        if ring != (0..description.members.len()).collect::<Vec<_>>() {
            self.accuse(now, Promise::MembershipAgrees, format!("the ring of {} is none", description.id));
        }
    }

    /// A peer started an operation with all of these members.
    pub fn op_started(&mut self, op: OpId, peer: usize, contribution: Contribution, members: Vec<usize>) {
        let history = self.ops.entry(op).or_default();
        history.contributions.insert(peer, contribution);
        history.members = members;
    }

    /// A peer's operation returned to its user.
    pub fn op_ended(
        &mut self,
        now: Time,
        op: OpId,
        peer: usize,
        buffer: &SharedBuffer,
        committed: Option<bool>,
    ) {
        let mut buffer = buffer.borrow_mut();
        for what in std::mem::take(&mut buffer.violations) {
            self.accuse(now, Promise::MemoryIsTheUsers, format!("p{peer}, {op}: {what}"));
        }
        buffer.returned = true;
        self.check_buffer(now, op, peer, &buffer, committed == Some(true));
        let seen = match committed {
            Some(true) => Seen::Committed(buffer.result().to_vec()),
            Some(false) => Seen::Aborted,
            None => Seen::Lost,
        };
        match &seen {
            Seen::Committed(_) => self.committed += 1,
            Seen::Aborted => self.aborted += 1,
            Seen::Lost => {}
        }
        if let Seen::Committed(result) = &seen {
            self.check_result(now, op, peer, result);
        }
        self.ops.entry(op).or_default().seen.insert(peer, seen);
    }

    /// An operation was committed at a peer, whose user sees these world sizes from now on.
    pub fn op_committed(&mut self, now: Time, op: OpId, peer: usize, world: Attributes) {
        let history = self.ops.entry(op).or_default();
        let (members, (first, seen)) = (history.members.len(), *history.world.get_or_insert((peer, world)));
        if world.group_world as usize != members {
            let what = format!("p{peer} sees {world:?} after {op} of {members} members");
            self.accuse(now, Promise::WorldsAgree, what);
        }
        // Another life of the master may know of fewer peers in other groups.
        if seen != world && self.master_lives <= 1 {
            let what = format!("after {op} p{first} sees {seen:?}, p{peer} sees {world:?}");
            self.accuse(now, Promise::WorldsAgree, what);
        }
    }

    /// A buffer was touched behind its user's back, found at any later time.
    pub fn buffer_touched(&mut self, now: Time, peer: usize, buffer: &SharedBuffer) {
        for what in std::mem::take(&mut buffer.borrow_mut().violations) {
            self.accuse(now, Promise::MemoryIsTheUsers, format!("p{peer}: {what}"));
        }
    }

    /// A group may begin anew: a send-only peer sets its revision, or its last member has said goodbye.
    pub fn revision_reset(&mut self, group: GroupId) {
        *self.resets.entry(group).or_default() += 1;
    }

    /// Which life of the master answers now.
    pub fn sync_life(&self) -> u64 {
        self.sync_lives
    }

    /// A peer completed a sync.
    pub fn sync_ended(&mut self, now: Time, peer: usize, seen: SyncSeen) {
        self.synced += 1;
        let (group, round, revision) = (seen.group, seen.round, seen.revision);
        let resets = self.resets.get(&group).copied().unwrap_or(0);
        let previous = self.syncs.get(&(seen.life, group, round.wrapping_sub(1))).map(|(_, s)| s.revision);
        if let (Some(before), 0) = (previous, resets)
            && revision != before
            && revision.0 != before.0 + 1
        {
            let what = format!("{group} went from {before} to {revision} at p{peer}");
            self.accuse(now, Promise::StateIsShared, what);
        }
        let (first, same) = {
            let (first, before) =
                self.syncs.entry((seen.life, group, round)).or_insert_with(|| (peer, seen.clone()));
            (*first, before.revision == revision && before.contents == seen.contents)
        };
        if !same {
            let what = format!("p{peer} holds other contents than p{first} after sync {round} of {group}");
            self.accuse(now, Promise::StateIsShared, what);
        }
    }

    /// The run is over: compares what peers saw of each operation.
    pub fn finish(&mut self, now: Time) {
        let mut found = Vec::new();
        for (op, history) in &self.ops {
            let committed: Vec<_> =
                history.seen.iter().filter(|(_, s)| matches!(s, Seen::Committed(_))).collect();
            // A master that restarts can't know what a member saw that does not come back (R8).
            let excused = |peer: &usize| self.master_lives > 1 && self.gone.contains_key(peer);
            let aborted = history.seen.iter().filter(|(p, s)| **s == Seen::Aborted && !excused(p));
            if let (Some((one, _)), Some((other, _))) =
                (committed.iter().find(|(p, _)| !excused(p)), aborted.clone().next())
            {
                found.push((
                    Promise::OutcomesAreUnanimous,
                    format!("{op} is committed at p{one}, aborted at p{other}"),
                ));
            }
            for pair in committed.windows(2) {
                if pair[0].1 != pair[1].1 {
                    let what = format!("{op} gave p{} other bits than p{}", pair[0].0, pair[1].0);
                    found.push((Promise::ResultsAreRight, what));
                }
            }
        }
        for (promise, what) in found {
            self.accuse(now, promise, what);
        }
    }

    fn check_result(&mut self, now: Time, op: OpId, peer: usize, result: &[Symbol]) {
        let Some(history) = self.ops.get(&op).filter(|_| !result.is_empty()) else { return };
        let wanted: Option<Vec<_>> =
            history.members.iter().map(|m| history.contributions.get(m).copied()).collect();
        let Some(mut wanted) = wanted else {
            let what = format!("{op} is committed at p{peer}, but not all members had started it");
            return self.accuse(now, Promise::ResultsAreRight, what);
        };
        wanted.sort_unstable();
        let wrong = result
            .iter()
            .enumerate()
            .find(|(i, s)| s.terms != wanted || s.position != *i as u64 || s.settled != 1);
        if let Some((i, symbol)) = wrong {
            let terms: Vec<_> = wanted.iter().map(|t| t.0).collect();
            let what = format!(
                "{op} at p{peer}: element {i} is {symbol} (settled {} times), not {terms:?}",
                symbol.settled
            );
            self.accuse(now, Promise::ResultsAreRight, what);
        }
    }

    fn check_buffer(&mut self, now: Time, op: OpId, peer: usize, buffer: &Buffer, committed: bool) {
        let must_be_intact = !buffer.in_place || !committed;
        if must_be_intact && !buffer.source_is_intact() {
            let what = format!("{op} at p{peer}: the source has changed (in place: {})", buffer.in_place);
            self.accuse(now, Promise::BuffersArePutBack, what);
        }
    }
}
