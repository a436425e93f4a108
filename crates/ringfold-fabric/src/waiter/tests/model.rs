//! The sleep protocol in all interleavings, by loom. A lost wake-up is a deadlock, which loom reports.

use crate::waiter::sleep::{self, Bell, Marks};
use core::time::Duration;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};

impl Marks for AtomicU64 {
    fn set(&self, bits: u64) {
        self.fetch_or(bits, Ordering::SeqCst);
    }

    fn clear(&self, bits: u64) -> u64 {
        self.fetch_and(!bits, Ordering::SeqCst) & bits
    }

    fn load(&self) -> u64 {
        self.load(Ordering::SeqCst)
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// A futex: the kernel compares and queues under a lock of its own. No timeout ever wakes anybody.
#[derive(Default)]
struct Futex {
    rung: AtomicU32,
    kernel: Mutex<()>,
    queue: Condvar,
}

impl Bell for Futex {
    fn rung(&self) -> u32 {
        self.rung.load(Ordering::SeqCst)
    }

    fn block(&self, seen: u32, _at_most: Duration) {
        let kernel = self.kernel.lock().unwrap();
        if self.rung.load(Ordering::SeqCst) == seen {
            drop(self.queue.wait(kernel).unwrap());
        }
    }

    fn ring(&self) {
        self.rung.fetch_add(1, Ordering::SeqCst);
        let _kernel = self.kernel.lock().unwrap();
        self.queue.notify_all();
    }
}

#[derive(Default)]
struct Place {
    /// What is waited for.
    words: [AtomicU32; 2],
    marks: AtomicU64,
    bell: Futex,
}

impl Place {
    fn is_set(&self, word: usize) -> bool {
        self.words[word].load(Ordering::Acquire) != 0
    }

    fn wait(&self, is_met: impl Fn() -> bool) {
        while !is_met() {
            sleep::block(&self.marks, 1, &self.bell, Duration::MAX, &is_met);
        }
    }

    /// An ordinary store, then the waker's part of the protocol.
    fn publish(&self, word: usize) {
        self.words[word].store(1, Ordering::Release);
        sleep::wake(&self.marks, &self.bell);
    }
}

fn explore(scenario: impl Fn(Arc<Place>) + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    // More switches against a thread's will find nothing new here, and take minutes.
    model.preemption_bound = Some(3);
    model.check(move || scenario(Arc::new(Place::default())));
}

#[test]
fn a_waiter_is_never_left_asleep() {
    explore(|place| {
        let waker = place.clone();
        let thread = loom::thread::spawn(move || waker.publish(0));
        place.wait(|| place.is_set(0));
        thread.join().unwrap();
    });
}

#[test]
fn two_waiters_of_one_mark_are_both_woken() {
    explore(|place| {
        let threads = [0, 1].map(|word| {
            let place = place.clone();
            loom::thread::spawn(move || place.wait(|| place.is_set(word)))
        });
        place.publish(0);
        place.publish(1);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn of_two_wakers_that_fulfil_a_wish_together_one_wakes() {
    explore(|place| {
        let threads = [0, 1].map(|word| {
            let place = place.clone();
            loom::thread::spawn(move || {
                // As the board does: only a waker that sees the whole wish fulfilled takes the mark.
                place.words[word].store(1, Ordering::SeqCst);
                if sleep::sleepers(&place.marks) != 0
                    && place.is_set(0)
                    && place.is_set(1)
                    && sleep::claim(&place.marks, 1)
                {
                    place.bell.ring();
                }
            })
        });
        place.wait(|| place.is_set(0) && place.is_set(1));
        for thread in threads {
            thread.join().unwrap();
        }
    });
}
