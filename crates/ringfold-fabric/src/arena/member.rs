//! A rank in the arena: it fills its own slots, announces them, and reads those of others.

use super::geometry::{Geometry, LEFT_AT, NOTE_WORDS};
use super::wait::Need;
use super::{Arena, Ranks};
use crate::shared_bytes::SharedBytes;
use crate::waiter::sleep::WakeWord as _;
use crate::waiter::{CancelToken, Policy, Waiter};
use core::sync::atomic::Ordering;
use ringfold_proto::id::Rank;
use std::sync::Arc;

/// A rank in the arena, the only user of its slots.
#[derive(Debug)]
pub struct ArenaMember {
    pub(super) arena: Arc<Arena>,
    pub(super) me: Rank,
    pub(super) waiter: Waiter,
    /// Cancels its waits, if that is allowed now.
    pub(super) cancel: Option<CancelToken>,
    pub(super) is_cancellable: bool,
    /// The first round that was not announced.
    next_fill: u64,
    /// The first round that may not be filled, as last read.
    fillable: u64,
    /// The first round that is still needed.
    released: u64,
    /// As last reported to others.
    reported: u64,
    /// Rounds between two reports.
    report_every: u64,
    /// Waits in which it slept.
    pub(super) sleeps: u64,
}

/// A slot to fill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    /// Of which round.
    pub round: u64,
    /// How many bytes of it are used. Few bytes lie beside the announcement, so readers must name the same number.
    pub bytes: usize,
}

/// The slots of one step: one to fill, and those to read.
#[derive(Debug)]
pub struct StepSlots<'a> {
    /// The slot to fill; empty if there is none.
    pub own: &'a mut [u8],
    /// The slots to read.
    pub others: OtherSlots<'a>,
}

/// The slots of one round.
#[derive(Clone, Copy, Debug)]
pub struct OtherSlots<'a> {
    arena: &'a Arena,
    round: Option<u64>,
}

impl ArenaMember {
    pub(super) fn new(arena: Arc<Arena>, me: Rank) -> Self {
        let geometry = arena.geometry;
        Self {
            waiter: Waiter::new(Policy::BOARD.without_spin()),
            cancel: None,
            is_cancellable: false,
            next_fill: 0,
            fillable: 0,
            released: 0,
            reported: 0,
            report_every: Self::report_every(geometry.depth),
            sleeps: 0,
            arena,
            me,
        }
    }

    /// After how many rounds a rank reports which slots it has released. A rank that fills slots may find so many fewer of
    /// them free.
    pub fn report_every(depth: usize) -> u64 {
        (depth as u64 / 4).max(1)
    }

    /// The arena.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// In how many waits it has slept so far.
    pub fn sleeps(&self) -> u64 {
        self.sleeps
    }

    /// Which rank it is.
    pub fn rank(&self) -> Rank {
        self.me
    }

    /// Changes how it waits.
    pub fn set_policy(&mut self, policy: Policy) {
        self.waiter.set_policy(policy);
    }

    /// Cancels waits, while they are [cancellable](Self::set_cancellable).
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
        // What this rank still reads counts as well.
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

    /// A slot to fill, and slots to read at the same time.
    ///
    /// # Panics
    /// If the slot must not be [filled](Self::may_fill), was announced or is too small, or if the round to read was
    /// released.
    #[inline]
    pub fn slots(&mut self, fill: Option<Fill>, read: Option<u64>) -> StepSlots<'_> {
        if let Some(round) = read {
            assert!(round >= self.released, "invalid read of round {round}: it was released");
        }
        let own = match fill {
            None => &mut [],
            Some(Fill { round, bytes }) => {
                assert!(round >= self.next_fill && round < self.fillable, "the slot is in use");
                if let Some(read) = read {
                    // Rounds that are `depth` apart have the same slot.
                    assert!(read < round && round - read < self.arena.geometry.depth as u64);
                }
                // SAFETY: only this rank writes it, and there is one `ArenaMember` for it. It was not announced, and every
                // rank has released the round that had it before, so nobody reads it. The borrow of `self` keeps it from
                // being announced or borrowed twice.
                unsafe { self.arena.payload(self.me, round, bytes).assume_exclusive() }
            }
        };
        StepSlots { own, others: OtherSlots { arena: &self.arena, round: read } }
    }

    /// Notes for other ranks what this one does from now on. They may read a mixture of two notes.
    pub fn note(&self, words: [u64; NOTE_WORDS]) {
        let at = self.arena.geometry.note_at(self.me.index());
        for (index, word) in words.into_iter().enumerate() {
            self.arena.word(at + 8 * index).store(word, Ordering::Relaxed);
        }
    }

    /// Announces the slot of a round, and wakes the ranks that sleep for it.
    #[inline]
    pub fn announce(&mut self, round: u64, fingerprint: u64) {
        assert!(round >= self.next_fill && round < self.fillable, "the slot is in use");
        self.next_fill = round + 1;
        let at = self.arena.geometry.header_at(self.me.index(), round);
        self.arena.word(at + 8).store(fingerprint, Ordering::Relaxed);
        // A swap also orders the announcement before the sleepers are read.
        self.arena.word(at).swap(round + 1, Ordering::SeqCst);
        self.arena.wake_sleepers(self.me);
    }

    /// Releases the slots of the rounds before this one.
    #[inline]
    pub fn release(&mut self, before: u64) {
        self.released = self.released.max(before);
        if self.released - self.reported >= self.report_every {
            self.report();
        }
    }

    /// Reports to others what was released.
    pub(super) fn report(&mut self) {
        if self.reported == self.released {
            return;
        }
        self.reported = self.released;
        let at = self.arena.geometry.consumed_at(self.me.index());
        self.arena.word(at).swap(self.released, Ordering::SeqCst);
        self.arena.wake_sleepers(self.me);
    }

    /// Leaves: waits for this rank end with an error from now on.
    pub fn leave(&self) {
        let at = self.arena.geometry.consumed_at(self.me.index());
        self.arena.word(at).store(self.released, Ordering::SeqCst);
        self.arena.word(LEFT_AT).fetch_or(Ranks::one(self.me).0, Ordering::SeqCst);
        for rank in Ranks::all(self.arena.geometry.world).without(self.me) {
            self.arena.wake_word(rank.index()).wake_all();
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

impl<'a> OtherSlots<'a> {
    /// The slot of a rank; a rank may read its own, too.
    ///
    /// # Panics
    /// If it has not been announced, or if slots are shorter than that.
    #[inline]
    pub fn slot(self, of: Rank, bytes: usize) -> &'a [u8] {
        // SAFETY: its writer announced it, and does not write it before this rank has released the round, which the borrow
        // of the member prevents. It is payload; what is decided by is read by `copy`.
        unsafe { self.shared(of, bytes).assume_unwritten() }
    }

    /// Whether the arena was aborted.
    #[inline]
    pub fn is_aborted(self) -> bool {
        self.arena.is_aborted()
    }

    /// Copies the slot of a rank: bytes that are checked must not change afterwards.
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
    /// The last note of a rank; zeros without one. Another process wrote it.
    pub fn note_of(&self, rank: Rank) -> [u64; NOTE_WORDS] {
        let at = self.geometry.note_at(rank.index());
        core::array::from_fn(|index| self.word(at + 8 * index).load(Ordering::Relaxed))
    }

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

    /// A payload: beside the announcement if it is short, else in the slot.
    #[inline(always)]
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
