//! A link through memory that both ends have mapped.
//!
//! Payloads are copied once, into cells, and are read there; a cell is free again when the receiver's slot is released.
//! The TCP connection of the handshake stays open: a byte on it wakes the other end, and its end shows that the other
//! process is gone.

#[cfg(test)]
mod tests;

use crate::arrival::{Arrival, can_wait};
use crate::connection::{Connection, NOTHING};
use crate::limits;
use crate::memory::Lease;
use crate::poller::Token;
use crate::segment::Segment;
use crate::shared_ring::{
    BODY_BYTES_MAX, CellTracker, Cells, LinkDirection, Record, RingReader, RingWriter, SEGMENT_BYTES, Word,
    format_segment, open_segment,
};
use crate::slots::{SlotBuffer, SlotPool};
use crate::waiter::sleep;
use ringfold_plan::executor::FrameDecision;
use ringfold_plan::medium::Ticket;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::frame::{DATA_HEAD_BYTES, LinkDecoder, LinkItem, encode_data_head, encode_link_into};
use ringfold_proto::link_message::LinkMessage;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// A link through memory.
#[derive(Debug)]
pub struct SharedLink {
    socket: Connection,
    writer: RingWriter,
    reader: RingReader,
    tracker: Arc<CellTracker>,
    /// What found no room, and all that was sent after it.
    backlog: VecDeque<Waiting>,
    backlog_bytes: usize,
    /// Puts that have left, and were not reported.
    left: Vec<Ticket>,
    body: Box<[u8; BODY_BYTES_MAX]>,
    encoded: Vec<u8>,
    /// Something was sent since the other end's sleep marks were last checked.
    has_sent: bool,
    /// Something was sent that the other end need not be woken for.
    has_sent_lazily: bool,
    /// Something was taken out of the ring since then.
    has_taken: bool,
    /// Why the link is over. What arrived before is delivered first.
    end: Option<io::Error>,
}

/// What waits for room.
#[derive(Debug)]
enum Waiting {
    Message(Vec<u8>),
    Frame([u8; DATA_HEAD_BYTES], Lease, Option<Ticket>),
}

impl Waiting {
    /// Without the payload, which waits in the memory of its owner.
    fn bytes(&self) -> usize {
        match self {
            Self::Message(bytes) => bytes.len(),
            Self::Frame(head, ..) => head.len(),
        }
    }
}

/// A sleep mark: the end is woken when there is something to read.
const FOR_RECORDS: u64 = 1;

/// A sleep mark: the end is woken when there is room to write.
const FOR_ROOM: u64 = 2;

/// Memory of a new link that the dialler offers.
#[derive(Debug)]
pub struct Offer {
    ticket: crate::segment::Ticket,
    directions: (LinkDirection, LinkDirection),
}

impl Offer {
    /// Creates the memory.
    pub fn new() -> io::Result<Self> {
        // Most pairs of a large group use few cells, so memory is allocated when it is used.
        let segment = Segment::create(SEGMENT_BYTES, false)?;
        Ok(Self { ticket: segment.ticket(), directions: format_segment(segment)? })
    }

    /// What the other end needs to open it.
    pub fn ticket(&self) -> crate::segment::Ticket {
        self.ticket
    }

    /// The other end has opened it.
    pub fn accepted(self, socket: Connection) -> SharedLink {
        let (out, inward) = self.directions;
        SharedLink::new(socket, out, inward)
    }
}

/// Memory of a new link that the acceptor has opened.
#[derive(Debug)]
pub struct Opened {
    directions: (LinkDirection, LinkDirection),
}

impl Opened {
    /// Opens what was offered, if this process can and it has the layout of this version.
    pub fn new(ticket: &crate::segment::Ticket) -> io::Result<Self> {
        Ok(Self { directions: open_segment(Segment::open(ticket)?)? })
    }

    /// The link.
    pub fn link(self, socket: Connection) -> SharedLink {
        let (inward, out) = self.directions;
        SharedLink::new(socket, out, inward)
    }
}

impl SharedLink {
    fn new(socket: Connection, out: LinkDirection, inward: LinkDirection) -> Self {
        Self {
            socket,
            writer: RingWriter::new(out),
            tracker: Arc::new(CellTracker::new(inward.clone())),
            reader: RingReader::new(inward),
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            left: Vec::new(),
            body: Box::new([0; BODY_BYTES_MAX]),
            encoded: Vec::new(),
            has_sent: false,
            has_sent_lazily: false,
            has_taken: false,
            end: None,
        }
    }

    /// The name of its socket in the poller.
    pub fn token(&self) -> Token {
        self.socket.token()
    }

    /// Copies a frame to the other end, or queues it until there is room.
    pub fn put(&mut self, header: &DataHeader, payload: Lease, ticket: Ticket) {
        let head = encode_data_head(header).expect("the executor's frames are within the bounds");
        if self.backlog.is_empty() && self.end.is_none() && self.send_frame(&head, &payload) {
            self.left.push(ticket);
            // The other end can begin with this frame while the next one is copied.
            self.wake_reader();
        } else {
            self.wait(Waiting::Frame(head, payload, Some(ticket)));
        }
    }

