//! Making links: which are requested, who dials, and which incoming connections belong to them.
//!
//! Of two members the one with the lower id dials. The other one dials too after a moment, so one reachable side is
//! enough. They never get two links, because the lower id chooses: it takes the connection with the first verdict, sent
//! or received, and closes all others. The higher id learns the choice by the verdict if it dialled, and by the head of a
//! stream if it did not.
//!
//! If neither reaches the other, they meet at a relay: the lower id dials there, and the higher id waits for it. What a
//! relay joins is one more incoming connection here. Both keep waiting there afterwards, for shared state and probes.

mod attempt;
pub(crate) mod head;
mod relayed;
mod visit;

pub use visit::VisitDialer;

use crate::connection::{BlockingConnection, Connection};
use crate::dialer::{Backoff, Credentials};
use crate::join_token::JoinToken;
use crate::limits;
use crate::link::Link;
use crate::listener::{Listener, Outcome};
use crate::poller::{Poller, Token};
use crate::quic::QuicEndpoint;
use crate::relay::{Relays, StandBy};
use crate::segment::Ticket;
use crate::shared_link::Opened;
use attempt::{Attempt, IncomingLink, LinkOptions, OutgoingLink};
use head::StreamHead;
use ringfold_proto::epoch::Member;
use ringfold_proto::handshake::{DialTarget, Established, Identity, Secret, SecretLookup};
use ringfold_proto::hello::{ConnectionRejection, Hello, Purpose};
use ringfold_proto::id::{EpochId, PeerId, RunId};
use ringfold_proto::time::Time;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Epochs whose members may connect for shared state, probes and windows: the newest ones.
const EPOCHS_ADMITTED: usize = 3;

/// Makes links, and accepts connections for other purposes.
#[derive(Debug)]
pub struct Mesh {
    me: PeerId,
    run: RunId,
    poller: Arc<Poller>,
    listener: Listener,
    /// Streams of a link that this end dials.
    streams: u16,
    /// The host whose members share memory with this one.
    shares_on: Option<u64>,
    /// The host of this member.
    host: Option<u64>,
    /// Whether long links use QUIC.
    may_use_quic: bool,
    /// Made with the first request for a link to another host.
    quic: Option<Arc<QuicEndpoint>>,
    /// How long making a link may take.
    timeout: Duration,
    requests: BTreeMap<PeerId, LinkRequest>,
    /// Incoming streams of links whose head has not arrived.
    pending: HashMap<Token, PendingStream>,
    /// Connections for other purposes of which one stream has arrived.
    visits: BTreeMap<(PeerId, Purpose), IncomingLink>,
    admitted: VecDeque<AdmittedEpoch>,
    /// For members that cannot be reached.
    relays: Relays,
    /// Whether others may use this member as a relay.
    volunteers: bool,
    /// Members whose last link went through a relay.
    relayed: BTreeSet<PeerId>,
    /// Connections that wait at relays.
    stand_by: StandBy,
    events: VecDeque<MeshEvent>,
}

/// An epoch whose members may connect: its key, and its members.
type AdmittedEpoch = (EpochId, Secret, Vec<PeerId>);

/// An incoming stream of a link, until its head arrives.
#[derive(Debug)]
struct PendingStream {
    established: Established,
    connection: Connection,
    deadline: Time,
}

/// A link to be made.
#[derive(Debug)]
struct LinkRequest {
    member: Member,
    epoch: EpochId,
    key: Secret,
    attempt: Attempt,
    give_up: Time,
    /// When relays are used, if there is no link.
    relays_at: Time,
    /// Why the last attempt failed.
    last_failure: String,
    backoff: Backoff,
}

/// An event of a mesh.
#[derive(Debug)]
pub enum MeshEvent {
    /// A link was made.
    Up(PeerId, Link),
    /// No link could be made, for this reason.
    Failed(PeerId, String),
    /// A member connected for shared state, a probe or windows.
    Visitor {
        /// The member.
        peer: PeerId,
        /// The purpose.
        purpose: Purpose,
        /// The connection.
        connection: BlockingConnection,
    },
}

