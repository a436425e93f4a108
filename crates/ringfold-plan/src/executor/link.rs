//! A link to another peer: its activity, and what it sent for epochs that are not open.

use super::pending::Pending;
use crate::event::Violation;
use crate::limits;
use core::time::Duration;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::id::EpochId;
use ringfold_proto::message::Direction;
use ringfold_proto::time::Time;

/// One link.
#[derive(Debug)]
pub(super) struct Link {
    /// Distinguishes links to one peer: puts on a lost link do not count for its successor.
    pub(super) number: u64,
    /// The peer violated the protocol; its input is ignored until there is a new link.
    pub(super) ignored: bool,
    /// Input for epochs that are not open.
    pub(super) pending: Vec<Pending>,
    /// The time of the last input.
    pub(super) input_at: Time,
    /// The time of the last output.
    output_at: Time,
    /// Puts that are not flushed.
    puts: usize,
    /// When a put was last flushed, or the first was made.
    flushed_at: Time,
    /// The reported stall that has not ended.
    reported: Option<Direction>,
}

impl Link {
    pub(super) fn new(number: u64, now: Time) -> Self {
        let (input_at, output_at, flushed_at) = (now, now, now);
        let pending = Vec::new();
        Self { number, ignored: false, pending, input_at, output_at, puts: 0, flushed_at, reported: None }
    }

    pub(super) fn record_input(&mut self, now: Time) {
        self.input_at = now;
        if self.reported == Some(Direction::Incoming) || self.reported == Some(Direction::Both) {
            self.reported = None;
        }
    }

    pub(super) fn record_output(&mut self, now: Time) {
        self.output_at = now;
    }

    pub(super) fn put(&mut self, now: Time) {
        if self.puts == 0 {
            self.flushed_at = now;
        }
        self.puts += 1;
        self.output_at = now;
    }

    pub(super) fn flushed(&mut self, now: Time) {
        self.puts = self.puts.saturating_sub(1);
        self.flushed_at = now;
        if self.reported == Some(Direction::Outgoing) || self.reported == Some(Direction::Both) {
            self.reported = None;
        }
    }

    /// Whether there was no output for this long.
    pub(super) fn is_quiet(&self, now: Time, interval: Duration) -> bool {
        now.since(self.output_at) >= interval
    }

    /// A stall to report. `waiting_since` is the start of the oldest operation that waits for the other end.
    pub(super) fn stall(
        &mut self,
        now: Time,
        waiting_since: Option<Time>,
        stall_after: Duration,
    ) -> Option<Direction> {
        let incoming = waiting_since.is_some_and(|since| now.since(since.max(self.input_at)) >= stall_after);
        let outgoing = self.puts > 0 && now.since(self.flushed_at) >= stall_after;
        let direction = match (incoming, outgoing) {
            (true, true) => Direction::Both,
            (true, false) => Direction::Incoming,
            (false, true) => Direction::Outgoing,
            (false, false) => return None,
        };
        if self.reported == Some(direction) || self.reported == Some(Direction::Both) {
            return None;
        }
        self.reported = Some(direction);
        Some(direction)
    }

    /// Checks whether a frame of an epoch that is not open can be kept.
    pub(super) fn check_pending(&self, header: &DataHeader) -> Result<(), Violation> {
        match self.pending.iter().find(|pending| pending.epoch == header.op.epoch) {
            Some(pending) => pending.check(header),
            None if self.pending.len() >= limits::PENDING_EPOCHS_MAX => Err(Violation::PendingEpochs),
            None => Pending::new(header.op.epoch).check(header),
        }
    }

    /// The pending input of an epoch that is not open.
    pub(super) fn pending_for(&mut self, epoch: EpochId) -> Result<&mut Pending, Violation> {
        if let Some(found) = self.pending.iter().position(|pending| pending.epoch == epoch) {
            return Ok(&mut self.pending[found]);
        }
        if self.pending.len() >= limits::PENDING_EPOCHS_MAX {
            return Err(Violation::PendingEpochs);
        }
        self.pending.push(Pending::new(epoch));
        Ok(self.pending.last_mut().expect("one was just pushed"))
    }
}
