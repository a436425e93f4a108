//! Runs of real processes on loopback: peers join, die, stop and leave in every phase.

use crate::fixture::{
    SOON, accepted, assert_same, assert_steps_agree, expect_all, master, peer, replies, send_all,
    send_all_waiting,
};
use ringfold_lab::programs::PeerProcess;
use ringfold_lab::usage::descriptors;
use std::time::{Duration, Instant};

#[test]
fn results_include_every_peer_once_for_all_types_and_operations() {
    let master = master();
    let mut peers = accepted(3, master.address());
    for dtype in ["uint8", "int16", "uint32", "int64", "float16", "bfloat16", "float32", "float64"] {
        for op in ["sum", "avg", "prod", "max", "min"] {
            for (place, count) in [("inplace", 1000), ("out", 100_003)] {
                let reduce = format!("reduce 1 {count} op={op} dtype={dtype} {place}");
                assert_same(&expect_all(&mut peers, &reduce), 0..3);
            }
        }
    }
    for quant in ["minmax:uint8", "minmax:uint16", "zps:int8", "zps:uint16"] {
        let reduce = format!("reduce 2 50000 op=avg quant={quant}");
        assert_same(&expect_all(&mut peers, &reduce), 0..3);
    }
}

#[test]
fn a_late_peer_joins_a_running_loop_and_all_steps_agree() {
    let master = master();
    let mut peers = accepted(2, master.address());
    send_all(&mut peers, "loop until=300 pause=5");
    peers[0].step(SOON, |step| step.number("revision") >= 20).expect("steps");
    let mut late = peer(2, master.address());
    late.expect("connect", SOON).expect("accepted");
    late.send("loop until=300 pause=5").expect("told");
    let first = late.step(SOON, |_| true).expect("a step");
    assert!(first.number("fetched") > 0, "the state came from the others: {first}");
    peers.push(late);
    let ended = replies(&mut peers, "loop");
    for reply in &ended {
        assert!(reply.is_ok() && reply.number("revision") == 300 && reply.number("aborts") == 0, "{reply}");
        assert_eq!(reply.text("state"), ended[0].text("state"));
    }
    assert_steps_agree(&peers);
}

#[test]
fn survivors_continue_when_a_peer_is_killed_during_a_loop() {
    for tags in [1, 4] {
        let master = master();
        let mut peers = accepted(4, master.address());
        let training = format!("loop until=60 count=200000 tags={tags}");
        send_all(&mut peers, &training);
        peers[0].step(SOON, |step| step.number("revision") >= 10).expect("steps");
        peers[2].kill9().expect("killed");
        let killed = peers.remove(2);
        // One more is lost a little later.
        peers[0].step(SOON, |step| step.number("world") == 3).expect("three go on");
        peers[2].kill9().expect("killed");
        let also_killed = peers.remove(2);
        for reply in replies(&mut peers, "loop") {
            assert!(reply.is_ok() && reply.number("revision") == 60, "{reply}");
        }
        peers.extend([killed, also_killed]);
        assert_steps_agree(&peers);
    }
}

/// Two peers wait in a call for a third, which dies before it makes the call. They must not wait long.
fn dies_while_others_wait(call: &str, killed: bool, check: impl Fn(&mut [PeerProcess])) {
    let master = master();
    let mut peers = accepted(3, master.address());
    expect_all(&mut peers, "reduce 9 10");
    let mut third = peers.pop().expect("the third");
    send_all_waiting(&mut peers, call);
    assert!(peers[0].reply(call, Duration::from_millis(100)).is_err(), "it waits for the third");
    if killed {
        third.kill9().expect("killed")
    } else {
        third.stop().expect("stopped")
    }
    let began = Instant::now();
    check(&mut peers);
    assert!(began.elapsed() < SOON / 2, "{call}: {:?}", began.elapsed());
    // The two can continue.
    let reduced = expect_all(&mut peers, "reduce 9 1000 step=1");
    assert_same(&reduced, 0..2);
    if !killed {
        third.cont().expect("goes on");
        let late = third.request("reduce 9 1000 step=1", SOON).expect("it is answered");
        assert!(!late.is_ok(), "it was evicted: {late}");
    }
}

fn aborted(call: &str) -> impl Fn(&mut [PeerProcess]) {
    move |peers| {
        for reply in replies(peers, call) {
            assert_eq!(reply.field("kind"), Some("Aborted"), "{reply}");
            assert_eq!((reply.text("retryable"), reply.text("cause")), ("true", "PeerLost"), "{reply}");
            assert!(reply.text("message").contains("peer-2"), "whose fault it is: {reply}");
        }
    }
}

