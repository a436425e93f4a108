//! The configuration of a communicator.

use super::Communicator;
use crate::doctor::{self, DoctorSettings, Judgement};
use crate::driver::{Driver, WorkerReports};
use crate::engine::Engine;
use crate::error::invalid;
use crate::process_name::process_name;
use crate::protection;
use crate::relay::volunteers_by_default;
use crate::uplink::Uplink;
use crate::{Error, limits};
use core::ops::RangeInclusive;
use parking_lot::Mutex;
use ringfold_fabric::bandwidth::{Bandwidth, CAP_MIN};
use ringfold_fabric::host;
use ringfold_fabric::join_token::JoinToken;
use ringfold_fabric::listener::Listener;
use ringfold_fabric::mesh::Mesh;
use ringfold_fabric::poller::Poller;
use ringfold_fabric::tls::TlsFiles;
use ringfold_fabric::traffic::{BandwidthCaps, Network};
use ringfold_fabric::waiter::CancelToken;
use ringfold_proto::cause::MasterLoss;
use ringfold_proto::id::GroupId;
use ringfold_proto::limits::{MASTERS_MAX, NAME_BYTES_MAX, REPLICA_RANKS_MAX};
use ringfold_proto::message::{Join, Replica};
use ringfold_proto::peer::{Failure, PeerConfig};
use ringfold_proto::timing::Timing;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

/// Configures a [`Communicator`]. Only the address of the master is required.
///
/// ```
/// use ringfold::Communicator;
///
/// let communicator = Communicator::builder("127.0.0.1:48148")
///     .name("trainer-3")
///     .token("the same secret as the master's")
///     .listen_ports(50_000..=50_099)
///     .build()?;
/// assert_eq!(communicator.name(), "trainer-3");
/// # Ok::<(), ringfold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CommunicatorBuilder {
    master: String,
    group: u32,
    replica: Option<Replica>,
    pub(super) name: String,
    token: JoinToken,
    tls: Option<TlsFiles>,
    insecure: Option<bool>,
    streams: u16,
    ports: RangeInclusive<u16>,
    bind: Option<IpAddr>,
    advertised: Vec<(IpAddr, Option<u16>)>,
    site: u32,
    timing: Timing,
    unreachable_after: Option<Duration>,
    pub(super) connect_timeout: Option<Duration>,
    cancel: Option<CancelToken>,
    shares_memory: bool,
    volunteers: bool,
    caps: BandwidthCaps,
    preflight: Option<bool>,
}

/// The environment variable that has peers examine their host before they connect.
const PREFLIGHT_VARIABLE: &str = "RINGFOLD_PREFLIGHT";

/// Default number of streams per neighbour on another host.
pub(crate) const STREAMS: u16 = 4;

impl CommunicatorBuilder {
    pub(super) fn new(master: String) -> Self {
        Self {
            master,
            group: 0,
            replica: None,
            name: process_name(NAME_BYTES_MAX),
            token: JoinToken::default(),
            tls: None,
            insecure: None,
            streams: STREAMS,
            ports: 0..=0,
            bind: None,
            advertised: Vec::new(),
            site: 0,
            timing: Timing::default(),
            unreachable_after: None,
            connect_timeout: None,
            cancel: None,
            shares_memory: host::may_share(),
            volunteers: volunteers_by_default(),
            caps: BandwidthCaps::default(),
            preflight: None,
        }
    }

    /// The group of this peer; collectives run among the peers of one group. Default: 0.
    pub fn peer_group(mut self, group: u32) -> Self {
        self.group = group;
        self
    }

    /// The replica that this peer is a rank of. Default: none.
    ///
    /// The ranks of a replica are in different groups: rank 0 in group 0, and so on. They are admitted together, when all have
    /// joined. If one is lost, the others are removed from the run. All state the same random id, which is new whenever the
    /// replica starts.
    pub fn replica(mut self, replica: Replica) -> Self {
        self.replica = Some(replica);
        self
    }

    /// The name of this peer in errors and logs. Default: host name and process id.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The join token of the master.
    pub fn token(mut self, token: impl Into<JoinToken>) -> Self {
        self.token = token.into();
        self
    }

    /// The certificates of the run; otherwise `RINGFOLD_TLS_CA`, `RINGFOLD_TLS_CERT` and `RINGFOLD_TLS_KEY` decide. The master and all peers must
    /// have some. All connections are then encrypted, and no token is needed.
    pub fn tls(mut self, files: TlsFiles) -> Self {
        self.tls = Some(files);
        self
    }

    /// Whether connections are not encrypted, for measurements; otherwise `RINGFOLD_INSECURE` decides. All peers and the master
    /// must agree.
    pub fn insecure(mut self, insecure: bool) -> Self {
        self.insecure = Some(insecure);
        self
    }

    /// TCP connections per neighbour on another host. Default, also for 0: 4.
    pub fn streams(mut self, streams: u16) -> Self {
        self.streams = if streams == 0 { STREAMS } else { streams };
        self
    }

    /// The port to listen on. Default: any free port.
    pub fn listen_port(self, port: u16) -> Self {
        self.listen_ports(port..=port)
    }

