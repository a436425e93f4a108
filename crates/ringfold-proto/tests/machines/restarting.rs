//! Restarts of the master.

use super::test_run::{OpState, TestRun, ms, secs, sum_of};
use ringfold_proto::cause::{Cause, Departure, JoinRejection, Removal};
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::peer::{Completion, Failure};

#[test]
fn an_outcome_that_one_member_has_seen_holds_for_all() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let calls = run.reduce_all(&[ann, bob], 1);
    run.hold_down(bob);
    run.done(ann, 1);
    run.done(bob, 1);
    assert!(run.result(ann, calls[0]).is_some_and(Result::is_ok));
    run.crash_master();
    run.release(bob);
    assert!(run.is_waiting(bob, calls[1]));
    run.start_master();
    run.advance_time(secs(1));
    assert_eq!(run.result(bob, calls[1]), Some(&Ok(Completion::Reduced { world: 2 })));
    run.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn an_abort_that_one_member_has_seen_holds_for_all() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let hasty = Descriptor { deadline_ms: 1_000, ..sum_of(100) };
    let calls = [run.collective(ann, 1, hasty).unwrap(), run.reduce(bob, 1), run.reduce(cid, 1)];
    run.hold_down(bob);
    run.hold_down(cid);
    run.hold_up(cid);
    run.done(bob, 1);
    run.advance_time(secs(2));
    assert!(matches!(run.abort_cause(ann, calls[0]), Cause::Timeout(_)));
    run.done(cid, 1);
    run.crash_master();
    run.release(bob);
    run.release(cid);
    run.start_master();
    run.advance_time(secs(1));
    assert!(matches!(run.abort_cause(bob, calls[1]), Cause::Timeout(_)));
    assert!(matches!(run.abort_cause(cid, calls[2]), Cause::Timeout(_)));
    run.reduce_successfully(&[ann, bob, cid], 1);
}

#[test]
fn an_operation_that_all_returned_members_have_done_is_committed() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let calls = run.reduce_all(&[ann, bob], 1);
    // Their votes never arrive.
    run.hold_up(ann);
    run.hold_up(bob);
    run.done(ann, 1);
    run.done(bob, 1);
    run.crash_master();
    run.release(ann);
    run.release(bob);
    run.start_master();
    run.advance_time(secs(1));
    for (who, call) in [ann, bob].into_iter().zip(calls) {
        assert_eq!(run.result(who, call), Some(&Ok(Completion::Reduced { world: 2 })));
    }
}

#[test]
fn a_missing_member_and_a_lacking_result_abort_and_name_the_missing_one() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let lacking = run.reduce_all(&[ann, bob, cid], 1);
    let complete = run.reduce_all(&[ann, bob, cid], 2);
    run.done(ann, 2);
    run.done(bob, 2);
    run.crash_master();
    run.kill(cid);
    run.start_master();
    run.advance_time(secs(2));
    assert!(run.is_waiting(ann, lacking[0]), "the others are given time to return");
    run.advance_time(secs(10));
    for (who, call) in [(ann, lacking[0]), (bob, lacking[1])] {
        let Cause::PeerLost { who: lost, how } = run.abort_cause(who, call) else { panic!("lost") };
        assert_eq!((lost.name.as_str(), how), ("cid", &Departure::NotReturned));
    }
    // Operations that all returned members had done are committed.
    assert_eq!(run.result(ann, complete[0]), Some(&Ok(Completion::Reduced { world: 3 })));
    assert_eq!(run.result(bob, complete[1]), Some(&Ok(Completion::Reduced { world: 3 })));
    run.reduce_successfully(&[ann, bob], 1);
    assert_eq!(run.world(ann), 2);
}

#[test]
fn when_all_return_the_epoch_is_kept_and_running_operations_go_on() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let epoch = run.epoch(ann).id;
    let slow = Descriptor { deadline_ms: 20_000, ..sum_of(100) };
    let calls = [run.collective(ann, 1, slow).unwrap(), run.reduce(bob, 1)];
    let quiet = run.reduce(ann, 2);
    run.advance_time(secs(1));
    run.done(ann, 1);
    run.restart_master();
    run.advance_time(secs(5));
    assert_eq!(run.epoch(ann).id, epoch);
    assert!([(ann, calls[0]), (bob, calls[1]), (ann, quiet)].iter().all(|(w, c)| run.is_waiting(*w, *c)));
    run.done(bob, 1);
    assert_eq!(run.result(ann, calls[0]), Some(&Ok(Completion::Reduced { world: 2 })));
    run.reduce(bob, 2);
    run.done(bob, 2);
    run.done(ann, 2);
    assert_eq!(run.result(ann, quiet), Some(&Ok(Completion::Reduced { world: 2 })));
    assert_eq!(run.peers[ann.0].opened.len(), run.peers[bob.0].opened.len() + 1);
}

