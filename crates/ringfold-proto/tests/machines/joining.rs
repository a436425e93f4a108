//! Who comes in, and when.

use super::stage::{Stage, secs};
use ringfold_proto::cause::MasterLoss;
use ringfold_proto::peer::{Completion, Failure};

#[test]
fn the_first_peer_is_accepted_at_once() {
    let mut stage = Stage::new();
    let ann = stage.come("ann", 0);
    assert!(stage.is_connected(ann));
    assert_eq!((stage.world(ann), stage.global_world(ann)), (1, 1));
}

#[test]
fn a_later_peer_waits_until_all_members_vote_for_it() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let cid = stage.come("cid", 0);
    stage.pass(secs(600));
    assert!(!stage.is_connected(cid));

    let anns = stage.update_topology(ann);
    stage.settle();
    assert!(!stage.is_connected(cid) && stage.is_waiting(ann, anns));

    let bobs = stage.update_topology(bob);
    stage.settle();
    assert!(stage.is_connected(cid));
    stage.all_got(&[(ann, anns), (bob, bobs)], &Ok(Completion::Topology));
    assert_eq!([ann, bob, cid].map(|w| stage.world(w)), [3; 3]);
}

#[test]
fn all_who_wait_are_admitted_together() {
    let mut stage = Stage::new();
    let ann = stage.come("ann", 0);
    let waiting = ["bob", "cid", "dan"].map(|name| stage.come(name, 0));
    assert!(waiting.iter().all(|w| !stage.is_connected(*w)));
    stage.admit_all();
    assert!(waiting.iter().all(|w| stage.is_connected(*w)));
    assert_eq!(stage.world(ann), 4);
    // One new membership for all of them, not one for each.
    assert_eq!(stage.actors[ann.0].opened.len(), 2);
}

#[test]
fn those_who_wait_are_admitted_when_all_members_leave() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let (cid, dan) = (stage.come("cid", 0), stage.come("dan", 0));
    stage.leave(ann);
    assert!(!stage.is_connected(cid));
    stage.kill(bob);
    assert!(stage.is_connected(cid) && stage.is_connected(dan));
    assert_eq!(stage.world(cid), 2);
}

#[test]
fn a_voter_that_dies_does_not_block_the_vote() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    let dan = stage.come("dan", 0);
    let calls = [(ann, stage.update_topology(ann)), (bob, stage.update_topology(bob))];
    stage.kill(cid);
    stage.all_got(&calls, &Ok(Completion::Topology));
    assert!(stage.is_connected(dan));
    assert_eq!(stage.world(ann), 3);
}

#[test]
fn a_newcomers_connect_returns_only_when_its_groups_epoch_is_open() {
    let mut stage = Stage::new();
    let ann = stage.come("ann", 0);
    let bob = stage.come("bob", 0);
    stage.make_slow(ann, bob);
    let call = stage.update_topology(ann);
    stage.pass(secs(1));
    assert!(stage.is_accepted(bob) && !stage.is_connected(bob), "accepted, but its ring does not hold yet");
    assert!(stage.is_waiting(ann, call));
    stage.link_at_last(ann, bob);
    assert!(stage.is_connected(bob));
    stage.all_got(&[(ann, call)], &Ok(Completion::Topology));
}

#[test]
fn connecting_twice_is_misuse() {
    let (mut stage, [ann]) = Stage::with_members();
    let now = stage.now;
    assert!(matches!(stage.peer(ann).connect(now, None), Err(Failure::Misuse(_))));
    let bob = stage.come("bob", 0);
    assert!(matches!(stage.peer(bob).connect(now, None), Err(Failure::Misuse(_))), "also while it waits");
    assert!(!stage.is_connected(bob));
}

#[test]
fn nothing_can_be_called_before_connect_has_returned() {
    let mut stage = Stage::new();
    stage.come("ann", 0);
    let (idle, waiting) = (stage.newcomer("idle", 0), stage.come("waiting", 0));
    let now = stage.now;
    for who in [idle, waiting] {
        let failures = [
            stage.peer(who).update_topology(now, None),
            stage.peer(who).are_peers_pending(now, None),
            stage.peer(who).optimize_topology(now, None),
            stage.collective(who, 1, super::stage::sum_of(1)),
        ];
        for failure in failures {
            assert!(matches!(failure, Err(Failure::Misuse(_))), "{failure:?}");
        }
    }
}

#[test]
fn without_a_master_connect_fails_at_once() {
    let mut stage = Stage::new();
    stage.crash_master();
    let ann = stage.come("ann", 0);
    let call = stage.actors[ann.0].connecting.unwrap();
    assert!(matches!(stage.failure(ann, call), Failure::MasterLost(MasterLoss::Unreachable(_))));
}

#[test]
fn who_leaves_while_it_waits_is_forgotten() {
    let (mut stage, [ann]) = Stage::with_members();
    let bob = stage.come("bob", 0);
    stage.leave(bob);
    let call = stage.ask_pending(ann);
    stage.settle();
    assert_eq!(stage.result(ann, call), Some(&Ok(Completion::Pending(false))));
    assert_eq!(stage.actors[ann.0].opened.len(), 1, "no membership changed");
}

#[test]
fn a_newcomer_whose_line_breaks_while_it_waits_joins_again() {
    let (mut stage, [_ann]) = Stage::with_members();
    let bob = stage.come("bob", 0);
    // The master's end does not notice; the newcomer dials again and is not taken for an intruder.
    stage.break_unnoticed(bob);
    stage.pass(secs(1));
    stage.admit_all();
    assert!(stage.is_connected(bob), "{:?}", stage.actors[bob.0].results);
}

#[test]
fn a_peer_that_was_accepted_unawares_joins_again() {
    let (mut stage, [ann]) = Stage::with_members();
    let bob = stage.come("bob", 0);
    // It is accepted, and its line breaks before it hears of that.
    stage.hold_down(bob);
    let call = stage.update_topology(ann);
    stage.settle();
    stage.break_unnoticed(bob);
    stage.let_go(bob);
    stage.pass(secs(1));
    stage.all_got(&[(ann, call)], &Ok(Completion::Topology));
    stage.admit_all();
    assert!(stage.is_connected(bob), "{:?}", stage.actors[bob.0].results);
    stage.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn a_newcomers_first_vote_is_not_counted_in_the_round_that_accepted_it() {
    // Two groups: the newcomer's opens at once, the other group is still reaching for its members.
    let mut stage = Stage::new();
    let ann = stage.come("ann", 0);
    let (bob, cid) = (stage.come("bob", 0), stage.come("cid", 1));
    let dan = stage.come("dan", 1);
    stage.make_slow(cid, dan);
    let anns = stage.update_topology(ann);
    stage.settle();
    assert!(stage.is_connected(bob) && stage.is_waiting(ann, anns));
    let early = stage.update_topology(bob);
    stage.settle();
    stage.link_at_last(cid, dan);
    stage.all_got(&[(ann, anns)], &Ok(Completion::Topology));
    assert!(stage.is_waiting(bob, early), "it votes for the next round, and the others have not voted");
    let calls: Vec<_> = [ann, cid, dan].map(|w| (w, stage.update_topology(w))).into();
    stage.settle();
    stage.all_got(&calls, &Ok(Completion::Topology));
    stage.all_got(&[(bob, early)], &Ok(Completion::Topology));
}
