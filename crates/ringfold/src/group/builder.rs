//! The configuration of a group, and how it is formed.

use super::bootstrap::{Bootstrap, CancelCheck, FailureCheck, LocalRank, WaitNotice, bootstrap};
use super::core::Core;
use super::driver::{Alarm, GroupDriver, Waits};
use super::environment::{Environment, parse_bootstrap};
use super::member_name::member_name;
use super::operation::RankContext;
use super::queue::CollectiveQueue;
use super::{Group, Handle};
use crate::board::Board;
use crate::error::invalid;
use crate::journal::{PeerEvent, Source, SourceKind};
use crate::protection;
use crate::settings::{self, Given, Settings, User, table};
use crate::{Error, limits};
use core::ops::RangeInclusive;
use parking_lot::Mutex;
use ringfold_fabric::arena::Arena;
use ringfold_fabric::host;
use ringfold_fabric::join_token::JoinToken;
use ringfold_fabric::listener::Listener;
use ringfold_fabric::mesh::Mesh;
use ringfold_fabric::poller::Poller;
use ringfold_fabric::reactor::Reactor;
use ringfold_fabric::tls::TlsFiles;
use ringfold_fabric::waiter::CancelToken;
use ringfold_fabric::worker_pool::WorkerPool;
use ringfold_proto::epoch::Member;
use ringfold_proto::id::Rank;
use ringfold_proto::integrity::Integrity;
use ringfold_proto::limits::{NAME_BYTES_MAX, WORLD_MAX};
use ringfold_proto::tuning::Tuning;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The transports of a group's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Media {
    /// Shared memory between ranks on one host, TCP between hosts.
    #[default]
    Auto,
    /// TCP only.
    Tcp,
    /// Shared memory only: forming the group fails if the ranks cannot share memory.
    Shared,
}

/// Configures a [`Group`]. Rank, world size and bootstrap are required, or come from the environment.
#[derive(Clone, Debug)]
pub struct GroupBuilder {
    rank: Option<usize>,
    world: Option<usize>,
    bootstrap: Option<Bootstrap>,
    name: String,
    token: JoinToken,
    tls: Option<TlsFiles>,
    insecure: Option<bool>,
    pub(super) media: Media,
    tuning: Option<Tuning>,
    timeout: Option<Duration>,
    warn_after: Option<Duration>,
    unreachable_after: Option<Duration>,
    connect_timeout: Option<Duration>,
    streams: Option<u16>,
    bind: Option<IpAddr>,
    ports: Option<RangeInclusive<u16>>,
    advertised: Vec<SocketAddr>,
    cancel: Option<CancelToken>,
    restores: bool,
    reproducible: Option<bool>,
    integrity: Option<Integrity>,
    flip_result_of: Option<u64>,
    given: Given,
}

/// What a group that is split from another one knows about its parent.
#[derive(Default)]
pub(super) struct SplitOrigin {
    /// Reports why the split can no longer succeed.
    pub(super) doubt: Option<FailureCheck>,
    /// Known addresses of the host of rank 0.
    pub(super) known_hosts: Vec<IpAddr>,
}

impl GroupBuilder {
    pub(super) fn new() -> Self {
        Self {
            rank: None,
            world: None,
            bootstrap: None,
            name: String::new(),
            token: JoinToken::default(),
            tls: None,
            insecure: None,
            media: Media::Auto,
            tuning: None,
            timeout: None,
            warn_after: None,
            unreachable_after: None,
            connect_timeout: None,
            streams: None,
            bind: None,
            ports: None,
            advertised: Vec::new(),
            cancel: None,
            restores: false,
            reproducible: None,
            integrity: None,
            flip_result_of: None,
            given: Given::default(),
        }
    }

