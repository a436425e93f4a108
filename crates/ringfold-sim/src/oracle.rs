//! The oracle: checks what users saw against the guarantees. It knows nothing of the implementation.

use crate::buffer::{Buffer, SharedBuffer};
use crate::symbol::{Contribution, Symbol};
use ringfold_proto::epoch::{Attributes, EpochDescription};
use ringfold_proto::id::{CallId, EpochId, GroupId, Incarnation, OpId, Revision, Term};
use ringfold_proto::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A violated guarantee.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// When it was detected.
    pub at: Time,
    /// The guarantee.
    pub guarantee: Guarantee,
    /// How it was violated.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}: {}", self.at, self.guarantee, self.what)
    }
}

/// A guarantee to users; see `docs/fault-model.md`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Guarantee {
    /// Every call returns within its deadline.
    CallsReturn,
    /// All members see the same outcome of an operation.
    OutcomesAreUnanimous,
    /// A result contains each participant's value exactly once, and is the same on all peers.
    ResultsAreRight,
    /// An aborted in-place buffer is restored, and a source is never written.
    BuffersAreRestored,
    /// Nothing touches user memory after a call has returned.
    MemoryIsNotTouched,
    /// Revisions increase by one or repeat, and synced contents are equal.
    StateIsShared,
    /// All members of an epoch know the same membership and ring.
    MembershipAgrees,
    /// After the last fault all living peers are admitted and work together.
    RunRecovers,
    /// No peer reports a violation or failure without a cause.
    NoFalseAccusation,
    /// After a committed operation the world sizes are those of its epoch, the same on all peers.
    WorldSizesAgree,
    /// No call fails because a peer whose state was rejected makes no calls.
    RejectedPeersDoNotBlock,
    /// A member that lives and whose links work is not evicted when its connection to the master is reset.
    ResetsEvictNobody,
    /// When all holders of the state were lost, the newest state that peers come back with wins.
    NewestStateWins,
    /// Nothing is committed in an epoch after a later master has opened another one.
    OneHistory,
    /// The ranks of a replica are members together; those that have left by themselves are not missed.
    ReplicasAreWhole,
    /// If masters die or stop, one at a time, no operation fails and no peer is evicted.
    TakeoversFailNothing,
}

/// How an operation ended on a peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpObservation {
    Committed(Vec<Symbol>),
    Aborted,
    /// The peer was no longer a member.
    Lost,
}

/// A completed sync on a peer.
#[derive(Clone, Debug)]
pub struct SyncObservation {
    /// The incarnation of the master that answered.
    pub incarnation: u64,
    pub group: GroupId,
    pub round: u64,
    pub revision: Revision,
    /// The hashes of the tensors that must be equal.
    pub contents: Vec<u128>,
}

#[derive(Debug, Default)]
struct OpHistory {
    contributions: BTreeMap<usize, Contribution>,
    members: Vec<usize>,
    seen: BTreeMap<usize, OpObservation>,
    /// The first peer at which it was committed, and the world attributes there.
    world: Option<(usize, Attributes)>,
}

#[derive(Clone, Debug)]
struct OpenCall {
    what: String,
    due: Time,
}

/// Everything that users saw, and the violations.
#[derive(Debug, Default)]
pub struct Oracle {
    ops: BTreeMap<OpId, OpHistory>,
    calls: BTreeMap<(usize, CallId), OpenCall>,
    epochs: BTreeMap<EpochId, (EpochDescription, usize)>,
    /// The first observation of each sync and its peer; by incarnation of the master, group and round.
    syncs: BTreeMap<(u64, GroupId, u64), (usize, SyncObservation)>,
    resets: BTreeMap<GroupId, u64>,
    /// Peers whose process has ended.
    ended: BTreeSet<usize>,
    master_starts: u64,
    /// Counts the times that a master forgot its groups: by restarting, or by restoring an earlier incarnation.
    incarnations: u64,
    /// The term of each incarnation, if there are several masters.
    terms: BTreeMap<Incarnation, Term>,
    /// When each commit was first sent.
    commits: BTreeMap<OpId, Time>,
    /// When each epoch was first opened at each peer.
    openings: BTreeMap<EpochId, BTreeMap<usize, Time>>,
    pub violations: Vec<Violation>,
    pub committed: u64,
    pub aborted: u64,
    /// Operations that peers have resumed.
    pub resumed: u64,
    pub synced: u64,
}

impl Oracle {
    pub fn report_violation(&mut self, at: Time, guarantee: Guarantee, what: String) {
        self.violations.push(Violation { at, guarantee, what });
    }

    /// A machine of a master starts to decide. Returns the number of its incarnation.
    pub fn master_started(&mut self) -> u64 {
        self.master_starts += 1;
        self.incarnations += 1;
        self.incarnations
    }

    /// The master restores an earlier incarnation, and forgets its own groups.
    pub fn restore_began(&mut self) -> u64 {
        self.incarnations += 1;
        self.incarnations
    }

