//! Ports: memory that others write into, and connections to it.

pub mod abort_page;
mod channel;
mod connection;
mod cuda_road;
pub mod device_handle;
mod device_window;
mod error;
pub mod fifo;
mod kernel_words;
mod landing;
mod locked_pages;
mod memory_record;
mod offer;
mod proxy;
mod registered_memory;
mod semaphore;
mod semaphore_face;
mod shared_road;
mod table;
mod tcp_road;
mod transport;
pub mod trigger;

pub use channel::{PortChannel, Put};
pub use connection::Connection;
pub use error::PortError;
pub use fifo::Fifo;
pub use proxy::ProxyService;
pub use registered_memory::{RegisteredMemory, Registrable};
pub use ringfold_fabric::waiter::{CancelToken, Deadline, Wait};
pub use semaphore::{Semaphore, SemaphoreOffer, WordPlace};
pub use semaphore_face::{SemaphoreFace, SemaphoreKind};
pub use transport::{Transport, TransportFlags};

use crate::cleaner::stop_cleaning;
use crate::{CudaError, Gpu, relaxed_capture};
use abort_page::AbortPage;
use connection::{Link, Road};
use cuda_road::{CudaRoad, is_taking_leave};
use landing::{Landing, Target};
use offer::OfferRecord;
use parking_lot::Mutex;
use registered_memory::{Kept, Registration, process, this_host};
use ringfold_fabric::channel::{ChannelError, Connection as Line, Endpoint, Handle};
use ringfold_fabric::limits::{FAREWELL_MAX, FAREWELL_PAUSE};
use ringfold_fabric::memory::Memory;
use ringfold_fabric::rendezvous::{Invitation, Invited, Rendezvous};
use shared_road::SharedRoad;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;
use tcp_road::TcpRoad;

/// One rank's side of all its connections. Clones are the same port.
///
/// If a rank at the other side of a connection dies, or gives its port up, so is this one: all calls fail from then on,
/// and tell why, and kernels that spin on its [page](AbortPage) leave off. A rank that merely leaves harms nobody.
#[derive(Clone)]
pub struct Port {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    abort_page: Arc<AbortPage>,
    /// Why it was given up, if that was not this side's wish.
    cause: Mutex<Option<PortError>>,
    links: Mutex<Vec<Weak<Link>>>,
    /// One for each device.
    landings: Mutex<HashMap<i32, Arc<Landing>>>,
    /// The device whose memory was registered first.
    gpu: Mutex<Option<Gpu>>,
    // Dropped in this order: nobody comes any more, then what is queued goes out.
    rendezvous: Rendezvous,
    endpoint: Arc<Endpoint>,
}

/// A port that others hold.
#[derive(Clone, Debug)]
pub struct WeakPort {
    inner: Weak<Inner>,
}

impl WeakPort {
    /// The port, if someone still holds it.
    pub fn upgrade(&self) -> Option<Port> {
        self.inner.upgrade().map(|inner| Port { inner })
    }
}

/// The ports of this process, and the process that opened them.
static PORTS: Mutex<Vec<(u32, WeakPort)>> = Mutex::new(Vec::new());

/// All ports of this process take leave of all others: see [`Port::leave`].
pub fn leave_all() {
    let ports = core::mem::take(&mut *PORTS.lock());
    // Those that came by a fork speak for another process.
    let ports = ports.into_iter().filter(|(process, _)| *process == std::process::id());
    let links: Vec<_> =
        ports.filter_map(|(_, port)| port.upgrade()).flat_map(|port| port.inner.links()).collect();
    leave(&links);
}

/// The process ends soon. Its proxies do what was pushed, for a moment at most, and end, and from then on no memory is
/// given back to a driver: that might wait for a kernel, and the system takes it all.
pub fn wind_up() {
    proxy::stop_all(FAREWELL_MAX);
    stop_cleaning();
}

