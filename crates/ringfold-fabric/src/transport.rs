//! The byte stream below a connection: TCP, TLS on TCP, or QUIC.
//!
//! Only this file and the listener know that there is a descriptor.

use crate::limits;
use crate::poller::{Health, Poller, Token};
use crate::quic::{QuicState, QuicStream};
use crate::tls::{Encryption, Security, TlsSession, Wire};
use crate::traffic::{Direction, Meter};
use core::sync::atomic::{AtomicBool, Ordering};
use parking_lot::Mutex;
use ringfold_proto::handshake::Binding;
use ringfold_proto::hello::Purpose;
use ringfold_proto::id::PeerId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustls::pki_types::CertificateDer;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Where `tcp_info` of the kernel has the bytes that were acknowledged, and the microseconds in which there was something to
/// send. The layout is part of the interface of Linux, and only grows.
const TCP_INFO_BYTES_ACKED: usize = 120;
const TCP_INFO_BUSY_TIME: usize = 168;
/// Larger than it is in any kernel.
const TCP_INFO_BYTES_MAX: usize = 512;
/// The first byte of TLS. Ours is another.
const TLS_HANDSHAKE: u8 = 22;
/// After fewer bytes the bandwidth of a stream is not known.
const BANDWIDTH_BYTES_MIN: u64 = 1 << 20;

/// The byte stream below a connection.
#[derive(Debug)]
pub(crate) struct Transport {
    /// The TCP connection, or the local socket of a QUIC connection.
    stream: TcpStream,
    /// Set if it is QUIC.
    quic: Option<Arc<QuicState>>,
    /// Set if it is TLS.
    tls: OnceLock<TlsSession>,
    /// The keys for a connection whose first byte shows whether it is TLS.
    undecided: Mutex<Option<Arc<Security>>>,
    is_undecided: AtomicBool,
    /// The relay that it goes through.
    relay: OnceLock<SocketAddr>,
    /// Counts the bytes, since the first poller. The thread of a QUIC endpoint counts its packets instead.
    meter: OnceLock<Meter>,
    /// How long the other host may answer nothing: the setting of the first poller it was registered with.
    unreachable_after: OnceLock<Duration>,
    /// Since when the other host has not answered what was sent to it.
    unanswered_since: Mutex<Option<Instant>>,
    is_unreachable: AtomicBool,
}

/// Why a connection was closed. Errors of reads and writes hold it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CloseReason {
    /// The other end closed it.
    #[error("the other end closed the connection")]
    Ended,
    /// The other end's host stopped answering: it has lost power or its network.
    #[error("the other end's host does not answer any more")]
    Unreachable,
    /// Too much is queued.
    #[error("the other end reads too slowly: more than {} MiB wait to be sent", limits::QUEUED_BYTES_MAX >> 20)]
    Backlogged,
}

impl From<CloseReason> for io::Error {
    fn from(reason: CloseReason) -> Self {
        let kind = match reason {
            CloseReason::Ended => ErrorKind::UnexpectedEof,
            CloseReason::Unreachable => ErrorKind::HostUnreachable,
            CloseReason::Backlogged => ErrorKind::Other,
        };
        Self::new(kind, reason)
    }
}

