//! The effects of planted bugs, on the network and in the drivers.

use super::Simulation;
use super::calls::PendingCall;
use crate::network::Node;
use crate::planted_bug::PlantedBug;
use ringfold_proto::coordinator::{MasterMessage, MasterStatus};
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::dtype::DType;
use ringfold_proto::id::{ConnId, EpochId, OpId, Seq, Tag};
use ringfold_proto::link_message::LinkMessage;
use ringfold_proto::message::{Ballot, Numbered, Request, ToMaster};
use ringfold_proto::reduce_op::ReduceOp;

impl Simulation {
    /// The messages that reach the master instead of this one.
    pub(super) fn alter_control(
        &mut self,
        master: usize,
        conn: ConnId,
        message: Numbered<ToMaster>,
    ) -> Vec<(ConnId, Numbered<ToMaster>)> {
        let mut reached = vec![(conn, message.clone())];
        match (self.planted_bug, message.message) {
            (Some(PlantedBug::LoseResume), ToMaster::Resume(_) | ToMaster::ResumeRank { .. }) => {
                if let Some(resume) = reached[0].1.message.resume_mut() {
                    resume.epochs.iter_mut().for_each(|e| e.ops.clear());
                }
            }
            (Some(PlantedBug::AdmitHalfReplica), ToMaster::JoinRank { mut replica, join }) => {
                replica.ranks = 1;
                reached[0].1.message = ToMaster::JoinRank { replica, join };
            }
            (Some(PlantedBug::ForgetReplica), ToMaster::ResumeRank { resume, .. }) => {
                reached[0].1.message = ToMaster::Resume(resume);
            }
            (Some(PlantedBug::ForgetCheckpoint), ToMaster::Vote { call, round, deadline_ms, request }) => {
                let mut request = request;
                if let Request::Sync(offer) = &mut request
                    && self.is_resuming(master, conn)
                {
                    offer.revision.0 /= 2;
                }
                reached[0].1.message = ToMaster::Vote { call, round, deadline_ms, request };
            }
            (Some(PlantedBug::HeartbeatIsCall), ToMaster::Heartbeat { .. }) => {
                // An operation of an unknown epoch has no other effect.
                let op = OpId { epoch: EpochId::default(), tag: Tag(0), seq: Seq(0) };
                let descriptor = Descriptor::all_reduce(1, DType::F32, ReduceOp::Sum);
                let message = ToMaster::Started { op, descriptor };
                reached.push((conn, Numbered { number: 0, acknowledged: 0, message }));
            }
            (
                Some(PlantedBug::LoseDigests),
                ToMaster::OpVote { op, descriptor, ballot: Ballot::Done { .. } },
            ) => {
                let ballot = Ballot::Done { digest: None };
                reached[0].1.message = ToMaster::OpVote { op, descriptor, ballot };
            }
            (Some(bug), ToMaster::OpVote { op, descriptor, ballot: Ballot::Done { digest } }) => {
                let vote = ToMaster::OpVote { op, descriptor, ballot: Ballot::Done { digest } };
                let forged = Numbered { number: 0, acknowledged: 0, message: vote };
                reached.extend(self.forged_voters(bug, conn, op).into_iter().map(|w| (w, forged.clone())));
            }
            _ => {}
        }
        reached
    }

    fn is_resuming(&self, master: usize, conn: ConnId) -> bool {
        let peer = self.network.other_end(conn, Node::Master(master));
        matches!(peer, Some(Node::Peer(peer)) if self.peers[peer].program.is_resuming)
    }

    /// The frame that reaches an executor instead of this one.
    pub(super) fn alter_frame(&mut self, peer: usize, mut header: DataHeader) -> Option<DataHeader> {
        match self.planted_bug {
            Some(PlantedBug::DropNewerFrame) if !self.knows_epoch(peer, header.op) => return None,
            Some(PlantedBug::AcceptStaleFrame) => {
                if let Some(current) = self.current_op(peer, header.op)
                    && current != header.op
                {
                    header.op = current;
                }
            }
            _ => {}
        }
        Some(header)
    }

    /// The message that reaches an executor instead of this one.
    pub(super) fn alter_link_message(&self, peer: usize, message: LinkMessage) -> LinkMessage {
        match (self.planted_bug, message) {
            (Some(PlantedBug::ShareCreditPool), LinkMessage::Grant { op, slots }) => {
                let op = self.any_op_of_epoch(peer, op).unwrap_or(op);
                LinkMessage::Grant { op, slots }
            }
            (_, message) => message,
        }
    }

