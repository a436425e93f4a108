//! A small stage: one master, some peers, and lines between them that tests hold, cut and break.
//!
//! Nothing takes time unless a test says so: [`Stage::settle`] carries everything that was said to its
//! end, [`Stage::pass`] lets time go by from one timeout to the next.

mod crew;
mod wires;

pub use crew::{Actor, OpState, ProbeAsked, Who};

use ringfold_proto::cause::{Cause, Departure, PeerName, Removal};
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::dtype::DType;
use ringfold_proto::epoch::EpochDescription;
use ringfold_proto::event::Event;
use ringfold_proto::id::{CallId, ConnId, GroupId, OpId, PeerId, Tag};
use ringfold_proto::master::{Master, MasterConfig, TourRequest, TourSolution};
use ringfold_proto::message::{Join, ToPeer};
use ringfold_proto::peer::{Completion, Failure, Peer, PeerConfig};
use ringfold_proto::reduce_op::ReduceOp;
use ringfold_proto::time::Time;
use ringfold_proto::timing::Timing;
use ringfold_proto::tuning::Tuning;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use wires::Wire;

/// Far from the origin, so that nobody can take "zero" for "now".
const BEGIN: Time = Time(1_000_000_000_000_000);

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// An all-reduce of so many floats.
pub fn sum_of(count: u64) -> Descriptor {
    Descriptor::all_reduce(count, DType::F32, ReduceOp::Sum)
}

pub struct Stage {
    pub now: Time,
    pub timing: Timing,
    /// None while it is down.
    pub master: Option<Master>,
    pub actors: Vec<Actor>,
    /// What the masters decided, in all their lives.
    pub events: Vec<Event>,
    /// Rings that a solver was asked for and that no test has taken out.
    pub questions: VecDeque<TourRequest>,
    /// Whether the stage answers for a solver that can avoid edges.
    pub solves: bool,
    /// What strangers were told.
    pub told: BTreeMap<ConnId, Vec<ToPeer>>,
    lives: u8,
    next_conn: u64,
    wires: BTreeMap<ConnId, Wire>,
    apart: BTreeSet<(Who, Who)>,
    slow: BTreeSet<(Who, Who)>,
    linked: BTreeSet<(Who, Who)>,
}

impl Stage {
    /// A master and nobody else.
    pub fn new() -> Self {
        let mut stage = Self {
            now: BEGIN,
            timing: Timing::default(),
            master: None,
            actors: Vec::new(),
            events: Vec::new(),
            questions: VecDeque::new(),
            solves: true,
            told: BTreeMap::new(),
            lives: 0,
            next_conn: 0,
            wires: BTreeMap::new(),
            apart: BTreeSet::new(),
            slow: BTreeSet::new(),
            linked: BTreeSet::new(),
        };
        stage.start_master();
        stage
    }

    /// A run of so many members of one group, all connected.
    pub fn with_members<const N: usize>() -> (Self, [Who; N]) {
        let mut stage = Self::new();
        let who = core::array::from_fn(|i| stage.come(["ann", "bob", "cid", "dan", "eve"][i], 0));
        stage.settle();
        if N > 1 {
            stage.admit_all();
        }
        (stage, who)
    }

    /// A peer that has not connected, on a host of its own.
    pub fn newcomer(&mut self, name: &str, group: u32) -> Who {
        self.newcomer_from(name, group, self.actors.len() as u64 + 100)
    }

    fn newcomer_from(&mut self, name: &str, group: u32, host: u64) -> Who {
        let who = Who(self.actors.len());
        let join = Join {
            group: GroupId(group),
            name: name.to_owned(),
            host,
            site: 0,
            addresses: vec![([127, 0, 0, 1], 1000 + who.0 as u16).into()],
        };
        let peer = Peer::new(PeerConfig { peer: PeerId(who.0 as u128 + 1), join, timing: self.timing });
        self.actors.push(Actor::new(peer, name));
        who
    }

    /// A peer calls connect.
    pub fn come(&mut self, name: &str, group: u32) -> Who {
        let host = self.actors.len() as u64 + 100;
        self.come_from(name, group, host)
    }

