//! The records of a session: `rustls` without its buffers.

use rustls::CommonState;
use rustls::Error;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use std::ops::Range;

/// The most bytes of a record's data.
pub(super) const RECORD_BYTES: usize = 16 << 10;
/// More than TLS adds to a record.
pub(super) const RECORD_OVERHEAD: usize = 256;
/// The bytes before a record's data; its length is in the last two.
const HEADER_BYTES: usize = 5;

/// One end of a session.
pub(super) enum Records {
    Dialler(Box<UnbufferedClientConnection>),
    Acceptor(Box<UnbufferedServerConnection>),
}

impl From<UnbufferedClientConnection> for Records {
    fn from(connection: UnbufferedClientConnection) -> Self {
        Self::Dialler(Box::new(connection))
    }
}

impl From<UnbufferedServerConnection> for Records {
    fn from(connection: UnbufferedServerConnection) -> Self {
        Self::Acceptor(Box::new(connection))
    }
}

/// What came of processing some input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Something was processed; there may be more.
    Advanced,
    /// The rest of the input is not a whole record.
    NeedsInput,
    /// The other end has ended its output.
    Closed,
}

impl Records {
    pub(super) fn state(&self) -> &CommonState {
        match self {
            Self::Dialler(connection) => connection,
            Self::Acceptor(connection) => connection,
        }
    }

    /// Processes the front of the input, and removes it. Received data is delivered; what must be sent is added to `outgoing`.
    pub(super) fn process(
        &mut self,
        input: &mut Bytes,
        outgoing: &mut Bytes,
        deliver: &mut impl FnMut(&[u8]),
    ) -> Result<Step, Error> {
        self.step(input, outgoing, deliver, &mut None)
    }

    /// Adds data to what must be sent, in records. The input is processed first.
    pub(super) fn encrypt(
        &mut self,
        data: &[u8],
        input: &mut Bytes,
        outgoing: &mut Bytes,
        deliver: &mut impl FnMut(&[u8]),
    ) -> Result<(), Error> {
        let mut data = Some(data);
        while data.is_some() {
            let step = self.step(input, outgoing, deliver, &mut data)?;
            if step != Step::Advanced && data.is_some() {
                return Err(Error::General("the session has ended".into()));
            }
        }
        Ok(())
    }

    /// Handles one state, and takes the data if the session is ready for it.
    fn step(
        &mut self,
        input: &mut Bytes,
        outgoing: &mut Bytes,
        deliver: &mut impl FnMut(&[u8]),
        data: &mut Option<&[u8]>,
    ) -> Result<Step, Error> {
        let filled = input.filled_mut();
        let (used, step) = match self {
            Self::Dialler(connection) => {
                handle(connection.process_tls_records(filled), outgoing, deliver, data)
            }
            Self::Acceptor(connection) => {
                handle(connection.process_tls_records(filled), outgoing, deliver, data)
            }
        };
        input.remove(used);
        step
    }
}

/// Handles one state of a session. Returns how many bytes of the input were used. If there is data to be sent and the session
/// is ready for it, takes it.
fn handle<D>(
    UnbufferedStatus { mut discard, state, .. }: UnbufferedStatus<'_, '_, D>,
    outgoing: &mut Bytes,
    deliver: &mut impl FnMut(&[u8]),
    data: &mut Option<&[u8]>,
) -> (usize, Result<Step, Error>) {
    let step = match state {
        Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
            match traffic.next_record() {
                Some(Ok(record)) => {
                    discard += record.discard;
                    deliver(record.payload);
                }
                Some(Err(error)) => break Err(error),
                None => break Ok(Step::Advanced),
            }
        },
        Ok(ConnectionState::EncodeTlsData(mut message)) => {
            let mut room = RECORD_OVERHEAD;
            loop {
                match message.encode(outgoing.room(room)) {
                    Ok(bytes) => {
                        outgoing.add(bytes);
                        break Ok(Step::Advanced);
                    }
                    Err(EncodeError::InsufficientSize(size)) if size.required_size > room => {
                        room = size.required_size;
                    }
                    Err(error) => break Err(Error::General(error.to_string())),
                }
            }
        }
        Ok(ConnectionState::TransmitTlsData(transmit)) => {
            // It is sent with everything else.
            transmit.done();
            Ok(Step::Advanced)
        }
        Ok(ConnectionState::WriteTraffic(mut traffic)) => match data.take() {
            None => Ok(Step::NeedsInput),
            Some(data) => data
                .chunks(RECORD_BYTES)
                .try_for_each(|chunk| {
                    let room = outgoing.room(chunk.len() + RECORD_OVERHEAD);
                    let bytes = traffic
                        .encrypt(chunk, room)
                        .map_err(|error: EncryptError| Error::General(error.to_string()))?;
                    outgoing.add(bytes);
                    Ok(())
                })
                .map(|()| Step::Advanced),
        },
        Ok(ConnectionState::BlockedHandshake) => Ok(Step::NeedsInput),
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Step::Closed),
        Ok(_) => Err(Error::General("unexpected state".into())),
        Err(error) => Err(error),
    };
    (discard, step)
}

