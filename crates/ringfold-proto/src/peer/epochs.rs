//! Epochs of a peer: links to the neighbours of a proposed epoch, and the state of the open one.

use super::calls::{CallKind, ReduceProgress};
use super::{Completion, Failure, MembershipStage, Peer, PeerAction};
use crate::cause::{Cause, ProtocolViolation};
use crate::claim::Signature;
use crate::epoch::{EpochDescription, Member, MissingPair, ResumedOp};
use crate::event::PeerEvent;
use crate::id::{EpochId, PeerId, Seq, Tag};
use crate::message::{Ballot, Direction, Outcome, Request, RoundNumbers, ToMaster};
use crate::network::Network;
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The operations of a tag in an epoch.
#[derive(Clone, Debug, Default)]
pub(super) struct TagRecord {
    /// The next sequence number.
    pub next: Seq,
    /// Outcomes that another member may have missed: the last committed one, and all after it (R8).
    pub remembered: VecDeque<RememberedOutcome>,
    /// The network that plans are chosen for, if it is not the epoch's.
    pub network: Option<Arc<Network>>,
}

/// An outcome, with the signature of a master.
#[derive(Clone, Debug)]
pub(super) struct RememberedOutcome {
    pub seq: Seq,
    pub outcome: Outcome,
    pub signature: Option<Box<Signature>>,
}

/// The last opened epoch.
#[derive(Debug)]
pub(super) struct OpenEpoch {
    pub description: EpochDescription,
    /// A master's: that it was opened.
    pub signature: Option<Box<Signature>>,
    pub tags: BTreeMap<Tag, TagRecord>,
    /// Whether another epoch was proposed since. Nothing starts in this one any more.
    pub ended: bool,
}

/// A proposed epoch, whose members connect to each other.
#[derive(Debug)]
pub(super) struct ProposedEpoch {
    pub description: EpochDescription,
    /// A master's: that it was proposed.
    pub signature: Option<Box<Signature>>,
    waiting: BTreeSet<PeerId>,
    unreachable: BTreeSet<PeerId>,
    pub reported: bool,
    pub deadline: Time,
}

/// The state of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkState {
    /// Requested for the first time.
    Connecting,
    Up,
    /// Broken and requested again; it is reported to the master at this time.
    Reconnecting {
        report_at: Time,
    },
    /// Broken or stalled, and reported to the master.
    Reported,
}

impl LinkState {
    pub fn deadline(&self) -> Option<Time> {
        match self {
            Self::Reconnecting { report_at } => Some(*report_at),
            _ => None,
        }
    }
}

impl Peer {
    pub(super) fn handle_proposed(
        &mut self,
        now: Time,
        description: EpochDescription,
        ended: Cause,
        signature: Option<Box<Signature>>,
    ) {
        if !description.is_valid_for(self.id()) || description.id.group != self.config.join.group {
            return self.end_membership(Failure::master_misbehaved(ProtocolViolation::Epoch));
        }
        self.end_open_epoch(&ended);
        self.notify(PeerEvent::EpochProposed { epoch: description.id, world: description.members.len() });
        let me = description.rank_of(self.id()).unwrap_or_default();
        let neighbours: Vec<Member> = description.neighbours(me).into_iter().cloned().collect();
        let wanted: BTreeSet<_> = neighbours.iter().map(|m| m.peer).collect();
        let dropped: Vec<_> = self.links.keys().filter(|p| !wanted.contains(p)).copied().collect();
        for peer in dropped {
            self.links.remove(&peer);
            self.actions.push_back(PeerAction::Unlink(peer));
        }
        self.ended_links.retain(|p| wanted.contains(p));
        self.actions.push_back(PeerAction::UseRelays(description.relays.clone()));
        let mut waiting = BTreeSet::new();
        for member in neighbours {
            let peer = member.peer;
            if self.links.get(&peer) != Some(&LinkState::Up) {
                waiting.insert(peer);
                self.links.insert(peer, LinkState::Connecting);
                let (epoch, key) = (description.id, description.key);
                self.actions.push_back(PeerAction::Link { member, epoch, key });
            }
        }
        // Half of the deadline of the master, so that it receives the report in time.
        let deadline = now + self.config.timing.establish_max / 2;
        self.proposal = Some(ProposedEpoch {
            description,
            signature,
            waiting,
            unreachable: BTreeSet::new(),
            reported: false,
            deadline,
        });
        self.report_ready();
    }

