//! Poller, progress role and background thread around a driver that never waits.
//!
//! Progress is a role, not a thread. A caller that waits takes the role and moves the driver on itself, so that no
//! result costs a hand-over between threads. While no caller waits, a background thread holds the role, so that
//! operations advance while the user computes, and peers see that this one is alive.
//!
//! A panic in the driver stops the reactor: the driver is dropped, and every call fails from then on. User callbacks
//! run without the lock and without the role, so they may call the reactor.

#[cfg(test)]
mod tests;

use crate::limits;
use crate::poller::{Poller, Readiness};
use crate::waiter::{Policy, Waiter};
use core::any::Any;
use core::time::Duration;
use parking_lot::{Condvar, Mutex, MutexGuard};
use ringfold_proto::id::CallId;
use std::collections::{HashMap, HashSet};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// What a reactor moves on. No function of it waits, but for [`Drive::finish`].
pub trait Drive: Send + Sized + 'static {
    /// How a call ends.
    type Ended: Send + 'static;

    /// Why a call fails.
    type Error: Clone + Send + From<Stopped> + 'static;

    /// After a caller has waited, the background thread leaves the sockets alone for this long: most likely the next
    /// call comes soon, and two threads that watch the same sockets wake each other for nothing.
    const LINGER: Duration;

    /// Does what can be done now.
    fn turn(&mut self, ready: &Readiness);

    /// After which time something has to be done even if nothing arrives.
    fn patience(&self) -> Option<Duration>;

    /// Whether something has arrived that the poller does not report.
    fn stirs(&self) -> bool {
        false
    }

    /// From now on the poller reports everything. Returns true if something has arrived already: then no thread may
    /// sleep.
    fn prepare_sleep(&mut self) -> bool {
        false
    }

    /// What is about to arrive, and worth spinning for.
    fn outlook(&self) -> Outlook {
        Outlook::Nothing
    }

    /// Whether the background thread is needed right after a wait.
    fn is_busy(&self) -> bool;

    /// Hands over what has happened since the last report.
    fn report(&mut self, outcomes: &mut Outcomes<Self::Ended>);

    /// Says goodbye. What has not ended fails.
    fn leave(&mut self);

    /// Sends the last bytes and closes its connections, by the deadline at the latest. Called without the lock.
    fn finish(self, deadline: Instant);

    /// The end of a call that failed.
    fn failed(error: Self::Error) -> Self::Ended;
}

/// Why a reactor has no driver any more.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Stopped {
    /// It was closed.
    #[error("closed")]
    Closed,
    /// The driver panicked: a bug.
    #[error("{0}")]
    Panicked(String),
    /// The poller failed.
    #[error("waiting for sockets: {0}")]
    Poller(String),
}

/// What a driver reports.
pub struct Outcomes<E> {
    ended: HashMap<CallId, E>,
    /// Calls whose end nobody will ask for.
    abandoned: HashSet<CallId>,
    callbacks: Vec<Callback>,
    has_news: bool,
}

/// Something to be done without the lock.
pub type Callback = Box<dyn FnOnce() + Send>;

impl<E: Send + 'static> Outcomes<E> {
    /// A call has ended.
    pub fn end(&mut self, call: CallId, ended: E) {
        if self.abandoned.remove(&call) {
            // Dropping user memory may run user code.
            self.callbacks.push(Box::new(move || drop(ended)));
        } else {
            self.ended.insert(call, ended);
            self.has_news = true;
        }
    }

    /// Something else happened that a thread may wait for.
    pub fn notify(&mut self) {
        self.has_news = true;
    }

    /// User code to be run without the lock.
    pub fn call_back(&mut self, callback: Callback) {
        self.callbacks.push(callback);
    }
}

/// A driver, and the threads that move it on.
pub struct Reactor<D: Drive> {
    shared: Arc<Shared<D>>,
    background: Mutex<Option<JoinHandle<()>>>,
    /// The process that it works in. A child that was forked off has its memory and sockets, but not its threads.
    process: u32,
}