impl Mesh {
    /// Without requests.
    pub fn new(
        me: PeerId,
        listener: Listener,
        streams: u16,
        timeout: Duration,
        poller: &Arc<Poller>,
    ) -> Self {
        Self {
            me,
            run: RunId(0),
            poller: poller.clone(),
            listener,
            streams: streams.clamp(1, limits::STREAMS_MAX),
            shares_on: None,
            host: None,
            may_use_quic: true,
            quic: None,
            timeout,
            requests: BTreeMap::new(),
            pending: HashMap::new(),
            visits: BTreeMap::new(),
            admitted: VecDeque::new(),
            relays: Relays::default(),
            volunteers: false,
            relayed: BTreeSet::new(),
            stand_by: StandBy::default(),
            events: VecDeque::new(),
        }
    }

    /// Links with members on this host use shared memory if possible.
    pub fn share_memory_on(mut self, host: u64) -> Self {
        self.shares_on = Some(host);
        self
    }

    /// Sets the host of this member. Links within it never use QUIC.
    pub fn on_host(mut self, host: u64) -> Self {
        self.host = Some(host);
        self
    }

    /// All links use TCP or shared memory.
    pub fn without_quic(mut self) -> Self {
        self.may_use_quic = false;
        self
    }

    /// The address of its listener.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// The poller that its links are registered with.
    pub fn poller(&self) -> &Arc<Poller> {
        &self.poller
    }

    /// Sets the run, once the master has sent it.
    pub fn set_run(&mut self, run: RunId) {
        self.run = run;
    }

    /// Requests a link with a member. A newer request replaces an older one, whose key may not be valid any more.
    pub fn request(&mut self, now: Time, member: Member, epoch: EpochId, key: &[u8; 32]) {
        let head_start = if self.me < member.peer { Duration::ZERO } else { limits::DIAL_HEAD_START };
        // A pair that could not reach each other last time does not wait long.
        let is_relayed = self.relayed.contains(&member.peer);
        let until_relays = if is_relayed { limits::DIAL_HEAD_START } else { limits::RELAY_HEAD_START };
        let has_relays = self.relays.between(self.me, member.peer).next().is_some();
        let for_relays = if has_relays { until_relays } else { Duration::ZERO };
        let request = LinkRequest {
            epoch,
            key: Secret::epoch_key(key),
            attempt: Attempt::Due(now + head_start),
            give_up: now + self.timeout + for_relays,
            relays_at: now + until_relays,
            last_failure: "it has no address, and did not dial".into(),
            backoff: Backoff::new(Duration::from_millis(1), limits::REDIAL_PAUSE),
            member,
        };
        self.expect_member(&request.member);
        self.requests.insert(request.member.peer, request);
        self.dial_due(now);
    }

    /// A member may connect, or be dialled. Binds the UDP port with the number of the TCP port, if it may be far away.
    pub fn expect_member(&mut self, member: &Member) {
        let is_near =
            self.host == Some(member.host) || member.addresses.iter().all(|at| at.ip().is_loopback());
        if is_near || !core::mem::take(&mut self.may_use_quic) {
            return;
        }
        let endpoint = self
            .poller
            .security()
            .and_then(|security| QuicEndpoint::bind(self.address(), self.poller.network(), &security))
            .and_then(|endpoint| {
                let endpoint = Arc::new(endpoint);
                self.listener.add_quic(endpoint.clone()).map(|()| endpoint)
            });
        match endpoint {
            Ok(endpoint) => self.quic = Some(endpoint),
            Err(error) => tracing::info!("no QUIC on UDP port {}: {error}; using TCP", self.address().port()),
        }
    }

    /// Dials members for other purposes than data, from other threads.
    pub fn visit_dialer(&self) -> VisitDialer {
        VisitDialer { poller: self.poller.clone(), quic: self.quic.clone() }
    }

    /// Cancels a request.
    pub fn forget(&mut self, peer: PeerId) {
        self.requests.remove(&peer);
        self.relayed.remove(&peer);
        self.stand_by.forget(peer);
    }

    /// Accepts connections of an epoch's members for shared state, probes and windows.
    pub fn admit(&mut self, epoch: EpochId, key: &[u8; 32], members: Vec<PeerId>) {
        self.admitted.retain(|(known, ..)| *known != epoch);
        self.admitted.push_front((epoch, Secret::epoch_key(key), members));
        self.admitted.truncate(EPOCHS_ADMITTED);
    }

    /// The next event.
    pub fn next_event(&mut self) -> Option<MeshEvent> {
        self.events.pop_front()
    }

