//! An attempt to make a link.

use super::head::{self, StreamHead};
use crate::connection::Connection;
use crate::dialer::{Credentials, DialTiming, Dialed, Dialer};
use crate::limits;
use crate::link::Link;
use crate::poller::{Poller, Token};
use crate::quic::QuicEndpoint;
use crate::random;
use crate::relay::Relays;
use crate::shared_link::Offer;
use ringfold_proto::time::Time;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The state of an attempt.
#[derive(Debug)]
pub enum Attempt {
    /// This end dials at this time, if the other end has not.
    Due(Time),
    /// This end has dialled.
    OutgoingLink(Box<OutgoingLink>),
    /// The other end has dialled, and some of its streams have arrived.
    IncomingLink(IncomingLink),
}

impl Attempt {
    /// When to advance it even if nothing arrives.
    pub fn timeout(&self) -> Time {
        match self {
            Self::Due(at) => *at,
            Self::OutgoingLink(outgoing) => {
                let dialers = outgoing.dialers.iter().filter_map(|(_, dialer)| dialer.poll_timeout());
                let offer = outgoing.offer_sent.iter().map(|offer_sent| offer_sent.deadline);
                let by_quic = outgoing.by_quic.iter();
                let quic =
                    by_quic.flat_map(|by_quic| [Some(by_quic.deadline), by_quic.dialer.poll_timeout()]);
                dialers.chain(offer).chain(quic.flatten()).min().unwrap_or(Time::ZERO)
            }
            Self::IncomingLink(incoming) => incoming.deadline,
        }
    }

    /// Whether a token belongs to one of its sockets.
    pub fn has(&self, token: Token) -> bool {
        let Self::OutgoingLink(outgoing) = self else { return false };
        outgoing.dialers.iter().any(|(_, dialer)| dialer.owns(token))
            || outgoing.by_quic.as_ref().is_some_and(|by_quic| by_quic.dialer.owns(token))
            || outgoing.offer_sent.as_ref().is_some_and(|offer_sent| offer_sent.connection.token() == token)
    }

    /// Whether this end has dialled and chosen the connection of the link.
    pub fn has_chosen(&self) -> bool {
        matches!(self, Self::OutgoingLink(outgoing) if outgoing.count > 0)
    }

    /// Whether streams of the other end arrive.
    pub fn is_incoming(&self) -> bool {
        matches!(self, Self::IncomingLink(_))
    }
}

/// A link that this end dials: first one stream, then the others.
#[derive(Debug)]
pub struct OutgoingLink {
    credentials: Credentials,
    link: u64,
    options: LinkOptions,
    /// Streams of the link; known when the first one is connected.
    count: u16,
    dialers: Vec<(u16, Dialer)>,
    done: Vec<(u16, Connection)>,
    /// An offer of shared memory, until it is answered.
    offer_sent: Option<PendingOffer>,
    /// A QUIC connection that is being made.
    by_quic: Option<PendingQuic>,
    /// The relay that it goes through.
    relay: Option<SocketAddr>,
}

/// A QUIC connection that is being made, and the TCP connection beside it.
#[derive(Debug)]
struct PendingQuic {
    dialer: Dialer,
    guard: Connection,
    address: SocketAddr,
    deadline: Time,
}

/// Options of a link.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// Streams, to another host.
    pub streams: u16,
    /// Whether to offer shared memory.
    pub shares: bool,
    /// Makes QUIC connections, for long links.
    pub quic: Option<Arc<QuicEndpoint>>,
    /// Relays, and from when on they are used.
    pub relays: Option<(Relays, Time)>,
}

/// An offer of shared memory that was not answered yet.
#[derive(Debug)]
struct PendingOffer {
    offer: Offer,
    connection: Connection,
    deadline: Time,
}

