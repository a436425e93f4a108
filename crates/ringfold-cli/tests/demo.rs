//! The promises of `ringfold demo`.

use crate::process::{Process, RINGFOLD, eventually, lives, output};
use rustix::process::Signal;

const SMALL: [&str; 7] = ["demo", "--size", "1MiB", "--compute-ms", "10", "--steps", "9"];

#[test]
fn a_peer_dies_another_comes_and_all_end_with_the_same_bits() {
    let output = output(RINGFOLD, &SMALL);
    let text = String::from_utf8_lossy(&output.stdout);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}\n{complaints}");
    for part in ["killed peer C", "peer E joined", "same bits on all (A B D E)", "everything held"] {
        assert!(text.contains(part), "{part:?} is not in\n{text}\n{complaints}");
    }
}

#[test]
fn one_of_two_goes_on_with_a_third_when_the_other_dies() {
    let output = output(RINGFOLD, &[&SMALL[..], &["--peers", "2"]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("same bits on all (A C)"), "{text}");
}

#[test]
fn without_chaos_nobody_dies_and_nobody_comes() {
    let output = output(RINGFOLD, &[&SMALL[..], &["--peers", "3", "--no-chaos"]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        text.contains("same bits on all (A B C)") && text.contains(" 0 of them at the second attempt"),
        "{text}"
    );
    assert!(!text.contains("killed") && !text.contains("joined"), "{text}");
}

/// A demo that would go on for long, and its processes: a master and four peers.
fn endless() -> (Process, Vec<i32>) {
    let demo = Process::start(RINGFOLD, &["demo", "--size", "1MiB", "--steps", "100000", "--no-chaos"]);
    demo.line_with("step ");
    let children = demo.children();
    assert_eq!(children.len(), 5);
    (demo, children)
}

fn none_stays(children: &[i32]) {
    eventually("the end of all children", || (!children.iter().any(|pid| lives(*pid))).then_some(()));
}

#[test]
fn a_demo_that_is_interrupted_leaves_nothing_behind() {
    for signal in [Signal::INT, Signal::TERM] {
        let (mut demo, children) = endless();
        demo.signal(signal);
        let (status, complaints) = demo.end();
        assert_eq!(status.code(), Some(130), "{complaints}");
        // It waits for them before it ends, so none is left by now.
        assert!(!children.iter().any(|pid| lives(*pid)));
    }
}

#[test]
fn a_demo_that_is_killed_leaves_nothing_behind() {
    let (mut demo, children) = endless();
    demo.signal(Signal::KILL);
    demo.end();
    none_stays(&children);
}

#[test]
fn a_peer_that_dies_unasked_fails_the_demo() {
    let (mut demo, children) = endless();
    let name = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let peer = children.iter().copied().find(|pid| name(pid).contains("demo-peer")).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(peer).unwrap(), Signal::KILL).unwrap();
    demo.line_with("ended before its time");
    let (status, _) = demo.end();
    assert_eq!(status.code(), Some(1));
    none_stays(&children);
}
