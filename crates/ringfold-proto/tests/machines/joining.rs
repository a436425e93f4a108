//! Joining a run.

use super::test_run::{TestRun, secs};
use ringfold_proto::cause::MasterLoss;
use ringfold_proto::peer::{Completion, Failure};

#[test]
fn the_first_peer_is_accepted_at_once() {
    let mut run = TestRun::new();
    let ann = run.connect_peer("ann", 0);
    assert!(run.is_connected(ann));
    assert_eq!((run.world(ann), run.global_world(ann)), (1, 1));
}

#[test]
fn a_later_peer_waits_until_all_members_vote_for_it() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let cid = run.connect_peer("cid", 0);
    run.advance_time(secs(600));
    assert!(!run.is_connected(cid));

    let anns = run.update_topology(ann);
    run.settle();
    assert!(!run.is_connected(cid) && run.is_waiting(ann, anns));

    let bobs = run.update_topology(bob);
    run.settle();
    assert!(run.is_connected(cid));
    run.assert_results(&[(ann, anns), (bob, bobs)], &Ok(Completion::Topology));
    assert_eq!([ann, bob, cid].map(|w| run.world(w)), [3; 3]);
}

#[test]
fn all_pending_peers_are_admitted_together() {
    let mut run = TestRun::new();
    let ann = run.connect_peer("ann", 0);
    let waiting = ["bob", "cid", "dan"].map(|name| run.connect_peer(name, 0));
    assert!(waiting.iter().all(|w| !run.is_connected(*w)));
    run.admit_all();
    assert!(waiting.iter().all(|w| run.is_connected(*w)));
    assert_eq!(run.world(ann), 4);
    // One new epoch for all of them.
    assert_eq!(run.peers[ann.0].opened.len(), 2);
}

#[test]
fn pending_peers_are_admitted_when_all_members_leave() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let (cid, dan) = (run.connect_peer("cid", 0), run.connect_peer("dan", 0));
    run.leave(ann);
    assert!(!run.is_connected(cid));
    run.kill(bob);
    // No neighbour can tell that it is dead.
    run.advance_time(secs(1));
    assert!(run.is_connected(cid) && run.is_connected(dan));
    assert_eq!(run.world(cid), 2);
}

#[test]
fn a_voter_that_dies_does_not_block_the_vote() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let dan = run.connect_peer("dan", 0);
    let calls = [(ann, run.update_topology(ann)), (bob, run.update_topology(bob))];
    run.kill(cid);
    run.assert_results(&calls, &Ok(Completion::Topology));
    assert!(run.is_connected(dan));
    assert_eq!(run.world(ann), 3);
}

#[test]
fn a_newcomers_connect_returns_only_when_its_groups_epoch_is_open() {
    let mut run = TestRun::new();
    let ann = run.connect_peer("ann", 0);
    let bob = run.connect_peer("bob", 0);
    run.make_slow(ann, bob);
    let call = run.update_topology(ann);
    run.advance_time(secs(1));
    assert!(run.is_accepted(bob) && !run.is_connected(bob), "accepted, but its ring does not hold yet");
    assert!(run.is_waiting(ann, call));
    run.complete_link(ann, bob);
    assert!(run.is_connected(bob));
    run.assert_results(&[(ann, call)], &Ok(Completion::Topology));
}

#[test]
fn connecting_twice_is_misuse() {
    let (mut run, [ann]) = TestRun::with_members();
    let now = run.now;
    assert!(matches!(run.peer(ann).connect(now, None), Err(Failure::Misuse(_))));
    let bob = run.connect_peer("bob", 0);
    assert!(matches!(run.peer(bob).connect(now, None), Err(Failure::Misuse(_))), "also while it waits");
    assert!(!run.is_connected(bob));
}

#[test]
fn nothing_can_be_called_before_connect_has_returned() {
    let mut run = TestRun::new();
    run.connect_peer("ann", 0);
    let (idle, waiting) = (run.new_peer("idle", 0), run.connect_peer("waiting", 0));
    let now = run.now;
    for who in [idle, waiting] {
        let failures = [
            run.peer(who).update_topology(now, None),
            run.peer(who).are_peers_pending(now, None),
            run.peer(who).optimize_topology(now, None),
            run.collective(who, 1, super::test_run::sum_of(1)),
        ];
        for failure in failures {
            assert!(matches!(failure, Err(Failure::Misuse(_))), "{failure:?}");
        }
    }
}

#[test]
fn without_a_master_connect_fails_at_once() {
    let mut run = TestRun::new();
    run.crash_master();
    let ann = run.connect_peer("ann", 0);
    let call = run.peers[ann.0].connecting.unwrap();
    assert!(matches!(run.failure(ann, call), Failure::MasterLost(MasterLoss::Unreachable(_))));
}

#[test]
fn a_pending_peer_that_leaves_is_forgotten() {
    let (mut run, [ann]) = TestRun::with_members();
    let bob = run.connect_peer("bob", 0);
    run.leave(bob);
    let call = run.ask_pending(ann);
    run.settle();
    assert_eq!(run.result(ann, call), Some(&Ok(Completion::Pending(false))));
    assert_eq!(run.peers[ann.0].opened.len(), 1, "no membership changed");
}

#[test]
fn a_pending_peer_that_loses_its_connection_joins_again() {
    let (mut run, [_ann]) = TestRun::with_members();
    let bob = run.connect_peer("bob", 0);
    // The master does not notice; the new peer dials again and is accepted.
    run.break_unnoticed(bob);
    run.advance_time(secs(1));
    run.admit_all();
    assert!(run.is_connected(bob), "{:?}", run.peers[bob.0].results);
}

#[test]
fn a_peer_that_missed_its_acceptance_joins_again() {
    let (mut run, [ann]) = TestRun::with_members();
    let bob = run.connect_peer("bob", 0);
    // It is accepted, and its connection breaks before it hears of that.
    run.hold_down(bob);
    let call = run.update_topology(ann);
    run.settle();
    run.break_unnoticed(bob);
    run.release(bob);
    run.advance_time(secs(1));
    run.assert_results(&[(ann, call)], &Ok(Completion::Topology));
    run.admit_all();
    assert!(run.is_connected(bob), "{:?}", run.peers[bob.0].results);
    run.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn a_newcomers_first_vote_is_not_counted_in_the_round_that_accepted_it() {
    // Two groups: that of the new peer opens at once, while the members of the other still connect.
    let mut run = TestRun::new();
    let ann = run.connect_peer("ann", 0);
    let (bob, cid) = (run.connect_peer("bob", 0), run.connect_peer("cid", 1));
    let dan = run.connect_peer("dan", 1);
    run.make_slow(cid, dan);
    let anns = run.update_topology(ann);
    run.settle();
    assert!(run.is_connected(bob) && run.is_waiting(ann, anns));
    let early = run.update_topology(bob);
    run.settle();
    run.complete_link(cid, dan);
    run.assert_results(&[(ann, anns)], &Ok(Completion::Topology));
    assert!(run.is_waiting(bob, early), "it votes for the next round, and the others have not voted");
    let calls: Vec<_> = [ann, cid, dan].map(|w| (w, run.update_topology(w))).into();
    run.settle();
    run.assert_results(&calls, &Ok(Completion::Topology));
    run.assert_results(&[(bob, early)], &Ok(Completion::Topology));
}
