//! A connection that never blocks, with buffered input and queued output. Only `transport` below it knows sockets.

mod blocking;
mod pause;

pub use crate::transport::CloseReason;
pub use blocking::{BlockingConnection, Closer};

use crate::limits;
use crate::memory::{Lease, View};
use crate::poller::{Poller, Token};
use crate::quic::QuicState;
use crate::tls::{PeerIdentity, peer_of, valid_until};
use crate::traffic::Direction;
use crate::transport::Transport;
use core::time::Duration;
use pause::Pause;
use ringfold_plan::medium::Ticket;
use ringfold_proto::claim::CertificateChain;
use ringfold_proto::handshake::{Binding, CertificateProblem};
use ringfold_proto::hello::Purpose;
use ringfold_proto::id::PeerId;
use ringfold_proto::limits::PAYLOAD_BYTES_MAX;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, LazyLock};
use std::time::{Instant, SystemTime};

/// Sent instead of the bytes of a cancelled put.
pub(crate) static NOTHING: LazyLock<View> = LazyLock::new(|| View::from(vec![0; PAYLOAD_BYTES_MAX]));

/// A connection, registered with a poller.
#[derive(Debug)]
pub struct Connection {
    transport: Arc<Transport>,
    poller: Arc<Poller>,
    token: Token,
    /// Whether room to write is wanted.
    awaits_room: bool,
    /// Whether input is wanted.
    awaits_input: bool,
    /// What the poller reports: input and room, but for pauses.
    watched: (bool, bool),
    /// While the bandwidth is used up.
    input_pause: Pause,
    output_pause: Pause,
    /// Whether the last read took everything.
    is_drained: bool,
    /// Whether the poller reports what was decrypted.
    is_reported: bool,
    input: Box<[u8]>,
    /// The part of `input` that was not taken.
    unread: core::ops::Range<usize>,
    output: VecDeque<Piece>,
    /// Bytes of the first piece that were sent.
    sent: usize,
    queued_bytes: usize,
    /// Of them, those that are kept here: not the payloads of puts, which wait in the memory of their owners.
    kept_bytes: usize,
}

/// Bytes that are sent together.
#[derive(Debug)]
enum Piece {
    Bytes(Vec<u8>),
    /// The payload of a put, and its ticket.
    Leased(Lease, Option<Ticket>),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Leased(lease, _) => lease.len(),
        }
    }

    fn start(&self) -> *const u8 {
        match self {
            Self::Bytes(bytes) => bytes.as_ptr(),
            Self::Leased(lease, _) => lease.start(),
        }
    }
}

/// The size of the input buffer.
#[derive(Clone, Copy, Debug)]
pub enum Intake {
    /// Large, for messages.
    Messages,
    /// Small, for headers of frames whose payloads are read directly into their slots.
    Frames,
}

impl Intake {
    fn bytes(self) -> usize {
        match self {
            Self::Messages => 64 * 1024,
            // A frame of 8 KiB takes one read.
            Self::Frames => 8 * 1024 + 512,
        }
    }
}

impl Connection {
    /// Registers a blocking connection, or a TCP stream.
    pub fn new(
        from: impl Into<BlockingConnection>,
        poller: &Arc<Poller>,
        intake: Intake,
    ) -> io::Result<Self> {
        Self::over(from.into().into_transport(), poller, intake)
    }

    /// The same for a transport, connected or not.
    pub(crate) fn over(transport: Arc<Transport>, poller: &Arc<Poller>, intake: Intake) -> io::Result<Self> {
        transport.set_blocking(false)?;
        let token = poller.token();
        transport.watch(poller, token)?;
        Ok(Self {
            transport,
            poller: poller.clone(),
            token,
            awaits_room: false,
            awaits_input: true,
            watched: (true, false),
            input_pause: Pause::none(poller, token, Direction::Receive),
            output_pause: Pause::none(poller, token, Direction::Send),
            is_drained: false,
            is_reported: false,
            input: vec![0; intake.bytes()].into_boxed_slice(),
            unread: 0..0,
            output: VecDeque::new(),
            sent: 0,
            queued_bytes: 0,
            kept_bytes: 0,
        })
    }

    /// Its token in the poller.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The address of the other end.
    pub fn peer_address(&self) -> io::Result<SocketAddr> {
        self.transport.peer_address()
    }

    /// The relay that it goes through, if there is one.
    pub fn relay(&self) -> Option<SocketAddr> {
        self.transport.relay()
    }

    /// The other end has authenticated: from now on its bytes are on its account, and the caps hold.
    pub(crate) fn identify(&self, peer: PeerId, purpose: Purpose) {
        self.transport.identify(peer, purpose, self.is_local());
    }

