//! Tests of `ringfold lab` and `ringfold bench --lab`.

use crate::process::{Process, RINGFOLD, eventually, lives, output};
use ringfold_lab::{Network, skip};
use rustix::process::Signal;

fn can_run(test: &str) -> bool {
    skip::check(test, Network::available())
}

#[test]
fn profiles_are_listed_and_printed() {
    let list = output(RINGFOLD, &["lab", "profiles"]);
    let text = String::from_utf8_lossy(&list.stdout).into_owned();
    assert!(list.status.success() && text.contains("ocean") && text.contains("200 Mbit/s"), "{text}");
    let json = output(RINGFOLD, &["lab", "profiles", "--json", "mixed"]);
    assert!(String::from_utf8_lossy(&json.stdout).contains("\"repeats_after\": 4"));
    let unknown = output(RINGFOLD, &["lab", "run", "--profile", "moon", "--", "true"]);
    let text = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(!unknown.status.success() && text.contains("unknown profile \"moon\""), "{text}");
}

#[test]
fn a_command_runs_once_per_host_with_its_address_and_the_first_failure_is_the_exit_code() {
    if !can_run("a_command_runs_once_per_host_with_its_address_and_the_first_failure_is_the_exit_code") {
        return;
    }
    let script = "echo at $RINGFOLD_LAB_ADDRESS of $RINGFOLD_LAB_ADDRESSES with $RINGFOLD_LAB_MASTER; exit $((RANK * 7))";
    let ran = output(RINGFOLD, &["lab", "run", "--profile", "lan", "--master", "--", "sh", "-c", script]);
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    for line in [
        "[0] at 10.77.0.1 of 10.77.0.1,10.77.0.2 with 10.77.0.1:48148",
        "[1] at 10.77.0.2 of 10.77.0.1,10.77.0.2 with",
    ] {
        assert!(text.contains(line), "{text}");
    }
    assert_eq!(ran.status.code(), Some(7));
}

#[test]
fn an_interrupted_lab_leaves_no_process() {
    if !can_run("an_interrupted_lab_leaves_no_process") {
        return;
    }
    let script = "echo ready; exec sleep 1000";
    let mut lab = Process::start(RINGFOLD, &["lab", "run", "--profile", "lan", "--", "sh", "-c", script]);
    // Of both hosts, in any order.
    lab.line_with("ready");
    lab.line_with("ready");
    let children = lab.children();
    assert!(children.len() >= 2, "{children:?}");
    lab.signal(Signal::INT);
    assert_eq!(lab.end().0.code(), Some(130));
    eventually("the end of all commands", || children.iter().all(|pid| !lives(*pid)).then_some(()));
}

#[test]
fn a_run_on_emulated_hosts_is_measured_and_compared_with_the_floor() {
    if !can_run("a_run_on_emulated_hosts_is_measured_and_compared_with_the_floor") {
        return;
    }
    let arguments =
        ["bench", "--lab", "metro", "--sizes", "64KiB", "--runs", "2", "--time-ms", "20", "--json", "-"];
    let ran = output(RINGFOLD, &[&arguments[..], &["--world", "3", "--hosts", "2"]].concat());
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{text}\n{}", String::from_utf8_lossy(&ran.stderr));
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let point = &json["points"][0];
    let (floor, median) =
        (point["floor_us"].as_f64().unwrap(), point["results"][0]["median_us"].as_f64().unwrap());
    // Two delays of 2.5 ms, and 64 KiB at 1 Gbit/s.
    assert!((5_500.0..5_600.0).contains(&floor) && median > floor, "{median} us, floor {floor} us");
}
