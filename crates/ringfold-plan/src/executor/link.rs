//! A connection to another peer, as far as it concerns more than one epoch.

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
    /// Which of the links that there ever were: puts on a lost one say nothing about its successor.
    pub(super) life: u64,
    /// The peer broke a rule; what it says is ignored until the link is made anew.
    pub(super) barred: bool,
    /// Epochs that it speaks of and that are not open here.
    pub(super) pending: Vec<Pending>,
    /// When we last heard anything.
    heard: Time,
    /// When we last said anything.
    said: Time,
    /// Puts that were not reported flushed.
    flights: usize,
    /// When a put was last flushed, or the first was made.
    moved: Time,
    /// The stall that was reported and has not ended.
    reported: Option<Direction>,
}

impl Link {
    pub(super) fn new(life: u64, now: Time) -> Self {
        Self {
            life,
            barred: false,
            pending: Vec::new(),
            heard: now,
            said: now,
            flights: 0,
            moved: now,
            reported: None,
        }
    }

    pub(super) fn hear(&mut self, now: Time) {
        self.heard = now;
        if self.reported == Some(Direction::Incoming) || self.reported == Some(Direction::Both) {
            self.reported = None;
        }
    }

    pub(super) fn said(&mut self, now: Time) {
        self.said = now;
    }

    pub(super) fn put(&mut self, now: Time) {
        if self.flights == 0 {
            self.moved = now;
        }
        self.flights += 1;
        self.said = now;
    }

    pub(super) fn flushed(&mut self, now: Time) {
        self.flights = self.flights.saturating_sub(1);
        self.moved = now;
        if self.reported == Some(Direction::Outgoing) || self.reported == Some(Direction::Both) {
            self.reported = None;
        }
    }

    /// Whether nothing was said for so long that the other end may wonder.
    pub(super) fn is_quiet(&self, now: Time, interval: Duration) -> bool {
        now.since(self.said) >= interval
    }

    /// A stall that is to be reported. `waiting_since` is when the oldest operation began to depend on
    /// the other end, if one does.
    pub(super) fn stall(
        &mut self,
        now: Time,
        waiting_since: Option<Time>,
        stall_after: Duration,
    ) -> Option<Direction> {
        let incoming = waiting_since.is_some_and(|since| now.since(since.max(self.heard)) >= stall_after);
        let outgoing = self.flights > 0 && now.since(self.moved) >= stall_after;
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

    /// Whether a frame of an epoch that is not open may be kept.
    pub(super) fn check_pending(&self, header: &DataHeader) -> Result<(), Violation> {
        match self.pending.iter().find(|pending| pending.epoch == header.op.epoch) {
            Some(pending) => pending.check(header),
            None if self.pending.len() >= limits::PENDING_EPOCHS_MAX => Err(Violation::PendingEpochs),
            None => Pending::new(header.op.epoch).check(header),
        }
    }

    /// Where things of an epoch that is not open are kept.
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
