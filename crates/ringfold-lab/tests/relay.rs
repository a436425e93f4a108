//! Peers that can only dial out, and relays between them.

use crate::fixture::{SOON, admit, assert_same, expect_all, replies, send_all};
use ringfold_lab::network::Firewall;
use ringfold_lab::programs::{MasterProcess, PeerProcess};
use ringfold_lab::{Host, Network, Process, skip};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const MASTER: &str = env!("CARGO_BIN_EXE_lab-master");
const PEER: &str = env!("CARGO_BIN_EXE_lab-peer");
const RELAY: &str = env!("CARGO_BIN_EXE_lab-relay");
const TOKEN: &str = "open sesame, open";

/// A network whose hosts 0 and 1 are behind a NAT; none if the test is skipped.
fn network(test: &str, hosts: usize) -> Option<Network> {
    if !skip::check(test, Network::available()) {
        return None;
    }
    let network = Network::new(hosts).expect("a network");
    for host in &network.hosts()[..2] {
        network.set_firewall(host, Some(Firewall { forgets_after: Duration::from_secs(60) }));
    }
    Some(network)
}

fn relay(host: &Host) -> (Process, SocketAddr) {
    let mut command = host.command(RELAY);
    command.args(["--listen", &SocketAddr::new(host.ipv4().into(), 0).to_string(), "--token", TOKEN]);
    let mut relay = Process::spawn("relay", command).expect("spawn");
    let line = relay.wait_for_line("listening on ", SOON).expect("listening");
    (relay, line["listening on ".len()..].parse().expect("an address"))
}

fn master(host: &Host, relays: &[SocketAddr]) -> MasterProcess {
    let mut command = host.command(MASTER);
    command.args(["--listen", &SocketAddr::new(host.ipv4().into(), 0).to_string()]);
    command.args(["--token", TOKEN, "--timing", "default"]);
    for relay in relays {
        command.args(["--relay", &relay.to_string()]);
    }
    MasterProcess::start(command).expect("a master")
}

fn peer(host: &Host, number: u32, master: &MasterProcess) -> PeerProcess {
    peer_with(host, number, master, "0")
}

fn peer_with(host: &Host, number: u32, master: &MasterProcess, volunteers: &str) -> PeerProcess {
    let mut command = host.command(PEER);
    command.args(["--token", TOKEN, "--timing", "default", "--connect-timeout-ms", "60000"]);
    command.env("RINGFOLD_VOLUNTEER_RELAY", volunteers);
    PeerProcess::start(command, number, master.address()).expect("a peer")
}

/// Two admitted peers behind NATs, with the master and relays on the third host.
fn two_behind_nats(network: &Network, relays: usize) -> (Vec<PeerProcess>, MasterProcess, Vec<Process>) {
    let open = network.host(2);
    let (relays, addresses): (Vec<_>, Vec<_>) = (0..relays).map(|_| relay(open)).unzip();
    let master = master(open, &addresses);
    let mut peers: Vec<_> = (0..2).map(|n| peer(network.host(n), n as u32, &master)).collect();
    admit(&mut peers);
    for peer in &peers {
        await_log(peer, &["link to peer ", &format!("goes through relay {}", addresses[0])]);
    }
    (peers, master, relays)
}

