//! Who is alive, and which links hold.

use super::stage::{Stage, Who, ms, secs};
use ringfold_proto::cause::{Cause, Departure};
use ringfold_proto::epoch::MissingPair;
use ringfold_proto::id::Rank;
use ringfold_proto::message::Direction;

/// Members of a ring of four, so that there is another ring without any one edge.
fn four() -> (Stage, [Who; 4]) {
    Stage::with_members()
}

#[test]
fn a_silent_peer_is_put_out_and_named() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let call = stage.reduce(ann, 1);
    stage.pass(ms(600));
    stage.actors[bob.0].frozen = true;
    stage.pass(secs(5));
    assert_eq!(stage.departures(), ["bob was silent for too long"]);
    assert_eq!(stage.abort_cause(ann, call).to_string(), "bob was silent for too long");
    // When it wakes up it is told.
    stage.let_go(bob);
    assert_eq!(stage.removal(bob), Departure::Silent);
}

#[test]
fn a_peer_that_a_neighbour_hears_is_not_silent() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    // Only the way between bob and the master is cut, and for less time than bob takes to give up.
    stage.actors[bob.0].cut = true;
    stage.pass(secs(40));
    assert!(stage.departures().is_empty(), "{:?}", stage.departures());
    stage.let_go(bob);
    stage.pass(secs(1));
    stage.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn a_master_whose_own_line_was_down_puts_nobody_out() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    for who in [ann, bob, cid] {
        stage.actors[who.0].cut = true;
    }
    stage.pass(secs(5));
    for who in [ann, bob, cid] {
        stage.let_go(who);
        // They are not all heard again at once.
        stage.pass(ms(200));
    }
    stage.pass(secs(10));
    assert!(stage.departures().is_empty(), "{:?}", stage.departures());
    stage.reduce_successfully(&[ann, bob, cid], 1);
}

#[test]
fn when_everybody_stays_silent_they_are_put_out_in_the_end() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    for who in [ann, bob] {
        stage.actors[who.0].frozen = true;
    }
    stage.pass(secs(12));
    assert_eq!(stage.departures().len(), 2, "{:?}", stage.departures());
}

#[test]
fn a_newcomer_that_falls_silent_while_it_waits_is_put_out() {
    let (mut stage, [ann]) = Stage::with_members();
    let bob = stage.come("bob", 0);
    stage.actors[bob.0].frozen = true;
    stage.pass(secs(5));
    let call = stage.ask_pending(ann);
    stage.settle();
    assert_eq!(stage.result(ann, call), Some(&Ok(ringfold_proto::peer::Completion::Pending(false))));
}

#[test]
fn a_master_that_was_stopped_itself_puts_nobody_out() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    // The machine it runs on sleeps; when it wakes up, the clock speaks before the sockets do.
    stage.now = stage.now + secs(4);
    let now = stage.now;
    stage.master().handle_timeout(now);
    stage.pass(secs(10));
    assert!(stage.departures().is_empty(), "{:?}", stage.departures());
    stage.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn a_link_that_can_not_be_mended_leads_to_another_ring_and_nobody_is_put_out() {
    let (mut stage, [ann, bob, cid, dan]) = four();
    assert!(stage.are_neighbours(ann, bob));
    let call = stage.reduce(cid, 1);
    stage.pass(secs(1));
    stage.part(ann, bob);
    stage.pass(secs(1));
    assert!(!stage.are_neighbours(ann, bob));
    let Cause::LinkLost { from, to } = stage.abort_cause(cid, call) else { panic!("link lost") };
    let mut ends = [from.name.as_str(), to.name.as_str()];
    ends.sort_unstable();
    assert_eq!(ends, ["ann", "bob"]);
    assert_eq!(stage.epoch(dan).missing, [MissingPair(Rank(0), Rank(1))]);
    assert!(stage.departures().is_empty());
    stage.reduce_successfully(&[ann, bob, cid, dan], 1);
}

#[test]
fn a_link_that_stalls_is_used_by_no_plan_of_the_next_epoch() {
    let (mut stage, [ann, bob, cid, dan]) = four();
    let bobs = stage.id(bob);
    // The link can be made, and still moves nothing: that it is there again proves nothing.
    stage.peer(ann).handle_link_stalled(bobs, Direction::Outgoing);
    stage.settle();
    assert!(!stage.are_neighbours(ann, bob));
    assert_eq!(stage.epoch(cid).missing, [MissingPair(Rank(0), Rank(1))]);
    assert!(stage.departures().is_empty());
    stage.reduce_successfully(&[ann, bob, cid, dan], 1);
    // In time it is trusted again.
    stage.pass(secs(61));
    stage.kill(dan);
    assert!(stage.epoch(cid).missing.is_empty());
}

#[test]
fn when_no_ring_is_left_the_newest_in_the_way_is_put_out_with_the_reason() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    // Through three there is only one ring.
    stage.part(bob, cid);
    stage.pass(secs(1));
    assert!(stage.is_accepted(ann) && stage.is_accepted(bob) && !stage.is_accepted(cid));
    assert_eq!(stage.removal(cid), Departure::Unreachable);
    stage.reduce_successfully(&[ann, bob], 1);
}