    /// Who the other end of a TLS connection is, as its certificate says, checked as of now; none if this end uses no certificates.
    pub fn peer_identity(&self) -> Option<Result<PeerIdentity, CertificateProblem>> {
        self.poller.security().ok()?.check(&self.transport.peer_certificates()?)
    }

    /// Until when the identity of the other end is valid; none if this end uses no certificates.
    pub fn peer_valid_until(&self) -> Option<SystemTime> {
        self.poller.security().ok().filter(|security| security.has_certificates())?;
        valid_until(self.transport.peer_certificates()?.get(1)?)
    }

    /// The certificates of the run that the other end shows, and the id that belongs to its key; none if this end uses none.
    pub fn peer_chain(&self) -> Option<(PeerId, CertificateChain)> {
        self.poller.security().ok().filter(|security| security.has_certificates())?;
        let chain = self.transport.peer_certificates()?;
        let peer = peer_of(chain.first()?)?;
        Some((peer, CertificateChain(chain.iter().map(|certificate| certificate.to_vec()).collect())))
    }

    /// What the protocol below proves of the other end, once something has come through it; none without encryption.
    pub(crate) fn binding(&self) -> Option<Binding> {
        self.transport.binding()
    }

    /// Whether both ends have sent their first message of TLS.
    pub(crate) fn has_negotiated(&self) -> bool {
        self.transport.has_negotiated()
    }

