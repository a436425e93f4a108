//! The listener of rank 0 during bootstrap, and the announcement of its address.

use super::bootstrap::CancelCheck;
use crate::Error;
use core::fmt;
use parking_lot::{Mutex, MutexGuard};
use ringfold_fabric::clock::Clock;
use ringfold_fabric::host::outward_addresses;
use ringfold_fabric::listener::Listener;
use ringfold_fabric::poller::Poller;
use ringfold_fabric::random;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

/// The maximum length of an announcement in bytes.
pub(super) const ANNOUNCEMENT_BYTES_MAX: usize = 4096;

/// The maximum number of addresses in an announcement.
const ADDRESSES_MAX: usize = 16;

/// A listener of rank 0, opened before its address is distributed, and closed with its last clone.
///
/// Ranks that have its [announcement](BootstrapListener::announcement) may connect before rank 0 does, and wait for it.
/// One group forms at a time; groups with other names wait.
///
/// ```
/// use ringfold::{Bootstrap, Group, BootstrapListener};
///
/// # fn main() -> Result<(), ringfold::Error> {
/// let listener = BootstrapListener::open()?;
/// let announcement = Bootstrap::Announcement(listener.announcement());
/// let other = std::thread::spawn(move || {
///     Group::builder().rank(1).world(2).bootstrap(announcement).connect()?.barrier()
/// });
/// let group = Group::builder().rank(0).world(2).bootstrap(Bootstrap::Listener(listener)).connect()?;
/// group.barrier()?;
/// other.join().unwrap()
/// # }
/// ```
#[derive(Clone)]
pub struct BootstrapListener {
    inner: Arc<Inner>,
}

struct Inner {
    poller: Arc<Poller>,
    /// The clock of the listener, for all groups.
    clock: Clock,
    announcement: Announcement,
    /// Locked by the group that is forming.
    listener: Mutex<Listener>,
}

impl BootstrapListener {
    /// Listens on any free port of all addresses.
    pub fn open() -> Result<Self, Error> {
        Self::open_at(None)
    }

    /// The addresses and a secret, as one line without spaces. Anyone who knows it can join the group.
    pub fn announcement(&self) -> String {
        self.inner.announcement.to_string()
    }

    /// Listens on any free port of one local address, or of all.
    pub(super) fn open_at(bind: Option<IpAddr>) -> Result<Self, Error> {
        let open = || -> io::Result<Self> {
            let poller = Arc::new(Poller::new()?);
            let listener = Listener::bind_in(bind, 0..=0, &poller)?;
            let port = listener.address().port();
            let hosts = bind.filter(|ip| !ip.is_unspecified()).map_or_else(own_addresses, |ip| vec![ip]);
            let announcement = Announcement {
                id: hex(&random::bytes::<8>()?),
                secret: hex(&random::bytes::<16>()?),
                addresses: hosts.into_iter().map(|ip| SocketAddr::new(ip, port)).collect(),
            };
            Ok(Self::new(listener, poller, announcement))
        };
        open().map_err(|error| Error::Bind(format!("listening for the group failed: {error}")))
    }

    /// Listens at an address that all ranks know, without a secret.
    pub(super) fn listen(address: SocketAddr) -> io::Result<Self> {
        let poller = Arc::new(Poller::new()?);
        let listener = Listener::bind_one(address, &poller)?;
        let announcement =
            Announcement { id: String::new(), secret: String::new(), addresses: vec![address] };
        Ok(Self::new(listener, poller, announcement))
    }

    fn new(listener: Listener, poller: Arc<Poller>, announcement: Announcement) -> Self {
        Self {
            inner: Arc::new(Inner {
                poller,
                clock: Clock::start(),
                announcement,
                listener: Mutex::new(listener),
            }),
        }
    }

    pub(super) fn clock(&self) -> Clock {
        self.inner.clock
    }

    pub(super) fn poller(&self) -> &Arc<Poller> {
        &self.inner.poller
    }

    /// The secret that connecting ranks must know in addition to the token.
    pub(super) fn secret(&self) -> &str {
        &self.inner.announcement.secret
    }

