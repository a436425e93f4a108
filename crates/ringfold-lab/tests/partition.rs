//! Runs on hosts whose links go down and whose paths are cut.

use crate::fixture::{
    SOON, admit, assert_same, assert_steps_agree, expect_all, join, master_on, peer_on, replies, send_all,
};
use ringfold_lab::programs::{MasterProcess, PeerProcess};
use ringfold_lab::{Host, Network, skip};
use std::net::{IpAddr, SocketAddr};

/// A network with the master on host 0 and an accepted peer on each other host; none if the test is skipped.
fn run(test: &str, peers: u32) -> Option<(Vec<PeerProcess>, MasterProcess, Network)> {
    if !skip::check(test, Network::available()) {
        return None;
    }
    let network = Network::new(peers as usize + 1).expect("a network");
    let (peers, master) = start(&network, network.host(0).ipv4().into());
    Some((peers, master, network))
}

fn start(network: &Network, address: IpAddr) -> (Vec<PeerProcess>, MasterProcess) {
    let master = master_on(network.host(0), SocketAddr::new(address, 0));
    let hosts = network.hosts().iter().skip(1);
    let peers = hosts.enumerate().map(|(number, host)| peer_on(host, number as u32, master.address()));
    let mut peers: Vec<PeerProcess> = peers.collect();
    admit(&mut peers);
    (peers, master)
}

/// The host of the peer with this number.
fn host(network: &Network, number: usize) -> &Host {
    network.host(number + 1)
}

#[test]
fn a_run_works_over_ipv6() {
    let test = "a_run_works_over_ipv6";
    if !skip::check(test, Network::available()) {
        return;
    }
    let network = Network::new(4).expect("a network");
    let Some(address) = network.host(0).ipv6() else { return skip::report(test, "IPv6") };
    let (mut peers, _master) = start(&network, address.into());
    assert_same(&expect_all(&mut peers, "reduce 1 100000"), 0..3);
    expect_all(&mut peers, "optimize");
    assert_same(&expect_all(&mut peers, "reduce 1 100000 step=1"), 0..3);
}

#[test]
fn peers_on_different_hosts_share_no_memory() {
    let test = "peers_on_different_hosts_share_no_memory";
    let Some((mut peers, master, network)) = run(test, 2) else { return };
    // Two peers on each host.
    for number in 2..4 {
        let mut newcomer = peer_on(host(&network, number - 2), number as u32, master.address());
        join(&mut peers, &mut newcomer);
        peers.push(newcomer);
    }
    for reply in expect_all(&mut peers, "world") {
        assert_eq!((reply.number("world"), reply.number("shared")), (4, 1), "{reply}");
    }
    assert_same(&expect_all(&mut peers, "reduce 1 300000"), 0..4);
}

#[test]
fn other_peers_continue_when_the_link_of_a_peer_goes_down() {
    let Some((mut peers, _master, network)) =
        run("other_peers_continue_when_the_link_of_a_peer_goes_down", 3)
    else {
        return;
    };
    send_all(&mut peers, "loop until=200 pause=2 count=100000");
    peers[0].step(SOON, |step| step.number("revision") >= 20).expect("steps");
    network.link_down(host(&network, 1)).expect("down");
    peers[0].step(SOON, |step| step.number("world") == 2).expect("two go on");
    let mut cut_off = peers.remove(1);
    for reply in replies(&mut peers, "loop") {
        assert!(reply.is_ok() && reply.number("revision") == 200, "{reply}");
    }
    // The isolated peer gets an error too.
    let ended = cut_off.reply("loop", SOON).expect("it is told");
    assert!(!ended.is_ok(), "{ended}");
    peers.push(cut_off);
    assert_steps_agree(&peers);
}

#[test]
fn a_cut_between_two_peers_evicts_no_peer() {
    let Some((mut peers, _master, network)) = run("a_cut_between_two_peers_evicts_no_peer", 4) else {
        return;
    };
    send_all(&mut peers, "loop until=150 pause=2 count=100000");
    peers[0].step(SOON, |step| step.number("revision") >= 20).expect("steps");
    network.cut(host(&network, 0), host(&network, 1));
    for reply in replies(&mut peers, "loop") {
        assert!(reply.is_ok() && reply.number("revision") == 150, "{reply}");
    }
    assert_steps_agree(&peers);
    assert_same(&expect_all(&mut peers, "reduce 7 1000"), 0..4);
}

#[test]
fn a_one_way_cut_between_two_peers_evicts_no_peer() {
    let test = "a_one_way_cut_between_two_peers_evicts_no_peer";
    let Some((mut peers, _master, network)) = run(test, 4) else { return };
    send_all(&mut peers, "loop until=150 pause=2 count=100000");
    peers[0].step(SOON, |step| step.number("revision") >= 20).expect("steps");
    network.cut_one_way(host(&network, 2), host(&network, 3));
    for reply in replies(&mut peers, "loop") {
        assert!(reply.is_ok() && reply.number("revision") == 150, "{reply}");
    }
    assert_steps_agree(&peers);
    assert_same(&expect_all(&mut peers, "reduce 7 1000"), 0..4);
}

#[test]
fn a_short_outage_of_a_path_evicts_no_peer() {
    let Some((mut peers, _master, network)) = run("a_short_outage_of_a_path_evicts_no_peer", 3) else {
        return;
    };
    send_all(&mut peers, "loop until=150 pause=2 count=100000");
    for revision in [20, 60, 100] {
        peers[0].step(SOON, |step| step.number("revision") >= revision).expect("steps");
        network.cut(host(&network, 0), host(&network, 1));
        std::thread::sleep(std::time::Duration::from_millis(200));
        network.mend(host(&network, 0), host(&network, 1));
    }
    for reply in replies(&mut peers, "loop") {
        assert!(reply.is_ok() && reply.number("revision") == 150, "{reply}");
    }
    assert_same(&expect_all(&mut peers, "reduce 7 1000"), 0..3);
    assert_steps_agree(&peers);
}

#[test]
fn peers_resume_with_a_master_whose_link_was_down() {
    let test = "peers_resume_with_a_master_whose_link_was_down";
    let Some((mut peers, _master, network)) = run(test, 3) else { return };
    send_all(&mut peers, "loop until=150 pause=2");
    peers[0].step(SOON, |step| step.number("revision") >= 20).expect("steps");
    network.link_down(network.host(0)).expect("down");
    // Peers are evicted after a second of silence. But a master that hears no peer at all suspects its own link.
    std::thread::sleep(std::time::Duration::from_millis(1_200));
    network.link_up(network.host(0)).expect("up");
    for reply in replies(&mut peers, "loop") {
        assert!(reply.is_ok() && reply.number("revision") == 150, "{reply}");
    }
    assert_steps_agree(&peers);
    assert_same(&expect_all(&mut peers, "reduce 7 1000"), 0..3);
}
