//! Recorded runs: recorders become scenarios, whose simulated decisions are the recorded ones.

use ringfold_sim::fuzzing::DECODERS;
use ringfold_sim::recorded::{Comparison, Decision, Loss, RecordedScenario, RunCall, Step, What};
use ringfold_sim::{PlantedBug, RunReport, run_recorded};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Writes the lines of a recorder.
#[derive(Default)]
struct Recorder {
    lines: String,
    number: u64,
}

impl Recorder {
    /// A record of a source, with further fields.
    fn add(&mut self, source: &str, name: &str, event: &str, fields: &str) -> &mut Self {
        let number = self.number;
        let (minute, second, micros) = (number / 6000, number / 100 % 60, number % 100 * 10_000);
        let comma = if fields.is_empty() { "" } else { "," };
        let head = format!(
            r#"{{"time":"2026-01-31T08:{minute:02}:{second:02}.{micros:06}Z","number":{number},"monotonic_us":{number}"#
        );
        writeln!(
            self.lines,
            r#"{head},"level":"info","target":"t","source":"{source}","name":"{name}","event":"{event}","message":"m"{comma}{fields}}}"#
        )
        .unwrap();
        self.number += 1;
        self
    }

    fn master(&mut self, event: &str, fields: &str) -> &mut Self {
        self.add("master", "m", event, fields)
    }

