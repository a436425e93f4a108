//! Ports: memory that others write into, and connections to it.

pub mod abort_page;
mod bytes;
mod channel;
mod connection;
pub mod device_handle;
mod error;
pub mod fifo;
mod idle;
mod kernel_words;
mod memory_record;
mod offer;
mod patience;
mod proxy;
mod registered_memory;
mod semaphore;
mod semaphore_face;
mod table;
mod transport;
pub mod trigger;

pub use channel::{PortChannel, Put};
pub use connection::Connection;
pub use error::PortError;
pub use fifo::Fifo;
pub use patience::Wait;
pub use proxy::ProxyService;
pub use registered_memory::{Registrable, RegisteredMemory};
pub use semaphore::{Semaphore, SemaphoreOffer, WordPlace};
pub use semaphore_face::{SemaphoreFace, SemaphoreKind};
pub use transport::{Transport, TransportFlags};

use abort_page::AbortPage;
use offer::OfferRecord;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

/// One rank's side of all its connections. Clones are the same port.
#[derive(Clone)]
pub struct Port {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    abort_page: Arc<AbortPage>,
}

/// This side's part of a connection to be: the other side gets the [record](Offer::record), and may connect from then
/// on, for as long as this or the connection lives.
pub struct Offer {
    record: OfferRecord,
}

impl Offer {
    /// What the other side needs. It has a key in it: whoever knows it can connect.
    pub fn record(&self) -> Vec<u8> {
        self.record.encode()
    }
}

impl Port {
    /// A port that others know by this name, and that listens at one address of this host, or at all.
    pub fn open(name: &str, host: Option<IpAddr>) -> Result<Self, PortError> {
        let _ = host;
        Ok(Self { inner: Arc::new(Inner { name: name.to_owned(), abort_page: AbortPage::open() }) })
    }

    /// What others know it by.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The page that kernels of this port look at.
    pub fn abort_page(&self) -> &Arc<AbortPage> {
        &self.inner.abort_page
    }

    /// Registers memory for some ways.
    pub fn register(
        &self,
        memory: Registrable,
        transports: TransportFlags,
    ) -> Result<RegisteredMemory, PortError> {
        let _ = (memory, transports);
        Err(RegisteredMemory::later())
    }

    /// The memory that another port, or this one, has told of.
    pub fn remote(&self, record: &[u8]) -> Result<RegisteredMemory, PortError> {
        let _ = record;
        Err(RegisteredMemory::later())
    }

    /// Offers a connection over some way, for memory of a device or of the host.
    pub fn offer(&self, transport: Transport, device: Option<i32>) -> Result<Offer, PortError> {
        let _ = (transport, device);
        Err(RegisteredMemory::later())
    }

    /// Connects with whoever made the other offer, and calls it by its rank. The other side need not call this at the
    /// same time: it is enough that it has made its offer.
    pub fn connect(
        &self,
        mine: &Offer,
        theirs: &[u8],
        peer: i32,
        deadline: Instant,
    ) -> Result<Connection, PortError> {
        let _ = (mine, theirs, peer, deadline);
        Err(RegisteredMemory::later())
    }

    /// Gives the port up: whoever waits on it, here or in a kernel, leaves off, and the other sides of its connections
    /// are told why.
    pub fn abort(&self, why: &str) {
        self.inner.abort_page.set(why);
    }

    /// Why the port is over, if it is: it was given up, a rank is lost, or a kernel waited in vain.
    pub fn failure(&self) -> Option<String> {
        let page = &self.inner.abort_page;
        page.reason().or_else(|| page.error().map(|error| error.to_string()))
    }

    /// Nothing, or why the port is over.
    pub fn check(&self) -> Result<(), PortError> {
        self.failure().map_or(Ok(()), |why| Err(PortError::Aborted(why)))
    }
}

impl core::fmt::Debug for Port {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(out, "Port({:?})", self.inner.name)
    }
}
