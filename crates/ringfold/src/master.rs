//! The master of an elastic run: one thread that drives the master machine over sockets.

mod builder;
mod claims;
mod crash;
mod etcd;
mod examinations;
mod limits;
mod list;
mod other_master;
mod peer_connection;
mod report;
mod ring_solver;
mod server;

pub use builder::MasterBuilder;
pub(crate) use builder::listen_addresses;

use crate::Error;
use crate::error::invalid;
use crate::protection;
use parking_lot::{Condvar, Mutex};
use ringfold_fabric::listener::Listener;
use ringfold_fabric::poller::Poller;
use ringfold_fabric::reactor::panic_text;
use server::Server;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The environment variable with the masters of a run, separated by commas, for `ringfold master` and for C programs.
pub const MASTERS_VARIABLE: &str = "RINGFOLD_MASTERS";

/// The default port of a master.
pub const MASTER_PORT: u16 = 48148;

/// The master of an elastic run: decides on membership, votes and the outcome of operations.
///
/// It sees no data. If a master ends, a new one at the same address continues the run with its members.
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
    options: MasterBuilder,
    shared: Arc<Shared>,
}

/// State shared by the user's threads and the master's thread.
#[derive(Debug, Default)]
struct Shared {
    interrupted: AtomicBool,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Opened by `bind` for `run`.
    bound: Option<(Arc<Poller>, Listener)>,
    /// The poller of the master's thread; `None` before it is started.
    poller: Option<Arc<Poller>>,
    addresses: Vec<SocketAddr>,
    thread: Option<JoinHandle<()>>,
    outcome: Option<Result<(), Error>>,
}

impl Master {
    /// Configures a master.
    pub fn builder() -> MasterBuilder {
        MasterBuilder::default()
    }

    fn new(options: MasterBuilder) -> Self {
        Self { options, shared: Arc::default() }
    }

    /// Binds the addresses, for [`Master::addresses`]. Optional: [`Master::run`] binds if needed.
    ///
    /// Peers that connect before [`Master::run`] wait for it.
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
        let poller = Poller::with_unreachable_after(self.options.unreachable_after);
        let poller = poller.map_err(|e| Error::system("creating the poller of the master failed", &e))?;
        let security =
            protection::keys(&self.options.token, self.options.tls.as_ref(), self.options.insecure)?;
        let poller = Arc::new(poller.with_security(security));
        let listener = Listener::bind(&self.options.addresses()?, &poller);
        Ok((poller, listener.map_err(|error| Error::Bind(error.to_string()))?))
    }

    /// Listens, and serves on a background thread. Runs only once, but may be retried if listening failed.
    ///
    /// If the master was interrupted before, it ends at once.
    pub fn run(&self) -> Result<(), Error> {
        let mut state = self.shared.state.lock();
        if state.poller.is_some() {
            return Err(invalid!("this master was already started"));
        }
        let (poller, listener) = state.bound.take().map_or_else(|| self.open(), Ok)?;
        let addresses: Vec<_> = listener.addresses().collect();
        let security = poller.security().map_err(|e| Error::system("the keys of the master", &e))?;
        self.options.check_token(&security, &addresses)?;
        let list = list::master_list(&self.options.masters, self.options.this_master, &addresses)?;
        let server = Server::new(&self.options, list, poller.clone(), listener)?;
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new()
            .name("ringfold-master".into())
            .spawn(move || {
                // The sockets are closed before the outcome is visible.
                let outcome = guarded("master", || server.serve(&shared.interrupted));
                shared.state.lock().outcome = Some(outcome.clone());
                shared.ended.notify_all();
                // Logged last: a log may panic, and that must not block `wait`.
                if let Err(error) = outcome {
                    tracing::error!(target: "ringfold::master", "{error}");
                }
            })
            .map_err(|e| Error::system("starting the master's thread failed", &e))?;
        tracing::info!(target: "ringfold::master", ?addresses, "the master is listening");
        *state = State { poller: Some(poller), addresses, thread: Some(thread), ..State::default() };
        Ok(())
    }

    /// The addresses it listens on, with the ports chosen for port 0; empty before it is bound.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.shared.state.lock().addresses.clone()
    }

    /// Ends the master soon. Its peers lose the connection, and dial the same address for a new master.
    pub fn interrupt(&self) {
        self.shared.interrupted.store(true, Ordering::Release);
        if let Some(poller) = &self.shared.state.lock().poller {
            poller.kick();
        }
    }

    /// Waits until the master has ended. Then its ports are free.
    pub fn wait(&self) -> Result<(), Error> {
        self.wait_until(None).unwrap_or_else(|| Err(Error::Internal("the wait ended".into())))
    }

    /// As [`Master::wait`], with a timeout; `None` if the master has not ended by then.
    pub fn wait_for(&self, timeout: Duration) -> Option<Result<(), Error>> {
        self.wait_until(Instant::now().checked_add(timeout))
    }

    fn wait_until(&self, until: Option<Instant>) -> Option<Result<(), Error>> {
        let mut state = self.shared.state.lock();
        if state.poller.is_none() {
            return Some(Err(Error::Misuse("this master was not started".into())));
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
            // The thread catches panics.
            let _ = thread.join();
        }
    }
}

/// Runs the loop; a panic becomes an error, and what the loop owns is dropped.
pub(crate) fn guarded(who: &str, body: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|panic| Err(Error::Internal(format!("the {who} panicked: {}", panic_text(&*panic)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_in_the_loop_becomes_an_error_and_drops_what_the_loop_owns() {
        let held = Arc::new(());
        let inner = held.clone();
        let outcome = guarded("master", move || {
            let _inner = inner;
            panic!("on purpose {}", 1)
        });
        assert_eq!(outcome, Err(Error::Internal("the master panicked: on purpose 1".into())));
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
