//! Every wait ends, and says whom it was for.

use super::sharing_state::offer;
use super::stage::{OpState, Stage, ms, secs, sum_of};
use ringfold_proto::cause::{Cause, JointCall, MissingPeer, WaitWarning};
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::event::Event;
use ringfold_proto::id::Tag;
use ringfold_proto::message::Phase;
use ringfold_proto::peer::{Completion, Failure};

fn hasty(deadline_ms: u32) -> Descriptor {
    Descriptor { deadline_ms, ..sum_of(100) }
}

#[test]
fn a_deadline_aborts_the_operation_alone_and_names_who_was_waited_for() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    let call = stage.collective(ann, 1, hasty(2_000)).unwrap();
    let other = stage.reduce_all(&[ann, bob, cid], 2);
    stage.pass(ms(1_900));
    assert!(stage.is_waiting(ann, call));
    stage.pass(ms(200));
    let Cause::Timeout { waited_for } = stage.abort_cause(ann, call) else { panic!("timeout") };
    assert_eq!(waited_for, &[stage.named(bob), stage.named(cid)]);
    assert!(stage.is_waiting(ann, other[0]), "the other operation goes on");
    assert!(stage.departures().is_empty(), "nobody is put out for being slow");
    [ann, bob, cid].into_iter().for_each(|w| stage.done(w, 2));
    assert!(stage.result(bob, other[1]).is_some_and(Result::is_ok));
}

#[test]
fn whoever_waits_as_well_is_not_named() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    let call = stage.collective(ann, 1, hasty(2_000)).unwrap();
    stage.collective(bob, 1, hasty(2_000)).unwrap();
    stage.pass(ms(2_100));
    let Cause::Timeout { waited_for } = stage.abort_cause(ann, call) else { panic!("timeout") };
    assert_eq!(waited_for, &[stage.named(cid)]);
}

#[test]
fn the_next_operation_of_a_timed_out_tag_works_also_for_those_who_had_not_called() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let call = stage.collective(ann, 1, hasty(1_000)).unwrap();
    let op = stage.running(ann, 1).unwrap();
    stage.pass(secs(2));
    assert!(matches!(stage.abort_cause(ann, call), Cause::Timeout { .. }));
    assert_eq!(stage.actors[bob.0].ops.get(&op), Some(&OpState::Skipped), "told to all");
    stage.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn a_result_that_is_there_is_not_thrown_away_by_its_own_deadline() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let anns = stage.collective(ann, 1, hasty(1_000)).unwrap();
    let bobs = stage.reduce(bob, 1);
    stage.hold_down(ann);
    stage.done(ann, 1);
    stage.done(bob, 1);
    // The master has committed, and its word is late.
    stage.pass(secs(3));
    stage.let_go(ann);
    assert_eq!(stage.result(ann, anns), Some(&Ok(Completion::Reduced { world: 2 })));
    assert_eq!(stage.result(bob, bobs), Some(&Ok(Completion::Reduced { world: 2 })));
}

#[test]
fn a_slow_but_living_peer_never_trips_a_default_deadline() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let call = stage.reduce(ann, 1);
    let cid = stage.come("cid", 0);
    stage.pass(secs(25 * 60));
    assert!(stage.is_waiting(ann, call) && !stage.is_connected(cid));
    assert!(stage.departures().is_empty());
    stage.reduce(bob, 1);
    stage.done(bob, 1);
    stage.done(ann, 1);
    assert!(stage.result(ann, call).is_some_and(Result::is_ok));
    stage.admit_all();
    assert!(stage.is_connected(cid));
}

#[test]
fn a_default_deadline_ends_every_wait_in_the_end() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let reducing = stage.reduce(ann, 1);
    let asking = stage.ask_pending(ann);
    let cid = stage.come("cid", 0);
    stage.pass(secs(31 * 60));
    assert!(matches!(stage.abort_cause(ann, reducing), Cause::Timeout { .. }));
    let Cause::Timeout { waited_for } = stage.vote_cause(ann, asking) else { panic!("timeout") };
    assert_eq!(waited_for, &[stage.named(bob)]);
    let connecting = stage.actors[cid.0].connecting.unwrap();
    assert!(matches!(stage.failure(cid, connecting), Failure::MasterLost(_)));
}

#[test]
fn an_impatient_vote_fails_alone_and_can_be_repeated() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    let now = stage.now;
    let hasty = stage.peer(ann).update_topology(now, Some(secs(2))).unwrap();
    let patient = stage.update_topology(bob);
    stage.pass(secs(3));
    let Cause::Timeout { waited_for } = stage.vote_cause(ann, hasty) else { panic!("timeout") };
    assert_eq!(waited_for, &[stage.named(cid)]);
    assert!(stage.failure(ann, hasty).is_retryable());
    assert!(stage.is_waiting(bob, patient));
    let again = [(ann, stage.update_topology(ann)), (cid, stage.update_topology(cid))];
    stage.settle();
    stage.all_got(&again, &Ok(Completion::Topology));
    stage.all_got(&[(bob, patient)], &Ok(Completion::Topology));
}

