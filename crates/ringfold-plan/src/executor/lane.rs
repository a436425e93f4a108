//! One direction between an operation and one other rank.

use crate::medium::Ticket;
use std::collections::VecDeque;

/// Frames of an operation to one rank.
#[derive(Debug, Default)]
pub(super) struct OutLane {
    /// What they carry to show that both ends mean the same.
    pub(super) fingerprint: u64,
    /// How many were put.
    pub(super) sent: usize,
    /// How many of them, from the first on, were flushed.
    pub(super) flushed: usize,
    /// Those after the flushed ones; empty places were flushed out of turn.
    in_flight: VecDeque<Option<Ticket>>,
    /// Slots that were lent and not used yet.
    pub(super) granted: Vec<u16>,
    /// Whether slots were ever lent: then the other end has started the operation and keeps lending,
    /// and eager slots are left to others.
    pub(super) was_granted: bool,
    /// Whether slots were asked for.
    pub(super) asked: bool,
    /// Whether the operation is among those that wait for slots of this pair.
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
        if let Some(place) = self.in_flight.iter_mut().find(|place| **place == Some(ticket)) {
            *place = None;
        }
        while let Some(None) = self.in_flight.front() {
            self.in_flight.pop_front();
            self.flushed += 1;
        }
    }

    /// The link is gone, and with it what was lent on it.
    pub(super) fn lose(&mut self, in_use: bool) {
        self.granted.clear();
        self.was_granted = false;
        self.asked = false;
        self.parked = false;
        self.broken |= in_use;
    }

    /// Puts that may still read our memory.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = Ticket> + '_ {
        self.in_flight.iter().flatten().copied()
    }
}

/// A frame that waits in one of our slots for its step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Arrival {
    pub(super) slot: u16,
    pub(super) eager: bool,
}

/// Frames of an operation from one rank.
#[derive(Debug, Default)]
pub(super) struct InLane {
    /// What they carry if both ends mean the same.
    pub(super) fingerprint: u64,
    /// How many came.
    pub(super) arrived: usize,
    /// How many of them their steps have taken.
    pub(super) taken: usize,
    /// Those between.
    pub(super) waiting: VecDeque<Arrival>,
    /// Slots that are lent and empty.
    pub(super) lent: usize,
    /// Slots that were lent and hold one of the waiting frames.
    pub(super) full: usize,
    /// Whether slots are lent to this lane: because it is long, or because the other end asked.
    pub(super) lending: bool,
    /// The other end runs something else under this name.
    pub(super) differs: bool,
    /// Whether frames may have been lost with the link.
    pub(super) broken: bool,
    /// The other end gave the operation up.
    pub(super) fenced: bool,
}

impl InLane {
    pub(super) fn new(fingerprint: u64) -> Self {
        Self { fingerprint, ..Self::default() }
    }

    /// The link is gone, and with it the slots and what was in them.
    pub(super) fn lose(&mut self, in_use: bool) {
        self.waiting.clear();
        (self.lent, self.full) = (0, 0);
        self.broken |= in_use;
    }

    /// How many slots to lend now, so that a window is out: no more than frames are still due. Lending
    /// half a window at a time keeps messages few; the last slots, and those of a writer that has none left,
    /// are lent at once.
    pub(super) fn to_lend(&self, frames: usize, window: usize) -> usize {
        if !self.lending || self.differs || self.broken || self.fenced {
            return 0;
        }
        let due = frames.saturating_sub(self.arrived + self.lent);
        let missing = window.saturating_sub(self.lent + self.full).min(due);
        if self.lent == 0 || missing == due || missing * 2 >= window { missing } else { 0 }
    }
}
