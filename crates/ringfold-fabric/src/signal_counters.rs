//! Signals through shared memory: each rank has a counter for every other rank, which that one increments.
//!
//! A rank that signals has written before what the signal announces, and the rank that reads the counter sees that.
//! Counters are only compared, so a rank that breaks the protocol can corrupt signals and nothing else.

use crate::segment::{Segment, Ticket};
use crate::shared_bytes::SharedBytes;
use crate::waiter::sleep::{self, WakeWord as _};
use crate::waiter::{Deadline, Policy, Step, Wait, Waiter};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use ringfold_proto::id::Rank;
use std::io;

/// The counters of one rank, in memory that the ranks of its host share.
#[derive(Debug)]
pub struct SignalCounters {
    segment: Segment,
    world: usize,
}

/// A counter has a cache line of its own: the count, the word that waiters block on, their sleep marks.
const COUNTER_BYTES: usize = 64;

impl SignalCounters {
    /// Creates the counters of this process, one for each rank.
    pub fn create(world: usize) -> io::Result<Self> {
        Ok(Self { segment: Segment::create(bytes(world), true)?, world })
    }

    /// Opens those of another process.
    pub fn open(ticket: &Ticket, world: usize) -> io::Result<Self> {
        if ticket.bytes != bytes(world) as u64 {
            let why = format!("invalid signal counters: {} bytes for {world} ranks", ticket.bytes);
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(Self { segment: Segment::open(ticket)?, world })
    }

    /// What other processes need to open them.
    pub fn ticket(&self) -> Ticket {
        self.segment.ticket()
    }

    /// Signals as this rank.
    pub fn signal(&self, from: Rank) {
        self.counter(from).half_word(0).fetch_add(1, Ordering::SeqCst);
        sleep::wake(self.marks(from), self.wake_word(from));
    }

    /// The number of signals from a rank, modulo 2^32.
    pub fn count(&self, from: Rank) -> u32 {
        self.counter(from).half_word(0).load(Ordering::SeqCst)
    }

    /// Waits until `is_enough`, which is called again after each signal from the rank and each [`Self::wake_all`], or
    /// until the deadline.
    pub fn wait(&self, from: Rank, policy: Policy, deadline: Deadline, is_enough: impl Fn() -> bool) {
        let wait = Wait::until(deadline);
        let mut waiter = Waiter::start(policy, &wait);
        while !is_enough() {
            match waiter.step(&wait) {
                Step::Check | Step::CheckAll => {}
                Step::Block(at_most) => {
                    sleep::block(self.marks(from), 1, self.wake_word(from), at_most, &is_enough);
                }
                Step::Over(_) => return,
            }
        }
    }

    /// Has all threads that wait check again.
    pub fn wake_all(&self) {
        for rank in 0..self.world {
            self.wake_word(Rank::from_index(rank)).wake_all();
        }
    }

    fn wake_word(&self, from: Rank) -> &AtomicU32 {
        self.counter(from).half_word(4)
    }

    fn marks(&self, from: Rank) -> &AtomicU64 {
        self.counter(from).word(8)
    }

    fn counter(&self, from: Rank) -> SharedBytes<'_> {
        let at = Segment::RESERVED_BYTES + from.index() * COUNTER_BYTES;
        self.segment.bytes().part(at..at + COUNTER_BYTES)
    }
}

fn bytes(world: usize) -> usize {
    Segment::RESERVED_BYTES + world * COUNTER_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    const LONG: Duration = Duration::from_secs(20);
    const POLICY: Policy = Policy::SIGNAL.without_spin();

    #[test]
    fn no_signal_is_lost_and_ranks_do_not_mix() {
        let mine = SignalCounters::create(3).unwrap();
        let ticket = mine.ticket();
        std::thread::scope(|scope| {
            for rank in [Rank(0), Rank(2)] {
                scope.spawn(move || {
                    let theirs = SignalCounters::open(&ticket, 3).unwrap();
                    for _ in 0..20_000 {
                        theirs.signal(rank);
                    }
                });
            }
            for rank in [Rank(0), Rank(2)] {
                for number in 1..=20_000 {
                    let is_enough = || mine.count(rank) >= number;
                    mine.wait(rank, POLICY, Deadline::after(LONG), is_enough);
                    assert!(is_enough());
                }
            }
        });
        assert_eq!([0, 1, 2].map(|rank| mine.count(Rank(rank))), [20_000, 0, 20_000]);
        assert!(SignalCounters::open(&ticket, 2).is_err());
    }

    #[test]
    fn a_wait_ends_at_its_deadline_or_when_it_is_woken() {
        let mine = Arc::new(SignalCounters::create(2).unwrap());
        let begun = Instant::now();
        mine.wait(Rank(1), POLICY, Deadline::after(Duration::from_millis(20)), || false);
        assert!(begun.elapsed() >= Duration::from_millis(20));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while sleep::sleepers(mine.marks(Rank(0))) == 0 {
                    assert!(begun.elapsed() < LONG / 2, "timed out waiting for the waiter");
                    std::thread::yield_now();
                }
                is_over.store(true, Ordering::SeqCst);
                mine.wake_all();
            });
            // The wait above has left its mark for rank 1.
            mine.wait(Rank(0), POLICY, Deadline::after(LONG), || is_over.load(Ordering::SeqCst));
        });
        assert!(begun.elapsed() < LONG / 2);
    }
}
