//! A run under the control of a test: one master, some peers, and connections that tests hold, cut and break.
//!
//! Time passes only in [`TestRun::advance_time`]; [`TestRun::settle`] delivers all messages.

mod delivery;
mod test_peer;

pub use test_peer::{OpState, PeerIndex, ProbeRequest, TestPeer};

use super::signing::signer;
use delivery::ControlConnection;
use ringfold_proto::cause::{Cause, Departure, PeerName, Removal};
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::dtype::DType;
use ringfold_proto::epoch::EpochDescription;
use ringfold_proto::event::Event;
use ringfold_proto::id::{CallId, ConnId, GroupId, OpId, PeerId, ReplicaId, Tag};
use ringfold_proto::master::{Master, MasterConfig, TourRequest, TourSolution};
use ringfold_proto::message::{Join, Replica, Resume, ToPeer};
use ringfold_proto::peer::{Completion, Failure, Peer, PeerConfig};
use ringfold_proto::recovery::RecoverySettings;
use ringfold_proto::reduce_op::ReduceOp;
use ringfold_proto::time::Time;
use ringfold_proto::timing::Timing;
use ringfold_proto::tuning::Tuning;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Far from the origin, so that zero is not mistaken for the current time.
const BEGIN: Time = Time(1_000_000_000_000_000);

/// The relay of the master's configuration.
pub const RELAY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9)), 48149);

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// An all-reduce of floats.
pub fn sum_of(count: u64) -> Descriptor {
    Descriptor::all_reduce(count, DType::F32, ReduceOp::Sum)
}

pub struct TestRun {
    pub now: Time,
    pub timing: Timing,
    /// For masters that start later.
    pub recovery: RecoverySettings,
    /// None while it is down.
    pub master: Option<Master>,
    pub peers: Vec<TestPeer>,
    /// The events of all masters.
    pub events: Vec<Event>,
    /// Requests to the solver that no test has taken.
    pub tour_requests: VecDeque<TourRequest>,
    /// Whether requests with unreachable pairs are solved automatically.
    pub solves: bool,
    /// Messages to raw connections.
    pub replies: BTreeMap<ConnId, Vec<ToPeer>>,
    /// What peers last returned with.
    pub resumes: BTreeMap<PeerIndex, Resume>,
    /// Peers whose claims no master believes.
    pub distrusted: BTreeSet<PeerIndex>,
    incarnations: u8,
    next_conn: u64,
    connections: BTreeMap<ConnId, ControlConnection>,
    cuts: BTreeSet<(PeerIndex, PeerIndex)>,
    slow: BTreeSet<(PeerIndex, PeerIndex)>,
    linked: BTreeSet<(PeerIndex, PeerIndex)>,
}

impl TestRun {
    /// A master without peers.
    pub fn new() -> Self {
        Self::with_recovery(RecoverySettings::default())
    }

    /// The same with these settings.
    pub fn with_recovery(recovery: RecoverySettings) -> Self {
        let mut run = Self {
            now: BEGIN,
            timing: Timing::default(),
            recovery,
            master: None,
            peers: Vec::new(),
            events: Vec::new(),
            tour_requests: VecDeque::new(),
            solves: true,
            replies: BTreeMap::new(),
            resumes: BTreeMap::new(),
            distrusted: BTreeSet::new(),
            incarnations: 0,
            next_conn: 0,
            connections: BTreeMap::new(),
            cuts: BTreeSet::new(),
            slow: BTreeSet::new(),
            linked: BTreeSet::new(),
        };
        run.start_master();
        run
    }

    /// A run of N members of one group.
    pub fn with_members<const N: usize>() -> (Self, [PeerIndex; N]) {
        Self::new().connect_members()
    }

    /// Lets N members of one group join.
    pub fn connect_members<const N: usize>(self) -> (Self, [PeerIndex; N]) {
        let mut run = self;
        let who = core::array::from_fn(|i| run.connect_peer(["ann", "bob", "cid", "dan", "eve"][i], 0));
        run.settle();
        if N > 1 {
            run.admit_all();
        }
        (run, who)
    }

