//! The protocol of a state transfer: small bounded requests one way, headers and raw bytes the other.

use super::limits::REQUEST_BYTES_MAX;
use ringfold_proto::bounded::{Bounded, LimitExceeded};
use ringfold_proto::dtype::DType;
use ringfold_proto::frame::{ControlDecoder, FrameError, encode_control};
use serde::{Deserialize, Serialize};
use std::io::{self, Read};

/// Asks for some leaves of an entry with a certain content.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) key: String,
    pub(crate) dtype: DType,
    /// Elements of the whole entry.
    pub(crate) count: u64,
    /// The hash of the whole entry.
    pub(crate) hash: u128,
    pub(crate) first_leaf: u64,
    pub(crate) leaves: u64,
}

impl Bounded for Request {
    const BYTES_MAX: usize = REQUEST_BYTES_MAX;
    const DECODED_BYTES_MAX: usize = REQUEST_BYTES_MAX;

    fn check(&self) -> Result<(), LimitExceeded> {
        Ok(())
    }
}

impl Request {
    /// Its bytes on the wire: the length as a little-endian u32, and the request.
    pub(crate) fn encode(&self) -> io::Result<Vec<u8>> {
        encode_control(self).map_err(io::Error::other)
    }

    /// Reads the next request; none if the other end has closed before it.
    pub(crate) fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let invalid = |error: FrameError| io::Error::new(io::ErrorKind::InvalidData, error);
        let mut decoder = ControlDecoder::<Self>::default();
        let mut length = [0; 4];
        let first = loop {
            match from.read(&mut length) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                first => break first?,
            }
        };
        if first == 0 {
            return Ok(None);
        }
        from.read_exact(&mut length[first..])?;
        // A length beyond the limit fails here. Otherwise the decoder waits for the rest, unless that is empty.
        if let Some(request) = decoder.next_message(&mut &length[..]).map_err(invalid)? {
            return Ok(Some(request));
        }
        let mut body = vec![0; u32::from_le_bytes(length) as usize];
        from.read_exact(&mut body)?;
        decoder.next_message(&mut &body[..]).map_err(invalid)
    }
}

/// The header of an answer. The bytes of the leaves follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Header {
    /// This number of bytes follows.
    Leaves(u64),
    /// The content is not held here, or has no such leaves.
    NotHeld,
}

impl Header {
    pub(crate) const BYTES: usize = 9;

    pub(crate) fn encode(self) -> [u8; Self::BYTES] {
        let (status, bytes) = match self {
            Self::Leaves(bytes) => (0, bytes),
            Self::NotHeld => (1, 0),
        };
        let mut header = [status; Self::BYTES];
        header[1..].copy_from_slice(&bytes.to_le_bytes());
        header
    }

    pub(crate) fn decode([status, bytes @ ..]: [u8; Self::BYTES]) -> io::Result<Self> {
        match (status, u64::from_le_bytes(bytes)) {
            (0, bytes) => Ok(Self::Leaves(bytes)),
            (1, 0) => Ok(Self::NotHeld),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "invalid answer")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_stays_as_it_is() {
        let request =
            Request { key: "w".into(), dtype: DType::F32, count: 300, hash: 5, first_leaf: 1, leaves: 64 };
        let frame = [8, 0, 0, 0, 1, b'w', 10, 0xac, 0x02, 5, 1, 64];
        assert_eq!(request.encode().unwrap(), frame);
        assert_eq!(Request::read(&mut &frame[..]).unwrap(), Some(request));
        assert_eq!(Header::Leaves(258).encode(), [0, 2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Header::NotHeld.encode(), [1, 0, 0, 0, 0, 0, 0, 0, 0]);
        for header in [Header::Leaves(u64::MAX), Header::NotHeld] {
            assert_eq!(Header::decode(header.encode()).unwrap(), header);
        }
    }

    #[test]
    fn what_is_no_request_is_an_error_and_an_end_is_none() {
        assert_eq!(Request::read(&mut &[][..]).unwrap(), None);
        for bad in
            [&[1, 0][..], &[1, 0, 0, 0], &[1, 0, 0, 0, 200], &[0, 0, 0, 0], &[255; 5000], &[1, 16, 0, 0]]
        {
            assert!(Request::read(&mut &bad[..]).is_err());
        }
        assert!(Header::decode([2; 9]).is_err());
        assert!(Header::decode([1; 9]).is_err());
    }
}
