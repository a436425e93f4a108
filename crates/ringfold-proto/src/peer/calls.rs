//! The user's calls: which are valid when, and how they end.

use super::{Completion, Failure, MembershipStage, Peer, PeerAction};
use crate::cause::{MasterLoss, StateRejection};
use crate::descriptor::Descriptor;
use crate::id::{CallId, OpId, PeerId, Tag};
use crate::limits;
use crate::message::{Answer, Ballot, Phase, Request, ToMaster};
use crate::shared_state::SyncOffer;
use crate::time::Time;
use core::time::Duration;

/// A call that has not ended.
#[derive(Debug)]
pub(super) struct Call {
    pub kind: CallKind,
    pub deadline: Time,
    /// When the master counts as lost because it did not end the call.
    pub master_deadline: Time,
}

#[derive(Debug)]
pub(super) enum CallKind {
    Connect,
    Vote { request: Request, rejected: Option<Failure> },
    Reduce(ReduceCall),
}

/// A collective, from the call to the release of its buffers.
#[derive(Debug)]
pub(super) struct ReduceCall {
    pub tag: Tag,
    pub descriptor: Descriptor,
    pub progress: ReduceProgress,
    /// The executor rejected it, and will not report its release.
    pub refused: bool,
}

/// The progress of a collective.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum ReduceProgress {
    /// No epoch is open.
    WaitingForEpoch,
    /// The executor runs it.
    Running { op: OpId, announce_at: Option<Time> },
    /// The outcome is not known. `done`: the result is complete, with this digest if there is one. `ballot`: the last vote.
    Voted { op: OpId, done: Option<Option<u64>>, ballot: Ballot },
    /// A member was lost. The next epoch may resume it; if not, it fails for this reason. The buffers are in use.
    Suspending { op: OpId, why: Failure },
    /// The same, with free buffers. `held`: the chunks that are here, if it can be resumed.
    Suspended { op: OpId, why: Failure, held: Option<Vec<(PeerId, u32)>> },
    /// The outcome is known, the buffers are in use.
    Releasing { op: OpId, result: Result<u32, Failure> },
}

impl Call {
    pub fn timeout(&self) -> Option<Time> {
        let (announce, has_deadline) = match &self.kind {
            CallKind::Reduce(ReduceCall {
                progress: ReduceProgress::Running { announce_at, .. }, ..
            }) => (*announce_at, true),
            CallKind::Reduce(ReduceCall { progress: ReduceProgress::Releasing { .. }, .. }) => return None,
            CallKind::Reduce(ReduceCall { progress: ReduceProgress::Voted { ballot, .. }, .. }) => {
                (None, matches!(ballot, Ballot::Done { .. }))
            }
            // The next epoch opens in time, or the master is lost.
            CallKind::Reduce(ReduceCall {
                progress: ReduceProgress::Suspending { .. } | ReduceProgress::Suspended { .. },
                ..
            }) => (None, false),
            CallKind::Reduce(_) | CallKind::Connect => (None, true),
            CallKind::Vote { .. } => (None, false),
        };
        let deadline = if has_deadline { self.deadline } else { self.master_deadline };
        Some(announce.map_or(deadline, |at| at.min(deadline)).min(self.master_deadline))
    }
}

impl Peer {
    /// Registers with the master and waits until accepted.
    pub fn connect(&mut self, now: Time, timeout: Option<Duration>) -> Result<CallId, Failure> {
        if self.stage != MembershipStage::Idle {
            return Err(Failure::Misuse("this communicator was connected before: create a new one".into()));
        }
        self.stage = MembershipStage::Joining;
        let call = self.begin(now, timeout, CallKind::Connect);
        self.dial();
        Ok(call)
    }

    /// Admits pending peers, together with all members of the run.
    pub fn update_topology(&mut self, now: Time, timeout: Option<Duration>) -> Result<CallId, Failure> {
        self.vote(now, timeout, Request::UpdateTopology)
    }