/// Takes leave by all of them, and waits for a moment until what was written has gone out.
fn leave(links: &[Arc<Link>]) {
    for link in links {
        link.leave();
    }
    let end = Instant::now() + FAREWELL_MAX;
    while Instant::now() < end && (is_taking_leave() || !links.iter().all(|link| link.is_closed())) {
        std::thread::sleep(FAREWELL_PAUSE);
    }
}

/// This side's part of a connection to be: the other side gets the [record](Offer::record), and may connect from then
/// on, for as long as this or the connection lives.
#[derive(Debug)]
pub struct Offer {
    record: OfferRecord,
    invitation: Invitation,
}

impl Offer {
    /// What the other side needs. It has a key in it: whoever knows it can connect.
    pub fn record(&self) -> Vec<u8> {
        self.record.encode()
    }

    /// The way that is offered.
    pub fn transport(&self) -> Transport {
        self.record.transport
    }
}

impl Port {
    /// A port that others know by this name, and that listens at one address of this host, or at all.
    pub fn open(name: &str, host: Option<IpAddr>) -> Result<Self, PortError> {
        let failed = |error: io::Error| PortError::system("a port can't be opened", &error);
        let endpoint = Arc::new(Endpoint::new(name).map_err(failed)?);
        let rendezvous = Rendezvous::open(endpoint.clone(), host).map_err(failed)?;
        let inner = Inner {
            name: name.to_owned(),
            abort_page: AbortPage::open(),
            cause: Mutex::default(),
            links: Mutex::default(),
            landings: Mutex::default(),
            gpu: Mutex::default(),
            rendezvous,
            endpoint,
        };
        let port = Self { inner: Arc::new(inner) };
        let mut ports = PORTS.lock();
        ports.retain(|(_, port)| port.inner.strong_count() > 0);
        ports.push((std::process::id(), port.downgrade()));
        Ok(port)
    }

    /// This port, without holding it.
    pub fn downgrade(&self) -> WeakPort {
        WeakPort { inner: Arc::downgrade(&self.inner) }
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
        let _capture = relaxed_capture();
        let failed = |error: io::Error| PortError::system("memory can't be registered", &error);
        let port = self.inner.rendezvous.id();
        let is_lined = transports.has(Transport::Ethernet) || transports.has(Transport::SharedMemory);
        let (memory, file) = match memory {
            Registrable::Device(memory) => {
                let (address, bytes) = (memory.address(), memory.len());
                let gpu = memory.ordinal().map(Gpu::open).transpose()?;
                if let Some(gpu) = gpu {
                    self.inner.prepare(gpu)?;
                }
                let (kept, segment) = match gpu {
                    Some(gpu) if is_lined => {
                        let target = Target::new(self.inner.landing(gpu)?, memory);
                        let segment =
                            self.inner.endpoint.register_sink(bytes, Arc::new(target)).map_err(failed)?;
                        let handle = segment.handle();
                        (Kept::Segment(segment), Some(handle))
                    }
                    _ => (Kept::Device(memory), None),
                };
                let bytes = bytes as u64;
                let new = Registration { port, address, bytes, transports, gpu, file: None, segment, kept };
                return RegisteredMemory::register(new).map_err(failed);
            }
            Registrable::Host(memory) => (memory, None),
            Registrable::Shared(shared) => {
                let ticket = shared.ticket().map_err(failed)?;
                let (memory, file) = shared.into_parts();
                (memory, Some((file, ticket)))
            }
        };
        let (address, bytes) = span(memory.as_slice());
        let (kept, segment) = if is_lined {
            self.inner.lay_open(memory).map_err(failed)?
        } else {
            (Kept::Memory(memory), None)
        };
        let new = Registration { port, address, bytes, transports, gpu: None, file, segment, kept };
        RegisteredMemory::register(new).map_err(failed)
    }

