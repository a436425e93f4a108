//! Waiting: spin while it pays, then yield, then block.
//!
//! All waits of Ringfold go through one [`Waiter`]. A [`Policy`] says how long each stage lasts. A [`Wait`] says what
//! ends the wait besides success: a [`Deadline`], a [`CancelToken`], a number of checks. [`sleep`] wakes threads that
//! block, and loses no wake-up.
//!
//! A waiter does not call back: its user checks, asks for the next [`Step`], and does it. So a check may borrow what it
//! needs, and the thread may block on a futex, in a poller, or for a time.
//!
//! ```
//! use ringfold_fabric::waiter::Wait;
//! use std::sync::atomic::{AtomicBool, Ordering};
//! use std::time::Duration;
//!
//! let is_ready = AtomicBool::new(false);
//! std::thread::scope(|scope| {
//!     scope.spawn(|| is_ready.store(true, Ordering::Release));
//!     let wait = Wait::within(Duration::from_secs(10));
//!     assert!(wait.poll(|| is_ready.load(Ordering::Acquire).then_some(())).is_some());
//! });
//! ```

mod cancel;
mod deadline;
mod policy;
pub mod sleep;
#[cfg(test)]
mod tests;

pub use cancel::CancelToken;
pub use deadline::Deadline;
pub use policy::Policy;

use core::time::Duration;
use std::time::Instant;

/// What ends a wait besides success, whichever comes first.
#[derive(Clone, Copy, Default, Debug)]
pub struct Wait<'a> {
    /// The time at which it ends.
    pub deadline: Deadline,
    /// After how many checks it ends. Such a wait never blocks: ten million checks take seconds, or hours if the
    /// thread blocks between them.
    pub checks_max: Option<u64>,
    /// Asked once per interval of the token, by the thread that waits.
    pub cancel: Option<&'a CancelToken>,
}

impl<'a> Wait<'a> {
    /// A wait that ends at a deadline.
    pub fn until(deadline: impl Into<Deadline>) -> Self {
        Self { deadline: deadline.into(), ..Self::default() }
    }

    /// A wait that ends after a timeout.
    pub fn within(timeout: Duration) -> Self {
        Self::until(Deadline::after(timeout))
    }

    /// The same wait, which a token may cancel.
    #[must_use]
    pub fn or_cancelled(self, cancel: Option<&'a CancelToken>) -> Self {
        Self { cancel, ..self }
    }

    /// Checks until there is an answer, where nobody wakes this thread. None if the wait is over before.
    pub fn poll<T>(self, mut check: impl FnMut() -> Option<T>) -> Option<T> {
        let mut waiter = Waiter::start(Policy::POLLED, &self);
        loop {
            if let Some(answer) = check() {
                return Some(answer);
            }
            if !waiter.pause(&self) {
                return None;
            }
        }
    }
}

/// What to do after a check that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Check again. The clock was not read.
    Check,
    /// Check again, and also what else may end the wait: some microseconds have passed.
    CheckAll,
    /// Block for this long at most, then check again.
    Block(Duration),
    /// The wait is over. What has come meanwhile still counts, so check a last time.
    Over(Over),
}

/// Let other threads run, then check again, and also what else may end the wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Yield;

/// Why a wait is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// The deadline has passed, or all checks were made.
    TimedOut,
    /// The token says so.
    Cancelled,
}

/// Decides between spinning, yielding and blocking, and learns how long spinning pays.
#[derive(Clone, Debug)]
pub struct Waiter {
    policy: Policy,
    /// How long the next wait spins.
    spin: Duration,
    /// Waits in a row that took much longer than any spin.
    slow_waits: u32,
    slow_yields: SlowYields,
    current: Current,
}

