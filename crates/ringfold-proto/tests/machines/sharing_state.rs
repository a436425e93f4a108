//! Syncs of shared state.

use super::test_run::{PeerIndex, TestRun, secs};
use ringfold_proto::cause::{Cause, Departure, StateRejection};
use ringfold_proto::dtype::DType;
use ringfold_proto::id::{CallId, Revision};
use ringfold_proto::peer::{Completion, Failure};
use ringfold_proto::recovery::{Recover, RecoverySettings};
use ringfold_proto::shared_state::{StateEntry, SyncOffer, SyncStrategy};

/// Older states are not taken by themselves.
pub const MANUAL: RecoverySettings = RecoverySettings { policy: Recover::Manual, after: secs(30), min: None };

/// An offer with one tensor per hash.
pub fn offer(revision: u64, hashes: &[u128]) -> SyncOffer {
    let entry = |(i, hash): (usize, &u128)| StateEntry {
        key: format!("w{i}"),
        dtype: DType::F32,
        count: 10,
        allow_content_inequality: false,
        hash: *hash,
    };
    let entries = hashes.iter().enumerate().map(entry).collect();
    SyncOffer { revision: Revision(revision), strategy: SyncStrategy::EnforcePopular, entries }
}

pub fn sync(run: &mut TestRun, who: PeerIndex, offer: SyncOffer) -> CallId {
    let now = run.now;
    let call = run.peer(who).sync_shared_state(now, None, offer).expect("sync may be called");
    run.settle();
    call
}

/// The fetches of the last assignment of a peer have ended.
pub fn fetched(run: &mut TestRun, who: PeerIndex, complete: bool) {
    let (call, number, _) = run.peers[who.0].assignments.last().expect("something was assigned");
    let (call, number) = (*call, *number);
    run.peer(who).handle_fetched(call, number, complete);
    run.settle();
}

pub fn synced(revision: u64) -> Result<Completion, Failure> {
    Ok(Completion::Synced(Revision(revision)))
}

#[test]
fn a_lone_peer_syncs_at_once_and_its_revision_must_be_the_next() {
    let (mut run, [ann]) = TestRun::with_members();
    // The first caller's revision is adopted.
    let call = sync(&mut run, ann, offer(7, &[1]));
    assert_eq!(run.result(ann, call), Some(&synced(7)));
    let call = sync(&mut run, ann, offer(8, &[2]));
    assert_eq!(run.result(ann, call), Some(&synced(8)));
    let call = sync(&mut run, ann, offer(12, &[3]));
    let Failure::StateRejected(why) = run.failure(ann, call) else { panic!("rejected") };
    assert!(why.to_string().contains("REVISION_INCREMENT_VIOLATION"), "{why}");
}

#[test]
fn peers_fetch_the_elected_content_and_then_all_are_synced() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let calls = [
        (ann, sync(&mut run, ann, offer(0, &[1, 2]))),
        (bob, sync(&mut run, bob, offer(0, &[1, 2]))),
        (cid, sync(&mut run, cid, offer(0, &[1, 9]))),
    ];
    let (_, _, assignment) = run.peers[cid.0].assignments[0].clone();
    assert_eq!(
        assignment.fetch.iter().map(|f| (f.entry, f.hash)).collect::<Vec<_>>(),
        [(1, 2)],
        "only what differs"
    );
    let mut sources = assignment.sources.clone();
    sources.sort_unstable();
    assert_eq!(sources, [run.id(ann), run.id(bob)]);
    assert_eq!(run.peers[ann.0].assignments[0].2.fetchers, [run.id(cid)]);
    assert!(calls.iter().all(|(w, c)| run.is_waiting(*w, *c)), "holders serve until all are done");
    fetched(&mut run, cid, true);
    run.assert_results(&calls, &synced(0));
}

