//! Whether a collective is valid, in groups that restore the buffers of failed ones, or compare results.
//!
//! In groups that restore, a collective is valid when all ranks have its result, which a barrier behind it shows. If the group fails before this
//! rank has passed the barrier, others may have passed it. So after a failure each rank reports how many collectives are
//! valid, and what is valid for one surviving rank is valid for all.
//!
//! An all-reduce whose results are compared is valid when all ranks have the same result. Instead of the barrier, the ranks gather
//! the digests of all results, so that each of them can tell, and names the same ranks.

use super::wait_schedule::WaitSchedule;
use super::{GroupDriver, Running, Stage};
use crate::all_reduce::HostBuffers;
use crate::data_plane::OpOptions;
use crate::limits;
use ringfold_fabric::memory::{Memory, View};
use ringfold_plan::layout::Layout;
use ringfold_proto::cause::Cause;
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::dtype::DType;
use ringfold_proto::id::{OpId, Rank, Tag};
use ringfold_proto::integrity::{Dissent, Integrity};
use ringfold_proto::reduce_op::ReduceOp;
use ringfold_proto::time::Time;
use std::collections::{BTreeSet, HashMap};

/// The tag of the barriers and gathered digests that decide collectives.
const DECISIONS: Tag = Tag(1);

/// The topic of reports about them.
const TOPIC: u64 = u64::MAX;

/// What is known of valid collectives.
#[derive(Default)]
pub(super) struct Decisions {
    /// Whether buffers of failed ones are restored.
    restores: bool,
    /// How many are valid, as this rank has seen.
    seen: u64,
    /// As others have reported after the failure.
    heard: HashMap<Rank, u64>,
    /// The group has failed, and this rank has results that may be valid.
    doubt: Option<Doubt>,
}

struct Doubt {
    /// Ranks that have not reported.
    missing: BTreeSet<Rank>,
    until: Time,
}

impl Decisions {
    pub(super) fn new(restores: bool) -> Self {
        Self { restores, ..Self::default() }
    }

    /// Whether results that are not decided may become valid after a failure.
    pub(super) fn restores(&self) -> bool {
        self.restores
    }
}

impl GroupDriver {
    /// This rank has the result of an operation, with this digest if it is compared.
    pub(super) fn note_done(&mut self, now: Time, op: OpId, digest: Option<u64>) {
        let Some(running) = self.running.get_mut(&op) else { return };
        if self.fault.is_some() {
            // It was aborted, and its buffers are restored.
            return;
        }
        if let Some(decided) = running.decides {
            self.decide(op);
            self.decide(decided);
        } else if running.compares.is_some() {
            // Its buffers have the digests.
            self.decide(op);
        } else if digest.is_some() || self.decisions.restores && running.is_collective() {
            running.stage = Stage::Done;
            self.begin_deciding(now, op, digest);
        } else {
            self.decide(op);
        }
    }

    /// Starts the barrier behind a collective, or gathers the digests of its results.
    fn begin_deciding(&mut self, now: Time, op: OpId, digest: Option<u64>) {
        let Running { descriptor, deadline, sign_every, named, is_waited, .. } = self.running[&op];
        // The digests are compared by this rank itself.
        let integrity = Integrity { results: false, ..descriptor.integrity };
        let (collective, dtype, count, source) = match digest {
            None => (Collective::Barrier, DType::U8, 0, Memory::zeroed(0).into_view()),
            Some(digest) => {
                let digests = self.description.members.len() as u64;
                (Collective::AllGather, DType::U64, digests, View::from(digest.to_le_bytes().to_vec()))
            }
        };
        let base = Descriptor::all_reduce(count, dtype, ReduceOp::Sum).with_collective(collective);
        let descriptor = Descriptor { integrity, ..base };
        let target = Memory::zeroed(count as usize * dtype.bytes());
        let buffers = HostBuffers::OutOfPlace { source, target };
        let decision = OpId { tag: DECISIONS, ..op };
        if self.plane.start(now, decision, descriptor, &Layout::Even, buffers, OpOptions::default()).is_err()
        {
            return self.fail(now, Cause::Unable { who: self.name(self.me) });
        }
        let running = Running {
            call: None,
            decides: digest.is_none().then_some(op),
            compares: digest.map(|_| op),
            stage: Stage::Working,
            descriptor,
            named,
            deadline,
            is_waited,
            schedule: WaitSchedule::new(now),
            is_put_off: false,
            sign_every,
            next_sign: now + sign_every,
            began: now,
            is_posted: true,
            moved: (0, 0),
        };
        self.running.insert(decision, running);
    }

