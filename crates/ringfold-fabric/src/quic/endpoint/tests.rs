use super::*;
use crate::tls::Encryption;
use crate::traffic::BandwidthCaps;
use ringfold_proto::hello::Purpose;
use ringfold_proto::id::PeerId;
use ringfold_settings::bandwidth::Bandwidth;
use std::io::{Read, Write};
use std::net::Shutdown;

const SOON: Duration = Duration::from_secs(20);

fn security() -> Arc<Security> {
    Arc::new(Security::new(Encryption::default()).unwrap())
}

fn endpoint() -> QuicEndpoint {
    endpoint_on(&Arc::default())
}

fn endpoint_on(network: &Arc<Network>) -> QuicEndpoint {
    QuicEndpoint::bind((std::net::Ipv4Addr::LOCALHOST, 0).into(), network, &security()).unwrap()
}

fn exported(stream: &QuicStream) -> Option<[u8; 32]> {
    stream.state.binding().map(|binding| binding.exported)
}

fn accept(endpoint: &QuicEndpoint) -> QuicStream {
    let began = Instant::now();
    loop {
        if let Some(stream) = endpoint.accept() {
            stream.socket.set_read_timeout(Some(SOON)).unwrap();
            return stream;
        }
        assert!(began.elapsed() < SOON, "timed out waiting for a connection");
        let mut arrived = [PollFd::new(endpoint.arrived(), PollFlags::IN)];
        poll(&mut arrived, Some(&Timespec { tv_sec: 1, tv_nsec: 0 })).unwrap();
    }
}

/// Two endpoints with a connection. Bytes must be sent before the other end sees it.
fn pair() -> (QuicEndpoint, QuicEndpoint, QuicStream, QuicStream) {
    pair_of(endpoint(), endpoint())
}

fn pair_of(one: QuicEndpoint, other: QuicEndpoint) -> (QuicEndpoint, QuicEndpoint, QuicStream, QuicStream) {
    let dialed = one.dial(other.address().unwrap(), Duration::from_millis(1)).unwrap();
    dialed.socket.set_read_timeout(Some(SOON)).unwrap();
    let accepted = accept(&other);
    for (stream, peer) in [(&dialed, 2), (&accepted, 1)] {
        stream.state.identify(PeerId(peer), Purpose::Data);
        stream.state.trust();
    }
    (one, other, dialed, accepted)
}

#[test]
fn bytes_arrive_in_order_in_both_directions_and_end() {
    let (_one, _other, dialed, accepted) = pair();
    assert_eq!(exported(&dialed), exported(&accepted));
    assert!(dialed.state.binding().is_some());
    let data: Vec<u8> = (0..3_000_000_u32).map(|i| (i.wrapping_mul(7919) >> 8) as u8).collect();
    std::thread::scope(|scope| {
        for stream in [&dialed, &accepted] {
            let (mut write, mut read) = (&stream.socket, &stream.socket);
            let data = &data;
            scope.spawn(move || {
                write.write_all(data).unwrap();
                write.shutdown(Shutdown::Write).unwrap();
            });
            scope.spawn(move || {
                let mut arrived = Vec::new();
                read.read_to_end(&mut arrived).unwrap();
                assert!(arrived == *data, "{} bytes arrived", arrived.len());
            });
        }
    });
    let began = Instant::now();
    while dialed.state.unacknowledged_bytes() > 0 {
        assert!(began.elapsed() < SOON, "timed out waiting for acknowledgements");
        std::thread::yield_now();
    }
    assert_eq!((dialed.state.failure(), accepted.state.failure()), (None, None));
}

#[test]
fn two_sessions_have_different_bindings() {
    let (one, other, first, _) = pair();
    let second = one.dial(other.address().unwrap(), Duration::from_millis(1)).unwrap();
    let accepted = accept(&other);
    assert_eq!(exported(&second), exported(&accepted));
    assert_ne!(exported(&first), exported(&second));
}

