//! Accepting connections: listening sockets, and the handshakes of incoming connections.
//!
//! Listening sockets are level-triggered: a connection that cannot be accepted would wake the poller for ever. So they are
//! not registered while the process has no descriptors left, or too many handshakes are in progress.
//!
//! A connection of a peer may be behind thousands of others, so they are accepted fast. If too many handshakes are in
//! progress, the address that has most of them loses some: at once those that have not sent their first message. An address
//! that makes this process compute the keys of many sessions in vain is not accepted for the rest of a second.

mod crowd;
mod sockets;

pub use crowd::{Occupant, crowd, source};
pub use sockets::{BindError, ListenAddress, ListeningSockets};

use crate::closing::ClosingConnections;
use crate::connection::Connection;
use crate::handshake::{Handshake, Rejection};
use crate::limits;
use crate::poller::{Poller, Token};
use crate::quic::QuicEndpoint;
use crate::random;
use crate::transport::Transport;
use ringfold_proto::handshake::{AcceptorHandshake, Established, Identity, SecretLookup};
use ringfold_proto::hello::Hello;
use ringfold_proto::time::Time;
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Listens on some addresses, and runs the handshakes of incoming connections.
#[derive(Debug)]
pub struct Listener {
    poller: Arc<Poller>,
    sockets: ListeningSockets,
    /// Accepts connections by QUIC, too.
    quic: Option<(Arc<QuicEndpoint>, Token)>,
    /// Encrypted sessions that were begun in vain since `wasted_since`, by address.
    wasted: HashMap<IpAddr, usize>,
    wasted_since: Time,
    handshakes: HashMap<Token, Incoming>,
    handshakes_max: usize,
    closing: ClosingConnections,
    outcomes: VecDeque<Outcome>,
}

/// A connection in its handshake.
#[derive(Debug)]
struct Incoming {
    handshake: Handshake,
    from: SocketAddr,
    begun: Time,
    /// Its hello, once it has arrived.
    hello: Option<Hello>,
}

impl Incoming {
    /// Whether its first message has arrived as a whole: the hello, or the first one of TLS.
    fn has_begun(&self) -> bool {
        self.hello.is_some() || self.handshake.has_negotiated()
    }

    fn occupant(&self, token: Token) -> Occupant {
        Occupant { token, from: self.from, since: self.begun, has_begun: self.has_begun() }
    }
}

/// The outcome of a handshake.
#[derive(Debug)]
pub enum Outcome {
    /// Both ends are authenticated. Input behind the handshake is in the connection's buffer.
    Established(Established, Connection, SocketAddr),
    /// The handshake failed, and the other end gets the reason.
    Rejected(SocketAddr, Rejection),
}

impl Listener {
    /// Listens on all of these addresses. One that another of them includes needs no socket of its own.
    pub fn bind(addresses: &[ListenAddress], poller: &Arc<Poller>) -> Result<Self, BindError> {
        Ok(Self {
            poller: poller.clone(),
            sockets: ListeningSockets::bind(addresses, poller)?,
            quic: None,
            wasted: HashMap::new(),
            wasted_since: Time::ZERO,
            handshakes: HashMap::new(),
            handshakes_max: poller.limits().handshakes_max,
            closing: ClosingConnections::default(),
            outcomes: VecDeque::new(),
        })
    }

    /// Listens on one address.
    pub fn bind_one(address: SocketAddr, poller: &Arc<Poller>) -> io::Result<Self> {
        Ok(Self::bind(&[ListenAddress { address, optional: false }], poller)?)
    }

    /// Listens on the first free port of a range, at one address or at all; of IPv4 alone if there is no IPv6.
    pub fn bind_in(at: Option<IpAddr>, ports: RangeInclusive<u16>, poller: &Arc<Poller>) -> io::Result<Self> {
        let everywhere = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
        let addresses = at.map_or(everywhere.to_vec(), |at| vec![at]);
        let mut last = io::Error::new(ErrorKind::AddrNotAvailable, "the range of ports is empty");
        for port in ports {
            for address in &addresses {
                match Self::bind_one(SocketAddr::new(*address, port), poller) {
                    Ok(listener) => return Ok(listener),
                    Err(error) => last = error,
                }
            }
        }
        Err(last)
    }

