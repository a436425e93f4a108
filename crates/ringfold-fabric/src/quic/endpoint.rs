//! The UDP socket and the thread of all QUIC connections of an endpoint.

use super::congestion::{ModelFactory, PACKETS_PER_ACK};
use super::pipe::{Pipe, QuicState, QuicStream, RECEIVE_WINDOW, SCRATCH_BYTES, STRANGER_WINDOW, STREAMS};
use crate::host;
use crate::limits;
use crate::listener::source;
use crate::tls::{Security, TlsConfigs};
use crate::traffic::{Direction, Network, Traffic};
use bytes::BytesMut;
use parking_lot::Mutex;
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    AckFrequencyConfig, ClientConfig, ConnectError, ConnectionHandle, DatagramEvent, Endpoint,
    EndpointConfig, IdleTimeout, MtuDiscoveryConfig, ServerConfig, Transmit, TransportConfig, VarInt,
};
use quinn_udp::{RecvMeta, UdpSocketState};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::SocketType;
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A connection is lost when its other end has been silent for this long.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// How often an idle connection says that it is alive. NATs forget sooner or later.
const KEEP_ALIVE: Duration = Duration::from_secs(4);
/// How long a host that did not answer is not dialled again.
const SILENCE_REMEMBERED: Duration = Duration::from_secs(600);
/// Connections whose other end is not authenticated.
const STRANGERS_MAX: usize = 256;
/// The same of one host or network.
const STRANGERS_PER_SOURCE_MAX: usize = 64;
/// From so many on, they first have to show that they receive packets at their address.
const STRANGERS_UNVERIFIED_MAX: usize = 32;
/// Packets in one call to the system.
const SEGMENTS_MAX: usize = 32;
/// Reads in one call to the system, each of packets that arrived together.
const READ_SLOTS: usize = 8;
const READ_BYTES: usize = 64 * 1024;
/// Rounds of reading the socket before connections get their turn.
const READS_PER_TURN: usize = 8;
/// The socket's buffers, if the system allows it.
const SOCKET_BYTES: usize = 8 << 20;
/// Bytes of the headers of UDP and IP.
const HEADER_BYTES_V4: u16 = 28;
const HEADER_BYTES_V6: u16 = 48;

/// A UDP socket that makes and accepts QUIC connections. Dropping it ends them.
#[derive(Debug)]
pub struct QuicEndpoint {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    socket: UdpSocket,
    /// Wakes the thread.
    kick: Arc<OwnedFd>,
    requests: Mutex<Requests>,
    incoming: Mutex<VecDeque<QuicStream>>,
    /// Ready for input while there may be incoming connections.
    arrived: OwnedFd,
    /// Accounts and caps of its connections.
    network: Arc<Network>,
    /// Hosts that did not answer, and when.
    silent: Mutex<HashMap<IpAddr, Instant>>,
}

#[derive(Debug, Default)]
struct Requests {
    dial: Vec<DialRequest>,
    is_over: bool,
}

/// A connection to be made.
#[derive(Debug)]
struct DialRequest {
    round_trip: Duration,
    /// The thread's end of the local socket.
    socket: UnixStream,
    state: Arc<QuicState>,
}

impl QuicEndpoint {
    /// Binds a socket and starts the thread. Its packets are on the accounts of `network`.
    pub fn bind(address: SocketAddr, network: &Arc<Network>, security: &Arc<Security>) -> io::Result<Self> {
        let (worker, shared) = Worker::bind(address, network, security)?;
        let runs = shared.clone();
        let thread =
            std::thread::Builder::new().name("ringfold-quic".into()).spawn(move || worker.run(&runs))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The address of the socket.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.shared.socket.local_addr()
    }

    /// Begins a connection. Bytes can be written at once; they leave when it is established.
    pub fn dial(&self, to: SocketAddr, round_trip: Duration) -> io::Result<QuicStream> {
        // A socket of both families takes addresses of IPv4 in the form of IPv6.
        let to = match (self.address()?, to) {
            (SocketAddr::V6(_), SocketAddr::V4(to)) => (to.ip().to_ipv6_mapped(), to.port()).into(),
            _ => to,
        };
        let (stream, socket) = self.shared.stream(to)?;
        self.shared.requests.lock().dial.push(DialRequest {
            round_trip,
            socket,
            state: stream.state.clone(),
        });
        self.shared.kick();
        Ok(stream)
    }

    /// Remembers that a host did not answer: UDP is blocked on the way, or nobody listens there.
    pub(crate) fn note_silence(&self, host: IpAddr) {
        self.shared.silent.lock().insert(host, Instant::now());
    }

