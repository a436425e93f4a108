//! Simulated connections. They behave like TCP: packets arrive in order; those sent during a cut arrive after it, and a
//! long cut breaks the connection. Packets of different connections may overtake each other.

use crate::random_stream::RandomStream;
use crate::symbol::Symbol;
use ringfold_proto::coordinator::MasterMessage;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::id::ConnId;
use ringfold_proto::link_message::LinkMessage;
use ringfold_proto::message::{Numbered, ToMaster, ToPeer};
use ringfold_proto::time::Time;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Node {
    /// A master, by its position in the list, in any incarnation.
    Master(usize),
    /// A peer, by its index in order of start.
    Peer(usize),
}

/// What a connection carries.
#[derive(Clone, Debug)]
pub enum Packet {
    ToMaster(Box<Numbered<ToMaster>>),
    ToPeer(Box<Numbered<ToPeer>>),
    /// From a master to another one.
    Masters(Box<MasterMessage>),
    Data(Box<DataHeader>, Vec<Symbol>),
    Link(LinkMessage),
    /// The other end has closed the connection.
    End,
}

/// A future event of the network.
#[derive(Clone, Debug)]
pub enum NetworkEvent {
    Deliver {
        conn: ConnId,
        to: Node,
        packet: Packet,
    },
    /// Break the connection if the direction away from this end is still cut.
    Timeout {
        conn: ConnId,
        from: Node,
    },
}

/// One direction of a connection.
#[derive(Debug)]
struct HalfConnection {
    /// The sender has not closed its end.
    sending: bool,
    /// The receiver has not closed its end.
    listening: bool,
    last_delivery: Time,
    /// Packets that wait for the end of a cut.
    held: VecDeque<Packet>,
    held_since: Option<Time>,
}

#[derive(Debug)]
struct SimConnection {
    ends: [Node; 2],
    halves: [HalfConnection; 2],
}

/// All connections, and the cuts between nodes.
#[derive(Debug)]
pub struct Network {
    random: RandomStream,
    connections: BTreeMap<ConnId, SimConnection>,
    last_conn: u64,
    cut: BTreeMap<(Node, Node), Time>,
    latency_max: Duration,
    /// How long a cut lasts before it breaks connections.
    break_after: Duration,
    out: Vec<(Time, NetworkEvent)>,
}

impl Network {
    pub fn new(seed: u64, latency_max: Duration, break_after: Duration) -> Self {
        Self {
            random: RandomStream::new(seed, "network"),
            connections: BTreeMap::new(),
            last_conn: 0,
            cut: BTreeMap::new(),
            latency_max,
            break_after,
            out: Vec::new(),
        }
    }

    pub fn connect(&mut self, a: Node, b: Node) -> ConnId {
        let half = || HalfConnection {
            sending: true,
            listening: true,
            last_delivery: Time::ZERO,
            held: VecDeque::new(),
            held_since: None,
        };
        self.last_conn += 1;
        let conn = ConnId(self.last_conn);
        self.connections.insert(conn, SimConnection { ends: [a, b], halves: [half(), half()] });
        conn
    }

    pub fn latency(&mut self) -> Duration {
        let max = self.latency_max.as_nanos() as u64;
        // A few packets are much slower.
        let max = if self.random.with_probability(30) { max * 8 } else { max };
        Duration::from_nanos(self.random.between(1_000, max.max(2_000)))
    }

    fn is_cut(&self, from: Node, to: Node, now: Time) -> bool {
        self.cut.get(&(from, to)).is_some_and(|until| *until > now)
    }

    /// Whether both directions between two nodes are open now.
    pub fn is_open(&self, a: Node, b: Node, now: Time) -> bool {
        !self.is_cut(a, b, now) && !self.is_cut(b, a, now)
    }

    /// Cuts a direction until a time.
    pub fn add_cut(&mut self, from: Node, to: Node, until: Time) {
        let end = self.cut.entry((from, to)).or_insert(until);
        *end = (*end).max(until);
    }