impl OutgoingLink {
    /// Dials the first stream.
    pub fn begin(
        now: Time,
        addresses: &[SocketAddr],
        credentials: Credentials,
        options: LinkOptions,
        poller: &Arc<Poller>,
    ) -> io::Result<Self> {
        let link = u64::from_le_bytes(random::bytes()?);
        let mut first =
            Dialer::new(now, addresses.iter().copied(), credentials.clone(), DialTiming::of(poller), poller);
        if let Some((relays, not_before)) = &options.relays {
            first = first.through(relays, *not_before);
        }
        let (dialers, done) = (vec![(0, first)], Vec::new());
        let (offer_sent, by_quic, relay) = (None, None, None);
        Ok(Self { credentials, link, options, count: 0, dialers, done, offer_sent, by_quic, relay })
    }

    /// The relay that the link goes through, once it is made.
    pub fn relay(&self) -> Option<SocketAddr> {
        self.relay
    }

    /// Advances what a token belongs to, or what is due. Returns the link once it is made.
    pub fn advance(
        &mut self,
        now: Time,
        token: Option<Token>,
        poller: &Arc<Poller>,
    ) -> Result<Option<Link>, String> {
        if self.offer_sent.as_ref().is_some_and(|offer_sent| now >= offer_sent.deadline) {
            return Err("timed out waiting for the answer to an offer of shared memory".into());
        }
        if self.offer_sent.is_some() {
            return self.read_answer().map_err(|error| error.to_string());
        }
        if let Some(by_quic) = self.by_quic.take() {
            return self.advance_quic(now, by_quic, poller).map_err(|error| error.to_string());
        }
        let mut at = 0;
        while let Some((index, dialer)) = self.dialers.get_mut(at) {
            let is_concerned = match token {
                Some(token) => dialer.owns(token),
                None => dialer.poll_timeout().is_some_and(|at| at <= now),
            };
            let dialed = match is_concerned {
                true => dialer.advance(now).map_err(|error| error.to_string())?,
                false => None,
            };
            let Some(dialed) = dialed else {
                at += 1;
                continue;
            };
            let index = *index;
            self.dialers.swap_remove(at);
            self.add_stream(now, index, dialed, poller).map_err(|error| error.to_string())?;
        }
        if self.count == 0 || self.done.len() < usize::from(self.count) {
            return Ok(None);
        }
        self.done.sort_by_key(|(index, _)| *index);
        Ok(Some(Link::new(self.done.drain(..).map(|(_, connection)| connection).collect())))
    }

    /// Sends the head of a stream. After the first one, dials all others.
    fn add_stream(&mut self, now: Time, index: u16, dialed: Dialed, poller: &Arc<Poller>) -> io::Result<()> {
        let Dialed { connection, address, .. } = dialed;
        self.relay = connection.relay();
        if index == 0
            && let Some((endpoint, round_trip)) = self.quic_for(&connection, address)
        {
            let endpoint = (endpoint, round_trip);
            let dialer = Dialer::by_quic(now, address, self.credentials.clone(), endpoint, poller);
            let deadline = now + limits::QUIC_CONNECT_MAX + 5 * round_trip;
            self.count = 2;
            self.by_quic = Some(PendingQuic { dialer, guard: connection, address, deadline });
            return Ok(());
        }
        self.use_stream(now, index, connection, address, poller)
    }

    /// Sends the head of a TCP stream, with an offer of shared memory if the other end may share it.
    fn use_stream(
        &mut self,
        now: Time,
        index: u16,
        mut connection: Connection,
        address: SocketAddr,
        poller: &Arc<Poller>,
    ) -> io::Result<()> {
        let offer = if self.options.shares { self.offer() } else { None };
        if index == 0 {
            // Within a host one stream is as fast as many. A relay joins one connection at a time.
            let is_one = self.options.shares || address.ip().is_loopback() || self.relay.is_some();
            self.count = if is_one { 1 } else { self.options.streams };
        }
        let ticket = offer.as_ref().map(Offer::ticket);
        let head = StreamHead { link: self.link, index, count: self.count, offer: ticket, is_guarded: false };
        connection.send(&head.encode());
        connection.flush(&mut Vec::new())?;
        if let Some(offer) = offer {
            self.offer_sent =
                Some(PendingOffer { offer, connection, deadline: now + poller.limits().handshake_max });
            return Ok(());
        }
        self.done.push((index, connection));
        if index == 0 {
            let dial =
                || Dialer::new(now, [address], self.credentials.clone(), DialTiming::of(poller), poller);
            self.dialers = (1..self.count).map(|index| (index, dial())).collect();
        }
        Ok(())
    }

