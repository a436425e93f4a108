//! Two joined connections: what arrives on one is sent on the other.

use crate::connection::{CloseReason, Connection, Intake};
use crate::limits;
use crate::poller::Token;
use ringfold_proto::time::Time;
use std::io;

/// Two joined connections. It holds at most two buffers of 64 KiB per direction: a connection is only read while nothing
/// waits to be sent on the other.
#[derive(Debug)]
pub(super) struct JoinedPair {
    ends: [Connection; 2],
    /// Whether each end has sent its last byte.
    has_ended: [bool; 2],
    /// Whether the end of the other was passed on to each end.
    is_finished: [bool; 2],
    /// Bytes from each end to the other.
    bytes: [u64; 2],
    /// When it is cut, once one end has ended.
    deadline: Option<Time>,
}

/// What became of a turn.
#[derive(Debug)]
pub(super) enum Turn {
    /// It continues.
    Continues,
    /// It has ended: why.
    Ended(String),
}

impl JoinedPair {
    pub(super) fn new(mut ends: [Connection; 2]) -> Self {
        ends.iter_mut().for_each(|end| end.set_intake(Intake::Messages));
        Self { ends, has_ended: [false; 2], is_finished: [false; 2], bytes: [0; 2], deadline: None }
    }

    pub(super) fn tokens(&self) -> [Token; 2] {
        [self.ends[0].token(), self.ends[1].token()]
    }

    /// Bytes from each end to the other.
    pub(super) fn bytes(&self) -> [u64; 2] {
        self.bytes
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Copies what can be copied now, as much as one turn takes.
    pub(super) fn advance(&mut self, now: Time) -> Turn {
        for from in 0..2 {
            if let Err(error) = self.copy(now, from) {
                return Turn::Ended(error.to_string());
            }
        }
        match self.is_finished {
            [true, true] => Turn::Ended("both ends have closed it".into()),
            _ if self.deadline.is_some_and(|at| at <= now) => {
                Turn::Ended("one end has closed it, and the other did not".into())
            }
            _ => Turn::Continues,
        }
    }

    fn copy(&mut self, now: Time, from: usize) -> io::Result<()> {
        let to = 1 - from;
        let [first, second] = &mut self.ends;
        let (source, sink) = if from == 0 { (first, second) } else { (second, first) };
        sink.flush(&mut Vec::new())?;
        for _ in 0..limits::RELAY_READS_PER_TURN {
            if sink.queued_bytes() > 0 || self.has_ended[from] {
                break;
            }
            match source.fill() {
                Ok(false) => break,
                Ok(true) => {}
                Err(error) if CloseReason::of(&error) == Some(CloseReason::Ended) => {
                    self.has_ended[from] = true;
                    self.deadline.get_or_insert(now + limits::RELAY_HALF_CLOSED_MAX);
                }
                Err(error) => return Err(error),
            }
            self.bytes[from] += source.take(|input| {
                let bytes = core::mem::take(input);
                sink.send(bytes);
                bytes.len() as u64
            });
            // What cannot be sent now has the poller report room.
            sink.flush(&mut Vec::new())?;
        }
        if self.has_ended[from] && sink.queued_bytes() == 0 && !self.is_finished[to] {
            // What was sent before still arrives. If the sink is broken, its own direction shows it.
            let _ = sink.finish();
            self.is_finished[to] = true;
        }
        let awaits_input = !self.has_ended[from] && sink.queued_bytes() == 0;
        source.set_awaits_input(awaits_input)?;
        if self.has_ended[from] && self.is_finished[from] {
            // The poller would report its end again and again.
            source.unwatch();
        } else if !awaits_input && let Some(error) = source.take_error()? {
            return Err(error);
        }
        Ok(())
    }
}