    pub(super) fn handle_opened(
        &mut self,
        now: Time,
        epoch: EpochId,
        missing: Vec<MissingPair>,
        (network, resumed): (Option<Box<Network>>, Vec<ResumedOp>),
        rounds: RoundNumbers,
        signature: Option<Box<Signature>>,
    ) {
        let Some(proposal) = self.proposal.take_if(|p| p.description.id == epoch) else {
            // A master that restored the run has signed it again.
            if let Some(open) = self.open.as_mut().filter(|open| open.description.id == epoch) {
                open.signature = signature;
            }
            return;
        };
        let description = EpochDescription { missing, network, resumed, ..proposal.description };
        if !description.are_links_valid() {
            return self.end_membership(Failure::master_misbehaved(ProtocolViolation::Epoch));
        }
        self.actions.push_back(PeerAction::OpenEpoch(Box::new(description.clone())));
        let rank = description.rank_of(self.id()).unwrap_or_default();
        self.notify(PeerEvent::EpochOpened { epoch, rank, world: description.members.len() });
        self.open = Some(OpenEpoch { description, signature, tags: BTreeMap::new(), ended: false });
        if self.stage == MembershipStage::Joining {
            self.stage = MembershipStage::Member;
            self.notify(PeerEvent::Accepted { group: epoch.group });
            self.rounds = rounds;
            self.show_latest();
            for call in self.calls.keys().copied().collect::<Vec<_>>() {
                match &self.calls[&call].kind {
                    CallKind::Connect => self.complete(call, Ok(Completion::Connected)),
                    // Being accepted again is an update of the topology.
                    CallKind::Vote { request: Request::UpdateTopology, .. } => {
                        self.complete(call, Ok(Completion::Topology));
                    }
                    CallKind::Vote { .. } => self.send_vote(now, call),
                    CallKind::Reduce(_) => {}
                }
            }
        }
        self.end_suspensions(now);
        self.start_waiting_ops(now);
        // A link may have broken after the peer reported that it is ready.
        self.repeat_link_reports();
    }

    /// The link with this peer is up.
    pub fn handle_link_up(&mut self, peer: PeerId) {
        let Some(state) = self.links.get_mut(&peer) else {
            return self.actions.push_back(PeerAction::Unlink(peer));
        };
        let reconnected = matches!(core::mem::replace(state, LinkState::Up), LinkState::Reconnecting { .. });
        if self.ended_links.remove(&peer) {
            self.heard_peers.insert(peer);
            self.report_links();
        }
        if reconnected {
            self.fail_running_ops(peer);
        }
        if let Some(proposal) = &mut self.proposal {
            proposal.waiting.remove(&peer);
            self.report_ready();
        }
    }

    /// Neither end could make a link with this peer.
    pub fn handle_link_failed(&mut self, peer: PeerId) {
        match self.links.get(&peer) {
            Some(LinkState::Connecting) => {
                self.links.remove(&peer);
                if let Some(proposal) = &mut self.proposal
                    && proposal.waiting.remove(&peer)
                {
                    proposal.unreachable.insert(peer);
                }
                self.report_ready();
            }
            Some(LinkState::Reconnecting { .. }) => self.report_link(peer, Direction::Both),
            _ => {}
        }
    }

    /// The link with this peer broke: requests it again. If the peer is dead, the master evicts it first.
    pub fn handle_link_lost(&mut self, now: Time, peer: PeerId) {
        let state = self.links.get(&peer).copied();
        if state.is_some() {
            self.heard_peers.remove(&peer);
            self.ended_links.insert(peer);
            self.report_links();
        }
        if state != Some(LinkState::Up) {
            return;
        }
        let report_at = now + self.config.timing.relink_max;
        let proposed = self.proposal.as_ref().map(|p| &p.description);
        let description = proposed.or(self.open.as_ref().map(|o| &o.description));
        let member =
            description.and_then(|d| d.members.iter().find(|m| m.peer == peer).map(|m| (d, m.clone())));
        let Some((description, member)) = member else {
            // No epoch needs it now. A later proposal requests it again.
            self.links.remove(&peer);
            return;
        };
        let (epoch, key) = (description.id, description.key);
        self.links.insert(peer, LinkState::Reconnecting { report_at });
        if let Some(proposal) = self.proposal.as_mut().filter(|p| !p.reported) {
            proposal.waiting.insert(peer);
            self.links.insert(peer, LinkState::Connecting);
        }
        self.actions.push_back(PeerAction::Link { member, epoch, key });
    }