    /// Asks whether peers wait to join, together with all members of the run.
    pub fn are_peers_pending(&mut self, now: Time, timeout: Option<Duration>) -> Result<CallId, Failure> {
        self.vote(now, timeout, Request::ArePeersPending)
    }

    /// Measures bandwidths and adopts a better ring, together with all members of the run.
    pub fn optimize_topology(&mut self, now: Time, timeout: Option<Duration>) -> Result<CallId, Failure> {
        if self.is_member() && self.visible.global_world <= 1 {
            return Err(Failure::Misuse("optimize_topology needs at least 2 peers in the run".into()));
        }
        self.vote(now, timeout, Request::OptimizeTopology)
    }

    /// Agrees on the shared state, together with all members of the group.
    pub fn sync_shared_state(
        &mut self,
        now: Time,
        timeout: Option<Duration>,
        offer: SyncOffer,
    ) -> Result<CallId, Failure> {
        check_offer(&offer)?;
        self.vote(now, timeout, Request::Sync(offer))
    }

    /// The same, while collectives may run. All members of the group call this one, or all call the other one.
    pub fn sync_beside(
        &mut self,
        now: Time,
        timeout: Option<Duration>,
        offer: SyncOffer,
    ) -> Result<CallId, Failure> {
        check_offer(&offer)?;
        self.vote(now, timeout, Request::SyncBeside(offer))
    }

    /// Starts a collective of the group under a tag.
    pub fn collective(&mut self, now: Time, tag: Tag, descriptor: Descriptor) -> Result<CallId, Failure> {
        self.require_member()?;
        if let Some(busy) = self.voting(Request::excludes_collectives) {
            return Err(Failure::Misuse(format!("cannot start a collective during {busy}")));
        }
        if self.reduces().any(|r| r.tag == tag) {
            return Err(Failure::BadArgument(format!("{tag} is already in flight")));
        }
        if self.reduces().count() >= limits::OPS_IN_FLIGHT_MAX {
            return Err(Failure::Misuse(format!(
                "too many operations in flight: at most {}",
                limits::OPS_IN_FLIGHT_MAX
            )));
        }
        if self.epoch().is_some_and(|e| e.members.len() < 2) {
            self.show_latest();
            return Err(Failure::TooFewPeers);
        }
        let timeout =
            (descriptor.deadline_ms > 0).then(|| Duration::from_millis(u64::from(descriptor.deadline_ms)));
        let progress = ReduceProgress::WaitingForEpoch;
        let call = self.begin(
            now,
            timeout,
            CallKind::Reduce(ReduceCall { tag, descriptor, progress, refused: false }),
        );
        self.start_waiting_ops(now);
        Ok(call)
    }

    /// Leaves the run. Calls that have not ended fail.
    pub fn leave(&mut self) {
        if matches!(self.stage, MembershipStage::Joining | MembershipStage::Member) {
            self.send(ToMaster::Leave);
        }
        self.end_membership(Failure::Left);
    }

    pub(super) fn handle_answer(&mut self, call: CallId, phase: Phase, round: u64, answer: Answer) {
        if round > 0 {
            let count = self.rounds.of_mut(phase);
            *count = (*count).max(round);
        }
        if let Answer::Pending(pending) = answer {
            self.last_pending = pending;
        }
        let Some(Call { kind: CallKind::Vote { rejected, .. }, .. }) = self.calls.get_mut(&call) else {
            return;
        };
        let rejected = rejected.take();
        // A restarted master knows that the round is over, but not that this peer was rejected.
        let answer = match (answer, &rejected) {
            (Answer::Synced(_), Some(_)) => Answer::StateRejected(StateRejection::HoldersLost),
            (answer, _) => answer,
        };
        if let Answer::Synced(revision) = answer {
            self.synced = Some(revision);
        }
        let result = match answer {
            Answer::Topology => Ok(Completion::Topology),
            Answer::Pending(pending) => Ok(Completion::Pending(pending)),
            Answer::Synced(revision) => Ok(Completion::Synced(revision)),
            Answer::StateRejected(why) => Err(rejected.unwrap_or(Failure::StateRejected(why))),
            Answer::Failed(cause) => Err(Failure::VoteFailed(Box::new(cause))),
        };
        if matches!(phase, Phase::Topology | Phase::Optimise) {
            self.show_latest();
        }
        self.complete(call, result);
    }

