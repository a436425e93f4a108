//! Liveness of peers and links.

use super::test_run::{PeerIndex, TestRun, ms, secs};
use ringfold_proto::cause::{Cause, Departure};
use ringfold_proto::epoch::MissingPair;
use ringfold_proto::id::Rank;
use ringfold_proto::message::Direction;
use ringfold_proto::peer::Completion;

/// A ring of four members, so that there is another ring without any single edge.
fn four() -> (TestRun, [PeerIndex; 4]) {
    TestRun::with_members()
}

#[test]
fn a_silent_peer_is_evicted_and_named() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let call = run.reduce(ann, 1);
    run.advance_time(ms(600));
    run.peers[bob.0].frozen = true;
    run.advance_time(secs(5));
    assert_eq!(run.departures(), ["bob was silent for too long"]);
    assert_eq!(run.abort_cause(ann, call).to_string(), "bob was silent for too long");
    // It learns that when it wakes up.
    run.release(bob);
    assert_eq!(run.removal(bob), Departure::Silent);
}

#[test]
fn a_peer_that_a_neighbour_hears_is_not_silent() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    // Only the connection between bob and the master is cut, for less time than bob needs to give up.
    run.peers[bob.0].cut = true;
    run.advance_time(secs(40));
    assert!(run.departures().is_empty(), "{:?}", run.departures());
    run.release(bob);
    run.advance_time(secs(1));
    run.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn a_master_whose_network_was_down_evicts_nobody() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    for who in [ann, bob, cid] {
        run.peers[who.0].cut = true;
    }
    run.advance_time(secs(5));
    for who in [ann, bob, cid] {
        run.release(who);
        // Their messages do not all arrive at once.
        run.advance_time(ms(200));
    }
    run.advance_time(secs(10));
    assert!(run.departures().is_empty(), "{:?}", run.departures());
    run.reduce_successfully(&[ann, bob, cid], 1);
}

#[test]
fn peers_are_evicted_when_all_stay_silent() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    for who in [ann, bob] {
        run.peers[who.0].frozen = true;
    }
    run.advance_time(secs(12));
    assert_eq!(run.departures().len(), 2, "{:?}", run.departures());
}

#[test]
fn a_pending_peer_that_falls_silent_is_evicted() {
    let (mut run, [ann]) = TestRun::with_members();
    let bob = run.connect_peer("bob", 0);
    run.peers[bob.0].frozen = true;
    run.advance_time(secs(5));
    let call = run.ask_pending(ann);
    run.settle();
    assert_eq!(run.result(ann, call), Some(&Ok(Completion::Pending(false))));
}

#[test]
fn a_master_that_was_stopped_evicts_nobody() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    // Its machine sleeps. After that, the timeout comes before the messages.
    run.now = run.now + secs(4);
    let now = run.now;
    run.master().handle_timeout(now);
    run.advance_time(secs(10));
    assert!(run.departures().is_empty(), "{:?}", run.departures());
    run.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn a_link_that_cannot_be_repaired_leads_to_another_ring_without_evictions() {
    let (mut run, [ann, bob, cid, dan]) = four();
    assert!(run.are_neighbours(ann, bob));
    let call = run.reduce(cid, 1);
    run.advance_time(secs(1));
    run.cut(ann, bob);
    run.advance_time(secs(1));
    assert!(!run.are_neighbours(ann, bob));
    let Cause::LinkLost { from, to } = run.abort_cause(cid, call) else { panic!("link lost") };
    let mut ends = [from.name.as_str(), to.name.as_str()];
    ends.sort_unstable();
    assert_eq!(ends, ["ann", "bob"]);
    assert_eq!(run.epoch(dan).missing, [MissingPair(Rank(0), Rank(1))]);
    assert!(run.departures().is_empty());
    run.reduce_successfully(&[ann, bob, cid, dan], 1);
}

#[test]
fn a_link_that_stalls_is_used_by_no_plan_of_the_next_epoch() {
    let (mut run, [ann, bob, cid, dan]) = four();
    let bobs = run.id(bob);
    // The link can be made, but makes no progress.
    run.peer(ann).handle_link_stalled(bobs, Direction::Outgoing);
    run.settle();
    assert!(!run.are_neighbours(ann, bob));
    assert_eq!(run.epoch(cid).missing, [MissingPair(Rank(0), Rank(1))]);
    assert!(run.departures().is_empty());
    run.reduce_successfully(&[ann, bob, cid, dan], 1);
    // It is used again later.
    run.advance_time(secs(61));
    run.kill(dan);
    assert!(run.epoch(cid).missing.is_empty());
}

#[test]
fn when_no_ring_is_left_the_newest_blocking_member_is_evicted() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    // Three members have only one ring.
    run.cut(bob, cid);
    run.advance_time(secs(19));
    assert!(run.is_accepted(cid), "the link may be mended");
    run.advance_time(secs(2));
    assert!(run.is_accepted(ann) && run.is_accepted(bob) && !run.is_accepted(cid));
    assert_eq!(run.removal(cid), Departure::Unreachable);
    run.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn a_link_that_is_down_for_a_while_evicts_nobody() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    for _ in 0..3 {
        let call = run.reduce(ann, 1);
        run.advance_time(ms(10));
        run.cut(ann, bob);
        assert!(matches!(run.abort_cause(ann, call), Cause::LinkLost { .. }));
        run.advance_time(secs(1));
        // The next one waits for the link.
        let calls = run.reduce_all(&[ann, bob], 1);
        run.advance_time(secs(11));
        run.mend(ann, bob);
        run.advance_time(secs(1));
        [ann, bob].into_iter().for_each(|who| run.done(who, 1));
        for (who, call) in [ann, bob].into_iter().zip(calls) {
            assert_eq!(run.result(who, call), Some(&Ok(Completion::Reduced { world: 2 })));
        }
        assert!(run.departures().is_empty(), "{:?}", run.departures());
    }
}