#[test]
fn a_fetcher_that_fails_fails_alone() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let calls = [
        (ann, sync(&mut run, ann, offer(0, &[1]))),
        (bob, sync(&mut run, bob, offer(0, &[1]))),
        (cid, sync(&mut run, cid, offer(0, &[9]))),
    ];
    fetched(&mut run, cid, false);
    run.assert_results(&calls[..2], &synced(0));
    assert_eq!(run.failure(cid, calls[2].1), &Failure::StateRejected(StateRejection::HoldersLost));
    // It offers again, and is served.
    let again = [
        (ann, sync(&mut run, ann, offer(1, &[5]))),
        (bob, sync(&mut run, bob, offer(1, &[5]))),
        (cid, sync(&mut run, cid, offer(0, &[9]))),
    ];
    fetched(&mut run, cid, true);
    run.assert_results(&again, &synced(1));
}

#[test]
fn a_participants_death_does_not_fail_the_sync_while_a_holder_lives() {
    let (mut run, [ann, bob, cid, dan]) = TestRun::with_members();
    let calls = [
        (ann, sync(&mut run, ann, offer(0, &[1]))),
        (bob, sync(&mut run, bob, offer(0, &[1]))),
        (cid, sync(&mut run, cid, offer(0, &[9]))),
        (dan, sync(&mut run, dan, offer(0, &[8]))),
    ];
    run.kill(bob);
    run.kill(dan);
    assert!(run.is_waiting(ann, calls[0].1) && run.is_waiting(cid, calls[2].1));
    fetched(&mut run, cid, true);
    run.assert_results(&[calls[0], calls[2]], &synced(0));
}

#[test]
fn a_peer_that_dies_before_it_offers_does_not_block_the_election() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let calls = [(ann, sync(&mut run, ann, offer(0, &[1]))), (bob, sync(&mut run, bob, offer(0, &[1])))];
    run.kill(cid);
    run.assert_results(&calls, &synced(0));
}

#[test]
fn a_state_of_another_layout_is_rejected_with_its_key_and_the_others_continue() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let calls = [
        (ann, sync(&mut run, ann, offer(0, &[1, 2]))),
        (bob, sync(&mut run, bob, offer(0, &[1, 2]))),
        (cid, sync(&mut run, cid, offer(0, &[1, 2, 3]))),
    ];
    run.assert_results(&calls[..2], &synced(0));
    let want = Failure::StateRejected(StateRejection::Layout { key: "w2".into() });
    assert_eq!(run.failure(cid, calls[2].1), &want);
}

#[test]
fn a_newcomer_fetches_what_the_others_agree_on() {
    let (mut run, [ann]) = TestRun::with_members();
    for revision in 0..3 {
        sync(&mut run, ann, offer(revision, &[1]));
    }
    let bob = run.connect_peer("bob", 0);
    run.admit_all();
    let calls = [(bob, sync(&mut run, bob, offer(0, &[0]))), (ann, sync(&mut run, ann, offer(3, &[4])))];
    fetched(&mut run, bob, true);
    run.assert_results(&calls, &synced(3));
}

#[test]
fn a_sync_that_a_live_peer_does_not_join_fails_in_time_and_names_it() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let now = run.now;
    let call = run.peer(ann).sync_shared_state(now, Some(secs(2)), offer(0, &[1])).unwrap();
    run.advance_time(secs(3));
    let Cause::Timeout(wait) = run.vote_cause(ann, call) else { panic!("timeout") };
    assert_eq!(wait.names().cloned().collect::<Vec<_>>(), [run.named(bob)]);
}

#[test]
fn a_sync_fails_while_operations_are_not_awaited() {
    let (mut run, [ann, _bob]) = TestRun::with_members();
    run.reduce(ann, 1);
    let now = run.now;
    let refused = run.peer(ann).sync_shared_state(now, None, offer(0, &[1]));
    assert_eq!(refused, Err(Failure::PendingOperations(1)));
}

#[test]
fn a_transfer_that_never_ends_fails_the_fetcher_and_not_the_whole_group() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let calls = [
        (ann, sync(&mut run, ann, offer(0, &[1]))),
        (bob, sync(&mut run, bob, offer(0, &[1]))),
        (cid, sync(&mut run, cid, offer(0, &[9]))),
    ];
    // It sends heartbeats, but its fetches never end.
    run.advance_time(secs(2 * 60 * 60));
    run.assert_results(&calls[..2], &synced(0));
    assert!(!matches!(run.result(cid, calls[2].1), Some(Ok(_)) | None));
    run.reduce_successfully(&[ann, bob, cid], 1);
}