    /// A peer that has not connected, on a host of its own.
    pub fn new_peer(&mut self, name: &str, group: u32) -> PeerIndex {
        self.new_peer_on(name, group, self.peers.len() as u64 + 100)
    }

    fn new_peer_on(&mut self, name: &str, group: u32, host: u64) -> PeerIndex {
        self.add_peer(name, group, host, None)
    }

    fn add_peer(&mut self, name: &str, group: u32, host: u64, replica: Option<Replica>) -> PeerIndex {
        let who = PeerIndex(self.peers.len());
        let join = Join {
            group: GroupId(group),
            name: name.to_owned(),
            host,
            site: 0,
            cores: Default::default(),
            addresses: vec![([127, 0, 0, 1], 1000 + who.0 as u16).into()],
            relays: name.starts_with("volunteer"),
        };
        let peer =
            Peer::new(PeerConfig { peer: PeerId(who.0 as u128 + 1), join, replica, timing: self.timing });
        self.peers.push(TestPeer::new(peer, name));
        who
    }

    /// A new peer calls connect.
    pub fn connect_peer(&mut self, name: &str, group: u32) -> PeerIndex {
        let host = self.peers.len() as u64 + 100;
        self.connect_peer_on(name, group, host)
    }

    /// The same on a host that other peers may share.
    pub fn connect_peer_on(&mut self, name: &str, group: u32, host: u64) -> PeerIndex {
        let who = self.new_peer_on(name, group, host);
        self.connect(who)
    }

    /// A rank of a replica calls connect.
    pub fn connect_rank(&mut self, name: &str, group: u32, id: u128, ranks: u32) -> PeerIndex {
        let who = self.new_rank(name, group, id, ranks);
        self.connect(who)
    }

    /// The same, and nothing that the master says reaches it.
    pub fn connect_rank_unheard(&mut self, name: &str, group: u32, id: u128, ranks: u32) -> PeerIndex {
        let who = self.new_rank(name, group, id, ranks);
        self.hold_down(who);
        self.connect(who)
    }

    fn new_rank(&mut self, name: &str, group: u32, id: u128, ranks: u32) -> PeerIndex {
        let host = self.peers.len() as u64 + 100;
        self.add_peer(name, group, host, Some(Replica { id: ReplicaId(id), ranks }))
    }

    fn connect(&mut self, who: PeerIndex) -> PeerIndex {
        let now = self.now;
        let call = self.peer(who).connect(now, None).expect("a fresh communicator connects");
        self.peers[who.0].connecting = Some(call);
        self.settle();
        who
    }

    /// All members update the topology.
    pub fn admit_all(&mut self) {
        let calls = self.update_topology_everywhere();
        for (who, call) in calls {
            assert_eq!(self.result(who, call), Some(&Ok(Completion::Topology)), "{}", self.name(who));
        }
    }

    pub fn update_topology_everywhere(&mut self) -> Vec<(PeerIndex, CallId)> {
        let members: Vec<_> = self.members();
        let calls = members.into_iter().map(|who| (who, self.update_topology(who))).collect();
        self.settle();
        calls
    }

    /// The living peers that are members, as far as they know.
    pub fn members(&self) -> Vec<PeerIndex> {
        let member = |w: &PeerIndex| self.peers[w.0].alive && self.peers[w.0].peer.is_member();
        (0..self.peers.len()).map(PeerIndex).filter(member).collect()
    }

    pub fn update_topology(&mut self, who: PeerIndex) -> CallId {
        let now = self.now;
        self.peer(who).update_topology(now, None).expect("update_topology may be called")
    }

    pub fn ask_pending(&mut self, who: PeerIndex) -> CallId {
        let now = self.now;
        self.peer(who).are_peers_pending(now, None).expect("are_peers_pending may be called")
    }

    pub fn optimise(&mut self, who: PeerIndex) -> CallId {
        let now = self.now;
        self.peer(who).optimize_topology(now, None).expect("optimize_topology may be called")
    }

