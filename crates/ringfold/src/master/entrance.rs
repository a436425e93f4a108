//! The listeners of a master.

use super::builder::Listen;
use super::limits;
use crate::Error;
use ringfold_fabric::poller::{Poller, Token};
use ringfold_proto::time::Time;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

/// All listeners. They are watched, or not, together.
#[derive(Debug)]
pub(super) struct Entrance {
    poller: Arc<Poller>,
    doors: Vec<Door>,
    is_watched: bool,
    /// Nobody is accepted before this: the system had no room for one.
    paused_until: Option<Time>,
    /// A want of room is logged once, until somebody could be accepted again.
    is_want_told: bool,
}

#[derive(Debug)]
struct Door {
    listener: TcpListener,
    address: SocketAddr,
    token: Token,
    /// Where the user named it.
    position: usize,
}

impl Entrance {
    /// Listens on all of these.
    pub fn open(listen: &[Listen], poller: &Arc<Poller>) -> Result<Self, Error> {
        let mut listen: Vec<_> = listen.iter().enumerate().collect();
        // A socket for all of IPv6 may be one for all of IPv4 too, and then it has to come first. An address
        // that comes after the one that covers it is busy by ourselves.
        listen.sort_by_key(|(_, l)| (!l.address.ip().is_unspecified(), l.address.is_ipv4()));
        let mut entrance = Self {
            poller: poller.clone(),
            doors: Vec::new(),
            is_watched: false,
            paused_until: None,
            is_want_told: false,
        };
        let mut lacking = None;
        for (position, &Listen { address, optional }) in listen {
            match TcpListener::bind(address).and_then(|l| entrance.add(l, position)) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::AddrInUse && entrance.covers(address) => {}
                Err(e) if optional && is_lacking(&e) => lacking = Some(refusal(address, &e)),
                Err(e) => return Err(refusal(address, &e)),
            }
        }
        if let (true, Some(lacking)) = (entrance.doors.is_empty(), lacking) {
            return Err(lacking);
        }
        entrance.doors.sort_by_key(|d| d.position);
        entrance.watch(true).map_err(|e| Error::system("the master's listeners can't be watched", &e))?;
        Ok(entrance)
    }

    /// Where it listens, in the order of the user.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.doors.iter().map(|d| d.address).collect()
    }

    /// Whether the poller spoke of one of the listeners.
    pub fn has(&self, token: Token) -> bool {
        self.doors.iter().any(|d| d.token == token)
    }

    /// When somebody may be accepted again, if not now.
    pub fn deadline(&self) -> Option<Time> {
        self.paused_until
    }

    /// Has the poller tell of those who come only while there is room for them: they would end every sleep.
    pub fn turn(&mut self, now: Time, has_room: bool) -> io::Result<()> {
        self.paused_until.take_if(|until| *until <= now);
        self.watch(has_room && self.paused_until.is_none())
    }

    /// Those who have come to one of the listeners, `room` of them at most.
    pub fn arrivals(&mut self, now: Time, token: Token, room: usize) -> Vec<TcpStream> {
        let mut arrivals = Vec::new();
        let Some(door) = self.doors.iter().find(|d| d.token == token) else { return arrivals };
        while arrivals.len() < room.min(limits::ACCEPTS_PER_TURN) && self.paused_until.is_none() {
            match door.listener.accept() {
                Ok((stream, _)) => {
                    arrivals.push(stream);
                    self.is_want_told = false;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                // It went away while it waited.
                Err(e) if e.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Most likely there are no descriptors left. It stays ready, so trying on would spin.
                    self.paused_until = Some(now + limits::ACCEPT_PAUSE);
                    if !std::mem::replace(&mut self.is_want_told, true) {
                        tracing::warn!(target: "ringfold::master", "nobody can be accepted for now: {error}");
                    }
                }
            }
        }
        arrivals
    }

    fn add(&mut self, listener: TcpListener, position: usize) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let (address, token) = (listener.local_addr()?, self.poller.token());
        self.doors.push(Door { listener, address, token, position });
        Ok(())
    }

    /// Whether one of the listeners takes who comes to this address too.
    fn covers(&self, address: SocketAddr) -> bool {
        self.doors.iter().map(|d| d.address).any(|door| {
            let all = door.ip().is_unspecified() && (door.is_ipv6() || address.is_ipv4());
            door.port() == address.port() && (all || door.ip() == address.ip())
        })
    }

    fn watch(&mut self, watch: bool) -> io::Result<()> {
        if watch == self.is_watched {
            return Ok(());
        }
        for door in &self.doors {
            if watch {
                self.poller.add(&door.listener, door.token, false)?;
            } else {
                self.poller.remove(&door.listener)?;
            }
        }
        self.is_watched = watch;
        Ok(())
    }
}

/// Whether the machine does not have such addresses.
fn is_lacking(error: &io::Error) -> bool {
    /// What Linux says for want of a whole family of addresses; `ErrorKind` has no name for it.
    const EAFNOSUPPORT: i32 = 97;
    matches!(error.kind(), ErrorKind::AddrNotAvailable | ErrorKind::Unsupported)
        || error.raw_os_error() == Some(EAFNOSUPPORT)
}

fn refusal(address: SocketAddr, error: &io::Error) -> Error {
    Error::Bind(match error.kind() {
        ErrorKind::AddrInUse => format!("can't listen on {address}: another program listens there already"),
        ErrorKind::AddrNotAvailable => format!("can't listen on {address}: this machine has no such address"),
        ErrorKind::PermissionDenied => format!("can't listen on {address}: that is not permitted"),
        _ => format!("can't listen on {address}: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(texts: &[&str]) -> Vec<Listen> {
        texts.iter().map(|t| Listen { address: t.parse().unwrap(), optional: false }).collect()
    }

    fn poller() -> Arc<Poller> {
        Arc::new(Poller::new().unwrap())
    }

    #[test]
    fn an_address_that_another_of_ours_covers_is_no_error() {
        let first = Entrance::open(&listen(&["0.0.0.0:0"]), &poller()).unwrap();
        let port = first.addresses()[0].port();
        drop(first);
        let all = [format!("127.0.0.1:{port}"), format!("0.0.0.0:{port}"), format!("127.0.0.1:{port}")];
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        let entrance = Entrance::open(&listen(&all), &poller()).unwrap();
        assert_eq!(entrance.addresses(), [format!("0.0.0.0:{port}").parse().unwrap()]);
    }

    #[test]
    fn a_busy_address_is_named() {
        let first = Entrance::open(&listen(&["127.0.0.1:0"]), &poller()).unwrap();
        let address = first.addresses()[0];
        let error = Entrance::open(&listen(&[&address.to_string()]), &poller()).unwrap_err();
        let words = format!("can't listen on {address}: another program listens there already");
        assert_eq!(error, Error::Bind(words));
        let error = Entrance::open(&listen(&[&format!("0.0.0.0:{}", address.port())]), &poller());
        assert!(matches!(error, Err(Error::Bind(_))));
    }
}