#[test]
fn a_restarted_master_does_not_report_a_rejected_peer_as_synced() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let dan = run.connect_peer("dan", 0);
    run.admit_all();
    let calls = [
        (ann, sync(&mut run, ann, offer(0, &[1]))),
        (bob, sync(&mut run, bob, offer(0, &[1, 2]))),
        (dan, sync(&mut run, dan, offer(0, &[7]))),
        (cid, sync(&mut run, cid, offer(0, &[1]))),
    ];
    // bob was rejected and dan could not fetch. The master dies before the end of the round reaches them.
    run.hold_down(bob);
    run.hold_down(dan);
    fetched(&mut run, dan, false);
    run.assert_results(&[calls[0], calls[3]], &synced(0));
    run.crash_master();
    run.release(bob);
    run.release(dan);
    run.start_master();
    run.advance_time(secs(1));
    let layout = Failure::StateRejected(StateRejection::Layout { key: "w1".into() });
    assert_eq!(run.failure(bob, calls[1].1), &layout);
    assert_eq!(run.failure(dan, calls[2].1), &Failure::StateRejected(StateRejection::HoldersLost));
}

#[test]
fn a_sync_that_the_master_did_not_finish_is_held_again_after_its_restart() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let calls = [(ann, sync(&mut run, ann, offer(0, &[1]))), (bob, sync(&mut run, bob, offer(0, &[9])))];
    run.restart_master();
    assert_eq!(run.peers[bob.0].assignments.len(), 2, "elected again");
    fetched(&mut run, bob, true);
    run.assert_results(&calls, &synced(0));
}

#[test]
fn after_the_last_member_has_left_another_run_starts() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    for revision in 0..3 {
        sync(&mut run, ann, offer(revision, &[1]));
        sync(&mut run, bob, offer(revision, &[1]));
    }
    run.leave(ann);
    run.leave(bob);
    let cid = run.connect_peer("cid", 0);
    let call = sync(&mut run, cid, offer(0, &[9]));
    assert_eq!(run.result(cid, call), Some(&synced(0)));
    let call = sync(&mut run, cid, offer(1, &[8]));
    assert_eq!(run.result(cid, call), Some(&synced(1)));
}

#[test]
fn after_the_death_of_the_last_member_a_new_start_is_never_silent() {
    let (mut run, [ann, bob]) = TestRun::with_recovery(MANUAL).connect_members();
    for revision in 0..3 {
        sync(&mut run, ann, offer(revision, &[1]));
        sync(&mut run, bob, offer(revision, &[1]));
    }
    run.leave(ann);
    run.kill(bob);
    run.advance_time(secs(1));
    // A peer that never held the state does not change that by leaving.
    for name in ["cid", "dan"] {
        let late = run.connect_peer(name, 0);
        let call = sync(&mut run, late, offer(0, &[9]));
        assert!(matches!(run.failure(late, call), Failure::StateRejected(StateRejection::NoHolder { .. })));
        run.leave(late);
    }
}

#[test]
fn a_pending_peer_learns_that_the_run_of_the_last_member_is_over() {
    let (mut run, [ann]) = TestRun::with_recovery(MANUAL).connect_members();
    sync(&mut run, ann, offer(0, &[1]));
    let bob = run.connect_peer("bob", 0);
    run.leave(ann);
    let call = sync(&mut run, bob, offer(0, &[9]));
    assert!(matches!(run.failure(bob, call), Failure::StateRejected(StateRejection::NoHolder { .. })));
}

/// A state with other keys than those of all other peers.
fn odd(revision: u64) -> SyncOffer {
    let mut odd = offer(revision, &[1]);
    odd.entries[0].key = "v".into();
    odd
}

/// A run in which the state of the third peer was rejected at its first sync.
fn with_rejected() -> (TestRun, [PeerIndex; 3]) {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let calls = [(ann, sync(&mut run, ann, offer(0, &[1]))), (bob, sync(&mut run, bob, offer(0, &[1])))];
    let rejected = sync(&mut run, cid, odd(0));
    run.assert_results(&calls, &synced(0));
    let layout = Failure::StateRejected(StateRejection::Layout { key: "w0".into() });
    assert_eq!(run.failure(cid, rejected), &layout);
    (run, [ann, bob, cid])
}

