//! Votes on the topology and on pending peers, and what world sizes are when.

use super::stage::{Stage, secs, sum_of};
use ringfold_proto::cause::Cause;
use ringfold_proto::peer::{Completion, Failure};

#[test]
fn update_topology_during_operations_that_were_not_awaited_is_refused() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    stage.reduce_all(&[ann, bob], 1);
    stage.reduce(ann, 2);
    let now = stage.now;
    assert_eq!(stage.peer(ann).update_topology(now, None), Err(Failure::PendingOperations(2)));
    assert_eq!(stage.peer(bob).update_topology(now, None), Err(Failure::PendingOperations(1)));
    stage.done(ann, 1);
    stage.done(bob, 1);
    assert!(stage.peer(bob).update_topology(now, None).is_ok());
}

#[test]
fn all_who_ask_whether_peers_are_pending_get_one_answer() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let anns = stage.ask_pending(ann);
    stage.settle();
    // Someone comes between the two votes: both hear of it, or neither.
    let cid = stage.come("cid", 0);
    let bobs = stage.ask_pending(bob);
    stage.settle();
    stage.all_got(&[(ann, anns), (bob, bobs)], &Ok(Completion::Pending(true)));
    stage.kill(cid);
    let calls = [(ann, stage.ask_pending(ann)), (bob, stage.ask_pending(bob))];
    stage.settle();
    stage.all_got(&calls, &Ok(Completion::Pending(false)));
}

#[test]
fn whether_peers_are_pending_may_be_asked_while_collectives_run() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let calls = stage.reduce_all(&[ann, bob], 1);
    stage.pass(secs(1));
    let asked = [(ann, stage.ask_pending(ann)), (bob, stage.ask_pending(bob))];
    stage.settle();
    stage.all_got(&asked, &Ok(Completion::Pending(false)));
    assert!(stage.is_waiting(ann, calls[0]), "the collective goes on");
    stage.done(ann, 1);
    stage.done(bob, 1);
    assert!(stage.result(ann, calls[0]).is_some_and(Result::is_ok));
}

#[test]
fn world_sizes_do_not_fall_because_a_peer_left_after_a_success() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    stage.reduce_successfully(&[ann, bob, cid], 1);
    stage.leave(cid);
    stage.pass(secs(5));
    assert_eq!((stage.world(ann), stage.global_world(bob)), (3, 3));
    // A vote on pending peers is none of the calls that refresh them.
    let asked = [(ann, stage.ask_pending(ann)), (bob, stage.ask_pending(bob))];
    stage.settle();
    stage.all_got(&asked, &Ok(Completion::Pending(false)));
    assert_eq!(stage.world(ann), 3);
    stage.admit_all();
    assert_eq!((stage.world(ann), stage.global_world(bob)), (2, 2));
}

#[test]
fn world_sizes_are_fresh_after_a_failed_collective() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    let call = stage.reduce(ann, 1);
    stage.pass(secs(1));
    stage.kill(cid);
    assert!(matches!(stage.abort_cause(ann, call), Cause::PeerLost { .. }));
    assert_eq!(stage.world(ann), 2);
    assert_eq!(stage.world(bob), 3, "bob was in no collective, so nothing has changed for it");
}

#[test]
fn world_sizes_after_a_success_are_those_of_its_epoch_on_all_peers() {
    let (mut stage, [ann, bob, cid, dan]) = Stage::with_members();
    // One waits in a collective when a peer dies, and hears of it; the others learn of it from the next success.
    let call = stage.reduce(ann, 1);
    stage.pass(secs(1));
    stage.kill(dan);
    assert!(matches!(stage.abort_cause(ann, call), Cause::PeerLost { .. }));
    assert_eq!([ann, bob, cid].map(|w| stage.world(w)), [3, 4, 4]);
    stage.reduce_successfully(&[ann, bob, cid], 1);
    assert_eq!([ann, bob, cid].map(|w| (stage.world(w), stage.global_world(w))), [(3, 3); 3]);
    // A peer that leaves after a success is in the result, and still counts: also where the success is heard of late.
    let calls = stage.reduce_all(&[ann, bob, cid], 2);
    stage.hold_down(bob);
    [ann, bob, cid].iter().for_each(|w| stage.done(*w, 2));
    stage.leave(cid);
    stage.let_go(bob);
    let both = [(ann, calls[0]), (bob, calls[1])];
    stage.all_got(&both, &Ok(Completion::Reduced { world: 3 }));
    assert_eq!([ann, bob].map(|w| (stage.world(w), stage.global_world(w))), [(3, 3); 2]);
    stage.reduce_successfully(&[ann, bob], 2);
    assert_eq!([ann, bob].map(|w| (stage.world(w), stage.global_world(w))), [(2, 2); 2]);
}

