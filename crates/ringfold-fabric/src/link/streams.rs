//! A link over one or several TCP streams.
//!
//! With several streams every frame carries its place in the order of the link, and is delivered in that order. Frames wait
//! for a stream that has room, so that a slow stream gets few of them.

use crate::arrival::{Arrival, can_wait};
use crate::connection::{CloseReason, Connection, NOTHING};
use crate::limits;
use crate::memory::Lease;
use crate::order::Order;
use crate::poller::Token;
use crate::slots::{SlotBuffer, SlotPool};
use core::time::Duration;
use ringfold_plan::executor::FrameDecision;
use ringfold_plan::medium::Ticket;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::frame::{LinkDecoder, LinkItem, encode_data_head, encode_link_into};
use ringfold_proto::link_message::LinkMessage;
use std::collections::VecDeque;
use std::io;

/// A link over streams.
#[derive(Debug)]
pub struct StreamLink {
    streams: Vec<Stream>,
    /// The TCP connection beside a QUIC connection. It carries nothing, and shows the end of the other process.
    guard: Option<Box<Connection>>,
    /// The place of the next frame that is sent.
    next_out: u64,
    /// Frames that no stream has taken, if there are several.
    waiting: VecDeque<Waiting>,
    /// A stream takes frames while fewer bytes are queued on it.
    stream_bytes: usize,
    early: Order<Arrival>,
    /// The error of the first stream that ended, or of one that broke.
    end: Option<io::Error>,
    /// Whether a stream broke. The link breaks too, after what has arrived on the others was read.
    is_broken: bool,
    encoded: Vec<u8>,
    is_local: bool,
    /// Whether something is queued that must not wait.
    is_due: bool,
}

/// A frame that no stream has taken: a message, or the head of a put and its payload. The ticket of a cancelled put is gone.
#[derive(Debug)]
struct Waiting {
    bytes: Vec<u8>,
    payload: Option<(Lease, Option<Ticket>)>,
}

/// One connection of a link.
#[derive(Debug)]
struct Stream {
    socket: Connection,
    decoder: LinkDecoder,
    place: Place,
    incoming: Option<Incoming>,
    /// Whether nothing follows on it.
    is_over: bool,
    /// Whether the last read took everything; the poller reports more.
    is_drained: bool,
}

/// The place of the frame that is being read.
#[derive(Debug, Default)]
struct Place {
    bytes: [u8; 8],
    have: usize,
}

/// A frame whose payload is not complete.
#[derive(Debug)]
struct Incoming {
    header: DataHeader,
    is_wanted: bool,
    payload: SlotBuffer,
    have: usize,
}

impl StreamLink {
    /// A link on established connections, in the order that both ends agreed on.
    pub fn new(sockets: Vec<Connection>) -> Self {
        let stream = |socket| Stream {
            socket,
            decoder: LinkDecoder::default(),
            place: Place::default(),
            incoming: None,
            is_over: false,
            is_drained: false,
        };
        let is_local = sockets.first().is_some_and(Connection::is_local);
        let early = Order::new(sockets.len());
        let round_trip = sockets.first().and_then(|socket| socket.round_trip().ok());
        let is_tcp = sockets.iter().all(|socket| socket.quic().is_none());
        let is_long =
            is_tcp && !is_local && round_trip.is_some_and(|time| time >= limits::QUIC_ROUND_TRIP_MIN);
        if is_long {
            for socket in &sockets {
                socket.adapt_to_long_path(limits::LONG_STREAM_BYTES as u32);
            }
        }
        let stream_bytes = if is_long { limits::LONG_STREAM_BYTES } else { limits::STREAM_BYTES };
        // The head of a stream may still have to be sent.
        let is_due = sockets.iter().any(|socket| socket.queued_bytes() > 0);
        let streams = sockets.into_iter().map(stream).collect();
        Self {
            streams,
            guard: None,
            next_out: 0,
            waiting: VecDeque::new(),
            stream_bytes,
            early,
            end: None,
            is_broken: false,
            encoded: Vec::new(),
            is_local,
            is_due,
        }
    }

    /// A link over QUIC, and the TCP connection beside it.
    pub fn guarded(guard: Connection, data: Connection) -> Self {
        Self { guard: Some(guard.into()), ..Self::new(vec![data]) }
    }

    /// Whether its data goes over QUIC.
    pub fn is_quic(&self) -> bool {
        self.streams.iter().any(|stream| stream.socket.quic().is_some())
    }

