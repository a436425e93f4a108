//! Masters that die: the run continues with the next one.

use crate::fixture::{
    SOON, accepted, assert_same, assert_steps_agree, expect_all, master, master_with, replies, send_all,
};

#[test]
fn a_loop_continues_when_the_master_is_killed_and_restarted() {
    let mut master = master();
    let address = master.address();
    let mut peers = accepted(3, address);
    send_all(&mut peers, "loop until=300 pause=2");
    for revision in [30, 100] {
        peers[0].step(SOON, |step| step.number("revision") >= revision).expect("steps");
        master.kill9().expect("killed");
        master = master_with(&["--listen", &address.to_string()]);
    }
    for reply in replies(&mut peers, "loop") {
        assert!(reply.is_ok() && reply.number("revision") == 300, "{reply}");
    }
    assert_steps_agree(&peers);
}

#[test]
fn a_commit_that_one_peer_received_holds_for_all_after_a_master_crash() {
    let mut master = master_with(&["--listen", "127.0.0.1:0", "--crash-after-commits", "3"]);
    let address = master.address();
    let mut peers = accepted(3, address);
    for step in 0..3 {
        send_all(&mut peers, &format!("reduce 1 1000 step={step}"));
        if step == 2 {
            master.wait_exit(SOON).expect("it crashes");
            master = master_with(&["--listen", &address.to_string()]);
        }
        let reduced = replies(&mut peers, "reduce");
        reduced.iter().for_each(|reply| assert!(reply.is_ok(), "step {step}: {reply}"));
        assert_same(&reduced, 0..3);
    }
    assert_same(&expect_all(&mut peers, "reduce 1 1000 step=3"), 0..3);
    drop(master);
}

#[test]
fn a_master_that_never_returns_fails_all_calls() {
    let mut master = master();
    let mut peers = accepted(2, master.address());
    expect_all(&mut peers, "reduce 1 1000");
    master.kill9().expect("killed");
    send_all(&mut peers, "topology");
    for reply in replies(&mut peers, "topology") {
        assert_eq!(reply.field("kind"), Some("MasterLost"), "{reply}");
    }
}
