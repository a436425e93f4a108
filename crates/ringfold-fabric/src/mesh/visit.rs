//! Connections for shared state and probes: by QUIC on long paths, as links are.

use super::head::StreamHead;
use crate::clock::Clock;
use crate::connection::{BlockingConnection, Connection};
use crate::dialer::{Credentials, DialTiming, Dialed, Dialer, dial_again, time_left};
use crate::limits;
use crate::poller::{Poller, Readiness};
use crate::quic::QuicEndpoint;
use crate::random;
use crate::relay::Relays;
use ringfold_proto::time::Time;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Dials members for shared state and probes, from threads that may block.
#[derive(Clone, Debug)]
pub struct VisitDialer {
    /// Connections take its settings, and it checks whether their hosts answer.
    pub(super) poller: Arc<Poller>,
    pub(super) quic: Option<Arc<QuicEndpoint>>,
}

/// The part of a caller's time after which QUIC is given up, so that the rest is left for TCP.
const QUIC_SHARE: f64 = 0.9;

/// A QUIC connection that is being made.
struct PendingQuic {
    dialer: Dialer,
    address: SocketAddr,
    deadline: Time,
}

impl VisitDialer {
    /// Dials by TCP alone.
    pub fn new(poller: Arc<Poller>) -> Self {
        Self { poller, quic: None }
    }

    /// Connects to a member, and again if it refuses only for now. On a long path the connection is by QUIC, with a TCP
    /// connection beside it that shows when the other process ends; if UDP is blocked, it is by TCP. Relays are used after a
    /// head start of the addresses, by TCP.
    pub fn dial(
        &self,
        addresses: &[SocketAddr],
        timeout: Duration,
        credentials: &Credentials,
        (relays, mut head_start): (&Relays, Duration),
    ) -> io::Result<BlockingConnection> {
        let poller = Arc::new(Poller::like(&self.poller)?);
        dial_again(timeout, |end| {
            let dial = |head_start| {
                let route = (relays, head_start);
                self.dial_streams(addresses, (end, timeout), credentials, route, &poller)
            };
            let streams = match dial(head_start) {
                // All addresses failed before it was time for the relays.
                Err(_) if !core::mem::take(&mut head_start).is_zero() && !relays.addresses.is_empty() => {
                    dial(Duration::ZERO)
                }
                dialed => dialed,
            }?;
            let connection = into_blocking(streams)?;
            connection.check_guard_in(&self.poller)?;
            Ok(connection)
        })
    }

    /// Dials by TCP, and by QUIC as soon as the path turns out to be long.
    fn dial_streams(
        &self,
        addresses: &[SocketAddr],
        (end, timeout): (Instant, Duration),
        credentials: &Credentials,
        (relays, head_start): (&Relays, Duration),
        poller: &Arc<Poller>,
    ) -> io::Result<Vec<Connection>> {
        let (clock, mut ready) = (Clock::start(), Readiness::default());
        let timing = DialTiming { answer_max: timeout, ..DialTiming::of(poller) };
        let by_tcp = Dialer::new(clock.now(), addresses.iter().copied(), credentials.clone(), timing, poller);
        let mut by_tcp = by_tcp.through(relays, clock.now() + head_start);
        let (mut guard, mut by_quic, mut data): (Option<Dialed>, Option<PendingQuic>, _) = (None, None, None);
        let mut endpoint = self.quic.as_ref();
        let mut is_judged = true;
        loop {
            let now = clock.now();
            if guard.is_none() {
                guard = by_tcp.advance(now)?;
            }
            let connected = match &guard {
                Some(guard) if guard.connection.relay().is_some() => None,
                Some(guard) => guard.connection.round_trip().ok().map(|time| (guard.address, time)),
                None => by_tcp.accepted(),
            };
            if let (Some((address, round_trip)), Some(quic)) =
                (connected, endpoint.take_if(|_| connected.is_some()))
                && quic.suits(address, round_trip)
            {
                let dialer =
                    Dialer::by_quic(now, address, credentials.clone(), (quic.clone(), round_trip), poller);
                // Nothing is known of UDP if the caller's time is over before.
                let left = end.saturating_duration_since(Instant::now());
                let usual = limits::QUIC_CONNECT_MAX + 5 * round_trip;
                is_judged = left > usual;
                let deadline = now + usual.min(left.mul_f64(QUIC_SHARE));
                by_quic = Some(PendingQuic { dialer, address, deadline });
            }
            if let Some(mut pending) = by_quic.take() {
                let why = match pending.dialer.advance(now) {
                    Ok(Some(dialed)) => {
                        data = Some(dialed.connection);
                        None
                    }
                    Ok(None) if now < pending.deadline => {
                        by_quic = Some(pending);
                        None
                    }
                    Ok(None) if !is_judged => None,
                    Ok(None) => Some((pending.address, "no answer".to_owned())),
                    Err(error) => Some((pending.address, error.to_string())),
                };
                if let Some((address, why)) = why {
                    self.note_silence(address, &why);
                }
            }
            if let Some(guard) = guard.take_if(|_| by_quic.is_none()) {
                return send_heads(guard.connection, data);
            }
            let mut due = time_left(end, timeout)?;
            let timeouts = [
                guard.is_none().then(|| by_tcp.poll_timeout()).flatten(),
                by_quic.as_ref().map(|pending| pending.deadline),
                by_quic.as_ref().and_then(|pending| pending.dialer.poll_timeout()),
            ];
            if let Some(at) = timeouts.into_iter().flatten().min() {
                due = due.min(at.since(clock.now()));
            }
            poller.wait(&mut ready, due.max(Duration::from_micros(100)))?;
        }
    }

    fn note_silence(&self, address: SocketAddr, why: &str) {
        tracing::info!(
            "no QUIC connection with {address}: {why}; using TCP (is UDP blocked on port {}?)",
            address.port()
        );
        self.quic.iter().for_each(|endpoint| endpoint.note_silence(address.ip()));
    }
}

/// Sends the heads of the streams. Without a QUIC connection, the TCP connection carries everything.
fn send_heads(guard: Connection, data: Option<Connection>) -> io::Result<Vec<Connection>> {
    let link = u64::from_le_bytes(random::bytes()?);
    let mut streams: Vec<_> = std::iter::once(guard).chain(data).collect();
    let is_guarded = streams.len() == 2;
    for (index, stream) in (0..).zip(&mut streams) {
        let head = if is_guarded { StreamHead::guarded(link, index) } else { StreamHead::single(link) };
        stream.send(&head.encode());
        stream.flush(&mut Vec::new())?;
    }
    Ok(streams)
}

/// The connection for a thread that may block: the only stream, or the second one, by QUIC, with the first beside it.
pub(super) fn into_blocking(mut streams: Vec<Connection>) -> io::Result<BlockingConnection> {
    let data = streams.pop().ok_or_else(|| io::Error::other("no stream"))?;
    let Some(guard) = streams.pop() else { return data.into_blocking() };
    let quic = data.quic().cloned().ok_or_else(|| io::Error::other("the second stream is not by QUIC"))?;
    let connection = data.into_blocking()?;
    quic.set_guard(guard.into_blocking()?.into_transport());
    Ok(connection)
}