#[test]
fn a_slow_reader_blocks_the_writer_and_loses_nothing() {
    let (_one, _other, dialed, accepted) = pair();
    let total = 16 << 20;
    let mut write = &dialed.socket;
    write.set_nonblocking(true).unwrap();
    let (block, began) = (vec![1; 64 * 1024], Instant::now());
    let mut written = 0;
    // More than all windows and buffers hold.
    while written < total && began.elapsed() < SOON {
        match write.write(&block) {
            Ok(bytes) => written += bytes,
            Err(_) if written > RECEIVE_WINDOW as usize => break,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    assert!((RECEIVE_WINDOW as usize..total).contains(&written), "{written} bytes");
    (&accepted.socket).read_exact(&mut vec![0; written]).unwrap();
}

#[test]
fn a_stranger_can_fill_no_memory() {
    let (one, other) = (endpoint(), endpoint());
    let dialed = one.dial(other.address().unwrap(), Duration::from_millis(1)).unwrap();
    let _accepted = accept(&other);
    let mut write = &dialed.socket;
    write.set_nonblocking(true).unwrap();
    let (block, mut written, mut quiet_since) = (vec![1; 64 * 1024], 0, Instant::now());
    while quiet_since.elapsed() < Duration::from_millis(500) {
        match write.write(&block) {
            Ok(bytes) => (written, quiet_since) = (written + bytes, Instant::now()),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    // The window of a stranger, and the buffers of both ends.
    assert!(written < 3 << 20, "{written} bytes");
}

#[test]
fn the_end_of_an_endpoint_is_seen_by_its_peers() {
    let (one, _other, dialed, accepted) = pair();
    (&dialed.socket).write_all(b"last").unwrap();
    let mut arrived = [0; 4];
    (&accepted.socket).read_exact(&mut arrived).unwrap();
    drop(one);
    assert_eq!((&accepted.socket).read(&mut arrived).unwrap(), 0);
    assert_eq!(accepted.state.failure(), None, "it was closed regularly");
    assert!(dialed.state.failure().is_some());
}

#[test]
fn what_had_arrived_before_the_other_end_closed_is_delivered() {
    let (one, other, dialed, accepted) = pair();
    // More than a local socket holds, so that some of it waits in the connection.
    let data = vec![7; RECEIVE_WINDOW as usize / 2];
    (&dialed.socket).write_all(&data).unwrap();
    dialed.socket.shutdown(Shutdown::Write).unwrap();
    let began = Instant::now();
    while dialed.state.unacknowledged_bytes() > 0 {
        assert!(began.elapsed() < SOON, "timed out waiting for acknowledgements");
        std::thread::yield_now();
    }
    drop(one);
    // A second connection shows that the first one's end has arrived.
    let third = endpoint();
    let _second = third.dial(other.address().unwrap(), Duration::from_millis(1)).unwrap();
    accept(&other);
    let mut arrived = Vec::new();
    (&accepted.socket).read_to_end(&mut arrived).unwrap();
    assert!(arrived == data, "{} of {} bytes arrived", arrived.len(), data.len());
    assert_eq!(accepted.state.failure(), None);
}

#[test]
fn an_expired_connection_ends_after_a_moment() {
    let (_one, _other, dialed, accepted) = pair();
    (&dialed.socket).write_all(b"last").unwrap();
    accepted.state.expire();
    let mut arrived = Vec::new();
    (&accepted.socket).read_to_end(&mut arrived).unwrap();
    assert_eq!(arrived, b"last", "what was on its way arrives");
    assert_eq!(accepted.state.failure().as_deref(), Some("the other end's process has ended"));
}

#[test]
fn a_port_where_nobody_answers_is_not_dialled_again_for_a_while() {
    let endpoint = endpoint();
    let host = IpAddr::from([127, 0, 0, 9]);
    assert!(endpoint.may_answer(host));
    endpoint.note_silence(host);
    assert!(!endpoint.may_answer(host));
}

#[test]
fn packets_of_other_protocols_are_ignored() {
    let (_one, other, dialed, accepted) = pair();
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    for length in [0, 1, 20, 100, 1200] {
        for first in [0_u8, 0x40, 0xc0, 0xff] {
            let packet = vec![first; length];
            stranger.send_to(&packet, other.address().unwrap()).unwrap();
        }
    }
    (&dialed.socket).write_all(b"still here").unwrap();
    let mut arrived = [0; 10];
    (&accepted.socket).read_exact(&mut arrived).unwrap();
    assert_eq!(&arrived, b"still here");
}

#[test]
fn a_socket_of_both_families_connects_to_ipv4() {
    let Ok(one) =
        QuicEndpoint::bind((std::net::Ipv6Addr::UNSPECIFIED, 0).into(), &Arc::default(), &security())
    else {
        return;
    };
    let other = endpoint();
    let dialed = one.dial(other.address().unwrap(), Duration::from_millis(1)).unwrap();
    (&dialed.socket).write_all(b"hello").unwrap();
    let accepted = accept(&other);
    let mut arrived = [0; 5];
    (&accepted.socket).read_exact(&mut arrived).unwrap();
    assert_eq!(&arrived, b"hello");
}

#[test]
fn capped_endpoints_take_their_time_and_count_whole_packets() {
    const BYTES: usize = 2 << 20;
    let cap = Some(Bandwidth::bytes(4 << 20));
    let none = BandwidthCaps::default();
    for (sends, receives) in
        [(BandwidthCaps { upload: cap, ..none }, none), (none, BandwidthCaps { download: cap, ..none })]
    {
        let networks = [sends, receives].map(|caps| Arc::new(Network::with_caps(caps)));
        let (one, other) = (endpoint_on(&networks[0]), endpoint_on(&networks[1]));
        let (_one, _other, dialed, accepted) = pair_of(one, other);
        let began = Instant::now();
        let writer = std::thread::spawn(move || {
            (&dialed.socket).write_all(&vec![7; BYTES]).unwrap();
            dialed
        });
        let mut arrived = vec![0; BYTES];
        (&accepted.socket).read_exact(&mut arrived).unwrap();
        let took = began.elapsed();
        assert!(took > Duration::from_millis(350), "{took:?}");
        drop(writer.join().unwrap());
        // A packet may arrive before its sender has counted it.
        let counts = || {
            let received = networks[1].per_peer()[0].1.received;
            (received, networks[0].per_peer()[0].1.sent)
        };
        let (mut received, mut sent) = counts();
        while received > sent && began.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
            (received, sent) = counts();
        }
        // Whole packets: the bytes, some for each packet, and what is sent twice on a busy machine.
        assert!(sent > BYTES as u64 * 101 / 100 && sent < BYTES as u64 * 2, "{sent}");
        assert!(received > BYTES as u64 * 101 / 100 && received <= sent, "{received} of {sent}");
    }
}

#[test]
fn certificates_are_checked() {
    use crate::tls::issue::{issue, new_ca};
    use crate::tls::{PeerIdentity, Role, TlsFiles};
    let dir = std::env::temp_dir().join(format!("ringfold-quic-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let certified = |run: &str, name: &str, role| {
        let ca = dir.join(format!("{run}.key"));
        let read = |path: &std::path::Path| std::fs::read_to_string(path).unwrap();
        let authority = match ca.exists() {
            true => crate::tls::issue::Issued {
                certificate: read(&dir.join(format!("{run}.pem"))),
                key: read(&ca),
            },
            false => new_ca(run).unwrap(),
        };
        let issued = issue(&authority, &PeerIdentity { name: name.into(), role }, 1).unwrap();
        let write = |file: String, text: &str| {
            std::fs::write(dir.join(&file), text).unwrap();
            dir.join(file)
        };
        write(format!("{run}.key"), &authority.key);
        let files = TlsFiles::new(
            write(format!("{run}.pem"), &authority.certificate),
            write(format!("{run}-{name}.pem"), &issued.certificate),
            write(format!("{run}-{name}.key"), &issued.key),
        );
        let security = Arc::new(Security::with_certificates(files).unwrap());
        QuicEndpoint::bind((std::net::Ipv4Addr::LOCALHOST, 0).into(), &Arc::default(), &security).unwrap()
    };
    let (alice, bob) = (certified("run", "alice", Role::Peer), certified("run", "bob", Role::Observer));
    let dialed = alice.dial(bob.address().unwrap(), Duration::from_millis(1)).unwrap();
    (&dialed.socket).write_all(b"hello").unwrap();
    let accepted = accept(&bob);
    assert_eq!(accepted.state.binding().unwrap().role, Some(Ok(Role::Peer)));
    assert_eq!(dialed.state.binding().unwrap().role, Some(Ok(Role::Observer)));
    // A stranger refuses, and has nothing to show.
    let stranger = certified("other", "alice", Role::Peer);
    let dialed = stranger.dial(bob.address().unwrap(), Duration::from_millis(1)).unwrap();
    dialed.socket.set_read_timeout(Some(SOON)).unwrap();
    assert!(matches!((&dialed.socket).read(&mut [0]), Ok(0) | Err(_)) && dialed.state.binding().is_none());
    std::fs::remove_dir_all(&dir).unwrap();
}

/// The first packet of a connection, as far as an endpoint reads it before it accepts the connection.
fn initial(number: u64) -> BytesMut {
    let suite =
        rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256.tls13().unwrap().quic_suite().unwrap();
    let keys = suite.keys(&number.to_be_bytes(), rustls::Side::Client, rustls::quic::Version::V1);
    let mut packet = vec![0; 1200];
    // A long header of version 1, two ids of 8 bytes, no token, the length of the rest, and a packet number of 4 bytes.
    packet[..6].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8]);
    packet[6..14].copy_from_slice(&number.to_be_bytes());
    packet[14] = 8;
    packet[24..26].copy_from_slice(&(0x4000_u16 | 1174).to_be_bytes());
    let (header, rest) = packet.split_at_mut(26);
    let (packet_number, payload) = rest.split_at_mut(4);
    let sampled = keys.local.header.encrypt_in_place(&payload[..16], &mut header[0], packet_number);
    sampled.unwrap();
    BytesMut::from(&packet[..])
}

fn arrived_from(host: [u8; 4]) -> RecvMeta {
    let mut meta = RecvMeta::default();
    meta.addr = (host, 9).into();
    meta
}

#[test]
fn a_connection_that_is_never_established_ends_soon() {
    let bind =
        || Worker::bind((std::net::Ipv4Addr::LOCALHOST, 0).into(), &Arc::default(), &security()).unwrap();
    let ((mut worker, shared), (mut stranger, _)) = (bind(), bind());
    let (config, now, mut packet) = (stranger.settings().client, Instant::now(), Vec::new());
    let to = shared.socket.local_addr().unwrap();
    let dialed = stranger.endpoint.connect(now, ClientConfig::new(config), to, "ringfold");
    let _ = dialed.unwrap().1.poll_transmit(now, 1, &mut packet).unwrap();
    let meta = arrived_from([127, 0, 0, 1]);
    let state = worker.handle_datagram(now, &shared, &meta, BytesMut::from(&packet[..])).unwrap();
    let expires = worker.pipes.values().next().unwrap().expires();
    assert_eq!(expires, Some(now + limits::HANDSHAKE_MAX));
    state.expire_at(Some(now));
    worker.advance(&shared);
    assert!(worker.pipes.values().all(|pipe| pipe.connection.is_closed()));
}

#[test]
fn first_packets_without_descriptors_leave_nothing_behind() {
    let (mut worker, shared) =
        Worker::bind((std::net::Ipv4Addr::LOCALHOST, 0).into(), &Arc::default(), &security()).unwrap();
    let address = shared.socket.local_addr().unwrap();
    let flood = || {
        // SAFETY: this thread has no descriptors that others close, and closes only its own.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
        let held: Vec<_> = std::iter::from_fn(|| rustix::io::dup(&shared.arrived).ok()).collect();
        assert!(shared.stream(address).is_err() && !held.is_empty());
        let meta = arrived_from([127, 0, 0, 1]);
        for number in 0..70_000 {
            worker.handle_datagram(Instant::now(), &shared, &meta, initial(number));
        }
        assert!(worker.pipes.is_empty());
    };
    std::thread::scope(|scope| scope.spawn(flood).join().unwrap());
    let runs = shared.clone();
    let thread = Some(std::thread::spawn(move || worker.run(&runs)));
    let other = QuicEndpoint { shared, thread };
    let one = endpoint();
    let _dialed = one.dial(address, Duration::from_millis(1)).unwrap();
    accept(&other);
}

#[test]
fn strangers_of_one_host_leave_room_for_others() {
    let other = endpoint();
    let to = other.address().unwrap();
    let one = endpoint();
    let dialed: Vec<_> =
        (0..STRANGERS_PER_SOURCE_MAX + 8).map(|_| one.dial(to, Duration::from_millis(1)).unwrap()).collect();
    let (mut accepted, began) = (Vec::new(), Instant::now());
    let refused = || dialed.iter().filter(|stream| stream.state.failure().is_some()).count();
    while accepted.len() + refused() < dialed.len() {
        assert!(began.elapsed() < SOON, "{} accepted, {} refused", accepted.len(), refused());
        accepted.extend(other.accept());
        std::thread::yield_now();
    }
    assert!(accepted.len() <= STRANGERS_PER_SOURCE_MAX && refused() >= 8);
    let near = QuicEndpoint::bind(([127, 0, 0, 2], 0).into(), &Arc::default(), &security()).unwrap();
    let _dialed = near.dial(to, Duration::from_millis(1)).unwrap();
    accept(&other);
}

#[test]
fn small_messages_that_wait_take_little_memory() {
    const MESSAGES: usize = 2000;
    let resident = || {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    // Almost nothing leaves.
    let caps = BandwidthCaps { upload: Some(Bandwidth::bytes(1000)), download: None };
    let (_one, _other, dialed, _accepted) =
        pair_of(endpoint_on(&Arc::new(Network::with_caps(caps))), endpoint());
    let (before, began) = (resident(), Instant::now());
    for _ in 0..MESSAGES {
        (&dialed.socket).write_all(&[7; 100]).unwrap();
        let mut waiting: libc::c_int = 1;
        while waiting > 0 {
            assert!(began.elapsed() < SOON, "timed out waiting for the thread to read");
            // SAFETY: this request writes one number to the place that it is given.
            let asked = unsafe {
                libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&dialed.socket), libc::TIOCOUTQ, &raw mut waiting)
            };
            assert_eq!(asked, 0);
            std::thread::yield_now();
        }
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 32 << 20, "{MESSAGES} messages of 100 bytes hold {grown} bytes");
}