    fn joins(&mut self, name: &str) -> &mut Self {
        self.master("registered", &format!(r#""peer":"{name}","peer_id":"id-{name}""#))
    }

    fn accepts(&mut self, name: &str) -> &mut Self {
        self.master("accepted", &format!(r#""peer":"{name}","peer_id":"id-{name}","group":0"#))
    }

    fn departs(&mut self, name: &str, how: &str) -> &mut Self {
        self.master(
            "departed",
            &format!(r#""peer":"{name}","peer_id":"id-{name}","how":"{how}","cause":"c""#),
        )
    }

    /// An epoch is proposed and opens.
    fn epoch(&mut self, number: u64, members: &[&str]) -> &mut Self {
        let epoch = format!(r#""epoch":"group 0 epoch {number}@0001""#);
        let ring: Vec<_> = members.iter().map(|name| format!("\"{name}\"")).collect();
        let (world, ring) = (members.len(), ring.join(","));
        self.master("epoch_proposed", &format!(r#"{epoch},"group":0,"world":{world},"ring":[{ring}]"#));
        self.master("epoch_opened", &format!(r#"{epoch},"missing_links":0"#))
    }

    fn commits(&mut self, epoch: u64, count: u64) -> &mut Self {
        let op = format!(r#""epoch":"group 0 epoch {epoch}@0001","tag":0,"seq":{count}"#);
        self.master("ops_committed", &format!(r#"{op},"first_tag":0,"first_seq":0,"count":{count}"#))
    }

    fn decides_round(&mut self, phase: &str) -> &mut Self {
        self.master("round_decided", &format!(r#""phase":"{phase}","round":1"#))
    }

    fn scenario(&self) -> RecordedScenario {
        RecordedScenario::from_bytes(self.lines.as_bytes()).expect("a scenario")
    }
}

/// Three peers work; one is killed in an operation; another one joins; one leaves.
fn kill_and_join() -> Recorder {
    let mut all = Recorder::default();
    let aborted = r#""epoch":"group 0 epoch 2@0001","tag":7,"seq":0"#;
    all.joins("A").accepts("A").epoch(1, &["A"]).joins("B").joins("C").accepts("B").accepts("C");
    all.epoch(2, &["A", "C", "B"]).decides_round("update_topology").decides_round("are_peers_pending");
    all.commits(2, 1_000_000_000_000);
    all.master("state_elected", r#""group":0,"revision":5,"holders":2,"fetchers":1"#);
    for peer in ["A", "B"] {
        all.add("peer", peer, "op_started", &format!(r#"{aborted},"call":"c","bytes":4000"#));
    }
    all.add("peer", "C", "registered", "");
    all.master("suspected", r#""peer":"B","peer_id":"id-B""#).departs("B", "connection_lost");
    let outcome = r#""bytes":4000,"outcome":"aborted","failure":"peer-lost","cause":"c""#;
    all.master("op_decided", &format!("{aborted},{outcome}"));
    all.epoch(3, &["A", "C"]).joins("D").accepts("D").epoch(4, &["A", "C", "D"]);
    all.decides_round("update_topology").commits(4, 3).departs("A", "left").epoch(5, &["C", "D"]);
    all
}

fn assert_equal(scenario: &RecordedScenario, seeds: u64) {
    for seed in 0..seeds {
        let report = run_recorded(scenario, seed, None, false);
        let RunReport { violations, notes, .. } = &report;
        assert!(violations.is_empty() && notes.is_empty(), "seed {seed}: {violations:?} {notes:?}");
        let comparison = Comparison::new(scenario, &report.decided);
        assert_eq!(comparison.first_difference(), None, "seed {seed}: {comparison:#?}");
        assert!(!comparison.lines.is_empty());
    }
}

fn steps(scenario: &RecordedScenario) -> Vec<&Step> {
    let steps = scenario.timeline.iter().filter_map(|item| match &item.what {
        What::Step(step) => Some(step),
        What::Decision(_) => None,
    });
    steps.collect()
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn calls_of_a_failed_operation_come_before_the_fault_and_only_from_those_that_made_them() {
    let scenario = kill_and_join().scenario();
    let steps = steps(&scenario);
    let at =
        |step: &Step| steps.iter().position(|other| *other == step).unwrap_or_else(|| panic!("{step:?}"));
    let all = names(&["A", "B", "C"]);
    let failed = Step::Reduce { peers: names(&["A", "B"]), tag: 7, bytes: 4000, times: 1, fails: true };
    let counted =
        Step::Reduce { peers: all.clone(), tag: 0, bytes: 1024, times: 1_000_000_000_000, fails: false };
    let topology =
        |peers: &[&str]| Step::Call { peers: names(peers), call: RunCall::UpdateTopology, times: 1 };
    let order = [
        at(&Step::Join { peer: "C".into(), group: 0 }),
        at(&topology(&["A"])),
        at(&counted),
        at(&Step::Sync { peers: all, revision: 5, fetchers: names(&["C"]) }),
        at(&failed),
        at(&Step::Kill { peer: "B".into() }),
        at(&Step::Join { peer: "D".into(), group: 0 }),
        at(&topology(&["A", "C"])),
        at(&Step::Leave { peer: "A".into() }),
    ];
    assert!(order.is_sorted(), "{order:?}");
}

#[test]
fn a_kill_a_join_and_a_leave_are_decided_as_recorded() {
    assert_equal(&kill_and_join().scenario(), 20);
}

#[test]
fn evictions_resets_freezes_and_restarted_masters_are_decided_as_recorded() {
    let mut all = Recorder::default();
    all.joins("A").accepts("A").epoch(1, &["A"]).joins("B").joins("C").joins("D");
    all.accepts("B").accepts("C").accepts("D").epoch(2, &["A", "B", "C", "D"]);
    all.decides_round("update_topology").commits(2, 4);
    let b = r#""peer":"B","peer_id":"id-B""#;
    all.master("suspected", b).master("reconnected", b).commits(2, 1);
    all.departs("C", "evicted").epoch(3, &["A", "B", "D"]).commits(3, 2);
    all.departs("D", "silent").epoch(4, &["A", "B"]).commits(4, 2);
    assert_equal(&all.scenario(), 10);
}

#[test]
fn the_name_of_a_peer_that_comes_back_gets_a_number() {
    let mut all = Recorder::default();
    all.joins("A").accepts("A").epoch(1, &["A"]).joins("B").accepts("B").epoch(2, &["A", "B"]);
    all.decides_round("update_topology").departs("B", "died").epoch(3, &["A"]);
    let again = r#""peer":"B","peer_id":"other""#;
    all.master("registered", again).master("accepted", &format!(r#"{again},"group":0"#));
    all.epoch(4, &["A", "B"]).decides_round("update_topology").commits(4, 2);
    let scenario = all.scenario();
    assert!(steps(&scenario).contains(&&Step::Join { peer: "B#2".into(), group: 0 }));
    assert_equal(&scenario, 3);
}

#[test]
fn records_that_begin_in_a_run_let_its_members_join_first() {
    let mut all = Recorder::default();
    all.commits(6, 5).epoch(7, &["A", "B", "C"]).commits(7, 5).departs("C", "died").epoch(8, &["A", "B"]);
    let scenario = all.scenario();
    assert!(scenario.notes.iter().any(|note| note.contains("begin in a run")), "{:?}", scenario.notes);
    assert_equal(&scenario, 3);
}

#[test]
fn a_difference_is_found_and_named() {
    let mut scenario = kill_and_join().scenario();
    let is_kill = |what: &What| matches!(what, What::Step(Step::Kill { .. }));
    scenario.timeline.retain(|item| !is_kill(&item.what));
    let report = run_recorded(&scenario, 0, None, false);
    let comparison = Comparison::new(&scenario, &report.decided);
    let first = comparison.first_difference().expect("a difference");
    assert!(first.simulated.is_none() || first.recorded.is_none());
    let departed = Decision::Departed { peer: "B".into(), how: Loss::Lost };
    let line = comparison.lines.iter().find(|line| line.decision == departed).expect("the departure");
    assert!(line.simulated.is_none() && !report.notes.is_empty());
}

#[test]
fn the_oracle_checks_recorded_runs() {
    let scenario = kill_and_join().scenario();
    let violates = |seed| {
        !run_recorded(&scenario, seed, Some(PlantedBug::CommitWithoutLastVote), false).violations.is_empty()
    };
    assert!((0..50).any(violates), "the planted bug was not found");
}

#[test]
fn damaged_and_oversized_records_are_errors_or_skipped() {
    let valid = kill_and_join().lines;
    for cut in (0..valid.len()).step_by(37) {
        // Both halves, and the second with a torn line.
        let _ = RecordedScenario::from_bytes(&valid.as_bytes()[..cut]);
        let _ = RecordedScenario::from_bytes(&valid.as_bytes()[cut..]);
    }
    assert!(RecordedScenario::from_bytes(b"garbage").unwrap_err().contains("no record of a master"));
    let mut large = Recorder::default();
    for peer in 0..300 {
        large.joins(&format!("p{peer}"));
    }
    assert!(RecordedScenario::from_bytes(large.lines.as_bytes()).unwrap_err().contains("too large"));
    let mut long = Recorder::default();
    long.joins("A").accepts("A").epoch(1, &["A"]);
    for _ in 0..5000 {
        long.decides_round("are_peers_pending").decides_round("update_topology");
    }
    assert!(long.scenario().timeline.len() < 300);
    for wrong in [
        "",
        "{}",
        r#"{"scenario":2,"masters":1,"timeline":[]}"#,
        r#"{"scenario":1,"masters":0,"timeline":[]}"#,
    ] {
        assert!(RecordedScenario::parse(wrong.as_bytes()).is_err(), "{wrong}");
    }
}

#[test]
fn changed_recorders_and_scenarios_are_survived() {
    let recorder = kill_and_join();
    let file = recorder.scenario().format();
    let seeds = [recorder.lines, file].map(|text| ("recorded_scenario", text.into_bytes()));
    ringfold_fuzz::test_decoders(DECODERS, &seeds);
}

fn scenarios() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios")
}

/// A report of a bug becomes one of them: `ringfold-sim --from FILES --write FILE`.
#[test]
fn stored_scenarios_are_decided_as_recorded() {
    let files: Vec<_> =
        scenarios().read_dir().expect("scenarios").map(|entry| entry.unwrap().path()).collect();
    assert!(!files.is_empty());
    for path in files {
        let scenario = RecordedScenario::parse(&std::fs::read(&path).unwrap())
            .unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        assert_equal(&scenario, 5);
    }
}

#[test]
fn the_command_writes_a_scenario_and_tells_equal_from_different_and_unreadable() {
    let folder = std::env::temp_dir().join(format!("ringfold-sim-recorded-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_ringfold-sim")).args(arguments).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let (recorder, scenario, bad) = (path("m.flight"), path("run.json"), path("bad.flight"));
    std::fs::write(&recorder, kill_and_join().lines).unwrap();
    std::fs::write(&bad, "nonsense").unwrap();
    let (code, text) = run(&["--from", &recorder, "--write", &scenario]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("= B was lost") && text.contains("decisions are equal"), "{text}");
    let written = std::fs::read_to_string(&scenario).unwrap();
    let (code, text) = run(&["--scenario", &scenario, "--seeds", "3..6"]);
    assert_eq!((code, text.trim()), (Some(0), "3 seeds: 0 with violations, 0 that differ"));
    std::fs::write(&scenario, written.replace("\"do\":\"kill\"", "\"do\":\"leave\"")).unwrap();
    let (code, text) = run(&["--scenario", &scenario, "--seed", "1", "--quiet"]);
    assert!(code == Some(1) && text.contains("first difference"), "{text}");
    for arguments in [["--from", &bad], ["--scenario", &bad], ["--from", "/missing"]] {
        let (code, text) = run(&arguments);
        assert!(code == Some(2) && text.contains("cannot read"), "{text}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