    /// The memory that another port, or this one, has told of. What can't be reached from here can still be written
    /// over TCP.
    pub fn remote(&self, record: &[u8]) -> Result<RegisteredMemory, PortError> {
        let _capture = relaxed_capture();
        RegisteredMemory::remote(record)
    }

    /// Offers a connection over some way, for memory of a device or of the host.
    pub fn offer(&self, transport: Transport, device: Option<i32>) -> Result<Offer, PortError> {
        self.check()?;
        let device = match transport {
            Transport::Ib(adapter) => {
                return Err(PortError::Unsupported(format!(
                    "there is no InfiniBand adapter IB{adapter} that can be used here: take CudaIpc between processes of one \
                     host, SharedMemory for memory of the host, or Ethernet"
                )));
            }
            Transport::CudaIpc => device.map_or_else(Gpu::current, Gpu::open)?.ordinal(),
            Transport::Ethernet | Transport::SharedMemory => device.unwrap_or(-1),
        };
        let failed = |error: io::Error| PortError::system("a connection can't be offered", &error);
        let rendezvous = &self.inner.rendezvous;
        let invitation = rendezvous.invite().map_err(failed)?;
        let record = OfferRecord {
            transport,
            device,
            host: this_host(),
            process: process(),
            port: rendezvous.id(),
            id: invitation.id(),
            key: *invitation.key(),
            addresses: rendezvous.addresses().to_vec(),
        };
        Ok(Offer { record, invitation })
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
        self.check()?;
        let _capture = relaxed_capture();
        let theirs = OfferRecord::decode(theirs)
            .ok_or_else(|| PortError::Argument("these bytes are no offer of a connection".into()))?;
        let transport = mine.record.transport;
        if theirs.transport != transport {
            return Err(PortError::Argument(format!(
                "rank {peer} offers a connection over {}, and this side one over {transport}",
                theirs.transport
            )));
        }
        if transport != Transport::Ethernet && theirs.host != this_host() {
            return Err(PortError::Unsupported(format!(
                "rank {peer} is on another host, or belongs to another user: {transport} does not get there, Ethernet does"
            )));
        }
        // Who connects with itself needs no line.
        let line =
            if theirs.id == mine.record.id { None } else { Some(self.meet(mine, &theirs, peer, deadline)?) };
        let beside = line.as_ref().map(|line| TcpRoad::new(line, theirs.port, peer));
        let road = match (transport, beside) {
            (Transport::CudaIpc, _) => Road::Cuda(CudaRoad::open(&Gpu::open(mine.record.device)?)?),
            (Transport::Ethernet, Some(road)) => Road::Tcp(road),
            (_, beside) => Road::Shared(SharedRoad::new(beside)),
        };
        let connection = Connection::new(self.clone(), transport, peer, road, line.clone());
        let mut links = self.inner.links.lock();
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(connection.link()));
        drop(links);
        let gpu = *self.inner.gpu.lock();
        if let Some(gpu) = gpu {
            connection.link().prepare(gpu)?;
        }
        if let Some(line) = line {
            let port = Arc::downgrade(&self.inner);
            line.when_over(move |error| {
                if let Some(inner) = port.upgrade() {
                    inner.lose(peer, error);
                }
            });
        }
        // It may have been given up meanwhile.
        self.check()?;
        Ok(connection)
    }

    /// Gives the port up: whoever waits on it, here or in a kernel, leaves off, and the other sides of its connections
    /// are told why.
    pub fn abort(&self, why: &str) {
        self.inner.end(None, why);
    }

    /// Takes leave of all others, as if the port and all its connections were gone: nothing is wrong, and what was
    /// written still arrives. It is waited for, for a second at most. For the end of a process that does not get to let go
    /// of them.
    pub fn leave(&self) {
        leave(&self.inner.links());
    }

    /// Why the port is over, if it is: it was given up, a rank is lost, or a kernel waited in vain.
    pub fn failure(&self) -> Option<String> {
        self.check().err().map(|error| match error {
            PortError::Aborted(why) => why,
            error => error.to_string(),
        })
    }

    /// Nothing, or why the port is over.
    pub fn check(&self) -> Result<(), PortError> {
        let page = &self.inner.abort_page;
        if page.is_set() {
            let cause = self.inner.cause.lock().clone();
            let why = || PortError::Aborted(page.reason().unwrap_or_default());
            return Err(cause.unwrap_or_else(why));
        }
        match page.error() {
            None => Ok(()),
            Some(error) => {
                // The others hear of it, too, also if this process ends with what it has learnt.
                self.abort(&format!("{}: {error}", self.name()));
                self.check()
            }
        }
    }

    fn meet(
        &self,
        mine: &Offer,
        theirs: &OfferRecord,
        peer: i32,
        deadline: Instant,
    ) -> Result<Line, PortError> {
        let is_near = theirs.host == this_host();
        let invited = Invited {
            host: theirs.port,
            // Loopback leads nowhere else.
            addresses: theirs
                .addresses
                .iter()
                .filter(|at| is_near || !at.ip().is_loopback())
                .copied()
                .collect(),
            id: theirs.id,
            key: theirs.key,
        };
        let met = self.inner.rendezvous.meet(&mine.invitation, &invited, &format!("rank {peer}"), deadline);
        met.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                PortError::Timeout { peer, awaited: "connect".into() }
            }
            io::ErrorKind::InvalidInput => PortError::Argument(error.to_string()),
            _ => PortError::Lost { peer, why: format!("it can't be reached: {error}") },
        })
    }
}

