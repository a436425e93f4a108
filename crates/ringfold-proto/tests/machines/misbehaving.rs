//! Invalid messages cause no panic, and harm only their sender.

use super::test_run::{PeerIndex, TestRun, secs, sum_of};
use crate::message_generator::MessageGenerator;
use ringfold_proto::bounded::Bounded;
use ringfold_proto::cause::{Cause, Departure, JoinRejection, ProtocolViolation, Removal};
use ringfold_proto::charter::VoterRecord;
use ringfold_proto::epoch::{Attributes, EpochDescription, Member};
use ringfold_proto::event::Event;
use ringfold_proto::id::{
    CallId, ConnId, EpochId, GroupId, Incarnation, OpId, PeerId, Rank, Revision, Seq, Tag,
};
use ringfold_proto::limits;
use ringfold_proto::master::{Master, MasterAction, MasterConfig};
use ringfold_proto::message::{
    Ballot, Direction, EpochRecord, Join, Numbered, OpProgress, OpRecord, Outcome, Phase, Request, Resume,
    RoundNumbers, ToMaster, ToPeer,
};
use ringfold_proto::peer::{Completion, Peer, PeerAction, PeerConfig};
use ringfold_proto::recovery::RecoverySettings;
use ringfold_proto::time::Time;
use ringfold_proto::timing::Timing;
use ringfold_proto::tuning::Tuning;

/// Checks that the two honest members work, and that the third was evicted for a protocol violation.
fn assert_only_cid_is_out(run: &mut TestRun, [ann, bob, cid]: [PeerIndex; 3]) {
    assert!(!run.is_accepted(cid));
    let departures = run.departures();
    assert!(
        departures.len() == 1 && departures[0].starts_with("cid violated the protocol"),
        "{departures:?}"
    );
    assert!(matches!(run.removal(cid), Departure::Misbehaved(_)));
    run.reduce_successfully(&[ann, bob], 1);
}

fn join(name: &str) -> Join {
    Join {
        group: GroupId(0),
        name: name.into(),
        host: 1,
        site: 0,
        cores: Default::default(),
        addresses: Vec::new(),
        relays: false,
    }
}

/// A resume from an earlier incarnation of the master, with its own epoch.
fn resume(peer: PeerId) -> Resume {
    let member = Member {
        peer,
        name: "odd".into(),
        host: 1,
        site: 0,
        cores: Default::default(),
        addresses: Vec::new(),
    };
    let description = EpochDescription {
        id: EpochId { group: GroupId(0), incarnation: Incarnation(77), counter: 1 },
        members: [member].into(),
        ring: vec![Rank(0)],
        mesh: true,
        missing: Vec::new(),
        network: None,
        resumed: Vec::new(),
        tuning: Tuning::default(),
        key: [0; 32],
        relays: Vec::new(),
    };
    Resume {
        join: join("odd"),
        incarnation: Incarnation(77),
        previous: None,
        received: 0,
        seniority: 0,
        epochs: vec![EpochRecord { description, opened: true, signature: None, ops: Vec::new() }],
        rounds: RoundNumbers::default(),
        last_pending: false,
        synced: None,
        attributes: Attributes::default(),
        voter: VoterRecord::default(),
        charter_signature: None,
        chains: Vec::new(),
        held_bytes: 0,
    }
}

#[test]
fn a_vote_for_an_invalid_round_evicts_the_voter() {
    for round in [0, 3, u64::MAX] {
        let (mut run, who) = TestRun::with_members();
        let vote =
            ToMaster::Vote { call: CallId(9), round, deadline_ms: 0, request: Request::UpdateTopology };
        run.forge(who[2], vote);
        assert_only_cid_is_out(&mut run, who);
    }
}

#[test]
fn an_operation_out_of_sequence_evicts_its_peer() {
    let (mut run, who) = TestRun::with_members();
    let op = OpId { epoch: run.epoch(who[2]).id, tag: Tag(1), seq: Seq(u64::MAX) };
    run.forge(who[2], ToMaster::Started { op, descriptor: sum_of(1) });
    assert_only_cid_is_out(&mut run, who);
}

