//! A real run that its flight recorders turn into a scenario of the simulator, which decides the same.

use crate::process::{DEADLINE, Process, RINGFOLD, command, eventually};
use ringfold::{AllReduce, Communicator, SharedState, SyncStrategy};
use ringfold_cli::master::LISTENING;
use ringfold_sim::recorded::{Comparison, Decision, Loss, RecordedScenario, read_files};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The variables of a peer process: the address of the master, its name, and the file for which C waits.
const PEER_MASTER: &str = "RECORDED_TEST_MASTER";
const PEER_NAME: &str = "RECORDED_TEST_NAME";
const PEER_SIGNAL: &str = "RECORDED_TEST_SIGNAL";

/// The tag of the operation in which B is killed.
const KILLED: u64 = 7;

/// No test: a peer of the test below. A and B begin an operation that C never joins, and B is killed in it. Then D joins.
#[test]
fn peer_process() {
    let (Ok(master), Ok(name)) = (std::env::var(PEER_MASTER), std::env::var(PEER_NAME)) else { return };
    let peer = Communicator::builder(master).name(name.as_str()).build().unwrap();
    peer.connect().unwrap();
    let sync = |revision: u64, value: f32| {
        let mut values = [value; 3];
        let mut state = SharedState::new(revision).add("weights", &mut values);
        peer.sync_shared_state(&mut state, SyncStrategy::EnforcePopular).map(drop)
    };
    let reduce = |tag| peer.all_reduce(&mut [1_f32; 1000], AllReduce::sum().tag(tag)).map(drop);
    let update_until_three = || {
        let began = Instant::now();
        while peer.attributes().group_world != 3 {
            assert!(began.elapsed() < DEADLINE, "no three peers");
            std::thread::sleep(Duration::from_millis(5));
            peer.update_topology().unwrap();
        }
    };
    if name != "D" {
        update_until_three();
        (0..20).for_each(|_| reduce(1).unwrap());
        sync(1, 1.0).unwrap();
        match name.as_str() {
            "C" => {
                let signal = std::env::var(PEER_SIGNAL).unwrap();
                eventually("the signal", || Path::new(&signal).exists().then_some(()));
            }
            _ => drop(reduce(KILLED).expect_err("B is killed")),
        }
        peer.update_topology().unwrap();
        update_until_three();
    }
    sync(if name == "D" { 0 } else { 2 }, if name == "D" { 0.0 } else { 2.0 }).unwrap();
    (0..5).for_each(|_| reduce(1).unwrap());
    peer.leave();
}

struct Run {
    scratch: PathBuf,
    address: String,
}

impl Run {
    fn start_peer(&self, name: &str) -> Process {
        let program = std::env::current_exe().unwrap();
        let mut command = command(program.to_str().unwrap(), &["recorded::peer_process", "--exact"]);
        command
            .env(PEER_MASTER, &self.address)
            .env(PEER_NAME, name)
            .env("RINGFOLD_FLIGHT_DIR", &self.scratch);
        command.env(PEER_SIGNAL, self.signal());
        Process::spawn(&mut command)
    }

    fn signal(&self) -> PathBuf {
        self.scratch.join("signal")
    }

    fn flights(&self, kind: &str) -> Vec<PathBuf> {
        let paths = self.scratch.read_dir().unwrap().map(|entry| entry.unwrap().path());
        let is_flight = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with(kind) && name.ends_with(".flight")
        };
        paths.filter(is_flight).collect()
    }

    /// How many peers have recorded this event of the operation in which B is killed.
    fn recorded(&self, event: &str) -> usize {
        let marks = [format!("\"event\":\"{event}\""), format!("\"tag\":{KILLED},")];
        let has_it = |path: &&PathBuf| {
            let bytes = std::fs::read(path).unwrap_or_default();
            String::from_utf8_lossy(&bytes).lines().any(|line| marks.iter().all(|mark| line.contains(mark)))
        };
        self.flights("peer").iter().filter(has_it).count()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.scratch);
    }
}

#[test]
fn the_recorders_of_a_run_become_a_scenario_that_is_decided_the_same() {
    let scratch = std::env::temp_dir().join(format!("ringfold-recorded-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).unwrap();
    let arguments = ["master", "--listen", "127.0.0.1:0", "--flight-dir", scratch.to_str().unwrap()];
    let mut master = Process::start(RINGFOLD, &arguments);
    let address = master.line_with(LISTENING).strip_prefix(LISTENING).unwrap().to_owned();
    let run = Run { scratch, address };
    let [mut a, mut b, mut c] = ["A", "B", "C"].map(|name| run.start_peer(name));
    eventually("an operation of A and B", || (run.recorded("op_started") == 2).then_some(()));
    b.signal(Signal::KILL);
    b.end();
    // A call of C before that would contradict the operation.
    eventually("the end of A's operation", || (run.recorded("op_ended") == 1).then_some(()));
    std::fs::write(run.signal(), "").unwrap();
    let mut d = run.start_peer("D");
    for peer in [&mut a, &mut c, &mut d] {
        let (status, stderr) = peer.end();
        assert!(status.success(), "{stderr}");
    }
    master.signal(Signal::TERM);
    master.end();

    let all = read_files(std::slice::from_ref(&run.scratch)).expect("a scenario");
    check(&all);
    assert_eq!(RecordedScenario::parse(all.format().as_bytes()), Ok(all.clone()));
    // The recorder of the master alone is enough.
    check(&read_files(&run.flights("master")).expect("a scenario"));
    if let Some(path) = std::env::var_os("RINGFOLD_WRITE_SCENARIO") {
        std::fs::write(path, all.format()).unwrap();
    }
}

fn check(scenario: &RecordedScenario) {
    for seed in 0..10 {
        let report = ringfold_sim::run_recorded(scenario, seed, None, false);
        assert!(report.violations.is_empty(), "seed {seed}: {:?}", report.violations);
        let comparison = Comparison::new(scenario, &report.decided);
        let file = scenario.format();
        assert_eq!(comparison.first_difference(), None, "seed {seed}: {:?}\n{file}", report.notes);
        let has = |decision: Decision| {
            let found = comparison.lines.iter().any(|line| line.decision == decision);
            assert!(found, "no {decision:?} in\n{file}");
        };
        let names = |names: [&str; 3]| names.map(String::from).to_vec();
        has(Decision::EpochOpened { group: 0, members: names(["A", "B", "C"]) });
        has(Decision::Aborted { group: 0, tag: KILLED, failure: "peer-lost".into() });
        has(Decision::Departed { peer: "B".into(), how: Loss::Lost });
        has(Decision::EpochOpened { group: 0, members: names(["A", "C", "D"]) });
        has(Decision::StateElected { group: 0, revision: 2 });
        has(Decision::Departed { peer: "D".into(), how: Loss::Left });
    }
}