    /// Sends a message, or queues it until there is room.
    pub fn send_message(&mut self, message: &LinkMessage) {
        let mut encoded = core::mem::take(&mut self.encoded);
        encoded.clear();
        encode_link_into(message, &mut encoded).expect("the executor's messages are within the bounds");
        let had_sent = self.has_sent;
        if !(self.backlog.is_empty() && self.end.is_none() && self.send_encoded(&encoded)) {
            self.wait(Waiting::Message(encoded.clone()));
        } else if can_wait(message) {
            (self.has_sent, self.has_sent_lazily) = (had_sent, true);
        }
        self.encoded = encoded;
    }

    /// The next flush wakes the other end for messages that could wait, too.
    pub fn flush_deferred(&mut self) {
        self.has_sent |= core::mem::take(&mut self.has_sent_lazily);
    }

    /// Sends a message ahead of all that is queued.
    pub fn send_message_first(&mut self, message: &LinkMessage) {
        let mut encoded = Vec::new();
        encode_link_into(message, &mut encoded).expect("the group's messages are within the bounds");
        if self.end.is_some() || !self.send_encoded(&encoded) {
            let waiting = Waiting::Message(encoded);
            self.backlog_bytes += waiting.bytes();
            self.backlog.push_front(waiting);
        }
    }

    fn wait(&mut self, waiting: Waiting) {
        self.backlog_bytes += waiting.bytes();
        self.backlog.push_back(waiting);
    }

    /// Returns whether there was room.
    fn send_frame(&mut self, head: &[u8; DATA_HEAD_BYTES], payload: &Lease) -> bool {
        let sent = if payload.len() <= limits::SHARED_INLINE_BYTES_MAX {
            let mut body = [0; BODY_BYTES_MAX];
            body[..DATA_HEAD_BYTES].copy_from_slice(head);
            payload.read(&mut body[DATA_HEAD_BYTES..][..payload.len()]);
            self.writer.put(&body[..DATA_HEAD_BYTES + payload.len()], None)
        } else {
            self.writer.put(head, Some(payload))
        };
        self.note_sent(sent)
    }

    /// Returns whether there was room. A long message goes into cells.
    fn send_encoded(&mut self, encoded: &[u8]) -> bool {
        let sent = if encoded.len() <= BODY_BYTES_MAX {
            self.writer.put(encoded, None)
        } else {
            self.writer.put(&[], Some(&Lease::from(encoded.to_vec())))
        };
        self.note_sent(sent)
    }

    fn note_sent(&mut self, sent: io::Result<bool>) -> bool {
        let is_sent = sent.unwrap_or_else(|error| {
            self.end.get_or_insert(error);
            false
        });
        self.has_sent |= is_sent;
        is_sent
    }

