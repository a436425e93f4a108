//! Peers that differ, leave early, stop for a while, or have no business here: nobody else pays for it.

use crate::stage::{
    SOON, accepted, admit, answers, assert_same, assert_steps_agree, do_all, let_in, master, master_with,
    peer, peer_with, tell_all,
};
use ringfold_lab::Answer;
use ringfold_lab::cast::Peer;
use ringfold_lab::socket::free_port;
use std::thread;
use std::time::{Duration, Instant};

/// "At once": far less than any deadline of a run.
const AT_ONCE: Duration = Duration::from_secs(10);

/// A loop went on without a call that failed.
fn assert_untroubled(answer: &Answer) {
    assert!(answer.is_ok(), "{answer}");
    assert_eq!((answer.number("aborts"), answer.number("retries")), (0, 0), "{answer}");
}

fn assert_ok(answers: &[Answer]) {
    answers.iter().for_each(|answer| assert!(answer.is_ok(), "{answer}"));
}

#[test]
fn a_death_in_one_group_aborts_nothing_in_another_and_needs_no_vote_of_it() {
    let master = master();
    let groups = ["0", "0", "1", "1", "1"];
    let start =
        |(number, group): (usize, &&str)| peer_with(number as u32, master.address(), &["--group", group]);
    let mut peers: Vec<Peer> = groups.iter().enumerate().map(start).collect();
    admit(&mut peers);
    let mut group_1 = peers.split_off(2);
    let mut group_0 = peers;
    do_all(&mut group_0, "reduce 1 1000");
    do_all(&mut group_1, "reduce 1 1000");
    // A small and a large one are in flight: the other peer of the group is late.
    group_0[0].expect("launch 1 1000 step=1", SOON).expect("launched");
    group_0[0].expect("launch 2 300000", SOON).expect("launched");
    let mut third = group_1.pop().expect("the third");
    do_all(&mut group_1, "launch 1 300000 step=1");
    third.kill9().expect("killed");
    tell_all(&mut group_1, "await 1");
    for answer in answers(&mut group_1, "await") {
        assert_eq!(
            (answer.field("kind"), answer.field("cause")),
            (Some("Aborted"), Some("PeerLost")),
            "{answer}"
        );
    }
    for step in 1..4 {
        assert_same(&do_all(&mut group_1, &format!("reduce 1 300000 step={step}")), 2..4);
    }
    group_0[1].expect("launch 2 300000", SOON).expect("launched");
    group_0[1].expect("launch 1 1000 step=1", SOON).expect("launched");
    for tag in [1, 2] {
        assert_same(&do_all(&mut group_0, &format!("await {tag}")), 0..2);
    }
    assert_same(&do_all(&mut group_0, "reduce 1 1000 step=2"), 0..2);
}

#[test]
fn calls_that_do_not_fit_fail_for_all_name_who_differs_and_the_next_works() {
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
            // Whoever has not called yet is not told, but takes part in the next: so the odd one calls last.
            let mut odd_one = peers.remove(differs);
            do_all(&mut peers, &format!("launch 1 {usual} step={step}"));
            let mut told =
                vec![odd_one.ask(&format!("reduce 1 {odd} step={step}"), SOON).expect("an answer")];
            tell_all(&mut peers, "await 1");
            told.extend(answers(&mut peers, "await"));
            for answer in told {
                assert_eq!(
                    (answer.field("kind"), answer.field("cause")),
                    (Some("Aborted"), Some("Mismatch")),
                    "{answer}"
                );
                let message = answer.text("message");
                assert!(message.contains(&format!("peer-{differs}")), "{usual} and {odd}: {answer}");
            }
            peers.insert(differs, odd_one);
            let reduced = do_all(&mut peers, &format!("reduce 1 {usual} step={step}"));
            assert_same(&reduced, 0..3);
            step += 1;
        }
    }
}

#[test]
fn calls_that_contradict_each_other_fail_at_once_and_name_each_other() {
    let master = master();
    let mut peers = accepted(3, master.address());
    let launch = |step| format!("launch 1 300000 step={step}");
    for step in 0..4 {
        let (voter, others) = peers.split_first_mut().expect("three");
        // Two wait in a collective when a third votes; or one calls while a third waits for votes.
        let reducers = if step % 2 == 0 { others } else { &mut others[1..] };
        let began = Instant::now();
        if step % 2 == 0 {
            do_all(reducers, &launch(step));
            voter.tell("topology").expect("told");
        } else {
            voter.tell("topology").expect("told");
            thread::sleep(Duration::from_millis(50));
            do_all(reducers, &launch(step));
        }
        let voted = voter.answer("topology", SOON).expect("an answer");
        assert_eq!(voted.field("kind"), Some("VoteFailed"), "{voted}");
        assert!(["peer-1", "peer-2"].iter().any(|name| voted.text("message").contains(name)), "{voted}");
        tell_all(reducers, "await 1");
        for answer in answers(reducers, "await") {
            assert_eq!(answer.field("kind"), Some("Aborted"), "{answer}");
            assert!(answer.text("message").contains("peer-0"), "{answer}");
        }
        assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
        assert_same(&do_all(&mut peers, &format!("reduce 1 300000 step={step}")), 0..3);
    }
}

