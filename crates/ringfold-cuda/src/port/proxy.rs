//! A thread that does for kernels, and for programs on the host, what they can't or need not do themselves: writes into
//! other ranks' memory, signals behind them, and waits until all has left.
//!
//! Kernels push to a FIFO in mapped memory, programs on the host to one of their own, so that the two never wait for each
//! other; one thread works both off. A trigger with several bits is done in the order data, flag, sync. When it is done,
//! and not before, its position counts as popped: that is what a flush waits for.
//!
//! When something fails (a rank is lost, a number stands for nothing, an offset is out of bounds), the port is given up,
//! so that kernels and programs that wait on it end. What is in the FIFOs afterwards is taken out and not done: whoever
//! pushes never waits for room in vain. A rank that takes leave is no failure: what is still pushed for it is not done.

use crate::capture::relaxed_capture;
use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::port::device_handle::{BasePortChannelHandle, PortChannelHandle};
use crate::port::fifo::{FIFO_SIZE_MAX, Fifo};
use crate::port::semaphore_face::abort_page;
use crate::port::table::Table;
use crate::port::trigger::{
    MEMORIES_MAX, MemoryId, SEMAPHORES_MAX, SemaphoreId, Trigger, TriggerFields, TriggerKind,
};
use crate::port::{Port, PortChannel, PortError, RegisteredMemory, SemaphoreFace};
use core::sync::atomic::{AtomicBool, Ordering};
use parking_lot::Mutex;
use ringfold_fabric::waiter::sleep::WakeFlag;
use ringfold_fabric::waiter::{Policy, Step, Wait, Waiter};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How many triggers of one FIFO are done before the other one is looked at.
const TURN_TRIGGERS: usize = 64;

/// How often an idle proxy looks whether a kernel has given up waiting.
const PAGES_EVERY: Duration = Duration::from_millis(10);

/// How long a proxy that is dropped waits for its thread, which still does what was pushed.
const DROP_MAX: Duration = Duration::from_secs(10);

/// The proxies of this process that were started, and the process that did.
static PROXIES: Mutex<Vec<(u32, Weak<Desk>)>> = Mutex::new(Vec::new());

/// Stops all proxies of this process, and waits for a while until they have done what was pushed. For the end of a
/// process that does not get to let go of them: their threads must not use the driver while that ends.
pub(super) fn stop_all(patience: Duration) {
    let proxies = core::mem::take(&mut *PROXIES.lock());
    // Those that came by a fork have no thread here.
    let proxies = proxies.into_iter().filter(|(process, _)| *process == std::process::id());
    let desks: Vec<_> = proxies.filter_map(|(_, desk)| desk.upgrade()).collect();
    for desk in &desks {
        desk.stops.store(true, Ordering::Release);
        desk.awake.wake();
    }
    Wait::within(patience).poll(|| desks.iter().all(|desk| !desk.runs.load(Ordering::Acquire)).then_some(()));
}

/// A proxy. When it is dropped it stops.
pub struct ProxyService {
    desk: Arc<Desk>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the thread works at, and others push to.
pub(crate) struct Desk {
    /// The port to give up when something fails that belongs to no connection.
    port: Option<Port>,
    memories: Table<RegisteredMemory>,
    semaphores: Table<SemaphoreFace>,
    fifo_size: usize,
    for_host: Fifo,
    /// Made when a kernel is to push.
    for_kernels: OnceLock<Fifo>,
    making: Mutex<()>,
    awake: WakeFlag,
    stops: AtomicBool,
    runs: AtomicBool,
    failure: OnceLock<PortError>,
}

impl ProxyService {
    /// A proxy whose FIFOs have room for so many triggers.
    pub fn new(port: Option<Port>, fifo_size: usize) -> Result<Self, PortError> {
        if !(1..=FIFO_SIZE_MAX).contains(&fifo_size) {
            return Err(PortError::Argument(format!(
                "a FIFO has room for 1 to {FIFO_SIZE_MAX} triggers, not for {fifo_size}"
            )));
        }
        let desk = Desk {
            port,
            memories: Table::new(MEMORIES_MAX),
            semaphores: Table::new(SEMAPHORES_MAX),
            fifo_size,
            for_host: Fifo::of_host(fifo_size),
            for_kernels: OnceLock::new(),
            making: Mutex::new(()),
            awake: WakeFlag::default(),
            stops: AtomicBool::new(false),
            runs: AtomicBool::new(false),
            failure: OnceLock::new(),
        };
        Ok(Self { desk: Arc::new(desk), thread: Mutex::new(None) })
    }

