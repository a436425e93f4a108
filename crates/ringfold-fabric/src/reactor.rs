//! Poller, progress role and background thread around a driver that never waits.
//!
//! Progress is a role, not a thread. A caller that waits takes the role and drives by itself, so that no result costs
//! a hand-over between threads. While no caller waits, the background thread drives, so that operations advance while
//! the user computes, and peers see that this one is alive.
//!
//! A panic in the driver stops the reactor: the driver is dropped, and every call fails from then on. User callbacks
//! run without the lock and without the role, so they may call the reactor.

mod drive;
#[cfg(test)]
mod tests;

pub use drive::{Callback, Drive, Expected, Outcomes, Stopped};

use crate::limits;
use crate::poller::{Poller, Readiness};
use crate::waiter::{Step, Wait, Waiter, Yield};
use core::any::Any;
use core::time::Duration;
use parking_lot::{Condvar, Mutex, MutexGuard};
use ringfold_proto::id::CallId;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// A driver, and the threads that drive it.
pub struct Reactor<D: Drive> {
    shared: Arc<Shared<D>>,
    background: Mutex<Option<JoinHandle<()>>>,
    /// The process that started it. A forked child has its memory and sockets, but not its threads.
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
    /// When the threads that sleep in the poller wake up by themselves, by role.
    wakes_at: [Option<Instant>; 2],
    /// How long it pays to spin, by what is expected.
    waiters: [Waiter; Expected::ALL.len()],
    is_closing: bool,
    /// Kept between waits, so that nothing is allocated.
    readiness: Readiness,
}

/// In which role a thread drives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Caller,
    Background,
}

impl<D: Drive> Reactor<D> {
    /// Starts the background thread, under this name.
    pub fn start(driver: D, poller: Arc<Poller>, thread: &str) -> io::Result<Self> {
        let reactor = Self::without_thread(driver, poller);
        let shared = reactor.shared.clone();
        let thread =
            std::thread::Builder::new().name(thread.into()).spawn(move || shared.run_in_background())?;
        *reactor.background.lock() = Some(thread);
        Ok(reactor)
    }

