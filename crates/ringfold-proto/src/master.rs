//! The master machine: who is in the run, and how every vote and every operation is decided.
//!
//! A driver tells it what arrives ([`Master::handle_message`]), what breaks ([`Master::handle_lost`])
//! and what time it is ([`Master::handle_timeout`]), and carries out what [`Master::poll_action`] asks
//! for. Each phase is a file of this folder; all of them collect votes in a [`Round`](crate::round).

mod admission;
mod contradiction;
mod departure;
mod election;
mod establish;
mod group;
mod liveness;
mod optimise;
mod pending;
mod phase;
mod reduce;
mod rejected_state;
mod restore;
mod roster;
mod sync;
mod wait_warning;

use crate::cause::{Departure, PeerName, ProtocolViolation};
use crate::epoch::Attributes;
use crate::event::Event;
use crate::id::{ConnId, EpochId, GroupId, Incarnation, PeerId};
use crate::message::{Numbered, Phase, RoundNumbers, ToMaster, ToPeer};
use crate::round::Round;
use crate::session::Receipt;
use crate::time::Time;
use crate::timing::Timing;
use crate::tuning::Tuning;
use core::time::Duration;
use group::Group;
use optimise::Optimisation;
use phase::{PhaseRound, VoteCall};
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};
use restore::Restoration;
use roster::{PeerStatus, Roster};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a master is told when it is made.
#[derive(Clone, Debug)]
pub struct MasterConfig {
    /// Deadlines and intervals.
    pub timing: Timing,
    /// What steers plans in every epoch.
    pub tuning: Tuning,
    /// Where this life's randomness comes from; must be unpredictable and new for every life.
    pub seed: [u8; 32],
}

/// What the driver shall do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MasterAction {
    /// Send a message to a peer.
    Send {
        /// On which connection.
        conn: ConnId,
        /// The message.
        message: Box<Numbered<ToPeer>>,
    },
    /// Close a connection once all that was sent on it is out.
    Close {
        /// Which.
        conn: ConnId,
    },
    /// Find a ring, and bring it to [`Master::handle_tour`]; a better one may be brought later.
    SolveTour(TourRequest),
    /// Something was decided.
    Notify(Event),
}

/// A ring that is sought.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TourRequest {
    /// Goes back with the answer.
    pub id: u64,
    /// The peers of the ring, oldest first.
    pub nodes: Vec<PeerId>,
    /// Measured bytes per second from one to another, by position in `nodes`.
    pub bandwidth: Vec<(usize, usize, u64)>,
    /// Pairs that can't be an edge in this direction, by position in `nodes`.
    pub unreachable: Vec<(usize, usize)>,
}

/// The ring that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TourSolution {
    /// The peers in ring order.
    pub order: Vec<PeerId>,
    /// Whoever had to be left out so that there is a ring.
    pub left_out: Vec<PeerId>,
}

/// The master machine.
#[derive(Debug)]
pub struct Master {
    config: MasterConfig,
    incarnation: Incarnation,
    started: Option<Time>,
    rng: ChaCha12Rng,
    roster: Roster,
    groups: BTreeMap<GroupId, Group>,
    rounds: RoundNumbers,
    last_pending: bool,
    /// The votes of the whole run, by phase.
    votes: BTreeMap<Phase, PhaseRound>,
    /// The votes of a topology round that is decided: newcomers are let in, and epochs are being made. Whoever
    /// is let in votes in the next one.
    admitting: Option<Round<VoteCall>>,
    optimising: Option<Optimisation>,
    restoration: Option<Restoration>,
    restored: bool,
    /// Nobody is heard of: our own line may be down.
    isolated: bool,
    epoch_counter: u64,
    last_number: u64,
    /// How long the way to a peer takes, there and back, by its connection.
    round_trips: BTreeMap<ConnId, Duration>,
    next_heartbeat: Time,
    /// Peers that do not acknowledge what they are sent.
    lagging: BTreeSet<PeerId>,
    actions: VecDeque<MasterAction>,
}

