//! A TLS session over a socket that does not block.

use super::certificates::TrustedRun;
use super::exporter::ExporterSecret;
use super::records::{Bytes, RECORD_BYTES, RECORD_OVERHEAD, Records, Step};
use super::security::{BINDING_LABEL, peer_of};
use parking_lot::Mutex;
use ringfold_proto::handshake::{Binding, HandshakeError};
use rustls::CertificateError;
use rustls::pki_types::{CertificateDer, UnixTime};
use std::io::{self, ErrorKind, IoSliceMut};
use std::sync::Arc;

/// The most ciphertext that is read at once. The buffer grows up to this while reads fill it.
const READ_BYTES_MAX: usize = 8 * (RECORD_BYTES + RECORD_OVERHEAD);
const READ_BYTES_MIN: usize = 2 << 10;
/// Data that is encrypted at once.
const WRITE_BYTES: usize = 8 * RECORD_BYTES;
/// Data that waits for the end of the TLS handshake.
const EARLY_BYTES_MAX: usize = 16 << 10;

/// The socket below a session. It never blocks.
pub(crate) trait Wire {
    /// Reads once; zero is the end.
    fn receive(&self, place: &mut [u8]) -> io::Result<usize>;

    /// Writes once.
    fn send(&self, bytes: &[u8]) -> io::Result<usize>;
}

/// A session.
pub(crate) struct TlsSession(Mutex<State>);

struct State {
    records: Records,
    exporter: Arc<ExporterSecret>,
    /// Checks the certificate of the other end, if the run has certificates.
    run: Option<Arc<TrustedRun>>,
    /// Ciphertext that has arrived.
    input: Bytes,
    read_bytes: usize,
    /// Whether no byte behind a record may be read before the record was processed.
    reads_records: bool,
    /// Data that has arrived, beyond what was asked for.
    arrived: Bytes,
    /// Ciphertext to be sent.
    outgoing: Bytes,
    /// Data to be sent after the TLS handshake.
    early: Vec<u8>,
    /// Why the session has failed. Its records must not be used any more.
    failure: Option<rustls::Error>,
    /// A copy of the data that is encrypted: others may write to the original meanwhile.
    staged: Vec<u8>,
}

impl core::fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("TlsSession(..)")
    }
}

impl TlsSession {
    pub(super) fn new(
        connection: impl Into<Records>,
        exporter: Arc<ExporterSecret>,
        run: Option<Arc<TrustedRun>>,
    ) -> Self {
        Self(Mutex::new(State {
            records: connection.into(),
            exporter,
            run,
            input: Bytes::default(),
            read_bytes: READ_BYTES_MIN,
            reads_records: false,
            arrived: Bytes::default(),
            outgoing: Bytes::default(),
            early: Vec::new(),
            failure: None,
            staged: Vec::new(),
        }))
    }

    /// From now on reads one record at a time, for a session that ends before its connection.
    pub(crate) fn read_records(&self) {
        self.0.lock().reads_records = true;
    }