    /// Listens on the first free port of a range.
    pub fn listen_ports(mut self, ports: RangeInclusive<u16>) -> Self {
        self.ports = ports;
        self
    }

    /// The local address to listen on. Default: all.
    pub fn bind(mut self, address: IpAddr) -> Self {
        self.bind = Some(address);
        self
    }

    /// An address at which other peers dial this one, with the port that it listens on. May be repeated.
    ///
    /// Needed if the master sees this peer at another address, for example behind a NAT.
    pub fn advertise(mut self, address: IpAddr) -> Self {
        self.advertised.push((address, None));
        self
    }

    /// As [`CommunicatorBuilder::advertise`], with another port.
    pub fn advertise_at(mut self, address: SocketAddr) -> Self {
        self.advertised.push((address.ip(), Some(address.port())));
        self
    }

    /// The site of this peer; peers of the same site are close to each other. Default: 0.
    pub fn site(mut self, site: u32) -> Self {
        self.site = site;
        self
    }

    /// Deadlines and intervals.
    pub fn timing(mut self, timing: Timing) -> Self {
        self.timing = timing;
        self
    }

    /// How long a silent host of the master or a peer is kept before it counts as lost; at least 3 s.
    ///
    /// Default: the seconds in the environment variable `RINGFOLD_UNREACHABLE_AFTER`, or 15 s. The operating system
    /// acknowledges data also while the process is busy, so a long computation is not taken for a loss.
    pub fn unreachable_after(mut self, time: Duration) -> Self {
        self.unreachable_after = Some(time);
        self
    }

    /// How long `connect` waits to be admitted. Default: `wait_max` of [`Timing`].
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// Whether links to peers on the same host use shared memory. Where that is impossible they use TCP.
    ///
    /// Default: true, unless the environment variable `RINGFOLD_SHARED_MEMORY` is 0.
    pub fn shared_memory(mut self, shares: bool) -> Self {
        self.shares_memory = shares;
        self
    }

    /// Whether this peer relays the traffic of peers that cannot reach each other. They must reach this one.
    ///
    /// Relays of the master are used first. Default: false, unless the environment variable `RINGFOLD_VOLUNTEER_RELAY` is 1.
    pub fn volunteer_relay(mut self, volunteers: bool) -> Self {
        self.volunteers = volunteers;
        self
    }

    /// Caps what this peer sends to other hosts, over all its connections; at least 1 Mbit/s.
    ///
    /// Control messages are not held back, and traffic within the host is not capped. Default: the environment variable
    /// `RINGFOLD_MAX_UPLOAD`, such as `50mbit` or `10MiB/s`, for the whole process; without it the bandwidth is not capped.
    ///
    /// ```
    /// use ringfold::{Bandwidth, Communicator};
    ///
    /// let communicator = Communicator::builder("127.0.0.1:48148")
    ///     .max_upload("50mbit".parse::<Bandwidth>().unwrap())
    ///     .build()?;
    /// # Ok::<(), ringfold::Error>(())
    /// ```
    pub fn max_upload(mut self, cap: Bandwidth) -> Self {
        self.caps.upload = Some(cap);
        self
    }

    /// As [`CommunicatorBuilder::max_upload`], for what this peer receives; `RINGFOLD_MAX_DOWNLOAD`. Senders are slowed
    /// down, after what fits into the buffers on the way.
    pub fn max_download(mut self, cap: Bandwidth) -> Self {
        self.caps.download = Some(cap);
        self
    }

    /// Whether `connect` first examines this host and the way to the master, as `ringfold doctor --quick` does, and fails with what
    /// it has found if a check fails. That takes some round trips.
    ///
    /// Default: false, unless the environment variable `RINGFOLD_PREFLIGHT` is 1.
    pub fn preflight(mut self, examines: bool) -> Self {
        self.preflight = Some(examines);
        self
    }

    /// Calls `must_end` at this interval while a call blocks; if it returns true the wait is cancelled.
    ///
    /// The peer then leaves the run, and the call fails with [`Error::Interrupted`]. Meant for signals.
    pub fn cancel_when(
        mut self,
        interval: Duration,
        must_end: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        self.cancel = Some(CancelToken::new(interval, must_end));
        self
    }

    /// Checks the configuration and creates the communicator. It does not dial yet.
    pub fn build(mut self) -> Result<Communicator, Error> {
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX {
            return Err(invalid!("invalid name {:?}: must have 1 to {NAME_BYTES_MAX} bytes", self.name));
        }
        if let Some(Replica { ranks, .. }) = self.replica
            && !(1..=REPLICA_RANKS_MAX).contains(&ranks)
        {
            return Err(invalid!("invalid replica of {ranks} ranks: must be 1..={REPLICA_RANKS_MAX}"));
        }
        if self.ports.is_empty() {
            return Err(invalid!("invalid port range {:?}: it is empty", self.ports));
        }
        let is_address =
            |text: &str| text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if !self.masters().all(is_address) || self.masters().count() > MASTERS_MAX {
            return Err(invalid!(
                "invalid master address {:?}: expected host:port, as in 10.0.0.7:48148 or [::1]:48148, or up to {MASTERS_MAX} of \
                 them, separated by commas",
                self.master
            ));
        }
        if let Some(cap) = [self.caps.upload, self.caps.download].into_iter().flatten().find(|c| *c < CAP_MIN)
        {
            return Err(invalid!("invalid cap of {cap}: must be at least {CAP_MIN}"));
        }
        if self.tls.is_none() {
            self.tls = TlsFiles::by_default().map_err(|error| invalid!("{error}"))?;
        }
        if self.tls.is_some() {
            // Certificates that cannot be used are reported now.
            protection::keys(&self.token, self.tls.as_ref(), self.insecure)?;
        }
        BandwidthCaps::from_environment().map_err(|error| invalid!("{error}"))?;
        Ok(Communicator { config: self, engine: Mutex::new(None) })
    }