impl Master {
    /// A master that knows nobody.
    pub fn new(config: MasterConfig) -> Self {
        let mut rng = ChaCha12Rng::from_seed(config.seed);
        let incarnation = Incarnation(rng.next_u64());
        Self {
            config,
            incarnation,
            started: None,
            rng,
            roster: Roster::default(),
            groups: BTreeMap::new(),
            rounds: RoundNumbers::default(),
            last_pending: false,
            votes: BTreeMap::new(),
            admitting: None,
            optimising: None,
            restoration: None,
            restored: false,
            isolated: false,
            epoch_counter: 0,
            last_number: 0,
            round_trips: BTreeMap::new(),
            next_heartbeat: Time::ZERO,
            lagging: BTreeSet::new(),
            actions: VecDeque::new(),
        }
    }

    /// The life of this master.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// A connection has proved who is at its other end.
    pub fn handle_connected(&mut self, now: Time, conn: ConnId, peer: PeerId) {
        self.started.get_or_insert(now);
        self.roster.connect(conn, peer);
    }

    /// A message arrived.
    pub fn handle_message(&mut self, now: Time, conn: ConnId, message: Numbered<ToMaster>) {
        self.started.get_or_insert(now);
        let Some(peer) = self.roster.peer_on(conn) else { return };
        match message.message {
            ToMaster::Join(join) => self.handle_join(now, conn, peer, join),
            ToMaster::Resume(resume) => self.handle_resume(now, conn, peer, *resume),
            said => {
                let Some(record) = self.roster.current_mut(conn, peer) else {
                    // The peer speaks on a connection that is no longer its own.
                    self.actions.push_back(MasterAction::Close { conn });
                    return;
                };
                record.heard_at = now;
                let header =
                    Numbered { number: message.number, acknowledged: message.acknowledged, message: () };
                match record.session.receive(&header) {
                    Receipt::New if header.number > 0 && header.acknowledged < record.outdated_before => {}
                    Receipt::New => self.dispatch(now, peer, said),
                    Receipt::Duplicate => {}
                    Receipt::Invalid => {
                        self.remove(peer, Departure::Misbehaved(ProtocolViolation::Numbering));
                    }
                }
            }
        }
        self.advance(now);
    }

    /// How long the way to the other end of a connection takes, there and back: epochs' windows cover it.
    pub fn handle_round_trip(&mut self, conn: ConnId, round_trip: Duration) {
        if self.roster.peer_on(conn).is_some() {
            self.round_trips.insert(conn, round_trip);
        }
    }

    /// A connection broke, or was closed by the other side.
    pub fn handle_lost(&mut self, now: Time, conn: ConnId) {
        self.started.get_or_insert(now);
        self.round_trips.remove(&conn);
        if let Some(peer) = self.roster.disconnect(conn) {
            self.remove(peer, Departure::ConnectionLost);
        }
        self.advance(now);
    }

    /// Time has passed; call it at [`Master::poll_timeout`] or later.
    pub fn handle_timeout(&mut self, now: Time) {
        self.started.get_or_insert(now);
        self.send_heartbeats(now);
        self.evict_silent(now);
        self.expire_restoration(now);
        self.expire_establishing(now);
        self.expire_ops(now);
        self.expire_phases(now);
        self.expire_sync(now);
        self.expire_probes(now);
        self.expire_rejected(now);
        self.send_wait_warnings(now);
        self.advance(now);
    }

    /// Evicts a peer.
    pub fn evict(&mut self, now: Time, peer: PeerId, reason: &str) {
        let reason = admission::truncate_text(reason, crate::limits::TEXT_BYTES_MAX / 2);
        self.remove(peer, Departure::Evicted(reason));
        self.advance(now);
    }

    /// What to do next.
    pub fn poll_action(&mut self) -> Option<MasterAction> {
        self.actions.pop_front()
    }

    /// When to call [`Master::handle_timeout`] at the latest.
    pub fn poll_timeout(&self) -> Option<Time> {
        let voting = self.votes.values().filter_map(PhaseRound::deadline);
        let groups = self.groups.values().flat_map(Group::deadlines);
        let others = [
            self.liveness_timeout(),
            self.wait_warning_timeout(),
            self.optimising.as_ref().and_then(Optimisation::deadline),
            self.restoration.as_ref().map(|r| r.deadline),
            self.rejected_timeout(),
        ];
        voting.chain(groups).chain(others.into_iter().flatten()).min()
    }