    /// Whether it holds no bytes, so that the connection may go on without it.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.0.lock();
        let is_empty = state.input.is_empty() && state.arrived.is_empty() && state.outgoing.is_empty();
        is_empty && state.early.is_empty()
    }

    /// Reads until the place is full or nothing more has arrived. Zero is the end of the stream.
    pub(crate) fn read(&self, wire: &impl Wire, place: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut state = self.0.lock();
        let mut sink = Sink { place, filled: 0, slice: 0, at: 0 };
        let mut is_drained = false;
        loop {
            let taken = sink.put(state.arrived.filled());
            state.arrived.remove(taken);
            if sink.is_full() {
                return Ok(sink.filled);
            }
            match state.advance(&mut sink)? {
                Step::Advanced => continue,
                Step::Closed => return Ok(sink.filled),
                Step::NeedsInput => {}
            }
            // The answers of the TLS handshake. The next write or flush sends what is left, or fails; there may still be input.
            let _ = state.send_outgoing(wire);
            if is_drained && sink.filled > 0 {
                return Ok(sink.filled);
            }
            let most = state.read_bytes;
            match state.receive(wire) {
                Ok(0) => return Ok(sink.filled),
                Ok(bytes) => is_drained = bytes < most,
                Err(_) if sink.filled > 0 => return Ok(sink.filled),
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes data to be sent, and sends what can be sent now. It is an error if nothing can be taken.
    ///
    /// # Safety
    /// The pieces are valid for reads.
    pub(crate) unsafe fn write(&self, wire: &impl Wire, pieces: &[libc::iovec]) -> io::Result<usize> {
        let mut state = self.0.lock();
        state.send_outgoing(wire)?;
        if state.records.state().is_handshaking() {
            state.advance(&mut Sink::nowhere())?;
        }
        if state.records.state().is_handshaking() {
            let most = EARLY_BYTES_MAX - state.early.len();
            // SAFETY: the pieces are valid, says the caller.
            let taken = unsafe { gather(pieces, most, &mut state.early) };
            state.send_quietly(wire)?;
            return if taken == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(taken) };
        }
        let mut staged = core::mem::take(&mut state.staged);
        staged.clear();
        // SAFETY: the pieces are valid, says the caller.
        let taken = unsafe { gather(pieces, WRITE_BYTES, &mut staged) };
        let encrypted = state.encrypt(&staged);
        state.staged = staged;
        encrypted?;
        state.send_quietly(wire)?;
        Ok(taken)
    }

    /// Sends what is left of earlier writes. Returns whether nothing is left that only needs room.
    pub(crate) fn flush(&self, wire: &impl Wire) -> io::Result<bool> {
        let mut state = self.0.lock();
        state.send_quietly(wire)?;
        Ok(state.outgoing.is_empty())
    }

    /// Bytes that were taken, but not sent.
    pub(crate) fn unsent_bytes(&self) -> usize {
        let state = self.0.lock();
        state.outgoing.filled().len() + state.early.len()
    }

    /// Whether something can be read without the socket.
    pub(crate) fn has_buffered(&self) -> bool {
        let state = self.0.lock();
        !state.arrived.is_empty() || state.failure.is_none() && state.input.has_record()
    }

    /// Whether both ends have sent their first message.
    pub(crate) fn has_negotiated(&self) -> bool {
        self.0.lock().records.state().protocol_version().is_some()
    }

    /// What the session proves; none before the end of the TLS handshake.
    pub(crate) fn binding(&self) -> Option<Binding> {
        let state = self.0.lock();
        let common = state.records.state();
        if common.is_handshaking() || state.failure.is_some() {
            return None;
        }
        let chain = common.peer_certificates()?;
        let role = state.run.as_ref().map(|run| run.verify(chain, UnixTime::now()).map(|found| found.role));
        let exported = state.exporter.export(BINDING_LABEL)?;
        Some(Binding { exported, peer: chain.first().and_then(peer_of)?, role })
    }

    /// The certificates of the other end, once the TLS handshake has ended.
    pub(crate) fn peer_certificates(&self) -> Option<Vec<CertificateDer<'static>>> {
        self.0.lock().records.state().peer_certificates().map(<[_]>::to_vec)
    }
}

impl State {
    /// Processes what has arrived, one step.
    fn advance(&mut self, sink: &mut Sink<'_, '_>) -> io::Result<Step> {
        self.check()?;
        let was_handshaking = self.records.state().is_handshaking();
        let arrived = &mut self.arrived;
        let mut deliver = |data: &[u8]| {
            let taken = if arrived.is_empty() { sink.put(data) } else { 0 };
            arrived.extend(&data[taken..]);
        };
        let processed = self.records.process(&mut self.input, &mut self.outgoing, &mut deliver);
        let step = processed.or_else(|error| self.fail(error))?;
        if was_handshaking && !self.records.state().is_handshaking() {
            let early = core::mem::take(&mut self.early);
            self.encrypt(&early)?;
        }
        Ok(step)
    }