#[test]
fn who_is_gone_right_after_its_own_success_fails_nobody_else() {
    let master = master();
    let mut peers = accepted(2, master.address());
    for round in 0..21 {
        let count = if round % 2 == 0 { 1000 } else { 200_000 };
        let mut brief = peer(2, master.address());
        let_in(&mut peers, &mut brief);
        let reduce = format!("reduce 1 {count} step={round}");
        tell_all(&mut peers, &reduce);
        brief.tell(&reduce).expect("told");
        match round % 3 {
            0 => brief.tell("leave").expect("told"),
            1 => brief.tell("exit").expect("told"),
            _ => {}
        }
        let mut reduced = vec![brief.answer("reduce", SOON).expect("an answer")];
        match round % 3 {
            0 => {}
            1 => assert!(brief.wait_exit(SOON).expect("it ends").success()),
            _ => brief.kill9().expect("killed"),
        }
        reduced.extend(answers(&mut peers, "reduce"));
        assert_ok(&reduced);
        assert_same(&reduced, 0..3);
        assert_eq!(reduced[1].number("world"), 3);
        drop(brief);
    }
}

#[test]
fn a_port_can_be_listened_on_again_as_soon_as_its_peer_was_killed() {
    let master = master();
    let port = free_port().to_string();
    let fixed = |number| peer_with(number, master.address(), &["--listen-port", &port]);
    let mut peers = vec![peer(0, master.address()), peer(1, master.address()), fixed(2)];
    admit(&mut peers);
    tell_all(&mut peers, "loop pause=1 count=100000");
    for number in 3..6 {
        let last = peers.last_mut().expect("the last");
        last.step(SOON, |step| step.number("world") == 3).expect("steps of three");
        last.kill9().expect("killed");
        peers.pop();
        let mut next = fixed(number);
        next.expect("connect", SOON).expect("accepted");
        next.tell("loop pause=1 count=100000").expect("told");
        peers.push(next);
    }
    for peer in &mut peers {
        peer.step(SOON, |step| step.number("world") == 3 && step.number("parts") == 0b10_0011)
            .expect("three");
    }
    assert_steps_agree(&peers);
}

#[test]
fn who_has_the_wrong_token_is_told_so_and_disturbs_nobody() {
    let master = master_with(&["--listen", "127.0.0.1:0", "--token", "sesame"]);
    let mut peers: Vec<Peer> =
        (0..3).map(|number| peer_with(number, master.address(), &["--token", "sesame"])).collect();
    admit(&mut peers);
    tell_all(&mut peers, "loop until=200 pause=2");
    for arguments in [&["--token", "sesam"][..], &["--token", ""], &[]] {
        let mut intruder = peer_with(7, master.address(), arguments);
        let told = intruder.ask("connect", SOON).expect("it does not hang");
        assert_eq!(told.field("kind"), Some("TurnedAway"), "{told}");
        assert!(told.text("message").contains("token"), "{told}");
    }
    answers(&mut peers, "loop").iter().for_each(assert_untroubled);
    assert_steps_agree(&peers);
}

#[test]
fn who_goes_on_after_it_was_put_out_learns_so_and_can_come_back_as_another() {
    let master = master();
    let mut peers = accepted(3, master.address());
    do_all(&mut peers, "reduce 1 1000");
    for (round, in_a_call) in [true, false].into_iter().enumerate() {
        let mut stopped = peers.pop().expect("the third");
        if in_a_call {
            stopped.expect(&format!("launch 1 1000 step={round}"), SOON).expect("launched");
            stopped.tell("await 1").expect("told");
        }
        stopped.stop().expect("stopped");
        tell_all(&mut peers, &format!("launch 2 1000 step={round}"));
        tell_all(&mut peers, "await 2");
        for answer in answers(&mut peers, "await") {
            assert_eq!(
                (answer.field("kind"), answer.field("cause")),
                (Some("Aborted"), Some("PeerLost")),
                "{answer}"
            );
        }
        stopped.cont().expect("goes on");
        let calls = ["topology", "reduce 3 1000", "sync 0 1000 2"];
        if in_a_call {
            let told = stopped.answer("await", SOON).expect("it does not hang");
            assert_eq!(told.field("kind"), Some("Removed"), "{told}");
        }
        for call in calls {
            let told = stopped.ask(call, SOON).expect("it does not hang");
            assert_eq!(told.field("kind"), Some("Removed"), "{told}");
        }
        let mut again = peer(2, master.address());
        let_in(&mut peers, &mut again);
        peers.push(again);
        assert_same(&do_all(&mut peers, &format!("reduce 3 1000 step={round}")), 0..3);
    }
}

