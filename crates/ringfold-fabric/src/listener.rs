//! Accepting connections: listening sockets, and the handshakes of incoming connections.
//!
//! Listening sockets are level-triggered: a connection that cannot be accepted would wake the poller for ever. So they are
//! not registered while the process has no descriptors left, or too many handshakes are in progress.
//!
//! A connection of a peer may be behind thousands of others, so they are accepted fast. If too many handshakes are in
//! progress, the address that has most of them loses some: at once those that have not sent their first message. An address
//! that makes this process compute the keys of many sessions in vain is not accepted for the rest of a second.

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
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Listens on some addresses, and runs the handshakes of incoming connections.
#[derive(Debug)]
pub struct Listener {
    poller: Arc<Poller>,
    ports: Vec<Port>,
    /// Accepts connections by QUIC, too.
    quic: Option<(Arc<QuicEndpoint>, Token)>,
    is_registered: bool,
    /// Nothing is accepted before this, because descriptors ran out.
    paused_until: Option<Time>,
    /// Nothing is accepted before this while too many handshakes are in progress.
    crowded_until: Option<Time>,
    /// Encrypted sessions that were begun in vain since `wasted_since`, by address.
    wasted: HashMap<IpAddr, usize>,
    wasted_since: Time,
    /// Whether a shortage was logged since the last connection was accepted.
    is_shortage_logged: bool,
    handshakes: HashMap<Token, Incoming>,
    handshakes_max: usize,
    closing: ClosingConnections,
    outcomes: VecDeque<Outcome>,
}

/// A listening socket.
#[derive(Debug)]
struct Port {
    socket: TcpListener,
    address: SocketAddr,
    token: Token,
    /// Its position in the list of the caller.
    position: usize,
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
}

/// The host or the network of a connection. Hosts have many addresses of IPv6 that begin alike.
fn source(of: SocketAddr) -> IpAddr {
    match of.ip().to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// An address to listen on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenAddress {
    /// The address.
    pub address: SocketAddr,
    /// Whether the machine may lack this address.
    pub optional: bool,
}

/// The outcome of a handshake.
#[derive(Debug)]
pub enum Outcome {
    /// Both ends are authenticated. Input behind the handshake is in the connection's buffer.
    Established(Established, Connection, SocketAddr),
    /// The handshake failed, and the other end gets the reason.
    Rejected(SocketAddr, Rejection),
}

/// Why listening on an address failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {}", explain(source))]
pub struct BindError {
    /// The address.
    pub address: SocketAddr,
    /// The system's error.
    pub source: io::Error,
}

impl From<BindError> for io::Error {
    fn from(error: BindError) -> Self {
        Self::new(error.source.kind(), error)
    }
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::AddrInUse => "another program listens there already".into(),
        ErrorKind::AddrNotAvailable => "this machine has no such address".into(),
        ErrorKind::PermissionDenied => "permission denied".into(),
        _ => error.to_string(),
    }
}