    /// Whether connections to an address, with this round-trip time by TCP, should use QUIC: the path is long, and UDP is
    /// not known to be blocked.
    pub(crate) fn suits(&self, address: SocketAddr, round_trip: Duration) -> bool {
        let is_long = round_trip >= limits::QUIC_ROUND_TRIP_MIN && !address.ip().is_loopback();
        is_long && self.may_answer(address.ip())
    }

    /// Whether it is worth dialling a host.
    fn may_answer(&self, host: IpAddr) -> bool {
        let silent = self.shared.silent.lock();
        silent.get(&host).is_none_or(|since| since.elapsed() > SILENCE_REMEMBERED)
    }

    /// The next connection of another end.
    pub fn accept(&self) -> Option<QuicStream> {
        let mut incoming = self.shared.incoming.lock();
        if incoming.len() <= 1 {
            let _ = rustix::io::read(&self.shared.arrived, &mut [0; 8]);
        }
        incoming.pop_front()
    }

    /// Ready for input while there are incoming connections.
    pub fn arrived(&self) -> &OwnedFd {
        &self.shared.arrived
    }
}

impl Drop for QuicEndpoint {
    fn drop(&mut self) {
        self.shared.requests.lock().is_over = true;
        self.shared.kick();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// A local socket: the application's end, and the thread's.
    fn stream(&self, remote: SocketAddr) -> io::Result<(QuicStream, UnixStream)> {
        let (socket, application) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        let state = Arc::new(QuicState::new(remote, self.kick.clone(), &self.network));
        Ok((QuicStream { socket: application, state }, socket))
    }

    fn kick(&self) {
        let _ = rustix::io::write(&*self.kick, &1_u64.to_ne_bytes());
    }
}

/// The thread's state.
struct Worker {
    endpoint: Endpoint,
    udp: UdpSocketState,
    security: Arc<Security>,
    settings: Settings,
    pipes: HashMap<ConnectionHandle, Pipe>,
    /// Connections that the other end has closed, and whose bytes the application has not read.
    closed: Vec<Pipe>,
    /// The application's ends of connections that are not established.
    unclaimed: HashMap<ConnectionHandle, QuicStream>,
    /// Packets that the socket did not take yet.
    unsent: Option<Packets>,
    /// Bytes of an application, until the protocol has them.
    scratch: Box<[u8]>,
}

/// A packet, or several of equal size, and their connection if there is one.
struct Packets {
    transmit: Transmit,
    bytes: Vec<u8>,
    connection: Option<Arc<QuicState>>,
}

/// The settings of new connections.
#[derive(Clone)]
struct Settings {
    configs: Arc<TlsConfigs>,
    client: Arc<QuicClientConfig>,
    server: Arc<QuicServerConfig>,
}

impl Settings {
    fn new(configs: Arc<TlsConfigs>) -> io::Result<Self> {
        let server = QuicServerConfig::try_from(configs.server.clone()).map_err(io::Error::other)?;
        let client = QuicClientConfig::try_from(configs.client.clone()).map_err(io::Error::other)?;
        Ok(Self { configs, client: Arc::new(client), server: Arc::new(server) })
    }
}

impl Worker {
    fn bind(
        address: SocketAddr,
        network: &Arc<Network>,
        security: &Arc<Security>,
    ) -> io::Result<(Self, Arc<Shared>)> {
        let socket = UdpSocket::from(host::bound_socket(address, SocketType::DGRAM)?);
        let worker = Self::new(&socket, security.clone())?;
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let shared = Shared {
            socket,
            kick: Arc::new(event()?),
            requests: Mutex::default(),
            incoming: Mutex::default(),
            arrived: event()?,
            network: network.clone(),
            silent: Mutex::default(),
        };
        Ok((worker, Arc::new(shared)))
    }

    fn new(socket: &UdpSocket, security: Arc<Security>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let udp = UdpSocketState::new(socket.into())?;
        let _ = udp.set_send_buffer_size(socket.into(), SOCKET_BYTES);
        let _ = udp.set_recv_buffer_size(socket.into(), SOCKET_BYTES);
        let settings = Settings::new(security.configs())?;
        let incoming = Arc::new(ServerConfig::with_crypto(settings.server.clone()));
        let config = Arc::new(EndpointConfig::default());
        let endpoint = Endpoint::new(config, Some(incoming), !udp.may_fragment(), None);
        let (pipes, unclaimed, closed) = (HashMap::new(), HashMap::new(), Vec::new());
        let scratch = vec![0; SCRATCH_BYTES].into_boxed_slice();
        Ok(Self { endpoint, udp, security, settings, pipes, closed, unclaimed, unsent: None, scratch })
    }

