//! One content for all, fetched from whoever holds it.

use super::stage::{Stage, Who, secs};
use ringfold_proto::cause::{Cause, Departure, StateRejection};
use ringfold_proto::dtype::DType;
use ringfold_proto::id::{CallId, Revision};
use ringfold_proto::peer::{Completion, Failure};
use ringfold_proto::shared_state::{StateEntry, SyncOffer, SyncStrategy};

/// A state of as many tensors as there are hashes.
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

fn sync(stage: &mut Stage, who: Who, offer: SyncOffer) -> CallId {
    let now = stage.now;
    let call = stage.peer(who).sync_shared_state(now, None, offer).expect("sync may be called");
    stage.settle();
    call
}

/// The fetches that a peer was last told to make have ended.
fn fetched(stage: &mut Stage, who: Who, complete: bool) {
    let (call, number, _) = stage.actors[who.0].assignments.last().expect("something was assigned");
    let (call, number) = (*call, *number);
    stage.peer(who).handle_fetched(call, number, complete);
    stage.settle();
}

fn synced(revision: u64) -> Result<Completion, Failure> {
    Ok(Completion::Synced(Revision(revision)))
}

#[test]
fn a_lone_peer_syncs_at_once_and_its_revision_must_be_the_next() {
    let (mut stage, [ann]) = Stage::with_members();
    // The first caller's revision is adopted.
    let call = sync(&mut stage, ann, offer(7, &[1]));
    assert_eq!(stage.result(ann, call), Some(&synced(7)));
    let call = sync(&mut stage, ann, offer(8, &[2]));
    assert_eq!(stage.result(ann, call), Some(&synced(8)));
    let call = sync(&mut stage, ann, offer(12, &[3]));
    let Failure::StateRejected(why) = stage.failure(ann, call) else { panic!("rejected") };
    assert!(why.to_string().contains("RevisionIncrementViolation"), "{why}");
}

#[test]
fn who_lacks_the_elected_content_fetches_it_and_then_all_are_synced_together() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    let calls = [
        (ann, sync(&mut stage, ann, offer(0, &[1, 2]))),
        (bob, sync(&mut stage, bob, offer(0, &[1, 2]))),
        (cid, sync(&mut stage, cid, offer(0, &[1, 9]))),
    ];
    let (_, _, assignment) = stage.actors[cid.0].assignments[0].clone();
    assert_eq!(
        assignment.fetch.iter().map(|f| (f.entry, f.hash)).collect::<Vec<_>>(),
        [(1, 2)],
        "only what differs"
    );
    let mut sources = assignment.sources.clone();
    sources.sort_unstable();
    assert_eq!(sources, [stage.id(ann), stage.id(bob)]);
    assert_eq!(stage.actors[ann.0].assignments[0].2.fetchers, [stage.id(cid)]);
    assert!(calls.iter().all(|(w, c)| stage.is_waiting(*w, *c)), "holders serve until all are done");
    fetched(&mut stage, cid, true);
    stage.all_got(&calls, &synced(0));
}

#[test]
fn a_fetcher_that_fails_fails_alone() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    let calls = [
        (ann, sync(&mut stage, ann, offer(0, &[1]))),
        (bob, sync(&mut stage, bob, offer(0, &[1]))),
        (cid, sync(&mut stage, cid, offer(0, &[9]))),
    ];
    fetched(&mut stage, cid, false);
    stage.all_got(&calls[..2], &synced(0));
    assert_eq!(stage.failure(cid, calls[2].1), &Failure::StateRejected(StateRejection::HoldersLost));
    // It comes back with what it has, and is served.
    let again = [
        (ann, sync(&mut stage, ann, offer(1, &[5]))),
        (bob, sync(&mut stage, bob, offer(1, &[5]))),
        (cid, sync(&mut stage, cid, offer(0, &[9]))),
    ];
    fetched(&mut stage, cid, true);
    stage.all_got(&again, &synced(1));
}

#[test]
fn a_participants_death_does_not_fail_the_sync_while_a_holder_lives() {
    let (mut stage, [ann, bob, cid, dan]) = Stage::with_members();
    let calls = [
        (ann, sync(&mut stage, ann, offer(0, &[1]))),
        (bob, sync(&mut stage, bob, offer(0, &[1]))),
        (cid, sync(&mut stage, cid, offer(0, &[9]))),
        (dan, sync(&mut stage, dan, offer(0, &[8]))),
    ];
    stage.kill(bob);
    stage.kill(dan);
    assert!(stage.is_waiting(ann, calls[0].1) && stage.is_waiting(cid, calls[2].1));
    fetched(&mut stage, cid, true);
    stage.all_got(&[calls[0], calls[2]], &synced(0));
}

#[test]
fn a_peer_that_dies_before_it_offers_does_not_block_the_election() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    let calls = [(ann, sync(&mut stage, ann, offer(0, &[1]))), (bob, sync(&mut stage, bob, offer(0, &[1])))];
    stage.kill(cid);
    stage.all_got(&calls, &synced(0));
}