#[test]
fn an_operation_started_and_done_without_a_master_commits_when_there_is_one() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    run.crash_master();
    let calls = run.reduce_all(&[ann, bob], 1);
    run.done(ann, 1);
    run.done(bob, 1);
    run.advance_time(secs(10));
    assert!(run.is_waiting(ann, calls[0]));
    run.start_master();
    run.advance_time(secs(1));
    assert!(run.result(ann, calls[0]).is_some_and(Result::is_ok));
    assert!(run.result(bob, calls[1]).is_some_and(Result::is_ok));
}

#[test]
fn a_newcomer_that_was_accepted_before_the_members_returned_waits_again() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    run.crash_master();
    (run.peers[ann.0].cut, run.peers[bob.0].cut) = (true, true);
    run.start_master();
    let cid = run.connect_peer("cid", 0);
    assert!(run.is_connected(cid), "it is the first that the new master sees");
    run.release(ann);
    run.release(bob);
    run.advance_time(secs(1));
    assert!(!run.is_accepted(cid));
    run.reduce_successfully(&[ann, bob], 1);
    // Its calls wait too.
    let call = run.reduce(cid, 1);
    let asked = [(ann, run.ask_pending(ann)), (bob, run.ask_pending(bob))];
    run.settle();
    run.assert_results(&asked, &Ok(Completion::Pending(true)));
    let calls = [(ann, run.update_topology(ann)), (bob, run.update_topology(bob))];
    run.settle();
    run.assert_results(&calls, &Ok(Completion::Topology));
    let others = run.reduce_all(&[ann, bob], 1);
    [ann, bob, cid].into_iter().for_each(|w| run.done(w, 1));
    assert_eq!(run.result(cid, call), Some(&Ok(Completion::Reduced { world: 3 })));
    assert!(run.result(ann, others[0]).is_some_and(Result::is_ok));
}

#[test]
fn the_answer_of_a_vote_that_one_has_seen_is_given_to_the_other() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let cid = run.connect_peer("cid", 0);
    run.hold_down(bob);
    let asked = [(ann, run.ask_pending(ann)), (bob, run.ask_pending(bob))];
    run.settle();
    assert_eq!(run.result(ann, asked[0].1), Some(&Ok(Completion::Pending(true))));
    run.kill(cid);
    run.crash_master();
    run.release(bob);
    run.start_master();
    run.advance_time(secs(1));
    // No peer is pending any more, but all voters get the same answer.
    run.assert_results(&asked, &Ok(Completion::Pending(true)));
    let again = [(ann, run.ask_pending(ann)), (bob, run.ask_pending(bob))];
    run.settle();
    run.assert_results(&again, &Ok(Completion::Pending(false)));
}

#[test]
fn a_vote_without_a_known_answer_continues() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let anns = run.update_topology(ann);
    run.settle();
    run.restart_master();
    assert!(run.is_waiting(ann, anns));
    let bobs = run.update_topology(bob);
    run.settle();
    run.assert_results(&[(ann, anns), (bob, bobs)], &Ok(Completion::Topology));
}

#[test]
fn a_member_that_returns_too_late_is_rejected() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let call = run.ask_pending(bob);
    run.crash_master();
    run.peers[bob.0].cut = true;
    run.start_master();
    run.advance_time(secs(15));
    assert_eq!(run.epoch(ann).members.len(), 1, "the run continues");
    run.release(bob);
    run.advance_time(secs(1));
    let failure = run.failure(bob, call);
    assert_eq!(failure, &Failure::Removed(Removal::Rejected(JoinRejection::TooLate)));
    assert!(failure.to_string().contains("continued without it"), "{failure}");
}

#[test]
fn two_restarts_in_a_row_lose_nothing() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let epoch = run.epoch(ann).id;
    let calls = run.reduce_all(&[ann, bob], 1);
    run.done(ann, 1);
    run.restart_master();
    run.restart_master();
    assert_eq!(run.epoch(ann).id, epoch);
    run.done(bob, 1);
    assert!(run.result(ann, calls[0]).is_some_and(Result::is_ok));
    assert!(run.result(bob, calls[1]).is_some_and(Result::is_ok));
}

#[test]
fn a_master_that_dies_while_it_waits_for_members_loses_nothing() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let epoch = run.epoch(ann).id;
    let calls = run.reduce_all(&[ann, bob], 1);
    run.done(ann, 1);
    run.crash_master();
    run.peers[bob.0].cut = true;
    run.start_master();
    run.advance_time(secs(3));
    run.release(bob);
    run.restart_master();
    assert_eq!(run.epoch(bob).id, epoch);
    run.done(bob, 1);
    assert!(run.result(ann, calls[0]).is_some_and(Result::is_ok));
}

