//! Waiting for other ranks. The rank that meets the need of a sleeping one wakes it.

use super::geometry::SLEEPERS_AT;
use super::{Arena, ArenaMember, Ranks};
use crate::limits;
use crate::waiter::sleep::{self, WakeWord as _};
use crate::waiter::{Deadline, Over, Step, Wait};
use core::sync::atomic::Ordering;
use core::time::Duration;
use ringfold_proto::id::Rank;
use std::time::Instant;

/// What a rank waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// These ranks have announced their slot of the round.
    Announced {
        /// The round.
        round: u64,
        /// The ranks.
        by: Ranks,
    },
    /// The slot of the round is free: all ranks have released its last round.
    Space {
        /// The round.
        round: u64,
    },
}

/// Why a wait has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The arena was aborted.
    Aborted,
    /// The deadline has passed; these ranks are missing.
    Late(Ranks),
    /// These of the missing ranks have left.
    Left(Ranks),
    /// The wait was cancelled.
    Interrupted,
}

/// Is told of a wait that takes long: longer than [`limits::LONG_WAIT`].
pub trait LongWait {
    /// The rank has waited for this long.
    fn begin(&self, waited: Duration, deadline: Deadline);
    /// The need is met. Not called if the wait fails.
    fn end(&self);
}

/// When a wait ends by itself, and what is told of it.
#[derive(Clone, Copy, Default)]
pub struct WaitTerms<'a> {
    /// When it ends.
    pub deadline: Deadline,
    /// What is told of it if it takes long.
    pub long: Option<&'a dyn LongWait>,
}

impl<D: Into<Deadline>> From<D> for WaitTerms<'_> {
    fn from(deadline: D) -> Self {
        Self { deadline: deadline.into(), long: None }
    }
}

impl ArenaMember {
    /// Waits until the need is met. `terms` is only called if that takes more than a moment.
    #[inline]
    pub fn wait<'a, T: Into<WaitTerms<'a>>>(
        &mut self,
        need: Need,
        terms: impl FnOnce() -> T,
    ) -> Result<(), Stop> {
        for _ in 0..self.waiter.first_checks() {
            if self.is_met(need) {
                return Ok(());
            }
            core::hint::spin_loop();
        }
        self.wait_slowly(need, terms().into())
    }

    #[cold]
    fn wait_slowly(&mut self, need: Need, terms: WaitTerms<'_>) -> Result<(), Stop> {
        // Others may need the slots that this rank has released.
        self.report();
        // Taken, not cloned: a clone costs two atomic operations on a shared counter.
        let cancel = self.cancel.take();
        let wait = Wait::until(terms.deadline).or_cancelled(cancel.as_ref().filter(|_| self.is_cancellable));
        let waited = self.wait_by_clock(need, &wait, terms.long);
        self.cancel = cancel;
        waited
    }

    fn wait_by_clock(
        &mut self,
        need: Need,
        wait: &Wait<'_>,
        long: Option<&dyn LongWait>,
    ) -> Result<(), Stop> {
        let mut has_blocked = false;
        let waited = self.wait_marked(need, wait, long, &mut has_blocked);
        self.sleeps += u64::from(has_blocked);
        // A rank that is late itself stays marked as waiting, so that others do not name it as missing.
        if has_blocked && !matches!(waited, Err(Stop::Late(_))) {
            sleep::cancel(self.arena.word(SLEEPERS_AT), Ranks::one(self.me).0);
        }
        waited
    }

    /// Waits by the clock. From the first time that the rank blocks it is marked as waiting, also while it checks.
    fn wait_marked(
        &mut self,
        need: Need,
        wait: &Wait<'_>,
        mut long: Option<&dyn LongWait>,
        has_blocked: &mut bool,
    ) -> Result<(), Stop> {
        let began = Instant::now();
        let mut told = None;
        self.waiter.begin_at(began);
        loop {
            if self.is_met(need) {
                self.waiter.finish();
                told.inspect(|long: &&dyn LongWait| long.end());
                return Ok(());
            }
            match self.waiter.step(wait) {
                Step::Check => {}
                Step::CheckAll => self.check(need)?,
                Step::Block(at_most) => {
                    *has_blocked = true;
                    let at_most = if long.is_some() { at_most.min(limits::LONG_WAIT) } else { at_most };
                    self.block(need, at_most)?;
                    let waited = began.elapsed();
                    if long.is_some() && waited >= limits::LONG_WAIT && !self.is_met(need) {
                        told = long.take().inspect(|long| long.begin(waited, wait.deadline));
                    }
                }
                Step::Over(Over::Cancelled) => return Err(Stop::Interrupted),
                Step::Over(Over::TimedOut) => {
                    self.prepare_sleep(need);
                    let missing = self.missing(need);
                    if !missing.is_empty() {
                        self.check(need)?;
                        return Err(Stop::Late(self.arena.at_fault(self.me, missing)));
                    }
                }
            }
        }
    }

    /// Blocks until the need is met, for this long at most.
    fn block(&self, need: Need, at_most: Duration) -> Result<(), Stop> {
        let (arena, mine) = (&*self.arena, Ranks::one(self.me).0);
        let (word, mut stop) = (arena.wake_word(self.me.index()), Ok(()));
        arena.publish_need(self.me, need);
        sleep::block(arena.word(SLEEPERS_AT), mine, word, at_most, || {
            let is_met = self.missing(need).is_empty();
            stop = if is_met { Ok(()) } else { self.check(need) };
            is_met || stop.is_err()
        });
        stop
    }

