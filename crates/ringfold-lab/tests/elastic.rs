//! Runs of real processes on the loopback: peers come, die, stop and leave in every phase.

use crate::stage::{
    SOON, accepted, answers, assert_same, assert_steps_agree, do_all, master, peer, tell_all,
};
use ringfold_lab::cast::Peer;
use ringfold_lab::usage::descriptors;
use std::time::{Duration, Instant};

#[test]
fn results_tell_of_every_peer_once_whatever_the_type_and_operation() {
    let master = master();
    let mut peers = accepted(3, master.address());
    for dtype in ["uint8", "int16", "uint32", "int64", "float16", "bfloat16", "float32", "float64"] {
        for op in ["sum", "avg", "prod", "max", "min"] {
            for (place, count) in [("inplace", 1000), ("out", 100_003)] {
                let reduce = format!("reduce 1 {count} op={op} dtype={dtype} {place}");
                assert_same(&do_all(&mut peers, &reduce), 0..3);
            }
        }
    }
    for quant in ["minmax:uint8", "minmax:uint16", "zps:int8", "zps:uint16"] {
        let reduce = format!("reduce 2 50000 op=avg quant={quant}");
        assert_same(&do_all(&mut peers, &reduce), 0..3);
    }
}

#[test]
fn a_late_peer_joins_a_running_loop_and_all_steps_agree() {
    let master = master();
    let mut peers = accepted(2, master.address());
    tell_all(&mut peers, "loop until=300 pause=5");
    peers[0].step(SOON, |step| step.number("revision") >= 20).expect("steps");
    let mut late = peer(2, master.address());
    late.expect("connect", SOON).expect("accepted");
    late.tell("loop until=300 pause=5").expect("told");
    let first = late.step(SOON, |_| true).expect("a step");
    assert!(first.number("fetched") > 0, "the state came from the others: {first}");
    peers.push(late);
    let ended = answers(&mut peers, "loop");
    for answer in &ended {
        assert!(
            answer.is_ok() && answer.number("revision") == 300 && answer.number("aborts") == 0,
            "{answer}"
        );
        assert_eq!(answer.text("state"), ended[0].text("state"));
    }
    assert_steps_agree(&peers);
}

#[test]
fn survivors_go_on_when_a_peer_is_killed_in_the_middle_of_a_loop() {
    for tags in [1, 4] {
        let master = master();
        let mut peers = accepted(4, master.address());
        let training = format!("loop until=200 count=200000 tags={tags}");
        tell_all(&mut peers, &training);
        peers[0].step(SOON, |step| step.number("revision") >= 10).expect("steps");
        peers[2].kill9().expect("killed");
        let killed = peers.remove(2);
        // One more is lost a little later.
        peers[0].step(SOON, |step| step.number("world") == 3).expect("three go on");
        peers[2].kill9().expect("killed");
        let also_killed = peers.remove(2);
        for answer in answers(&mut peers, "loop") {
            assert!(answer.is_ok() && answer.number("revision") == 200, "{answer}");
        }
        peers.extend([killed, also_killed]);
        assert_steps_agree(&peers);
    }
}

/// Two peers wait in a call for a third that dies before it makes it: they must not wait for long.
fn dies_while_others_wait(call: &str, killed: bool, check: impl Fn(&mut [Peer])) {
    let master = master();
    let mut peers = accepted(3, master.address());
    do_all(&mut peers, "reduce 9 10");
    let mut third = peers.pop().expect("the third");
    tell_all(&mut peers, call);
    std::thread::sleep(Duration::from_millis(100));
    assert!(peers[0].answer(call, Duration::from_millis(100)).is_err(), "it waits for the third");
    if killed {
        third.kill9().expect("killed")
    } else {
        third.stop().expect("stopped")
    }
    let began = Instant::now();
    check(&mut peers);
    assert!(began.elapsed() < SOON / 2, "{call}: {:?}", began.elapsed());
    // And the two can go on.
    let reduced = do_all(&mut peers, "reduce 9 1000 step=1");
    assert_same(&reduced, 0..2);
    if !killed {
        third.cont().expect("goes on");
        let late = third.ask("reduce 9 1000 step=1", SOON).expect("it is answered");
        assert!(!late.is_ok(), "it was put out: {late}");
    }
}

fn aborted(call: &str) -> impl Fn(&mut [Peer]) {
    move |peers| {
        for answer in answers(peers, call) {
            assert_eq!(answer.field("kind"), Some("Aborted"), "{answer}");
            assert_eq!((answer.text("retryable"), answer.text("cause")), ("true", "PeerLost"), "{answer}");
            assert!(answer.text("message").contains("peer-2"), "whose fault it is: {answer}");
        }
    }
}

fn succeeded(call: &str) -> impl Fn(&mut [Peer]) {
    move |peers| answers(peers, call).iter().for_each(|answer| assert!(answer.is_ok(), "{answer}"))
}

#[test]
fn a_reduce_is_aborted_for_all_when_a_peer_is_killed() {
    dies_while_others_wait("reduce 1 100000", true, aborted("reduce"));
}

