//! Replicas: their ranks join together, and are lost together.

use super::test_run::{PeerIndex, TestRun, secs, sum_of};
use ringfold_proto::cause::{Cause, Departure, JoinRejection, Removal, ReplicaRejection};
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::event::Event;
use ringfold_proto::id::{GroupId, PeerId, ReplicaId};
use ringfold_proto::limits::REPLICA_RANKS_MAX;
use ringfold_proto::message::{Join, Replica, ToMaster, ToPeer};
use ringfold_proto::peer::Completion;

/// A replica of two ranks calls connect. Its id is unique to its name.
fn connect(run: &mut TestRun, name: &str) -> [PeerIndex; 2] {
    let id = name.bytes().fold(0, |id, byte| id * 256 + u128::from(byte));
    [0, 1].map(|rank| run.connect_rank(&format!("{name}{rank}"), rank, id, 2))
}

/// A run of three replicas.
fn three_replicas() -> (TestRun, [[PeerIndex; 2]; 3]) {
    let mut run = TestRun::new();
    let replicas = ["a", "b", "c"].map(|name| connect(&mut run, name));
    run.admit_all();
    assert!(replicas.iter().flatten().all(|rank| run.is_accepted(*rank)));
    (run, replicas)
}

fn assert_works(run: &mut TestRun, replicas: &[[PeerIndex; 2]]) {
    for rank in [0, 1] {
        let group: Vec<_> = replicas.iter().map(|replica| replica[rank]).collect();
        run.reduce_successfully(&group, 1);
    }
}

fn assert_lost(run: &mut TestRun, who: PeerIndex, why: &str) {
    let Departure::Evicted(text) = run.removal(who) else { panic!("not evicted") };
    assert_eq!(text, why);
}

#[test]
fn a_replica_is_admitted_when_all_its_ranks_have_joined() {
    let mut run = TestRun::new();
    let first = run.connect_rank("a0", 0, 7, 2);
    assert!(!run.is_accepted(first), "half of the first replica");
    let second = run.connect_rank("a1", 1, 7, 2);
    assert!(run.is_connected(first) && run.is_connected(second));

    let half = run.connect_rank("b0", 0, 8, 2);
    let single = run.connect_peer("single", 0);
    let asked = [first, second].map(|who| (who, run.ask_pending(who)));
    run.settle();
    for (who, call) in asked {
        assert_eq!(run.result(who, call), Some(&Ok(Completion::Pending(true))));
    }
    run.admit_all();
    assert!(run.is_connected(single) && !run.is_accepted(half), "only the single peer");
    let asked = [first, second, single].map(|who| (who, run.ask_pending(who)));
    run.settle();
    for (who, call) in asked {
        assert_eq!(run.result(who, call), Some(&Ok(Completion::Pending(false))), "nobody can be admitted");
    }
    let other = run.connect_rank("b1", 1, 8, 2);
    run.admit_all();
    assert!(run.is_connected(half) && run.is_connected(other));
    assert_eq!((run.world(first), run.world(second)), (3, 2));
}

#[test]
fn a_rank_whose_connection_is_lost_holds_its_replica_back() {
    let (mut run, _) = three_replicas();
    let [first, second] = connect(&mut run, "d");
    run.hold_up(second);
    run.reset_control(second);
    run.admit_all();
    assert!(!run.is_accepted(first) && !run.is_accepted(second));
    run.release(second);
    run.advance_time(secs(1));
    run.admit_all();
    assert!(run.is_connected(first) && run.is_connected(second), "it has returned");
}

#[test]
fn a_rank_that_joins_again_before_it_was_registered_keeps_its_replica() {
    let (mut run, _) = three_replicas();
    let first = run.connect_rank("d0", 0, 7, 2);
    let second = run.connect_rank_unheard("d1", 1, 7, 2);
    run.break_unnoticed(second);
    run.release(second);
    run.advance_time(secs(1));
    run.admit_all();
    assert!(run.is_connected(first) && run.is_connected(second));
}

#[test]
fn a_lost_rank_takes_its_replica_with_it_and_the_others_go_on() {
    let (mut run, [a, b, c]) = three_replicas();
    let call = run.reduce(b[0], 1);
    run.kill(a[1]);
    run.advance_time(secs(30));
    assert_lost(&mut run, a[0], "a1, a rank of its replica, lost its connection to the master");
    assert!(matches!(run.abort_cause(b[0], call), Cause::PeerLost { .. }));
    assert_works(&mut run, &[b, c]);
    assert_eq!(run.departures().len(), 2);
    assert_eq!(run.global_world(b[0]), 4);
}

