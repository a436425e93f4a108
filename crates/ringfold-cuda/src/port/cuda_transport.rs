//! Writes by a CUDA stream, which orders them, to memory of this process or of another one.

use super::error::PortError;
use super::registered_memory::{LocalAddress, MemoryAt, Registered, RegisteredMemory};
use crate::limits::STAGED_PIECE_BYTES;
use crate::release_queue::release_soon;
use crate::stream::Put;
use crate::{CudaError, Gpu, HostWords, Stream};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Timeout for queued writes after the connection is dropped.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// How often a flush checks whether the connection has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// How long a write may be queued on a stream without other writes. A copy of a GiB takes a millisecond, or 50 through
/// the host.
const STALLED_AFTER: Duration = Duration::from_millis(300);

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
    /// Where puts within a device pass the host, if they do.
    staging: Option<HostWords>,
    held: Mutex<Vec<Arc<Registered>>>,
    /// The number of writes so far.
    writes: AtomicU64,
    /// Since when the last write was seen to be queued, and its number.
    queued: Mutex<Option<(Instant, u64)>>,
}

/// How puts from device memory to device memory are done.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum PutPath {
    /// By the device. Within one device its multiprocessors copy, so a put waits while kernels occupy all of them.
    #[default]
    Direct,
    /// Through page-locked host memory, by the copy engines: slower, but it needs no multiprocessor.
    ThroughHost,
}

impl CudaTransport {
    pub(super) fn open(gpu: &Gpu, path: PutPath) -> Result<Self, CudaError> {
        let stream = gpu.create_stream()?;
        // Allocated and loaded now: later, that might wait for a kernel that waits for a put.
        let staging = match path {
            PutPath::Direct => {
                stream.prepare_puts();
                None
            }
            PutPath::ThroughHost => Some(gpu.map_host_words(STAGED_PIECE_BYTES)?),
        };
        let (held, writes, queued) = (Mutex::default(), AtomicU64::new(0), Mutex::default());
        Ok(Self { work: Some(StreamWork { stream, staging, held, writes, queued }) })
    }

    pub(super) fn gpu(&self) -> Result<Gpu, CudaError> {
        self.work.as_ref().map_or_else(Gpu::current, |work| Gpu::open(work.stream.context.ordinal))
    }

    /// Writes bytes, then a word if there is one, with its value.
    pub(super) fn write(
        &self,
        dst: MemoryAt<'_>,
        src: MemoryAt<'_>,
        bytes: u64,
        word: Option<(MemoryAt<'_>, u64)>,
    ) -> Result<(), PortError> {
        let work = self.work()?;
        let (to, from) = (dst.0.local_address(dst.1)?, src.0.local_address(src.1)?);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let word_address =
            word.map(|(at, value)| Ok::<_, PortError>((word_address(at)?, value))).transpose()?;
        let mut held = work.held.lock();
        hold(&mut held, work, &[dst.0, src.0, word.map_or(dst.0, |((memory, _), _)| memory)]);
        // SAFETY: ranges and word are in bounds, as the caller has checked, and are held until the stream is done.
        // Ordering other accesses is up to the user.
        unsafe { work.put((to, from), bytes, word_address) }?;
        work.writes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn update(&self, dst: &RegisteredMemory, offset: u64, value: u64) -> Result<(), PortError> {
        let work = self.work()?;
        let word = word_address((dst, offset))?;
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

    /// Whether the last write has been queued for so long, over several calls, that it seems unable to start.
    pub(super) fn is_stalled(&self) -> bool {
        let Some(work) = &self.work else { return false };
        let last = work.writes.load(Ordering::Relaxed);
        let mut queued = work.queued.lock();
        if work.stream.is_idle().unwrap_or(true) {
            *queued = None;
            return false;
        }
        let (since, write) = queued.get_or_insert((Instant::now(), last));
        if *write != last {
            (*since, *write) = (Instant::now(), last);
        }
        since.elapsed() > STALLED_AFTER
    }

    fn work(&self) -> Result<&StreamWork, PortError> {
        self.work.as_ref().ok_or_else(|| PortError::Aborted("the connection is closed".into()))
    }
}

impl StreamWork {
    /// Queues a copy, then the store of a word if there is one.
    ///
    /// # Safety
    /// As for [`Stream::copy`] and [`Stream::write_word`].
    unsafe fn put(
        &self,
        (to, from): (LocalAddress, LocalAddress),
        bytes: usize,
        word: Option<(u64, u64)>,
    ) -> Result<(), CudaError> {
        let device = Some(self.stream.context.ordinal);
        let is_within = |place: &LocalAddress| place.ordinal() == device;
        // SAFETY: the caller's promise. The staging memory lives as long as the stream, whose order keeps a piece until
        // it was copied.
        unsafe {
            match &self.staging {
                None if is_within(&to) && is_within(&from) => {
                    return self.stream.put(&Put { to: to.address(), from: from.address(), bytes, word });
                }
                Some(staging) if to.ordinal().is_some() && from.ordinal().is_some() => {
                    for at in (0..bytes).step_by(staging.len()) {
                        let piece = staging.len().min(bytes - at);
                        self.stream.copy(staging.device_address(), from.address() + at as u64, piece)?;
                        self.stream.copy(to.address() + at as u64, staging.device_address(), piece)?;
                    }
                }
                _ => self.stream.copy(to.address(), from.address(), bytes)?,
            }
            word.map_or(Ok(()), |(word, value)| self.stream.write_word(word, value))
        }
    }

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

/// Holds memories until the stream is done with them.
fn hold(held: &mut Vec<Arc<Registered>>, work: &StreamWork, memories: &[&RegisteredMemory]) {
    let is_held = |held: &[Arc<Registered>], memory: &RegisteredMemory| {
        held.iter().any(|held| Arc::ptr_eq(held, &memory.inner))
    };
    if memories.iter().all(|memory| is_held(held, memory)) {
        return;
    }
    if held.len() >= HELD_MAX && work.stream.is_idle().unwrap_or(false) {
        // Freeing memory may wait for kernels, which may wait for this thread.
        let unused = core::mem::take(held);
        release_soon(move || drop(unused));
    }
    for memory in memories {
        if !is_held(held, memory) {
            held.push(memory.inner.clone());
        }
    }
}

/// The address of a word that a stream sets.
fn word_address((memory, offset): MemoryAt<'_>) -> Result<u64, PortError> {
    match memory.local_address(offset)? {
        LocalAddress::Device(_, word) => Ok(word),
        LocalAddress::Host(_) => Err(PortError::Unsupported(
            "unsupported update of a host memory word over CUDA IPC: register device memory".into(),
        )),
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