    /// Examines this host and the way to the masters, if that was asked for.
    pub(super) fn examine(&self) -> Result<(), Error> {
        let is_set =
            || std::env::var(PREFLIGHT_VARIABLE).is_ok_and(|value| !matches!(value.trim(), "" | "0"));
        if !self.preflight.unwrap_or_else(is_set) {
            return Ok(());
        }
        let settings = DoctorSettings {
            masters: self.masters().map(str::to_owned).collect(),
            token: self.token.clone(),
            tls: self.tls.clone(),
            insecure: self.insecure,
            bind: self.bind,
            quick: true,
            ..DoctorSettings::default()
        };
        let findings = doctor::preflight(&settings);
        for finding in findings.iter().filter(|finding| finding.judgement == Judgement::Warn) {
            tracing::warn!("preflight: {}: {} ({})", finding.check, finding.text, finding.remedy);
        }
        let failed = findings.iter().filter(|finding| finding.judgement == Judgement::Fail);
        let texts: Vec<_> = failed.map(|f| format!("{}: {} ({})", f.check, f.text, f.remedy)).collect();
        match texts.is_empty() {
            true => Ok(()),
            false => Err(Error::System(format!("the preflight check failed: {}", texts.join("; ")))),
        }
    }

    /// Listens, and starts the engine. Each attempt to connect has a new peer id.
    pub(super) fn engine(&self) -> Result<Engine, Error> {
        let system = |error: std::io::Error| Error::system("starting the communicator failed", &error);
        let masters = self.resolve_masters()?;
        let addresses: Vec<_> = masters.iter().flat_map(|(_, addresses)| addresses).copied().collect();
        let security = protection::keys(&self.token, self.tls.as_ref(), self.insecure)?;
        protection::check_dial(&self.token, &security, &addresses)?;
        let peer = security.peer();
        let network = Arc::new(Network::with_caps(self.caps));
        let poller = Arc::new(Poller::on(network).map_err(system)?.with_security(security));
        self.unreachable_after.inspect(|limit| poller.set_unreachable_after(*limit));
        let listener = Listener::bind_in(self.bind, self.ports.clone(), &poller)
            .map_err(|error| Error::Bind(format!("no usable port in {:?}: {error}", self.ports)))?;
        let listens = listener.address();
        // Without shared memory the peer counts as alone on its host.
        let host = if self.shares_memory { host::host_id() } else { host::unshared_host_id() };
        let join = Join {
            group: GroupId(self.group),
            name: self.name.clone(),
            host,
            site: self.site,
            addresses: self.addresses(listens),
            relays: self.volunteers,
        };
        let mut mesh = Mesh::new(peer, listener, self.streams, limits::LINK_MAX, &poller)
            .on_host(host)
            .with_relay_token(self.token.clone(), self.volunteers);
        if self.shares_memory {
            mesh = mesh.share_memory_on(host);
        }
        let mut uplink = Uplink::new(masters, self.token.clone(), peer, &poller);
        if self.replica.is_some() {
            uplink = uplink.with_replicas();
        }
        let config = PeerConfig { peer, join, replica: self.replica, timing: self.timing };
        let driver = Driver::new(config, limits::STALL_AFTER, mesh, uplink, WorkerReports::new(&poller));
        Engine::start(driver, poller, self.cancel.clone()).map_err(system)
    }

    /// The addresses of the masters, as the user wrote them.
    fn masters(&self) -> impl Iterator<Item = &str> {
        self.master.split(',').map(str::trim)
    }

    /// The masters whose names can be resolved: at least one.
    fn resolve_masters(&self) -> Result<Vec<(String, Vec<SocketAddr>)>, Error> {
        let (mut found, mut failures) = (Vec::new(), Vec::new());
        for master in self.masters() {
            match master.to_socket_addrs() {
                Ok(addresses) => found.push((master.to_owned(), addresses.collect())),
                Err(error) => failures.push(format!("{master}: {error}")),
            }
        }
        let failed = failures.join("; ");
        if found.is_empty() {
            return Err(Failure::MasterLost(MasterLoss::Unreachable(failed)).into());
        }
        if !failed.is_empty() {
            tracing::warn!("some masters are not used: {failed}");
        }
        Ok(found)
    }

    /// The addresses that other peers dial. The master replaces unspecified ones by what it sees.
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