#[test]
fn ranks_that_wait_are_lost_together() {
    let mut run = TestRun::new();
    let [first, second] = [0, 1].map(|rank| run.connect_rank(&format!("r{rank}"), rank, 7, 3));
    run.kill(first);
    run.advance_time(secs(30));
    assert_lost(&mut run, second, "r0, a rank of its replica, lost its connection to the master");
}

#[test]
fn a_rank_that_leaves_does_not_take_the_others_with_it() {
    let (mut run, [a, b, c]) = three_replicas();
    run.leave(a[0]);
    run.advance_time(secs(30));
    assert!(run.is_accepted(a[1]));
    run.reduce_successfully(&[a[1], b[1], c[1]], 1);
    // A restarted master does not know that it has left.
    run.restart_master();
    run.advance_time(secs(60));
    assert_lost(&mut run, a[1], "not all ranks of its replica returned after the master restarted");
    assert_works(&mut run, &[b, c]);
}

#[test]
fn replicas_return_to_a_restarted_master() {
    let (mut run, replicas) = three_replicas();
    run.restart_master();
    assert!(run.departures().is_empty());
    assert_works(&mut run, &replicas);
    // It knows them.
    run.kill(replicas[0][0]);
    run.advance_time(secs(30));
    assert_lost(&mut run, replicas[0][1], "a0, a rank of its replica, lost its connection to the master");
}

#[test]
fn a_replica_that_does_not_return_whole_is_removed_and_its_outcomes_hold() {
    let (mut run, [a, b, c]) = three_replicas();
    // The first rank sees that an operation is aborted, the others do not.
    let hasty = Descriptor { deadline_ms: 1_000, ..sum_of(100) };
    let calls = [run.collective(a[0], 1, hasty).unwrap(), run.reduce(b[0], 1), run.reduce(c[0], 1)];
    run.hold_down(b[0]);
    run.hold_down(c[0]);
    run.hold_up(c[0]);
    run.done(b[0], 1);
    run.advance_time(secs(2));
    assert!(matches!(run.abort_cause(a[0], calls[0]), Cause::Timeout(_)));
    run.done(c[0], 1);
    run.crash_master();
    run.kill(a[1]);
    run.release(b[0]);
    run.release(c[0]);
    run.start_master();
    run.advance_time(secs(60));
    assert_lost(&mut run, a[0], "not all ranks of its replica returned after the master restarted");
    assert!(matches!(run.abort_cause(b[0], calls[1]), Cause::Timeout(_)));
    assert!(matches!(run.abort_cause(c[0], calls[2]), Cause::Timeout(_)));
    assert_works(&mut run, &[b, c]);
}

#[test]
fn ranks_that_do_not_fit_are_rejected() {
    let mut run = TestRun::new();
    run.connect_rank("r0", 0, 7, 2);
    run.connect_rank("s0", 0, 9, 2);
    run.connect_rank("s1", 1, 9, 2);
    let cases = [
        (8, 0, 0, ReplicaRejection::Ranks(0)),
        (8, 0, REPLICA_RANKS_MAX + 1, ReplicaRejection::Ranks(REPLICA_RANKS_MAX + 1)),
        (7, 1, 3, ReplicaRejection::RanksDiffer { stated: 3, known: 2 }),
        (7, 0, 2, ReplicaRejection::GroupTaken(GroupId(0))),
        (9, 2, 2, ReplicaRejection::Admitted),
    ];
    for (index, (id, group, ranks, why)) in cases.into_iter().enumerate() {
        let conn = run.raw_connection(PeerId(900 + index as u128));
        let join = Join {
            group: GroupId(group),
            name: "odd".into(),
            host: 1,
            site: 0,
            cores: Default::default(),
            addresses: Vec::new(),
            relays: false,
        };
        run.forge_on(conn, ToMaster::JoinRank { replica: Replica { id: ReplicaId(id), ranks }, join });
        let rejected = ToPeer::Removed { reason: Removal::Rejected(JoinRejection::Replica(why)) };
        assert_eq!(run.replies[&conn], [rejected]);
    }
    run.connect_rank("r1", 1, 7, 2);
    run.admit_all();
    assert_eq!(run.members().len(), 4, "nobody else was disturbed");
}

#[test]
fn the_log_names_a_replica_that_waits_for_ranks_once() {
    let mut run = TestRun::new();
    let rank = run.connect_rank("r0", 0, 7, 3);
    run.connect_rank("r1", 1, 7, 3);
    run.advance_time(run.timing.warn_after * 4);
    let is_warning = |event: &&Event| matches!(event, Event::ReplicaIncomplete { missing: 1, .. });
    let warnings: Vec<_> = run.events.iter().filter(is_warning).map(ToString::to_string).collect();
    assert_eq!(warnings, ["a replica waits for 1 of its ranks; those that have joined: r0, r1"]);
    assert!(!run.is_accepted(rank));
}
