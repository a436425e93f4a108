//! Runs on hosts whose cables are pulled and whose ways to each other are cut.

use crate::stage::{
    SOON, admit, answers, assert_same, assert_steps_agree, do_all, let_in, master_on, peer_on, tell_all,
};
use ringfold_lab::cast::{Master, Peer};
use ringfold_lab::{Host, Network, skip};
use std::net::{IpAddr, SocketAddr};

/// A network whose host 0 has the master and whose other hosts have a peer each, all accepted; or the name of
/// what is lacking was told.
fn run(test: &str, peers: u32) -> Option<(Vec<Peer>, Master, Network)> {
    if !skip::unless(test, Network::available()) {
        return None;
    }
    let network = Network::new(peers as usize + 1).expect("a network");
    let (peers, master) = play(&network, network.host(0).ipv4().into());
    Some((peers, master, network))
}

fn play(network: &Network, address: IpAddr) -> (Vec<Peer>, Master) {
    let master = master_on(network.host(0), SocketAddr::new(address, 0));
    let hosts = network.hosts().iter().skip(1);
    let peers = hosts.enumerate().map(|(number, host)| peer_on(host, number as u32, master.address()));
    let mut peers: Vec<Peer> = peers.collect();
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
    if !skip::unless(test, Network::available()) {
        return;
    }
    let network = Network::new(4).expect("a network");
    let Some(address) = network.host(0).ipv6() else { return skip::tell(test, "IPv6") };
    let (mut peers, _master) = play(&network, address.into());
    assert_same(&do_all(&mut peers, "reduce 1 100000"), 0..3);
    do_all(&mut peers, "optimize");
    assert_same(&do_all(&mut peers, "reduce 1 100000 step=1"), 0..3);
}

#[test]
fn hosts_that_only_a_network_connects_share_no_memory() {
    let test = "hosts_that_only_a_network_connects_share_no_memory";
    let Some((mut peers, master, network)) = run(test, 2) else { return };
    // Two peers on each host.
    for number in 2..4 {
        let mut newcomer = peer_on(host(&network, number - 2), number as u32, master.address());
        let_in(&mut peers, &mut newcomer);
        peers.push(newcomer);
    }
    for answer in do_all(&mut peers, "world") {
        assert_eq!((answer.number("world"), answer.number("shared")), (4, 1), "{answer}");
    }
    assert_same(&do_all(&mut peers, "reduce 1 300000"), 0..4);
}

#[test]
fn others_go_on_when_the_link_of_a_peer_goes_down() {
    let Some((mut peers, _master, network)) = run("others_go_on_when_the_link_of_a_peer_goes_down", 3) else {
        return;
    };
    tell_all(&mut peers, "loop until=200 pause=2 count=100000");
    peers[0].step(SOON, |step| step.number("revision") >= 20).expect("steps");
    network.link_down(host(&network, 1)).expect("down");
    peers[0].step(SOON, |step| step.number("world") == 2).expect("two go on");
    let mut cut_off = peers.remove(1);
    for answer in answers(&mut peers, "loop") {
        assert!(answer.is_ok() && answer.number("revision") == 200, "{answer}");
    }
    // Whoever is cut off does not wait for ever either.
    let ended = cut_off.answer("loop", SOON).expect("it is told");
    assert!(!ended.is_ok(), "{ended}");
    peers.push(cut_off);
    assert_steps_agree(&peers);
}

#[test]
fn a_cut_between_two_peers_puts_nobody_out() {
    let Some((mut peers, _master, network)) = run("a_cut_between_two_peers_puts_nobody_out", 4) else {
        return;
    };
    tell_all(&mut peers, "loop until=150 pause=2 count=100000");
    peers[0].step(SOON, |step| step.number("revision") >= 20).expect("steps");
    network.cut(host(&network, 0), host(&network, 1)).expect("cut");
    for answer in answers(&mut peers, "loop") {
        assert!(answer.is_ok() && answer.number("revision") == 150, "{answer}");
    }
    assert_steps_agree(&peers);
    assert_same(&do_all(&mut peers, "reduce 7 1000"), 0..4);
}

#[test]
fn a_one_way_cut_between_two_peers_puts_nobody_out() {
    let test = "a_one_way_cut_between_two_peers_puts_nobody_out";
    let Some((mut peers, _master, network)) = run(test, 4) else { return };
    tell_all(&mut peers, "loop until=150 pause=2 count=100000");
    peers[0].step(SOON, |step| step.number("revision") >= 20).expect("steps");
    network.cut_one_way(host(&network, 2), host(&network, 3)).expect("cut");
    for answer in answers(&mut peers, "loop") {
        assert!(answer.is_ok() && answer.number("revision") == 150, "{answer}");
    }
    assert_steps_agree(&peers);
    assert_same(&do_all(&mut peers, "reduce 7 1000"), 0..4);
}

#[test]
fn a_short_outage_of_a_way_costs_nobody_the_run() {
    let Some((mut peers, _master, network)) = run("a_short_outage_of_a_way_costs_nobody_the_run", 3) else {
        return;
    };
    tell_all(&mut peers, "loop until=150 pause=2 count=100000");
    for revision in [20, 60, 100] {
        peers[0].step(SOON, |step| step.number("revision") >= revision).expect("steps");
        network.cut(host(&network, 0), host(&network, 1)).expect("cut");
        std::thread::sleep(std::time::Duration::from_millis(200));
        network.mend(host(&network, 0), host(&network, 1)).expect("mend");
    }
    for answer in answers(&mut peers, "loop") {
        assert!(answer.is_ok() && answer.number("revision") == 150, "{answer}");
    }
    assert_same(&do_all(&mut peers, "reduce 7 1000"), 0..3);
    assert_steps_agree(&peers);
}

#[test]
fn peers_come_back_to_a_master_that_was_cut_off_for_a_while() {
    let test = "peers_come_back_to_a_master_that_was_cut_off_for_a_while";
    let Some((mut peers, _master, network)) = run(test, 3) else { return };
    tell_all(&mut peers, "loop until=150 pause=2");
    peers[0].step(SOON, |step| step.number("revision") >= 20).expect("steps");
    network.link_down(network.host(0)).expect("down");
    // Peers are put out after a second of silence; but a master that hears nobody at all suspects its own line.
    std::thread::sleep(std::time::Duration::from_millis(1_200));
    network.link_up(network.host(0)).expect("up");
    for answer in answers(&mut peers, "loop") {
        assert!(answer.is_ok() && answer.number("revision") == 150, "{answer}");
    }
    assert_steps_agree(&peers);
    assert_same(&do_all(&mut peers, "reduce 7 1000"), 0..3);
}
