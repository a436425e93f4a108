//! A link through memory that both ends have mapped.
//!
//! Payloads are copied once, into cells of the sender's direction, and are read where they lie; a cell goes back when
//! the slot that it stands for is released. The TCP connection on which the two agreed stays: it is the bell that wakes
//! the other end, and its end is the sign of the other's death. Nothing else travels on it.

#[cfg(test)]
mod tests;

use crate::arrival::{Arrival, can_wait};
use crate::connection::{Connection, NOTHING};
use crate::limits;
use crate::memory::Lease;
use crate::poller::Token;
use crate::segment::Segment;
use crate::shared_ring::{
    BODY_BYTES_MAX, Cells, Inlet, Outlet, Record, SEGMENT_BYTES, Source, Tenancy, Way, Word, find, lay_out,
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
    bell: Connection,
    outlet: Outlet,
    inlet: Inlet,
    tenancy: Arc<Tenancy>,
    /// What found no room, and all that came after it.
    backlog: VecDeque<Waiting>,
    backlog_bytes: usize,
    /// Puts that have left, and that nobody was told of.
    left: Vec<Ticket>,
    body: Box<[u8; BODY_BYTES_MAX]>,
    encoded: Vec<u8>,
    /// Something was sent since the other end's bell was last looked at.
    has_sent: bool,
    /// Something was sent that nobody needs to be woken for.
    has_whispered: bool,
    /// Something was taken out of the ring since.
    has_taken: bool,
    /// Why the link can't go on. What arrived before is handed over first.
    end: Option<io::Error>,
}

/// What waits for room.
#[derive(Debug)]
enum Waiting {
    Message(Vec<u8>),
    Frame([u8; DATA_HEAD_BYTES], Lease, Option<Ticket>),
}

impl Waiting {
    fn bytes(&self) -> usize {
        match self {
            Self::Message(bytes) => bytes.len(),
            Self::Frame(head, payload, _) => head.len() + payload.len(),
        }
    }
}

/// A reader that sleeps is to be woken when there is something to read.
const FOR_RECORDS: u64 = 1;

/// It is also to be woken when it can go on writing.
const FOR_ROOM: u64 = 2;

/// Memory for a new link, as its dialler offers it.
#[derive(Debug)]
pub struct Offer {
    ticket: crate::segment::Ticket,
    ways: (Way, Way),
}

impl Offer {
    /// Makes the memory.
    pub fn new() -> io::Result<Self> {
        // Most pairs of a large group never use more than a few cells, so memory is taken as it is used.
        let segment = Segment::create(SEGMENT_BYTES, false)?;
        Ok(Self { ticket: segment.ticket(), ways: lay_out(segment)? })
    }

    /// What the other end opens it with.
    pub fn ticket(&self) -> crate::segment::Ticket {
        self.ticket
    }

    /// The other end has opened it.
    pub fn accepted(self, bell: Connection) -> SharedLink {
        let (out, inward) = self.ways;
        SharedLink::new(bell, out, inward)
    }
}

/// Memory for a new link, as its acceptor has opened it.
#[derive(Debug)]
pub struct Opened {
    ways: (Way, Way),
}

impl Opened {
    /// Opens what was offered, if it can be had and is what we would have made.
    pub fn new(ticket: &crate::segment::Ticket) -> io::Result<Self> {
        if ticket.bytes != SEGMENT_BYTES as u64 {
            return Err(io::Error::other("its memory has another size"));
        }
        Ok(Self { ways: find(Segment::open(ticket)?)? })
    }

    /// The link.
    pub fn link(self, bell: Connection) -> SharedLink {
        let (inward, out) = self.ways;
        SharedLink::new(bell, out, inward)
    }
}

