//! How a communicator is described before it is made.

use super::Communicator;
use crate::driver::{Driver, Notes};
use crate::engine::Engine;
use crate::process_name::process_name;
use crate::uplink::Uplink;
use crate::{Error, limits};
use core::ops::RangeInclusive;
use parking_lot::Mutex;
use ringfold_fabric::host;
use ringfold_fabric::listener::Listener;
use ringfold_fabric::mesh::Mesh;
use ringfold_fabric::poller::Poller;
use ringfold_fabric::random;
use ringfold_fabric::waiter::CancelToken;
use ringfold_proto::cause::MasterLoss;
use ringfold_proto::id::{GroupId, PeerId};
use ringfold_proto::limits::NAME_BYTES_MAX;
use ringfold_proto::message::Join;
use ringfold_proto::peer::{Failure, PeerConfig};
use ringfold_proto::timing::Timing;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

/// Describes a communicator. Only the master's address is needed.
///
/// ```
/// use ringfold::Communicator;
///
/// let communicator = Communicator::builder("127.0.0.1:48148")
///     .name("trainer-3")
///     .token("a secret that the master knows too")
///     .listen_ports(50_000..=50_099)
///     .build()?;
/// assert_eq!(communicator.name(), "trainer-3");
/// # Ok::<(), ringfold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CommunicatorBuilder {
    config: Config,
}

#[derive(Clone)]
pub(super) struct Config {
    master: String,
    group: u32,
    name: String,
    token: String,
    streams: u16,
    ports: RangeInclusive<u16>,
    bind: Option<IpAddr>,
    advertised: Vec<(IpAddr, Option<u16>)>,
    site: u32,
    timing: Timing,
    unreachable_after: Option<Duration>,
    connect_patience: Option<Duration>,
    watch: Option<CancelToken>,
    shares_memory: bool,
}

impl core::fmt::Debug for Config {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Config")
            .field("master", &self.master)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Streams per neighbour on another host, where nothing else is asked for.
const STREAMS: u16 = 4;

impl CommunicatorBuilder {
    pub(super) fn new(master: String) -> Self {
        Self {
            config: Config {
                master,
                group: 0,
                name: process_name(NAME_BYTES_MAX),
                token: String::new(),
                streams: STREAMS,
                ports: 0..=0,
                bind: None,
                advertised: Vec::new(),
                site: 0,
                timing: Timing::default(),
                unreachable_after: None,
                connect_patience: None,
                watch: None,
                shares_memory: host::may_share(),
            },
        }
    }

    /// The group whose peers do collectives among themselves.
    pub fn peer_group(mut self, group: u32) -> Self {
        self.config.group = group;
        self
    }

    /// What errors call this peer; host and process id if nothing is said.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.config.name = name.into();
        self
    }