#[test]
fn wrong_numbering_evicts_the_peer() {
    for (number, acknowledged) in [(u64::MAX, 0), (0, u64::MAX), (500, 500)] {
        let (mut run, who) = TestRun::with_members();
        let line = run.peers[who[2].0].control.unwrap();
        run.forge_numbered(
            line,
            Numbered { number, acknowledged, message: ToMaster::SyncDone { round: 1, complete: true } },
        );
        assert_only_cid_is_out(&mut run, who);
    }
}

#[test]
fn a_peer_that_acknowledges_nothing_is_evicted_before_any_timeout() {
    let mut master = Master::new(MasterConfig {
        peers_max: limits::WORLD_MAX,
        timing: Timing::default(),
        recovery: RecoverySettings::default(),
        tuning: Tuning::default(),
        appraise: |_, _, _, _| 0,
        relays: Vec::new(),
        signer: Default::default(),
        seed: [1; 32],
    });
    let (now, conn) = (Time(1), ConnId(1));
    master.handle_connected(now, conn, PeerId(7));
    let mut say = |number: u64, message: ToMaster| {
        master.handle_message(now, conn, Numbered { number, acknowledged: 0, message });
        std::iter::from_fn(|| master.poll_action()).collect::<Vec<_>>()
    };
    say(0, ToMaster::Join(join("odd")));
    for round in 1..=limits::OUTBOX_MAX as u64 + 10 {
        let request = Request::ArePeersPending;
        let actions = say(round, ToMaster::Vote { call: CallId(round), round, deadline_ms: 0, request });
        if actions.contains(&MasterAction::Close { conn }) {
            let how = Departure::Misbehaved(ProtocolViolation::NothingAcknowledged);
            let departed = |action: &MasterAction| matches!(action, MasterAction::Notify(Event::Departed(_, h)) if *h == how);
            assert!(actions.iter().any(departed), "{actions:?}");
            return;
        }
    }
    panic!("it was not evicted");
}

#[test]
fn too_many_operations_in_flight_evict_their_peer() {
    let (mut run, who) = TestRun::with_members();
    let epoch = run.epoch(who[2]).id;
    for tag in 0..=limits::OPS_IN_FLIGHT_MAX as u64 {
        let op = OpId { epoch, tag: Tag(tag + 10), seq: Seq(0) };
        if run.peers[who[2].0].control.is_some() {
            run.forge(who[2], ToMaster::Started { op, descriptor: sum_of(1) });
        }
    }
    assert_only_cid_is_out(&mut run, who);
}

#[test]
fn many_tags_cost_an_epoch_and_no_member() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let epoch = run.epoch(bob).id;
    for tag in 0..=limits::TAGS_PER_EPOCH_MAX as u64 {
        let op = OpId { epoch, tag: Tag(tag + 10), seq: Seq(0) };
        let ballot = Ballot::TimedOut;
        run.forge(bob, ToMaster::OpVote { op, descriptor: sum_of(1), ballot });
    }
    assert!(run.departures().is_empty(), "{:?}", run.departures());
    assert_ne!(run.epoch(ann).id, epoch);
    run.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn operations_of_unknown_epochs_change_nothing() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let epochs = [
        EpochId::default(),
        EpochId { counter: u64::MAX, ..run.epoch(bob).id },
        EpochId { group: GroupId(9), ..run.epoch(bob).id },
    ];
    for epoch in epochs {
        let op = OpId { epoch, tag: Tag(1), seq: Seq(0) };
        run.forge(bob, ToMaster::Started { op, descriptor: sum_of(1) });
        let ballot = Ballot::Differs { from: PeerId(u128::MAX) };
        run.forge(bob, ToMaster::OpVote { op, descriptor: sum_of(1), ballot });
        run.forge(bob, ToMaster::EpochReady { epoch, unreachable: vec![PeerId(5); 1024] });
        let (peer, direction) = (run.id(ann), Direction::Both);
        run.forge(bob, ToMaster::LinkTrouble { epoch, peer, direction });
    }
    run.forge(bob, ToMaster::Probed { probe: u64::MAX, forward: Some(0), backward: None });
    run.forge(bob, ToMaster::SyncDone { round: u64::MAX, complete: true });
    run.forge(
        bob,
        ToMaster::Heartbeat {
            heard: (0..1024).map(PeerId).collect(),
            ended: (0..1024).map(PeerId).collect(),
        },
    );
    assert!(run.departures().is_empty());
    run.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn a_connection_that_never_joins_has_no_vote() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let conn = run.raw_connection(PeerId(99));
    let op = OpId { epoch: run.epoch(ann).id, tag: Tag(1), seq: Seq(0) };
    for message in [
        ToMaster::Leave,
        ToMaster::OpVote { op, descriptor: sum_of(1), ballot: Ballot::TimedOut },
        ToMaster::Vote { call: CallId(1), round: 1, deadline_ms: 0, request: Request::UpdateTopology },
    ] {
        run.forge_on(conn, message);
    }
    assert!(run.departures().is_empty());
    run.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn counters_beyond_the_limit_are_rejected_on_return() {
    let absurd: [fn(&mut Resume); 6] = [
        |r| r.seniority = u64::MAX,
        |r| r.epochs[0].description.id.counter = u64::MAX,
        |r| r.rounds.topology = u64::MAX,
        |r| r.rounds.sync = u64::MAX,
        |r| r.epochs[0].ops = vec![decided(Seq(u64::MAX))],
        |r| {
            let description = &mut r.epochs[0].description;
            description.members = [&description.members[..], &description.members[..1]].concat().into();
            description.ring.push(Rank(1));
        },
    ];
    for change in absurd {
        let mut run = TestRun::new();
        let conn = run.raw_connection(PeerId(99));
        let mut odd = resume(PeerId(99));
        change(&mut odd);
        run.forge_on(conn, ToMaster::Resume(Box::new(odd)));
        assert!(matches!(run.replies[&conn][..], [ToPeer::Removed { .. }]), "{:?}", run.replies[&conn]);
        let ann = run.connect_peer("ann", 0);
        assert!(run.is_connected(ann));
    }
}