#[test]
fn a_sync_evicts_a_peer_that_is_silent_after_its_state_was_rejected() {
    let (mut run, [ann, bob, cid]) = with_rejected();
    let calls = [ann, bob].map(|who| (who, sync(&mut run, who, offer(1, &[1]))));
    run.advance_time(secs(1));
    assert!(run.is_waiting(ann, calls[0].1), "it may be about to offer again");
    run.advance_time(secs(6));
    run.assert_results(&calls, &synced(1));
    assert!(matches!(run.removal(cid), Departure::StateRejected(StateRejection::Layout { .. })));
}

#[test]
fn a_peer_whose_state_was_rejected_takes_part_in_the_next_sync_if_it_offers_soon() {
    let (mut run, [ann, bob, cid]) = with_rejected();
    let calls = [ann, bob].map(|who| (who, sync(&mut run, who, offer(1, &[1]))));
    run.advance_time(secs(4));
    let again = sync(&mut run, cid, offer(0, &[9]));
    run.advance_time(secs(60));
    assert!(run.is_waiting(ann, calls[0].1), "it fetches");
    fetched(&mut run, cid, true);
    run.assert_results(&calls, &synced(1));
    run.assert_results(&[(cid, again)], &synced(1));
    assert_eq!(run.members(), [ann, bob, cid]);
}

#[test]
fn a_peer_that_is_silent_after_its_state_was_rejected_is_evicted_when_others_wait_for_it() {
    let (mut run, [ann, bob, cid]) = with_rejected();
    // No peer waits for it yet.
    run.advance_time(secs(60));
    assert_eq!(run.members(), [ann, bob, cid]);
    let calls = run.reduce_all(&[ann, bob], 1);
    run.advance_time(secs(1));
    assert!(matches!(run.removal(cid), Departure::StateRejected(StateRejection::Layout { .. })));
    assert!(matches!(run.abort_cause(ann, calls[0]), Cause::PeerLost { .. }));
    run.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn a_vote_evicts_a_rejected_peer_that_stays_silent() {
    let (mut run, [ann, bob, cid]) = with_rejected();
    let calls = [(ann, run.update_topology(ann)), (bob, run.update_topology(bob))];
    run.advance_time(secs(1));
    assert!(run.is_waiting(ann, calls[0].1), "it may be about to vote");
    run.advance_time(secs(6));
    run.assert_results(&calls, &Ok(Completion::Topology));
    assert!(matches!(run.removal(cid), Departure::StateRejected(_)));
}

#[test]
fn a_peer_that_goes_on_calling_after_its_state_was_rejected_stays() {
    let (mut run, [ann, bob, cid]) = with_rejected();
    run.admit_all();
    // It takes part again.
    let calls = [ann, bob].map(|who| (who, sync(&mut run, who, offer(1, &[1]))));
    run.advance_time(secs(60));
    assert!(run.is_waiting(ann, calls[0].1));
    assert_eq!(run.members(), [ann, bob, cid]);
}

#[test]
fn a_sync_beside_collectives_does_not_exclude_them() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let now = run.now;
    let first = run.peer(ann).sync_beside(now, None, offer(0, &[1])).unwrap();
    run.settle();
    // It is not complete, and bob starts an operation before he takes part in it.
    let reduces = [run.reduce(bob, 5), run.reduce(ann, 5)];
    run.advance_time(secs(1));
    let refused = run.peer(ann).update_topology(now, None);
    assert!(matches!(refused, Err(Failure::PendingOperations(1))), "{refused:?}");
    for who in [ann, bob] {
        run.done(who, 5);
    }
    run.settle();
    let now = run.now;
    let refused = run.peer(ann).update_topology(now, None);
    assert!(matches!(refused, Err(Failure::Misuse(_))), "{refused:?}");
    let second = run.peer(bob).sync_beside(now, None, offer(0, &[1])).unwrap();
    run.settle();
    run.assert_results(&[(ann, first), (bob, second)], &synced(0));
    run.assert_results(&[(bob, reduces[0]), (ann, reduces[1])], &Ok(Completion::Reduced { world: 2 }));
}
