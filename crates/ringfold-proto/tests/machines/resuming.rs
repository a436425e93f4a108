//! Operations that the survivors of a lost member resume.

use super::test_run::{OpState, PeerIndex, TestRun, secs, sum_of};
use ringfold_proto::cause::Cause;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::id::{CallId, OpId, PeerId, Seq};
use ringfold_proto::peer::Completion;

fn resumable() -> Descriptor {
    Descriptor { resume: true, ..sum_of(100) }
}

/// Calls a resumable operation on each of them, and says what they will hold of each other.
fn call_all(run: &mut TestRun, who: &[PeerIndex], tag: u64) -> Vec<CallId> {
    let ids: Vec<PeerId> = who.iter().map(|peer| run.peer(*peer).id()).collect();
    let mut calls = Vec::new();
    for (index, peer) in who.iter().enumerate() {
        let held = ids.iter().zip(0..).map(|(id, from)| (*id, 10 * index as u32 + from));
        run.peers[peer.0].held = Some(held.collect());
        calls.push(run.collective(*peer, tag, resumable()).unwrap());
    }
    run.advance_time(secs(1));
    calls
}

fn resumed(run: &TestRun, who: PeerIndex) -> Option<(OpId, Vec<u32>)> {
    run.peers[who.0].resumed.last().cloned()
}

#[test]
fn survivors_resume_an_operation_with_what_each_holds() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let calls = call_all(&mut run, &[ann, bob, cid], 1);
    let before = run.running(ann, 1).unwrap();
    run.kill(bob);
    let (op, held) = resumed(&run, ann).expect("it is resumed");
    assert_eq!(resumed(&run, cid), Some((op, held.clone())));
    assert_eq!(held, [0, 2, 20, 22], "bob, who had rank 1, is left out");
    assert!(op.epoch != before.epoch && op.tag == before.tag && op.seq == Seq(0), "it is a new operation");
    assert_eq!(run.peers[ann.0].ops[&before], OpState::Aborted);
    assert!(run.is_waiting(ann, calls[0]) && run.is_waiting(cid, calls[2]), "no call has failed");
    run.done(ann, 1);
    run.done(cid, 1);
    for (who, call) in [(ann, calls[0]), (cid, calls[2])] {
        assert_eq!(run.result(who, call), Some(&Ok(Completion::Reduced { world: 2 })));
    }
    run.reduce_successfully(&[ann, cid], 1);
}

#[test]
fn an_operation_loses_one_member_after_the_other() {
    let (mut run, [ann, bob, cid, dan]) = TestRun::with_members();
    let calls = call_all(&mut run, &[ann, bob, cid, dan], 1);
    run.kill(dan);
    assert!(resumed(&run, ann).is_some());
    run.kill(cid);
    let (op, held) = resumed(&run, ann).unwrap();
    assert_eq!((held.len(), run.peers[bob.0].resumed.len()), (4, 2));
    assert_eq!(resumed(&run, bob).unwrap().0, op);
    run.done(ann, 1);
    run.done(bob, 1);
    assert_eq!(run.result(bob, calls[1]), Some(&Ok(Completion::Reduced { world: 2 })));
}

#[test]
fn an_operation_that_a_survivor_has_not_called_fails_for_all() {
    let (mut run, [ann, bob, cid, dan]) = TestRun::with_members();
    let calls = call_all(&mut run, &[ann, bob, cid], 1);
    run.kill(cid);
    for (who, call) in [(ann, calls[0]), (bob, calls[1])] {
        assert!(matches!(run.abort_cause(who, call), Cause::PeerLost { .. }));
        assert_eq!(resumed(&run, who), None);
    }
    run.reduce_successfully(&[ann, bob, dan], 1);
}

#[test]
fn an_operation_that_a_survivor_cannot_resume_fails_for_all() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let calls = call_all(&mut run, &[ann, bob, cid], 1);
    run.peers[ann.0].held = None;
    run.kill(cid);
    for (who, call) in [(ann, calls[0]), (bob, calls[1])] {
        assert!(matches!(run.abort_cause(who, call), Cause::PeerLost { .. }));
    }
    run.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn a_last_survivor_resumes_nothing() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let calls = call_all(&mut run, &[ann, bob], 1);
    run.kill(bob);
    assert!(matches!(run.abort_cause(ann, calls[0]), Cause::PeerLost { .. }));
}

#[test]
fn the_next_epoch_waits_until_suspended_buffers_are_free() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let calls = call_all(&mut run, &[ann, bob, cid], 1);
    run.peers[ann.0].keeps_buffers = true;
    let before = run.running(ann, 1).unwrap();
    run.kill(cid);
    assert_eq!(resumed(&run, bob), None, "ann has not reported");
    let held = run.peers[ann.0].held.clone();
    run.peer(ann).handle_op_suspended(before, held);
    run.settle();
    assert!(resumed(&run, ann).is_some() && resumed(&run, ann) == resumed(&run, bob));
    assert!(run.is_waiting(bob, calls[1]));
}