#[test]
fn a_collective_that_never_gets_an_epoch_ends_with_its_deadline() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    stage.crash_master();
    // Without a master there is no new epoch when a member dies; the data just stops.
    let call = stage.collective(ann, 1, hasty(2_000)).unwrap();
    stage.kill(cid);
    stage.pass(secs(70));
    assert!(matches!(stage.failure(ann, call), Failure::MasterLost(_)));
    assert_eq!(stage.running(ann, 1), None, "nothing touches its buffers any more");
    let now = stage.now;
    assert!(matches!(stage.peer(bob).update_topology(now, None), Err(Failure::MasterLost(_))));
}

#[test]
fn a_master_that_falls_silent_is_given_time_to_return_and_then_taken_for_lost() {
    let (mut stage, [ann, _bob]) = Stage::with_members();
    let call = stage.ask_pending(ann);
    stage.settle();
    stage.hold_down(ann);
    stage.hold_up(ann);
    stage.pass(secs(30));
    assert!(stage.is_waiting(ann, call), "it tries to come back");
    stage.pass(secs(60));
    assert!(matches!(stage.failure(ann, call), Failure::MasterLost(_)));
}

#[test]
fn who_keeps_others_waiting_is_named_in_the_logs_less_and_less_often() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    stage.update_topology(ann);
    stage.pass(secs(60));
    let waits = stage.events.iter().filter_map(|event| match event {
        Event::StillWaiting(None, note) => Some(note.clone()),
        _ => None,
    });
    let missing = vec![MissingPeer { who: stage.named(bob), waits_in: None }];
    let note = WaitWarning { call: JointCall::Vote(Phase::Topology), missing };
    // After 5, 10, 20 and 40 seconds.
    assert_eq!(waits.collect::<Vec<_>>(), vec![note; 4]);
    assert_eq!(stage.actors[ann.0].notes.len(), 4);
    assert!(stage.actors[bob.0].notes.is_empty());
}

#[test]
fn peers_that_wait_in_different_tags_are_told_of_each_other() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let calls = [(ann, stage.reduce(ann, 1)), (bob, stage.reduce(bob, 2))];
    stage.pass(secs(6));
    for (who, mine, other, its) in [(ann, 1, bob, 2), (bob, 2, ann, 1)] {
        let waits_in = Some(JointCall::Collective(Tag(its)));
        let missing = vec![MissingPeer { who: stage.named(other), waits_in }];
        let note = WaitWarning { call: JointCall::Collective(Tag(mine)), missing };
        assert!(note.is_mutual());
        assert_eq!(stage.actors[who.0].notes, [note]);
    }
    let text = stage.actors[ann.0].notes[0].to_string();
    assert_eq!(text, "a collective of tag 1 still waits for bob (which waits in a collective of tag 2)");
    // It may have been no mistake: the missing calls come from another thread.
    assert!(calls.iter().all(|(who, call)| stage.is_waiting(*who, *call)));
    stage.reduce(ann, 2);
    stage.reduce(bob, 1);
    for tag in [1, 2] {
        stage.done(ann, tag);
        stage.done(bob, tag);
    }
    stage.all_got(&calls, &Ok(Completion::Reduced { world: 2 }));
}

#[test]
fn a_collective_that_all_run_for_long_is_no_reason_to_complain() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    stage.reduce_all(&[ann, bob], 1);
    stage.pass(secs(60));
    assert!(stage.actors[ann.0].notes.is_empty() && stage.actors[bob.0].notes.is_empty());
}

#[test]
fn a_sync_that_waits_names_who_has_not_offered() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let now = stage.now;
    stage.peer(ann).sync_shared_state(now, None, offer(0, &[1])).expect("sync may be called");
    stage.pass(secs(6));
    let missing = vec![MissingPeer { who: stage.named(bob), waits_in: None }];
    assert_eq!(stage.actors[ann.0].notes, [WaitWarning { call: JointCall::Vote(Phase::Sync), missing }]);
}

#[test]
fn an_operation_that_a_peer_can_not_run_is_aborted_for_all_and_its_buffers_are_free() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let calls = stage.reduce_all(&[ann, bob], 1);
    let op = stage.running(ann, 1).expect("it was started");
    stage.peer(ann).handle_op_refused(op);
    stage.settle();
    assert_eq!(stage.abort_cause(ann, calls[0]).to_string(), "ann cannot run the operation");
    assert_eq!(stage.abort_cause(bob, calls[1]).to_string(), "ann cannot run the operation");
    stage.reduce_successfully(&[ann, bob], 2);
}
