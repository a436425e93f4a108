//! Who moves the driver on: progress is a role, not a thread.
//!
//! A caller that has to wait takes the role and moves everything on itself, so a commit costs no hand-over
//! between threads. While nobody waits, a background thread has it, so that operations advance while the
//! user computes, and the master and the neighbours hear that we are alive.

use crate::driver::{Driver, Ended};
use crate::spin::{Outlook, Spin};
use crate::{Error, limits};
use parking_lot::{Condvar, Mutex, MutexGuard};
use ringfold_fabric::poller::{Poller, Readiness};
use ringfold_fabric::waiter::CancelToken;
use ringfold_proto::id::CallId;
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What an engine moves on. Nothing in it waits.
pub(crate) trait Drive: Send + 'static {
    /// How a call ends.
    type Ended: Send + 'static;

    /// Does what can be done now.
    fn turn(&mut self, ready: &Readiness);

    /// How long nothing needs to be done, if nothing arrives.
    fn patience(&self) -> Duration;

    /// Whether something has come of which the poller tells nothing.
    fn stirs(&self) -> bool;

    /// From now on the poller tells of all that comes. Says whether something has come already: then nobody may sleep.
    fn prepare_sleep(&mut self) -> bool;

    /// What is about to come, and worth looking for before the thread sleeps.
    fn outlook(&self) -> Outlook;

    /// Whether operations are under way.
    fn is_busy(&self) -> bool;

    /// Calls that have ended since the last time.
    fn take_ended(&mut self) -> std::vec::Drain<'_, (CallId, Self::Ended)>;

    /// Says goodbye. What has not ended fails.
    fn leave(&mut self);

    /// The end of a call that came to nothing.
    fn failed(error: Error) -> Self::Ended;
}

/// A driver, and the threads that move it on.
pub(crate) struct Engine<D: Drive = Driver> {
    shared: Arc<Shared<D>>,
    background: Mutex<Option<JoinHandle<()>>>,
    watch: Option<CancelToken>,
    /// The process that it works in. A child that was forked off has its memory and sockets, but not its threads.
    process: u32,
}

struct Shared<D: Drive> {
    poller: Arc<Poller>,
    state: Mutex<State<D>>,
    /// A call has ended, or the role is free.
    changed: Condvar,
    /// The background thread is needed.
    needed: Condvar,
}

struct State<D: Drive> {
    /// None after a panic in it, and after the end.
    driver: Option<D>,
    /// Why there is none.
    broken: Option<Error>,
    ended: HashMap<CallId, D::Ended>,
    /// Calls whose end nobody will ask for.
    abandoned: HashSet<CallId>,
    /// Callers that wait, whoever has the role.
    waiting: usize,
    /// A caller has the role.
    is_held: bool,
    last_wait: Instant,
    /// Threads that sleep in the poller.
    sleeping: usize,
    spin: Spin,
    /// Until when the background thread sleeps, if nothing wakes it.
    asleep_until: Instant,
    is_closing: bool,
}

impl<D: Drive> Engine<D> {
    /// Starts the background thread.
    pub(crate) fn start(driver: D, poller: Arc<Poller>, watch: Option<CancelToken>) -> std::io::Result<Self> {
        let now = Instant::now();
        let state = State {
            driver: Some(driver),
            broken: None,
            ended: HashMap::new(),
            abandoned: HashSet::new(),
            waiting: 0,
            is_held: false,
            last_wait: now,
            sleeping: 0,
            spin: Spin::default(),
            asleep_until: now,
            is_closing: false,
        };
        let shared = Arc::new(Shared {
            poller,
            state: Mutex::new(state),
            changed: Condvar::new(),
            needed: Condvar::new(),
        });
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("ringfold-progress".into())
            .spawn(move || for_thread.run_in_background())?;
        let process = std::process::id();
        Ok(Self { shared, background: Mutex::new(Some(thread)), watch, process })
    }

