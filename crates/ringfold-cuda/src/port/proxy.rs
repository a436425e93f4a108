//! A proxy: a thread that executes writes, signals and flushes for kernels and for programs on the host.
//!
//! Kernels push to a FIFO in mapped memory, the host to another one, so that the two never wait for each other; one
//! thread serves both. A trigger with several bits is executed in the order data, flag, sync. Its position counts as
//! popped only when it is executed: that is what a flush waits for.
//!
//! On a failure (a lost peer, an unknown id, an offset out of bounds) the port is aborted, so that all waits on it end.
//! Later triggers are popped without being executed, so that producers never block. A peer that leaves is no failure:
//! triggers for it are ignored.

use crate::capture::relaxed_capture;
use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::port::device_handle::{BasePortChannelHandle, PortChannelHandle};
use crate::port::fifo::{FIFO_SIZE_MAX, Fifo};
use crate::port::id_table::IdTable;
use crate::port::semaphore_cursor::abort_page;
use crate::port::trigger::{
    MEMORIES_MAX, MemoryId, SEMAPHORES_MAX, SemaphoreId, Trigger, TriggerFields, TriggerKind,
};
use crate::port::{Port, PortChannel, PortError, RegisteredMemory, SemaphoreCursor};
use core::sync::atomic::{AtomicBool, Ordering};
use parking_lot::Mutex;
use ringfold_fabric::waiter::sleep::WakeFlag;
use ringfold_fabric::waiter::{Policy, Step, Wait, Waiter};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Triggers of one FIFO that are executed before the other one is polled.
const BATCH_TRIGGERS: usize = 64;

/// How often an idle proxy checks for kernels that timed out.
const PAGE_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// How long the drop of a proxy waits for its thread, which executes the pushed triggers first.
const DROP_MAX: Duration = Duration::from_secs(10);

/// The started proxies, with the pid that started them.
static PROXIES: Mutex<Vec<(u32, Weak<ProxyState>)>> = Mutex::new(Vec::new());

/// Stops all proxies of this process, and waits until they have executed the pushed triggers or the timeout passes.
///
/// For a process that ends without dropping them: their threads must not use the driver while it shuts down.
pub(super) fn stop_all_proxies(timeout: Duration) {
    let proxies = core::mem::take(&mut *PROXIES.lock());
    // Proxies inherited by a fork have no thread in this process.
    let proxies = proxies.into_iter().filter(|(process, _)| *process == std::process::id());
    let states: Vec<_> = proxies.filter_map(|(_, state)| state.upgrade()).collect();
    for state in &states {
        state.stopping.store(true, Ordering::Release);
        state.wake_flag.wake();
    }
    Wait::within(timeout)
        .poll(|| states.iter().all(|state| !state.running.load(Ordering::Acquire)).then_some(()));
}

/// A proxy. Dropping it stops it.
pub struct ProxyService {
    state: Arc<ProxyState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The state shared by the proxy's thread and its producers.
pub(crate) struct ProxyState {
    /// The port to abort on failures that belong to no connection.
    port: Option<Port>,
    memories: IdTable<RegisteredMemory>,
    semaphores: IdTable<SemaphoreCursor>,
    fifo_size: usize,
    host_fifo: Fifo,
    /// Created with the first handle for kernels.
    kernel_fifo: OnceLock<Fifo>,
    creating: Mutex<()>,
    wake_flag: WakeFlag,
    stopping: AtomicBool,
    running: AtomicBool,
    failure: OnceLock<PortError>,
}

impl ProxyService {
    /// Creates a proxy whose FIFOs hold `fifo_size` triggers.
    pub fn new(port: Option<Port>, fifo_size: usize) -> Result<Self, PortError> {
        if !(1..=FIFO_SIZE_MAX).contains(&fifo_size) {
            return Err(PortError::Argument(format!(
                "invalid FIFO size {fifo_size}: must be 1..={FIFO_SIZE_MAX}"
            )));
        }
        let state = ProxyState {
            port,
            memories: IdTable::new(MEMORIES_MAX),
            semaphores: IdTable::new(SEMAPHORES_MAX),
            fifo_size,
            host_fifo: Fifo::of_host(fifo_size),
            kernel_fifo: OnceLock::new(),
            creating: Mutex::new(()),
            wake_flag: WakeFlag::default(),
            stopping: AtomicBool::new(false),
            running: AtomicBool::new(false),
            failure: OnceLock::new(),
        };
        Ok(Self { state: Arc::new(state), thread: Mutex::new(None) })
    }

