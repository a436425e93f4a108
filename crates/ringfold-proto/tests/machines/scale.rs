//! Many peers: what an event costs, in messages and bytes, and that a thousand peers work.

use super::test_run::{ms, sum_of};
use ringfold_proto::frame::encode_control;
use ringfold_proto::id::{ConnId, GroupId, PeerId, Tag};
use ringfold_proto::master::{Master, MasterAction, MasterConfig};
use ringfold_proto::message::{Join, ToPeer};
use ringfold_proto::peer::{Completion, Failure, Peer, PeerAction, PeerConfig};
use ringfold_proto::time::Time;
use ringfold_proto::timing::Timing;
use ringfold_proto::tuning::Tuning;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What an event costs.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Cost {
    messages_up: usize,
    messages_down: usize,
    bytes_up: usize,
    bytes_down: usize,
}

/// A master and peers without data: links are up at once, and operations are done when they start.
struct Crowd {
    now: Time,
    master: Master,
    peers: BTreeMap<PeerId, Peer>,
    /// Peers that may have something to do.
    awake: VecDeque<PeerId>,
    dead: BTreeSet<PeerId>,
    /// Whether operations are never done.
    is_slow: bool,
    /// Whether the bytes of messages are counted, which takes a while.
    counts_bytes: bool,
    created: u64,
    cost: Cost,
    completed: Vec<Result<Completion, Failure>>,
}

impl Crowd {
    fn new(count: usize) -> Self {
        let config = MasterConfig {
            peers_max: ringfold_proto::limits::WORLD_MAX,
            timing: Timing::default(),
            recovery: Default::default(),
            tuning: Tuning::default(),
            appraise: |_, _, _, _| 0,
            relays: Vec::new(),
            signer: Default::default(),
            seed: [7; 32],
        };
        let mut crowd = Self {
            now: Time(1_000_000_000),
            master: Master::new(config),
            peers: BTreeMap::new(),
            awake: VecDeque::new(),
            dead: BTreeSet::new(),
            is_slow: false,
            counts_bytes: false,
            created: 0,
            cost: Cost::default(),
            completed: Vec::new(),
        };
        for _ in 0..count {
            crowd.connect();
        }
        crowd.update_topology();
        assert_eq!(crowd.worlds(), BTreeSet::from([count]));
        crowd
    }

    fn connect(&mut self) {
        self.created += 1;
        // Ids are in no order.
        let peer = PeerId(u128::from(self.created.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63));
        let join = Join {
            group: GroupId(0),
            name: format!("peer-{:06}", self.created),
            host: 1 << 60 | self.created,
            site: 0,
            cores: Default::default(),
            addresses: vec![([127, 0, 0, 1], 9).into()],
            relays: false,
        };
        let mut machine = Peer::new(PeerConfig { peer, join, replica: None, timing: Timing::default() });
        machine.connect(self.now, None).expect("a new peer connects");
        self.peers.insert(peer, machine);
        self.awake.push_back(peer);
        self.settle();
    }

    /// Members call it together.
    fn call(&mut self, call: impl Fn(&mut Peer, Time)) -> Cost {
        (self.cost, self.completed) = (Cost::default(), Vec::new());
        let now = self.now;
        for (id, peer) in self.peers.iter_mut().filter(|(_, peer)| peer.is_member()) {
            call(peer, now);
            self.awake.push_back(*id);
        }
        self.settle();
        self.cost
    }

    fn update_topology(&mut self) -> Cost {
        self.call(|peer, now| _ = peer.update_topology(now, None).expect("a member may vote"))
    }

    fn vote(&mut self) -> Cost {
        self.call(|peer, now| _ = peer.are_peers_pending(now, None).expect("a member may vote"))
    }

    fn reduce(&mut self) -> Cost {
        self.call(|peer, now| _ = peer.collective(now, Tag(1), sum_of(1)).expect("a member may reduce"))
    }

    fn join(&mut self) -> Cost {
        self.connect();
        self.update_topology()
    }

    /// Peers die together while all are in an operation, and their neighbours notice it.
    fn lose(&mut self, victims: &[PeerId]) -> Cost {
        self.is_slow = true;
        self.reduce();
        self.is_slow = false;
        (self.cost, self.completed) = (Cost::default(), Vec::new());
        self.dead.extend(victims);
        let mut neighbours = Vec::new();
        for victim in victims {
            let epoch = self.peers[victim].epoch().expect("an epoch is open");
            let found = epoch.neighbours(epoch.rank_of(*victim).expect("it is a member"));
            neighbours.extend(found.into_iter().map(|member| (member.peer, *victim)));
        }
        for victim in victims {
            self.peers.remove(victim);
            self.master.handle_lost(self.now, conn(*victim));
        }
        for (neighbour, victim) in neighbours {
            if let Some(peer) = self.peers.get_mut(&neighbour) {
                peer.handle_link_lost(self.now, victim);
                self.awake.push_back(neighbour);
            }
        }
        self.settle();
        self.cost
    }

    /// Passes the time, for suspects without witnesses.
    fn pass(&mut self, duration: core::time::Duration) {
        let until = self.now + duration;
        while let Some(next) = self.master.poll_timeout().filter(|at| *at <= until) {
            self.now = self.now.max(next);
            self.master.handle_timeout(self.now);
            self.settle();
        }
        self.now = until;
    }

