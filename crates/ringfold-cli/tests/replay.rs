//! Tests of flight recorders, `ringfold replay` and the JSON log, with real processes.

use crate::process::{CCOIP_MASTER, DEADLINE, Process, RINGFOLD, command, output};
use ringfold::journal::{Event, parse_micros};
use ringfold::{AllReduce, Communicator, SharedState, SyncStrategy};
use ringfold_cli::master::LISTENING;
use rustix::process::Signal;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A directory that is deleted at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ringfold-replay-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn flights(&self) -> Vec<PathBuf> {
        let entries = self.0.read_dir().unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "flight")).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn replay(arguments: &[&str]) -> String {
    let output = output(RINGFOLD, &[&["replay"], arguments].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    String::from_utf8(output.stdout).unwrap()
}

fn objects(lines: &str) -> Vec<Map<String, Value>> {
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    lines.lines().map(parse).collect()
}

fn text<'a>(object: &'a Map<String, Value>, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// The first position from `from` on at which an event is as wanted.
fn find(
    all: &[Map<String, Value>],
    from: usize,
    what: &str,
    is_it: impl Fn(&Map<String, Value>) -> bool,
) -> usize {
    let found = all.iter().skip(from).position(is_it);
    let names =
        || all.iter().map(|o| format!("{} {}: {}\n", text(o, "name"), text(o, "event"), text(o, "message")));
    from + found.unwrap_or_else(|| panic!("no {what} after entry {from} of\n{}", names().collect::<String>()))
}

/// The variables of a peer process: the address of the master, and its name.
const PEER_MASTER: &str = "REPLAY_TEST_MASTER";
const PEER_NAME: &str = "REPLAY_TEST_NAME";

/// No test: a peer of the test below, as a process of its own. A begins an operation that B never joins, and leaves.
#[test]
fn peer_process() {
    let (Ok(master), Ok(name)) = (std::env::var(PEER_MASTER), std::env::var(PEER_NAME)) else { return };
    let peer = Communicator::builder(master).name(name.as_str()).build().unwrap();
    peer.connect().unwrap();
    println!("{name} connected");
    if name == "B" {
        // It is killed.
        std::thread::sleep(DEADLINE);
        return;
    }
    let began = Instant::now();
    while peer.attributes().group_world < 2 {
        assert!(began.elapsed() < DEADLINE, "no other peer");
        peer.update_topology().unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    let state = |value: &mut [f32; 3]| {
        let mut state = SharedState::new(1).add("weights", value);
        peer.sync_shared_state(&mut state, SyncStrategy::EnforcePopular).map(drop)
    };
    println!("A reduces");
    let failure = peer.all_reduce(&mut [1_f32; 1000], AllReduce::sum()).expect_err("B is killed");
    println!("A failed: {failure}");
    peer.update_topology().unwrap();
    state(&mut [0.0; 3]).unwrap();
    peer.leave();
    println!("A left");
}

fn start_peer(name: &str, master: &str, scratch: &Scratch) -> Process {
    let program = std::env::current_exe().unwrap();
    let mut command = command(program.to_str().unwrap(), &["replay::peer_process", "--exact", "--nocapture"]);
    command.env(PEER_MASTER, master).env(PEER_NAME, name).env("RINGFOLD_FLIGHT_DIR", scratch.path());
    Process::spawn(&mut command)
}

#[test]
fn a_replay_shows_a_kill_and_what_follows_from_it_in_order() {
    let scratch = Scratch::new("kill");
    let arguments = ["master", "--listen", "127.0.0.1:0", "--flight-dir", scratch.path()];
    let mut master = Process::start(RINGFOLD, &arguments);
    let line = master.line_with(LISTENING);
    let address = line.strip_prefix(LISTENING).unwrap();
    let mut a = start_peer("A", address, &scratch);
    a.line_with("A connected");
    let mut b = start_peer("B", address, &scratch);
    a.line_with("A reduces");
    b.line_with("B connected");
    // Recorders can be read while they are written.
    assert!(replay(&[scratch.path()]).contains("in use"));
    b.signal(Signal::KILL);
    b.end();
    a.line_with("A failed");
    a.line_with("A left");
    assert!(a.end().0.success());
    master.signal(Signal::TERM);
    master.end();
    assert_eq!(scratch.flights().len(), 3, "{:?}", scratch.flights());

    let all = objects(&replay(&["--json", scratch.path()]));
    let of = |name: &'static str, event: &'static str| {
        move |o: &Map<String, Value>| text(o, "name") == name && text(o, "event") == event
    };
    let of_master = |event: &'static str| {
        move |o: &Map<String, Value>| text(o, "source") == "master" && text(o, "event") == event
    };
    let opened = find(&all, 0, "epoch of two", |o| of("A", "epoch_opened")(o) && o["world"] == 2);
    let started = find(&all, opened, "operation of A", of("A", "op_started"));
    let killed = find(&all, 0, "end of B", of("B", "records_end"));
    let suspected = find(&all, killed, "loss of B", |o| of_master("suspected")(o) && text(o, "peer") == "B");
    let departed =
        find(&all, suspected, "departure of B", |o| of_master("departed")(o) && text(o, "peer") == "B");
    let failed = find(&all, started, "failed operation", of("A", "op_ended"));
    assert!(failed > killed && departed > killed);
    assert_eq!((text(&all[failed], "outcome"), text(&all[failed], "failure")), ("aborted", "peer-lost"));
    assert!(text(&all[failed], "cause").contains('B'), "{:?}", all[failed]);
    let left = find(&all, failed, "end of A", of("A", "left"));
    find(&all, left, "end of the master", of_master("ended"));
    assert!(!all.iter().any(of("A", "records_end")), "A left");
    let times: Vec<_> = all.iter().map(|o| parse_micros(text(o, "time")).unwrap()).collect();
    assert!(times.is_sorted());

    let timeline = replay(&[scratch.path()]);
    let line = |part: &str| {
        timeline.lines().position(|line| line.contains(part)).unwrap_or_else(|| panic!("{part}"))
    };
    assert!(line("the process ended without leaving") < line("has failed: "), "{timeline}");
    assert_eq!(timeline.lines().filter(|line| line.starts_with("# ")).count(), 3, "{timeline}");
    let warnings = replay(&["--level", "warn", "--source", "master", "--since", "1h", scratch.path()]);
    let shown = || warnings.lines().filter(|line| !line.starts_with('#'));
    assert!(shown().count() > 0 && shown().all(|line| line.contains(" warn  master ")), "{warnings}");
    check_trace(&scratch);
}

/// A trace has the keys that Perfetto needs, and slices for operations.
fn check_trace(scratch: &Scratch) {
    let path = scratch.0.join("trace.json");
    replay(&["--trace", path.to_str().unwrap(), scratch.path()]);
    assert_eq!(replay(&["--trace", "-", scratch.path()]), std::fs::read_to_string(&path).unwrap());
    let trace: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for event in events {
        let has = |key: &str| event.get(key).is_some_and(Value::is_number);
        assert!(event["name"].is_string() && has("ts") && has("pid") && has("tid"), "{event}");
        match event["ph"].as_str().unwrap() {
            "X" => assert!(event["dur"].as_i64().is_some_and(|dur| dur >= 0), "{event}"),
            "i" => assert!(event["s"].is_string(), "{event}"),
            "M" => assert!(event["args"]["name"].is_string(), "{event}"),
            other => panic!("unknown phase {other}"),
        }
    }
    let processes: Vec<_> = events.iter().filter(|event| event["name"] == "process_name").collect();
    assert_eq!(processes.len(), 3, "{processes:?}");
    for category in ["operation", "vote", "sync"] {
        assert!(events.iter().any(|event| event["ph"] == "X" && event["cat"] == category), "{category}");
    }
}

#[test]
fn the_json_log_of_a_master_has_stable_names_on_each_line() {
    let scratch = Scratch::new("json");
    let arguments =
        ["--listen", "127.0.0.1:0", "--log", "info", "--log-format", "json", "--flight-dir", scratch.path()];
    let mut master = Process::start(CCOIP_MASTER, &arguments);
    let line = master.line_with(LISTENING);
    let address = line.strip_prefix(LISTENING).unwrap().to_owned();
    let peer = |name: &str| Communicator::builder(address.as_str()).name(name).build().unwrap();
    let (one, other) = (peer("quoted \"one\""), peer("other"));
    one.connect().unwrap();
    let reduce = |peer: &Communicator| peer.all_reduce(&mut [1_f32; 10], AllReduce::sum()).map(drop);
    std::thread::scope(|scope| {
        let joining = scope.spawn(|| other.connect());
        let began = Instant::now();
        while one.attributes().group_world < 2 {
            assert!(began.elapsed() < DEADLINE, "no other peer");
            one.update_topology().unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
        joining.join().unwrap().unwrap();
        let reducing = scope.spawn(|| reduce(&other));
        reduce(&one).unwrap();
        reducing.join().unwrap().unwrap();
    });
    drop((one, other));
    master.signal(Signal::TERM);
    let (status, stderr) = master.end();
    assert_eq!(status.code(), Some(0), "{stderr}");
    let lines = objects(&stderr);
    for line in &lines {
        assert!(parse_micros(text(line, "time")).is_some(), "{line:?}");
        assert!(["debug", "info", "warn", "error"].contains(&text(line, "level")), "{line:?}");
        assert!(!text(line, "target").is_empty() && line.contains_key("message"), "{line:?}");
        if let Some(event) = line.get("event") {
            assert!(Event::NAMES.contains(&event.as_str().unwrap()), "{line:?}");
            assert_eq!(text(line, "source"), "master");
        }
    }
    let named = |event: &str| lines.iter().filter(|line| text(line, "event") == event).collect::<Vec<_>>();
    assert_eq!(named("listening").len(), 1);
    assert_eq!(named("accepted").len(), 2, "{stderr}");
    assert_eq!(text(named("accepted")[0], "peer"), "quoted \"one\"");
    assert_eq!(named("ended").len(), 1);
    // The recorder has the same events; commits are counted.
    let recorded = objects(&replay(&["--json", "--source", "master", scratch.path()]));
    let counted = recorded.iter().filter(|line| text(line, "event") == "ops_committed");
    assert_eq!(counted.map(|line| line["count"].as_u64().unwrap()).sum::<u64>(), 1);
    for event in ["listening", "accepted", "epoch_opened", "departed", "ended"] {
        let count = recorded.iter().filter(|line| text(line, "event") == event).count();
        assert_eq!(count, named(event).len(), "{event}");
    }
}

#[test]
fn the_log_format_is_set_by_the_environment_too_and_a_wrong_one_is_reported() {
    let run = |format: &str| {
        let arguments = ["master", "--listen", "192.0.2.1:1"];
        let output = command(RINGFOLD, &arguments).env("RINGFOLD_LOG_FORMAT", format).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(run("xml").contains("invalid RINGFOLD_LOG_FORMAT \"xml\""), "{}", run("xml"));
    assert!(!run("json").contains("RINGFOLD_LOG_FORMAT"));
    assert_eq!(output(RINGFOLD, &["master", "--log-format", "xml"]).status.code(), Some(2));
}

#[test]
fn a_recorder_that_cannot_be_written_is_one_warning() {
    let mut master =
        Process::start(RINGFOLD, &["master", "--listen", "127.0.0.1:0", "--flight-dir", "/proc/x"]);
    master.line_with(LISTENING);
    master.signal(Signal::TERM);
    let (status, stderr) = master.end();
    assert_eq!(status.code(), Some(0), "{stderr}");
    assert_eq!(stderr.lines().filter(|line| line.contains("flight recorder")).count(), 1, "{stderr}");
}

#[test]
fn what_is_no_flight_recorder_is_named_in_the_error() {
    let scratch = Scratch::new("wrong");
    let file = scratch.0.join("a.flight");
    std::fs::write(&file, b"\x00\xff{}\n[]\n{\"flight\":2}\nnonsense").unwrap();
    let fails = |path: &Path, part: &str| {
        let output = output(RINGFOLD, &["replay", path.to_str().unwrap()]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(part), "{stderr}");
    };
    fails(&file, "a.flight: it is not a flight recorder");
    std::fs::write(&file, [0; 4096]).unwrap();
    fails(&file, "a.flight: it is empty: no record was written");
    fails(&scratch.0, "set RINGFOLD_FLIGHT_DIR");
    fails(&scratch.0.join("missing"), "missing");
}