    /// The settings of a connection that begins now: certificates may have been replaced.
    fn settings(&mut self) -> Settings {
        let configs = self.security.configs();
        if !Arc::ptr_eq(&configs, &self.settings.configs)
            && let Ok(settings) = Settings::new(configs)
        {
            self.settings = settings;
        }
        self.settings.clone()
    }

    fn run(mut self, shared: &Shared) {
        let mut buffers = vec![0; READ_SLOTS * READ_BYTES].into_boxed_slice();
        loop {
            let now = Instant::now();
            if !self.take_requests(now, shared) {
                return self.end(now, shared);
            }
            self.receive(now, shared, &mut buffers);
            let timeout = self.advance(shared);
            if self.wait(shared, timeout).is_err() {
                return self.end(Instant::now(), shared);
            }
        }
    }

    /// Waits for packets, bytes of the application, requests, or a timer.
    fn wait(&mut self, shared: &Shared, timeout: Option<Instant>) -> io::Result<()> {
        let mut udp = PollFlags::IN;
        udp.set(PollFlags::OUT, self.unsent.is_some());
        let mut polled = vec![PollFd::new(&shared.socket, udp), PollFd::new(&*shared.kick, PollFlags::IN)];
        for pipe in self.pipes.values().chain(&self.closed) {
            if let Some(socket) = pipe.socket() {
                polled.push(PollFd::new(socket, pipe.interest()));
            }
        }
        let sockets = polled.len();
        let guarded = self.pipes.values().filter_map(|pipe| Some((pipe.state.clone(), pipe.state.guard()?)));
        let guarded: Vec<_> = guarded.collect();
        polled.extend(guarded.iter().map(|(_, guard)| PollFd::new(&**guard, PollFlags::IN)));
        let timeout = timeout.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout =
            timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !polled[1].revents().is_empty() {
            let _ = rustix::io::read(&*shared.kick, &mut [0; 8]);
        }
        let is_closed = |polled: &PollFd<'_>| polled.revents().intersects(PollFlags::HUP | PollFlags::ERR);
        let closed: Vec<_> = polled[2..sockets].iter().map(is_closed).collect();
        for ((state, _), polled) in guarded.iter().zip(&polled[sockets..]) {
            if !polled.revents().is_empty() {
                state.lose_guard();
            }
        }
        let pipes = self.pipes.values_mut().chain(&mut self.closed).filter(|pipe| pipe.socket().is_some());
        for (pipe, _) in pipes.zip(closed).filter(|(_, is_closed)| *is_closed) {
            pipe.abandon();
        }
        Ok(())
    }

    /// Returns false when the endpoint is dropped.
    fn take_requests(&mut self, now: Instant, shared: &Shared) -> bool {
        let mut requests = shared.requests.lock();
        for request in requests.dial.drain(..) {
            let to = request.state.remote;
            // Dropping the socket tells the application.
            if let Err(error) = self.dial(now, request) {
                tracing::debug!("cannot dial {to} by QUIC: {error}");
            }
        }
        !requests.is_over
    }

    fn dial(&mut self, now: Instant, request: DialRequest) -> Result<(), ConnectError> {
        let DialRequest { round_trip, socket, state } = request;
        let Settings { configs, client, .. } = self.settings();
        let mut config = ClientConfig::new(client);
        config.transport_config(transport(&state, Some(round_trip)));
        let (handle, connection) = self.endpoint.connect(now, config, state.remote, "ringfold")?;
        self.pipes.insert(handle, Pipe::new(connection, socket, state, configs.run.clone()));
        Ok(())
    }