    /// The accepted peers, oldest first.
    pub fn accepted(&self) -> Vec<PeerId> {
        self.roster.accepted().collect()
    }

    /// The peers that wait to be accepted.
    pub fn waiting(&self) -> Vec<PeerId> {
        self.roster.pending().collect()
    }

    fn dispatch(&mut self, now: Time, peer: PeerId, said: ToMaster) {
        if matches!(said, ToMaster::Vote { .. } | ToMaster::Started { .. } | ToMaster::OpVote { .. }) {
            self.clear_rejected(peer);
        }
        match said {
            ToMaster::Join(_) | ToMaster::Resume(_) => {}
            ToMaster::Vote { call, round, deadline_ms, request } => {
                self.handle_vote(now, peer, call, round, deadline_ms, request);
            }
            ToMaster::Started { op, descriptor } => self.handle_started(now, peer, op, descriptor),
            ToMaster::OpVote { op, descriptor, ballot } => {
                self.handle_op_vote(now, peer, op, descriptor, ballot)
            }
            ToMaster::EpochReady { epoch, unreachable } => self.handle_ready(peer, epoch, unreachable),
            ToMaster::LinkTrouble { epoch, peer: other, direction } => {
                self.handle_link_trouble(now, peer, epoch, other, direction);
            }
            ToMaster::Probed { probe, forward, backward } => {
                self.handle_probed(peer, probe, forward, backward)
            }
            ToMaster::SyncDone { round, complete } => self.handle_sync_done(peer, round, complete),
            ToMaster::Heartbeat { heard } => self.handle_heartbeat(now, heard),
            ToMaster::Leave => self.remove(peer, Departure::Left),
        }
    }

    /// Moves every phase on as far as it can go. Phases only record what they are told; what follows
    /// from it is found here, so that the order in which messages arrive does not matter.
    fn advance(&mut self, now: Time) {
        for _ in 0..crate::limits::ADVANCE_STEPS_MAX {
            let moved = self.evict_lagging()
                || self.advance_restoration(now)
                || self.advance_rejected()
                || self.advance_contradictions()
                || self.advance_ops()
                || self.advance_admission(now)
                || self.advance_establishing(now)
                || self.advance_pending()
                || self.advance_optimise(now)
                || self.advance_sync(now);
            if !moved {
                return;
            }
        }
        unreachable!("phases push each other for ever");
    }

    fn send(&mut self, peer: PeerId, message: ToPeer) {
        let Some(record) = self.roster.get_mut(peer) else { return };
        let numbered = record.session.enqueue(message);
        if record.session.is_outbox_full() {
            self.lagging.insert(peer);
        }
        if let Some(conn) = record.conn {
            self.actions.push_back(MasterAction::Send { conn, message: Box::new(numbered) });
        }
    }

    fn notify(&mut self, event: Event) {
        self.actions.push_back(MasterAction::Notify(event));
    }

    fn peer_name(&self, peer: PeerId) -> PeerName {
        self.roster.peer_name(peer)
    }

    fn peer_names(&self, peers: &[PeerId]) -> Vec<PeerName> {
        peers.iter().take(crate::limits::NAMES_IN_ERROR_MAX).map(|p| self.peer_name(*p)).collect()
    }

    fn attributes(&self, group: GroupId) -> Attributes {
        let mut worlds = BTreeMap::<GroupId, u32>::new();
        for record in self.roster.iter().filter(|r| r.status == PeerStatus::Accepted) {
            *worlds.entry(record.join.group).or_default() += 1;
        }
        Attributes {
            global_world: worlds.values().sum(),
            group_world: worlds.get(&group).copied().unwrap_or(0),
            groups: worlds.len() as u32,
            largest_group_world: worlds.values().copied().max().unwrap_or(0),
        }
    }

    fn rounds_of(&self, group: GroupId) -> RoundNumbers {
        RoundNumbers { sync: self.groups.get(&group).map_or(0, |g| g.syncs), ..self.rounds }
    }

    fn next_epoch(&mut self, group: GroupId) -> EpochId {
        self.epoch_counter += 1;
        EpochId { group, incarnation: self.incarnation, counter: self.epoch_counter }
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn random_key(&mut self) -> [u8; 32] {
        let mut key = [0; 32];
        self.rng.fill_bytes(&mut key);
        key
    }
}
