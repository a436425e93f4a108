//! The configuration of a communicator from all sources, and its start.

use super::CommunicatorBuilder;
use crate::doctor::{self, DoctorOptions, Finding, Judgement};
use crate::driver::{Driver, WorkerReports};
use crate::engine::Engine;
use crate::error::invalid;
use crate::journal::{Source, SourceKind};
use crate::settings::{self, Settings, User, table};
use crate::uplink::Uplink;
use crate::{Error, limits, protection};
use core::ops::RangeInclusive;
use ringfold_fabric::connection_limits::ConnectionLimits;
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
use ringfold_proto::integrity::Integrity;
use ringfold_proto::limits::{MASTERS_MAX, NAME_BYTES_MAX, REPLICA_RANKS_MAX};
use ringfold_proto::message::{Join, Replica};
use ringfold_proto::peer::{Failure, PeerConfig};
use ringfold_proto::text::name_problem;
use ringfold_proto::timing::Timing;
use ringfold_settings::bandwidth::CAP_MIN;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

/// The configuration of a communicator: what its builder has, and else the settings.
#[derive(Clone, Debug)]
pub(super) struct CommunicatorOptions {
    settings: Settings,
    master: String,
    group: u32,
    replica: Option<Replica>,
    pub(super) name: String,
    token: JoinToken,
    tls: Option<TlsFiles>,
    is_insecure: bool,
    streams: u16,
    ports: RangeInclusive<u16>,
    bind: Option<IpAddr>,
    advertised: Vec<SocketAddr>,
    site: u32,
    timing: Timing,
    unreachable_after: Option<Duration>,
    pub(super) connect_timeout: Option<Duration>,
    cancel: Option<CancelToken>,
    shares_memory: bool,
    volunteers: bool,
    pub(super) reproducible: bool,
    pub(super) resume: bool,
    pub(super) integrity: Integrity,
    flip_result_of: Option<u64>,
    examines: bool,
    caps: BandwidthCaps,
}

impl CommunicatorOptions {
    pub(super) fn new(mut builder: CommunicatorBuilder) -> Result<Self, Error> {
        let settings = Settings::start(User::Peer, &builder.given)?;
        if builder.master.is_empty() {
            let none = || invalid!("no master: give its address, or set RINGFOLD_MASTERS");
            builder.master = settings::master_addresses(&settings).ok_or_else(none)?;
        }
        let ports = builder.ports.or_else(|| settings.ports(&table::LISTEN_PORTS)).unwrap_or(0..=0);
        if builder.name.is_empty() || builder.name.len() > NAME_BYTES_MAX {
            return Err(invalid!("invalid name {:?}: must have 1 to {NAME_BYTES_MAX} bytes", builder.name));
        }
        if let Some(why) = name_problem(&builder.name) {
            return Err(invalid!("invalid name {:?}: {why}", builder.name));
        }
        if let Some(Replica { ranks, .. }) = builder.replica
            && !(1..=REPLICA_RANKS_MAX).contains(&ranks)
        {
            return Err(invalid!("invalid replica of {ranks} ranks: must be 1..={REPLICA_RANKS_MAX}"));
        }
        if ports.is_empty() {
            return Err(invalid!("invalid port range {ports:?}: it is empty"));
        }
        let is_address =
            |text: &str| text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if !masters(&builder.master).all(is_address) || masters(&builder.master).count() > MASTERS_MAX {
            return Err(invalid!(
                "invalid master address {:?}: expected host:port, as in 10.0.0.7:48148 or [::1]:48148, or up to {MASTERS_MAX} of \
                 them, separated by commas",
                builder.master
            ));
        }
        if let Some(cap) =
            [builder.caps.upload, builder.caps.download].into_iter().flatten().find(|c| *c < CAP_MIN)
        {
            return Err(invalid!("invalid cap of {cap}: must be at least {CAP_MIN}"));
        }
        settings::advertised_by(&settings)?;
        let integrity = match builder.integrity {
            Some(integrity) => integrity,
            None => settings::integrity(&settings)?,
        };
        let site = settings.number(&table::SITE).and_then(|site| site.try_into().ok());
        let token = settings::token(&settings, builder.token)?;
        let tls = settings::tls(&settings, builder.tls)?;
        let is_insecure = builder.insecure.unwrap_or_else(|| settings.is_on(&table::INSECURE));
        if tls.is_some() {
            // Certificates that cannot be used are reported now.
            protection::keys(&token, tls.as_ref(), is_insecure)?;
        }
        Ok(Self {
            master: builder.master,
            group: builder.group,
            replica: builder.replica,
            name: builder.name,
            token,
            tls,
            is_insecure,
            streams: settings::streams(&settings, builder.streams),
            ports,
            bind: builder.bind.or_else(|| settings.ip(&table::BIND)),
            advertised: builder.advertised,
            site: builder.site.or(site).unwrap_or(0),
            timing: settings::timing(&settings, builder.timing),
            unreachable_after: builder.unreachable_after,
            connect_timeout: builder.connect_timeout.or_else(|| settings.time(&table::CONNECT_TIMEOUT)),
            cancel: builder.cancel,
            shares_memory: builder.shares_memory.unwrap_or_else(|| settings.is_on(&table::SHARED_MEMORY)),
            volunteers: builder.volunteers.unwrap_or_else(|| settings.is_on(&table::VOLUNTEER_RELAY)),
            reproducible: builder.reproducible.unwrap_or_else(|| settings.is_on(&table::REPRODUCIBLE)),
            resume: builder.resume.unwrap_or_else(|| settings.is_on(&table::RESUME)),
            integrity,
            flip_result_of: builder.flip_result_of,
            examines: builder.preflight.unwrap_or_else(|| settings.is_on(&table::PREFLIGHT)),
            caps: builder.caps,
            settings,
        })
    }