/// A buffer that is filled at its end and emptied at its front.
#[derive(Default)]
pub(super) struct Bytes {
    store: Vec<u8>,
    filled: Range<usize>,
}

impl Bytes {
    pub(super) fn filled(&self) -> &[u8] {
        &self.store[self.filled.clone()]
    }

    fn filled_mut(&mut self) -> &mut [u8] {
        &mut self.store[self.filled.clone()]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.filled.is_empty()
    }

    /// At least so many bytes after the filled part.
    pub(super) fn room(&mut self, least: usize) -> &mut [u8] {
        if self.store.len() - self.filled.end < least && self.filled.start > 0 {
            self.store.copy_within(self.filled.clone(), 0);
            self.filled = 0..self.filled.len();
        }
        if self.store.len() - self.filled.end < least {
            self.store.resize(self.filled.end + least, 0);
        }
        &mut self.store[self.filled.end..]
    }

    /// So many bytes of the room were filled.
    pub(super) fn add(&mut self, bytes: usize) {
        self.filled.end = (self.filled.end + bytes).min(self.store.len());
    }

    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.room(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.add(bytes.len());
    }

    /// Removes bytes at the front.
    pub(super) fn remove(&mut self, bytes: usize) {
        self.filled.start = (self.filled.start + bytes).min(self.filled.end);
        if self.filled.is_empty() {
            self.filled = 0..0;
        }
    }

    /// How many bytes are missing to the end of the last record: what follows it is not of this session.
    pub(super) fn missing(&self) -> usize {
        let mut rest = self.filled();
        loop {
            let Some(header) = rest.first_chunk::<HEADER_BYTES>() else { return HEADER_BYTES - rest.len() };
            let bytes = HEADER_BYTES + usize::from(u16::from_be_bytes([header[3], header[4]]));
            match rest.get(bytes..) {
                Some(next) => rest = next,
                None => return bytes - rest.len(),
            }
        }
    }

    /// Whether it starts with a whole record.
    pub(super) fn has_record(&self) -> bool {
        let filled = self.filled();
        filled.get(..HEADER_BYTES).is_some_and(|header| {
            let length = u16::from_be_bytes([header[3], header[4]]);
            filled.len() >= HEADER_BYTES + usize::from(length)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_moves_its_bytes_to_make_room() {
        let mut bytes = Bytes::default();
        bytes.extend(&[1, 2, 3, 4]);
        bytes.remove(3);
        assert_eq!(bytes.room(3).len(), 3);
        bytes.extend(&[5, 6, 7]);
        assert_eq!((bytes.filled(), bytes.store.len()), (&[4, 5, 6, 7][..], 4));
        bytes.remove(100);
        assert!(bytes.is_empty());
    }

    #[test]
    fn a_record_is_whole_with_its_last_byte() {
        let mut bytes = Bytes::default();
        let missing = [5, 4, 3, 2, 1, 2, 1];
        for (byte, missing) in [23, 3, 3, 0, 2, 9, 9].into_iter().zip(missing) {
            assert!(!bytes.has_record() && bytes.missing() == missing);
            bytes.extend(&[byte]);
        }
        // The header of the next one.
        assert!(bytes.has_record() && bytes.missing() == 5);
        bytes.extend(&[23, 3]);
        assert_eq!(bytes.missing(), 3);
    }
}