    /// A master leads in this term, as this incarnation.
    pub fn leads(&mut self, incarnation: Incarnation, term: Term) {
        self.terms.insert(incarnation, term);
    }

    /// All masters have restarted since the last one led: like a single one that restarts, they may begin another run before
    /// members return.
    pub fn masters_forgot(&mut self) {
        self.openings.clear();
    }

    /// A master sends the decision that an operation is committed.
    pub fn commit_sent(&mut self, now: Time, op: OpId) {
        self.commits.entry(op).or_insert(now);
    }

    pub fn process_ended(&mut self, peer: usize) {
        self.ended.insert(peer);
        self.calls.retain(|(p, _), _| *p != peer);
    }

    pub fn called(&mut self, peer: usize, call: CallId, what: String, due: Time) {
        self.calls.insert((peer, call), OpenCall { what, due });
    }

    pub fn returned(&mut self, peer: usize, call: CallId) {
        self.calls.remove(&(peer, call));
    }

    /// A peer was stopped or slow: its calls may take that much longer.
    pub fn delayed(&mut self, peer: usize, by: std::time::Duration) {
        for ((p, _), call) in &mut self.calls {
            if *p == peer {
                call.due = call.due + by;
            }
        }
    }

    /// Checks that no call is overdue.
    pub fn check_deadlines(&mut self, now: Time) {
        let late: Vec<_> =
            self.calls.iter().filter(|(_, c)| c.due < now).map(|(k, c)| (*k, c.clone())).collect();
        for ((peer, call), open) in late {
            self.calls.remove(&(peer, call));
            self.report_violation(
                now,
                Guarantee::CallsReturn,
                format!("p{peer}: {} has not returned", open.what),
            );
        }
    }

    /// The open calls, for reports.
    pub fn open_calls(&self) -> String {
        let calls: Vec<_> = self.calls.iter().map(|((p, _), c)| format!("p{p} in {}", c.what)).collect();
        calls.join(", ")
    }

    pub fn opened(&mut self, now: Time, peer: usize, description: &EpochDescription) {
        let (first, by) =
            self.epochs.entry(description.id).or_insert_with(|| (description.clone(), peer)).clone();
        if first != *description {
            let what = format!("p{peer} and p{by} differ on {}", description.id);
            self.report_violation(now, Guarantee::MembershipAgrees, what);
        }
        self.openings.entry(description.id).or_default().entry(peer).or_insert(now);
        let mut ring: Vec<_> = description.ring.iter().map(|r| r.index()).collect();
        ring.sort_unstable();
        if ring != (0..description.members.len()).collect::<Vec<_>>() {
            self.report_violation(
                now,
                Guarantee::MembershipAgrees,
                format!("the ring of {} is invalid", description.id),
            );
        }
    }

