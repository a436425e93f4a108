//! The master machine: it keeps the membership, and decides every vote and every operation.
//!
//! A driver passes in messages ([`Master::handle_message`]), lost connections ([`Master::handle_lost`]) and the time
//! ([`Master::handle_timeout`]), and carries out the actions of [`Master::poll_action`]. Each phase is a file of this
//! folder; all of them collect votes in a [`Round`](crate::round).
#![allow(missing_docs)] // Fields are named for what they hold.

mod admission;
mod contradiction;
mod departure;
mod election;
mod establish;
mod group;
mod liveness;
mod network;
mod optimise;
mod out_of_step;
mod pending;
mod phase;
mod recovery;
mod reduce;
mod rejected_state;
mod replica;
mod restore;
mod resumption;
mod roster;
mod status;
mod suspicion;
mod sync;
mod wait_warning;

use crate::cause::{Departure, PeerName, ProtocolViolation};
use crate::claim::Signer;
use crate::coordinator::MasterMessage;
use crate::descriptor::Descriptor;
use crate::epoch::{Attributes, EpochDescription};
use crate::event::Event;
use crate::id::{ConnId, EpochId, GroupId, Incarnation, PeerId, ReplicaId};
use crate::message::{Numbered, Phase, RoundNumbers, ToMaster, ToPeer};
use crate::network::Network;
use crate::recovery::RecoverySettings;
use crate::round::Round;
use crate::session::{Receipt, encoded_bytes};
use crate::time::Time;
use crate::timing::Timing;
use crate::tuning::Tuning;
use core::time::Duration;
use group::Group;
use optimise::Optimisation;
use phase::{PhaseRound, VoteCall};
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};
use rejected_state::RejectedState;
use restore::Restoration;
use roster::{PeerRecord, Roster};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

/// The configuration of a master.
#[derive(Clone, Debug)]
pub struct MasterConfig {
    pub timing: Timing,
    pub recovery: RecoverySettings,
    /// Peers that may join; at most [`crate::limits::WORLD_MAX`].
    pub peers_max: usize,
    /// The tuning of plans in every epoch.
    pub tuning: Tuning,
    /// How much faster, in percent, an operation would be if plans were chosen for the second network instead of the first.
    pub appraise: Appraise,
    /// Relays for members that cannot reach each other.
    pub relays: Vec<SocketAddr>,
    /// Signs what it decides, if the run has certificates.
    pub signer: Signer,
    /// The seed of its randomness; must be unpredictable and new for every process.
    pub seed: [u8; 32],
}

/// Compares two networks by the time of an operation in an epoch, with the second network as the true one.
pub type Appraise = fn(&EpochDescription, Option<&Network>, &Network, &Descriptor) -> u32;

/// What the driver has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MasterAction {
    /// Send a message to a peer.
    Send { conn: ConnId, message: Box<Numbered<ToPeer>> },
    /// Close a connection after sending what is queued on it.
    Close { conn: ConnId },
    /// Find a ring and pass it to [`Master::handle_tour`]. A better ring may follow later.
    SolveTour(TourRequest),
    /// Log a decision.
    Notify(Event),
    /// The members are these from now on. Actions that follow depend on it.
    SetMembers(Vec<PeerId>),
    /// Send a message to another master, by its position in the list.
    SendMaster { to: u16, message: Box<MasterMessage> },
}

/// A request for a ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TourRequest {
    /// Returned with the solution.
    pub id: u64,
    /// The peers of the ring, oldest first.
    pub nodes: Vec<PeerId>,
    /// Measured bytes per second from one to another, by position in `nodes`.
    pub bandwidth: Vec<(usize, usize, u64)>,
    /// Pairs that must not be an edge in this direction, by position in `nodes`.
    pub unreachable: Vec<(usize, usize)>,
}

/// A ring that a solver found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TourSolution {
    /// The peers in ring order.
    pub order: Vec<PeerId>,
    /// The peers that no ring can include.
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
    /// The votes of a topology round that is decided and waits for the new epochs. New members vote in the next round.
    admitting: Option<Round<VoteCall>>,
    optimising: Option<Optimisation>,
    restoration: Option<Restoration>,
    restored: bool,
    /// The members that may return from an earlier incarnation, if they are known.
    heirs: Option<BTreeSet<PeerId>>,
    /// No peer is heard from: the master's own network may be down.
    isolated: bool,
    epoch_counter: u64,
    last_number: u64,
    /// Round-trip times, by connection.
    round_trips: BTreeMap<ConnId, Duration>,
    next_heartbeat: Time,
    /// Peers without a connection, since when.
    suspects: BTreeMap<PeerId, Time>,
    /// Peers whose shared state was rejected, until their next call.
    rejected: BTreeMap<PeerId, RejectedState>,
    /// No peer can become silent before this time.
    silence_check_at: Time,
    /// Peers whose outbox is full.
    lagging: BTreeSet<PeerId>,
    /// Replicas whose first rank has joined, and when to warn if others have not.
    replica_waits: BTreeMap<ReplicaId, Time>,
    /// Whether new peers are refused.
    draining: bool,
    actions: VecDeque<MasterAction>,
}

