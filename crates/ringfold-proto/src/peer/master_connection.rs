//! The connection to the master: dialling, losing it, and returning (R7, R8).

use super::calls::{CallKind, ReduceProgress};
use super::epochs::OpenEpoch;
use super::{Failure, MembershipStage, Peer, PeerAction};
use crate::cause::{Cause, MasterLoss, ProtocolViolation};
use crate::charter::{Charter, VoterRecord};
use crate::claim::Signature;
use crate::event::PeerEvent;
use crate::id::{ConnId, Incarnation, Term};
use crate::limits;
use crate::message::{EpochRecord, Numbered, OpProgress, OpRecord, Outcome, Resume, ToMaster, ToPeer};
use crate::session::{Receipt, Session};
use crate::time::Time;
use crate::timing::Timing;
use std::net::SocketAddr;

/// The connection to the master.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum MasterConnection {
    Down { redial_at: Option<Time> },
    Dialling,
    Up { conn: ConnId, heard_at: Time },
}

impl MasterConnection {
    pub fn timeout(&self, timing: &Timing) -> Option<Time> {
        match self {
            Self::Down { redial_at } => *redial_at,
            Self::Dialling => None,
            Self::Up { heard_at, .. } => Some(*heard_at + timing.master_silence_max),
        }
    }
}

impl Peer {
    /// An authenticated connection to the master is up.
    pub fn handle_connected(&mut self, now: Time, conn: ConnId) {
        if self.master != MasterConnection::Dialling {
            self.actions.push_back(PeerAction::Close { conn });
            return;
        }
        self.master = MasterConnection::Up { conn, heard_at: now };
        self.connected_at = now;
        self.unanswered_since = Some(now);
        self.next_heartbeat = now + self.config.timing.heartbeat;
        self.send_first(conn);
    }

    /// Joins, or reports what a master needs to know when this peer returns.
    pub(super) fn send_first(&mut self, conn: ConnId) {
        let is_registered = self.incarnation != Incarnation::default();
        let first = match (is_registered, self.config.replica) {
            (true, None) => ToMaster::Resume(Box::new(self.resume())),
            (true, Some(replica)) => ToMaster::ResumeRank { replica, resume: Box::new(self.resume()) },
            (false, None) => ToMaster::Join(self.config.join.clone()),
            (false, Some(replica)) => ToMaster::JoinRank { replica, join: self.config.join.clone() },
        };
        let message = Box::new(Numbered { number: 0, acknowledged: 0, message: first });
        self.actions.push_back(PeerAction::Send { conn, message });
    }

    /// The master could not be reached, or rejected this peer.
    pub fn handle_dial_failed(&mut self, now: Time, reason: &str, retryable: bool) {
        if self.master != MasterConnection::Dialling {
            return;
        }
        if !retryable {
            return self.end_membership(Failure::JoinRejected(reason.to_owned()));
        }
        self.master = MasterConnection::Down { redial_at: Some(now + self.config.timing.redial) };
        if self.master_lost_since.is_none() {
            // Never connected: the caller decides whether to retry.
            self.end_membership(Failure::MasterLost(MasterLoss::Unreachable(reason.to_owned())));
        }
    }

    /// The connection to the master broke.
    pub fn handle_lost(&mut self, now: Time, conn: ConnId) {
        if matches!(self.master, MasterConnection::Up { conn: c, .. } if c == conn) {
            // At once, unless a connection breaks as soon as it is made.
            let redial_at = now.max(self.connected_at + self.config.timing.redial);
            self.master = MasterConnection::Down { redial_at: Some(redial_at) };
            self.can_send = false;
            self.unanswered_since = None;
            self.master_lost_since.get_or_insert(now);
        }
    }

    /// Notes why each master could not be used so far, for the error if none returns.
    pub fn note_masters(&mut self, known: String) {
        self.known_of_masters = known;
    }

    /// Why this peer is lost if no master has ever answered it.
    pub(super) fn unregistered_loss(&self) -> Option<MasterLoss> {
        let is_registered = self.incarnation != Incarnation::default();
        (!is_registered).then(|| MasterLoss::NoneActive(self.known_of_masters.clone()))
    }

    /// Whether the master has answered on the current connection.
    pub fn has_master(&self) -> bool {
        self.can_send
    }

    /// A master leads, or asks for this peer's vote. Supports it, unless a later one was promised support.
    pub(super) fn handle_lead(
        &mut self,
        conn: ConnId,
        term: Term,
        beat: u64,
        charter: Option<&Charter>,
        signature: Option<Box<Signature>>,
    ) {
        let said = VoterRecord { promised: term, charter: charter.unwrap_or(&self.voter.charter).clone() };
        if !said.is_plausible() {
            return self.end_membership(Failure::master_misbehaved(ProtocolViolation::Counters));
        }
        if term >= self.voter.promised {
            self.voter.promised = term;
            if self.voter.adopt(&said.charter) {
                self.charter_signature = signature;
            }
        }
        let (promised, charter) = (self.voter.promised, self.voter.charter.number());
        let report = ToMaster::Voter { promised, charter, beat };
        // The master may be another one than that of this session.
        let message = Box::new(Numbered { number: 0, acknowledged: 0, message: report });
        self.actions.push_back(PeerAction::Send { conn, message });
    }

