//! A rank's place in the arena: it fills its own slots, announces them, and reads those of others.

use super::geometry::{Geometry, LEFT_AT};
use super::wait::Need;
use super::{Arena, Ranks};
use crate::shared_bytes::SharedBytes;
use crate::waiter::sleep::Bell as _;
use crate::waiter::{CancelToken, Policy, Waiter};
use core::sync::atomic::Ordering;
use ringfold_proto::id::Rank;
use std::sync::Arc;

/// The one user of a rank's slots.
#[derive(Debug)]
pub struct Seat {
    pub(super) arena: Arc<Arena>,
    pub(super) me: Rank,
    pub(super) waiter: Waiter,
    /// What may cancel its waits, and whether it may now.
    pub(super) cancel: Option<CancelToken>,
    pub(super) is_cancellable: bool,
    /// Rounds from here on have not been announced.
    next_fill: u64,
    /// Rounds before this one may be filled, as far as was seen.
    fillable: u64,
    /// Rounds before this one are needed no more.
    released: u64,
    /// As far as others were told.
    reported: u64,
    /// Others are told after so many rounds.
    report_every: u64,
}

/// A slot to be filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    /// Of which round.
    pub round: u64,
    /// How many bytes of it are used. Few bytes travel with the announcement; readers must name the same number.
    pub bytes: usize,
}

/// What lies before a rank in one step: a slot of its own to fill, and slots of others to read.
#[derive(Debug)]
pub struct Desk<'a> {
    /// The slot to be filled; empty if none is.
    pub own: &'a mut [u8],
    /// The slots to be read.
    pub others: Others<'a>,
}

/// The slots of one round.
#[derive(Clone, Copy, Debug)]
pub struct Others<'a> {
    arena: &'a Arena,
    round: Option<u64>,
}

impl Seat {
    pub(super) fn new(arena: Arc<Arena>, me: Rank) -> Self {
        let geometry = arena.geometry;
        Self {
            waiter: Waiter::new(Policy::BOARD.for_ranks(geometry.world)),
            cancel: None,
            is_cancellable: false,
            next_fill: 0,
            fillable: 0,
            released: 0,
            reported: 0,
            report_every: Self::report_every(geometry.depth),
            arena,
            me,
        }
    }

    /// Ranks tell others only now and then which slots they need no more: after so many rounds. A rank that fills a
    /// slot may find that many less of them free.
    pub fn report_every(depth: usize) -> u64 {
        (depth as u64 / 4).max(1)
    }

    /// The arena.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Whose seat it is.
    pub fn rank(&self) -> Rank {
        self.me
    }

    /// Changes how it waits.
    pub fn set_policy(&mut self, policy: Policy) {
        self.waiter.set_policy(policy);
    }

    /// What may cancel waits, where that is [wanted](Self::set_cancellable).
    pub fn set_cancel(&mut self, cancel: CancelToken) {
        self.cancel = Some(cancel);
    }

    /// Whether waits may be cancelled from now on.
    #[inline]
    pub fn set_cancellable(&mut self, is_cancellable: bool) {
        self.is_cancellable = is_cancellable;
    }

    /// Whether the slot of this round may be filled.
    #[inline]
    pub fn may_fill(&mut self, round: u64) -> bool {
        round < self.fillable || self.look_for_space(round)
    }

    fn look_for_space(&mut self, round: u64) -> bool {
        let geometry = self.arena.geometry;
        let everyone = Ranks::all(geometry.world);
        let consumed = |rank: Rank| self.arena.consumed(rank, Ordering::Acquire);
        // What this rank itself still reads counts as well.
        let least = everyone.without(self.me).map(consumed).fold(self.released, u64::min);
        self.fillable = least.saturating_add(geometry.depth as u64);
        round < self.fillable
    }

    /// The ranks of these that have not announced their slot of the round.
    #[inline]
    pub fn unannounced(&self, round: u64, by: Ranks) -> Ranks {
        self.arena.unannounced(round, by, Ordering::Acquire)
    }

    /// The ranks of these whose announcement in the round has another fingerprint.
    #[inline]
    pub fn differing(&self, round: u64, by: Ranks, fingerprint: u64) -> Ranks {
        let mut differ = Ranks::NONE;
        for rank in by {
            let at = self.arena.geometry.header_at(rank.index(), round) + 8;
            if self.arena.word(at).load(Ordering::Relaxed) != fingerprint {
                differ.0 |= Ranks::one(rank).0;
            }
        }
        differ
    }

