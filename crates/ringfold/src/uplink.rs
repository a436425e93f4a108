//! The connection to the master.

mod signer_chains;

use crate::control::ControlConnection;
use crate::doctor::ExaminedMaster;
use crate::limits;
use crate::master_address::MasterAddress;
use core::mem;
use ringfold_fabric::connection::{Connection, close_all};
use ringfold_fabric::dialer::{Credentials, DialTiming, Dialed, Dialer};
use ringfold_fabric::join_token::JoinToken;
use ringfold_fabric::poller::{Poller, Token};
use ringfold_proto::handshake::{DialTarget, Identity};
use ringfold_proto::hello::Features;
use ringfold_proto::id::{ConnId, PeerId, RunId};
use ringfold_proto::message::{Numbered, ToMaster, ToPeer};
use ringfold_proto::time::Time;
use signer_chains::SignerChains;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The connection to the master, or the attempt to make it.
pub(crate) struct Uplink {
    masters: Vec<ListedMaster>,
    /// The one to dial.
    next: usize,
    /// The one that was connected to last.
    connected: usize,
    /// Why those before it could not be connected to since the last connection.
    failures: Vec<String>,
    token: JoinToken,
    me: PeerId,
    run: RunId,
    /// What the master of the last connection supports, too.
    features: Features,
    /// What a master must support.
    required: Features,
    poller: Arc<Poller>,
    /// Of masters, for those that come after them.
    chains: SignerChains,
    state: State,
    conns: u64,
    /// Connections on which the master fell silent, not registered any more. The machine says when to close them.
    stale: Vec<(ConnId, Box<Control>)>,
    /// Closed connections that still send.
    closing: Vec<Connection>,
    events: VecDeque<UplinkEvent>,
}

/// A master of the list.
struct ListedMaster {
    address: MasterAddress,
    /// Why it could not be used when it was last tried.
    trouble: Option<String>,
}

type Control = ControlConnection<Numbered<ToPeer>>;

enum State {
    Down,
    Dialing(Box<Dialer>),
    Up(ConnId, Box<Control>),
}

const CONNECTION_ENDED: &str = "its connection ended";

const OLDER_MASTER: &str =
    "the master is of an older version: it does not know replicas of several ranks; update it";

/// What happened.
pub(crate) enum UplinkEvent {
    /// The connection was made.
    Connected(ConnId, RunId),
    /// It was not: why, and whether another attempt may succeed.
    DialFailed { why: String, retryable: bool },
    /// A message arrived.
    Message(ConnId, Box<Numbered<ToPeer>>),
    /// The connection broke.
    Lost(ConnId),
}

impl Uplink {
    /// Not connected. The masters: each one's address as the user wrote it, and what it resolves to.
    pub(crate) fn new(
        masters: Vec<(String, Vec<SocketAddr>)>,
        token: JoinToken,
        me: PeerId,
        poller: &Arc<Poller>,
    ) -> Self {
        let listed = |(name, addresses): (String, _)| ListedMaster {
            address: MasterAddress::new(name, addresses),
            trouble: None,
        };
        Self {
            masters: masters.into_iter().map(listed).collect(),
            next: 0,
            connected: 0,
            failures: Vec::new(),
            token,
            me,
            run: RunId(0),
            features: Features::default(),
            required: Features::default(),
            poller: poller.clone(),
            chains: SignerChains::default(),
            state: State::Down,
            conns: 0,
            stale: Vec::new(),
            closing: Vec::new(),
            events: VecDeque::new(),
        }
    }

    /// The peer is a rank of a replica. Older masters cannot be used.
    pub(crate) fn with_replicas(mut self) -> Self {
        self.required = Features(self.required.0 | Features::REPLICAS.0);
        self
    }

    /// Operations check payloads or results. Older masters cannot be used.
    pub(crate) fn with_integrity(mut self) -> Self {
        self.required = Features(self.required.0 | Features::INTEGRITY.0);
        self
    }

    /// The next event.
    pub(crate) fn next_event(&mut self) -> Option<UplinkEvent> {
        self.events.pop_front()
    }

    /// Whether a token belongs to one of its connections.
    pub(crate) fn owns(&self, token: Token) -> bool {
        match &self.state {
            State::Down => false,
            State::Dialing(dialer) => dialer.owns(token),
            State::Up(_, control) => control.connection.token() == token,
        }
    }