    /// The same, from a host that others may be on too.
    pub fn come_from(&mut self, name: &str, group: u32, host: u64) -> Who {
        let who = self.newcomer_from(name, group, host);
        let now = self.now;
        let call = self.peer(who).connect(now, None).expect("a fresh communicator connects");
        self.actors[who.0].connecting = Some(call);
        self.settle();
        who
    }

    /// All members update the topology until nobody is pending.
    pub fn admit_all(&mut self) {
        let calls = self.update_topology_everywhere();
        for (who, call) in calls {
            assert_eq!(self.result(who, call), Some(&Ok(Completion::Topology)), "{}", self.name(who));
        }
    }

    pub fn update_topology_everywhere(&mut self) -> Vec<(Who, CallId)> {
        let members: Vec<_> = self.members();
        let calls = members.into_iter().map(|who| (who, self.update_topology(who))).collect();
        self.settle();
        calls
    }

    /// Everyone alive who is a member, as far as it knows.
    pub fn members(&self) -> Vec<Who> {
        let member = |w: &Who| self.actors[w.0].alive && self.actors[w.0].peer.is_member();
        (0..self.actors.len()).map(Who).filter(member).collect()
    }

    pub fn update_topology(&mut self, who: Who) -> CallId {
        let now = self.now;
        self.peer(who).update_topology(now, None).expect("update_topology may be called")
    }

    pub fn ask_pending(&mut self, who: Who) -> CallId {
        let now = self.now;
        self.peer(who).are_peers_pending(now, None).expect("are_peers_pending may be called")
    }

    pub fn optimise(&mut self, who: Who) -> CallId {
        let now = self.now;
        self.peer(who).optimize_topology(now, None).expect("optimize_topology may be called")
    }

    /// A peer starts an all-reduce; its executor is given it, but nobody is told of it yet.
    pub fn reduce(&mut self, who: Who, tag: u64) -> CallId {
        self.collective(who, tag, sum_of(100)).expect("a collective may be called")
    }

    pub fn collective(&mut self, who: Who, tag: u64, descriptor: Descriptor) -> Result<CallId, Failure> {
        let now = self.now;
        let call = self.peer(who).collective(now, Tag(tag), descriptor);
        self.settle();
        call
    }

    /// All of them start an all-reduce.
    pub fn reduce_all(&mut self, who: &[Who], tag: u64) -> Vec<CallId> {
        who.iter().map(|w| self.reduce(*w, tag)).collect()
    }

    /// The executor of a peer has the result of its running operation of this tag.
    pub fn done(&mut self, who: Who, tag: u64) {
        let op = self.running(who, tag).unwrap_or_else(|| panic!("{} runs no tag {tag}", self.name(who)));
        self.peer(who).handle_op_done(op);
        self.settle();
    }

    /// The operation of a tag that a peer's executor is at.
    pub fn running(&self, who: Who, tag: u64) -> Option<OpId> {
        let ops = self.actors[who.0].ops.iter();
        ops.filter(|(op, s)| op.tag == Tag(tag) && **s == OpState::Running).map(|(op, _)| *op).next()
    }

    /// An all-reduce that everyone starts and does; it must succeed everywhere.
    pub fn reduce_successfully(&mut self, who: &[Who], tag: u64) {
        let calls = self.reduce_all(who, tag);
        who.iter().for_each(|w| self.done(*w, tag));
        for (w, call) in who.iter().zip(calls) {
            let world = who.len() as u32;
            assert_eq!(self.result(*w, call), Some(&Ok(Completion::Reduced { world })), "{}", self.name(*w));
        }
    }

    /// A member is alone, and learns it from a collective.
    pub fn reduce_alone_fails(&mut self, who: Who) {
        assert_eq!(self.collective(who, 1, sum_of(1)), Err(Failure::TooFewPeers));
        assert_eq!(self.world(who), 1);
    }

    pub fn result(&self, who: Who, call: CallId) -> Option<&Result<Completion, Failure>> {
        self.actors[who.0].results.get(&call)
    }

    pub fn is_waiting(&self, who: Who, call: CallId) -> bool {
        self.result(who, call).is_none()
    }

    /// The call failed; how.
    #[track_caller]
    pub fn failure(&self, who: Who, call: CallId) -> &Failure {
        match self.result(who, call) {
            Some(Err(failure)) => failure,
            other => panic!("{}'s call has not failed: {other:?}", self.name(who)),
        }
    }