    /// Makes memory known, also while the proxy runs.
    pub fn add_memory(&self, memory: RegisteredMemory) -> Result<MemoryId, PortError> {
        let number = self.desk.memories.add(memory).ok_or_else(|| full("memories", MEMORIES_MAX))?;
        Ok(MemoryId(number as u16))
    }

    /// Makes a semaphore known, and with it its connection, also while the proxy runs.
    pub fn add_semaphore(&self, semaphore: SemaphoreFace) -> Result<SemaphoreId, PortError> {
        let number = self.desk.semaphores.add(semaphore).ok_or_else(|| full("semaphores", SEMAPHORES_MAX))?;
        Ok(SemaphoreId(number as u16))
    }

    /// A channel between two memories.
    pub fn channel(
        &self,
        semaphore: SemaphoreId,
        target: MemoryId,
        source: MemoryId,
    ) -> Result<PortChannel, PortError> {
        for memory in [target, source] {
            self.desk.memory(memory)?;
        }
        let face = self.desk.semaphore(semaphore)?.clone();
        Ok(PortChannel::new(self.desk.clone(), semaphore, face, Some((target, source))))
    }

    /// A channel that is told the memories with each put.
    pub fn base_channel(&self, semaphore: SemaphoreId) -> Result<PortChannel, PortError> {
        let face = self.desk.semaphore(semaphore)?.clone();
        Ok(PortChannel::new(self.desk.clone(), semaphore, face, None))
    }

    /// Starts the thread, if it does not run.
    pub fn start(&self) -> Result<(), PortError> {
        let mut thread = self.thread.lock();
        // One that was told to stop can't be told otherwise.
        let stops = self.desk.stops.load(Ordering::Acquire);
        if let Some(ending) = thread.take_if(|thread| stops || thread.is_finished()) {
            let _ = ending.join();
        }
        if thread.is_some() {
            return Ok(());
        }
        self.desk.stops.store(false, Ordering::Release);
        self.desk.runs.store(true, Ordering::Release);
        let desk = self.desk.clone();
        let builder = std::thread::Builder::new().name("ringfold-proxy".into());
        let started = builder.spawn(move || {
            if catch_unwind(AssertUnwindSafe(|| desk.run())).is_err() {
                // A bug of ours; whoever waits for the thread is not to wait for ever.
                let what = "the thread of a proxy has panicked".to_owned();
                desk.fail(None, PortError::System { what, code: 0 });
            }
            desk.runs.store(false, Ordering::Release);
        });
        *thread = Some(started.map_err(|error| {
            self.desk.runs.store(false, Ordering::Release);
            PortError::system("starting the thread of a proxy", &error)
        })?);
        let mut proxies = PROXIES.lock();
        proxies.retain(|(_, desk)| desk.strong_count() > 0 && !desk.ptr_eq(&Arc::downgrade(&self.desk)));
        proxies.push((std::process::id(), Arc::downgrade(&self.desk)));
        Ok(())
    }

    /// Has the thread do what was pushed, and ends it. Says what has failed since the beginning.
    pub fn stop(&self) -> Result<(), PortError> {
        loop {
            if let Some(end) = self.stop_within(Duration::from_secs(1)) {
                return end;
            }
        }
    }