    /// The round-trip time, and the bytes per second that the path carries, if enough was sent to know.
    pub fn measure(&self) -> (Option<Duration>, Option<u64>) {
        let round_trip = self.streams.first().and_then(|stream| stream.socket.round_trip().ok());
        let rates = self.streams.iter().filter_map(|stream| stream.socket.bandwidth());
        (round_trip, rates.reduce(|sum, rate| sum + rate))
    }

    /// A socket is ready: checks whether the other process has ended.
    pub fn handle_ready(&mut self) {
        let (Some(guard), [stream]) = (&mut self.guard, &self.streams[..]) else { return };
        if guard.fill().is_err() {
            // The poller must not report the end again and again.
            guard.unwatch();
            self.guard = None;
            if let Some(quic) = stream.socket.quic() {
                quic.expire();
            }
        }
    }

    /// Reads what has arrived, without asking the poller. Returns whether there is something to take; none if only the poller
    /// can tell.
    pub fn look(&mut self) -> Option<bool> {
        let [stream] = &mut self.streams[..] else { return None };
        if stream.incoming.is_some() || stream.socket.quic().is_some() {
            return None;
        }
        let filled = stream.socket.fill();
        stream.is_drained = matches!(filled, Ok(true)) && stream.socket.is_drained();
        Some(filled.unwrap_or_else(|error| {
            self.end = Some(error);
            true
        }))
    }

    /// Whether both ends are on this host, as far as their addresses show.
    pub fn is_local(&self) -> bool {
        self.is_local
    }

