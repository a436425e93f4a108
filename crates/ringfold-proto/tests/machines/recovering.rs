//! All peers that held the state are lost, and come back from checkpoints (P20).

use super::sharing_state::{MANUAL, fetched, offer, sync, synced};
use super::test_run::{PeerIndex, TestRun, ms, secs};
use ringfold_proto::cause::StateRejection;
use ringfold_proto::event::Event;
use ringfold_proto::id::Revision;
use ringfold_proto::peer::{Completion, Failure};
use ringfold_proto::recovery::{Recover, RecoverySettings};

const NAMES: [&str; 3] = ["ann2", "bob2", "cid2"];

/// A run of three that has synced revisions 0 to 9 and lost all its peers.
fn lost_run(recovery: RecoverySettings) -> TestRun {
    let (mut run, members): (_, [PeerIndex; 3]) = TestRun::with_recovery(recovery).connect_members();
    for revision in 0..10 {
        let _ = members.map(|who| sync(&mut run, who, offer(revision, &[u128::from(revision)])));
    }
    run.kill_together(&members);
    run.advance_time(secs(10));
    assert!(run.master().accepted().is_empty());
    run
}

fn come_back<const N: usize>(run: &mut TestRun) -> [PeerIndex; N] {
    core::array::from_fn(|i| run.connect_peer(NAMES[i], 0))
}

/// The events of waiting and recovering, as they are logged.
fn log(run: &TestRun) -> Vec<String> {
    let told = |e: &&Event| matches!(e, Event::AwaitsReturn { .. } | Event::Recovered(..));
    run.events.iter().filter(told).map(ToString::to_string).collect()
}

/// Three peers sync these revisions; the newest is fetched by the others.
fn sync_revisions(run: &mut TestRun, who: [PeerIndex; 3], revisions: [u64; 3]) {
    let newest = revisions.into_iter().max().expect("three");
    let calls: Vec<_> = who
        .into_iter()
        .zip(revisions)
        .map(|(w, revision)| (w, sync(run, w, offer(revision, &[u128::from(revision)]))))
        .collect();
    for (who, _) in who.into_iter().zip(revisions).filter(|(_, revision)| *revision != newest) {
        fetched(run, who, true);
    }
    run.assert_results(&calls, &synced(newest));
}

#[test]
fn when_all_are_back_the_newest_checkpoint_wins_at_once_and_the_run_continues() {
    let mut run = lost_run(RecoverySettings::default());
    let who: [_; 3] = come_back(&mut run);
    assert_eq!(run.members(), who, "admitted together, without a vote");
    sync_revisions(&mut run, who, [5, 8, 3]);
    let log = log(&run);
    assert!(log[0].contains("1 of 3 so far: ann2; it continues in 30 s"), "{log:?}");
    assert_eq!(
        log.last().unwrap(),
        "group 0 continues from revision 8, held by 1 of 3 peers: bob2; behind: ann2 (revision 5), cid2 (revision 3)"
    );
    sync_revisions(&mut run, who, [9, 9, 9]);
    run.reduce_successfully(&who, 1);
}

#[test]
fn peers_wait_for_the_others_until_the_deadline_and_the_wait_is_shown() {
    let mut run = lost_run(RecoverySettings::default());
    let [ann] = come_back(&mut run);
    run.advance_time(secs(29));
    assert!(run.members().is_empty());
    let bob = run.connect_peer("bob2", 0);
    assert!(run.members().is_empty(), "two of three");
    run.advance_time(secs(2));
    assert_eq!(run.members(), [ann, bob]);
    let waits = log(&run);
    assert!((5..9).contains(&waits.len()), "{waits:?}");
    assert!(waits.last().unwrap().contains("1 of 3 so far: ann2; it continues in 5 s"), "{waits:?}");
    let calls = [(ann, sync(&mut run, ann, offer(8, &[8]))), (bob, sync(&mut run, bob, offer(2, &[2])))];
    fetched(&mut run, bob, true);
    run.assert_results(&calls, &synced(8));
}