    fn receive(&mut self, now: Instant, shared: &Shared, buffers: &mut [u8]) {
        for _ in 0..READS_PER_TURN {
            let mut metas = [RecvMeta::default(); READ_SLOTS];
            let mut chunks = buffers.chunks_mut(READ_BYTES);
            let mut slices: [IoSliceMut<'_>; READ_SLOTS] =
                core::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
            let count = match self.udp.recv((&shared.socket).into(), &mut slices, &mut metas) {
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // Errors of earlier packets (ICMP) are not those of the socket.
                Err(_) => return,
            };
            for (meta, slice) in metas.iter().zip(&slices).take(count) {
                let headers = header_bytes(meta.addr) * meta.len.div_ceil(meta.stride.max(1));
                let mut packets = Some(meta.len + headers);
                let mut data = BytesMut::from(&slice[..meta.len]);
                while !data.is_empty() {
                    let datagram = data.split_to(meta.stride.clamp(1, data.len()));
                    let connection = self.handle_datagram(now, shared, meta, datagram);
                    // Packets that arrived together are of one connection.
                    match (packets.take(), connection) {
                        (Some(bytes), Some(connection)) => connection.count_received(meta.len, bytes),
                        (Some(bytes), None) => shared
                            .network
                            .count_others(Traffic { received: bytes as u64, ..Traffic::default() }),
                        (None, _) => {}
                    }
                }
            }
            if count < READ_SLOTS {
                return;
            }
        }
    }

    /// Returns the connection that a packet belongs to.
    fn handle_datagram(
        &mut self,
        now: Instant,
        shared: &Shared,
        meta: &RecvMeta,
        datagram: BytesMut,
    ) -> Option<Arc<QuicState>> {
        let mut reply = Vec::new();
        let ecn = meta.ecn.and_then(|ecn| quinn_proto::EcnCodepoint::from_bits(ecn as u8));
        match self.endpoint.handle(now, meta.addr, meta.dst_ip, ecn, datagram, &mut reply) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let pipe = self.pipes.get_mut(&handle)?;
                pipe.connection.handle_event(event);
                return Some(pipe.state.clone());
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                let strangers = self.pipes.values().filter(|pipe| !pipe.state.is_trusted());
                let here = strangers.clone().filter(|pipe| source(pipe.state.remote) == source(meta.addr));
                let (strangers, here) = (strangers.count(), here.count());
                if strangers >= STRANGERS_UNVERIFIED_MAX && incoming.may_retry() {
                    if let Ok(transmit) = self.endpoint.retry(incoming, &mut reply) {
                        self.send(shared, transmit, reply);
                    }
                    return None;
                }
                if strangers >= STRANGERS_MAX || here >= STRANGERS_PER_SOURCE_MAX {
                    let transmit = self.endpoint.refuse(incoming, &mut reply);
                    self.send(shared, transmit, reply);
                    return None;
                }
                // Without descriptors the other end gets no answer, and tries again.
                let Ok((stream, socket)) = shared.stream(meta.addr) else {
                    self.endpoint.ignore(incoming);
                    return None;
                };
                let Settings { configs, server, .. } = self.settings();
                let mut config = ServerConfig::with_crypto(server);
                config.transport_config(transport(&stream.state, None));
                match self.endpoint.accept(incoming, now, &mut reply, Some(Arc::new(config))) {
                    Ok((handle, connection)) => {
                        let state = stream.state.clone();
                        state.expire_at(Some(now + limits::HANDSHAKE_MAX));
                        let pipe = Pipe::new(connection, socket, state.clone(), configs.run.clone());
                        self.pipes.insert(handle, pipe);
                        self.unclaimed.insert(handle, stream);
                        return Some(state);
                    }
                    Err(error) => {
                        if let Some(transmit) = error.response {
                            self.send(shared, transmit, reply);
                        }
                    }
                }
            }
            Some(DatagramEvent::Response(transmit)) => self.send(shared, transmit, reply),
            None => {}
        }
        None
    }

