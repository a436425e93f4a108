//! A master that restarts takes up the run from what its members bring back.

use super::stage::{OpState, Stage, ms, secs, sum_of};
use ringfold_proto::cause::{Cause, Departure, JoinRejection, Removal};
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::peer::{Completion, Failure};

#[test]
fn an_outcome_that_one_has_seen_is_told_to_all() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let calls = stage.reduce_all(&[ann, bob], 1);
    stage.hold_down(bob);
    stage.done(ann, 1);
    stage.done(bob, 1);
    assert!(stage.result(ann, calls[0]).is_some_and(Result::is_ok));
    stage.crash_master();
    stage.let_go(bob);
    assert!(stage.is_waiting(bob, calls[1]));
    stage.start_master();
    stage.pass(secs(1));
    assert_eq!(stage.result(bob, calls[1]), Some(&Ok(Completion::Reduced { world: 2 })));
    stage.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn an_abort_that_one_has_seen_is_told_to_all_even_if_the_others_are_done() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    let hasty = Descriptor { deadline_ms: 1_000, ..sum_of(100) };
    let calls = [stage.collective(ann, 1, hasty).unwrap(), stage.reduce(bob, 1), stage.reduce(cid, 1)];
    stage.hold_down(bob);
    stage.hold_down(cid);
    stage.hold_up(cid);
    stage.done(bob, 1);
    stage.pass(secs(2));
    assert!(matches!(stage.abort_cause(ann, calls[0]), Cause::Timeout { .. }));
    stage.done(cid, 1);
    stage.crash_master();
    stage.let_go(bob);
    stage.let_go(cid);
    stage.start_master();
    stage.pass(secs(1));
    assert!(matches!(stage.abort_cause(bob, calls[1]), Cause::Timeout { .. }));
    assert!(matches!(stage.abort_cause(cid, calls[2]), Cause::Timeout { .. }));
    stage.reduce_successfully(&[ann, bob, cid], 1);
}

#[test]
fn what_all_who_returned_have_done_is_committed() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let calls = stage.reduce_all(&[ann, bob], 1);
    // Their votes never arrive.
    stage.hold_up(ann);
    stage.hold_up(bob);
    stage.done(ann, 1);
    stage.done(bob, 1);
    stage.crash_master();
    stage.let_go(ann);
    stage.let_go(bob);
    stage.start_master();
    stage.pass(secs(1));
    for (who, call) in [ann, bob].into_iter().zip(calls) {
        assert_eq!(stage.result(who, call), Some(&Ok(Completion::Reduced { world: 2 })));
    }
}

#[test]
fn a_missing_member_and_a_lacking_result_abort_and_name_the_missing_one() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    let lacking = stage.reduce_all(&[ann, bob, cid], 1);
    let complete = stage.reduce_all(&[ann, bob, cid], 2);
    stage.done(ann, 2);
    stage.done(bob, 2);
    stage.crash_master();
    stage.kill(cid);
    stage.start_master();
    stage.pass(secs(2));
    assert!(stage.is_waiting(ann, lacking[0]), "the others are given time to return");
    stage.pass(secs(10));
    for (who, call) in [(ann, lacking[0]), (bob, lacking[1])] {
        let Cause::PeerLost { who: lost, how } = stage.abort_cause(who, call) else { panic!("lost") };
        assert_eq!((lost.name.as_str(), how), ("cid", &Departure::NotReturned));
    }
    // What all who returned had done holds.
    assert_eq!(stage.result(ann, complete[0]), Some(&Ok(Completion::Reduced { world: 3 })));
    assert_eq!(stage.result(bob, complete[1]), Some(&Ok(Completion::Reduced { world: 3 })));
    stage.reduce_successfully(&[ann, bob], 1);
    assert_eq!(stage.world(ann), 2);
}

#[test]
fn when_all_return_the_epoch_is_kept_and_running_operations_go_on() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let epoch = stage.epoch(ann).id;
    let slow = Descriptor { deadline_ms: 20_000, ..sum_of(100) };
    let calls = [stage.collective(ann, 1, slow).unwrap(), stage.reduce(bob, 1)];
    let quiet = stage.reduce(ann, 2);
    stage.pass(secs(1));
    stage.done(ann, 1);
    stage.restart_master();
    stage.pass(secs(5));
    assert_eq!(stage.epoch(ann).id, epoch);
    assert!([(ann, calls[0]), (bob, calls[1]), (ann, quiet)].iter().all(|(w, c)| stage.is_waiting(*w, *c)));
    stage.done(bob, 1);
    assert_eq!(stage.result(ann, calls[0]), Some(&Ok(Completion::Reduced { world: 2 })));
    stage.reduce(bob, 2);
    stage.done(bob, 2);
    stage.done(ann, 2);
    assert_eq!(stage.result(ann, quiet), Some(&Ok(Completion::Reduced { world: 2 })));
    assert_eq!(stage.actors[ann.0].opened.len(), stage.actors[bob.0].opened.len() + 1);
}

