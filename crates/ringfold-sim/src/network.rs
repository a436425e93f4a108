//! Connections that deliver in order, late, or not at all.
//!
//! A connection behaves as TCP does: what is sent while the way is cut arrives when it heals, and a way
//! that stays cut for too long breaks the connection. Different connections overtake each other freely.

use crate::chance::Chance;
use crate::symbol::Symbol;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::link_message::LinkMessage;
use ringfold_proto::message::{Numbered, ToMaster, ToPeer};
use ringfold_proto::time::Time;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// One process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Node {
    /// The master, whichever life it is in.
    Master,
    /// A peer, by the order of its start.
    Peer(usize),
}

/// A connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Wire(pub u64);

/// What travels.
#[derive(Clone, Debug)]
pub enum Packet {
    /// Control, towards the master.
    ToMaster(Box<Numbered<ToMaster>>),
    /// Control, towards a peer.
    ToPeer(Box<Numbered<ToPeer>>),
    /// Data on a link.
    Data(Box<DataHeader>, Vec<Symbol>),
    /// A message on a link.
    Link(LinkMessage),
    /// The other end is gone.
    End,
}

/// What the network asks the world to do at a later time.
#[derive(Clone, Debug)]
pub enum Transit {
    /// Hand the packet over.
    Deliver {
        /// On this connection.
        wire: Wire,
        /// To this end.
        to: Node,
        /// The packet.
        packet: Packet,
    },
    /// Look whether the way is still cut.
    Timeout {
        /// On this connection.
        wire: Wire,
        /// Away from this end.
        from: Node,
    },
}

#[derive(Debug)]
struct Direction {
    /// The sender has not closed or broken its end.
    sending: bool,
    /// The receiver still listens.
    listening: bool,
    last_delivery: Time,
    held: VecDeque<Packet>,
    held_since: Option<Time>,
}

#[derive(Debug)]
struct Connection {
    ends: [Node; 2],
    ways: [Direction; 2],
}

/// All connections, and which ways are cut.
#[derive(Debug)]
pub struct Network {
    chance: Chance,
    connections: BTreeMap<Wire, Connection>,
    next_wire: u64,
    cut: BTreeMap<(Node, Node), Time>,
    latency_max: Duration,
    /// How long a way may be cut before its connections break.
    pub patience: Duration,
    out: Vec<(Time, Transit)>,
}

impl Network {
    /// No connections, nothing cut.
    pub fn new(seed: u64, latency_max: Duration, patience: Duration) -> Self {
        Self {
            chance: Chance::new(seed, "network"),
            connections: BTreeMap::new(),
            next_wire: 0,
            cut: BTreeMap::new(),
            latency_max,
            patience,
            out: Vec::new(),
        }
    }

    /// A new connection; the caller knows that both ends want it.
    pub fn connect(&mut self, a: Node, b: Node) -> Wire {
        let way = || Direction {
            sending: true,
            listening: true,
            last_delivery: Time::ZERO,
            held: VecDeque::new(),
            held_since: None,
        };
        self.next_wire += 1;
        self.connections.insert(Wire(self.next_wire), Connection { ends: [a, b], ways: [way(), way()] });
        Wire(self.next_wire)
    }

    /// How long a packet is on its way.
    pub fn latency(&mut self) -> Duration {
        let max = self.latency_max.as_nanos() as u64;
        // Mostly quick, now and then a straggler.
        let share = if self.chance.per_mille(30) { max * 8 } else { max };
        Duration::from_nanos(self.chance.between(1_000, share.max(2_000)))
    }

    /// Whether nothing passes from one to the other now.
    pub fn is_cut(&self, from: Node, to: Node, now: Time) -> bool {
        self.cut.get(&(from, to)).is_some_and(|until| *until > now)
    }

    /// Cuts a way until a time.
    pub fn cut(&mut self, from: Node, to: Node, until: Time) {
        let end = self.cut.entry((from, to)).or_insert(until);
        *end = (*end).max(until);
    }

    /// Everything passes again.
    pub fn heal_all(&mut self) {
        self.cut.clear();
    }