impl Inner {
    fn links(&self) -> Vec<Arc<Link>> {
        self.links.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// A connection has failed.
    fn lose(&self, peer: i32, error: &ChannelError) {
        match error {
            ChannelError::Lost { has_left: true, .. } => {}
            ChannelError::Lost { why, .. } => {
                let lost = PortError::Lost { peer, why: why.clone() };
                let words = lost.to_string();
                self.end(Some(lost), &words);
            }
            ChannelError::Aborted { why, .. } => self.end(None, why),
            other => self.end(None, &other.to_string()),
        }
    }

    fn end(&self, cause: Option<PortError>, why: &str) {
        {
            let mut first = self.cause.lock();
            if self.abort_page.is_set() {
                return;
            }
            *first = cause;
            self.abort_page.set(why);
        }
        // Those who hear of it from here tell the others in turn, so it is told as it was heard.
        for link in self.links() {
            link.abort(why);
        }
    }

    /// Memory of a device is about to be registered. What connections need for it is allocated now: later a kernel may
    /// spin, and allocating may have to wait for it.
    fn prepare(&self, gpu: Gpu) -> Result<(), CudaError> {
        let gpu = *self.gpu.lock().get_or_insert(gpu);
        self.links().iter().try_for_each(|link| link.prepare(gpu))
    }

    /// What memory of a device is written through.
    fn landing(&self, gpu: Gpu) -> Result<Arc<Landing>, CudaError> {
        let mut landings = self.landings.lock();
        if let Some(landing) = landings.get(&gpu.ordinal()) {
            return Ok(landing.clone());
        }
        let landing = Arc::new(Landing::open(gpu)?);
        landings.insert(gpu.ordinal(), landing.clone());
        Ok(landing)
    }

    /// Lets others write memory over TCP.
    fn lay_open(&self, memory: Memory) -> io::Result<(Kept, Option<Handle>)> {
        let segment = self.endpoint.register(memory)?;
        let handle = segment.handle();
        Ok((Kept::Segment(segment), Some(handle)))
    }
}

impl core::fmt::Debug for Inner {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(out, "Port({:?})", self.name)
    }
}

/// Where bytes lie, for those who use them by their address.
fn span(bytes: &[u8]) -> (u64, u64) {
    (bytes.as_ptr().expose_provenance() as u64, bytes.len() as u64)
}

impl core::fmt::Debug for Port {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.inner.fmt(out)
    }
}