    /// Sends a call's vote, for the first time or to a restarted master. A peer that is not a member sends it later.
    pub(super) fn send_vote(&mut self, now: Time, call: CallId) {
        let Some(Call { kind: CallKind::Vote { request, .. }, deadline, .. }) = self.calls.get(&call) else {
            return;
        };
        if self.stage != MembershipStage::Member {
            return;
        }
        let request = request.clone();
        let deadline_ms = u32::try_from(deadline.since(now).as_millis()).unwrap_or(u32::MAX).max(1);
        let round = self.rounds.of(request.phase()).saturating_add(1);
        self.send(ToMaster::Vote { call, round, deadline_ms, request });
    }

    /// Handles expired calls. The master ends votes and operations; if it does not, it is lost.
    pub(super) fn expire_calls(&mut self, now: Time) {
        for id in self.calls.keys().copied().collect::<Vec<_>>() {
            let Some(call) = self.calls.get_mut(&id) else { continue };
            if call.master_deadline <= now {
                let releasing = matches!(
                    &call.kind,
                    CallKind::Reduce(ReduceCall { progress: ReduceProgress::Releasing { .. }, .. })
                );
                if !releasing {
                    return self.end_membership(Failure::MasterLost(MasterLoss::NoAnswer));
                }
            } else if call.deadline <= now {
                self.expire_call(id);
            }
        }
    }

