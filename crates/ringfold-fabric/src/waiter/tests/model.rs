//! The sleep protocol in all interleavings, by loom. A lost wake-up is a deadlock, which loom reports.

use crate::waiter::sleep::{self, Marks, WakeWord};
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

/// Marks of a broken protocol: nothing orders a mark and what is published.
#[derive(Default)]
struct UnfencedMarks(AtomicU64);

impl Marks for UnfencedMarks {
    fn set(&self, bits: u64) {
        self.0.fetch_or(bits, Ordering::AcqRel);
    }

    fn clear(&self, bits: u64) -> u64 {
        self.0.fetch_and(!bits, Ordering::AcqRel) & bits
    }

    fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn fence() {}
}

/// A futex: the kernel compares and queues under a lock of its own. No timeout ever wakes a thread.
#[derive(Default)]
struct Futex {
    count: AtomicU32,
    kernel: Mutex<()>,
    queue: Condvar,
}

impl WakeWord for Futex {
    fn count(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    fn block(&self, seen: u32, _at_most: Duration) {
        let kernel = self.kernel.lock().unwrap();
        if self.count.load(Ordering::SeqCst) == seen {
            drop(self.queue.wait(kernel).unwrap());
        }
    }

    fn wake_all(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        let _kernel = self.kernel.lock().unwrap();
        self.queue.notify_all();
    }
}

/// A futex that only notes that a thread would block.
#[derive(Default)]
struct DryFutex {
    count: AtomicU32,
    blocked: AtomicU32,
}

impl WakeWord for DryFutex {
    fn count(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    fn block(&self, seen: u32, _at_most: Duration) {
        self.blocked.store(u32::from(self.count() == seen), Ordering::SeqCst);
    }

    fn wake_all(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }
}

/// Two words that threads wait for, and what they block on.
#[derive(Default)]
struct Words<M = AtomicU64, W = Futex> {
    words: [AtomicU32; 2],
    marks: M,
    word: W,
}

impl<M: Marks, W: WakeWord> Words<M, W> {
    fn is_set(&self, word: usize) -> bool {
        self.words[word].load(Ordering::Acquire) != 0
    }

    fn wait(&self, is_met: impl Fn() -> bool) {
        while !is_met() {
            sleep::block(&self.marks, 1, &self.word, Duration::MAX, &is_met);
        }
    }

    /// An ordinary store, then the waker's part of the protocol.
    fn publish(&self, word: usize) {
        self.words[word].store(1, Ordering::Release);
        sleep::wake(&self.marks, &self.word);
    }
}

fn explore<M, W>(scenario: impl Fn(Arc<Words<M, W>>) + Send + Sync + 'static)
where
    M: Marks + Default + 'static,
    W: WakeWord + Default + 'static,
{
    let mut model = loom::model::Builder::new();
    // More preemptions find nothing new here, and take minutes.
    model.preemption_bound = Some(3);
    model.check(move || scenario(Arc::new(Words::default())));
}

#[test]
fn no_waiter_is_left_asleep() {
    explore(|words: Arc<Words>| {
        let waker = words.clone();
        let thread = loom::thread::spawn(move || waker.publish(0));
        words.wait(|| words.is_set(0));
        thread.join().unwrap();
    });
}

/// Panics if in some interleaving a thread blocks by `block` and is not woken by what is published.
fn expect_wake_up<M: Marks + Default + Send + Sync + 'static>(block: fn(&Words<M, DryFutex>)) {
    explore(move |words: Arc<Words<M, DryFutex>>| {
        let waker = words.clone();
        let thread = loom::thread::spawn(move || waker.publish(0));
        block(&words);
        thread.join().unwrap();
        let is_blocked = words.word.blocked.load(Ordering::SeqCst) == 1;
        assert!(!is_blocked || words.word.count() > 0, "lost wake-up");
    });
}

#[test]
fn a_waiter_is_woken_whenever_it_blocks() {
    expect_wake_up::<AtomicU64>(|words| {
        sleep::block(&words.marks, 1, &words.word, Duration::MAX, || words.is_set(0));
    });
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn the_model_finds_the_wake_up_that_is_lost_without_fences() {
    expect_wake_up::<UnfencedMarks>(|words| {
        sleep::block(&words.marks, 1, &words.word, Duration::MAX, || words.is_set(0));
    });
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn the_model_finds_the_wake_up_that_is_lost_if_the_mark_is_set_after_the_last_check() {
    expect_wake_up::<AtomicU64>(|words| {
        let seen = words.word.count();
        if !words.is_set(0) {
            sleep::prepare(&words.marks, 1);
            words.word.block(seen, Duration::MAX);
        }
    });
}

#[test]
fn two_waiters_of_one_mark_are_both_woken() {
    explore(|words: Arc<Words>| {
        let threads = [0, 1].map(|word| {
            let words = words.clone();
            loom::thread::spawn(move || words.wait(|| words.is_set(word)))
        });
        words.publish(0);
        words.publish(1);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn of_two_wakers_that_meet_a_need_together_one_wakes() {
    explore(|words: Arc<Words>| {
        let threads = [0, 1].map(|word| {
            let words = words.clone();
            loom::thread::spawn(move || {
                // As the board does: only a waker that sees the whole need met takes the mark.
                words.words[word].store(1, Ordering::SeqCst);
                if sleep::sleepers(&words.marks) != 0
                    && words.is_set(0)
                    && words.is_set(1)
                    && sleep::claim(&words.marks, 1)
                {
                    words.word.wake_all();
                }
            })
        });
        words.wait(|| words.is_set(0) && words.is_set(1));
        for thread in threads {
            thread.join().unwrap();
        }
    });
}