    fn worlds(&self) -> BTreeSet<usize> {
        self.peers.values().map(|peer| peer.epoch().map_or(0, |epoch| epoch.members.len())).collect()
    }

    fn settle(&mut self) {
        loop {
            while let Some(action) = self.master.poll_action() {
                self.act_master(action);
            }
            let Some(id) = self.awake.pop_front() else { return };
            let Some(mut peer) = self.peers.remove(&id) else { continue };
            while let Some(action) = peer.poll_action() {
                self.act_peer(id, &mut peer, action);
            }
            self.peers.insert(id, peer);
        }
    }

    fn act_master(&mut self, action: MasterAction) {
        let MasterAction::Send { conn, message } = action else { return };
        let id = PeerId(u128::from(conn.0));
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if message.message != ToPeer::Heartbeat {
            self.cost.messages_down += 1;
            if self.counts_bytes {
                self.cost.bytes_down += encode_control(&*message).expect("within the limits").len();
            }
        }
        peer.handle_message(self.now, conn, *message);
        self.awake.push_back(id);
    }

    fn act_peer(&mut self, id: PeerId, peer: &mut Peer, action: PeerAction) {
        match action {
            PeerAction::DialMaster => {
                self.master.handle_connected(self.now, conn(id), id);
                peer.handle_connected(self.now, conn(id));
            }
            PeerAction::Send { conn, message } => {
                self.cost.messages_up += 1;
                self.cost.bytes_up += encode_control(&*message).expect("within the limits").len();
                self.master.handle_message(self.now, conn, *message);
            }
            PeerAction::Link { member, .. } if !self.dead.contains(&member.peer) => {
                peer.handle_link_up(member.peer);
            }
            PeerAction::StartOp { op, .. } if !self.is_slow => peer.handle_op_done(op, None),
            PeerAction::CommitOp(op) | PeerAction::AbortOp(op) => peer.handle_op_released(op),
            PeerAction::Complete { result, .. } => self.completed.push(result),
            _ => {}
        }
    }
}

fn conn(peer: PeerId) -> ConnId {
    ConnId(peer.0 as u64)
}

#[test]
fn an_event_costs_each_peer_as_many_messages_in_a_larger_world_and_no_more_than_linear_bytes() {
    let costs = |world: usize| {
        let mut crowd = Crowd::new(world);
        crowd.counts_bytes = true;
        let victim = *crowd.peers.keys().nth(world / 2).expect("there are peers");
        let (vote, reduce) = (crowd.vote(), crowd.reduce());
        // Numbers of messages grow by a byte now and then.
        [vote, reduce, crowd.lose(&[victim]), crowd.join()]
    };
    // World sizes take as many bytes in both.
    let (small, large) = (costs(150), costs(300));
    for (event, (one, two)) in ["vote", "commit", "loss", "join"].iter().zip(small.iter().zip(&large)) {
        let per_peer = |messages: usize, world: usize| messages.div_ceil(world);
        assert_eq!(
            per_peer(one.messages_up, 149),
            per_peer(two.messages_up, 299),
            "{event}: {one:?} {two:?}"
        );
        assert_eq!(
            per_peer(one.messages_down, 149),
            per_peer(two.messages_down, 299),
            "{event}: {one:?} {two:?}"
        );
        assert!(two.bytes_up <= one.bytes_up * 22 / 10, "{event}: {one:?} {two:?}");
        // Only a new epoch names all members to each of them.
        let growth = if matches!(*event, "loss" | "join") { 44 } else { 22 };
        assert!(two.bytes_down <= one.bytes_down * growth / 10, "{event}: {one:?} {two:?}");
    }
}

#[test]
fn hundreds_of_peers_vote_reduce_join_and_survive_the_loss_of_each_tenth() {
    // Without optimisation a thousand take minutes.
    let world = if cfg!(debug_assertions) { 300 } else { 1000 };
    let mut crowd = Crowd::new(world - 1);
    crowd.join();
    assert_eq!(crowd.worlds(), BTreeSet::from([world]));
    crowd.vote();
    assert_eq!(crowd.completed, vec![Ok(Completion::Pending(false)); world]);
    crowd.reduce();
    assert_eq!(crowd.completed, vec![Ok(Completion::Reduced { world: world as u32 }); world]);
    // All of them have neighbours that live.
    let epoch = crowd.peers.values().next().and_then(Peer::epoch).expect("an epoch is open");
    let victims: Vec<_> = epoch.members.iter().skip(5).step_by(10).map(|member| member.peer).collect();
    crowd.lose(&victims);
    let left = world - victims.len();
    assert_eq!(crowd.completed.len(), left);
    assert!(crowd.completed.iter().all(|result| matches!(result, Err(Failure::Aborted(_)))));
    assert_eq!(crowd.worlds(), BTreeSet::from([left]));
    crowd.reduce();
    assert_eq!(crowd.completed, vec![Ok(Completion::Reduced { world: left as u32 }); left]);
    // The heartbeats of the master are due, and nobody is silent yet.
    crowd.pass(ms(1000));
    assert_eq!(crowd.master.accepted().len(), left);
}
