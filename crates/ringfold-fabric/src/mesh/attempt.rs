//! How far a wish has come.

use super::guest::StreamHead;
use crate::knock::{Knock, nobody};
use crate::limits;
use crate::poller::{Poller, Token};
use crate::random;
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
    Dialling(Dialling),
    /// The other end has dialled, and some of its streams are here.
    Receiving(Receiving),
}

impl Attempt {
    /// When something is to be done even if nothing arrives.
    pub fn timeout(&self) -> Time {
        match self {
            Self::Due(at) => *at,
            Self::Dialling(dialling) => {
                dialling.knocks.iter().map(|(_, knock)| knock.deadline()).min().unwrap_or(Time::ZERO)
            }
            Self::Receiving(receiving) => receiving.deadline,
        }
    }

    /// Whether one of its sockets has this name.
    pub fn has(&self, token: Token) -> bool {
        matches!(self, Self::Dialling(dialling) if dialling.knocks.iter().any(|(_, k)| k.token() == token))
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
}

impl Dialling {
    /// Dials the first stream at the member's first address.
    pub fn begin(
        now: Time,
        member: &Member,
        identity: Identity,
        epoch: EpochId,
        key: Secret,
        streams: u16,
        poller: &Arc<Poller>,
    ) -> io::Result<Self> {
        let address = *member.addresses.first().ok_or_else(|| io::Error::other("it has no address"))?;
        // Within a host one stream does as much as many.
        let count = if address.ip().is_loopback() { 1 } else { streams };
        let target = Target::member(Purpose::Data, epoch, member.peer);
        let link = u64::from_le_bytes(random::bytes()?);
        let (knocks, done) = (Vec::new(), Vec::new());
        let mut dialling =
            Self { identity, target, key, address, link, count, has_begun: false, knocks, done };
        dialling.knock(now, 0, poller)?;
        Ok(dialling)
    }

    fn knock(&mut self, now: Time, index: u16, poller: &Arc<Poller>) -> io::Result<()> {
        let dialler = Dialler::new(self.identity, self.target, self.key.clone(), random::nonce()?);
        self.knocks.push((index, Knock::dial(now, self.address, poller, dialler)?));
        Ok(())
    }

    /// One of its sockets can be moved on. The streams in their order, once all are there.
    pub fn turn(
        &mut self,
        now: Time,
        token: Token,
        poller: &Arc<Poller>,
    ) -> Result<Option<Vec<Socket>>, String> {
        let Some(at) = self.knocks.iter().position(|(_, knock)| knock.token() == token) else {
            return Ok(None);
        };
        if self.knocks[at].1.turn(now, &nobody).map_err(|rejected| rejected.why)?.is_none() {
            return Ok(None);
        }
        let (index, knock) = self.knocks.swap_remove(at);
        let mut socket = knock.into_socket();
        socket.send(&StreamHead { link: self.link, index, count: self.count }.encode());
        socket.flush(&mut Vec::new()).map_err(|error| error.to_string())?;
        self.done.push((index, socket));
        self.has_begun = true;
        if index == 0 {
            for index in 1..self.count {
                self.knock(now, index, poller).map_err(|error| error.to_string())?;
            }
        }
        if self.done.len() < usize::from(self.count) {
            return Ok(None);
        }
        self.done.sort_by_key(|(index, _)| *index);
        Ok(Some(self.done.drain(..).map(|(_, socket)| socket).collect()))
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