    /// A peer starts an all-reduce. The master does not know of it yet.
    pub fn reduce(&mut self, who: PeerIndex, tag: u64) -> CallId {
        self.collective(who, tag, sum_of(100)).expect("a collective may be called")
    }

    pub fn collective(
        &mut self,
        who: PeerIndex,
        tag: u64,
        descriptor: Descriptor,
    ) -> Result<CallId, Failure> {
        let now = self.now;
        let call = self.peer(who).collective(now, Tag(tag), descriptor);
        self.settle();
        call
    }

    /// These peers start an all-reduce.
    pub fn reduce_all(&mut self, who: &[PeerIndex], tag: u64) -> Vec<CallId> {
        who.iter().map(|w| self.reduce(*w, tag)).collect()
    }

    /// The executor of a peer has the result of its running operation of this tag.
    pub fn done(&mut self, who: PeerIndex, tag: u64) {
        self.done_with(who, tag, None);
    }

    /// The same, with a digest of the result.
    pub fn done_with(&mut self, who: PeerIndex, tag: u64, digest: Option<u64>) {
        let op = self.running(who, tag).unwrap_or_else(|| panic!("{} runs no tag {tag}", self.name(who)));
        self.peer(who).handle_op_done(op, digest);
        self.settle();
    }

    /// The running operation of a tag on a peer.
    pub fn running(&self, who: PeerIndex, tag: u64) -> Option<OpId> {
        let ops = self.peers[who.0].ops.iter();
        ops.filter(|(op, s)| op.tag == Tag(tag) && **s == OpState::Running).map(|(op, _)| *op).next()
    }

    /// An all-reduce of these peers that must succeed.
    pub fn reduce_successfully(&mut self, who: &[PeerIndex], tag: u64) {
        let calls = self.reduce_all(who, tag);
        who.iter().for_each(|w| self.done(*w, tag));
        for (w, call) in who.iter().zip(calls) {
            let world = who.len() as u32;
            assert_eq!(self.result(*w, call), Some(&Ok(Completion::Reduced { world })), "{}", self.name(*w));
        }
    }

    /// Checks that a collective fails because the member is alone.
    pub fn reduce_alone_fails(&mut self, who: PeerIndex) {
        assert_eq!(self.collective(who, 1, sum_of(1)), Err(Failure::TooFewPeers));
        assert_eq!(self.world(who), 1);
    }

    pub fn result(&self, who: PeerIndex, call: CallId) -> Option<&Result<Completion, Failure>> {
        self.peers[who.0].results.get(&call)
    }

    pub fn is_waiting(&self, who: PeerIndex, call: CallId) -> bool {
        self.result(who, call).is_none()
    }

    /// The failure of a call.
    #[track_caller]
    pub fn failure(&self, who: PeerIndex, call: CallId) -> &Failure {
        match self.result(who, call) {
            Some(Err(failure)) => failure,
            other => panic!("{}'s call has not failed: {other:?}", self.name(who)),
        }
    }

    /// The cause of an aborted collective.
    #[track_caller]
    pub fn abort_cause(&self, who: PeerIndex, call: CallId) -> &Cause {
        match self.failure(who, call) {
            Failure::Aborted(cause) => cause,
            other => panic!("{}'s call was not aborted: {other:?}", self.name(who)),
        }
    }

    /// The cause of a failed vote.
    #[track_caller]
    pub fn vote_cause(&self, who: PeerIndex, call: CallId) -> &Cause {
        match self.failure(who, call) {
            Failure::VoteFailed(cause) => cause,
            other => panic!("{}'s vote has not failed: {other:?}", self.name(who)),
        }
    }

    /// Whether connect has succeeded.
    pub fn is_connected(&self, who: PeerIndex) -> bool {
        let test_peer = &self.peers[who.0];
        test_peer.connecting.and_then(|c| test_peer.results.get(&c)) == Some(&Ok(Completion::Connected))
    }