/// The state of one wait.
#[derive(Clone, Copy, Default, Debug)]
struct Current {
    /// Checks before the clock is read.
    checks: u32,
    /// Checks that were granted to a wait that counts them.
    counted: u64,
    /// When the clock was first read.
    began: Option<Instant>,
    /// When the thread yielded, if that was its last step.
    yielded: Option<Instant>,
    yields: u32,
    has_blocked: bool,
    /// When the token is asked next.
    cancel_at: Option<Instant>,
}

/// What yields cost that took too long, because another program used the core. The debt decays with time: so waits yield again
/// when the other program has ended, and if it has not, slow yields take a small part of the time.
#[derive(Clone, Copy, Default, Debug)]
struct SlowYields {
    /// Waits do not yield before.
    paid_at: Option<Instant>,
}

impl SlowYields {
    /// Of the time, at most one part in so many is spent in slow yields.
    const PARTS: u32 = 16;
    /// The longest time without a yield.
    const DEBT_MAX: Duration = Duration::from_millis(200);

    fn charge(&mut self, now: Instant, took: Duration) {
        let from = self.paid_at.map_or(now, |paid_at| paid_at.max(now));
        self.paid_at = Some((from + took * Self::PARTS).min(now + Self::DEBT_MAX));
    }

    fn are_paid(&self, now: Instant) -> bool {
        self.paid_at.is_none_or(|paid_at| paid_at <= now)
    }
}

/// One of so many slow waits spins for the longest time. Otherwise a phase of slow waits would have no end where each
/// wake-up takes longer than the spin that avoids it.
const FULL_SPIN_EVERY: u32 = 32;

impl Waiter {
    /// A waiter that has learnt nothing yet.
    pub fn new(policy: Policy) -> Self {
        let mut waiter = Self {
            policy,
            spin: policy.spin_max,
            slow_waits: 0,
            slow_yields: SlowYields::default(),
            current: Current::default(),
        };
        waiter.begin();
        waiter
    }

    /// A waiter for one wait.
    pub fn start(policy: Policy, wait: &Wait<'_>) -> Self {
        let mut waiter = Self::new(policy);
        if wait.checks_max.is_some() {
            waiter.current.checks = 0;
        }
        waiter
    }

    /// Begins another wait.
    #[inline]
    pub fn begin(&mut self) {
        self.current = Current { checks: self.first_checks(), ..Current::default() };
    }

    /// Begins another wait at a time that the caller has just read. The first checks count as made.
    #[inline]
    pub fn begin_at(&mut self, now: Instant) {
        let checks = if self.spin.is_zero() { 0 } else { self.policy.checks_per_clock };
        self.current = Current { checks, began: Some(now), ..Current::default() };
    }

    /// How many checks come before the clock is read for the first time. Fewer while spinning does not pay.
    #[inline]
    pub fn first_checks(&self) -> u32 {
        let Policy { checks, checks_per_clock, spin_max, .. } = self.policy;
        if self.spin == spin_max { checks } else { checks.min(checks_per_clock) }
    }

    /// Changes the policy of the waits to come.
    pub fn set_policy(&mut self, policy: Policy) {
        if self.policy != policy {
            *self = Self { current: self.current, ..Self::new(policy) };
        }
    }

    /// Whether the next step takes so long that anything can be checked before it.
    #[inline]
    pub fn is_slow(&self) -> bool {
        self.current.checks == 0
    }

    /// What to do after a check that failed. Yields by itself.
    #[inline]
    pub fn step(&mut self, wait: &Wait<'_>) -> Step {
        self.next_step(wait).unwrap_or_else(|Yield| {
            std::thread::yield_now();
            Step::CheckAll
        })
    }

    /// As [`Self::step`], for a thread that holds a lock, which it has to release while it yields.
    #[inline]
    pub fn next_step(&mut self, wait: &Wait<'_>) -> Result<Step, Yield> {
        if self.current.checks > 0 {
            self.current.checks -= 1;
            core::hint::spin_loop();
            return Ok(Step::Check);
        }
        self.slow_step(wait)
    }

