//! Waits that take long: this rank says whom it waits for, and tells the others what it waits in itself.
//!
//! Ranks ask each other over their links, whether they wait there, on the board or in a window. The background thread
//! answers while a rank computes.

use super::wait_schedule::{ReportTimes, WaitDue, WaitSchedule};
use super::{GroupDriver, Running, Stage};
use crate::board::Board;
use crate::group::member_name::is_stopped;
use crate::journal::PeerEvent;
use core::time::Duration;
use ringfold_fabric::arena::Arena;
use ringfold_fabric::waiter::Deadline;
use ringfold_proto::cause::{JointCall, MissingPeer, PeerTrouble, Wait};
use ringfold_proto::group_call::GroupCall;
use ringfold_proto::id::{CallId, OpId, PeerId, Rank};
use ringfold_proto::limits::{HEARD_LATELY_MS, NAMES_IN_ERROR_MAX};
use ringfold_proto::link_message::RankActivity;
use ringfold_proto::time::Time;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The waits of a rank outside of its driver, and what it has heard of the others.
#[derive(Default)]
pub(in crate::group) struct Waits {
    /// The name of the group.
    group: String,
    /// The time to the first warning; none if there are no warnings.
    warn_after: Option<Duration>,
    /// The board, if there is one.
    arena: Option<Arc<Arena>>,
    outer: BTreeMap<WaitId, OuterWait>,
    begun: u64,
    /// How many collectives this rank has launched on its CUDA device.
    launched: Arc<AtomicU64>,
    /// What other ranks were asked.
    inquiries: HashMap<Rank, Inquiry>,
}

/// Identifies a wait outside of the driver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::group) struct WaitId(u64);

/// Whom a wait outside of the driver is for.
#[derive(Clone, Debug)]
pub(in crate::group) enum Awaited {
    /// The ranks that this one sleeps for on the board, in a collective that begins with this round.
    OnBoard {
        first_round: u64,
    },
    /// The ranks that have not launched this collective on their CUDA devices.
    OnDevice {
        number: u64,
    },
    Ranks(Vec<Rank>),
}

struct OuterWait {
    call: GroupCall,
    awaited: Awaited,
    deadline: Time,
    schedule: WaitSchedule,
}

/// Questions to a rank, and its last answer.
#[derive(Default)]
struct Inquiry {
    /// When the first question was asked that is not answered.
    asked: Option<Time>,
    answer: Option<Answer>,
}

/// What a rank has answered.
#[derive(Clone, Copy)]
struct Answer {
    at: Time,
    activity: RankActivity,
}

/// The most ranks that are asked at a time.
const ASKED_MAX: usize = 64;

/// How long a rank that can run may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_millis(100);

impl Waits {
    pub(in crate::group) fn new(group: String, warn_after: Duration, arena: Option<Arc<Arena>>) -> Self {
        let warn_after = Some(warn_after).filter(|after| !after.is_zero());
        Self { group, warn_after, arena, ..Self::default() }
    }

    /// The ranks of these that a wait is for now.
    fn awaited(&self, me: Rank, others: impl Iterator<Item = Rank>, awaited: &Awaited) -> Vec<Rank> {
        match awaited {
            Awaited::OnDevice { .. } => others.filter(|rank| !self.has_begun(awaited, *rank)).collect(),
            Awaited::OnBoard { .. } => {
                self.arena.as_ref().map_or_else(Vec::new, |arena| arena.awaited_by(me).collect())
            }
            Awaited::Ranks(ranks) => ranks.clone(),
        }
    }

    /// Whether a rank has begun its part of what is awaited, as far as this one can see.
    fn has_begun(&self, awaited: &Awaited, rank: Rank) -> bool {
        match (awaited, &self.arena) {
            (Awaited::OnBoard { first_round }, Some(arena)) => arena.has_announced(rank, *first_round),
            // Launches are never taken back, so any answer counts.
            (Awaited::OnDevice { number }, _) => {
                let answer = self.inquiries.get(&rank).and_then(|inquiry| inquiry.answer);
                answer.is_some_and(|answer| answer.activity.launched >= *number)
            }
            _ => false,
        }
    }

    fn times(&self, deadline: Time) -> ReportTimes {
        ReportTimes { warn_after: self.warn_after, deadline }
    }

    /// What a rank has answered lately.
    fn answer(&self, now: Time, rank: Rank) -> Option<Answer> {
        let answer = self.inquiries.get(&rank).filter(|_| !self.is_mute(now, rank))?.answer;
        answer.filter(|answer| millis(now, answer.at) < HEARD_LATELY_MS)
    }