    /// Its addresses, in the order of the caller.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.sockets.addresses()
    }

    /// Its first address.
    pub fn address(&self) -> SocketAddr {
        self.sockets.address()
    }

    /// Accepts the connections of a QUIC endpoint, too.
    pub(crate) fn add_quic(&mut self, endpoint: Arc<QuicEndpoint>) -> io::Result<()> {
        let token = self.poller.token();
        self.poller.add(endpoint.arrived(), token)?;
        self.quic = Some((endpoint, token));
        Ok(())
    }

    /// The next outcome.
    pub fn poll_outcome(&mut self) -> Option<Outcome> {
        self.outcomes.pop_front()
    }

    /// When to call [`Listener::handle_timeout`] at the latest.
    pub fn poll_timeout(&self) -> Option<Time> {
        let deadlines = self.handshakes.values().map(|incoming| incoming.handshake.deadline());
        deadlines.chain(self.sockets.poll_timeout()).chain(self.closing.poll_timeout()).min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Time) {
        let late = |incoming: &Incoming| incoming.handshake.deadline() <= now;
        for (_, incoming) in self.handshakes.extract_if(|_, incoming| late(incoming)).collect::<Vec<_>>() {
            self.note_wasted(now, &incoming);
            let rejection = incoming.handshake.timed_out();
            self.outcomes.push_back(Outcome::Rejected(incoming.from, rejection));
            self.closing.close(now, incoming.handshake.into_connection());
        }
        self.closing.handle_timeout(now);
        self.update_registration(now);
    }

    /// A socket is ready. Returns whether it belongs to this listener.
    pub fn handle_ready(
        &mut self,
        now: Time,
        token: Token,
        identity: Identity,
        secrets: &impl SecretLookup,
    ) -> bool {
        if self.sockets.owns(token) {
            self.accept(now, token, identity, secrets);
        } else if self.quic.as_ref().is_some_and(|(_, quic)| *quic == token) {
            self.accept_quic(now, identity, secrets);
        } else if self.handshakes.contains_key(&token) {
            self.advance(now, token, secrets);
        } else if !self.closing.handle_ready(token) {
            return false;
        }
        self.update_registration(now);
        true
    }

    /// Accepts a connection that was not made to its port. A member dials at the other end, as far as is known.
    pub(crate) fn adopt(
        &mut self,
        now: Time,
        transport: Arc<Transport>,
        from: SocketAddr,
        identity: Identity,
        secrets: &impl SecretLookup,
    ) {
        self.begin(now, transport, from, identity, secrets);
    }

    /// Closes a connection once what is queued was sent, for a limited time.
    pub fn close(&mut self, now: Time, connection: Connection) {
        self.closing.close(now, connection);
    }

    /// Drops connections in their handshake by their hello, if it has arrived.
    pub fn drop_claiming(&mut self, is_unwanted: impl Fn(&Hello) -> bool) {
        self.handshakes.retain(|_, incoming| !incoming.hello.as_ref().is_some_and(&is_unwanted));
    }

    /// Drops all connections in their handshake.
    pub fn drop_all(&mut self) {
        self.handshakes.clear();
        self.outcomes.clear();
    }

    fn accept(&mut self, now: Time, socket: Token, identity: Identity, secrets: &impl SecretLookup) {
        for _ in 0..limits::ACCEPTS_PER_TURN {
            let occupants = self.handshakes.iter().map(|(token, incoming)| incoming.occupant(*token));
            let Some(crowd) = self.sockets.find_room(now, occupants, self.handshakes_max) else { return };
            let Some((stream, from)) = self.sockets.accept(now, socket) else { return };
            if self.is_wasteful(now, from) {
                let rejection = Rejection::retryable("too many handshakes without a result");
                self.outcomes.push_back(Outcome::Rejected(from, rejection));
                continue;
            }
            self.drop_crowd(now, crowd);
            self.begin(now, Transport::from(stream), from, identity, secrets);
        }
    }

    /// Accepts all that have arrived; the endpoint limits how many there are.
    fn accept_quic(&mut self, now: Time, identity: Identity, secrets: &impl SecretLookup) {
        while let Some(stream) = self.quic.as_ref().and_then(|(endpoint, _)| endpoint.accept()) {
            let from = stream.state.remote;
            self.begin(now, Transport::from(stream), from, identity, secrets);
        }
    }

    fn begin(
        &mut self,
        now: Time,
        transport: impl Into<Arc<Transport>>,
        from: SocketAddr,
        identity: Identity,
        secrets: &impl SecretLookup,
    ) {
        let handshake = random::nonce().and_then(|nonce| {
            Handshake::accept(now, transport, &self.poller, AcceptorHandshake::new(identity, nonce))
        });
        match handshake {
            Ok(handshake) => {
                let token = handshake.token();
                self.handshakes.insert(token, Incoming { handshake, from, begun: now, hello: None });
                // Its first bytes have mostly arrived.
                self.advance(now, token, secrets);
            }
            Err(error) => self.outcomes.push_back(Outcome::Rejected(from, Rejection::retryable(error))),
        }
    }

    fn advance(&mut self, now: Time, token: Token, secrets: &impl SecretLookup) {
        let Some(incoming) = self.handshakes.get_mut(&token) else { return };
        let claimed = Cell::new(incoming.hello);
        let note_claim = |hello: &Hello| {
            claimed.set(Some(*hello));
            secrets.secret_for(hello)
        };
        let step = incoming.handshake.advance(now, &note_claim);
        incoming.hello = claimed.get();
        if matches!(step, Ok(None)) {
            return;
        }
        let Some(incoming) = self.handshakes.remove(&token) else { return };
        if step.is_err() {
            self.note_wasted(now, &incoming);
        }
        let Incoming { handshake, from, hello, .. } = incoming;
        let connection = handshake.into_connection();
        match step {
            Ok(None) => {}
            Ok(Some(established)) => {
                self.outcomes.push_back(Outcome::Established(established, connection, from));
            }
            Err(rejection) => {
                let rejection = Rejection { purpose: hello.map(|hello| hello.purpose), ..rejection };
                self.outcomes.push_back(Outcome::Rejected(from, rejection));
                self.closing.close(now, connection);
            }
        }
    }

    /// Whether an address has had too many sessions begun in vain.
    fn is_wasteful(&mut self, now: Time, from: SocketAddr) -> bool {
        if self.wasted_since + limits::WASTED_PERIOD <= now {
            self.wasted.clear();
            self.wasted_since = now;
        }
        self.wasted.get(&source(from)).is_some_and(|wasted| *wasted >= self.handshakes_max)
    }

    /// Counts a handshake without a result, if it has cost much.
    fn note_wasted(&mut self, now: Time, incoming: &Incoming) {
        if incoming.handshake.has_negotiated() && !self.is_wasteful(now, incoming.from) {
            *self.wasted.entry(source(incoming.from)).or_default() += 1;
        }
    }

    fn drop_crowd(&mut self, now: Time, crowd: Vec<Token>) {
        for token in crowd {
            if let Some(incoming) = self.handshakes.remove(&token) {
                self.note_wasted(now, &incoming);
                let rejection = Rejection::retryable("too many handshakes are in progress");
                self.outcomes.push_back(Outcome::Rejected(incoming.from, rejection));
            }
        }
    }

    fn update_registration(&mut self, now: Time) {
        self.sockets.update_registration(now, self.handshakes.len() >= self.handshakes_max);
    }
}