fn succeeded(call: &str) -> impl Fn(&mut [PeerProcess]) {
    move |peers| replies(peers, call).iter().for_each(|reply| assert!(reply.is_ok(), "{reply}"))
}

#[test]
fn a_reduce_is_aborted_for_all_when_a_peer_is_killed() {
    dies_while_others_wait("reduce 1 100000", true, aborted("reduce"));
}

#[test]
fn a_reduce_is_aborted_for_all_when_a_peer_is_stopped() {
    dies_while_others_wait("reduce 1 100000", false, aborted("reduce"));
}

#[test]
fn a_sync_succeeds_without_a_killed_peer() {
    dies_while_others_wait("sync 0 100000 3 fill=1", true, succeeded("sync"));
}

#[test]
fn a_sync_succeeds_without_a_stopped_peer() {
    dies_while_others_wait("sync 0 100000 3 fill=1", false, succeeded("sync"));
}

#[test]
fn a_topology_update_succeeds_without_a_killed_peer() {
    dies_while_others_wait("topology", true, succeeded("topology"));
}

#[test]
fn a_topology_update_succeeds_without_a_stopped_peer() {
    dies_while_others_wait("topology", false, succeeded("topology"));
}

#[test]
fn a_check_for_pending_peers_succeeds_without_a_killed_peer() {
    dies_while_others_wait("pending", true, succeeded("pending"));
}

#[test]
fn an_optimisation_ends_without_a_killed_peer() {
    dies_while_others_wait("optimize", true, |peers| drop(replies(peers, "optimize")));
}

#[test]
fn a_pending_peer_may_die() {
    let master = master();
    let mut peers = accepted(2, master.address());
    let mut pending = peer(2, master.address());
    pending.send("connect").expect("told");
    let waits = || expect_all(&mut peers, "pending").iter().all(|reply| reply.text("pending") == "true");
    assert!(eventually(waits), "it is seen to wait");
    pending.kill9().expect("killed");
    let gone = || expect_all(&mut peers, "pending").iter().all(|reply| reply.text("pending") == "false");
    assert!(eventually(gone), "it is seen to be gone");
    expect_all(&mut peers, "topology");
    assert_same(&expect_all(&mut peers, "reduce 1 1000"), 0..2);
}

#[test]
fn the_last_peer_of_a_run_gets_an_error_and_others_can_join_again() {
    let master = master();
    let mut peers = accepted(2, master.address());
    expect_all(&mut peers, "sync 0 1000 2 fill=1");
    expect_all(&mut peers, "reduce 1 1000");
    peers[1].kill9().expect("killed");
    peers.truncate(1);
    let alone = || !peers[0].request("reduce 1 1000 step=1", SOON).expect("answered").is_ok();
    assert!(eventually(alone));
    let reply = peers[0].request("reduce 1 1000 step=1", SOON).expect("answered");
    assert_eq!(reply.field("kind"), Some("TooFewPeers"), "{reply}");
    let mut other = peer(1, master.address());
    other.send("connect").expect("told");
    let pending = || peers[0].expect("pending", SOON).expect("pending").text("pending") == "true";
    assert!(eventually(pending));
    peers[0].expect("topology", SOON).expect("topology");
    let accepted = other.reply("connect", SOON).expect("accepted");
    assert!(accepted.is_ok() && accepted.number("world") == 2, "{accepted}");
    peers.push(other);
    assert_same(&expect_all(&mut peers, "reduce 1 1000 step=2"), 0..2);
    let synced = expect_all(&mut peers, "sync 1 1000 2");
    assert_eq!(synced[0].text("state"), synced[1].text("state"));
}

#[test]
fn peers_that_join_and_die_leak_nothing_in_the_others() {
    let master = master();
    let mut peers = accepted(2, master.address());
    send_all(&mut peers, "loop pause=2");
    let mut before = None;
    for round in 0..12 {
        let mut newcomer = peer(2, master.address());
        newcomer.expect("connect", SOON).expect("accepted");
        newcomer.send("loop").expect("told");
        newcomer.step(SOON, |_| true).expect("a step");
        if round % 2 == 0 {
            newcomer.kill9().expect("killed")
        } else {
            newcomer.send("stop").expect("told")
        }
        if round % 2 == 1 {
            newcomer.reply("loop", SOON).expect("the end of the loop");
            newcomer.expect("leave", SOON).expect("left");
        }
        drop(newcomer);
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
    peers.iter_mut().for_each(|peer| peer.send("stop").expect("told"));
}

/// Descriptors and threads of all processes.
fn held(master: &ringfold_lab::Process, peers: &[PeerProcess]) -> Vec<(usize, usize)> {
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
