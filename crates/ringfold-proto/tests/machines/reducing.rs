//! Collectives: one outcome for all.

use super::test_run::{OpState, TestRun, ms, secs, sum_of};
use ringfold_proto::cause::{Cause, Departure};
use ringfold_proto::id::{Seq, Tag};
use ringfold_proto::message::ToMaster;
use ringfold_proto::peer::{Completion, Failure};

#[test]
fn a_collective_alone_has_too_few_peers() {
    let (mut run, [ann]) = TestRun::with_members();
    assert_eq!(run.collective(ann, 1, sum_of(1)), Err(Failure::TooFewPeers));
    run.connect_peer("bob", 0);
    assert_eq!(run.collective(ann, 1, sum_of(1)), Err(Failure::TooFewPeers), "who waits does not count");
}

#[test]
fn a_tag_is_in_flight_until_its_buffers_are_free() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    run.peers[ann.0].keeps_buffers = true;
    let calls = run.reduce_all(&[ann, bob], 1);
    assert!(matches!(run.collective(ann, 1, sum_of(100)), Err(Failure::BadArgument(_))));
    run.done(ann, 1);
    run.done(bob, 1);
    assert!(run.is_waiting(ann, calls[0]), "committed, but something may still touch its memory");
    assert!(matches!(run.collective(ann, 1, sum_of(100)), Err(Failure::BadArgument(_))));
    let op = run.peers[ann.0].started[0].0;
    run.peer(ann).handle_op_released(op);
    run.settle();
    assert!(run.result(ann, calls[0]).is_some_and(Result::is_ok));
    run.peers[ann.0].keeps_buffers = false;
    run.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn a_collective_commits_when_all_have_voted_and_not_before() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let calls = run.reduce_all(&[ann, bob, cid], 1);
    run.done(ann, 1);
    run.done(bob, 1);
    run.advance_time(secs(60));
    assert!(run.is_waiting(ann, calls[0]) && run.is_waiting(bob, calls[1]));
    run.done(cid, 1);
    for (who, call) in [ann, bob, cid].into_iter().zip(calls) {
        assert_eq!(run.result(who, call), Some(&Ok(Completion::Reduced { world: 3 })));
    }
}

#[test]
fn a_fast_peer_may_use_a_tag_again_before_a_slow_one_has_heard_of_its_end() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let first = run.reduce_all(&[ann, bob], 1);
    run.done(ann, 1);
    run.hold_down(bob);
    run.done(bob, 1);
    let second = run.reduce(ann, 1);
    assert_eq!(run.running(ann, 1).map(|op| op.seq), Some(Seq(1)));
    run.advance_time(secs(1));
    assert!(run.is_waiting(bob, first[1]));
    run.release(bob);
    assert!(run.result(bob, first[1]).is_some_and(Result::is_ok));
    let bobs = run.reduce(bob, 1);
    run.done(ann, 1);
    run.done(bob, 1);
    assert!(run.result(ann, second).is_some_and(Result::is_ok));
    assert!(run.result(bob, bobs).is_some_and(Result::is_ok));
}

#[test]
fn a_peer_that_leaves_right_after_its_own_success_does_not_fail_it_elsewhere() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let calls = run.reduce_all(&[ann, bob, cid], 1);
    run.hold_down(ann);
    run.hold_down(bob);
    [ann, bob, cid].into_iter().for_each(|w| run.done(w, 1));
    assert!(run.result(cid, calls[2]).is_some_and(Result::is_ok));
    run.leave(cid);
    run.release(ann);
    run.release(bob);
    assert_eq!(run.result(ann, calls[0]), Some(&Ok(Completion::Reduced { world: 3 })));
    assert_eq!(run.result(bob, calls[1]), Some(&Ok(Completion::Reduced { world: 3 })));
}

