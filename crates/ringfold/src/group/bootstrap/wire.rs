//! What ranks say to each other while they meet, and how it travels.

use super::vigil::Vigil;
use crate::Error;
use ringfold_proto::epoch::{EpochDescription, Member};
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Bytes of one message, at most.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// Bytes of a [`Join`], at most: strangers shall not have us keep more.
const JOIN_BYTES_MAX: usize = 16 << 10;

/// Who comes.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Join {
    pub(super) group: String,
    pub(super) rank: u16,
    pub(super) world: u16,
    pub(super) member: Member,
    pub(super) may_share: bool,
}

/// What rank 0 says.
#[derive(Clone, Serialize, Deserialize)]
pub(super) enum Reply {
    /// Everyone is there.
    Welcome { description: Box<EpochDescription>, arena: Option<ArenaOffer> },
    /// The group begins; whether its memory is shared.
    Begin { shares: bool },
    /// This rank can't take part, now or at all.
    Refused { why: String, retryable: bool },
    /// This rank has come, and the others are waited for.
    Counted,
}

/// Memory that all ranks may share.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct ArenaOffer {
    pub(super) ticket: Vec<u8>,
    pub(super) slot_bytes: u32,
    pub(super) depth: u16,
}

/// Why a message was not sent or did not come.
pub(super) enum WireError {
    Io(io::Error),
    /// The wait was left off.
    Ended(Error),
}

impl From<io::Error> for WireError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A message as it travels: its length, and itself.
pub(super) fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let body = postcard::to_allocvec(message).map_err(io::Error::other)?;
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend(body);
    Ok(bytes)
}

/// Takes a join off the front of `input`, if all of it is here.
pub(super) fn take_join(input: &mut &[u8]) -> io::Result<Option<Join>> {
    let Some((length, rest)) = input.split_first_chunk() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > JOIN_BYTES_MAX {
        return Err(io::Error::other("a message is too long"));
    }
    let Some((body, rest)) = rest.split_at_checked(length) else { return Ok(None) };
    let join = postcard::from_bytes(body).map_err(io::Error::other)?;
    *input = rest;
    Ok(Some(join))
}

/// A connection between rank 0 and another rank; it blocks.
pub(super) struct Wire<'a> {
    pub(super) stream: TcpStream,
    pub(super) vigil: &'a Vigil,
}

impl Wire<'_> {
    pub(super) fn send<T: Serialize>(&mut self, message: &T, until: Instant) -> Result<(), WireError> {
        let bytes = encode(message)?;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            self.stream.set_write_timeout(Some(left(until)?.min(self.vigil.tick())))?;
            match self.stream.write(rest) {
                Ok(0) => return Err(io::Error::from(ErrorKind::WriteZero).into()),
                Ok(written) => rest = &rest[written..],
                Err(error) => self.bear(error)?,
            }
        }
        Ok(())
    }

    pub(super) fn receive<T: for<'de> Deserialize<'de>>(&mut self, until: Instant) -> Result<T, WireError> {
        let mut length = [0; 4];
        self.read_exact(&mut length, until)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MESSAGE_BYTES_MAX {
            return Err(io::Error::other("a message is too long").into());
        }
        // The room grows with what arrives, not with what is claimed.
        let mut body = Vec::new();
        while body.len() < length {
            let have = body.len();
            body.resize(length.min(have + 64 * 1024), 0);
            self.read_exact(&mut body[have..], until)?;
        }
        Ok(postcard::from_bytes(&body).map_err(io::Error::other)?)
    }

    fn read_exact(&mut self, mut place: &mut [u8], until: Instant) -> Result<(), WireError> {
        while !place.is_empty() {
            self.stream.set_read_timeout(Some(left(until)?.min(self.vigil.tick())))?;
            match self.stream.read(place) {
                Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                Ok(bytes) => place = &mut place[bytes..],
                Err(error) => self.bear(error)?,
            }
        }
        Ok(())
    }

    /// A wait that was cut short is no failure, if it still makes sense.
    fn bear(&self, error: io::Error) -> Result<(), WireError> {
        match error.kind() {
            ErrorKind::Interrupted => Ok(()),
            ErrorKind::WouldBlock | ErrorKind::TimedOut => self.vigil.check().map_err(WireError::Ended),
            _ => Err(WireError::Io(error)),
        }
    }
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        Err(io::Error::new(ErrorKind::TimedOut, "the others did not come in time"))
    } else {
        Ok(left)
    }
}
