//! Tests of `ringfold demo`.

use crate::process::{Process, RINGFOLD, command, eventually, lives, output};
use rustix::process::Signal;

const SMALL: [&str; 7] = ["demo", "--size", "1MiB", "--compute-ms", "10", "--steps", "9"];

#[test]
fn a_peer_dies_another_joins_and_all_end_with_the_same_bits() {
    let output = output(RINGFOLD, &SMALL);
    let text = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}\n{stderr}");
    for part in ["killed peer C", "peer E joined", "same bits on all (A B D E)", "all checks passed"] {
        assert!(text.contains(part), "{part:?} is not in\n{text}\n{stderr}");
    }
}

#[test]
fn one_of_two_peers_continues_with_a_third_when_the_other_dies() {
    let output = output(RINGFOLD, &[&SMALL[..], &["--peers", "2"]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("same bits on all (A C)"), "{text}");
}

#[test]
fn without_chaos_no_peer_dies_and_none_joins() {
    let arguments = [&SMALL[..], &["--peers", "3", "--no-chaos"]].concat();
    // With an HTTP server the master prints a second line.
    let output = command(RINGFOLD, &arguments).env("RINGFOLD_HTTP", "127.0.0.1:0").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("same bits on all (A B C)") && text.contains(" 0 of them retried"), "{text}");
    assert!(!text.contains("killed") && !text.contains(" joined:"), "{text}");
}

/// A long demo and its processes: a master and four peers.
fn start_long_demo() -> (Process, Vec<i32>) {
    let demo = Process::start(RINGFOLD, &["demo", "--size", "1MiB", "--steps", "100000", "--no-chaos"]);
    demo.line_with("step ");
    let children = demo.children();
    assert_eq!(children.len(), 5);
    (demo, children)
}

fn wait_for_end(children: &[i32]) {
    eventually("the end of all children", || (!children.iter().any(|pid| lives(*pid))).then_some(()));
}

#[test]
fn an_interrupted_demo_leaves_no_process() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let (mut demo, children) = start_long_demo();
        demo.signal(signal);
        let (status, stderr) = demo.end();
        assert_eq!(status.code(), Some(code), "{stderr}");
        // The demo waits for its children before it ends.
        assert!(!children.iter().any(|pid| lives(*pid)));
    }
}

#[test]
fn a_killed_demo_leaves_no_process() {
    let (mut demo, children) = start_long_demo();
    demo.signal(Signal::KILL);
    demo.end();
    wait_for_end(&children);
}

#[test]
fn the_unexpected_death_of_a_peer_fails_the_demo() {
    let (mut demo, children) = start_long_demo();
    let name = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let peer = children.iter().copied().find(|pid| name(pid).contains("demo-peer")).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(peer).unwrap(), Signal::KILL).unwrap();
    demo.line_with("ended early");
    let (status, _) = demo.end();
    assert_eq!(status.code(), Some(1));
    wait_for_end(&children);
}