    /// Sends what was held on ways that are no longer cut.
    pub fn release(&mut self, now: Time) {
        for wire in self.connections.keys().copied().collect::<Vec<_>>() {
            for side in 0..2 {
                let Some((from, to)) = self.ends(wire, side) else { continue };
                let held = self.connections.get(&wire).is_some_and(|c| !c.ways[side].held.is_empty());
                if held && !self.is_cut(from, to, now) {
                    let Some(connection) = self.connections.get_mut(&wire) else { continue };
                    let packets = std::mem::take(&mut connection.ways[side].held);
                    connection.ways[side].held_since = None;
                    packets.into_iter().for_each(|p| self.transmit(now, wire, side, p));
                }
            }
        }
    }

    /// When the next cut way heals.
    pub fn next_healing(&self, now: Time) -> Option<Time> {
        self.cut.values().copied().filter(|until| *until > now).min()
    }

    /// Sends a packet from one end.
    pub fn send(&mut self, now: Time, wire: Wire, from: Node, packet: Packet) {
        let Some(side) = self.side(wire, from) else { return };
        let Some((_, to)) = self.ends(wire, side) else { return };
        let cut = self.is_cut(from, to, now);
        let Some(connection) = self.connections.get_mut(&wire) else { return };
        let way = &mut connection.ways[side];
        if !way.sending {
            return;
        }
        if matches!(packet, Packet::End) {
            way.sending = false;
        }
        if cut || !way.held.is_empty() {
            if way.held_since.is_none() {
                way.held_since = Some(now);
                self.out.push((now + self.patience, Transit::Timeout { wire, from }));
            }
            way.held.push_back(packet);
        } else {
            self.transmit(now, wire, side, packet);
        }
    }

    /// One end closes, breaks or dies: it hears nothing more, and the other end will hear of it.
    pub fn close(&mut self, now: Time, wire: Wire, end: Node) {
        self.send(now, wire, end, Packet::End);
        if let (Some(side), Some(connection)) = (self.side(wire, end), self.connections.get_mut(&wire)) {
            connection.ways[1 - side].listening = false;
        }
    }

    /// Whether a packet that arrives is still wanted.
    pub fn listens(&self, wire: Wire, to: Node) -> bool {
        let Some(side) = self.side(wire, to) else { return false };
        self.connections.get(&wire).is_some_and(|c| c.ways[1 - side].listening)
    }

    /// Whether the way has been cut for so long that the connection breaks at this end.
    pub fn breaks(&self, now: Time, wire: Wire, from: Node) -> bool {
        let Some(side) = self.side(wire, from) else { return false };
        let since = self.connections.get(&wire).and_then(|c| c.ways[side].held_since);
        since.is_some_and(|since| since + self.patience <= now)
    }

    /// The end at the other side.
    pub fn other_end(&self, wire: Wire, end: Node) -> Option<Node> {
        let side = self.side(wire, end)?;
        self.ends(wire, side).map(|(_, to)| to)
    }

    /// The connections of a node.
    pub fn wires_of(&self, node: Node) -> Vec<Wire> {
        self.connections.iter().filter(|(_, c)| c.ends.contains(&node)).map(|(w, _)| *w).collect()
    }

    /// What is to happen later.
    pub fn drain(&mut self) -> Vec<(Time, Transit)> {
        std::mem::take(&mut self.out)
    }

    /// Forgets connections that both ends have closed and emptied.
    pub fn sweep(&mut self) {
        self.connections.retain(|_, c| c.ways.iter().any(|w| w.sending || w.listening));
    }

    fn transmit(&mut self, now: Time, wire: Wire, side: usize, packet: Packet) {
        let at = now + self.latency();
        let Some(connection) = self.connections.get_mut(&wire) else { return };
        let way = &mut connection.ways[side];
        way.last_delivery = at.max(Time(way.last_delivery.0 + 1));
        let to = connection.ends[1 - side];
        self.out.push((way.last_delivery, Transit::Deliver { wire, to, packet }));
    }

    fn side(&self, wire: Wire, end: Node) -> Option<usize> {
        self.connections.get(&wire)?.ends.iter().position(|n| *n == end)
    }

    fn ends(&self, wire: Wire, side: usize) -> Option<(Node, Node)> {
        let ends = self.connections.get(&wire)?.ends;
        Some((ends[side], ends[1 - side]))
    }
}
