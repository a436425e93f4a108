//! The loop: what arrives goes to the machine, and what the machine asks for is done at once.

mod answers;

use super::claims::{ClaimChecker, signer};
use super::crash::Crash;
use super::etcd::EtcdLease;
use super::examinations::Examinations;
use super::history::History;
use super::inquiry::Inquiries;
use super::limits;
use super::observers::Observers;
use super::options::MasterOptions;
use super::other_master::OtherMaster;
use super::peer_connection::PeerConnection;
use super::refusals::Refusals;
use super::ring_solver::RingSolver;
use crate::Error;
use crate::control::ControlConnection;
use crate::doctor::DoctorService;
use crate::journal::{Source, SourceKind};
use crate::master_address::MasterAddress;
use crate::process_name::process_name;
use ringfold_fabric::clock::Clock;
use ringfold_fabric::connection::Connection;
use ringfold_fabric::join_token::JoinToken;
use ringfold_fabric::listener::{Listener, Occupant, Outcome, crowd};
use ringfold_fabric::poller::{Poller, Readiness, Token};
use ringfold_fabric::random;
use ringfold_fabric::tls::Security;
use ringfold_proto::cause::Removal;
use ringfold_proto::coordinator::{Coordinator, MasterList, MasterMessage};
use ringfold_proto::event::Event;
use ringfold_proto::frame::SharedMessage;
use ringfold_proto::handshake::{CertificateProblem, Established, HandshakeError, Identity};
use ringfold_proto::hello::{ConnectionRejection, Hello, Purpose};
use ringfold_proto::id::{ConnId, PeerId, RunId};
use ringfold_proto::limits::NAME_BYTES_MAX;
use ringfold_proto::master::{Master, MasterAction, MasterConfig};
use ringfold_proto::message::{Numbered, ToMaster, ToPeer};
use ringfold_proto::time::Time;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a master is called in handshakes. It claims no run: members of an earlier life must get in, whatever
/// they were told then, and which of those who return belong together is for the machine to find out. What keeps
/// unjoined out is the token.
const MASTER: (PeerId, RunId) = (PeerId(0), RunId(0));

/// The driver around the machine.
pub(super) struct Server {
    clock: Clock,
    poller: Arc<Poller>,
    listener: Listener,
    token: JoinToken,
    security: Arc<Security>,
    claims: ClaimChecker,
    /// The version of the certificates and the revocation list that all connections were checked with.
    certificates: u64,
    machine: Coordinator,
    /// The other masters of the run, by their position in the list.
    others: BTreeMap<u16, OtherMaster>,
    /// Connections that other masters have dialled, and their position in the list, as soon as it is known.
    from_masters: HashMap<Token, (ControlConnection<MasterMessage>, Option<u16>, Occupant)>,
    peers: BTreeMap<ConnId, PeerConnection>,
    conns: HashMap<Token, ConnId>,
    last_conn: ConnId,
    /// Connections without a join message so far, and their deadlines.
    unjoined: BTreeMap<ConnId, Time>,
    join_max: Duration,
    /// Connections with input that the poller will not report.
    unread: BTreeSet<ConnId>,
    /// Connections with queued output.
    unsent: BTreeSet<ConnId>,
    /// The bytes that peers may make this master keep, and those that have arrived or were queued since it looked.
    held_bytes_max: usize,
    moved_bytes: usize,
    refusals: Refusals,
    /// The last long message: all members of a group get it.
    long: Option<SharedMessage<ToPeer>>,
    tours: RingSolver,
    lease: Option<EtcdLease>,
    doctors: DoctorService,
    examinations: Examinations,
    crash: Option<Crash>,
    journal: Arc<Source>,
    observers: Observers,
    admin_token: JoinToken,
    inquiries: Arc<Inquiries>,
    history: History,
    started: Instant,
    list: MasterList,
}

