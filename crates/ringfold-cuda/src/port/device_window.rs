//! How the host looks at words in the memory of a device: by small copies on a stream of their own.

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

/// How long a look may take.
const LOOK_MAX: Duration = Duration::from_secs(30);

/// What the words of one device are looked at with.
pub(crate) struct DeviceWindow {
    inner: Mutex<Inner>,
}

struct Inner {
    stream: Stream,
    words: HostWords,
}

/// One for each device, for the life of the process.
static WINDOWS: LazyLock<Mutex<HashMap<i32, Arc<DeviceWindow>>>> = LazyLock::new(Mutex::default);

impl DeviceWindow {
    /// That of a device.
    pub(crate) fn of(gpu: &Gpu) -> Result<Arc<Self>, CudaError> {
        let mut windows = WINDOWS.lock();
        if let Some(window) = windows.get(&gpu.ordinal()) {
            return Ok(window.clone());
        }
        let inner = Inner { stream: gpu.create_stream()?, words: gpu.map_host_words(8)? };
        let window = Arc::new(Self { inner: Mutex::new(inner) });
        windows.insert(gpu.ordinal(), window.clone());
        Ok(window)
    }

    /// The first word of some memory of the device.
    ///
    /// # Panics
    /// If it has none.
    pub(crate) fn look(&self, memory: &GpuMemory) -> Result<u64, CudaError> {
        assert!(memory.len() >= 8, "there is no word in {} bytes", memory.len());
        let inner = self.inner.lock();
        // SAFETY: the word is within the memory, which is held while this waits; a copy that does not end in time is of a
        // stream that is broken. One aligned word is copied as a whole.
        unsafe { inner.stream.copy(inner.words.device_address(), memory.address(), 8) }?;
        inner.stream.synchronize(Instant::now() + LOOK_MAX)?;
        Ok(inner.words.word(0).load(Ordering::Acquire))
    }
}
