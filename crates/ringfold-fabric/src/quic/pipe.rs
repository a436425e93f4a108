//! One QUIC connection: the protocol's state on one side, a local socket on the other.

use super::congestion::Rates;
use crate::tls::{self, TrustedRun};
use crate::token_bucket::TokenBucket;
use crate::traffic::{self, Direction, Meter, Network};
use crate::transport::Transport;
use bytes::{Buf, Bytes};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use parking_lot::Mutex;
use quinn_proto::{
    Connection, ConnectionError, Dir, Event, ReadError, StreamEvent, StreamId, VarInt, WriteError,
};
use ringfold_proto::handshake::Binding;
use ringfold_proto::hello::Purpose;
use ringfold_proto::id::PeerId;
use rustix::event::PollFlags;
use rustls::pki_types::{CertificateDer, UnixTime};
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Bytes that are read from the local socket at once.
pub(super) const SCRATCH_BYTES: usize = 128 * 1024;
/// Pieces that are written to the local socket at once.
const CHUNKS_PER_WRITE: usize = 64;
/// Bytes that may wait to be sent, in addition to those in flight. Urgent messages wait behind them.
const UNSENT_BYTES: u64 = 512 * 1024;
/// A lost packet is sent again within so many round trips.
const LOSS_ROUND_TRIPS: u32 = 2;
/// The streams of each direction. A stream in which too many gaps wait for lost packets ends the connection; with several
/// of them even a loss of every second packet of a whole window is no more than they allow.
pub(super) const STREAMS: usize = 16;
/// The bytes of the application are dealt to the streams in turn, so many to each.
const BLOCK_BYTES: usize = 16 * 1024;
/// Bytes that wait in a connection to be read by the application, or for bytes before them.
pub(super) const RECEIVE_WINDOW: u32 = if cfg!(test) { 2 << 20 } else { 48 << 20 };
/// The same before the other end has authenticated.
pub(super) const STRANGER_WINDOW: u32 = 64 * 1024;
/// With a cap on downloads, as much as arrives at that rate within two round trips and this time, but not less than the
/// next one: what the other end may send before it has to wait.
const CAPPED_WINDOW_TIME: Duration = Duration::from_millis(50);
const CAPPED_WINDOW_MIN: u64 = 256 * 1024;
/// How long packets may still arrive after the other end's process has ended, in addition to two round trips.
const EXPIRY_GRACE: Duration = Duration::from_millis(200);
/// The code of a regular end.
const CLOSED: VarInt = VarInt::from_u32(0);

/// The application's end of a QUIC connection.
#[derive(Debug)]
pub struct QuicStream {
    /// Carries the bytes.
    pub socket: UnixStream,
    /// What the protocol says of the connection.
    pub state: Arc<QuicState>,
}

/// What the protocol says of a connection.
#[derive(Debug)]
pub struct QuicState {
    /// The address of the other end.
    pub remote: SocketAddr,
    binding: OnceLock<Binding>,
    failure: Mutex<Option<String>>,
    round_trip_us: AtomicU64,
    unacknowledged: AtomicU64,
    received: AtomicU64,
    pub(super) rates: Arc<Rates>,
    /// Whether the other end has authenticated.
    is_trusted: AtomicBool,
    /// When the connection ends, whatever happens.
    expires: Mutex<Option<Instant>>,
    /// The TCP connection beside it, if the thread of the endpoint watches it.
    guard: Mutex<Option<Arc<Transport>>>,
    /// Wakes the thread of the endpoint.
    kick: Arc<OwnedFd>,
    /// Counts its packets.
    pub(super) meter: Meter,
}

impl QuicState {
    pub(super) fn new(remote: SocketAddr, kick: Arc<OwnedFd>, network: &Arc<Network>) -> Self {
        Self {
            meter: Meter::new(network),
            is_trusted: AtomicBool::new(false),
            expires: Mutex::new(None),
            guard: Mutex::new(None),
            kick,
            remote,
            binding: OnceLock::new(),
            failure: Mutex::new(None),
            round_trip_us: AtomicU64::new(0),
            unacknowledged: AtomicU64::new(0),
            received: AtomicU64::new(0),
            rates: Arc::default(),
        }
    }

