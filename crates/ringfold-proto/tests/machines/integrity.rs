//! Digests of results in votes, and corrupted payloads: what differs is not committed, and its peer is named.

use super::test_run::{PeerIndex, TestRun, secs, sum_of};
use ringfold_proto::cause::{Cause, Departure};
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::id::CallId;
use ringfold_proto::integrity::Integrity;
use ringfold_proto::peer::{Completion, FailureKind};

fn checked(run: &mut TestRun, who: &[PeerIndex], integrity: Integrity) -> Vec<CallId> {
    let descriptor = Descriptor { integrity, ..sum_of(100) };
    who.iter().map(|w| run.collective(*w, 1, descriptor).expect("a collective may be called")).collect()
}

/// An all-reduce of these peers with these digests, and how it failed on all.
fn failure<const N: usize>(run: &mut TestRun, who: [PeerIndex; N], digests: [u64; N]) -> Cause {
    let calls = checked(run, &who, Integrity::ALL);
    for (w, digest) in who.iter().zip(digests) {
        run.done_with(*w, 1, Some(digest));
    }
    let cause = run.abort_cause(who[0], calls[0]).clone();
    for (w, call) in who.iter().zip(calls) {
        assert_eq!(*run.abort_cause(*w, call), cause);
        assert!(run.failure(*w, call).is_retryable());
    }
    cause
}

fn assert_success<const N: usize>(run: &mut TestRun, who: [PeerIndex; N]) {
    let calls = checked(run, &who, Integrity::ALL);
    who.iter().for_each(|w| run.done_with(*w, 1, Some(7)));
    for (w, call) in who.into_iter().zip(calls) {
        assert_eq!(run.result(w, call), Some(&Ok(Completion::Reduced { world: N as u32 })));
    }
}

#[test]
fn of_three_results_the_one_that_differs_is_named_and_a_retry_succeeds() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let cause = failure(&mut run, [ann, bob, cid], [7, 8, 7]);
    assert_eq!(cause, Cause::ResultsDiffer { who: vec![run.named(bob)], agree: 2 });
    assert_eq!(cause.to_string(), "the result of bob differs from that of the other 2 peers");
    assert_success(&mut run, [ann, bob, cid]);
}

#[test]
fn of_two_results_that_differ_both_peers_are_named() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let Cause::ResultsDiffer { mut who, agree: 0 } = failure(&mut run, [ann, bob], [7, 8]) else {
        panic!("another cause");
    };
    let mut both = vec![run.named(ann), run.named(bob)];
    who.sort();
    both.sort();
    assert_eq!(who, both);
    assert_success(&mut run, [ann, bob]);
}

#[test]
fn without_a_majority_all_are_named() {
    let (mut run, [ann, bob, cid, dan]) = TestRun::with_members();
    let cause = failure(&mut run, [ann, bob, cid, dan], [7, 8, 8, 7]);
    assert!(matches!(&cause, Cause::ResultsDiffer { who, agree: 0 } if who.len() == 4), "{cause}");
}

#[test]
fn a_corrupted_payload_fails_the_operation_and_names_both_ends() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let calls = checked(&mut run, &[ann, bob, cid], Integrity::ALL);
    let (op, from) = (run.running(ann, 1).unwrap(), run.id(bob));
    run.peer(ann).handle_op_corrupted(op, from);
    run.settle();
    for (who, call) in [ann, bob, cid].into_iter().zip(calls) {
        let cause = Cause::Corrupted { from: run.named(bob), to: run.named(ann) };
        assert_eq!(*run.abort_cause(who, call), cause);
        assert_eq!(run.failure(who, call).kind(), FailureKind::Corrupted);
    }
    assert_success(&mut run, [ann, bob, cid]);
}

#[test]
fn peers_that_check_different_things_are_told() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let one = checked(&mut run, &[ann], Integrity::ALL)[0];
    let other = checked(&mut run, &[bob], Integrity::NONE)[0];
    run.done_with(ann, 1, Some(7));
    run.done(bob, 1);
    for (who, call) in [(ann, one), (bob, other)] {
        let cause = run.abort_cause(who, call);
        assert!(matches!(cause, Cause::Mismatch { .. }), "{cause}");
        assert!(cause.to_string().contains("integrity all"), "{cause}");
    }
}

#[test]
fn a_restarted_master_compares_results_whose_votes_were_lost() {
    for digests in [[7, 7], [7, 8]] {
        let (mut run, [ann, bob]) = TestRun::with_members();
        let calls = checked(&mut run, &[ann, bob], Integrity::ALL);
        // Their votes never arrive.
        run.hold_up(ann);
        run.hold_up(bob);
        run.done_with(ann, 1, Some(digests[0]));
        run.done_with(bob, 1, Some(digests[1]));
        run.crash_master();
        run.release(ann);
        run.release(bob);
        run.start_master();
        run.advance_time(secs(1));
        for (who, call) in [ann, bob].into_iter().zip(calls) {
            match run.result(who, call) {
                Some(Ok(_)) => assert_eq!(digests, [7, 7]),
                _ => {
                    let cause = run.abort_cause(who, call);
                    assert!(matches!(cause, Cause::ResultsDiffer { .. }) && digests == [7, 8], "{cause}");
                }
            }
        }
    }
}

#[test]
fn a_result_that_could_be_compared_with_none_is_not_committed_by_a_restarted_master() {
    for integrity in [Integrity::ALL, Integrity::NONE] {
        let (mut run, [ann, bob]) = TestRun::with_members();
        let calls = checked(&mut run, &[ann, bob], integrity);
        run.done_with(ann, 1, integrity.results.then_some(7));
        run.crash_master();
        run.kill(bob);
        run.start_master();
        run.advance_time(secs(12));
        if integrity.results {
            let cause = run.abort_cause(ann, calls[0]);
            assert!(matches!(cause, Cause::PeerLost { how: Departure::NotReturned, .. }), "{cause}");
        } else {
            assert_eq!(run.result(ann, calls[0]), Some(&Ok(Completion::Reduced { world: 2 })));
        }
    }
}