    /// Registers memory with the proxy, which may be running.
    pub fn add_memory(&self, memory: RegisteredMemory) -> Result<MemoryId, PortError> {
        let number = self.state.memories.add(memory).ok_or_else(|| full("memories", MEMORIES_MAX))?;
        Ok(MemoryId(number as u16))
    }

    /// Registers a semaphore and its connection with the proxy, which may be running.
    pub fn add_semaphore(&self, semaphore: SemaphoreCursor) -> Result<SemaphoreId, PortError> {
        let number =
            self.state.semaphores.add(semaphore).ok_or_else(|| full("semaphores", SEMAPHORES_MAX))?;
        Ok(SemaphoreId(number as u16))
    }

    /// Creates a channel between two memories.
    pub fn channel(
        &self,
        semaphore: SemaphoreId,
        target: MemoryId,
        source: MemoryId,
    ) -> Result<PortChannel, PortError> {
        for memory in [target, source] {
            self.state.memory(memory)?;
        }
        let cursor = self.state.semaphore(semaphore)?.clone();
        Ok(PortChannel::new(self.state.clone(), semaphore, cursor, Some((target, source))))
    }

    /// Creates a channel whose puts name the memories.
    pub fn base_channel(&self, semaphore: SemaphoreId) -> Result<PortChannel, PortError> {
        let cursor = self.state.semaphore(semaphore)?.clone();
        Ok(PortChannel::new(self.state.clone(), semaphore, cursor, None))
    }

    /// Starts the thread, if it is not running.
    pub fn start(&self) -> Result<(), PortError> {
        let mut thread = self.thread.lock();
        // A stopping thread cannot be kept.
        let stopping = self.state.stopping.load(Ordering::Acquire);
        if let Some(ending) = thread.take_if(|thread| stopping || thread.is_finished()) {
            let _ = ending.join();
        }
        if thread.is_some() {
            return Ok(());
        }
        self.state.stopping.store(false, Ordering::Release);
        self.state.running.store(true, Ordering::Release);
        let state = self.state.clone();
        let builder = std::thread::Builder::new().name("ringfold-proxy".into());
        let started = builder.spawn(move || {
            if catch_unwind(AssertUnwindSafe(|| state.run())).is_err() {
                // A bug: end all waits for the thread.
                let what = "the thread of a proxy panicked".to_owned();
                state.fail(None, PortError::System { what, code: 0 });
            }
            state.running.store(false, Ordering::Release);
        });
        *thread = Some(started.map_err(|error| {
            self.state.running.store(false, Ordering::Release);
            PortError::system("starting the thread of a proxy", &error)
        })?);
        let mut proxies = PROXIES.lock();
        proxies.retain(|(_, state)| state.strong_count() > 0 && !state.ptr_eq(&Arc::downgrade(&self.state)));
        proxies.push((std::process::id(), Arc::downgrade(&self.state)));
        Ok(())
    }

    /// Executes all pushed triggers and stops the thread. Returns the proxy's failure, if any.
    pub fn stop(&self) -> Result<(), PortError> {
        loop {
            if let Some(end) = self.stop_within(Duration::from_secs(1)) {
                return end;
            }
        }
    }

    /// As [`Self::stop`], with a timeout, after which the thread continues to stop.
    pub fn stop_within(&self, timeout: Duration) -> Option<Result<(), PortError>> {
        self.state.stopping.store(true, Ordering::Release);
        self.state.wake_flag.wake();
        Wait::within(timeout).poll(|| {
            // Not held between polls, so that other callers of stop and start are not blocked.
            let mut thread = self.thread.lock();
            if thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
                return None;
            }
            if let Some(thread) = thread.take() {
                let _ = thread.join();
            }
            Some(self.failure().map_or(Ok(()), Err))
        })
    }

    /// The proxy's failure, if any.
    pub fn failure(&self) -> Option<PortError> {
        self.state.failure.get().cloned()
    }
}

impl Drop for ProxyService {
    fn drop(&mut self) {
        // A thread that is still running keeps its state alive.
        let _ = self.stop_within(DROP_MAX);
    }
}

