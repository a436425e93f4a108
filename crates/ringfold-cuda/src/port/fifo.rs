//! A queue of triggers from many producers to one proxy.
//!
//! The number of slots is a power of two, at least the FIFO's size, so that kernels need no division. Slots are never
//! cleared. The lap bit of a trigger is one in even laps, beginning with the first, and zero in odd
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

const TRIGGER_WORDS: usize = 2;

/// Word indices of the producers' counters, each on its own cache line.
const HEAD: usize = 0;
const TAIL_CACHE: usize = 8;
const COUNTERS_BYTES: usize = 128;

/// A queue of triggers with one consumer and any number of producers.
pub struct Fifo {
    size: u64,
    /// The number of slots is two to this power.
    slot_bits: u32,
    triggers: HostWords,
    /// The number of popped triggers, read by producers.
    tail: HostWords,
    /// The number of triggers taken; only the consumer changes it.
    taken: AtomicU64,
    producers: ProducerCounters,
}

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
        let slot_bits = slots(size).trailing_zeros();
        Self { size: size as u64, slot_bits, triggers, tail, taken: AtomicU64::new(0), producers }
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
            size: self.size as i32,
            slot_bits: self.slot_bits,
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
        let lap = position >> self.slot_bits;
        let slot = position - (lap << self.slot_bits);
        (slot as usize * TRIGGER_WORDS, if lap.is_multiple_of(2) { LAP_BIT } else { 0 })
    }
}

/// The number of slots of a FIFO of this size.
fn slots(size: usize) -> usize {
    size.next_power_of_two()
}

fn bytes(size: usize) -> usize {
    assert!((1..=FIFO_SIZE_MAX).contains(&size), "invalid FIFO size {size}: must be 1..={FIFO_SIZE_MAX}");
    slots(size) * TRIGGER_WORDS * 8
}

debug_as!(Fifo, self => "Fifo(size {}, {} taken)", self.size, self.taken.load(Ordering::Relaxed));

#[cfg(test)]
mod tests;
