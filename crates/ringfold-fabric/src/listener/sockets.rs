//! Listening sockets: they are bound, accepted from, and not registered while nothing can be accepted.

use super::crowd::{Occupant, crowding};
use crate::host;
use crate::limits;
use crate::poller::{Poller, Token};
use ringfold_proto::time::Time;
use rustix::net::SocketType;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

/// An address to listen on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenAddress {
    /// The address.
    pub address: SocketAddr,
    /// Whether the machine may lack this address.
    pub optional: bool,
}

/// Why listening on an address failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {}", explain(source))]
pub struct BindError {
    /// The address.
    pub address: SocketAddr,
    /// The system's error.
    pub source: io::Error,
}

impl From<BindError> for io::Error {
    fn from(error: BindError) -> Self {
        Self::new(error.source.kind(), error)
    }
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::AddrInUse => "another program listens there already".into(),
        ErrorKind::AddrNotAvailable => "this machine has no such address".into(),
        ErrorKind::PermissionDenied => "permission denied".into(),
        _ => error.to_string(),
    }
}

/// Sockets that listen on some addresses. What is accepted from them has no handshake: see [`super::Listener`] for connections
/// between processes of a run.
#[derive(Debug)]
pub struct ListeningSockets {
    poller: Arc<Poller>,
    ports: Vec<Port>,
    is_registered: bool,
    /// Nothing is accepted before this, because descriptors ran out.
    paused_until: Option<Time>,
    /// Nothing is accepted before this while there are too many connections.
    crowded_until: Option<Time>,
    /// Whether a shortage was logged since the last connection was accepted.
    is_shortage_logged: bool,
}

/// A listening socket.
#[derive(Debug)]
struct Port {
    socket: TcpListener,
    address: SocketAddr,
    token: Token,
    /// Its position in the list of the caller.
    position: usize,
}

impl ListeningSockets {
    /// Listens on all of these addresses. One that another of them includes needs no socket of its own.
    pub fn bind(addresses: &[ListenAddress], poller: &Arc<Poller>) -> Result<Self, BindError> {
        let mut sorted: Vec<_> = addresses.iter().copied().enumerate().collect();
        // Unspecified addresses come first, IPv6 before IPv4, because they may include others. Those are then in use.
        sorted.sort_by_key(|(_, of)| (!of.address.ip().is_unspecified(), of.address.is_ipv4()));
        let mut sockets = Self {
            poller: poller.clone(),
            ports: Vec::new(),
            is_registered: false,
            paused_until: None,
            crowded_until: None,
            is_shortage_logged: false,
        };
        let mut lacking = None;
        for (position, ListenAddress { address, optional }) in sorted {
            match sockets.add(address, position) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::AddrInUse && sockets.covers(address) => {}
                Err(source) if optional && is_lacking(&source) => {
                    lacking = Some(BindError { address, source })
                }
                Err(source) => return Err(BindError { address, source }),
            }
        }
        if let (true, Some(lacking)) = (sockets.ports.is_empty(), lacking) {
            return Err(lacking);
        }
        sockets.ports.sort_by_key(|port| port.position);
        sockets.register(true).map_err(|source| BindError { address: sockets.address(), source })?;
        Ok(sockets)
    }

    /// Their addresses, in the order of the caller.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.ports.iter().map(|port| port.address)
    }

    /// The first address.
    pub fn address(&self) -> SocketAddr {
        self.addresses().next().unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into())
    }

    /// Whether this is the token of one of them.
    pub fn owns(&self, token: Token) -> bool {
        self.ports.iter().any(|port| port.token == token)
    }

    /// Which connections give way to another one now; none if that has to wait in the backlog. `occupants` are looked at only if
    /// there are `max` of them.
    pub fn find_room(
        &mut self,
        now: Time,
        occupants: impl ExactSizeIterator<Item = Occupant> + Clone,
        max: usize,
    ) -> Option<Vec<Token>> {
        if occupants.len() < max {
            return Some(Vec::new());
        }
        let (at, crowd) = crowding(occupants, max)?;
        self.crowded_until = (at > now).then_some(at);
        self.crowded_until.is_none().then_some(crowd)
    }

    /// Accepts the next connection of this socket, if there is one. It does not block.
    pub fn accept(&mut self, now: Time, token: Token) -> Option<(TcpStream, SocketAddr)> {
        let port = self.ports.iter().find(|port| port.token == token)?;
        for _ in 0..limits::ACCEPTS_PER_TURN {
            match port.socket.accept() {
                Ok(accepted) => {
                    self.is_shortage_logged = false;
                    return Some(accepted);
                }
                // The other end has closed it already.
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) => {
                    self.pause(now, &error);
                    return None;
                }
            }
        }
        None
    }

    /// When to call [`Self::update_registration`] at the latest: only time wakes sockets that are not registered.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.paused_until.or(self.crowded_until).filter(|_| !self.is_registered)
    }

    /// Registers the sockets while there is room for connections. To be called after each turn.
    pub fn update_registration(&mut self, now: Time, is_full: bool) {
        self.paused_until.take_if(|until| *until <= now);
        self.crowded_until.take_if(|until| !is_full || *until <= now);
        if let Err(error) = self.register(self.paused_until.or(self.crowded_until).is_none()) {
            self.pause(now, &error);
        }
    }

    /// Most likely there are no descriptors left. Retrying at once would spin, because the sockets stay ready.
    fn pause(&mut self, now: Time, error: &io::Error) {
        self.paused_until = Some(now + limits::ACCEPT_PAUSE);
        if !core::mem::replace(&mut self.is_shortage_logged, true) {
            tracing::warn!(%error, "failed to accept a connection; trying again every {:?}", limits::ACCEPT_PAUSE);
        }
    }

    fn register(&mut self, register: bool) -> io::Result<()> {
        if register != self.is_registered {
            for port in &self.ports {
                let changed = match register {
                    true => self.poller.add(&port.socket, port.token),
                    false => self.poller.remove(&port.socket),
                };
                // After a partial failure some are registered already.
                changed.or_else(|error| match error.kind() {
                    ErrorKind::AlreadyExists | ErrorKind::NotFound => Ok(()),
                    _ => Err(error),
                })?;
            }
            self.is_registered = register;
        }
        Ok(())
    }

    fn add(&mut self, address: SocketAddr, position: usize) -> io::Result<()> {
        let socket = TcpListener::from(host::bound_socket(address, SocketType::STREAM)?);
        rustix::net::listen(&socket, limits::BACKLOG)?;
        socket.set_nonblocking(true)?;
        let (address, token) = (socket.local_addr()?, self.poller.token());
        self.ports.push(Port { socket, address, token, position });
        Ok(())
    }

    /// Whether one of the sockets accepts connections to this address too.
    fn covers(&self, address: SocketAddr) -> bool {
        self.addresses().any(|of| {
            let all = of.ip().is_unspecified() && (of.is_ipv6() || address.is_ipv4());
            of.port() == address.port() && (all || of.ip() == address.ip())
        })
    }
}

