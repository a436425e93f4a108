//! The peer machine: what one peer knows of the run, and how its user's calls come to their ends.
//!
//! A driver passes the user's calls in, tells what arrives and what breaks, and carries out what
//! [`Peer::poll_action`] asks for: messages to the master, links to neighbours, operations of the
//! executor, fetches of shared state. Each call ends in exactly one [`PeerAction::Complete`].

mod calls;
mod epochs;
mod failure;
mod master_connection;
mod ops;
mod syncs;

pub use failure::{Failure, FailureKind};

use crate::cause::WaitWarning;
use crate::descriptor::Descriptor;
use crate::epoch::{Attributes, EpochDescription, Member};
use crate::id::{CallId, ConnId, EpochId, Incarnation, OpId, PeerId, Revision};
use crate::message::{Join, Numbered, RoundNumbers, ToMaster, ToPeer};
use crate::session::Session;
use crate::shared_state::Assignment;
use crate::time::Time;
use crate::timing::Timing;
use calls::Call;
use epochs::{LinkState, OpenEpoch, ProposedEpoch};
use master_connection::MasterConnection;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

/// What a peer is told when it is made.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// Random and new for every communicator.
    pub peer: PeerId,
    /// How it introduces itself.
    pub join: Join,
    /// Deadlines and intervals.
    pub timing: Timing,
}

/// How a call ended well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completion {
    /// The peer is a member.
    Connected,
    /// The topology is up to date, or optimised.
    Topology,
    /// Whether anyone is pending.
    Pending(bool),
    /// The shared state is this revision.
    Synced(Revision),
    /// The result holds; so many took part.
    Reduced {
        /// Members of the epoch that the operation ran in.
        world: u32,
    },
}

/// What the driver shall do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PeerAction {
    /// Connect to the master; answer with [`Peer::handle_connected`] or [`Peer::handle_dial_failed`].
    DialMaster,
    /// Send a message to the master.
    Send {
        /// On which connection.
        conn: ConnId,
        /// The message.
        message: Box<Numbered<ToMaster>>,
    },
    /// Close a connection to the master once all that was sent on it is out.
    Close {
        /// Which.
        conn: ConnId,
    },
    /// See to it that there is a link with this member, whoever of the two dials; answer with
    /// [`Peer::handle_link_up`] or [`Peer::handle_link_failed`].
    Link {
        /// The member.
        member: Member,
        /// The epoch whose membership the link has to prove.
        epoch: EpochId,
        /// With this key.
        key: [u8; 32],
    },
    /// The link with this peer is no longer needed.
    Unlink(PeerId),
    /// Say something on the link, so that the other end knows us to be alive.
    Ping(PeerId),
    /// The executor shall open this epoch.
    OpenEpoch(Box<EpochDescription>),
    /// The executor shall close this epoch.
    CloseEpoch(EpochId),
    /// The executor shall start an operation; answer with [`Peer::handle_op_done`] and the like.
    StartOp {
        /// The operation.
        op: OpId,
        /// Whose buffers it works on.
        call: CallId,
        /// What was asked for.
        descriptor: Descriptor,
    },
    /// The operation's result holds; answer with [`Peer::handle_op_released`] when its buffers are free.
    CommitOp(OpId),
    /// The operation is void; answer with [`Peer::handle_op_released`] when its buffers are as before.
    AbortOp(OpId),
    /// The operation was decided without having been started here.
    SkipOp(OpId),
    /// Measure the way to a peer and back; answer with [`Peer::handle_probed`].
    Probe {
        /// Goes back with the answer.
        probe: u64,
        /// The other end.
        peer: PeerId,
        /// Where it listens.
        addresses: Vec<SocketAddr>,
        /// The epoch whose membership the connection has to prove.
        epoch: EpochId,
        /// With this key.
        key: [u8; 32],
    },
    /// Fetch what is assigned, and serve whoever comes; answer with [`Peer::handle_fetched`] if there is
    /// anything to fetch. When the call completes, fetching and serving must have stopped before its user
    /// is told (R4).
    Sync {
        /// The call whose state it is.
        call: CallId,
        /// Which assignment of this peer's; goes back with the answer. After a restart of the master there may be
        /// another one for the same call, and it replaces the one before.
        number: u64,
        /// What to do.
        assignment: Assignment,
    },
    /// Write to the log that a call waits for other peers.
    StillWaiting(WaitWarning),
    /// A call has ended. Nothing touches its buffers any more.
    Complete {
        /// Which.
        call: CallId,
        /// How.
        result: Result<Completion, Failure>,
    },
}

/// How far the peer has come.
#[derive(Clone, PartialEq, Eq, Debug)]
enum MembershipStage {
    /// Never connected.
    Idle,
    /// Waiting to be accepted, for the first time or again.
    Joining,
    /// Accepted.
    Member,
    /// No longer part of the run, and why.
    Ended(Failure),
}

