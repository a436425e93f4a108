//! Votes on the topology and on pending peers, and world sizes.

use super::test_run::{RELAY, TestRun, secs, sum_of};
use ringfold_proto::cause::Cause;
use ringfold_proto::epoch::RelayAddress;
use ringfold_proto::id::PeerId;
use ringfold_proto::limits;
use ringfold_proto::peer::{Completion, Failure};

#[test]
fn update_topology_fails_while_operations_are_not_awaited() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    run.reduce_all(&[ann, bob], 1);
    run.reduce(ann, 2);
    let now = run.now;
    assert_eq!(run.peer(ann).update_topology(now, None), Err(Failure::PendingOperations(2)));
    assert_eq!(run.peer(bob).update_topology(now, None), Err(Failure::PendingOperations(1)));
    run.done(ann, 1);
    run.done(bob, 1);
    assert!(run.peer(bob).update_topology(now, None).is_ok());
}

#[test]
fn all_who_ask_whether_peers_are_pending_get_one_answer() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let anns = run.ask_pending(ann);
    run.settle();
    // A peer joins between the two votes: both learn of it, or neither.
    let cid = run.connect_peer("cid", 0);
    let bobs = run.ask_pending(bob);
    run.settle();
    run.assert_results(&[(ann, anns), (bob, bobs)], &Ok(Completion::Pending(true)));
    run.kill(cid);
    run.advance_time(secs(1));
    let calls = [(ann, run.ask_pending(ann)), (bob, run.ask_pending(bob))];
    run.settle();
    run.assert_results(&calls, &Ok(Completion::Pending(false)));
}

#[test]
fn whether_peers_are_pending_may_be_asked_while_collectives_run() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let calls = run.reduce_all(&[ann, bob], 1);
    run.advance_time(secs(1));
    let asked = [(ann, run.ask_pending(ann)), (bob, run.ask_pending(bob))];
    run.settle();
    run.assert_results(&asked, &Ok(Completion::Pending(false)));
    assert!(run.is_waiting(ann, calls[0]), "the collective goes on");
    run.done(ann, 1);
    run.done(bob, 1);
    assert!(run.result(ann, calls[0]).is_some_and(Result::is_ok));
}

#[test]
fn world_sizes_do_not_fall_because_a_peer_left_after_a_success() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    run.reduce_successfully(&[ann, bob, cid], 1);
    run.leave(cid);
    run.advance_time(secs(5));
    assert_eq!((run.world(ann), run.global_world(bob)), (3, 3));
    // A vote on pending peers does not update them.
    let asked = [(ann, run.ask_pending(ann)), (bob, run.ask_pending(bob))];
    run.settle();
    run.assert_results(&asked, &Ok(Completion::Pending(false)));
    assert_eq!(run.world(ann), 3);
    run.admit_all();
    assert_eq!((run.world(ann), run.global_world(bob)), (2, 2));
}

#[test]
fn world_sizes_are_fresh_after_a_failed_collective() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let call = run.reduce(ann, 1);
    run.advance_time(secs(1));
    run.kill(cid);
    assert!(matches!(run.abort_cause(ann, call), Cause::PeerLost { .. }));
    assert_eq!(run.world(ann), 2);
    assert_eq!(run.world(bob), 3, "bob was in no collective, so nothing has changed for it");
}

#[test]
fn world_sizes_after_a_success_are_those_of_its_epoch_on_all_peers() {
    let (mut run, [ann, bob, cid, dan]) = TestRun::with_members();
    // One peer waits in a collective when another dies, and learns of it; the others learn of it from the next success.
    let call = run.reduce(ann, 1);
    run.advance_time(secs(1));
    run.kill(dan);
    assert!(matches!(run.abort_cause(ann, call), Cause::PeerLost { .. }));
    assert_eq!([ann, bob, cid].map(|w| run.world(w)), [3, 4, 4]);
    run.reduce_successfully(&[ann, bob, cid], 1);
    assert_eq!([ann, bob, cid].map(|w| (run.world(w), run.global_world(w))), [(3, 3); 3]);
    // A peer that leaves after a success still counts, also on peers that hear of the success late.
    let calls = run.reduce_all(&[ann, bob, cid], 2);
    run.hold_down(bob);
    [ann, bob, cid].iter().for_each(|w| run.done(*w, 2));
    run.leave(cid);
    run.release(bob);
    let both = [(ann, calls[0]), (bob, calls[1])];
    run.assert_results(&both, &Ok(Completion::Reduced { world: 3 }));
    assert_eq!([ann, bob].map(|w| (run.world(w), run.global_world(w))), [(3, 3); 2]);
    run.reduce_successfully(&[ann, bob], 2);
    assert_eq!([ann, bob].map(|w| (run.world(w), run.global_world(w))), [(2, 2); 2]);
}