    /// Whether there is no connection, and none is being made.
    pub(crate) fn is_down(&self) -> bool {
        matches!(self.state, State::Down)
    }

    /// Whether there is a connection.
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, State::Up(..))
    }

    /// The master that was connected to last, as the user wrote it.
    pub(crate) fn master(&self) -> String {
        self.masters.get(self.connected).map(|master| master.address.name.clone()).unwrap_or_default()
    }

    /// When to call [`Uplink::handle_ready`] even if nothing is ready.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        match &self.state {
            State::Dialing(dialer) => dialer.poll_timeout(),
            State::Down | State::Up(..) => None,
        }
    }

    /// Begins to dial.
    pub(crate) fn dial(&mut self, now: Time) {
        if let State::Up(conn, control) = mem::replace(&mut self.state, State::Down) {
            control.connection.unwatch();
            self.stale.push((conn, control));
            self.note_trouble(self.unanswered().into());
            self.turn();
        }
        let credentials = Credentials {
            identity: Identity::new(self.me, self.run),
            target: DialTarget::master(),
            secret: self.token.secret(),
        };
        let addresses =
            self.masters.get(self.next).map_or_else(Vec::new, |master| master.address.addresses());
        let mut timing = DialTiming::of(&self.poller);
        if self.masters.len() > 1 {
            timing.answer_max = limits::ONE_MASTER_ANSWER_MAX;
        }
        let dialer = Dialer::new(now, addresses, credentials, timing, &self.poller);
        self.state = State::Dialing(Box::new(dialer));
    }

    /// The master stands by: dials the active one at these addresses next, if it is one of the list.
    pub(crate) fn prefer(&mut self, addresses: &[SocketAddr]) {
        let texts = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
        let is_it =
            |master: &ListedMaster| master.address.addresses().iter().any(|known| addresses.contains(known));
        match self.masters.iter().position(is_it) {
            Some(index) => {
                self.note_trouble(format!("it stands by, the active master is {texts}"));
                self.next = index;
            }
            None => {
                self.note_trouble(format!(
                    "it stands by, the active master is {texts}, which is not in the list of this peer: give the peer the list of \
                     all masters"
                ));
                self.turn();
            }
        }
    }

    /// The master that it is connected to, or dials.
    pub(crate) fn examined_master(&self) -> Option<ExaminedMaster> {
        let address = &self.masters.get(self.next)?.address;
        let (label, addresses) = (address.name.clone(), address.addresses());
        Some(ExaminedMaster { label, addresses, token: self.token.clone() })
    }

    /// Why each master could not be used when it was last tried.
    pub(crate) fn troubles(&self) -> String {
        let text = |master: &ListedMaster| {
            master.trouble.as_ref().map(|trouble| format!("{}: {trouble}", master.address.name))
        };
        self.masters.iter().filter_map(text).collect::<Vec<_>>().join("; ")
    }

    /// The trouble with a master that is connected and does not answer.
    fn unanswered(&self) -> &'static str {
        match self.masters.len() {
            1 => "connected, but it does not answer",
            _ => "connected, but it is not active: its log says why",
        }
    }

    /// Why the master that was dialled last could not be used.
    fn note_trouble(&mut self, why: String) {
        if let Some(master) = self.masters.get_mut(self.next) {
            master.trouble = Some(why);
        }
    }

    /// The next dial is for the next master of the list. The one that failed may have moved.
    fn turn(&mut self) {
        if let Some(master) = self.masters.get_mut(self.next) {
            master.address.refresh();
        }
        self.next = (self.next + 1) % self.masters.len().max(1);
    }

    /// Sends a message, if the connection is still the one that it is meant for. A resume gets the certificates that it needs.
    pub(crate) fn send(&mut self, to: ConnId, mut message: Numbered<ToMaster>) {
        if let Some(resume) = message.message.resume_mut() {
            self.chains.complete(resume);
        }
        if let State::Up(conn, control) = &mut self.state
            && *conn == to
        {
            control.send(&message).expect("the machine's messages are within the limits");
        }
    }

    /// Sends what the connection takes.
    pub(crate) fn flush(&mut self) {
        self.closing.retain_mut(|connection| !connection.poll_acknowledged());
        if let State::Up(conn, control) = &mut self.state
            && control.flush().is_err()
        {
            self.events.push_back(UplinkEvent::Lost(*conn));
            self.state = State::Down;
            self.note_trouble(CONNECTION_ENDED.into());
            self.turn();
        }
    }

    /// Closes a connection once the rest is sent. Does not wait for that.
    pub(crate) fn close(&mut self, which: ConnId) {
        self.stale.retain(|(conn, _)| *conn != which);
        if matches!(&self.state, State::Up(conn, _) if *conn == which)
            && let State::Up(_, control) = mem::replace(&mut self.state, State::Down)
        {
            let mut connection = control.connection;
            if !connection.poll_acknowledged() {
                // Input is discarded, so the poller must not report it. If that fails, the connection is broken.
                let _ = connection.set_awaits_input(false);
                self.closing.push(connection);
            }
        }
    }

    /// Waits until closed connections have sent the rest, until the deadline at the latest.
    pub(crate) fn finish(&mut self, deadline: Instant) {
        close_all(self.closing.drain(..), deadline, Connection::poll_acknowledged);
    }

    /// Whether the master supports this.
    pub(crate) fn supports(&self, features: Features) -> bool {
        self.features.contains(features)
    }

    /// Does what can be done.
    pub(crate) fn handle_ready(&mut self, now: Time) {
        match mem::replace(&mut self.state, State::Down) {
            State::Down => {}
            State::Dialing(dialer) => self.advance_dialer(now, dialer),
            State::Up(conn, control) => self.receive(conn, control),
        }
    }

    fn advance_dialer(&mut self, now: Time, mut dialer: Box<Dialer>) {
        match dialer.advance(now) {
            Ok(Some(Dialed { established, .. })) if !established.features.contains(self.required) => {
                self.fail_dial(now, &OLDER_MASTER, false);
            }
            Ok(Some(Dialed { established, connection, .. })) => {
                self.run = established.run;
                self.features = established.features;
                self.failures.clear();
                if let Some(chain) = connection.peer_chain() {
                    self.chains.add(chain);
                }
                self.connected = self.next;
                self.conns += 1;
                let conn = ConnId(self.conns);
                self.state = State::Up(conn, Box::new(ControlConnection::new(connection)));
                self.note_trouble(self.unanswered().into());
                self.events.push_back(UplinkEvent::Connected(conn, established.run));
            }
            Ok(None) => match dialer.failures().iter().find(|(_, rejection)| rejection.is_final()) {
                Some((_, rejection)) => self.fail_dial(now, rejection, false),
                None => self.state = State::Dialing(dialer),
            },
            Err(error) => self.fail_dial(now, &error, error.is_retryable()),
        }
    }

    /// A master could not be connected to. Fails when all have been tried.
    fn fail_dial(&mut self, now: Time, why: &dyn core::fmt::Display, retryable: bool) {
        let name = self.masters.get(self.next).map_or("no master", |master| &master.address.name);
        self.failures.push(format!("{name}: {why}"));
        self.note_trouble(why.to_string());
        self.turn();
        if retryable && self.failures.len() < self.masters.len() {
            return self.dial(now);
        }
        let why = mem::take(&mut self.failures).join("; ");
        self.events.push_back(UplinkEvent::DialFailed { why, retryable });
    }

    fn receive(&mut self, conn: ConnId, mut control: Box<Control>) {
        let mut result = control.flush().and(control.connection.fill());
        loop {
            match control.next() {
                Ok(Some(message)) => self.events.push_back(UplinkEvent::Message(conn, Box::new(message))),
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "invalid message from the master");
                    result = Err(error);
                    break;
                }
            }
        }
        match result {
            Ok(_) => self.state = State::Up(conn, control),
            Err(_) => {
                self.events.push_back(UplinkEvent::Lost(conn));
                self.note_trouble(CONNECTION_ENDED.into());
                self.turn();
            }
        }
    }
}

