//! A connection from within: streams, what goes out, what came in, and how it ended.

use super::ChannelError;
use super::incoming::{CompleteFrame, ConnectionEnd, HeldPut, Incoming};
use super::outbox::{Frame, Outbox};
use super::segment::{Part, Place, Segments, Sink};
use super::wire::{Body, Head};
use crate::connection::Connection;
use crate::limits;
use crate::order::Order;
use crate::poller::Token;
use crate::slots::SlotPool;
use core::sync::atomic::{AtomicBool, Ordering};
use ringfold_plan::medium::Ticket;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// A connection.
pub struct ConnectionState {
    me: Arc<str>,
    pub peer: Arc<str>,
    streams: Vec<Stream>,
    early: Order<EarlyFrame>,
    outbox: Outbox,
    /// Signals that were not waited for, by channel.
    signals: BTreeMap<u32, u64>,
    pool: SlotPool,
    left: Vec<Ticket>,
    failure: Option<ChannelError>,
    /// Whether there is a failure, for readers without the lock.
    pub has_failed: Arc<AtomicBool>,
    /// Nothing new is sent; it closes at this time at the latest.
    pub ending: Option<Instant>,
    /// Whether its last handle was dropped.
    pub is_released: bool,
    /// Whether there is something to do that no socket reports.
    pub needs_turn: bool,
    /// Whether something happened that may end a wait.
    has_news: bool,
    /// Sinks that were written to and not waited for, one of each stream.
    unsettled: Vec<Arc<dyn Sink>>,
    /// Questions that were asked, and those that were answered.
    asked: u64,
    answered: u64,
    /// The last question of the other end that was not answered.
    owes_answer: Option<u64>,
    /// Whether the other end has said goodbye.
    has_left: bool,
    /// Called when it has failed.
    callback: Option<FailureCallback>,
}

/// Called once when a connection has failed.
pub type FailureCallback = Box<dyn FnOnce(&ChannelError) + Send>;

#[derive(Debug)]
struct Stream {
    socket: Connection,
    incoming: Incoming,
    /// Whether the output has ended.
    is_finished: bool,
    /// Whether the input has ended.
    is_over: bool,
}

/// What came before its turn.
#[derive(Debug)]
enum EarlyFrame {
    Put(HeldPut),
    Bare(Body),
}

impl ConnectionState {
    /// A connection with someone.
    pub fn new(me: Arc<str>, peer: Arc<str>, sockets: Vec<Connection>) -> Self {
        let early = Order::new(sockets.len());
        let stream = |socket| Stream { socket, incoming: Incoming::Head, is_finished: false, is_over: false };
        Self {
            me,
            peer,
            streams: sockets.into_iter().map(stream).collect(),
            early,
            outbox: Outbox::default(),
            signals: BTreeMap::new(),
            pool: SlotPool::default(),
            left: Vec::new(),
            failure: None,
            has_failed: Arc::default(),
            ending: None,
            is_released: false,
            needs_turn: false,
            has_news: false,
            unsettled: Vec::new(),
            asked: 0,
            answered: 0,
            owes_answer: None,
            has_left: false,
            callback: None,
        }
    }