impl CloseReason {
    /// The reason that an error of a connection holds, if it is one of these.
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl Transport {
    /// Begins to connect, encrypted if that is wanted. Nothing is waited for.
    pub(crate) fn dial(to: SocketAddr, security: &Security) -> io::Result<Self> {
        let transport = Self::dial_plain(to)?;
        if security.encrypts(to.ip()) {
            transport.encrypt(security)?;
        }
        Ok(transport)
    }

    /// The same, to a relay. Its session ends when the other member is joined.
    pub(crate) fn dial_relay(to: SocketAddr, security: &Security) -> io::Result<Self> {
        let transport = Self::dial(to, security)?;
        transport.tls.get().inspect(|session| session.read_records());
        Ok(transport)
    }

    /// The same, without encryption.
    fn dial_plain(to: SocketAddr) -> io::Result<Self> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&fd, &to) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(TcpStream::from(fd).into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Accepts a connection. Its first byte shows whether it is encrypted.
    pub(crate) fn decide_encryption(&self, security: &Arc<Security>) {
        if self.quic.is_some() {
            return;
        }
        *self.undecided.lock() = Some(security.clone());
        self.is_undecided.store(true, Ordering::Release);
    }

    /// Encrypts from now on, as the end that dials.
    pub(crate) fn encrypt(&self, security: &Security) -> io::Result<()> {
        let session = security.dial().map_err(io::Error::other)?;
        let _ = self.tls.set(session);
        Ok(())
    }

    /// The same TCP connection after the end of its encrypted session, which must hold nothing: what follows is not of this end.
    pub(crate) fn without_session(self: Arc<Self>) -> io::Result<Arc<Self>> {
        match self.tls.get() {
            None => Ok(self),
            Some(session) if session.is_idle() => Ok(Arc::new(self.stream.try_clone()?.into())),
            Some(_) => Err(io::Error::other("unexpected data before the end of the encrypted session")),
        }
    }

    /// Whether it must be encrypted: on the path to the other end, or behind a relay.
    pub(crate) fn must_be_encrypted(&self, security: &Security) -> bool {
        match self.stream.peer_addr() {
            _ if self.quic.is_some() => false,
            _ if self.relay().is_some() => security.encryption() != Encryption::Never,
            Ok(address) => security.encrypts(address.ip()),
            // It has ended.
            Err(_) => true,
        }
    }

    /// The encrypted session; none without encryption. Nothing has arrived while that is not known.
    fn session(&self) -> io::Result<Option<&TlsSession>> {
        if self.is_undecided.load(Ordering::Acquire) {
            self.decide()?;
        }
        Ok(self.tls.get())
    }

    fn decide(&self) -> io::Result<()> {
        let mut undecided = self.undecided.lock();
        let Some(security) = undecided.as_ref() else { return Ok(()) };
        let mut first = [0];
        if self.stream.peek(&mut first)? == 1 && first[0] == TLS_HANDSHAKE {
            let _ = self.tls.set(security.accept().map_err(io::Error::other)?);
        }
        *undecided = None;
        self.is_undecided.store(false, Ordering::Release);
        Ok(())
    }

    /// What the protocol below proves of the other end; none without encryption, or before its keys are agreed.
    pub(crate) fn binding(&self) -> Option<Binding> {
        match &self.quic {
            Some(quic) => quic.binding(),
            None => self.tls.get()?.binding(),
        }
    }

    /// The certificates of the other end; none without TLS.
    pub(crate) fn peer_certificates(&self) -> Option<Vec<CertificateDer<'static>>> {
        self.tls.get()?.peer_certificates()
    }