    /// Does something with the driver, and sees to it that what it began goes on.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut D) -> R) -> Result<R, Error> {
        let mut state = self.shared.state.lock();
        let result = state.guarded(work)?;
        self.shared.collect(&mut state);
        if state.waiting == 0 {
            let patience = state.driver.as_ref().map_or(Duration::ZERO, D::patience);
            if Instant::now() + patience < state.asleep_until {
                self.shared.poller.kick();
            }
            self.shared.needed.notify_one();
        }
        Ok(result)
    }

    /// As [`Engine::with`], for a call that will be waited for at once: the waiter moves it on.
    pub(crate) fn with_waiter<R>(&self, work: impl FnOnce(&mut D) -> R) -> Result<R, Error> {
        let mut state = self.shared.state.lock();
        let result = state.guarded(work)?;
        self.shared.collect(&mut state);
        Ok(result)
    }

    /// What waits look at now and then.
    pub(crate) fn watch(&self) -> Option<&CancelToken> {
        self.watch.as_ref()
    }

    /// As [`Engine::wait`], but nobody watches.
    pub(crate) fn wait_to_the_end(&self, call: CallId) -> D::Ended {
        self.wait_until(call, None).unwrap_or_else(|| D::failed(Error::Internal("the wait ended".into())))
    }

    /// Waits for the end of a call until a time, if one is given; none if it has not ended by then.
    pub(crate) fn wait_until(&self, call: CallId, until: Option<Instant>) -> Option<D::Ended> {
        let shared = &*self.shared;
        let mut state = shared.state.lock();
        state.waiting += 1;
        let mut ready = Readiness::default();
        let ended = loop {
            if let Some(ended) = state.ended.remove(&call) {
                break Some(ended);
            }
            if let Some(error) = &state.broken {
                break Some(D::failed(error.clone()));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break None;
            }
            if state.is_held {
                shared.changed.wait_for(&mut state, left.unwrap_or(limits::IDLE_MAX));
            } else {
                state.is_held = true;
                shared.advance(&mut state, &mut ready, left, true, |state| state.ended.contains_key(&call));
                state.is_held = false;
                if state.waiting > 1 {
                    // Someone else has to take the role.
                    shared.changed.notify_all();
                }
            }
        };
        state.waiting -= 1;
        state.last_wait = Instant::now();
        if state.waiting == 0 && state.driver.as_ref().is_some_and(D::is_busy) {
            shared.needed.notify_one();
        }
        ended
    }

    /// Whether a call has ended.
    pub(crate) fn has_ended(&self, call: CallId) -> bool {
        let state = self.shared.state.lock();
        state.broken.is_some() || state.ended.contains_key(&call)
    }

    /// Nobody will ask for the end of a call.
    pub(crate) fn abandon(&self, call: CallId) {
        let mut state = self.shared.state.lock();
        let ended = state.ended.remove(&call);
        if ended.is_none() && state.broken.is_none() {
            state.abandoned.insert(call);
        }
        drop(state);
        // Its memory may be kept by something that does what it likes when it is let go of.
        drop(ended);
    }

    /// Whether this is a child that was forked off the process that made the engine.
    pub(crate) fn is_of_parent(&self) -> bool {
        self.process != std::process::id()
    }

    /// Says goodbye and ends the background thread. What has not ended fails. In a forked child nothing is done: the
    /// connections are the parent's.
    pub(crate) fn close(&self) {
        if self.is_of_parent() {
            return;
        }
        {
            let mut state = self.shared.state.lock();
            if state.is_closing {
                return;
            }
            let _ = state.guarded(D::leave);
            self.shared.collect(&mut state);
            state.is_closing = true;
            let driver = state.driver.take();
            state.broken.get_or_insert(Error::Left);
            self.shared.changed.notify_all();
            self.shared.needed.notify_all();
            drop(state);
            // Its sockets and threads need no lock to end.
            drop(driver);
        }
        self.shared.poller.kick();
        let thread = self.background.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl Engine {
    /// Waits for the end of a call, and takes it. If the watch has it leave off, the peer leaves the run: a vote can't
    /// be taken back, and nothing of ours may touch the call's memory once this has returned.
    pub(crate) fn wait(&self, call: CallId) -> Ended {
        let Some(watch) = &self.watch else { return self.wait_to_the_end(call) };
        watch.wait(|until| self.wait_until(call, Some(until))).unwrap_or_else(|| {
            self.close();
            Ended { result: Err(Error::Interrupted), ..self.wait_to_the_end(call) }
        })
    }
}

impl<D: Drive> Drop for Engine<D> {
    fn drop(&mut self) {
        if self.is_of_parent() {
            // To drop the driver would end what the parent still uses, and its thread is not here to be joined.
            core::mem::forget(self.shared.clone());
        }
        self.close();
    }
}

impl<D: Drive> Shared<D> {
    /// Moves the driver on until there is a reason to stop, it breaks, or the time is over. Whoever has nothing better to
    /// do looks out for a while before it sleeps.
    fn advance(
        &self,
        state: &mut MutexGuard<'_, State<D>>,
        ready: &mut Readiness,
        left: Option<Duration>,
        looks_out: bool,
        is_enough: impl Fn(&State<D>) -> bool,
    ) {
        let until = left.map(|left| Instant::now() + left);
        while !is_enough(state) {
            if state.guarded(|driver| driver.turn(ready)).is_err() {
                return;
            }
            self.collect(state);
            if is_enough(state) {
                break;
            }
            let Some(driver) = &state.driver else { return };
            let begun = Instant::now();
            let mut patience = driver.patience();
            if let Some(until) = until {
                let left = until.saturating_duration_since(begun);
                if left.is_zero() {
                    break;
                }
                patience = patience.min(left);
            }
            let outlook = if looks_out { driver.outlook() } else { Outlook::Nothing };
            ready.clear();
            if self.look_out(state, ready, outlook, begun, patience) {
                state.spin.learn(outlook, begun.elapsed());
                continue;
            }
            let Some(driver) = &mut state.driver else { return };
            if driver.prepare_sleep() {
                patience = Duration::ZERO;
            }
            state.asleep_until = Instant::now() + patience;
            state.sleeping += 1;
            let waited = MutexGuard::unlocked_fair(state, || self.poller.wait(ready, patience));
            state.sleeping -= 1;
            if state.driver.is_none() && state.sleeping > 0 {
                // One kick wakes one thread, and all have to leave.
                self.poller.kick();
            }
            state.spin.learn(outlook, begun.elapsed());
            if let Err(error) = waited {
                state.break_down(Error::system("waiting for sockets", &error));
                return;
            }
        }
        // Whoever still sleeps has to be woken for what comes from now on.
        if state.sleeping > 0
            && let Some(driver) = &mut state.driver
            && driver.prepare_sleep()
        {
            self.poller.kick();
        }
    }

    /// Looks for a while at what is about to come. Says whether it came.
    fn look_out(
        &self,
        state: &mut MutexGuard<'_, State<D>>,
        ready: &mut Readiness,
        outlook: Outlook,
        begun: Instant,
        patience: Duration,
    ) -> bool {
        let budget = state.spin.budget(outlook).min(patience);
        if budget.is_zero() {
            return false;
        }
        loop {
            for _ in 0..limits::LOOKS {
                if state.driver.as_ref().is_none_or(D::stirs) {
                    return true;
                }
                core::hint::spin_loop();
            }
            if outlook != Outlook::Memory {
                // An error shows again when it is waited for in earnest.
                let _ = self.poller.wait(ready, Duration::ZERO);
                if !ready.is_empty() {
                    return true;
                }
            }
            if begun.elapsed() >= budget {
                return false;
            }
            // Whoever wants to start something is not kept waiting.
            MutexGuard::bump(state);
        }
    }

    fn run_in_background(&self) {
        let mut ready = Readiness::default();
        let mut state = self.state.lock();
        while !state.is_closing && state.broken.is_none() {
            let is_busy = state.driver.as_ref().is_some_and(D::is_busy);
            if state.waiting > 0 {
                self.needed.wait_for(&mut state, limits::STAND_BY);
            } else if !is_busy && state.last_wait.elapsed() < limits::LINGER {
                self.needed.wait_for(&mut state, limits::LINGER);
            } else {
                self.advance(&mut state, &mut ready, None, false, |state| {
                    state.waiting > 0 || state.is_closing
                });
            }
        }
        self.changed.notify_all();
    }

    /// Brings the ends of calls to those who wait for them.
    fn collect(&self, state: &mut State<D>) {
        let State { driver: Some(driver), ended, abandoned, waiting, .. } = state else { return };
        let before = ended.len();
        for (call, end) in driver.take_ended() {
            if !abandoned.remove(&call) {
                ended.insert(call, end);
            }
        }
        if ended.len() > before && *waiting > 0 {
            self.changed.notify_all();
        }
    }
}

impl<D: Drive> State<D> {
    /// Works on the driver. If that panics, the driver is dropped: its sockets close, its memory is let go, and every
    /// call fails from now on.
    fn guarded<R>(&mut self, work: impl FnOnce(&mut D) -> R) -> Result<R, Error> {
        let Some(driver) = &mut self.driver else {
            return Err(self.broken.clone().unwrap_or(Error::Left));
        };
        match catch_unwind(AssertUnwindSafe(|| work(driver))) {
            Ok(result) => Ok(result),
            Err(panic) => {
                let what = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
                let what = what.or_else(|| panic.downcast_ref::<String>().cloned());
                let error = Error::Internal(what.unwrap_or_else(|| "a panic without words".into()));
                self.break_down(error.clone());
                Err(error)
            }
        }
    }

    fn break_down(&mut self, error: Error) {
        let driver = self.driver.take();
        // A driver that has panicked may do so again when it is dropped; and so may a log whose reader is gone.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(driver)));
        let _ = catch_unwind(|| tracing::error!(%error, "the communicator can't go on"));
        self.broken.get_or_insert(error);
    }
}