    /// When to call [`Mesh::handle_timeout`] at the latest.
    pub fn poll_timeout(&self) -> Option<Time> {
        let pending = self.pending.values().map(|pending| pending.deadline);
        let requests = self.requests.values().map(|request| {
            let awaits = self.may_await(request).then_some(request.relays_at);
            request.attempt.timeout().min(request.give_up).min(awaits.unwrap_or(request.give_up))
        });
        let visits = self.visits.values().map(IncomingLink::deadline);
        let others = self.listener.poll_timeout().into_iter().chain(self.stand_by.poll_timeout());
        pending.chain(requests).chain(visits).chain(others).min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Time) {
        self.listener.handle_timeout(now);
        self.take_outcomes(now);
        self.pending.retain(|_, pending| pending.deadline > now);
        self.visits.retain(|_, visit| visit.deadline() > now);
        for (peer, request) in self.requests.extract_if(.., |_, request| request.give_up <= now) {
            self.stand_by.forget(peer);
            self.events.push_back(MeshEvent::Failed(peer, request.last_failure));
        }
        self.await_at_relays(now);
        self.advance_stand_by(now, None);
        let late: Vec<_> =
            self.requests.values().filter(|w| w.attempt.timeout() <= now).map(|w| w.member.peer).collect();
        for peer in late {
            self.advance_attempt(now, peer, None);
        }
        self.dial_due(now);
    }

    /// A socket is ready. Returns whether it belongs to this mesh.
    pub fn handle_ready(&mut self, now: Time, token: Token) -> bool {
        let identity = self.identity();
        let relay = self.volunteers.then_some(&self.relays.token);
        let secrets = Secrets { me: self.me, requests: &self.requests, admitted: &self.admitted, relay };
        if self.listener.handle_ready(now, token, identity, &secrets) {
            self.take_outcomes(now);
        } else if self.pending.contains_key(&token) {
            self.read_head(now, token);
        } else if let Some(request) = self.requests.values().find(|request| request.attempt.has(token)) {
            self.advance_attempt(now, request.member.peer, Some(token));
        } else if self.stand_by.owns(token) {
            self.advance_stand_by(now, Some(token));
        } else {
            return false;
        }
        true
    }

    fn identity(&self) -> Identity {
        Identity::new(self.me, self.run)
    }

    fn take_outcomes(&mut self, now: Time) {
        while let Some(outcome) = self.listener.poll_outcome() {
            match outcome {
                Outcome::Established(established, connection, _) => {
                    self.receive(now, established, connection)
                }
                Outcome::Rejected(from, rejection) => {
                    tracing::debug!("rejected connection from {from}: {rejection}");
                }
            }
        }
    }

    /// A member has connected.
    fn receive(&mut self, now: Time, established: Established, connection: Connection) {
        let Established { peer, purpose, .. } = established;
        let handshake_max = self.poller.limits().handshake_max;
        // These connections have no head: who dials them is not a visitor of this member.
        if matches!(purpose, Purpose::Window | Purpose::Relay) {
            return self.receive_visitor(peer, purpose, vec![connection]);
        }
        // The lower id has made its choice with this verdict: its own attempt ends, and it makes no other.
        if purpose == Purpose::Data
            && self.me < peer
            && let Some(request) = self.requests.get_mut(&peer)
            && request.epoch == established.epoch
            && !request.attempt.is_incoming()
        {
            request.attempt = Attempt::Due(now + handshake_max);
        }
        let token = connection.token();
        self.pending.insert(token, PendingStream { established, connection, deadline: now + handshake_max });
        self.read_head(now, token);
    }

    /// Reads the head of an incoming stream.
    fn read_head(&mut self, now: Time, token: Token) {
        let Some(mut pending) = self.pending.remove(&token) else { return };
        let is_data = pending.established.purpose == Purpose::Data;
        let filled = if is_data {
            // What follows the head stays in the connection's input, for the link.
            pending.connection.fill()
        } else {
            // Here it stays in the socket, for the thread that takes the connection.
            let missing = StreamHead::BYTES.saturating_sub(pending.connection.take(|input| input.len()));
            pending.connection.fill_within(missing)
        };
        let head = pending.connection.take(StreamHead::take);
        let why = match (head, filled) {
            (None, Ok(_)) => return drop(self.pending.insert(token, pending)),
            (Some(Ok(head)), _) if !is_data => {
                return self.take_visit(now, &pending.established, head, pending.connection);
            }
            (Some(Ok(head)), _) => {
                return self.take_stream(now, &pending.established, head, pending.connection);
            }
            (Some(Err(why)), _) => why.to_owned(),
            (None, Err(error)) => error.to_string(),
        };
        let peer = pending.established.peer;
        tracing::debug!("rejected stream of {}: {why}", peer.short());
        // If it was the chosen one, there is nothing left to wait for.
        if is_data
            && self.me < peer
            && let Some(request) = self.requests.get_mut(&peer)
            && matches!(request.attempt, Attempt::Due(_))
        {
            request.fail(now, why);
        }
    }

