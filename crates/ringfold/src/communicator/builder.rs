//! The configuration of a communicator.

use super::Communicator;
use super::options::CommunicatorOptions;
use crate::Error;
use crate::process_name::process_name;
use crate::settings::Given;
use core::ops::RangeInclusive;
use parking_lot::Mutex;
use ringfold_fabric::join_token::JoinToken;
use ringfold_fabric::tls::TlsFiles;
use ringfold_fabric::traffic::BandwidthCaps;
use ringfold_fabric::waiter::CancelToken;
use ringfold_proto::integrity::Integrity;
use ringfold_proto::limits::NAME_BYTES_MAX;
use ringfold_proto::message::Replica;
use ringfold_proto::timing::Timing;
use ringfold_settings::bandwidth::Bandwidth;
use std::net::{IpAddr, SocketAddr};
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
    pub(super) master: String,
    pub(super) group: u32,
    pub(super) replica: Option<Replica>,
    pub(super) name: String,
    pub(super) token: Option<JoinToken>,
    pub(super) tls: Option<TlsFiles>,
    pub(super) insecure: Option<bool>,
    pub(super) streams: Option<u16>,
    pub(super) ports: Option<RangeInclusive<u16>>,
    pub(super) bind: Option<IpAddr>,
    /// Port 0 is the one that it listens on.
    pub(super) advertised: Vec<SocketAddr>,
    pub(super) site: Option<u32>,
    pub(super) timing: Option<Timing>,
    pub(super) unreachable_after: Option<Duration>,
    pub(super) connect_timeout: Option<Duration>,
    pub(super) cancel: Option<CancelToken>,
    pub(super) shares_memory: Option<bool>,
    pub(super) volunteers: Option<bool>,
    pub(super) reproducible: Option<bool>,
    pub(super) resume: Option<bool>,
    pub(super) integrity: Option<Integrity>,
    pub(super) flip_result_of: Option<u64>,
    pub(super) preflight: Option<bool>,
    pub(super) caps: BandwidthCaps,
    pub(super) given: Given,
}

