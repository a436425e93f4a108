//! The calls of the users' programs, and the checks of their results.

use super::peer::SimPeer;
use super::{SimEvent, Simulation};
use crate::buffer::{Buffer, SharedBuffer};
use crate::oracle::{Guarantee, SyncObservation};
use crate::planted_bug::PlantedBug;
use crate::program::{Command, Reply};
use crate::symbol::{Contribution, Symbol};
use ringfold_plan::ownership::Holding;
use ringfold_proto::cause::{Cause, PeerName};
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::dtype::DType;
use ringfold_proto::id::{CallId, GroupId, OpId, PeerId, Tag};
use ringfold_proto::peer::{Completion, Failure};
use ringfold_proto::reduce_op::ReduceOp;
use ringfold_proto::time::Time;
use std::time::Duration;

/// A call that has not returned, and when it was made.
pub(super) enum PendingCall {
    Vote(Time),
    Reduce {
        tag: Tag,
        buffer: SharedBuffer,
        op: Option<OpId>,
        since: Time,
        /// What is here of a suspended operation.
        holding: Option<Holding>,
    },
}

/// How many results of operations that compare them have flipped bits, in thousandths.
const RESULT_FLIPS_PER_MILLE: u64 = 10;

/// How many payloads with a checksum have flipped bits, in thousandths.
const PAYLOAD_FLIPS_PER_MILLE: u64 = 3;

impl Simulation {
    pub(super) fn complete(&mut self, peer: usize, call: CallId, result: Result<Completion, Failure>) {
        self.log(|| match &result {
            Ok(done) => format!("p{peer}: {call} ends: {done:?}"),
            Err(why) => format!("p{peer}: {call} fails: {why}"),
        });
        self.oracle.returned(peer, call);
        self.peers[peer].syncing.take_if(|(c, ..)| *c == call);
        let Some(pending) = self.peers[peer].pending.remove(&call) else { return };
        self.check_failure(peer, &pending, &result);
        let reply = match pending {
            PendingCall::Vote(_) => {
                self.check_sync(peer, &result);
                if let Err(Failure::StateRejected(_)) = &result {
                    self.peers[peer].rejected_by = self.oracle.incarnation();
                }
                Reply::Call(result)
            }
            PendingCall::Reduce { tag, buffer, op, .. } => {
                let committed = match &result {
                    Ok(_) => Some(true),
                    Err(Failure::Aborted(_)) => Some(false),
                    Err(_) => None,
                };
                if let Some(op) = op {
                    self.oracle.op_ended(self.now, op, peer, &buffer, committed);
                }
                let digest = buffer.borrow().result().iter().fold(1_u64, |d, s| d.rotate_left(5) ^ s.shape);
                buffer.borrow_mut().returned = true;
                self.peers[peer].past_buffers.push(buffer);
                let world = |done| if let Completion::Reduced { world } = done { world } else { 0 };
                Reply::Reduce(tag, result.map(|done| (world(done), digest)))
            }
        };
        self.reply(peer, reply);
    }

    pub(super) fn reply(&mut self, peer: usize, reply: Reply) {
        if matches!(reply, Reply::Call(Ok(_)) | Reply::Reduce(_, Err(_))) {
            self.peers[peer].stale_world = Some(self.peers[peer].machine.attributes());
        }
        let commands = self.peers[peer].program.reply(reply);
        self.run_commands(peer, commands);
    }

