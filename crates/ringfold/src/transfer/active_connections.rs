//! The connections whose threads access tensors, and how to end them.

use parking_lot::{Condvar, Mutex};
use ringfold_fabric::connection::{BlockingConnection, Closer};
use ringfold_proto::id::PeerId;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Threads register their connection here before they access a tensor.
pub(super) struct ActiveConnections {
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

/// Permits access to tensors until it is dropped.
pub(super) struct ActiveConnection {
    connections: Arc<ActiveConnections>,
    number: u64,
}

impl ActiveConnections {
    /// For at most so many connections.
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { inside: Mutex::default(), left: Condvar::new(), most })
    }

    /// Registers a connection. Shuts down an older one with the same peer, which the peer has dropped.
    pub(super) fn enter(
        self: &Arc<Self>,
        peer: PeerId,
        connection: &BlockingConnection,
    ) -> io::Result<ActiveConnection> {
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
        Ok(ActiveConnection { connections: self.clone(), number })
    }

    /// Shuts down the connections with a peer.
    pub(super) fn cut(&self, peer: PeerId) {
        self.inside.lock().cut(peer);
    }

    /// Rejects new connections, shuts all others down, and returns when their threads have ended.
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

impl Drop for ActiveConnection {
    fn drop(&mut self) {
        self.connections.inside.lock().streams.remove(&self.number);
        self.connections.left.notify_all();
    }
}
