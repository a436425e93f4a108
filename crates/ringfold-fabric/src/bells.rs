//! Signals through memory: each rank has a place with a bell for every other rank, which that one rings.
//!
//! A bell counts how often it was rung. Whoever rings it has written before what the signal tells of; whoever hears it
//! sees that. What others write into the place is only ever a number to compare with, so they can spoil signals and
//! nothing else.

use crate::segment::{Segment, Ticket};
use crate::shared_bytes::SharedBytes;
use crate::waiter::sleep::{self, Bell as _};
use crate::waiter::{Deadline, Policy, Step, Wait, Waiter};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use ringfold_proto::id::Rank;
use std::io;

/// The bells of one rank, in memory that those of its host share.
#[derive(Debug)]
pub struct Bells {
    segment: Segment,
    world: usize,
}

/// The size of a bell: a line of the cache, so that two do not disturb each other.
const BELL_BYTES: usize = 64;

impl Bells {
    /// New bells for this process, one for each rank.
    pub fn create(world: usize) -> io::Result<Self> {
        Ok(Self { segment: Segment::create(bytes(world), true)?, world })
    }

    /// Those of another process.
    pub fn open(ticket: &Ticket, world: usize) -> io::Result<Self> {
        if ticket.bytes != bytes(world) as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "there are not as many bells as ranks"));
        }
        Ok(Self { segment: Segment::open(ticket)?, world })
    }

    /// What others open them with.
    pub fn ticket(&self) -> Ticket {
        self.segment.ticket()
    }

    /// Rings the bell of a rank.
    pub fn ring(&self, of: Rank) {
        self.count(of).fetch_add(1, Ordering::SeqCst);
        sleep::wake(self.sleepers(of), self.bell(of));
    }

    /// How often it was rung, modulo the size of the number.
    pub fn rung(&self, of: Rank) -> u32 {
        self.count(of).load(Ordering::SeqCst)
    }

    /// Waits until `is_enough`, at most until the deadline. It is asked whenever the bell was rung or someone was
    /// [roused](Self::rouse).
    pub fn wait(&self, of: Rank, policy: Policy, deadline: Deadline, is_enough: impl Fn() -> bool) {
        let wait = Wait::until(deadline);
        let mut waiter = Waiter::start(policy, &wait);
        while !is_enough() {
            match waiter.step(&wait) {
                Step::Check | Step::CheckAll => {}
                Step::Block(at_most) => {
                    sleep::block(self.sleepers(of), 1, self.bell(of), at_most, &is_enough);
                }
                Step::Over(_) => return,
            }
        }
    }

    /// Wakes all who wait on any bell, so that they look at what they wait for.
    pub fn rouse(&self) {
        for rank in 0..self.world {
            self.bell(Rank::from_index(rank)).ring();
        }
    }

    fn count(&self, of: Rank) -> &AtomicU32 {
        self.place(of).half_word(0)
    }

    /// What sleepers sleep on.
    fn bell(&self, of: Rank) -> &AtomicU32 {
        self.place(of).half_word(4)
    }

    /// Whether somebody may sleep.
    fn sleepers(&self, of: Rank) -> &AtomicU64 {
        self.place(of).word(8)
    }

    fn place(&self, of: Rank) -> SharedBytes<'_> {
        let at = Segment::RESERVED_BYTES + of.index() * BELL_BYTES;
        self.segment.bytes().part(at..at + BELL_BYTES)
    }
}

fn bytes(world: usize) -> usize {
    Segment::RESERVED_BYTES + world * BELL_BYTES
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
    fn no_ring_is_lost_and_bells_do_not_mix() {
        let mine = Bells::create(3).unwrap();
        let ticket = mine.ticket();
        std::thread::scope(|scope| {
            for rank in [Rank(0), Rank(2)] {
                scope.spawn(move || {
                    let theirs = Bells::open(&ticket, 3).unwrap();
                    for _ in 0..20_000 {
                        theirs.ring(rank);
                    }
                });
            }
            for rank in [Rank(0), Rank(2)] {
                for number in 1..=20_000 {
                    let is_enough = || mine.rung(rank) >= number;
                    mine.wait(rank, POLICY, Deadline::after(LONG), is_enough);
                    assert!(is_enough());
                }
            }
        });
        assert_eq!([0, 1, 2].map(|rank| mine.rung(Rank(rank))), [20_000, 0, 20_000]);
        assert!(Bells::open(&ticket, 2).is_err());
    }

    #[test]
    fn a_wait_ends_in_time_or_when_it_is_roused() {
        let mine = Arc::new(Bells::create(2).unwrap());
        let begun = Instant::now();
        mine.wait(Rank(1), POLICY, Deadline::after(Duration::from_millis(20)), || false);
        assert!(begun.elapsed() >= Duration::from_millis(20));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                is_over.store(true, Ordering::SeqCst);
                mine.rouse();
            });
            mine.wait(Rank(1), POLICY, Deadline::after(LONG), || is_over.load(Ordering::SeqCst));
        });
        assert!(begun.elapsed() < LONG / 2);
    }
}