#[test]
fn no_call_fails_when_the_master_is_stopped_for_longer_than_peers_wait_for_it() {
    let mut master = master();
    let mut peers = accepted(3, master.address());
    tell_all(&mut peers, "loop until=100 pause=2");
    peers[0].step(SOON, |step| step.number("revision") >= 20).expect("steps");
    master.stop().expect("stopped");
    thread::sleep(Duration::from_secs(4));
    master.cont().expect("goes on");
    answers(&mut peers, "loop").iter().for_each(assert_untroubled);
    assert_steps_agree(&peers);
    assert_same(&do_all(&mut peers, "reduce 7 1000"), 0..3);
}

#[test]
fn a_peer_that_stops_for_a_moment_goes_on_as_if_nothing_had_happened() {
    let master = master_with(&["--listen", "127.0.0.1:0", "--timing", "default"]);
    let mut peers: Vec<Peer> =
        (0..3).map(|number| peer_with(number, master.address(), &["--timing", "default"])).collect();
    admit(&mut peers);
    tell_all(&mut peers, "loop until=200 pause=2 count=100000");
    for revision in [20, 60, 100] {
        peers[0].step(SOON, |step| step.number("revision") >= revision).expect("steps");
        peers[1].stop().expect("stopped");
        thread::sleep(Duration::from_secs(1));
        peers[1].cont().expect("goes on");
    }
    answers(&mut peers, "loop").iter().for_each(assert_untroubled);
    assert_steps_agree(&peers);
}

#[test]
fn nobody_waits_for_a_peer_whose_state_was_rejected() {
    let master = master();
    let mut peers = accepted(3, master.address());
    let mut odd = peers.pop().expect("the third");
    tell_all(&mut peers, "sync 0 1000 2 fill=1");
    let told = odd.ask("sync 0 1000 3 fill=1", SOON).expect("an answer");
    assert_eq!((told.field("kind"), told.field("cause")), (Some("StateRejected"), Some("Layout")), "{told}");
    assert_ok(&answers(&mut peers, "sync"));
    // It makes no call from now on. The next sync waits for it for a moment, and evicts it.
    for revision in 1..4 {
        assert_ok(&do_all(&mut peers, &format!("sync {revision} 1000 2")));
    }
    assert_same(&do_all(&mut peers, "reduce 1 1000 step=1"), 0..2);
    for answer in do_all(&mut peers, "world") {
        assert_eq!((answer.number("world"), answer.number("global")), (2, 2), "{answer}");
    }
    let told = odd.ask("topology", SOON).expect("an answer");
    assert_eq!(told.field("kind"), Some("Removed"), "{told}");
    assert!(told.text("message").contains("its shared state was rejected"), "{told}");
}

#[test]
fn peers_that_wait_in_different_tags_read_of_each_other_in_their_own_logs() {
    let master = master();
    let mut peers = accepted(2, master.address());
    for (number, peer) in peers.iter_mut().enumerate() {
        peer.expect(&format!("launch {} 1000", number + 1), SOON).expect("launched");
    }
    let end = Instant::now() + SOON;
    for (number, peer) in peers.iter().enumerate() {
        let other = 1 - number;
        let words =
            format!("still waits for peer-{other} (which waits in a collective of tag {})", other + 1);
        while !peer.error_lines().iter().any(|line| line.contains("WARN") && line.contains(&words)) {
            assert!(Instant::now() < end, "{words:?} is not in {:?}", peer.error_lines());
            thread::sleep(Duration::from_millis(20));
        }
    }
    // Both go on when each makes the missing call.
    for (number, peer) in peers.iter_mut().enumerate() {
        peer.expect(&format!("launch {} 1000", 2 - number), SOON).expect("launched");
    }
    for tag in [1, 2] {
        assert_same(&do_all(&mut peers, &format!("await {tag}")), 0..2);
    }
}