    /// Reads rank, world size and bootstrap from the environment of torchrun, Open MPI, MPICH or SLURM.
    ///
    /// The bootstrap address is `MASTER_ADDR` and `MASTER_PORT`, or the setting `bootstrap`: `host:port`, or `file:` and a
    /// path.
    pub fn environment(mut self) -> Result<Self, Error> {
        let settings = Settings::load(User::Group, &self.given)?;
        let found = Environment::read(settings.text(&table::BOOTSTRAP), |name| std::env::var(name).ok())?;
        (self.rank, self.world, self.bootstrap) =
            (Some(found.rank), Some(found.world), Some(found.bootstrap));
        Ok(self)
    }

    /// The rank of this process, from 0.
    pub fn rank(mut self, rank: usize) -> Self {
        self.rank = Some(rank);
        self
    }

    /// The number of ranks.
    pub fn world(mut self, world: usize) -> Self {
        self.world = Some(world);
        self
    }

    /// How the ranks find each other. Default: the setting `bootstrap`.
    pub fn bootstrap(mut self, at: Bootstrap) -> Self {
        self.bootstrap = Some(at);
        self
    }

    /// The name of the group. Groups with different names may use one bootstrap address in turn.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// A secret shared by all ranks; other processes cannot join.
    pub fn token(mut self, token: impl Into<JoinToken>) -> Self {
        self.token = token.into();
        self
    }

    /// The certificates of the run; otherwise the settings `tls_ca`, `tls_cert` and `tls_key` decide. All ranks must
    /// have some. All connections are then encrypted, and no token is needed.
    pub fn tls(mut self, files: TlsFiles) -> Self {
        self.tls = Some(files);
        self
    }

    /// Whether connections are not encrypted, for measurements; otherwise the setting `insecure` decides. All ranks must agree.
    pub fn insecure(mut self, insecure: bool) -> Self {
        self.insecure = Some(insecure);
        self
    }

    /// The transports of the data.
    pub fn media(mut self, media: Media) -> Self {
        self.media = media;
        self
    }