    /// The join token that guards the master.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.config.token = token.into();
        self
    }

    /// TCP connections per neighbour on another host; 0 is the default.
    pub fn streams(mut self, streams: u16) -> Self {
        self.config.streams = if streams == 0 { STREAMS } else { streams };
        self
    }

    /// The one port to listen on; any free one if nothing is said.
    pub fn listen_port(self, port: u16) -> Self {
        self.listen_ports(port..=port)
    }

    /// The first free port of a range is listened on.
    pub fn listen_ports(mut self, ports: RangeInclusive<u16>) -> Self {
        self.config.ports = ports;
        self
    }

    /// The local address to listen on; all of them if nothing is said.
    pub fn bind(mut self, address: IpAddr) -> Self {
        self.config.bind = Some(address);
        self
    }

    /// Where others shall dial, if that is not where the master sees this peer come from: an address outside of a NAT,
    /// with the port that is listened on. May be said several times.
    pub fn advertise(mut self, address: IpAddr) -> Self {
        self.config.advertised.push((address, None));
        self
    }

    /// As [`CommunicatorBuilder::advertise`], where the port differs too.
    pub fn advertise_at(mut self, address: SocketAddr) -> Self {
        self.config.advertised.push((address.ip(), Some(address.port())));
        self
    }

    /// The site of this peer: peers of one site are near each other.
    pub fn site(mut self, site: u32) -> Self {
        self.config.site = site;
        self
    }

    /// Deadlines and intervals.
    pub fn timing(mut self, timing: Timing) -> Self {
        self.config.timing = timing;
        self
    }

    /// How long the host of the master or of another peer may acknowledge nothing before it counts as lost: 15 s if nothing is said, or as
    /// many seconds as the environment variable `RINGFOLD_UNREACHABLE_AFTER` says; 3 s at least. Systems answer for
    /// processes that are busy, so no long computation is mistaken for a loss.
    pub fn unreachable_after(mut self, time: Duration) -> Self {
        self.config.unreachable_after = Some(time);
        self
    }

    /// How long `connect` waits to be let in; as long as any other wait if nothing is said.
    pub fn connect_patience(mut self, patience: Duration) -> Self {
        self.config.connect_patience = Some(patience);
        self
    }

    /// Whether peers on the same host talk through shared memory; they do if nothing is said, unless the environment
    /// variable `RINGFOLD_SHARED_MEMORY` is 0. Where memory can't be shared, they talk as with any other host.
    pub fn shared_memory(mut self, shares: bool) -> Self {
        self.config.shares_memory = shares;
        self
    }

    /// A thread that waits in a call of this communicator asks `must_end` every so often, and leaves off if the answer
    /// is yes: the peer leaves the run, and the call fails with [`Error::Interrupted`]. For signals that arrive while a
    /// call blocks.
    pub fn watch(mut self, every: Duration, must_end: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.config.watch = Some(CancelToken::new(every, must_end));
        self
    }

    /// Makes the communicator. Nothing is dialled yet.
    pub fn build(self) -> Result<Communicator, Error> {
        let config = self.config;
        if config.name.is_empty() || config.name.len() > NAME_BYTES_MAX {
            return Err(Error::BadArgument(format!("a name has 1 to {NAME_BYTES_MAX} bytes")));
        }
        if config.ports.is_empty() {
            return Err(Error::BadArgument("the range of ports is empty".into()));
        }
        if config.master.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
            return Err(Error::BadArgument(format!(
                "{:?} is no address: host:port is expected, as in 10.0.0.7:48148 or [::1]:48148",
                config.master
            )));
        }
        Ok(Communicator { config, engine: Mutex::new(None) })
    }
}

impl Config {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn connect_patience(&self) -> Option<Duration> {
        self.connect_patience
    }

    /// Listens, and starts the engine. Every attempt to connect has a new identity.
    pub(super) fn engine(&self) -> Result<Engine, Error> {
        let system = |error: std::io::Error| Error::system("the communicator can't be started", &error);
        let addresses: Vec<_> = self
            .master
            .to_socket_addrs()
            .map_err(|error| MasterLoss::Unreachable(format!("{}: {error}", self.master)))
            .map_err(Failure::MasterLost)?
            .collect();
        let poller = Poller::new().map_err(system)?;
        let poller = Arc::new(poller.with_unreachable_after(self.unreachable_after));
        let listener = Listener::bind_in(self.bind, self.ports.clone(), &poller).map_err(|error| {
            Error::Bind(format!("no port of {:?} can be listened on: {error}", self.ports))
        })?;
        let listens = listener.address();
        let peer = PeerId(random::id().map_err(system)?);
        // Whoever does not share memory is on a host of its own.
        let host = if self.shares_memory { host::host_id() } else { host::nobodys() };
        let join = Join {
            group: GroupId(self.group),
            name: self.name.clone(),
            host,
            site: self.site,
            addresses: self.addresses(listens),
        };
        let streams = self.streams;
        let mut mesh = Mesh::new(peer, listener, streams, limits::LINK_MAX, &poller);
        if self.shares_memory {
            mesh = mesh.share_memory_on(host);
        }
        let uplink = Uplink::new(&self.master, addresses, &self.token, peer, &poller);
        let notes = Notes::new(&poller);
        let config = PeerConfig { peer, join, timing: self.timing };
        let driver = Driver::new(config, limits::STALL_AFTER, mesh, uplink, notes);
        Engine::start(driver, poller, self.watch.clone()).map_err(system)
    }

    /// Where others are to dial. The master puts the address that it sees in place of an unspecified one.
    fn addresses(&self, listens: SocketAddr) -> Vec<SocketAddr> {
        if self.advertised.is_empty() {
            return vec![listens];
        }
        let at = |(address, port): &(IpAddr, Option<u16>)| {
            SocketAddr::new(*address, port.unwrap_or(listens.port()))
        };
        self.advertised.iter().map(at).collect()
    }
}
