//! The peer machine: the state of one peer, and the calls of its user.
//!
//! A driver passes in calls, messages and lost connections, and carries out the actions of [`Peer::poll_action`]: messages
//! to the master, links to neighbours, operations of the executor, fetches of shared state. Each call ends with exactly
//! one [`PeerAction::Complete`].
#![allow(missing_docs)] // Fields are named for what they hold.

mod calls;
mod epochs;
mod failure;
mod master_connection;
mod ops;
mod syncs;

pub use failure::{Failure, FailureKind};

use crate::cause::{PeerName, Wait};
use crate::charter::VoterRecord;
use crate::claim::Signature;
use crate::descriptor::Descriptor;
use crate::epoch::{Attributes, EpochDescription, Member, RelayAddress};
use crate::event::PeerEvent;
use crate::id::{CallId, ConnId, EpochId, Incarnation, OpId, PeerId, Revision};
use crate::message::{Join, Numbered, Phase, Replica, RoundNumbers, ToMaster, ToPeer};
use crate::network::{Measurement, Network};
use crate::session::Session;
use crate::shared_state::Assignment;
use crate::time::Time;
use crate::timing::Timing;
use calls::{Call, CallKind};
use epochs::{LinkState, OpenEpoch, ProposedEpoch};
use master_connection::MasterConnection;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

/// The configuration of a peer.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// Random and new for every communicator.
    pub peer: PeerId,
    /// What it states when it joins.
    pub join: Join,
    /// The replica that it is a rank of, if any. The master must support [`Features::REPLICAS`](crate::hello::Features::REPLICAS).
    pub replica: Option<Replica>,
    pub timing: Timing,
}

/// The result of a successful call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completion {
    Connected,
    /// The topology is updated, or optimised.
    Topology,
    /// Whether peers are pending.
    Pending(bool),
    Synced(Revision),
    /// The collective is committed by so many members.
    Reduced {
        world: u32,
    },
}

/// What the driver has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PeerAction {
    /// Connect to the master; report with [`Peer::handle_connected`] or [`Peer::handle_dial_failed`]. If there are several, the
    /// next one is tried after each loss and each failure.
    DialMaster,
    /// The master at these addresses is the next one to connect to, if it is one of the run's.
    PreferMaster(Vec<SocketAddr>),
    /// Send a message to the master.
    Send { conn: ConnId, message: Box<Numbered<ToMaster>> },
    /// Close a connection to the master after sending what is queued on it.
    Close { conn: ConnId },
    /// Make a link with this member, whichever end dials, authenticated by the epoch's key; report with
    /// [`Peer::handle_link_up`] or [`Peer::handle_link_failed`].
    Link { member: Member, epoch: EpochId, key: [u8; 32] },
    /// Use these relays for links that cannot be made directly.
    UseRelays(Vec<RelayAddress>),
    /// Close the link with this peer.
    Unlink(PeerId),
    /// Send a ping on the link with this peer.
    Ping(PeerId),
    /// Open this epoch in the executor.
    OpenEpoch(Box<EpochDescription>),
    /// Close this epoch in the executor.
    CloseEpoch(EpochId),
    /// Start an operation on the buffers of this call; report with [`Peer::handle_op_done`] and the like.
    /// The plan is chosen for the network here, if there is one, and otherwise for the epoch's.
    StartOp { op: OpId, call: CallId, descriptor: Descriptor, network: Option<Arc<Network>> },
    /// Start this operation on the buffers of this call, which was suspended: with what the members hold, as in
    /// [`ResumedOp`](crate::epoch::ResumedOp).
    ResumeOp { op: OpId, call: CallId, descriptor: Descriptor, held: Arc<[u32]> },
    /// Abort the operation, and keep what has arrived of it; report with [`Peer::handle_op_suspended`].
    SuspendOp(OpId),
    /// Commit the operation; report with [`Peer::handle_op_released`] when its buffers are free.
    CommitOp(OpId),
    /// Abort the operation; report with [`Peer::handle_op_released`] when its buffers are restored.
    AbortOp(OpId),
    /// The operation was decided without having been started here.
    SkipOp(OpId),
    /// Measure the link to a peer, on a connection authenticated by the epoch's key; report with
    /// [`Peer::handle_probed`].
    Probe { probe: u64, peer: PeerId, addresses: Vec<SocketAddr>, epoch: EpochId, key: [u8; 32] },
    /// Fetch what is assigned, and serve others; report with [`Peer::handle_fetched`] if there is something to fetch.
    /// Both must have stopped before the user sees the end of the call (R4). After a restart of the master another
    /// assignment, with a higher number, may replace this one.
    Sync { call: CallId, number: u64, assignment: Assignment },
    /// Log that a call waits for other peers.
    StillWaiting(Wait),
    /// Report a change of the membership.
    Notify(Box<PeerEvent>),
    /// A call has ended. Nothing touches its buffers any more.
    Complete { call: CallId, result: Result<Completion, Failure> },
}

