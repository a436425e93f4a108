//! Someone who came to our door, until it is clear who it is and what for.

use crate::knock::{Knock, Rejected};
use crate::limits;
use crate::poller::{Poller, Token};
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
}

impl StreamHead {
    const BYTES: usize = 16;

    /// As it travels; the last four bytes are reserved.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.link.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.index.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let number = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let (index, count) = (number(8), number(10));
        let link = u64::from_le_bytes(*bytes.first_chunk()?);
        (index < count && count <= limits::STREAMS_MAX).then_some(Self { link, index, count })
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
        let head = socket.take(|input| {
            let head = input.first_chunk::<{ StreamHead::BYTES }>().copied();
            if head.is_some() {
                *input = &input[StreamHead::BYTES..];
            }
            head
        });
        match (head, filled) {
            (Some(head), _) => {
                let State::Naming(established, mut socket, _) =
                    core::mem::replace(&mut self.state, State::Gone)
                else {
                    return Ok(None);
                };
                let head = StreamHead::decode(&head).ok_or_else(|| refused("it is no stream of a link"))?;
                socket.set_intake(Intake::Frames);
                Ok(Some(Arrived::Stream(established, head, socket)))
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