#[test]
fn a_new_peer_that_cannot_be_reached_does_not_hold_up_the_others() {
    let mut run = TestRun::new();
    let [ann, bob, cid] = ["ann", "bob", "cid"].map(|n| run.connect_peer(n, 0));
    run.cut(ann, cid);
    let call = run.update_topology(ann);
    run.advance_time(ms(100));
    run.assert_results(&[(ann, call)], &Ok(Completion::Topology));
    assert_eq!(run.removal(cid), Departure::Unreachable);
    run.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn a_link_that_broke_and_recovered_aborts_its_operations() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let calls = run.reduce_all(&[ann, bob, cid], 1);
    let epoch = run.epoch(ann).id;
    run.break_link(ann, bob);
    for (who, call) in [ann, bob, cid].into_iter().zip(calls) {
        assert!(matches!(run.abort_cause(who, call), Cause::LinkLost { .. }));
    }
    assert_eq!(run.epoch(ann).id, epoch, "the link is there: no new epoch is needed");
    run.reduce_successfully(&[ann, bob, cid], 1);
}

#[test]
fn a_link_that_stays_broken_silently_is_reported_in_time() {
    let (mut run, [ann, bob, cid, dan]) = four();
    run.make_slow(ann, bob);
    run.break_link(ann, bob);
    run.advance_time(secs(4));
    assert!(run.are_neighbours(ann, bob), "it may be mended yet");
    // The next epoch tries the pair again, and reports it without a link.
    run.advance_time(secs(20));
    assert!(!run.are_neighbours(ann, bob));
    assert!(run.departures().is_empty());
    run.reduce_successfully(&[ann, bob, cid, dan], 1);
}

#[test]
fn a_pair_without_a_link_is_no_edge_of_the_first_ring() {
    let mut run = TestRun::new();
    let ann = run.connect_peer("ann", 0);
    let [bob, cid, dan] = ["bob", "cid", "dan"].map(|n| run.connect_peer(n, 0));
    run.cut(ann, bob);
    run.admit_all();
    assert!(!run.are_neighbours(ann, bob));
    assert_eq!(run.epoch(cid).missing, [MissingPair(Rank(0), Rank(1))]);
    run.reduce_successfully(&[ann, bob, cid, dan], 1);
}

#[test]
fn a_pair_off_the_ring_without_a_link_is_reported() {
    let mut run = TestRun::new();
    let ann = run.connect_peer("ann", 0);
    let [_bob, cid, _dan] = ["bob", "cid", "dan"].map(|n| run.connect_peer(n, 0));
    run.cut(ann, cid);
    run.admit_all();
    assert_eq!(run.epoch(ann).missing, [MissingPair(Rank(0), Rank(2))]);
    assert_eq!(run.peers[ann.0].opened.len(), 2, "the ring holds as it is");
}

#[test]
fn a_pair_that_never_reports_does_not_block_the_epoch_for_ever() {
    let mut run = TestRun::new();
    let ann = run.connect_peer("ann", 0);
    let [_bob, cid, _dan] = ["bob", "cid", "dan"].map(|n| run.connect_peer(n, 0));
    run.make_slow(ann, cid);
    let call = run.update_topology(ann);
    run.advance_time(secs(12));
    assert!(run.result(ann, call).is_some_and(Result::is_ok));
    assert_eq!(run.epoch(ann).missing, [MissingPair(Rank(0), Rank(2))]);
}

#[test]
fn a_link_lost_between_ready_and_open_is_not_forgotten() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    let dan = run.connect_peer("dan", 0);
    run.make_slow(ann, dan);
    [ann, bob, cid].into_iter().for_each(|w| _ = run.update_topology(w));
    run.advance_time(ms(100));
    // The link of these two breaks for good after both have reported that they are ready.
    run.cut(bob, cid);
    run.complete_link(ann, dan);
    run.advance_time(secs(10));
    assert!(!run.are_neighbours(bob, cid), "nobody would ever mend it");
    run.reduce_successfully(&[ann, bob, cid, dan], 1);
}

#[test]
fn link_reports_to_a_dying_master_are_repeated() {
    let (mut run, [ann, bob, cid, dan]) = four();
    run.hold_up(ann);
    run.hold_up(bob);
    run.cut(ann, bob);
    run.crash_master();
    run.release(ann);
    run.release(bob);
    run.start_master();
    run.advance_time(secs(2));
    assert!(!run.are_neighbours(ann, bob));
    run.reduce_successfully(&[ann, bob, cid, dan], 1);
}

#[test]
fn an_evicted_peer_gets_the_reason() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let call = run.reduce(ann, 1);
    run.advance_time(ms(10));
    let (now, bobs) = (run.now, run.id(bob));
    run.master().evict(now, bobs, "its disk is on fire");
    run.settle();
    assert_eq!(run.removal(bob), Departure::Evicted("its disk is on fire".into()));
    let text = run.abort_cause(ann, call).to_string();
    assert!(text.contains("bob") && text.contains("its disk is on fire"), "{text}");
}

#[test]
fn an_epoch_is_closed_once() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    run.make_slow(ann, bob);
    run.break_link(ann, bob);
    run.kill(cid);
    // Another epoch is proposed and not open when ann leaves.
    run.leave(ann);
    let mut closed = run.peers[ann.0].closed.clone();
    closed.dedup();
    assert_eq!(closed.len(), run.peers[ann.0].closed.len());
}
