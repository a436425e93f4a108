//! Control connections that are reset, links that flap, and NATs that forget connections.

use crate::fixture::{
    SOON, accepted, admit, assert_same, expect_all, master, master_on, peer_on, replies, send_all,
};
use ringfold_lab::network::{Firewall, PathSettings};
use ringfold_lab::programs::{MasterProcess, PeerProcess};
use ringfold_lab::{Network, skip};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Peers on hosts of their own, and the master on host 0; none if the test is skipped. The round trip is in ms.
fn run(test: &str, peers: usize, round_trip: u64) -> Option<(Vec<PeerProcess>, MasterProcess, Network)> {
    run_behind(test, peers, round_trip, None)
}

/// The same with a firewall in front of the first peer.
fn run_behind(
    test: &str,
    peers: usize,
    round_trip: u64,
    firewall: Option<Firewall>,
) -> Option<(Vec<PeerProcess>, MasterProcess, Network)> {
    if !skip::check(test, Network::available()) {
        return None;
    }
    let network = Network::new(peers + 1).expect("a network");
    let delay = Duration::from_millis(round_trip) / 2;
    let path = PathSettings { delay, rate: Some(100_000_000), ..PathSettings::default() };
    for from in network.hosts() {
        for to in network.hosts().iter().filter(|to| to.index() != from.index()) {
            network.set_path(from, to, path);
        }
    }
    network.set_firewall(network.host(1), firewall);
    let master = master_on(network.host(0), SocketAddr::new(network.host(0).ipv4().into(), 0));
    let hosts = network.hosts().iter().skip(1);
    let all = hosts.enumerate().map(|(number, host)| peer_on(host, number as u32, master.address()));
    let mut all: Vec<PeerProcess> = all.collect();
    admit(&mut all);
    Some((all, master, network))
}

/// How many lines of a master's log contain this text.
fn logged(master: &MasterProcess, text: &str) -> usize {
    master.error_lines().iter().filter(|line| line.contains(text)).count()
}

/// Whether `./test --long` runs.
fn is_long() -> bool {
    std::env::var_os("RINGFOLD_LONG").is_some()
}

#[test]
fn a_reset_of_control_connections_in_a_reduce_loses_nothing() {
    let test = "a_reset_of_control_connections_in_a_reduce_loses_nothing";
    for round_trip in [0, 40] {
        let Some((mut peers, master, network)) = run(test, 3, round_trip) else { return };
        assert_same(&expect_all(&mut peers, "reduce 1 1000"), 0..3);
        let epochs = logged(&master, "is open");
        // Of one peer, then of all.
        for (step, hosts) in [1..2, 1..4].into_iter().enumerate() {
            send_all(&mut peers, &format!("reduce 2 1000000 step={step}"));
            std::thread::sleep(Duration::from_millis(150));
            for index in hosts {
                let (one, other) = (network.host(0), network.host(index));
                network.reset_connections(one, other, Some(master.address().port()));
            }
            let all = replies(&mut peers, "reduce");
            all.iter().for_each(|reply| assert!(reply.is_ok(), "{reply}"));
            assert_same(&all, 0..3);
        }
        assert_eq!(logged(&master, "is open"), epochs, "no other epoch was needed");
        assert!(logged(&master, "reconnected") >= 4, "{:?}", master.error_lines());
    }
}

#[test]
fn a_killed_peer_is_noticed_in_milliseconds() {
    let master = master();
    let mut peers = accepted(5, master.address());
    while peers.len() > 2 {
        let mut killed = peers.pop().expect("a peer");
        // It never takes part, so the others wait for it.
        send_all(&mut peers, "reduce 2 100000");
        std::thread::sleep(Duration::from_millis(100));
        let began = Instant::now();
        killed.kill9().expect("killed");
        for reply in replies(&mut peers, "reduce") {
            assert!(!reply.is_ok() && reply.text("retryable") == "true", "{reply}");
        }
        println!("noticed after {:?}", began.elapsed());
        // Without the reports of its neighbours it would take a second.
        assert!(began.elapsed() < Duration::from_millis(700), "{:?}", began.elapsed());
        assert_same(&expect_all(&mut peers, "reduce 3 1000"), 0..peers.len() as u32);
    }
}

/// The link of two peers is down for a while in the middle of a reduce. They retry it until it succeeds.
fn flap(test: &str, round_trip: u64) {
    let Some((mut peers, master, network)) = run(test, 2, round_trip) else { return };
    assert_same(&expect_all(&mut peers, "reduce 1 1000"), 0..2);
    let pause = Duration::from_secs(if is_long() { 10 } else { 3 });
    let (one, other) = (network.host(1), network.host(2));
    let began = Instant::now();
    std::thread::scope(|scope| {
        let all = peers.iter_mut().map(|peer| {
            scope.spawn(move || {
                for attempt in 1.. {
                    let reply = peer.request("reduce 2 1000000 step=1", SOON).expect("a reply");
                    if reply.is_ok() {
                        return (reply, attempt);
                    }
                    assert_eq!(reply.text("retryable"), "true", "{reply}");
                }
                unreachable!("a retry succeeds, or fails for good")
            })
        });
        let all: Vec<_> = all.collect();
        std::thread::sleep(Duration::from_millis(200));
        network.cut(one, other);
        std::thread::sleep(pause);
        network.mend(one, other);
        let all: Vec<_> = all.into_iter().map(|peer| peer.join().expect("a reply")).collect();
        println!("{:?} after the flap, {} attempts", began.elapsed() - pause, all[0].1);
        assert_same(&all.into_iter().map(|(reply, _)| reply).collect::<Vec<_>>(), 0..2);
    });
    assert_eq!(logged(&master, "was evicted"), 0, "{:?}", master.error_lines());
}

#[test]
fn a_tcp_link_that_flaps_in_a_reduce_evicts_nobody() {
    flap("a_tcp_link_that_flaps_in_a_reduce_evicts_nobody", 0);
}

#[test]
fn a_quic_link_that_flaps_in_a_reduce_evicts_nobody() {
    flap("a_quic_link_that_flaps_in_a_reduce_evicts_nobody", 100);
}

#[test]
fn a_run_outlives_a_nat_that_forgets_idle_connections() {
    let test = "a_run_outlives_a_nat_that_forgets_idle_connections";
    // The first is linked by TCP, the second by QUIC.
    for round_trip in if is_long() { vec![0, 100] } else { vec![100] } {
        let firewall = Firewall { forgets_after: Duration::from_secs(if is_long() { 8 } else { 6 }) };
        let Some((mut peers, master, _network)) = run_behind(test, 2, round_trip, Some(firewall)) else {
            return;
        };
        assert_same(&expect_all(&mut peers, "reduce 1 1000"), 0..2);
        std::thread::sleep(Duration::from_secs(if is_long() { 20 } else { 7 }));
        assert_same(&expect_all(&mut peers, "reduce 2 1000"), 0..2);
        assert_eq!(logged(&master, "ended") + logged(&master, "no edge"), 0, "{:?}", master.error_lines());
        // The connection that shows the death of a peer was idle, too.
        let mut killed = peers.pop().expect("two peers");
        send_all(&mut peers, "reduce 3 1000");
        std::thread::sleep(Duration::from_millis(300));
        let began = Instant::now();
        killed.kill9().expect("killed");
        let reply = peers[0].reply("reduce", SOON).expect("a reply");
        assert!(!reply.is_ok() && began.elapsed() < Duration::from_secs(2), "{reply}, {:?}", began.elapsed());
    }
}