    /// Whether it is encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.quic.is_some() || self.tls.get().is_some()
    }

    /// Whether both ends have sent their first message of TLS.
    pub(crate) fn has_negotiated(&self) -> bool {
        self.quic.is_some() || self.tls.get().is_some_and(TlsSession::has_negotiated)
    }

    /// Sends what was taken before. Returns whether nothing is left that only needs room.
    pub(crate) fn flush(&self) -> io::Result<bool> {
        self.tls.get().map_or(Ok(true), |session| session.flush(self).map_err(|error| self.explain(error)))
    }

    /// Whether something can be read though the socket has no input.
    pub(crate) fn has_buffered(&self) -> bool {
        self.tls.get().is_some_and(TlsSession::has_buffered)
    }

    /// Whether everything that was taken has gone to the system.
    pub(crate) fn is_flushed(&self) -> bool {
        self.tls.get().is_none_or(|session| session.unsent_bytes() == 0)
    }

    pub(crate) fn peer_address(&self) -> io::Result<SocketAddr> {
        self.quic.as_ref().map_or_else(|| self.stream.peer_addr(), |quic| Ok(quic.remote))
    }

    pub(crate) fn local_address(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    pub(crate) fn segment_bytes(&self) -> io::Result<u32> {
        self.info().map(|info| info.tcpi_snd_mss)
    }

    /// What the protocol says of a QUIC connection; none for TCP.
    pub(crate) fn quic(&self) -> Option<&Arc<QuicState>> {
        self.quic.as_ref()
    }

    /// The relay that it goes through, if there is one.
    pub(crate) fn relay(&self) -> Option<SocketAddr> {
        self.relay.get().copied()
    }

    /// From now on the other end is a member, behind this relay.
    pub(crate) fn set_relay(&self, relay: SocketAddr) {
        self.relay.get_or_init(|| relay);
    }

    /// Whether both ends have the same address, so that nothing leaves this host.
    pub(crate) fn is_local(&self) -> bool {
        if self.relay().is_some() {
            return false;
        }
        match (self.stream.peer_addr(), self.stream.local_addr()) {
            (Ok(there), Ok(here)) => there.ip() == here.ip() || there.ip().is_loopback(),
            // The other end has closed it.
            (Err(_), Ok(here)) => here.ip().is_loopback(),
            _ => false,
        }
    }

    pub(crate) fn set_blocking(&self, blocking: bool) -> io::Result<()> {
        self.stream.set_nonblocking(!blocking)
    }

    pub(crate) fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.stream.set_read_timeout(timeout)
    }

    pub(crate) fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.stream.set_write_timeout(timeout)
    }

    /// The other end has authenticated.
    pub(crate) fn identify(&self, peer: PeerId, purpose: Purpose, is_local: bool) {
        match &self.quic {
            Some(quic) => quic.identify(peer, purpose),
            None => {
                self.meter.get().inspect(|meter| meter.identify(peer, purpose, is_local));
            }
        }
    }

    /// How many bytes may be moved now, or when to ask again.
    pub(crate) fn allowance(&self, direction: Direction) -> Result<usize, Instant> {
        self.meter.get().map_or(Ok(usize::MAX), |meter| meter.allowance(direction))
    }

    /// The same, for a thread that may block.
    fn wait_for_allowance(&self, direction: Direction) -> usize {
        self.meter.get().map_or(usize::MAX, |meter| meter.wait(direction))
    }

    /// Counts and pays for bytes that were moved.
    fn account(&self, direction: Direction, moved: io::Result<usize>) -> io::Result<usize> {
        if let (Some(meter), Ok(bytes @ 1..)) = (self.meter.get(), &moved) {
            meter.count(direction, *bytes);
            meter.pay(direction, *bytes);
        }
        moved
    }

    /// Registers it with a poller for input. From now on the poller checks whether the other host answers.
    pub(crate) fn watch(self: &Arc<Self>, poller: &Poller, token: Token) -> io::Result<()> {
        if self.quic.is_none() {
            self.stream.set_nodelay(true)?;
            self.check_health_in(poller)?;
            let meter = if self.is_local() { Meter::local } else { Meter::new };
            self.meter.get_or_init(|| meter(poller.network()));
        }
        poller.add(&self.stream, token)
    }

    /// Has a poller check whether the other host answers.
    pub(crate) fn check_health_in(self: &Arc<Self>, poller: &Poller) -> io::Result<()> {
        let limit = *self.unreachable_after.get_or_init(|| poller.unreachable_after());
        self.set_keepalive(limit)?;
        let health: Weak<Self> = Arc::downgrade(self);
        poller.check_health(health, limit);
        Ok(())
    }

    /// Has the kernel end an idle connection when the other host answers no keepalive probes. It sends none while data is
    /// queued or not acknowledged; [`Health::check`] is for that. `TCP_USER_TIMEOUT` is not used: it also ends connections
    /// to a host that answers, but whose process does not read.
    fn set_keepalive(&self, limit: Duration) -> io::Result<()> {
        let seconds = u32::try_from(limit.as_secs()).unwrap_or(u32::MAX).clamp(3, 32_767) - 1;
        let idle = seconds / 3 + u32::from(seconds < 3);
        let interval = (seconds - idle).div_ceil(8).max(1);
        self.set_option(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
        self.set_option(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, idle)?;
        self.set_option(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, interval)?;
        self.set_option(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, (seconds - idle) / interval)?;
        // Probes of a full window come at least this often. Kernels before 6.15 wait up to two minutes.
        let pause = (limit.as_millis() / 4).clamp(1000, 120_000) as u32;
        let _ = self.set_option(libc::IPPROTO_TCP, TCP_RTO_MAX_MS, pause);
        Ok(())
    }

    /// Changes what the poller reports.
    pub(crate) fn rewatch(&self, poller: &Poller, token: Token, input: bool, room: bool) -> io::Result<()> {
        poller.modify(&self.stream, token, input, room)
    }

    pub(crate) fn unwatch(&self, poller: &Poller) -> io::Result<()> {
        poller.remove(&self.stream)
    }

    pub(crate) fn take_error(&self) -> io::Result<Option<io::Error>> {
        let error = self.stream.take_error()?.map(|error| self.explain(error));
        Ok(error.or_else(|| self.is_unreachable().then(|| CloseReason::Unreachable.into())))
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.stream.shutdown(how)
    }

    /// Reads once. Zero means that there is nothing now; the end of the stream is an error.
    pub(crate) fn read(&self, place: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let read = match self.session() {
            Ok(Some(session)) => session.read(self, place),
            Ok(None) => self.account(Direction::Receive, (&self.stream).read_vectored(place)),
            Err(error) => Err(error),
        };
        match read {
            Ok(0) if place.iter().any(|slice| !slice.is_empty()) => {
                Err(self.explain(CloseReason::Ended.into()))
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
            result => result.map_err(|error| self.explain(error)),
        }
    }

    /// Reads once, as [`Read`] does.
    pub(crate) fn read_raw(&self, place: &mut [u8]) -> io::Result<usize> {
        let most = place.len().min(self.wait_for_allowance(Direction::Receive));
        let place = &mut place[..most];
        let read = match self.session()? {
            Some(session) => self.block(PollFlags::IN, || session.read(self, &mut [IoSliceMut::new(place)])),
            None => self.account(Direction::Receive, (&self.stream).read(place)),
        };
        match read {
            Ok(0) if self.is_unreachable() => Err(CloseReason::Unreachable.into()),
            result => result.map_err(|error| self.explain(error)),
        }
    }

    /// Writes once, as [`Write`] does.
    pub(crate) fn write_slices(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let most = self.wait_for_allowance(Direction::Send);
        if let Some(session) = self.session()? {
            let write = || {
                let whole = pieces.iter().map(|piece| piece.len()).sum::<usize>() <= most;
                let first = pieces.iter().position(|piece| !piece.is_empty()).unwrap_or(0);
                let few = if whole { pieces } else { &pieces[first..][..1] };
                let vectors: Vec<_> = few.iter().map(|piece| vector_of(piece, most)).collect();
                // SAFETY: the slices are valid for reads.
                unsafe { session.write(self, &vectors) }
            };
            let taken = self.block(PollFlags::OUT, write)?;
            // A thread that blocks expects that everything is on its way.
            self.block(PollFlags::OUT, || match session.flush(self)? {
                true => Ok(()),
                false => Err(ErrorKind::WouldBlock.into()),
            })?;
            return Ok(taken);
        }
        let written = match pieces.iter().find(|piece| !piece.is_empty()) {
            Some(first) if pieces.iter().map(|piece| piece.len()).sum::<usize>() > most => {
                (&self.stream).write(&first[..first.len().min(most)])
            }
            _ => (&self.stream).write_vectored(pieces),
        };
        self.account(Direction::Send, written).map_err(|error| self.explain(error))
    }

    /// Repeats what a session cannot do now when the socket is ready for it, as a socket that blocks does.
    fn block<T>(&self, wanted: PollFlags, mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let limit = match wanted {
            PollFlags::IN => self.stream.read_timeout(),
            _ => self.stream.write_timeout(),
        };
        let deadline = limit?.map(|limit| Instant::now() + limit);
        loop {
            match act() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                result => return result.map_err(|error| self.explain(error)),
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(ErrorKind::WouldBlock.into());
            }
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut [PollFd::new(&self.stream, wanted)], timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Writes once, from memory that others may write to.
    ///
    /// # Safety
    /// The pieces are valid for reads.
    pub(crate) unsafe fn write(&self, pieces: &mut [libc::iovec]) -> io::Result<usize> {
        if let Some(session) = self.session()? {
            // SAFETY: the pieces are valid for reads, says the caller.
            return unsafe { session.write(self, pieces) }.map_err(|error| self.explain(error));
        }
        // SAFETY: all-zero is a valid message header.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = pieces.as_mut_ptr();
        message.msg_iovlen = pieces.len() as _;
        // SAFETY: the pieces are valid for reads, says the caller; the kernel only reads them.
        let sent = unsafe { libc::sendmsg(self.stream.as_raw_fd(), &message, libc::MSG_NOSIGNAL) };
        let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error());
        self.account(Direction::Send, sent).map_err(|error| self.explain(error))
    }

    /// The round-trip time, as the kernel measured it.
    pub(crate) fn round_trip(&self) -> io::Result<Duration> {
        match &self.quic {
            Some(quic) => Ok(quic.round_trip()),
            None => self.info().map(|info| Duration::from_micros(u64::from(info.tcpi_rtt))),
        }
    }

    /// The bytes per second that arrive at the other end while there is something to send; none if too little was sent.
    pub(crate) fn bandwidth(&self) -> Option<u64> {
        if let Some(quic) = &self.quic {
            return quic.bandwidth();
        }
        let info = self.long_info().ok()?;
        let number = |at: usize| info.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
        let (acknowledged, busy_us) = (number(TCP_INFO_BYTES_ACKED)?, number(TCP_INFO_BUSY_TIME)?);
        (acknowledged >= BANDWIDTH_BYTES_MIN && busy_us > 0)
            .then(|| (u128::from(acknowledged) * 1_000_000 / u128::from(busy_us)) as u64)
    }

    /// The kernel's `tcp_info` with the fields that the type of `libc` lacks; as long as this kernel has it.
    fn long_info(&self) -> io::Result<Vec<u8>> {
        let mut info = vec![0; TCP_INFO_BYTES_MAX];
        let mut length = info.len() as libc::socklen_t;
        let place = info.as_mut_ptr().cast();
        // SAFETY: the place is valid for writes of `length` bytes, and the system writes no more than that.
        let result = unsafe {
            libc::getsockopt(self.stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, place, &mut length)
        };
        info.truncate(length as usize);
        if result == 0 { Ok(info) } else { Err(io::Error::last_os_error()) }
    }

    fn info(&self) -> io::Result<libc::tcp_info> {
        // SAFETY: all-zero is a valid value of this structure of numbers.
        let mut info: libc::tcp_info = unsafe { core::mem::zeroed() };
        let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
        let place = (&raw mut info).cast();
        // SAFETY: the place is valid for writes of `length` bytes, and the system writes no more than that.
        let result = unsafe {
            libc::getsockopt(self.stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, place, &mut length)
        };
        if result == 0 { Ok(info) } else { Err(io::Error::last_os_error()) }
    }

    fn is_unreachable(&self) -> bool {
        self.is_unreachable.load(Ordering::Acquire)
    }

    /// The error of a connection whose other host does not answer says so.
    fn explain(&self, error: io::Error) -> io::Error {
        match error.raw_os_error() {
            Some(libc::ETIMEDOUT) => CloseReason::Unreachable.into(),
            _ if self.is_unreachable() => CloseReason::Unreachable.into(),
            _ => self.quic.as_ref().and_then(|quic| quic.failure()).map_or(error, io::Error::other),
        }
    }

    /// Bytes that were handed to the system and that the other end's has not acknowledged.
    pub(crate) fn unacknowledged_bytes(&self) -> io::Result<usize> {
        if let Some(quic) = &self.quic {
            return Ok(quic.unacknowledged_bytes());
        }
        let mut bytes: libc::c_int = 0;
        // SAFETY: this request writes one number to the place that it is given.
        let result = unsafe { libc::ioctl(self.stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        let waiting = self.tls.get().map_or(0, TlsSession::unsent_bytes);
        if result == 0 { Ok(bytes.max(0) as usize + waiting) } else { Err(io::Error::last_os_error()) }
    }

    /// The system takes bytes only shortly before they are sent. That it may refuse to do so does no harm.
    pub(crate) fn limit_unsent(&self, bytes: u32) {
        let _ = self.set_option(libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, bytes);
    }

    /// Chooses BBR, if the system allows it.
    pub(crate) fn prefer_bbr(&self) {
        let _ = self.set_option(libc::IPPROTO_TCP, libc::TCP_CONGESTION, *b"bbr");
    }

    fn set_option<T: Copy>(&self, level: libc::c_int, option: libc::c_int, value: T) -> io::Result<()> {
        let length = size_of_val(&value) as libc::socklen_t;
        // SAFETY: the value lives during the call and has the size that is told.
        let result = unsafe {
            libc::setsockopt(self.stream.as_raw_fd(), level, option, (&raw const value).cast(), length)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// The socket below an encrypted session: never waits, also if the socket blocks.
impl Wire for Transport {
    fn receive(&self, place: &mut [u8]) -> io::Result<usize> {
        let received = rustix::net::recv(&self.stream, place, RecvFlags::DONTWAIT);
        self.account(Direction::Receive, received.map(|(_, bytes)| bytes).map_err(io::Error::from))
    }

    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        let sent = rustix::net::send(&self.stream, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        self.account(Direction::Send, sent.map_err(io::Error::from))
    }
}

fn vector_of(piece: &[u8], most: usize) -> libc::iovec {
    libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len().min(most) }
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Health for Transport {
    /// Ends the connection if the other host has answered nothing for the time that was set, although something was sent to
    /// it. A host answers for its processes, also for those that are stopped or do not read.
    fn check(&self, now: Instant) {
        let Ok(info) = self.info() else { return };
        // While it connects there are other deadlines.
        let is_connected = i32::from(info.tcpi_state) != TCP_SYN_SENT;
        let is_sent = info.tcpi_unacked > 0 && info.tcpi_last_ack_recv > info.tcpi_last_data_sent;
        let mut unanswered_since = self.unanswered_since.lock();
        if !is_connected || !(is_sent || info.tcpi_probes > 0) {
            *unanswered_since = None;
            return;
        }
        let silence = Duration::from_millis(info.tcpi_last_ack_recv.into());
        let since = unanswered_since.filter(|since| now.duration_since(*since) <= silence).unwrap_or(now);
        *unanswered_since = Some(since);
        let limit = self.unreachable_after.get().copied().unwrap_or(limits::UNREACHABLE_AFTER);
        if now.duration_since(since) >= limit - limit / limits::HEALTH_CHECKS * 2 {
            self.is_unreachable.store(true, Ordering::Release);
            // The poller reports it, and blocked reads and writes return. If it has ended meanwhile, they did.
            let _ = self.shutdown(Shutdown::Both);
        }
    }
}

/// The option for the longest pause between retransmissions, and between probes of a full window.
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// The state of a connection that the other host has not accepted.
const TCP_SYN_SENT: i32 = 2;

impl From<TcpStream> for Transport {
    fn from(stream: TcpStream) -> Self {
        Self {
            stream,
            quic: None,
            tls: OnceLock::new(),
            undecided: Mutex::new(None),
            is_undecided: AtomicBool::new(false),
            relay: OnceLock::new(),
            meter: OnceLock::new(),
            unreachable_after: OnceLock::new(),
            unanswered_since: Mutex::new(None),
            is_unreachable: AtomicBool::new(false),
        }
    }
}

impl From<QuicStream> for Transport {
    fn from(stream: QuicStream) -> Self {
        // The standard library's type only stands for a stream socket here.
        let socket = TcpStream::from(OwnedFd::from(stream.socket));
        Self { quic: Some(stream.state), ..socket.into() }
    }
}