fn decided(seq: Seq) -> OpRecord {
    let progress = OpProgress::Decided(Outcome::COMMITTED);
    OpRecord { tag: Tag(1), seq, descriptor: None, progress, signature: None }
}

#[test]
fn the_largest_accepted_counters_do_not_overflow() {
    let mut run = TestRun::new();
    let conn = run.raw_connection(PeerId(99));
    let mut odd = resume(PeerId(99));
    odd.seniority = limits::COUNTER_MAX;
    odd.epochs[0].description.id.counter = limits::COUNTER_MAX;
    odd.epochs[0].ops = vec![decided(Seq(limits::COUNTER_MAX))];
    odd.synced = Some(Revision(u64::MAX));
    let most = limits::COUNTER_MAX;
    odd.rounds = RoundNumbers { topology: most, pending: most, optimise: most, sync: most };
    run.forge_on(conn, ToMaster::Resume(Box::new(odd)));
    assert!(run.replies[&conn].iter().any(|m| matches!(m, ToPeer::Restored { .. })));
    let ann = run.connect_peer("ann", 0);
    let vote =
        ToMaster::Vote { call: CallId(1), round: most + 1, deadline_ms: 0, request: Request::UpdateTopology };
    run.forge_on(conn, vote);
    // It does not reach its neighbour and is evicted; the others continue.
    run.advance_time(secs(30));
    assert!(run.is_connected(ann));
}

#[test]
fn a_full_run_rejects_new_peers() {
    let mut run = TestRun::new();
    let mut members = Vec::new();
    for i in 0..=limits::WORLD_MAX as u128 {
        let conn = run.raw_connection(PeerId(1000 + i));
        run.forge_on(conn, ToMaster::Join(join("many")));
        members.push(conn);
    }
    let last = &run.replies[&members[limits::WORLD_MAX]];
    assert!(
        matches!(&last[..], [ToPeer::Removed { reason: Removal::Rejected(JoinRejection::RunFull) }]),
        "{last:?}"
    );
}

#[test]
fn empty_groups_are_forgotten_unless_they_hold_a_state() {
    let mut run = TestRun::new();
    for i in 0..2 * limits::GROUPS_MAX as u32 {
        let conn = run.raw_connection(PeerId(1000 + u128::from(i)));
        run.forge_on(conn, ToMaster::Join(Join { group: GroupId(i), ..join("nomad") }));
        run.forge_on(conn, ToMaster::Leave);
    }
    let ann = run.connect_peer("ann", u32::MAX);
    assert!(run.is_connected(ann));
}