#[test]
fn an_operation_started_and_done_without_a_master_commits_when_there_is_one() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    stage.crash_master();
    let calls = stage.reduce_all(&[ann, bob], 1);
    stage.done(ann, 1);
    stage.done(bob, 1);
    stage.pass(secs(10));
    assert!(stage.is_waiting(ann, calls[0]));
    stage.start_master();
    stage.pass(secs(1));
    assert!(stage.result(ann, calls[0]).is_some_and(Result::is_ok));
    assert!(stage.result(bob, calls[1]).is_some_and(Result::is_ok));
}

#[test]
fn a_newcomer_that_was_accepted_before_the_members_returned_waits_again() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    stage.crash_master();
    (stage.actors[ann.0].cut, stage.actors[bob.0].cut) = (true, true);
    stage.start_master();
    let cid = stage.come("cid", 0);
    assert!(stage.is_connected(cid), "it is the first that the new master sees");
    stage.let_go(ann);
    stage.let_go(bob);
    stage.pass(secs(1));
    assert!(!stage.is_accepted(cid));
    stage.reduce_successfully(&[ann, bob], 1);
    // What it calls waits with it.
    let call = stage.reduce(cid, 1);
    let asked = [(ann, stage.ask_pending(ann)), (bob, stage.ask_pending(bob))];
    stage.settle();
    stage.all_got(&asked, &Ok(Completion::Pending(true)));
    let calls = [(ann, stage.update_topology(ann)), (bob, stage.update_topology(bob))];
    stage.settle();
    stage.all_got(&calls, &Ok(Completion::Topology));
    let others = stage.reduce_all(&[ann, bob], 1);
    [ann, bob, cid].into_iter().for_each(|w| stage.done(w, 1));
    assert_eq!(stage.result(cid, call), Some(&Ok(Completion::Reduced { world: 3 })));
    assert!(stage.result(ann, others[0]).is_some_and(Result::is_ok));
}

#[test]
fn the_answer_of_a_vote_that_one_has_seen_is_given_to_the_other() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let cid = stage.come("cid", 0);
    stage.hold_down(bob);
    let asked = [(ann, stage.ask_pending(ann)), (bob, stage.ask_pending(bob))];
    stage.settle();
    assert_eq!(stage.result(ann, asked[0].1), Some(&Ok(Completion::Pending(true))));
    stage.kill(cid);
    stage.crash_master();
    stage.let_go(bob);
    stage.start_master();
    stage.pass(secs(1));
    // Nobody waits any more, but all get the same answer from one vote.
    stage.all_got(&asked, &Ok(Completion::Pending(true)));
    let again = [(ann, stage.ask_pending(ann)), (bob, stage.ask_pending(bob))];
    stage.settle();
    stage.all_got(&again, &Ok(Completion::Pending(false)));
}

#[test]
fn a_vote_that_nobody_saw_the_end_of_goes_on() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let anns = stage.update_topology(ann);
    stage.settle();
    stage.restart_master();
    assert!(stage.is_waiting(ann, anns));
    let bobs = stage.update_topology(bob);
    stage.settle();
    stage.all_got(&[(ann, anns), (bob, bobs)], &Ok(Completion::Topology));
}

#[test]
fn who_returns_too_late_is_refused_with_a_clear_error() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let call = stage.ask_pending(bob);
    stage.crash_master();
    stage.actors[bob.0].cut = true;
    stage.start_master();
    stage.pass(secs(15));
    assert_eq!(stage.epoch(ann).members.len(), 1, "the run goes on");
    stage.let_go(bob);
    stage.pass(secs(1));
    let failure = stage.failure(bob, call);
    assert_eq!(failure, &Failure::Removed(Removal::Rejected(JoinRejection::TooLate)));
    assert!(failure.to_string().contains("continued without it"), "{failure}");
}

#[test]
fn two_restarts_in_a_row_lose_nothing() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let epoch = stage.epoch(ann).id;
    let calls = stage.reduce_all(&[ann, bob], 1);
    stage.done(ann, 1);
    stage.restart_master();
    stage.restart_master();
    assert_eq!(stage.epoch(ann).id, epoch);
    stage.done(bob, 1);
    assert!(stage.result(ann, calls[0]).is_some_and(Result::is_ok));
    assert!(stage.result(bob, calls[1]).is_some_and(Result::is_ok));
}

#[test]
fn a_master_that_dies_while_it_waits_for_members_loses_nothing() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let epoch = stage.epoch(ann).id;
    let calls = stage.reduce_all(&[ann, bob], 1);
    stage.done(ann, 1);
    stage.crash_master();
    stage.actors[bob.0].cut = true;
    stage.start_master();
    stage.pass(secs(3));
    stage.let_go(bob);
    stage.restart_master();
    assert_eq!(stage.epoch(bob).id, epoch);
    stage.done(bob, 1);
    assert!(stage.result(ann, calls[0]).is_some_and(Result::is_ok));
}

