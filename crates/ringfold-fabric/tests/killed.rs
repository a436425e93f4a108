//! A process that shares memory with another one is killed.

use crate::node::{LONG, drive, epoch, two};
use ringfold_fabric::link::{Arrival, Link};
use ringfold_fabric::memory::Lease;
use ringfold_fabric::poller::Readiness;
use ringfold_fabric::slots::{SlotBuffer, SlotPool};
use ringfold_plan::executor::FrameDecision;
use ringfold_plan::medium::Ticket;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::id::{OpId, PeerId};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The host of both.
const HOST: u64 = 9;

/// Another process, which is killed when this is dropped.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn header(chunk: u32, bytes: usize) -> DataHeader {
    let (op, length) = (OpId::default(), bytes as u32);
    DataHeader { op, fingerprint: 5, chunk, offset: 0, length, slot: 0, eager: true, checksum: None }
}

const BYTES: usize = 100_000;

/// The other process: sends frames for as long as it lives.
fn send_for_ever(to: SocketAddr) {
    let mut b = two(1).1.sharing(HOST);
    let mut of_a = b.member(to);
    of_a.peer = PeerId(1);
    b.connect_to(of_a, epoch(1));
    println!("listens at {}", b.address());
    drive(&mut [&mut b], |nodes| !nodes[0].up.is_empty());
    let mut link = b.up.remove(0);
    assert!(link.is_shared());
    let end = Instant::now() + LONG;
    let (mut sent, mut left) = (0, 0);
    while Instant::now() < end {
        while sent < left + 100 {
            let payload = Lease::from(vec![sent as u8; BYTES]);
            link.put(&header(sent, BYTES), payload, Ticket(u64::from(sent)));
            sent += 1;
        }
        let mut flushed = Vec::new();
        link.flush(&mut flushed).unwrap();
        left += flushed.len() as u32;
        std::thread::yield_now();
    }
}

#[test]
fn a_process_that_is_killed_ends_its_link_and_leaves_what_it_sent() {
    const TO: &str = "RINGFOLD_TEST_SENDS_TO";
    if let Ok(to) = std::env::var(TO) {
        return send_for_ever(to.parse().unwrap());
    }
    let mut a = two(1).0.sharing(HOST);
    let test = "killed::a_process_that_is_killed_ends_its_link_and_leaves_what_it_sent";
    let mut other = Other(
        Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(TO, a.address().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let lines = BufReader::new(other.0.stdout.take().unwrap()).lines();
    let at = lines.map_while(Result::ok).find_map(|line| Some(line.split_once("listens at ")?.1.to_owned()));
    let mut of_b = a.member(at.unwrap().parse().unwrap());
    of_b.peer = PeerId(2);
    a.connect_to(of_b, epoch(1));
    drive(&mut [&mut a], |nodes| !nodes[0].up.is_empty());
    let mut link = a.up.remove(0);
    assert!(link.is_shared() && maps_memory());

    let mut pool = SlotPool::default();
    let mut held: Vec<(u32, SlotBuffer)> = Vec::new();
    let mut received = 0;
    receive(&mut link, &mut pool, |head, payload| {
        assert_eq!(head.chunk, received);
        held.push((head.chunk, payload));
        // What is not needed any more gives its cells back.
        held.truncate(5);
        received += 1;
        received < 500
    });
    other.0.kill().unwrap();
    let mut ready = Readiness::default();
    let end = Instant::now() + LONG;
    let error = loop {
        assert!(Instant::now() < end, "its death is not noticed");
        a.poller.wait(&mut ready, Duration::from_millis(10)).unwrap();
        link.handle_ready();
        link.flush(&mut Vec::new()).unwrap();
        match link.next(&mut pool, |_| FrameDecision::Place) {
            Ok(Some(Arrival::Frame(head, payload))) => {
                assert_eq!(head.chunk, received);
                assert!(payload.as_slice().iter().all(|byte| *byte == received as u8));
                received += 1;
            }
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    println!("after {received} frames: {error}");
    drop(link);
    for (chunk, payload) in &held {
        assert!(payload.as_slice().iter().all(|byte| *byte == *chunk as u8), "what is held stays");
    }
    drop(held);
    assert!(!maps_memory(), "nothing is left behind");
}

/// Hands over frames as they come, until it is enough.
fn receive(link: &mut Link, pool: &mut SlotPool, mut take: impl FnMut(DataHeader, SlotBuffer) -> bool) {
    let end = Instant::now() + LONG;
    loop {
        assert!(Instant::now() < end);
        if let Some(Arrival::Frame(head, payload)) = link.next(pool, |_| FrameDecision::Place).unwrap()
            && !take(head, payload)
        {
            return;
        }
        link.flush(&mut Vec::new()).unwrap();
    }
}

fn maps_memory() -> bool {
    std::fs::read_to_string("/proc/self/maps").unwrap().contains("memfd:ringfold")
}