struct Shared<D: Drive> {
    poller: Arc<Poller>,
    state: Mutex<State<D>>,
    /// Something was reported, or the role is free.
    changed: Condvar,
    /// The background thread is needed.
    needed: Condvar,
}

struct State<D: Drive> {
    /// None after a panic in it, and after the end.
    driver: Option<D>,
    /// Why there is none.
    stopped: Option<D::Error>,
    outcomes: Outcomes<D::Ended>,
    /// Callers that wait, with or without the role.
    waiting: usize,
    /// A caller has the role.
    is_held: bool,
    last_wait: Instant,
    /// Threads that sleep in the poller.
    sleeping: usize,
    /// One for each outlook: how long to spin for it.
    waiters: [Waiter; 3],
    /// Until when the last one of them sleeps, if nothing wakes it.
    asleep_until: Instant,
    is_closing: bool,
    /// Kept between waits, so that nothing is allocated.
    readiness: Readiness,
}

/// What a driver expects to arrive. Waking a thread takes tens of microseconds, and what is awaited often arrives sooner;
/// but a thread that spins keeps a core busy, so it does only where there is a core for each rank of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outlook {
    /// Nothing, or others need the core.
    Nothing,
    /// Frames, all of which come through memory.
    Memory,
    /// Frames that come through sockets too.
    Sockets,
    /// Word from the master.
    Word,
}

impl Outlook {
    fn index(self) -> Option<usize> {
        (self as usize).checked_sub(1)
    }
}