    /// The endpoint and the round-trip time, if the link should use QUIC: it is long, and UDP is not known to be blocked.
    fn quic_for(
        &self,
        connection: &Connection,
        address: SocketAddr,
    ) -> Option<(Arc<QuicEndpoint>, Duration)> {
        let may_use = !self.options.shares && self.relay.is_none();
        let endpoint = self.options.quic.as_ref().filter(|_| may_use)?;
        let round_trip = connection.round_trip().ok()?;
        endpoint.suits(address, round_trip).then(|| (endpoint.clone(), round_trip))
    }

    /// Advances the QUIC connection. If it cannot be made, the link uses TCP.
    fn advance_quic(
        &mut self,
        now: Time,
        by_quic: PendingQuic,
        poller: &Arc<Poller>,
    ) -> io::Result<Option<Link>> {
        let PendingQuic { mut dialer, mut guard, address, deadline } = by_quic;
        let why = match dialer.advance(now) {
            Ok(Some(Dialed { connection: mut data, .. })) => {
                for (index, stream) in [(0, &mut guard), (1, &mut data)] {
                    stream.send(&StreamHead::guarded(self.link, index).encode());
                    stream.flush(&mut Vec::new())?;
                }
                return Ok(Some(Link::guarded(guard, data)));
            }
            Ok(None) if now < deadline => {
                self.by_quic = Some(PendingQuic { dialer, guard, address, deadline });
                return Ok(None);
            }
            Ok(None) => "no answer".to_owned(),
            Err(error) => error.to_string(),
        };
        tracing::info!(
            "no QUIC connection with {address}: {why}; using TCP (is UDP blocked on port {}?)",
            address.port()
        );
        if let Some(endpoint) = self.options.quic.take() {
            endpoint.note_silence(address.ip());
        }
        self.use_stream(now, 0, guard, address, poller)?;
        Ok(None)
    }

    /// Shared memory for the link, if possible.
    fn offer(&self) -> Option<Offer> {
        let offer = Offer::new();
        if let Err(error) = &offer {
            tracing::debug!("failed to create shared memory: {error}; using TCP");
        }
        offer.ok()
    }

    fn read_answer(&mut self) -> io::Result<Option<Link>> {
        let Some(PendingOffer { offer, mut connection, deadline }) = self.offer_sent.take() else {
            return Ok(None);
        };
        let filled = connection.fill();
        let answer = connection.take(|input| {
            let (answer, rest) = input.split_first()?;
            *input = rest;
            Some(*answer)
        });
        match answer {
            Some(head::ACCEPTED) => Ok(Some(Link::Shared(Box::new(offer.accepted(connection))))),
            Some(head::DECLINED) => {
                tracing::debug!("the other end declined shared memory; using TCP");
                Ok(Some(Link::new(vec![connection])))
            }
            Some(_) => Err(io::Error::other("invalid answer to an offer of shared memory")),
            None => {
                filled?;
                self.offer_sent = Some(PendingOffer { offer, connection, deadline });
                Ok(None)
            }
        }
    }
}

/// A link that the other end dials.
#[derive(Debug)]
pub struct IncomingLink {
    link: u64,
    streams: Vec<Option<Connection>>,
    deadline: Time,
}

impl IncomingLink {
    /// For a link with this first stream. It is given up at the deadline.
    pub fn new(deadline: Time, head: &StreamHead) -> Self {
        let streams = (0..head.count).map(|_| None).collect();
        Self { link: head.link, streams, deadline }
    }

    /// When it is given up.
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// Whether a stream belongs to this link.
    pub fn is_of(&self, head: &StreamHead) -> bool {
        self.link == head.link && self.streams.len() == usize::from(head.count)
    }

    /// Adds a stream. Returns all of them once they are complete.
    pub fn take(&mut self, head: StreamHead, connection: Connection) -> Option<Vec<Connection>> {
        *self.streams.get_mut(usize::from(head.index))? = Some(connection);
        if self.streams.iter().any(Option::is_none) {
            return None;
        }
        Some(self.streams.drain(..).flatten().collect())
    }
}
