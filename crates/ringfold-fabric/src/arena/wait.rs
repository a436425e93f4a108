//! Waiting for others: a short spin, then sleep. Whoever makes a sleeper's wish come true wakes it, and nobody else.

use super::geometry::SLEEPERS_AT;
use super::{Arena, Ranks, Seat};
use crate::futex;
use core::fmt;
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;
use ringfold_proto::id::Rank;
use std::sync::Arc;
use std::time::Instant;

/// What a rank can't go on without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// These ranks have announced their slot of the round.
    Announced {
        /// Which round.
        round: u64,
        /// By whom.
        by: Ranks,
    },
    /// The slot of the round is free: all ranks have released the round that had it before.
    Space {
        /// Which round.
        round: u64,
    },
}

/// Why a wait ended without what was needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The arena was given up.
    Aborted,
    /// The deadline is over; these ranks were still missing.
    Late(Ranks),
    /// Of those that were missing, these have left.
    Left(Ranks),
    /// Whoever watches over this rank's waits has it leave off.
    Interrupted,
}

/// What a rank that sleeps asks now and then, since it may have to leave off.
#[derive(Clone)]
pub struct Watch {
    /// How often.
    pub every: Duration,
    /// Whether it must leave off.
    pub must_end: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("every", &self.every).finish_non_exhaustive()
    }
}

/// How long a rank watches before it sleeps. Where every rank has a core to itself, waking up costs more than
/// watching; where they share cores, watching takes away the time of those who are waited for.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    /// How long at most; none where ranks share cores.
    longest: Duration,
    /// Looks before the clock is read.
    looks: u32,
    /// Watching was in vain so many times in a row.
    in_vain: u32,
    /// Waits to come in which the core is not offered to others.
    keep_core: u32,
    /// How many those were last time.
    kept_core: u32,
}

/// Sleepers look around so often even if nobody wakes them: whoever should have done so may have been killed in
/// between.
const SLEEP_MAX: Duration = Duration::from_millis(500);

/// Of so many waits in vain, one watches as long as if none had been.
const TRIES_BETWEEN_FULL_ONES: u32 = 32;

/// How often the core is offered to others before a rank sleeps.
const OFFERS: u32 = 8;

/// An offer that takes longer than this was taken by someone who is not of this group.
const OFFER_MAX: Duration = Duration::from_millis(1);

/// How many waits do without offers after that: as many at first, then twice as many each time.
const KEEP_CORE: core::ops::Range<u32> = 64..8192;

/// Looks between two of the clock.
const LOOKS_PER_CLOCK: u32 = 16;

impl Spin {
    /// What suits so many ranks on the cores that this process may use.
    pub fn for_world(world: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if world <= cores { Self::new(200, Duration::from_micros(50)) } else { Self::new(1, Duration::ZERO) }
    }

    /// So many looks, then by the clock.
    pub fn new(looks: u32, longest: Duration) -> Self {
        Self { longest, looks, in_vain: 0, keep_core: 0, kept_core: KEEP_CORE.start }
    }

    /// As it is, but the core is never offered to others.
    #[must_use]
    pub fn without_offers(self) -> Self {
        Self { keep_core: u32::MAX, ..self }
    }

    /// How long to watch this time. It is shortened while watching is in vain: then those who are waited for are busy
    /// for long, or need this very core. Now and then the whole time is tried again.
    fn budget(&self) -> Duration {
        if self.in_vain.is_multiple_of(TRIES_BETWEEN_FULL_ONES) {
            self.longest
        } else {
            self.longest / (1 << self.in_vain.min(6))
        }
    }
}

impl Seat {
    /// Waits until what is needed is there, at most until the deadline, which is asked for if it comes to that.
    #[inline]
    pub fn wait(&mut self, need: Need, deadline: impl FnOnce() -> Instant) -> Result<(), Stop> {
        let looks =
            if self.spin.in_vain == 0 { self.spin.looks } else { self.spin.looks.min(LOOKS_PER_CLOCK) };
        for _ in 0..looks {
            if self.is_met(need) {
                return Ok(());
            }
            core::hint::spin_loop();
        }
        self.wait_by_the_clock(need, deadline())
    }

    #[cold]
    fn wait_by_the_clock(&mut self, need: Need, deadline: Instant) -> Result<(), Stop> {
        // Whoever waits long lets others have what it does not need any more.
        self.report();
        let began = Instant::now();
        let budget = self.spin.budget();
        let mut now = began;
        while now - began < budget {
            for _ in 0..LOOKS_PER_CLOCK {
                if self.is_met(need) {
                    self.spin.in_vain = 0;
                    return Ok(());
                }
                core::hint::spin_loop();
            }
            now = Instant::now();
            if let Some(stop) = self.stop(need, deadline.saturating_duration_since(now)) {
                return Err(stop);
            }
        }
        self.spin.in_vain = self.spin.in_vain.wrapping_add(1);
        if self.offer_core(need) { Ok(()) } else { self.sleep(need, deadline) }
    }

    /// Lets others have the core for a moment; whether what is needed is there then. Where ranks share cores, those who
    /// are waited for often are next in line, and nobody has to be put to sleep and woken. If someone else is in line,
    /// it may keep the core for milliseconds; a rank that sleeps gets it back sooner.
    fn offer_core(&mut self, need: Need) -> bool {
        if self.spin.keep_core > 0 {
            self.spin.keep_core -= 1;
            return false;
        }
        let mut now = Instant::now();
        for _ in 0..OFFERS {
            std::thread::yield_now();
            if self.is_met(need) {
                return true;
            }
            let before = core::mem::replace(&mut now, Instant::now());
            if now - before > OFFER_MAX {
                self.spin.keep_core = self.spin.kept_core;
                self.spin.kept_core = (self.spin.kept_core * 2).min(KEEP_CORE.end);
                break;
            }
        }
        false
    }