/// The search for an active master.
#[derive(Default)]
pub(crate) struct MasterSearch {
    since: Option<Time>,
    warn_at: Option<Time>,
}

impl MasterSearch {
    /// Whether a master was dialled.
    pub(crate) fn has_begun(&self) -> bool {
        self.since.is_some()
    }

    /// Notes a dial. Returns how long the search has taken if it is time to warn: after 5 s, 10 s, 20 s and so on.
    pub(crate) fn dialled(&mut self, now: Time) -> Option<Duration> {
        let since = *self.since.get_or_insert(now);
        let warn_at = self.warn_at.get_or_insert(since + limits::WARN_SEARCH_AFTER);
        if now < *warn_at {
            return None;
        }
        let time = now.since(since);
        *warn_at = now + time;
        Some(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_fabric::clock::Clock;
    use ringfold_fabric::listener::Listener;
    use ringfold_fabric::poller::Readiness;
    use ringfold_proto::handshake::Secret;
    use ringfold_proto::hello::Hello;
    use std::io::Write;
    use std::net::TcpListener;

    #[test]
    fn an_older_master_is_not_used_by_a_rank_of_a_replica() {
        let poller = Arc::new(Poller::new().unwrap());
        let mut master = Listener::bind_one("127.0.0.1:0".parse().unwrap(), &poller).unwrap();
        let masters = vec![("master".into(), vec![master.address()])];
        let mut uplink = Uplink::new(masters, "".into(), PeerId(1), &poller).with_replicas();
        let (clock, mut ready) = (Clock::start(), Readiness::default());
        let end = Instant::now() + Duration::from_secs(30);
        uplink.dial(clock.now());
        let event = loop {
            assert!(Instant::now() < end, "no outcome");
            poller.wait(&mut ready, Duration::from_millis(10)).unwrap();
            uplink.handle_ready(clock.now());
            if let Some(event) = uplink.next_event() {
                break event;
            }
            for token in ready.tokens().filter(|token| !uplink.owns(*token)) {
                let mut identity = Identity::new(PeerId(0), RunId(7));
                identity.features = Features::SYNC_BESIDE;
                master.handle_ready(clock.now(), token, identity, &|_: &Hello| Ok(Secret::token("")));
            }
        };
        let UplinkEvent::DialFailed { why, retryable: false } = event else { panic!("connected") };
        assert!(why.contains("older version"), "{why}");
    }

    #[test]
    fn a_master_that_has_moved_is_found_by_its_name() {
        let poller = Arc::new(Poller::new().unwrap());
        let mut master = Listener::bind_one("127.0.0.1:0".parse().unwrap(), &poller).unwrap();
        let name = format!("localhost:{}", master.address().port());
        let gone = vec![SocketAddr::from(([127, 0, 0, 1], 1))];
        let mut uplink = Uplink::new(vec![(name, gone)], "".into(), PeerId(1), &poller);
        let (clock, mut ready) = (Clock::start(), Readiness::default());
        let end = Instant::now() + Duration::from_secs(60);
        uplink.dial(clock.now());
        loop {
            assert!(Instant::now() < end, "not found");
            poller.wait(&mut ready, Duration::from_millis(10)).unwrap();
            uplink.handle_ready(clock.now());
            match uplink.next_event() {
                Some(UplinkEvent::Connected(..)) => break,
                Some(_) => uplink.dial(clock.now()),
                None => {}
            }
            for token in ready.tokens().filter(|token| !uplink.owns(*token)) {
                let identity = Identity::new(PeerId(0), RunId(7));
                master.handle_ready(clock.now(), token, identity, &|_: &Hello| Ok(Secret::token("")));
            }
        }
    }

    #[test]
    fn a_stranger_at_one_address_does_not_fail_the_dial_of_a_slow_master() {
        let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
        let poller = Arc::new(Poller::new().unwrap());
        let mut master = Listener::bind_one("127.0.0.1:0".parse().unwrap(), &poller).unwrap();
        let addresses = vec![stranger.local_addr().unwrap(), master.address()];
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = stranger.accept().unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request").unwrap();
            stream
        });
        let mut uplink = Uplink::new(vec![("master".into(), addresses)], "".into(), PeerId(1), &poller);
        let (clock, mut ready) = (Clock::start(), Readiness::default());
        let end = Instant::now() + Duration::from_secs(30);
        uplink.dial(clock.now());
        let event = loop {
            assert!(Instant::now() < end, "no outcome");
            poller.wait(&mut ready, Duration::from_millis(10)).unwrap();
            uplink.handle_ready(clock.now());
            if let Some(event) = uplink.next_event() {
                break event;
            }
            // The master does not answer before the stranger has.
            if matches!(&uplink.state, State::Dialing(dialer) if dialer.failures().is_empty()) {
                continue;
            }
            for token in ready.tokens().filter(|token| !uplink.owns(*token)) {
                let identity = Identity::new(PeerId(0), RunId(7));
                master.handle_ready(clock.now(), token, identity, &|_: &Hello| Ok(Secret::token("")));
            }
        };
        assert!(matches!(event, UplinkEvent::Connected(_, RunId(7))));
        drop(serving.join().unwrap());
    }
}
