//! Consumers of a semaphore's signals, on the host or in kernels.

use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::port::device_handle::{HostSemaphoreHandle, MemoryChannelHandle, MemorySemaphoreHandle};
use crate::port::kernel_words::KernelWords;
use crate::port::tcp_transport::explain;
use crate::port::{Port, PortError, RegisteredMemory, Semaphore};
use core::sync::atomic::{AtomicU64, Ordering};
use parking_lot::Mutex;
use ringfold_fabric::channel::{self, ChannelError};
use ringfold_fabric::waiter::{CancelToken, Policy, Wait, Waiter};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a wait checks whether the connection has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Which side signals and which waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SemaphoreKind {
    /// Hosts signal; kernels or hosts wait.
    HostToDevice,
    /// Hosts signal and wait.
    HostToHost,
    /// Kernels signal and wait.
    Memory,
}

/// A semaphore with a count of consumed signals. Clones share the count.
///
/// Each cursor of a semaphore starts with the first signal. Host and kernels count separately, so only one of them may
/// wait through a cursor.
#[derive(Clone)]
pub struct SemaphoreCursor {
    inner: Arc<CursorState>,
}

struct CursorState {
    semaphore: Semaphore,
    kind: SemaphoreKind,
    expected: AtomicU64,
    /// Signals consumed by kernels; created on first use.
    counter: Mutex<Option<KernelWords>>,
}

impl SemaphoreCursor {
    /// Creates a cursor of a semaphore.
    pub fn new(semaphore: &Semaphore, kind: SemaphoreKind) -> Self {
        let inner = CursorState {
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

    /// The kind.
    pub fn kind(&self) -> SemaphoreKind {
        self.inner.kind
    }

    /// Signals the peer from the host.
    pub fn signal(&self) -> Result<(), PortError> {
        if self.inner.kind == SemaphoreKind::Memory {
            return Err(PortError::Argument(
                "kernels signal this semaphore: a signal from the host would overwrite their count".into(),
            ));
        }
        self.inner.semaphore.signal()
    }

    /// Consumes a signal if one has arrived, and returns whether it has.
    pub fn poll(&self) -> Result<bool, PortError> {
        let signalled = self.inner.semaphore.signalled()?;
        let next = |expected| (signalled > expected).then_some(expected + 1);
        Ok(self.inner.expected.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).is_ok())
    }

    /// Waits for the next signal. Fails if the peer is lost or the port is aborted; earlier signals still count.
    pub fn wait(&self, wait: Wait<'_>) -> Result<(), PortError> {
        let connection = self.inner.semaphore.connection();
        if let Some(channels) = self.inner.semaphore.tcp_channels().filter(|_| wait.checks_max.is_none()) {
            return self.wait_on_channels(channels, wait);
        }
        let mut waiter = Waiter::start(Policy::POLLED, &wait);
        loop {
            // Checked before the last poll, so that signals from before the end are not missed.
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

    /// Waits for a signal over TCP while making the connection progress, which avoids a thread switch.
    fn wait_on_channels(&self, channels: &channel::Connection, wait: Wait<'_>) -> Result<(), PortError> {
        let connection = self.inner.semaphore.connection();
        loop {
            let step = Instant::now() + CHECK_INTERVAL;
            let until = wait.deadline.instant().map_or(step, |deadline| deadline.min(step));
            let error = match channels.wait_for(until, || self.poll().unwrap_or(false)) {
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

    /// The handle for kernels that wait for signals of a host or proxy.
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

    /// The handle for kernels that wait and signal.
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

    /// The handle for kernels that also access the peer's memory.
    pub fn memory_channel(
        &self,
        target: &RegisteredMemory,
        source: &RegisteredMemory,
        packet_buffer: Option<&RegisteredMemory>,
    ) -> Result<MemoryChannelHandle, PortError> {
        let address = |memory: &RegisteredMemory| match memory.data() {
            0 => Err(PortError::Unsupported(format!("{memory:?} is not accessible from kernels"))),
            address => Ok(address),
        };
        Ok(MemoryChannelHandle {
            semaphore: self.memory_handle()?,
            target: address(target)?,
            source: address(source)?,
            packet_buffer: packet_buffer.map_or(Ok(0), address)?,
        })
    }

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
            SemaphoreKind::HostToDevice => "invalid handle: hosts signal this semaphore, not kernels".into(),
            SemaphoreKind::Memory => "invalid handle: kernels signal this semaphore, not hosts".into(),
        })
    }
}

debug_as!(SemaphoreCursor, self => "{:?} cursor of {:?}", self.inner.kind, self.inner.semaphore);

/// The device address of the port's abort page; 0 without a device.
pub(crate) fn abort_page(port: &Port) -> Result<u64, CudaError> {
    if Gpu::unavailable_reason().is_some() {
        return Ok(0);
    }
    port.abort_page().device_address()
}
