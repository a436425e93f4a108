//! The one port that a peer listens on.

use crate::limits;
use crate::poller::{Poller, Token};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// A listener, known to a poller.
#[derive(Debug)]
pub struct Door {
    listener: TcpListener,
    token: Token,
}

impl Door {
    /// Listens on one address.
    pub fn open(address: SocketAddr, poller: &Arc<Poller>) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        // Many may come before anyone looks.
        rustix::net::listen(&listener, limits::BACKLOG)?;
        listener.set_nonblocking(true)?;
        let token = poller.token();
        poller.add(&listener, token, false)?;
        Ok(Self { listener, token })
    }

    /// Listens on the first free port of a range, at this address or at all of both families, or of IPv4 where
    /// there is no IPv6.
    pub fn open_in(at: Option<IpAddr>, ports: RangeInclusive<u16>, poller: &Arc<Poller>) -> io::Result<Self> {
        let everywhere = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
        let addresses = at.map_or(everywhere.to_vec(), |at| vec![at]);
        let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "the range of ports is empty");
        for port in ports {
            for address in &addresses {
                match Self::open(SocketAddr::new(*address, port), poller) {
                    Ok(door) => return Ok(door),
                    Err(error) => last = error,
                }
            }
        }
        Err(last)
    }

    /// Its name in the poller.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Those who have come, as many as one turn takes. What goes wrong with one of them, or for want of
    /// descriptors, goes wrong for that one alone.
    pub fn arrivals(&self) -> impl Iterator<Item = (TcpStream, SocketAddr)> + '_ {
        (0..limits::ACCEPTS_PER_TURN)
            .map_while(|_| match self.listener.accept() {
                Ok(arrival) => Some(Some(arrival)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    // Out of descriptors: the rest would fail alike, and is still there in the next turn.
                    (error.kind() == io::ErrorKind::ConnectionAborted).then_some(None)
                }
            })
            .flatten()
    }
}