impl Server {
    pub fn new(
        plan: &MasterOptions,
        list: MasterList,
        poller: Arc<Poller>,
        listener: Listener,
        inquiries: Arc<Inquiries>,
    ) -> Result<Self, Error> {
        let seed = random::bytes().map_err(|e| Error::system("the master's identity", &e))?;
        let security = poller.security().map_err(|e| Error::system("the keys of the master", &e))?;
        let me = security.peer();
        let clock = Clock::start();
        let failed = |e: io::Error| Error::system("starting the thread of the lease failed", &e);
        let start = |address| EtcdLease::start(address, list.me, clock, poller.clone()).map_err(failed);
        let lease = plan.etcd()?.map(start).transpose()?;
        let (timing, tuning) = (plan.timing, plan.tuning);
        let named = plan.masters.iter().zip(&list.addresses);
        let named = named.map(|(name, addresses)| MasterAddress::new(name, addresses.clone()));
        let others = (0..).zip(named).filter(|(index, _)| *index != list.me && lease.is_none());
        let others = others.map(|(index, address)| (index, OtherMaster::new(me, address))).collect();
        let machine = Coordinator::new(
            MasterConfig {
                timing,
                recovery: plan.recovery,
                peers_max: plan.peers_max(),
                tuning,
                appraise: ringfold_plan::estimate::gain_percent,
                relays: plan.relays()?,
                signer: signer(&security),
                seed,
            },
            list.clone(),
        );
        let machine = if lease.is_some() { machine.with_lease() } else { machine };
        let (examinations, examine) = Examinations::new(poller.clone());
        let doctors = DoctorService::of_master(plan.token.clone(), security.clone(), Some(examine))
            .map_err(|e| Error::system("the master's identity", &e))?;
        Ok(Self {
            clock,
            listener,
            token: plan.token.clone(),
            certificates: security.version(),
            claims: ClaimChecker::new(security.clone()),
            security,
            peers: BTreeMap::new(),
            conns: HashMap::new(),
            last_conn: ConnId(0),
            unjoined: BTreeMap::new(),
            join_max: limits::JOIN_MAX.min(3 * timing.silence_max),
            unread: BTreeSet::new(),
            unsent: BTreeSet::new(),
            held_bytes_max: plan.held_bytes_max,
            moved_bytes: 0,
            refusals: Refusals::default(),
            long: None,
            tours: RingSolver::new(poller.clone(), timing.tour_max),
            crash: plan.crash_after_commits.map(Crash::after_commits),
            observers: Observers::default(),
            admin_token: plan.admin_token.clone(),
            inquiries,
            history: History::new(Instant::now()),
            started: Instant::now(),
            list,
            others,
            from_masters: HashMap::new(),
            machine,
            lease,
            doctors,
            examinations,
            poller,
            journal: Source::new(SourceKind::Master, process_name(NAME_BYTES_MAX), &plan.settings),
        })
    }

    /// Where its events are posted.
    pub fn journal(&self) -> &Arc<Source> {
        &self.journal
    }

    /// Serves until it is interrupted. Then all connections are closed, without a word: a master may follow.
    pub fn serve(mut self, interrupted: &AtomicBool, turns: &AtomicU64) -> Result<(), Error> {
        let failed = |e: io::Error| Error::system("the master's loop", &e);
        let mut ready = Readiness::default();
        while !interrupted.load(Ordering::Acquire) {
            let time_until_due = self.time_until_due(self.clock.now());
            self.poller.wait(&mut ready, time_until_due).map_err(failed)?;
            turns.fetch_add(1, Ordering::Release);
            let now = self.clock.now();
            // First: a master that was suspended must not decide anything.
            while let Some(state) = self.lease.as_mut().and_then(EtcdLease::next_state) {
                self.machine.handle_lease(now, state);
            }
            for conn in std::mem::take(&mut self.unread) {
                self.receive(now, conn);
            }
            for token in ready.tokens() {
                self.handle_ready(now, token);
            }
            self.expire(now);
            while let Some((ticket, answer)) = self.tours.answer() {
                self.machine.handle_tour(now, ticket, answer);
            }
            while let Some((examination, asked)) = self.examinations.begin(now, &self.peers) {
                let message = ToPeer::Examine { examination };
                let message = Numbered { number: 0, acknowledged: 0, message };
                asked.into_iter().for_each(|conn| self.send(now, conn, &message));
            }
            while let Some(inquiry) = self.inquiries.next() {
                let reply = self.answer(now, inquiry.question.clone());
                inquiry.answer(reply);
            }
            self.limit_held(now);
            self.act_and_flush(now);
        }
        self.journal.post(Event::Ended);
        Ok(())
    }

    /// How long there is nothing to do unless something arrives.
    fn time_until_due(&self, now: Time) -> Duration {
        if !self.unread.is_empty() {
            return Duration::ZERO;
        }
        // Certificates may be revoked.
        let sleep_max =
            if self.security.has_certificates() { limits::CERTIFICATES_EVERY } else { limits::SLEEP_MAX };
        let deadlines = [
            self.machine.poll_timeout(),
            self.listener.poll_timeout(),
            self.unjoined.values().copied().min(),
            self.others.values().filter_map(OtherMaster::poll_timeout).min(),
            self.from_masters.values().map(|(.., occupant)| occupant.since + self.join_max).min(),
            self.examinations.poll_timeout(),
            self.observers.poll_timeout(),
            self.refusals.poll_timeout(),
        ];
        deadlines.into_iter().flatten().min().map_or(sleep_max, |at| at.since(now).min(sleep_max))
    }