    /// A value that only the two ends of this TLS session know; none before it is established.
    pub fn binding(&self) -> Option<Binding> {
        self.binding.get().copied()
    }

    /// Why the connection was lost, if it was.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    /// The other end has authenticated: from now on it may send as much as a link needs.
    pub(crate) fn trust(&self) {
        self.is_trusted.store(true, Ordering::Release);
        self.kick();
    }

    /// The other end has authenticated as this peer. QUIC is never used within a host.
    pub(crate) fn identify(&self, peer: PeerId, purpose: Purpose) {
        self.meter.identify(peer, purpose, false);
    }

    pub(super) fn is_trusted(&self) -> bool {
        self.is_trusted.load(Ordering::Acquire)
    }

    fn kick(&self) {
        let _ = rustix::io::write(&*self.kick, &1_u64.to_ne_bytes());
    }

    /// Ends the connection at this time; none for a connection that is established in time.
    pub(super) fn expire_at(&self, at: Option<Instant>) {
        *self.expires.lock() = at;
    }

    /// The other end's process has ended, as its TCP connection shows. What is on its way may still arrive.
    pub(crate) fn expire(&self) {
        let grace = 2 * self.round_trip() + EXPIRY_GRACE;
        self.expires.lock().get_or_insert(Instant::now() + grace);
        self.kick();
    }

    /// Has the thread of the endpoint watch the TCP connection beside it, on which nothing is sent. When that ends, the
    /// other end's process has ended.
    pub(crate) fn set_guard(&self, guard: Arc<Transport>) {
        *self.guard.lock() = Some(guard);
        self.kick();
    }

    pub(crate) fn guard(&self) -> Option<Arc<Transport>> {
        self.guard.lock().clone()
    }

    /// The TCP connection beside it has ended.
    pub(super) fn lose_guard(&self) {
        *self.guard.lock() = None;
        self.expire();
    }

    /// The smoothed round-trip time.
    pub fn round_trip(&self) -> Duration {
        Duration::from_micros(self.round_trip_us.load(Ordering::Relaxed))
    }

    /// The bytes per second that the path carries to the other end, once so much was sent that it is known.
    pub fn bandwidth(&self) -> Option<u64> {
        Some(self.rates.bandwidth.load(Ordering::Relaxed)).filter(|bandwidth| *bandwidth > 0)
    }

    /// Bytes of packets that have arrived, in whatever order.
    pub fn received_bytes(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Counts what has arrived together: the bytes in the packets, and the same with their headers.
    pub(super) fn count_received(&self, bytes: usize, with_headers: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
        self.meter.count(Direction::Receive, with_headers);
    }

    /// Bytes that the other end has not acknowledged, or a number above zero if some are left.
    pub fn unacknowledged_bytes(&self) -> usize {
        self.unacknowledged.load(Ordering::Acquire) as usize
    }
}

/// The thread's end of a connection.
#[derive(Debug)]
pub(super) struct Pipe {
    /// Checks the certificate of the other end, if the run has certificates.
    run: Option<Arc<TrustedRun>>,
    pub connection: Connection,
    pub state: Arc<QuicState>,
    /// When the next packets are sent.
    pacer: TokenBucket,
    /// The local socket; its other end is with the application.
    socket: UnixStream,
    output: Dealer,
    input: Dealer,
    /// Read from the local socket, and not taken by the protocol.
    outgoing: Bytes,
    /// Taken from the protocol, and not written to the local socket.
    incoming: VecDeque<Bytes>,
    is_output_over: bool,
    is_input_over: bool,
    /// Whether the application has seen the end of the input.
    is_end_told: bool,
    /// Whether the other end has closed the connection regularly. What has arrived is still delivered.
    is_closed: bool,
    /// Whether the window for an authenticated end is set.
    is_wide: bool,
    /// Whether the application has closed its end.
    is_abandoned: bool,
    /// Bytes that were lost so far, and until when they may be missing.
    lost: (u64, Option<Instant>),
    /// Streams of which all bytes are acknowledged, after their end.
    finished: usize,
    /// Whether the protocol refused bytes until more are acknowledged.
    is_blocked: bool,
    /// Whether bytes may be there to be read.
    is_readable: bool,
    /// When more may be read, if the bandwidth is used up.
    reads_at: Option<Instant>,
}

impl Pipe {
    pub fn new(
        connection: Connection,
        socket: UnixStream,
        state: Arc<QuicState>,
        run: Option<Arc<TrustedRun>>,
    ) -> Self {
        Self {
            connection,
            run,
            state,
            pacer: TokenBucket::new(u64::MAX),
            socket,
            output: Dealer::default(),
            input: Dealer::default(),
            outgoing: Bytes::new(),
            incoming: VecDeque::new(),
            is_output_over: false,
            is_input_over: false,
            is_end_told: false,
            is_closed: false,
            is_wide: false,
            is_abandoned: false,
            lost: (0, None),
            finished: 0,
            is_blocked: false,
            is_readable: false,
            reads_at: None,
        }
    }

