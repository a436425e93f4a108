//! Threads that wait for a driver which does what a test asks for.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

const LONG: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Fake {
    /// The call in which it panics.
    panics_in: Arc<Mutex<Option<&'static str>>>,
    /// When its timer is due; the next turn takes it.
    due: Option<Instant>,
    /// Whether the poller reports what arrives.
    is_armed: bool,
    ended: Vec<CallId>,
    callbacks: Vec<Callback>,
    /// Becomes callbacks in the next turn.
    planned: Arc<Mutex<Vec<Callback>>>,
    /// The end of the connections takes as long as this one's sender lives.
    farewell: Option<Receiver<()>>,
}

impl Fake {
    fn enter(&self, call: &str) {
        assert_ne!(*self.panics_in.lock(), Some(call), "as planned");
    }
}

impl Drive for Fake {
    type Ended = Result<(), Stopped>;
    type Error = Stopped;

    const LINGER: Duration = Duration::from_millis(1);

    fn turn(&mut self, _: &Readiness) {
        self.enter("turn");
        self.is_armed = false;
        self.due.take_if(|due| *due <= Instant::now());
        self.callbacks.append(&mut self.planned.lock());
    }

    fn next_timeout(&self) -> Option<Duration> {
        self.enter("next_timeout");
        self.due.map(|due| due.saturating_duration_since(Instant::now()))
    }

    fn has_input(&self) -> bool {
        self.enter("has_input");
        false
    }

    fn prepare_sleep(&mut self) -> bool {
        self.enter("prepare_sleep");
        self.is_armed = true;
        false
    }

    fn expects(&self) -> Expected {
        self.enter("expects");
        Expected::SharedMemory
    }

    fn is_busy(&self) -> bool {
        self.enter("is_busy");
        false
    }

    fn report(&mut self, outcomes: &mut Outcomes<Self::Ended>) {
        self.enter("report");
        self.ended.drain(..).for_each(|call| outcomes.end(call, Ok(())));
        self.callbacks.drain(..).for_each(|callback| outcomes.call_back(callback));
    }

    fn leave(&mut self) {
        self.enter("leave");
    }

    fn finish(self, _: Instant) {
        self.enter("finish");
        self.farewell.map(|farewell| farewell.recv_timeout(LONG));
    }

    fn failed(error: Stopped) -> Self::Ended {
        Err(error)
    }
}

fn start(driver: Fake) -> Arc<Reactor<Fake>> {
    Arc::new(Reactor::start(driver, Arc::new(Poller::new().unwrap()), "test").unwrap())
}

/// Starts threads that wait for calls; how each wait ended.
fn wait_beside(reactor: &Arc<Reactor<Fake>>, calls: [u64; 2]) -> Receiver<Result<(), Stopped>> {
    let (say, heard) = channel();
    for call in calls {
        let (reactor, say) = (reactor.clone(), say.clone());
        std::thread::spawn(move || say.send(reactor.wait(CallId(call))));
    }
    until(|| reactor.shared.state.lock().waiting == calls.len());
    heard
}

/// Waits until the background thread sleeps, and nothing else would wake it soon.
fn await_background_sleep(reactor: &Reactor<Fake>) {
    until(|| reactor.shared.state.lock().wakes_at[Role::Background as usize].is_some());
}

/// Whether somebody has kicked and no thread was woken by that yet.
fn takes_kick(reactor: &Reactor<Fake>) -> bool {
    let mut ready = Readiness::default();
    reactor.shared.poller.wait(&mut ready, Duration::ZERO).unwrap();
    ready.has_kick()
}

