//! How far a wish has come.

use super::guest::{self, StreamHead};
use crate::knock::{Knock, nobody};
use crate::limits;
use crate::link::Link;
use crate::poller::{Poller, Token};
use crate::random;
use crate::shared_link::Offer;
use crate::socket::Socket;
use ringfold_proto::epoch::Member;
use ringfold_proto::handshake::{Dialler, Identity, Secret, Target};
use ringfold_proto::hello::Purpose;
use ringfold_proto::id::EpochId;
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
                let knocks = dialling.knocks.iter().map(|(_, knock)| knock.deadline());
                let offer = dialling.offering.iter().map(|offering| offering.deadline);
                knocks.chain(offer).min().unwrap_or(Time::ZERO)
            }
            Self::Receiving(receiving) => receiving.deadline,
        }
    }

    /// Whether one of its sockets has this name.
    pub fn has(&self, token: Token) -> bool {
        let Self::Dialling(dialling) = self else { return false };
        dialling.knocks.iter().any(|(_, knock)| knock.token() == token)
            || dialling.offering.as_ref().is_some_and(|offering| offering.socket.token() == token)
    }

    /// Whether we have dialled and said on which connection the link is to be.
    pub fn has_chosen(&self) -> bool {
        matches!(self, Self::Dialling(dialling) if dialling.has_begun)
    }

    /// Whether streams of the other end are coming in.
    pub fn is_receiving(&self) -> bool {
        matches!(self, Self::Receiving(_))
    }
}

/// A link that we dial: first one stream, then, when it is known that we are welcome, the others.
#[derive(Debug)]
pub struct Dialling {
    identity: Identity,
    target: Target,
    key: Secret,
    address: SocketAddr,
    link: u64,
    count: u16,
    /// Whether the other end has been told of the first stream.
    has_begun: bool,
    knocks: Vec<(u16, Knock)>,
    done: Vec<(u16, Socket)>,
    /// Whether the other end seems to be one with which memory can be shared.
    shares: bool,
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
}

/// Memory that was offered, until the other end has answered.
#[derive(Debug)]
struct Offering {
    offer: Offer,
    socket: Socket,
    deadline: Time,
}

impl Dialling {
    /// Dials the first stream at the member's first address.
    pub fn begin(
        now: Time,
        member: &Member,
        identity: Identity,
        (epoch, key): (EpochId, Secret),
        wanted: Wanted,
        poller: &Arc<Poller>,
    ) -> io::Result<Self> {
        let Wanted { streams, shares } = wanted;
        let address = *member.addresses.first().ok_or_else(|| io::Error::other("it has no address"))?;
        // Within a host one stream does as much as many.
        let count = if shares || address.ip().is_loopback() { 1 } else { streams };
        let target = Target::member(Purpose::Data, epoch, member.peer);
        let link = u64::from_le_bytes(random::bytes()?);
        let (knocks, done) = (Vec::new(), Vec::new());
        let (has_begun, offering) = (false, None);
        let mut dialling =
            Self { identity, target, key, address, link, count, has_begun, knocks, done, shares, offering };
        dialling.knock(now, 0, poller)?;
        Ok(dialling)
    }

    fn knock(&mut self, now: Time, index: u16, poller: &Arc<Poller>) -> io::Result<()> {
        let dialler = Dialler::new(self.identity, self.target, self.key.clone(), random::nonce()?);
        self.knocks.push((index, Knock::dial(now, self.address, poller, dialler)?));
        Ok(())
    }

    /// One of its sockets can be moved on. The link, once it is there.
    pub fn turn(&mut self, now: Time, token: Token, poller: &Arc<Poller>) -> Result<Option<Link>, String> {
        if self.offering.is_some() {
            return self.hear_answer().map_err(|error| error.to_string());
        }
        let Some(at) = self.knocks.iter().position(|(_, knock)| knock.token() == token) else {
            return Ok(None);
        };
        if self.knocks[at].1.turn(now, &nobody).map_err(|rejected| rejected.why)?.is_none() {
            return Ok(None);
        }
        let (index, knock) = self.knocks.swap_remove(at);
        let mut socket = knock.into_socket();
        let offer = if self.shares { self.offer() } else { None };
        let ticket = offer.as_ref().map(Offer::ticket);
        let head = StreamHead { link: self.link, index, count: self.count, offer: ticket };
        socket.send(&head.encode());
        socket.flush(&mut Vec::new()).map_err(|error| error.to_string())?;
        self.has_begun = true;
        if let Some(offer) = offer {
            self.offering = Some(Offering { offer, socket, deadline: now + limits::HANDSHAKE_MAX });
            return Ok(None);
        }
        self.done.push((index, socket));
        if index == 0 {
            for index in 1..self.count {
                self.knock(now, index, poller).map_err(|error| error.to_string())?;
            }
        }
        if self.done.len() < usize::from(self.count) {
            return Ok(None);
        }
        self.done.sort_by_key(|(index, _)| *index);
        Ok(Some(Link::new(self.done.drain(..).map(|(_, socket)| socket).collect())))
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
        let Some(Offering { offer, mut socket, deadline }) = self.offering.take() else { return Ok(None) };
        let filled = socket.fill();
        let answer = socket.take(|input| {
            let (answer, rest) = input.split_first()?;
            *input = rest;
            Some(*answer)
        });
        match answer {
            Some(guest::ACCEPTED) => Ok(Some(Link::Shared(Box::new(offer.accepted(socket))))),
            Some(guest::DECLINED) => {
                tracing::debug!("the other end can't share memory; the link goes through the network");
                Ok(Some(Link::new(vec![socket])))
            }
            Some(_) => Err(io::Error::other("the answer to an offer of memory makes no sense")),
            None => {
                filled?;
                self.offering = Some(Offering { offer, socket, deadline });
                Ok(None)
            }
        }
    }
}

/// A link that the other end dials.
#[derive(Debug)]
pub struct Receiving {
    link: u64,
    streams: Vec<Option<Socket>>,
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
    pub fn take(&mut self, head: StreamHead, socket: Socket) -> Option<Vec<Socket>> {
        *self.streams.get_mut(usize::from(head.index))? = Some(socket);
        if self.streams.iter().any(Option::is_none) {
            return None;
        }
        Some(self.streams.drain(..).flatten().collect())
    }
}
