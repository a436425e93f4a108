//! Tests of connections.

use super::*;
use crate::connection_limits::ConnectionLimits;
use crate::poller::Readiness;
use crate::traffic::{BandwidthCaps, Network, Traffic};
use ringfold_settings::bandwidth::Bandwidth;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

#[test]
fn urgent_bytes_overtake_frames_that_have_not_begun() {
    const FRAME: usize = 256 * 1024;
    const FRAMES: usize = 64;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut other, _) = listener.accept().unwrap();
    let poller = Arc::new(Poller::new().unwrap());
    let mut connection = Connection::new(dialled, &poller, Intake::Frames).unwrap();
    let payload = View::from(vec![1; FRAME]);
    for frame in 0..FRAMES {
        connection.send_put(&[0], payload.lease(0..FRAME), Ticket(frame as u64));
    }
    // As much as the system takes leaves; the rest waits, the first of it perhaps in the middle of a frame.
    let mut flushed = Vec::new();
    connection.flush(&mut flushed).unwrap();
    assert!(flushed.len() + 2 < FRAMES, "nothing waits");
    connection.send_urgently(vec![7; 3]);
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0; FRAMES * (FRAME + 1) + 3];
        other.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        other.read_exact(&mut bytes).unwrap();
        bytes
    });
    let began = Instant::now();
    while connection.queued_bytes() > 0 && began.elapsed().as_secs() < 60 {
        connection.flush(&mut flushed).unwrap();
        std::thread::yield_now();
    }
    let bytes = reader.join().unwrap();
    let at = bytes.iter().position(|byte| *byte == 7).unwrap();
    assert_eq!(at % (FRAME + 1), 0, "a frame was torn");
    assert!(at < bytes.len() - 2 * FRAME, "it waited behind data");
    assert_eq!(flushed.len(), FRAMES);
}

#[test]
fn puts_wait_for_a_slow_reader_however_many_they_are_and_only_own_bytes_are_limited() {
    const FRAME: usize = 256 * 1024;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let _other = listener.accept().unwrap();
    let mut connection = Connection::new(dialled, &Arc::new(Poller::new().unwrap()), Intake::Frames).unwrap();
    let (payload, mut flushed) = (View::from(vec![1; FRAME]), Vec::new());
    for frame in 0..2 * limits::QUEUED_BYTES_MAX / FRAME {
        connection.send_put(&[0; 80], payload.lease(0..FRAME), Ticket(frame as u64));
    }
    connection.flush(&mut flushed).unwrap();
    assert!(connection.queued_bytes() > limits::QUEUED_BYTES_MAX);
    let puts = flushed.len() + connection.unsent().count();
    assert_eq!(puts, 2 * limits::QUEUED_BYTES_MAX / FRAME);
    connection.send(&vec![0; limits::QUEUED_BYTES_MAX + 1]);
    let error = connection.flush(&mut flushed).unwrap_err();
    assert_eq!(CloseReason::of(&error), Some(CloseReason::Backlogged));
}

/// Two ends of a connection that counts as one between hosts, with the caps of the first end.
fn capped_pair(caps: BandwidthCaps) -> (Connection, Connection, Arc<Poller>, Arc<Poller>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    let near = Arc::new(Poller::on(Arc::new(Network::with_caps(caps)), ConnectionLimits::default()).unwrap());
    let far = Arc::new(Poller::new().unwrap());
    let one = Connection::new(dialled, &near, Intake::Frames).unwrap();
    let other = Connection::new(accepted, &far, Intake::Frames).unwrap();
    one.transport.identify(PeerId(2), Purpose::Data, false);
    other.transport.identify(PeerId(1), Purpose::Data, false);
    (one, other, near, far)
}

/// Sends bytes from one connection to the other on two threads. Returns how long it took, and how often each end waited.
fn transfer(
    (mut from, from_poller): (Connection, Arc<Poller>),
    (mut to, to_poller): (Connection, Arc<Poller>),
    bytes: usize,
) -> (Duration, usize, usize) {
    let began = Instant::now();
    let limit = Duration::from_secs(60);
    let sender = std::thread::spawn(move || {
        from.send_put(&[], Lease::from((0..bytes).map(|i| (i % 251) as u8).collect::<Vec<_>>()), Ticket(1));
        let (mut flushed, mut ready, mut waits) = (Vec::new(), Readiness::default(), 0);
        loop {
            from.flush(&mut flushed).unwrap();
            if !flushed.is_empty() {
                return (from, waits);
            }
            assert!(began.elapsed() < limit, "not sent");
            from_poller.wait(&mut ready, limit).unwrap();
            waits += 1;
        }
    });
    let (mut received, mut ready, mut waits) = (vec![0; bytes], Readiness::default(), 0);
    let mut have = 0;
    while have < bytes {
        let read = to.read_into(&mut received[have..]).unwrap();
        have += read;
        if read == 0 {
            assert!(began.elapsed() < limit, "not received");
            to_poller.wait(&mut ready, limit).unwrap();
            waits += 1;
        }
    }
    assert!(received.iter().enumerate().all(|(i, byte)| *byte == (i % 251) as u8));
    let (_from, sender_waits) = sender.join().unwrap();
    (began.elapsed(), sender_waits, waits)
}

#[test]
fn a_capped_connection_takes_its_time_and_does_not_spin() {
    const BYTES: usize = 2 << 20;
    let cap = Some(Bandwidth::bytes(4 << 20));
    let upload = BandwidthCaps { upload: cap, download: None };
    let (one, other, near, far) = capped_pair(upload);
    let (took, waits, _) = transfer((one, near.clone()), (other, far), BYTES);
    assert!(took > Duration::from_millis(400), "{took:?}");
    // A quantum lasts 10 ms.
    assert!(waits < 500, "{waits} waits");
    let counted = Traffic { sent: BYTES as u64, ..Traffic::default() };
    assert_eq!(near.network().per_peer(), [(PeerId(2), counted)]);

    let download = BandwidthCaps { upload: None, download: cap };
    let (one, other, near, far) = capped_pair(download);
    let (took, _, waits) = transfer((other, far), (one, near.clone()), BYTES);
    assert!(took > Duration::from_millis(400), "{took:?}");
    assert!(waits < 500, "{waits} waits");
    assert_eq!(near.network().total().received, BYTES as u64);
}

#[test]
fn a_capped_connection_that_blocks_takes_its_time() {
    const BYTES: usize = 1 << 20;
    let caps = BandwidthCaps { upload: Some(Bandwidth::bytes(4 << 20)), download: None };
    let (one, other, near, _far) = capped_pair(caps);
    let (one, other) = (one.into_blocking().unwrap(), other.into_blocking().unwrap());
    let began = Instant::now();
    let reader = std::thread::spawn(move || {
        let mut all = vec![0; BYTES];
        (&other).read_exact(&mut all).unwrap();
        all
    });
    let sent: Vec<u8> = (0..BYTES).map(|i| (i % 253) as u8).collect();
    (&one).write_all(&sent).unwrap();
    assert_eq!(reader.join().unwrap(), sent);
    assert!(began.elapsed() > Duration::from_millis(180), "{:?}", began.elapsed());
    assert_eq!(near.network().total().sent, BYTES as u64);
}