    /// Ends reading the memory of a put. Returns whether it was still queued; its frame is sent with zeros.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        for waiting in &mut self.backlog {
            if let Waiting::Frame(_, payload, of) = waiting
                && *of == Some(ticket)
            {
                *payload = NOTHING.lease(0..payload.len());
                *of = None;
                return true;
            }
        }
        false
    }

    /// Sends what there is room for, and wakes the other end if it sleeps.
    pub fn flush(&mut self, flushed: &mut Vec<Ticket>) -> io::Result<()> {
        if !self.backlog.is_empty() {
            self.send_backlog()?;
        }
        flushed.append(&mut self.left);
        if self.has_sent {
            self.wake_reader();
        }
        if self.has_taken | self.tracker.take_returned() {
            self.has_taken = false;
            self.wake(FOR_ROOM);
        }
        Ok(())
    }

    fn send_backlog(&mut self) -> io::Result<()> {
        if self.backlog_bytes > limits::QUEUED_BYTES_MAX {
            return Err(io::Error::other("the other end reads too slowly: too many bytes are queued"));
        }
        self.writer.refresh()?;
        while self.end.is_none()
            && let Some(waiting) = self.backlog.pop_front()
        {
            let is_sent = match &waiting {
                Waiting::Message(encoded) => self.send_encoded(encoded),
                Waiting::Frame(head, payload, _) => self.send_frame(head, payload),
            };
            if !is_sent {
                self.backlog.push_front(waiting);
                break;
            }
            self.backlog_bytes -= waiting.bytes();
            if let Waiting::Frame(_, _, Some(ticket)) = waiting {
                self.left.push(ticket);
            }
        }
        Ok(())
    }

    /// Puts that will never be sent, when the link is given up.
    pub fn unsent(&mut self) -> impl Iterator<Item = Ticket> + '_ {
        self.backlog_bytes = 0;
        let waiting = self.backlog.drain(..).filter_map(|waiting| match waiting {
            Waiting::Frame(_, _, ticket) => ticket,
            Waiting::Message(_) => None,
        });
        self.left.drain(..).chain(waiting)
    }

    /// Sends the rest and ends the output. True when that is done, or the link is broken. The other end can still read
    /// what is in the memory.
    pub fn poll_closed(&mut self) -> bool {
        let is_sending =
            self.flush(&mut Vec::new()).is_ok() && !self.backlog.is_empty() && self.end.is_none();
        !is_sending && self.socket.poll_finish()
    }

    /// The poller reports the socket: this end was woken, or the other end is gone.
    pub fn handle_ready(&mut self) {
        match self.socket.fill() {
            Ok(_) => self.socket.take(|input| *input = &[]),
            Err(error) => {
                self.end.get_or_insert(error);
            }
        }
    }

    /// Whether something has arrived, or can be sent.
    pub fn is_ready(&self) -> bool {
        self.reader.has_records() || self.end.is_some() || !self.backlog.is_empty() && self.writer.has_news()
    }

    /// From now on the other end wakes this one. True if something has arrived already: then the thread must not sleep.
    pub fn prepare_sleep(&self) -> bool {
        let wake_for = FOR_RECORDS | if self.backlog.is_empty() { 0 } else { FOR_ROOM };
        sleep::prepare(self.reader.direction().word(Word::SleepMarks), wake_for);
        let is_ready = self.is_ready();
        if is_ready {
            self.cancel_sleep();
        }
        is_ready
    }

    /// This end is awake and polls the ring: it need not be woken.
    pub fn cancel_sleep(&self) {
        sleep::cancel(self.reader.direction().word(Word::SleepMarks), u64::MAX);
    }

    fn wake_reader(&mut self) {
        (self.has_sent, self.has_sent_lazily) = (false, false);
        self.wake(FOR_RECORDS);
    }

    /// Wakes the other end if it sleeps and waits for this.
    fn wake(&mut self, cause: u64) {
        let marks = self.writer.direction().word(Word::SleepMarks);
        // All marks are taken, even if they have changed in between: no other thread would wake it.
        if sleep::sleepers(marks) & cause == 0 || !sleep::claim(marks, u64::MAX) {
            return;
        }
        // A byte that has not left yet is enough.
        if self.socket.queued_bytes() == 0 {
            self.socket.send(&[1]);
        }
        // If the connection is broken, reading shows that, after what the other end sent before.
        let _ = self.socket.flush(&mut Vec::new());
    }

    /// The next arrival, if there is one. Frames are accepted by their headers. Payloads stay in their cells, unless they
    /// are small or the cells must not be held.
    pub fn next(
        &mut self,
        pool: &mut SlotPool,
        judge: impl Fn(&DataHeader) -> FrameDecision,
    ) -> io::Result<Option<Arrival>> {
        let Some(record) = self.reader.pop(&mut self.body)? else {
            return self.end.take().map_or(Ok(None), Err);
        };
        self.has_taken = true;
        self.understand(record, pool, judge).map(Some)
    }

    fn understand(
        &mut self,
        record: Record,
        pool: &mut SlotPool,
        judge: impl Fn(&DataHeader) -> FrameDecision,
    ) -> io::Result<Arrival> {
        let cells = match record.cells {
            Some((run, bytes)) => Some(self.tracker.take(run, bytes)?),
            None => None,
        };
        let mut input = &self.body[..record.body_bytes];
        let mut long = Vec::new();
        if let Some(cells) = cells.as_ref().filter(|_| input.is_empty()) {
            long.resize(cells.len(), 0);
            cells.read(&mut long);
            input = &long;
        }
        let mut decoder = LinkDecoder::default();
        let item = decoder.next_item(&mut input).map_err(io::Error::other)?;
        match item.ok_or_else(|| io::Error::other("invalid record: no whole frame"))? {
            LinkItem::Message(message) if input.is_empty() => Ok(Arrival::Message(message)),
            LinkItem::Message(_) => Err(io::Error::other("invalid record: bytes after a message")),
            LinkItem::Data(header) => {
                let length = header.length as usize;
                let is_whole = match &cells {
                    Some(cells) => input.is_empty() && cells.len() == length,
                    None => input.len() == length,
                };
                if !is_whole {
                    return Err(io::Error::other(
                        "invalid record: a header and a payload of different lengths",
                    ));
                }
                match judge(&header) {
                    FrameDecision::Violation(why) => Err(io::Error::other(why)),
                    FrameDecision::Discard => Ok(Arrival::Discarded(header, SlotBuffer::empty())),
                    FrameDecision::Place => Ok(Arrival::Frame(header, place(cells, input, pool))),
                }
            }
        }
    }
}

/// The buffer that holds a payload until it is used.
fn place(cells: Option<Cells>, inline: &[u8], pool: &mut SlotPool) -> SlotBuffer {
    match cells {
        Some(cells) if cells.end() <= limits::SHARED_CELLS_HELD_MAX => cells.into(),
        Some(cells) => {
            let mut buffer = pool.take(cells.len());
            cells.read(buffer.as_mut_slice());
            buffer
        }
        None => {
            let mut buffer = pool.take(inline.len());
            buffer.as_mut_slice().copy_from_slice(inline);
            buffer
        }
    }
}
