//! The loop: what arrives goes to the machine, and what the machine asks for is done at once.

use super::builder::MasterBuilder;
use super::crash::Crash;
use super::limits;
use super::peer_connection::PeerConnection;
use super::report::report;
use super::ring_solver::RingSolver;
use crate::Error;
use ringfold_fabric::clock::Clock;
use ringfold_fabric::connection::Connection;
use ringfold_fabric::listener::{Listener, Outcome};
use ringfold_fabric::poller::{Poller, Readiness, Token};
use ringfold_fabric::random;
use ringfold_proto::cause::Removal;
use ringfold_proto::frame::SharedMessage;
use ringfold_proto::handshake::{Established, HandshakeError, Identity, Secret};
use ringfold_proto::hello::{ConnectionRejection, Hello, Purpose};
use ringfold_proto::id::{ConnId, PeerId, RunId};
use ringfold_proto::master::{Master as Machine, MasterAction, MasterConfig};
use ringfold_proto::message::{Numbered, ToMaster, ToPeer};
use ringfold_proto::time::Time;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
    secret: Secret,
    machine: Machine,
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
    /// Bytes of incomplete messages, of all connections.
    held_bytes: usize,
    /// The last long message: all members of a group get it.
    long: Option<SharedMessage<ToPeer>>,
    tours: RingSolver,
    crash: Option<Crash>,
}

impl Server {
    pub fn new(plan: &MasterBuilder, poller: Arc<Poller>, listener: Listener) -> Result<Self, Error> {
        let seed = random::bytes().map_err(|e| Error::system("the master's identity", &e))?;
        let (timing, tuning) = (plan.timing, plan.tuning);
        Ok(Self {
            clock: Clock::start(),
            listener,
            secret: plan.secret(),
            peers: BTreeMap::new(),
            conns: HashMap::new(),
            last_conn: ConnId(0),
            unjoined: BTreeMap::new(),
            join_max: limits::JOIN_MAX.min(3 * timing.silence_max),
            unread: BTreeSet::new(),
            unsent: BTreeSet::new(),
            held_bytes: 0,
            long: None,
            tours: RingSolver::new(poller.clone(), timing.tour_max),
            crash: plan.crash_after_commits.map(Crash::after_commits),
            machine: Machine::new(MasterConfig {
                timing,
                tuning,
                appraise: ringfold_plan::estimate::gain_percent,
                relays: plan.relays()?,
                seed,
            }),
            poller,
        })
    }

    /// Serves until it is interrupted. Then all connections are closed, without a word: a master may follow.
    pub fn serve(mut self, interrupted: &AtomicBool) -> Result<(), Error> {
        let failed = |e: io::Error| Error::system("the master's loop", &e);
        let mut ready = Readiness::default();
        while !interrupted.load(Ordering::Acquire) {
            let time_until_due = self.time_until_due(self.clock.now());
            self.poller.wait(&mut ready, time_until_due).map_err(failed)?;
            let now = self.clock.now();
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
            self.act_and_flush(now);
        }
        tracing::info!(target: "ringfold::master", "the master ends: it was interrupted");
        Ok(())
    }

    /// How long there is nothing to do unless something arrives.
    fn time_until_due(&self, now: Time) -> Duration {
        if !self.unread.is_empty() {
            return Duration::ZERO;
        }
        let deadlines = [
            self.machine.poll_timeout(),
            self.listener.poll_timeout(),
            self.unjoined.values().copied().min(),
        ];
        deadlines
            .into_iter()
            .flatten()
            .min()
            .map_or(limits::SLEEP_MAX, |at| at.since(now).min(limits::SLEEP_MAX))
    }

    /// Something can be done with a connection.
    fn handle_ready(&mut self, now: Time, token: Token) {
        if let Some(conn) = self.conns.get(&token).copied() {
            self.unsent.insert(conn);
            return self.receive(now, conn);
        }
        let (is_full, secret) = (self.peers.len() >= limits::CONNECTIONS_MAX, &self.secret);
        let secrets = |hello: &Hello| match hello.purpose {
            Purpose::Control if is_full => Err(ConnectionRejection::Full),
            Purpose::Control => Ok(secret.clone()),
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
        if self.machine.poll_timeout().is_some_and(|at| at <= now) {
            self.machine.handle_timeout(now);
        }
    }

    fn take_outcomes(&mut self, now: Time) {
        while let Some(outcome) = self.listener.poll_outcome() {
            match outcome {
                Outcome::Established(established, connection, from) => {
                    self.add(now, PeerConnection::new(connection, from), established);
                }
                Outcome::Rejected(from, rejection) => {
                    // Clients that only open a connection (port scans, health checks) were not rejected.
                    if matches!(rejection.error, None | Some(HandshakeError::Truncated { .. })) {
                        tracing::debug!(target: "ringfold::master", "no handshake with {from}: {rejection}");
                    } else {
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
        let (machine, unjoined) = (&mut self.machine, &mut self.unjoined);
        let held_before = peer.control.held_bytes();
        let received = peer.receive(|message| {
            if matches!(message.message, ToMaster::Join(_) | ToMaster::Resume(_)) {
                unjoined.remove(&conn);
            }
            machine.handle_message(now, conn, message);
        });
        let held_bytes = peer.control.held_bytes();
        self.held_bytes = self.held_bytes - held_before + held_bytes;
        match received {
            Ok(_) if self.held_bytes > limits::HELD_BYTES_MAX && held_bytes > held_before => {
                self.dismiss(now, conn, "too many incomplete messages at the master".into());
            }
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
            MasterAction::Notify(event) => {
                if let Some(crash) = &mut self.crash {
                    crash.note(&event);
                }
                report(&event);
            }
        }
    }

    fn send(&mut self, now: Time, conn: ConnId, message: &Numbered<ToPeer>) {
        let Some(peer) = self.peers.get_mut(&conn) else { return };
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
        tracing::warn!(target: "ringfold::master", "closing connection of {}: {reason}", peer.from);
        let message = ToPeer::Removed { reason: Removal::Disconnected(reason) };
        let farewell = Numbered { number: 0, acknowledged: 0, message };
        if peer.control.send(&farewell).is_ok() {
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
        self.held_bytes -= peer.control.held_bytes();
        Some(peer)
    }
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