    /// As [`Self::stop`], but waits no longer than this. If it is not done by then the thread goes on ending.
    pub fn stop_within(&self, patience: Duration) -> Option<Result<(), PortError>> {
        self.desk.stops.store(true, Ordering::Release);
        self.desk.awake.wake();
        Wait::within(patience).poll(|| {
            // Not held while it waits: whoever else stops, or starts again, is not to wait for this one.
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

    /// What has failed.
    pub fn failure(&self) -> Option<PortError> {
        self.desk.failure.get().cloned()
    }
}

impl Drop for ProxyService {
    fn drop(&mut self) {
        // A thread that is still not done keeps what it needs.
        let _ = self.stop_within(DROP_MAX);
    }
}

impl core::fmt::Debug for ProxyService {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let desk = &self.desk;
        out.debug_struct("ProxyService")
            .field("fifo", &desk.for_host)
            .field("failure", &desk.failure)
            .finish()
    }
}

impl Desk {
    /// Pushes from the host. Waits for room.
    pub(crate) fn push(&self, fields: &TriggerFields, wait: Wait<'_>) -> Result<u64, PortError> {
        let trigger = Trigger::of(fields).map_err(|error| PortError::Argument(error.to_string()))?;
        let at = self.wait(wait, || self.for_host.try_push(trigger))?;
        self.awake.wake();
        Ok(at)
    }

    /// Waits until what was pushed at this position is done.
    pub(crate) fn sync(&self, at: u64, wait: Wait<'_>) -> Result<(), PortError> {
        self.wait(wait, || self.for_host.is_popped(at).then_some(()))?;
        self.failure.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// What kernels push to the proxy with.
    pub(crate) fn base_handle(
        &self,
        id: SemaphoreId,
        face: &SemaphoreFace,
    ) -> Result<BasePortChannelHandle, PortError> {
        let page = abort_page(face.semaphore().connection().port())?;
        Ok(BasePortChannelHandle {
            semaphore_id: i32::from(id.0).into(),
            semaphore: face.host_handle()?,
            fifo: self.kernels_fifo(face)?.device_handle(page),
        })
    }

    pub(crate) fn handle(
        &self,
        id: SemaphoreId,
        face: &SemaphoreFace,
        (target, source): (MemoryId, MemoryId),
    ) -> Result<PortChannelHandle, PortError> {
        let base = self.base_handle(id, face)?;
        Ok(PortChannelHandle { base, target_id: target.0.into(), source_id: source.0.into() })
    }

    /// What kernels push to; where there is no device, what the host pushes to, so that a handle can be made.
    fn kernels_fifo(&self, face: &SemaphoreFace) -> Result<&Fifo, CudaError> {
        if Gpu::why_not().is_some() {
            return Ok(&self.for_host);
        }
        let _making = self.making.lock();
        if let Some(fifo) = self.for_kernels.get() {
            return Ok(fifo);
        }
        let gpu = face.semaphore().gpu().map_or_else(Gpu::current, Ok)?;
        let fifo = Fifo::of_device(&gpu, self.fifo_size)?;
        let fifo = self.for_kernels.get_or_init(|| fifo);
        // It may sleep for longer than where kernels push.
        self.awake.wake();
        Ok(fifo)
    }

    fn memory(&self, id: MemoryId) -> Result<&RegisteredMemory, PortError> {
        self.memories.get(id.0.into()).ok_or_else(|| unknown("memory", id.0))
    }

    fn semaphore(&self, id: SemaphoreId) -> Result<&SemaphoreFace, PortError> {
        self.semaphores.get(id.0.into()).ok_or_else(|| unknown("semaphore", id.0))
    }

    /// Waits for the thread.
    fn wait<T>(&self, wait: Wait<'_>, ask: impl Fn() -> Option<T>) -> Result<T, PortError> {
        wait.poll(ask).ok_or_else(|| {
            if self.runs.load(Ordering::Acquire) {
                PortError::Timeout { peer: -1, awaited: "take what the proxy has for it".into() }
            } else {
                PortError::Argument("nobody takes what was pushed: the proxy is not running".into())
            }
        })
    }

    /// The thread.
    fn run(&self) {
        let _capture = relaxed_capture();
        // Held from when there are kernels to work for: turning to a device and back with each call takes longer than the
        // calls themselves.
        let mut current = None;
        let mut waiter = Waiter::new(Policy::PROXY_OF_HOST);
        let mut pages_at = Instant::now();
        loop {
            // Asked before the FIFOs are: what was pushed before a stop is done.
            let stops = self.stops.load(Ordering::Acquire);
            if current.is_none()
                && let Some(gpu) = self.for_kernels.get().and_then(Fifo::gpu)
            {
                current = gpu.context().current().ok();
            }
            if self.turn() {
                waiter.begin();
            } else if stops {
                break;
            } else {
                let is_something_there = || self.stops.load(Ordering::Acquire) || self.has_work();
                let for_kernels = self.for_kernels.get().is_some();
                if waiter.is_slow() && for_kernels {
                    waiter.set_policy(Policy::PROXY_OF_KERNELS);
                }
                let step = waiter.step(&Wait::default());
                if let Step::Block(at_most) = step {
                    self.awake.block(at_most, is_something_there);
                }
                if step != Step::Check && for_kernels {
                    let now = Instant::now();
                    if now >= pages_at {
                        pages_at = now + PAGES_EVERY;
                        self.look_at_pages();
                    }
                }
            }
        }
    }

    /// Does some of what was pushed. False if there was nothing.
    fn turn(&self) -> bool {
        let mut is_something_done = self.work_off(&self.for_host);
        if let Some(fifo) = self.for_kernels.get() {
            is_something_done |= self.work_off(fifo);
        }
        is_something_done
    }

    fn work_off(&self, fifo: &Fifo) -> bool {
        for done in 0..TURN_TRIGGERS {
            let Some(trigger) = fifo.take() else { return done > 0 };
            self.execute(trigger);
            // Each for itself: the next one may wait for long, and this one was done.
            fifo.publish();
        }
        true
    }

    fn has_work(&self) -> bool {
        self.for_host.poll().is_some() || self.for_kernels.get().is_some_and(|fifo| fifo.poll().is_some())
    }

    fn execute(&self, trigger: Trigger) {
        if self.failure.get().is_some() {
            return;
        }
        let fields = trigger.fields();
        match self.attempt(&fields) {
            Ok(()) => {}
            Err(PortError::Lost { .. }) if self.is_port_well(fields.semaphore) => {}
            Err(error) => self.fail(self.semaphore(fields.semaphore).ok(), error),
        }
    }

    /// Whether the port goes on though a connection of it does not: then the other side has left, as it may. What is
    /// still meant for it goes nowhere, and harms nobody.
    fn is_port_well(&self, semaphore: SemaphoreId) -> bool {
        self.semaphore(semaphore).is_ok_and(|face| face.semaphore().connection().port().check().is_ok())
    }

    fn attempt(&self, fields: &TriggerFields) -> Result<(), PortError> {
        let semaphore = self.semaphore(fields.semaphore)?.semaphore();
        let connection = semaphore.connection();
        if fields.kind.is_empty() {
            return Err(PortError::Argument("a proxy was asked for nothing: a trigger has no type".into()));
        }
        if fields.kind.has(TriggerKind::DATA) {
            let (target, source) = (self.memory(fields.target)?, self.memory(fields.source)?);
            connection.write(target, fields.target_offset, source, fields.source_offset, fields.bytes)?;
        }
        if fields.kind.has(TriggerKind::FLAG) {
            semaphore.signal()?;
        }
        if fields.kind.has(TriggerKind::SYNC) {
            connection.flush(Instant::now() + connection.port().abort_page().spin())?;
        }
        Ok(())
    }

    /// When a kernel has given up waiting, its port is given up, so that the other ranks hear of it.
    fn look_at_pages(&self) {
        for face in self.semaphores.iter() {
            let port = face.semaphore().connection().port();
            let page = port.abort_page();
            if !page.is_set()
                && let Some(error) = page.error()
            {
                port.abort(&format!("{}: {error}", port.name()));
            }
        }
    }

    /// Nothing more is done, and whoever waits on a port of this proxy leaves off.
    fn fail(&self, whose: Option<&SemaphoreFace>, error: PortError) {
        let words = error.to_string();
        // First of all: whoever is woken by the end of the port finds out why.
        let _ = self.failure.set(error);
        match (whose, &self.port) {
            (Some(face), _) => face.semaphore().connection().port().abort(&words),
            (None, Some(port)) => port.abort(&words),
            (None, None) => {
                for face in self.semaphores.iter() {
                    face.semaphore().connection().port().abort(&words);
                }
            }
        }
    }
}

fn full(what: &str, most: usize) -> PortError {
    PortError::Argument(format!("a proxy knows no more than {most} {what}"))
}

fn unknown(what: &str, number: u16) -> PortError {
    PortError::Argument(format!("the proxy knows no {what} {number}"))
}
