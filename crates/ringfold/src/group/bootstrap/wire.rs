//! What ranks say to each other while they meet, and how it travels.

use super::vigil::Vigil;
use crate::Error;
use ringfold_fabric::connection::BlockingConnection;
use ringfold_proto::bounded::{Bounded, Excess, check_description, check_member, check_text};
use ringfold_proto::epoch::{EpochDescription, Member};
use ringfold_proto::frame::{ControlDecoder, FrameError, encode_control};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

/// Who comes.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Join {
    pub(super) group: String,
    pub(super) rank: u16,
    pub(super) world: u16,
    pub(super) member: Member,
    pub(super) may_share: bool,
}

impl Bounded for Join {
    /// Strangers shall not have us keep more.
    const BYTES_MAX: usize = 16 << 10;
    const DECODED_BYTES_MAX: usize = 4 * Self::BYTES_MAX;

    fn check(&self) -> Result<(), Excess> {
        check_text(&self.group)?;
        check_member(&self.member)
    }
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

impl Bounded for Reply {
    const BYTES_MAX: usize = 4 << 20;
    const DECODED_BYTES_MAX: usize = 4 * Self::BYTES_MAX;

    fn check(&self) -> Result<(), Excess> {
        match self {
            Self::Welcome { description, .. } => check_description(description),
            Self::Refused { why, .. } => check_text(why),
            Self::Begin { .. } | Self::Counted => Ok(()),
        }
    }
}

/// Whether a rank has mapped the memory that rank 0 offers.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Mapped(pub(super) bool);

impl Bounded for Mapped {
    const BYTES_MAX: usize = 16;
    const DECODED_BYTES_MAX: usize = 16;

    fn check(&self) -> Result<(), Excess> {
        Ok(())
    }
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

impl From<FrameError> for WireError {
    fn from(error: FrameError) -> Self {
        Self::Io(io::Error::new(ErrorKind::InvalidData, error))
    }
}

/// A connection between rank 0 and another rank; it blocks.
pub(super) struct Wire<'a> {
    pub(super) connection: BlockingConnection,
    pub(super) vigil: &'a Vigil,
}

impl Wire<'_> {
    pub(super) fn send<T: Serialize + Bounded>(
        &mut self,
        message: &T,
        until: Instant,
    ) -> Result<(), WireError> {
        let bytes = encode_control(message)?;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            self.connection.set_write_timeout(Some(left(until)?.min(self.vigil.tick())))?;
            match self.connection.write(rest) {
                Ok(0) => return Err(io::Error::from(ErrorKind::WriteZero).into()),
                Ok(written) => rest = &rest[written..],
                Err(error) => self.bear(error)?,
            }
        }
        Ok(())
    }

    /// Reads one message, and no byte behind it.
    pub(super) fn receive<T: DeserializeOwned + Bounded>(&mut self, until: Instant) -> Result<T, WireError> {
        let mut decoder = ControlDecoder::default();
        let mut block = vec![0; 4];
        self.read_exact(&mut block, until)?;
        let mut left = u32::from_le_bytes([block[0], block[1], block[2], block[3]]) as usize;
        loop {
            if let Some(message) = decoder.next_message(&mut &block[..])? {
                return Ok(message);
            }
            // The room grows with what arrives, not with what is claimed.
            block.resize(left.min(64 * 1024), 0);
            left -= block.len();
            self.read_exact(&mut block, until)?;
        }
    }

    fn read_exact(&mut self, mut place: &mut [u8], until: Instant) -> Result<(), WireError> {
        while !place.is_empty() {
            self.connection.set_read_timeout(Some(left(until)?.min(self.vigil.tick())))?;
            match self.connection.read(place) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_proto::id::PeerId;
    use ringfold_proto::limits::NAME_ON_WIRE_BYTES_MAX;

    /// Decodes what a peer sent that does not keep to the bounds.
    fn decode(join: &Join) -> Result<Option<Join>, FrameError> {
        let body = postcard::to_allocvec(join).unwrap();
        let bytes = [&(body.len() as u32).to_le_bytes()[..], &body].concat();
        ControlDecoder::default().next_message(&mut &bytes[..])
    }

    #[test]
    fn a_member_with_too_long_a_name_is_rejected_where_it_is_decoded() {
        let member = |bytes| Member {
            peer: PeerId(1),
            name: "n".repeat(bytes),
            host: 0,
            site: 0,
            addresses: Vec::new(),
        };
        let join =
            |bytes| Join { group: String::new(), rank: 1, world: 2, member: member(bytes), may_share: false };
        assert!(decode(&join(NAME_ON_WIRE_BYTES_MAX)).unwrap().is_some());
        assert!(matches!(decode(&join(NAME_ON_WIRE_BYTES_MAX + 1)), Err(FrameError::Excess(_))));
        assert!(decode(&join(Join::BYTES_MAX)).is_err());
    }
}