    /// The local socket, while the application has the other end.
    pub fn socket(&self) -> Option<&UnixStream> {
        (!self.is_abandoned).then_some(&self.socket)
    }

    /// The application has closed its end.
    pub fn abandon(&mut self) {
        self.is_abandoned = true;
    }

    /// What to wait for at the local socket.
    pub fn interest(&self) -> PollFlags {
        let mut interest = PollFlags::empty();
        let wants_output = !self.output.streams.is_empty()
            && !self.is_output_over
            && self.outgoing.is_empty()
            && !self.is_blocked;
        interest.set(PollFlags::IN, wants_output);
        interest.set(PollFlags::OUT, !self.incoming.is_empty());
        interest
    }

    /// When packets may be sent, if not now. The rate is that of the congestion control.
    pub fn sends_at(&self) -> Option<Instant> {
        let (now, begin) = (traffic::now(), self.pacer.begin());
        (begin > now && !self.connection.is_closed()).then(|| Instant::now() + begin.since(now))
    }

    /// Packets of so many bytes are sent.
    pub fn pace(&mut self, bytes: usize) {
        let pace = self.state.rates.pace.load(Ordering::Relaxed);
        self.pacer.set_rate(if pace > 0 { pace } else { u64::MAX });
        self.pacer.pay(traffic::now(), bytes);
    }

    /// What the session proves of the other end.
    fn exported_binding(&self) -> Option<Binding> {
        let session = self.connection.crypto_session();
        let certificates = session.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        let (mut exported, peer) = ([0; 32], tls::peer_of(certificates.first()?)?);
        session.export_keying_material(&mut exported, tls::BINDING_LABEL, &[]).ok()?;
        let verify =
            |run: &Arc<TrustedRun>| run.verify(&certificates, UnixTime::now()).map(|found| found.role);
        Some(Binding { exported, peer, role: self.run.as_ref().map(verify) })
    }

    /// Handles the protocol's events. Returns true when a connection of the other end is established.
    pub fn handle_events(&mut self) -> bool {
        let mut is_established = false;
        while let Some(event) = self.connection.poll() {
            match event {
                Event::Connected => {
                    if let Some(binding) = self.exported_binding() {
                        let _ = self.state.binding.set(binding);
                    }
                    let open = || self.connection.streams().open(Dir::Uni);
                    self.output.streams = std::iter::from_fn(open).take(STREAMS).collect();
                    is_established = self.connection.side().is_server();
                    if is_established {
                        self.state.expire_at(None);
                    }
                }
                Event::Stream(StreamEvent::Opened { .. }) => {
                    // They come in the order of their numbers.
                    let accept = || self.connection.streams().accept(Dir::Uni);
                    self.input.streams.extend(std::iter::from_fn(accept));
                    self.is_readable = true;
                }
                Event::Stream(StreamEvent::Readable { .. }) => self.is_readable = true,
                Event::Stream(StreamEvent::Stopped { .. }) => self.is_output_over = true,
                Event::Stream(StreamEvent::Finished { .. }) => {
                    self.finished += 1;
                    if self.finished == STREAMS {
                        self.state.unacknowledged.store(0, Ordering::Release);
                    }
                }
                Event::ConnectionLost { reason: ConnectionError::ApplicationClosed(close) }
                    if close.error_code == CLOSED =>
                {
                    self.state.unacknowledged.store(0, Ordering::Release);
                    (self.is_closed, self.is_readable, self.is_output_over) = (true, true, true);
                    let _ = self.socket.shutdown(Shutdown::Read);
                }
                Event::ConnectionLost { reason } => self.fail(reason.to_string()),
                _ => {}
            }
        }
        is_established
    }