#[test]
fn a_member_that_joins_again_only_ends_its_own_membership() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    run.forge(cid, ToMaster::Join(join("cid")));
    run.advance_time(secs(1));
    assert!(run.is_accepted(ann) && run.is_accepted(bob) && !run.is_accepted(cid));
    run.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn a_peer_that_lies_about_links_is_evicted_before_the_accused() {
    let (mut run, [ann, bob, cid, dan]) = TestRun::with_members();
    for _ in 0..30 {
        for other in [ann, bob, cid] {
            if run.is_accepted(dan) && run.peers[dan.0].peer.epoch().is_some() {
                let (epoch, peer) = (run.epoch(dan).id, run.id(other));
                run.forge(dan, ToMaster::LinkTrouble { epoch, peer, direction: Direction::Both });
            }
        }
        run.advance_time(secs(1));
    }
    assert!([ann, bob, cid].iter().all(|w| run.is_accepted(*w)) && !run.is_accepted(dan));
    run.reduce_successfully(&[ann, bob, cid], 1);
}

/// A small random generator.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }

    /// Mostly small numbers, sometimes the largest ones.
    fn number(&mut self) -> u64 {
        match self.below(8) {
            0 => u64::MAX,
            1 => u64::MAX - 1,
            _ => self.below(4),
        }
    }
}

/// Random messages, half of them with ids of the current run.
fn nonsense(chance: &mut Chance, epoch: EpochId, ids: &[PeerId]) -> ToMaster {
    let peer = ids[chance.below(ids.len() as u64) as usize];
    let op = OpId { epoch, tag: Tag(chance.below(3)), seq: Seq(chance.number()) };
    let descriptor = sum_of(chance.below(2));
    match chance.below(10) {
        0 => ToMaster::Started { op, descriptor },
        1 => ToMaster::OpVote { op, descriptor, ballot: Ballot::Done { digest: None } },
        2 => ToMaster::OpVote { op, descriptor, ballot: Ballot::LinkBroken { with: peer } },
        3 => ToMaster::EpochReady { epoch, unreachable: vec![peer] },
        4 => ToMaster::LinkTrouble { epoch, peer, direction: Direction::Incoming },
        5 => ToMaster::Vote {
            call: CallId(chance.number()),
            round: 1 + chance.below(2),
            deadline_ms: chance.below(3) as u32,
            request: [Request::UpdateTopology, Request::ArePeersPending, Request::OptimizeTopology]
                [chance.below(3) as usize]
                .clone(),
        },
        6 => ToMaster::Probed { probe: chance.number(), forward: Some(chance.number()), backward: None },
        7 => ToMaster::SyncDone { round: chance.number(), complete: true },
        _ => MessageGenerator(&chance.bytes(400)).for_master().message,
    }
}

#[test]
fn invalid_messages_of_members_never_stop_the_master() {
    for seed in 0..150 {
        let mut chance = Chance(seed);
        let mut run = TestRun::new();
        let ids: Vec<_> = (0..4).map(|i| PeerId(50 + i)).collect();
        let mut conns: Vec<ConnId> = Vec::new();
        for id in &ids {
            let conn = run.raw_connection(*id);
            run.forge_on(conn, ToMaster::Join(join("liar")));
            conns.push(conn);
        }
        for step in 0..120 {
            let epoch = run.replies.values().flatten().rev().find_map(|m| match m {
                ToPeer::EpochProposed { description, .. } => Some(description.id),
                _ => None,
            });
            let message = nonsense(&mut chance, epoch.unwrap_or_default(), &ids);
            let message = Numbered { number: 0, acknowledged: 0, message };
            if message.check().is_ok() {
                let at = chance.below(4) as usize;
                run.forge_numbered(conns[at], message);
            }
            if step % 20 == 19 {
                run.advance_time(secs(1));
                conns = ids.iter().map(|id| run.raw_connection(*id)).collect();
                let at = chance.below(4) as usize;
                let again = match chance.below(2) {
                    0 => ToMaster::Join(join("liar")),
                    _ => ToMaster::Resume(Box::new(resume(ids[at]))),
                };
                run.forge_on(conns[at], again);
            }
        }
        let honest = run.connect_peer("honest", 1);
        run.advance_time(secs(2));
        assert!(run.is_connected(honest) || !run.master().accepted().is_empty());
    }
}