    /// The executor sees no progress on a link (R9).
    pub fn handle_link_stalled(&mut self, peer: PeerId, direction: Direction) {
        if self.links.contains_key(&peer) {
            self.report_link(peer, direction);
        }
    }

    pub(super) fn expire_links(&mut self, now: Time) {
        let late = |s: &LinkState| s.deadline().is_some_and(|at| at <= now);
        let overdue: Vec<_> = self.links.iter().filter(|(_, s)| late(s)).map(|(p, _)| *p).collect();
        for peer in overdue {
            self.report_link(peer, Direction::Both);
        }
        if let Some(proposal) = self.proposal.as_mut().filter(|p| !p.reported && p.deadline <= now) {
            let unreached = core::mem::take(&mut proposal.waiting);
            for peer in &unreached {
                self.links.remove(peer);
            }
            proposal.unreachable.extend(unreached.iter().copied());
            self.actions.extend(unreached.into_iter().map(PeerAction::Unlink));
            self.report_ready();
        }
    }

    pub(super) fn ping_links(&mut self) {
        let is_up = |state: &LinkState| matches!(state, LinkState::Up | LinkState::Reported);
        let up = self.links.iter().filter(|(_, s)| is_up(s)).map(|(p, _)| PeerAction::Ping(*p));
        self.actions.extend(up);
    }

    /// Ends the open epoch: operations that the master has not decided fail. Its outcomes stay known until another opens.
    pub(super) fn end_open_epoch(&mut self, cause: &Cause) {
        let Some(open) = self.open.as_mut().filter(|o| !o.ended) else { return };
        open.ended = true;
        let epoch = open.description.id;
        for call in self.calls.keys().copied().collect::<Vec<_>>() {
            let CallKind::Reduce(reduce) = &self.calls[&call].kind else { continue };
            if let ReduceProgress::Running { op, .. } | ReduceProgress::Voted { op, .. } = reduce.progress
                && !self.suspend_op(op, cause)
            {
                self.visible = self.latest;
                self.fail_call(call, Failure::Aborted(Box::new(cause.clone())));
            }
        }
        self.actions.push_back(PeerAction::CloseEpoch(epoch));
        self.notify(PeerEvent::EpochClosed { epoch, cause: Some(cause.clone()) });
    }

    /// Reports that the links of the proposed epoch are up, and all suspended operations are reported.
    pub(super) fn report_ready(&mut self) {
        if self.is_suspending() {
            return;
        }
        let Some(proposal) = self.proposal.as_mut().filter(|p| p.waiting.is_empty() && !p.reported) else {
            return;
        };
        proposal.reported = true;
        let unreachable = proposal.unreachable.iter().copied().collect();
        let epoch = proposal.description.id;
        self.send(ToMaster::EpochReady { epoch, unreachable });
    }

    fn report_link(&mut self, peer: PeerId, direction: Direction) {
        self.links.insert(peer, LinkState::Reported);
        if let Some(epoch) = self.epoch().map(|e| e.id) {
            self.send(ToMaster::LinkTrouble { epoch, peer, direction });
        }
    }

    /// Repeats the reports of links, which a restarted master does not know.
    pub(super) fn repeat_link_reports(&mut self) {
        let reported = |state: &LinkState| *state == LinkState::Reported;
        let troubled: Vec<_> = self.links.iter().filter(|(_, s)| reported(s)).map(|(p, _)| *p).collect();
        for peer in troubled {
            self.report_link(peer, Direction::Both);
        }
    }

    /// Votes down running operations: a link was lost and made again, so frames may be missing.
    fn fail_running_ops(&mut self, peer: PeerId) {
        let running: Vec<_> = self
            .reduces()
            .filter_map(|r| match r.progress {
                ReduceProgress::Running { op, .. } => Some(op),
                _ => None,
            })
            .collect();
        for op in running {
            self.vote_op(op, Ballot::LinkBroken { with: peer });
        }
    }
}