    /// Parameters of plans. All ranks use those of rank 0. Default: the setting `tuning`.
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = Some(tuning);
        self
    }

    /// The timeout of an operation, after which the group fails. Default: the setting `operation_timeout`, or 10 min.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How long a rank waits for others before a warning in its log says for whom, and what they do. The next warnings come
    /// after twice that time, four times, and so on. Zero: no warnings.
    ///
    /// Default: the setting `warn_after`, or 5 s.
    pub fn warn_after(mut self, time: Duration) -> Self {
        self.warn_after = Some(time);
        self
    }

    /// How long the host of another rank may acknowledge nothing before it counts as lost; at least 3 s.
    ///
    /// Default: the setting `unreachable_after`, or 15 s. The operating system
    /// acknowledges data also while the process is busy, so a long computation is not taken for a loss.
    pub fn unreachable_after(mut self, time: Duration) -> Self {
        self.unreachable_after = Some(time);
        self
    }

    /// Time limit for forming the group. Default: the setting `bootstrap_timeout`, or 5 min.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// TCP connections per pair of ranks on different hosts. Default: the setting `streams`, or 4.
    pub fn streams(mut self, streams: u16) -> Self {
        self.streams = Some(streams.max(1));
        self
    }

    /// The local address to listen on. Default: the setting `bind`, or all.
    pub fn bind(mut self, address: IpAddr) -> Self {
        self.bind = Some(address);
        self
    }

    /// Listens on the first free port of a range. Default: the setting `listen_ports`, or any free port.
    pub fn listen_ports(mut self, ports: RangeInclusive<u16>) -> Self {
        self.ports = Some(ports);
        self
    }

    /// An address at which other ranks dial this one, if it is not the one that rank 0 sees.
    ///
    /// May be repeated. Port 0 stands for the port that this rank listens on.
    pub fn advertise(mut self, address: SocketAddr) -> Self {
        self.advertised.push(address);
        self
    }

    /// Whether in-place buffers are restored after a failure. Must be the same on all ranks.
    ///
    /// A collective then succeeds only when all ranks have the result. It costs a copy of the buffer and a barrier.
    pub fn restore_on_failure(mut self, restores: bool) -> Self {
        self.restores = restores;
        self
    }

    /// Whether reductions have the same bits whatever the plan, the transport, the chunks, and the number of ranks per host. Must be the same
    /// on all ranks.
    ///
    /// The data of all ranks is then reduced from left to right in rank order. Default: the setting `reproducible`, or false.
    pub fn reproducible(mut self, reproducible: bool) -> Self {
        self.reproducible = Some(reproducible);
        self
    }

    /// What operations check: the checksum of each payload, and whether the results of all-reduces have the same bits on all ranks. Must
    /// be the same on all ranks.
    ///
    /// If a payload or a result differs, the group fails on all ranks, and the cause names ranks. Data then goes over links, through
    /// shared memory between ranks of one host, and no collective runs by kernels on CUDA devices. Default: the setting `integrity`, or
    /// nothing.
    pub fn integrity(mut self, integrity: Integrity) -> Self {
        self.integrity = Some(integrity);
        self
    }

    /// For tests: a bit of the result of the n-th all-reduce flips on this rank, counted from 1, as faulty memory does. Only with
    /// [`Integrity::results`].
    #[doc(hidden)]
    pub fn flip_result_of(mut self, n: u64) -> Self {
        self.flip_result_of = Some(n);
        self
    }

    /// Calls `must_end` at this interval while a call blocks; if it returns true the wait is cancelled.
    ///
    /// `connect` then fails with [`Error::Interrupted`]. A later operation fails likewise, and the group with it.
    pub fn cancel_when(
        mut self,
        interval: Duration,
        must_end: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        self.cancel = Some(CancelToken::new(interval, must_end));
        self
    }

    /// Sets a [setting](crate::settings) by its name. A method for the same thing has priority.
    pub fn setting(mut self, name: &str, value: impl core::fmt::Display) -> Self {
        self.given.set(name, value);
        self
    }

    /// Sets all [settings](crate::settings) by argument.
    pub fn settings(mut self, given: Given) -> Self {
        self.given = given;
        self
    }

    /// The time limit for forming a group.
    pub(super) fn connect_timeout_of(&self) -> Result<Duration, Error> {
        let setting =
            || Settings::load(User::Group, &self.given).map(|settings| bootstrap_timeout(&settings));
        Ok(self.connect_timeout.map_or_else(setting, Ok)?)
    }

    /// Connects to all other ranks.
    pub fn connect(self) -> Result<Group, Error> {
        self.connect_from(SplitOrigin::default())
    }

    /// As [`GroupBuilder::connect`], for a group that is split from another one.
    pub(super) fn connect_from(mut self, origin: SplitOrigin) -> Result<Group, Error> {
        let settings = Settings::start(User::Group, &self.given)?;
        if self.bootstrap.is_none() {
            self.bootstrap = settings.text(&table::BOOTSTRAP).map(parse_bootstrap);
        }
        let integrity = match self.integrity {
            Some(integrity) => integrity,
            None => settings::integrity(&settings)?,
        };
        let reproducible = self.reproducible.unwrap_or_else(|| settings.is_on(&table::REPRODUCIBLE));
        let context = self.context(reproducible, integrity)?;
        let until =
            limits::deadline_after(self.connect_timeout.unwrap_or_else(|| bootstrap_timeout(&settings)));
        let system = |error: std::io::Error| Error::system("forming the group failed", &error);
        let tls = settings::tls(&settings, self.tls.clone())?;
        let is_insecure = self.insecure.unwrap_or_else(|| settings.is_on(&table::INSECURE));
        let security = protection::keys(&self.token, tls.as_ref(), is_insecure)?;
        let peer = security.peer();
        let poller = Poller::with_settings(&settings).map_err(system)?;
        self.unreachable_after.inspect(|limit| poller.set_unreachable_after(*limit));
        let poller = Arc::new(poller.with_security(security.clone()));
        let bind = self.bind.or_else(|| settings.ip(&table::BIND));
        let ports = self.ports.clone().or_else(|| settings.ports(&table::LISTEN_PORTS)).unwrap_or(0..=0);
        let listener = Listener::bind_in(bind, ports.clone(), &poller)
            .map_err(|error| Error::Bind(format!("no usable port in {ports:?}: {error}")))?;
        let listens = listener.address();
        let may_share = self.media != Media::Tcp && settings.is_on(&table::SHARED_MEMORY);
        let host = match may_share {
            true => host::host_id(settings.text(&table::HOST).unwrap_or("")),
            false => host::unshared_host_id(),
        };
        let addresses = settings::advertised(&settings, &self.advertised, listens)?;
        let name = member_name(context.me);
        let named = if self.name.is_empty() { name.clone() } else { format!("{} {name}", self.name) };
        let member = Member { peer, name, host, site: 0, cores: host::core_share(), addresses };
        let me = Rank::from_index(context.me);
        let warn_after = self.warn_after.or_else(|| settings.time(&table::WARN_AFTER)).unwrap_or_default();
        let at = self.bootstrap.clone().unwrap_or_else(|| Bootstrap::Address(String::new()));
        let local = LocalRank {
            name: self.name.clone(),
            rank: me,
            world: context.world,
            member,
            token: self.token.clone(),
            security,
            tuning: settings::tuning(&settings, self.tuning)?,
            may_share,
            must_share: self.media == Media::Shared && context.world > 1,
            integrity,
            bind,
            known_hosts: origin.known_hosts,
            cancel: CancelCheck::new(self.cancel.clone(), origin.doubt),
            notice: WaitNotice::new(warn_after),
            deadline: until,
            limits: poller.limits(),
        };
        let met = bootstrap(&at, &local)?;
        let streams = settings::streams(&settings, self.streams);
        let mut mesh =
            Mesh::new(peer, listener, streams, until - Instant::now().min(until), &poller).on_host(host);
        if !settings.is_on(&table::QUIC) {
            mesh = mesh.without_quic();
        }
        if may_share {
            mesh = mesh.share_memory_on(host);
        }
        let arena = met.arena.map(Arc::new);
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let alarm: Alarm = match arena.clone() {
            Some(arena) => Box::new(move |cause| arena.abort(me, &cause.to_string())),
            None => Box::new(move |_| over.store(true, Ordering::Release)),
        };
        let tuning = met.description.tuning;
        let stall_after = settings.time(&table::STALL_AFTER).unwrap_or(limits::STALL_AFTER);
        let members = met.description.members.iter().map(|member| member.name.clone()).collect();
        let journal = Source::new(SourceKind::Rank, named, &settings);
        let waits = Waits::new(self.name.clone(), warn_after, arena.clone());
        let watched = (journal.clone(), waits);
        let mut driver =
            GroupDriver::new(mesh, me, met.description, alarm, stall_after, self.restores, watched)?;
        if let Some(n) = self.flip_result_of {
            driver.flip_result_of(n);
        }
        let engine = Reactor::start(driver, poller, "ringfold-progress").map_err(system)?;
        let threads = settings.number(&table::FOLD_THREADS).unwrap_or(1);
        let board = arena.and_then(|arena| self.board(arena, me, threads));
        let core = Arc::new(Core {
            context,
            name: self.name.clone(),
            members,
            tuning,
            timeout: Mutex::new(self.timeout.unwrap_or_else(|| operation_timeout(&settings))),
            engine,
            is_over,
            cancel: self.cancel.clone(),
            restores: self.restores,
            spare: Mutex::default(),
            spare_bytes_max: settings.number(&table::SPARE_BACKUP_BYTES).unwrap_or(limits::SPARE_BYTES_MAX),
            shared_collectives: board.as_ref().map(Board::shared_collectives).unwrap_or_default(),
            board: board.map(Mutex::new),
            direct_copy: OnceLock::new(),
            queue: CollectiveQueue::default(),
            journal,
            blueprint: self.blueprint(),
        });
        let group = Group { handle: Arc::new(Handle { core: core.clone() }) };
        if context.world > 1 {
            link(&core, &local.cancel, until)?;
            let has_own_core = core.engine.with(|driver| driver.has_own_core())?;
            core.board.as_ref().inspect(|board| board.lock().set_own_cores(has_own_core));
            if local.must_share && core.board.is_none() {
                check_shared_links(&core)?;
            }
            // No rank continues before all have their links. If this fails, the first call of the group reports it.
            core.barrier_on_links(until);
            core.agree_on_direct_copies(settings.is_on(&table::DIRECT_COPY), until);
        }
        if core.failure().is_none() {
            core.journal.post(PeerEvent::GroupFormed {
                group: core.name.clone(),
                rank: me,
                world: context.world,
                shares_memory: core.board.is_some(),
            });
        }
        Ok(group)
    }

    fn board(&self, arena: Arc<Arena>, me: Rank, threads: usize) -> Option<Board> {
        let mut board = Board::new(arena, me)?;
        if threads > 1 {
            match WorkerPool::start(threads) {
                Ok(workers) => board.set_workers(workers),
                Err(error) => tracing::warn!(%error, "starting threads failed: the rank reduces with one"),
            }
        }
        if let Some(cancel) = self.cancel.clone() {
            board.set_cancel(cancel);
        }
        Some(board)
    }

    /// The configuration that groups split from this one inherit: without its bootstrap and ports.
    fn blueprint(self) -> Self {
        let any_port = |address: &SocketAddr| SocketAddr::new(address.ip(), 0);
        let advertised = self.advertised.iter().map(any_port).collect();
        Self { bootstrap: None, advertised, ..self }
    }

    fn context(&self, reproducible: bool, integrity: Integrity) -> Result<RankContext, Error> {
        let need = |what: &str| invalid!("missing {what}: set it, or use environment()");
        let me = self.rank.ok_or_else(|| need("rank"))?;
        let world = self.world.ok_or_else(|| need("world size"))?;
        if world == 0 || world > WORLD_MAX || me >= world {
            return Err(invalid!(
                "invalid rank {me} of {world}: the world size must be 1 to {WORLD_MAX}, and the rank less than it"
            ));
        }
        if world > 1 && self.bootstrap.is_none() {
            return Err(need("bootstrap"));
        }
        if self.timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(invalid!("invalid timeout 0: must be longer"));
        }
        if self.name.len() > NAME_BYTES_MAX {
            return Err(invalid!(
                "invalid group name: {} bytes, at most {NAME_BYTES_MAX} are supported",
                self.name.len()
            ));
        }
        Ok(RankContext { me, world, reproducible, integrity })
    }
}