    fn prepare_sleep(&self, need: Need) {
        self.arena.publish_need(self.me, need);
        sleep::prepare(self.arena.word(SLEEPERS_AT), Ranks::one(self.me).0);
    }

    /// Fails if the need will not be met.
    fn check(&self, need: Need) -> Result<(), Stop> {
        if self.arena.is_aborted() {
            return Err(Stop::Aborted);
        }
        // A rank announces all that it is going to announce before it leaves.
        let left = Ranks(self.arena.left().0 & self.missing(need).0);
        if left.is_empty() { Ok(()) } else { Err(Stop::Left(left)) }
    }

    /// The ranks that have not met the need.
    pub fn missing(&self, need: Need) -> Ranks {
        self.arena.missing(need, self.me)
    }
}

impl Arena {
    /// Wakes the sleepers whose need is met. The caller has just published by a sequentially consistent swap, so no fence
    /// is needed before the marks are read, as in [`sleep::sleepers`]. Of two ranks that meet a need together, the later
    /// one sees what both did.
    #[inline]
    pub(super) fn wake_sleepers(&self, me: Rank) {
        let sleepers = self.word(SLEEPERS_AT).load(Ordering::SeqCst) & !Ranks::one(me).0;
        if sleepers != 0 {
            self.wake_satisfied(Ranks(sleepers & Ranks::all(self.geometry.world).0));
        }
    }

    #[cold]
    fn wake_satisfied(&self, sleepers: Ranks) {
        for rank in sleepers {
            if self.missing(self.published_need(rank), rank).is_empty()
                && sleep::claim(self.word(SLEEPERS_AT), Ranks::one(rank).0)
            {
                self.wake_word(rank.index()).wake_all();
            }
        }
    }

    /// The ranks that a rank waits for; none if it does not sleep. As in errors: those that wait for nobody.
    pub fn awaited_by(&self, me: Rank) -> Ranks {
        let sleepers = Ranks(self.word(SLEEPERS_AT).load(Ordering::SeqCst));
        if me.index() >= self.geometry.world || !sleepers.contains(me) {
            return Ranks::NONE;
        }
        let missing = self.missing(self.published_need(me), me);
        if missing.is_empty() { missing } else { self.at_fault(me, missing) }
    }

    /// Whether a rank has announced a slot of this round or of a later one.
    pub fn has_announced(&self, rank: Rank, first_round: u64) -> bool {
        let rounds = 0..self.geometry.depth as u64;
        let word = |round| self.word(self.geometry.header_at(rank.index(), round)).load(Ordering::Acquire);
        rank.index() < self.geometry.world && rounds.map(word).any(|announced| announced > first_round)
    }

    /// The ranks that wait for nobody: of the missing ranks, and of those that these wait for.
    fn at_fault(&self, me: Rank, missing: Ranks) -> Ranks {
        let asleep = Ranks(self.word(SLEEPERS_AT).load(Ordering::SeqCst));
        let mut at_fault = Ranks::NONE;
        let mut asked = Ranks::one(me);
        let mut rest = missing.without(me);
        while let Some(rank) = rest.next() {
            asked.0 |= Ranks::one(rank).0;
            let awaited = if asleep.contains(rank) {
                self.missing(self.published_need(rank), rank)
            } else {
                Ranks::NONE
            };
            if awaited.is_empty() {
                at_fault.0 |= Ranks::one(rank).0;
            }
            rest.0 |= awaited.0 & !asked.0;
        }
        // If all of them wait for each other, all are named.
        if at_fault.is_empty() { missing } else { at_fault }
    }

    fn missing(&self, need: Need, me: Rank) -> Ranks {
        let everyone = Ranks::all(self.geometry.world);
        match need {
            Need::Announced { round, by } => {
                self.unannounced(round, Ranks(by.0 & everyone.0), Ordering::SeqCst)
            }
            Need::Space { round } => {
                let mut missing = everyone.without(me);
                for rank in missing {
                    let consumed = self.consumed(rank, Ordering::SeqCst);
                    if round < consumed.saturating_add(self.geometry.depth as u64) {
                        missing = missing.without(rank);
                    }
                }
                missing
            }
        }
    }

    fn publish_need(&self, me: Rank, need: Need) {
        let (word, by) = match need {
            Need::Announced { round, by } => (round << 1, by),
            Need::Space { round } => (round << 1 | 1, Ranks::NONE),
        };
        let at = self.geometry.need_at(me.index());
        self.word(at).store(word, Ordering::SeqCst);
        self.word(at + 8).store(by.0, Ordering::SeqCst);
    }

    /// The last need that a rank has published. It may be a mixture of two; then the rank has not made its last check.
    fn published_need(&self, rank: Rank) -> Need {
        let at = self.geometry.need_at(rank.index());
        let word = self.word(at).load(Ordering::SeqCst);
        let by = Ranks(self.word(at + 8).load(Ordering::SeqCst));
        if word & 1 == 0 {
            Need::Announced { round: word >> 1, by }
        } else {
            Need::Space { round: word >> 1 }
        }
    }
}
