//! Tests of `ringfold bench`.

use crate::process::{Process, RINGFOLD, command, eventually, lives, output};
use rustix::process::Signal;
use std::path::PathBuf;
use std::process::Output;

/// Short runs: the figures are not tested.
const SHORT: [&str; 7] = ["bench", "--runs", "2", "--time-ms", "20", "--warmup", "1"];

fn bench(arguments: &[&str]) -> Output {
    output(RINGFOLD, &[&SHORT[..], arguments].concat())
}

/// The standard output of a successful run.
fn printed(arguments: &[&str]) -> String {
    let output = bench(arguments);
    let (text, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{text}\n{stderr}");
    text.into_owned()
}

/// The rows of the table.
fn rows(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.starts_with('#')).collect()
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("ringfold-bench-test-{}-{name}", std::process::id()))
}

#[test]
fn an_elastic_run_is_measured_and_checked() {
    let text = printed(&["--media", "elastic", "--sizes", "4B,64KiB", "--place", "both"]);
    let rows = rows(&text);
    assert_eq!(rows.len(), 4, "{text}");
    assert!(rows.iter().all(|row| row.contains("all_reduce") && row.trim_end().ends_with("ok")), "{text}");
}

#[test]
fn a_master_is_measured_with_scripted_peers() {
    let output = output(RINGFOLD, &["bench", "--master", "--peers", "2,20", "--rounds", "5"]);
    let (text, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{text}\n{stderr}");
    for event in ["all join", "vote", "commit", " join", "loss", "reopened", "peak resident memory"] {
        assert_eq!(rows(&text).iter().filter(|row| row.contains(&format!(" {event} "))).count(), 2, "{text}");
    }
}

/// The longest join while so many connections never authenticate: ten times that of a slow machine. If they kept their time
/// it would be 5 s and more.
const CROWDED_JOIN_MAX_MS: f64 = 3000.0;

fn joins_are_fast_behind_silent_connections(token: &str) {
    // Several times the number of handshakes that may be in progress.
    let arguments = ["bench", "--master", "--silent", "3000", "--rounds", "40"];
    let output = command(RINGFOLD, &arguments).env("PCCL_JOIN_TOKEN", token).output().unwrap();
    let (text, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{text}\n{stderr}");
    let rows = rows(&text);
    assert_eq!(rows.len(), 7, "{text}");
    for row in rows.iter().filter(|row| row.contains(" nothing ") || row.contains(" 1 byte/s ")) {
        let longest: f64 = row.split_whitespace().nth_back(3).unwrap().parse().unwrap();
        assert!(longest < CROWDED_JOIN_MAX_MS, "{text}");
    }
}

#[test]
fn silent_and_slow_connections_do_not_delay_a_join() {
    joins_are_fast_behind_silent_connections("");
}

#[test]
fn silent_and_slow_connections_do_not_delay_a_join_by_tls() {
    joins_are_fast_behind_silent_connections("a secret");
}

#[test]
fn concurrent_operations_share_the_payload() {
    let text = printed(&["--media", "elastic", "--sizes", "64KiB", "--concurrent", "8"]);
    assert!(text.contains("8 tags at once") && rows(&text)[0].trim_end().ends_with("ok"), "{text}");
}

#[test]
fn groups_are_measured_over_shared_memory_and_tcp() {
    let text = printed(&["--media", "shm,tcp", "--world", "3", "--sizes", "4B,64KiB", "--collective", "all"]);
    let rows = rows(&text);
    // Ten collectives of two sizes; the barrier has none.
    assert_eq!(rows.len(), 2 * 19, "{text}");
    assert!(rows.iter().all(|row| row.trim_end().ends_with("ok")), "{text}");
}

#[test]
fn every_element_type_and_operation_is_checked() {
    let types = "f32,f64,f16,bf16,i8,u8,i16,u16,i32,u32,i64,u64";
    for op in ["sum", "avg", "prod", "max", "min", "band", "bor", "bxor"] {
        let text = printed(&["--sizes", "10KB", "--dtype", types, "--op", op]);
        let expected = if op.starts_with('b') { 8 } else { 12 };
        assert_eq!(rows(&text).len(), expected, "{text}");
        assert!(rows(&text).iter().all(|row| row.trim_end().ends_with("ok")), "{text}");
    }
}

#[test]
fn files_are_written_and_standard_output_has_only_the_requested_format() {
    let [json, svg] = ["report.json", "plot.svg"].map(scratch);
    let [json_name, svg_name] = [&json, &svg].map(|path| path.to_str().unwrap());
    let sizes = ["--media", "elastic", "--sizes", "4B,4KiB", "--explain", "--markdown", "-"];
    let text = printed(&[&sizes[..], &["--json", json_name, "--plot", svg_name]].concat());
    assert!(text.contains("**all_reduce, 2 ranks, elastic, f32 sum**") && !text.contains("# "), "{text}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let points = report["points"].as_array().unwrap();
    assert_eq!((report["schema"].as_str(), points.len()), (Some("ringfold-bench/1"), 2));
    assert!(points.iter().all(|point| point["results"][0]["median_us"].as_f64().unwrap() > 0.0));
    assert!(!points[0]["plan"].as_str().unwrap().is_empty());
    assert!(std::fs::read_to_string(&svg).unwrap().starts_with("<svg"));
    for path in [json, svg] {
        std::fs::remove_file(path).unwrap();
    }
}

/// The points of a measurement with variants: what is checked, whether it is reproducible, and the ratio to the plain collective.
fn measured_variants(arguments: &[&str]) -> Vec<(String, bool, Option<f64>)> {
    let text = printed(&[arguments, &["--json", "-"]].concat());
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let read = |point: &serde_json::Value| {
        let [result] = &point["results"].as_array().unwrap()[..] else { panic!("{point}") };
        assert_eq!(result["check"], "ok", "{point}");
        assert!(result["median_us"].as_f64().unwrap() > 0.0, "{point}");
        let integrity = point["integrity"].as_str().unwrap().to_owned();
        (integrity, point["reproducible"].as_bool().unwrap(), result["ratio"].as_f64())
    };
    report["points"].as_array().unwrap().iter().map(read).collect()
}

#[test]
fn integrity_and_reproducible_reductions_are_measured_beside_plain_ones() {
    let arguments = ["--media", "elastic,shm,tcp", "--sizes", "64KiB", "--integrity", "--reproducible"];
    let found = measured_variants(&arguments);
    assert_eq!(found.len(), 9, "{found:?}");
    for point in found.chunks(3) {
        let kinds: Vec<_> =
            point.iter().map(|(integrity, repeats, _)| (integrity.as_str(), *repeats)).collect();
        assert_eq!(kinds, [("none", false), ("all", false), ("none", true)]);
        assert!(
            point[0].2.is_none() && point[1..].iter().all(|(.., ratio)| ratio.unwrap() > 0.0),
            "{point:?}"
        );
    }
}

#[test]
fn a_variant_has_rows_only_where_it_changes_the_collective() {
    let text = printed(&[
        "--media",
        "tcp",
        "--sizes",
        "4KiB",
        "--collective",
        "all_reduce,broadcast",
        "--integrity",
        "results",
    ]);
    let rows = rows(&text);
    assert_eq!(rows.len(), 3, "{text}");
    let ends: Vec<_> = rows.iter().map(|row| row.trim_end().ends_with('%')).collect();
    assert_eq!(ends, [false, true, false], "{text}");
    assert!(rows[1].contains("integrity results") && rows[2].contains("plain"), "{text}");
    assert!(
        text.contains("variant overhead") && text.contains("Ringfold 0.1.0, integrity results"),
        "{text}"
    );
}

#[test]
fn variants_are_measured_on_emulated_hosts() {
    let found = measured_variants(&["--lab", "lan", "--sizes", "256KiB", "--integrity", "payloads"]);
    let kinds: Vec<_> = found.iter().map(|(integrity, ..)| integrity.as_str()).collect();
    assert_eq!(kinds, ["none", "payloads"]);
}

#[test]
fn variants_that_change_nothing_are_errors() {
    for (arguments, code, why) in [
        (
            &["--reproducible", "--collective", "broadcast"][..],
            1,
            "it changes only reductions, not broadcast",
        ),
        (&["--integrity", "results", "--collective", "reduce"], 1, "it changes only all_reduce, not reduce"),
        (&["--integrity", "--world", "1"], 1, "one rank"),
        (&["--integrity", "none"], 2, "must be payloads, results or all"),
        (&["--reproducible", "--quantize", "minmax:u8"], 2, "cannot be used with"),
        (&["--integrity", "all", "--cuda"], 2, "cannot be used with"),
    ] {
        let output = bench(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(why), "{arguments:?}: {stderr}");
    }
}

#[test]
fn missing_systems_are_named_and_the_rest_is_measured() {
    let arguments =
        ["--media", "elastic", "--sizes", "4B", "--against", "gloo,openmpi", "--python", "/does/not/exist"];
    let empty = scratch("empty");
    let output = command(RINGFOLD, &[&SHORT[..], &arguments].concat()).env("PATH", &empty).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("openmpi: mpirun not found; apt-get install openmpi-bin"), "{stderr}");
    assert!(stderr.contains("gloo: no Python with torch (/does/not/exist)"), "{stderr}");
    assert_eq!(rows(&String::from_utf8_lossy(&output.stdout)).len(), 1);
}

#[test]
fn other_systems_are_measured_if_installed() {
    let output =
        bench(&["--media", "elastic", "--sizes", "4B,1MiB", "--against", "gloo,openmpi", "--json", "-"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let missing: Vec<_> =
        report["missing"].as_array().unwrap().iter().map(|m| m["system"].as_str().unwrap()).collect();
    for system in ["gloo", "openmpi"].into_iter().filter(|system| !missing.contains(system)) {
        for point in report["points"].as_array().unwrap() {
            let result = point["results"].as_array().unwrap().iter().find(|r| r["system"] == system).unwrap();
            assert_eq!(result["check"], "ok", "{result}");
            assert!(result["ratio"].as_f64().unwrap() > 0.0);
        }
    }
}

#[test]
fn a_group_and_a_master_use_a_tuning() {
    let path = scratch("tuning.json");
    std::fs::write(&path, r#"{"forced": "ring"}"#).unwrap();
    let name = path.to_str().unwrap();
    for medium in ["elastic", "tcp"] {
        let text =
            printed(&["--media", medium, "--world", "3", "--sizes", "1MiB", "--tuning", name, "--explain"]);
        assert!(text.contains("plan: ring: forced by the group's tuning"), "{text}");
    }
    let master = Process::start(RINGFOLD, &["master", "--listen", "127.0.0.1:0", "--tuning", name]);
    master.line_with("master listening on ");
    drop(master);
    std::fs::write(&path, "{").unwrap();
    let refused = output(RINGFOLD, &["master", "--listen", "127.0.0.1:0", "--tuning", name]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains(name));
    std::fs::remove_file(path).unwrap();
}

/// A long measurement and its ranks.
fn start_long_bench() -> (Process, Vec<i32>) {
    let bench = Process::start(
        RINGFOLD,
        &["bench", "--media", "elastic", "--sizes", "4B,8MiB", "--runs", "1000", "--time-ms", "600000"],
    );
    // The head of the table is printed when all ranks are there.
    bench.line_with("collective");
    let children = bench.children();
    assert_eq!(children.len(), 2);
    (bench, children)
}

fn wait_for_end(children: &[i32]) {
    eventually("the end of all ranks", || (!children.iter().any(|pid| lives(*pid))).then_some(()));
}

#[test]
fn an_interrupted_measurement_leaves_no_process() {
    let (mut bench, children) = start_long_bench();
    bench.signal(Signal::INT);
    let (status, stderr) = bench.end();
    assert_eq!(status.code(), Some(130), "{stderr}");
    assert!(!children.iter().any(|pid| lives(*pid)));
}

#[test]
fn a_killed_measurement_leaves_no_process() {
    let (mut bench, children) = start_long_bench();
    let pid = bench.pid().as_raw_nonzero();
    bench.signal(Signal::KILL);
    bench.end();
    wait_for_end(&children);
    // Only the scratch directory stays.
    std::fs::remove_dir_all(std::env::temp_dir().join(format!("ringfold-bench-{pid}-0"))).unwrap();
}

#[test]
fn the_death_of_a_rank_fails_the_measurement() {
    let (mut bench, children) = start_long_bench();
    let rank = rustix::process::Pid::from_raw(children[1]).unwrap();
    rustix::process::kill_process(rank, Signal::KILL).unwrap();
    let (status, stderr) = bench.end();
    assert_eq!(status.code(), Some(1), "{stderr}");
    wait_for_end(&children);
}

#[test]
fn a_missing_cuda_device_is_named() {
    // No device is visible, also where there is one.
    let path = scratch("cuda-tuning.json");
    for mode in [&[][..], &["--explain"], &["--tune", path.to_str().unwrap()]] {
        let mut command = command(RINGFOLD, &[&["bench", "--cuda", "--world", "2,4"], mode].concat());
        let output = command.env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("--cuda needs a CUDA device: no CUDA d"), "{stderr}");
    }
    assert!(!path.exists());
    let output = output(RINGFOLD, &["bench", "--cuda", "--world", "17"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("invalid number of ranks 17: must be 2 to 16"));
}

#[test]
fn the_floor_is_measured_alone() {
    let text = printed(&["--floor"]);
    for part in ["copy of memory, 256 MiB, one core", "TCP on loopback", "futex"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(rows(&text).is_empty(), "{text}");
}

#[test]
fn invalid_arguments_are_rejected_before_the_start() {
    for (arguments, code) in
        [(&["--dtype", "f33"][..], 2), (&["--collective", "unknown"], 1), (&["--min", "8", "--max", "4"], 1)]
    {
        assert_eq!(bench(arguments).status.code(), Some(code), "{arguments:?}");
    }
    let huge = bench(&["--media", "elastic", "--sizes", "8000GiB"]);
    assert_eq!(huge.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&huge.stderr).contains("of memory"));
}