    /// Another master leads.
    pub(super) fn handle_redirect(&mut self, now: Time, conn: ConnId, addresses: Vec<SocketAddr>) {
        self.actions.push_back(PeerAction::Close { conn });
        self.handle_lost(now, conn);
        self.actions.push_back(PeerAction::PreferMaster(addresses));
    }

    pub(super) fn dial(&mut self) {
        self.master = MasterConnection::Dialling;
        self.actions.push_back(PeerAction::DialMaster);
    }

    /// Sends heartbeats, detects a silent master, dials again, gives up.
    pub(super) fn check_master_connection(&mut self, now: Time) {
        if matches!(self.stage, MembershipStage::Idle | MembershipStage::Ended(_)) {
            return;
        }
        let timing = self.config.timing;
        if self.master_lost_since.is_some_and(|since| since + timing.master_return_max <= now) {
            let not_returned = || MasterLoss::NotReturned(self.known_of_masters.clone());
            let loss = self.unregistered_loss().unwrap_or_else(not_returned);
            return self.end_membership(Failure::MasterLost(loss));
        }
        let is_due = self.next_heartbeat <= now;
        if is_due {
            // Neighbours may hear this peer when the master does not (R9).
            self.next_heartbeat = now + timing.heartbeat;
            self.ping_links();
        }
        match self.master {
            MasterConnection::Up { conn, heard_at }
                if heard_at.min(self.unanswered_since.unwrap_or(heard_at)) + timing.master_silence_max
                    <= now =>
            {
                self.stale.push(conn);
                self.close_stale(limits::STALE_CONNECTIONS_MAX);
                self.handle_lost(now, conn);
            }
            MasterConnection::Up { conn, .. } if is_due => {
                self.send_heartbeat(conn);
            }
            MasterConnection::Down { redial_at: Some(at) } if at <= now => self.dial(),
            _ => {}
        }
    }

    fn send_heartbeat(&mut self, conn: ConnId) {
        let heard = core::mem::take(&mut self.heard_peers).into_iter().collect();
        let ended = self.ended_links.iter().copied().collect();
        let mut message = self.session.unnumbered(ToMaster::Heartbeat { heard, ended });
        if !self.can_send {
            // The numbers of a master before its answer may be those of another incarnation.
            message.acknowledged = 0;
        }
        self.actions.push_back(PeerAction::Send { conn, message: Box::new(message) });
        if let Some((done_bytes, all_bytes)) = self.fetching.filter(|_| self.can_send) {
            let message = self.session.unnumbered(ToMaster::Fetching { done_bytes, all_bytes });
            self.actions.push_back(PeerAction::Send { conn, message: Box::new(message) });
        }
    }

    /// Reports at once that a link ended or is up again, because the master may suspect the other end (P10).
    pub(super) fn report_links(&mut self) {
        if let (true, MasterConnection::Up { conn, .. }) = (self.can_send, &self.master) {
            self.send_heartbeat(*conn);
        }
    }

    /// Whether to handle a message.
    pub(super) fn accept_message(&mut self, now: Time, conn: ConnId, message: &Numbered<ToPeer>) -> bool {
        let MasterConnection::Up { conn: current, heard_at } = &mut self.master else { return false };
        if *current != conn {
            return false;
        }
        *heard_at = now;
        if matches!(message.message, ToPeer::Restoring { .. } | ToPeer::Registered { .. }) {
            // Another incarnation of the master, or a new peer for it: both numberings restart.
            self.session = Session::default();
        }
        match self.session.receive(message) {
            Receipt::New => {
                if self.can_send
                    && message.number > 0
                    && message.number.is_multiple_of(limits::ACKNOWLEDGE_EVERY)
                {
                    self.send_heartbeat(conn);
                }
                true
            }
            Receipt::Duplicate => false,
            Receipt::Invalid => {
                self.end_membership(Failure::master_misbehaved(ProtocolViolation::Numbering));
                false
            }
        }
    }

    pub(super) fn handle_registered(&mut self, incarnation: Incarnation, seniority: u64) {
        if self.stage == MembershipStage::Member {
            // A master that does not know the run, and does not believe this peer: it waits again.
            self.handle_demoted();
        }
        self.incarnation = incarnation;
        self.previous = None;
        self.seniority = seniority;
        self.notify(PeerEvent::Registered);
        // An earlier proposal was for the peer that the master has forgotten.
        self.proposal = None;
        self.master_found();
    }

    pub(super) fn handle_rebound(&mut self, conn: ConnId, received: u64) {
        self.master_found();
        for message in self.session.unacknowledged_after(received) {
            self.actions.push_back(PeerAction::Send { conn, message: Box::new(message) });
        }
    }