#[test]
fn a_lost_member_aborts_every_undecided_operation_also_those_some_have_not_started() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let one = run.reduce(ann, 1);
    let two = run.reduce(bob, 2);
    let three = run.reduce_all(&[ann, bob, cid], 3);
    run.advance_time(secs(1));
    run.kill(cid);
    let failed = [(ann, one), (bob, two), (ann, three[0]), (bob, three[1])];
    for (who, call) in failed {
        let Cause::PeerLost { who: lost, how } = run.abort_cause(who, call) else { panic!("lost") };
        assert_eq!((lost.name.as_str(), how), ("cid", &Departure::ConnectionLost));
    }
    for tag in 1..=3 {
        run.reduce_successfully(&[ann, bob], tag);
    }
}

#[test]
fn an_operation_that_all_living_members_have_done_is_committed() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let calls = run.reduce_all(&[ann, bob, cid], 1);
    let lacking = run.reduce(ann, 2);
    run.advance_time(secs(1));
    run.done(ann, 1);
    run.done(bob, 1);
    run.kill(cid);
    assert_eq!(run.result(ann, calls[0]), Some(&Ok(Completion::Reduced { world: 3 })));
    assert_eq!(run.result(bob, calls[1]), Some(&Ok(Completion::Reduced { world: 3 })));
    assert!(matches!(run.abort_cause(ann, lacking), Cause::PeerLost { .. }));
}

#[test]
fn an_operation_that_the_master_never_heard_of_ends_too_when_a_member_is_lost() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let call = run.reduce(ann, 1);
    assert!(run.is_waiting(ann, call));
    run.kill(cid);
    assert!(matches!(run.failure(ann, call), Failure::Aborted(_)));
    run.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn members_that_are_out_of_step_after_a_failure_do_not_wait_for_each_other() {
    // The master may have heard of the operations or not.
    for seconds in [0, 1] {
        let (mut run, [ann, bob, cid]) = TestRun::with_members();
        let calls = [(ann, run.reduce(ann, 1)), (bob, run.reduce(bob, 2))];
        run.advance_time(secs(seconds));
        run.kill(cid);
        for (who, call) in calls {
            assert!(matches!(run.abort_cause(who, call), Cause::PeerLost { .. }));
        }
        // Each makes its other call only now, and what has failed again only after that.
        let calls = [(ann, run.reduce(ann, 2)), (bob, run.reduce(bob, 1)), (ann, run.reduce(ann, 3))];
        run.advance_time(secs(4));
        assert!(calls.iter().all(|(who, call)| run.is_waiting(*who, *call)));
        run.advance_time(secs(2));
        for (who, call) in calls {
            assert!(matches!(run.abort_cause(who, call), Cause::PeerLost { .. }));
        }
        run.reduce_successfully(&[ann, bob], 1);
        run.reduce_successfully(&[ann, bob], 2);
        // Later operations may be made in any order.
        let calls = [(ann, run.reduce(ann, 1)), (bob, run.reduce(bob, 2))];
        run.advance_time(secs(20));
        assert!(calls.iter().all(|(who, call)| run.is_waiting(*who, *call)));
    }
}

#[test]
fn three_members_in_a_circle_are_out_of_step_too() {
    let (mut run, [ann, bob, cid, dan]) = TestRun::with_members();
    run.kill(dan);
    let three = [ann, bob, cid];
    let calls = [1, 2, 3].map(|tag| (three[tag - 1], run.reduce(three[tag - 1], tag as u64)));
    run.advance_time(secs(6));
    for (who, call) in calls {
        assert!(matches!(run.abort_cause(who, call), Cause::PeerLost { .. }));
    }
    run.reduce_successfully(&three, 1);
}

#[test]
fn descriptors_that_differ_are_an_error_on_all_that_names_both() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let calls = [
        (ann, run.collective(ann, 1, sum_of(100)).unwrap()),
        (bob, run.collective(bob, 1, sum_of(200)).unwrap()),
        (cid, run.collective(cid, 1, sum_of(100)).unwrap()),
    ];
    run.advance_time(secs(1));
    for (who, call) in calls {
        let text = run.abort_cause(who, call).to_string();
        assert!(text.contains("ann") && text.contains("100 x"), "{text}");
        assert!(text.contains("bob") && text.contains("200 x"), "{text}");
    }
    run.reduce_successfully(&[ann, bob, cid], 1);
}

