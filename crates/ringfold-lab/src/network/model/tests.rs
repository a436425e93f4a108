use super::*;
use std::net::{Ipv4Addr, SocketAddr};

const MILLI: Nanos = 1_000_000;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// A TCP segment over IPv4 between two hosts.
fn segment(from: usize, to: usize, ports: [u16; 2], flags: u8, bytes: usize) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0];
    for host in [from, to] {
        packet.extend(Ipv4Addr::new(10, 77, 0, host as u8 + 1).octets());
    }
    packet.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
    packet.extend([0, 0, 0, 1, 0, 0, 0, 2, 5 << 4, flags, 0, 0, 0, 0, 0, 0]);
    packet.resize(bytes.max(packet.len()), 0);
    packet
}

fn with_path(settings: PathSettings) -> Model {
    let mut model = Model::new(2, 1);
    model.set_path(0, 1, settings);
    model
}

/// When packets of 1000 bytes arrive that are sent at once.
fn arrivals(model: &mut Model, packets: usize) -> Vec<Nanos> {
    for _ in 0..packets {
        model.send(0, 0, 1, segment(0, 1, [1, 2], ACK, 1000));
    }
    let mut arrived = Vec::new();
    while let Some(at) = model.next_event() {
        while let Some((to, packet)) = model.poll(at) {
            assert_eq!((to, packet.len()), (1, 1000));
            arrived.push(at);
        }
    }
    arrived
}

#[test]
fn a_packet_takes_its_share_of_the_rate_and_the_delay() {
    let settings =
        PathSettings { rate: Some(8_000_000), delay: Duration::from_millis(50), ..Default::default() };
    assert_eq!(arrivals(&mut with_path(settings), 3), [51 * MILLI, 52 * MILLI, 53 * MILLI]);
}

#[test]
fn a_full_queue_drops_packets() {
    let settings =
        PathSettings { rate: Some(8_000_000), queue: Duration::from_millis(10), ..Default::default() };
    let mut model = with_path(settings);
    // One packet is being sent, ten wait.
    assert_eq!(arrivals(&mut model, 20).len(), 11);
    assert_eq!(model.counters(0, 1).overflowed, 9);
}

#[test]
fn the_links_of_hosts_are_shared_by_their_paths() {
    let mut model = Model::new(3, 1);
    model.set_access(0, AccessLink { up: Some(8_000_000), ..Default::default() });
    for to in [1, 2] {
        model.send(0, 0, to, segment(0, to, [1, 2], ACK, 1000));
    }
    assert!(model.poll(MILLI - 1).is_none());
    assert_eq!(model.poll(MILLI).map(|(to, _)| to), Some(1));
    assert!(model.poll(2 * MILLI - 1).is_none());
    assert_eq!(model.poll(2 * MILLI).map(|(to, _)| to), Some(2));
}

#[test]
fn losses_have_the_given_share_and_length() {
    for burst in [1.0, 5.0] {
        let settings = PathSettings { loss: 0.02, loss_burst: burst, ..Default::default() };
        let mut path = Path { settings, ..Default::default() };
        let mut model = Model::new(1, 7);
        let lost: Vec<bool> = (0..400_000).map(|_| path.loses(model.random())).collect();
        let count = lost.iter().filter(|lost| **lost).count() as f64;
        let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
        assert!((0.017..0.023).contains(&(count / 400_000.0)), "{count}");
        let expected = if burst > 1.0 { burst } else { 1.0 / 0.98 };
        assert!((0.9..1.1).contains(&(count / bursts / expected)), "{} packets per burst", count / bursts);
    }
}

#[test]
fn jitter_keeps_the_order_and_packets_can_arrive_twice() {
    let settings = PathSettings {
        jitter: Duration::from_millis(20),
        duplicates: 0.5,
        rate: Some(80_000_000),
        ..Default::default()
    };
    let mut model = with_path(settings);
    let arrived = arrivals(&mut model, 200);
    assert!(arrived.is_sorted() && (260..340).contains(&arrived.len()), "{}", arrived.len());
}

#[test]
fn cuts_and_links_that_are_down_block_packets() {
    let mut model = Model::new(2, 1);
    model.set_cut(0, 1, true);
    assert!(arrivals(&mut model, 1).is_empty());
    model.set_cut(0, 1, false);
    model.set_down(1, true);
    assert!(arrivals(&mut model, 1).is_empty());
    model.set_down(1, false);
    assert_eq!(arrivals(&mut model, 1).len(), 1);
    assert_eq!(model.counters(0, 1).blocked, 2);
}

#[test]
fn a_reset_ends_old_connections_at_both_ends_and_spares_new_ones() {
    let mut model = Model::new(2, 1);
    model.reset(0, [1, 0], Some(80));
    model.send(1, 0, 1, segment(0, 1, [5000, 80], ACK, 60));
    let reset: Vec<_> = std::iter::from_fn(|| model.poll(1)).collect();
    let ends: Vec<_> = reset.iter().map(|(to, packet)| (*to, flow(packet).unwrap(), packet[33])).collect();
    let address = |host: u8, port| SocketAddr::from(([10, 77, 0, host], port));
    let forward = Flow { protocol: 6, source: address(1, 5000), destination: address(2, 80) };
    assert!(ends.contains(&(1, forward, 0x14)) && ends.contains(&(0, forward.reversed(), 0x14)), "{ends:?}");
    // Other ports, and connections that begin later, are left alone.
    for (ports, flags) in [([5000, 81], ACK), ([5001, 80], SYN), ([5001, 80], ACK)] {
        model.send(2, 0, 1, segment(0, 1, ports, flags, 60));
        assert_eq!(model.poll(2).unwrap().1, segment(0, 1, ports, flags, 60));
    }
    // The rule ends by itself.
    let late = RESET_DURATION + 1;
    model.send(late, 0, 1, segment(0, 1, [5000, 80], ACK, 60));
    assert_eq!(model.poll(late).unwrap().1.len(), 60);
}

#[test]
fn a_nat_lets_only_its_host_begin_and_forgets() {
    let mut model = Model::new(2, 1);
    model.set_firewall(0, Some(Firewall { forgets_after: Duration::from_secs(60) }));
    let second = 1_000_000_000;
    let passes = |model: &mut Model, at: Nanos, from: usize, ports: [u16; 2], flags: u8| {
        model.send(at, from, 1 - from, segment(from, 1 - from, ports, flags, 60));
        model.poll(at).is_some()
    };
    assert!(!passes(&mut model, 0, 1, [80, 5000], SYN), "nobody can dial in");
    assert!(passes(&mut model, 0, 0, [5000, 80], SYN));
    assert!(passes(&mut model, second, 1, [80, 5000], SYN | ACK));
    assert!(passes(&mut model, 61 * second, 0, [5000, 80], ACK));
    assert!(!passes(&mut model, 122 * second, 1, [80, 5000], ACK), "forgotten");
    assert!(!passes(&mut model, 122 * second, 0, [5000, 80], ACK), "forgotten");
    assert!(passes(&mut model, 122 * second, 0, [5001, 80], SYN));
}

#[test]
fn a_black_hole_drops_large_packets_only() {
    let with = |most| PathSettings { drops_above: Some(most), ..Default::default() };
    assert_eq!(arrivals(&mut with_path(with(1000)), 3).len(), 3);
    let mut hole = with_path(with(999));
    assert_eq!((arrivals(&mut hole, 3).len(), hole.counters(0, 1).blocked), (0, 3));
}
