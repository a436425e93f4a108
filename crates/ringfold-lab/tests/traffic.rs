//! Counts of bytes and caps on bandwidth, between emulated hosts.

use crate::fixture::{SOON, admit, assert_same, expect_all, master_on, peer_on_with};
use ringfold_lab::network::PathSettings;
use ringfold_lab::programs::{MasterProcess, PeerProcess};
use ringfold_lab::{Network, skip};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Elements of f32, and the bytes that each of two peers sends to reduce them.
const COUNT: u64 = 1_250_000;
const BYTES: u64 = 4 * COUNT;

/// Two peers, the second with these variables; none if the test is skipped.
fn run(
    test: &str,
    round_trip: Duration,
    environment: &[(&str, &str)],
) -> Option<(Vec<PeerProcess>, MasterProcess, Network)> {
    if !skip::check(test, Network::available()) {
        return None;
    }
    let network = Network::new(2).expect("a network");
    let path = PathSettings { delay: round_trip / 2, rate: Some(400_000_000), ..PathSettings::default() };
    network.set_path(network.host(0), network.host(1), path);
    network.set_path(network.host(1), network.host(0), path);
    let master = master_on(network.host(0), SocketAddr::new(network.host(0).ipv4().into(), 0));
    let variables = |index: usize| if index == 1 { environment } else { &[] };
    let all = network
        .hosts()
        .iter()
        .map(|host| peer_on_with(host, host.index() as u32, master.address(), variables(host.index())));
    let mut all: Vec<PeerProcess> = all.collect();
    admit(&mut all);
    Some((all, master, network))
}

/// Reduces once, which takes as long as the cap demands, and checks the counts of both peers.
fn reduce_and_count(peers: &mut [PeerProcess], per_second: u64) {
    let before = expect_all(peers, "traffic");
    let began = Instant::now();
    assert_same(&expect_all(peers, &format!("reduce 1 {COUNT}")), 0..2);
    let took = began.elapsed();
    let least = Duration::from_secs_f64(BYTES as f64 / per_second as f64 * 0.85);
    assert!(took > least, "{took:?}, expected at least {least:?}");
    let after = expect_all(peers, "traffic");
    let moved = |peer: usize, name: &str| after[peer].number(name) - before[peer].number(name);
    for (peer, report) in after.iter().enumerate() {
        for name in ["sent", "received", "peers_sent", "peers_received"] {
            let bytes = moved(peer, name);
            // Headers, acknowledgements, control messages, and what is sent twice.
            assert!((BYTES..BYTES + BYTES / 4).contains(&bytes), "peer {peer} {name}: {bytes}");
        }
        assert!(report.number("master_sent") > 0);
    }
    // Everything that one has received, the other has sent.
    assert!(moved(0, "peers_received") <= moved(1, "peers_sent") + 100_000);
    peers.iter_mut().for_each(|peer| drop(peer.expect("leave", SOON).expect("it leaves")));
}

const UPLOAD: [(&str, &str); 1] = [("RINGFOLD_MAX_UPLOAD", "40mbit")];
const DOWNLOAD: [(&str, &str); 1] = [("RINGFOLD_MAX_DOWNLOAD", "5MB/s")];
const CAP: u64 = 5_000_000;

#[test]
fn a_capped_upload_by_tcp_takes_its_time() {
    let test = "a_capped_upload_by_tcp_takes_its_time";
    let Some((mut peers, _master, _network)) = run(test, Duration::from_millis(1), &UPLOAD) else { return };
    reduce_and_count(&mut peers, CAP);
}

#[test]
fn a_capped_download_by_tcp_takes_its_time() {
    let test = "a_capped_download_by_tcp_takes_its_time";
    let Some((mut peers, _master, _network)) = run(test, Duration::from_millis(1), &DOWNLOAD) else { return };
    reduce_and_count(&mut peers, CAP);
}

#[test]
fn a_capped_upload_by_quic_takes_its_time() {
    let test = "a_capped_upload_by_quic_takes_its_time";
    let Some((mut peers, _master, _network)) = run(test, Duration::from_millis(20), &UPLOAD) else { return };
    reduce_and_count(&mut peers, CAP);
}

#[test]
fn a_capped_download_by_quic_takes_its_time() {
    let test = "a_capped_download_by_quic_takes_its_time";
    let Some((mut peers, _master, _network)) = run(test, Duration::from_millis(20), &DOWNLOAD) else {
        return;
    };
    reduce_and_count(&mut peers, CAP);
}