/// The stage of the membership.
#[derive(Clone, PartialEq, Eq, Debug)]
enum MembershipStage {
    /// Never connected.
    Idle,
    /// Waiting to be accepted.
    Joining,
    /// Accepted.
    Member,
    /// No longer a member, for this reason.
    Ended(Failure),
}

/// The peer machine.
#[derive(Debug)]
pub struct Peer {
    config: PeerConfig,
    stage: MembershipStage,
    master: MasterConnection,
    session: Session<ToMaster>,
    /// Whether messages can be sent now. If not, they are sent after reconnecting.
    can_send: bool,
    incarnation: Incarnation,
    /// The incarnation that this one took the run over from.
    previous: Option<Incarnation>,
    seniority: u64,
    /// Connections to a silent master. They are closed after reconnecting: a master that was only delayed would take
    /// their end for the end of this peer.
    stale: Vec<ConnId>,
    /// When the last connection to the master was made.
    connected_at: Time,
    /// Since when a master that was connected to has not answered: it may stand by.
    unanswered_since: Option<Time>,
    /// The vote of this peer on who leads, if there are several masters.
    voter: VoterRecord,
    /// The signature over its charter.
    charter_signature: Option<Box<Signature>>,
    /// When the master was lost, until it is back.
    master_lost_since: Option<Time>,
    /// Why each master could not be used, as the driver says.
    known_of_masters: String,
    next_heartbeat: Time,
    heard_peers: BTreeSet<PeerId>,
    /// Peers whose links broke and are not up again.
    ended_links: BTreeSet<PeerId>,
    open: Option<OpenEpoch>,
    proposal: Option<ProposedEpoch>,
    links: BTreeMap<PeerId, LinkState>,
    calls: BTreeMap<CallId, Call>,
    next_call: u64,
    rounds: RoundNumbers,
    last_pending: bool,
    synced: Option<Revision>,
    /// The number of assignments of shared state so far.
    assignments: u64,
    /// The bytes of shared state that were fetched, and of those that are, during a fetch.
    fetching: Option<(u64, u64)>,
    /// World sizes as the master last sent them.
    latest: Attributes,
    /// World sizes as the user sees them.
    visible: Attributes,
    /// The members of the group that `visible` counts.
    visible_members: Arc<[Member]>,
    actions: VecDeque<PeerAction>,
}

impl Peer {
    /// A peer that is not connected.
    pub fn new(config: PeerConfig) -> Self {
        Self {
            config,
            stage: MembershipStage::Idle,
            master: MasterConnection::Down { redial_at: None },
            session: Session::default(),
            can_send: false,
            incarnation: Incarnation::default(),
            previous: None,
            seniority: 0,
            stale: Vec::new(),
            connected_at: Time::ZERO,
            unanswered_since: None,
            voter: VoterRecord::default(),
            charter_signature: None,
            master_lost_since: None,
            known_of_masters: String::new(),
            next_heartbeat: Time::ZERO,
            heard_peers: BTreeSet::new(),
            ended_links: BTreeSet::new(),
            open: None,
            proposal: None,
            links: BTreeMap::new(),
            calls: BTreeMap::new(),
            next_call: 0,
            rounds: RoundNumbers::default(),
            last_pending: false,
            synced: None,
            assignments: 0,
            fetching: None,
            latest: Attributes::default(),
            visible: Attributes::default(),
            visible_members: Arc::default(),
            actions: VecDeque::new(),
        }
    }

