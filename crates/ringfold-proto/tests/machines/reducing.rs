//! Collectives: one outcome for all.

use super::stage::{OpState, Stage, ms, secs, sum_of};
use ringfold_proto::cause::{Cause, Departure};
use ringfold_proto::id::{Seq, Tag};
use ringfold_proto::message::ToMaster;
use ringfold_proto::peer::{Completion, Failure};

#[test]
fn a_collective_alone_has_too_few_peers() {
    let (mut stage, [ann]) = Stage::with_members();
    assert_eq!(stage.collective(ann, 1, sum_of(1)), Err(Failure::TooFewPeers));
    stage.come("bob", 0);
    assert_eq!(stage.collective(ann, 1, sum_of(1)), Err(Failure::TooFewPeers), "who waits does not count");
}

#[test]
fn a_tag_is_in_flight_until_its_buffers_are_free() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    stage.actors[ann.0].keeps_buffers = true;
    let calls = stage.reduce_all(&[ann, bob], 1);
    assert!(matches!(stage.collective(ann, 1, sum_of(100)), Err(Failure::BadArgument(_))));
    stage.done(ann, 1);
    stage.done(bob, 1);
    assert!(stage.is_waiting(ann, calls[0]), "committed, but something may still touch its memory");
    assert!(matches!(stage.collective(ann, 1, sum_of(100)), Err(Failure::BadArgument(_))));
    let op = stage.actors[ann.0].started[0].0;
    stage.peer(ann).handle_op_released(op);
    stage.settle();
    assert!(stage.result(ann, calls[0]).is_some_and(Result::is_ok));
    stage.actors[ann.0].keeps_buffers = false;
    stage.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn a_collective_commits_when_all_have_voted_and_not_before() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    let calls = stage.reduce_all(&[ann, bob, cid], 1);
    stage.done(ann, 1);
    stage.done(bob, 1);
    stage.pass(secs(60));
    assert!(stage.is_waiting(ann, calls[0]) && stage.is_waiting(bob, calls[1]));
    stage.done(cid, 1);
    for (who, call) in [ann, bob, cid].into_iter().zip(calls) {
        assert_eq!(stage.result(who, call), Some(&Ok(Completion::Reduced { world: 3 })));
    }
}

#[test]
fn a_fast_peer_may_use_a_tag_again_before_a_slow_one_has_heard_of_its_end() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let first = stage.reduce_all(&[ann, bob], 1);
    stage.done(ann, 1);
    stage.hold_down(bob);
    stage.done(bob, 1);
    let second = stage.reduce(ann, 1);
    assert_eq!(stage.running(ann, 1).map(|op| op.seq), Some(Seq(1)));
    stage.pass(secs(1));
    assert!(stage.is_waiting(bob, first[1]));
    stage.let_go(bob);
    assert!(stage.result(bob, first[1]).is_some_and(Result::is_ok));
    let bobs = stage.reduce(bob, 1);
    stage.done(ann, 1);
    stage.done(bob, 1);
    assert!(stage.result(ann, second).is_some_and(Result::is_ok));
    assert!(stage.result(bob, bobs).is_some_and(Result::is_ok));
}

#[test]
fn a_peer_that_leaves_right_after_its_own_success_does_not_fail_it_elsewhere() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    let calls = stage.reduce_all(&[ann, bob, cid], 1);
    stage.hold_down(ann);
    stage.hold_down(bob);
    [ann, bob, cid].into_iter().for_each(|w| stage.done(w, 1));
    assert!(stage.result(cid, calls[2]).is_some_and(Result::is_ok));
    stage.leave(cid);
    stage.let_go(ann);
    stage.let_go(bob);
    assert_eq!(stage.result(ann, calls[0]), Some(&Ok(Completion::Reduced { world: 3 })));
    assert_eq!(stage.result(bob, calls[1]), Some(&Ok(Completion::Reduced { world: 3 })));
}

#[test]
fn a_lost_member_aborts_every_undecided_operation_also_those_some_have_not_started() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    let one = stage.reduce(ann, 1);
    let two = stage.reduce(bob, 2);
    let three = stage.reduce_all(&[ann, bob, cid], 3);
    stage.pass(secs(1));
    stage.kill(cid);
    let failed = [(ann, one), (bob, two), (ann, three[0]), (bob, three[1])];
    for (who, call) in failed {
        let Cause::PeerLost { who: lost, how } = stage.abort_cause(who, call) else { panic!("lost") };
        assert_eq!((lost.name.as_str(), how), ("cid", &Departure::ConnectionLost));
    }
    for tag in 1..=3 {
        stage.reduce_successfully(&[ann, bob], tag);
    }
}

#[test]
fn what_all_living_have_done_is_committed_even_if_a_lost_one_had_not_voted() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    let calls = stage.reduce_all(&[ann, bob, cid], 1);
    let lacking = stage.reduce(ann, 2);
    stage.pass(secs(1));
    stage.done(ann, 1);
    stage.done(bob, 1);
    stage.kill(cid);
    assert_eq!(stage.result(ann, calls[0]), Some(&Ok(Completion::Reduced { world: 3 })));
    assert_eq!(stage.result(bob, calls[1]), Some(&Ok(Completion::Reduced { world: 3 })));
    assert!(matches!(stage.abort_cause(ann, lacking), Cause::PeerLost { .. }));
}