    /// Copies what can be copied in both directions.
    pub fn copy(&mut self, now: Instant, scratch: &mut [u8]) {
        if !self.is_wide && self.state.is_trusted() {
            self.is_wide = true;
            self.connection.set_receive_window(VarInt::from_u32(self.window()));
        }
        if !self.output.streams.is_empty() {
            self.copy_out(now, scratch);
        }
        self.copy_in();
        let is_expired = self.expires().is_some_and(|at| at <= now);
        if is_expired {
            self.fail("the other end's process has ended".into());
        }
        let is_sent = self.finished == STREAMS || self.output.streams.is_empty() || !self.state.is_trusted();
        if is_expired || self.is_abandoned && self.is_output_over && is_sent {
            self.connection.close(now, CLOSED, Bytes::new());
        }
        self.state.round_trip_us.store(self.connection.rtt().as_micros() as u64, Ordering::Relaxed);
    }

    /// Bytes that may wait here to be read: with a cap, few.
    fn window(&self) -> u32 {
        let Some(rate) = self.state.meter.cap(Direction::Receive) else { return RECEIVE_WINDOW };
        let time = 2 * self.connection.rtt() + CAPPED_WINDOW_TIME;
        let bytes = (rate as f64 * time.as_secs_f64()) as u64;
        bytes.clamp(CAPPED_WINDOW_MIN.min(u64::from(RECEIVE_WINDOW)), u64::from(RECEIVE_WINDOW)) as u32
    }

    fn copy_out(&mut self, now: Instant, scratch: &mut [u8]) {
        let (in_flight, lost) = (&self.state.rates.in_flight, self.state.rates.lost.load(Ordering::Relaxed));
        if self.lost.0 != lost {
            self.lost = (lost, Some(now + LOSS_ROUND_TRIPS * self.connection.rtt()));
        }
        // Bytes behind a lost packet are kept until it has arrived, also if they have.
        let kept = if self.lost.1 > Some(now) { self.connection.congestion_state().window() } else { 0 };
        self.connection.set_send_window(in_flight.load(Ordering::Relaxed) + kept + UNSENT_BYTES);
        // Every acknowledgement may have made room.
        self.is_blocked = false;
        while !self.is_output_over && !self.is_blocked {
            if self.outgoing.is_empty() {
                match (&self.socket).read(scratch) {
                    Ok(0) => {
                        self.is_output_over = true;
                        for stream in &self.output.streams {
                            let _ = self.connection.send_stream(*stream).finish();
                        }
                        return;
                    }
                    // A copy of the right size: it is kept until it is acknowledged, and counts with its size.
                    Ok(bytes) => self.outgoing = Bytes::copy_from_slice(&scratch[..bytes]),
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                    Err(_) => self.is_output_over = true,
                }
            }
            let Some((stream, room)) = self.output.current() else { return };
            let mut block = self.outgoing.slice(..room.min(self.outgoing.len()));
            match self.connection.send_stream(stream).write_chunks(core::slice::from_mut(&mut block)) {
                Ok(written) => {
                    self.state.unacknowledged.store(1, Ordering::Release);
                    self.outgoing.advance(written.bytes);
                    self.output.advance(written.bytes);
                }
                Err(WriteError::Blocked) => self.is_blocked = true,
                Err(_) => self.is_output_over = true,
            }
        }
    }