#[test]
fn a_link_that_broke_and_was_mended_aborts_what_ran_over_it_and_leaves_nobody_stuck() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    let calls = stage.reduce_all(&[ann, bob, cid], 1);
    let epoch = stage.epoch(ann).id;
    stage.break_link(ann, bob);
    for (who, call) in [ann, bob, cid].into_iter().zip(calls) {
        assert!(matches!(stage.abort_cause(who, call), Cause::LinkLost { .. }));
    }
    assert_eq!(stage.epoch(ann).id, epoch, "the link is there: no new epoch is needed");
    stage.reduce_successfully(&[ann, bob, cid], 1);
}

#[test]
fn a_link_that_stays_broken_without_a_word_is_reported_in_time() {
    let (mut stage, [ann, bob, cid, dan]) = four();
    stage.make_slow(ann, bob);
    stage.break_link(ann, bob);
    stage.pass(secs(4));
    assert!(stage.are_neighbours(ann, bob), "it may be mended yet");
    // Then the two are tried once more for the next epoch, and come up as a pair without a link.
    stage.pass(secs(20));
    assert!(!stage.are_neighbours(ann, bob));
    assert!(stage.departures().is_empty());
    stage.reduce_successfully(&[ann, bob, cid, dan], 1);
}

#[test]
fn a_pair_that_can_not_meet_is_no_edge_of_the_first_ring() {
    let mut stage = Stage::new();
    let ann = stage.come("ann", 0);
    let [bob, cid, dan] = ["bob", "cid", "dan"].map(|n| stage.come(n, 0));
    stage.part(ann, bob);
    stage.admit_all();
    assert!(!stage.are_neighbours(ann, bob));
    assert_eq!(stage.epoch(cid).missing, [MissingPair(Rank(0), Rank(1))]);
    stage.reduce_successfully(&[ann, bob, cid, dan], 1);
}

#[test]
fn a_pair_off_the_ring_that_can_not_meet_is_named_in_the_shape() {
    let mut stage = Stage::new();
    let ann = stage.come("ann", 0);
    let [_bob, cid, _dan] = ["bob", "cid", "dan"].map(|n| stage.come(n, 0));
    stage.part(ann, cid);
    stage.admit_all();
    assert_eq!(stage.epoch(ann).missing, [MissingPair(Rank(0), Rank(2))]);
    assert_eq!(stage.actors[ann.0].opened.len(), 2, "the ring holds as it is");
}

#[test]
fn a_pair_that_never_says_whether_it_met_does_not_hold_up_the_epoch_for_ever() {
    let mut stage = Stage::new();
    let ann = stage.come("ann", 0);
    let [_bob, cid, _dan] = ["bob", "cid", "dan"].map(|n| stage.come(n, 0));
    stage.make_slow(ann, cid);
    let call = stage.update_topology(ann);
    stage.pass(secs(12));
    assert!(stage.result(ann, call).is_some_and(Result::is_ok));
    assert_eq!(stage.epoch(ann).missing, [MissingPair(Rank(0), Rank(2))]);
}

#[test]
fn a_link_lost_between_ready_and_open_is_not_forgotten() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    let dan = stage.come("dan", 0);
    stage.make_slow(ann, dan);
    [ann, bob, cid].into_iter().for_each(|w| _ = stage.update_topology(w));
    stage.pass(ms(100));
    // These two have said that they are ready when their link goes for good.
    stage.part(bob, cid);
    stage.link_at_last(ann, dan);
    stage.pass(secs(10));
    assert!(!stage.are_neighbours(bob, cid), "nobody would ever mend it");
    stage.reduce_successfully(&[ann, bob, cid, dan], 1);
}

#[test]
fn trouble_reported_to_a_dying_master_is_reported_again() {
    let (mut stage, [ann, bob, cid, dan]) = four();
    stage.hold_up(ann);
    stage.hold_up(bob);
    stage.part(ann, bob);
    stage.crash_master();
    stage.let_go(ann);
    stage.let_go(bob);
    stage.start_master();
    stage.pass(secs(2));
    assert!(!stage.are_neighbours(ann, bob));
    stage.reduce_successfully(&[ann, bob, cid, dan], 1);
}

#[test]
fn who_is_put_out_is_told_why() {
    let (mut stage, [ann, bob]) = Stage::with_members();
    let call = stage.reduce(ann, 1);
    stage.pass(ms(10));
    let (now, bobs) = (stage.now, stage.id(bob));
    stage.master().evict(now, bobs, "its disk is on fire");
    stage.settle();
    assert_eq!(stage.removal(bob), Departure::Evicted("its disk is on fire".into()));
    let text = stage.abort_cause(ann, call).to_string();
    assert!(text.contains("bob") && text.contains("its disk is on fire"), "{text}");
}

#[test]
fn an_epoch_is_closed_once() {
    let (mut stage, [ann, bob, cid]) = Stage::with_members();
    stage.make_slow(ann, bob);
    stage.break_link(ann, bob);
    stage.kill(cid);
    // Another epoch is proposed and not open when ann leaves.
    stage.leave(ann);
    let mut closed = stage.actors[ann.0].closed.clone();
    closed.dedup();
    assert_eq!(closed.len(), stage.actors[ann.0].closed.len());
}
