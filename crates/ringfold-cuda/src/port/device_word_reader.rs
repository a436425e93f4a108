//! Reads words of device memory from the host, by small copies on a separate stream.

use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::gpu_memory::GpuMemory;
use crate::host_words::HostWords;
use crate::stream::Stream;
use core::sync::atomic::Ordering;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

const READ_MAX: Duration = Duration::from_secs(30);

/// Reads words of one device.
pub(crate) struct DeviceWordReader {
    inner: Mutex<ReaderState>,
}

struct ReaderState {
    stream: Stream,
    words: HostWords,
}

/// The readers by device, for the life of the process.
static READERS: LazyLock<Mutex<HashMap<i32, Arc<DeviceWordReader>>>> = LazyLock::new(Mutex::default);

impl DeviceWordReader {
    /// Returns the reader of a device.
    pub(crate) fn of(gpu: &Gpu) -> Result<Arc<Self>, CudaError> {
        let mut readers = READERS.lock();
        if let Some(reader) = readers.get(&gpu.ordinal()) {
            return Ok(reader.clone());
        }
        let inner = ReaderState { stream: gpu.create_stream()?, words: gpu.map_host_words(8)? };
        let reader = Arc::new(Self { inner: Mutex::new(inner) });
        readers.insert(gpu.ordinal(), reader.clone());
        Ok(reader)
    }

    /// Reads the first word of memory of the device.
    ///
    /// # Panics
    /// If the memory is shorter than a word.
    pub(crate) fn read(&self, memory: &GpuMemory) -> Result<u64, CudaError> {
        assert!(memory.len() >= 8, "{} bytes are shorter than a word", memory.len());
        let inner = self.inner.lock();
        // SAFETY: the word is within the memory, which is held during the wait; a copy that times out belongs to a broken
        // stream. An aligned word is copied atomically.
        unsafe { inner.stream.copy(inner.words.device_address(), memory.address(), 8) }?;
        inner.stream.synchronize(Instant::now() + READ_MAX)?;
        Ok(inner.words.word(0).load(Ordering::Acquire))
    }
}