fn bootstrap_timeout(settings: &Settings) -> Duration {
    settings.time(&table::BOOTSTRAP_TIMEOUT).unwrap_or(limits::BOOTSTRAP_MAX)
}

fn operation_timeout(settings: &Settings) -> Duration {
    settings.time(&table::OPERATION_TIMEOUT).unwrap_or(limits::OPERATION_MAX)
}

/// Waits until this rank has links to all others.
fn link(core: &Core, cancel: &CancelCheck, until: Instant) -> Result<(), Error> {
    let call = core.engine.with_waiter(GroupDriver::link)?;
    loop {
        let now = Instant::now();
        if let Some(ended) = core.engine.wait_until(call, Some(until.min(now + cancel.interval()))) {
            return ended.result;
        }
        let cancelled = cancel.check().err();
        if now >= until || cancelled.is_some() {
            core.engine.with(GroupDriver::give_up_linking)?;
            let ended = core.engine.wait(call);
            return cancelled.map_or(ended.result, Err);
        }
    }
}

/// Fails unless the links with all other ranks are of shared memory.
fn check_shared_links(core: &Core) -> Result<(), Error> {
    let (shared, others) = (core.engine.with(|driver| driver.shared_links())?, core.context.world - 1);
    if shared == others {
        return Ok(());
    }
    let why = format!("the ranks can't share memory: only {shared} of {others} links of this rank do");
    Err(Error::BootstrapFailed(why))
}
