//! A queue of triggers from many producers to one proxy.
//!
//! Slots are never cleared. The lap bit of a trigger is one in even laps, beginning with the first, and zero in odd
//! ones. So the consumer needs no counter of the producers, which may be in device memory. Producers read the number of
//! popped triggers only when the queue seems full.
//!
//! A trigger is two words. A kernel writes both by one store; the host writes the word with the lap bit last, and the
//! consumer reads it first, so it sees the other word as well. A slot is not overwritten before it is popped.

use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::host_words::HostWords;
use crate::port::device_handle::FifoHandle;
use crate::port::kernel_words::KernelWords;
use crate::port::trigger::{LAP_BIT, Trigger};
use core::sync::atomic::{AtomicU64, Ordering};

/// The largest size of a FIFO, in triggers.
pub const FIFO_SIZE_MAX: usize = 1 << 20;

/// Words of a trigger.
const TRIGGER_WORDS: usize = 2;

/// Word indices of the producers' counters, each on its own cache line.
const HEAD: usize = 0;
const TAIL_CACHE: usize = 8;
const COUNTERS_BYTES: usize = 128;

/// A queue of triggers with one consumer and any number of producers.
pub struct Fifo {
    size: u64,
    triggers: HostWords,
    /// The number of popped triggers, read by producers.
    tail: HostWords,
    /// The number of triggers taken; only the consumer changes it.
    taken: AtomicU64,
    producers: ProducerCounters,
}

/// The producers' counters.
enum ProducerCounters {
    /// Threads of this process.
    Host(HostWords),
    /// Kernels.
    Device(KernelWords),
}

impl Fifo {
    /// Creates a FIFO for producers on the host.
    ///
    /// # Panics
    /// If `size` is not in 1..=[`FIFO_SIZE_MAX`].
    pub fn of_host(size: usize) -> Self {
        let counters = HostWords::plain(COUNTERS_BYTES);
        Self::from_parts(
            size,
            HostWords::plain(bytes(size)),
            HostWords::plain(8),
            ProducerCounters::Host(counters),
        )
    }

    /// Creates a FIFO for kernels of a device.
    ///
    /// # Panics
    /// As [`Self::of_host`].
    pub fn of_device(gpu: &Gpu, size: usize) -> Result<Self, CudaError> {
        let (triggers, tail) = (gpu.map_host_words(bytes(size))?, gpu.map_host_words(8)?);
        let counters = KernelWords::open(Some(*gpu), COUNTERS_BYTES)?;
        Ok(Self::from_parts(size, triggers, tail, ProducerCounters::Device(counters)))
    }

    fn from_parts(size: usize, triggers: HostWords, tail: HostWords, producers: ProducerCounters) -> Self {
        Self { size: size as u64, triggers, tail, taken: AtomicU64::new(0), producers }
    }

    /// The device whose kernels are the producers.
    pub(crate) fn gpu(&self) -> Option<Gpu> {
        match &self.producers {
            ProducerCounters::Device(KernelWords::Device(memory)) => Some(memory.gpu()),
            _ => None,
        }
    }

    /// The size in triggers.
    pub fn size(&self) -> usize {
        self.size as usize
    }

    /// The oldest trigger, without consuming it.
    #[inline]
    pub fn poll(&self) -> Option<Trigger> {
        self.at(self.taken.load(Ordering::Relaxed))
    }

    /// Consumes the oldest trigger and publishes that. False if there is none.
    pub fn pop(&self) -> bool {
        let is_there = self.take().is_some();
        self.publish();
        is_there
    }

    /// Consumes the oldest trigger; producers see that after [`Self::publish`].
    #[inline]
    pub fn take(&self) -> Option<Trigger> {
        let at = self.taken.load(Ordering::Relaxed);
        let trigger = self.at(at)?;
        self.taken.store(at + 1, Ordering::Relaxed);
        Some(trigger)
    }

    /// Publishes to the producers that all taken triggers are executed.
    #[inline]
    pub fn publish(&self) {
        self.tail.word(0).store(self.taken.load(Ordering::Relaxed), Ordering::Release);
    }

    /// Pushes a trigger from the host, and returns its position. None if the FIFO is full.
    ///
    /// # Panics
    /// If this is a FIFO for kernels, whose counters are in device memory.
    pub fn try_push(&self, trigger: Trigger) -> Option<u64> {
        let ProducerCounters::Host(counters) = &self.producers else {
            panic!("push from the host to a FIFO for kernels");
        };
        let head = counters.word(HEAD);
        let mut at = head.load(Ordering::Relaxed);
        loop {
            // A position is taken only if there is room, so that a producer that times out leaves no gap.
            if at >= self.size + self.tail.word(0).load(Ordering::Acquire) {
                return None;
            }
            match head.compare_exchange_weak(at, at + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => at = now,
            }
        }
        let (slot, lap) = self.slot_of(at);
        self.triggers.word(slot).store(trigger.fst, Ordering::Relaxed);
        self.triggers.word(slot + 1).store(trigger.snd & !LAP_BIT | lap, Ordering::Release);
        Some(at)
    }