    /// The id of this peer.
    pub fn id(&self) -> PeerId {
        self.config.peer
    }

    /// World sizes. They change only by connect, update_topology, optimize_topology and collectives.
    ///
    /// A successful collective sets them to the world of its epoch, a failed one to the world that the master knew when
    /// it decided: the same on all peers at the same operation.
    pub fn attributes(&self) -> Attributes {
        self.visible
    }

    /// The members of the group, oldest first. They change by connect, update_topology, optimize_topology and collectives that
    /// succeed: so all peers see the same ones at the same operation.
    pub fn members(&self) -> &Arc<[Member]> {
        &self.visible_members
    }

    fn show_latest(&mut self) {
        self.visible = self.latest;
        if let Some(epoch) = self.epoch() {
            self.visible_members = epoch.members.clone();
        }
    }

    /// A member of the proposed or the open epoch, for logs.
    pub fn name_of(&self, peer: PeerId) -> PeerName {
        let proposed = self.proposal.as_ref().map(|proposal| &proposal.description);
        let known = proposed.into_iter().chain(self.open.as_ref().map(|open| &open.description));
        let mut members = known.flat_map(|description| description.members.iter());
        members
            .find(|member| member.peer == peer)
            .map_or_else(|| PeerName { peer, name: peer.short() }, Member::peer_name)
    }

    /// The phase that a call votes in, until it has ended.
    pub fn phase_of(&self, call: CallId) -> Option<Phase> {
        match &self.calls.get(&call)?.kind {
            CallKind::Vote { request, .. } => Some(request.phase()),
            CallKind::Connect | CallKind::Reduce(_) => None,
        }
    }

    /// The open epoch, if any.
    pub fn epoch(&self) -> Option<&EpochDescription> {
        self.open.as_ref().filter(|o| !o.ended).map(|o| &o.description)
    }

    /// Whether the peer is a member, as far as it knows.
    pub fn is_member(&self) -> bool {
        self.stage == MembershipStage::Member
    }

    /// The next action for the driver.
    pub fn poll_action(&mut self) -> Option<PeerAction> {
        self.actions.pop_front()
    }

    /// When to call [`Peer::handle_timeout`] at the latest.
    pub fn poll_timeout(&self) -> Option<Time> {
        if matches!(self.stage, MembershipStage::Idle | MembershipStage::Ended(_)) {
            return None;
        }
        let timing = &self.config.timing;
        let upstream = [
            self.master.timeout(timing),
            (matches!(self.master, MasterConnection::Up { .. }) || !self.links.is_empty())
                .then_some(self.next_heartbeat),
            self.master_lost_since.map(|since| since + timing.master_return_max),
            self.unanswered_since.map(|since| since + timing.master_silence_max),
        ];
        let proposal = self.proposal.as_ref().filter(|p| !p.reported).map(|p| p.deadline);
        let links = self.links.values().filter_map(LinkState::deadline);
        let calls = self.calls.values().filter_map(Call::timeout);
        upstream.into_iter().flatten().chain(proposal).chain(links).chain(calls).min()
    }

    /// Handles expired deadlines; call it at [`Peer::poll_timeout`] or later.
    pub fn handle_timeout(&mut self, now: Time) {
        self.check_master_connection(now);
        self.expire_links(now);
        self.expire_calls(now);
        self.announce_ops(now);
    }

    /// Handles a message from the master.
    pub fn handle_message(&mut self, now: Time, conn: ConnId, message: Numbered<ToPeer>) {
        if self.accept_message(now, conn, &message) {
            self.dispatch(now, conn, message.message);
        }
    }