    /// Whether a rank was asked and has not answered.
    fn is_mute(&self, now: Time, rank: Rank) -> bool {
        let asked = self.inquiries.get(&rank).and_then(|inquiry| inquiry.asked);
        asked.is_some_and(|asked| now.since(asked) >= ANSWERS_WITHIN)
    }
}

impl Running {
    fn times(&self, waits: &Waits) -> ReportTimes {
        ReportTimes { warn_after: waits.warn_after.filter(|_| self.is_waited), deadline: self.deadline }
    }
}

impl GroupDriver {
    /// This rank has waited for this long outside of the driver, and waits on.
    pub(in crate::group) fn begin_wait(
        &mut self,
        call: GroupCall,
        awaited: Awaited,
        waited: Duration,
        deadline: Deadline,
    ) -> WaitId {
        let now = self.clock.now();
        let nanos = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        let schedule = WaitSchedule::new(Time(now.0.saturating_sub(nanos)));
        if self.journal.wants_ops() {
            self.journal.post(PeerEvent::OpRunning { call, waited });
        }
        self.waits.begun += 1;
        let (id, deadline) = (WaitId(self.waits.begun), now + deadline.left());
        self.waits.outer.insert(id, OuterWait { call, awaited, deadline, schedule });
        id
    }

    /// Counts the collectives that this rank launches on its CUDA device.
    pub(in crate::group) fn launches(&self) -> Arc<AtomicU64> {
        self.waits.launched.clone()
    }

    /// What a rank has called as the collective of this number on the board, as far as that is known.
    pub(in crate::group) fn call_on_board(&self, rank: Rank, number: u64) -> Option<String> {
        let arena = self.waits.arena.as_ref()?;
        Board::call_of(arena, rank, number).map(|descriptor| descriptor.to_string())
    }

    pub(in crate::group) fn end_wait(&mut self, id: WaitId) {
        self.waits.outer.remove(&id);
    }

    /// A caller waits for an operation that was posted before.
    pub(in crate::group) fn note_waiter(&mut self, call: CallId) {
        let now = self.clock.now();
        let posted =
            self.running.values_mut().find(|running| running.call == Some(call) && !running.is_waited);
        if let Some(running) = posted {
            running.is_waited = true;
            running.schedule.restart(now);
        }
    }

    /// What is known of a wait outside of the driver for these ranks. Without an id, it has not taken long.
    pub(in crate::group) fn describe_wait(
        &self,
        id: Option<WaitId>,
        call: GroupCall,
        missing: Vec<Rank>,
    ) -> Wait {
        let now = self.clock.now();
        let outer = id.and_then(|id| self.waits.outer.get(&id));
        let since = outer.map_or(now, |outer| outer.schedule.since);
        let begun = |rank| outer.is_some_and(|outer| self.waits.has_begun(&outer.awaited, rank));
        self.describe(now, (call, since), missing, begun)
    }

    /// What is known of a wait for these ranks in an operation over links.
    pub(super) fn wait_in_op(&self, now: Time, op: OpId, missing: Vec<Rank>) -> Wait {
        let Some(running) = self.running.get(&op) else { return Wait::for_peers([]) };
        // The schedule is brought up to date only when it is due.
        let since =
            self.plane.moved_at(op).map_or(running.schedule.since, |at| at.max(running.schedule.since));
        let op = running.decides.unwrap_or(op);
        self.describe(now, (running.named, since), missing, |rank| self.plane.has_begun(op, rank))
    }

    /// A rank asks what this one does.
    pub(super) fn answer(&mut self, now: Time, peer: PeerId) {
        let launched = self.waits.launched.load(Ordering::Relaxed);
        let activity = RankActivity { waits_in: self.activity(now), launched };
        self.plane.tell_activity(peer, self.description.id, activity);
    }

    pub(super) fn hear_answer(&mut self, now: Time, peer: PeerId, activity: RankActivity) {
        if let Some(rank) = self.description.rank_of(peer) {
            let answer = Some(Answer { at: now, activity });
            self.waits.inquiries.insert(rank, Inquiry { asked: None, answer });
        }
    }

    /// Asks, and warns, as far as that is due.
    pub(super) fn check_waits(&mut self, now: Time) {
        if self.fault.is_some() || self.next_wait_report().is_none_or(|at| at > now) {
            return;
        }
        let ops: Vec<_> = self.running.keys().copied().collect();
        for op in ops {
            let moved = self.plane.moved_at(op);
            let Some(running) = self.running.get_mut(&op).filter(|r| r.stage == Stage::Working) else {
                continue;
            };
            let times = running.times(&self.waits);
            moved.inspect(|at| running.schedule.restart(*at));
            if let Some(due) = running.schedule.take_due(now, &times) {
                let missing = self.missing(now, op).ranks;
                self.carry_out(now, due, &missing, |driver, missing| driver.wait_in_op(now, op, missing));
            }
        }
        let outer: Vec<_> = self.waits.outer.keys().copied().collect();
        for id in outer {
            let Some(wait) = self.waits.outer.get(&id) else { continue };
            let (call, times, mut schedule) = (wait.call, self.waits.times(wait.deadline), wait.schedule);
            let Some(due) = schedule.take_due(now, &times) else { continue };
            let missing = self.waits.awaited(self.me, self.others(), &wait.awaited);
            if let Some(wait) = self.waits.outer.get_mut(&id) {
                wait.schedule = schedule;
            }
            self.carry_out(now, due, &missing, |driver, missing| {
                driver.describe_wait(Some(id), call, missing)
            });
        }
    }