    pub fn heal_all(&mut self) {
        self.cut.clear();
    }

    /// Sends the packets that waited for cuts that are over.
    pub fn release(&mut self, now: Time) {
        for conn in self.connections.keys().copied().collect::<Vec<_>>() {
            for side in 0..2 {
                let Some((from, to)) = self.ends(conn, side) else { continue };
                let held = self.connections.get(&conn).is_some_and(|c| !c.halves[side].held.is_empty());
                if held && !self.is_cut(from, to, now) {
                    let Some(connection) = self.connections.get_mut(&conn) else { continue };
                    let packets = std::mem::take(&mut connection.halves[side].held);
                    connection.halves[side].held_since = None;
                    packets.into_iter().for_each(|p| self.transmit(now, conn, side, p));
                }
            }
        }
    }

    pub fn send(&mut self, now: Time, conn: ConnId, from: Node, packet: Packet) {
        let Some(side) = self.side(conn, from) else { return };
        let Some((_, to)) = self.ends(conn, side) else { return };
        let cut = self.is_cut(from, to, now);
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        let half = &mut connection.halves[side];
        if !half.sending {
            return;
        }
        if matches!(packet, Packet::End) {
            half.sending = false;
        }
        if cut || !half.held.is_empty() {
            if half.held_since.is_none() {
                half.held_since = Some(now);
                self.out.push((now + self.break_after, NetworkEvent::Timeout { conn, from }));
            }
            half.held.push_back(packet);
        } else {
            self.transmit(now, conn, side, packet);
        }
    }

    /// Closes one end: it receives nothing more, and the other end receives [`Packet::End`].
    pub fn close(&mut self, now: Time, conn: ConnId, end: Node) {
        self.send(now, conn, end, Packet::End);
        if let (Some(side), Some(connection)) = (self.side(conn, end), self.connections.get_mut(&conn)) {
            connection.halves[1 - side].listening = false;
        }
    }

    /// Whether this end still receives packets.
    pub fn listens(&self, conn: ConnId, to: Node) -> bool {
        let Some(side) = self.side(conn, to) else { return false };
        self.connections.get(&conn).is_some_and(|c| c.halves[1 - side].listening)
    }

    /// Whether the connection breaks at this end because of a long cut.
    pub fn breaks(&self, now: Time, conn: ConnId, from: Node) -> bool {
        let Some(side) = self.side(conn, from) else { return false };
        let since = self.connections.get(&conn).and_then(|c| c.halves[side].held_since);
        since.is_some_and(|since| since + self.break_after <= now)
    }

    pub fn other_end(&self, conn: ConnId, end: Node) -> Option<Node> {
        let side = self.side(conn, end)?;
        self.ends(conn, side).map(|(_, to)| to)
    }

    pub fn connections_of(&self, node: Node) -> Vec<ConnId> {
        self.connections.iter().filter(|(_, c)| c.ends.contains(&node)).map(|(w, _)| *w).collect()
    }

    pub fn take_events(&mut self) -> Vec<(Time, NetworkEvent)> {
        std::mem::take(&mut self.out)
    }

    /// Drops connections that both ends have closed.
    pub fn sweep(&mut self) {
        self.connections.retain(|_, c| c.halves.iter().any(|w| w.sending || w.listening));
    }

    fn transmit(&mut self, now: Time, conn: ConnId, side: usize, packet: Packet) {
        let at = now + self.latency();
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        let half = &mut connection.halves[side];
        half.last_delivery = at.max(Time(half.last_delivery.0 + 1));
        let to = connection.ends[1 - side];
        self.out.push((half.last_delivery, NetworkEvent::Deliver { conn, to, packet }));
    }

    fn side(&self, conn: ConnId, end: Node) -> Option<usize> {
        self.connections.get(&conn)?.ends.iter().position(|n| *n == end)
    }

    fn ends(&self, conn: ConnId, side: usize) -> Option<(Node, Node)> {
        let ends = self.connections.get(&conn)?.ends;
        Some((ends[side], ends[1 - side]))
    }
}