    /// As [`Self::step`], for a thread that nobody wakes: blocks by sleeping. False if the wait is over.
    #[inline]
    pub fn pause(&mut self, wait: &Wait<'_>) -> bool {
        match self.step(wait) {
            Step::Check | Step::CheckAll => true,
            Step::Block(at_most) => {
                std::thread::sleep(at_most);
                true
            }
            Step::Over(_) => false,
        }
    }

    #[cold]
    fn slow_step(&mut self, wait: &Wait<'_>) -> Result<Step, Yield> {
        let now = Instant::now();
        let current = &mut self.current;
        let waited = now.saturating_duration_since(*current.began.get_or_insert(now));
        if let Some(yielded) = current.yielded.take()
            && now - yielded > self.policy.yield_max
        {
            current.yields = self.policy.yields;
            self.slow_yields.charge(now, now - yielded);
        }
        let left = wait.deadline.left_at(now);
        if left.is_zero() {
            return Ok(Step::Over(Over::TimedOut));
        }
        let mut block_max = left;
        if let Some(cancel) = wait.cancel {
            let at = current.cancel_at.get_or_insert(now + cancel.interval());
            if now >= *at {
                *at = now + cancel.interval();
                if cancel.is_cancelled() {
                    return Ok(Step::Over(Over::Cancelled));
                }
            }
            block_max = block_max.min(*at - now);
        }
        if let Some(most) = wait.checks_max {
            let granted = (most - current.counted).min(u64::from(self.policy.checks_per_clock) + 1);
            current.counted += granted;
            current.checks = granted.saturating_sub(1) as u32;
            return Ok(if granted == 0 { Step::Over(Over::TimedOut) } else { Step::CheckAll });
        }
        if waited < self.spin {
            current.checks = self.policy.checks_per_clock;
            return Ok(Step::CheckAll);
        }
        if self.yields(now, waited) {
            self.current.yielded = Some(now);
            return Err(Yield);
        }
        self.current.has_blocked = true;
        let Policy { block_min, block_max: longest, block_divisor, .. } = self.policy;
        Ok(Step::Block((waited / block_divisor).clamp(block_min, longest).min(block_max)))
    }

    /// Whether to let other threads run. Where ranks share cores, the awaited one often runs next, and no thread has to
    /// be woken. If another program runs next it may keep the core for milliseconds; a thread that blocks gets it back
    /// sooner.
    fn yields(&mut self, now: Instant, waited: Duration) -> bool {
        let current = &mut self.current;
        if current.yields == 0 && !self.slow_yields.are_paid(now) {
            current.yields = self.policy.yields;
        }
        if current.yields >= self.policy.yields || waited >= self.spin.saturating_add(self.policy.yield_for) {
            return false;
        }
        current.yields += 1;
        true
    }

    /// The wait has succeeded: learns from the time that it took, and begins another one.
    #[inline]
    pub fn finish(&mut self) {
        match self.current.began {
            Some(began) if self.current.yields > 0 || self.current.has_blocked => self.learn(began.elapsed()),
            Some(_) => (self.spin, self.slow_waits) = (self.policy.spin_max, 0),
            None => {}
        }
        self.begin();
    }

    /// A wait has taken so long in all, its blocking included.
    pub fn learn(&mut self, waited: Duration) {
        let Policy { spin_min, spin_max, .. } = self.policy;
        if waited > spin_max.saturating_mul(2) {
            self.slow_waits = self.slow_waits.wrapping_add(1);
            self.spin = match self.slow_waits {
                slow if slow.is_multiple_of(FULL_SPIN_EVERY) => spin_max,
                // The full spin was a trial.
                slow if slow > FULL_SPIN_EVERY => spin_min,
                _ => (self.spin / 2).max(spin_min),
            };
            return;
        }
        self.slow_waits = 0;
        // A wait that was longer than its spin and is not slow was mostly the waking.
        let paid = waited <= self.spin;
        self.spin = if paid { spin_max } else { self.spin.saturating_mul(2).min(spin_max) };
    }
}
