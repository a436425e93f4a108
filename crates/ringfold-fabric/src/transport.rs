//! What carries the bytes of a connection: plain TCP. TLS and QUIC become further kinds of it.
//!
//! Nothing outside of this file and of the listener knows that there is a descriptor, or how many.

use crate::limits;
use crate::poller::{Poller, Token};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// The byte stream below a connection.
#[derive(Debug)]
pub(crate) struct Transport(TcpStream);

/// Why a connection can carry nothing more. Errors of reads and writes hold it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CloseReason {
    /// The other end closed it.
    #[error("the other end closed the connection")]
    Ended,
    /// The other end's host stopped answering: it has lost power or its network.
    #[error("the other end's host does not answer any more")]
    Unreachable,
    /// More waits to be sent than may.
    #[error("the other end reads too slowly: more than {} MiB wait to be sent", limits::QUEUED_BYTES_MAX >> 20)]
    Backlogged,
}

impl From<CloseReason> for io::Error {
    fn from(reason: CloseReason) -> Self {
        let kind = match reason {
            CloseReason::Ended => ErrorKind::UnexpectedEof,
            CloseReason::Unreachable => ErrorKind::TimedOut,
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
    /// Begins to connect. Nothing is waited for.
    pub(crate) fn dial(to: SocketAddr) -> io::Result<Self> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&fd, &to) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(Self(TcpStream::from(fd))),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn peer_address(&self) -> io::Result<SocketAddr> {
        self.0.peer_addr()
    }

    /// Whether both ends have the same address, so that nothing leaves this host.
    pub(crate) fn is_local(&self) -> bool {
        match (self.0.peer_addr(), self.0.local_addr()) {
            (Ok(there), Ok(here)) => there.ip() == here.ip() || there.ip().is_loopback(),
            _ => false,
        }
    }

    pub(crate) fn set_blocking(&self, blocking: bool) -> io::Result<()> {
        self.0.set_nonblocking(!blocking)
    }

    pub(crate) fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.set_read_timeout(timeout)
    }

    pub(crate) fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.set_write_timeout(timeout)
    }

    /// Has a poller tell of input, and not of room to write.
    pub(crate) fn watch(&self, poller: &Poller, token: Token) -> io::Result<()> {
        self.0.set_nodelay(true)?;
        self.set_unreachable_after(poller.unreachable_after())?;
        poller.add(&self.0, token, false)
    }

    /// Has the system end the connection when the other host has not answered for so long: neither acknowledged what was
    /// sent, nor, where nothing is to be sent, answered a keepalive probe. The other process need not do anything for it.
    fn set_unreachable_after(&self, limit: Duration) -> io::Result<()> {
        // The last probe is sent a second before the time is over.
        let limit = limit.max(limits::UNREACHABLE_AFTER_MIN) - Duration::from_secs(1);
        let millis = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
        let idle_seconds = u32::try_from(limit.as_secs() / 3).unwrap_or(u32::MAX).clamp(1, 32_767);
        self.set_option(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
        self.set_option(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, idle_seconds)?;
        self.set_option(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 1)?;
        self.set_option(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, millis.min(i32::MAX as u32))
    }

    /// Changes what a poller tells of.
    pub(crate) fn rewatch(&self, poller: &Poller, token: Token, input: bool, room: bool) -> io::Result<()> {
        match input {
            true => poller.modify(&self.0, token, room),
            false => poller.ignore_input(&self.0, token, room),
        }
    }

    pub(crate) fn unwatch(&self, poller: &Poller) -> io::Result<()> {
        poller.remove(&self.0)
    }

    pub(crate) fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.0.take_error()?.map(name_timeout))
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.0.shutdown(how)
    }

    /// Reads once. Zero means that there is nothing now; the end of the stream is an error.
    pub(crate) fn read(&self, place: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match (&self.0).read_vectored(place) {
            Ok(0) if place.iter().any(|slice| !slice.is_empty()) => Err(CloseReason::Ended.into()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
            result => result.map_err(name_timeout),
        }
    }

    /// Reads once, as [`Read`] does.
    pub(crate) fn read_raw(&self, place: &mut [u8]) -> io::Result<usize> {
        (&self.0).read(place).map_err(name_timeout)
    }

    /// Writes once, as [`Write`] does.
    pub(crate) fn write_slices(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        (&self.0).write_vectored(pieces).map_err(name_timeout)
    }

    /// Writes once, from memory that others may write to.
    ///
    /// # Safety
    /// The pieces are valid for reads.
    pub(crate) unsafe fn write(&self, pieces: &mut [libc::iovec]) -> io::Result<usize> {
        // SAFETY: all-zero is a valid message header.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = pieces.as_mut_ptr();
        message.msg_iovlen = pieces.len() as _;
        // SAFETY: the pieces are valid for reads, says the caller; the kernel only reads them.
        let sent = unsafe { libc::sendmsg(self.0.as_raw_fd(), &message, libc::MSG_NOSIGNAL) };
        usize::try_from(sent).map_err(|_| name_timeout(io::Error::last_os_error()))
    }

    /// How long the way to the other end takes, there and back, as far as the system knows.
    pub(crate) fn round_trip(&self) -> io::Result<Duration> {
        // SAFETY: all-zero is a valid value of this structure of numbers.
        let mut info: libc::tcp_info = unsafe { core::mem::zeroed() };
        let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
        let place = (&raw mut info).cast();
        // SAFETY: the place is valid for writes of `length` bytes, and the system writes no more than that.
        let result = unsafe {
            libc::getsockopt(self.0.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, place, &mut length)
        };
        if result == 0 {
            Ok(Duration::from_micros(u64::from(info.tcpi_rtt)))
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Bytes that were handed to the system and that the other end's has not acknowledged.
    pub(crate) fn unacknowledged_bytes(&self) -> io::Result<usize> {
        let mut bytes: libc::c_int = 0;
        // SAFETY: this request writes one number to the place that it is given.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        if result == 0 { Ok(bytes.max(0) as usize) } else { Err(io::Error::last_os_error()) }
    }

    /// The system takes bytes only shortly before they are sent. That it may refuse to do so does no harm.
    pub(crate) fn limit_unsent(&self, bytes: u32) {
        let _ = self.set_option(libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, bytes);
    }

    fn set_option(&self, level: libc::c_int, option: libc::c_int, value: u32) -> io::Result<()> {
        let length = size_of_val(&value) as libc::socklen_t;
        // SAFETY: the value lives during the call and has the size that is told.
        let result =
            unsafe { libc::setsockopt(self.0.as_raw_fd(), level, option, (&raw const value).cast(), length) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl From<TcpStream> for Transport {
    fn from(stream: TcpStream) -> Self {
        Self(stream)
    }
}

/// The kernel's timeout of a connection means that the other host does not acknowledge anything.
fn name_timeout(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ETIMEDOUT) => CloseReason::Unreachable.into(),
        _ => error,
    }
}