    /// The connections of the peers whose votes are forged when a vote arrives.
    fn forged_voters(&mut self, bug: PlantedBug, conn: ConnId, op: OpId) -> Vec<ConnId> {
        let votes = self.votes.entry(op).or_default();
        votes.insert(conn);
        let voted = votes.clone();
        let epoch = self.peers.iter().find_map(|p| p.machine.epoch().filter(|e| e.id == op.epoch));
        let members = epoch.map(|e| e.members.iter().map(|m| m.peer).collect::<Vec<_>>()).unwrap_or_default();
        let conn_of = |id| self.by_id.get(id).and_then(|p| self.peers[*p].control);
        let missing: Vec<_> = members.iter().filter_map(conn_of).filter(|w| !voted.contains(w)).collect();
        match bug {
            PlantedBug::CommitWithoutLastVote if missing.len() == 1 => missing,
            PlantedBug::CountVoteTwice => missing.into_iter().take(1).collect(),
            _ => Vec::new(),
        }
    }

    fn knows_epoch(&self, peer: usize, op: OpId) -> bool {
        let newest = self.peers[peer].machine.epoch().map(|e| e.id);
        newest.is_some_and(|e| e.counter >= op.epoch.counter)
    }

    /// A later operation of the same tag that runs now.
    fn current_op(&self, peer: usize, op: OpId) -> Option<OpId> {
        self.running_ops(peer)
            .find(|o| o.tag == op.tag && (o.epoch.counter, o.seq) > (op.epoch.counter, op.seq))
    }

    fn any_op_of_epoch(&self, peer: usize, op: OpId) -> Option<OpId> {
        self.running_ops(peer).find(|o| o.epoch == op.epoch && *o != op)
    }

    /// A planted bug: the receiver assumes that its writers have stopped.
    pub(super) fn alter_abort(&mut self, peer: usize, op: OpId) {
        if self.planted_bug == Some(PlantedBug::ReuseUnfencedSlot) {
            let linked: Vec<_> = self.peers[peer].links.keys().copied().collect();
            for from in linked {
                let message = LinkMessage::Fenced { op };
                let now = self.reading(peer);
                self.peers[peer].executor.handle_link_message(now, from, message);
            }
        }
    }

    fn running_ops(&self, peer: usize) -> impl Iterator<Item = OpId> + '_ {
        self.peers[peer].pending.values().filter_map(|p| match p {
            PendingCall::Reduce { op, .. } => *op,
            PendingCall::Vote(_) => None,
        })
    }

    /// A planted bug: a master that leads gets confirmations of the other masters, which are a quorum.
    pub(super) fn forge_confirmation(&mut self, index: usize, to: u16, message: &MasterMessage) {
        let forges = match self.planted_bug {
            Some(PlantedBug::DecideAlone) => true,
            Some(PlantedBug::TakeOverTooEarly) => self.masters[index].took_over,
            _ => false,
        };
        if forges
            && let MasterMessage::Status(status) = message
            && let Some(beat) = status.leads
        {
            let echo = (status.voter.promised, beat);
            let forged = MasterStatus { from: to, to: status.from, leads: None, echo, ..(**status).clone() };
            let message = MasterMessage::Status(Box::new(forged));
            self.call_master(index, |master, now| master.handle_master_message(now, message));
        }
    }

    /// Remembers what the other masters said, for a planted bug.
    pub(super) fn remember_status(&mut self, index: usize, message: &MasterMessage) {
        if let (Some(PlantedBug::TakeOverTooEarly), MasterMessage::Status(status)) =
            (self.planted_bug, message)
        {
            self.masters[index].statuses.insert(status.from, (self.now, (**status).clone()));
        }
    }

    /// A planted bug: a standby does not wait for a master that leads and is late. It takes what the others said for votes.
    pub(super) fn take_over_early(&mut self, index: usize) {
        let late = self.now.0.saturating_sub(3 * self.scenario.timing.heartbeat.as_nanos() as u64);
        let master = &mut self.masters[index];
        let is_late = master.statuses.values().any(|(at, status)| status.leads.is_some() && at.0 < late);
        if master.leads() || !is_late || master.statuses.len() + 1 < self.scenario.masters {
            return;
        }
        master.took_over = true;
        // First nobody leads any more, then all vote for it.
        for (_, mut status) in master.statuses.clone().into_values() {
            status.voter.promised = self.masters[index].stands.unwrap_or(status.voter.promised);
            (status.leads, status.follows, status.blank) = (None, None, false);
            let message = MasterMessage::Status(Box::new(status));
            self.with_master(index, |master, now| master.handle_master_message(now, message));
        }
    }
}