#[test]
fn members_of_two_lives_in_a_row_belong_together() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let epoch = stage.epoch(ann).id;
    let calls = stage.reduce_all(&[ann, bob], 1);
    stage.crash_master();
    // Only one of them hears that the second life has taken over.
    stage.hold_down(bob);
    stage.start_master();
    stage.pass(secs(1));
    stage.done(ann, 1);
    stage.crash_master();
    stage.let_go(bob);
    stage.start_master();
    stage.pass(secs(1));
    assert_eq!(stage.epoch(bob).id, epoch);
    stage.done(bob, 1);
    assert!(stage.result(ann, calls[0]).is_some_and(Result::is_ok));
    assert!(stage.result(bob, calls[1]).is_some_and(Result::is_ok));
}

#[test]
fn a_member_whose_line_breaks_before_it_hears_that_the_run_goes_on_is_told_again() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let calls = stage.reduce_all(&[ann, bob], 1);
    stage.crash_master();
    stage.hold_down(bob);
    stage.start_master();
    stage.pass(secs(1));
    // Both have returned and the run goes on, but that word is lost, and the master does not notice.
    stage.break_unnoticed(bob);
    stage.let_go(bob);
    stage.pass(secs(1));
    assert!(stage.departures().is_empty(), "{:?}", stage.departures());
    stage.done(ann, 1);
    stage.done(bob, 1);
    assert!(stage.result(ann, calls[0]).is_some_and(Result::is_ok));
    assert!(stage.result(bob, calls[1]).is_some_and(Result::is_ok));
}

#[test]
fn groups_come_back_each_with_its_own_epoch() {
    let mut stage = Stage::new();
    let ann = stage.come("ann", 0);
    let bob = stage.come("bob", 0);
    let [cid, dan] = ["cid", "dan"].map(|n| stage.come(n, 1));
    stage.admit_all();
    let epochs = [stage.epoch(ann).id, stage.epoch(cid).id];
    let calls = stage.reduce_all(&[cid, dan], 1);
    stage.crash_master();
    stage.kill(bob);
    stage.start_master();
    stage.pass(secs(10));
    assert_ne!(stage.epoch(ann).id, epochs[0], "bob did not return");
    assert_eq!(stage.epoch(cid).id, epochs[1]);
    stage.done(cid, 1);
    stage.done(dan, 1);
    assert!(stage.result(cid, calls[0]).is_some_and(Result::is_ok));
}

#[test]
fn a_connection_that_is_superseded_loses_and_repeats_nothing() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let first = stage.reduce_all(&[ann, bob], 1);
    stage.hold_up(ann);
    stage.hold_down(ann);
    stage.done(ann, 1);
    let asked = stage.ask_pending(ann);
    stage.ask_pending(bob);
    stage.done(bob, 1);
    // All that was under way in either direction is lost, and the master does not notice.
    stage.break_unnoticed(ann);
    stage.let_go(ann);
    stage.pass(secs(1));
    assert!(stage.departures().is_empty());
    assert_eq!(stage.result(ann, first[0]), Some(&Ok(Completion::Reduced { world: 2 })));
    assert_eq!(stage.result(bob, first[1]), Some(&Ok(Completion::Reduced { world: 2 })));
    assert_eq!(stage.result(ann, asked), Some(&Ok(Completion::Pending(false))));
    // And what had arrived, but whose answer was lost, counts once.
    let second = stage.reduce_all(&[ann, bob], 1);
    stage.hold_down(ann);
    stage.done(ann, 1);
    stage.done(bob, 1);
    stage.break_unnoticed(ann);
    stage.let_go(ann);
    stage.pass(secs(1));
    assert!(stage.result(ann, second[0]).is_some_and(Result::is_ok));
    stage.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn a_peer_does_not_give_up_a_master_that_came_back_and_waits_for_others() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    stage.crash_master();
    stage.pass(secs(55));
    stage.actors[bob.0].cut = true;
    stage.start_master();
    stage.pass(secs(12));
    assert_eq!(stage.epoch(ann).members.len(), 1, "the run goes on without bob");
    stage.reduce_alone_fails(ann);
}

#[test]
fn operations_are_decided_once_over_a_restart() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    for _ in 0..5 {
        stage.reduce_successfully(&[ann, bob], 1);
    }
    stage.restart_master();
    // The new life knows how far the tag has come; the next one is the sixth.
    stage.reduce_successfully(&[ann, bob], 1);
    let states: Vec<_> = stage.actors[bob.0].ops.values().copied().collect();
    assert_eq!(states, [OpState::Committed; 6]);
    stage.pass(ms(10));
}

#[test]
fn a_member_that_waits_for_the_others_to_return_is_not_taken_for_silent() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    stage.crash_master();
    stage.kill(bob);
    stage.restart_master();
    // The grace for bob is longer than the silence that a peer is allowed.
    stage.pass(secs(12));
    assert!(stage.is_accepted(ann));
    assert!(stage.departures().iter().all(|d| !d.starts_with("ann")), "{:?}", stage.departures());
}
