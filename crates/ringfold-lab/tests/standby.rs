//! Runs with several masters: when the active one dies, another one takes over.

use crate::fixture::{
    SOON, accepted, admit, assert_steps_agree, expect_all, join, master_on_with, master_with, peer, peer_on,
    send_all,
};
use ringfold_lab::programs::{MasterProcess, PeerProcess};
use ringfold_lab::{Network, Process, skip};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// Ten times what a loop takes on a loaded machine.
const LOOP_MAX: Duration = Duration::from_secs(300);

/// The masters of a run. Those that died are started again by the tests.
struct Masters {
    list: String,
    /// The lease that decides which one is active, instead of votes.
    lease: Option<String>,
    processes: Vec<MasterProcess>,
}

impl Masters {
    fn start(count: usize) -> Self {
        Self::start_with(count, &test_address(), None)
    }

    fn start_with(count: usize, address: &str, lease: Option<String>) -> Self {
        let list: Vec<_> = (0..count).map(|index| format!("{address}:{}", 20_000 + index)).collect();
        let list = list.join(",");
        let mut masters = Self { list, lease, processes: Vec::new() };
        for index in 0..count {
            masters.processes.push(masters.start_one(index));
        }
        masters
    }

    fn start_one(&self, index: usize) -> MasterProcess {
        let address = self.list.split(',').nth(index).expect("one of the list");
        let mut arguments = vec!["--listen", address, "--masters", &self.list];
        if let Some(lease) = &self.lease {
            arguments.extend(["--lease", lease]);
        }
        master_with(&arguments)
    }

