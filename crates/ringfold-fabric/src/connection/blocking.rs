//! A connection for a thread that may block.

use crate::poller::Poller;
use crate::transport::Transport;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// A connection whose reads and writes block; references to it read and write. A [`Closer`] ends it from another thread.
#[derive(Debug)]
pub struct BlockingConnection(Arc<Transport>);

/// Ends a connection from another thread.
#[derive(Clone, Debug)]
pub struct Closer(Arc<Transport>);

impl Closer {
    /// Ends both directions. A blocked read or write returns.
    pub fn close(&self) {
        // It may have ended already.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl BlockingConnection {
    /// Ends it from another thread.
    pub fn closer(&self) -> Closer {
        Closer(self.0.clone())
    }

    /// The address of the other end.
    pub fn peer_address(&self) -> io::Result<SocketAddr> {
        self.0.peer_address()
    }

    /// The address of this end.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.0.local_address()
    }

    /// Bytes of the largest segment that the system sends on it.
    pub fn segment_bytes(&self) -> io::Result<u32> {
        self.0.segment_bytes()
    }

    /// The round-trip time, as the kernel measured it.
    pub fn round_trip(&self) -> io::Result<Duration> {
        self.0.round_trip()
    }

    /// How long a read may take; `None` is for ever.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.set_read_timeout(timeout)
    }

    /// How long a write may take; `None` is for ever.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.set_write_timeout(timeout)
    }

    /// Has a poller check whether the other host answers.
    pub(crate) fn check_health_in(self, poller: &Poller) -> io::Result<Self> {
        self.0.check_health_in(poller)?;
        Ok(self)
    }

    /// The same, for a connection by QUIC by the TCP connection beside it.
    pub(crate) fn check_guard_in(&self, poller: &Poller) -> io::Result<()> {
        match self.0.quic() {
            None => self.0.check_health_in(poller),
            Some(quic) => quic.guard().map_or(Ok(()), |guard| guard.check_health_in(poller)),
        }
    }

    /// Whether it is by QUIC.
    pub fn is_quic(&self) -> bool {
        self.0.quic().is_some()
    }

    pub(crate) fn into_transport(self) -> Arc<Transport> {
        self.0
    }
}

impl From<TcpStream> for BlockingConnection {
    fn from(stream: TcpStream) -> Self {
        Self(Arc::new(stream.into()))
    }
}

impl From<Arc<Transport>> for BlockingConnection {
    fn from(transport: Arc<Transport>) -> Self {
        Self(transport)
    }
}

impl Read for &BlockingConnection {
    fn read(&mut self, place: &mut [u8]) -> io::Result<usize> {
        self.0.read_raw(place)
    }
}

impl Write for &BlockingConnection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write_slices(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