fn until(is_true: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_true() {
        assert!(began.elapsed() < LONG, "timed out");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_panic_in_any_call_of_the_driver_fails_all_who_wait() {
    for call in ["turn", "next_timeout", "has_input", "prepare_sleep", "expects", "is_busy", "report"] {
        let fake = Fake::default();
        let panics_in = fake.panics_in.clone();
        let reactor = start(fake);
        let ends = wait_beside(&reactor, [1, 2]);
        *panics_in.lock() = Some(call);
        reactor.shared.poller.kick();
        for _ in 0..2 {
            let end = ends.recv_timeout(LONG).unwrap_or_else(|_| panic!("{call}: a thread waits for ever"));
            assert!(matches!(&end, Err(Stopped::Panicked(why)) if why.contains("as planned")), "{end:?}");
        }
        assert!(matches!(reactor.with(|_| ()), Err(Stopped::Panicked(_))));
        reactor.close();
    }
}

#[test]
fn a_panic_of_one_caller_fails_all_who_wait_at_once() {
    let reactor = start(Fake::default());
    let ends = wait_beside(&reactor, [1, 2]);
    let began = Instant::now();
    assert!(reactor.with(|_| panic!("as planned")).is_err());
    for _ in 0..2 {
        assert!(ends.recv_timeout(LONG).unwrap().is_err());
    }
    assert!(began.elapsed() < limits::IDLE_MAX, "they slept on");
}

#[test]
fn a_panic_in_the_last_calls_is_no_panic_of_the_caller() {
    for call in ["leave", "finish"] {
        let fake = Fake::default();
        *fake.panics_in.lock() = Some(call);
        let reactor = start(fake);
        reactor.close();
        assert!(reactor.with(|_| ()).is_err());
    }
}

#[test]
fn what_another_thread_ends_wakes_the_one_that_sleeps_in_the_poller() {
    let reactor = start(Fake::default());
    let ends = wait_beside(&reactor, [1, 2]);
    until(|| reactor.shared.state.lock().is_any_asleep());
    let began = Instant::now();
    reactor.with(|driver| driver.ended.extend([CallId(1), CallId(2)])).unwrap();
    for _ in 0..2 {
        assert_eq!(ends.recv_timeout(LONG).unwrap(), Ok(()));
    }
    assert!(began.elapsed() < limits::IDLE_MAX, "they slept on");
}

#[test]
fn callbacks_may_call_the_reactor_whichever_thread_runs_them() {
    fn callback(
        reactor: &Arc<Reactor<Fake>>,
        say: &Sender<Option<Result<(), Stopped>>>,
        call: u64,
    ) -> Callback {
        let (reactor, say) = (reactor.clone(), say.clone());
        Box::new(move || {
            reactor.with(|driver| driver.ended.push(CallId(call))).unwrap();
            say.send(reactor.wait_until(CallId(call), Some(Instant::now() + LONG))).unwrap();
        })
    }
    let (fake, (say, heard)) = (Fake::default(), channel());
    let planned = fake.planned.clone();
    let reactor = start(fake);
    // By the thread that calls.
    reactor.with(|driver| driver.callbacks.push(callback(&reactor, &say, 10))).unwrap();
    assert_eq!(heard.try_recv().unwrap(), Some(Ok(())));
    // By the background thread; one that panics does no harm.
    let panics = Box::new(|| assert!(std::hint::black_box(false), "as planned"));
    planned.lock().extend([panics as Callback, callback(&reactor, &say, 11)]);
    reactor.shared.poller.kick();
    assert_eq!(heard.recv_timeout(LONG).unwrap(), Some(Ok(())));
    // By one that waits for something else, and goes on waiting.
    let ends = wait_beside(&reactor, [1, 2]);
    planned.lock().push(callback(&reactor, &say, 12));
    reactor.shared.poller.kick();
    assert_eq!(heard.recv_timeout(LONG).unwrap(), Some(Ok(())));
    assert_eq!(ends.recv_timeout(Duration::from_millis(20)), Err(RecvTimeoutError::Timeout));
    reactor.with(|driver| driver.ended.extend([CallId(1), CallId(2)])).unwrap();
    assert_eq!([ends.recv_timeout(LONG).unwrap(), ends.recv_timeout(LONG).unwrap()], [Ok(()), Ok(())]);
}

#[test]
fn the_memory_of_an_abandoned_call_is_dropped_without_the_lock() {
    struct Calls(Arc<Reactor<Fake>>, Arc<AtomicBool>);
    impl Drop for Calls {
        fn drop(&mut self) {
            self.1.store(self.0.with(|_| ()).is_ok(), Ordering::Release);
        }
    }
    let reactor = start(Fake::default());
    let is_dropped = Arc::new(AtomicBool::new(false));
    let memory = Calls(reactor.clone(), is_dropped.clone());
    reactor.with(|driver| driver.callbacks.push(Box::new(move || drop(memory)))).unwrap();
    assert!(is_dropped.load(Ordering::Acquire));
    reactor.abandon(CallId(1));
    reactor.with(|driver| driver.ended.push(CallId(1))).unwrap();
    assert!(!reactor.has_ended(CallId(1)));
}

#[test]
fn nobody_waits_for_the_lock_while_connections_are_closed() {
    let (hold, farewell) = channel();
    let reactor = start(Fake { farewell: Some(farewell), ..Fake::default() });
    let ends = wait_beside(&reactor, [1, 2]);
    let of_thread = reactor.clone();
    let closing = std::thread::spawn(move || of_thread.close());
    for _ in 0..2 {
        assert_eq!(ends.recv_timeout(LONG).unwrap(), Err(Stopped::Closed));
    }
    assert_eq!(reactor.with(|_| ()), Err(Stopped::Closed));
    assert!(!closing.is_finished(), "the farewell is not over");
    drop(hold);
    closing.join().unwrap();
}

#[test]
fn a_timer_is_on_time_after_a_caller_slept_beside_the_background_thread() {
    let reactor = start(Fake::default());
    await_background_sleep(&reactor);
    // The caller sleeps for less than the background thread, and leaves.
    assert_eq!(reactor.wait_until(CallId(1), Some(Instant::now() + Duration::from_millis(5))), None);
    await_background_sleep(&reactor);
    let began = Instant::now();
    reactor.with(|driver| driver.due = Some(began + Duration::from_millis(30))).unwrap();
    until(|| reactor.with_waiter(|driver| driver.due).unwrap().is_none());
    assert!(began.elapsed() < limits::IDLE_MAX / 2, "{:?}", began.elapsed());
}

#[test]
fn the_sleeping_thread_that_drives_is_woken_for_an_earlier_timer() {
    let soon = Duration::from_millis(50);
    // When each thread wakes up by itself, which of them drives, and whether it has to be kicked.
    for (caller, background, is_held, is_late) in [
        (Some(LONG), Some(LONG), true, true),
        (Some(Duration::ZERO), Some(LONG), true, false),
        (Some(LONG), Some(Duration::ZERO), true, true),
        (None, Some(LONG), false, true),
        (None, Some(Duration::ZERO), false, false),
        (None, None, true, false),
    ] {
        let reactor = Reactor::without_thread(Fake::default(), Arc::new(Poller::new().unwrap()));
        let now = Instant::now();
        let mut state = reactor.shared.state.lock();
        state.wakes_at = [caller, background].map(|after| after.map(|after| now + after));
        state.is_held = is_held;
        drop(state);
        reactor.with(|driver| driver.due = Some(now + soon)).unwrap();
        assert_eq!(takes_kick(&reactor), is_late, "{caller:?} {background:?} {is_held}");
    }
}

#[test]
fn the_background_thread_passes_a_kick_on_to_the_caller_that_drives() {
    for is_caller_asleep in [true, false] {
        let reactor = Reactor::without_thread(Fake::default(), Arc::new(Poller::new().unwrap()));
        let shared = &reactor.shared;
        let mut state = shared.state.lock();
        state.is_held = true;
        state.wakes_at[Role::Caller as usize] = is_caller_asleep.then(|| Instant::now() + LONG);
        shared.poller.kick();
        assert!(shared.sleep(&mut state, &mut Readiness::default(), None, Role::Background));
        drop(state);
        assert_eq!(takes_kick(&reactor), is_caller_asleep);
    }
}

#[test]
fn after_a_poll_the_sleeping_thread_is_woken_by_what_arrives_and_by_timers() {
    let reactor = Reactor::without_thread(Fake::default(), Arc::new(Poller::new().unwrap()));
    let wakes_at = Instant::now() + limits::IDLE_MAX.mul_f32(0.9);
    reactor.shared.state.lock().wakes_at[Role::Background as usize] = Some(wakes_at);
    assert_eq!(reactor.poll(|_| None::<()>), Ok(None));
    assert!(reactor.with_waiter(|driver| driver.is_armed).unwrap(), "nothing is reported after a poll");
    let due = Instant::now() + limits::IDLE_MAX / 2;
    reactor.with_waiter(|driver| driver.due = Some(due)).unwrap();
    assert!(!takes_kick(&reactor));
    assert_eq!(reactor.poll(|_| None::<()>), Ok(None));
    assert!(takes_kick(&reactor), "the sleeping thread would be late");
}

#[test]
fn the_sleeping_thread_is_woken_by_input_that_no_socket_shows() {
    let poller = Arc::new(Poller::new().unwrap());
    let reactor = Reactor::without_thread(Fake::default(), poller.clone());
    let wakes_at = Instant::now() + limits::IDLE_MAX.mul_f32(0.9);
    reactor.shared.state.lock().wakes_at[Role::Background as usize] = Some(wakes_at);
    let token = poller.token();
    for is_buffered in [true, false] {
        poller.set_buffered(token, is_buffered);
        assert_eq!(reactor.poll(|_| None::<()>), Ok(None));
        poller.set_buffered(token, false);
        assert_eq!(takes_kick(&reactor), is_buffered);
    }
}

#[test]
fn a_call_that_another_thread_ends_during_the_spin_is_noticed() {
    let reactor = start(Fake::default());
    for call in (1..400).map(CallId) {
        let waiter = reactor.clone();
        let thread = std::thread::spawn(move || waiter.wait(call));
        while reactor.shared.state.lock().waiting == 0 {
            core::hint::spin_loop();
        }
        let began = Instant::now();
        reactor.with(|driver| driver.ended.push(call)).unwrap();
        assert_eq!(thread.join().unwrap(), Ok(()));
        assert!(began.elapsed() < limits::IDLE_MAX / 2, "the waiter slept on");
    }
}

#[test]
fn a_forked_child_waits_for_no_lock_of_its_parent() {
    let reactor = start(Fake::default());
    // A thread of the parent has it when the child begins, and is not there to release it.
    let state = reactor.shared.state.lock();
    // SAFETY: the child calls nothing that needs what a lock of another thread protects.
    let child = unsafe { libc::fork() };
    if child == 0 {
        reactor.abandon(CallId(1));
        // SAFETY: it ends at once.
        unsafe { libc::_exit(7) };
    }
    drop(state);
    let (began, mut status) = (Instant::now(), 0);
    // SAFETY: the place of the status is valid.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if began.elapsed() > LONG {
            // SAFETY: the child was not waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "the child hangs: {status:#x}");
}