#[test]
fn a_failure_in_one_group_needs_no_vote_of_another_and_aborts_nothing_there() {
    let mut run = TestRun::new();
    let ann = run.connect_peer("ann", 0);
    let [bob, cid] = ["bob", "cid"].map(|n| run.connect_peer(n, 0));
    let [dan, eve] = ["dan", "eve"].map(|n| run.connect_peer(n, 1));
    run.admit_all();
    let theirs = run.reduce_all(&[dan, eve], 7);
    let ours = run.reduce_all(&[ann, bob, cid], 7);
    run.advance_time(secs(1));
    let opened = run.peers[dan.0].opened.len();
    run.kill(cid);
    assert!(matches!(run.abort_cause(ann, ours[0]), Cause::PeerLost { .. }));
    // The survivors continue without a vote.
    run.reduce_successfully(&[ann, bob], 7);
    assert!(run.is_waiting(dan, theirs[0]) && run.is_waiting(eve, theirs[1]));
    assert_eq!(run.peers[dan.0].opened.len(), opened, "their epoch is the same");
    run.done(dan, 7);
    run.done(eve, 7);
    assert_eq!(run.result(dan, theirs[0]), Some(&Ok(Completion::Reduced { world: 2 })));
}

#[test]
fn a_topology_vote_beside_a_waiting_collective_fails_at_once_and_names_both() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let reducing = run.reduce(ann, 5);
    run.advance_time(secs(1));
    let voting = run.update_topology(bob);
    run.settle();
    for cause in [run.abort_cause(ann, reducing), run.vote_cause(bob, voting)] {
        let text = cause.to_string();
        assert!(text.contains("bob waits in update_topology"), "{text}");
        assert!(text.contains("ann waits in all-reduce") && text.contains("tag 5"), "{text}");
    }
    // The sequence of the tag stays equal, also for the third.
    run.reduce_successfully(&[ann, bob, cid], 5);
}

#[test]
fn the_order_of_contradicting_calls_does_not_matter() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let voting = run.update_topology(bob);
    run.settle();
    let reducing = run.reduce(ann, 5);
    assert!(run.is_waiting(bob, voting), "a collective that was just started may be done at once");
    run.advance_time(secs(1));
    assert!(matches!(run.abort_cause(ann, reducing), Cause::Mismatch { .. }));
    assert!(matches!(run.vote_cause(bob, voting), Cause::Mismatch { .. }));
}

#[test]
fn different_votes_fail_at_once_and_name_both() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let now = run.now;
    let offer = super::sharing_state::offer(0, &[1]);
    let syncing = run.peer(ann).sync_shared_state(now, None, offer).unwrap();
    let voting = run.update_topology(bob);
    run.settle();
    for cause in [run.vote_cause(ann, syncing), run.vote_cause(bob, voting)] {
        let text = cause.to_string();
        assert!(text.contains("bob waits in update_topology"), "{text}");
        assert!(text.contains("ann waits in sync_shared_state"), "{text}");
    }
    let (topology, optimising) = (run.update_topology(ann), run.optimise(bob));
    run.settle();
    assert!(matches!(run.vote_cause(ann, topology), Cause::Mismatch { .. }));
    assert!(matches!(run.vote_cause(bob, optimising), Cause::Mismatch { .. }));
    run.admit_all();
}

#[test]
fn a_group_may_share_its_state_while_another_waits_in_a_topology_vote() {
    let mut run = TestRun::new();
    let (ann, bob) = (run.connect_peer("ann", 0), run.connect_peer("bob", 1));
    run.admit_all();
    let voting = run.update_topology(ann);
    run.settle();
    let now = run.now;
    let offer = super::sharing_state::offer(0, &[1]);
    let syncing = run.peer(bob).sync_shared_state(now, None, offer).unwrap();
    run.settle();
    assert!(run.result(bob, syncing).is_some_and(Result::is_ok));
    assert!(run.is_waiting(ann, voting));
    let other = run.update_topology(bob);
    run.settle();
    run.assert_results(&[(ann, voting), (bob, other)], &Ok(Completion::Topology));
}

#[test]
fn a_collective_during_an_exclusive_vote_of_the_same_peer_is_misuse() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    run.update_topology(ann);
    assert!(matches!(run.collective(ann, 1, sum_of(1)), Err(Failure::Misuse(_))));
    let now = run.now;
    assert!(matches!(run.peer(ann).update_topology(now, None), Err(Failure::Misuse(_))));
    assert!(matches!(run.peer(ann).optimize_topology(now, None), Err(Failure::Misuse(_))));
    run.update_topology(bob);
    run.settle();
    run.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn members_learn_of_relays_and_then_of_volunteers() {
    let (mut run, [ann]) = TestRun::with_members();
    let configured = RelayAddress { peer: PeerId(0), address: RELAY };
    assert_eq!(run.peers[ann.0].relays, [configured]);
    let volunteer = run.connect_peer("volunteer", 0);
    run.settle();
    run.admit_all();
    let expected =
        [configured, RelayAddress { peer: run.id(volunteer), address: ([127, 0, 0, 1], 1001).into() }];
    for who in [ann, volunteer] {
        assert_eq!(run.peers[who.0].relays, expected);
        assert_eq!(run.epoch(who).relays, expected);
    }
    for _ in 0..limits::RELAYS_MAX {
        run.connect_peer("volunteer too", 0);
    }
    run.settle();
    run.admit_all();
    assert_eq!(run.peers[ann.0].relays.len(), limits::RELAYS_MAX);
    assert_eq!(run.peers[ann.0].relays[..2], expected);
}