    pub(super) fn describe(&self) -> String {
        self.inner.announcement.describe()
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Waits until no other group uses the listener, and locks it. `None` after the deadline.
    pub(super) fn await_turn(
        &self,
        cancel: &CancelCheck,
        until: Instant,
    ) -> Result<Option<MutexGuard<'_, Listener>>, Error> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if let Some(listener) = self.inner.listener.try_lock_for(left.min(cancel.interval())) {
                return Ok(Some(listener));
            }
            cancel.check()?;
            if left.is_zero() {
                return Ok(None);
            }
        }
    }
}

impl fmt::Debug for BootstrapListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the secret.
        f.debug_struct("BootstrapListener").field("id", &self.inner.announcement.id).finish_non_exhaustive()
    }
}

/// The address of rank 0 and its secret, as text: `ringfold1:id:secret:address,address`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Announcement {
    id: String,
    pub(super) secret: String,
    pub(super) addresses: Vec<SocketAddr>,
}

const KIND: &str = "ringfold1";

impl Announcement {
    pub(super) fn describe(&self) -> String {
        format!("the bootstrap listener {}", self.id)
    }

    pub(super) fn add_hosts(&mut self, hosts: impl IntoIterator<Item = IpAddr>) {
        let Some(port) = self.addresses.first().map(SocketAddr::port) else { return };
        for ip in hosts {
            let address = SocketAddr::new(ip, port);
            if !ip.is_unspecified()
                && self.addresses.len() < ADDRESSES_MAX
                && !self.addresses.contains(&address)
            {
                self.addresses.push(address);
            }
        }
    }
}

impl fmt::Display for Announcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{KIND}:{}:{}:", self.id, self.secret)?;
        for (index, address) in self.addresses.iter().enumerate() {
            write!(f, "{}{address}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for Announcement {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > ANNOUNCEMENT_BYTES_MAX {
            return Err("too long");
        }
        let mut parts = text.trim().splitn(4, ':');
        let mut part = || parts.next().ok_or("not an announcement of rank 0");
        if part()? != KIND {
            return Err("not an announcement of rank 0");
        }
        let (id, secret, list) = (part()?, part()?, part()?);
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_number(id) || !is_number(secret) {
            return Err("invalid id or secret");
        }
        let addresses: Vec<SocketAddr> = list
            .split(',')
            .take(ADDRESSES_MAX + 1)
            .map(|address| address.parse().map_err(|_| "invalid address"))
            .collect::<Result<_, _>>()?;
        if addresses.len() > ADDRESSES_MAX {
            return Err("too many addresses");
        }
        Ok(Self { id: id.to_owned(), secret: secret.to_owned(), addresses })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The addresses of this host, loopback first.
fn own_addresses() -> Vec<IpAddr> {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    std::iter::once(loopback).chain(outward_addresses()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_is_parsed_as_it_was_written() {
        let listener = BootstrapListener::open().unwrap();
        let text = listener.announcement();
        assert!(text.len() < ANNOUNCEMENT_BYTES_MAX && !text.contains(char::is_whitespace), "{text}");
        let mut read: Announcement = text.parse().unwrap();
        assert!(read == listener.inner.announcement);
        assert!(read.addresses.iter().any(|address| address.ip().is_loopback()));
        read.add_hosts(["10.1.2.3".parse().unwrap(), "2001:db8::7".parse().unwrap()]);
        assert!(read.to_string().parse::<Announcement>().unwrap() == read);
        assert!(format!("{text}\n").parse::<Announcement>().is_ok(), "a file ends with a newline");
        assert!(!format!("{listener:?}").contains(listener.secret()));
    }

    #[test]
    fn invalid_announcements_are_rejected() {
        let many = format!("ringfold1:0:0:{}", vec!["127.0.0.1:1"; 17].join(","));
        let long = format!("ringfold1:0:{}:127.0.0.1:1", "0".repeat(5000));
        let texts =
            ["", ":", "ringfold1", "ringfold1:0:0", "ringfold1:0:0:", "ringfold1:0:0:host:1", &many, &long];
        for text in
            texts.into_iter().chain(["ringfold1:x:0:127.0.0.1:1", "ringfold2:0:0:127.0.0.1:1", "\0\u{1F980}"])
        {
            assert!(text.parse::<Announcement>().is_err(), "{text}");
        }
    }
}