    /// The tokens of its streams.
    pub fn tokens(&self) -> impl Iterator<Item = Token> + '_ {
        self.streams.iter().map(|stream| &stream.socket).chain(self.guard.as_deref()).map(Connection::token)
    }

    /// Queues a frame.
    pub fn put(&mut self, header: &DataHeader, payload: Lease, ticket: Ticket) {
        let head = encode_data_head(header).expect("the executor's frames are within the bounds");
        match &mut self.streams[..] {
            [stream] => stream.socket.send_put(&head, payload, ticket),
            _ => {
                let payload = Some((payload, Some(ticket)));
                self.waiting.push_back(Waiting { bytes: head.to_vec(), payload });
            }
        }
        self.is_due = true;
    }

    /// Queues a message.
    pub fn send_message(&mut self, message: &LinkMessage) {
        self.encoded.clear();
        encode_link_into(message, &mut self.encoded).expect("the executor's messages are within the bounds");
        let encoded = core::mem::take(&mut self.encoded);
        match &mut self.streams[..] {
            [stream] => stream.socket.send(&encoded),
            _ => self.waiting.push_back(Waiting { bytes: encoded.clone(), payload: None }),
        }
        self.encoded = encoded;
        self.is_due |= !can_wait(message);
    }

    /// Has the next flush send messages that can wait, too.
    pub fn flush_deferred(&mut self) {
        self.is_due = true;
    }

    /// Queues a message ahead of all frames that have not begun to leave. It has no place in the order.
    pub fn send_message_first(&mut self, message: &LinkMessage) {
        let mut urgent =
            if self.streams.len() > 1 { OUT_OF_ORDER.to_le_bytes().to_vec() } else { Vec::new() };
        encode_link_into(message, &mut urgent).expect("the group's messages are within the bounds");
        if let Some(stream) = self.least_busy() {
            stream.socket.send_urgently(urgent);
        }
        self.is_due = true;
    }

    /// Gives waiting frames to streams that have room. Returns whether there were any.
    fn deal(&mut self) -> bool {
        let (before, most) = (self.waiting.len(), self.stream_bytes);
        while let Some(stream) = self.streams.iter_mut().min_by_key(|stream| stream.socket.queued_bytes())
            && stream.socket.queued_bytes() < most
            && let Some(frame) = self.waiting.pop_front()
        {
            stream.socket.send(&self.next_out.to_le_bytes());
            self.next_out += 1;
            match frame.payload {
                Some((payload, ticket)) => stream.socket.send_put(&frame.bytes, payload, ticket),
                None => stream.socket.send(&frame.bytes),
            }
        }
        self.waiting.len() < before
    }

    fn least_busy(&mut self) -> Option<&mut Stream> {
        self.streams.iter_mut().min_by_key(|stream| stream.socket.queued_bytes())
    }

    /// Stops reading the memory of a put. Returns whether it was still queued.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        for waiting in &mut self.waiting {
            if let Some((payload, of)) = &mut waiting.payload
                && *of == Some(ticket)
            {
                (*payload, *of) = (NOTHING.lease(0..payload.len()), None);
                return true;
            }
        }
        self.streams.iter_mut().any(|stream| stream.socket.cancel(ticket))
    }

    /// Sends what can be sent now.
    pub fn flush(&mut self, flushed: &mut Vec<Ticket>) -> io::Result<()> {
        if self.is_due {
            // Payloads wait in the memory of their owners.
            if self.waiting.iter().map(|waiting| waiting.bytes.len()).sum::<usize>()
                > limits::QUEUED_BYTES_MAX
            {
                return Err(CloseReason::Backlogged.into());
            }
            self.deal();
            loop {
                self.streams.iter_mut().try_for_each(|stream| stream.socket.flush(flushed))?;
                if !self.deal() {
                    break;
                }
            }
            self.is_due = !self.waiting.is_empty()
                || self.streams.iter().any(|stream| stream.socket.queued_bytes() > 0);
        }
        Ok(())
    }

    /// Sends the rest and ends the streams. Returns true when the peer's system has acknowledged everything.
    pub fn poll_closed(&mut self) -> bool {
        if !self.waiting.is_empty() {
            self.is_due = true;
            if self.flush(&mut Vec::new()).is_err() {
                self.waiting.clear();
            } else if !self.waiting.is_empty() {
                return false;
            }
        }
        // All of them are polled, even if one is not done.
        let open =
            self.streams.iter_mut().filter_map(|stream| (!stream.socket.poll_acknowledged()).then_some(()));
        let is_closed = open.count() == 0;
        is_closed && self.guard.as_mut().is_none_or(|guard| guard.poll_finish())
    }

    /// The tickets of queued puts, which are dropped.
    pub fn unsent(&mut self) -> impl Iterator<Item = Ticket> + '_ {
        let waiting = self.waiting.drain(..).filter_map(|frame| frame.payload?.1);
        waiting.chain(self.streams.iter_mut().flat_map(|stream| stream.socket.unsent()))
    }

    /// As [`Link::next`](super::Link::next).
    pub fn next(
        &mut self,
        pool: &mut SlotPool,
        judge: impl Fn(&DataHeader) -> FrameDecision,
    ) -> io::Result<Option<Arrival>> {
        if let [stream] = &mut self.streams[..] {
            let arrival = stream.next(false, pool, &judge)?.map(|(_, arrival)| arrival);
            // What was read before the end counts.
            return if arrival.is_none() { self.end.take().map_or(Ok(None), Err) } else { Ok(arrival) };
        }
        loop {
            if let Some((_, arrival)) = self.early.next(|stream| &mut self.streams[stream].socket)? {
                return Ok(Some(arrival));
            }
            let mut moved = false;
            for index in 0..self.streams.len() {
                match self.next_of(index, pool, &judge) {
                    Ok(Some((OUT_OF_ORDER, arrival))) => return Ok(Some(arrival)),
                    Ok(Some((place, arrival))) => {
                        moved = true;
                        self.early.insert(index, place, arrival)?;
                    }
                    Ok(None) => {}
                    // What was sent before the end of this stream may have arrived on others.
                    Err(error) => self.note_end(index, error),
                }
            }
            if moved {
                continue;
            }
            if self.is_broken || self.streams.iter().all(|stream| stream.is_over) {
                return Err(self.end.take().unwrap_or_else(|| CloseReason::Ended.into()));
            }
            return Ok(None);
        }
    }

    /// The next arrival of one of several streams.
    fn next_of(
        &mut self,
        index: usize,
        pool: &mut SlotPool,
        judge: &impl Fn(&DataHeader) -> FrameDecision,
    ) -> io::Result<Option<(u64, Arrival)>> {
        let stream = &mut self.streams[index];
        if stream.is_over {
            return stream.socket.take_error()?.map_or(Ok(None), Err);
        }
        if !self.early.may_read(index, &mut stream.socket)? {
            return Ok(None);
        }
        stream.next(true, pool, judge)
    }

    fn note_end(&mut self, index: usize, error: io::Error) {
        let stream = &mut self.streams[index];
        let is_whole = stream.incoming.is_none() && stream.place.have == 0;
        let is_end = is_whole && CloseReason::of(&error) == Some(CloseReason::Ended);
        stream.is_over = true;
        // The poller must not report the end again and again. If that fails, the stream is broken as well.
        let is_quiet = stream.socket.set_awaits_input(false).is_ok();
        if !(is_end && is_quiet) {
            self.is_broken = true;
            self.end = Some(error);
        } else if self.end.is_none() {
            self.end = Some(error);
        }
    }
}

/// The place of messages outside of the order.
const OUT_OF_ORDER: u64 = u64::MAX;