    /// Decides an all-reduce by the digests of its results, which this rank has gathered in rank order.
    pub(super) fn compare(&mut self, now: Time, op: OpId, gathered: &HostBuffers) {
        if self.fault.is_some() {
            return;
        }
        let HostBuffers::OutOfPlace { target, .. } = gathered else { return };
        let digests = target.as_slice().as_chunks().0.iter().map(|digest| Some(u64::from_le_bytes(*digest)));
        let digests = digests.enumerate().map(|(rank, digest)| (Rank::from_index(rank), digest)).collect();
        match Dissent::of(&digests) {
            None => self.decide(op),
            Some(Dissent { who, agree }) => {
                let who = self.names(who.into_iter());
                self.fail(now, Cause::ResultsDiffer { who, agree });
            }
        }
    }

    /// An operation is valid, whatever happens.
    fn decide(&mut self, op: OpId) {
        if let Some(running) = self.running.get_mut(&op) {
            running.stage = Stage::Decided;
            self.plane.commit(op);
            if op.tag == Tag(0) && op.seq.0 == self.decisions.seen {
                self.decisions.seen += 1;
            }
        }
    }

    /// The group has failed: reports what is valid, and waits for reports if this rank has undecided results.
    pub(super) fn tell_decisions(&mut self, now: Time) {
        if !self.decisions.restores {
            return;
        }
        let seen = self.decisions.seen.to_string();
        let mut missing = BTreeSet::new();
        for rank in self.others() {
            let peer = self.description.members[rank.index()].peer;
            self.plane.send_note(peer, self.description.id, TOPIC, seen.clone());
            if self.plane.has_link(peer) && !self.left.contains(&rank) {
                missing.insert(rank);
            }
        }
        missing.retain(|rank| !self.decisions.heard.contains_key(rank));
        self.decisions.doubt = Some(Doubt { missing, until: now + limits::DECISION_MAX });
        self.end_doubt(now);
    }

    /// Another rank has reported what is valid. Returns whether the note was such a report.
    pub(super) fn hear_decisions(&mut self, now: Time, from: Rank, topic: u64, text: &str) -> bool {
        if topic != TOPIC {
            return false;
        }
        self.decisions.heard.insert(from, text.parse().unwrap_or(0));
        self.hear_no_more(now, from);
        true
    }

    /// A rank will send no further report.
    pub(super) fn hear_no_more(&mut self, now: Time, from: Rank) {
        if let Some(doubt) = &mut self.decisions.doubt {
            doubt.missing.remove(&from);
            self.end_doubt(now);
        }
    }

    /// When waiting for reports ends.
    pub(super) fn doubts_until(&self) -> Option<Time> {
        self.decisions.doubt.as_ref().map(|doubt| doubt.until)
    }

    /// Decides results as far as the reports allow.
    pub(super) fn end_doubt(&mut self, now: Time) {
        let Some(doubt) = &self.decisions.doubt else { return };
        let is_over = doubt.missing.is_empty() || doubt.until <= now;
        let counting = self.decisions.heard.values().copied().max().unwrap_or(0);
        let open = self.running.iter().filter(|(_, running)| running.stage == Stage::Done);
        let mut open: Vec<_> = open.map(|(op, _)| *op).collect();
        let counts = |op: &mut OpId| op.seq.0 < counting;
        for op in open.extract_if(.., counts) {
            self.decide(op);
        }
        if is_over || open.is_empty() {
            self.decisions.doubt = None;
            for op in open {
                self.plane.abort(op);
            }
        }
    }

    /// Stops waiting for reports.
    pub(super) fn give_up_doubt(&mut self, now: Time) {
        if let Some(doubt) = &mut self.decisions.doubt {
            doubt.until = now;
            self.end_doubt(now);
        }
    }
}