impl Listener {
    /// Listens on all of these addresses. One that another of them includes needs no socket of its own.
    pub fn bind(addresses: &[ListenAddress], poller: &Arc<Poller>) -> Result<Self, BindError> {
        let mut sorted: Vec<_> = addresses.iter().copied().enumerate().collect();
        // Unspecified addresses come first, IPv6 before IPv4, because they may include others. Those are then in use.
        sorted.sort_by_key(|(_, of)| (!of.address.ip().is_unspecified(), of.address.is_ipv4()));
        let mut listener = Self {
            poller: poller.clone(),
            ports: Vec::new(),
            quic: None,
            is_registered: false,
            paused_until: None,
            crowded_until: None,
            wasted: HashMap::new(),
            wasted_since: Time::ZERO,
            is_shortage_logged: false,
            handshakes: HashMap::new(),
            handshakes_max: poller.limits().handshakes_max,
            closing: ClosingConnections::default(),
            outcomes: VecDeque::new(),
        };
        let mut lacking = None;
        for (position, ListenAddress { address, optional }) in sorted {
            match listener.add(address, position) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::AddrInUse && listener.covers(address) => {}
                Err(source) if optional && is_lacking(&source) => {
                    lacking = Some(BindError { address, source })
                }
                Err(source) => return Err(BindError { address, source }),
            }
        }
        if let (true, Some(lacking)) = (listener.ports.is_empty(), lacking) {
            return Err(lacking);
        }
        listener.ports.sort_by_key(|port| port.position);
        listener.register(true).map_err(|source| BindError { address: listener.address(), source })?;
        Ok(listener)
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
        self.ports.iter().map(|port| port.address)
    }

    /// Its first address.
    pub fn address(&self) -> SocketAddr {
        self.addresses().next().unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into())
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
        // Only time wakes a listener that is not registered.
        let resumes = self.paused_until.or(self.crowded_until).filter(|_| !self.is_registered);
        deadlines.chain(resumes).chain(self.closing.poll_timeout()).min()
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
        if let Some(port) = self.ports.iter().position(|port| port.token == token) {
            self.accept(now, port, identity, secrets);
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

    fn accept(&mut self, now: Time, port: usize, identity: Identity, secrets: &impl SecretLookup) {
        for _ in 0..limits::ACCEPTS_PER_TURN {
            let Some(crowd) = self.find_room(now) else { return };
            match self.ports[port].socket.accept() {
                Ok((stream, from)) => {
                    self.is_shortage_logged = false;
                    if self.is_wasteful(now, from) {
                        let rejection = Rejection::retryable("too many handshakes without a result");
                        self.outcomes.push_back(Outcome::Rejected(from, rejection));
                        continue;
                    }
                    self.drop_crowd(now, crowd);
                    self.begin(now, Transport::from(stream), from, identity, secrets);
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return,
                    // The other end has closed it already.
                    ErrorKind::ConnectionAborted | ErrorKind::Interrupted => {}
                    _ => return self.pause(now, &error),
                },
            }
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
        let Incoming { handshake, from, .. } = incoming;
        let connection = handshake.into_connection();
        match step {
            Ok(None) => {}
            Ok(Some(established)) => {
                self.outcomes.push_back(Outcome::Established(established, connection, from));
            }
            Err(rejection) => {
                self.outcomes.push_back(Outcome::Rejected(from, rejection));
                self.closing.close(now, connection);
            }
        }
    }

    /// What gives way if there are too many, of the address that has most of them, and when: those that have not begun at
    /// once, or else others after a moment. A peer that has begun needs a few round trips. The oldest give way, and several
    /// together, because this search takes longer than dropping them.
    fn crowding(&self) -> Option<(Time, Vec<Token>)> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for incoming in self.handshakes.values() {
            *counts.entry(source(incoming.from)).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count)?.0;
        let of_most = self.handshakes.iter().filter(|(_, incoming)| source(incoming.from) == most);
        let mut crowd: Vec<_> =
            of_most.map(|(token, incoming)| (incoming.has_begun(), incoming.begun, *token)).collect();
        crowd.sort_unstable_by_key(|(has_begun, begun, _)| (*has_begun, *begun));
        let silent = crowd.partition_point(|(has_begun, ..)| !has_begun);
        match silent {
            0 => crowd.truncate((self.handshakes_max / limits::CROWD_SHARE_BEGUN).max(1)),
            _ => crowd.truncate(silent.min(self.handshakes_max / limits::CROWD_SHARE)),
        }
        let (has_begun, begun, _) = crowd.last()?;
        let at = if *has_begun { *begun + limits::CROWDING_MAX } else { Time::ZERO };
        Some((at, crowd.into_iter().map(|(.., token)| token).collect()))
    }

    fn is_full(&self) -> bool {
        self.handshakes.len() >= self.handshakes_max
    }

    /// What gives way to another connection now; none if it has to wait in the backlog.
    fn find_room(&mut self, now: Time) -> Option<Vec<Token>> {
        if !self.is_full() {
            return Some(Vec::new());
        }
        let (at, crowd) = self.crowding()?;
        self.crowded_until = (at > now).then_some(at);
        self.crowded_until.is_none().then_some(crowd)
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

    /// Most likely there are no descriptors left. Retrying at once would spin, because the sockets stay ready.
    fn pause(&mut self, now: Time, error: &io::Error) {
        self.paused_until = Some(now + limits::ACCEPT_PAUSE);
        if !core::mem::replace(&mut self.is_shortage_logged, true) {
            tracing::warn!(%error, "failed to accept a connection; trying again every {:?}", limits::ACCEPT_PAUSE);
        }
    }

    /// Registers the sockets while there is room for connections.
    fn update_registration(&mut self, now: Time) {
        self.paused_until.take_if(|until| *until <= now);
        let is_full = self.is_full();
        self.crowded_until.take_if(|until| !is_full || *until <= now);
        if let Err(error) = self.register(self.paused_until.or(self.crowded_until).is_none()) {
            self.pause(now, &error);
        }
    }

    fn register(&mut self, register: bool) -> io::Result<()> {
        if register != self.is_registered {
            for port in &self.ports {
                let changed = match register {
                    true => self.poller.add(&port.socket, port.token),
                    false => self.poller.remove(&port.socket),
                };
                // After a partial failure some are registered already.
                changed.or_else(|error| match error.kind() {
                    ErrorKind::AlreadyExists | ErrorKind::NotFound => Ok(()),
                    _ => Err(error),
                })?;
            }
            self.is_registered = register;
        }
        Ok(())
    }

    fn add(&mut self, address: SocketAddr, position: usize) -> io::Result<()> {
        let socket = TcpListener::bind(address)?;
        rustix::net::listen(&socket, limits::BACKLOG)?;
        socket.set_nonblocking(true)?;
        let (address, token) = (socket.local_addr()?, self.poller.token());
        self.ports.push(Port { socket, address, token, position });
        Ok(())
    }

    /// Whether one of the sockets accepts connections to this address too.
    fn covers(&self, address: SocketAddr) -> bool {
        self.addresses().any(|of| {
            let all = of.ip().is_unspecified() && (of.is_ipv6() || address.is_ipv4());
            of.port() == address.port() && (all || of.ip() == address.ip())
        })
    }
}

/// Whether the machine does not have such addresses.
fn is_lacking(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::AddrNotAvailable | ErrorKind::Unsupported)
        || error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(texts: &[&str]) -> Result<Listener, BindError> {
        let address = |text: &&str| ListenAddress { address: text.parse().unwrap(), optional: false };
        Listener::bind(&texts.iter().map(address).collect::<Vec<_>>(), &Arc::new(Poller::new().unwrap()))
    }

    #[test]
    fn an_address_that_another_one_includes_is_accepted() {
        let port = listen(&["0.0.0.0:0"]).unwrap().address().port();
        let all = [format!("127.0.0.1:{port}"), format!("0.0.0.0:{port}"), format!("127.0.0.1:{port}")];
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        let listener = listen(&all).unwrap();
        assert_eq!(listener.addresses().collect::<Vec<_>>(), [format!("0.0.0.0:{port}").parse().unwrap()]);
    }

    #[test]
    fn a_busy_address_is_named() {
        let first = listen(&["127.0.0.1:0"]).unwrap();
        let address = first.address();
        let error = listen(&[&address.to_string()]).unwrap_err();
        let text = format!("cannot listen on {address}: another program listens there already");
        assert_eq!(error.to_string(), text);
        assert!(listen(&[&format!("0.0.0.0:{}", address.port())]).is_err());
    }
}
