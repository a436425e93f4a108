//! Every wait has a deadline, and its error names the missing peers.

use super::sharing_state::offer;
use super::test_run::{OpState, TestRun, ms, secs, sum_of};
use ringfold_proto::cause::{Cause, JointCall, MissingPeer, Wait};
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::event::Event;
use ringfold_proto::id::Tag;
use ringfold_proto::message::Phase;
use ringfold_proto::peer::{Completion, Failure};

fn hasty(deadline_ms: u32) -> Descriptor {
    Descriptor { deadline_ms, ..sum_of(100) }
}

#[test]
fn a_deadline_aborts_the_operation_alone_and_names_who_was_waited_for() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let call = run.collective(ann, 1, hasty(2_000)).unwrap();
    let other = run.reduce_all(&[ann, bob, cid], 2);
    run.advance_time(ms(1_900));
    assert!(run.is_waiting(ann, call));
    run.advance_time(ms(200));
    let Cause::Timeout(wait) = run.abort_cause(ann, call) else { panic!("timeout") };
    assert_eq!(wait.names().cloned().collect::<Vec<_>>(), [run.named(bob), run.named(cid)]);
    assert!(run.is_waiting(ann, other[0]), "the other operation goes on");
    assert!(run.departures().is_empty(), "no peer is evicted for being slow");
    [ann, bob, cid].into_iter().for_each(|w| run.done(w, 2));
    assert!(run.result(bob, other[1]).is_some_and(Result::is_ok));
}

#[test]
fn waiting_peers_are_not_named() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let call = run.collective(ann, 1, hasty(2_000)).unwrap();
    run.collective(bob, 1, hasty(2_000)).unwrap();
    run.advance_time(ms(2_100));
    let Cause::Timeout(wait) = run.abort_cause(ann, call) else { panic!("timeout") };
    assert_eq!(wait.names().cloned().collect::<Vec<_>>(), [run.named(cid)]);
}

#[test]
fn the_next_operation_of_a_timed_out_tag_works_also_for_those_who_had_not_called() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let call = run.collective(ann, 1, hasty(1_000)).unwrap();
    let op = run.running(ann, 1).unwrap();
    run.advance_time(secs(2));
    assert!(matches!(run.abort_cause(ann, call), Cause::Timeout(_)));
    assert_eq!(run.peers[bob.0].ops.get(&op), Some(&OpState::Skipped), "told to all");
    run.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn a_complete_result_survives_the_deadline_of_its_call() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let anns = run.collective(ann, 1, hasty(1_000)).unwrap();
    let bobs = run.reduce(bob, 1);
    run.hold_down(ann);
    run.done(ann, 1);
    run.done(bob, 1);
    // The master has committed, and its message is late.
    run.advance_time(secs(3));
    run.release(ann);
    assert_eq!(run.result(ann, anns), Some(&Ok(Completion::Reduced { world: 2 })));
    assert_eq!(run.result(bob, bobs), Some(&Ok(Completion::Reduced { world: 2 })));
}

#[test]
fn a_slow_but_living_peer_never_trips_a_default_deadline() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let call = run.reduce(ann, 1);
    let cid = run.connect_peer("cid", 0);
    run.advance_time(secs(25 * 60));
    assert!(run.is_waiting(ann, call) && !run.is_connected(cid));
    assert!(run.departures().is_empty());
    run.reduce(bob, 1);
    run.done(bob, 1);
    run.done(ann, 1);
    assert!(run.result(ann, call).is_some_and(Result::is_ok));
    run.admit_all();
    assert!(run.is_connected(cid));
}

#[test]
fn a_default_deadline_ends_every_wait_in_the_end() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let reducing = run.reduce(ann, 1);
    let asking = run.ask_pending(ann);
    let cid = run.connect_peer("cid", 0);
    run.advance_time(secs(31 * 60));
    assert!(matches!(run.abort_cause(ann, reducing), Cause::Timeout(_)));
    let Cause::Timeout(wait) = run.vote_cause(ann, asking) else { panic!("timeout") };
    assert_eq!(wait.names().cloned().collect::<Vec<_>>(), [run.named(bob)]);
    let connecting = run.peers[cid.0].connecting.unwrap();
    assert!(matches!(run.failure(cid, connecting), Failure::MasterLost(_)));
}

#[test]
fn a_vote_with_a_short_deadline_fails_alone_and_can_be_repeated() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let now = run.now;
    let hasty = run.peer(ann).update_topology(now, Some(secs(2))).unwrap();
    let patient = run.update_topology(bob);
    run.advance_time(secs(3));
    let Cause::Timeout(wait) = run.vote_cause(ann, hasty) else { panic!("timeout") };
    assert_eq!(wait.names().cloned().collect::<Vec<_>>(), [run.named(cid)]);
    assert!(run.failure(ann, hasty).is_retryable());
    assert!(run.is_waiting(bob, patient));
    let again = [(ann, run.update_topology(ann)), (cid, run.update_topology(cid))];
    run.settle();
    run.assert_results(&again, &Ok(Completion::Topology));
    run.assert_results(&[(bob, patient)], &Ok(Completion::Topology));
}

