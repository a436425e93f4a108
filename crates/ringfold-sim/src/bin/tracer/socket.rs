//! A connection that never blocks, with what arrived and was not taken, and what waits to be sent.

use ringfold_plan::medium::Ticket;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Bytes that one read takes at most.
const READ_BYTES: usize = 64 * 1024;

/// Pieces that one write takes at most.
const PIECES_PER_WRITE: usize = 16;

/// Bytes that may wait to be sent. Data is bounded by credit and far below this; whoever falls so far behind
/// with anything else is given up.
const QUEUED_BYTES_MAX: usize = 256 << 20;

/// How long the last words of a connection may take.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// A TCP connection.
pub struct Socket {
    stream: TcpStream,
    input: Vec<u8>,
    output: VecDeque<Piece>,
    /// Bytes of the first piece that are sent.
    sent: usize,
    queued_bytes: usize,
}

/// Bytes that are sent together; the ticket of the put that ends with them, if they are one's.
struct Piece {
    bytes: Vec<u8>,
    ticket: Option<Ticket>,
}

impl Socket {
    /// Takes a connected stream over.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, input: Vec::new(), output: VecDeque::new(), sent: 0, queued_bytes: 0 })
    }

    /// Queues bytes.
    pub fn send(&mut self, bytes: Vec<u8>) {
        self.push(bytes, None);
    }

    /// Queues a frame; its ticket comes back from [`Socket::flush`] when the last byte has left.
    pub fn send_put(&mut self, head: &[u8], payload: Vec<u8>, ticket: Ticket) {
        self.push(head.to_vec(), None);
        self.push(payload, Some(ticket));
    }

    fn push(&mut self, bytes: Vec<u8>, ticket: Option<Ticket>) {
        if !bytes.is_empty() || ticket.is_some() {
            self.queued_bytes += bytes.len();
            self.output.push_back(Piece { bytes, ticket });
        }
    }

    /// Sends what the connection takes. Says whether anything was sent.
    pub fn flush(&mut self, flushed: &mut Vec<Ticket>) -> io::Result<bool> {
        if self.queued_bytes > QUEUED_BYTES_MAX {
            return Err(io::Error::other("the other end reads too slowly"));
        }
        let mut moved = false;
        while !self.output.is_empty() {
            if self.output.front().is_some_and(|first| first.bytes.len() > self.sent) {
                let unsent = self.output.iter().take(PIECES_PER_WRITE).enumerate();
                let slices: Vec<_> = unsent
                    .map(|(i, piece)| IoSlice::new(&piece.bytes[if i == 0 { self.sent } else { 0 }..]))
                    .collect();
                match self.stream.write_vectored(&slices) {
                    Ok(0) => return Err(ErrorKind::WriteZero.into()),
                    Ok(bytes) => self.sent += bytes,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(moved),
                    Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                    Err(e) => return Err(e),
                }
            }
            moved = true;
            self.drop_sent(flushed);
        }
        Ok(moved)
    }

    fn drop_sent(&mut self, flushed: &mut Vec<Ticket>) {
        while let Some(piece) = self.output.pop_front_if(|piece| piece.bytes.len() <= self.sent) {
            self.sent -= piece.bytes.len();
            self.queued_bytes -= piece.bytes.len();
            flushed.extend(piece.ticket);
        }
    }

    /// Reads once, if there is anything. The end of the stream is an error.
    pub fn fill(&mut self) -> io::Result<bool> {
        let before = self.input.len();
        self.input.resize(before + READ_BYTES, 0);
        let read = read(&mut self.stream, &mut self.input[before..]);
        self.input.truncate(before + read.as_ref().map_or(0, |bytes| *bytes));
        read.map(|bytes| bytes > 0)
    }

    /// Reads once to where the bytes belong. Only while nothing that came before them waits to be taken.
    pub fn read_into(&mut self, place: &mut [u8]) -> io::Result<usize> {
        debug_assert!(self.input.is_empty(), "bytes would overtake others");
        read(&mut self.stream, place)
    }

    /// Shows what arrived to a decoder, which takes some of it off the front.
    pub fn take<T>(&mut self, decode: impl FnOnce(&mut &[u8]) -> T) -> T {
        let mut rest = &self.input[..];
        let decoded = decode(&mut rest);
        let taken = self.input.len() - rest.len();
        self.input.drain(..taken);
        decoded
    }

    /// Whether something arrived that was not taken.
    pub fn has_input(&self) -> bool {
        !self.input.is_empty()
    }

    /// Puts that will never be sent, when the connection is given up.
    pub fn unsent(&mut self) -> impl Iterator<Item = Ticket> + '_ {
        self.output.drain(..).filter_map(|piece| piece.ticket)
    }

    /// Sends the rest, for as long as that may take, and closes.
    pub fn close(mut self) {
        let farewell = self
            .stream
            .set_nonblocking(false)
            .and_then(|()| self.stream.set_write_timeout(Some(FAREWELL_MAX)))
            .and_then(|()| self.flush(&mut Vec::new()));
        // Whoever does not read it has missed it; there is nobody left to tell.
        drop(farewell);
    }
}

fn read(stream: &mut TcpStream, place: &mut [u8]) -> io::Result<usize> {
    match stream.read(place) {
        Ok(0) => Err(io::Error::new(ErrorKind::UnexpectedEof, "the other end closed the connection")),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        result => result,
    }
}
