//! Tests of the network of namespaces.

use ringfold_lab::network::{AccessLink, Firewall, PathSettings};
use ringfold_lab::usage::is_alive;
use ringfold_lab::{Host, Network, Process, skip};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const TCP: &str = env!("CARGO_BIN_EXE_lab-tcp");
const SOON: Duration = Duration::from_secs(10);
/// Long enough for a packet, its reply and a retransmission.
const SILENCE: Duration = Duration::from_millis(700);

fn network(test: &str, hosts: usize) -> Option<Network> {
    skip::check(test, Network::available()).then(|| Network::new(hosts).expect("a network"))
}

fn listen(host: &Host, address: IpAddr) -> (Process, SocketAddr) {
    let mut command = host.command(TCP);
    command.arg("listen").arg(SocketAddr::new(address, 0).to_string());
    let mut process = Process::spawn(format!("listener on host {}", host.index()), command).expect("spawn");
    let line = process.wait_for_line("listening on ", SOON).expect("listening");
    let bound = line["listening on ".len()..].parse().expect("an address");
    (process, bound)
}

fn dial(host: &Host, address: SocketAddr) -> Process {
    let mut command = host.command(TCP);
    command.arg("dial").arg(address.to_string());
    Process::spawn(format!("dialler on host {}", host.index()), command).expect("spawn")
}

fn connect(host: &Host, address: SocketAddr) -> Process {
    let mut process = dial(host, address);
    process.wait_for_line("connected", SOON).expect("connected");
    process
}

/// Sends a line and waits for its echo.
fn assert_echo(process: &mut Process, line: &str) {
    process.send(line).expect("send");
    process.wait_for_line(&format!("echo {line}"), SOON).expect("an echo");
}

#[test]
fn all_hosts_reach_each_other_over_both_families() {
    let Some(network) = network("all_hosts_reach_each_other_over_both_families", 3) else { return };
    for to in network.hosts() {
        for address in to.addresses() {
            let (_listener, address) = listen(to, address);
            for from in network.hosts() {
                assert_echo(&mut connect(from, address), "hello");
            }
        }
    }
}

#[test]
fn a_cut_is_silent_affects_one_pair_and_can_be_undone() {
    let Some(network) = network("a_cut_is_silent_affects_one_pair_and_can_be_undone", 3) else { return };
    for address in network.host(0).addresses() {
        let (_listener, address) = listen(network.host(0), address);
        let mut one = connect(network.host(1), address);
        let mut two = connect(network.host(2), address);
        assert_echo(&mut one, "before");
        network.cut(network.host(0), network.host(1));
        one.send("lost").expect("the sender is not told");
        one.wait_for_line("echo lost", SILENCE).expect_err("it is cut");
        assert!(one.is_running() && !one.lines().iter().any(|l| l.starts_with("lost")), "nobody is told");
        assert_echo(&mut two, "still here");
        let refused =
            dial(network.host(1), address).wait_for_line("failed", SOON).expect("no new connection");
        assert!(refused.contains("timed out"), "silence, no refusal: {refused}");
        network.mend(network.host(1), network.host(0));
        one.wait_for_line("echo lost", SOON).expect("TCP sends it again");
        assert_echo(&mut connect(network.host(1), address), "again");
    }
}

#[test]
fn a_one_way_cut_leaves_the_other_direction_open() {
    let Some(network) = network("a_one_way_cut_leaves_the_other_direction_open", 2) else { return };
    for address in network.host(0).addresses() {
        let (mut listener, address) = listen(network.host(0), address);
        let mut dialler = connect(network.host(1), address);
        assert_echo(&mut dialler, "before");
        // The question arrives, the reply does not.
        network.cut_one_way(network.host(0), network.host(1));
        dialler.send("question").expect("send");
        listener.wait_for_line("got question", SOON).expect("this way is open");
        dialler.wait_for_line("echo question", SILENCE).expect_err("this way is cut");
        network.mend(network.host(0), network.host(1));
        dialler.wait_for_line("echo question", SOON).expect("mended");
        // The question does not arrive.
        network.cut_one_way(network.host(1), network.host(0));
        dialler.send("nobody").expect("send");
        listener.wait_for_line("got nobody", SILENCE).expect_err("this way is cut");
        network.mend(network.host(0), network.host(1));
        listener.wait_for_line("got nobody", SOON).expect("mended");
    }
}

#[test]
fn a_host_is_unreachable_while_its_link_is_down() {
    let Some(network) = network("a_host_is_unreachable_while_its_link_is_down", 3) else { return };
    for address in network.host(0).addresses() {
        let (_listener, address) = listen(network.host(0), address);
        let mut dialler = connect(network.host(1), address);
        let mut local = connect(network.host(0), address);
        let mut other = connect(network.host(2), address);
        network.link_down(network.host(1)).expect("down");
        dialler.send("lost").expect("send");
        dialler.wait_for_line("echo lost", SILENCE).expect_err("it is down");
        assert_echo(&mut local, "here");
        assert_echo(&mut other, "there");
        network.link_up(network.host(1)).expect("up");
        dialler.wait_for_line("echo lost", SOON).expect("it is up");
        network.link_down(network.host(0)).expect("down");
        other.send("lost").expect("send");
        other.wait_for_line("echo lost", SILENCE).expect_err("it is down");
        assert_echo(&mut local, "still here");
        network.link_up(network.host(0)).expect("up");
        other.wait_for_line("echo lost", SOON).expect("it is up");
    }
}