impl CommunicatorBuilder {
    pub(super) fn new(master: String) -> Self {
        Self {
            master,
            group: 0,
            replica: None,
            name: process_name(NAME_BYTES_MAX),
            token: None,
            tls: None,
            insecure: None,
            streams: None,
            ports: None,
            bind: None,
            advertised: Vec::new(),
            site: None,
            timing: None,
            unreachable_after: None,
            connect_timeout: None,
            cancel: None,
            shares_memory: None,
            volunteers: None,
            reproducible: None,
            resume: None,
            integrity: None,
            flip_result_of: None,
            preflight: None,
            caps: BandwidthCaps::default(),
            given: Given::default(),
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

    /// The join token of the master. Default: the settings `join_token` and `join_token_file`.
    pub fn token(mut self, token: impl Into<JoinToken>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// The certificates of the run; otherwise the settings `tls_ca`, `tls_cert` and `tls_key` decide. The master and all peers must
    /// have some. All connections are then encrypted, and no token is needed.
    pub fn tls(mut self, files: TlsFiles) -> Self {
        self.tls = Some(files);
        self
    }

    /// Whether connections are not encrypted, for measurements; otherwise the setting `insecure` decides. All peers and the master
    /// must agree.
    pub fn insecure(mut self, insecure: bool) -> Self {
        self.insecure = Some(insecure);
        self
    }

    /// TCP connections per neighbour on another host. Default, also for 0: the setting `streams`, or 4.
    pub fn streams(mut self, streams: u16) -> Self {
        self.streams = (streams > 0).then_some(streams);
        self
    }

    /// The port to listen on. Default: the setting `listen_ports`, or any free port.
    pub fn listen_port(self, port: u16) -> Self {
        self.listen_ports(port..=port)
    }

    /// Listens on the first free port of a range.
    pub fn listen_ports(mut self, ports: RangeInclusive<u16>) -> Self {
        self.ports = Some(ports);
        self
    }

    /// The local address to listen on. Default: the setting `bind`, or all.
    pub fn bind(mut self, address: IpAddr) -> Self {
        self.bind = Some(address);
        self
    }

    /// An address at which other peers dial this one, with the port that it listens on. May be repeated.
    ///
    /// Needed if the master sees this peer at another address, for example behind a NAT.
    pub fn advertise(mut self, address: IpAddr) -> Self {
        self.advertised.push(SocketAddr::new(address, 0));
        self
    }

    /// As [`CommunicatorBuilder::advertise`], with another port.
    pub fn advertise_at(mut self, address: SocketAddr) -> Self {
        self.advertised.push(address);
        self
    }

    /// The site of this peer; peers of the same site are close to each other. Default: the setting `site`, or 0.
    pub fn site(mut self, site: u32) -> Self {
        self.site = Some(site);
        self
    }

    /// Deadlines and intervals. Default: the settings of their names.
    pub fn timing(mut self, timing: Timing) -> Self {
        self.timing = Some(timing);
        self
    }

    /// How long a silent host of the master or a peer is kept before it counts as lost; at least 3 s.
    ///
    /// Default: the setting `unreachable_after`, or 15 s. The operating system
    /// acknowledges data also while the process is busy, so a long computation is not taken for a loss.
    pub fn unreachable_after(mut self, time: Duration) -> Self {
        self.unreachable_after = Some(time);
        self
    }

    /// How long `connect` waits to be admitted. Default: the setting `connect_timeout`, or `wait_max` of
    /// [`Timing`].
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// Whether links to peers on the same host use shared memory. Where that is impossible they use TCP.
    ///
    /// Default: the setting `shared_memory`, or true.
    pub fn shared_memory(mut self, shares: bool) -> Self {
        self.shares_memory = Some(shares);
        self
    }

    /// Whether this peer relays the traffic of peers that cannot reach each other. They must reach this one.
    ///
    /// Relays of the master are used first. Default: the setting `volunteer_relay`, or false.
    pub fn volunteer_relay(mut self, volunteers: bool) -> Self {
        self.volunteers = Some(volunteers);
        self
    }

    /// Whether all all-reduces are [reproducible](crate::AllReduce::reproducible). Must be the same on all peers.
    ///
    /// Default: the setting `reproducible`, or false.
    pub fn reproducible(mut self, reproducible: bool) -> Self {
        self.reproducible = Some(reproducible);
        self
    }

    /// Whether all-reduces are [resumed](crate::AllReduce::resume) when a peer is lost, except quantised ones. Must be the same on all
    /// peers.
    ///
    /// Default: the setting `resume`, or false.
    pub fn resume(mut self, resume: bool) -> Self {
        self.resume = Some(resume);
        self
    }

    /// What all-reduces check beyond the checksums of TCP. Must be the same on all peers.
    ///
    /// With `payloads`, each frame carries a checksum (XXH3), which the receiver checks before it uses the data. With `results`,
    /// peers compare digests of their results: if they differ, the operation fails on all, and the error names the peers that
    /// are not of the majority, or all peers without a majority. Both failures are retryable, and in-place buffers are restored.
    /// Default: the setting `integrity`, or nothing.
    pub fn integrity(mut self, integrity: Integrity) -> Self {
        self.integrity = Some(integrity);
        self
    }

    /// For tests: a bit of the result of the n-th operation flips, counted from 1, as in faulty memory.
    #[doc(hidden)]
    pub fn flip_result_of(mut self, n: u64) -> Self {
        self.flip_result_of = Some(n);
        self
    }

    /// Caps what this peer sends to other hosts, over all its connections; at least 1 Mbit/s.
    ///
    /// Control messages are not held back, and traffic within the host is not capped. Default: the setting `max_upload`,
    /// which from a variable or file is one cap for the whole process; without it the bandwidth is not capped.
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

    /// As [`CommunicatorBuilder::max_upload`], for what this peer receives; `max_download`. Senders are slowed
    /// down, after what fits into the buffers on the way.
    pub fn max_download(mut self, cap: Bandwidth) -> Self {
        self.caps.download = Some(cap);
        self
    }

    /// Whether `connect` first examines this host and the way to the masters, as `ringfold doctor --quick` does, and fails with
    /// what it has found if a check fails. That takes some round trips.
    ///
    /// Default: the setting `preflight`, or false.
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

    /// Sets a [setting](crate::settings) by its name. A method for the same thing has priority.
    ///
    /// ```
    /// use ringfold::Communicator;
    ///
    /// let builder = Communicator::builder("127.0.0.1:48148").setting("heartbeat", "250ms");
    /// assert!(builder.clone().build().is_ok() && builder.setting("hartbeat", "1s").build().is_err());
    /// ```
    pub fn setting(mut self, name: &str, value: impl core::fmt::Display) -> Self {
        self.given.set(name, value);
        self
    }

    /// Sets all [settings](crate::settings) by argument.
    pub fn settings(mut self, given: Given) -> Self {
        self.given = given;
        self
    }

    /// Checks the configuration and creates the communicator. It does not dial yet.
    pub fn build(self) -> Result<Communicator, Error> {
        Ok(Communicator { config: CommunicatorOptions::new(self)?, engine: Mutex::new(None) })
    }
}