    /// A peer started an operation with all of these members.
    pub fn op_started(&mut self, op: OpId, peer: usize, contribution: Contribution, members: Vec<usize>) {
        let history = self.ops.entry(op).or_default();
        history.contributions.insert(peer, contribution);
        history.members = members;
    }

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
            self.report_violation(now, Guarantee::MemoryIsNotTouched, format!("p{peer}, {op}: {what}"));
        }
        buffer.returned = true;
        self.check_buffer(now, op, peer, &buffer, committed == Some(true));
        let seen = match committed {
            Some(true) => OpObservation::Committed(buffer.result().to_vec()),
            Some(false) => OpObservation::Aborted,
            None => OpObservation::Lost,
        };
        match &seen {
            OpObservation::Committed(result) => {
                self.committed += 1;
                self.check_result(now, op, peer, result);
            }
            OpObservation::Aborted => self.aborted += 1,
            OpObservation::Lost => {}
        }
        self.ops.entry(op).or_default().seen.insert(peer, seen);
    }

    /// An operation was committed on a peer, whose user now sees these world sizes.
    pub fn op_committed(&mut self, now: Time, op: OpId, peer: usize, world: Attributes) {
        self.check_history(now, op, peer);
        let history = self.ops.entry(op).or_default();
        let (members, (first, seen)) = (history.members.len(), *history.world.get_or_insert((peer, world)));
        if world.group_world as usize != members {
            let what = format!("p{peer} sees {world:?} after {op} of {members} members");
            self.report_violation(now, Guarantee::WorldSizesAgree, what);
        }
        // Another incarnation of the master, or another master, may know fewer peers of other groups.
        if seen != world && self.master_starts <= 1 {
            let what = format!("after {op} p{first} sees {seen:?}, p{peer} sees {world:?}");
            self.report_violation(now, Guarantee::WorldSizesAgree, what);
        }
    }

    /// Checks that no later master had opened another epoch of the group when the commit was first sent.
    fn check_history(&mut self, now: Time, op: OpId, peer: usize) {
        let term = |epoch: &EpochId| self.terms.get(&epoch.incarnation).copied().unwrap_or_default();
        let Some(sent) = self.commits.get(&op).copied() else { return };
        let is_later = |epoch: &EpochId| epoch.group == op.epoch.group && term(epoch) > term(&op.epoch);
        // A history ends with the last peer that remembers it.
        let before = |(by, at): &(&usize, &Time)| **at < sent && !self.ended.contains(*by);
        let later = self.openings.iter().filter(|(epoch, _)| is_later(epoch));
        let later = later.filter_map(|(epoch, openings)| Some((epoch, openings.iter().find(before)?))).next();
        if let Some((epoch, (other, at))) = later {
            let what =
                format!("p{peer}: {op} was committed at {sent}, after p{other} had opened {epoch} at {at}");
            self.report_violation(now, Guarantee::OneHistory, what);
        }
    }

    /// Reports accesses to a buffer after its call had returned.
    pub fn buffer_touched(&mut self, now: Time, peer: usize, buffer: &SharedBuffer) {
        for what in std::mem::take(&mut buffer.borrow_mut().violations) {
            self.report_violation(now, Guarantee::MemoryIsNotTouched, format!("p{peer}: {what}"));
        }
    }

    /// A group may restart at another revision.
    pub fn revision_reset(&mut self, group: GroupId) {
        *self.resets.entry(group).or_default() += 1;
    }

    /// The number of the current incarnation of the master.
    pub fn incarnation(&self) -> u64 {
        self.incarnations
    }

    pub fn sync_ended(&mut self, now: Time, peer: usize, seen: SyncObservation) {
        self.synced += 1;
        let (group, round, revision) = (seen.group, seen.round, seen.revision);
        let resets = self.resets.get(&group).copied().unwrap_or(0);
        let previous =
            self.syncs.get(&(seen.incarnation, group, round.wrapping_sub(1))).map(|(_, s)| s.revision);
        if let (Some(before), 0) = (previous, resets)
            && revision != before
            && revision.0 != before.0 + 1
        {
            let what = format!("{group} went from {before} to {revision} at p{peer}");
            self.report_violation(now, Guarantee::StateIsShared, what);
        }
        let (first, same) = {
            let (first, before) =
                self.syncs.entry((seen.incarnation, group, round)).or_insert_with(|| (peer, seen.clone()));
            (*first, before.revision == revision && before.contents == seen.contents)
        };
        if !same {
            let what = format!("p{peer} holds other contents than p{first} after sync {round} of {group}");
            self.report_violation(now, Guarantee::StateIsShared, what);
        }
    }

    /// Compares what the peers saw of each operation, at the end of a run.
    pub fn finish(&mut self, now: Time) {
        let mut found = Vec::new();
        for (op, history) in &self.ops {
            let committed: Vec<_> =
                history.seen.iter().filter(|(_, s)| matches!(s, OpObservation::Committed(_))).collect();
            // A restarted master, or another one, cannot know what a member saw that does not return (R8).
            let excused = |peer: &usize| self.master_starts > 1 && self.ended.contains(peer);
            let aborted = history.seen.iter().filter(|(p, s)| **s == OpObservation::Aborted && !excused(p));
            if let (Some((one, _)), Some((other, _))) =
                (committed.iter().find(|(p, _)| !excused(p)), aborted.clone().next())
            {
                found.push((
                    Guarantee::OutcomesAreUnanimous,
                    format!("{op} is committed at p{one}, aborted at p{other}"),
                ));
            }
            for pair in committed.windows(2) {
                if pair[0].1 != pair[1].1 {
                    let what =
                        format!("the results of {op} differ between p{} and p{}", pair[0].0, pair[1].0);
                    found.push((Guarantee::ResultsAreRight, what));
                }
            }
        }
        for (guarantee, what) in found {
            self.report_violation(now, guarantee, what);
        }
    }

    fn check_result(&mut self, now: Time, op: OpId, peer: usize, result: &[Symbol]) {
        let Some(history) = self.ops.get(&op).filter(|_| !result.is_empty()) else { return };
        let wanted: Option<Vec<_>> =
            history.members.iter().map(|m| history.contributions.get(m).copied()).collect();
        let Some(mut wanted) = wanted else {
            let what = format!("{op} is committed at p{peer}, but not all members had started it");
            return self.report_violation(now, Guarantee::ResultsAreRight, what);
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
            self.report_violation(now, Guarantee::ResultsAreRight, what);
        }
    }

    fn check_buffer(&mut self, now: Time, op: OpId, peer: usize, buffer: &Buffer, committed: bool) {
        let must_be_intact = !buffer.in_place || !committed;
        if must_be_intact && !buffer.source_is_intact() {
            let what = format!("{op} at p{peer}: the source has changed (in place: {})", buffer.in_place);
            self.report_violation(now, Guarantee::BuffersAreRestored, what);
        }
    }
}