    /// Makes the calls of a program.
    pub(super) fn run_commands(&mut self, peer: usize, commands: Vec<Command>) {
        for command in commands {
            self.log(|| format!("p{peer}: program: {command:?}"));
            let what = format!("{command:?}");
            let now = self.reading(peer);
            let machine = &mut self.peers[peer].machine;
            let mut timeout = self.scenario.timing.wait_max;
            let called = match command {
                Command::Connect => {
                    timeout = Duration::from_secs(30);
                    machine.connect(now, Some(timeout))
                }
                Command::Topology => machine.update_topology(now, None),
                Command::Pending => machine.are_peers_pending(now, None),
                Command::Optimise => machine.optimize_topology(now, None),
                Command::Sync(offer) => machine.sync_shared_state(now, None, offer),
                Command::SyncBeside(offer) => machine.sync_beside(now, None, offer),
                Command::Compute(pause) => {
                    self.after(pause, SimEvent::Replied(peer, Reply::Resume));
                    continue;
                }
                Command::StaySilent(pause) => {
                    self.peers[peer].silent_since = Some((self.now, self.peers[peer].rejected_by));
                    self.after(pause, SimEvent::Replied(peer, Reply::Resume));
                    continue;
                }
                Command::Exit => return self.exit(peer),
                Command::Reduce { tag, count, in_place } => {
                    self.call_reduce(peer, tag, count, in_place);
                    continue;
                }
            };
            match called {
                Ok(call) => {
                    self.peers[peer].pending.insert(call, PendingCall::Vote(self.now));
                    self.oracle.called(peer, call, what, self.due(timeout));
                }
                // Some time passes, so that a program that retries at once does not stop the clock.
                Err(why) => {
                    self.after(Duration::from_millis(1), SimEvent::Replied(peer, Reply::Call(Err(why))));
                }
            }
        }
    }

    fn call_reduce(&mut self, peer: usize, tag: Tag, count: u64, in_place: bool) {
        let (resume, integrity) = (self.scenario.program_config.resumes, self.scenario.integrity);
        let base = Descriptor::all_reduce(count, DType::F32, ReduceOp::Avg);
        let descriptor = Descriptor { resume, integrity, ..base };
        let now = self.reading(peer);
        match self.peers[peer].machine.collective(now, tag, descriptor) {
            Ok(call) => {
                self.contributions += 1;
                let buffer = Buffer::new(Contribution(self.contributions), count, in_place);
                buffer.borrow_mut().skips_restore = self.planted_bug == Some(PlantedBug::SkipRestore);
                buffer.borrow_mut().skips_checksums = self.planted_bug == Some(PlantedBug::SkipChecksums);
                buffer.borrow_mut().flips_result =
                    integrity.results && self.flips_now(RESULT_FLIPS_PER_MILLE);
                let pending = PendingCall::Reduce { tag, buffer, op: None, since: self.now, holding: None };
                self.peers[peer].pending.insert(call, pending);
                let due = self.due(self.scenario.timing.wait_max);
                self.oracle.called(peer, call, format!("reduce {tag}"), due);
            }
            Err(why) => {
                let reply = Reply::Reduce(tag, Err(why));
                self.after(Duration::from_millis(1), SimEvent::Replied(peer, reply));
            }
        }
    }

    /// The latest time at which a call must have returned.
    fn due(&self, timeout: Duration) -> Time {
        let by_clock = timeout + self.scenario.timing.answer_grace;
        // Clocks may be slow.
        let slack = if self.masters.len() > 1 { by_clock / 8 } else { Duration::ZERO };
        self.now + by_clock + slack + Duration::from_secs(2)
    }

    fn exit(&mut self, peer: usize) {
        let SimPeer { group, replica, .. } = self.peers[peer];
        if let Some(replica) = replica {
            self.replicas[replica].restarts = true;
            return self.end_process(peer, "exits");
        }
        self.end_process(peer, "exits");
        let delay = Duration::from_millis(self.random.between(10, 600));
        self.after(delay, SimEvent::Respawn(group, None));
    }

    /// Checks that a failure is justified: without faults and deviating programs, calls must not fail.
    fn check_failure(&mut self, peer: usize, pending: &PendingCall, result: &Result<Completion, Failure>) {
        let since = match pending {
            PendingCall::Vote(since) | PendingCall::Reduce { since, .. } => *since,
        };
        if let Err(Failure::Aborted(cause) | Failure::VoteFailed(cause)) = result
            && let Cause::Timeout(wait) = &**cause
            && let Some(silent) = wait.names().find(|who| self.is_rejected_since(who.peer, since))
        {
            let what = format!("p{peer} waited for {silent}, whose state was rejected before");
            return self.oracle.report_violation(self.now, Guarantee::RejectedPeersDoNotBlock, what);
        }
        if self.scenario.only_takeovers
            && let Err(why) = result
            && !matches!(why, Failure::TooFewPeers | Failure::StateRejected(_))
        {
            let what = format!("p{peer} failed, although only masters were stopped or killed: {why}");
            return self.oracle.report_violation(self.now, Guarantee::TakeoversFailNothing, what);
        }
        if let Some(what) = self.false_blame(peer, pending, result) {
            return self.oracle.report_violation(self.now, Guarantee::NoFalseAccusation, what);
        }
        let calm = since >= self.scenario.calm_at + super::SETTLING
            && self.scenario.program_config.deviations_per_mille == 0;
        let what = match result {
            Err(Failure::Aborted(cause) | Failure::VoteFailed(cause)) => match **cause {
                Cause::Timeout(_) | Cause::LinkLost { .. } | Cause::Mismatch { .. } if calm => {
                    cause.to_string()
                }
                _ => return,
            },
            Err(failure) => match failure.protocol_violation() {
                Some(how) => how.to_string(),
                None => return,
            },
            Ok(_) => return,
        };
        self.oracle.report_violation(
            self.now,
            Guarantee::NoFalseAccusation,
            format!("p{peer} failed without a fault: {what}"),
        );
    }