    fn encrypt(&mut self, data: &[u8]) -> io::Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        self.check()?;
        let mut deliver = |data: &[u8]| self.arrived.extend(data);
        let encrypted = self.records.encrypt(data, &mut self.input, &mut self.outgoing, &mut deliver);
        encrypted.or_else(|error| self.fail(error))
    }

    fn fail<T>(&mut self, error: rustls::Error) -> io::Result<T> {
        self.failure = Some(error.clone());
        Err(damaged(error))
    }

    fn check(&self) -> io::Result<()> {
        self.failure.clone().map_or(Ok(()), |error| Err(damaged(error)))
    }

    fn receive(&mut self, wire: &impl Wire) -> io::Result<usize> {
        let wanted = if self.reads_records { self.input.missing() } else { self.read_bytes };
        let room = self.input.room(wanted);
        let most = room.len().min(wanted);
        let bytes = wire.receive(&mut room[..most])?;
        self.input.add(bytes);
        if bytes == self.read_bytes {
            self.read_bytes = (self.read_bytes * 2).min(READ_BYTES_MAX);
        }
        Ok(bytes)
    }

    fn send_outgoing(&mut self, wire: &impl Wire) -> io::Result<()> {
        while !self.outgoing.is_empty() {
            match wire.send(self.outgoing.filled()) {
                Ok(bytes) => self.outgoing.remove(bytes),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The same, but a full socket is not an error.
    fn send_quietly(&mut self, wire: &impl Wire) -> io::Result<()> {
        self.send_outgoing(wire).or_else(|error| match error.kind() {
            ErrorKind::WouldBlock => Ok(()),
            _ => Err(error),
        })
    }
}

fn damaged(error: rustls::Error) -> io::Error {
    if let rustls::Error::InvalidCertificate(CertificateError::Other(other)) = &error
        && let Some(problem) = other.0.downcast_ref::<HandshakeError>()
    {
        return io::Error::new(ErrorKind::InvalidData, *problem);
    }
    io::Error::new(ErrorKind::InvalidData, format!("the encrypted session failed: {error}"))
}

/// Copies up to so many bytes of the pieces. Returns their number.
///
/// # Safety
/// The pieces are valid for reads.
unsafe fn gather(pieces: &[libc::iovec], most: usize, into: &mut Vec<u8>) -> usize {
    let mut left = most;
    for piece in pieces {
        let bytes = piece.iov_len.min(left);
        if bytes == 0 {
            continue;
        }
        into.reserve(bytes);
        let end = into.len();
        // SAFETY: the piece is valid for reads, says the caller; there is room for so many bytes, which are initialized then.
        unsafe {
            core::ptr::copy_nonoverlapping(piece.iov_base.cast::<u8>(), into.as_mut_ptr().add(end), bytes);
            into.set_len(end + bytes);
        }
        left -= bytes;
    }
    most - left
}

/// Where data is wanted.
struct Sink<'a, 'b> {
    place: &'a mut [IoSliceMut<'b>],
    filled: usize,
    /// The slice that is filled next, and from where on.
    slice: usize,
    at: usize,
}

impl Sink<'_, '_> {
    fn nowhere() -> Self {
        Self { place: &mut [], filled: 0, slice: 0, at: 0 }
    }

    fn is_full(&self) -> bool {
        self.place[self.slice..]
            .iter()
            .enumerate()
            .all(|(index, slice)| slice.len() == if index == 0 { self.at } else { 0 })
    }

    /// Takes what fits. Returns its length.
    fn put(&mut self, mut data: &[u8]) -> usize {
        let before = self.filled;
        while !data.is_empty() && self.slice < self.place.len() {
            let room = &mut self.place[self.slice][self.at..];
            let bytes = room.len().min(data.len());
            room[..bytes].copy_from_slice(&data[..bytes]);
            data = &data[bytes..];
            self.filled += bytes;
            self.at += bytes;
            if self.at == self.place[self.slice].len() {
                (self.slice, self.at) = (self.slice + 1, 0);
            }
        }
        self.filled - before
    }
}

#[cfg(test)]
mod tests;