    /// Advances all connections: timers, bytes of the application, packets. Returns when the next timer is due.
    fn advance(&mut self, shared: &Shared) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        let handles: Vec<_> = self.pipes.keys().copied().collect();
        for handle in handles {
            let now = Instant::now();
            let Some(pipe) = self.pipes.get_mut(&handle) else { continue };
            if pipe.connection.poll_timeout().is_some_and(|at| at <= now) {
                pipe.connection.handle_timeout(now);
            }
            while let Some(event) = pipe.connection.poll_endpoint_events() {
                if let Some(event) = self.endpoint.handle_event(handle, event) {
                    pipe.connection.handle_event(event);
                }
            }
            if pipe.handle_events()
                && let Some(stream) = self.unclaimed.remove(&handle)
            {
                shared.incoming.lock().push_back(stream);
                let _ = rustix::io::write(&shared.arrived, &1_u64.to_ne_bytes());
            }
            pipe.copy(now, &mut self.scratch);
            let sends_at = self.transmit(now, shared, handle);
            let Some(pipe) = self.pipes.get_mut(&handle) else { continue };
            if pipe.is_drained() {
                self.closed.extend(self.pipes.remove(&handle));
                self.unclaimed.remove(&handle);
                continue;
            }
            let due = [pipe.connection.poll_timeout(), pipe.expires(), pipe.reads_at(), sends_at];
            next = due.into_iter().chain([next]).flatten().min();
        }
        self.closed.retain_mut(Pipe::deliver);
        self.closed.iter().filter_map(Pipe::reads_at).chain(next).min()
    }

    /// Sends the packets of a connection. Returns when to go on, if the bandwidth of the path or of the cap is used up.
    fn transmit(&mut self, now: Instant, shared: &Shared, handle: ConnectionHandle) -> Option<Instant> {
        let segments = self.udp.max_gso_segments().min(SEGMENTS_MAX);
        while self.flush(shared) {
            let pipe = self.pipes.get_mut(&handle)?;
            if let Some(at) = pipe.sends_at() {
                return Some(at);
            }
            let most = match pipe.state.meter.allowance(Direction::Send) {
                Ok(bytes) => bytes,
                Err(until) => return Some(until),
            };
            let segments = segments.min(most / 1500).max(1);
            let mut bytes = Vec::with_capacity(segments * 1500);
            let transmit = pipe.connection.poll_transmit(now, segments, &mut bytes)?;
            pipe.pace(transmit.size);
            self.unsent = Some(Packets { transmit, bytes, connection: Some(pipe.state.clone()) });
        }
        None
    }

    /// Sends what the socket did not take before. Returns whether nothing is left.
    fn flush(&mut self, shared: &Shared) -> bool {
        let Some(Packets { transmit, bytes, connection }) = &self.unsent else { return true };
        let datagram = quinn_udp::Transmit {
            destination: transmit.destination,
            ecn: transmit.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
            contents: &bytes[..transmit.size],
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
        };
        match self.udp.try_send((&shared.socket).into(), &datagram) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            // Other errors are losses, which the protocol repairs.
            sent => {
                if sent.is_ok() {
                    let count = transmit.segment_size.map_or(1, |size| transmit.size.div_ceil(size.max(1)));
                    let bytes = transmit.size + header_bytes(transmit.destination) * count;
                    match connection {
                        Some(connection) => {
                            connection.meter.count(Direction::Send, bytes);
                            connection.meter.pay(Direction::Send, bytes);
                        }
                        None => {
                            shared.network.count_others(Traffic { sent: bytes as u64, ..Traffic::default() })
                        }
                    }
                }
                self.unsent = None;
                true
            }
        }
    }

    /// Sends an answer of the endpoint, unless something else waits.
    fn send(&mut self, shared: &Shared, transmit: Transmit, packet: Vec<u8>) {
        if self.flush(shared) {
            self.unsent = Some(Packets { transmit, bytes: packet, connection: None });
            self.flush(shared);
        }
    }

    /// Tells the other ends that all connections are closed.
    fn end(mut self, now: Instant, shared: &Shared) {
        for pipe in self.pipes.values_mut() {
            pipe.connection.close(now, VarInt::from_u32(0), bytes::Bytes::new());
            pipe.fail("the endpoint was closed".into());
        }
        let handles: Vec<_> = self.pipes.keys().copied().collect();
        for handle in handles {
            self.transmit(now, shared, handle);
        }
    }
}

/// Bytes of the headers of UDP and IP.
fn header_bytes(to: SocketAddr) -> usize {
    usize::from(if to.ip().to_canonical().is_ipv4() { HEADER_BYTES_V4 } else { HEADER_BYTES_V6 })
}

/// The settings of a connection.
fn transport(state: &QuicState, round_trip: Option<Duration>) -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    config.stream_receive_window(VarInt::from_u32(RECEIVE_WINDOW)).send_fairness(false);
    config.receive_window(VarInt::from_u32(STRANGER_WINDOW));
    config.max_concurrent_bidi_streams(VarInt::from_u32(0));
    config.max_concurrent_uni_streams(VarInt::from_u32(STREAMS as u32));
    config.datagram_receive_buffer_size(None);
    config.max_idle_timeout(IdleTimeout::try_from(SILENCE_MAX).ok()).keep_alive_interval(Some(KEEP_ALIVE));
    config.congestion_controller_factory(Arc::new(ModelFactory { rates: state.rates.clone() }));
    let mut acks = AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(VarInt::from_u32(PACKETS_PER_ACK));
    config.ack_frequency_config(Some(acks));
    if let Some(round_trip) = round_trip {
        config.initial_rtt(round_trip.max(Duration::from_millis(1)));
    }
    let mut discovery = MtuDiscoveryConfig::default();
    let to = SocketAddr::new(state.remote.ip().to_canonical(), state.remote.port());
    let headers = header_bytes(to) as u16;
    discovery.upper_bound(host::path_mtu(to).unwrap_or(1500).saturating_sub(headers).max(1200));
    config.mtu_discovery_config(Some(discovery));
    Arc::new(config)
}

#[cfg(test)]
mod tests;
