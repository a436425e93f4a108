//! Hosts of a fixed group that are lost silently: packets stop, and no connection is closed.

use crate::fixture::SOON;
use ringfold::{Bootstrap, Group, ReduceOp};
use ringfold_lab::{Network, skip};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

/// Rank and address, in the environment of a rank's process.
const RANK: &str = "RINGFOLD_TEST_HOST_LOSS_RANK";
const ADDRESS: &str = "RINGFOLD_TEST_HOST_LOSS_ADDRESS";

/// When a silent host counts as lost.
const UNREACHABLE_AFTER: Duration = Duration::from_secs(4);

/// Far longer than the detection takes.
const TIMEOUT: Duration = Duration::from_secs(600);

/// A rank's process on a host. Dropping it kills the process.
struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(network: &Network, rank: usize, address: &str) -> Self {
        let mut command = network.host(rank).command(std::env::current_exe().unwrap());
        let mut child = command
            .args(["host_loss::child_is_a_rank", "--exact", "--ignored", "--nocapture"])
            .env(RANK, rank.to_string())
            .env(ADDRESS, address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn send(&mut self, word: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{word}").expect("it lives");
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it lives");
    }

    /// Waits for the text behind this word.
    fn wait_for(&mut self, word: &str) -> String {
        let said = self.lines.find_map(|line| Some(line.unwrap().split_once(word)?.1.to_owned()));
        said.expect("the process has ended")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "a rank of the other tests"]
fn child_is_a_rank() {
    let Ok(rank) = std::env::var(RANK) else { return };
    let group = Group::builder()
        .rank(rank.parse().unwrap())
        .world(2)
        .bootstrap(Bootstrap::Address(std::env::var(ADDRESS).unwrap()))
        .timeout(TIMEOUT)
        .unreachable_after(UNREACHABLE_AFTER)
        .connect()
        .unwrap();
    group.barrier().unwrap();
    println!("\nready:");
    for word in std::io::stdin().lines().map_while(Result::ok) {
        let begun = Instant::now();
        let result = match word.as_str() {
            // Waits for the other rank, with no data in flight.
            "barrier" => group.barrier(),
            // Has data in flight all the time.
            "reduce" => (0..)
                .find_map(|_| group.all_reduce(&mut vec![1_f32; 1 << 18], ReduceOp::Sum).err())
                .map_or(Ok(()), Err),
            // Sends more than the buffers of a connection hold.
            "bulk" => group.all_reduce(&mut vec![1_f32; 1 << 24], ReduceOp::Sum),
            _ => return,
        };
        match result {
            Ok(()) => println!("\nended: well"),
            Err(error) => println!("\nended: after {} ms: {error}", begun.elapsed().as_millis()),
        }
    }
}

fn pair(test: &str) -> Option<(Network, [Process; 2])> {
    if !skip::check(test, Network::available()) {
        return None;
    }
    let network = Network::new(2).expect("a network");
    let address = format!("{}:4711", network.host(0).ipv4());
    let mut ranks = [0, 1].map(|rank| Process::start(&network, rank, &address));
    ranks.iter_mut().for_each(|rank| drop(rank.wait_for("ready:")));
    Some((network, ranks))
}

/// Each rank gets an error soon that names the other one.
fn assert_lost(ranks: &mut [Process]) {
    for (rank, process) in ranks.iter_mut().enumerate() {
        let begun = Instant::now();
        let ended = process.wait_for("ended: ");
        assert!(begun.elapsed() < SOON, "rank {rank}: {ended}");
        assert!(ended.contains(&format!("rank {}", 1 - rank)), "rank {rank}: {ended}");
    }
}

#[test]
fn a_busy_rank_is_waited_for_and_a_lost_host_is_named() {
    let test = "a_busy_rank_is_waited_for_and_a_lost_host_is_named";
    let Some((network, mut ranks)) = pair(test) else { return };
    ranks[0].send("barrier");
    // Rank 1 is busy for longer than the detection of a lost host takes.
    std::thread::sleep(UNREACHABLE_AFTER * 2);
    ranks[1].send("barrier");
    for rank in &mut ranks {
        assert_eq!(rank.wait_for("ended: "), "well");
    }
    ranks[0].send("barrier");
    network.cut(network.host(0), network.host(1));
    assert_lost(&mut ranks[..1]);
}

#[test]
fn a_host_lost_during_a_reduction_is_named_by_both_sides() {
    let Some((network, mut ranks)) = pair("a_host_lost_during_a_reduction_is_named_by_both_sides") else {
        return;
    };
    ranks.iter_mut().for_each(|rank| rank.send("reduce"));
    std::thread::sleep(Duration::from_millis(200));
    network.cut(network.host(0), network.host(1));
    assert_lost(&mut ranks);
}

#[test]
fn a_stopped_rank_is_waited_for_and_named_when_its_host_is_lost() {
    let Some((network, mut ranks)) = pair("a_stopped_rank_is_waited_for_and_named_when_its_host_is_lost")
    else {
        return;
    };
    for (stopped, continues) in [(UNREACHABLE_AFTER * 5 / 2, true), (UNREACHABLE_AFTER / 2, false)] {
        ranks[1].signal(Signal::STOP);
        ranks[0].send("bulk");
        // Its buffers are full, and its host answers.
        std::thread::sleep(stopped);
        if continues {
            ranks[1].signal(Signal::CONT);
            ranks[1].send("bulk");
            ranks.iter_mut().for_each(|rank| assert_eq!(rank.wait_for("ended: "), "well"));
        }
    }
    network.cut(network.host(0), network.host(1));
    assert_lost(&mut ranks[..1]);
}
