//! Ports: registered memory, and connections through which peers write to it.

pub mod abort_page;
mod channel;
mod connection;
mod cuda_transport;
pub mod device_handle;
mod device_word_reader;
mod device_writer;
mod error;
pub mod fifo;
mod id_table;
mod kernel_words;
mod locked_pages;
pub(crate) mod memory_record;
pub(crate) mod offer;
mod proxy;
mod registered_memory;
mod semaphore;
mod semaphore_cursor;
mod shared_memory_transport;
mod tcp_transport;
mod transport;
pub mod trigger;

pub use channel::{PortChannel, Put};
pub use connection::Connection;
pub use cuda_transport::PutPath;
pub use error::PortError;
pub use fifo::Fifo;
pub use proxy::ProxyService;
pub(crate) use registered_memory::process_id;
pub use registered_memory::{RegisteredMemory, Registrable};
pub use ringfold_fabric::waiter::{CancelToken, Deadline, Wait};
pub use semaphore::{Semaphore, SemaphoreOffer, WordLocation};
pub use semaphore_cursor::{SemaphoreCursor, SemaphoreKind};
pub use transport::{Transport, TransportFlags};

use crate::release_queue::stop_releasing;
use crate::{CudaError, Gpu, relaxed_capture};
use abort_page::AbortPage;
use connection::{ConnectionState, DataPath};
use core::sync::atomic::{AtomicBool, Ordering};
use cuda_transport::{CudaTransport, is_draining};
use device_writer::{DeviceSink, DeviceWriter};
use offer::OfferRecord;
use parking_lot::Mutex;
use registered_memory::{MemoryOwner, Registration, this_host};
use ringfold_fabric::channel::{ChannelError, Connection as ChannelConnection, Endpoint};
use ringfold_fabric::limits::{FAREWELL_MAX, FAREWELL_PAUSE};
use ringfold_fabric::rendezvous::{Invitation, RemoteInvitation, Rendezvous};
use shared_memory_transport::SharedMemoryTransport;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;
use tcp_transport::TcpTransport;

/// A rank's endpoint of all its connections. Clones share the port.
///
/// If a peer dies or aborts its port, this port is aborted, too: all calls fail with the reason, and kernels that spin
/// on its [page](AbortPage) stop. A peer that leaves does no harm.
#[derive(Clone)]
pub struct Port {
    inner: Arc<PortState>,
}

struct PortState {
    name: String,
    abort_page: Arc<AbortPage>,
    /// Why it was aborted, unless by this process.
    cause: Mutex<Option<PortError>>,
    links: Mutex<Vec<Weak<ConnectionState>>>,
    device_writers: Mutex<HashMap<i32, Arc<DeviceWriter>>>,
    /// Whether a put of this rank was queued for long.
    has_stalled_put: AtomicBool,
    /// The device whose memory was registered first.
    gpu: Mutex<Option<Gpu>>,
    // Dropped in this order: first no connection is accepted any more, then queued data is sent.
    rendezvous: Rendezvous,
    endpoint: Arc<Endpoint>,
}

/// A weak reference to a port.
#[derive(Clone, Debug)]
pub struct WeakPort {
    inner: Weak<PortState>,
}

impl WeakPort {
    /// The port, if it still exists.
    pub fn upgrade(&self) -> Option<Port> {
        self.inner.upgrade().map(|inner| Port { inner })
    }
}

/// Appended to the reason of an abort if a put of this rank could not start.
const STALLED_PUT: &str = "a put over CUDA IPC could not start, probably because kernels occupied all multiprocessors of the \
    device: leave some of them free, or use EndpointConfig(through_host=True) or MSCCLPP_CUDA_IPC_THROUGH_HOST=1";

/// The ports of this process, with the pid that opened them.
static PORTS: Mutex<Vec<(u32, WeakPort)>> = Mutex::new(Vec::new());

/// Leaves all peers with all ports of this process: see [`Port::leave`].
pub fn leave_all_ports() {
    let ports = core::mem::take(&mut *PORTS.lock());
    // Ports inherited by a fork belong to the parent.
    let ports = ports.into_iter().filter(|(process, _)| *process == std::process::id());
    let links: Vec<_> =
        ports.filter_map(|(_, port)| port.upgrade()).flat_map(|port| port.inner.links()).collect();
    leave(&links);
}