    fn copy_in(&mut self) {
        self.reads_at = None;
        loop {
            while self.incoming.len() < CHUNKS_PER_WRITE
                && self.is_readable
                && !self.is_input_over
                && self.reads_at.is_none()
            {
                self.read();
            }
            if self.incoming.is_empty() {
                return self.tell_end();
            }
            let mut slices = [IoSlice::new(&[]); CHUNKS_PER_WRITE];
            for (slice, chunk) in slices.iter_mut().zip(&self.incoming) {
                *slice = IoSlice::new(chunk);
            }
            match (&self.socket).write_vectored(&slices[..self.incoming.len().min(CHUNKS_PER_WRITE)]) {
                Ok(bytes) => self.drop_written(bytes),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The application does not read any more.
                Err(_) => {
                    self.is_input_over = true;
                    self.incoming.clear();
                    for stream in &self.input.streams {
                        let _ = self.connection.recv_stream(*stream).stop(CLOSED);
                    }
                }
            }
        }
    }

    fn drop_written(&mut self, mut bytes: usize) {
        while let Some(chunk) = self.incoming.front_mut() {
            if chunk.len() > bytes {
                chunk.advance(bytes);
                return;
            }
            bytes -= chunk.len();
            self.incoming.pop_front();
        }
    }

    /// Everything that has arrived is written. If nothing more will arrive, the application sees the end.
    fn tell_end(&mut self) {
        if self.is_end_told || self.reads_at.is_some() {
            return;
        }
        if self.is_closed && !self.is_readable {
            self.is_end_told = true;
            self.end();
        } else if self.is_input_over {
            self.is_end_told = true;
            let _ = self.socket.shutdown(Shutdown::Write);
        }
    }

    /// Takes the next bytes from the protocol.
    fn read(&mut self) {
        let most = match self.state.meter.allowance(Direction::Receive) {
            Ok(bytes) => bytes,
            Err(until) => {
                self.reads_at = Some(until);
                return;
            }
        };
        self.is_readable = false;
        // The next stream may not have been opened yet.
        let Some((stream, room)) = self.input.current() else { return };
        let mut receive = self.connection.recv_stream(stream);
        let Ok(mut chunks) = receive.read(true) else { return };
        match chunks.next(room.min(most)) {
            Ok(Some(chunk)) => {
                self.state.meter.pay(Direction::Receive, chunk.bytes.len());
                self.input.advance(chunk.bytes.len());
                self.incoming.push_back(chunk.bytes);
                self.is_readable = true;
            }
            Err(ReadError::Blocked) => {}
            Ok(None) | Err(ReadError::Reset(_)) => self.is_input_over = true,
        }
        let _ = chunks.finalize();
    }

    /// When more may be read, if the bandwidth is used up.
    pub fn reads_at(&self) -> Option<Instant> {
        self.reads_at
    }

    /// When it ends, whatever happens; none if it has.
    pub fn expires(&self) -> Option<Instant> {
        self.state.expires.lock().filter(|_| !self.connection.is_closed())
    }

    /// The connection is lost: the application sees its end, and finds the reason.
    pub fn fail(&mut self, why: String) {
        self.state.failure.lock().get_or_insert(why);
        self.end();
    }

    fn end(&mut self) {
        self.state.unacknowledged.store(0, Ordering::Release);
        (self.is_output_over, self.is_input_over) = (true, true);
        self.incoming.clear();
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Whether the protocol has nothing left to do.
    pub fn is_drained(&self) -> bool {
        self.connection.is_drained()
    }

    /// Copies what had arrived before the other end closed the connection. Returns whether some is left.
    pub fn deliver(&mut self) -> bool {
        self.copy_in();
        !(self.is_abandoned || self.is_input_over && self.incoming.is_empty())
    }
}

/// The streams of one direction, and the place in them: which one is next, and how much of its block is done.
#[derive(Debug, Default)]
struct Dealer {
    streams: Vec<StreamId>,
    next: usize,
    done: usize,
}

impl Dealer {
    /// The stream of the next byte, and how many bytes follow in it.
    fn current(&self) -> Option<(StreamId, usize)> {
        Some((*self.streams.get(self.next)?, BLOCK_BYTES - self.done))
    }

    fn advance(&mut self, bytes: usize) {
        self.done += bytes;
        if self.done == BLOCK_BYTES {
            (self.next, self.done) = ((self.next + 1) % STREAMS, 0);
        }
    }
}