    fn expire_call(&mut self, id: CallId) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        match &mut call.kind {
            CallKind::Vote { .. } => {}
            CallKind::Connect => {
                let loss = self.unregistered_loss().unwrap_or(MasterLoss::NotAccepted);
                self.end_membership(Failure::MasterLost(loss));
            }
            CallKind::Reduce(reduce) => match reduce.progress.clone() {
                ReduceProgress::WaitingForEpoch => {
                    let cause = crate::cause::Cause::Timeout(crate::cause::Wait::for_master());
                    self.complete(id, Err(Failure::Aborted(Box::new(cause))));
                }
                ReduceProgress::Running { op, .. }
                | ReduceProgress::Voted { op, ballot: Ballot::Done { .. }, .. } => {
                    self.vote_op(op, Ballot::TimedOut);
                }
                ReduceProgress::Voted { .. }
                | ReduceProgress::Suspending { .. }
                | ReduceProgress::Suspended { .. }
                | ReduceProgress::Releasing { .. } => {}
            },
        }
    }

    /// Fails a call, at once or when its buffers are free.
    pub(super) fn fail_call(&mut self, id: CallId, why: Failure) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        if let CallKind::Reduce(reduce) = &mut call.kind {
            match &reduce.progress {
                ReduceProgress::WaitingForEpoch | ReduceProgress::Suspended { .. } => {}
                ReduceProgress::Releasing { .. } => return,
                ReduceProgress::Suspending { op, .. } => {
                    reduce.progress = ReduceProgress::Releasing { op: *op, result: Err(why) };
                    return;
                }
                ReduceProgress::Running { op, .. } | ReduceProgress::Voted { op, .. } => {
                    let op = *op;
                    reduce.progress = ReduceProgress::Releasing { op, result: Err(why) };
                    if reduce.refused {
                        return self.handle_op_released(op);
                    }
                    self.actions.push_back(PeerAction::AbortOp(op));
                    return;
                }
            }
        }
        self.complete(id, Err(why));
    }

    pub(super) fn reduces(&self) -> impl Iterator<Item = &ReduceCall> {
        self.calls.values().filter_map(|c| match &c.kind {
            CallKind::Reduce(reduce) => Some(reduce),
            _ => None,
        })
    }

    pub(super) fn reduce_of(&mut self, op: OpId) -> Option<(CallId, &mut ReduceCall)> {
        self.calls.iter_mut().find_map(|(id, c)| match &mut c.kind {
            CallKind::Reduce(reduce) => match reduce.progress {
                ReduceProgress::Running { op: o, .. }
                | ReduceProgress::Voted { op: o, .. }
                | ReduceProgress::Suspending { op: o, .. }
                | ReduceProgress::Suspended { op: o, .. }
                | ReduceProgress::Releasing { op: o, .. }
                    if o == op =>
                {
                    Some((*id, reduce))
                }
                _ => None,
            },
            _ => None,
        })
    }

    fn vote(&mut self, now: Time, timeout: Option<Duration>, request: Request) -> Result<CallId, Failure> {
        self.require_member()?;
        let phase = request.phase();
        let voting = |c: &Call| matches!(&c.kind, CallKind::Vote { request, .. } if request.phase() == phase);
        if self.calls.values().any(voting) {
            return Err(Failure::Misuse(format!("{phase} is already in progress")));
        }
        if phase.is_exclusive() {
            let in_flight = self.reduces().count();
            if in_flight > 0 && request.excludes_collectives() {
                return Err(Failure::PendingOperations(in_flight));
            }
            if let Some(busy) = self.voting(|request| request.phase().is_exclusive()) {
                return Err(Failure::Misuse(format!("cannot call {phase} during {busy}")));
            }
        }
        let call = self.begin(now, timeout, CallKind::Vote { request, rejected: None });
        self.send_vote(now, call);
        Ok(call)
    }

    fn begin(&mut self, now: Time, timeout: Option<Duration>, kind: CallKind) -> CallId {
        self.next_call += 1;
        let deadline = now + timeout.unwrap_or(self.config.timing.wait_max);
        let master_deadline = deadline + self.config.timing.answer_grace;
        self.calls.insert(CallId(self.next_call), Call { kind, deadline, master_deadline });
        CallId(self.next_call)
    }

    fn require_member(&self) -> Result<(), Failure> {
        match &self.stage {
            MembershipStage::Idle => Err(Failure::Misuse("this communicator is not connected".into())),
            MembershipStage::Ended(why) => Err(why.clone()),
            // A demoted peer may call; its calls wait until it is accepted again.
            MembershipStage::Joining if self.calls.values().any(|c| matches!(c.kind, CallKind::Connect)) => {
                Err(Failure::Misuse("this communicator is not connected yet".into()))
            }
            MembershipStage::Joining | MembershipStage::Member => Ok(()),
        }
    }

    /// The phase of a vote of this kind that was not answered.
    fn voting(&self, is_such: impl Fn(&Request) -> bool) -> Option<Phase> {
        self.calls.values().find_map(|c| match &c.kind {
            CallKind::Vote { request, .. } if is_such(request) => Some(request.phase()),
            _ => None,
        })
    }
}

fn check_offer(offer: &SyncOffer) -> Result<(), Failure> {
    if offer.entries.len() > limits::STATE_ENTRIES_MAX {
        let (found, max) = (offer.entries.len(), limits::STATE_ENTRIES_MAX);
        return Err(Failure::BadArgument(format!("invalid shared state of {found} entries: at most {max}")));
    }
    if let Some(entry) = offer.entries.iter().find(|e| e.key.len() > limits::STATE_KEY_BYTES_MAX) {
        return Err(Failure::BadArgument(format!(
            "invalid key {:?}: longer than {} bytes",
            entry.key,
            limits::STATE_KEY_BYTES_MAX
        )));
    }
    let mut keys: Vec<_> = offer.entries.iter().map(|e| e.key.as_str()).collect();
    keys.sort_unstable();
    if let Some(pair) = keys.windows(2).find(|w| w[0] == w[1]) {
        return Err(Failure::BadArgument(format!("invalid shared state: key {:?} occurs twice", pair[0])));
    }
    Ok(())
}