#[test]
fn a_reduce_is_aborted_for_all_when_a_peer_stops() {
    dies_while_others_wait("reduce 1 100000", false, aborted("reduce"));
}

#[test]
fn a_sync_succeeds_without_a_peer_that_is_killed() {
    dies_while_others_wait("sync 0 100000 3 fill=1", true, succeeded("sync"));
}

#[test]
fn a_sync_succeeds_without_a_peer_that_stops() {
    dies_while_others_wait("sync 0 100000 3 fill=1", false, succeeded("sync"));
}

#[test]
fn a_vote_on_the_topology_succeeds_without_a_peer_that_is_killed() {
    dies_while_others_wait("topology", true, succeeded("topology"));
}

#[test]
fn a_vote_on_the_topology_succeeds_without_a_peer_that_stops() {
    dies_while_others_wait("topology", false, succeeded("topology"));
}

#[test]
fn a_question_for_pending_peers_is_answered_without_a_peer_that_is_killed() {
    dies_while_others_wait("pending", true, succeeded("pending"));
}

#[test]
fn an_optimisation_ends_without_a_peer_that_is_killed() {
    dies_while_others_wait("optimize", true, |peers| drop(answers(peers, "optimize")));
}

#[test]
fn a_peer_that_waits_to_be_accepted_may_die() {
    let master = master();
    let mut peers = accepted(2, master.address());
    let mut pending = peer(2, master.address());
    pending.tell("connect").expect("told");
    let waits = || do_all(&mut peers, "pending").iter().all(|answer| answer.text("pending") == "true");
    assert!(eventually(waits), "it is seen to wait");
    pending.kill9().expect("killed");
    let gone = || do_all(&mut peers, "pending").iter().all(|answer| answer.text("pending") == "false");
    assert!(eventually(gone), "it is seen to be gone");
    do_all(&mut peers, "topology");
    assert_same(&do_all(&mut peers, "reduce 1 1000"), 0..2);
}

#[test]
fn the_last_peer_of_a_run_learns_that_it_is_alone_and_others_can_come_back() {
    let master = master();
    let mut peers = accepted(2, master.address());
    do_all(&mut peers, "sync 0 1000 2 fill=1");
    do_all(&mut peers, "reduce 1 1000");
    peers[1].kill9().expect("killed");
    peers.truncate(1);
    let alone = || !peers[0].ask("reduce 1 1000 step=1", SOON).expect("answered").is_ok();
    assert!(eventually(alone));
    let answer = peers[0].ask("reduce 1 1000 step=1", SOON).expect("answered");
    assert_eq!(answer.field("kind"), Some("TooFewPeers"), "{answer}");
    let mut other = peer(1, master.address());
    other.tell("connect").expect("told");
    let pending = || peers[0].expect("pending", SOON).expect("pending").text("pending") == "true";
    assert!(eventually(pending));
    peers[0].expect("topology", SOON).expect("topology");
    let accepted = other.answer("connect", SOON).expect("accepted");
    assert!(accepted.is_ok() && accepted.number("world") == 2, "{accepted}");
    peers.push(other);
    assert_same(&do_all(&mut peers, "reduce 1 1000 step=2"), 0..2);
    let synced = do_all(&mut peers, "sync 1 1000 2");
    assert_eq!(synced[0].text("state"), synced[1].text("state"));
}

#[test]
fn peers_that_come_and_die_leave_nothing_in_the_others() {
    let master = master();
    let mut peers = accepted(2, master.address());
    tell_all(&mut peers, "loop pause=2");
    let mut before = None;
    for round in 0..12 {
        let mut guest = peer(2, master.address());
        guest.expect("connect", SOON).expect("accepted");
        guest.tell("loop").expect("told");
        guest.step(SOON, |_| true).expect("a step");
        if round % 2 == 0 {
            guest.kill9().expect("killed")
        } else {
            guest.tell("stop").expect("told")
        }
        if round % 2 == 1 {
            guest.answer("loop", SOON).expect("the end of the loop");
            guest.expect("leave", SOON).expect("left");
        }
        drop(guest);
        for peer in &mut peers {
            peer.step(SOON, |step| step.number("world") == 2).expect("two go on");
        }
        // What the first rounds set up may stay.
        if round == 3 {
            before = Some(held(&master, &peers));
        }
    }
    let before = before.expect("measured");
    let settled =
        || held(&master, &peers).iter().zip(&before).all(|(now, then)| now.0 <= then.0 && now.1 <= then.1);
    assert!(
        eventually(settled),
        "{before:?} became {:?}\n{:#?}",
        held(&master, &peers),
        descriptors(peers[0].pid())
    );
    peers.iter_mut().for_each(|peer| peer.tell("stop").expect("told"));
}

/// Descriptors and threads of all processes.
fn held(master: &ringfold_lab::Process, peers: &[Peer]) -> Vec<(usize, usize)> {
    let processes = std::iter::once(master).chain(peers.iter().map(|peer| &**peer));
    let usages = processes.map(|process| process.usage().expect("usage"));
    usages.map(|usage| (usage.descriptors, usage.threads)).collect()
}

fn eventually(mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + SOON;
    while !holds() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}
