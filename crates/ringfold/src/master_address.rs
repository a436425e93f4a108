//! Addresses of masters whose names may come to mean others, as those of pods do.

use parking_lot::Mutex;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// The shortest interval between two attempts to resolve a name.
const RESOLVE_PAUSE: Duration = Duration::from_secs(1);

/// The address of a master as the user wrote it, and what it resolves to.
#[derive(Debug)]
pub(crate) struct MasterAddress {
    pub name: String,
    found: Arc<Mutex<Vec<SocketAddr>>>,
    /// When it was resolved again last, and the thread that does it.
    resolving: Option<(Instant, JoinHandle<()>)>,
}

impl MasterAddress {
    pub fn new(name: impl Into<String>, addresses: Vec<SocketAddr>) -> Self {
        Self { name: name.into(), found: Arc::new(Mutex::new(addresses)), resolving: None }
    }

    /// The addresses, as far as they are known now.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.found.lock().clone()
    }

    /// A connection failed: resolves the name again, on a thread of its own, since a name server may take long. Until it answers the
    /// addresses stay.
    pub fn refresh(&mut self) {
        let is_early = |(begun, thread): &(Instant, JoinHandle<()>)| {
            begun.elapsed() < RESOLVE_PAUSE || !thread.is_finished()
        };
        if self.resolving.as_ref().is_some_and(is_early) || self.name.parse::<SocketAddr>().is_ok() {
            return;
        }
        let (name, found) = (self.name.clone(), self.found.clone());
        let resolve = move || {
            let resolved = name.to_socket_addrs().into_iter().flatten();
            let usable: Vec<_> = resolved.filter(|address| !address.ip().is_unspecified()).collect();
            if !usable.is_empty() {
                *found.lock() = usable;
            }
        };
        let thread = Builder::new().name("ringfold-names".into()).spawn(resolve);
        self.resolving = thread.ok().map(|thread| (Instant::now(), thread));
    }
}