    /// When [`Self::check_waits`] is due.
    pub(super) fn next_wait_report(&self) -> Option<Time> {
        let waits = &self.waits;
        let working = self.running.values().filter(|running| running.stage == Stage::Working);
        let ops = working.filter_map(|running| running.schedule.next(&running.times(waits)));
        let outer = waits.outer.values().filter_map(|wait| wait.schedule.next(&waits.times(wait.deadline)));
        ops.chain(outer).min().filter(|_| self.fault.is_none())
    }

    fn carry_out(
        &mut self,
        now: Time,
        due: WaitDue,
        missing: &[Rank],
        describe: impl FnOnce(&Self, Vec<Rank>) -> Wait,
    ) {
        match due {
            _ if missing.is_empty() => {}
            WaitDue::Ask => {
                for rank in missing.iter().take(ASKED_MAX) {
                    self.waits.inquiries.entry(*rank).or_default().asked.get_or_insert(now);
                    self.plane.inquire(self.description.members[rank.index()].peer, self.description.id);
                }
                self.pump(now);
            }
            WaitDue::Warn => {
                let (wait, group) = (describe(self, missing.to_vec()), self.waits.group.clone());
                // Without the lock of the driver: writing to the log may block.
                let journal = self.journal.clone();
                self.callbacks.push(Box::new(move || journal.post(PeerEvent::StillWaiting { group, wait })));
            }
        }
    }

    /// What is known of a wait in a call since some time.
    fn describe(
        &self,
        now: Time,
        (call, since): (GroupCall, Time),
        missing: Vec<Rank>,
        has_begun: impl Fn(Rank) -> bool,
    ) -> Wait {
        let theirs = call.counterpart(self.me);
        let answer = |rank: Rank| self.waits.answer(now, rank);
        let is_in_call = |rank: Rank| {
            answer(rank)
                .and_then(|answer| answer.activity.waits_in)
                .is_some_and(|(call, _)| call.is_same(&theirs))
        };
        let has_begun = |rank: &Rank| has_begun(*rank) || is_in_call(*rank);
        let begun = missing.iter().all(has_begun);
        let named = missing.into_iter().filter(|rank| begun || !has_begun(rank));
        let known = |rank: Rank| {
            let member = &self.description.members[rank.index()];
            let (answer, heard) = (answer(rank), self.plane.heard_at(member.peer));
            let waits_in = answer.and_then(|answer| Some((answer.at, answer.activity.waits_in?)));
            let is_here = member.host == self.description.members[self.me.index()].host;
            let trouble = match self.waits.is_mute(now, rank) {
                true if is_here && is_stopped(&member.name) => Some(PeerTrouble::Stopped),
                true => Some(PeerTrouble::NoAnswer),
                false => None,
            };
            MissingPeer {
                who: member.peer_name(),
                waits_in: waits_in.map(|(_, (call, _))| JointCall::Group(call)),
                waits_ms: waits_in.map_or(0, |(at, (_, ms))| ms.saturating_add(millis(now, at)).max(1)),
                heard_ms: heard.map(|at| millis(now, at)),
                trouble,
            }
        };
        Wait {
            call: Some(theirs.into()),
            waited_ms: millis(now, since),
            begun,
            missing: named.take(NAMES_IN_ERROR_MAX).map(known).collect(),
        }
    }

    /// The call that this rank waits in, and for how many milliseconds: a collective, if there is one; else the longest
    /// wait.
    fn activity(&self, now: Time) -> Option<(GroupCall, u32)> {
        let working = self.running.values().filter(|r| r.stage == Stage::Working && r.is_waited);
        let ops = working.map(|running| (running.named, running.schedule.since));
        let outer = self.waits.outer.values().map(|wait| (wait.call, wait.schedule.since));
        let first = ops.chain(outer).min_by_key(|(call, since)| (!call.is_collective(), *since));
        first.map(|(call, since)| (call, millis(now, since)))
    }
}

fn millis(now: Time, since: Time) -> u32 {
    u32::try_from(now.since(since).as_millis()).unwrap_or(u32::MAX)
}
