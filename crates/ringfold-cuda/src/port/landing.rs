//! Where memory of a device is written from what comes over TCP: through page-locked memory, by a stream of ours.

use crate::cleaner::leave_to_cleaner;
use crate::{CudaError, DeviceMemory, Event, Gpu, HostWords, Stream};
use core::sync::atomic::{AtomicU64, Ordering};
use parking_lot::Mutex;
use ringfold_fabric::channel::Sink;
use ringfold_fabric::limits::CHANNEL_FRAME_BYTES_MAX;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Frames that may be on their way to the device at once.
const SLOTS: usize = 16;

/// Bytes of one of them.
const SLOT_BYTES: usize = CHANNEL_FRAME_BYTES_MAX;

/// How long the device may take for one of them.
const SLOT_MAX: Duration = Duration::from_secs(10);

/// What all memory of one device that a port has registered is written through.
pub(super) struct Landing {
    number: u64,
    stream: Stream,
    slots: Mutex<Slots>,
}

/// Page-locked memory. All of it is there from the beginning: whoever locks pages while a kernel spins may have to wait
/// for that.
struct Slots {
    words: HostWords,
    /// What is reached when the slot may be written again.
    copied: Vec<Event>,
    next: usize,
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
        let words = gpu.map_host_words(SLOTS * SLOT_BYTES)?;
        let copied = (0..SLOTS).map(|_| gpu.create_event()).collect::<Result<_, _>>()?;
        let slots = Mutex::new(Slots { words, copied, next: 0 });
        Ok(Self { number, stream: gpu.create_stream()?, slots })
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), CudaError> {
        let mut slots = self.slots.lock();
        for (piece, at) in bytes.chunks(SLOT_BYTES).zip((0..).step_by(SLOT_BYTES)) {
            slots.next = (slots.next + 1) % SLOTS;
            let (slot, copied) = (slots.next * SLOT_BYTES, &slots.copied[slots.next]);
            copied.wait_until(Instant::now() + SLOT_MAX)?;
            // SAFETY: the slot has so many bytes, and the device is done with them. The copy of what is there ends before
            // the slot is written again, or freed: its owner waits for the stream. The target is held by who asks.
            unsafe {
                core::ptr::copy_nonoverlapping(piece.as_ptr(), slots.words.start().add(slot), piece.len());
                let from = slots.words.device_address() + slot as u64;
                self.stream.copy(address + at as u64, from, piece.len())?;
            }
            self.stream.record(copied)?;
        }
        Ok(())
    }

    fn settle(&self) -> Result<(), CudaError> {
        self.stream.synchronize(Instant::now() + SLOT_MAX)
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if self.settle().is_err() {
            // The device may still read them.
            core::mem::forget(self.slots.lock().words.clone());
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
    /// The memory is let go of when nothing is on its way to it. Who drops this may be the one who moves the sockets.
    fn drop(&mut self) {
        let (landing, memory) = (self.landing.clone(), self.memory.clone());
        leave_to_cleaner(move || {
            if landing.settle().is_err() {
                core::mem::forget(memory);
            }
        });
    }
}
