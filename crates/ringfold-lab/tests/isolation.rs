//! Peers that differ, leave early, stop or are rejected do not affect the others.

use crate::fixture::{
    SOON, accepted, admit, assert_same, assert_steps_agree, expect_all, join, master, master_with, peer,
    peer_with, replies, send_all, send_all_waiting,
};
use ringfold_lab::PeerReply;
use ringfold_lab::programs::PeerProcess;
use ringfold_lab::socket::free_port;
use std::thread;
use std::time::{Duration, Instant};

/// Far less than any timeout of a run.
const AT_ONCE: Duration = Duration::from_secs(10);

/// A loop ended without a failed call.
fn assert_undisturbed(reply: &PeerReply) {
    assert!(reply.is_ok(), "{reply}");
    assert_eq!((reply.number("aborts"), reply.number("retries")), (0, 0), "{reply}");
}

fn assert_ok(replies: &[PeerReply]) {
    replies.iter().for_each(|reply| assert!(reply.is_ok(), "{reply}"));
}

#[test]
fn a_death_in_one_group_aborts_nothing_in_another_and_needs_no_vote_there() {
    let master = master();
    let groups = ["0", "0", "1", "1", "1"];
    let start =
        |(number, group): (usize, &&str)| peer_with(number as u32, master.address(), &["--group", group]);
    let mut peers: Vec<PeerProcess> = groups.iter().enumerate().map(start).collect();
    admit(&mut peers);
    let mut group_1 = peers.split_off(2);
    let mut group_0 = peers;
    expect_all(&mut group_0, "reduce 1 1000");
    expect_all(&mut group_1, "reduce 1 1000");
    // A small and a large one are in flight: the other peer of the group is late.
    group_0[0].expect("launch 1 1000 step=1", SOON).expect("launched");
    group_0[0].expect("launch 2 300000", SOON).expect("launched");
    let mut third = group_1.pop().expect("the third");
    expect_all(&mut group_1, "launch 1 300000 step=1");
    third.kill9().expect("killed");
    send_all(&mut group_1, "await 1");
    for reply in replies(&mut group_1, "await") {
        assert_eq!(
            (reply.field("kind"), reply.field("cause")),
            (Some("Aborted"), Some("PeerLost")),
            "{reply}"
        );
    }
    for step in 1..4 {
        assert_same(&expect_all(&mut group_1, &format!("reduce 1 300000 step={step}")), 2..4);
    }
    group_0[1].expect("launch 2 300000", SOON).expect("launched");
    group_0[1].expect("launch 1 1000 step=1", SOON).expect("launched");
    for tag in [1, 2] {
        assert_same(&expect_all(&mut group_0, &format!("await {tag}")), 0..2);
    }
    assert_same(&expect_all(&mut group_0, "reduce 1 1000 step=2"), 0..2);
}

#[test]
fn mismatched_calls_fail_for_all_and_name_the_peer_and_the_next_call_works() {
    let master = master();
    let mut peers = accepted(3, master.address());
    let mut step = 0;
    for (usual, odd) in [
        ("1000", "1001"),
        ("500000", "400000"),
        ("1000", "1000 dtype=float64"),
        ("500000", "500000 dtype=int32"),
        ("1000", "1000 op=max"),
        ("500000 op=avg", "500000 op=sum"),
        ("500000 op=avg", "500000 op=avg quant=minmax:uint8"),
    ] {
        for differs in 0..3 {
            // A peer that has not called gets no error, but takes part in the next call. So the odd one calls last.
            let mut odd_one = peers.remove(differs);
            expect_all(&mut peers, &format!("launch 1 {usual} step={step}"));
            let mut told =
                vec![odd_one.request(&format!("reduce 1 {odd} step={step}"), SOON).expect("an reply")];
            send_all(&mut peers, "await 1");
            told.extend(replies(&mut peers, "await"));
            for reply in told {
                assert_eq!(
                    (reply.field("kind"), reply.field("cause")),
                    (Some("Aborted"), Some("Mismatch")),
                    "{reply}"
                );
                let message = reply.text("message");
                assert!(message.contains(&format!("peer-{differs}")), "{usual} and {odd}: {reply}");
            }
            peers.insert(differs, odd_one);
            let reduced = expect_all(&mut peers, &format!("reduce 1 {usual} step={step}"));
            assert_same(&reduced, 0..3);
            step += 1;
        }
    }
}

