//! Questions and answers on a connection, for threads that block.

use core::marker::PhantomData;
use ringfold_fabric::connection::BlockingConnection;
use ringfold_proto::bounded::Bounded;
use ringfold_proto::frame::{ControlDecoder, encode_control};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

/// A connection that sends messages of one type and receives those of another.
pub(super) struct MessageConnection<Out, In> {
    connection: BlockingConnection,
    decoder: ControlDecoder<In>,
    unread: Vec<u8>,
    sends: PhantomData<fn(Out)>,
}

impl<Out: Serialize + Bounded, In: DeserializeOwned + Bounded> MessageConnection<Out, In> {
    pub fn new(connection: BlockingConnection) -> Self {
        Self { connection, decoder: ControlDecoder::default(), unread: Vec::new(), sends: PhantomData }
    }

    pub fn connection(&self) -> &BlockingConnection {
        &self.connection
    }

    /// The connection itself, for other data. What was read of that already is discarded.
    pub fn into_inner(self) -> BlockingConnection {
        self.connection
    }

    /// Sends a message, and waits until the system has taken it.
    pub fn send(&self, message: &Out, timeout: Duration) -> io::Result<()> {
        let frame = encode_control(message).map_err(io::Error::other)?;
        let deadline = Instant::now() + timeout;
        let mut rest = &frame[..];
        while !rest.is_empty() {
            self.connection.set_write_timeout(Some(left(deadline)?))?;
            match (&self.connection).write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => rest = &rest[bytes..],
                Err(error) if is_temporary(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The next message.
    pub fn receive(&mut self, timeout: Duration) -> io::Result<In> {
        let deadline = Instant::now() + timeout;
        let mut block = [0; 16 * 1024];
        loop {
            let mut input = &self.unread[..];
            let message = self.decoder.next_message(&mut input);
            let taken = self.unread.len() - input.len();
            self.unread.drain(..taken);
            if let Some(message) = message.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))? {
                return Ok(message);
            }
            self.connection.set_read_timeout(Some(left(deadline)?))?;
            match (&self.connection).read(&mut block) {
                Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the connection ended")),
                Ok(bytes) => self.unread.extend_from_slice(&block[..bytes]),
                Err(error) if is_temporary(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Asks, and waits for the answer.
    pub fn ask(&mut self, question: &Out, timeout: Duration) -> io::Result<In> {
        let begin = Instant::now();
        self.send(question, timeout)?;
        self.receive(timeout.saturating_sub(begin.elapsed()))
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::Error::new(ErrorKind::TimedOut, "no answer in time")) } else { Ok(left) }
}