impl Master {
    /// A master without peers.
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
            heirs: None,
            isolated: false,
            epoch_counter: 0,
            last_number: 0,
            round_trips: BTreeMap::new(),
            next_heartbeat: Time::ZERO,
            suspects: BTreeMap::new(),
            rejected: BTreeMap::new(),
            silence_check_at: Time(u64::MAX),
            lagging: BTreeSet::new(),
            replica_waits: BTreeMap::new(),
            draining: false,
            actions: VecDeque::new(),
        }
    }

    /// The incarnation of this master.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Handles an authenticated connection of a peer.
    pub fn handle_connected(&mut self, now: Time, conn: ConnId, peer: PeerId) {
        self.started.get_or_insert(now);
        self.roster.conns.insert(conn, peer);
    }

    /// Handles a message.
    pub fn handle_message(&mut self, now: Time, conn: ConnId, message: Numbered<ToMaster>) {
        self.started.get_or_insert(now);
        let Some(peer) = self.roster.peer_on(conn) else { return };
        let Numbered { number, acknowledged, message } = message;
        match message {
            ToMaster::Join(join) => self.handle_join(now, conn, peer, join, None, false),
            ToMaster::JoinRank { replica, join } => {
                self.handle_join(now, conn, peer, join, Some(replica), false);
            }
            ToMaster::Resume(resume) => self.handle_resume(now, conn, peer, *resume, None),
            ToMaster::ResumeRank { replica, resume } => {
                self.handle_resume(now, conn, peer, *resume, Some(replica));
            }
            message => {
                let Some(record) = self.roster.current_mut(conn, peer) else {
                    // The peer has a newer connection.
                    self.actions.push_back(MasterAction::Close { conn });
                    return;
                };
                record.heard_at = now;
                if self.isolated {
                    // The network of the master works again.
                    self.silence_check_at = now;
                }
                match record.session.receive(&Numbered { number, acknowledged, message: () }) {
                    Receipt::New if number > 0 && acknowledged < record.outdated_before => {}
                    Receipt::New => self.dispatch(now, peer, message),
                    Receipt::Duplicate => {}
                    Receipt::Invalid => {
                        self.remove(peer, Departure::Misbehaved(ProtocolViolation::Numbering));
                    }
                }
            }
        }
        self.advance(now);
    }

    /// Notes the round-trip time of a connection. The windows of epochs cover it.
    pub fn handle_round_trip(&mut self, conn: ConnId, round_trip: Duration) {
        if self.roster.peer_on(conn).is_some() {
            self.round_trips.insert(conn, round_trip);
        }
    }

    /// Handles the end of a connection. Its peer is a suspect until it resumes, or is found dead (P10).
    pub fn handle_lost(&mut self, now: Time, conn: ConnId) {
        self.started.get_or_insert(now);
        self.round_trips.remove(&conn);
        if let Some(peer) = self.roster.disconnect(conn) {
            self.suspect(now, peer);
        }
        self.advance(now);
    }

    /// Handles a connection that the driver closed because of its peer, which is evicted.
    pub fn handle_closed(&mut self, now: Time, conn: ConnId) {
        self.started.get_or_insert(now);
        self.round_trips.remove(&conn);
        if let Some(peer) = self.roster.disconnect(conn) {
            self.remove(peer, Departure::ConnectionLost);
        }
        self.advance(now);
    }

    /// Handles expired deadlines; call it at [`Master::poll_timeout`] or later.
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
        self.send_replica_warnings(now);
        self.fail_out_of_step(now);
        self.advance(now);
    }

    /// Evicts a peer.
    pub fn evict(&mut self, now: Time, peer: PeerId, reason: &str) {
        let reason = admission::truncate_text(reason, crate::limits::TEXT_BYTES_MAX / 2);
        self.remove(peer, Departure::Evicted(reason));
        self.advance(now);
    }

    /// The next action for the driver.
    pub fn poll_action(&mut self) -> Option<MasterAction> {
        self.actions.pop_front()
    }

    /// When to call [`Master::handle_timeout`] at the latest.
    pub fn poll_timeout(&self) -> Option<Time> {
        let voting = self.votes.values().filter_map(PhaseRound::check_at);
        let groups = self.groups.values().flat_map(Group::deadlines);
        let others = [
            self.liveness_timeout(),
            self.suspicion_timeout(),
            self.wait_warning_timeout(),
            self.replica_warning_timeout(),
            self.optimising.as_ref().and_then(Optimisation::deadline),
            self.restoration.as_ref().map(|r| r.deadline),
            self.rejected_timeout(),
        ];
        voting.chain(groups).chain(others.into_iter().flatten()).min()
    }

    /// The bytes that are kept for each peer: what it reported when it returned, what it offers in a sync, and what it has not
    /// acknowledged. Of a peer without a connection the id is returned.
    pub fn held_bytes(&self) -> impl Iterator<Item = (Result<ConnId, PeerId>, usize)> + '_ {
        let returned = self.restoration.as_ref().map(|restoration| &restoration.returned);
        let held = move |record: &PeerRecord| {
            let reported =
                returned.and_then(|returned| returned.get(&record.peer)).map_or(0, |r| r.held_bytes);
            let sync = self.groups.get(&record.join.group).and_then(|group| group.sync.as_ref());
            record.session.outbox_bytes + reported + sync.map_or(0, |sync| sync.offered_bytes(record.peer))
        };
        self.roster.iter().map(move |record| (record.conn.ok_or(record.peer), held(record)))
    }

    /// The accepted peers, oldest first.
    pub fn accepted(&self) -> Vec<PeerId> {
        self.roster.accepted().collect()
    }

    /// The peers that wait to be accepted.
    pub fn waiting(&self) -> Vec<PeerId> {
        self.roster.pending().collect()
    }

    fn dispatch(&mut self, now: Time, peer: PeerId, message: ToMaster) {
        match &message {
            ToMaster::Vote { request, .. } if request.phase().is_exclusive() => self.clear_rejected(peer),
            ToMaster::Vote { .. } | ToMaster::Started { .. } | ToMaster::OpVote { .. } => {
                self.note_call_of_rejected(now, peer);
            }
            _ => {}
        }
        match message {
            ToMaster::Join(_)
            | ToMaster::JoinRank { .. }
            | ToMaster::Resume(_)
            | ToMaster::ResumeRank { .. } => {}
            ToMaster::Vote { call, round, deadline_ms, request } => {
                self.handle_vote(now, peer, call, round, deadline_ms, request);
            }
            ToMaster::Started { op, descriptor } => {
                self.record_participant(now, peer, op, descriptor);
            }
            ToMaster::OpVote { op, descriptor, ballot } => {
                self.handle_op_vote(now, peer, op, descriptor, ballot)
            }
            ToMaster::Suspended { op, descriptor, held } => self.handle_suspended(peer, op, descriptor, held),
            ToMaster::EpochReady { epoch, unreachable } => self.handle_ready(peer, epoch, unreachable),
            ToMaster::LinkTrouble { epoch, peer: other, direction } => {
                self.handle_link_trouble(now, peer, epoch, other, direction);
            }
            ToMaster::Probed { probe, forward, backward } => {
                self.handle_probed(peer, probe, forward, backward)
            }
            ToMaster::Measured(measurement) => self.handle_measured(now, peer, measurement),
            ToMaster::SyncDone { round, complete } => self.handle_sync_done(peer, round, complete),
            ToMaster::Heartbeat { heard, ended } => self.handle_heartbeat(now, peer, heard, ended),
            ToMaster::Leave => self.remove(peer, Departure::Left),
            ToMaster::Fetching { done_bytes, all_bytes } => {
                if let Some(record) = self.roster.get_mut(peer) {
                    record.fetched = Some((done_bytes, all_bytes));
                }
            }
            // The coordinator handles the first, the driver the second.
            ToMaster::Voter { .. } | ToMaster::Examined { .. } => {}
        }
    }

    /// Advances every phase as far as possible. Handlers only record messages; decisions are made here, so that the order
    /// of messages does not matter.
    fn advance(&mut self, now: Time) {
        for _ in 0..crate::limits::ADVANCE_STEPS_MAX {
            let moved = self.evict_lagging()
                || self.advance_suspects(now)
                || self.advance_restoration(now)
                || self.advance_rejected()
                || self.advance_contradictions()
                || self.advance_ops()
                || self.advance_recovery(now)
                || self.advance_admission(now)
                || self.advance_establishing(now)
                || self.advance_pending()
                || self.advance_optimise(now)
                || self.advance_sync(now);
            if !moved {
                return;
            }
        }
        unreachable!("the phases do not come to rest");
    }

    fn send(&mut self, peer: PeerId, message: ToPeer) {
        let bytes = encoded_bytes(&message);
        self.send_sized(peer, message, bytes);
    }

    /// Sends the same message to several peers.
    fn send_all(&mut self, peers: impl IntoIterator<Item = PeerId>, message: &ToPeer) {
        let mut bytes = encoded_bytes(message);
        if let ToPeer::EpochProposed { description, .. } = message {
            // All outboxes share them.
            bytes -= encoded_bytes(&description.members);
        }
        for peer in peers {
            self.send_sized(peer, message.clone(), bytes);
        }
    }

    fn send_sized(&mut self, peer: PeerId, message: ToPeer, bytes: usize) {
        let Some(record) = self.roster.get_mut(peer) else { return };
        let numbered = record.session.enqueue_sized(message, bytes);
        if record.session.is_outbox_full() {
            self.lagging.insert(peer);
        }
        if let Some(conn) = record.conn {
            self.actions.push_back(MasterAction::Send { conn, message: Box::new(numbered) });
        }
    }

    /// Announces the members, except for those that depart.
    fn announce_members(&mut self, without: &[PeerId]) {
        let members = self.roster.accepted().filter(|peer| !without.contains(peer)).collect();
        self.actions.push_back(MasterAction::SetMembers(members));
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
        let worlds = self.roster.worlds();
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
