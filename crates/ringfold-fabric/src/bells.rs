//! Signals through memory: each rank has a place with a bell for every other rank, which that one rings.
//!
//! A bell counts how often it was rung. Whoever rings it has written before what the signal tells of; whoever hears it
//! sees that. What others write into the place is only ever a number to compare with, so they can spoil signals and
//! nothing else.

use crate::futex;
use crate::segment::{Segment, Ticket};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use ringfold_proto::id::Rank;
use std::io;
use std::time::Instant;

/// The bells of one rank, in memory that those of its host share.
#[derive(Debug)]
pub struct Bells {
    segment: Segment,
    world: usize,
}

/// The size of a bell: a line of the cache, so that two do not disturb each other.
const BELL_BYTES: usize = 64;

/// How often the core is offered to others before a rank sleeps.
const OFFERS: u32 = 4;

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
        if self.sleepers(of).load(Ordering::SeqCst) > 0 {
            self.wake(of);
        }
    }

    /// How often it was rung, modulo the size of the number.
    pub fn rung(&self, of: Rank) -> u32 {
        self.count(of).load(Ordering::SeqCst)
    }

    /// Waits until `is_enough`, for so long at most. It is asked whenever the bell was rung or someone was
    /// [roused](Self::rouse); before it sleeps, a thread looks for a while.
    pub fn wait(&self, of: Rank, look: Duration, at_most: Duration, is_enough: impl Fn() -> bool) {
        let begun = Instant::now();
        while begun.elapsed() < look {
            for _ in 0..64 {
                if is_enough() {
                    return;
                }
                core::hint::spin_loop();
            }
        }
        for _ in 0..OFFERS {
            if is_enough() {
                return;
            }
            std::thread::yield_now();
        }
        self.sleepers(of).fetch_add(1, Ordering::SeqCst);
        loop {
            // Whoever rings after this was read changes it, and whoever rang before is seen.
            let seen = self.bell(of).load(Ordering::SeqCst);
            let left = at_most.saturating_sub(begun.elapsed());
            if is_enough() || left.is_zero() {
                break;
            }
            futex::sleep(self.bell(of), seen, left);
        }
        self.sleepers(of).fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes all who wait on any bell, so that they look at what they wait for.
    pub fn rouse(&self) {
        for rank in 0..self.world {
            self.wake(Rank::from_index(rank));
        }
    }

    fn wake(&self, of: Rank) {
        self.bell(of).fetch_add(1, Ordering::SeqCst);
        futex::wake(self.bell(of));
    }

    fn count(&self, of: Rank) -> &AtomicU32 {
        self.word(of, 0)
    }

    /// What sleepers sleep on.
    fn bell(&self, of: Rank) -> &AtomicU32 {
        self.word(of, 1)
    }

    fn sleepers(&self, of: Rank) -> &AtomicU32 {
        self.word(of, 2)
    }

    fn word(&self, of: Rank, index: usize) -> &AtomicU32 {
        assert!(of.index() < self.world && index < BELL_BYTES / 4);
        let at = Segment::RESERVED_BYTES + of.index() * BELL_BYTES + index * 4;
        // SAFETY: it lies within the segment, is aligned, and is only ever used as an atomic.
        unsafe { self.segment.base().add(at).cast::<AtomicU32>().as_ref() }
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

    const LONG: Duration = Duration::from_secs(20);

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
                    mine.wait(rank, Duration::ZERO, LONG, is_enough);
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
        mine.wait(Rank(1), Duration::ZERO, Duration::from_millis(20), || false);
        assert!(begun.elapsed() >= Duration::from_millis(20));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                is_over.store(true, Ordering::SeqCst);
                mine.rouse();
            });
            mine.wait(Rank(1), Duration::ZERO, LONG, || is_over.load(Ordering::SeqCst));
        });
        assert!(begun.elapsed() < LONG / 2);
    }
}
