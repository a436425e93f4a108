//! The master of an elastic run: one thread that drives the master machine over sockets.

mod builder;
mod claims;
mod counters;
mod crash;
mod etcd;
mod examinations;
mod history;
pub(crate) mod http;
mod inquiry;
mod limits;
mod list;
mod observers;
mod options;
mod other_master;
mod peer_connection;
mod refusals;
mod ring_solver;
mod server;
mod snapshot;
mod status;

pub use builder::MasterBuilder;
pub use http::HTTP_PORT;
pub(crate) use options::listen_addresses;
pub use status::{EventEntry, HistorySecond, MasterInfo, Status, ThroughputStatus};

use crate::Error;
use crate::error::invalid;
use crate::journal::Event;
use crate::protection;
use inquiry::{Inquiries, Question, Reply};
use options::MasterOptions;
use parking_lot::{Condvar, Mutex};
use ringfold_fabric::listener::Listener;
use ringfold_fabric::poller::Poller;
use ringfold_fabric::reactor::panic_text;
use server::Server;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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
    /// Or what is wrong with the settings.
    options: Result<MasterOptions, Error>,
    shared: Arc<Shared>,
}

/// State shared by the user's threads and the master's thread.
#[derive(Debug, Default)]
struct Shared {
    interrupted: AtomicBool,
    /// How often the loop of the master's thread has run.
    turns: AtomicU64,
    state: Mutex<State>,
    ended: Condvar,
    inquiries: Arc<Inquiries>,
}

#[derive(Debug, Default)]
struct State {
    /// Opened by `bind` for `run`.
    bound: Option<(Arc<Poller>, Listener)>,
    /// The poller of the master's thread; `None` before it is started.
    poller: Option<Arc<Poller>>,
    addresses: Vec<SocketAddr>,
    http_addresses: Vec<SocketAddr>,
    thread: Option<JoinHandle<()>>,
    outcome: Option<Result<(), Error>>,
}

impl Master {
    /// Configures a master.
    pub fn builder() -> MasterBuilder {
        MasterBuilder::default()
    }

    fn new(options: Result<MasterOptions, Error>) -> Self {
        Self { options, shared: Arc::default() }
    }

    fn options(&self) -> Result<&MasterOptions, Error> {
        self.options.as_ref().map_err(Clone::clone)
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
        let options = self.options()?;
        let poller = Poller::with_settings(&options.settings);
        let poller = poller.map_err(|e| Error::system("creating the poller of the master failed", &e))?;
        options.unreachable_after.inspect(|limit| poller.set_unreachable_after(*limit));
        let security = protection::keys(&options.token, options.tls.as_ref(), options.is_insecure)?;
        let poller = Arc::new(poller.with_security(security));
        let listener = Listener::bind(&options.addresses()?, &poller);
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
        let options = self.options()?;
        let http = options.bind_http()?;
        let (poller, listener) = state.bound.take().map_or_else(|| self.open(), Ok)?;
        let addresses: Vec<_> = listener.addresses().collect();
        let security = poller.security().map_err(|e| Error::system("the keys of the master", &e))?;
        options.check_token(&security, &addresses)?;
        let list = list::master_list(&options.masters, options.this_master, &addresses)?;
        let inquiries = self.shared.inquiries.clone();
        let server = Server::new(options, list, poller.clone(), listener, inquiries.clone())?;
        let journal = server.journal().clone();
        let http = http.map(|(bound, access)| bound.start(access, inquiries, poller.clone())).transpose()?;
        let http_addresses = http.as_ref().map(|http| http.addresses().to_vec()).unwrap_or_default();
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new()
            .name("ringfold-master".into())
            .spawn(move || {
                // The sockets are closed before the outcome is visible.
                let outcome = guarded("master", || server.serve(&shared.interrupted, &shared.turns));
                drop(http);
                shared.state.lock().outcome = Some(outcome.clone());
                shared.ended.notify_all();
                // Logged last: a log may panic, and that must not block `wait`.
                if let Err(error) = outcome {
                    tracing::error!(target: "ringfold::master", "{error}");
                }
            })
            .map_err(|e| Error::system("starting the master's thread failed", &e))?;
        journal.post(Event::Listening(addresses.clone()));
        let (poller, thread) = (Some(poller), Some(thread));
        *state = State { poller, addresses, http_addresses, thread, ..State::default() };
        Ok(())
    }

    /// The addresses it listens on, with the ports chosen for port 0; empty before it is bound.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.shared.state.lock().addresses.clone()
    }

    /// The addresses of its HTTP server; empty if it has none, or does not run yet. See [`MasterBuilder::http`].
    pub fn http_addresses(&self) -> Vec<SocketAddr> {
        self.shared.state.lock().http_addresses.clone()
    }

    /// The status of the master and its run. May be called by any thread.
    pub fn status(&self) -> Result<Status, Error> {
        self.ask(Question::Status)?.status()
    }

    /// Evicts the peer with this id or name, or the only one that either begins so. The reason is for the peer and the log.
    pub fn evict(&self, peer: &str, reason: &str) -> Result<String, Error> {
        self.ask(Question::Evict { peer: peer.into(), reason: reason.into() })?.done()
    }

    /// Refuses new peers, or accepts them again.
    pub fn drain(&self, on: bool) -> Result<String, Error> {
        self.ask(Question::Drain { on })?.done()
    }

    fn ask(&self, question: Question) -> Result<Reply, Error> {
        let state = self.shared.state.lock();
        let Some(poller) = state.poller.clone().filter(|_| state.outcome.is_none()) else {
            return Err(Error::Misuse("this master is not running".into()));
        };
        drop(state);
        self.shared.inquiries.ask(question, || poller.kick())
    }

    /// Ends the master soon. Its peers lose the connection, and dial the same address for a new master.
    pub fn interrupt(&self) {
        self.shared.interrupted.store(true, Ordering::Release);
        if let Some(poller) = &self.shared.state.lock().poller {
            poller.kick();
        }
    }

    /// Whether the master's thread does its work: its loop runs once more within this time. For watchdogs.
    pub fn responds_within(&self, timeout: Duration) -> bool {
        let Some(poller) = self.shared.state.lock().poller.clone() else {
            return false;
        };
        let turns = || self.shared.turns.load(Ordering::Acquire);
        let (begin, before) = (Instant::now(), turns());
        poller.kick();
        while turns() == before {
            if begin.elapsed() >= timeout || self.shared.state.lock().outcome.is_some() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
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