    fn without_thread(driver: D, poller: Arc<Poller>) -> Self {
        let state = State {
            driver: Some(driver),
            stopped: None,
            outcomes: Outcomes::default(),
            waiting: 0,
            is_held: false,
            last_wait: Instant::now(),
            wakes_at: [None; 2],
            waiters: Expected::ALL.map(|expected| Waiter::new(expected.policy())),
            is_closing: false,
            readiness: Readiness::default(),
        };
        let (changed, needed) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { poller, state: Mutex::new(state), changed, needed });
        Self { shared, background: Mutex::new(None), process: std::process::id() }
    }

    /// Uses the driver, and sees to it that what was begun goes on.
    pub fn with<R>(&self, work: impl FnOnce(&mut D) -> R) -> Result<R, D::Error> {
        self.visit(true, work)
    }

    /// As [`Reactor::with`], for a call that is waited for at once: the waiting thread drives it.
    pub fn with_waiter<R>(&self, work: impl FnOnce(&mut D) -> R) -> Result<R, D::Error> {
        self.visit(false, work)
    }

    fn visit<R>(&self, needs_thread: bool, work: impl FnOnce(&mut D) -> R) -> Result<R, D::Error> {
        let shared = &*self.shared;
        let mut state = shared.state.lock();
        let result = state.call(work);
        shared.wake(&mut state);
        if needs_thread || state.is_held {
            shared.wake_if_due(&mut state, D::prepare_sleep);
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

    /// Asks the driver for an answer; if it has none, drives once, unless another caller drives.
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
            shared.wake_if_due(&mut state, D::prepare_sleep);
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
            shared.advance(&mut state, &mut ready, until, Role::Caller, |state| {
                result = answer(state);
                result.is_some()
            });
            state.is_held = false;
            shared.wake(&mut state);
            shared.wake_if_due(&mut state, D::prepare_sleep);
            if state.waiting > 1 {
                // Another caller has to take the role.
                shared.changed.notify_all();
            }
            // A callback may take its time, and others drive meanwhile.
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

    /// Nobody will ask for the end of a call. In a forked child nothing is waited for: a thread of the parent may have held the lock.
    pub fn abandon(&self, call: CallId) {
        if self.is_of_parent() {
            return;
        }
        let mut state = self.shared.state.lock();
        let ended = state.outcomes.ended.remove(&call);
        if ended.is_none() && state.stopped.is_none() {
            state.outcomes.abandoned.insert(call);
        }
        drop(state);
        // Dropping user memory may run user code.
        drop(ended);
    }

    /// Whether this is a forked child of the process that started the reactor.
    pub fn is_of_parent(&self) -> bool {
        self.process != std::process::id()
    }

    /// Says goodbye and ends the background thread. What has not ended fails. A forked child does nothing: the
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
            run_guarded("closing", || driver.finish(deadline));
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
    /// Drives until it is done, the driver is gone, the time is over, or callbacks have to run.
    fn advance(
        &self,
        state: &mut MutexGuard<'_, State<D>>,
        ready: &mut Readiness,
        until: Option<Instant>,
        role: Role,
        mut is_done: impl FnMut(&mut State<D>) -> bool,
    ) {
        // What a caller waits for was driven when it was started: there is nothing to do until something arrives.
        let mut is_driven = D::DRIVES_IN_CALLS && role == Role::Caller && ready.is_empty();
        while !is_done(state) {
            if !core::mem::take(&mut is_driven) && state.call(|driver| driver.turn(ready)).is_err() {
                return;
            }
            self.notify(state);
            ready.clear();
            if is_done(state) || !state.outcomes.callbacks.is_empty() {
                return;
            }
            let begun = Instant::now();
            let expected = match role {
                Role::Caller => state.call(|driver| driver.expects()),
                Role::Background => Ok(Expected::Nothing),
            };
            let Ok(expected) = expected else { return };
            // Another thread may have ended what this one waits for while it spun.
            if !self.spin(state, ready, expected, begun)
                && (is_done(state) || !self.sleep(state, ready, until, role))
            {
                return;
            }
            state.waiters[expected as usize].learn(begun.elapsed());
        }
    }

    /// Checks for a while whether what is expected has arrived. True if it has.
    fn spin(
        &self,
        state: &mut MutexGuard<'_, State<D>>,
        ready: &mut Readiness,
        expected: Expected,
        begun: Instant,
    ) -> bool {
        if expected == Expected::Nothing {
            return false;
        }
        // A spin is too short to be late for a timer.
        let wait = Wait::default();
        let mut waiter = state.waiters[expected as usize].clone();
        waiter.begin_at(begun);
        let (mut looks, mut asks_poller) = (0, true);
        let has_come = loop {
            let step = state.call(|driver| {
                let has_come = match expected {
                    Expected::Sockets => driver.look(),
                    _ => None,
                };
                looks += 1;
                asks_poller = has_come.is_none() || looks % limits::LOOKS_PER_POLL == 0;
                loop {
                    match has_come == Some(true) || driver.has_input() {
                        true => break None,
                        false => match waiter.next_step(&wait) {
                            Ok(Step::Check) => {}
                            step => break Some(step),
                        },
                    }
                }
            });
            let yields = match step {
                Ok(Some(Ok(Step::CheckAll))) => false,
                Ok(Some(Err(Yield))) => true,
                Ok(Some(_)) => break false,
                Ok(None) | Err(_) => break true,
            };
            // A thread that wants to start something is not kept waiting.
            if !yields {
                MutexGuard::bump(state);
            }
            if expected != Expected::SharedMemory && asks_poller {
                // An error shows again when the thread sleeps.
                let _ = self.poller.wait(ready, Duration::ZERO);
                if !ready.is_empty() {
                    break true;
                }
            }
            // What has arrived already needs no other thread to run first.
            if yields {
                MutexGuard::unlocked(state, std::thread::yield_now);
            }
        };
        state.waiters[expected as usize] = waiter;
        has_come
    }

    /// Sleeps in the poller until something arrives or is due. False if there is nothing left to wait for.
    fn sleep(
        &self,
        state: &mut MutexGuard<'_, State<D>>,
        ready: &mut Readiness,
        until: Option<Instant>,
        role: Role,
    ) -> bool {
        let now = Instant::now();
        let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(now));
        if left.is_zero() {
            return false;
        }
        let timeout =
            state.call(
                |driver| {
                    if driver.prepare_sleep() { Duration::ZERO } else { next_timeout(driver).min(left) }
                },
            );
        let Ok(timeout) = timeout else { return false };
        state.wakes_at[role as usize] = Some(now + timeout);
        let waited = MutexGuard::unlocked_fair(state, || self.poller.wait(ready, timeout));
        state.wakes_at[role as usize] = None;
        // A kick wakes one thread. It was for the caller that drives, or, at the end, for all.
        let is_for_caller = role == Role::Background && state.is_held && ready.has_kick();
        if state.is_any_asleep() && (is_for_caller || state.driver.is_none()) {
            self.poller.kick();
        }
        if let Err(error) = waited {
            state.stop(Stopped::Poller(error.to_string()));
            return false;
        }
        true
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
                self.advance(&mut state, &mut ready, None, Role::Background, |state| {
                    state.waiting > 0 || state.is_closing
                });
            }
            run_callbacks(&mut state);
        }
        self.wake(&mut state);
    }

    /// Has callers that wait check what was reported.
    fn notify(&self, state: &mut State<D>) -> bool {
        let has_news = core::mem::take(&mut state.outcomes.has_news) || state.stopped.is_some();
        if has_news && state.waiting > 0 {
            self.changed.notify_all();
        }
        has_news
    }

    /// As [`Shared::notify`], for a thread without the role: the one that has it may sleep in the poller.
    fn wake(&self, state: &mut State<D>) {
        if self.notify(state) && state.is_any_asleep() && (state.is_held || state.stopped.is_some()) {
            self.poller.kick();
        }
    }

    /// Wakes the thread that drives from now on, if it sleeps and would be late. After a turn, `has_input` is
    /// [`Drive::prepare_sleep`]: a turn ends what the sleeping thread had prepared.
    fn wake_if_due(&self, state: &mut State<D>, has_input: impl FnOnce(&mut D) -> bool) {
        let role = if state.is_held { Role::Caller } else { Role::Background };
        let Some(wakes_at) = state.wakes_at[role as usize] else { return };
        let is_due = |driver: &mut D| has_input(driver) || Instant::now() + next_timeout(driver) < wakes_at;
        if self.poller.has_buffered() || state.call(is_due).unwrap_or(false) {
            self.poller.kick();
        }
    }
}

impl<D: Drive> State<D> {
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

    fn is_any_asleep(&self) -> bool {
        self.wakes_at.iter().any(Option::is_some)
    }
}

/// After which time something has to be done.
fn next_timeout(driver: &impl Drive) -> Duration {
    driver.next_timeout().unwrap_or(limits::IDLE_MAX).min(limits::IDLE_MAX)
}

/// Runs what has to run without the lock.
fn run_callbacks<D: Drive>(state: &mut MutexGuard<'_, State<D>>) {
    if state.outcomes.callbacks.is_empty() {
        return;
    }
    let callbacks = core::mem::take(&mut state.outcomes.callbacks);
    let run = |callback| run_guarded("a callback", callback);
    MutexGuard::unlocked(state, || callbacks.into_iter().for_each(run));
}

/// Runs user code. A panic in it is logged, and nothing else happens.
pub fn run_guarded(what: &str, work: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
        let text = panic_text(&*panic);
        // The log may have been what panicked.
        let _ = catch_unwind(|| tracing::error!(text, "{what} panicked"));
    }
}

/// The message of a panic.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref().cloned()).unwrap_or_else(|| "a panic without a message".into())
}
