//! A driver that does what a test asks for, and what becomes of the threads that wait for it.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

const LONG: Duration = Duration::from_secs(30);

/// Panics in the call that is named.
#[derive(Default)]
struct Fake {
    panics_in: Arc<Mutex<Option<&'static str>>>,
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
        self.callbacks.append(&mut self.planned.lock());
    }

    fn patience(&self) -> Option<Duration> {
        self.enter("patience");
        None
    }

    fn stirs(&self) -> bool {
        self.enter("stirs");
        false
    }

    fn prepare_sleep(&mut self) -> bool {
        self.enter("prepare_sleep");
        false
    }

    fn outlook(&self) -> Outlook {
        self.enter("outlook");
        Outlook::Memory
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

fn until(is_true: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_true() {
        assert!(began.elapsed() < LONG, "it never came true");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_panic_in_any_call_of_the_driver_fails_all_who_wait() {
    for call in ["turn", "patience", "stirs", "prepare_sleep", "outlook", "is_busy", "report"] {
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
    until(|| reactor.shared.state.lock().sleeping > 0);
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