debug_as!(ProxyService, self => "ProxyService({:?}, failure {:?})", self.state.host_fifo, self.failure());

impl ProxyState {
    /// Pushes a trigger from the host, and returns its position. Waits for room.
    pub(crate) fn push(&self, fields: &TriggerFields, wait: Wait<'_>) -> Result<u64, PortError> {
        let trigger = Trigger::of(fields).map_err(|error| PortError::Argument(error.to_string()))?;
        let at = self.wait(wait, || self.host_fifo.try_push(trigger))?;
        self.wake_flag.wake();
        Ok(at)
    }

    /// Waits until the trigger at this position is executed.
    pub(crate) fn sync(&self, at: u64, wait: Wait<'_>) -> Result<(), PortError> {
        self.wait(wait, || self.host_fifo.is_popped(at).then_some(()))?;
        self.failure.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    pub(crate) fn base_handle(
        &self,
        id: SemaphoreId,
        cursor: &SemaphoreCursor,
    ) -> Result<BasePortChannelHandle, PortError> {
        let page = abort_page(cursor.semaphore().connection().port())?;
        Ok(BasePortChannelHandle {
            semaphore_id: i32::from(id.0).into(),
            semaphore: cursor.host_handle()?,
            fifo: self.fifo_for_kernels(cursor)?.device_handle(page),
        })
    }

    pub(crate) fn handle(
        &self,
        id: SemaphoreId,
        cursor: &SemaphoreCursor,
        (target, source): (MemoryId, MemoryId),
    ) -> Result<PortChannelHandle, PortError> {
        let base = self.base_handle(id, cursor)?;
        Ok(PortChannelHandle { base, target_id: target.0.into(), source_id: source.0.into() })
    }

    /// The kernels' FIFO; without a device the host's, so that a handle can still be created.
    fn fifo_for_kernels(&self, cursor: &SemaphoreCursor) -> Result<&Fifo, CudaError> {
        if Gpu::unavailable_reason().is_some() {
            return Ok(&self.host_fifo);
        }
        let _creating = self.creating.lock();
        if let Some(fifo) = self.kernel_fifo.get() {
            return Ok(fifo);
        }
        let gpu = cursor.semaphore().gpu().map_or_else(Gpu::current, Ok)?;
        let fifo = Fifo::of_device(&gpu, self.fifo_size)?;
        let fifo = self.kernel_fifo.get_or_init(|| fifo);
        // The thread may be in a longer sleep than it uses for kernels.
        self.wake_flag.wake();
        Ok(fifo)
    }

    fn memory(&self, id: MemoryId) -> Result<&RegisteredMemory, PortError> {
        self.memories.get(id.0.into()).ok_or_else(|| unknown("memory", id.0))
    }

    fn semaphore(&self, id: SemaphoreId) -> Result<&SemaphoreCursor, PortError> {
        self.semaphores.get(id.0.into()).ok_or_else(|| unknown("semaphore", id.0))
    }

    fn wait<T>(&self, wait: Wait<'_>, poll: impl Fn() -> Option<T>) -> Result<T, PortError> {
        wait.poll(poll).ok_or_else(|| {
            if self.running.load(Ordering::Acquire) {
                PortError::Timeout { peer: -1, awaited: "receive data from the proxy".into() }
            } else {
                PortError::Argument("the proxy is not running: start it before waiting for a request".into())
            }
        })
    }

    fn run(&self) {
        let _capture = relaxed_capture();
        // Held once there is a FIFO for kernels: making the device current for each call takes longer than the call.
        let mut current = None;
        let mut waiter = Waiter::new(Policy::PROXY_OF_HOST);
        let mut next_page_check = Instant::now();
        loop {
            // Read before the FIFOs, so that triggers pushed before a stop are executed.
            let stopping = self.stopping.load(Ordering::Acquire);
            if current.is_none()
                && let Some(gpu) = self.kernel_fifo.get().and_then(Fifo::gpu)
            {
                current = gpu.context().current().ok();
            }
            if self.process_triggers() {
                waiter.begin();
            } else if stopping {
                break;
            } else {
                let is_ready = || self.stopping.load(Ordering::Acquire) || self.has_work();
                let serves_kernels = self.kernel_fifo.get().is_some();
                if waiter.is_slow() && serves_kernels {
                    waiter.set_policy(Policy::PROXY_OF_KERNELS);
                }
                let step = waiter.step(&Wait::default());
                if let Step::Block(at_most) = step {
                    self.wake_flag.block(at_most, is_ready);
                }
                if step != Step::Check && serves_kernels {
                    let now = Instant::now();
                    if now >= next_page_check {
                        next_page_check = now + PAGE_CHECK_INTERVAL;
                        self.check_abort_pages();
                    }
                }
            }
        }
    }

    /// Executes a batch of triggers of each FIFO. False if there were none.
    fn process_triggers(&self) -> bool {
        let from_host = self.execute_batch(&self.host_fifo);
        let from_kernels = self.kernel_fifo.get().is_some_and(|fifo| self.execute_batch(fifo));
        from_host || from_kernels
    }

    fn execute_batch(&self, fifo: &Fifo) -> bool {
        for done in 0..BATCH_TRIGGERS {
            let Some(trigger) = fifo.take() else { return done > 0 };
            self.execute(trigger);
            // After each trigger: the next one may take long.
            fifo.publish();
        }
        true
    }

    fn has_work(&self) -> bool {
        self.host_fifo.poll().is_some() || self.kernel_fifo.get().is_some_and(|fifo| fifo.poll().is_some())
    }

    fn execute(&self, trigger: Trigger) {
        if self.failure.get().is_some() {
            return;
        }
        let fields = trigger.fields();
        match self.try_execute(&fields) {
            Ok(()) => {}
            Err(PortError::Lost { .. }) if self.is_port_ok(fields.semaphore) => {}
            Err(error) => self.fail(self.semaphore(fields.semaphore).ok(), error),
        }
    }

    /// Whether the port has not failed although a connection has ended: the peer has left, and its triggers are ignored.
    fn is_port_ok(&self, semaphore: SemaphoreId) -> bool {
        self.semaphore(semaphore).is_ok_and(|cursor| cursor.semaphore().connection().port().check().is_ok())
    }

    fn try_execute(&self, fields: &TriggerFields) -> Result<(), PortError> {
        let semaphore = self.semaphore(fields.semaphore)?.semaphore();
        let connection = semaphore.connection();
        if fields.kind.is_empty() {
            return Err(PortError::Argument("invalid trigger: it has no type".into()));
        }
        let is_signal = fields.kind.has(TriggerKind::FLAG);
        if fields.kind.has(TriggerKind::DATA) {
            let target = (self.memory(fields.target)?, fields.target_offset);
            let source = (self.memory(fields.source)?, fields.source_offset);
            if is_signal {
                semaphore.put_and_signal(target, source, fields.bytes)?;
            } else {
                connection.write(target.0, target.1, source.0, source.1, fields.bytes)?;
            }
        } else if is_signal {
            semaphore.signal()?;
        }
        if fields.kind.has(TriggerKind::SYNC) {
            connection.flush(Instant::now() + connection.port().abort_page().spin_timeout())?;
        }
        Ok(())
    }

    /// Aborts the port of a kernel that timed out, so that its peers are informed.
    fn check_abort_pages(&self) {
        for cursor in self.semaphores.iter() {
            let connection = cursor.semaphore().connection();
            let port = connection.port();
            connection.note_stalled_put();
            let page = port.abort_page();
            if !page.is_set()
                && let Some(error) = page.error()
            {
                port.abort(&format!("{}: {error}", port.name()));
            }
        }
    }

    /// Stops executing triggers, and aborts the port of the failed semaphore, or all ports of this proxy.
    fn fail(&self, failed: Option<&SemaphoreCursor>, error: PortError) {
        let text = error.to_string();
        // Set first, for those who are woken by the abort.
        let _ = self.failure.set(error);
        match (failed, &self.port) {
            (Some(cursor), _) => cursor.semaphore().connection().port().abort(&text),
            (None, Some(port)) => port.abort(&text),
            (None, None) => {
                for cursor in self.semaphores.iter() {
                    cursor.semaphore().connection().port().abort(&text);
                }
            }
        }
    }
}

fn full(what: &str, max: usize) -> PortError {
    PortError::Argument(format!("too many {what} in a proxy: at most {max}"))
}

fn unknown(what: &str, number: u16) -> PortError {
    PortError::Argument(format!("unknown {what} {number} in the proxy"))
}