#[test]
fn a_peer_that_comes_back_after_the_deadline_with_a_newer_state_is_rejected() {
    let mut run = lost_run(RecoverySettings::default());
    let [ann] = come_back(&mut run);
    run.advance_time(secs(31));
    sync(&mut run, ann, offer(3, &[3]));
    let late = run.connect_peer("late", 0);
    run.admit_all();
    let calls = [(late, sync(&mut run, late, offer(8, &[8]))), (ann, sync(&mut run, ann, offer(4, &[4])))];
    run.assert_results(&calls[1..], &synced(4));
    let violation = StateRejection::RevisionIncrementViolation { offered: Revision(8), next: Revision(4) };
    assert_eq!(run.failure(late, calls[0].1), &Failure::StateRejected(violation));
}

#[test]
fn a_new_master_takes_the_newest_checkpoint_too() {
    let mut run = lost_run(RecoverySettings::default());
    run.restart_master();
    let who: [_; 3] = come_back(&mut run);
    run.admit_all();
    sync_revisions(&mut run, who, [5, 3, 8]);
    let log = log(&run);
    assert!(log.last().unwrap().contains("behind: ann2 (revision 5), bob2 (revision 3)"), "{log:?}");
    sync_revisions(&mut run, who, [9, 9, 9]);
}

#[test]
fn a_peer_that_comes_back_late_to_a_new_master_sets_the_run_to_its_newer_state() {
    let mut run = lost_run(RecoverySettings::default());
    run.restart_master();
    // A new master does not know how many will come, so the first one does not wait.
    let [ann] = come_back(&mut run);
    let call = sync(&mut run, ann, offer(5, &[5]));
    run.assert_results(&[(ann, call)], &synced(5));
    run.advance_time(secs(20));
    let bob = run.connect_peer("bob2", 0);
    run.admit_all();
    let calls = [(bob, sync(&mut run, bob, offer(8, &[8]))), (ann, sync(&mut run, ann, offer(6, &[6])))];
    fetched(&mut run, ann, true);
    run.assert_results(&calls, &synced(8));
    assert!(log(&run).last().unwrap().contains("revision 8"), "{:?}", log(&run));
    run.advance_time(secs(20));
    let cid = run.connect_peer("cid2", 0);
    run.admit_all();
    let calls = [ann, bob].map(|who| (who, sync(&mut run, who, offer(9, &[9]))));
    let late = sync(&mut run, cid, offer(12, &[12]));
    run.assert_results(&calls, &synced(9));
    assert!(matches!(run.failure(cid, late), Failure::StateRejected(_)), "30 s are over");
}

#[test]
fn a_new_master_waits_for_as_many_peers_as_the_settings_say() {
    let mut run = TestRun::with_recovery(RecoverySettings { min: Some(2), ..RecoverySettings::default() });
    let ann = run.connect_peer("ann", 0);
    run.advance_time(secs(5));
    assert!(run.members().is_empty());
    let bob = run.connect_peer("bob", 0);
    assert_eq!(run.members(), [ann, bob]);
    // After the start nobody waits.
    let cid = run.connect_peer("cid", 0);
    run.admit_all();
    assert_eq!(run.members(), [ann, bob, cid]);
    for revision in 0..2 {
        let _ = [ann, bob, cid].map(|who| sync(&mut run, who, offer(revision, &[1])));
    }
    // Two of three are enough later, too; the third may still have a newer state.
    run.kill_together(&[ann, bob, cid]);
    run.advance_time(secs(10));
    let [ann, bob] = come_back(&mut run);
    assert_eq!(run.members(), [ann, bob]);
    let calls = [ann, bob].map(|who| (who, sync(&mut run, who, offer(1, &[7]))));
    run.assert_results(&calls, &synced(1));
    let cid = run.connect_peer("cid2", 0);
    run.admit_all();
    let calls = [ann, bob].map(|who| (who, sync(&mut run, who, offer(2, &[8]))));
    let newer = sync(&mut run, cid, offer(4, &[4]));
    fetched(&mut run, ann, true);
    fetched(&mut run, bob, true);
    run.assert_results(&calls, &synced(4));
    run.assert_results(&[(cid, newer)], &synced(4));
}

#[test]
fn the_wait_begins_anew_when_those_who_came_back_are_lost_again() {
    let mut run = lost_run(RecoverySettings::default());
    let [ann, bob] = come_back(&mut run);
    run.advance_time(secs(20));
    run.kill_together(&[ann, bob]);
    run.advance_time(secs(20));
    let who: [_; 2] = come_back(&mut run);
    run.advance_time(secs(20));
    assert!(run.members().is_empty());
    // Now they are admitted, and die before they sync.
    run.advance_time(secs(11));
    assert_eq!(run.members(), who);
    run.kill_together(&who);
    run.advance_time(secs(10));
    let who: [_; 3] = come_back(&mut run);
    sync_revisions(&mut run, who, [2, 3, 9]);
}