    /// Takes a connection for another purpose than data, or one of the two of a guarded one.
    fn take_visit(&mut self, now: Time, established: &Established, head: StreamHead, connection: Connection) {
        let Established { peer, purpose, .. } = *established;
        if head.count == 1 && head.offer.is_none() {
            return self.receive_visitor(peer, purpose, vec![connection]);
        }
        if !head.is_guarded {
            return tracing::debug!("rejected connection of {}: invalid stream head", peer.short());
        }
        let deadline = now + self.poller.limits().handshake_max;
        let visit = self.visits.entry((peer, purpose)).or_insert_with(|| IncomingLink::new(deadline, &head));
        if !visit.is_of(&head) {
            *visit = IncomingLink::new(deadline, &head);
        }
        if let Some(streams) = visit.take(head, connection) {
            self.visits.remove(&(peer, purpose));
            self.receive_visitor(peer, purpose, streams);
        }
    }

    fn receive_visitor(&mut self, peer: PeerId, purpose: Purpose, streams: Vec<Connection>) {
        match visit::into_blocking(streams) {
            Ok(connection) => self.events.push_back(MeshEvent::Visitor { peer, purpose, connection }),
            Err(error) => tracing::debug!("rejected connection of {}: {error}", peer.short()),
        }
    }

    /// Takes a stream of a link that the other end dialled.
    fn take_stream(
        &mut self,
        now: Time,
        established: &Established,
        head: StreamHead,
        connection: Connection,
    ) {
        let peer = established.peer;
        // The request may have been replaced or completed during the handshake.
        let Some(request) = self.requests.get_mut(&peer).filter(|request| request.epoch == established.epoch)
        else {
            return;
        };
        let incoming = match &mut request.attempt {
            Attempt::IncomingLink(incoming) if incoming.is_of(&head) => incoming,
            attempt => {
                let deadline = now + self.poller.limits().handshake_max;
                *attempt = Attempt::IncomingLink(IncomingLink::new(deadline, &head));
                let Attempt::IncomingLink(incoming) = attempt else { return };
                incoming
            }
        };
        let StreamHead { offer, is_guarded, .. } = head;
        let relay = connection.relay();
        let shares = self.shares_on == Some(request.member.host);
        let Some(mut streams) = incoming.take(head, connection) else { return };
        let link = match (offer, streams.pop()) {
            (Some(ticket), Some(stream)) => answer(stream, &ticket, shares),
            (None, Some(data)) if is_guarded => match streams.pop() {
                Some(guard) => Link::guarded(guard, data),
                None => return,
            },
            (_, last) => {
                streams.extend(last);
                Link::new(streams)
            }
        };
        self.complete(now, peer, link, relay);
    }

    /// A link was made. Other connections for it are dropped: a verdict on them would be a second choice.
    fn complete(&mut self, now: Time, peer: PeerId, link: Link, relay: Option<SocketAddr>) {
        let request = self.requests.remove(&peer);
        if let Some(relay) = relay {
            let name = request.map_or(peer.short(), |request| request.member.name);
            tracing::info!("link to peer {name} goes through relay {relay}");
            self.relayed.insert(peer);
            // It may dial for shared state and probes.
            self.stand_by.await_member(now, peer, self.relays.between(self.me, peer));
        } else {
            self.relayed.remove(&peer);
            self.stand_by.forget(peer);
        }
        self.pending.retain(|_, pending| pending.established.peer != peer);
        self.drop_claiming(peer);
        self.events.push_back(MeshEvent::Up(peer, link));
    }

    fn drop_claiming(&mut self, peer: PeerId) {
        self.listener.drop_claiming(|hello| hello.purpose == Purpose::Data && hello.session == peer);
    }