    /// Something can be done with a connection.
    fn handle_ready(&mut self, now: Time, token: Token) {
        if let Some(conn) = self.conns.get(&token).copied() {
            self.unsent.insert(conn);
            return self.receive(now, conn);
        }
        if self.from_masters.contains_key(&token) {
            return self.receive_from_master(now, token);
        }
        if let Some(index) = self.others.iter().find(|(_, other)| other.owns(token)).map(|(index, _)| *index)
        {
            return self.advance_other(now, index);
        }
        if self.observers.owns(token) {
            return self.serve_observer(now, token);
        }
        let has_others = !self.others.is_empty();
        let (is_full, join_token) = (self.peers.len() >= limits::CONNECTIONS_MAX, &self.token);
        let (doctors, admin_token) = (&self.doctors, &self.admin_token);
        let has_certificates = self.security.has_certificates();
        let secrets = |hello: &Hello| match hello.purpose {
            Purpose::Control if is_full => Err(ConnectionRejection::Full),
            Purpose::Control => Ok(join_token.secret()),
            Purpose::Masters if has_others => Ok(join_token.secret()),
            Purpose::Doctor if !doctors.has_room() => Err(ConnectionRejection::Full),
            Purpose::Doctor => Ok(join_token.secret()),
            Purpose::Observe => Ok(join_token.secret()),
            Purpose::Admin if !admin_token.is_none() => Ok(admin_token.secret()),
            Purpose::Admin if has_certificates => Ok(join_token.secret()),
            Purpose::Admin => Err(ConnectionRejection::NoAdmin),
            _ => Err(ConnectionRejection::WrongPurpose),
        };
        let identity = Identity::new(MASTER.0, MASTER.1);
        self.listener.handle_ready(now, token, identity, &secrets);
        self.take_outcomes(now);
    }

    /// Ends what took too long.
    fn expire(&mut self, now: Time) {
        self.listener.handle_timeout(now);
        self.take_outcomes(now);
        let late = self.unjoined.iter().filter(|(_, deadline)| **deadline <= now).map(|(conn, _)| *conn);
        for conn in late.collect::<Vec<_>>() {
            self.dismiss(now, conn, "no join message in time".into());
        }
        let join_max = self.join_max;
        self.from_masters.retain(|_, (.., occupant)| occupant.since + join_max > now);
        self.refusals.handle_timeout(now);
        self.observers.handle_timeout(now);
        self.dismiss_revoked(now);
        self.examinations.expire(now);
        if self.machine.poll_timeout().is_some_and(|at| at <= now) {
            self.machine.handle_timeout(now);
        }
        let is_due = |other: &OtherMaster| other.poll_timeout().is_some_and(|at| at <= now);
        let due = self.others.iter().filter(|(_, other)| is_due(other)).map(|(index, _)| *index);
        for index in due.collect::<Vec<_>>() {
            self.advance_other(now, index);
        }
    }

    fn advance_other(&mut self, now: Time, index: u16) {
        let Some(other) = self.others.get_mut(&index) else { return };
        if other.advance(now, self.token.secret(), &self.poller) {
            self.machine.handle_master_connected(now, index);
        }
    }

    /// Hands over what another master has sent.
    fn receive_from_master(&mut self, now: Time, token: Token) {
        let Some((control, index, occupant)) = self.from_masters.get_mut(&token) else { return };
        let mut received = control.connection.fill().map(|_| ());
        loop {
            match control.next() {
                Ok(Some(message)) => {
                    *index = Some(message.sender());
                    (occupant.since, occupant.has_begun) = (now, true);
                    self.machine.handle_master_message(now, message);
                }
                Ok(None) => break,
                Err(error) => {
                    received = Err(error);
                    break;
                }
            }
        }
        // Another master has one connection: the newest.
        let index = *index;
        self.from_masters.retain(|of, (_, other, _)| *of == token || index.is_none() || *other != index);
        if let Err(error) = received {
            tracing::debug!(target: "ringfold::master", "lost the connection of another master: {error}");
            self.forget_master(now, token);
        }
    }

