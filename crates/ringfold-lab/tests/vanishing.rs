//! Ranks of a fixed group whose hosts vanish: their packets stop, and no connection is closed.

use crate::stage::SOON;
use ringfold::{Bootstrap, Group, ReduceOp};
use ringfold_lab::{Network, skip};
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

/// Rank and address, in the environment of a rank's process.
const RANK: &str = "RINGFOLD_TEST_VANISHING_RANK";
const ADDRESS: &str = "RINGFOLD_TEST_VANISHING_ADDRESS";

/// When a silent host counts as lost.
const UNREACHABLE_AFTER: Duration = Duration::from_secs(4);

/// Far longer than it may take to notice that, and far longer than anybody wants to wait for a failure.
const TIMEOUT: Duration = Duration::from_secs(600);

/// A rank's process on a host. It is killed when this is dropped.
struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(network: &Network, rank: usize, address: &str) -> Self {
        let mut command = network.host(rank).command(std::env::current_exe().unwrap());
        let mut child = command
            .args(["vanishing::child_is_a_rank", "--exact", "--ignored", "--nocapture"])
            .env(RANK, rank.to_string())
            .env(ADDRESS, address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn tell(&mut self, word: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{word}").expect("it lives");
    }

    /// What it says behind this word.
    fn says(&mut self, word: &str) -> String {
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
            // Waits for the other rank, with nothing under way.
            "barrier" => group.barrier(),
            // Has data under way all the time.
            "reduce" => (0..)
                .find_map(|_| group.all_reduce(&mut vec![1_f32; 1 << 18], ReduceOp::Sum).err())
                .map_or(Ok(()), Err),
            _ => return,
        };
        match result {
            Ok(()) => println!("\nended: well"),
            Err(error) => println!("\nended: after {} ms: {error}", begun.elapsed().as_millis()),
        }
    }
}

fn pair(test: &str) -> Option<(Network, [Process; 2])> {
    if !skip::unless(test, Network::available()) {
        return None;
    }
    let network = Network::new(2).expect("a network");
    let address = format!("{}:4711", network.host(0).ipv4());
    let mut ranks = [0, 1].map(|rank| Process::start(&network, rank, &address));
    ranks.iter_mut().for_each(|rank| drop(rank.says("ready:")));
    Some((network, ranks))
}

/// Both ranks hear soon that the other one is lost.
fn assert_lost(ranks: &mut [Process]) {
    for (rank, process) in ranks.iter_mut().enumerate() {
        let begun = Instant::now();
        let ended = process.says("ended: ");
        assert!(begun.elapsed() < SOON, "rank {rank}: {ended}");
        assert!(ended.contains(&format!("rank {}", 1 - rank)), "rank {rank}: {ended}");
    }
}

#[test]
fn a_rank_that_computes_is_waited_for_and_one_whose_host_vanishes_is_named() {
    let test = "a_rank_that_computes_is_waited_for_and_one_whose_host_vanishes_is_named";
    let Some((network, mut ranks)) = pair(test) else { return };
    ranks[0].tell("barrier");
    // Rank 1 is busy for longer than a vanished host is borne.
    std::thread::sleep(UNREACHABLE_AFTER * 2);
    ranks[1].tell("barrier");
    for rank in &mut ranks {
        assert_eq!(rank.says("ended: "), "well");
    }
    ranks[0].tell("barrier");
    network.cut(network.host(0), network.host(1)).expect("a cut");
    assert_lost(&mut ranks[..1]);
}

#[test]
fn a_host_that_vanishes_amid_a_reduction_is_named_by_both_sides() {
    let Some((network, mut ranks)) = pair("a_host_that_vanishes_amid_a_reduction_is_named_by_both_sides")
    else {
        return;
    };
    ranks.iter_mut().for_each(|rank| rank.tell("reduce"));
    std::thread::sleep(Duration::from_millis(200));
    network.cut(network.host(0), network.host(1)).expect("a cut");
    assert_lost(&mut ranks);
}