/// Prepares for the end of the process: stops all proxies, which complete what was pushed, for a second at most.
///
/// Memory is no longer released to the driver, which might wait for a kernel; the system reclaims it.
pub fn stop_proxies() {
    proxy::stop_all_proxies(FAREWELL_MAX);
    stop_releasing();
}

/// Leaves the peers of these links, and waits for a second at most until all data is sent.
fn leave(links: &[Arc<ConnectionState>]) {
    for link in links {
        link.leave();
    }
    let end = Instant::now() + FAREWELL_MAX;
    while Instant::now() < end && (is_draining() || !links.iter().all(|link| link.is_closed())) {
        std::thread::sleep(FAREWELL_PAUSE);
    }
}

/// This rank's half of a future connection.
///
/// The peer gets the [record](Offer::record), and may connect while the offer or the connection exists.
#[derive(Debug)]
pub struct Offer {
    record: OfferRecord,
    invitation: Invitation,
    put_path: PutPath,
}

impl Offer {
    /// The record that the peer needs. It contains a secret key: anyone who knows it can connect.
    pub fn record(&self) -> Vec<u8> {
        self.record.encode()
    }

    /// Chooses how this rank's puts are done over CUDA IPC. Other transports ignore it.
    #[must_use]
    pub fn with_put_path(self, put_path: PutPath) -> Self {
        Self { put_path, ..self }
    }

    /// The offered transport.
    pub fn transport(&self) -> Transport {
        self.record.transport
    }
}

