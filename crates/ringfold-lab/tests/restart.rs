//! Masters that die: the run goes on with the next one.

use crate::stage::{
    SOON, accepted, answers, assert_same, assert_steps_agree, do_all, master, master_with, tell_all,
};

#[test]
fn a_loop_goes_on_when_the_master_is_killed_and_started_again() {
    let mut master = master();
    let address = master.address();
    let mut peers = accepted(3, address);
    tell_all(&mut peers, "loop until=300 pause=2");
    for revision in [30, 100] {
        peers[0].step(SOON, |step| step.number("revision") >= revision).expect("steps");
        master.kill9().expect("killed");
        master = master_with(&["--listen", &address.to_string()]);
    }
    for answer in answers(&mut peers, "loop") {
        assert!(answer.is_ok() && answer.number("revision") == 300, "{answer}");
    }
    assert_steps_agree(&peers);
}

#[test]
fn what_one_peer_saw_committed_is_committed_for_all_after_a_crash_in_the_middle_of_telling() {
    let mut master = master_with(&["--listen", "127.0.0.1:0", "--crash-after-commits", "3"]);
    let address = master.address();
    let mut peers = accepted(3, address);
    for step in 0..3 {
        tell_all(&mut peers, &format!("reduce 1 1000 step={step}"));
        if step == 2 {
            master.wait_exit(SOON).expect("it crashes");
            master = master_with(&["--listen", &address.to_string()]);
        }
        let reduced = answers(&mut peers, "reduce");
        reduced.iter().for_each(|answer| assert!(answer.is_ok(), "step {step}: {answer}"));
        assert_same(&reduced, 0..3);
    }
    assert_same(&do_all(&mut peers, "reduce 1 1000 step=3"), 0..3);
    drop(master);
}

#[test]
fn a_master_that_never_comes_back_ends_all_calls() {
    let mut master = master();
    let mut peers = accepted(2, master.address());
    do_all(&mut peers, "reduce 1 1000");
    master.kill9().expect("killed");
    tell_all(&mut peers, "topology");
    for answer in answers(&mut peers, "topology") {
        assert_eq!(answer.field("kind"), Some("MasterLost"), "{answer}");
    }
}
