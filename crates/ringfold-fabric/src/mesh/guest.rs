//! Someone who came to our door, until it is clear who it is and what for.

use crate::knock::{Knock, Rejected};
use crate::limits;
use crate::poller::{Poller, Token};
use crate::segment::Ticket;
use crate::socket::{Intake, Socket};
use ringfold_proto::handshake::{Acceptor, Established, SecretFor};
use ringfold_proto::hello::{Hello, Purpose};
use ringfold_proto::id::PeerId;
use ringfold_proto::time::Time;
use std::cell::Cell;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;

/// What the dialler of a link says on each of its streams: which link, which stream, and how many there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamHead {
    /// A number that the dialler chose for the link.
    pub link: u64,
    /// Which stream.
    pub index: u16,
    /// Of how many.
    pub count: u16,
    /// Shared memory that is offered in its place. Only where there is one stream.
    pub offer: Option<Ticket>,
}

/// What the acceptor answers to an offer: it has opened the memory.
pub const ACCEPTED: u8 = 1;

/// Or it can't, or will not; then the stream itself is the link.
pub const DECLINED: u8 = 0;

impl StreamHead {
    const BYTES: usize = 16;
    const OFFERS: u8 = 1;

    /// As it travels: three reserved bytes follow the flag, and the ticket if there is one.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::BYTES + Ticket::BYTES);
        bytes.extend(self.link.to_le_bytes());
        bytes.extend(self.index.to_le_bytes());
        bytes.extend(self.count.to_le_bytes());
        bytes.extend([if self.offer.is_some() { Self::OFFERS } else { 0 }, 0, 0, 0]);
        bytes.extend(self.offer.iter().flat_map(Ticket::encode));
        bytes
    }

    /// Takes a head off the front of `input`, if all of it is here.
    fn take(input: &mut &[u8]) -> Option<Result<Self, Rejected>> {
        let (head, mut rest) = input.split_first_chunk::<{ Self::BYTES }>()?;
        let number = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let (index, count) = (number(8), number(10));
        let link = u64::from_le_bytes(*head.first_chunk()?);
        let mut offer = None;
        if head[12] & Self::OFFERS != 0 {
            let (ticket, behind) = rest.split_first_chunk()?;
            // A ticket of another kind is one that can't be used.
            offer =
                Some(Ticket::decode(ticket).unwrap_or(Ticket { pid: 0, fd: 0, bytes: 0, nonce: [0; 16] }));
            rest = behind;
        }
        *input = rest;
        let is_sound = index < count && count <= limits::STREAMS_MAX && (count == 1 || offer.is_none());
        Some(if is_sound {
            Ok(Self { link, index, count, offer })
        } else {
            Err(refused("it is no stream of a link"))
        })
    }
}

/// A connection that someone made to us.
#[derive(Debug)]
pub struct Guest {
    state: State,
    /// The peer whose link it claims to bring.
    claims: Option<PeerId>,
}

#[derive(Debug)]
enum State {
    Knocking(Knock),
    /// A proven member, whose stream has not said which one it is.
    Naming(Established, Socket, Time),
    Gone,
}

/// Who it turned out to be.
pub enum Arrived {
    /// A stream of a link.
    Stream(Established, StreamHead, Socket),
    /// A member that comes for something else.
    Visitor(Established, TcpStream),
}

impl Guest {
    /// Someone dialled.
    pub fn new(now: Time, stream: TcpStream, poller: &Arc<Poller>, acceptor: Acceptor) -> io::Result<Self> {
        let state = State::Knocking(Knock::accept(now, stream, poller, acceptor)?);
        Ok(Self { state, claims: None })
    }

    /// Its name in the poller.
    pub fn token(&self) -> Token {
        match &self.state {
            State::Knocking(knock) => knock.token(),
            State::Naming(_, socket, _) => socket.token(),
            State::Gone => unreachable!("whoever is gone is not kept"),
        }
    }

    /// When it will have taken too long.
    pub fn deadline(&self) -> Time {
        match &self.state {
            State::Knocking(knock) => knock.deadline(),
            State::Naming(_, _, deadline) => *deadline,
            State::Gone => Time::ZERO,
        }
    }

    /// The peer whose link it claims to bring, and whether it has proven that.
    pub fn claim(&self) -> Option<(PeerId, bool)> {
        Some((self.claims?, matches!(self.state, State::Naming(..))))
    }

    /// Moves on. After an answer or an error it is gone.
    pub fn turn(&mut self, now: Time, secrets: &impl SecretFor) -> Result<Option<Arrived>, Rejected> {
        if let State::Knocking(knock) = &mut self.state {
            let claims = Cell::new(self.claims);
            let noting = |hello: &Hello| {
                claims.set((hello.purpose == Purpose::Data).then_some(hello.session));
                secrets.secret_for(hello)
            };
            let step = knock.turn(now, &noting);
            self.claims = claims.get();
            let Some(established) = step? else { return Ok(None) };
            let State::Knocking(knock) = core::mem::replace(&mut self.state, State::Gone) else {
                return Ok(None);
            };
            let socket = knock.into_socket();
            if established.purpose != Purpose::Data {
                let stream = socket.into_stream().map_err(|error| refused(&error.to_string()))?;
                return Ok(Some(Arrived::Visitor(established, stream)));
            }
            self.state = State::Naming(established, socket, now + limits::HANDSHAKE_MAX);
        }
        self.hear_name()
    }

    fn hear_name(&mut self) -> Result<Option<Arrived>, Rejected> {
        let State::Naming(_, socket, _) = &mut self.state else { return Ok(None) };
        // What follows the head belongs to the link, so no byte of it may be lost: it stays in the socket's input.
        let filled = socket.fill();
        let head = socket.take(StreamHead::take);
        match (head, filled) {
            (Some(head), _) => {
                let State::Naming(established, mut socket, _) =
                    core::mem::replace(&mut self.state, State::Gone)
                else {
                    return Ok(None);
                };
                socket.set_intake(Intake::Frames);
                Ok(Some(Arrived::Stream(established, head?, socket)))
            }
            (None, Ok(_)) => Ok(None),
            (None, Err(error)) => Err(refused(&error.to_string())),
        }
    }

    /// Tells it why, as far as that can be done at once, and closes.
    pub fn dismiss(self) {
        if let State::Knocking(knock) = self.state {
            knock.dismiss();
        }
    }
}

fn refused(why: &str) -> Rejected {
    Rejected { why: why.to_owned(), retryable: true }
}