/// The peer machine.
#[derive(Debug)]
pub struct Peer {
    config: PeerConfig,
    stage: MembershipStage,
    master: MasterConnection,
    session: Session<ToMaster>,
    /// Whether what is said can be sent now, or has to wait for the master to be found again.
    can_send: bool,
    incarnation: Incarnation,
    /// The life that this one took the run over from.
    previous: Option<Incarnation>,
    seniority: u64,
    /// Connections on which the master fell silent. They are closed when it is found again: a master that was merely held
    /// up would take the end of one for ours.
    stale: Vec<ConnId>,
    /// When the master was lost, while it is.
    master_lost_since: Option<Time>,
    next_heartbeat: Time,
    heard_peers: BTreeSet<PeerId>,
    open: Option<OpenEpoch>,
    proposal: Option<ProposedEpoch>,
    links: BTreeMap<PeerId, LinkState>,
    calls: BTreeMap<CallId, Call>,
    next_call: u64,
    rounds: RoundNumbers,
    last_pending: bool,
    synced: Option<Revision>,
    /// Assignments of shared state so far.
    assignments: u64,
    /// World sizes as the master last sent them, and as the user sees them.
    latest: Attributes,
    visible: Attributes,
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
            master_lost_since: None,
            next_heartbeat: Time::ZERO,
            heard_peers: BTreeSet::new(),
            open: None,
            proposal: None,
            links: BTreeMap::new(),
            calls: BTreeMap::new(),
            next_call: 0,
            rounds: RoundNumbers::default(),
            last_pending: false,
            synced: None,
            assignments: 0,
            latest: Attributes::default(),
            visible: Attributes::default(),
            actions: VecDeque::new(),
        }
    }

    /// Who this is.
    pub fn id(&self) -> PeerId {
        self.config.peer
    }

    /// World sizes. They change only by connect, update_topology, optimize_topology and collectives.
    ///
    /// A collective that succeeded sets them to the world of its epoch, one that failed to the world as the master
    /// knew it when it decided: the same on all peers at the same operation.
    pub fn attributes(&self) -> Attributes {
        self.visible
    }

    /// The epoch that operations run in, if one is open.
    pub fn epoch(&self) -> Option<&EpochDescription> {
        self.open.as_ref().filter(|o| !o.ended).map(|o| &o.description)
    }

    /// Whether the peer is a member of the run, as far as it knows.
    pub fn is_member(&self) -> bool {
        self.stage == MembershipStage::Member
    }

    /// What to do next.
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
        ];
        let proposal = self.proposal.as_ref().filter(|p| !p.reported).map(|p| p.deadline);
        let links = self.links.values().filter_map(LinkState::deadline);
        let calls = self.calls.values().filter_map(Call::timeout);
        upstream.into_iter().flatten().chain(proposal).chain(links).chain(calls).min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Time) {
        self.check_master_connection(now);
        self.expire_links(now);
        self.expire_calls(now);
        self.announce_ops(now);
    }

    /// A message of the master arrived.
    pub fn handle_message(&mut self, now: Time, conn: ConnId, message: Numbered<ToPeer>) {
        if self.accept_message(now, conn, &message) {
            self.dispatch(now, conn, message.message);
        }
    }

    fn dispatch(&mut self, now: Time, conn: ConnId, said: ToPeer) {
        match said {
            ToPeer::Registered { incarnation, seniority } => self.handle_registered(incarnation, seniority),
            ToPeer::Rebound { received } => self.handle_rebound(conn, received),
            ToPeer::Restoring { .. } => {
                // It is there, and waits for others: that is not being away.
                (self.can_send, self.master_lost_since) = (false, None);
            }
            ToPeer::Restored { incarnation, rounds: _, last_pending } => {
                self.handle_restored(now, incarnation, last_pending);
            }
            ToPeer::Demoted => self.handle_demoted(),
            ToPeer::EpochProposed { description, ended, attributes } => {
                self.latest = attributes;
                self.handle_proposed(now, *description, ended);
            }
            ToPeer::EpochOpened { epoch, missing, attributes, rounds } => {
                self.latest = attributes;
                self.handle_opened(now, epoch, missing, rounds);
            }
            ToPeer::Decided { op, outcome, attributes } => {
                self.latest = attributes;
                self.handle_decided(op, outcome, attributes);
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
            ToPeer::Heartbeat => {}
            ToPeer::StillWaiting(note) => self.actions.push_back(PeerAction::StillWaiting(note)),
        }
    }

    /// A probe that the master asked for has ended.
    pub fn handle_probed(&mut self, probe: u64, forward: Option<u64>, backward: Option<u64>) {
        self.send(ToMaster::Probed { probe, forward, backward });
    }

    /// Something arrived on the link with this peer.
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

    fn complete(&mut self, call: CallId, result: Result<Completion, Failure>) {
        if self.calls.remove(&call).is_some() {
            self.actions.push_back(PeerAction::Complete { call, result });
        }
    }

    /// The peer is no longer part of the run: every call ends, once its buffers are free.
    fn end_membership(&mut self, why: Failure) {
        if matches!(self.stage, MembershipStage::Ended(_)) {
            return;
        }
        self.stage = MembershipStage::Ended(why.clone());
        self.can_send = false;
        self.close_stale(0);
        if let MasterConnection::Up { conn, .. } =
            core::mem::replace(&mut self.master, MasterConnection::Down { redial_at: None })
        {
            self.actions.push_back(PeerAction::Close { conn });
        }
        for call in self.calls.keys().copied().collect::<Vec<_>>() {
            self.fail_call(call, why.clone());
        }
        if let Some(open) = self.open.take().filter(|o| !o.ended) {
            self.actions.push_back(PeerAction::CloseEpoch(open.description.id));
        }
        self.proposal = None;
        for peer in core::mem::take(&mut self.links).into_keys() {
            self.actions.push_back(PeerAction::Unlink(peer));
        }
    }
}
