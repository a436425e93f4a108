//! Real processes, over TCP on the loopback: the machines and the executor driven by sockets.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Ten times what the slowest of these runs takes on two busy cores.
const DEADLINE: Duration = Duration::from_secs(60);

const TOKEN: &str = "sesame";

/// A process that does not outlive its test.
struct Process {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
    stderr: Option<JoinHandle<String>>,
    deadline: Instant,
}

impl Process {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tracer"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the tracer starts");
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)).ok()
        });
        let mut stderr = child.stderr.take().expect("stderr is piped");
        let stderr = std::thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).ok();
            text
        });
        let deadline = Instant::now() + DEADLINE;
        Self { child, lines, seen: Vec::new(), stderr: Some(stderr), deadline }
    }

    /// Waits for a line that begins so.
    fn wait_for(&mut self, start: &str) -> String {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                let errors = self.fail();
                panic!("no line begins with {start:?}: {errors}\n{:#?}", self.seen);
            };
            self.seen.push(line.clone());
            if line.starts_with(start) {
                return line;
            }
        }
    }

    /// Waits for the end: the exit code, and what was said on stderr.
    fn end(&mut self) -> (Option<i32>, String) {
        while Instant::now() < self.deadline {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                self.seen.extend(self.lines.iter());
                return (status.code(), self.errors());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let errors = self.fail();
        panic!("a process does not end: {errors}\n{:#?}", self.seen);
    }

    fn finish(&mut self) {
        let (code, errors) = self.end();
        assert_eq!(code, Some(0), "{errors}\n{:#?}", self.seen);
    }

    /// SIGKILL: no goodbye, and connections that end wherever they are.
    fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
        self.seen.extend(self.lines.iter());
    }

    fn fail(&mut self) -> String {
        self.child.kill().ok();
        self.child.wait().ok();
        self.seen.extend(self.lines.iter());
        self.errors()
    }

    fn errors(&mut self) -> String {
        self.stderr.take().and_then(|reader| reader.join().ok()).unwrap_or_default()
    }

    /// The world and the hash of each step.
    fn steps(&self) -> BTreeMap<u32, (u32, String)> {
        let parse = |line: &String| {
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["step", step, "world", world, "hash", hash, ..] => {
                    Some((step.parse().ok()?, (world.parse().ok()?, hash.to_owned())))
                }
                _ => None,
            }
        };
        self.seen.iter().filter_map(parse).collect()
    }

    fn aborts(&self) -> Vec<&String> {
        self.seen.iter().filter(|line| line.starts_with("aborted")).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A master, and where it listens.
struct Run {
    master: Process,
    address: String,
}

impl Run {
    fn start() -> Self {
        let mut master = Process::start(&["master", "--token", TOKEN, "--verbose"]);
        let line = master.wait_for("listening on ");
        let address = line.trim_start_matches("listening on ").to_owned();
        Self { master, address }
    }

    fn join(&self, name: &str, options: &str) -> Process {
        let mut arguments = vec!["peer", "--master", &self.address, "--name", name];
        arguments.extend(options.split(' '));
        if !options.contains("--token") {
            arguments.extend(["--token", TOKEN]);
        }
        Process::start(&arguments)
    }

    /// Everyone has left, so the master ends of its own accord.
    fn finish(mut self) {
        self.master.finish();
    }
}

/// Steps that two peers both made have the same result, to the bit.
fn assert_same_bits(one: &Process, other: &Process) {
    let (one, other) = (one.steps(), other.steps());
    for (step, result) in &one {
        assert!(other.get(step).is_none_or(|o| o == result), "step {step}: {result:?}, {:?}", other[step]);
    }
}

fn worlds(process: &Process) -> Vec<u32> {
    process.steps().into_values().map(|(world, _)| world).collect()
}

#[test]
fn two_processes_reduce_over_tcp_and_get_the_same_bits() {
    for count in [0, 1, 7, 4_096, 20_000, 1_000_003] {
        let run = Run::start();
        let options = format!("--world 2 --steps 3 --count {count}");
        let mut peers = ["alpha", "beta"].map(|name| run.join(name, &options));
        peers.iter_mut().for_each(Process::finish);
        let [alpha, beta] = &peers;
        assert_eq!(worlds(alpha), [2, 2, 2], "{count} elements");
        assert_eq!(alpha.steps(), beta.steps(), "{count} elements");
        assert!(alpha.aborts().is_empty() && beta.aborts().is_empty());
        run.finish();
    }
}

#[test]
fn three_processes_go_on_together_when_the_third_comes_late() {
    for count in [5, 20_000, 300_001] {
        let run = Run::start();
        let options = format!("--world 2 --steps 6 --until-world 3 --count {count}");
        let [mut alpha, mut beta] = ["alpha", "beta"].map(|name| run.join(name, &options));
        alpha.wait_for("step 1 ");
        let options = format!("--world 3 --steps 6 --until-world 3 --count {count}");
        let mut gamma = run.join("gamma", &options);
        [&mut alpha, &mut beta, &mut gamma].into_iter().for_each(Process::finish);
        assert_eq!(alpha.steps(), beta.steps());
        assert_same_bits(&gamma, &alpha);
        let worlds = worlds(&alpha);
        assert!(worlds.is_sorted() && worlds.first() == Some(&2) && worlds.last() == Some(&3), "{worlds:?}");
        assert_eq!(gamma.steps().len(), worlds.iter().filter(|world| **world == 3).count());
        run.finish();
    }
}

#[test]
fn a_peer_with_the_wrong_token_is_turned_away() {
    let run = Run::start();
    for token in ["--token open", "--token "] {
        let mut stranger = run.join("stranger", &format!("--world 1 --steps 1 --count 1 {token}"));
        let (code, errors) = stranger.end();
        assert_eq!(code, Some(1));
        assert!(errors.contains("token"), "{errors}");
        assert!(stranger.seen.is_empty(), "{:?}", stranger.seen);
    }
}

/// A peer that has begun one of four collectives is killed: the others can't complete the rest with it.
#[test]
fn survivors_finish_when_a_peer_is_killed() {
    for count in [3, 300_000] {
        let run = Run::start();
        let options = format!("--world 3 --steps 6 --count {count}");
        let [mut alpha, mut beta] = ["alpha", "beta"].map(|name| run.join(name, &options));
        let mut gamma = run.join("gamma", &format!("{options} --hold-at 3"));
        gamma.wait_for("holding");
        // Time for the others to come to a halt in the middle of the step.
        std::thread::sleep(Duration::from_millis(50));
        gamma.kill();
        [&mut alpha, &mut beta].into_iter().for_each(Process::finish);
        assert_eq!(alpha.steps(), beta.steps());
        assert_same_bits(&gamma, &alpha);
        assert_eq!(worlds(&alpha), [3, 3, 3, 2, 2, 2]);
        for survivor in [&alpha, &beta] {
            let aborts = survivor.aborts();
            assert!(!aborts.is_empty() && aborts.iter().all(|line| line.contains("gamma")), "{aborts:?}");
        }
        run.finish();
    }
}

#[test]
fn survivors_finish_whenever_a_peer_is_killed() {
    for delay_ms in [0, 2, 5, 10, 20, 40] {
        let run = Run::start();
        let options = "--world 3 --steps 8 --count 200000";
        let [mut alpha, mut beta, mut gamma] = ["alpha", "beta", "gamma"].map(|name| run.join(name, options));
        gamma.wait_for("step 1 ");
        std::thread::sleep(Duration::from_millis(delay_ms));
        gamma.kill();
        [&mut alpha, &mut beta].into_iter().for_each(Process::finish);
        assert_eq!(alpha.steps(), beta.steps());
        assert_same_bits(&gamma, &alpha);
        assert_eq!(alpha.steps().len(), 8);
        run.finish();
    }
}