    fn forget_master(&mut self, now: Time, token: Token) {
        // A master has one connection.
        if let Some((_, Some(from), _)) = self.from_masters.remove(&token) {
            self.machine.handle_master_lost(now, from);
        }
    }

    /// Closes all connections of ends whose certificate was revoked since they connected.
    fn dismiss_revoked(&mut self, now: Time) {
        let version = self.security.version();
        if core::mem::replace(&mut self.certificates, version) == version {
            return;
        }
        let revoked = self.peers.iter().filter(|(_, peer)| is_revoked(&peer.control.connection));
        for conn in revoked.map(|(conn, _)| *conn).collect::<Vec<_>>() {
            self.dismiss(now, conn, "its certificate was revoked".into());
        }
        let revoked = self.from_masters.iter().filter(|(_, (control, ..))| is_revoked(&control.connection));
        for token in revoked.map(|(token, _)| *token).collect::<Vec<_>>() {
            self.forget_master(now, token);
        }
        self.others.values_mut().for_each(|other| other.dismiss_revoked(now));
        self.observers.dismiss_revoked();
    }

    fn take_outcomes(&mut self, now: Time) {
        while let Some(outcome) = self.listener.poll_outcome() {
            match outcome {
                // The list was read again during its handshake.
                Outcome::Established(_, connection, from) if is_revoked(&connection) => {
                    tracing::warn!(target: "ringfold::master", "rejected connection from {from}: its certificate was revoked");
                }
                Outcome::Established(established, connection, from)
                    if established.purpose == Purpose::Masters =>
                {
                    let token = connection.token();
                    let occupants = self.from_masters.values().map(|(.., occupant)| *occupant);
                    for token in crowd(occupants, limits::MASTER_CONNECTIONS_MAX) {
                        self.from_masters.remove(&token);
                    }
                    let occupant = Occupant { token, from, since: now, has_begun: false };
                    self.from_masters.insert(token, (ControlConnection::new(connection), None, occupant));
                    // What followed the handshake may have been read already.
                    self.receive_from_master(now, token);
                }
                Outcome::Established(established, connection, from)
                    if established.purpose == Purpose::Doctor =>
                {
                    match connection.into_blocking() {
                        Ok(connection) => self.doctors.serve(connection, from),
                        Err(error) => {
                            tracing::debug!(target: "ringfold::master", "cannot answer a doctor at {from}: {error}");
                        }
                    }
                }
                Outcome::Established(established, connection, from)
                    if matches!(established.purpose, Purpose::Observe | Purpose::Admin) =>
                {
                    let token = connection.token();
                    let occupant = Occupant { token, from, since: now, has_begun: false };
                    self.observers.add(connection, occupant, established.purpose == Purpose::Admin);
                    self.serve_observer(now, token);
                }
                Outcome::Established(established, connection, from) => {
                    if let Some(Ok(identity)) = connection.peer_identity() {
                        tracing::info!(target: "ringfold::master", "{from} has the certificate of {identity}");
                    }
                    let peer = PeerConnection::new(connection, from, established.features);
                    self.add(now, peer, established);
                }
                Outcome::Rejected(from, rejection) => {
                    let is_refused = rejection.is_about_secret() || rejection.is_about_certificate();
                    if is_refused && rejection.purpose == Some(Purpose::Control) {
                        self.history.counters.joins_rejected += 1;
                    }
                    // Clients that only open a connection (port scans, health checks) were not rejected.
                    if matches!(rejection.error, None | Some(HandshakeError::Truncated { .. })) {
                        tracing::debug!(target: "ringfold::master", "no handshake with {from}: {rejection}");
                    } else if self.refusals.allow_log(now, from) {
                        tracing::warn!(target: "ringfold::master", "rejected connection from {from}: {rejection}");
                    }
                }
            }
        }
    }

    fn add(&mut self, now: Time, peer: PeerConnection, established: Established) {
        self.last_conn = ConnId(self.last_conn.0 + 1);
        let conn = self.last_conn;
        let round_trip = peer.control.connection.round_trip();
        self.conns.insert(peer.control.connection.token(), conn);
        self.peers.insert(conn, peer);
        self.unjoined.insert(conn, now + self.join_max);
        self.unsent.insert(conn);
        self.machine.handle_connected(now, conn, established.peer);
        if let Ok(round_trip) = round_trip {
            self.machine.handle_round_trip(conn, round_trip);
        }
        // What followed the handshake may have been read already, and then the poller will not report it.
        self.receive(now, conn);
    }

