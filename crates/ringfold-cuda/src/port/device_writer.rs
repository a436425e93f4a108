//! Writes data received over TCP to device memory, staged through page-locked memory.

use crate::release_queue::release_soon;
use crate::{CudaError, DeviceMemory, Event, Gpu, HostWords, Stream};
use core::sync::atomic::{AtomicU64, Ordering};
use parking_lot::Mutex;
use ringfold_fabric::channel::Sink;
use ringfold_fabric::limits::CHANNEL_FRAME_BYTES_MAX;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most frames in flight to the device, their size, and the timeout of a copy.
const SLOTS: usize = 16;
const SLOT_BYTES: usize = CHANNEL_FRAME_BYTES_MAX;
const COPY_MAX: Duration = Duration::from_secs(10);

/// Writes to all memory of one device that a port has registered.
pub(super) struct DeviceWriter {
    number: u64,
    stream: Stream,
    slots: Mutex<StagingSlots>,
}

/// Page-locked memory, allocated at the start: locking pages later might wait for a spinning kernel.
struct StagingSlots {
    words: HostWords,
    /// Completes when the slot may be overwritten.
    copied: Vec<Event>,
    next: usize,
}

/// Registered device memory as a sink of received data.
pub(super) struct DeviceSink {
    device_writer: Arc<DeviceWriter>,
    memory: DeviceMemory,
}

impl DeviceWriter {
    pub(super) fn open(gpu: Gpu) -> Result<Self, CudaError> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let words = gpu.map_host_words(SLOTS * SLOT_BYTES)?;
        let copied = (0..SLOTS).map(|_| gpu.create_event()).collect::<Result<_, _>>()?;
        let slots = Mutex::new(StagingSlots { words, copied, next: 0 });
        Ok(Self { number, stream: gpu.create_stream()?, slots })
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), CudaError> {
        let mut slots = self.slots.lock();
        for (piece, at) in bytes.chunks(SLOT_BYTES).zip((0..).step_by(SLOT_BYTES)) {
            slots.next = (slots.next + 1) % SLOTS;
            let (slot, copied) = (slots.next * SLOT_BYTES, &slots.copied[slots.next]);
            copied.wait_until(Instant::now() + COPY_MAX)?;
            // SAFETY: the slot has so many bytes, and the device is done with them. The copy ends before the slot is
            // overwritten or freed: the drop waits for the stream. The caller holds the target.
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
        self.stream.synchronize(Instant::now() + COPY_MAX)
    }
}

impl Drop for DeviceWriter {
    fn drop(&mut self) {
        if self.settle().is_err() {
            // The device may still read them.
            core::mem::forget(self.slots.lock().words.clone());
        }
    }
}

impl DeviceSink {
    pub(super) fn new(device_writer: Arc<DeviceWriter>, memory: DeviceMemory) -> Self {
        Self { device_writer, memory }
    }

    fn address(&self, offset: usize) -> u64 {
        self.memory.address() + offset as u64
    }
}

impl Sink for DeviceSink {
    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), String> {
        self.device_writer.write(self.address(offset), bytes).map_err(|error| error.to_string())
    }

    fn set_word(&self, offset: usize, value: u64) -> Result<(), String> {
        // SAFETY: the caller has checked that the word is within the memory, which is held until the stream is done.
        unsafe { self.device_writer.stream.write_word(self.address(offset), value) }
            .map_err(|error| error.to_string())
    }

    fn settle(&self) -> Result<(), String> {
        self.device_writer.settle().map_err(|error| error.to_string())
    }

    fn stream(&self) -> u64 {
        self.device_writer.number
    }
}

impl Drop for DeviceSink {
    /// Releases the memory when no copy is in flight, on another thread: this one may serve the sockets.
    fn drop(&mut self) {
        let (device_writer, memory) = (self.device_writer.clone(), self.memory.clone());
        release_soon(move || {
            if device_writer.settle().is_err() {
                core::mem::forget(memory);
            }
        });
    }
}