/// Waits for a line of the log; it is read beside the replies.
fn await_log(process: &Process, texts: &[&str]) {
    let deadline = Instant::now() + SOON;
    let fits = |line: &String| texts.iter().all(|text| line.contains(text));
    while !process.error_lines().iter().any(fits) {
        assert!(Instant::now() < deadline, "{texts:?} is not in {:#?}", process.error_lines());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn two_peers_that_can_only_dial_out_train_through_a_relay() {
    let test = "two_peers_that_can_only_dial_out_train_through_a_relay";
    let Some(network) = network(test, 3) else { return };
    let (mut peers, _master, _relays) = two_behind_nats(&network, 1);
    for step in 0..3 {
        assert_same(&expect_all(&mut peers, &format!("reduce 1 400000 step={step}")), 0..2);
    }
    // Peer 1 fetches from peer 0, and then peer 0 from peer 1.
    for (revision, holder) in [(1, 0), (2, 1)] {
        for (number, peer) in peers.iter_mut().enumerate() {
            let strategy = if number == holder { "send" } else { "receive" };
            peer.send(&format!("sync {revision} 3000000 3 fill={number} strategy={strategy}")).expect("told");
        }
        let synced = replies(&mut peers, "sync");
        synced.iter().for_each(|reply| assert!(reply.is_ok(), "{reply}"));
    }
    expect_all(&mut peers, "optimize");
    assert_same(&expect_all(&mut peers, "reduce 2 1000"), 0..2);
    let unmeasured = |line: &String| line.contains("cannot measure");
    assert!(!peers.iter().any(|peer| peer.error_lines().iter().any(unmeasured)));
    let begun = Instant::now();
    let mut killed = peers.pop().expect("two peers");
    peers[0].send("reduce 3 100000").expect("told");
    std::thread::sleep(Duration::from_millis(300));
    killed.kill9().expect("killed");
    let reply = peers[0].reply("reduce", SOON).expect("a reply");
    assert!(!reply.is_ok(), "{reply}");
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

#[test]
fn a_killed_relay_costs_one_operation_if_there_is_another() {
    let test = "a_killed_relay_costs_one_operation_if_there_is_another";
    let Some(network) = network(test, 3) else { return };
    let (mut peers, _master, mut relays) = two_behind_nats(&network, 2);
    assert_same(&expect_all(&mut peers, "reduce 1 1000"), 0..2);
    // Peer 1 does not take part yet, so the operation is running when the relay dies.
    peers[0].send("reduce 2 4000000").expect("told");
    std::thread::sleep(Duration::from_millis(300));
    relays[0].kill9().expect("killed");
    let reply = peers[0].reply("reduce", SOON).expect("no hang");
    assert!(!reply.is_ok() && reply.text("retryable") == "true", "{reply}");
    let deadline = Instant::now() + SOON;
    for step in 0.. {
        assert!(Instant::now() < deadline, "the run does not continue");
        send_all(&mut peers, &format!("reduce 3 100000 step={step}"));
        let all = replies(&mut peers, "reduce");
        if all.iter().all(|reply| reply.is_ok()) {
            return assert_same(&all, 0..2);
        }
    }
}

#[test]
fn without_a_relay_left_the_loss_is_an_error_and_no_hang() {
    let test = "without_a_relay_left_the_loss_is_an_error_and_no_hang";
    let Some(network) = network(test, 3) else { return };
    let (mut peers, _master, mut relays) = two_behind_nats(&network, 1);
    send_all(&mut peers[..1], "reduce 1 4000000");
    std::thread::sleep(Duration::from_millis(300));
    relays[0].kill9().expect("killed");
    let reply = peers[0].reply("reduce", SOON).expect("no hang");
    assert!(!reply.is_ok(), "{reply}");
}

#[test]
fn a_peer_that_volunteers_relays_for_two_others() {
    let test = "a_peer_that_volunteers_relays_for_two_others";
    let Some(network) = network(test, 3) else { return };
    let open = network.host(2);
    let master = master(open, &[]);
    let mut volunteer = peer_with(open, 2, &master, "1");
    volunteer.expect("connect", SOON).expect("the first is accepted at once");
    let mut peers = vec![volunteer];
    for number in 0..2 {
        let mut newcomer = peer(network.host(number), number as u32, &master);
        crate::fixture::join(&mut peers, &mut newcomer);
        peers.push(newcomer);
    }
    for step in 0..3 {
        assert_same(&expect_all(&mut peers, &format!("reduce 1 400000 step={step}")), 0..3);
    }
    for peer in &peers[1..] {
        await_log(peer, &["goes through relay 10.77.0.3:"]);
    }
    await_log(&peers[0], &["relaying between"]);
}