    /// Hands over what arrived on a connection, as much as one turn takes.
    fn receive(&mut self, now: Time, conn: ConnId) {
        let Some(peer) = self.peers.get_mut(&conn) else { return };
        let (machine, unjoined, claims) = (&mut self.machine, &mut self.unjoined, &mut self.claims);
        let examinations = &mut self.examinations;
        let (mut moved_bytes, held_before, from) = (0, peer.control.held_bytes(), peer.from);
        let received = peer.receive(|mut message, bytes| {
            moved_bytes += bytes;
            if let ToMaster::Examined { examination, findings } = message.message {
                return examinations.handle_answer(conn, examination, findings);
            }
            if let Some(resume) = message.message.resume_mut() {
                claims.check(resume, from, machine.incarnation());
            }
            if message.message.join_mut().is_some() {
                unjoined.remove(&conn);
            }
            machine.handle_message(now, conn, message);
        });
        self.moved_bytes += moved_bytes + peer.control.held_bytes().saturating_sub(held_before);
        match received {
            Ok(true) => {
                self.unread.insert(conn);
            }
            Ok(false) => {}
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                self.dismiss(now, conn, format!("invalid message: {error}"));
            }
            Err(error) => {
                tracing::debug!(target: "ringfold::master", "lost connection of {}: {error}", peer.from);
                self.lose(now, conn);
            }
        }
        self.limit_held(now);
    }

    /// Dismisses the peers that make this master keep most, until all together are within the limit.
    fn limit_held(&mut self, now: Time) {
        if self.moved_bytes < self.held_bytes_max / limits::HELD_LOOKS {
            return;
        }
        self.moved_bytes = 0;
        for _ in 0..limits::CONNECTIONS_MAX {
            let connections = self.peers.iter().map(|(conn, peer)| (Ok(*conn), peer.control.held_bytes()));
            let mut held: BTreeMap<_, usize> = BTreeMap::new();
            for (of, bytes) in
                connections.chain(self.machine.machine().into_iter().flat_map(Master::held_bytes))
            {
                *held.entry(of).or_default() += bytes;
            }
            let all = held.values().sum::<usize>();
            let most = held.into_iter().filter(|_| all > self.held_bytes_max).max_by_key(|(_, bytes)| *bytes);
            let Some((of, bytes)) = most else { return };
            let (all, of_this) = (all >> 20, bytes >> 20);
            let reason = format!(
                "the master keeps too much for all peers, {all} MiB, and most for this one, {of_this} MiB"
            );
            match of {
                Ok(conn) => self.dismiss(now, conn, reason),
                Err(peer) => self.machine.evict(now, peer, &reason),
            }
        }
    }

    /// Does what the machine asks for, and sends what is to be sent, until nothing follows from it. All messages for a
    /// peer leave together: one that calls again after an outcome must know the epoch that was proposed with it.
    fn act_and_flush(&mut self, now: Time) {
        loop {
            while let Some(action) = self.machine.poll_action() {
                self.act(now, action);
            }
            let mut is_settled = true;
            for conn in std::mem::take(&mut self.unsent) {
                let Some(peer) = self.peers.get_mut(&conn) else { continue };
                if let Err(error) = peer.control.flush() {
                    tracing::debug!(target: "ringfold::master", "lost connection of {}: {error}", peer.from);
                    self.lose(now, conn);
                    is_settled = false;
                }
            }
            if is_settled {
                self.others.values_mut().for_each(|other| other.flush(now));
                return;
            }
        }
    }

    fn act(&mut self, now: Time, action: MasterAction) {
        match action {
            MasterAction::Send { conn, message } => self.send(now, conn, &message),
            MasterAction::Close { conn } => {
                if let Some(peer) = self.forget(conn) {
                    self.listener.close(now, peer.control.connection);
                    self.machine.handle_lost(now, conn);
                }
            }
            MasterAction::SolveTour(question) => {
                if let Err(error) = self.tours.ask(question) {
                    // The machine has a deadline for it, and goes on without.
                    tracing::warn!(target: "ringfold::master", "no ring can be sought: {error}");
                }
            }
            MasterAction::SendMaster { to, message } => {
                if let Some(other) = self.others.get_mut(&to) {
                    other.send(&message);
                }
            }
            // The coordinator handles it.
            MasterAction::SetMembers(_) => {}
            MasterAction::Notify(event) => {
                if let (Event::Accepted(..), Some(lease)) = (&event, &self.lease) {
                    lease.note_members();
                }
                if let Some(crash) = &mut self.crash {
                    crash.note(&event);
                }
                self.history.note(Instant::now(), &event);
                if is_change_of_members(&event) {
                    self.inquiries.note_change();
                }
                self.journal.post(event);
            }
        }
    }

    fn send(&mut self, now: Time, conn: ConnId, message: &Numbered<ToPeer>) {
        let Some(peer) = self.peers.get_mut(&conn) else { return };
        if message.message == ToPeer::Report {
            self.unjoined.insert(conn, now + self.join_max);
        }
        let held_before = peer.control.held_bytes();
        let sent = match is_long(&message.message) {
            true => send_shared(&mut self.long, &mut peer.control.connection, message),
            false => peer.control.send(message),
        };
        if let Err(error) = sent {
            tracing::error!(target: "ringfold::master", "failed to encode a message for {}: {error}", peer.from);
            // It would fail again on the next connection.
            if self.forget(conn).is_some() {
                self.machine.handle_closed(now, conn);
            }
            return;
        }
        self.moved_bytes += peer.control.held_bytes() - held_before;
        self.unsent.insert(conn);
        if self.crash.as_ref().is_some_and(|c| c.is_due(&message.message)) {
            let end = Instant::now() + limits::JOIN_MAX;
            while peer.control.connection.queued_bytes() > 0 && Instant::now() < end {
                let _ = peer.control.flush();
            }
            std::process::abort();
        }
        // Long messages for all members need not be held together; what was queued before them leaves with them.
        if is_long(&message.message)
            && let Err(error) = peer.control.flush()
        {
            tracing::debug!(target: "ringfold::master", "lost connection of {}: {error}", peer.from);
            self.lose(now, conn);
        }
    }

    /// Closes the connection of a peer that misbehaves, and tells it why.
    fn dismiss(&mut self, now: Time, conn: ConnId, reason: String) {
        let Some(mut peer) = self.forget(conn) else { return };
        if self.refusals.allow_log(now, peer.from) {
            tracing::warn!(target: "ringfold::master", "closing connection of {}: {reason}", peer.from);
        }
        let is_read = peer.control.connection.queued_bytes() < limits::FAREWELL_BYTES_MAX;
        let message = ToPeer::Removed { reason: Removal::Disconnected(reason) };
        let farewell = Numbered { number: 0, acknowledged: 0, message };
        if is_read && peer.control.send(&farewell).is_ok() {
            self.listener.close(now, peer.control.connection);
        }
        self.machine.handle_closed(now, conn);
    }

    /// A connection is broken.
    fn lose(&mut self, now: Time, conn: ConnId) {
        if self.forget(conn).is_some() {
            self.machine.handle_lost(now, conn);
        }
    }

    fn forget(&mut self, conn: ConnId) -> Option<PeerConnection> {
        let peer = self.peers.remove(&conn)?;
        self.conns.remove(&peer.control.connection.token());
        self.unjoined.remove(&conn);
        self.unread.remove(&conn);
        self.examinations.forget(conn);
        Some(peer)
    }
}

