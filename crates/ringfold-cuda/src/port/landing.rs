//! Where memory of a device is written from what comes over TCP: through page-locked memory, by a stream of ours.

use crate::{CudaError, DeviceMemory, Event, Gpu, HostWords, Stream};
use core::sync::atomic::{AtomicU64, Ordering};
use parking_lot::Mutex;
use ringfold_fabric::channel::Sink;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Frames that may be on their way to the device at once.
const SLOTS: usize = 16;

/// How long the device may take for one of them.
const SLOT_MAX: Duration = Duration::from_secs(10);

/// What all memory of one device that a port has registered is written through.
pub(super) struct Landing {
    number: u64,
    stream: Stream,
    gpu: Gpu,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    slots: Vec<Slot>,
    next: usize,
}

/// Page-locked memory, and what is reached when it may be written again.
struct Slot {
    words: HostWords,
    copied: Event,
}

/// Memory of a device as the fabric writes it.
pub(super) struct Target {
    landing: Arc<Landing>,
    memory: DeviceMemory,
}

impl Landing {
    pub(super) fn open(gpu: Gpu) -> Result<Self, CudaError> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Ok(Self { number, stream: Stream::create(&gpu)?, gpu, slots: Mutex::default() })
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), CudaError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut slots = self.slots.lock();
        let index = slots.next % SLOTS;
        slots.next = slots.next.wrapping_add(1);
        if slots.slots.len() <= index {
            let slot = self.slot(bytes.len())?;
            slots.slots.push(slot);
        }
        let slot = &mut slots.slots[index];
        slot.copied.wait_until(Instant::now() + SLOT_MAX)?;
        if slot.words.len() < bytes.len() {
            *slot = self.slot(bytes.len())?;
        }
        // SAFETY: the slot has so many bytes, and the device is done with them. The copy of what is there ends before the
        // slot is written again, or freed: its owner waits for the stream. The target is held by who asks.
        unsafe {
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), slot.words.start(), bytes.len());
            self.stream.copy(address, slot.words.device_address(), bytes.len())?;
        }
        self.stream.record(&slot.copied)
    }

    fn slot(&self, bytes: usize) -> Result<Slot, CudaError> {
        Ok(Slot {
            words: HostWords::mapped(&self.gpu, bytes.next_power_of_two())?,
            copied: Event::create(&self.gpu)?,
        })
    }

    fn settle(&self) -> Result<(), CudaError> {
        self.stream.synchronize(Instant::now() + SLOT_MAX)
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if self.settle().is_err() {
            // The device may still read them.
            core::mem::forget(core::mem::take(&mut *self.slots.lock()));
        }
    }
}

impl Target {
    pub(super) fn new(landing: Arc<Landing>, memory: DeviceMemory) -> Self {
        Self { landing, memory }
    }

    fn address(&self, offset: usize) -> u64 {
        self.memory.address() + offset as u64
    }
}

impl Sink for Target {
    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), String> {
        self.landing.write(self.address(offset), bytes).map_err(|error| error.to_string())
    }

    fn set_word(&self, offset: usize, value: u64) -> Result<(), String> {
        // SAFETY: whoever asks has looked that it is within the memory, which is held until the stream is done.
        unsafe { self.landing.stream.write_word(self.address(offset), value) }
            .map_err(|error| error.to_string())
    }

    fn settle(&self) -> Result<(), String> {
        self.landing.settle().map_err(|error| error.to_string())
    }

    fn stream(&self) -> u64 {
        self.landing.number
    }
}

impl Drop for Target {
    /// The memory is let go of when nothing is on its way to it.
    fn drop(&mut self) {
        if self.landing.settle().is_err() {
            core::mem::forget(self.memory.clone());
        }
    }
}
