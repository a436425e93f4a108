//! Connections of a peer: to the master, and to other peers.

use super::{Happening, Purpose, World};
use crate::medium::Outgoing;
use crate::network::{Node, Wire};
use ringfold_proto::id::{ConnId, EpochId, PeerId};
use ringfold_proto::time::Time;
use std::time::Duration;

const KNOCK_AGAIN: Duration = Duration::from_millis(25);
const KNOCK_MAX: Duration = Duration::from_millis(700);

impl World {
    pub(super) fn dial_master(&mut self, peer: usize) {
        let (a, b) = (Node::Peer(peer), Node::Master);
        let cut = self.network.is_cut(a, b, self.now) || self.network.is_cut(b, a, self.now);
        if cut || !self.server.is_up() {
            return self.peers[peer].machine.handle_dial_failed(self.now, "nobody answers", true);
        }
        let wire = self.master_accepts(peer);
        self.peers[peer].control = Some(wire);
        self.peers[peer].machine.handle_connected(self.now, ConnId(wire.0));
    }

    /// A peer's machine wants a link. The lower id knocks, so that two who want each other do not make two.
    pub(super) fn wish(&mut self, peer: usize, other: PeerId, epoch: EpochId) {
        self.peers[peer].wishes.insert(other, epoch);
        if self.peers[peer].links.contains_key(&other) {
            self.peers[peer].machine.handle_link_up(other);
        } else if self.peers[peer].id < other {
            let give_up = self.now + KNOCK_MAX;
            let delay = self.network.latency();
            self.after(delay, Happening::Knock { from: peer, to: other, epoch, give_up });
        }
    }

    /// One end knocks; the other lets it in if it wants the link too.
    pub(super) fn knock(&mut self, peer: usize, to: PeerId, epoch: EpochId, give_up: Time) {
        let Some(other) = self.by_id.get(&to).copied() else { return };
        if self.peers[peer].wishes.get(&to) != Some(&epoch) || self.peers[peer].links.contains_key(&to) {
            return;
        }
        let (a, b) = (Node::Peer(peer), Node::Peer(other));
        let cut = self.network.is_cut(a, b, self.now) || self.network.is_cut(b, a, self.now);
        let me = self.peers[peer].id;
        let target = &self.peers[other];
        let awake = target.alive && target.busy_until <= self.now;
        if !cut && awake && target.wishes.contains_key(&me) && !target.links.contains_key(&me) {
            return self.link(peer, other);
        }
        if self.now >= give_up {
            self.peers[peer].wishes.remove(&to);
            self.peers[peer].machine.handle_link_failed(to);
        } else {
            self.after(KNOCK_AGAIN, Happening::Knock { from: peer, to, epoch, give_up });
        }
    }

    fn link(&mut self, one: usize, other: usize) {
        let wire = self.network.connect(Node::Peer(one), Node::Peer(other));
        self.wires.insert(wire, Purpose::Link);
        self.note(|| format!("p{one}: is linked with p{other}"));
        for (end, far) in [(one, other), (other, one)] {
            let far = self.peers[far].id;
            let state = &mut self.peers[end];
            state.links.insert(far, wire);
            state.executor.handle_link_up(self.now, far);
            state.machine.handle_link_up(far);
        }
        self.pump(other);
    }

    pub(super) fn unlink(&mut self, peer: usize, other: PeerId) {
        self.peers[peer].wishes.remove(&other);
        if let Some(wire) = self.peers[peer].links.remove(&other) {
            self.network.close(self.now, wire, Node::Peer(peer));
            self.forget_link(peer, other);
        }
    }

    /// A connection of a peer is gone.
    pub(super) fn peer_lost(&mut self, peer: usize, wire: Wire) {
        if self.peers[peer].control == Some(wire) {
            self.peers[peer].control = None;
            self.peers[peer].machine.handle_lost(self.now, ConnId(wire.0));
        } else if let Some(other) = self.peers[peer].links.iter().find(|(_, w)| **w == wire).map(|(p, _)| *p)
        {
            self.note(|| format!("p{peer}: lost its link with {}", other.short()));
            self.peers[peer].links.remove(&other);
            self.forget_link(peer, other);
            self.peers[peer].machine.handle_link_lost(self.now, other);
        }
        self.pump(peer);
    }

    fn forget_link(&mut self, peer: usize, other: PeerId) {
        let state = &mut self.peers[peer];
        state.medium.retire(other);
        state.executor.handle_link_lost(other);
        // What was not transmitted on the old link must not appear on a new one.
        for outgoing in state.lines.remove(&other).unwrap_or_default() {
            if let Outgoing::Frame(_, _, ticket) = outgoing
                && state.medium.unflushed.remove(&ticket).is_some()
            {
                state.executor.handle_flushed(self.now, ticket);
            }
        }
    }

    pub(super) fn probe(&mut self, peer: usize, probe: u64, other: PeerId) {
        let Some(target) = self.by_id.get(&other).copied() else { return };
        let (a, b) = (Node::Peer(peer), Node::Peer(target));
        let cut = self.network.is_cut(a, b, self.now) || self.network.is_cut(b, a, self.now);
        let works = !cut && self.peers[target].alive && self.peers[target].busy_until <= self.now;
        let mut speed = || works.then(|| self.chance.between(1, 1_000_000_000));
        let (forward, backward) = (speed(), speed());
        let delay = Duration::from_millis(self.chance.between(1, 200));
        self.after(delay, Happening::Probed { peer, probe, forward, backward });
    }
}