#[test]
fn a_collective_that_never_gets_an_epoch_ends_with_its_deadline() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    run.crash_master();
    // Without a master there is no new epoch when a member dies.
    let call = run.collective(ann, 1, hasty(2_000)).unwrap();
    run.kill(cid);
    run.advance_time(secs(70));
    assert!(matches!(run.failure(ann, call), Failure::MasterLost(_)));
    assert_eq!(run.running(ann, 1), None, "nothing touches its buffers any more");
    let now = run.now;
    assert!(matches!(run.peer(bob).update_topology(now, None), Err(Failure::MasterLost(_))));
}

#[test]
fn a_silent_master_has_time_to_return_and_then_counts_as_lost() {
    let (mut run, [ann, _bob]) = TestRun::with_members();
    let call = run.ask_pending(ann);
    run.settle();
    run.hold_down(ann);
    run.hold_up(ann);
    run.advance_time(secs(30));
    assert!(run.is_waiting(ann, call), "it tries to come back");
    run.advance_time(secs(60));
    assert!(matches!(run.failure(ann, call), Failure::MasterLost(_)));
}

#[test]
fn missing_peers_are_logged_with_growing_intervals() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    run.update_topology(ann);
    run.advance_time(secs(60));
    let waits = run.events.iter().filter_map(|event| match event {
        Event::StillWaiting(None, note) => Some(note.clone()),
        _ => None,
    });
    let waits: Vec<Wait> = waits.collect();
    assert_eq!(waits.iter().map(|wait| wait.waited_ms).collect::<Vec<_>>(), [5_000, 10_000, 20_000, 40_000]);
    for wait in &waits {
        assert_eq!(wait.call, Some(JointCall::Vote(Phase::Topology)));
        assert_eq!(wait.names().cloned().collect::<Vec<_>>(), [run.named(bob)]);
        assert!(wait.missing[0].heard_ms.is_some_and(|ms| ms <= 500), "{wait:?}");
    }
    assert_eq!(run.peers[ann.0].warnings.len(), 4);
    assert!(run.peers[bob.0].warnings.is_empty());
}

#[test]
fn peers_that_wait_in_different_tags_are_told_of_each_other() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let calls = [(ann, run.reduce(ann, 1)), (bob, run.reduce(bob, 2))];
    run.advance_time(secs(6));
    for (who, mine, other, its) in [(ann, 1, bob, 2), (bob, 2, ann, 1)] {
        let call = |tag| JointCall::Collective(Collective::AllReduce, Tag(tag));
        let [wait] = &run.peers[who.0].warnings[..] else { panic!("one warning") };
        let heard_ms = wait.missing[0].heard_ms;
        let missing = vec![MissingPeer { who: run.named(other), waits_in: Some(call(its)), heard_ms }];
        assert_eq!(*wait, Wait { call: Some(call(mine)), waited_ms: wait.waited_ms, missing, begun: false });
        assert!(wait.is_mutual());
    }
    let text = run.peers[ann.0].warnings[0].to_string();
    assert!(
        text.starts_with("waiting for bob for 5 s: it has not called all_reduce tag 1 (last heard 0."),
        "{text}"
    );
    assert!(text.ends_with(" s ago: alive, waits in all_reduce tag 2)"), "{text}");
    // The missing calls may still come from another thread.
    assert!(calls.iter().all(|(who, call)| run.is_waiting(*who, *call)));
    run.reduce(ann, 2);
    run.reduce(bob, 1);
    for tag in [1, 2] {
        run.done(ann, tag);
        run.done(bob, tag);
    }
    run.assert_results(&calls, &Ok(Completion::Reduced { world: 2 }));
}

#[test]
fn a_long_collective_causes_no_warning() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    run.reduce_all(&[ann, bob], 1);
    run.advance_time(secs(60));
    assert!(run.peers[ann.0].warnings.is_empty() && run.peers[bob.0].warnings.is_empty());
}

#[test]
fn a_sync_that_waits_names_who_has_not_offered() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let now = run.now;
    run.peer(ann).sync_shared_state(now, None, offer(0, &[1])).expect("sync may be called");
    run.advance_time(secs(6));
    let [wait] = &run.peers[ann.0].warnings[..] else { panic!("one warning") };
    assert_eq!(wait.call, Some(JointCall::Vote(Phase::Sync)));
    assert_eq!(wait.names().cloned().collect::<Vec<_>>(), [run.named(bob)]);
}

#[test]
fn an_operation_that_a_peer_cannot_run_is_aborted_for_all_and_its_buffers_are_free() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let calls = run.reduce_all(&[ann, bob], 1);
    let op = run.running(ann, 1).expect("it was started");
    run.peer(ann).handle_op_refused(op);
    run.settle();
    assert_eq!(run.abort_cause(ann, calls[0]).to_string(), "ann cannot run the operation");
    assert_eq!(run.abort_cause(bob, calls[1]).to_string(), "ann cannot run the operation");
    run.reduce_successfully(&[ann, bob], 2);
}
