//! A queue of triggers from many pushing threads to one proxy.
//!
//! Slots are never cleared. A bit of each trigger tells in which lap it was written: one in even laps, beginning with
//! the first, zero in odd ones. So whoever polls needs no counter of the pushing side, which may be in the memory of a
//! device. The pushing side needs to know how many triggers were popped, and reads that only when the queue seems full.
//!
//! A trigger is two words, and a kernel writes both by one store. Here the word with the lap bit is read first, and
//! written last: whoever sees it sees the other one as well, whether they were written at once or one by one. A slot is
//! not written again before it was popped, so the other word can't be of a later trigger.

use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::host_words::HostWords;
use crate::port::device_handle::FifoHandle;
use crate::port::kernel_words::KernelWords;
use crate::port::trigger::{LAP_BIT, Trigger};
use core::sync::atomic::{AtomicU64, Ordering};

/// How many triggers a FIFO has room for at most.
pub const FIFO_SIZE_MAX: usize = 1 << 20;

/// The words of a trigger.
const TRIGGER_WORDS: usize = 2;

/// Which word of their memory the counters of the pushing side are: each has a cache line of its own.
const HEAD: usize = 0;
const TAIL_CACHE: usize = 8;
const COUNTERS_BYTES: usize = 128;

/// A queue of triggers. One thread polls and pops, any number push.
pub struct Fifo {
    size: u64,
    triggers: HostWords,
    /// How many triggers were popped: what the pushing side sees.
    tail: HostWords,
    /// How many were taken by whoever polls; it alone changes that.
    taken: AtomicU64,
    pushers: Pushers,
}

/// Who pushes, and where its counters are.
enum Pushers {
    /// Threads of this process.
    Host(HostWords),
    /// Kernels.
    Device(KernelWords),
}

impl Fifo {
    /// A FIFO that threads of this process push to.
    ///
    /// # Panics
    /// If there is room for none, or for more than [`FIFO_SIZE_MAX`].
    pub fn of_host(size: usize) -> Self {
        let counters = HostWords::plain(COUNTERS_BYTES);
        Self::over(size, HostWords::plain(bytes(size)), HostWords::plain(8), Pushers::Host(counters))
    }

    /// A FIFO that kernels of a device push to.
    ///
    /// # Panics
    /// As [`Self::of_host`].
    pub fn of_device(gpu: &Gpu, size: usize) -> Result<Self, CudaError> {
        let (triggers, tail) = (gpu.map_host_words(bytes(size))?, gpu.map_host_words(8)?);
        let counters = KernelWords::open(Some(*gpu), COUNTERS_BYTES)?;
        Ok(Self::over(size, triggers, tail, Pushers::Device(counters)))
    }

    fn over(size: usize, triggers: HostWords, tail: HostWords, pushers: Pushers) -> Self {
        Self { size: size as u64, triggers, tail, taken: AtomicU64::new(0), pushers }
    }

    /// The device whose kernels push to it.
    pub(crate) fn gpu(&self) -> Option<Gpu> {
        match &self.pushers {
            Pushers::Device(KernelWords::Device(memory)) => Some(memory.gpu()),
            _ => None,
        }
    }

    /// How many triggers it has room for.
    pub fn size(&self) -> usize {
        self.size as usize
    }

    /// The oldest trigger that was not popped.
    #[inline]
    pub fn poll(&self) -> Option<Trigger> {
        self.at(self.taken.load(Ordering::Relaxed))
    }

    /// Consumes the oldest trigger, and lets the pushing side know. False if there is none.
    pub fn pop(&self) -> bool {
        let is_there = self.take().is_some();
        self.publish();
        is_there
    }

    /// Consumes the oldest trigger; the pushing side hears of it by [`Self::publish`].
    #[inline]
    pub fn take(&self) -> Option<Trigger> {
        let at = self.taken.load(Ordering::Relaxed);
        let trigger = self.at(at)?;
        self.taken.store(at + 1, Ordering::Relaxed);
        Some(trigger)
    }

    /// Lets the pushing side know that all that was taken has been done.
    #[inline]
    pub fn publish(&self) {
        self.tail.word(0).store(self.taken.load(Ordering::Relaxed), Ordering::Release);
    }

