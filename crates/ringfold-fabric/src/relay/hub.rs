//! The connections of a relay: those that wait, and those that are joined.

use super::pair::{JoinedPair, Turn};
use super::pairing::{Half, Pairing, Placed};
use super::{RelayAnswer, RelayRequest};
use crate::closing::ClosingConnections;
use crate::connection::{Connection, Intake};
use crate::connection_limits::ConnectionLimits;
use crate::poller::{Poller, Token};
use core::sync::atomic::{AtomicU64, Ordering};
use ringfold_proto::hello::Purpose;
use ringfold_proto::id::PeerId;
use ringfold_proto::time::Time;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// Joins the authenticated connections of members that name each other, and copies between them.
#[derive(Debug)]
pub struct RelayHub {
    poller: Arc<Poller>,
    /// Connections whose request has not arrived, with deadlines.
    unasked: HashMap<Token, (Leg, Time)>,
    /// Connections that wait for the other member.
    waiting: HashMap<Token, Leg>,
    pairing: Pairing<Token>,
    pairs: HashMap<u64, Joined>,
    by_token: HashMap<Token, u64>,
    pairs_ever: u64,
    closing: ClosingConnections,
    counters: Arc<RelayCounters>,
    limits: ConnectionLimits,
}

/// A connection of a member.
#[derive(Debug)]
struct Leg {
    peer: PeerId,
    from: SocketAddr,
    connection: Connection,
}

impl Leg {
    fn name(&self) -> String {
        format!("{} ({})", self.peer.short(), self.from)
    }

    /// Tells the member that it is joined. The session with the relay ends: the two members encrypt what follows.
    fn into_joined(mut self, poller: &Arc<Poller>) -> io::Result<Connection> {
        self.connection.send(&RelayAnswer::Joined.encode());
        self.connection.flush(&mut Vec::new())?;
        let transport = self.connection.into_blocking()?.into_transport().without_session()?;
        let joined = Connection::over(transport, poller, Intake::Messages)?;
        joined.identify(self.peer, Purpose::Relay);
        Ok(joined)
    }
}

#[derive(Debug)]
struct Joined {
    pair: JoinedPair,
    /// Both members, for the log.
    names: [String; 2],
    /// Bytes that are counted.
    counted: u64,
}

/// What a relay has done so far.
#[derive(Debug, Default)]
pub struct RelayCounters {
    /// Pairs that were joined.
    pub pairs: AtomicU64,
    /// Pairs that are joined now.
    pub open_pairs: AtomicU64,
    /// Bytes that were copied, in both directions.
    pub bytes: AtomicU64,
    /// Connections that were rejected or ended without the other member.
    pub unmatched: AtomicU64,
}

impl RelayHub {
    /// A relay without connections.
    pub fn new(poller: &Arc<Poller>) -> Self {
        let limits = poller.limits();
        Self {
            poller: poller.clone(),
            unasked: HashMap::new(),
            waiting: HashMap::new(),
            pairing: Pairing::new(limits.relay_waiting_max),
            pairs: HashMap::new(),
            by_token: HashMap::new(),
            pairs_ever: 0,
            closing: ClosingConnections::default(),
            counters: Arc::default(),
            limits,
        }
    }

    /// What it has done so far.
    pub fn counters(&self) -> Arc<RelayCounters> {
        self.counters.clone()
    }

    /// Whether it takes no more connections.
    pub fn is_full(&self) -> bool {
        self.unasked.len() >= self.limits.handshakes_max || self.pairs.len() >= self.limits.relay_pairs_max
    }

    /// Adds the connection of a member that has authenticated.
    pub fn add(&mut self, now: Time, peer: PeerId, connection: Connection, from: SocketAddr) {
        if self.is_full() {
            return self.reject(now, Leg { peer, from, connection }, RelayAnswer::Full);
        }
        let token = connection.token();
        let leg = Leg { peer, from, connection };
        self.unasked.insert(token, (leg, now + self.limits.handshake_max));
        self.read_request(now, token);
    }

    /// When to call [`RelayHub::handle_timeout`] at the latest.
    pub fn poll_timeout(&self) -> Option<Time> {
        let unasked = self.unasked.values().map(|(_, deadline)| *deadline);
        let pairs = self.pairs.values().filter_map(|joined| joined.pair.poll_timeout());
        unasked.chain(pairs).chain(self.pairing.poll_timeout()).chain(self.closing.poll_timeout()).min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Time) {
        self.unasked.retain(|_, (_, deadline)| *deadline > now);
        for token in self.pairing.expire(now) {
            if let Some(leg) = self.waiting.remove(&token) {
                self.reject(now, leg, RelayAnswer::Absent);
            }
        }
        let is_late = |joined: &Joined| joined.pair.poll_timeout().is_some_and(|at| at <= now);
        let late: Vec<_> =
            self.pairs.iter().filter(|(_, joined)| is_late(joined)).map(|(id, _)| *id).collect();
        for id in late {
            self.advance_pair(now, id);
        }
        self.closing.handle_timeout(now);
    }