#[test]
fn frames_that_do_not_fit_are_an_error_on_all_that_names_both() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let calls = run.reduce_all(&[ann, bob], 1);
    let op = run.running(ann, 1).unwrap();
    let bobs = run.id(bob);
    run.peer(ann).handle_op_mismatch(op, bobs);
    // Until bob's arguments are known.
    run.advance_time(secs(1));
    for (who, call) in [ann, bob].into_iter().zip(calls) {
        let Cause::Mismatch { one, other } = run.abort_cause(who, call) else { panic!("mismatch") };
        assert_eq!((one.who.name.as_str(), other.who.name.as_str()), ("ann", "bob"));
    }
}

#[test]
fn options_in_which_peers_may_differ_are_no_mismatch() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let mut urgent = sum_of(100);
    (urgent.priority, urgent.deadline_ms) = (9, 60_000);
    let calls = [run.collective(ann, 1, urgent).unwrap(), run.collective(bob, 1, sum_of(100)).unwrap()];
    run.advance_time(secs(1));
    run.done(ann, 1);
    run.done(bob, 1);
    assert!(run.result(ann, calls[0]).is_some_and(Result::is_ok));
    assert!(run.result(bob, calls[1]).is_some_and(Result::is_ok));
}

#[test]
fn tags_launched_in_any_order_are_decided_each_on_its_own() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let anns: Vec<_> = (0..8).map(|tag| run.reduce(ann, tag)).collect();
    let bobs: Vec<_> = (0..8).rev().map(|tag| run.reduce(bob, tag)).collect();
    for tag in [3, 1, 7, 0, 2, 6, 5, 4] {
        run.done(ann, tag);
        assert!(run.is_waiting(ann, anns[tag as usize]));
        run.done(bob, tag);
        assert!(run.result(ann, anns[tag as usize]).is_some_and(Result::is_ok));
        assert!(run.result(bob, bobs[7 - tag as usize]).is_some_and(Result::is_ok));
    }
}

#[test]
fn a_collective_called_while_no_epoch_is_open_starts_when_one_is() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    // The new epoch of the survivors takes a while, because the two must connect.
    run.make_slow(ann, bob);
    run.break_link(ann, bob);
    run.kill(cid);
    let call = run.reduce(ann, 1);
    assert_eq!(run.running(ann, 1), None);
    run.complete_link(ann, bob);
    assert!(run.running(ann, 1).is_some());
    run.reduce(bob, 1);
    run.done(bob, 1);
    run.done(ann, 1);
    assert_eq!(run.result(ann, call), Some(&Ok(Completion::Reduced { world: 2 })));
}

#[test]
fn an_operation_done_within_a_millisecond_costs_one_message() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    run.reduce_all(&[ann, bob], 1);
    let op = run.running(ann, 1).unwrap();
    assert_eq!((op.tag, op.seq), (Tag(1), Seq(0)));
    run.peer(ann).handle_op_done(op, None);
    let mut said = Vec::new();
    while let Some(action) = run.peer(ann).poll_action() {
        if let ringfold_proto::peer::PeerAction::Send { message, .. } = action {
            said.push(message.message);
        }
    }
    assert!(matches!(said[..], [ToMaster::OpVote { .. }]), "{said:?}");
}

#[test]
fn an_aborted_operation_is_aborted_in_the_executor_before_the_call_returns() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    run.peers[ann.0].keeps_buffers = true;
    let call = run.reduce(ann, 1);
    let op = run.running(ann, 1).unwrap();
    run.advance_time(ms(10));
    run.kill(bob);
    assert_eq!(run.peers[ann.0].ops[&op], OpState::Aborted);
    assert!(run.is_waiting(ann, call));
    run.peer(ann).handle_op_released(op);
    run.settle();
    assert!(matches!(run.abort_cause(ann, call), Cause::PeerLost { .. }));
}