#[test]
fn an_operation_that_the_master_never_heard_of_ends_too_when_a_member_is_lost() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    let call = stage.reduce(ann, 1);
    assert!(stage.is_waiting(ann, call));
    stage.kill(cid);
    assert!(matches!(stage.failure(ann, call), Failure::Aborted(_)));
    stage.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn descriptors_that_differ_are_an_error_on_all_that_names_both() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    let calls = [
        (ann, stage.collective(ann, 1, sum_of(100)).unwrap()),
        (bob, stage.collective(bob, 1, sum_of(200)).unwrap()),
        (cid, stage.collective(cid, 1, sum_of(100)).unwrap()),
    ];
    stage.pass(secs(1));
    for (who, call) in calls {
        let text = stage.abort_cause(who, call).to_string();
        assert!(text.contains("ann") && text.contains("100 x"), "{text}");
        assert!(text.contains("bob") && text.contains("200 x"), "{text}");
    }
    stage.reduce_successfully(&[ann, bob, cid], 1);
}

#[test]
fn frames_that_do_not_fit_are_an_error_on_all_that_names_both() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let calls = stage.reduce_all(&[ann, bob], 1);
    let op = stage.running(ann, 1).unwrap();
    let bobs = stage.id(bob);
    stage.peer(ann).handle_op_mismatch(op, bobs);
    // Until bob has said what he was asked for.
    stage.pass(secs(1));
    for (who, call) in [ann, bob].into_iter().zip(calls) {
        let Cause::Mismatch { one, other } = stage.abort_cause(who, call) else { panic!("mismatch") };
        assert_eq!((one.who.name.as_str(), other.who.name.as_str()), ("ann", "bob"));
    }
}

#[test]
fn what_peers_may_choose_for_themselves_is_no_mismatch() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let mut urgent = sum_of(100);
    (urgent.priority, urgent.deadline_ms) = (9, 60_000);
    let calls = [stage.collective(ann, 1, urgent).unwrap(), stage.collective(bob, 1, sum_of(100)).unwrap()];
    stage.pass(secs(1));
    stage.done(ann, 1);
    stage.done(bob, 1);
    assert!(stage.result(ann, calls[0]).is_some_and(Result::is_ok));
    assert!(stage.result(bob, calls[1]).is_some_and(Result::is_ok));
}

#[test]
fn tags_launched_in_any_order_are_decided_each_on_its_own() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let anns: Vec<_> = (0..8).map(|tag| stage.reduce(ann, tag)).collect();
    let bobs: Vec<_> = (0..8).rev().map(|tag| stage.reduce(bob, tag)).collect();
    for tag in [3, 1, 7, 0, 2, 6, 5, 4] {
        stage.done(ann, tag);
        assert!(stage.is_waiting(ann, anns[tag as usize]));
        stage.done(bob, tag);
        assert!(stage.result(ann, anns[tag as usize]).is_some_and(Result::is_ok));
        assert!(stage.result(bob, bobs[7 - tag as usize]).is_some_and(Result::is_ok));
    }
}

#[test]
fn a_collective_called_while_no_epoch_is_open_starts_when_one_is() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    // The survivors' new epoch takes a while, because the two must reach each other anew.
    stage.make_slow(ann, bob);
    stage.break_link(ann, bob);
    stage.kill(cid);
    let call = stage.reduce(ann, 1);
    assert_eq!(stage.running(ann, 1), None);
    stage.link_at_last(ann, bob);
    assert!(stage.running(ann, 1).is_some());
    stage.reduce(bob, 1);
    stage.done(bob, 1);
    stage.done(ann, 1);
    assert_eq!(stage.result(ann, call), Some(&Ok(Completion::Reduced { world: 2 })));
}

#[test]
fn an_operation_done_within_a_millisecond_costs_one_message() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    stage.reduce_all(&[ann, bob], 1);
    let op = stage.running(ann, 1).unwrap();
    assert_eq!((op.tag, op.seq), (Tag(1), Seq(0)));
    stage.peer(ann).handle_op_done(op);
    let mut said = Vec::new();
    while let Some(action) = stage.peer(ann).poll_action() {
        if let ringfold_proto::peer::PeerAction::Send { message, .. } = action {
            said.push(message.message);
        }
    }
    assert!(matches!(said[..], [ToMaster::OpVote { .. }]), "{said:?}");
}

#[test]
fn an_aborted_operation_is_aborted_in_the_executor_before_the_call_returns() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    stage.actors[ann.0].keeps_buffers = true;
    let call = stage.reduce(ann, 1);
    let op = stage.running(ann, 1).unwrap();
    stage.pass(ms(10));
    stage.kill(bob);
    assert_eq!(stage.actors[ann.0].ops[&op], OpState::Aborted);
    assert!(stage.is_waiting(ann, call));
    stage.peer(ann).handle_op_released(op);
    stage.settle();
    assert!(matches!(stage.abort_cause(ann, call), Cause::PeerLost { .. }));
}