    /// A socket is ready. Returns whether it belongs to this relay.
    pub fn handle_ready(&mut self, now: Time, token: Token) -> bool {
        if let Some(id) = self.by_token.get(&token).copied() {
            self.advance_pair(now, id);
        } else if self.unasked.contains_key(&token) {
            self.read_request(now, token);
        } else if let Some(leg) = self.waiting.get_mut(&token) {
            // It has nothing to say before it is joined: it has ended, or it violates the protocol.
            if !matches!(leg.connection.fill(), Ok(false)) {
                self.counters.unmatched.fetch_add(1, Ordering::Relaxed);
                self.pairing.remove(token);
                self.waiting.remove(&token);
            }
        } else {
            return self.closing.handle_ready(token);
        }
        true
    }

    fn read_request(&mut self, now: Time, token: Token) {
        let Some((mut leg, deadline)) = self.unasked.remove(&token) else { return };
        let filled = leg.connection.fill();
        let request = leg.connection.take(RelayRequest::take);
        let request = match (request, filled) {
            (None, Ok(_)) => return drop(self.unasked.insert(token, (leg, deadline))),
            (Some(Ok(_)), _) if leg.connection.has_input() => return note_rejected(&leg, "it did not wait"),
            (Some(Ok(request)), _) if request.other != leg.peer => request,
            (Some(Ok(_)), _) => return note_rejected(&leg, "it names itself"),
            (Some(Err(why)), _) => return note_rejected(&leg, why),
            (None, Err(error)) => return note_rejected(&leg, &error.to_string()),
        };
        match self.pairing.place(now, token, Half { from: leg.peer, request }) {
            Placed::Joined(other) => {
                if let Some(other) = self.waiting.remove(&other) {
                    self.join(now, [leg, other]);
                }
            }
            Placed::Waits { replaced } => {
                tracing::debug!("{} waits for {}", leg.name(), request.other.short());
                self.waiting.insert(token, leg);
                if let Some(replaced) = replaced.and_then(|token| self.waiting.remove(&token)) {
                    self.reject(now, replaced, RelayAnswer::Absent);
                }
            }
            Placed::Full => self.reject(now, leg, RelayAnswer::Full),
        }
    }

    fn reject(&mut self, now: Time, mut leg: Leg, answer: RelayAnswer) {
        self.counters.unmatched.fetch_add(1, Ordering::Relaxed);
        tracing::debug!("closing the connection of {}: {answer}", leg.name());
        leg.connection.send(&answer.encode());
        self.closing.close(now, leg.connection);
    }

    fn join(&mut self, now: Time, legs: [Leg; 2]) {
        self.pairs_ever += 1;
        let id = self.pairs_ever;
        let names = [legs[0].name(), legs[1].name()];
        let [one, other] = legs.map(|leg| leg.into_joined(&self.poller));
        let (one, other) = match (one, other) {
            (Ok(one), Ok(other)) => (one, other),
            // The other one sees the end of its connection, and asks again.
            (Err(error), _) | (_, Err(error)) => {
                return tracing::debug!("cannot join {} and {}: {error}", names[0], names[1]);
            }
        };
        tracing::info!("relaying between {} and {}", names[0], names[1]);
        let pair = JoinedPair::new([one, other], self.limits.relay_pair_rate);
        self.by_token.extend(pair.tokens().map(|token| (token, id)));
        self.pairs.insert(id, Joined { pair, names, counted: 0 });
        self.counters.pairs.fetch_add(1, Ordering::Relaxed);
        self.counters.open_pairs.fetch_add(1, Ordering::Relaxed);
        self.advance_pair(now, id);
    }

    fn advance_pair(&mut self, now: Time, id: u64) {
        let Some(joined) = self.pairs.get_mut(&id) else { return };
        let turn = joined.pair.advance(now);
        let bytes = joined.pair.bytes();
        let total = bytes[0] + bytes[1];
        self.counters.bytes.fetch_add(total - joined.counted, Ordering::Relaxed);
        joined.counted = total;
        if let Turn::Ended(why) = turn
            && let Some(Joined { pair, names, .. }) = self.pairs.remove(&id)
        {
            let [one, other] = names;
            tracing::info!(
                "relaying between {one} and {other} ended after {} and {} bytes: {why}",
                bytes[0],
                bytes[1]
            );
            for token in pair.tokens() {
                self.by_token.remove(&token);
            }
            self.counters.open_pairs.fetch_sub(1, Ordering::Relaxed);
            for end in pair.into_ends() {
                self.closing.close(now, end);
            }
        }
    }
}

fn note_rejected(leg: &Leg, why: &str) {
    tracing::debug!("rejected request of {}: {why}", leg.name());
}
