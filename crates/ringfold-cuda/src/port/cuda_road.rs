//! Writes by a stream of a device, into memory of its own or of another process. The stream gives the order.

use super::error::PortError;
use super::registered_memory::{Place, Registered, RegisteredMemory};
use crate::cleaner::leave_to_cleaner;
use crate::{CudaError, Gpu, Stream};
use core::sync::atomic::{AtomicUsize, Ordering};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long what was written may take to arrive after the connection is gone.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// How often whoever waits for the stream looks whether there is still something to wait for.
const STEP: Duration = Duration::from_millis(50);

/// Memories that are held for the stream, before those are let go of that it is done with.
const HELD_MAX: usize = 64;

/// Streams of connections that are gone, whose work is not done.
static FAREWELLS: AtomicUsize = AtomicUsize::new(0);

/// Whether something is under way on connections that are gone.
pub(super) fn is_taking_leave() -> bool {
    FAREWELLS.load(Ordering::SeqCst) > 0
}

/// The way through memory of devices.
pub(super) struct CudaRoad {
    /// None only while it is dropped.
    work: Option<Work>,
}

struct Work {
    stream: Stream,
    /// What the stream may read and write.
    held: Mutex<Vec<Arc<Registered>>>,
}

impl CudaRoad {
    pub(super) fn open(gpu: &Gpu) -> Result<Self, CudaError> {
        Ok(Self { work: Some(Work { stream: gpu.create_stream()?, held: Mutex::default() }) })
    }

    /// The device whose stream it is.
    pub(super) fn gpu(&self) -> Result<Gpu, CudaError> {
        self.work.as_ref().map_or_else(Gpu::current, |work| Gpu::open(work.stream.context.ordinal))
    }

    pub(super) fn write(
        &self,
        dst: &RegisteredMemory,
        dst_offset: u64,
        src: &RegisteredMemory,
        src_offset: u64,
        bytes: u64,
    ) -> Result<(), PortError> {
        let work = self.work()?;
        let (to, from) = (dst.place(dst_offset)?, src.place(src_offset)?);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut held = work.held.lock();
        hold(&mut held, work, &[dst, src]);
        // SAFETY: both have so many bytes from there on, as the caller has checked, and are held until the stream is done.
        // What else uses them is for the user to order.
        let copied = unsafe {
            match (to, from) {
                (Place::Device(_, to), Place::Device(_, from)) => work.stream.copy_within(to, from, bytes),
                (to, from) => work.stream.copy(address(to), address(from), bytes),
            }
        };
        Ok(copied?)
    }

    pub(super) fn update(&self, dst: &RegisteredMemory, offset: u64, value: u64) -> Result<(), PortError> {
        let work = self.work()?;
        let Place::Device(_, word) = dst.place(offset)? else {
            return Err(PortError::Unsupported(
                "a word of the host's memory can't be set over CUDA IPC: register memory of a device".into(),
            ));
        };
        let mut held = work.held.lock();
        hold(&mut held, work, &[dst]);
        // SAFETY: the word is within the memory, as the caller has checked, which is held until the stream is done.
        Ok(unsafe { work.stream.write_word(word, value) }?)
    }

    /// Waits until the stream is done, or `check` finds that nothing is to be waited for.
    pub(super) fn flush(
        &self,
        deadline: Instant,
        check: impl Fn() -> Result<(), PortError>,
    ) -> Result<(), PortError> {
        let work = self.work()?;
        loop {
            match work.stream.synchronize(deadline.min(Instant::now() + STEP)) {
                Err(CudaError::Late { .. }) if Instant::now() < deadline => check()?,
                Ok(()) => {
                    work.let_go();
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.work.as_ref().is_none_or(|work| work.stream.is_idle().unwrap_or(true))
    }

    fn work(&self) -> Result<&Work, PortError> {
        self.work.as_ref().ok_or_else(|| PortError::Aborted("the connection is gone".into()))
    }
}

impl Work {
    /// Lets go of memory that nobody else has any more, if the stream is done with it.
    fn let_go(&self) {
        let mut held = self.held.lock();
        let is_ours = |memory: &Arc<Registered>| Arc::strong_count(memory) == 1;
        if !held.iter().any(is_ours) || !self.stream.is_idle().unwrap_or(false) {
            return;
        }
        let done_with: Vec<_> = held.extract_if(.., |memory| is_ours(memory)).collect();
        drop(held);
        leave_to_cleaner(move || drop(done_with));
    }
}

/// Holds memory until the stream is done with it.
fn hold(held: &mut Vec<Arc<Registered>>, work: &Work, memories: &[&RegisteredMemory]) {
    for memory in memories {
        if held.iter().any(|held| Arc::ptr_eq(held, &memory.inner)) {
            continue;
        }
        if held.len() >= HELD_MAX && work.stream.is_idle().unwrap_or(false) {
            // This may be the thread that kernels wait for, and what frees memory may wait for kernels.
            let done_with = core::mem::take(held);
            leave_to_cleaner(move || drop(done_with));
        }
        held.push(memory.inner.clone());
    }
}

fn address(place: Place) -> u64 {
    match place {
        Place::Host(start) => start.expose_provenance() as u64,
        Place::Device(_, address) => address,
    }
}

impl Drop for CudaRoad {
    /// What was written still arrives, and whoever lets go of the connection does not wait for it.
    fn drop(&mut self) {
        let Some(work) = self.work.take() else { return };
        if work.stream.is_idle().unwrap_or(true) {
            return;
        }
        FAREWELLS.fetch_add(1, Ordering::SeqCst);
        let work = Arc::new(work);
        let of_thread = work.clone();
        let end = move || {
            if of_thread.stream.synchronize(Instant::now() + FAREWELL_MAX).is_err() {
                // The device may still use it: it is never let go of.
                core::mem::forget(of_thread);
            }
            FAREWELLS.fetch_sub(1, Ordering::SeqCst);
        };
        if std::thread::Builder::new().name("ringfold-farewell".into()).spawn(end).is_err() {
            core::mem::forget(work);
            FAREWELLS.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