#[test]
fn members_of_consecutive_incarnations_belong_together() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let epoch = run.epoch(ann).id;
    let calls = run.reduce_all(&[ann, bob], 1);
    run.crash_master();
    // Only one of them hears of the second incarnation.
    run.hold_down(bob);
    run.start_master();
    run.advance_time(secs(1));
    run.done(ann, 1);
    run.crash_master();
    run.release(bob);
    run.start_master();
    run.advance_time(secs(1));
    assert_eq!(run.epoch(bob).id, epoch);
    run.done(bob, 1);
    assert!(run.result(ann, calls[0]).is_some_and(Result::is_ok));
    assert!(run.result(bob, calls[1]).is_some_and(Result::is_ok));
}

#[test]
fn a_member_that_reconnects_during_a_restore_gets_all_messages_again() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let calls = run.reduce_all(&[ann, bob], 1);
    run.crash_master();
    run.hold_down(bob);
    run.start_master();
    run.advance_time(secs(1));
    // Both have returned and the run continues, but that message is lost, and the master does not notice.
    run.break_unnoticed(bob);
    run.release(bob);
    run.advance_time(secs(1));
    assert!(run.departures().is_empty(), "{:?}", run.departures());
    run.done(ann, 1);
    run.done(bob, 1);
    assert!(run.result(ann, calls[0]).is_some_and(Result::is_ok));
    assert!(run.result(bob, calls[1]).is_some_and(Result::is_ok));
}

#[test]
fn groups_come_back_each_with_its_own_epoch() {
    let mut run = TestRun::new();
    let ann = run.connect_peer("ann", 0);
    let bob = run.connect_peer("bob", 0);
    let [cid, dan] = ["cid", "dan"].map(|n| run.connect_peer(n, 1));
    run.admit_all();
    let epochs = [run.epoch(ann).id, run.epoch(cid).id];
    let calls = run.reduce_all(&[cid, dan], 1);
    run.crash_master();
    run.kill(bob);
    run.start_master();
    run.advance_time(secs(10));
    assert_ne!(run.epoch(ann).id, epochs[0], "bob did not return");
    assert_eq!(run.epoch(cid).id, epochs[1]);
    run.done(cid, 1);
    run.done(dan, 1);
    assert!(run.result(cid, calls[0]).is_some_and(Result::is_ok));
}

#[test]
fn a_connection_that_is_superseded_loses_and_repeats_nothing() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let first = run.reduce_all(&[ann, bob], 1);
    run.hold_up(ann);
    run.hold_down(ann);
    run.done(ann, 1);
    let asked = run.ask_pending(ann);
    run.ask_pending(bob);
    run.done(bob, 1);
    // All messages in transit are lost, and the master does not notice.
    run.break_unnoticed(ann);
    run.release(ann);
    run.advance_time(secs(1));
    assert!(run.departures().is_empty());
    assert_eq!(run.result(ann, first[0]), Some(&Ok(Completion::Reduced { world: 2 })));
    assert_eq!(run.result(bob, first[1]), Some(&Ok(Completion::Reduced { world: 2 })));
    assert_eq!(run.result(ann, asked), Some(&Ok(Completion::Pending(false))));
    // A request that arrived, but whose answer was lost, counts once.
    let second = run.reduce_all(&[ann, bob], 1);
    run.hold_down(ann);
    run.done(ann, 1);
    run.done(bob, 1);
    run.break_unnoticed(ann);
    run.release(ann);
    run.advance_time(secs(1));
    assert!(run.result(ann, second[0]).is_some_and(Result::is_ok));
    run.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn a_peer_does_not_give_up_a_master_that_came_back_and_waits_for_others() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    run.crash_master();
    run.advance_time(secs(55));
    run.peers[bob.0].cut = true;
    run.start_master();
    run.advance_time(secs(12));
    assert_eq!(run.epoch(ann).members.len(), 1, "the run continues without bob");
    run.reduce_alone_fails(ann);
}

#[test]
fn operations_are_decided_once_over_a_restart() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    for _ in 0..5 {
        run.reduce_successfully(&[ann, bob], 1);
    }
    run.restart_master();
    // The new incarnation knows the sequence of the tag; the sixth operation is next.
    run.reduce_successfully(&[ann, bob], 1);
    let states: Vec<_> = run.peers[bob.0].ops.values().copied().collect();
    assert_eq!(states, [OpState::Committed; 6]);
    run.advance_time(ms(10));
}

#[test]
fn a_member_that_waits_for_others_to_return_is_not_silent() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    run.crash_master();
    run.kill(bob);
    run.restart_master();
    // The grace time for bob is longer than the silence limit.
    run.advance_time(secs(12));
    assert!(run.is_accepted(ann));
    assert!(run.departures().iter().all(|d| !d.starts_with("ann")), "{:?}", run.departures());
}
