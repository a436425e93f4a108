//! Connecting in two stages, for a thread that wants to know at which one it fails: TCP, and then encryption and the handshake.

use crate::clock::Clock;
use crate::connection::BlockingConnection;
use crate::dialer::Credentials;
use crate::handshake::{Handshake, Rejection};
use crate::poller::{Poller, Readiness};
use crate::random;
use crate::tls::{PeerIdentity, Security};
use crate::transport::Transport;
use ringfold_proto::handshake::{DialerHandshake, Established};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// How a connection is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ConnectSettings {
    /// Most bytes of a segment, in both directions.
    pub segment_bytes: Option<u16>,
    /// The local address and port; connections to different hosts may share it.
    pub local: Option<SocketAddr>,
}

/// Connects by TCP, and waits until that has succeeded or failed.
pub fn connect(to: SocketAddr, settings: ConnectSettings, timeout: Duration) -> io::Result<TcpStream> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    if let Some(bytes) = settings.segment_bytes {
        let value = libc::c_int::from(bytes);
        let length = size_of_val(&value) as libc::socklen_t;
        let place = (&raw const value).cast();
        // SAFETY: the value lives during the call and has the size that is told.
        let result = unsafe {
            libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_MAXSEG, place, length)
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    if let Some(local) = settings.local {
        sockopt::set_socket_reuseaddr(&socket, true)?;
        rustix::net::bind(&socket, &local)?;
    }
    match rustix::net::connect(&socket, &to) {
        Ok(()) => {}
        Err(rustix::io::Errno::INPROGRESS) => {
            let deadline = Instant::now() + timeout;
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(io::Error::new(
                        ErrorKind::TimedOut,
                        format!("no answer within {:.1} s", timeout.as_secs_f64()),
                    ));
                }
                let left = Timespec::try_from(left).map_err(|_| ErrorKind::InvalidInput)?;
                match poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&left)) {
                    Ok(0) | Err(rustix::io::Errno::INTR) => {}
                    Ok(_) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            sockopt::socket_error(&socket)??;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(TcpStream::from(socket))
}

/// A connection whose two ends have authenticated each other.
#[derive(Debug)]
pub struct Authenticated {
    /// The result of the handshake.
    pub established: Established,
    /// The connection.
    pub connection: BlockingConnection,
    /// Whether it is encrypted.
    pub is_encrypted: bool,
    /// Who the certificate of the other end names, and until when it is valid; none without certificates.
    pub identity: Option<(PeerIdentity, Option<SystemTime>)>,
}

/// Why two ends that are connected by TCP did not authenticate each other.
#[derive(Debug)]
pub enum StageFailure {
    /// The other end did not send what comes next in time.
    Stalled,
    /// One of the ends rejects the other, or the connection has ended.
    Rejected(Rejection),
}

impl From<io::Error> for StageFailure {
    fn from(error: io::Error) -> Self {
        Self::Rejected(Rejection::retryable(error))
    }
}

/// Encrypts a connection if its keys say so, and authenticates both ends.
pub fn authenticate(
    stream: TcpStream,
    credentials: &Credentials,
    security: &Arc<Security>,
    timeout: Duration,
) -> Result<Authenticated, StageFailure> {
    let poller = Arc::new(Poller::new()?.with_security(security.clone()));
    let to: IpAddr = stream.peer_addr()?.ip();
    stream.set_nonblocking(true)?;
    let transport = Transport::from(stream);
    if security.encrypts(to) {
        transport.encrypt(security)?;
    }
    let Credentials { identity, target, secret } = credentials.clone();
    let dialler = DialerHandshake::new(identity, target, secret, random::nonce()?);
    let (clock, mut ready) = (Clock::start(), Readiness::default());
    let end = clock.now() + timeout;
    let mut handshake = Handshake::dial(clock.now(), transport, &poller, dialler, end)?;
    loop {
        let now = clock.now();
        if now >= end {
            return Err(StageFailure::Stalled);
        }
        if let Some(established) = handshake.advance_proving(now).map_err(StageFailure::Rejected)? {
            let connection = handshake.into_connection();
            let identity = connection.peer_identity().and_then(Result::ok);
            let identity = identity.map(|identity| (identity, connection.peer_valid_until()));
            let is_encrypted = connection.is_encrypted();
            let connection = connection.into_blocking()?;
            return Ok(Authenticated { established, connection, is_encrypted, identity });
        }
        poller.wait(&mut ready, end.since(now))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn connecting_says_what_is_wrong_and_uses_the_local_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let connect_twice = || {
            let settings = ConnectSettings { segment_bytes: Some(536), local: None };
            let mut first = connect(to, settings, Duration::from_secs(10))?;
            let local = Some(first.local_addr()?);
            // The port of the first connection was not chosen with this option, so it is closed before, by the other end:
            // the end that closes first keeps its port for a while.
            drop(listener.accept()?);
            first.set_nonblocking(false)?;
            assert_eq!(io::Read::read(&mut first, &mut [0])?, 0);
            drop(first);
            let second = ConnectSettings { segment_bytes: None, local };
            let again = connect(other.local_addr()?, second, Duration::from_secs(10))?;
            Ok::<_, io::Error>((again, connect(to, second, Duration::from_secs(10))?))
        };
        // Another process may take the port while it is free.
        let tries = std::iter::repeat_with(connect_twice).take(20);
        let is_taken = |error: &io::Error| error.kind() == ErrorKind::AddrInUse;
        let mut lucky = tries.skip_while(|tried| tried.as_ref().is_err_and(is_taken));
        let (again, third) = lucky.next().unwrap().unwrap();
        assert_eq!(again.local_addr().ok(), third.local_addr().ok());
        drop(lucky);
        drop((listener, other));
        let refused = connect(to, ConnectSettings::default(), Duration::from_secs(10)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
}