#[test]
fn whose_state_does_not_fit_is_told_at_which_key_and_the_rest_go_on() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    let calls = [
        (ann, sync(&mut stage, ann, offer(0, &[1, 2]))),
        (bob, sync(&mut stage, bob, offer(0, &[1, 2]))),
        (cid, sync(&mut stage, cid, offer(0, &[1, 2, 3]))),
    ];
    stage.all_got(&calls[..2], &synced(0));
    let want = Failure::StateRejected(StateRejection::Layout { key: "w2".into() });
    assert_eq!(stage.failure(cid, calls[2].1), &want);
}

#[test]
fn a_newcomer_fetches_what_the_others_agree_on() {
    let (mut stage, [ann]) = Stage::with_members();
    for revision in 0..3 {
        sync(&mut stage, ann, offer(revision, &[1]));
    }
    let bob = stage.come("bob", 0);
    stage.admit_all();
    let calls = [(bob, sync(&mut stage, bob, offer(0, &[0]))), (ann, sync(&mut stage, ann, offer(3, &[4])))];
    fetched(&mut stage, bob, true);
    stage.all_got(&calls, &synced(3));
}

#[test]
fn a_sync_that_a_live_peer_does_not_join_fails_in_time_and_names_it() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let now = stage.now;
    let call = stage.peer(ann).sync_shared_state(now, Some(secs(2)), offer(0, &[1])).unwrap();
    stage.pass(secs(3));
    let Cause::Timeout { waited_for } = stage.vote_cause(ann, call) else { panic!("timeout") };
    assert_eq!(waited_for, &[stage.named(bob)]);
}

#[test]
fn a_sync_is_refused_while_operations_were_not_awaited() {
    let (mut stage, [ann, _bob]) = Stage::with_members();
    stage.reduce(ann, 1);
    let now = stage.now;
    let refused = stage.peer(ann).sync_shared_state(now, None, offer(0, &[1]));
    assert_eq!(refused, Err(Failure::PendingOperations(1)));
}

#[test]
fn a_transfer_that_never_ends_fails_the_fetcher_and_not_the_whole_group() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    let calls = [
        (ann, sync(&mut stage, ann, offer(0, &[1]))),
        (bob, sync(&mut stage, bob, offer(0, &[1]))),
        (cid, sync(&mut stage, cid, offer(0, &[9]))),
    ];
    // It is alive and beats, but its fetches come to no end.
    stage.pass(secs(2 * 60 * 60));
    stage.all_got(&calls[..2], &synced(0));
    assert!(!matches!(stage.result(cid, calls[2].1), Some(Ok(_)) | None));
    stage.reduce_successfully(&[ann, bob, cid], 1);
}

#[test]
fn a_rejected_peer_is_not_told_by_a_restarted_master_that_it_is_synced() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    let dan = stage.come("dan", 0);
    stage.admit_all();
    let calls = [
        (ann, sync(&mut stage, ann, offer(0, &[1]))),
        (bob, sync(&mut stage, bob, offer(0, &[1, 2]))),
        (dan, sync(&mut stage, dan, offer(0, &[7]))),
        (cid, sync(&mut stage, cid, offer(0, &[1]))),
    ];
    // bob knows that its layout does not fit, and dan that it could not fetch; the end of the round
    // reaches neither of them before the master dies.
    stage.hold_down(bob);
    stage.hold_down(dan);
    fetched(&mut stage, dan, false);
    stage.all_got(&[calls[0], calls[3]], &synced(0));
    stage.crash_master();
    stage.let_go(bob);
    stage.let_go(dan);
    stage.start_master();
    stage.pass(secs(1));
    let layout = Failure::StateRejected(StateRejection::Layout { key: "w1".into() });
    assert_eq!(stage.failure(bob, calls[1].1), &layout);
    assert_eq!(stage.failure(dan, calls[2].1), &Failure::StateRejected(StateRejection::HoldersLost));
}

#[test]
fn a_sync_that_the_master_did_not_finish_is_held_again_after_its_restart() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let calls = [(ann, sync(&mut stage, ann, offer(0, &[1]))), (bob, sync(&mut stage, bob, offer(0, &[9])))];
    stage.restart_master();
    assert_eq!(stage.actors[bob.0].assignments.len(), 2, "elected again");
    fetched(&mut stage, bob, true);
    stage.all_got(&calls, &synced(0));
}

#[test]
fn when_the_last_member_has_said_goodbye_another_run_begins_anew() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    for revision in 0..3 {
        sync(&mut stage, ann, offer(revision, &[1]));
        sync(&mut stage, bob, offer(revision, &[1]));
    }
    stage.leave(ann);
    stage.leave(bob);
    let cid = stage.come("cid", 0);
    let call = sync(&mut stage, cid, offer(0, &[9]));
    assert_eq!(stage.result(cid, call), Some(&synced(0)));
    let call = sync(&mut stage, cid, offer(1, &[8]));
    assert_eq!(stage.result(cid, call), Some(&synced(1)));
}

