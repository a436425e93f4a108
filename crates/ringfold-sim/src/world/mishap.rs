//! What goes wrong, and to whom.

use super::{Happening, Purpose, World};
use crate::network::Node;
use crate::scenario::{Fault, PEERS_MAX};
use std::time::Duration;

impl World {
    pub(super) fn mishap(&mut self, fault: Fault) {
        let living: Vec<_> = self.living().collect();
        let victim = self.chance.pick(&living).copied();
        match (fault, victim) {
            (Fault::Join(group), _) => {
                if living.len() < PEERS_MAX {
                    self.spawn(group);
                }
            }
            (Fault::KillMaster(back_after), _) => self.kill_master(back_after),
            (_, None) => {}
            (Fault::Leave, Some(peer)) => {
                self.note(|| format!("p{peer}: leaves"));
                self.peers[peer].machine.leave();
                self.pump(peer);
                self.die(peer, "has left");
            }
            (Fault::Kill, Some(peer)) => self.die(peer, "is killed"),
            (Fault::Kick, Some(peer)) => self.evict(self.peers[peer].id),
            (Fault::Freeze(pause), Some(peer)) => self.delay(peer, pause, Duration::ZERO),
            (Fault::Slow(each, pause), Some(peer)) => self.delay(peer, pause, each),
            (Fault::Cut(pause, both), Some(peer)) => {
                if let Some(other) = self.chance.pick(&living).copied().filter(|o| *o != peer) {
                    self.cut(Node::Peer(peer), Node::Peer(other), pause, both);
                }
            }
            (Fault::Isolate(pause, both), Some(peer)) => {
                // Half of the time it hits a newcomer, that has yet to reach anyone.
                let mut peer = peer;
                if self.chance.per_mille(500) && living.len() < PEERS_MAX {
                    self.spawn(self.peers[peer].group);
                    peer = self.peers.len() - 1;
                }
                let share = self.chance.between(100, 1_000);
                for other in living.into_iter().filter(|o| *o != peer) {
                    if self.chance.per_mille(share) {
                        self.cut(Node::Peer(peer), Node::Peer(other), pause, both);
                    }
                }
            }
            (Fault::CutMaster(pause, both), Some(peer)) => {
                let (a, b) = (Node::Peer(peer), Node::Master);
                let (a, b) = if self.chance.per_mille(500) { (a, b) } else { (b, a) };
                self.cut(a, b, pause, both);
            }
            (Fault::ResetLink, Some(peer)) => self.reset(peer, Purpose::Link),
            (Fault::ResetControl, Some(peer)) => self.reset(peer, Purpose::Control),
        }
    }

    /// A process is no more. Its kernel closes its connections.
    pub(super) fn die(&mut self, peer: usize, how: &str) {
        if !self.peers[peer].alive {
            return;
        }
        self.note(|| format!("p{peer}: {how}"));
        self.peers[peer].alive = false;
        self.oracle.gone(self.now, peer);
        for wire in self.network.wires_of(Node::Peer(peer)) {
            self.network.close(self.now, wire, Node::Peer(peer));
        }
        self.ship();
        self.network.sweep();
    }

    /// Stops a peer for a while, or makes it take long for everything.
    fn delay(&mut self, peer: usize, pause: Duration, each: Duration) {
        self.note(|| format!("p{peer}: is slow ({each:?} each, or stopped if 0) for {pause:?}"));
        self.oracle.delayed(peer, pause * 4);
        if each > Duration::ZERO {
            self.peers[peer].slowness = each;
            self.after(pause, Happening::Recover(peer));
        } else {
            self.peers[peer].busy_until = self.peers[peer].busy_until.max(self.now + pause);
            self.after(pause, Happening::Wake(peer));
        }
    }

    fn cut(&mut self, a: Node, b: Node, pause: Duration, both: bool) {
        self.note(|| format!("nothing passes from {a:?} to {b:?} for {pause:?} (both ways: {both})"));
        let until = self.now + pause;
        self.network.cut(a, b, until);
        if both {
            self.network.cut(b, a, until);
        }
        self.at(until, Happening::Heal);
    }

    fn reset(&mut self, peer: usize, purpose: Purpose) {
        let node = Node::Peer(peer);
        let wires: Vec<_> =
            self.network.wires_of(node).into_iter().filter(|w| self.wires.get(w) == Some(&purpose)).collect();
        let Some(wire) = self.chance.pick(&wires).copied() else { return };
        if !self.network.listens(wire, node) {
            return;
        }
        self.note(|| format!("p{peer}: a connection ({purpose:?}) is reset"));
        // One end notices first; the other hears of it in its own time.
        let first = match self.network.other_end(wire, node) {
            Some(other) if self.chance.per_mille(500) => other,
            _ => node,
        };
        self.break_wire(wire, first);
    }
}