/// Random messages of a master to a member of this epoch.
fn absurd(chance: &mut Chance, epoch: &EpochDescription) -> ToPeer {
    let attributes = Attributes::default();
    let op = OpId { epoch: epoch.id, tag: Tag(chance.below(3)), seq: Seq(chance.number()) };
    let most = chance.number();
    let signature = None;
    let rounds = RoundNumbers { topology: most, pending: most, optimise: most, sync: most };
    match chance.below(8) {
        0 => ToPeer::Decided { op, outcome: Outcome::Aborted(Cause::EpochEnded), attributes, signature },
        1 => ToPeer::Decided { op, outcome: Outcome::COMMITTED, attributes, signature },
        2 => {
            let (description, ended) = (Box::new(epoch.clone()), Cause::EpochEnded);
            ToPeer::EpochProposed { description, ended, attributes, signature }
        }
        3 => {
            let (epoch, missing, resumed) = (epoch.id, Vec::new(), Vec::new());
            ToPeer::EpochOpened { epoch, missing, network: None, resumed, attributes, rounds, signature }
        }
        4 => ToPeer::Answer {
            call: CallId(chance.below(20)),
            phase: Phase::ALL[chance.below(4) as usize],
            round: most,
            answer: ringfold_proto::message::Answer::Synced(Revision(most)),
            attributes,
        },
        5 => ToPeer::Rebound { received: most },
        _ => MessageGenerator(&chance.bytes(600)).for_peer().message,
    }
}

#[test]
fn no_message_of_a_master_makes_a_peer_panic() {
    for seed in 0..1500 {
        let mut chance = Chance(seed);
        let config =
            PeerConfig { peer: PeerId(99), join: join("victim"), replica: None, timing: Timing::default() };
        let mut peer = Peer::new(config);
        let mut now = Time(1 << 50);
        let epoch = resume(PeerId(99)).epochs.remove(0).description;
        let mut epoch = EpochDescription { ring: vec![Rank(0), Rank(1)], ..epoch };
        let stranger = Member { peer: PeerId(7), ..epoch.members[0].clone() };
        epoch.members = [&epoch.members[..], &[stranger]].concat().into();
        peer.connect(now, None).unwrap();
        let (mut open, mut conn) = (1, 0);
        for _ in 0..60 {
            now = now + std::time::Duration::from_millis(chance.below(300));
            peer.handle_message(
                now,
                ConnId(conn),
                Numbered { number: 0, acknowledged: 0, message: absurd(&mut chance, &epoch) },
            );
            let called = match chance.below(6) {
                0 => peer.update_topology(now, None),
                1 => peer.are_peers_pending(now, None),
                2 => peer.sync_shared_state(now, None, super::sharing_state::offer(0, &[1])),
                _ => peer.collective(now, Tag(chance.below(3)), sum_of(1)),
            };
            open += usize::from(called.is_ok());
            peer.handle_timeout(now);
            while let Some(action) = peer.poll_action() {
                match action {
                    PeerAction::DialMaster => {
                        conn += 1;
                        peer.handle_connected(now, ConnId(conn));
                    }
                    PeerAction::Link { member, .. } => peer.handle_link_up(member.peer),
                    PeerAction::StartOp { op, .. } if chance.below(2) == 0 => peer.handle_op_done(op, None),
                    PeerAction::CommitOp(op) | PeerAction::AbortOp(op) => peer.handle_op_released(op),
                    PeerAction::SuspendOp(op) => peer.handle_op_suspended(op, Some(Vec::new())),
                    PeerAction::Sync { call, number, .. } => peer.handle_fetched(call, number, true),
                    PeerAction::Complete { .. } => open -= 1,
                    _ => {}
                }
            }
        }
        peer.leave();
        while let Some(action) = peer.poll_action() {
            match action {
                PeerAction::CommitOp(op) | PeerAction::AbortOp(op) => peer.handle_op_released(op),
                PeerAction::SuspendOp(op) => peer.handle_op_suspended(op, None),
                PeerAction::Complete { result, .. } => {
                    assert!(!matches!(result, Ok(Completion::Connected)));
                    open -= 1;
                }
                _ => {}
            }
        }
        assert_eq!(open, 0, "seed {seed}: a call has no end");
    }
}

#[test]
fn a_departure_is_named_in_plain_words() {
    let how = Departure::Misbehaved(ProtocolViolation::Numbering);
    assert_eq!(how.to_string(), "violated the protocol: message numbers out of sequence");
}