    /// Sleeps until what is needed is there.
    fn sleep(&mut self, need: Need, deadline: Instant) -> Result<(), Stop> {
        let arena = self.arena.clone();
        let bell = arena.bell(self.me.index());
        let sleepers = arena.word(SLEEPERS_AT);
        let mine = Ranks::one(self.me).0;
        let watch = self.watch.clone().filter(|_| self.is_watched);
        let mut next_ask = watch.as_ref().map(|watch| Instant::now() + watch.every);
        loop {
            // The order is what matters here. The bell is read first: whoever rings later makes the sleep end at once.
            // The wish is told before the last look at what is needed: either this look finds it, or whoever
            // brings it about later finds the wish.
            let heard = bell.load(Ordering::SeqCst);
            arena.wish(self.me, need);
            sleepers.fetch_or(mine, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let time_left = deadline.saturating_duration_since(Instant::now());
            let outcome = if self.missing(need).is_empty() {
                Some(Ok(()))
            } else if let Some(stop) = self.stop(need, time_left) {
                Some(Err(stop))
            } else {
                let at_most = watch.as_ref().map_or(SLEEP_MAX, |watch| watch.every.min(SLEEP_MAX));
                futex::sleep(bell, heard, time_left.min(at_most));
                None
            };
            // Whoever is late goes on to be seen as one that waited, so that others do not take it for the one at fault.
            let is_late = matches!(outcome, Some(Err(Stop::Late(_))));
            if !is_late && sleepers.load(Ordering::Relaxed) & mine != 0 {
                sleepers.fetch_and(!mine, Ordering::SeqCst);
            }
            if let Some(outcome) = outcome {
                if outcome.is_ok() {
                    // What was found by looking at everyone is also to be known to this rank.
                    self.is_met(need);
                }
                return outcome;
            }
            if let (Some(watch), Some(ask)) = (&watch, &mut next_ask)
                && Instant::now() >= *ask
            {
                if (watch.must_end)() {
                    return Err(Stop::Interrupted);
                }
                *ask = Instant::now() + watch.every;
            }
        }
    }

    /// Why it makes no sense to wait on, if it does not.
    fn stop(&self, need: Need, time_left: Duration) -> Option<Stop> {
        if self.arena.is_aborted() {
            return Some(Stop::Aborted);
        }
        // Whoever leaves has announced before what it was going to announce.
        let left = self.arena.left();
        let missing = self.missing(need);
        if left.0 & missing.0 != 0 {
            return Some(Stop::Left(Ranks(left.0 & missing.0)));
        }
        (time_left.is_zero() && !missing.is_empty()).then(|| Stop::Late(self.at_fault(missing)))
    }

    /// Of ranks that are missing, and those whom they wait for themselves, the ones that wait for nobody.
    fn at_fault(&self, missing: Ranks) -> Ranks {
        let asleep = Ranks(self.arena.word(SLEEPERS_AT).load(Ordering::SeqCst));
        let mut at_fault = Ranks::NONE;
        let mut asked = Ranks::one(self.me);
        let mut rest = missing.without(self.me);
        while let Some(rank) = rest.next() {
            asked.0 |= Ranks::one(rank).0;
            let awaited = if asleep.contains(rank) {
                self.arena.missing(self.arena.wished(rank), rank)
            } else {
                Ranks::NONE
            };
            if awaited.is_empty() {
                at_fault.0 |= Ranks::one(rank).0;
            }
            rest.0 |= awaited.0 & !asked.0;
        }
        // If all wait for each other, nobody knows better.
        if at_fault.is_empty() { missing } else { at_fault }
    }

    /// The ranks that stand between this one and what it needs.
    pub fn missing(&self, need: Need) -> Ranks {
        self.arena.missing(need, self.me)
    }
}

impl Arena {
    /// Wakes the sleepers whose wish has come true. The caller has just stored, in sequentially consistent order, what
    /// may have made it true. Of two ranks that fulfil a wish together, the later one sees what both did.
    #[inline]
    pub(super) fn wake_the_ready(&self, me: Rank) {
        let sleepers = self.word(SLEEPERS_AT).load(Ordering::SeqCst) & !Ranks::one(me).0;
        if sleepers != 0 {
            self.wake_the_ready_of(Ranks(sleepers & Ranks::all(self.geometry.world).0));
        }
    }

    #[cold]
    fn wake_the_ready_of(&self, sleepers: Ranks) {
        for rank in sleepers {
            if self.missing(self.wished(rank), rank).is_empty() {
                let bit = Ranks::one(rank).0;
                // Whoever takes the bit away rings; the others need not.
                if self.word(SLEEPERS_AT).fetch_and(!bit, Ordering::SeqCst) & bit != 0 {
                    self.ring(rank.index());
                }
            }
        }
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

    fn wish(&self, me: Rank, need: Need) {
        let (word, by) = match need {
            Need::Announced { round, by } => (round << 1, by),
            Need::Space { round } => (round << 1 | 1, Ranks::NONE),
        };
        let at = self.geometry.wish_at(me.index());
        self.word(at).store(word, Ordering::SeqCst);
        self.word(at + 8).store(by.0, Ordering::SeqCst);
    }

    /// What a rank wished for last. It may be a mixture of two wishes; then the rank has not taken its last look yet.
    fn wished(&self, rank: Rank) -> Need {
        let at = self.geometry.wish_at(rank.index());
        let word = self.word(at).load(Ordering::SeqCst);
        let by = Ranks(self.word(at + 8).load(Ordering::SeqCst));
        if word & 1 == 0 {
            Need::Announced { round: word >> 1, by }
        } else {
            Need::Space { round: word >> 1 }
        }
    }
}