    /// The names of its sockets.
    pub fn tokens(&self) -> impl Iterator<Item = Token> + '_ {
        self.streams.iter().map(|stream| stream.socket.token())
    }

    /// Whether something happened since the last call.
    pub fn take_news(&mut self) -> bool {
        core::mem::take(&mut self.has_news)
    }

    /// Whether nothing more can be sent or will come.
    pub fn is_over(&self) -> bool {
        self.failure.is_some() || self.ending.is_some()
    }

    /// Whether no socket is left.
    pub fn is_closed(&self) -> bool {
        self.streams.is_empty()
    }

    /// How it failed, if it did.
    pub fn failure(&self) -> Option<&ChannelError> {
        self.failure.as_ref()
    }

    /// Takes something to be done when it fails. If it has failed, the callback is left, and the failure returned.
    pub fn set_callback(&mut self, callback: &mut Option<FailureCallback>) -> Option<ChannelError> {
        if self.failure.is_none() {
            self.callback = callback.take();
        }
        self.failure.clone()
    }

    /// What is to be done now that it has failed.
    pub fn take_callback(&mut self) -> Option<(FailureCallback, ChannelError)> {
        let failure = self.failure.as_ref()?;
        self.callback.take().map(|callback| (callback, failure.clone()))
    }

    /// Queues a put or a signal, or both, and sends what can be sent.
    pub fn send(&mut self, put: Option<(Part, Place)>, signal: Option<u32>) -> Result<(), ChannelError> {
        self.queue(|outbox| {
            if let Some((from, to)) = put {
                outbox.put(from, to);
            }
            if let Some(channel) = signal {
                outbox.signal(channel);
            }
        })
    }

    /// Queues a word, and sends what can be sent.
    pub fn send_word(&mut self, to: Place, value: u64) -> Result<(), ChannelError> {
        self.queue(|outbox| outbox.word(to, value))
    }

    /// Asks whether everything so far is where it belongs. The question's number.
    pub fn ask(&mut self) -> Result<u64, ChannelError> {
        let number = self.asked + 1;
        self.queue(|outbox| outbox.send(Body::Ask { number }))?;
        self.asked = number;
        Ok(number)
    }

    /// Whether a question was answered.
    pub fn answered(&self, number: u64) -> Option<Result<(), ChannelError>> {
        match &self.failure {
            _ if self.answered >= number => Some(Ok(())),
            Some(failure) => Some(Err(failure.clone())),
            None => None,
        }
    }

    fn queue(&mut self, job: impl FnOnce(&mut Outbox)) -> Result<(), ChannelError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if self.outbox.is_full() {
            return Err(ChannelError::Full { peer: self.peer.to_string() });
        }
        job(&mut self.outbox);
        // If the connection is broken, the next turn reads the last messages of the other end first: they may say why.
        if self.pump().is_err() {
            self.needs_turn = true;
        }
        Ok(())
    }

    /// Takes a signal, if one has come.
    pub fn take_signal(&mut self, channel: u32) -> Option<Result<(), ChannelError>> {
        if let Some(ChannelError::Aborted { .. }) = &self.failure {
            return self.failure.clone().map(Err);
        }
        match self.signals.get_mut(&channel) {
            Some(count) => {
                *count -= 1;
                if *count == 0 {
                    self.signals.remove(&channel);
                }
                Some(Ok(()))
            }
            // Signals that arrived before the connection was lost count.
            None => self.failure.clone().map(Err),
        }
    }

    /// Drops the signals of a channel.
    pub fn forget_signals(&mut self, channel: u32) {
        self.signals.remove(&channel);
    }

    /// The number of the last put.
    pub fn last_put(&self) -> u64 {
        self.outbox.last_put()
    }

    /// Whether all puts up to this one have left.
    pub fn flushed(&self, up_to: u64) -> Option<Result<(), ChannelError>> {
        match &self.failure {
            Some(failure) => Some(Err(failure.clone())),
            None => self.outbox.is_flushed(up_to).then_some(Ok(())),
        }
    }

    /// Aborts the connection, and tells the other end ahead of everything that is queued.
    pub fn abort(&mut self, why: &str) {
        if self.failure.is_some() {
            return;
        }
        let mut bytes = why.len().min(limits::ABORT_REASON_BYTES_MAX);
        while !why.is_char_boundary(bytes) {
            bytes -= 1;
        }
        let why = &why[..bytes];
        self.end(Some(ChannelError::Aborted { by: self.me.to_string(), why: why.to_owned() }));
        let begun = self.outbox.clear();
        for Stream { socket, .. } in &mut self.streams {
            // The frame that has begun must be completed, but no longer reads user memory.
            for put in &begun {
                while socket.cancel(*put) {}
            }
            socket.send(&Head { place: 0, body: Body::Abort { bytes: bytes as u32 } }.encode());
            socket.send(why.as_bytes());
        }
        self.finish_sending();
    }

    /// Ends the connection: what is queued is still sent.
    pub fn end(&mut self, failure: Option<ChannelError>) {
        if let Some(failure) = failure {
            self.keep_failure(failure);
        }
        if self.ending.is_none() {
            self.outbox.send(Body::Goodbye);
            self.ending = Some(Instant::now() + limits::FAREWELL_MAX);
        }
        (self.has_news, self.needs_turn) = (true, true);
    }

    /// Leaves: what is queued is sent, and nothing new.
    pub fn leave(&mut self) {
        let (by, why) = (self.me.to_string(), "it has left".to_owned());
        // The caller knows it.
        self.callback = None;
        self.end(Some(ChannelError::Aborted { by, why }));
        self.finish_sending();
    }

    /// Closes at once.
    pub fn close(&mut self) {
        self.outbox.clear();
        self.streams.clear();
        self.needs_turn = false;
    }

    /// Does what can be done on one of its sockets, or on all.
    pub fn turn(&mut self, socket: Option<Token>, segments: &Segments) {
        if socket.is_none() {
            self.needs_turn = false;
        }
        if self.ending.is_some() {
            return self.finish_sending();
        }
        let pumped = self.pump();
        // If sending failed, the other end may have sent the reason before.
        let socket = if pumped.is_ok() { socket } else { None };
        let mut result = Ok(());
        for index in 0..self.streams.len() {
            if result.is_ok() && socket.is_none_or(|token| self.streams[index].socket.token() == token) {
                result = self.read(index, segments);
            }
        }
        match result.and(pumped.map_err(ConnectionEnd::from)) {
            Ok(()) => {}
            Err(ConnectionEnd::Violation(why)) => self.abort(&why),
            Err(ConnectionEnd::Ended) if self.has_left => self.lose("it has left".into()),
            Err(ConnectionEnd::Ended) => self.lose("the other end closed the connection".into()),
            Err(ConnectionEnd::Lost(why)) => self.lose(why),
            Err(ConnectionEnd::Aborted(why)) => {
                self.fail(ChannelError::Aborted { by: self.peer.to_string(), why })
            }
        }
    }

    fn lose(&mut self, why: String) {
        self.fail(ChannelError::Lost { peer: self.peer.to_string(), why, has_left: self.has_left });
    }

    /// The first one counts.
    fn keep_failure(&mut self, failure: ChannelError) {
        self.failure.get_or_insert(failure);
        self.has_failed.store(true, Ordering::Release);
    }

    fn fail(&mut self, failure: ChannelError) {
        self.keep_failure(failure);
        self.has_news = true;
        self.close();
    }

    /// Sends frames, as many as one turn takes.
    fn pump(&mut self) -> io::Result<()> {
        let mut budget = limits::CHANNEL_TURN_BYTES;
        if let Some(stream) = self.streams.first_mut()
            && let Some(number) = self.owes_answer.take()
        {
            stream.socket.send(&Head { place: 0, body: Body::Answer { number } }.encode());
        }
        loop {
            let mut has_room = false;
            for Stream { socket, .. } in &mut self.streams {
                while socket.queued_bytes() < limits::CHANNEL_FRAME_BYTES_MAX
                    && let Some(frame) = self.outbox.next()
                {
                    match frame {
                        Frame::Bare(head) => socket.send(&head.encode()),
                        Frame::Word(head, value) => {
                            socket.send(&head.encode());
                            socket.send(&value.to_le_bytes());
                        }
                        Frame::Put(head, payload, ticket) => {
                            budget = budget.saturating_sub(payload.len());
                            socket.send_put(&head.encode(), payload, ticket);
                        }
                    }
                }
                socket.flush(&mut self.left)?;
                has_room |= socket.queued_bytes() < limits::CHANNEL_FRAME_BYTES_MAX;
            }
            self.has_news |= !self.left.is_empty();
            for put in self.left.drain(..) {
                self.outbox.flushed(put);
            }
            if self.outbox.is_empty() || !has_room {
                return Ok(());
            }
            if budget == 0 {
                self.needs_turn = true;
                return Ok(());
            }
        }
    }

    /// Reads frames of one stream, as many as one turn takes.
    fn read(&mut self, index: usize, segments: &Segments) -> Result<(), ConnectionEnd> {
        let mut budget = limits::CHANNEL_TURN_BYTES / limits::CHANNEL_FRAME_BYTES_MAX;
        loop {
            let Stream { socket, incoming, is_over, .. } = &mut self.streams[index];
            if *is_over {
                return socket.take_error()?.map_or(Ok(()), |error| Err(error.into()));
            }
            if !self.early.may_read(index, socket)? {
                return Ok(());
            }
            if budget == 0 {
                self.needs_turn |= socket.has_input();
                return Ok(());
            }
            let whole = match incoming.next(socket, &self.early, segments, &mut self.pool) {
                // Other streams may still bring what the other end sent before it closed.
                Err(ConnectionEnd::Ended) if matches!(incoming, Incoming::Head) => {
                    *is_over = true;
                    socket.set_awaits_input(false)?;
                    let is_all = self.streams.iter().all(|stream| stream.is_over);
                    return if is_all { Err(ConnectionEnd::Ended) } else { Ok(()) };
                }
                whole => whole?,
            };
            match whole {
                None => return Ok(()),
                Some(CompleteFrame::Placed(place)) => {
                    self.early.pass(index, place)?;
                    budget -= 1;
                }
                Some(CompleteFrame::HeldPut(place, held)) => {
                    self.early.insert(index, place, EarlyFrame::Put(held))?;
                    budget -= 1;
                }
                Some(CompleteFrame::Bare(Head { body: Body::Answer { number }, .. })) => {
                    if number > self.asked {
                        return Err(ConnectionEnd::Violation("an answer without a question".into()));
                    }
                    self.answered = self.answered.max(number);
                    self.has_news = true;
                }
                Some(CompleteFrame::Bare(Head { place, body })) => {
                    self.early.insert(index, place, EarlyFrame::Bare(body))?;
                }
            }
            self.deliver(segments)?;
        }
    }

    /// Delivers what is due.
    fn deliver(&mut self, segments: &Segments) -> Result<(), ConnectionEnd> {
        while let Some((stream, early)) = self.early.next(|stream| &mut self.streams[stream].socket)? {
            // Its buffered input is processed again, too.
            self.needs_turn |= self.streams[stream].socket.has_input();
            let body = match early {
                EarlyFrame::Put(held) => {
                    self.place(held, segments).map_err(ConnectionEnd::Violation)?;
                    continue;
                }
                EarlyFrame::Bare(body) => body,
            };
            settle(&mut self.unsettled, None).map_err(ConnectionEnd::Violation)?;
            match body {
                Body::Ask { number } => (self.owes_answer, self.needs_turn) = (Some(number), true),
                Body::Goodbye => self.has_left = true,
                Body::Signal { channel, count } => {
                    let is_known = self.signals.contains_key(&channel);
                    if !is_known && self.signals.len() >= limits::CHANNELS_MAX {
                        return Err(ConnectionEnd::Violation("signals on too many channels".into()));
                    }
                    if count > 0 {
                        let known = self.signals.entry(channel).or_default();
                        *known = known.saturating_add(count);
                    }
                    self.has_news = true;
                }
                Body::Put { .. } | Body::Word { .. } | Body::Answer { .. } | Body::Abort { .. } => {}
            }
        }
        Ok(())
    }

    /// Writes a held put to its segment.
    fn place(&mut self, held: HeldPut, segments: &Segments) -> Result<(), String> {
        let HeldPut { segment, offset, payload, is_word } = held;
        let bytes = payload.as_slice();
        let written = match (is_word, bytes.first_chunk()) {
            (true, Some(word)) => {
                let unsettled = &mut self.unsettled;
                let value = u64::from_le_bytes(*word);
                segments.set_word(segment, offset, value, |stream| settle(unsettled, stream))?
            }
            _ => segments.place(segment, offset, bytes)?,
        };
        if let Some(sink) = written
            && self.unsettled.iter().all(|other| other.stream() != sink.stream())
        {
            self.unsettled.push(sink);
        }
        self.pool.give_back(payload);
        Ok(())
    }

    /// Sends the rest, and discards input, so that the other end can send its rest.
    fn finish_sending(&mut self) {
        if self.pump().is_err() {
            return self.close();
        }
        let is_sent = self.outbox.is_empty();
        let mut waste = self.pool.take(limits::CHANNEL_FRAME_BYTES_MAX);
        self.streams.retain_mut(|Stream { socket, is_finished, .. }| {
            if is_sent && socket.queued_bytes() == 0 && !*is_finished {
                *is_finished = true;
                let _ = socket.finish();
            }
            socket.take(|input| *input = &[]);
            socket.set_awaits_input(true).and_then(|()| socket.read_into(waste.as_mut_slice())).is_ok()
        });
        self.pool.give_back(waste);
    }
}

/// Waits for sinks, except for those of a stream whose order is enough.
fn settle(unsettled: &mut Vec<Arc<dyn Sink>>, but: Option<u64>) -> Result<(), String> {
    let mut result = Ok(());
    unsettled.retain(|sink| {
        let stays = Some(sink.stream()) == but;
        if !stays && result.is_ok() {
            result = sink.settle();
        }
        stays
    });
    result
}
