//! Resets of control connections: a suspect is dead if its neighbours' links ended too; otherwise it resumes.

use super::optimising::{measure, optimise_everywhere};
use super::sharing_state::{fetched, offer, sync, synced};
use super::test_run::{PeerIndex, TestRun, ms, secs};
use ringfold_proto::cause::{Cause, Departure, JoinRejection, Removal};
use ringfold_proto::peer::{Completion, Failure};

/// Checks that nobody was evicted and no epoch ended.
#[track_caller]
fn assert_nothing_lost(run: &TestRun, epochs: &[(PeerIndex, usize)]) {
    assert!(run.departures().is_empty(), "{:?}", run.departures());
    for (who, opened) in epochs {
        assert_eq!(run.peers[who.0].opened.len(), *opened, "{}", run.name(*who));
    }
}

#[test]
fn a_reset_in_a_reduce_loses_nothing() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let epochs = [ann, bob, cid].map(|who| (who, run.peers[who.0].opened.len()));
    for resets in [vec![bob], vec![ann, cid], vec![ann, bob, cid]] {
        let calls = run.reduce_all(&[ann, bob, cid], 1);
        run.advance_time(ms(300));
        run.done(ann, 1);
        // What is in transit is lost.
        [ann, bob, cid].into_iter().for_each(|who| (run.hold_up(who), run.hold_down(who)).0);
        run.done(bob, 1);
        resets.iter().for_each(|who| run.reset_control(*who));
        [ann, bob, cid].into_iter().for_each(|who| run.release(who));
        run.done(cid, 1);
        run.advance_time(secs(1));
        for (who, call) in [ann, bob, cid].into_iter().zip(calls) {
            assert_eq!(run.result(who, call), Some(&Ok(Completion::Reduced { world: 3 })));
        }
    }
    run.advance_time(secs(20));
    assert_nothing_lost(&run, &epochs);
}

#[test]
fn a_reset_in_a_vote_a_sync_or_an_optimisation_loses_nothing() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let epochs = [ann, bob].map(|who| (who, run.peers[who.0].opened.len()));
    let asked = [(ann, run.ask_pending(ann)), (bob, run.ask_pending(bob))];
    run.reset_control(bob);
    run.advance_time(secs(1));
    run.assert_results(&asked, &Ok(Completion::Pending(false)));

    let calls = [(ann, sync(&mut run, ann, offer(0, &[1]))), (bob, sync(&mut run, bob, offer(0, &[2])))];
    run.reset_control(bob);
    fetched(&mut run, bob, true);
    run.advance_time(secs(1));
    run.assert_results(&calls, &synced(0));

    let calls = optimise_everywhere(&mut run);
    [ann, bob].into_iter().for_each(|who| run.reset_control(who));
    measure(&mut run);
    run.advance_time(secs(1));
    run.assert_results(&calls, &Ok(Completion::Topology));
    assert_nothing_lost(&run, &epochs);
}

#[test]
fn a_reset_while_a_peer_is_admitted_costs_no_membership() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let cid = run.connect_peer("cid", 0);
    run.reset_control(cid);
    run.advance_time(secs(1));
    // Its links are made, and not all members have reported that.
    run.make_slow(ann, cid);
    let calls = run.update_topology_everywhere();
    run.reset_control(cid);
    run.advance_time(secs(1));
    run.reset_control(cid);
    run.advance_time(ms(300));
    run.complete_link(ann, cid);
    run.advance_time(ms(300));
    run.assert_results(&calls, &Ok(Completion::Topology));
    assert!(run.is_connected(cid));
    assert!(run.departures().is_empty(), "{:?}", run.departures());
    run.reduce_successfully(&[ann, bob, cid], 1);
}

#[test]
fn a_suspect_is_not_admitted_before_it_has_resumed() {
    let (mut run, [ann]) = TestRun::with_members();
    let bob = run.connect_peer("bob", 0);
    run.peers[bob.0].cut = true;
    run.reset_control(bob);
    let call = run.update_topology(ann);
    run.settle();
    run.assert_results(&[(ann, call)], &Ok(Completion::Topology));
    assert!(!run.is_accepted(bob));
    run.release(bob);
    run.advance_time(ms(500));
    run.admit_all();
    assert!(run.is_connected(bob) && run.departures().is_empty(), "{:?}", run.departures());
}

#[test]
fn a_pending_peer_that_resumes_too_late_joins_again() {
    let (mut run, [_ann]) = TestRun::with_members();
    let bob = run.connect_peer("bob", 0);
    run.peers[bob.0].cut = true;
    run.reset_control(bob);
    run.advance_time(secs(3));
    assert_eq!(run.departures(), ["bob lost its connection to the master"]);
    run.release(bob);
    run.advance_time(secs(1));
    run.admit_all();
    assert!(run.is_connected(bob));
}

