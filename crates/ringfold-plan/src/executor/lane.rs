//! The frames between an operation and one other rank, in one direction.

use crate::medium::Ticket;
use std::collections::VecDeque;

/// Slots that become free are not held back beyond this number: on a long link the sender may run out before it hears of
/// them.
const GRANT_MAX: usize = 32;

/// Frames of an operation to one rank.
#[derive(Debug, Default)]
pub(super) struct OutLane {
    /// The fingerprint of the frames.
    pub(super) fingerprint: u64,
    /// The number of frames that were put.
    pub(super) sent: usize,
    /// The number of frames at the start that are flushed.
    pub(super) flushed: usize,
    /// The puts after those; `None` was flushed out of order.
    in_flight: VecDeque<Option<Ticket>>,
    /// Granted slots that are not used.
    pub(super) granted: Vec<u16>,
    /// Whether slots were ever granted. Then the other end keeps granting, and eager slots are left to others.
    pub(super) was_granted: bool,
    /// Whether slots were requested.
    pub(super) asked: bool,
    /// Whether the operation waits for slots of this pair.
    pub(super) parked: bool,
    /// Whether frames may have been lost with the link.
    pub(super) broken: bool,
}

impl OutLane {
    pub(super) fn new(fingerprint: u64) -> Self {
        Self { fingerprint, ..Self::default() }
    }

    pub(super) fn put(&mut self, ticket: Ticket) {
        self.sent += 1;
        self.in_flight.push_back(Some(ticket));
    }

    pub(super) fn flush(&mut self, ticket: Ticket) {
        if let Some(put) = self.in_flight.iter_mut().find(|put| **put == Some(ticket)) {
            *put = None;
        }
        while let Some(None) = self.in_flight.front() {
            self.in_flight.pop_front();
            self.flushed += 1;
        }
    }

    /// Handles the loss of the link and its granted slots.
    pub(super) fn lose(&mut self, in_use: bool) {
        self.granted.clear();
        self.was_granted = false;
        self.asked = false;
        self.parked = false;
        self.broken |= in_use;
    }

    /// The puts that are not flushed.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = Ticket> + '_ {
        self.in_flight.iter().flatten().copied()
    }
}

/// A frame in one of our slots that waits for its step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct WaitingFrame {
    pub(super) slot: u16,
    pub(super) eager: bool,
    pub(super) checksum: Option<u32>,
}

/// Frames of an operation from one rank.
#[derive(Debug, Default)]
pub(super) struct InLane {
    /// The expected fingerprint of the frames.
    pub(super) fingerprint: u64,
    /// The number of frames that arrived.
    pub(super) arrived: usize,
    /// The number of frames that their steps have taken.
    pub(super) taken: usize,
    /// The frames that arrived and were not taken.
    pub(super) waiting: VecDeque<WaitingFrame>,
    /// Granted slots that are empty.
    pub(super) lent: usize,
    /// Granted slots that hold a waiting frame.
    pub(super) full: usize,
    /// Whether slots are granted to this lane: it is long, or the other end requested them.
    pub(super) lending: bool,
    /// The other end runs another operation under this id.
    pub(super) differs: bool,
    /// Whether frames may have been lost with the link.
    pub(super) broken: bool,
    /// The other end has aborted the operation.
    pub(super) fenced: bool,
}

impl InLane {
    pub(super) fn new(fingerprint: u64) -> Self {
        Self { fingerprint, ..Self::default() }
    }

    /// Handles the loss of the link and the slots.
    pub(super) fn lose(&mut self, in_use: bool) {
        self.waiting.clear();
        (self.lent, self.full) = (0, 0);
        self.broken |= in_use;
    }

    /// The number of slots to grant now, up to a window or the frames that are missing. Granting half a window at a time, but
    /// no more than `GRANT_MAX`, saves messages. The last slots, and slots for a sender without any, are granted at once.
    pub(super) fn to_lend(&self, frames: usize, window: usize) -> usize {
        if !self.lending || self.differs || self.broken || self.fenced {
            return 0;
        }
        let due = frames.saturating_sub(self.arrived + self.lent);
        let missing = window.saturating_sub(self.lent + self.full).min(due);
        if self.lent == 0 || missing == due || missing >= window.div_ceil(2).min(GRANT_MAX) {
            missing
        } else {
            0
        }
    }
}
