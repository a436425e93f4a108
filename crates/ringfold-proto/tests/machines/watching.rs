//! What the status of a run says.

use super::sharing_state::offer;
use super::test_run::{TestRun, secs};
use ringfold_proto::cause::{Departure, JoinRejection, Removal};
use ringfold_proto::message::ToMaster;
use ringfold_proto::peer::Failure;
use ringfold_proto::status::{Health, Membership, RunStatus};

fn status(run: &mut TestRun) -> RunStatus {
    let now = run.now;
    run.master().status(now)
}

fn states(status: &RunStatus) -> Vec<(&str, &str)> {
    status.peers.iter().map(|peer| (peer.name.as_str(), peer.state.as_str())).collect()
}

#[test]
fn a_run_is_healthy_while_its_members_compute_and_reduce() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let found = status(&mut run);
    assert_eq!((found.verdict.as_str(), found.health), ("healthy", Health::Healthy));
    assert_eq!(states(&found), [("ann", "computing"), ("bob", "computing")]);
    assert_eq!(found.epoch, Some(run.epoch(ann).id.counter));
    let edges: Vec<_> = found.ring.iter().map(|edge| (edge.from.as_str(), edge.to.as_str())).collect();
    assert_eq!(edges, [("ann", "bob"), ("bob", "ann")]);
    let group = &found.groups[0];
    assert_eq!((group.group, group.members, group.pending, group.stage.as_str()), (0, 2, 0, "open"));
    run.reduce_all(&[ann, bob], 3);
    run.advance_time(secs(20));
    let found = status(&mut run);
    assert_eq!(states(&found), [("ann", "in all-reduce tag 3"), ("bob", "in all-reduce tag 3")]);
    assert_eq!(found.verdict, "healthy", "a long operation is no wait for anybody");
    assert_eq!(found.peers[0].call.as_deref(), Some("all_reduce tag 3"));
}

#[test]
fn a_wait_is_the_verdict_after_five_seconds_and_names_who_is_missing() {
    let (mut run, [ann, bob, cid]) = TestRun::with_members();
    run.reduce(ann, 7);
    run.reduce(cid, 7);
    run.advance_time(secs(3));
    assert_eq!(status(&mut run).verdict, "healthy");
    run.advance_time(secs(39));
    let found = status(&mut run);
    assert_eq!(found.health, Health::Degraded);
    let (begin, end) = (
        "waiting for bob for 42 s: it has not called all_reduce tag 7 (last heard 0.",
        " s ago: alive, computing)",
    );
    assert!(found.verdict.starts_with(begin) && found.verdict.ends_with(end), "{}", found.verdict);
    let [wait] = &found.waits[..] else { panic!("one wait: {found:?}") };
    assert_eq!((wait.text.as_str(), wait.group), (found.verdict.as_str(), Some(0)));
    assert_eq!(
        (&wait.waiting[..], wait.missing[0].name.as_str()),
        (&["ann".to_owned(), "cid".into()][..], "bob")
    );
    assert_eq!(found.peers[1].state, "computing");
    run.ask_pending(bob);
    run.settle();
    let found = status(&mut run);
    assert_eq!(found.peers[1].state, "voting in are_peers_pending");
    assert!(found.verdict.ends_with("alive, waits in are_peers_pending)"), "{}", found.verdict);
}

#[test]
fn peers_that_wait_fetch_or_are_lost_are_shown_as_such() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    run.connect_peer("cid", 0);
    let found = status(&mut run);
    assert_eq!(
        (found.peers[2].membership, found.peers[2].state.as_str()),
        (Membership::Pending, "waiting to join")
    );
    let now = run.now;
    for (who, content) in [(ann, 1), (bob, 2)] {
        run.peer(who).sync_shared_state(now, None, offer(0, &[content])).expect("sync may be called");
    }
    run.settle();
    run.forge(bob, ToMaster::Fetching { done_bytes: 41, all_bytes: 100 });
    let found = status(&mut run);
    assert_eq!((found.peers[1].state.as_str(), found.peers[1].fetched_percent), ("fetching 41 %", Some(41)));
    run.forge(bob, ToMaster::Fetching { done_bytes: 5, all_bytes: 0 });
    assert_eq!(status(&mut run).peers[1].fetched_percent, Some(100), "whatever a peer claims");
    run.reset_control(bob);
    let found = status(&mut run);
    assert_eq!((found.peers[1].state.as_str(), found.health), ("disconnected", Health::Degraded));
    assert!(found.verdict.starts_with("the connection of bob ended "), "{}", found.verdict);
}

#[test]
fn an_eviction_hits_no_decoy() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let (ann_id, bob_id) = (run.id(ann), run.id(bob));
    let id = format!("{:032x}", bob_id.0);
    // The codec refuses names of 8 digits and more.
    let prefix = &id[..7];
    for decoy in [prefix, "annabel", "bob"] {
        run.connect_peer(decoy, 0);
    }
    let mut find = |text: &str| run.master().find_peer(text).map(|found| found.peer);
    assert_eq!((find(&id), find("ann")), (Ok(bob_id), Ok(ann_id)), "what is exact wins");
    for text in [prefix, "bob"] {
        let error = find(text).unwrap_err();
        assert!(error.starts_with("several peers are called") && error.contains(&id), "{error}");
    }
}

#[test]
fn operators_evict_by_name_or_id_and_drain() {
    let (mut run, [ann, bob]) = TestRun::with_members();
    let id = format!("{:032x}", run.id(bob).0);
    let bob_id = run.id(bob);
    let mut find = |text: &str| run.master().find_peer(text).map(|found| found.peer);
    for text in ["bob", "b", &id] {
        assert_eq!(find(text), Ok(bob_id), "{text}");
    }
    let error = find("eve").unwrap_err();
    assert!(error.starts_with("no peer is called \"eve\": there are ann ("), "{error}");
    assert!(find("").is_err(), "nothing names nobody");
    run.master().drain(true);
    assert_eq!(status(&mut run).verdict, "draining: no peer may join, 2 are left");
    let cid = run.connect_peer("cid", 0);
    let call = run.peers[cid.0].connecting.expect("it connects");
    let refused = Failure::Removed(Removal::Rejected(JoinRejection::Draining));
    assert_eq!(*run.failure(cid, call), refused);
    run.master().drain(false);
    let dan = run.connect_peer("dan", 0);
    assert!(!run.is_connected(dan) && run.peers[dan.0].results.is_empty(), "it waits to be admitted");
    let (now, peer) = (run.now, run.id(bob));
    run.master().evict(now, peer, "its disk is full");
    run.settle();
    assert_eq!(run.removal(bob), Departure::Evicted("its disk is full".into()));
    assert!(run.is_connected(ann));
}