#[test]
fn a_failure_in_one_group_needs_no_vote_of_another_and_aborts_nothing_there() {
    let mut stage = Stage::new();
    let ann = stage.come("ann", 0);
    let [bob, cid] = ["bob", "cid"].map(|n| stage.come(n, 0));
    let [dan, eve] = ["dan", "eve"].map(|n| stage.come(n, 1));
    stage.admit_all();
    let theirs = stage.reduce_all(&[dan, eve], 7);
    let ours = stage.reduce_all(&[ann, bob, cid], 7);
    stage.pass(secs(1));
    let opened = stage.actors[dan.0].opened.len();
    stage.kill(cid);
    assert!(matches!(stage.abort_cause(ann, ours[0]), Cause::PeerLost { .. }));
    // The survivors go on without anybody's vote.
    stage.reduce_successfully(&[ann, bob], 7);
    assert!(stage.is_waiting(dan, theirs[0]) && stage.is_waiting(eve, theirs[1]));
    assert_eq!(stage.actors[dan.0].opened.len(), opened, "their epoch is the same");
    stage.done(dan, 7);
    stage.done(eve, 7);
    assert_eq!(stage.result(dan, theirs[0]), Some(&Ok(Completion::Reduced { world: 2 })));
}

#[test]
fn a_topology_vote_beside_a_waiting_collective_fails_at_once_and_names_both() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    let reducing = stage.reduce(ann, 5);
    stage.pass(secs(1));
    let voting = stage.update_topology(bob);
    stage.settle();
    for cause in [stage.abort_cause(ann, reducing), stage.vote_cause(bob, voting)] {
        let text = cause.to_string();
        assert!(text.contains("bob waits in update_topology"), "{text}");
        assert!(text.contains("ann waits in all-reduce") && text.contains("tag 5"), "{text}");
    }
    // The sequence of the tag stays equal, also for the third.
    stage.reduce_successfully(&[ann, bob, cid], 5);
}

#[test]
fn the_order_of_contradicting_calls_does_not_matter() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let voting = stage.update_topology(bob);
    stage.settle();
    let reducing = stage.reduce(ann, 5);
    assert!(stage.is_waiting(bob, voting), "a collective that was just started may be done at once");
    stage.pass(secs(1));
    assert!(matches!(stage.abort_cause(ann, reducing), Cause::Mismatch { .. }));
    assert!(matches!(stage.vote_cause(bob, voting), Cause::Mismatch { .. }));
}

#[test]
fn different_votes_fail_at_once_and_name_both() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let now = stage.now;
    let offer = super::sharing_state::offer(0, &[1]);
    let syncing = stage.peer(ann).sync_shared_state(now, None, offer).unwrap();
    let voting = stage.update_topology(bob);
    stage.settle();
    for cause in [stage.vote_cause(ann, syncing), stage.vote_cause(bob, voting)] {
        let text = cause.to_string();
        assert!(text.contains("bob waits in update_topology"), "{text}");
        assert!(text.contains("ann waits in sync_shared_state"), "{text}");
    }
    let (topology, optimising) = (stage.update_topology(ann), stage.optimise(bob));
    stage.settle();
    assert!(matches!(stage.vote_cause(ann, topology), Cause::Mismatch { .. }));
    assert!(matches!(stage.vote_cause(bob, optimising), Cause::Mismatch { .. }));
    stage.admit_all();
}

#[test]
fn a_group_may_share_its_state_while_another_waits_in_a_topology_vote() {
    let mut stage = Stage::new();
    let (ann, bob) = (stage.come("ann", 0), stage.come("bob", 1));
    stage.admit_all();
    let voting = stage.update_topology(ann);
    stage.settle();
    let now = stage.now;
    let offer = super::sharing_state::offer(0, &[1]);
    let syncing = stage.peer(bob).sync_shared_state(now, None, offer).unwrap();
    stage.settle();
    assert!(stage.result(bob, syncing).is_some_and(Result::is_ok));
    assert!(stage.is_waiting(ann, voting));
    let other = stage.update_topology(bob);
    stage.settle();
    stage.all_got(&[(ann, voting), (bob, other)], &Ok(Completion::Topology));
}

#[test]
fn a_collective_during_an_exclusive_vote_of_the_same_peer_is_misuse() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    stage.update_topology(ann);
    assert!(matches!(stage.collective(ann, 1, sum_of(1)), Err(Failure::Misuse(_))));
    let now = stage.now;
    assert!(matches!(stage.peer(ann).update_topology(now, None), Err(Failure::Misuse(_))));
    assert!(matches!(stage.peer(ann).optimize_topology(now, None), Err(Failure::Misuse(_))));
    stage.update_topology(bob);
    stage.settle();
    stage.reduce_successfully(&[ann, bob], 1);
}
