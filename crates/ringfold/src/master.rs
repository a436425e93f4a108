//! The master: one thread that drives the master machine over sockets.

mod builder;
mod crash;
mod limits;
mod line;
mod report;
mod server;
mod tours;

pub use builder::MasterBuilder;

use crate::Error;
use builder::Plan;
use parking_lot::{Condvar, Mutex};
use ringfold_fabric::listener::Listener;
use ringfold_fabric::poller::Poller;
use server::Server;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The port of a master, unless its user chose another.
pub const MASTER_PORT: u16 = 48148;

/// Decides who is in the run, and how every vote and every operation ends. It never sees the data.
///
/// A master that is started on the address of one that ended takes the run over from its members.
///
/// ```
/// let master = ringfold::Master::builder().listen("127.0.0.1:0").build();
/// master.run()?;
/// assert_ne!(master.addresses()[0].port(), 0);
/// master.interrupt();
/// master.wait()?;
/// # Ok::<(), ringfold::Error>(())
/// ```
#[derive(Debug)]
pub struct Master {
    plan: Plan,
    shared: Arc<Shared>,
}

/// What the user's threads and the master's thread both see.
#[derive(Debug, Default)]
struct Shared {
    interrupted: AtomicBool,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// What `bind` has opened for `run`.
    bound: Option<(Arc<Poller>, Listener)>,
    /// What the thread sleeps in; none before it was started.
    poller: Option<Arc<Poller>>,
    addresses: Vec<SocketAddr>,
    thread: Option<JoinHandle<()>>,
    outcome: Option<Result<(), Error>>,
}

impl Master {
    /// A master that listens on every address of the machine, unless it is told otherwise.
    pub fn builder() -> MasterBuilder {
        MasterBuilder::default()
    }

    fn new(plan: Plan) -> Self {
        Self { plan, shared: Arc::default() }
    }

    /// Binds the addresses, so that [`Master::addresses`] tells the ports. Peers that connect wait for [`Master::run`],
    /// which binds by itself if this was not called, or failed.
    pub fn bind(&self) -> Result<(), Error> {
        let mut state = self.shared.state.lock();
        if state.poller.is_none() && state.bound.is_none() {
            let bound = self.open()?;
            state.addresses = bound.1.addresses().collect();
            state.bound = Some(bound);
        }
        Ok(())
    }

    fn open(&self) -> Result<(Arc<Poller>, Listener), Error> {
        let poller = Poller::new().map_err(|e| Error::system("a poller for the master", &e))?;
        let poller = Arc::new(poller.with_unreachable_after(self.plan.unreachable_after));
        let listener = Listener::bind(&self.plan.addresses()?, &poller);
        Ok((poller, listener.map_err(|error| Error::Bind(error.to_string()))?))
    }

    /// Listens, and serves from a thread of its own. If it can't listen it may be tried again; once it has
    /// been started it can't be started another time. One that was interrupted before ends at once.
    pub fn run(&self) -> Result<(), Error> {
        let mut state = self.shared.state.lock();
        if state.poller.is_some() {
            return Err(Error::BadArgument("this master has been run before".into()));
        }
        let (poller, listener) = state.bound.take().map_or_else(|| self.open(), Ok)?;
        let addresses: Vec<_> = listener.addresses().collect();
        self.plan.warn_if_unguarded(&addresses);
        let server = Server::new(&self.plan, poller.clone(), listener)?;
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new()
            .name("ringfold-master".into())
            .spawn(move || {
                // The server is gone, and its sockets with it, before anybody hears of the end.
                let outcome = guarded(|| server.serve(&shared.interrupted));
                shared.state.lock().outcome = Some(outcome.clone());
                shared.ended.notify_all();
                // Only now: a log whose reader is gone may panic, and nobody must wait for ever because of that.
                if let Err(error) = outcome {
                    tracing::error!(target: "ringfold::master", "{error}");
                }
            })
            .map_err(|e| Error::system("the master's thread", &e))?;
        tracing::info!(target: "ringfold::master", ?addresses, "the master listens");
        *state = State { poller: Some(poller), addresses, thread: Some(thread), ..State::default() };
        Ok(())
    }

    /// Where it listens, once it is bound; ports are those that were chosen for port 0.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.shared.state.lock().addresses.clone()
    }

    /// Has it end soon. Its peers take it for lost, and look for another one at the same address.
    pub fn interrupt(&self) {
        self.shared.interrupted.store(true, Ordering::Release);
        if let Some(poller) = &self.shared.state.lock().poller {
            poller.kick();
        }
    }

    /// Blocks until it has ended. Then its port is free.
    pub fn wait(&self) -> Result<(), Error> {
        self.wait_until(None).unwrap_or_else(|| Err(Error::Internal("the wait ended".into())))
    }

    /// As [`Master::wait`], for so long; none if it has not ended by then.
    pub fn wait_for(&self, patience: Duration) -> Option<Result<(), Error>> {
        self.wait_until(Instant::now().checked_add(patience))
    }

    fn wait_until(&self, until: Option<Instant>) -> Option<Result<(), Error>> {
        let mut state = self.shared.state.lock();
        if state.poller.is_none() {
            return Some(Err(Error::Misuse("this master was never run".into())));
        }
        loop {
            if state.outcome.is_some() {
                return state.outcome.clone();
            }
            match until {
                None => self.shared.ended.wait(&mut state),
                Some(until) if Instant::now() >= until => return None,
                Some(until) => {
                    self.shared.ended.wait_until(&mut state, until);
                }
            }
        }
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        self.interrupt();
        let thread = self.shared.state.lock().thread.take();
        if let Some(thread) = thread {
            // It does not panic: what it runs is guarded.
            let _ = thread.join();
        }
    }
}

/// Runs the loop; a panic in it becomes an error, and what it held is dropped.
fn guarded(body: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let words = words.or_else(|| panic.downcast_ref::<String>().cloned());
        let why = words.unwrap_or_else(|| "for a reason that can't be told".into());
        Err(Error::Internal(format!("the master panicked: {why}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_in_the_loop_becomes_an_error_and_what_the_loop_held_is_dropped() {
        let held = Arc::new(());
        let inner = held.clone();
        let outcome = guarded(move || {
            let _inner = inner;
            panic!("on purpose {}", 1)
        });
        assert_eq!(outcome, Err(Error::Internal("the master panicked: on purpose 1".into())));
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