#[test]
fn contradicting_calls_fail_at_once_and_name_the_peers() {
    let master = master();
    let mut peers = accepted(3, master.address());
    let launch = |step| format!("launch 1 300000 step={step}");
    for step in 0..4 {
        let (voter, others) = peers.split_first_mut().expect("three");
        // Two wait in a collective when a third votes, or one calls while a third waits for votes.
        let reducers = if step % 2 == 0 { others } else { &mut others[1..] };
        let began = Instant::now();
        if step % 2 == 0 {
            expect_all(reducers, &launch(step));
            voter.send("topology").expect("told");
        } else {
            send_all_waiting(std::slice::from_mut(voter), "topology");
            expect_all(reducers, &launch(step));
        }
        let voted = voter.reply("topology", SOON).expect("an reply");
        assert_eq!(voted.field("kind"), Some("VoteFailed"), "{voted}");
        assert!(["peer-1", "peer-2"].iter().any(|name| voted.text("message").contains(name)), "{voted}");
        send_all(reducers, "await 1");
        for reply in replies(reducers, "await") {
            assert_eq!(reply.field("kind"), Some("Aborted"), "{reply}");
            assert!(reply.text("message").contains("peer-0"), "{reply}");
        }
        assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
        assert_same(&expect_all(&mut peers, &format!("reduce 1 300000 step={step}")), 0..3);
    }
}

#[test]
fn a_peer_that_ends_after_its_own_success_fails_no_other_peer() {
    let master = master();
    let mut peers = accepted(2, master.address());
    for round in 0..21 {
        let count = if round % 2 == 0 { 1000 } else { 200_000 };
        let mut brief = peer(2, master.address());
        join(&mut peers, &mut brief);
        let reduce = format!("reduce 1 {count} step={round}");
        send_all(&mut peers, &reduce);
        brief.send(&reduce).expect("told");
        match round % 3 {
            0 => brief.send("leave").expect("told"),
            1 => brief.send("exit").expect("told"),
            _ => {}
        }
        let mut reduced = vec![brief.reply("reduce", SOON).expect("an reply")];
        match round % 3 {
            0 => {}
            1 => assert!(brief.wait_exit(SOON).expect("it ends").success()),
            _ => brief.kill9().expect("killed"),
        }
        reduced.extend(replies(&mut peers, "reduce"));
        assert_ok(&reduced);
        assert_same(&reduced, 0..3);
        assert_eq!(reduced[1].number("world"), 3);
        drop(brief);
    }
}

#[test]
fn the_port_of_a_killed_peer_can_be_reused_at_once() {
    let master = master();
    let port = free_port().to_string();
    let fixed = |number| peer_with(number, master.address(), &["--listen-port", &port]);
    let mut peers = vec![peer(0, master.address()), peer(1, master.address()), fixed(2)];
    admit(&mut peers);
    send_all(&mut peers, "loop pause=1 count=100000");
    for number in 3..6 {
        let last = peers.last_mut().expect("the last");
        last.step(SOON, |step| step.number("world") == 3).expect("steps of three");
        last.kill9().expect("killed");
        peers.pop();
        let mut next = fixed(number);
        next.expect("connect", SOON).expect("accepted");
        next.send("loop pause=1 count=100000").expect("told");
        peers.push(next);
    }
    for peer in &mut peers {
        peer.step(SOON, |step| step.number("world") == 3 && step.number("participants") == 0b10_0011)
            .expect("three");
    }
    assert_steps_agree(&peers);
}

#[test]
fn a_peer_with_a_wrong_token_is_rejected_and_has_no_effect() {
    let master = master_with(&["--listen", "127.0.0.1:0", "--token", "sesame"]);
    let mut peers: Vec<PeerProcess> =
        (0..3).map(|number| peer_with(number, master.address(), &["--token", "sesame"])).collect();
    admit(&mut peers);
    send_all(&mut peers, "loop until=200 pause=2");
    for arguments in [&["--token", "sesam"][..], &["--token", ""], &[]] {
        let mut intruder = peer_with(7, master.address(), arguments);
        let told = intruder.request("connect", SOON).expect("it does not hang");
        assert_eq!(told.field("kind"), Some("JoinRejected"), "{told}");
        assert!(told.text("message").contains("token"), "{told}");
    }
    replies(&mut peers, "loop").iter().for_each(assert_undisturbed);
    assert_steps_agree(&peers);
}

