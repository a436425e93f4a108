//! How far a wish has come.

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

/// An attempt to make a link.
#[derive(Debug)]
pub enum Attempt {
    /// We dial at this time, if the other end has not.
    Due(Time),
    /// We have dialled.
    Dialling(Box<Dialling>),
    /// The other end has dialled, and some of its streams are here.
    Receiving(Receiving),
}

impl Attempt {
    /// When something is to be done even if nothing arrives.
    pub fn timeout(&self) -> Time {
        match self {
            Self::Due(at) => *at,
            Self::Dialling(dialling) => {
                let dialers = dialling.dialers.iter().filter_map(|(_, dialer)| dialer.poll_timeout());
                let offer = dialling.offering.iter().map(|offering| offering.deadline);
                dialers.chain(offer).min().unwrap_or(Time::ZERO)
            }
            Self::Receiving(receiving) => receiving.deadline,
        }
    }

    /// Whether one of its sockets has this name.
    pub fn has(&self, token: Token) -> bool {
        let Self::Dialling(dialling) = self else { return false };
        dialling.dialers.iter().any(|(_, dialer)| dialer.owns(token))
            || dialling.offering.as_ref().is_some_and(|offering| offering.connection.token() == token)
    }

    /// Whether we have dialled and said on which connection the link is to be.
    pub fn has_chosen(&self) -> bool {
        matches!(self, Self::Dialling(dialling) if dialling.count > 0)
    }

    /// Whether streams of the other end are coming in.
    pub fn is_receiving(&self) -> bool {
        matches!(self, Self::Receiving(_))
    }
}

/// A link that we dial: first one stream, then, when it is known that we are welcome, the others.
#[derive(Debug)]
pub struct Dialling {
    credentials: Credentials,
    link: u64,
    wanted: Wanted,
    /// Streams that the link gets; known when the first one is there.
    count: u16,
    dialers: Vec<(u16, Dialer)>,
    done: Vec<(u16, Connection)>,
    /// Memory was offered in place of the stream.
    offering: Option<Offering>,
}

/// What kind of link is dialled.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Streams, if it goes to another host.
    pub streams: u16,
    /// Whether memory is to be offered.
    pub shares: bool,
    /// How its addresses are tried.
    pub timing: DialTiming,
}

/// Memory that was offered, until the other end has answered.
#[derive(Debug)]
struct Offering {
    offer: Offer,
    connection: Connection,
    deadline: Time,
}

impl Dialling {
    /// Dials the first stream.
    pub fn begin(
        now: Time,
        addresses: &[SocketAddr],
        credentials: Credentials,
        wanted: Wanted,
        poller: &Arc<Poller>,
    ) -> io::Result<Self> {
        let link = u64::from_le_bytes(random::bytes()?);
        let first = Dialer::new(now, addresses.iter().copied(), credentials.clone(), wanted.timing, poller);
        let (dialers, done, offering) = (vec![(0, first)], Vec::new(), None);
        Ok(Self { credentials, link, wanted, count: 0, dialers, done, offering })
    }

    /// Moves on what a token is of, or what is due. The link, once it is there.
    pub fn advance(
        &mut self,
        now: Time,
        token: Option<Token>,
        poller: &Arc<Poller>,
    ) -> Result<Option<Link>, String> {
        if self.offering.as_ref().is_some_and(|offering| now >= offering.deadline) {
            return Err("the answer to an offer of shared memory took too long".into());
        }
        if self.offering.is_some() {
            return self.hear_answer().map_err(|error| error.to_string());
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

    /// Says on a stream which one it is. After the first one all others are dialled.
    fn add_stream(&mut self, now: Time, index: u16, dialed: Dialed, poller: &Arc<Poller>) -> io::Result<()> {
        let Dialed { mut connection, address, .. } = dialed;
        let offer = if self.wanted.shares { self.offer() } else { None };
        if index == 0 {
            // Within a host one stream does as much as many.
            let is_one = self.wanted.shares || address.ip().is_loopback();
            self.count = if is_one { 1 } else { self.wanted.streams };
        }
        let ticket = offer.as_ref().map(Offer::ticket);
        let head = StreamHead { link: self.link, index, count: self.count, offer: ticket };
        connection.send(&head.encode());
        connection.flush(&mut Vec::new())?;
        if let Some(offer) = offer {
            self.offering = Some(Offering { offer, connection, deadline: now + limits::HANDSHAKE_MAX });
            return Ok(());
        }
        self.done.push((index, connection));
        if index == 0 {
            let dial = || Dialer::new(now, [address], self.credentials.clone(), self.wanted.timing, poller);
            self.dialers = (1..self.count).map(|index| (index, dial())).collect();
        }
        Ok(())
    }

    /// Memory for the link, if it can be had.
    fn offer(&self) -> Option<Offer> {
        let offer = Offer::new();
        if let Err(error) = &offer {
            tracing::debug!(%error, "no memory can be shared; a link goes through the network");
        }
        offer.ok()
    }

    fn hear_answer(&mut self) -> io::Result<Option<Link>> {
        let Some(Offering { offer, mut connection, deadline }) = self.offering.take() else {
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
                tracing::debug!("the other end can't share memory; the link goes through the network");
                Ok(Some(Link::new(vec![connection])))
            }
            Some(_) => Err(io::Error::other("the answer to an offer of memory makes no sense")),
            None => {
                filled?;
                self.offering = Some(Offering { offer, connection, deadline });
                Ok(None)
            }
        }
    }
}

/// A link that the other end dials.
#[derive(Debug)]
pub struct Receiving {
    link: u64,
    streams: Vec<Option<Connection>>,
    deadline: Time,
}

impl Receiving {
    /// The first stream is here.
    pub fn new(now: Time, head: &StreamHead) -> Self {
        let streams = (0..head.count).map(|_| None).collect();
        Self { link: head.link, streams, deadline: now + limits::HANDSHAKE_MAX }
    }

    /// Whether a stream is one of this link.
    pub fn is_of(&self, head: &StreamHead) -> bool {
        self.link == head.link && self.streams.len() == usize::from(head.count)
    }

    /// Takes a stream. All of them, once they are there.
    pub fn take(&mut self, head: StreamHead, connection: Connection) -> Option<Vec<Connection>> {
        *self.streams.get_mut(usize::from(head.index))? = Some(connection);
        if self.streams.iter().any(Option::is_none) {
            return None;
        }
        Some(self.streams.drain(..).flatten().collect())
    }
}