    /// Pushes from the host, and says at which position. None if there is no room.
    ///
    /// # Panics
    /// If kernels push to this FIFO: their counter is not here.
    pub fn try_push(&self, trigger: Trigger) -> Option<u64> {
        let Pushers::Host(counters) = &self.pushers else {
            panic!("a FIFO that kernels push to was pushed to from the host");
        };
        let head = counters.word(HEAD);
        let mut at = head.load(Ordering::Relaxed);
        loop {
            // A position is taken only when there is room for it: whoever gives up waiting leaves no hole behind.
            if at >= self.size + self.tail.word(0).load(Ordering::Acquire) {
                return None;
            }
            match head.compare_exchange_weak(at, at + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => at = now,
            }
        }
        let (slot, lap) = self.place(at);
        self.triggers.word(slot).store(trigger.fst, Ordering::Relaxed);
        self.triggers.word(slot + 1).store(trigger.snd & !LAP_BIT | lap, Ordering::Release);
        Some(at)
    }

    /// Whether the trigger at this position was popped.
    #[inline]
    pub fn is_popped(&self, at: u64) -> bool {
        self.tail.word(0).load(Ordering::Acquire) > at
    }

    /// What kernels push with; they look at this abort page.
    pub fn device_handle(&self, abort_page: u64) -> FifoHandle {
        let counters = match &self.pushers {
            Pushers::Host(words) => words.device_address(),
            Pushers::Device(words) => words.address(),
        };
        FifoHandle {
            triggers: self.triggers.device_address(),
            head: counters + 8 * HEAD as u64,
            tail: self.tail.device_address(),
            tail_cache: counters + 8 * TAIL_CACHE as u64,
            abort_page,
            size: (self.size as i32).into(),
        }
    }

    fn at(&self, position: u64) -> Option<Trigger> {
        let (slot, lap) = self.place(position);
        let snd = self.triggers.word(slot + 1).load(Ordering::Acquire);
        if snd & LAP_BIT != lap {
            return None;
        }
        Some(Trigger::of_words(self.triggers.word(slot).load(Ordering::Relaxed), snd))
    }

    /// Where the trigger at a position lies, and its lap bit.
    fn place(&self, position: u64) -> (usize, u64) {
        let lap = if (position / self.size).is_multiple_of(2) { LAP_BIT } else { 0 };
        ((position % self.size) as usize * TRIGGER_WORDS, lap)
    }
}

/// The size of so many slots.
fn bytes(size: usize) -> usize {
    assert!((1..=FIFO_SIZE_MAX).contains(&size), "a FIFO has room for 1 to {FIFO_SIZE_MAX} triggers");
    size * TRIGGER_WORDS * 8
}

impl core::fmt::Debug for Fifo {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let taken = self.taken.load(Ordering::Relaxed);
        out.debug_struct("Fifo").field("size", &self.size).field("taken", &taken).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    const LONG: Duration = Duration::from_secs(60);
    /// Set in the tail that kernels have seen while one of them reads a new one.
    const READ_BIT: u64 = 1 << 63;

    fn trigger(number: u64) -> Trigger {
        // The lap bit of what is pushed does not matter, and a word of zeros is a trigger, too.
        Trigger { fst: number, snd: if number.is_multiple_of(3) { 0 } else { number | LAP_BIT } }
    }