impl<D: Drive> Reactor<D> {
    /// Starts the background thread, under this name.
    pub fn start(driver: D, poller: Arc<Poller>, thread: &str) -> io::Result<Self> {
        let now = Instant::now();
        let outcomes = Outcomes {
            ended: HashMap::new(),
            abandoned: HashSet::new(),
            callbacks: Vec::new(),
            has_news: false,
        };
        let state = State {
            driver: Some(driver),
            stopped: None,
            outcomes,
            waiting: 0,
            is_held: false,
            last_wait: now,
            sleeping: 0,
            waiters: [(); 3].map(|()| Waiter::new(Policy::DRIVER)),
            asleep_until: now,
            is_closing: false,
            readiness: Readiness::default(),
        };
        let (changed, needed) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { poller, state: Mutex::new(state), changed, needed });
        let for_thread = shared.clone();
        let thread =
            std::thread::Builder::new().name(thread.into()).spawn(move || for_thread.run_in_background())?;
        Ok(Self { shared, background: Mutex::new(Some(thread)), process: std::process::id() })
    }

    /// Does something with the driver, and sees to it that what it began goes on.
    pub fn with<R>(&self, work: impl FnOnce(&mut D) -> R) -> Result<R, D::Error> {
        self.visit(true, work)
    }

    /// As [`Reactor::with`], for a call that will be waited for at once: the waiter moves it on.
    pub fn with_waiter<R>(&self, work: impl FnOnce(&mut D) -> R) -> Result<R, D::Error> {
        self.visit(false, work)
    }

    fn visit<R>(&self, needs_thread: bool, work: impl FnOnce(&mut D) -> R) -> Result<R, D::Error> {
        let shared = &*self.shared;
        let mut state = shared.state.lock();
        let result = state.call(work);
        shared.wake(&mut state);
        if state.sleeping > 0 && (needs_thread || state.is_held) {
            // What was begun may be due before those who sleep wake up.
            let patience = state.call(|driver| patience(driver)).unwrap_or_default();
            if Instant::now() + patience < state.asleep_until {
                shared.poller.kick();
            }
        }
        if needs_thread && state.waiting == 0 {
            shared.needed.notify_one();
        }
        run_callbacks(&mut state);
        result
    }

    /// Waits for the end of a call, and takes it.
    pub fn wait(&self, call: CallId) -> D::Ended {
        self.wait_until(call, None).unwrap_or_else(|| D::failed(Stopped::Closed.into()))
    }

    /// As [`Reactor::wait`], until a time if one is given; none if the call has not ended by then.
    pub fn wait_until(&self, call: CallId, until: Option<Instant>) -> Option<D::Ended> {
        self.wait_on(until, |state| {
            let ended = state.outcomes.ended.remove(&call);
            ended.or_else(|| state.stopped.clone().map(D::failed))
        })
    }

    /// Waits until the driver has an answer; none if it has not by the deadline.
    pub fn wait_for<R>(
        &self,
        deadline: Instant,
        mut answer: impl FnMut(&mut D) -> Option<R>,
    ) -> Result<Option<R>, D::Error> {
        self.wait_on(Some(deadline), |state| state.call(&mut answer).transpose()).transpose()
    }

    /// Asks the driver for an answer; if it has none, moves it on once, unless another caller does.
    pub fn poll<R>(&self, mut answer: impl FnMut(&mut D) -> Option<R>) -> Result<Option<R>, D::Error> {
        let shared = &*self.shared;
        let mut state = shared.state.lock();
        state.last_wait = Instant::now();
        let mut result = state.call(&mut answer);
        if matches!(result, Ok(None)) && !state.is_held {
            let mut ready = core::mem::take(&mut state.readiness);
            // An error shows again when a thread sleeps.
            let _ = shared.poller.wait(&mut ready, Duration::ZERO);
            result = state.call(|driver| {
                driver.turn(&ready);
                answer(driver)
            });
            state.readiness = ready;
        }
        shared.wake(&mut state);
        run_callbacks(&mut state);
        result
    }

    fn wait_on<R>(
        &self,
        until: Option<Instant>,
        mut answer: impl FnMut(&mut State<D>) -> Option<R>,
    ) -> Option<R> {
        let shared = &*self.shared;
        let mut state = shared.state.lock();
        state.waiting += 1;
        let mut ready = core::mem::take(&mut state.readiness);
        ready.clear();
        let mut result = None;
        loop {
            result = result.or_else(|| answer(&mut state));
            if result.is_some() {
                break;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
            if state.is_held {
                shared.changed.wait_for(&mut state, left.unwrap_or(limits::IDLE_MAX));
                continue;
            }
            state.is_held = true;
            shared.advance(&mut state, &mut ready, left, true, |state| {
                result = answer(state);
                result.is_some()
            });
            state.is_held = false;
            shared.wake(&mut state);
            if state.waiting > 1 {
                // Another caller has to take the role.
                shared.changed.notify_all();
            }
            // A callback may take its time, and others move on meanwhile.
            state.waiting -= 1;
            run_callbacks(&mut state);
            state.waiting += 1;
        }
        state.readiness = ready;
        state.waiting -= 1;
        state.last_wait = Instant::now();
        if state.waiting == 0 && state.call(|driver| driver.is_busy()).unwrap_or(false) {
            shared.needed.notify_one();
        }
        run_callbacks(&mut state);
        result
    }

    /// Whether a call has ended.
    pub fn has_ended(&self, call: CallId) -> bool {
        let state = self.shared.state.lock();
        state.stopped.is_some() || state.outcomes.ended.contains_key(&call)
    }

    /// Nobody will ask for the end of a call.
    pub fn abandon(&self, call: CallId) {
        let mut state = self.shared.state.lock();
        let ended = state.outcomes.ended.remove(&call);
        if ended.is_none() && state.stopped.is_none() {
            state.outcomes.abandoned.insert(call);
        }
        drop(state);
        // Dropping user memory may run user code.
        drop(ended);
    }

    /// Whether this is a child that was forked off the process that made the reactor.
    pub fn is_of_parent(&self) -> bool {
        self.process != std::process::id()
    }

    /// Says goodbye and ends the background thread. What has not ended fails. In a forked child nothing is done: the
    /// connections are the parent's.
    pub fn close(&self) {
        self.close_by(Instant::now() + limits::FAREWELL_MAX);
    }

    /// As [`Reactor::close`], where the last bytes have until the deadline.
    pub fn close_by(&self, deadline: Instant) {
        if self.is_of_parent() {
            return;
        }
        let shared = &*self.shared;
        let mut state = shared.state.lock();
        if core::mem::replace(&mut state.is_closing, true) {
            return;
        }
        let _ = state.call(D::leave);
        let driver = state.driver.take();
        state.stopped.get_or_insert_with(|| Stopped::Closed.into());
        shared.changed.notify_all();
        shared.needed.notify_all();
        run_callbacks(&mut state);
        drop(state);
        shared.poller.kick();
        if let Some(driver) = driver {
            guard("closing", || driver.finish(deadline));
        }
        let thread = self.background.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl<D: Drive> Drop for Reactor<D> {
    fn drop(&mut self) {
        if self.is_of_parent() {
            // To drop the driver would end what the parent still uses, and its thread is not here to be joined.
            core::mem::forget(self.shared.clone());
        }
        self.close();
    }
}

impl<D: Drive> Shared<D> {
    /// Moves the driver on until it is done, it breaks, the time is over, or callbacks wait. A thread that spins looks
    /// for a while at what is about to arrive before it sleeps.
    fn advance(
        &self,
        state: &mut MutexGuard<'_, State<D>>,
        ready: &mut Readiness,
        left: Option<Duration>,
        spins: bool,
        mut is_done: impl FnMut(&mut State<D>) -> bool,
    ) {
        let until = left.map(|left| Instant::now() + left);
        while !is_done(state) {
            if state.call(|driver| driver.turn(ready)).is_err() {
                return;
            }
            self.notify(state);
            if is_done(state) || !state.outcomes.callbacks.is_empty() {
                break;
            }
            let begun = Instant::now();
            let plan = |driver: &mut D| (patience(driver), spins.then(|| driver.outlook()));
            let Ok((mut patience, outlook)) = state.call(plan) else { return };
            if let Some(until) = until {
                let left = until.saturating_duration_since(begun);
                if left.is_zero() {
                    break;
                }
                patience = patience.min(left);
            }
            let outlook = outlook.unwrap_or(Outlook::Nothing);
            ready.clear();
            if self.look_out(state, ready, outlook, begun, patience) {
                state.learn(outlook, begun.elapsed());
                continue;
            }
            match state.call(D::prepare_sleep) {
                Ok(true) => patience = Duration::ZERO,
                Ok(false) => {}
                Err(_) => return,
            }
            state.asleep_until = Instant::now() + patience;
            state.sleeping += 1;
            let waited = MutexGuard::unlocked_fair(state, || self.poller.wait(ready, patience));
            state.sleeping -= 1;
            if state.driver.is_none() && state.sleeping > 0 {
                // One kick wakes one thread, and all have to leave.
                self.poller.kick();
            }
            state.learn(outlook, begun.elapsed());
            if let Err(error) = waited {
                state.stop(Stopped::Poller(error.to_string()));
                return;
            }
        }
        // Threads that still sleep have to be woken for what arrives from now on.
        if state.sleeping > 0 && state.call(D::prepare_sleep).unwrap_or(false) {
            self.poller.kick();
        }
    }

    /// Looks for a while at what is about to arrive. Returns true if it has.
    fn look_out(
        &self,
        state: &mut MutexGuard<'_, State<D>>,
        ready: &mut Readiness,
        outlook: Outlook,
        begun: Instant,
        patience: Duration,
    ) -> bool {
        let Some(at) = outlook.index() else { return false };
        let budget = state.waiters[at].spin().min(patience);
        if budget.is_zero() {
            return false;
        }
        let stirs = |driver: &mut D| {
            (0..Policy::DRIVER.checks_per_clock).any(|_| {
                let stirs = driver.stirs();
                core::hint::spin_loop();
                stirs
            })
        };
        loop {
            if state.call(stirs).unwrap_or(true) {
                return true;
            }
            if outlook != Outlook::Memory {
                // An error shows again when the thread sleeps.
                let _ = self.poller.wait(ready, Duration::ZERO);
                if !ready.is_empty() {
                    return true;
                }
            }
            if begun.elapsed() >= budget {
                return false;
            }
            // A thread that wants to start something is not kept waiting.
            MutexGuard::bump(state);
        }
    }

    fn run_in_background(&self) {
        let mut ready = Readiness::default();
        let mut state = self.state.lock();
        while !state.is_closing && state.stopped.is_none() {
            let is_busy = state.call(|driver| driver.is_busy()).unwrap_or(false);
            if state.waiting > 0 {
                self.needed.wait_for(&mut state, limits::STAND_BY);
            } else if !is_busy && state.last_wait.elapsed() < D::LINGER {
                self.needed.wait_for(&mut state, D::LINGER);
            } else {
                self.advance(&mut state, &mut ready, None, false, |state| {
                    state.waiting > 0 || state.is_closing
                });
            }
            run_callbacks(&mut state);
        }
        self.wake(&mut state);
    }

    /// Has callers that wait look at what was reported.
    fn notify(&self, state: &mut State<D>) -> bool {
        let has_news = core::mem::take(&mut state.outcomes.has_news) || state.stopped.is_some();
        if has_news && state.waiting > 0 {
            self.changed.notify_all();
        }
        has_news
    }

    /// As [`Shared::notify`], for a thread without the role: the one that has it may sleep in the poller.
    fn wake(&self, state: &mut State<D>) {
        if self.notify(state) && state.sleeping > 0 && (state.is_held || state.stopped.is_some()) {
            self.poller.kick();
        }
    }
}

impl<D: Drive> State<D> {
    /// Learns for how long it pays to spin.
    fn learn(&mut self, outlook: Outlook, waited: Duration) {
        if let Some(at) = outlook.index() {
            self.waiters[at].learn(waited);
        }
    }

    /// Calls the driver, and takes its report. All calls but the last one go through here: if one panics, the driver
    /// is dropped, so that its sockets close and its memory is released, and every call fails from then on.
    fn call<R>(&mut self, work: impl FnOnce(&mut D) -> R) -> Result<R, D::Error> {
        let Self { driver: Some(driver), outcomes, .. } = self else {
            return Err(self.stopped.clone().unwrap_or_else(|| Stopped::Closed.into()));
        };
        let work = || {
            let result = work(driver);
            driver.report(outcomes);
            result
        };
        catch_unwind(AssertUnwindSafe(work))
            .map_err(|panic| self.stop(Stopped::Panicked(panic_text(&*panic))))
    }

    fn stop(&mut self, why: Stopped) -> D::Error {
        let driver = self.driver.take();
        let error: D::Error = why.clone().into();
        self.stopped.get_or_insert_with(|| error.clone());
        // Both run user code: the log's, and that of memory that is released.
        self.outcomes.callbacks.push(Box::new(move || tracing::error!(%why, "the reactor has stopped")));
        self.outcomes.callbacks.push(Box::new(move || drop(driver)));
        error
    }
}

/// After which time something has to be done.
fn patience(driver: &impl Drive) -> Duration {
    driver.patience().unwrap_or(limits::IDLE_MAX).min(limits::IDLE_MAX)
}

/// Runs what waits to be run without the lock.
fn run_callbacks<D: Drive>(state: &mut MutexGuard<'_, State<D>>) {
    if state.outcomes.callbacks.is_empty() {
        return;
    }
    let callbacks = core::mem::take(&mut state.outcomes.callbacks);
    MutexGuard::unlocked(state, || callbacks.into_iter().for_each(|callback| guard("a callback", callback)));
}

/// Runs user code. If it panics, that is logged, and nothing else happens.
fn guard(what: &str, work: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
        let text = panic_text(&*panic);
        // The log may have been what panicked.
        let _ = catch_unwind(|| tracing::error!(text, "{what} panicked"));
    }
}

/// What a panic said.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref().cloned()).unwrap_or_else(|| "a panic without a message".into())
}