    /// Whether the trigger at this position was popped.
    #[inline]
    pub fn is_popped(&self, at: u64) -> bool {
        self.tail.word(0).load(Ordering::Acquire) > at
    }

    /// The handle for kernels, with this abort page.
    pub fn device_handle(&self, abort_page: u64) -> FifoHandle {
        let counters = match &self.producers {
            ProducerCounters::Host(words) => words.device_address(),
            ProducerCounters::Device(words) => words.address(),
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
        let (slot, lap) = self.slot_of(position);
        let snd = self.triggers.word(slot + 1).load(Ordering::Acquire);
        if snd & LAP_BIT != lap {
            return None;
        }
        Some(Trigger::of_words(self.triggers.word(slot).load(Ordering::Relaxed), snd))
    }

    /// Where the trigger at a position lies, and its lap bit.
    fn slot_of(&self, position: u64) -> (usize, u64) {
        let lap = if (position / self.size).is_multiple_of(2) { LAP_BIT } else { 0 };
        ((position % self.size) as usize * TRIGGER_WORDS, lap)
    }
}

/// The bytes of `size` slots.
fn bytes(size: usize) -> usize {
    assert!((1..=FIFO_SIZE_MAX).contains(&size), "invalid FIFO size {size}: must be 1..={FIFO_SIZE_MAX}");
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
    /// Set in the cached tail while a kernel reads the tail.
    const READ_BIT: u64 = 1 << 63;

    fn trigger(number: u64) -> Trigger {
        // The lap bit of a pushed trigger is ignored, and a word of zeros is valid.
        Trigger { fst: number, snd: if number.is_multiple_of(3) { 0 } else { number | LAP_BIT } }
    }

    /// Pushes like a kernel: takes a position, then waits for room. One of the waiting threads reads the tail for all.
    fn push_like_a_kernel(fifo: &Fifo, trigger: Trigger) -> u64 {
        let ProducerCounters::Host(counters) = &fifo.producers else { unreachable!() };
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
        let (slot, lap) = fifo.slot_of(at);
        fifo.triggers.word(slot).store(trigger.fst, Ordering::Relaxed);
        fifo.triggers.word(slot + 1).store(trigger.snd & !LAP_BIT | lap, Ordering::Release);
        at
    }

    fn take_with_timeout(fifo: &Fifo) -> Trigger {
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
    fn triggers_are_popped_in_order_over_many_laps() {
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
    fn a_full_fifo_accepts_nothing_until_one_is_popped() {
        let fifo = Fifo::of_host(3);
        for number in 0..3 {
            assert!(fifo.try_push(trigger(number)).is_some());
        }
        assert_eq!(fifo.try_push(trigger(3)), None);
        assert!(fifo.take().is_some());
        assert_eq!(fifo.try_push(trigger(3)), None, "the taken trigger is not published");
        fifo.publish();
        assert_eq!(fifo.try_push(trigger(3)), Some(3));
    }

    #[test]
    fn a_position_is_popped_when_published() {
        let fifo = Fifo::of_host(4);
        let (first, second) = (fifo.try_push(trigger(1)).unwrap(), fifo.try_push(trigger(2)).unwrap());
        assert!(!fifo.is_popped(first));
        assert!(fifo.take().is_some() && fifo.take().is_some());
        assert!(!fifo.is_popped(first), "the tail is not published");
        fifo.publish();
        assert!(fifo.is_popped(first) && fifo.is_popped(second));
        assert!(!fifo.is_popped(2));
    }

    #[test]
    fn concurrent_pushes_are_neither_lost_nor_duplicated() {
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
                            push_like_a_kernel(fifo, trigger);
                        }
                    });
                }
                for count in 0..EACH * PUSHERS {
                    let trigger = take_with_timeout(&fifo);
                    let expected = &mut next[trigger.fst as usize];
                    assert_eq!(trigger.snd, *expected, "each producer's triggers are in order");
                    *expected += 1;
                    // Publish before all slots are taken.
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
    fn host_threads_push_concurrently_and_wait_for_their_own_triggers() {
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
                take_with_timeout(&fifo);
                fifo.publish();
            }
        });
        assert_eq!(fifo.poll(), None);
    }

    #[test]
    #[should_panic(expected = "invalid FIFO size 0")]
    fn an_empty_fifo_is_rejected() {
        let _ = Fifo::of_host(0);
    }
}