    /// The collective was aborted; why.
    #[track_caller]
    pub fn abort_cause(&self, who: Who, call: CallId) -> &Cause {
        match self.failure(who, call) {
            Failure::Aborted(cause) => cause,
            other => panic!("{}'s call was not aborted: {other:?}", self.name(who)),
        }
    }

    /// The vote failed; why.
    #[track_caller]
    pub fn vote_cause(&self, who: Who, call: CallId) -> &Cause {
        match self.failure(who, call) {
            Failure::VoteFailed(cause) => cause,
            other => panic!("{}'s vote has not failed: {other:?}", self.name(who)),
        }
    }

    /// Whether connect has returned well.
    pub fn is_connected(&self, who: Who) -> bool {
        let actor = &self.actors[who.0];
        actor.connecting.and_then(|c| actor.results.get(&c)) == Some(&Ok(Completion::Connected))
    }

    /// Why connect, or whatever else was called, says that this peer is not part of the run.
    #[track_caller]
    pub fn removal(&mut self, who: Who) -> Departure {
        let now = self.now;
        match self.peer(who).are_peers_pending(now, None) {
            Err(Failure::Removed(Removal::Departed(how))) => how,
            other => panic!("{} was not removed: {other:?}", self.name(who)),
        }
    }

    pub fn epoch(&self, who: Who) -> &EpochDescription {
        let epoch = self.actors[who.0].peer.epoch();
        epoch.unwrap_or_else(|| panic!("{} has no open epoch", self.name(who)))
    }

    /// The ring of a peer's epoch, as whoever stands in it.
    pub fn ring(&self, who: Who) -> Vec<Who> {
        let epoch = self.epoch(who);
        epoch.ring.iter().map(|rank| self.who(epoch.members[rank.index()].peer)).collect()
    }

    /// Whether two stand side by side on the ring of the first one's epoch.
    pub fn are_neighbours(&self, a: Who, b: Who) -> bool {
        let epoch = self.epoch(a);
        let ranks = (epoch.rank_of(self.id(a)), epoch.rank_of(self.id(b)));
        matches!(ranks, (Some(a), Some(b)) if epoch.are_ring_neighbours(a, b))
    }

    pub fn world(&self, who: Who) -> u32 {
        self.actors[who.0].peer.attributes().group_world
    }

    pub fn global_world(&self, who: Who) -> u32 {
        self.actors[who.0].peer.attributes().global_world
    }

    pub fn peer(&mut self, who: Who) -> &mut Peer {
        &mut self.actors[who.0].peer
    }

    pub fn id(&self, who: Who) -> PeerId {
        self.actors[who.0].peer.id()
    }

    pub fn who(&self, peer: PeerId) -> Who {
        self.find(peer).expect("a peer of this stage")
    }

    /// None for a stranger.
    pub fn find(&self, peer: PeerId) -> Option<Who> {
        self.actors.iter().position(|a| a.peer.id() == peer).map(Who)
    }

    pub fn name(&self, who: Who) -> &str {
        &self.actors[who.0].name
    }

    pub fn named(&self, who: Who) -> PeerName {
        PeerName { peer: self.id(who), name: self.name(who).to_owned() }
    }

    pub fn master(&mut self) -> &mut Master {
        self.master.as_mut().expect("the master is up")
    }

    /// Whether the master still knows a peer as a member.
    pub fn is_accepted(&self, who: Who) -> bool {
        self.master.as_ref().is_some_and(|m| m.accepted().contains(&self.id(who)))
    }

    pub fn start_master(&mut self) {
        assert!(self.master.is_none());
        self.lives += 1;
        let config = MasterConfig { timing: self.timing, tuning: Tuning::default(), seed: [self.lives; 32] };
        self.master = Some(Master::new(config));
    }

    /// Brings the solver's answer to the oldest question.
    pub fn answer_tour(&mut self, order: &[Who], left_out: &[Who]) -> u64 {
        let question = self.questions.pop_front().expect("a ring is sought");
        self.bring_tour(question.id, order, left_out);
        question.id
    }

    pub fn bring_tour(&mut self, ticket: u64, order: &[Who], left_out: &[Who]) {
        let ids = |who: &[Who]| who.iter().map(|w| self.id(*w)).collect();
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