    /// What a kernel does: it takes a position first, then waits for room. One of those that do reads the tail for all.
    fn push_as_kernels_do(fifo: &Fifo, trigger: Trigger) -> u64 {
        let Pushers::Host(counters) = &fifo.pushers else { unreachable!() };
        let at = counters.word(HEAD).fetch_add(1, Ordering::Relaxed);
        let until = Instant::now() + LONG;
        let seen = counters.word(TAIL_CACHE);
        loop {
            let before = seen.load(Ordering::Acquire);
            if at < fifo.size + (before & !READ_BIT) {
                break;
            }
            let reads = before & READ_BIT == 0
                && seen
                    .compare_exchange(before, before | READ_BIT, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok();
            if reads {
                seen.store(fifo.tail.word(0).load(Ordering::Acquire), Ordering::Release);
            }
            assert!(Instant::now() < until, "no room");
            std::thread::yield_now();
        }
        let (slot, lap) = fifo.place(at);
        fifo.triggers.word(slot).store(trigger.fst, Ordering::Relaxed);
        fifo.triggers.word(slot + 1).store(trigger.snd & !LAP_BIT | lap, Ordering::Release);
        at
    }

    fn take_in_time(fifo: &Fifo) -> Trigger {
        let until = Instant::now() + LONG;
        loop {
            if let Some(trigger) = fifo.take() {
                return trigger;
            }
            assert!(Instant::now() < until, "nothing came");
            std::thread::yield_now();
        }
    }

    #[test]
    fn triggers_come_out_in_order_over_many_laps_for_any_size() {
        for size in [1, 2, 3, 7, 64] {
            let fifo = Fifo::of_host(size);
            let (mut pushed, mut popped) = (0, 0);
            for round in 0..5 * size as u64 {
                for _ in 0..=round % size as u64 {
                    assert_eq!(fifo.try_push(trigger(pushed)), Some(pushed));
                    pushed += 1;
                }
                while let Some(next) = fifo.poll() {
                    assert_eq!(next, Trigger::of_words(trigger(popped).fst, trigger(popped).snd));
                    assert_eq!(fifo.poll(), Some(next), "polling consumes nothing");
                    assert!(fifo.pop());
                    popped += 1;
                }
                assert_eq!(popped, pushed);
            }
            assert!(!fifo.pop());
        }
    }

    #[test]
    fn a_full_fifo_takes_nothing_until_one_is_popped() {
        let fifo = Fifo::of_host(3);
        for number in 0..3 {
            assert!(fifo.try_push(trigger(number)).is_some());
        }
        assert_eq!(fifo.try_push(trigger(3)), None);
        assert!(fifo.take().is_some());
        assert_eq!(fifo.try_push(trigger(3)), None, "what was taken is not done yet");
        fifo.publish();
        assert_eq!(fifo.try_push(trigger(3)), Some(3));
    }

    #[test]
    fn a_position_is_passed_when_its_trigger_was_popped() {
        let fifo = Fifo::of_host(4);
        let (first, second) = (fifo.try_push(trigger(1)).unwrap(), fifo.try_push(trigger(2)).unwrap());
        assert!(!fifo.is_popped(first));
        assert!(fifo.take().is_some() && fifo.take().is_some());
        assert!(!fifo.is_popped(first), "the tail is published, not guessed");
        fifo.publish();
        assert!(fifo.is_popped(first) && fifo.is_popped(second));
        assert!(!fifo.is_popped(2));
    }

    #[test]
    fn nothing_is_lost_or_doubled_when_many_push_at_once() {
        const EACH: u64 = 20_000;
        const PUSHERS: u64 = 4;
        for size in [1, 5, 128] {
            let fifo = Fifo::of_host(size);
            let mut next = [0; PUSHERS as usize];
            std::thread::scope(|scope| {
                for pusher in 0..PUSHERS {
                    let fifo = &fifo;
                    scope.spawn(move || {
                        for number in 0..EACH {
                            let trigger = Trigger { fst: pusher, snd: number };
                            push_as_kernels_do(fifo, trigger);
                        }
                    });
                }
                for count in 0..EACH * PUSHERS {
                    let trigger = take_in_time(&fifo);
                    let expected = &mut next[trigger.fst as usize];
                    assert_eq!(trigger.snd, *expected, "each pusher's own come in its order");
                    *expected += 1;
                    // Several may be done before the pushing side hears of it, but not all that there is room for.
                    if size == 1 || count % (size as u64 / 2).max(1) == 0 {
                        fifo.publish();
                    }
                }
            });
            assert_eq!(next, [EACH; PUSHERS as usize]);
            assert_eq!(fifo.take(), None);
        }
    }

    #[test]
    fn threads_of_the_host_push_at_once_and_wait_for_their_own() {
        const EACH: u64 = 5_000;
        let fifo = Fifo::of_host(8);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for number in 0..EACH {
                        let until = Instant::now() + LONG;
                        let at = loop {
                            match fifo.try_push(trigger(number)) {
                                Some(at) => break at,
                                None => std::thread::yield_now(),
                            }
                            assert!(Instant::now() < until);
                        };
                        while !fifo.is_popped(at) {
                            assert!(Instant::now() < until);
                            std::thread::yield_now();
                        }
                    }
                });
            }
            for _ in 0..3 * EACH {
                take_in_time(&fifo);
                fifo.publish();
            }
        });
        assert_eq!(fifo.poll(), None);
    }

    #[test]
    #[should_panic(expected = "1 to")]
    fn a_fifo_without_room_is_refused() {
        let _ = Fifo::of_host(0);
    }
}
