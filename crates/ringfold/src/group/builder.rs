//! How a group of fixed ranks is described before it is formed.

use super::bootstrap::{Arrival, Bootstrap, Doubt, Vigil, meet};
use super::core::Core;
use super::driver::{Alarm, GroupDriver};
use super::environment::Environment;
use super::lane::Lane;
use super::operation::Standing;
use super::{Group, Handle};
use crate::board::Board;
use crate::process_name::process_name;
use crate::{Error, limits};
use core::ops::RangeInclusive;
use parking_lot::Mutex;
use ringfold_fabric::arena::Arena;
use ringfold_fabric::host;
use ringfold_fabric::listener::Listener;
use ringfold_fabric::mesh::Mesh;
use ringfold_fabric::poller::Poller;
use ringfold_fabric::random;
use ringfold_fabric::reactor::Reactor;
use ringfold_fabric::waiter::CancelToken;
use ringfold_proto::epoch::Member;
use ringfold_proto::id::{PeerId, Rank};
use ringfold_proto::limits::{NAME_BYTES_MAX, WORLD_MAX};
use ringfold_proto::tuning::Tuning;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What a group's data may travel through.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Media {
    /// Memory where ranks share a host, TCP elsewhere.
    #[default]
    Auto,
    /// TCP alone.
    Tcp,
    /// Memory alone: it is an error if the ranks can't share it.
    Shared,
}

/// Describes a group. Rank, size and meeting place are needed, or an environment that tells them.
#[derive(Clone, Debug)]
pub struct GroupBuilder {
    rank: Option<usize>,
    world: Option<usize>,
    bootstrap: Option<Bootstrap>,
    name: String,
    token: String,
    media: Media,
    tuning: Tuning,
    timeout: Duration,
    unreachable_after: Option<Duration>,
    patience: Duration,
    streams: u16,
    bind: Option<IpAddr>,
    ports: RangeInclusive<u16>,
    advertised: Vec<SocketAddr>,
    watch: Option<CancelToken>,
    restoring: bool,
}

/// What a group that comes of another one knows besides.
#[derive(Default)]
pub(super) struct Origin {
    /// Why there can be no such group any more.
    pub(super) doubt: Option<Doubt>,
    /// Where rank 0's host is known to be found.
    pub(super) known_hosts: Vec<IpAddr>,
}

impl GroupBuilder {
    pub(super) fn new() -> Self {
        Self {
            rank: None,
            world: None,
            bootstrap: None,
            name: String::new(),
            token: String::new(),
            media: Media::Auto,
            tuning: Tuning::default(),
            timeout: limits::OPERATION_MAX,
            unreachable_after: None,
            patience: limits::MEETING_MAX,
            streams: 4,
            bind: None,
            ports: 0..=0,
            advertised: Vec::new(),
            watch: None,
            restoring: false,
        }
    }

    /// Takes rank, size and meeting place from the environment, as torchrun, Open MPI, MPICH and SLURM tell them:
    /// `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT` and the like. `RINGFOLD_BOOTSTRAP` names another meeting
    /// place, `host:port` or `file:` and a path.
    pub fn environment(mut self) -> Result<Self, Error> {
        let found = Environment::read(|name| std::env::var(name).ok())?;
        (self.rank, self.world, self.bootstrap) =
            (Some(found.rank), Some(found.world), Some(found.bootstrap));
        Ok(self)
    }

    /// This process's number, from 0 on.
    pub fn rank(mut self, rank: usize) -> Self {
        self.rank = Some(rank);
        self
    }

    /// How many ranks there are.
    pub fn world(mut self, world: usize) -> Self {
        self.world = Some(world);
        self
    }

    /// Where the ranks meet.
    pub fn bootstrap(mut self, at: Bootstrap) -> Self {
        self.bootstrap = Some(at);
        self
    }

