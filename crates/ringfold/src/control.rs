//! A connection that carries control messages.

use ringfold_fabric::connection::{Connection, Intake};
use ringfold_proto::bounded::Bounded;
use ringfold_proto::frame::{ControlDecoder, encode_control};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, ErrorKind};

/// Sends any messages and receives those of one type. It never blocks.
#[derive(Debug)]
pub(crate) struct ControlConnection<T> {
    pub(crate) connection: Connection,
    decoder: ControlDecoder<T>,
}

impl<T: DeserializeOwned + Bounded> ControlConnection<T> {
    pub(crate) fn new(mut connection: Connection) -> Self {
        connection.set_intake(Intake::Messages);
        Self { connection, decoder: ControlDecoder::default() }
    }

    /// The same connection, for messages of another type from now on.
    pub(crate) fn expect<U: DeserializeOwned + Bounded>(self) -> ControlConnection<U> {
        ControlConnection { connection: self.connection, decoder: ControlDecoder::default() }
    }

    /// Queues a message. An error means that it exceeds the limits of its type.
    pub(crate) fn send(&mut self, message: &(impl Serialize + Bounded)) -> io::Result<()> {
        self.connection.send(&encode_control(message).map_err(io::Error::other)?);
        Ok(())
    }

    /// Sends what can be sent now.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.connection.flush(&mut Vec::new())
    }

    /// The next message that was read completely. An invalid one is an error of the kind `InvalidData`.
    pub(crate) fn next(&mut self) -> io::Result<Option<T>> {
        let decoder = &mut self.decoder;
        let message = self.connection.take(|input| decoder.next_message(input));
        message.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
    }

    /// As [`ControlConnection::next`], but reads once if no message is complete.
    pub(crate) fn receive(&mut self) -> io::Result<Option<T>> {
        if let Some(message) = self.next()? {
            return Ok(Some(message));
        }
        let filled = self.connection.fill();
        match self.next()? {
            None => filled.map(|_| None),
            message => Ok(message),
        }
    }

    /// Bytes of memory that the last message takes at most.
    pub(crate) fn message_bytes(&self) -> usize {
        self.decoder.message_bytes()
    }

    /// Bytes that this end keeps: of a message that is not complete, and of what was not sent.
    pub(crate) fn held_bytes(&self) -> usize {
        self.decoder.buffered_bytes() + self.connection.queued_bytes()
    }
}