impl Stream {
    fn next(
        &mut self,
        is_placed: bool,
        pool: &mut SlotPool,
        judge: &impl Fn(&DataHeader) -> FrameDecision,
    ) -> io::Result<Option<(u64, Arrival)>> {
        loop {
            if let Some(incoming) = &mut self.incoming {
                if !incoming.advance(&mut self.socket, &mut self.decoder)? {
                    return Ok(None);
                }
                return Ok(self.incoming.take().map(|incoming| (self.place.finish(), incoming.arrival())));
            }
            let (decoder, place) = (&mut self.decoder, &mut self.place);
            let item = self.socket.take(|input| match !is_placed || place.collect(input) {
                true => decoder.next_item(input),
                false => Ok(None),
            });
            match item.map_err(io::Error::other)? {
                Some(LinkItem::Message(message)) => {
                    return Ok(Some((self.place.finish(), Arrival::Message(message))));
                }
                Some(LinkItem::Data(header)) => {
                    let is_wanted = match judge(&header) {
                        FrameDecision::Place => true,
                        FrameDecision::Discard => false,
                        FrameDecision::Violation(why) => return Err(io::Error::other(why)),
                    };
                    let payload = pool.take(header.length as usize);
                    self.incoming = Some(Incoming { header, is_wanted, payload, have: 0 });
                }
                // To find nothing a second time costs a call to the system.
                None if core::mem::take(&mut self.is_drained) => return Ok(None),
                None if self.socket.fill()? => self.is_drained = self.socket.is_drained(),
                None => return Ok(None),
            }
        }
    }
}

impl Place {
    /// Takes the bytes of the place off the front of `input`. Says whether all of them are here.
    fn collect(&mut self, input: &mut &[u8]) -> bool {
        let (taken, rest) = input.split_at(input.len().min(8 - self.have));
        self.bytes[self.have..][..taken.len()].copy_from_slice(taken);
        self.have += taken.len();
        *input = rest;
        self.have == 8
    }

    /// The place of a frame that is complete; the next one has its own.
    fn finish(&mut self) -> u64 {
        self.have = 0;
        u64::from_le_bytes(self.bytes)
    }
}

impl Incoming {
    /// Takes what has arrived. Says whether the payload is complete.
    fn advance(&mut self, socket: &mut Connection, decoder: &mut LinkDecoder) -> io::Result<bool> {
        let payload = self.payload.as_mut_slice();
        if socket.has_input() {
            let have = &mut self.have;
            socket.take(|input| {
                let part = decoder.take_payload(input);
                payload[*have..*have + part.len()].copy_from_slice(part);
                *have += part.len();
            });
        }
        while decoder.payload_bytes() > 0 {
            let bytes = socket.read_into(&mut payload[self.have..])?;
            if bytes == 0 {
                return Ok(false);
            }
            decoder.skip_payload(bytes);
            self.have += bytes;
        }
        Ok(true)
    }

    fn arrival(self) -> Arrival {
        if self.is_wanted {
            Arrival::Frame(self.header, self.payload)
        } else {
            Arrival::Discarded(self.header, self.payload)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Intake;
    use crate::poller::Poller;
    use ringfold_proto::id::EpochId;
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    #[test]
    fn what_came_on_one_stream_counts_although_another_has_ended() {
        let poller = Arc::new(Poller::new().unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = |stream| Connection::new(stream, &poller, Intake::Frames).unwrap();
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            far.push(connection(TcpStream::connect(listener.local_addr().unwrap()).unwrap()));
            near.push(connection(listener.accept().unwrap().0));
        }
        let (mut near, mut far) = (StreamLink::new(near), StreamLink::new(far));
        let goodbye = LinkMessage::Goodbye { epoch: EpochId::default() };
        far.send_message(&goodbye);
        let began = Instant::now();
        while !far.poll_closed() {
            assert!(began.elapsed() < Duration::from_secs(20), "nothing is acknowledged");
            std::thread::yield_now();
        }
        let mut pool = SlotPool::default();
        let heard = loop {
            match near.next(&mut pool, |_| FrameDecision::Place) {
                Ok(None) => assert!(began.elapsed() < Duration::from_secs(20), "nothing arrives"),
                heard => break heard,
            }
        };
        assert!(matches!(heard, Ok(Some(Arrival::Message(message))) if message == goodbye));
        let end = loop {
            match near.next(&mut pool, |_| FrameDecision::Place) {
                Ok(None) => assert!(began.elapsed() < Duration::from_secs(20), "the end does not arrive"),
                end => break end,
            }
        };
        assert_eq!(CloseReason::of(&end.unwrap_err()), Some(CloseReason::Ended));
    }
}