    /// A slot to fill and slots to read, at once.
    ///
    /// # Panics
    /// If the slot can't be [filled](Self::may_fill) yet, was announced before or is too small, or if the round to read
    /// has been released.
    #[inline]
    pub fn desk(&mut self, fill: Option<Fill>, read: Option<u64>) -> Desk<'_> {
        if let Some(round) = read {
            assert!(round >= self.released, "the slots of a released round can't be read");
        }
        let own = match fill {
            None => &mut [],
            Some(Fill { round, bytes }) => {
                assert!(round >= self.next_fill && round < self.fillable, "the slot is in use");
                if let Some(read) = read {
                    // Rounds as far apart as the ring is long have one slot.
                    assert!(read < round && round - read < self.arena.geometry.depth as u64);
                }
                // SAFETY: it is written by this rank alone, whose only seat this is; it has not been announced, and every
                // rank has released the round that had the slot before. So nobody reads it, and this borrow of the seat
                // keeps it from being announced or given out twice.
                unsafe { self.arena.payload(self.me, round, bytes).assume_exclusive() }
            }
        };
        Desk { own, others: Others { arena: &self.arena, round: read } }
    }

    /// Announces the slot of a round, and wakes whoever sleeps for it.
    #[inline]
    pub fn announce(&mut self, round: u64, fingerprint: u64) {
        assert!(round >= self.next_fill && round < self.fillable, "the slot is in use");
        self.next_fill = round + 1;
        let at = self.arena.geometry.header_at(self.me.index(), round);
        self.arena.word(at + 8).store(fingerprint, Ordering::Relaxed);
        // A swap also orders the announcement before the look at the sleepers.
        self.arena.word(at).swap(round + 1, Ordering::SeqCst);
        self.arena.wake_the_ready(self.me);
    }

    /// The slots of rounds before this one are needed no more.
    #[inline]
    pub fn release(&mut self, before: u64) {
        self.released = self.released.max(before);
        if self.released - self.reported >= self.report_every {
            self.report();
        }
    }

    /// Tells others what was released.
    pub(super) fn report(&mut self) {
        if self.reported == self.released {
            return;
        }
        self.reported = self.released;
        let at = self.arena.geometry.consumed_at(self.me.index());
        self.arena.word(at).swap(self.released, Ordering::SeqCst);
        self.arena.wake_the_ready(self.me);
    }

    /// Says goodbye: whoever waits for this rank from now on does so in vain, and is told.
    pub fn leave(&self) {
        let at = self.arena.geometry.consumed_at(self.me.index());
        self.arena.word(at).store(self.released, Ordering::SeqCst);
        self.arena.word(LEFT_AT).fetch_or(Ranks::one(self.me).0, Ordering::SeqCst);
        for rank in Ranks::all(self.arena.geometry.world).without(self.me) {
            self.arena.bell(rank.index()).ring();
        }
    }

    /// Whether what is needed is there.
    #[inline]
    pub fn is_met(&mut self, need: Need) -> bool {
        match need {
            Need::Announced { round, by } => self.unannounced(round, by).is_empty(),
            Need::Space { round } => self.may_fill(round),
        }
    }
}

impl<'a> Others<'a> {
    /// The slot of a rank; one's own can be read too, once it is announced.
    ///
    /// # Panics
    /// If it has not been announced, or if slots are shorter than that.
    #[inline]
    pub fn slot(self, of: Rank, bytes: usize) -> &'a [u8] {
        // SAFETY: its writer announced it, and does not write it again before this rank has released the round, which
        // this borrow of the seat delays. It is payload: what is decided by is read by `copy`.
        unsafe { self.shared(of, bytes).assume_unwritten() }
    }

    /// Copies the slot of a rank out: what something is decided by must not change once it is checked.
    ///
    /// # Panics
    /// As [`Self::slot`].
    pub fn copy(self, of: Rank, into: &mut [u8]) {
        self.shared(of, into.len()).copy_to(into);
    }

    #[inline]
    fn shared(self, of: Rank, bytes: usize) -> SharedBytes<'a> {
        let round = self.round.expect("a step that reads names the round");
        assert!(
            self.arena.unannounced(round, Ranks::one(of), Ordering::Acquire).is_empty(),
            "the slot is not announced"
        );
        self.arena.payload(of, round, bytes)
    }
}

impl Arena {
    #[inline]
    pub(super) fn consumed(&self, rank: Rank, ordering: Ordering) -> u64 {
        self.word(self.geometry.consumed_at(rank.index())).load(ordering)
    }

    #[inline]
    pub(super) fn unannounced(&self, round: u64, by: Ranks, ordering: Ordering) -> Ranks {
        let mut missing = by;
        for rank in by {
            let at = self.geometry.header_at(rank.index(), round);
            if self.word(at).load(ordering) == round + 1 {
                missing.0 &= !Ranks::one(rank).0;
            }
        }
        missing
    }

    /// Where the payload of so many bytes lies: behind the announcement if it is short, else in the slot.
    #[inline]
    fn payload(&self, rank: Rank, round: u64, bytes: usize) -> SharedBytes<'_> {
        let geometry = self.geometry;
        let at = if bytes <= Geometry::INLINE_BYTES {
            geometry.header_at(rank.index(), round) + 16
        } else {
            assert!(bytes <= geometry.slot_bytes, "{bytes} bytes do not fit a slot");
            geometry.slot_at(rank.index(), round)
        };
        self.segment.bytes().part(at..at + bytes)
    }
}
