//! An attempt to make a link.

use super::head::{self, StreamHead};
use crate::connection::Connection;
use crate::dialer::{Credentials, DialTiming, Dialed, Dialer};
use crate::limits;
use crate::link::Link;
use crate::poller::{Poller, Token};
use crate::random;
use crate::shared_link::Offer;
use ringfold_proto::time::Time;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

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
                dialers.chain(offer).min().unwrap_or(Time::ZERO)
            }
            Self::IncomingLink(incoming) => incoming.deadline,
        }
    }

    /// Whether a token belongs to one of its sockets.
    pub fn has(&self, token: Token) -> bool {
        let Self::OutgoingLink(outgoing) = self else { return false };
        outgoing.dialers.iter().any(|(_, dialer)| dialer.owns(token))
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
}

/// Options of a link.
#[derive(Clone, Copy, Debug)]
pub struct LinkOptions {
    /// Streams, to another host.
    pub streams: u16,
    /// Whether to offer shared memory.
    pub shares: bool,
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
        let first =
            Dialer::new(now, addresses.iter().copied(), credentials.clone(), DialTiming::default(), poller);
        let (dialers, done, offer_sent) = (vec![(0, first)], Vec::new(), None);
        Ok(Self { credentials, link, options, count: 0, dialers, done, offer_sent })
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
        let Dialed { mut connection, address, .. } = dialed;
        let offer = if self.options.shares { self.offer() } else { None };
        if index == 0 {
            // Within a host one stream is as fast as many.
            let is_one = self.options.shares || address.ip().is_loopback();
            self.count = if is_one { 1 } else { self.options.streams };
        }
        let ticket = offer.as_ref().map(Offer::ticket);
        let head = StreamHead { link: self.link, index, count: self.count, offer: ticket };
        connection.send(&head.encode());
        connection.flush(&mut Vec::new())?;
        if let Some(offer) = offer {
            self.offer_sent = Some(PendingOffer { offer, connection, deadline: now + limits::HANDSHAKE_MAX });
            return Ok(());
        }
        self.done.push((index, connection));
        if index == 0 {
            let dial =
                || Dialer::new(now, [address], self.credentials.clone(), DialTiming::default(), poller);
            self.dialers = (1..self.count).map(|index| (index, dial())).collect();
        }
        Ok(())
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
    /// For a link with this first stream.
    pub fn new(now: Time, head: &StreamHead) -> Self {
        let streams = (0..head.count).map(|_| None).collect();
        Self { link: head.link, streams, deadline: now + limits::HANDSHAKE_MAX }
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