#[test]
fn an_evicted_peer_gets_an_error_and_can_join_again() {
    let master = master();
    let mut peers = accepted(3, master.address());
    expect_all(&mut peers, "reduce 1 1000");
    for (round, in_a_call) in [true, false].into_iter().enumerate() {
        let mut stopped = peers.pop().expect("the third");
        if in_a_call {
            stopped.expect(&format!("launch 1 1000 step={round}"), SOON).expect("launched");
            stopped.send("await 1").expect("told");
        }
        stopped.stop().expect("stopped");
        send_all(&mut peers, &format!("launch 2 1000 step={round}"));
        send_all(&mut peers, "await 2");
        for reply in replies(&mut peers, "await") {
            assert_eq!(
                (reply.field("kind"), reply.field("cause")),
                (Some("Aborted"), Some("PeerLost")),
                "{reply}"
            );
        }
        stopped.cont().expect("goes on");
        let calls = ["topology", "reduce 3 1000", "sync 0 1000 2"];
        if in_a_call {
            let told = stopped.reply("await", SOON).expect("it does not hang");
            assert_eq!(told.field("kind"), Some("Removed"), "{told}");
        }
        for call in calls {
            let told = stopped.request(call, SOON).expect("it does not hang");
            assert_eq!(told.field("kind"), Some("Removed"), "{told}");
        }
        let mut again = peer(2, master.address());
        join(&mut peers, &mut again);
        peers.push(again);
        assert_same(&expect_all(&mut peers, &format!("reduce 3 1000 step={round}")), 0..3);
    }
}

#[test]
fn no_call_fails_when_the_master_is_stopped_for_longer_than_peers_wait_for_it() {
    let mut master = master();
    let mut peers = accepted(3, master.address());
    send_all(&mut peers, "loop until=100 pause=2");
    peers[0].step(SOON, |step| step.number("revision") >= 20).expect("steps");
    master.stop().expect("stopped");
    thread::sleep(Duration::from_secs(4));
    master.cont().expect("goes on");
    replies(&mut peers, "loop").iter().for_each(assert_undisturbed);
    assert_steps_agree(&peers);
    assert_same(&expect_all(&mut peers, "reduce 7 1000"), 0..3);
}

#[test]
fn a_short_stop_of_a_peer_has_no_effect() {
    let master = master_with(&["--listen", "127.0.0.1:0", "--timing", "default"]);
    let mut peers: Vec<PeerProcess> =
        (0..3).map(|number| peer_with(number, master.address(), &["--timing", "default"])).collect();
    admit(&mut peers);
    send_all(&mut peers, "loop until=200 pause=2 count=100000");
    for revision in [20, 60, 100] {
        peers[0].step(SOON, |step| step.number("revision") >= revision).expect("steps");
        peers[1].stop().expect("stopped");
        thread::sleep(Duration::from_secs(1));
        peers[1].cont().expect("goes on");
    }
    replies(&mut peers, "loop").iter().for_each(assert_undisturbed);
    assert_steps_agree(&peers);
}

#[test]
fn no_peer_waits_for_one_whose_state_was_rejected() {
    let master = master();
    let mut peers = accepted(3, master.address());
    let mut odd = peers.pop().expect("the third");
    send_all(&mut peers, "sync 0 1000 2 fill=1");
    let told = odd.request("sync 0 1000 3 fill=1", SOON).expect("an reply");
    assert_eq!((told.field("kind"), told.field("cause")), (Some("StateRejected"), Some("Layout")), "{told}");
    assert_ok(&replies(&mut peers, "sync"));
    // It makes no more calls. The next sync waits for it briefly, and evicts it.
    for revision in 1..4 {
        assert_ok(&expect_all(&mut peers, &format!("sync {revision} 1000 2")));
    }
    assert_same(&expect_all(&mut peers, "reduce 1 1000 step=1"), 0..2);
    for reply in expect_all(&mut peers, "world") {
        assert_eq!((reply.number("world"), reply.number("global")), (2, 2), "{reply}");
    }
    let told = odd.request("topology", SOON).expect("an reply");
    assert_eq!(told.field("kind"), Some("Removed"), "{told}");
    assert!(told.text("message").contains("its shared state was rejected"), "{told}");
}

#[test]
fn peers_that_wait_in_different_tags_log_each_other() {
    let master = master();
    let mut peers = accepted(2, master.address());
    for (number, peer) in peers.iter_mut().enumerate() {
        peer.expect(&format!("launch {} 1000", number + 1), SOON).expect("launched");
    }
    let end = Instant::now() + SOON;
    for (number, peer) in peers.iter().enumerate() {
        let other = 1 - number;
        let words = [
            format!("still waiting for peer-{other} for "),
            format!(" s: it has not called all_reduce tag {} (last heard ", number + 1),
            format!(": alive, waits in all_reduce tag {})", other + 1),
        ];
        let warns = |line: &String| line.contains("WARN") && words.iter().all(|part| line.contains(part));
        while !peer.error_lines().iter().any(warns) {
            assert!(Instant::now() < end, "{words:?} is not in {:?}", peer.error_lines());
            thread::sleep(Duration::from_millis(20));
        }
    }
    // Both continue when each makes the missing call.
    for (number, peer) in peers.iter_mut().enumerate() {
        peer.expect(&format!("launch {} 1000", 2 - number), SOON).expect("launched");
    }
    for tag in [1, 2] {
        assert_same(&expect_all(&mut peers, &format!("await {tag}")), 0..2);
    }
}