    /// Examines this host and the way to the masters, if that was asked for.
    pub(super) fn examine(&self) -> Result<(), Error> {
        if !self.examines {
            return Ok(());
        }
        let findings = doctor::preflight(&DoctorOptions {
            masters: masters(&self.master).map(str::to_owned).collect(),
            peers: Vec::new(),
            token: self.token.clone(),
            tls: self.tls.clone(),
            is_insecure: self.is_insecure,
            bind: self.bind,
            port: None,
            wait: Duration::ZERO,
            quick: true,
            settings: self.settings.clone(),
        });
        let words = |finding: &Finding| format!("{}: {} ({})", finding.check, finding.text, finding.remedy);
        let with =
            |judgement| findings.iter().filter(move |finding| finding.judgement == judgement).map(words);
        with(Judgement::Warn).for_each(|text| tracing::warn!("preflight: {text}"));
        let failed: Vec<_> = with(Judgement::Fail).collect();
        match failed.is_empty() {
            true => Ok(()),
            false => Err(Error::System(format!("the preflight check failed: {}", failed.join("; ")))),
        }
    }

    /// Listens, and starts the engine. Each attempt to connect has a new peer id.
    pub(super) fn engine(&self) -> Result<Engine, Error> {
        let system = |error: std::io::Error| Error::system("starting the communicator failed", &error);
        let time = |setting, default| self.settings.time(setting).unwrap_or(default);
        let masters = self.resolve_masters()?;
        let addresses: Vec<_> = masters.iter().flat_map(|(_, addresses)| addresses).copied().collect();
        let security = protection::keys(&self.token, self.tls.as_ref(), self.is_insecure)?;
        protection::check_dial(&self.token, &security, &addresses, &self.settings)?;
        let peer = security.peer();
        let network = Arc::new(Network::of(&self.settings, self.caps));
        let limits_of = ConnectionLimits::of(&self.settings);
        let poller = Arc::new(Poller::on(network, limits_of).map_err(system)?.with_security(security));
        self.unreachable_after.inspect(|limit| poller.set_unreachable_after(*limit));
        let listener = Listener::bind_in(self.bind, self.ports.clone(), &poller)
            .map_err(|error| Error::Bind(format!("no usable port in {:?}: {error}", self.ports)))?;
        let listens = listener.address();
        // Without shared memory the peer counts as alone on its host.
        let host = match self.shares_memory {
            true => host::host_id(self.settings.text(&table::HOST).unwrap_or("")),
            false => host::unshared_host_id(),
        };
        let join = Join {
            group: GroupId(self.group),
            name: self.name.clone(),
            host,
            site: self.site,
            cores: host::core_share(),
            // The master replaces unspecified ones by what it sees.
            addresses: settings::advertised(&self.settings, &self.advertised, listens)?,
            relays: self.volunteers,
        };
        let mut mesh =
            Mesh::new(peer, listener, self.streams, time(&table::LINK_MAX, limits::LINK_MAX), &poller)
                .on_host(host)
                .with_relay_token(self.token.clone(), self.volunteers);
        if self.shares_memory {
            mesh = mesh.share_memory_on(host);
        }
        if !self.settings.is_on(&table::QUIC) {
            mesh = mesh.without_quic();
        }
        let mut uplink = Uplink::new(masters, self.token.clone(), peer, &poller);
        if self.replica.is_some() {
            uplink = uplink.with_replicas();
        }
        if self.integrity != Integrity::NONE {
            uplink = uplink.with_integrity();
        }
        let journal = Source::new(SourceKind::Peer, &*join.name, &self.settings);
        let config = PeerConfig { peer, join, replica: self.replica, timing: self.timing };
        let mut driver = Driver::new(
            config,
            time(&table::STALL_AFTER, limits::STALL_AFTER),
            mesh,
            uplink,
            WorkerReports::new(&poller),
            journal,
        );
        if let Some(n) = self.flip_result_of {
            driver.flip_result_of(n);
        }
        Engine::start(driver, poller, self.cancel.clone()).map_err(system)
    }

    /// The masters whose names can be resolved: at least one.
    fn resolve_masters(&self) -> Result<Vec<(String, Vec<SocketAddr>)>, Error> {
        let (mut found, mut failures) = (Vec::new(), Vec::new());
        for master in masters(&self.master) {
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
}

/// The addresses of the masters, as the user wrote them.
fn masters(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim)
}