    /// The active master, by the last lines of all logs, when all others that run stand by.
    fn active(&mut self) -> usize {
        let deadline = Instant::now() + SOON;
        loop {
            let running: Vec<_> =
                (0..self.processes.len()).filter(|index| self.processes[*index].is_running()).collect();
            let says = |index: &&usize, text| self.last_role(**index).is_some_and(|line| line.contains(text));
            let active: Vec<_> =
                running.iter().filter(|index| says(index, "this master is active, ")).collect();
            let standbys = running.iter().filter(|index| says(index, "this master stands by: ")).count();
            if let ([index], true) = (&active[..], standbys + 1 == running.len()) {
                return **index;
            }
            assert!(Instant::now() < deadline, "no active master: {:?}", self.logs());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until another master than this one is active.
    fn successor(&self, of: usize) -> usize {
        let deadline = Instant::now() + SOON;
        loop {
            let is_active = |index: &usize| {
                let role = self.last_role(*index);
                *index != of && role.is_some_and(|line| line.contains("this master is active, "))
            };
            if let Some(index) = (0..self.processes.len()).find(is_active) {
                return index;
            }
            assert!(Instant::now() < deadline, "no active master: {:?}", self.logs());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn last_role(&self, index: usize) -> Option<String> {
        let lines = self.processes[index].error_lines();
        lines.into_iter().rev().find(|line| line.contains("this master") || line.contains("no active master"))
    }

    fn logs(&self) -> Vec<Vec<String>> {
        self.processes.iter().map(|process| process.error_lines()).collect()
    }

    fn restart(&mut self, index: usize) {
        self.processes[index] = self.start_one(index);
    }
}

/// An address of its own for each test, so that nobody else has bound its ports.
fn test_address() -> String {
    static TESTS: AtomicU8 = AtomicU8::new(0);
    let test = TESTS.fetch_add(1, Ordering::Relaxed);
    let [.., high, low] = std::process::id().to_be_bytes();
    format!("127.{}.{high}.{low}", 64 + test)
}

/// An etcd without peers, in a folder of its own.
fn etcd(address: &str) -> Process {
    let folder = std::env::temp_dir().join(format!("ringfold-etcd-{address}"));
    let (client, peer) = (format!("http://{address}:2379"), format!("http://{address}:2380"));
    let mut command = Command::new("etcd");
    command.arg("--data-dir").arg(&folder).args([
        "--listen-client-urls",
        &client,
        "--advertise-client-urls",
        &client,
    ]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &format!("default={peer}"), "--logger", "zap"]);
    Process::spawn("etcd", command).expect("an etcd")
}

/// Waits for the end of the loop. Nothing has failed in it, not even to be tried again.
fn expect_loop(peers: &mut [PeerProcess], revision: u64) {
    for peer in &mut *peers {
        let reply = peer.reply("loop", LOOP_MAX).expect("a reply");
        assert!(reply.is_ok() && reply.number("revision") == revision, "{reply}");
        assert_eq!((reply.number("aborts"), reply.number("retries")), (0, 0), "{reply}");
    }
    assert_steps_agree(peers);
}

fn await_step(peers: &mut [PeerProcess], revision: u64) {
    peers[0].step(SOON, |step| step.number("revision") >= revision).expect("steps");
}

fn is_long() -> bool {
    std::env::var_os("RINGFOLD_LONG").is_some()
}

#[test]
fn a_loop_continues_when_active_masters_are_killed() {
    let mut masters = Masters::start(3);
    let mut peers = accepted(4, &masters.list);
    send_all(&mut peers, "loop until=300 pause=2");
    for kill in 1..=3 {
        await_step(&mut peers, 60 * kill);
        // In another moment of a step each time.
        std::thread::sleep(Duration::from_millis(kill * 37 % 200));
        let active = masters.active();
        masters.processes[active].kill9().expect("killed");
        assert_ne!(masters.active(), active);
        masters.restart(active);
    }
    expect_loop(&mut peers, 300);
    // Newcomers find the active one.
    let mut newcomer = peer(4, &masters.list);
    join(&mut peers, &mut newcomer);
}

#[test]
fn a_frozen_master_is_replaced_and_stands_by_afterwards() {
    let mut masters = Masters::start(3);
    let mut peers = accepted(4, &masters.list);
    send_all(&mut peers, "loop until=200 pause=2");
    await_step(&mut peers, 30);
    let active = masters.active();
    masters.processes[active].stop().expect("stopped");
    await_step(&mut peers, 100);
    masters.processes[active].cont().expect("continued");
    expect_loop(&mut peers, 200);
    let next = masters.active();
    assert_ne!(next, active, "{:?}", masters.logs());
    expect_all(&mut peers, "reduce 1 1000");
}

#[test]
fn a_master_that_is_cut_off_is_replaced_and_stands_by_afterwards() {
    let test = "a_master_that_is_cut_off_is_replaced_and_stands_by_afterwards";
    replace_after_cut(test, |network, active| {
        network.link_down(network.host(active)).expect("down");
        Box::new(move || network.link_up(network.host(active)).expect("up"))
    });
}

#[test]
fn a_master_that_loses_its_peers_but_not_the_other_masters_is_replaced() {
    let test = "a_master_that_loses_its_peers_but_not_the_other_masters_is_replaced";
    replace_after_cut(test, |network, active| {
        let paths = (3..5).map(move |peer| (network.host(active), network.host(peer)));
        paths.clone().for_each(|(master, peer)| network.cut(master, peer));
        Box::new(move || paths.for_each(|(master, peer)| network.mend(master, peer)))
    });
}

/// Masters on the first hosts.
fn masters_on(network: &Network, count: usize, timing: &'static str) -> Masters {
    let address = |index| format!("{}:48148", network.host(index).ipv4());
    let list: Vec<_> = (0..count).map(address).collect();
    let mut masters = Masters { list: list.join(","), lease: None, processes: Vec::new() };
    for index in 0..count {
        masters.processes.push(start_on(network, index, &masters.list, timing));
    }
    masters
}

fn start_on(network: &Network, index: usize, list: &str, timing: &str) -> MasterProcess {
    let address = list.split(',').nth(index).expect("one of the list");
    master_on_with(network.host(index), &["--listen", address, "--masters", list, "--timing", timing])
}

/// Three masters and two peers on hosts of their own, which the active master is cut off from. `cut` returns what mends it.
fn replace_after_cut(test: &str, cut: impl for<'a> Fn(&'a Network, usize) -> Box<dyn FnOnce() + 'a>) {
    if !skip::check(test, Network::available()) {
        return;
    }
    let network = Network::new(5).expect("a network");
    let mut masters = masters_on(&network, 3, "short");
    let active = masters.active();
    let mut peers: Vec<_> =
        (0..2).map(|number| peer_on(network.host(3 + number as usize), number, &masters.list)).collect();
    admit(&mut peers);
    send_all(&mut peers, "loop until=300 pause=2");
    await_step(&mut peers, 30);
    let mend = cut(&network, active);
    await_step(&mut peers, 200);
    mend();
    expect_loop(&mut peers, 300);
    assert_ne!(masters.active(), active);
    expect_all(&mut peers, "reduce 1 1000");
}

/// `./test --long`: the default timing, and large reduces: 64 MiB with `cargo test --release`, 4 MiB otherwise.
#[test]
fn a_loop_continues_when_masters_are_killed_frozen_or_cut_off_fifty_times() {
    let test = "a_loop_continues_when_masters_are_killed_frozen_or_cut_off_fifty_times";
    if !is_long() || !skip::check(test, Network::available()) {
        return;
    }
    let count = if cfg!(debug_assertions) { 1 << 20 } else { 1 << 24 };
    let network = Network::new(7).expect("a network");
    let mut masters = masters_on(&network, 3, "default");
    masters.active();
    let on_host = |number| {
        let mut command = network.host(3 + number as usize).command(env!("CARGO_BIN_EXE_lab-peer"));
        command.args(["--timing", "default"]);
        PeerProcess::start(command, number, &masters.list).expect("a peer")
    };
    let mut peers: Vec<_> = (0..4).map(on_host).collect();
    admit(&mut peers);
    let faults = ["killed", "frozen", "cut off"];
    let mut times = [const { Vec::new() }; 3];
    for round in 1..=50 {
        let end = 4 * round;
        send_all(&mut peers, &format!("loop until={end} count={count}"));
        await_step(&mut peers, end - 3);
        // In another moment of a step each time.
        std::thread::sleep(Duration::from_millis(round * 37 % 500));
        let active = masters.active();
        let fault = round as usize % 3;
        let began = Instant::now();
        match faults[fault] {
            "killed" => masters.processes[active].kill9().expect("killed"),
            "frozen" => masters.processes[active].stop().expect("stopped"),
            _ => network.link_down(network.host(active)).expect("down"),
        }
        masters.successor(active);
        times[fault].push(began.elapsed());
        eprintln!("{round}: {}, replaced after {:?}", faults[fault], began.elapsed());
        expect_loop(&mut peers, end);
        let down = Duration::from_secs(if faults[fault] == "killed" { 0 } else { 10 });
        std::thread::sleep(down.saturating_sub(began.elapsed()));
        match faults[fault] {
            "killed" => masters.processes[active] = start_on(&network, active, &masters.list, "default"),
            "frozen" => masters.processes[active].cont().expect("continued"),
            _ => network.link_up(network.host(active)).expect("up"),
        }
        masters.active();
    }
    for (fault, mut times) in faults.into_iter().zip(times) {
        times.sort_unstable();
        let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
        eprintln!(
            "{} times {fault}: another master was active after {median:?} (median), {most:?} at most",
            times.len()
        );
    }
}

#[test]
fn all_masters_are_restarted_one_after_the_other() {
    let mut masters = Masters::start(3);
    let mut peers = accepted(2, &masters.list);
    send_all(&mut peers, "loop until=300 pause=2");
    for index in 0..3 {
        await_step(&mut peers, 30 + 80 * index as u64);
        masters.processes[index].terminate().expect("ended");
        masters.processes[index].wait_exit(SOON).expect("ended");
        masters.restart(index);
        masters.active();
    }
    expect_loop(&mut peers, 300);
}

#[test]
fn two_masters_survive_the_loss_of_a_peer_and_then_of_the_active_master() {
    let mut masters = Masters::start(2);
    let mut peers = accepted(3, &masters.list);
    let mut lost = peers.pop().expect("three");
    let active = masters.active();
    assert_eq!(active, 0);
    lost.kill9().expect("killed");
    expect_all(&mut peers, "topology");
    masters.processes[active].kill9().expect("killed");
    expect_all(&mut peers, "reduce 1 1000");
    assert_eq!(masters.active(), 1);
}

#[test]
fn a_lease_in_etcd_decides_which_master_is_active() {
    if !is_long() {
        return;
    }
    let has_etcd = Command::new("etcd").arg("--version").output().is_ok_and(|output| output.status.success());
    let available = if has_etcd { Ok(()) } else { Err("etcd (Debian: etcd-server)".to_owned()) };
    if !skip::check("a_lease_in_etcd_decides_which_master_is_active", available) {
        return;
    }
    let address = test_address();
    let mut etcd = etcd(&address);
    let mut masters = Masters::start_with(3, &address, Some(format!("etcd://{address}:2379/run")));
    masters.active();
    let mut peers = accepted(2, &masters.list);
    send_all(&mut peers, "loop until=1000 pause=10");
    for revision in [30, 200, 400] {
        await_step(&mut peers, revision);
        let active = masters.active();
        masters.processes[active].kill9().expect("killed");
        assert_ne!(masters.active(), active);
        masters.restart(active);
        masters.active();
    }
    // A master that cannot renew its lease stops, and goes on when it can.
    await_step(&mut peers, 600);
    etcd.stop().expect("stopped");
    std::thread::sleep(Duration::from_secs(5));
    etcd.cont().expect("continued");
    await_step(&mut peers, 800);
    expect_loop(&mut peers, 1000);
    etcd.kill9().expect("killed");
    std::fs::remove_dir_all(std::env::temp_dir().join(format!("ringfold-etcd-{address}"))).expect("removed");
}
