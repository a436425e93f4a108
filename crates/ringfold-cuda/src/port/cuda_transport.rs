//! Writes by a CUDA stream, which orders them, to memory of this process or of another one.

use super::error::PortError;
use super::registered_memory::{LocalAddress, MemoryAt, Registered, RegisteredMemory};
use crate::release_queue::release_soon;
use crate::{CudaError, Gpu, Stream};
use core::sync::atomic::{AtomicUsize, Ordering};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Timeout for queued writes after the connection is dropped.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// How often a flush checks whether the connection has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The number of held memories above which unused ones are released.
const HELD_MAX: usize = 64;

/// Dropped connections whose streams have queued writes.
static DRAINING: AtomicUsize = AtomicUsize::new(0);

/// Whether writes of dropped connections are still in flight.
pub(super) fn is_draining() -> bool {
    DRAINING.load(Ordering::SeqCst) > 0
}

pub(super) struct CudaTransport {
    /// None only while it is dropped.
    work: Option<StreamWork>,
}

struct StreamWork {
    stream: Stream,
    held: Mutex<Vec<Arc<Registered>>>,
}

impl CudaTransport {
    pub(super) fn open(gpu: &Gpu) -> Result<Self, CudaError> {
        Ok(Self { work: Some(StreamWork { stream: gpu.create_stream()?, held: Mutex::default() }) })
    }

    pub(super) fn gpu(&self) -> Result<Gpu, CudaError> {
        self.work.as_ref().map_or_else(Gpu::current, |work| Gpu::open(work.stream.context.ordinal))
    }

    pub(super) fn write(&self, dst: MemoryAt<'_>, src: MemoryAt<'_>, bytes: u64) -> Result<(), PortError> {
        let work = self.work()?;
        let (to, from) = (dst.0.local_address(dst.1)?, src.0.local_address(src.1)?);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut held = work.held.lock();
        hold(&mut held, work, &[dst.0, src.0]);
        // SAFETY: both ranges are in bounds, as the caller has checked, and are held until the stream is done. Ordering
        // other accesses is up to the user.
        let copied = unsafe {
            match (to, from) {
                (LocalAddress::Device(_, to), LocalAddress::Device(_, from)) => {
                    work.stream.copy_within(to, from, bytes)
                }
                (to, from) => work.stream.copy(address(to), address(from), bytes),
            }
        };
        Ok(copied?)
    }

    pub(super) fn update(&self, dst: &RegisteredMemory, offset: u64, value: u64) -> Result<(), PortError> {
        let work = self.work()?;
        let LocalAddress::Device(_, word) = dst.local_address(offset)? else {
            return Err(PortError::Unsupported(
                "unsupported update of a host memory word over CUDA IPC: register device memory".into(),
            ));
        };
        let mut held = work.held.lock();
        hold(&mut held, work, &[dst]);
        // SAFETY: the word is in bounds, as the caller has checked, and the memory is held until the stream is done.
        Ok(unsafe { work.stream.write_word(word, value) }?)
    }

    /// Waits until the stream is done or `check` fails.
    pub(super) fn flush(
        &self,
        deadline: Instant,
        check: impl Fn() -> Result<(), PortError>,
    ) -> Result<(), PortError> {
        let work = self.work()?;
        loop {
            match work.stream.synchronize(deadline.min(Instant::now() + CHECK_INTERVAL)) {
                Err(CudaError::TimedOut { .. }) if Instant::now() < deadline => check()?,
                Ok(()) => {
                    work.release_unused();
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.work.as_ref().is_none_or(|work| work.stream.is_idle().unwrap_or(true))
    }

    fn work(&self) -> Result<&StreamWork, PortError> {
        self.work.as_ref().ok_or_else(|| PortError::Aborted("the connection is closed".into()))
    }
}

impl StreamWork {
    /// Releases memory that has no other reference, if the stream is done with it.
    fn release_unused(&self) {
        let mut held = self.held.lock();
        let is_unused = |memory: &Arc<Registered>| Arc::strong_count(memory) == 1;
        if !held.iter().any(is_unused) || !self.stream.is_idle().unwrap_or(false) {
            return;
        }
        let unused: Vec<_> = held.extract_if(.., |memory| is_unused(memory)).collect();
        drop(held);
        release_soon(move || drop(unused));
    }
}

/// Holds memory until the stream is done with it.
fn hold(held: &mut Vec<Arc<Registered>>, work: &StreamWork, memories: &[&RegisteredMemory]) {
    for memory in memories {
        if held.iter().any(|held| Arc::ptr_eq(held, &memory.inner)) {
            continue;
        }
        if held.len() >= HELD_MAX && work.stream.is_idle().unwrap_or(false) {
            // Freeing memory may wait for kernels, which may wait for this thread.
            let unused = core::mem::take(held);
            release_soon(move || drop(unused));
        }
        held.push(memory.inner.clone());
    }
}

fn address(place: LocalAddress) -> u64 {
    match place {
        LocalAddress::Host(start) => start.expose_provenance() as u64,
        LocalAddress::Device(_, address) => address,
    }
}

impl Drop for CudaTransport {
    /// Queued writes still complete, on a thread of their own.
    fn drop(&mut self) {
        let Some(work) = self.work.take() else { return };
        if work.stream.is_idle().unwrap_or(true) {
            return;
        }
        DRAINING.fetch_add(1, Ordering::SeqCst);
        let work = Arc::new(work);
        let of_thread = work.clone();
        let end = move || {
            if of_thread.stream.synchronize(Instant::now() + DRAIN_MAX).is_err() {
                // The device may still use the memory, so it is leaked.
                core::mem::forget(of_thread);
            }
            DRAINING.fetch_sub(1, Ordering::SeqCst);
        };
        if std::thread::Builder::new().name("ringfold-drain".into()).spawn(end).is_err() {
            core::mem::forget(work);
            DRAINING.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