    fn dial_due(&mut self, now: Time) {
        let identity = self.identity();
        for request in self.requests.values_mut() {
            if !matches!(request.attempt, Attempt::Due(at) if at <= now) {
                continue;
            }
            let Member { peer, host, addresses, .. } = &request.member;
            let target = DialTarget::member(Purpose::Data, request.epoch, *peer);
            let credentials = Credentials { identity, target, secret: request.key.clone() };
            let options = LinkOptions {
                streams: self.streams,
                shares: self.shares_on == Some(*host),
                quic: self.quic.clone(),
                relays: (self.me < *peer).then(|| (self.relays.clone(), request.relays_at)),
            };
            match OutgoingLink::begin(now, addresses, credentials, options, &self.poller) {
                Ok(outgoing) => request.attempt = Attempt::OutgoingLink(Box::new(outgoing)),
                Err(error) => request.fail(now, error.to_string()),
            }
        }
    }

    /// Advances the part of an attempt that a token belongs to, or that is due.
    fn advance_attempt(&mut self, now: Time, peer: PeerId, token: Option<Token>) {
        let Some(request) = self.requests.get_mut(&peer) else { return };
        let had_chosen = request.attempt.has_chosen();
        let mut relay = None;
        let outcome = match &mut request.attempt {
            Attempt::Due(_) => return,
            Attempt::OutgoingLink(outgoing) => {
                let outcome = outgoing.advance(now, token, &self.poller);
                relay = outgoing.relay();
                outcome
            }
            Attempt::IncomingLink(_) => Err("timed out waiting for all streams of the link".into()),
        };
        match outcome {
            Ok(None) if self.me < peer && request.attempt.has_chosen() && !had_chosen => {
                self.drop_claiming(peer)
            }
            Ok(None) => {}
            Ok(Some(link)) => self.complete(now, peer, link, relay),
            Err(why) => {
                tracing::debug!("failed to link with {}: {why}; trying again", request.member.name);
                request.fail(now, why);
            }
        }
    }
}

/// The secrets of incoming connections.
struct Secrets<'a> {
    me: PeerId,
    requests: &'a BTreeMap<PeerId, LinkRequest>,
    admitted: &'a VecDeque<AdmittedEpoch>,
    /// The join token of visitors that use this member as a relay, if it volunteers.
    relay: Option<&'a JoinToken>,
}

impl SecretLookup for Secrets<'_> {
    fn secret_for(&self, hello: &Hello) -> Result<Secret, ConnectionRejection> {
        let peer = hello.session;
        match hello.purpose {
            Purpose::Data => {
                let request = self.requests.get(&peer).filter(|request| request.epoch == hello.epoch);
                // After the lower id has chosen, another verdict would be a second choice.
                let request = request.filter(|request| peer < self.me || !request.attempt.has_chosen());
                request.map(|request| request.key.clone()).ok_or(ConnectionRejection::UnknownEpoch)
            }
            Purpose::State | Purpose::Probe | Purpose::Window => {
                let known = self.admitted.iter().find(|(epoch, ..)| *epoch == hello.epoch);
                let known = known.filter(|(_, _, members)| members.contains(&peer));
                known.map(|(_, key, _)| key.clone()).ok_or(ConnectionRejection::UnknownEpoch)
            }
            Purpose::Relay => self.relay.map(JoinToken::secret).ok_or(ConnectionRejection::WrongPurpose),
            Purpose::Control | Purpose::Masters | Purpose::Doctor | Purpose::Observe | Purpose::Admin => {
                Err(ConnectionRejection::WrongPurpose)
            }
        }
    }
}

/// Answers an offer of shared memory. If opening it fails, the stream becomes the link.
fn answer(mut connection: Connection, ticket: &Ticket, shares: bool) -> Link {
    let opened = match shares {
        true => Opened::new(ticket),
        false => Err(io::Error::other("it is on another host")),
    };
    connection.send(&[if opened.is_ok() { head::ACCEPTED } else { head::DECLINED }]);
    // A broken connection shows when it is read.
    let _ = connection.flush(&mut Vec::new());
    match opened {
        Ok(opened) => Link::Shared(Box::new(opened.link(connection))),
        Err(error) => {
            tracing::debug!("failed to open offered shared memory: {error}; using TCP");
            Link::new(vec![connection])
        }
    }
}

impl LinkRequest {
    /// An attempt failed: the next one is due after a pause.
    fn fail(&mut self, now: Time, why: String) {
        self.last_failure = why;
        self.attempt = Attempt::Due(now + self.backoff.next_pause());
    }
}