    /// What the group is called. Groups of different names may meet at one place, one after the other.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// A secret that all ranks know: strangers can't take part.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = token.into();
        self
    }

    /// What data may travel through.
    pub fn media(mut self, media: Media) -> Self {
        self.media = media;
        self
    }

    /// What steers plans. Rank 0's is taken by all.
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }

    /// How long an operation may take before the group is given up.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long the host of another rank may acknowledge nothing before it counts as lost: 15 s if nothing is said, or as
    /// many seconds as the environment variable `RINGFOLD_UNREACHABLE_AFTER` says; 3 s at least. Systems answer for
    /// processes that are busy, so no long computation is mistaken for a loss.
    pub fn unreachable_after(mut self, time: Duration) -> Self {
        self.unreachable_after = Some(time);
        self
    }

    /// How long the ranks may take to find each other.
    pub fn connect_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// TCP connections per pair of ranks on different hosts.
    pub fn streams(mut self, streams: u16) -> Self {
        self.streams = streams.max(1);
        self
    }

    /// The local address to listen on; all of them if nothing is said.
    pub fn bind(mut self, address: IpAddr) -> Self {
        self.bind = Some(address);
        self
    }

    /// The first free port of a range is listened on; any free one if nothing is said.
    pub fn listen_ports(mut self, ports: RangeInclusive<u16>) -> Self {
        self.ports = ports;
        self
    }

    /// Where other ranks shall dial, if that is not where rank 0 sees this one come from. May be said several times. Port
    /// 0 stands for the one that is listened on.
    pub fn advertise(mut self, address: SocketAddr) -> Self {
        self.advertised.push(address);
        self
    }

    /// Whether what a failed operation has overwritten in place is put back, and a collective counts only when all ranks
    /// have its result. It costs a copy of what is overwritten, and a barrier. All ranks say the same.
    pub fn restoring(mut self, restoring: bool) -> Self {
        self.restoring = restoring;
        self
    }

    /// Whoever waits asks, every so often, whether it must leave off. Until the ranks have met, the meeting fails with
    /// [`Error::Interrupted`] then; afterwards the group is given up.
    pub fn watch(mut self, every: Duration, must_end: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.watch = Some(CancelToken::new(every, must_end));
        self
    }

    /// Meets the other ranks, and links with all of them.
    pub fn connect(self) -> Result<Group, Error> {
        self.connect_from(Origin::default())
    }

    /// As [`GroupBuilder::connect`], for a group that comes of another one.
    pub(super) fn connect_from(self, origin: Origin) -> Result<Group, Error> {
        let standing = self.standing()?;
        let until = Instant::now() + self.patience.min(limits::OPERATION_MAX * 1000);
        let system = |error: std::io::Error| Error::system("the group can't be formed", &error);
        let poller = Poller::new().map_err(system)?;
        let poller = Arc::new(poller.with_unreachable_after(self.unreachable_after));
        let listener = Listener::bind_in(self.bind, self.ports.clone(), &poller).map_err(|error| {
            Error::Bind(format!("no port of {:?} can be listened on: {error}", self.ports))
        })?;
        let listens = listener.address();
        let peer = PeerId(random::id().map_err(system)?);
        let may_share = self.media != Media::Tcp && host::may_share();
        let host = if may_share { host::host_id() } else { host::nobodys() };
        let addresses = self.addresses(listens.port()).unwrap_or_else(|| vec![listens]);
        let name = member_name(standing.me);
        let member = Member { peer, name, host, site: 0, addresses };
        let me = Rank::from_index(standing.me);
        let at = self.bootstrap.clone().unwrap_or_else(|| Bootstrap::Address(String::new()));
        let arrival = Arrival {
            name: self.name.clone(),
            rank: me,
            world: standing.world,
            member,
            token: self.token.clone(),
            tuning: self.tuning,
            may_share,
            must_share: self.media == Media::Shared && standing.world > 1,
            bind: self.bind,
            known_hosts: origin.known_hosts,
            vigil: Vigil::new(self.watch.clone(), origin.doubt),
            until,
        };
        let met = meet(&at, &arrival)?;
        let mut mesh = Mesh::new(peer, listener, self.streams, until - Instant::now().min(until), &poller);
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
        let members = met.description.members.iter().map(|member| member.name.clone()).collect();
        let driver = GroupDriver::new(mesh, me, met.description, alarm, self.restoring)?;
        let engine = Reactor::start(driver, poller, "ringfold-progress").map_err(system)?;
        let core = Arc::new(Core {
            standing,
            name: self.name.clone(),
            members,
            tuning,
            timeout: Mutex::new(self.timeout),
            engine,
            is_over,
            watch: self.watch.clone(),
            restores: self.restoring,
            spare: Mutex::default(),
            board: arena.and_then(|arena| self.board(arena, me)).map(Mutex::new),
            lane: Lane::default(),
            blueprint: self.blueprint(),
        });
        let group = Group { handle: Arc::new(Handle { core: core.clone() }) };
        if standing.world > 1 {
            link(&core, &arrival.vigil, until)?;
            // Nobody goes on before all have their links. If the group fails in that moment, its first call tells.
            core.meet_on_links(until);
        }
        Ok(group)
    }

    fn board(&self, arena: Arc<Arena>, me: Rank) -> Option<Board> {
        let mut board = Board::new(arena, me)?;
        if let Some(cancel) = self.watch.clone() {
            board.set_cancel(cancel);
        }
        Some(board)
    }

    /// Where other ranks shall dial, if that was said.
    fn addresses(&self, port: u16) -> Option<Vec<SocketAddr>> {
        let named = |address: &SocketAddr| {
            SocketAddr::new(address.ip(), if address.port() == 0 { port } else { address.port() })
        };
        (!self.advertised.is_empty()).then(|| self.advertised.iter().map(named).collect())
    }

    /// What groups that split off inherit. Where this one met is no concern of theirs, and let go of.
    fn blueprint(self) -> Self {
        let any_port = |address: &SocketAddr| SocketAddr::new(address.ip(), 0);
        let advertised = self.advertised.iter().map(any_port).collect();
        Self { bootstrap: None, advertised, ..self }
    }

    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    fn standing(&self) -> Result<Standing, Error> {
        let need = |what: &str| Error::BadArgument(format!("a group needs a {what}"));
        let me = self.rank.ok_or_else(|| need("rank"))?;
        let world = self.world.ok_or_else(|| need("world size"))?;
        if world == 0 || world > WORLD_MAX || me >= world {
            return Err(Error::BadArgument(format!(
                "rank {me} in a world of {world} makes no sense: worlds have 1 to {WORLD_MAX} ranks, from 0 on"
            )));
        }
        if world > 1 && self.bootstrap.is_none() {
            return Err(need("place where its ranks meet"));
        }
        if self.name.len() > NAME_BYTES_MAX {
            return Err(Error::BadArgument(format!("a name has at most {NAME_BYTES_MAX} bytes")));
        }
        Ok(Standing { me, world })
    }
}

/// Waits until this rank has links with all others.
fn link(core: &Core, vigil: &Vigil, until: Instant) -> Result<(), Error> {
    let call = core.engine.with_waiter(GroupDriver::link)?;
    loop {
        let now = Instant::now();
        if let Some(ended) = core.engine.wait_until(call, Some(until.min(now + vigil.tick()))) {
            return ended.result;
        }
        let left_off = vigil.check().err();
        if now >= until || left_off.is_some() {
            core.engine.with(GroupDriver::give_up_linking)?;
            let ended = core.engine.wait(call);
            return left_off.map_or(ended.result, Err);
        }
    }
}

/// What errors call a rank.
fn member_name(rank: usize) -> String {
    let rank = format!("rank {rank}");
    let process = process_name(NAME_BYTES_MAX - rank.len() - " ()".len());
    format!("{rank} ({process})")
}