/// Whether the machine does not have such addresses.
fn is_lacking(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::AddrNotAvailable | ErrorKind::Unsupported)
        || error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(texts: &[&str]) -> Result<ListeningSockets, BindError> {
        let address = |text: &&str| ListenAddress { address: text.parse().unwrap(), optional: false };
        let addresses: Vec<_> = texts.iter().map(address).collect();
        ListeningSockets::bind(&addresses, &Arc::new(Poller::new().unwrap()))
    }

    #[test]
    fn an_address_that_another_one_includes_is_accepted() {
        let port = listen(&["0.0.0.0:0"]).unwrap().address().port();
        let all = [format!("127.0.0.1:{port}"), format!("0.0.0.0:{port}"), format!("127.0.0.1:{port}")];
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        let sockets = listen(&all).unwrap();
        assert_eq!(sockets.addresses().collect::<Vec<_>>(), [format!("0.0.0.0:{port}").parse().unwrap()]);
    }

    #[test]
    fn an_address_of_both_families_takes_ipv4_whatever_the_system_prefers() {
        let check = || {
            // SAFETY: the call changes the network of this thread alone. It needs permission: without, the usual one is tested.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 {
                let _ = std::fs::write("/proc/sys/net/ipv6/bindv6only", "1");
            }
            for of in [SocketType::STREAM, SocketType::DGRAM] {
                let Ok(socket) = host::bound_socket("[::]:0".parse().unwrap(), of) else { return };
                assert!(!rustix::net::sockopt::ipv6_v6only(&socket).unwrap(), "{of:?}");
            }
        };
        std::thread::spawn(check).join().unwrap();
    }

    #[test]
    fn a_busy_address_is_named() {
        let first = listen(&["127.0.0.1:0"]).unwrap();
        let address = first.address();
        let error = listen(&[&address.to_string()]).unwrap_err();
        let text = format!("cannot listen on {address}: another program listens there already");
        assert_eq!(error.to_string(), text);
        assert!(listen(&[&format!("0.0.0.0:{}", address.port())]).is_err());
    }
}