impl Port {
    /// Opens a port that peers know by this name, and that listens at one address of this host or at all.
    pub fn open(name: &str, host: Option<IpAddr>) -> Result<Self, PortError> {
        let failed = |error: io::Error| PortError::system("opening a port", &error);
        let endpoint = Arc::new(Endpoint::new(name).map_err(failed)?);
        let rendezvous = Rendezvous::open(endpoint.clone(), host).map_err(failed)?;
        let inner = PortState {
            name: name.to_owned(),
            abort_page: AbortPage::open(),
            cause: Mutex::default(),
            links: Mutex::default(),
            device_writers: Mutex::default(),
            has_stalled_put: AtomicBool::new(false),
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

    /// A weak reference to this port.
    pub fn downgrade(&self) -> WeakPort {
        WeakPort { inner: Arc::downgrade(&self.inner) }
    }

    /// The port's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The abort page of this port's kernels.
    pub fn abort_page(&self) -> &Arc<AbortPage> {
        &self.inner.abort_page
    }

    /// Registers memory for some transports.
    pub fn register(
        &self,
        memory: Registrable,
        transports: TransportFlags,
    ) -> Result<RegisteredMemory, PortError> {
        let _capture = relaxed_capture();
        let failed = |error: io::Error| PortError::system("registering memory", &error);
        let port = self.inner.rendezvous.id();
        let needs_segment = transports.has(Transport::Ethernet) || transports.has(Transport::SharedMemory);
        let (memory, file) = match memory {
            Registrable::Device(memory) => {
                let (address, bytes) = (memory.address(), memory.len());
                let gpu = memory.ordinal().map(Gpu::open).transpose()?;
                if let Some(gpu) = gpu {
                    self.inner.prepare(gpu)?;
                }
                let (owner, segment) = match gpu {
                    Some(gpu) if needs_segment => {
                        let sink = DeviceSink::new(self.inner.device_writer(gpu)?, memory);
                        let segment =
                            self.inner.endpoint.register_sink(bytes, Arc::new(sink)).map_err(failed)?;
                        let handle = segment.handle();
                        (MemoryOwner::Segment(segment), Some(handle))
                    }
                    _ => (MemoryOwner::Device(memory), None),
                };
                let bytes = bytes as u64;
                let new = Registration { port, address, bytes, transports, gpu, file: None, segment, owner };
                return RegisteredMemory::register(new).map_err(failed);
            }
            Registrable::Host(memory) => (memory.into(), None),
            Registrable::Shared(shared) => {
                let ticket = shared.ticket().map_err(failed)?;
                let (memory, file) = shared.into_parts();
                (memory, Some((file, ticket)))
            }
        };
        let (address, bytes) = (memory.start().expose_provenance() as u64, memory.len() as u64);
        let (owner, segment) = if needs_segment {
            let segment = self.inner.endpoint.register(memory).map_err(failed)?;
            let handle = segment.handle();
            (MemoryOwner::Segment(segment), Some(handle))
        } else {
            (MemoryOwner::Memory(memory), None)
        };
        let new = Registration { port, address, bytes, transports, gpu: None, file, segment, owner };
        RegisteredMemory::register(new).map_err(failed)
    }

    /// Opens memory that a port has registered, given its record. Without direct access it is written over TCP.
    pub fn remote(&self, record: &[u8]) -> Result<RegisteredMemory, PortError> {
        let _capture = relaxed_capture();
        RegisteredMemory::remote(record)
    }

    /// Offers a connection over a transport, for memory of a device or of the host.
    pub fn offer(&self, transport: Transport, device: Option<i32>) -> Result<Offer, PortError> {
        self.check()?;
        let device = match transport {
            Transport::Ib(adapter) => {
                return Err(PortError::Unsupported(format!(
                    "unsupported transport IB{adapter} (InfiniBand): use CudaIpc between processes of one host, \
                     SharedMemory for host memory, or Ethernet"
                )));
            }
            Transport::CudaIpc => device.map_or_else(Gpu::current, Gpu::open)?.ordinal(),
            Transport::Ethernet | Transport::SharedMemory => device.unwrap_or(-1),
        };
        let failed = |error: io::Error| PortError::system("offering a connection", &error);
        let rendezvous = &self.inner.rendezvous;
        let invitation = rendezvous.invite().map_err(failed)?;
        let record = OfferRecord {
            transport,
            device,
            host: this_host(),
            process: process_id(),
            port: rendezvous.id(),
            id: invitation.id(),
            key: *invitation.key(),
            addresses: rendezvous.addresses().to_vec(),
        };
        Ok(Offer { record, invitation, put_path: PutPath::default() })
    }

    /// Connects to the rank that made the other offer. That rank need not call `connect` at the same time.
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
            .ok_or_else(|| PortError::Argument(format!("invalid connection offer from rank {peer}")))?;
        let transport = mine.record.transport;
        if theirs.transport != transport {
            return Err(PortError::Argument(format!(
                "rank {peer} offers a connection over {}, but this rank offers one over {transport}",
                theirs.transport
            )));
        }
        if transport != Transport::Ethernet && theirs.host != this_host() {
            return Err(PortError::Unsupported(format!(
                "rank {peer} is on another host or belongs to another user: use Ethernet instead of {transport}"
            )));
        }
        // A connection of a port with itself needs no TCP.
        let channels =
            if theirs.id == mine.record.id { None } else { Some(self.dial(mine, &theirs, peer, deadline)?) };
        let tcp = channels.as_ref().map(|channels| TcpTransport::new(channels, theirs.port, peer));
        let path = match (transport, tcp) {
            (Transport::CudaIpc, _) => {
                DataPath::Cuda(CudaTransport::open(&Gpu::open(mine.record.device)?, mine.put_path)?)
            }
            (Transport::Ethernet, Some(tcp)) => DataPath::Tcp(tcp),
            (_, tcp) => DataPath::Shared(SharedMemoryTransport::new(tcp)),
        };
        let connection = Connection::new(self.clone(), transport, peer, path, channels.clone());
        let mut links = self.inner.links.lock();
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(connection.state()));
        drop(links);
        let gpu = *self.inner.gpu.lock();
        if let Some(gpu) = gpu {
            connection.state().prepare(gpu)?;
        }
        if let Some(channels) = channels {
            let port = Arc::downgrade(&self.inner);
            channels.when_over(move |error| {
                if let Some(inner) = port.upgrade() {
                    inner.handle_connection_end(peer, error);
                }
            });
        }
        // It may have been aborted meanwhile.
        self.check()?;
        Ok(connection)
    }

