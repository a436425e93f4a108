//! Connections that are over, but for their last words.
//!
//! A socket that is closed with input unread takes back what it sent. So the last words are sent, then the
//! end of them, and then what still arrives is read and thrown away until the other end has closed too.

use super::limits;
use ringfold_fabric::poller::{Poller, Token};
use ringfold_fabric::socket::Socket;
use ringfold_proto::time::Time;
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

/// All of them; each has a deadline.
#[derive(Debug)]
pub(super) struct Farewells {
    poller: Arc<Poller>,
    going: HashMap<Token, Going>,
}

#[derive(Debug)]
struct Going {
    deadline: Time,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Something waits to be sent.
    Telling(Box<Socket>),
    /// All is said.
    Draining(TcpStream),
}

impl Farewells {
    pub fn new(poller: Arc<Poller>) -> Self {
        Self { poller, going: HashMap::new() }
    }

    /// Sends what is queued, within bounds of time, and closes.
    pub fn bid(&mut self, now: Time, socket: Socket) {
        if self.going.len() >= limits::FAREWELLS_MAX
            && let Some(oldest) = self.going.iter().min_by_key(|(_, g)| g.deadline).map(|(token, _)| *token)
        {
            self.going.remove(&oldest);
        }
        let token = socket.token();
        let stage = Stage::Telling(Box::new(socket));
        self.going.insert(token, Going { deadline: now + limits::FAREWELL_MAX, stage });
        self.turn(token);
    }

    /// Moves one on, if the token is of one.
    pub fn turn(&mut self, token: Token) {
        let Some(Going { deadline, stage }) = self.going.remove(&token) else { return };
        let next = match stage {
            Stage::Telling(socket) => self.tell(socket),
            Stage::Draining(stream) => drain(stream),
        };
        // Where it failed there is nobody left to tell.
        if let Ok(Some(stage)) = next {
            self.going.insert(token, Going { deadline, stage });
        }
    }

    /// Cuts those who take too long.
    pub fn expire(&mut self, now: Time) {
        self.going.retain(|_, g| g.deadline > now);
    }

    /// When the next one will have taken too long.
    pub fn deadline(&self) -> Option<Time> {
        self.going.values().map(|g| g.deadline).min()
    }

    fn tell(&self, mut socket: Box<Socket>) -> io::Result<Option<Stage>> {
        socket.flush(&mut Vec::new())?;
        socket.fill()?;
        socket.take(|input| *input = &[]);
        if socket.queued_bytes() > 0 {
            return Ok(Some(Stage::Telling(socket)));
        }
        let token = socket.token();
        let stream = socket.into_stream()?;
        stream.set_nonblocking(true)?;
        stream.shutdown(Shutdown::Write)?;
        self.poller.add(&stream, token, false)?;
        Ok(Some(Stage::Draining(stream)))
    }
}

fn drain(mut stream: TcpStream) -> io::Result<Option<Stage>> {
    match stream.read(&mut [0; 16 * 1024]) {
        Ok(0) => Ok(None),
        Err(e) if !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Err(e),
        _ => Ok(Some(Stage::Draining(stream))),
    }
}