/// How long a text of one megabyte and its echo take.
fn echo_megabyte(dialler: &mut Process) -> Duration {
    let began = Instant::now();
    dialler.send(&"x".repeat(1 << 20)).expect("send");
    dialler.wait_for_line("echo xxx", Duration::from_secs(60)).expect("echo");
    began.elapsed()
}

#[test]
fn the_rate_of_a_link_is_limited() {
    let Some(network) = network("the_rate_of_a_link_is_limited", 2) else { return };
    let (_listener, address) = listen(network.host(0), network.host(0).ipv4().into());
    let mut dialler = connect(network.host(1), address);
    echo_megabyte(&mut dialler);
    // 8.4 megabits go over and come back, at the same time.
    let slow = AccessLink { up: Some(16_000_000), down: Some(16_000_000), ..Default::default() };
    network.set_access(network.host(1), slow);
    let slow = echo_megabyte(&mut dialler);
    assert!((0.4..5.0).contains(&slow.as_secs_f64()), "{slow:?} at 16 Mbit/s");
    network.set_access(network.host(1), AccessLink::default());
    let fast = echo_megabyte(&mut dialler);
    assert!(fast < slow, "{fast:?} without a limit, {slow:?} with one");
}

#[test]
fn packets_are_delayed_and_lost_as_configured() {
    let Some(network) = network("packets_are_delayed_and_lost_as_configured", 2) else { return };
    let (here, there) = (network.host(0), network.host(1));
    let path = PathSettings { delay: Duration::from_millis(40), ..Default::default() };
    let set = |path| [(here, there), (there, here)].map(|(from, to)| network.set_path(from, to, path));
    set(path);
    let (_listener, address) = listen(here, here.ipv4().into());
    let mut dialler = connect(there, address);
    // A connection that loses its first packets takes seconds, so losses begin now.
    set(PathSettings { loss: 0.1, ..path });
    let began = Instant::now();
    assert_echo(&mut dialler, "hello");
    assert!(began.elapsed() >= Duration::from_millis(80), "{:?}", began.elapsed());
    echo_megabyte(&mut dialler);
    let counters = network.counters(there, here);
    assert!(counters.packets > 500 && counters.bytes > 1 << 20, "{counters:?}");
    assert!((counters.packets / 20..counters.packets / 5).contains(&counters.lost), "{counters:?}");
}

#[test]
fn a_reset_ends_connections_at_both_ends() {
    let Some(network) = network("a_reset_ends_connections_at_both_ends", 2) else { return };
    for address in network.host(0).addresses() {
        let (mut listener, address) = listen(network.host(0), address);
        let mut dialler = connect(network.host(1), address);
        assert_echo(&mut dialler, "before");
        network.reset_connections(network.host(0), network.host(1), Some(address.port()));
        dialler.send("lost").expect("send");
        dialler.wait_for_line("lost", SOON).expect("it ends here");
        listener.wait_for_line("lost", SOON).expect("and there");
        assert_echo(&mut connect(network.host(1), address), "a new one");
    }
}

#[test]
fn a_host_behind_a_nat_can_only_dial_out() {
    let Some(network) = network("a_host_behind_a_nat_can_only_dial_out", 2) else { return };
    network.set_firewall(network.host(1), Some(Firewall { forgets_after: Duration::from_secs(60) }));
    let (_outside, outside) = listen(network.host(0), network.host(0).ipv4().into());
    let (_inside, inside) = listen(network.host(1), network.host(1).ipv4().into());
    assert_echo(&mut connect(network.host(1), outside), "out");
    dial(network.host(0), inside).wait_for_line("connected", SILENCE).expect_err("nothing gets in");
}

#[test]
fn a_panicking_test_leaves_no_namespace_and_no_process() {
    let Some(network) = network("a_panicking_test_leaves_no_namespace_and_no_process", 2) else { return };
    let (listener, _) = listen(network.host(0), network.host(0).ipv4().into());
    let (pid, namespaces) = (listener.pid(), network.namespaces());
    let exists = |name: &String| Path::new("/run/netns").join(name).exists();
    assert!(namespaces.len() == 2 && namespaces.iter().all(exists));
    // A forgotten process is ended too.
    std::mem::forget(listener);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _network = network;
        std::panic::resume_unwind(Box::new("a test fails"));
    }));
    assert!(panicked.is_err());
    assert!(!namespaces.iter().any(exists));
    assert!(!is_alive(pid));
}

#[test]
fn the_namespaces_of_a_killed_test_are_removed_by_the_next() {
    if !skip::check("the_namespaces_of_a_killed_test_are_removed_by_the_next", Network::available()) {
        return;
    }
    // The id of a process that has ended.
    let mut ended = Command::new("true").spawn().expect("spawn");
    ended.wait().expect("wait");
    let (stale, live) =
        (format!("ringfold-{}-0-h0", ended.id()), format!("ringfold-{}-x-h0", std::process::id()));
    let ip = |arguments: &[&str]| Command::new("ip").args(arguments).status().is_ok_and(|s| s.success());
    assert!(ip(&["netns", "add", &stale]) && ip(&["netns", "add", &live]));
    let mut orphan = Command::new("ip");
    orphan.args(["netns", "exec", &stale, "sleep", "1000"]);
    let mut orphan = Process::spawn("orphan", orphan).expect("spawn");
    while std::fs::read(format!("/proc/{}/comm", orphan.pid())).expect("comm") != b"sleep\n" {
        assert!(orphan.is_running());
    }
    drop(Network::new(1).expect("a network"));
    orphan.wait_exit(SOON).expect("it is killed");
    assert!(!Path::new("/run/netns").join(&stale).exists());
    assert!(ip(&["netns", "del", &live]), "what belongs to a live process stays");
}