impl SharedLink {
    fn new(bell: Connection, out: Way, inward: Way) -> Self {
        Self {
            bell,
            outlet: Outlet::new(out),
            tenancy: Arc::new(Tenancy::new(inward.clone())),
            inlet: Inlet::new(inward),
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            left: Vec::new(),
            body: Box::new([0; BODY_BYTES_MAX]),
            encoded: Vec::new(),
            has_sent: false,
            has_whispered: false,
            has_taken: false,
            end: None,
        }
    }

    /// The name of its socket in the poller.
    pub fn token(&self) -> Token {
        self.bell.token()
    }

    /// Copies a frame to where the other end reads it, or has it wait until there is room.
    pub fn put(&mut self, header: &DataHeader, payload: Lease, ticket: Ticket) {
        let head = encode_data_head(header).expect("the executor's frames are within the bounds");
        if self.backlog.is_empty() && self.end.is_none() && self.send_frame(&head, &payload) {
            self.left.push(ticket);
            // Whoever sleeps can begin with this frame while we copy the next one.
            self.wake_reader();
        } else {
            self.wait(Waiting::Frame(head, payload, Some(ticket)));
        }
    }

    /// Sends a message, or has it wait until there is room.
    pub fn say(&mut self, message: &LinkMessage) {
        let mut encoded = core::mem::take(&mut self.encoded);
        encoded.clear();
        encode_link_into(message, &mut encoded).expect("the executor's messages are within the bounds");
        let had_sent = self.has_sent;
        if !(self.backlog.is_empty() && self.end.is_none() && self.send_message(&encoded)) {
            self.wait(Waiting::Message(encoded.clone()));
        } else if can_wait(message) {
            (self.has_sent, self.has_whispered) = (had_sent, true);
        }
        self.encoded = encoded;
    }

    /// What could wait is told with the next flush, too.
    pub fn hurry(&mut self) {
        self.has_sent |= core::mem::take(&mut self.has_whispered);
    }

    /// Sends a message ahead of all that waits for room.
    pub fn say_urgently(&mut self, message: &LinkMessage) {
        let mut encoded = Vec::new();
        encode_link_into(message, &mut encoded).expect("the group's messages are within the bounds");
        if self.end.is_some() || !self.send_message(&encoded) {
            let waiting = Waiting::Message(encoded);
            self.backlog_bytes += waiting.bytes();
            self.backlog.push_front(waiting);
        }
    }

    fn wait(&mut self, waiting: Waiting) {
        self.backlog_bytes += waiting.bytes();
        self.backlog.push_back(waiting);
    }

    /// Says whether it was sent.
    fn send_frame(&mut self, head: &[u8; DATA_HEAD_BYTES], payload: &Lease) -> bool {
        let sent = if payload.len() <= limits::SHARED_INLINE_BYTES_MAX {
            let mut body = [0; BODY_BYTES_MAX];
            body[..DATA_HEAD_BYTES].copy_from_slice(head);
            payload.read(&mut body[DATA_HEAD_BYTES..][..payload.len()]);
            self.outlet.put(&body[..DATA_HEAD_BYTES + payload.len()], Source::from(&[][..]))
        } else {
            self.outlet.put(head, Source::from(payload))
        };
        self.note_sent(sent)
    }