    /// Why this peer is not part of the run.
    #[track_caller]
    pub fn removal(&mut self, who: PeerIndex) -> Departure {
        let now = self.now;
        match self.peer(who).are_peers_pending(now, None) {
            Err(Failure::Removed(Removal::Departed(how))) => how,
            other => panic!("{} was not removed: {other:?}", self.name(who)),
        }
    }

    pub fn epoch(&self, who: PeerIndex) -> &EpochDescription {
        let epoch = self.peers[who.0].peer.epoch();
        epoch.unwrap_or_else(|| panic!("{} has no open epoch", self.name(who)))
    }

    /// The ring of a peer's epoch.
    pub fn ring(&self, who: PeerIndex) -> Vec<PeerIndex> {
        let epoch = self.epoch(who);
        epoch.ring.iter().map(|rank| self.who(epoch.members[rank.index()].peer)).collect()
    }

    /// Whether two peers are neighbours on the ring of the first one's epoch.
    pub fn are_neighbours(&self, a: PeerIndex, b: PeerIndex) -> bool {
        let epoch = self.epoch(a);
        let ranks = (epoch.rank_of(self.id(a)), epoch.rank_of(self.id(b)));
        matches!(ranks, (Some(a), Some(b)) if epoch.are_ring_neighbours(a, b))
    }

    pub fn world(&self, who: PeerIndex) -> u32 {
        self.peers[who.0].peer.attributes().group_world
    }

    pub fn global_world(&self, who: PeerIndex) -> u32 {
        self.peers[who.0].peer.attributes().global_world
    }

    pub fn peer(&mut self, who: PeerIndex) -> &mut Peer {
        &mut self.peers[who.0].peer
    }

    pub fn id(&self, who: PeerIndex) -> PeerId {
        self.peers[who.0].peer.id()
    }

    pub fn who(&self, peer: PeerId) -> PeerIndex {
        self.find(peer).expect("a peer of this run")
    }

    /// `None` for a raw connection.
    pub fn find(&self, peer: PeerId) -> Option<PeerIndex> {
        self.peers.iter().position(|a| a.peer.id() == peer).map(PeerIndex)
    }

    pub fn name(&self, who: PeerIndex) -> &str {
        &self.peers[who.0].name
    }

    pub fn named(&self, who: PeerIndex) -> PeerName {
        PeerName { peer: self.id(who), name: self.name(who).to_owned() }
    }

    pub fn master(&mut self) -> &mut Master {
        self.master.as_mut().expect("the master is up")
    }

    /// Whether a peer is a member at the master.
    pub fn is_accepted(&self, who: PeerIndex) -> bool {
        self.master.as_ref().is_some_and(|m| m.accepted().contains(&self.id(who)))
    }

    pub fn start_master(&mut self) {
        assert!(self.master.is_none());
        self.incarnations += 1;
        let config = MasterConfig {
            peers_max: ringfold_proto::limits::WORLD_MAX,
            timing: self.timing,
            recovery: self.recovery,
            tuning: Tuning::default(),
            appraise: |_, _, _, _| 100,
            relays: vec![RELAY],
            signer: signer(PeerId(u128::from(self.incarnations))),
            seed: [self.incarnations; 32],
        };
        self.master = Some(Master::new(config));
    }

    /// Answers the oldest request to the solver.
    pub fn answer_tour(&mut self, order: &[PeerIndex], left_out: &[PeerIndex]) -> u64 {
        let request = self.tour_requests.pop_front().expect("a ring was requested");
        self.pass_tour(request.id, order, left_out);
        request.id
    }

    pub fn pass_tour(&mut self, ticket: u64, order: &[PeerIndex], left_out: &[PeerIndex]) {
        let ids = |who: &[PeerIndex]| who.iter().map(|w| self.id(*w)).collect();
        let answer = TourSolution { order: ids(order), left_out: ids(left_out) };
        let now = self.now;
        self.master().handle_tour(now, ticket, answer);
        self.settle();
    }

    pub fn departures(&self) -> Vec<String> {
        let departed = |e: &Event| match e {
            Event::Departed(who, how) => Some(format!("{who} {how}")),
            _ => None,
        };
        self.events.iter().filter_map(departed).collect()
    }
}