#[test]
fn when_the_last_member_has_died_nobody_begins_anew_without_saying_so() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    for revision in 0..3 {
        sync(&mut stage, ann, offer(revision, &[1]));
        sync(&mut stage, bob, offer(revision, &[1]));
    }
    stage.leave(ann);
    stage.kill(bob);
    // Nor does a goodbye of someone who never held the state change that.
    for name in ["cid", "dan"] {
        let late = stage.come(name, 0);
        let call = sync(&mut stage, late, offer(0, &[9]));
        assert!(matches!(stage.failure(late, call), Failure::StateRejected(StateRejection::NoHolder { .. })));
        stage.leave(late);
    }
}

#[test]
fn whoever_waited_while_the_last_member_left_is_told_that_its_run_is_over() {
    let (mut stage, [ann]) = Stage::with_members();
    sync(&mut stage, ann, offer(0, &[1]));
    let bob = stage.come("bob", 0);
    stage.leave(ann);
    let call = sync(&mut stage, bob, offer(0, &[9]));
    assert!(matches!(stage.failure(bob, call), Failure::StateRejected(StateRejection::NoHolder { .. })));
}

/// A state under other keys than everyone else's.
fn odd(revision: u64) -> SyncOffer {
    let mut odd = offer(revision, &[1]);
    odd.entries[0].key = "v".into();
    odd
}

/// A run in which the state of the third was rejected at its first sync.
fn with_rejected() -> (Stage, [Who; 3]) {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    let calls = [(ann, sync(&mut stage, ann, offer(0, &[1]))), (bob, sync(&mut stage, bob, offer(0, &[1])))];
    let rejected = sync(&mut stage, cid, odd(0));
    stage.all_got(&calls, &synced(0));
    let layout = Failure::StateRejected(StateRejection::Layout { key: "w0".into() });
    assert_eq!(stage.failure(cid, rejected), &layout);
    (stage, [ann, bob, cid])
}

#[test]
fn a_sync_evicts_a_peer_that_is_silent_after_its_state_was_rejected() {
    let (mut stage, [ann, bob, cid]) = with_rejected();
    let calls = [ann, bob].map(|who| (who, sync(&mut stage, who, offer(1, &[1]))));
    stage.pass(secs(1));
    assert!(stage.is_waiting(ann, calls[0].1), "it may be about to offer again");
    stage.pass(secs(6));
    stage.all_got(&calls, &synced(1));
    assert!(matches!(stage.removal(cid), Departure::StateRejected(StateRejection::Layout { .. })));
}

#[test]
fn a_peer_whose_state_was_rejected_takes_part_in_the_next_sync_if_it_offers_soon() {
    let (mut stage, [ann, bob, cid]) = with_rejected();
    let calls = [ann, bob].map(|who| (who, sync(&mut stage, who, offer(1, &[1]))));
    stage.pass(secs(4));
    let again = sync(&mut stage, cid, offer(0, &[9]));
    stage.pass(secs(60));
    assert!(stage.is_waiting(ann, calls[0].1), "it fetches");
    fetched(&mut stage, cid, true);
    stage.all_got(&calls, &synced(1));
    stage.all_got(&[(cid, again)], &synced(1));
    assert_eq!(stage.members(), [ann, bob, cid]);
}

#[test]
fn a_peer_that_is_silent_after_its_state_was_rejected_is_evicted_when_others_wait_for_it() {
    let (mut stage, [ann, bob, cid]) = with_rejected();
    // Nobody needs it yet.
    stage.pass(secs(60));
    assert_eq!(stage.members(), [ann, bob, cid]);
    let calls = stage.reduce_all(&[ann, bob], 1);
    stage.pass(secs(1));
    assert!(matches!(stage.removal(cid), Departure::StateRejected(StateRejection::Layout { .. })));
    assert!(matches!(stage.abort_cause(ann, calls[0]), Cause::PeerLost { .. }));
    stage.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn a_vote_evicts_it_after_a_moment() {
    let (mut stage, [ann, bob, cid]) = with_rejected();
    let calls = [(ann, stage.update_topology(ann)), (bob, stage.update_topology(bob))];
    stage.pass(secs(1));
    assert!(stage.is_waiting(ann, calls[0].1), "it may be about to vote");
    stage.pass(secs(6));
    stage.all_got(&calls, &Ok(Completion::Topology));
    assert!(matches!(stage.removal(cid), Departure::StateRejected(_)));
}

#[test]
fn a_peer_that_goes_on_calling_after_its_state_was_rejected_stays() {
    let (mut stage, [ann, bob, cid]) = with_rejected();
    stage.admit_all();
    // It counts again.
    let calls = [ann, bob].map(|who| (who, sync(&mut stage, who, offer(1, &[1]))));
    stage.pass(secs(60));
    assert!(stage.is_waiting(ann, calls[0].1));
    assert_eq!(stage.members(), [ann, bob, cid]);
}