    /// Says whether it was sent. A long message goes into cells.
    fn send_message(&mut self, encoded: &[u8]) -> bool {
        let sent = if encoded.len() <= BODY_BYTES_MAX {
            self.outlet.put(encoded, Source::from(&[][..]))
        } else {
            self.outlet.put(&[], Source::from(encoded))
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

    /// The memory of a put is no longer to be read. Says whether it was still waiting; the frame goes out all the
    /// same, with other bytes.
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

    /// Sends what there is room for, and wakes the other end if it waits for what we did.
    pub fn flush(&mut self, flushed: &mut Vec<Ticket>) -> io::Result<()> {
        if !self.backlog.is_empty() {
            self.send_backlog()?;
        }
        flushed.append(&mut self.left);
        if self.has_sent {
            self.wake_reader();
        }
        if self.has_taken | self.tenancy.take_returned() {
            self.has_taken = false;
            self.wake(FOR_ROOM);
        }
        Ok(())
    }

    fn send_backlog(&mut self) -> io::Result<()> {
        if self.backlog_bytes > limits::QUEUED_BYTES_MAX {
            return Err(io::Error::other("the other end reads too slowly"));
        }
        self.outlet.refresh()?;
        while self.end.is_none()
            && let Some(waiting) = self.backlog.pop_front()
        {
            let is_sent = match &waiting {
                Waiting::Message(encoded) => self.send_message(encoded),
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

    /// Sends the rest and ends the output. Returns true when that is done, or the link is broken. What is in the memory
    /// can be read after that.
    pub fn poll_closed(&mut self) -> bool {
        let is_sending =
            self.flush(&mut Vec::new()).is_ok() && !self.backlog.is_empty() && self.end.is_none();
        !is_sending && self.bell.poll_finish()
    }

    /// The poller tells of the bell: it rang, or the other end is gone.
    pub fn handle_ready(&mut self) {
        match self.bell.fill() {
            Ok(_) => self.bell.take(|input| *input = &[]),
            Err(error) => {
                self.end.get_or_insert(error);
            }
        }
    }

    /// Whether a turn would find something to do.
    pub fn is_stirring(&self) -> bool {
        self.inlet.has_records() || self.end.is_some() || !self.backlog.is_empty() && self.outlet.has_news()
    }

    /// From now on the other end rings for what it does. Says whether it has done something before it could know: then
    /// there is nothing to sleep for.
    pub fn prepare_sleep(&self) -> bool {
        let wake_for = FOR_RECORDS | if self.backlog.is_empty() { 0 } else { FOR_ROOM };
        sleep::prepare(self.inlet.way().word(Word::Bell), wake_for);
        let is_stirring = self.is_stirring();
        if is_stirring {
            self.awaken();
        }
        is_stirring
    }

    /// We are awake, and look at the ring by ourselves.
    pub fn awaken(&self) {
        sleep::cancel(self.inlet.way().word(Word::Bell), u64::MAX);
    }

    fn wake_reader(&mut self) {
        (self.has_sent, self.has_whispered) = (false, false);
        self.wake(FOR_RECORDS);
    }

    /// Rings if the other end sleeps and waits for this.
    fn wake(&mut self, cause: u64) {
        let marks = self.outlet.way().word(Word::Bell);
        // All of them are taken, even if the wish has become another one in between: nobody else would ring.
        if sleep::sleepers(marks) & cause == 0 || !sleep::claim(marks, u64::MAX) {
            return;
        }
        // One that has not left yet is enough.
        if self.bell.queued_bytes() == 0 {
            self.bell.send(&[1]);
        }
        // If the connection is broken, reading it shows that, behind what the other end sent before.
        let _ = self.bell.flush(&mut Vec::new());
    }

    /// The next arrival, if there is one. Frames are judged by their headers; payloads stay where they lie, unless
    /// they are small or lie in the cells that must not be held.
    pub fn next(
        &mut self,
        pool: &mut SlotPool,
        judge: impl Fn(&DataHeader) -> FrameDecision,
    ) -> io::Result<Option<Arrival>> {
        let Some(record) = self.inlet.pop(&mut self.body)? else {
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
            Some((run, bytes)) => Some(self.tenancy.take(run, bytes)?),
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
        match item.ok_or_else(|| io::Error::other("a record holds no whole frame"))? {
            LinkItem::Message(message) if input.is_empty() => Ok(Arrival::Message(message)),
            LinkItem::Message(_) => Err(io::Error::other("something follows a message in its record")),
            LinkItem::Data(header) => {
                let length = header.length as usize;
                let is_whole = match &cells {
                    Some(cells) => input.is_empty() && cells.len() == length,
                    None => input.len() == length,
                };
                if !is_whole {
                    return Err(io::Error::other("a record and its payload differ in length"));
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

/// Where a payload stays until it is used.
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