    /// An error that blames a peer for bits that did not flip.
    fn false_blame(
        &self,
        peer: usize,
        pending: &PendingCall,
        result: &Result<Completion, Failure>,
    ) -> Option<String> {
        let (Err(Failure::Aborted(cause)), PendingCall::Reduce { op: Some(op), .. }) = (result, pending)
        else {
            return None;
        };
        let has_flipped = |who: &PeerName| self.flipped_results.contains(&(*op, who.peer));
        let is_justified = match &**cause {
            Cause::Corrupted { from, to } => self.flipped_payloads.contains(&(*op, from.peer, to.peer)),
            Cause::ResultsDiffer { who, agree: 0 } => who.iter().any(has_flipped),
            Cause::ResultsDiffer { who, .. } => !who.is_empty() && who.iter().all(has_flipped),
            _ => true,
        };
        (!is_justified).then(|| format!("p{peer} is told of {op}: {cause}, but its bits did not flip"))
    }

    /// Whether a bit flips now, with this probability in thousandths.
    fn flips_now(&mut self, per_mille: u64) -> bool {
        let may_flip = self.now < self.scenario.calm_at && !self.scenario.only_takeovers;
        may_flip && self.flips.with_probability(per_mille)
    }

    /// A faulty wire: changes some of the payloads that have a checksum.
    pub(super) fn flip_payload(
        &mut self,
        peer: usize,
        from: PeerId,
        header: &DataHeader,
        symbols: &mut [Symbol],
    ) {
        if self.scenario.integrity.payloads
            && self.flips_now(PAYLOAD_FLIPS_PER_MILLE)
            && let Some(symbol) = symbols.first_mut()
        {
            symbol.flip(0);
            self.flipped_payloads.insert((header.op, from, self.peers[peer].id));
        }
    }

    /// Whether a peer was silent at that time because its state was rejected by the current incarnation of the master.
    fn is_rejected_since(&self, peer: PeerId, time: Time) -> bool {
        // The master counts a planted vote as a call of the peer.
        if let Some(PlantedBug::CommitWithoutLastVote | PlantedBug::CountVoteTwice) = self.planted_bug {
            return false;
        }
        let state = self.by_id.get(&peer).map(|p| &self.peers[*p]);
        let silent = state.and_then(|p| p.silent_since);
        silent.is_some_and(|(since, incarnation)| since <= time && incarnation == self.oracle.incarnation())
    }

    fn check_sync(&mut self, peer: usize, result: &Result<Completion, Failure>) {
        if let Ok(Completion::Synced(revision)) = result {
            let state = &self.peers[peer];
            let (group, round) = (GroupId(state.group), state.sync_round);
            let contents = state.program.contents.clone();
            let incarnation = state.sync_incarnation;
            let synced = SyncObservation { incarnation, group, round, revision: *revision, contents };
            self.oracle.sync_ended(self.now, peer, synced);
        }
    }

    pub(super) fn check_buffers(&mut self, peer: usize) {
        let buffers = std::mem::take(&mut self.peers[peer].past_buffers);
        for buffer in &buffers {
            if !buffer.borrow().violations.is_empty() {
                self.oracle.buffer_touched(self.now, peer, buffer);
            }
        }
        // A buffer without other references cannot be touched any more.
        self.peers[peer].past_buffers =
            buffers.into_iter().filter(|b| std::rc::Rc::strong_count(b) > 1).collect();
    }
}
