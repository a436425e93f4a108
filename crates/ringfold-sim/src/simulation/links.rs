//! Connections of a peer to a master and to other peers.

use super::{ConnKind, SimEvent, Simulation};
use crate::medium::Outgoing;
use crate::network::Node;
use ringfold_proto::descriptor::mix;
use ringfold_proto::id::{ConnId, EpochId, PeerId};
use ringfold_proto::network::{MeasuredLink, Measurement, Path, Throughput};
use ringfold_proto::time::Time;
use std::time::Duration;

/// The pause between two attempts to dial a peer.
const REDIAL: Duration = Duration::from_millis(25);
/// How long a master is dialled that does not answer, if there are others.
const NO_ANSWER: Duration = Duration::from_millis(300);
/// How long a peer is dialled.
const DIAL_MAX: Duration = Duration::from_millis(700);

impl Simulation {
    pub(super) fn dial_master(&mut self, peer: usize) {
        let now = self.reading(peer);
        let master = self.peers[peer].next_master;
        if !self.accepts(Node::Peer(peer), master) {
            self.turn_to_next_master(peer);
            let state = &mut self.peers[peer];
            state.failed_dials += 1;
            if state.failed_dials < self.masters.len() {
                // A dead process is refused at once.
                let pause = if self.masters[master].is_up() { NO_ANSWER } else { Duration::ZERO };
                return self.after(pause, SimEvent::DialMaster(peer));
            }
            state.failed_dials = 0;
            return state.machine.handle_dial_failed(now, "no answer", true);
        }
        self.peers[peer].failed_dials = 0;
        let conn = self.accept_peer(master, peer);
        self.peers[peer].control = Some(conn);
        self.peers[peer].machine.handle_connected(now, conn);
    }

    /// The next dial of a peer is for the next master of the list.
    pub(super) fn turn_to_next_master(&mut self, peer: usize) {
        let state = &mut self.peers[peer];
        state.next_master = (state.next_master + 1) % self.masters.len();
    }

    /// What the clock of a peer shows.
    pub(super) fn reading(&self, peer: usize) -> Time {
        self.peers[peer].clock.reading(self.now)
    }

    /// A peer's machine wants a link. Only the lower id dials, so that there are not two links.
    pub(super) fn want_link(&mut self, peer: usize, other: PeerId, epoch: EpochId) {
        self.peers[peer].wanted_links.insert(other, epoch);
        if self.peers[peer].links.contains_key(&other) {
            self.peers[peer].machine.handle_link_up(other);
        } else if self.peers[peer].id < other {
            let give_up = self.now + DIAL_MAX;
            let delay = self.network.latency();
            self.after(delay, SimEvent::DialPeer { from: peer, to: other, epoch, give_up });
        }
    }

    /// Dials another peer, which accepts if it wants the link too.
    pub(super) fn dial_peer(&mut self, peer: usize, to: PeerId, epoch: EpochId, give_up: Time) {
        let Some(other) = self.by_id.get(&to).copied() else { return };
        if self.peers[peer].wanted_links.get(&to) != Some(&epoch) || self.peers[peer].links.contains_key(&to)
        {
            return;
        }
        let me = self.peers[peer].id;
        let target = &self.peers[other];
        if self.answers(peer, other)
            && target.wanted_links.contains_key(&me)
            && !target.links.contains_key(&me)
        {
            return self.link(peer, other);
        }
        if self.now >= give_up {
            self.peers[peer].wanted_links.remove(&to);
            self.peers[peer].machine.handle_link_failed(to);
        } else {
            self.after(REDIAL, SimEvent::DialPeer { from: peer, to, epoch, give_up });
        }
    }

    fn link(&mut self, one: usize, other: usize) {
        let conn = self.network.connect(Node::Peer(one), Node::Peer(other));
        self.conn_kinds.insert(conn, ConnKind::Link);
        self.log(|| format!("p{one}: link with p{other} is up"));
        for (end, far) in [(one, other), (other, one)] {
            let far = self.peers[far].id;
            let state = &mut self.peers[end];
            state.links.insert(far, conn);
            state.executor.handle_link_up(state.clock.reading(self.now), far);
            self.report_links(end);
            self.peers[end].machine.handle_link_up(far);
        }
        self.pump(other);
    }

    /// A peer reports its links, each time with other numbers.
    pub(super) fn report_links(&mut self, peer: usize) {
        if !self.scenario.measures {
            return;
        }
        let state = &mut self.peers[peer];
        state.reports += 1;
        let seed = mix(mix(self.scenario.seed, peer as u64), state.reports);
        let path = |other: &PeerId| {
            let random = mix(seed, other.0 as u64);
            Path { round_trip_us: 100 << (random % 11), kib_per_s: 1000 << (random >> 8 & 7) }
        };
        let links =
            state.links.keys().map(|other| MeasuredLink { peer: *other, path: path(other) }).collect();
        state.machine.handle_measured(Measurement { links, throughput: Throughput::default() });
    }

    pub(super) fn unlink(&mut self, peer: usize, other: PeerId) {
        self.peers[peer].wanted_links.remove(&other);
        if let Some(conn) = self.peers[peer].links.remove(&other) {
            self.network.close(self.now, conn, Node::Peer(peer));
            self.forget_link(peer, other);
        }
    }

    /// A peer lost a connection.
    pub(super) fn peer_lost(&mut self, peer: usize, conn: ConnId) {
        if self.peers[peer].control == Some(conn) {
            self.peers[peer].control = None;
            self.turn_to_next_master(peer);
            let now = self.reading(peer);
            self.peers[peer].machine.handle_lost(now, conn);
        } else if let Some(other) = self.peers[peer].links.iter().find(|(_, w)| **w == conn).map(|(p, _)| *p)
        {
            self.log(|| format!("p{peer}: lost its link with {}", other.short()));
            self.peers[peer].links.remove(&other);
            self.forget_link(peer, other);
            let now = self.reading(peer);
            self.peers[peer].machine.handle_link_lost(now, other);
        }
        self.pump(peer);
    }

    /// Whether a peer can be reached by another, and runs.
    pub(super) fn answers(&self, from: usize, peer: usize) -> bool {
        let state = &self.peers[peer];
        self.network.is_open(Node::Peer(from), Node::Peer(peer), self.now)
            && state.alive
            && state.busy_until <= self.now
    }

    fn forget_link(&mut self, peer: usize, other: PeerId) {
        let state = &mut self.peers[peer];
        state.medium.drop_slots(other);
        state.executor.handle_link_lost(other);
        // What was queued on the old link must not appear on a new one.
        for outgoing in state.send_queues.remove(&other).unwrap_or_default() {
            if let Outgoing::Frame(_, _, ticket) = outgoing
                && state.medium.unflushed.remove(&ticket).is_some()
            {
                state.executor.handle_flushed(state.clock.reading(self.now), ticket);
            }
        }
    }

    pub(super) fn probe(&mut self, peer: usize, probe: u64, other: PeerId) {
        let Some(target) = self.by_id.get(&other).copied() else { return };
        let works = self.answers(peer, target);
        let mut speed = || works.then(|| self.random.between(1, 1_000_000_000));
        let (forward, backward) = (speed(), speed());
        let delay = Duration::from_millis(self.random.between(1, 200));
        self.after(delay, SimEvent::Probed { peer, probe, forward, backward });
    }
}