    /// Aborts the port: all waits, on the host and in kernels, end, and the peers get the reason.
    pub fn abort(&self, why: &str) {
        self.inner.abort(None, why);
    }

    /// Leaves all peers, as if the port and all its connections were dropped: written data still arrives.
    ///
    /// Waits for that, for a second at most. For a process that ends without dropping its connections.
    pub fn leave(&self) {
        leave(&self.inner.links());
    }

    /// Why the port has failed, if it has: it was aborted, a peer was lost, or a kernel timed out.
    pub fn failure(&self) -> Option<String> {
        self.check().err().map(|error| match error {
            PortError::Aborted(why) => why,
            error => error.to_string(),
        })
    }

    /// Fails if the port has failed.
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
                // The peers get the error too, even if it ends this process.
                self.abort(&format!("{}: {error}", self.name()));
                self.check()
            }
        }
    }

    /// Remembers for the reason of an abort that a put could not start.
    pub(super) fn note_stalled_put(&self) {
        self.inner.has_stalled_put.store(true, Ordering::Relaxed);
    }

    fn dial(
        &self,
        mine: &Offer,
        theirs: &OfferRecord,
        peer: i32,
        deadline: Instant,
    ) -> Result<ChannelConnection, PortError> {
        let is_same_host = theirs.host == this_host();
        let invited = RemoteInvitation {
            host: theirs.port,
            addresses: theirs
                .addresses
                .iter()
                .filter(|at| is_same_host || !at.ip().is_loopback())
                .copied()
                .collect(),
            id: theirs.id,
            key: theirs.key,
        };
        let met =
            self.inner.rendezvous.connect(&mine.invitation, &invited, &format!("rank {peer}"), deadline);
        met.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                PortError::Timeout { peer, awaited: "connect".into() }
            }
            io::ErrorKind::InvalidInput => PortError::Argument(error.to_string()),
            _ => PortError::Lost { peer, why: format!("failed to connect: {error}") },
        })
    }
}

impl PortState {
    fn links(&self) -> Vec<Arc<ConnectionState>> {
        self.links.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Aborts the port when a connection has failed; a peer that left is no failure.
    fn handle_connection_end(&self, peer: i32, error: &ChannelError) {
        match error {
            ChannelError::Lost { has_left: true, .. } => {}
            ChannelError::Lost { why, .. } => {
                let lost = PortError::Lost { peer, why: why.clone() };
                let text = lost.to_string();
                self.abort(Some(lost), &text);
            }
            ChannelError::Aborted { why, .. } => self.abort(None, why),
            other => self.abort(None, &other.to_string()),
        }
    }

    fn abort(&self, cause: Option<PortError>, why: &str) {
        let with_hint;
        let mut why = why;
        if self.has_stalled_put.load(Ordering::Relaxed) && !why.contains(STALLED_PUT) {
            with_hint = format!("{why}; {STALLED_PUT}");
            why = &with_hint;
        }
        {
            let mut first = self.cause.lock();
            if self.abort_page.is_set() {
                return;
            }
            *first = cause;
            self.abort_page.set(why);
        }
        // Peers pass the reason on, so it is sent unchanged.
        for link in self.links() {
            link.abort(why);
        }
    }

    /// Allocates what connections need for memory of a device: later, allocating might wait for a spinning kernel.
    fn prepare(&self, gpu: Gpu) -> Result<(), CudaError> {
        let gpu = *self.gpu.lock().get_or_insert(gpu);
        self.links().iter().try_for_each(|link| link.prepare(gpu))
    }

    fn device_writer(&self, gpu: Gpu) -> Result<Arc<DeviceWriter>, CudaError> {
        let mut device_writers = self.device_writers.lock();
        if let Some(device_writer) = device_writers.get(&gpu.ordinal()) {
            return Ok(device_writer.clone());
        }
        let device_writer = Arc::new(DeviceWriter::open(gpu)?);
        device_writers.insert(gpu.ordinal(), device_writer.clone());
        Ok(device_writer)
    }
}

debug_as!(PortState, self => "Port({:?})", self.name);

debug_as!(Port, self => "{:?}", self.inner);
