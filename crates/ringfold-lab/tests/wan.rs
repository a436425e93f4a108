//! Runs over long links, which use QUIC.

use crate::fixture::{
    SOON, admit, assert_same, expect_all, master_on, patient_master_on, peer_on, replies, send_all,
};
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
    run_on(test, peers, master_on, |network| {
        for from in network.hosts() {
            for to in network.hosts().iter().filter(|to| to.index() != from.index()) {
                network.set_path(from, to, path);
            }
        }
    })
}

/// The same on a network that is set up first.
fn run_on(
    test: &str,
    peers: usize,
    master: fn(&Host, SocketAddr) -> MasterProcess,
    set_up: impl FnOnce(&Network),
) -> Option<(Vec<PeerProcess>, MasterProcess, Network)> {
    if !skip::check(test, Network::available()) {
        return None;
    }
    let network = Network::new(peers).expect("a network");
    set_up(&network);
    let master = master(network.host(0), SocketAddr::new(network.host(0).ipv4().into(), 0));
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

/// Has the last of four peers fetch a state, and calls `disturb` when the second one has sent a part of it. The peers that
/// are left, without replies to the sync.
fn fetch_while(test: &str, disturb: impl FnOnce(&mut Vec<PeerProcess>, &Network)) {
    const BYTES: u64 = 16 << 20;
    let path = PathSettings { rate: Some(50_000_000), ..long() };
    let Some((mut peers, _master, network)) = run(test, 4, path) else { return };
    expect_all(&mut peers, &format!("sync 0 {BYTES} 3 fill=0"));
    let sent = |from: usize| network.counters(network.host(from), network.host(3)).bytes;
    let (before, packets) = (sent(1), udp_sent(network.host(1)));
    send_all(&mut peers[..3], &format!("sync 1 {BYTES} 3 fill=1"));
    peers[3].send(&format!("sync 1 {BYTES} 3")).expect("told");
    let deadline = Instant::now() + SOON;
    while sent(1) < before + BYTES / 16 {
        assert!(Instant::now() < deadline, "nothing is fetched");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(udp_sent(network.host(1)) > packets + 20, "it is fetched by QUIC");
    let began = Instant::now();
    disturb(&mut peers, &network);
    let synced = replies(&mut peers, "sync");
    for reply in &synced {
        assert!(reply.is_ok(), "{reply}");
        assert_eq!(reply.text("state"), synced[0].text("state"), "{reply}");
    }
    let fetched = synced.last().expect("a reply").number("rx");
    assert!((BYTES..BYTES * 3 / 2).contains(&fetched), "{fetched} bytes arrived");
    // Without the lost source it takes 1.4 s, and until the loss is noticed a second more.
    assert!(began.elapsed() < Duration::from_secs(14), "{:?}", began.elapsed());
}

#[test]
fn a_newcomer_on_a_long_path_fetches_the_rest_elsewhere_when_a_source_is_killed() {
    let test = "a_newcomer_on_a_long_path_fetches_the_rest_elsewhere_when_a_source_is_killed";
    fetch_while(test, |peers, _| peers.remove(1).kill9().expect("killed"));
}

#[test]
fn a_newcomer_on_a_long_path_fetches_the_rest_elsewhere_when_a_path_is_cut() {
    let test = "a_newcomer_on_a_long_path_fetches_the_rest_elsewhere_when_a_path_is_cut";
    fetch_while(test, |_, network| network.cut(network.host(1), network.host(3)));
}

#[test]
fn probes_of_long_paths_find_their_bandwidths() {
    let test = "probes_of_long_paths_find_their_bandwidths";
    // Mbit/s and round trips in ms, of each pair.
    let pairs = [((0, 1), 100, 20), ((0, 2), 40, 60), ((1, 2), 10, 40)];
    let set_up = |network: &Network| {
        for ((one, other), rate, round_trip) in pairs {
            let delay = Duration::from_millis(round_trip / 2);
            let path = PathSettings { rate: Some(rate * 1_000_000), delay, ..PathSettings::default() };
            network.set_path(network.host(one), network.host(other), path);
            network.set_path(network.host(other), network.host(one), path);
        }
    };
    let Some((mut peers, master, network)) = run_on(test, 3, patient_master_on, set_up) else { return };
    let packets: u64 = network.hosts().iter().map(udp_sent).sum();
    let began = Instant::now();
    expect_all(&mut peers, "optimize");
    let took = began.elapsed();
    // Three probes, one after the other.
    assert!(took < Duration::from_secs(12), "{took:?}");
    assert!(network.hosts().iter().map(udp_sent).sum::<u64>() > packets + 100, "probes use QUIC");
    let lines = master.error_lines();
    for ((one, other), rate, _) in pairs {
        let line = lines.iter().find(|line| line.contains(&format!("peer-{one} to peer-{other}: ")));
        let line = line.unwrap_or_else(|| panic!("peers {one} and {other} were not measured: {lines:#?}"));
        let rates = line.split("Some(").skip(1).map(|text| text.split(')').next()?.parse::<u64>().ok());
        let rates: Vec<_> = rates.map(|rate| rate.unwrap_or_else(|| panic!("{line}"))).collect();
        // On a busy machine they may be much less, but not more than the path carries, apart from bursts.
        let carried = rate * 1_000_000 / 8;
        assert!(
            rates.len() == 2 && rates.iter().all(|rate| (carried / 10..carried * 5 / 4).contains(rate)),
            "{line}"
        );
    }
}

/// A path of this rate in Mbit/s and one-way delay in milliseconds.
fn path(rate: u64, delay: u64) -> PathSettings {
    PathSettings {
        delay: Duration::from_millis(delay),
        rate: Some(rate * 1_000_000),
        ..PathSettings::default()
    }
}

/// Four hosts: pairs 0-2 and 1-3 are near, 0-1 and 2-3 further, 0-3 and 1-2 far and slow.
fn set_unequal(network: &Network) {
    for from in network.hosts() {
        for to in network.hosts().iter().filter(|to| to.index() != from.index()) {
            let settings = match (from.index().min(to.index()), from.index().max(to.index())) {
                (0, 2) | (1, 3) => path(200, 3),
                (0, 1) | (2, 3) => path(100, 10),
                _ => path(10, 25),
            };
            network.set_path(from, to, settings);
        }
    }
}

/// The bytes that a reduce sends from one host to another.
fn bytes_during(peers: &mut [PeerProcess], network: &Network, pair: (usize, usize), command: &str) -> u64 {
    let bytes = || network.counters(network.host(pair.0), network.host(pair.1)).bytes;
    let before = bytes();
    let world = peers.len() as u32;
    assert_same(&expect_all(peers, command), 0..world);
    bytes() - before
}

#[test]
fn unequal_hosts_send_little_over_slow_paths_and_follow_changes() {
    let test = "unequal_hosts_send_little_over_slow_paths_and_follow_changes";
    let Some((mut peers, _master, network)) = run_on(test, 4, master_on, set_unequal) else { return };
    const BYTES: u64 = 4 << 20;
    // From round trips alone. A plan that uses all paths alike would send half of the tensor here.
    let first = bytes_during(&mut peers, &network, (0, 3), "reduce 1 1048576 step=0");
    assert!(first < BYTES / 4, "{first} bytes over the slow path");
    // Pairs that were near become slow, and others fast: bandwidth is measured, and plans change.
    for (a, b) in [(0, 2), (2, 0), (1, 3), (3, 1)] {
        network.set_path(network.host(a), network.host(b), path(10, 3));
    }
    let began = Instant::now();
    for step in 1.. {
        let bytes = bytes_during(&mut peers, &network, (0, 2), &format!("reduce 1 1048576 step={step}"));
        if bytes < BYTES / 2 {
            break;
        }
        assert!(began.elapsed() < 6 * SOON, "still {bytes} bytes over the slow path in step {step}");
    }
}

#[test]
fn peers_of_one_host_send_their_data_to_another_host_once() {
    let test = "peers_of_one_host_send_their_data_to_another_host_once";
    if !skip::check(test, Network::available()) {
        return;
    }
    let network = Network::new(2).expect("a network");
    for (from, to) in [(0, 1), (1, 0)] {
        network.set_path(network.host(from), network.host(to), path(100, 10));
    }
    let master = master_on(network.host(0), SocketAddr::new(network.host(0).ipv4().into(), 0));
    let mut peers: Vec<_> =
        (0..6).map(|index| peer_on(network.host(index % 2), index as u32, master.address())).collect();
    admit(&mut peers);
    const BYTES: u64 = 4 << 20;
    let sent = bytes_during(&mut peers, &network, (0, 1), "reduce 1 1048576");
    // The data of the host, and headers; a ring would send 1.7 times as much, direct transfers three times.
    assert!((BYTES..BYTES * 5 / 4).contains(&sent), "{sent} bytes between the hosts");
}
