//! One who waits for a semaphore, on the host or in kernels.

use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::port::device_handle::{HostSemaphoreHandle, MemoryChannelHandle, MemorySemaphoreHandle};
use crate::port::kernel_words::KernelWords;
use crate::port::tcp_road::explain;
use crate::port::{Port, PortError, RegisteredMemory, Semaphore};
use core::sync::atomic::{AtomicU64, Ordering};
use parking_lot::Mutex;
use ringfold_fabric::channel::{self, ChannelError};
use ringfold_fabric::waiter::{CancelToken, Policy, Wait, Waiter};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often whoever waits at a wire looks whether there is still something to wait for.
const WIRE_STEP: Duration = Duration::from_millis(50);

/// Who signals, and who waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SemaphoreKind {
    /// Hosts signal, kernels wait; a host may wait, too.
    HostToDevice,
    /// Hosts signal and wait.
    HostToHost,
    /// Kernels signal and wait.
    Memory,
}

/// A semaphore, and how many of its signals were waited for through this face. Several faces of one semaphore count for
/// themselves, and each begins with the first signal. So do the host and the kernels: whoever waits through one face
/// stays on one side. Clones are the same face.
#[derive(Clone)]
pub struct SemaphoreFace {
    inner: Arc<Inner>,
}

struct Inner {
    semaphore: Semaphore,
    kind: SemaphoreKind,
    /// How many signals the host has waited for.
    expected: AtomicU64,
    /// How many kernels have; none before a kernel is to see it.
    counter: Mutex<Option<KernelWords>>,
}

impl SemaphoreFace {
    /// A face of a semaphore.
    pub fn new(semaphore: &Semaphore, kind: SemaphoreKind) -> Self {
        let inner = Inner {
            semaphore: semaphore.clone(),
            kind,
            expected: AtomicU64::new(0),
            counter: Mutex::new(None),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The semaphore.
    pub fn semaphore(&self) -> &Semaphore {
        &self.inner.semaphore
    }

    /// Who signals and who waits.
    pub fn kind(&self) -> SemaphoreKind {
        self.inner.kind
    }

    /// Signals to the other side, from the host.
    pub fn signal(&self) -> Result<(), PortError> {
        if self.inner.kind == SemaphoreKind::Memory {
            return Err(PortError::Argument(
                "this semaphore is signalled by kernels: the host's count would overwrite theirs".into(),
            ));
        }
        self.inner.semaphore.signal()
    }

    /// Whether there is a signal that was not waited for; then it is now.
    pub fn poll(&self) -> Result<bool, PortError> {
        let signalled = self.inner.semaphore.signalled()?;
        let next = |expected| (signalled > expected).then_some(expected + 1);
        Ok(self.inner.expected.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).is_ok())
    }

    /// Waits for the next signal. Ends early if the other side is gone or the port is given up; a signal that came before
    /// that still counts.
    pub fn wait(&self, wait: Wait<'_>) -> Result<(), PortError> {
        let connection = self.inner.semaphore.connection();
        if let Some(wire) = self.inner.semaphore.wire().filter(|_| wait.checks_max.is_none()) {
            return self.wait_at(wire, wait);
        }
        let mut waiter = Waiter::start(Policy::POLLED, &wait);
        loop {
            // Asked before the look, which may be the last one: what came before the end has come.
            let end = if waiter.is_slow() { connection.check() } else { Ok(()) };
            if self.poll()? {
                return Ok(());
            }
            end?;
            if !waiter.pause(&wait) {
                return Err(PortError::Timeout { peer: connection.peer(), awaited: "signal".into() });
            }
        }
    }

    /// Waits for what comes by a wire, and moves it meanwhile: no other thread has to be woken first.
    fn wait_at(&self, wire: &channel::Connection, wait: Wait<'_>) -> Result<(), PortError> {
        let connection = self.inner.semaphore.connection();
        loop {
            let step = Instant::now() + WIRE_STEP;
            let until = wait.deadline.instant().map_or(step, |deadline| deadline.min(step));
            let error = match wire.wait_for(until, || self.poll().unwrap_or(false)) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            connection.check()?;
            if !matches!(error, ChannelError::Deadline { .. }) {
                return Err(explain(error, connection.peer()));
            }
            if wait.deadline.is_over() || wait.cancel.is_some_and(CancelToken::is_cancelled) {
                return Err(PortError::Timeout { peer: connection.peer(), awaited: "signal".into() });
            }
        }
    }

    /// What kernels wait with, and the host or a proxy signals.
    pub fn host_handle(&self) -> Result<HostSemaphoreHandle, PortError> {
        if self.inner.kind != SemaphoreKind::HostToDevice {
            return Err(self.no_handle());
        }
        let connection = self.inner.semaphore.connection();
        Ok(HostSemaphoreHandle {
            inbound: self.inner.semaphore.inbound_address()?,
            expected: self.counter()?,
            abort_page: abort_page(connection.port())?,
            peer: connection.peer().into(),
        })
    }

    /// What kernels wait and signal with.
    pub fn memory_handle(&self) -> Result<MemorySemaphoreHandle, PortError> {
        if self.inner.kind != SemaphoreKind::Memory {
            return Err(self.no_handle());
        }
        let connection = self.inner.semaphore.connection();
        Ok(MemorySemaphoreHandle {
            inbound: self.inner.semaphore.inbound_address()?,
            remote_inbound: self.inner.semaphore.remote_address()?,
            expected: self.counter()?,
            abort_page: abort_page(connection.port())?,
            peer: connection.peer().into(),
        })
    }

    /// What kernels write into memory of the other side with, beside the semaphore.
    pub fn memory_channel(
        &self,
        target: &RegisteredMemory,
        source: &RegisteredMemory,
        packet_buffer: Option<&RegisteredMemory>,
    ) -> Result<MemoryChannelHandle, PortError> {
        let here = |memory: &RegisteredMemory| match memory.data() {
            0 => Err(PortError::Unsupported(format!("{memory:?} can't be reached from kernels here"))),
            address => Ok(address),
        };
        Ok(MemoryChannelHandle {
            semaphore: self.memory_handle()?,
            target: here(target)?,
            source: here(source)?,
            packet_buffer: packet_buffer.map_or(Ok(0), here)?,
        })
    }

    /// Where kernels count what they have waited for.
    fn counter(&self) -> Result<u64, CudaError> {
        let mut counter = self.inner.counter.lock();
        let counter = match &mut *counter {
            Some(counter) => counter,
            none => none.insert(KernelWords::open(self.inner.semaphore.gpu(), 8)?),
        };
        Ok(counter.address())
    }

    fn no_handle(&self) -> PortError {
        PortError::Argument(match self.inner.kind {
            SemaphoreKind::HostToHost => "a semaphore between hosts has no handle for kernels".into(),
            SemaphoreKind::HostToDevice => "this semaphore is signalled by hosts, not by kernels".into(),
            SemaphoreKind::Memory => "this semaphore is signalled by kernels, not by hosts".into(),
        })
    }
}

impl core::fmt::Debug for SemaphoreFace {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(out, "{:?} face of {:?}", self.inner.kind, self.inner.semaphore)
    }
}

/// Where kernels find the port's page; nowhere if there is no device.
pub(crate) fn abort_page(port: &Port) -> Result<u64, CudaError> {
    if Gpu::why_not().is_some() {
        return Ok(0);
    }
    port.abort_page().device_address()
}