    /// Whether it is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.transport.is_encrypted()
    }

    /// What the protocol says of a QUIC connection; none for TCP.
    pub(crate) fn quic(&self) -> Option<&Arc<QuicState>> {
        self.transport.quic()
    }

    /// Whether both ends are on this host, as far as their addresses show.
    pub fn is_local(&self) -> bool {
        self.transport.is_local()
    }

    /// The round-trip time, as the kernel measured it.
    pub fn round_trip(&self) -> io::Result<Duration> {
        self.transport.round_trip()
    }

    /// The bytes per second that the path carries to the other end, if enough was sent to know.
    pub fn bandwidth(&self) -> Option<u64> {
        self.transport.bandwidth()
    }

    /// Limits what the kernel buffers before it is sent, so that urgent data does not wait behind megabytes.
    pub fn limit_unsent(&self, bytes: u32) {
        self.transport.limit_unsent(bytes);
    }

    /// Adapts a TCP connection to a long path: see [`Self::limit_unsent`], and a congestion control that does not take every loss
    /// for congestion, if the system has it and lets users choose it.
    pub fn adapt_to_long_path(&self, unsent_bytes: u32) {
        self.transport.limit_unsent(unsent_bytes);
        self.transport.prefer_bbr();
    }

    /// The pending error of the connection, if there is one.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.transport.take_error()
    }

    /// Changes the size of the input buffer.
    pub fn set_intake(&mut self, intake: Intake) {
        let unread = self.input[self.unread.clone()].to_vec();
        self.input = vec![0; intake.bytes().max(unread.len())].into_boxed_slice();
        self.input[..unread.len()].copy_from_slice(&unread);
        self.unread = 0..unread.len();
    }

    /// Queues bytes. Small messages are sent together.
    pub fn send(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.queued_bytes += bytes.len();
        self.kept_bytes += bytes.len();
        match self.output.back_mut() {
            Some(Piece::Bytes(last)) => last.extend_from_slice(bytes),
            _ => self.output.push_back(Piece::Bytes(bytes.to_vec())),
        }
    }

    /// Queues bytes ahead of all frames that have not begun to leave. A frame is some bytes, or some bytes and a put.
    pub fn send_urgently(&mut self, bytes: Vec<u8>) {
        self.queued_bytes += bytes.len();
        self.kept_bytes += bytes.len();
        let begins = self.sent == 0 && matches!(self.output.front(), Some(Piece::Bytes(_)));
        let end_of_first = self.output.iter().position(|piece| matches!(piece, Piece::Leased(..)));
        let at = if begins { 0 } else { end_of_first.map_or(self.output.len(), |put| put + 1) };
        self.output.insert(at, Piece::Bytes(bytes));
    }

    /// Queues a put. [`Connection::flush`] returns its ticket when the last byte has left.
    pub fn send_put(&mut self, head: &[u8], payload: Lease, ticket: impl Into<Option<Ticket>>) {
        self.send(head);
        self.queued_bytes += payload.len();
        self.output.push_back(Piece::Leased(payload, ticket.into()));
    }

    /// Stops reading the memory of a put, and sends zeros instead. Returns whether it was still queued.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        for piece in &mut self.output {
            if let Piece::Leased(lease, of) = piece
                && *of == Some(ticket)
            {
                *piece = Piece::Leased(NOTHING.lease(0..lease.len()), None);
                return true;
            }
        }
        false
    }

    /// Bytes that are queued.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes - self.sent
    }

    /// Sends what can be sent now, and collects the tickets of puts that have left.
    pub fn flush(&mut self, flushed: &mut Vec<Ticket>) -> io::Result<()> {
        if self.kept_bytes > limits::QUEUED_BYTES_MAX {
            return Err(CloseReason::Backlogged.into());
        }
        let mut is_flushed = self.transport.flush()?;
        while is_flushed && !self.output.is_empty() {
            if self.output.front().is_some_and(|first| first.len() > self.sent) {
                match self.write() {
                    Ok(bytes) => self.sent += bytes,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                }
            }
            self.drop_sent(flushed);
        }
        is_flushed = is_flushed && self.transport.flush()?;
        self.awaits_room = !is_flushed || !self.output.is_empty();
        if !self.awaits_room {
            self.output_pause.end();
        }
        self.watch()
    }

    /// Sets whether the poller reports input.
    pub fn set_awaits_input(&mut self, awaits_input: bool) -> io::Result<()> {
        self.awaits_input = awaits_input;
        if !awaits_input {
            self.input_pause.end();
        }
        self.note_buffered();
        self.watch()
    }

    /// Tells the poller what to report, if that has changed.
    fn watch(&mut self) -> io::Result<()> {
        let input = self.awaits_input && !self.input_pause.is_set();
        let room = self.awaits_room && !self.output_pause.is_set();
        if (input, room) != self.watched {
            self.transport.rewatch(&self.poller, self.token, input, room)?;
            self.watched = (input, room);
        }
        Ok(())
    }

    /// How many bytes may be read now. If the bandwidth is used up, none, and the poller reports when there is some.
    fn may_read(&mut self) -> io::Result<usize> {
        let allowance = self.transport.allowance(Direction::Receive);
        let bytes = self.input_pause.apply(allowance)?;
        if bytes == 0 {
            self.note_buffered();
        }
        self.watch()?;
        Ok(bytes)
    }

    /// Has the poller report what was decrypted but not read: the socket does not show it.
    fn note_buffered(&mut self) {
        let has_buffered = self.awaits_input && !self.input_pause.is_set() && self.transport.has_buffered();
        if has_buffered != self.is_reported {
            self.poller.set_buffered(self.token, has_buffered);
            self.is_reported = has_buffered;
        }
    }

    /// Ends the output. What was sent before still arrives.
    pub fn finish(&self) -> io::Result<()> {
        self.transport.shutdown(Shutdown::Write)
    }

    fn write(&mut self) -> io::Result<usize> {
        let mut most = self.output_pause.apply(self.transport.allowance(Direction::Send))?;
        if most == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let nothing = libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
        let mut pieces = [nothing; limits::PIECES_PER_WRITE];
        let mut count = 0;
        let mut skip = self.sent;
        for (slot, piece) in pieces.iter_mut().zip(&self.output) {
            *slot = libc::iovec {
                // `sent` is less than the length of the first piece here.
                iov_base: piece.start().wrapping_add(skip).cast_mut().cast(),
                iov_len: (piece.len() - skip).min(most),
            };
            most -= slot.iov_len;
            skip = 0;
            count += 1;
            if most == 0 {
                break;
            }
        }
        // SAFETY: the leases keep the memory of the pieces valid for reads.
        unsafe { self.transport.write(&mut pieces[..count]) }
    }

    fn drop_sent(&mut self, flushed: &mut Vec<Ticket>) {
        while let Some(piece) = self.output.pop_front_if(|piece| piece.len() <= self.sent) {
            self.sent -= piece.len();
            self.queued_bytes -= piece.len();
            match piece {
                Piece::Bytes(bytes) => self.kept_bytes -= bytes.len(),
                Piece::Leased(_, ticket) => flushed.extend(ticket),
            }
        }
    }

    /// Reads once, if there is anything. The end of the stream is an error.
    pub fn fill(&mut self) -> io::Result<bool> {
        self.fill_within(usize::MAX)
    }

    /// The same, for so many bytes at most. What follows stays in the socket.
    pub(crate) fn fill_within(&mut self, bytes: usize) -> io::Result<bool> {
        let bytes = bytes.min(self.may_read()?);
        self.make_room();
        let room = bytes.min(self.input.len() - self.unread.end);
        if bytes == 0 {
            self.is_drained = true;
            return Ok(false);
        }
        let place = &mut self.input[self.unread.end..][..room];
        let read = self.transport.read(&mut [IoSliceMut::new(place)])?;
        self.unread.end += read;
        self.is_drained = read < room;
        self.note_buffered();
        Ok(read > 0)
    }

    /// Reads once into `place`, and what follows into the input buffer, which must be empty. Returns the number of bytes
    /// in `place`.
    pub fn read_into(&mut self, place: &mut [u8]) -> io::Result<usize> {
        debug_assert!(self.unread.is_empty(), "buffered input must be taken first");
        self.make_room();
        let most = self.may_read()?;
        if most == 0 {
            self.is_drained = true;
            return Ok(0);
        }
        let wanted = place.len().min(most);
        let beyond = self.input.len().min(most - wanted);
        let room = wanted + beyond;
        let mut slices = [IoSliceMut::new(&mut place[..wanted]), IoSliceMut::new(&mut self.input[..beyond])];
        let read = self.transport.read(&mut slices)?;
        self.is_drained = read < room;
        self.unread = 0..read.saturating_sub(wanted);
        self.note_buffered();
        Ok(read.min(wanted))
    }

    /// Whether the last read took everything that had arrived, or all that the bandwidth allows.
    pub fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// Passes the buffered input to a decoder, which takes some of it off the front.
    pub fn take<T>(&mut self, decode: impl FnOnce(&mut &[u8]) -> T) -> T {
        let mut rest = &self.input[self.unread.clone()];
        let decoded = decode(&mut rest);
        self.unread.start = self.unread.end - rest.len();
        decoded
    }

    /// Whether there is buffered input.
    pub fn has_input(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Drops the queued output. Returns the tickets of its puts.
    pub fn unsent(&mut self) -> impl Iterator<Item = Ticket> + '_ {
        (self.queued_bytes, self.kept_bytes, self.sent) = (0, 0, 0);
        self.output.drain(..).filter_map(|piece| match piece {
            Piece::Leased(_, ticket) => ticket,
            Piece::Bytes(_) => None,
        })
    }

    /// Sends what is queued, then ends the output. Returns true when that is done, or the connection is broken.
    pub fn poll_finish(&mut self) -> bool {
        if self.flush(&mut Vec::new()).is_err() {
            return true;
        }
        let is_sent = self.output.is_empty() && self.transport.is_flushed();
        if is_sent {
            // A connection that is broken has nothing to end.
            let _ = self.finish();
        }
        is_sent
    }

    /// As [`Connection::poll_finish`], but returns true only when the peer's system has acknowledged everything. Input is
    /// discarded: closing a connection with unread input resets it, and that discards what is still in flight.
    pub fn poll_acknowledged(&mut self) -> bool {
        let is_sent = self.poll_finish();
        // A peer that never stops sending must not delay others that close.
        for _ in 0..limits::READS_PER_CLOSE {
            match self.transport.read(&mut [IoSliceMut::new(&mut self.input)]) {
                Ok(0) => {
                    return is_sent && !self.transport.unacknowledged_bytes().is_ok_and(|bytes| bytes > 0);
                }
                Ok(_) => {}
                // Its end must not be reported again and again while something is left to be sent.
                Err(_) => return is_sent || self.set_awaits_input(false).is_err(),
            }
        }
        false
    }

    /// Removes it from the poller; it stays open.
    pub fn unwatch(&self) {
        // One that is not registered needs no removal.
        let _ = self.transport.unwatch(&self.poller);
    }

    /// The same connection, no longer registered, for a thread that may block. Its poller still checks whether the other
    /// host answers. It is an error if input was not taken or output was not sent.
    pub fn into_blocking(mut self) -> io::Result<BlockingConnection> {
        if !self.unread.is_empty() || !self.output.is_empty() {
            return Err(io::Error::other("unexpected data after the handshake"));
        }
        self.end_report();
        self.transport.unwatch(&self.poller)?;
        self.transport.set_blocking(true)?;
        Ok(BlockingConnection::from(self.transport.clone()))
    }

    fn end_report(&mut self) {
        if core::mem::take(&mut self.is_reported) {
            self.poller.set_buffered(self.token, false);
        }
    }

    fn make_room(&mut self) {
        if self.unread.is_empty() {
            self.unread = 0..0;
        } else if self.unread.end == self.input.len() && self.unread.start > 0 {
            self.input.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.end_report();
    }
}

/// Polls connections until all of them are closed, or the deadline has passed. One deadline holds for all of them.
pub fn close_all<T>(
    open: impl IntoIterator<Item = T>,
    deadline: Instant,
    mut poll_closed: impl FnMut(&mut T) -> bool,
) {
    let mut open: Vec<T> = open.into_iter().collect();
    loop {
        open.retain_mut(|connection| !poll_closed(connection));
        if open.is_empty() || Instant::now() >= deadline {
            return;
        }
        std::thread::sleep(limits::FAREWELL_PAUSE);
    }
}

#[cfg(test)]
mod tests;