    fn dispatch(&mut self, now: Time, conn: ConnId, message: ToPeer) {
        match message {
            ToPeer::Registered { incarnation, seniority } => self.handle_registered(incarnation, seniority),
            ToPeer::Rebound { received } => self.handle_rebound(conn, received),
            ToPeer::Restoring { .. } => {
                // The master is back, and waits for other members.
                (self.can_send, self.master_lost_since, self.unanswered_since) = (false, None, None);
            }
            ToPeer::Restored { incarnation, rounds: _, last_pending } => {
                self.handle_restored(now, incarnation, last_pending);
            }
            ToPeer::Demoted => self.handle_demoted(),
            ToPeer::EpochProposed { description, ended, attributes, signature } => {
                self.latest = attributes;
                self.handle_proposed(now, *description, ended, signature);
            }
            ToPeer::EpochOpened { epoch, missing, network, resumed, attributes, rounds, signature } => {
                self.latest = attributes;
                self.handle_opened(now, epoch, missing, (network, resumed), rounds, signature);
            }
            ToPeer::Decided { op, outcome, attributes, signature } => {
                self.latest = attributes;
                self.handle_decided(op, outcome, attributes, signature);
            }
            ToPeer::Answer { call, phase, round, answer, attributes } => {
                self.latest = attributes;
                self.handle_answer(call, phase, round, answer);
            }
            ToPeer::Probe { probe, peer, addresses, epoch, key } => {
                self.actions.push_back(PeerAction::Probe { probe, peer, addresses, epoch, key });
            }
            ToPeer::SyncElected { round, verdict } => self.handle_elected(round, verdict),
            ToPeer::Removed { reason } => self.end_membership(Failure::Removed(reason)),
            ToPeer::Report if !self.can_send => self.send_first(conn),
            // The driver handles examinations.
            ToPeer::Heartbeat | ToPeer::Report | ToPeer::Examine { .. } => {}
            ToPeer::StillWaiting(note) => self.actions.push_back(PeerAction::StillWaiting(note)),
            ToPeer::Lead { term, beat, charter, signature } => {
                self.handle_lead(conn, term, beat, charter.as_deref(), signature);
            }
            ToPeer::Candidate { term } => self.handle_lead(conn, term, 0, None, None),
            ToPeer::Redirect { addresses } => self.handle_redirect(now, conn, addresses),
        }
    }

    /// Reports the result of a probe.
    pub fn handle_probed(&mut self, probe: u64, forward: Option<u64>, backward: Option<u64>) {
        self.send(ToMaster::Probed { probe, forward, backward });
    }

    /// Reports what was measured on links.
    pub fn handle_measured(&mut self, measurement: Measurement) {
        self.send(ToMaster::Measured(measurement));
    }

    /// Notes that bytes arrived on the link with this peer.
    pub fn handle_heard(&mut self, peer: PeerId) {
        self.heard_peers.insert(peer);
    }

    fn send(&mut self, message: ToMaster) {
        let numbered = self.session.enqueue(message);
        if let (true, MasterConnection::Up { conn, .. }) = (self.can_send, &self.master) {
            let conn = *conn;
            self.actions.push_back(PeerAction::Send { conn, message: Box::new(numbered) });
        }
    }

    fn notify(&mut self, event: PeerEvent) {
        self.actions.push_back(PeerAction::Notify(Box::new(event)));
    }

    fn complete(&mut self, call: CallId, result: Result<Completion, Failure>) {
        if self.calls.remove(&call).is_some() {
            self.actions.push_back(PeerAction::Complete { call, result });
        }
    }

    /// Ends the membership: every call fails, once its buffers are free.
    fn end_membership(&mut self, why: Failure) {
        if matches!(self.stage, MembershipStage::Ended(_)) {
            return;
        }
        self.stage = MembershipStage::Ended(why.clone());
        self.can_send = false;
        self.close_stale(0);
        let is_leaving = why == Failure::Left;
        self.notify(if is_leaving {
            PeerEvent::Left
        } else {
            PeerEvent::MembershipEnded { why: why.clone() }
        });
        if let MasterConnection::Up { conn, .. } =
            core::mem::replace(&mut self.master, MasterConnection::Down { redial_at: None })
        {
            self.actions.push_back(PeerAction::Close { conn });
        }
        for call in self.calls.keys().copied().collect::<Vec<_>>() {
            self.fail_call(call, why.clone());
        }
        if let Some(open) = self.open.take().filter(|o| !o.ended) {
            let epoch = open.description.id;
            self.actions.push_back(PeerAction::CloseEpoch(epoch));
            self.notify(PeerEvent::EpochClosed { epoch, cause: None });
        }
        self.proposal = None;
        for peer in core::mem::take(&mut self.links).into_keys() {
            self.actions.push_back(PeerAction::Unlink(peer));
        }
    }
}