#[test]
fn members_that_never_held_the_state_wait_for_those_who_did() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    for revision in 0..3 {
        let _ = [ann, bob].map(|who| sync(&mut run, who, offer(revision, &[1])));
    }
    let cid = run.connect_peer("cid", 0);
    run.admit_all();
    run.kill_together(&[ann, bob]);
    run.advance_time(secs(3));
    // It has no checkpoint, and must not set the run to its state.
    let call = sync(&mut run, cid, offer(0, &[9]));
    run.advance_time(secs(1));
    assert!(run.is_waiting(cid, call) && run.members().is_empty());
    let [ann, bob] = come_back(&mut run);
    run.advance_time(ms(100));
    assert_eq!(run.members().len(), 3);
    let calls = [ann, bob].map(|who| (who, sync(&mut run, who, offer(2, &[1]))));
    fetched(&mut run, cid, true);
    run.assert_results(&calls, &synced(2));
    run.assert_results(&[(cid, call)], &synced(2));
    run.reduce_successfully(&[ann, bob, cid], 1);
}

#[test]
fn members_that_never_held_the_state_continue_alone_after_the_deadline() {
    let (mut run, [ann]) = TestRun::with_members();
    sync(&mut run, ann, offer(4, &[1]));
    let bob = run.connect_peer("bob", 0);
    run.admit_all();
    run.kill(ann);
    run.advance_time(secs(3));
    let call = sync(&mut run, bob, offer(2, &[9]));
    run.advance_time(secs(29));
    assert!(run.is_waiting(bob, call));
    run.advance_time(secs(2));
    run.assert_results(&[(bob, call)], &synced(2));
}

#[test]
fn another_group_is_not_held_up() {
    let (mut run, [ann]) = TestRun::with_members();
    let [eve, dan] = ["eve", "dan"].map(|name| run.connect_peer(name, 7));
    run.admit_all();
    for revision in 0..2 {
        sync(&mut run, ann, offer(revision, &[1]));
        let _ = [eve, dan].map(|who| sync(&mut run, who, offer(revision, &[1])));
    }
    run.kill_together(&[eve, dan]);
    run.advance_time(secs(3));
    let back = run.connect_peer("eve2", 7);
    run.admit_all();
    assert_eq!(run.members(), [ann], "the other one is waited for");
    let pending = run.ask_pending(ann);
    run.settle();
    let answer = Ok(Completion::Pending(false));
    assert_eq!(run.result(ann, pending), Some(&answer), "a vote would not admit it");
    let other = run.connect_peer("dan2", 7);
    run.admit_all();
    assert_eq!(run.members(), [ann, back, other]);
}

#[test]
fn a_majority_of_the_lost_peers_is_needed_if_the_settings_say_so() {
    let mut run = lost_run(RecoverySettings { policy: Recover::Majority, ..RecoverySettings::default() });
    let who: [_; 3] = come_back(&mut run);
    let calls: Vec<_> =
        who.into_iter().zip([8, 7, 6]).map(|(w, r)| (w, sync(&mut run, w, offer(r, &[1])))).collect();
    for (who, call) in calls {
        assert!(matches!(
            run.failure(who, call),
            Failure::StateRejected(StateRejection::NoHolder { orphaned: true, .. })
        ));
    }
    let calls: Vec<_> =
        who.into_iter().zip([8, 7, 7]).map(|(w, r)| (w, sync(&mut run, w, offer(r, &[1])))).collect();
    run.assert_results(&calls, &synced(7));
}

#[test]
fn manual_runs_do_not_wait_and_reject_older_states() {
    let mut run = lost_run(MANUAL);
    let [ann] = come_back(&mut run);
    assert_eq!(run.members(), [ann]);
    let call = sync(&mut run, ann, offer(8, &[8]));
    assert!(matches!(
        run.failure(ann, call),
        Failure::StateRejected(StateRejection::NoHolder { orphaned: true, .. })
    ));
    assert!(log(&run).is_empty());
}