    /// The run continues: repeats what the new incarnation of the master does not know.
    pub(super) fn handle_restored(&mut self, now: Time, incarnation: Incarnation, last_pending: bool) {
        self.previous = Some(core::mem::replace(&mut self.incarnation, incarnation));
        self.session.reset_sent();
        self.notify(PeerEvent::Restored);
        self.master_found();
        self.last_pending = last_pending;
        for call in self.calls.keys().copied().collect::<Vec<_>>() {
            self.send_vote(now, call);
        }
        self.repeat_op_votes();
        self.repeat_link_reports();
    }

    /// This peer was accepted too early. It waits again, and so do its calls.
    pub(super) fn handle_demoted(&mut self) {
        self.stage = MembershipStage::Joining;
        self.notify(PeerEvent::Demoted);
        self.end_open_epoch(&Cause::EpochEnded);
        self.give_up_suspended();
        self.open = None;
        self.proposal = None;
        self.synced = None;
    }

    fn master_found(&mut self) {
        self.can_send = true;
        (self.master_lost_since, self.unanswered_since) = (None, None);
        self.close_stale(0);
        if !self.ended_links.is_empty() {
            self.report_links();
        }
    }

    /// Closes the oldest connections to a silent master, except for `kept`.
    pub(super) fn close_stale(&mut self, kept: usize) {
        let closed = self.stale.len().saturating_sub(kept);
        self.actions.extend(self.stale.drain(..closed).map(|conn| PeerAction::Close { conn }));
    }

    /// The report on another connection, for the same master or a restarted one.
    fn resume(&self) -> Resume {
        let opened = self.open.as_ref().map(|open| self.open_record(open));
        let proposed = self.proposal.as_ref().map(|p| EpochRecord {
            description: p.description.clone(),
            opened: false,
            signature: p.signature.clone(),
            ops: Vec::new(),
        });
        Resume {
            join: self.config.join.clone(),
            incarnation: self.incarnation,
            previous: self.previous,
            received: self.session.received(),
            seniority: self.seniority,
            epochs: opened.into_iter().chain(proposed).collect(),
            rounds: self.rounds,
            last_pending: self.last_pending,
            synced: self.synced,
            attributes: self.latest,
            voter: self.voter.clone(),
            charter_signature: self.charter_signature.clone(),
            chains: Vec::new(),
            held_bytes: 0,
        }
    }

    fn open_record(&self, open: &OpenEpoch) -> EpochRecord {
        let mut ops: Vec<_> = self.reduces().filter_map(|r| op_record(r, open.description.id)).collect();
        for (tag, record) in &open.tags {
            ops.extend(record.remembered.iter().map(|known| OpRecord {
                tag: *tag,
                seq: known.seq,
                descriptor: None,
                progress: OpProgress::Decided(known.outcome.clone()),
                signature: known.signature.clone(),
            }));
        }
        ops.truncate(limits::OPS_IN_RESUME_MAX);
        if ops.len() > limits::CAUSES_IN_RESUME_MAX {
            // Long causes could exceed the limit of a frame.
            for record in &mut ops {
                if let OpProgress::Decided(Outcome::Aborted(cause)) = &mut record.progress {
                    *cause = Cause::EpochEnded;
                }
            }
        }
        let (description, signature) = (open.description.clone(), open.signature.clone());
        EpochRecord { description, opened: true, signature, ops }
    }

    /// Repeats the votes on undecided operations for a restarted master.
    fn repeat_op_votes(&mut self) {
        let mut messages = Vec::new();
        for call in self.calls.values() {
            let CallKind::Reduce(reduce) = &call.kind else { continue };
            let descriptor = reduce.descriptor;
            match &reduce.progress {
                ReduceProgress::Running { op, announce_at: None } => {
                    messages.push(ToMaster::Started { op: *op, descriptor })
                }
                ReduceProgress::Voted { op, ballot, .. } => {
                    messages.push(ToMaster::OpVote { op: *op, descriptor, ballot: ballot.clone() });
                }
                ReduceProgress::Suspended { op, held: Some(held), .. } => {
                    messages.push(ToMaster::Suspended { op: *op, descriptor, held: held.clone() });
                }
                _ => {}
            }
        }
        messages.into_iter().for_each(|message| self.send(message));
    }
}

fn op_record(reduce: &super::calls::ReduceCall, epoch: crate::id::EpochId) -> Option<OpRecord> {
    let (op, progress) = match &reduce.progress {
        ReduceProgress::Running { op, .. } => (op, OpProgress::Started),
        ReduceProgress::Voted { op, done: Some(None), .. } => (op, OpProgress::Done),
        ReduceProgress::Voted { op, done: Some(Some(digest)), .. } => {
            (op, OpProgress::DoneWith { digest: *digest })
        }
        ReduceProgress::Voted { op, .. } => (op, OpProgress::Started),
        ReduceProgress::WaitingForEpoch
        | ReduceProgress::Suspending { .. }
        | ReduceProgress::Suspended { .. }
        | ReduceProgress::Releasing { .. } => return None,
    };
    let descriptor = Some(reduce.descriptor);
    let signature = None;
    (op.epoch == epoch).then_some(OpRecord { tag: op.tag, seq: op.seq, descriptor, progress, signature })
}
