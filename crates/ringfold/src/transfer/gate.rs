//! Who touches tensors, through which connection, and how to make them all leave.

use parking_lot::{Condvar, Mutex};
use ringfold_fabric::connection::{BlockingConnection, Closer};
use ringfold_proto::id::PeerId;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Threads pass it with their connection before they touch a tensor.
pub(super) struct Gate {
    inside: Mutex<Inside>,
    left: Condvar,
    most: usize,
}

#[derive(Default)]
struct Inside {
    closed: bool,
    next: u64,
    streams: HashMap<u64, (PeerId, Closer)>,
}

/// Leave to touch tensors until it is dropped.
pub(super) struct Pass {
    gate: Arc<Gate>,
    number: u64,
}

impl Gate {
    /// For so many at once.
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { inside: Mutex::default(), left: Condvar::new(), most })
    }

    /// Lets a thread in. An older connection with the same peer is shut down: its other end has given it up.
    pub(super) fn enter(self: &Arc<Self>, peer: PeerId, connection: &BlockingConnection) -> io::Result<Pass> {
        let mut inside = self.inside.lock();
        if inside.closed {
            return Err(io::Error::other("the transfer has ended"));
        }
        if inside.streams.len() >= self.most {
            return Err(io::Error::other("too many connections"));
        }
        inside.cut(peer);
        inside.next += 1;
        let number = inside.next;
        inside.streams.insert(number, (peer, connection.closer()));
        Ok(Pass { gate: self.clone(), number })
    }

    /// Shuts the connections with a peer down.
    pub(super) fn cut(&self, peer: PeerId) {
        self.inside.lock().cut(peer);
    }

    /// Lets nobody in any more, shuts all connections down and returns when everyone has left.
    pub(super) fn close(&self) {
        let mut inside = self.inside.lock();
        inside.closed = true;
        while !inside.streams.is_empty() {
            inside.streams.values().for_each(|(_, closer)| closer.close());
            self.left.wait_for(&mut inside, Duration::from_millis(100));
        }
    }
}

impl Inside {
    fn cut(&self, peer: PeerId) {
        self.streams.values().filter(|(p, _)| *p == peer).for_each(|(_, closer)| closer.close());
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gate.inside.lock().streams.remove(&self.number);
        self.gate.left.notify_all();
    }
}
