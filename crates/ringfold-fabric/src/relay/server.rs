//! The loop of a relay, for a thread of its own.

use super::{RelayCounters, RelayHub};
use crate::clock::Clock;
use crate::connection::{BlockingConnection, Connection, Intake};
use crate::join_token::JoinToken;
use crate::limits;
use crate::listener::{Listener, Outcome};
use crate::poller::{Poller, Readiness};
use core::sync::atomic::{AtomicBool, Ordering};
use ringfold_proto::handshake::{HandshakeError, Identity};
use ringfold_proto::hello::{ConnectionRejection, Hello, Purpose};
use ringfold_proto::id::{PeerId, RunId};
use ringfold_proto::time::Time;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A relay: with a listener of its own, or fed with the visitors of a member that volunteers.
#[derive(Debug)]
pub struct RelayServer {
    poller: Arc<Poller>,
    listener: Option<Listener>,
    token: JoinToken,
    hub: RelayHub,
    visitors: Receiver<Visitor>,
    control: Arc<Control>,
}

type Visitor = (PeerId, BlockingConnection);

#[derive(Debug)]
struct Control {
    poller: Arc<Poller>,
    interrupted: AtomicBool,
    counters: Arc<RelayCounters>,
}

/// Feeds and ends a relay, from any thread.
#[derive(Clone, Debug)]
pub struct RelayHandle {
    visitors: Sender<Visitor>,
    control: Arc<Control>,
}

impl RelayHandle {
    /// Adds the connection of a member that has authenticated.
    pub fn add(&self, peer: PeerId, connection: BlockingConnection) {
        if self.visitors.send((peer, connection)).is_ok() {
            self.control.poller.kick();
        }
    }

    /// Ends the relay soon; all its connections are closed.
    pub fn interrupt(&self) {
        self.control.interrupted.store(true, Ordering::Release);
        self.control.poller.kick();
    }

    /// What it has done so far.
    pub fn counters(&self) -> &RelayCounters {
        &self.control.counters
    }
}

impl RelayServer {
    /// A relay without connections. Members prove that they know the join token.
    pub fn new(poller: Arc<Poller>, listener: Option<Listener>, token: JoinToken) -> (Self, RelayHandle) {
        let hub = RelayHub::new(&poller);
        let control =
            Control { poller: poller.clone(), interrupted: AtomicBool::new(false), counters: hub.counters() };
        let (control, (sender, visitors)) = (Arc::new(control), channel());
        let handle = RelayHandle { visitors: sender, control: control.clone() };
        (Self { poller, listener, token, hub, visitors, control }, handle)
    }

    /// Serves until it is interrupted.
    pub fn serve(mut self) -> io::Result<()> {
        let (clock, mut ready) = (Clock::start(), Readiness::default());
        while !self.control.interrupted.load(Ordering::Acquire) {
            let due = self.poll_timeout().map_or(limits::IDLE_MAX, |at| at.since(clock.now()));
            self.poller.wait(&mut ready, due.min(limits::IDLE_MAX))?;
            let now = clock.now();
            self.take_visitors(now);
            for token in ready.tokens() {
                if !self.hub.handle_ready(now, token)
                    && let Some(listener) = &mut self.listener
                {
                    let (is_full, join_token) = (self.hub.is_full(), &self.token);
                    let secrets = |hello: &Hello| match hello.purpose {
                        Purpose::Relay if is_full => Err(ConnectionRejection::Full),
                        Purpose::Relay => Ok(join_token.secret()),
                        _ => Err(ConnectionRejection::WrongPurpose),
                    };
                    listener.handle_ready(now, token, Identity::new(PeerId(0), RunId(0)), &secrets);
                    self.take_outcomes(now);
                }
            }
            if let Some(listener) = &mut self.listener {
                listener.handle_timeout(now);
            }
            self.take_outcomes(now);
            self.hub.handle_timeout(now);
        }
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Time> {
        let listener = self.listener.as_ref().and_then(Listener::poll_timeout);
        listener.into_iter().chain(self.hub.poll_timeout()).min()
    }

    fn take_visitors(&mut self, now: Time) {
        while let Ok((peer, connection)) = self.visitors.try_recv() {
            let from = connection.peer_address();
            let connection = Connection::new(connection, &self.poller, Intake::Frames);
            match from.and_then(|from| Ok((from, connection?))) {
                Ok((from, connection)) => self.hub.add(now, peer, connection, from),
                Err(error) => tracing::debug!("rejected connection of {}: {error}", peer.short()),
            }
        }
    }

    fn take_outcomes(&mut self, now: Time) {
        while let Some(outcome) = self.listener.as_mut().and_then(Listener::poll_outcome) {
            match outcome {
                Outcome::Established(established, connection, from) => {
                    self.hub.add(now, established.peer, connection, from);
                }
                // Clients that only open a connection (port scans, health checks) were not rejected.
                Outcome::Rejected(from, rejection)
                    if matches!(rejection.error, None | Some(HandshakeError::Truncated { .. })) =>
                {
                    tracing::debug!("no handshake with {from}: {rejection}");
                }
                Outcome::Rejected(from, rejection) => {
                    tracing::warn!("rejected connection from {from}: {rejection}");
                }
            }
        }
    }
}
