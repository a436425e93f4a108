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
    let script =
        "echo at $RINGFOLD_LAB_ADDRESS of $RINGFOLD_LAB_ADDRESSES with $RINGFOLD_MASTERS; exit $((RANK * 7))";
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

/// A network that takes long enough for 4 MiB that a rank can be killed in the middle.
const SLOW: &str = r#"{"path": {"rate_mbit": 40, "rtt_ms": 10, "queue_ms": 50}}"#;

#[test]
fn a_resumed_reduce_sends_less_than_a_repeated_one_when_a_rank_is_killed() {
    if !can_run("a_resumed_reduce_sends_less_than_a_repeated_one_when_a_rank_is_killed") {
        return;
    }
    let profile = std::env::temp_dir().join(format!("ringfold-lab-test-{}.json", std::process::id()));
    std::fs::write(&profile, SLOW).unwrap();
    let arguments =
        ["bench", "--sizes", "4MiB", "--world", "4", "--kill-at", "60%", "--runs", "1", "--warmup", "1"];
    let network = ["--json", "-", "--lab", profile.to_str().unwrap()];
    let ran = output(RINGFOLD, &[&arguments[..], &network].concat());
    std::fs::remove_file(&profile).unwrap();
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{text}\n{}", String::from_utf8_lossy(&ran.stderr));
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let runs = json["points"][0]["runs"].as_array().unwrap();
    let [resumed, repeated] = [true, false].map(|resume| {
        runs.iter().find(|run| run["resume"] == resume).unwrap_or_else(|| panic!("no such run: {text}"))
    });
    assert_eq!((resumed["calls"].as_u64(), repeated["calls"].as_u64()), (Some(1), Some(2)), "{text}");
    // 5/6 of the tensor and what was missing of the contributions, and 4/3 of it.
    let [resumed, repeated] = [resumed, repeated].map(|run| run["sent_bytes"].as_u64().unwrap());
    assert!((5 << 22) / 6 <= resumed && resumed < repeated, "{text}");
    assert!(repeated >= (4 << 22) / 3, "{text}");
}

#[test]
fn a_time_of_the_kill_that_is_no_share_is_refused() {
    for wrong in [&["--kill-at", "80"][..], &["--kill-at", "100%"], &["--kill-at", "80%", "--dtype", "f64"]] {
        let arguments = ["bench", "--lab", "ocean", "--world", "4", "--sizes", "1MiB"];
        assert_eq!(output(RINGFOLD, &[&arguments[..], wrong].concat()).status.code(), Some(2), "{wrong:?}");
    }
}
