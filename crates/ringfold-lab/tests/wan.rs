//! Runs over long links, which use QUIC.

use crate::fixture::{SOON, admit, assert_same, expect_all, master_on, peer_on, replies, send_all};
use ringfold_lab::network::PathSettings;
use ringfold_lab::programs::{MasterProcess, PeerProcess};
use ringfold_lab::{Host, Network, skip};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A long link: 100 Mbit/s, 40 ms round trip.
fn long() -> PathSettings {
    PathSettings { delay: Duration::from_millis(20), rate: Some(100_000_000), ..PathSettings::default() }
}

/// Peers on hosts of their own, with the master beside the first one; none if the test is skipped.
fn run(test: &str, peers: usize, path: PathSettings) -> Option<(Vec<PeerProcess>, MasterProcess, Network)> {
    if !skip::check(test, Network::available()) {
        return None;
    }
    let network = Network::new(peers).expect("a network");
    for from in network.hosts() {
        for to in network.hosts().iter().filter(|to| to.index() != from.index()) {
            network.set_path(from, to, path);
        }
    }
    let master = master_on(network.host(0), SocketAddr::new(network.host(0).ipv4().into(), 0));
    let all = network.hosts().iter().map(|host| peer_on(host, host.index() as u32, master.address()));
    let mut all: Vec<PeerProcess> = all.collect();
    admit(&mut all);
    Some((all, master, network))
}

/// The UDP packets that a host has sent.
fn udp_sent(host: &Host) -> u64 {
    let output = host.command("cat").args(["/proc/net/snmp", "/proc/net/snmp6"]).output().expect("cat");
    let text = String::from_utf8(output.stdout).expect("text");
    let ipv4 = text.lines().filter(|line| line.starts_with("Udp:")).nth(1).expect("the counters of UDP");
    let ipv6 = text.lines().find_map(|line| line.strip_prefix("Udp6OutDatagrams")).unwrap_or("0");
    ipv4.split_whitespace().nth(4).expect("sent").parse::<u64>().expect("a number")
        + ipv6.trim().parse::<u64>().expect("a number")
}

#[test]
fn long_links_use_quic_and_lose_nothing() {
    let path = PathSettings { loss: 0.01, ..long() };
    let Some((mut peers, _master, network)) = run("long_links_use_quic_and_lose_nothing", 3, path) else {
        return;
    };
    for step in 0..3 {
        assert_same(&expect_all(&mut peers, &format!("reduce 1 400000 step={step}")), 0..3);
    }
    // Several packets of one call to the system count once.
    let packets: u64 = network.hosts().iter().map(udp_sent).sum();
    assert!(packets > 300, "{packets} packets of UDP");
    assert!(network.counters(network.host(0), network.host(1)).lost > 0);
}

#[test]
fn links_use_tcp_where_udp_is_blocked() {
    let path = PathSettings { drops_udp: true, ..long() };
    let Some((mut peers, _master, _network)) = run("links_use_tcp_where_udp_is_blocked", 2, path) else {
        return;
    };
    assert_same(&expect_all(&mut peers, "reduce 1 400000"), 0..2);
}

#[test]
fn a_killed_peer_on_a_long_link_is_noticed_at_once() {
    let test = "a_killed_peer_on_a_long_link_is_noticed_at_once";
    let Some((mut peers, _master, _network)) = run(test, 3, long()) else { return };
    assert_same(&expect_all(&mut peers, "reduce 1 1000"), 0..3);
    let mut killed = peers.pop().expect("three peers");
    // It never takes part, so the others wait for it.
    send_all(&mut peers, "reduce 2 100000");
    std::thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    killed.kill9().expect("killed");
    for reply in replies(&mut peers, "reduce") {
        assert!(!reply.is_ok() && reply.text("retryable") == "true", "{reply}");
    }
    // QUIC alone would notice it after its timeout of 15 s.
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    assert_same(&expect_all(&mut peers, "reduce 3 1000"), 0..2);
}

#[test]
fn a_long_link_survives_an_outage_in_the_middle_of_a_reduce() {
    let test = "a_long_link_survives_an_outage_in_the_middle_of_a_reduce";
    let Some((mut peers, _master, network)) = run(test, 2, long()) else { return };
    assert_same(&expect_all(&mut peers, "reduce 1 1000"), 0..2);
    send_all(&mut peers, "reduce 2 2000000");
    std::thread::sleep(Duration::from_millis(200));
    network.cut(network.host(0), network.host(1));
    std::thread::sleep(Duration::from_millis(500));
    network.mend(network.host(0), network.host(1));
    let all: Vec<_> = peers.iter_mut().map(|peer| peer.reply("reduce", SOON).expect("a reply")).collect();
    all.iter().for_each(|reply| assert!(reply.is_ok(), "{reply}"));
    assert_same(&all, 0..2);
}