/// Whether the certificate of the other end was revoked since the connection was made.
pub(super) fn is_revoked(connection: &Connection) -> bool {
    connection.peer_identity() == Some(Err(CertificateProblem::Revoked))
}

/// Whether somebody who watches the run should hear of it at once.
fn is_change_of_members(event: &Event) -> bool {
    matches!(
        event,
        Event::Registered(_)
            | Event::Accepted(..)
            | Event::Departed(..)
            | Event::Suspected(_)
            | Event::Reconnected(_)
            | Event::EpochOpened(..)
            | Event::Leads(_)
            | Event::SteppedDown(..)
            | Event::Draining(_)
    )
}

/// Whether a message names all members.
fn is_long(message: &ToPeer) -> bool {
    matches!(message, ToPeer::EpochProposed { .. })
}

/// Queues a message that is probably the same as the last one, which need not be encoded again.
fn send_shared(
    last: &mut Option<SharedMessage<ToPeer>>,
    connection: &mut Connection,
    message: &Numbered<ToPeer>,
) -> io::Result<()> {
    if last.as_ref().is_none_or(|last| !last.is(&message.message)) {
        *last = Some(SharedMessage::new(message.message.clone()).map_err(io::Error::other)?);
    }
    if let Some(last) = last {
        connection.send(&last.encode(message.number, message.acknowledged).map_err(io::Error::other)?);
    }
    Ok(())
}
