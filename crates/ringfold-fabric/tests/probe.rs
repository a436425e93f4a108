//! Probes over loopback, through a relay that lets only so much through, and with ends that do not play along.

use ringfold_fabric::probe::{Measured, answer, measure, receive_rate, send_rate};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A probe ends within this time whatever the other end does; twice what it takes at most, for loaded machines.
const SOON: Duration = Duration::from_secs(5);

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (dialled, listener.accept().unwrap().0)
}

/// Measures through `stream` while someone answers at `other`.
fn probe(stream: TcpStream, other: TcpStream) -> (Measured, Duration) {
    let answering = std::thread::spawn(move || answer(other));
    let begun = Instant::now();
    let measured = measure(stream).unwrap();
    let took = begun.elapsed();
    answering.join().unwrap().unwrap();
    (measured, took)
}

#[test]
fn loopback_is_measured_quickly() {
    let (stream, other) = pair();
    let (measured, took) = probe(stream, other);
    println!("loopback: {measured:?} in {took:?}");
    assert!(measured.forward > 10_000_000 && measured.backward > 10_000_000, "{measured:?}");
    assert!(took < SOON, "{took:?}");
}

#[test]
fn both_ends_know_the_rate_of_one_direction() {
    let (stream, other) = pair();
    let receiving = std::thread::spawn(move || receive_rate(other));
    let begun = Instant::now();
    let sent = send_rate(stream).unwrap();
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    let received = receiving.join().unwrap().unwrap();
    assert!(sent > 10_000_000 && sent <= received, "{sent} of {received}");
}

#[test]
fn a_slow_link_is_measured_in_each_direction() {
    for (forward, backward) in [(20_000_000, 5_000_000), (2_000_000, 30_000_000), (300_000, 300_000)] {
        // The threads of the relay share the cores with other tests, and a relay that is not run lets less through.
        let is_near = (0..10).any(|_| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let relay = Relay::start(listener.local_addr().unwrap(), forward, backward);
            let stream = TcpStream::connect(relay.address).unwrap();
            let (measured, took) = probe(stream, listener.accept().unwrap().0);
            println!("{forward} and {backward} bytes/s: {measured:?} in {took:?}");
            assert!(took < SOON, "{took:?}");
            relay.end();
            is_near(measured.forward, forward) && is_near(measured.backward, backward)
        });
        assert!(is_near, "the rates are {forward} and {backward} bytes/s");
    }
}

fn is_near(measured: u64, truth: u64) -> bool {
    measured.abs_diff(truth) <= truth / 4
}

#[test]
fn an_end_that_dies_is_an_error_at_once() {
    let (stream, other) = pair();
    drop(other);
    assert!(measure(stream).is_err());
    let (stream, mut other) = pair();
    let dying = std::thread::spawn(move || other.read_exact(&mut [0; 1_000_000]));
    assert!(measure(stream).is_err());
    dying.join().unwrap().unwrap();
    let (stream, other) = pair();
    drop(stream);
    assert!(answer(other).is_err());
}

#[test]
fn an_end_that_hangs_is_an_error_in_time() {
    let begun = Instant::now();
    // Never reads, never writes.
    let (stream, other) = pair();
    assert_eq!(measure(stream).unwrap_err().kind(), io::ErrorKind::TimedOut);
    drop(other);
    // Never sends.
    let (stream, other) = pair();
    assert_eq!(answer(other).unwrap_err().kind(), io::ErrorKind::TimedOut);
    drop(stream);
    // Sends a little, then nothing.
    let (mut stream, other) = pair();
    stream.write_all(&[0; 100]).unwrap();
    let answered = answer(other);
    drop(stream);
    assert!(answered.is_err());
    assert!(begun.elapsed() < 3 * SOON, "{:?}", begun.elapsed());
}

#[test]
fn a_prober_that_never_ends_is_left_in_time() {
    let (mut stream, other) = pair();
    let answering = std::thread::spawn(move || answer(other));
    let begun = Instant::now();
    let mut copy = stream.try_clone().unwrap();
    let reading = std::thread::spawn(move || io::copy(&mut copy, &mut io::sink()));
    while begun.elapsed() < SOON && stream.write_all(&[0; 65_536]).is_ok() {}
    assert!(answering.join().unwrap().is_err());
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    let _ = stream.shutdown(Shutdown::Both);
    let _ = reading.join().unwrap();
}

#[test]
fn nobody_reports_more_than_was_sent() {
    let (stream, mut other) = pair();
    let lying = std::thread::spawn(move || {
        other.write_all(&u64::MAX.to_le_bytes()).unwrap();
        let end = Instant::now() + SOON;
        while Instant::now() < end && other.write_all(&[0; 65_536]).is_ok() {}
    });
    // At most what buffers took, in the shortest time that is measured; or nothing was sent yet at all.
    let measured = measure(stream);
    assert!(measured.as_ref().map_or(true, |measured| measured.forward < 1 << 34), "{measured:?}");
    lying.join().unwrap();
}

/// Passes bytes on, at a given rate in each direction.
struct Relay {
    address: SocketAddr,
    threads: JoinHandle<()>,
}

impl Relay {
    fn start(to: SocketAddr, forward: u64, backward: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let threads = std::thread::spawn(move || {
            let near = listener.accept().unwrap().0;
            let far = TcpStream::connect(to).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| pass(&near, &far, forward));
                scope.spawn(|| pass(&far, &near, backward));
            });
        });
        Self { address, threads }
    }

    /// Both ends are gone, so it ends by itself.
    fn end(self) {
        self.threads.join().unwrap();
    }
}

/// A token bucket that holds ten milliseconds' worth.
fn pass(mut from: &TcpStream, mut to: &TcpStream, rate: u64) {
    let (begun, burst) = (Instant::now(), rate as f64 / 100.0);
    let mut spent = 0.0;
    let mut block = vec![0; (rate as usize / 400).clamp(256, 65_536)];
    while let Ok(bytes @ 1..) = from.read(&mut block) {
        if to.write_all(&block[..bytes]).is_err() {
            break;
        }
        let earned = begun.elapsed().as_secs_f64() * rate as f64;
        spent = f64::max(spent, earned - burst) + bytes as f64;
        if spent > earned {
            std::thread::sleep(Duration::from_secs_f64((spent - earned) / rate as f64));
        }
    }
    // The ends that were connected through here see the close at once.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