#[test]
fn a_peer_that_was_not_accepted_joins_a_restarted_master() {
    let (mut run, [ann]) = TestRun::with_members();
    let bob = run.connect_peer("bob", 0);
    run.restart_master();
    run.advance_time(secs(2));
    run.admit_all();
    run.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn a_suspect_whose_links_ended_too_is_dead_at_once() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let calls = run.reduce_all(&[ann, bob], 1);
    let began = run.now;
    run.kill(cid);
    assert_eq!(run.now, began);
    for (who, call) in [ann, bob].into_iter().zip(calls) {
        let Cause::PeerLost { who: lost, how } = run.abort_cause(who, call) else { panic!("lost") };
        assert_eq!((lost.name.as_str(), how), ("cid", &Departure::ConnectionLost));
    }
    run.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn two_that_die_at_once_are_found_dead_by_a_third() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let call = run.reduce(ann, 1);
    let began = run.now;
    run.kill_together(&[bob, cid]);
    assert_eq!((run.now, run.departures().len()), (began, 2));
    assert!(matches!(run.abort_cause(ann, call), Cause::PeerLost { .. }));
}

#[test]
fn a_suspect_that_one_neighbour_hears_lives() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let epoch = run.epoch(ann).id;
    run.make_slow(bob, cid);
    run.break_link(bob, cid);
    run.reset_control(cid);
    run.complete_link(bob, cid);
    run.advance_time(ms(500));
    assert!(run.departures().is_empty(), "{:?}", run.departures());
    assert_eq!(run.epoch(ann).id, epoch);
    run.reduce_successfully(&[ann, bob, cid], 1);
}

#[test]
fn a_link_that_recovered_before_the_reset_is_no_sign_of_death() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    run.break_link(ann, bob);
    run.reset_control(bob);
    run.advance_time(ms(500));
    assert!(run.departures().is_empty(), "{:?}", run.departures());
    run.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn a_link_that_ended_long_before_the_reset_is_no_sign_of_death() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    run.make_slow(ann, bob);
    run.break_link(ann, bob);
    run.advance_time(ms(700));
    run.reset_control(bob);
    run.advance_time(ms(700));
    assert!(run.departures().is_empty(), "{:?}", run.departures());
    run.complete_link(ann, bob);
    run.reduce_successfully(&[ann, bob], 1);
    // But one that ended a moment before is.
    run.make_slow(ann, bob);
    run.break_link(ann, bob);
    run.advance_time(ms(100));
    run.reset_control(bob);
    run.settle();
    assert_eq!(run.departures(), ["bob lost its connection to the master"]);
}

#[test]
fn a_suspect_without_links_has_a_second() {
    let (mut run, [ann]) = TestRun::with_members();
    run.reset_control(ann);
    run.advance_time(ms(900));
    assert!(run.departures().is_empty());
    run.peers[ann.0].cut = true;
    run.reset_control(ann);
    run.advance_time(ms(990));
    assert!(run.departures().is_empty());
    run.advance_time(ms(20));
    assert_eq!(run.departures(), ["ann lost its connection to the master"]);
    run.release(ann);
    run.advance_time(secs(1));
    let now = run.now;
    let ended = run.peer(ann).are_peers_pending(now, None);
    assert_eq!(ended, Err(Failure::Removed(Removal::Rejected(JoinRejection::WasRemoved))));
}

#[test]
fn a_suspect_that_is_heard_and_does_not_resume_is_evicted_in_time() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let call = run.reduce(ann, 1);
    run.advance_time(ms(10));
    run.peers[bob.0].cut = true;
    run.reset_control(bob);
    run.advance_time(ms(7_900));
    assert!(run.is_waiting(ann, call) && run.departures().is_empty());
    run.advance_time(ms(200));
    assert_eq!(run.departures(), ["bob lost its connection to the master"]);
    assert!(matches!(run.abort_cause(ann, call), Cause::PeerLost { .. }));
}

#[test]
fn a_suspect_that_falls_silent_is_evicted_as_any_other() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let call = run.reduce(ann, 1);
    run.advance_time(ms(600));
    run.peers[bob.0].frozen = true;
    run.reset_control(bob);
    run.advance_time(secs(3));
    assert_eq!(run.departures(), ["bob was silent for too long"]);
    assert!(matches!(run.abort_cause(ann, call), Cause::PeerLost { .. }));
}

#[test]
fn a_peer_whose_connection_the_master_closed_is_evicted_at_once() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let call = run.reduce(ann, 1);
    run.advance_time(ms(10));
    let (now, conn) = (run.now, run.peers[bob.0].control.expect("a connection"));
    run.master().handle_closed(now, conn);
    run.settle();
    assert!(matches!(run.abort_cause(ann, call), Cause::PeerLost { .. }));
}

#[test]
fn connections_that_break_at_once_are_not_redialled_without_a_pause() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    run.advance_time(secs(1));
    let began = run.now;
    for _ in 0..10 {
        run.reset_control(bob);
        while run.peers[bob.0].control.is_none() {
            run.advance_time(ms(1));
        }
    }
    assert!(run.now >= began + 9 * run.timing.redial, "{:?}", run.now.since(began));
    assert!(run.departures().is_empty(), "{:?}", run.departures());
    run.advance_time(ms(300));
    run.reduce_successfully(&[ann, bob], 1);
}
