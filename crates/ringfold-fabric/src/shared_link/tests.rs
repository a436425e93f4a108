//! Two ends of a link through memory, in one process, and ends that break the rules.

use super::*;
use crate::connection::{Intake, close_all};
use crate::poller::{Poller, Readiness};
use core::sync::atomic::Ordering;
use core::time::Duration;
use ringfold_proto::id::{OpId, Seq};
use ringfold_proto::limits::PAYLOAD_BYTES_MAX;
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

const LONG: Duration = Duration::from_secs(30);

struct SmallRng(u64);

impl SmallRng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

struct End {
    link: SharedLink,
    poller: Arc<Poller>,
    pool: SlotPool,
}

impl End {
    fn next(&mut self) -> io::Result<Option<Arrival>> {
        self.link.next(&mut self.pool, |_| FrameDecision::Place)
    }

    /// Puts a frame whose payload is made of its number.
    fn put(&mut self, number: u32, bytes: usize) {
        let payload = Lease::from(vec![number as u8; bytes]);
        self.link.put(&header(number, bytes), payload, Ticket(u64::from(number)));
    }

    fn flush(&mut self) -> Vec<Ticket> {
        let mut flushed = Vec::new();
        self.link.flush(&mut flushed).unwrap();
        flushed
    }

    /// Takes the frame that has to come next.
    fn expect(&mut self, number: u32, bytes: usize) -> SlotBuffer {
        match self.next().unwrap() {
            Some(Arrival::Frame(head, payload)) => {
                assert_eq!(head, header(number, bytes));
                assert_eq!(payload.as_slice().len(), bytes);
                assert!(payload.as_slice().iter().all(|byte| *byte == number as u8));
                payload
            }
            other => panic!("{other:?} came in place of {number}"),
        }
    }

    /// Whether the socket wakes this end within some time.
    fn is_rung(&self, timeout: Duration) -> bool {
        let mut ready = Readiness::default();
        self.poller.wait(&mut ready, timeout).unwrap();
        ready.tokens().count() > 0
    }
}

fn header(chunk: u32, bytes: usize) -> DataHeader {
    let length = bytes as u32;
    let op = OpId::default();
    DataHeader { op, fingerprint: 5, chunk, offset: 0, length, slot: 0, eager: true, checksum: None }
}

fn two() -> (End, End) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let accepted = listener.accept().unwrap().0;
    let [a, b] = [dialled, accepted].map(|stream| {
        let poller = Arc::new(Poller::new().unwrap());
        (Connection::new(stream, &poller, Intake::Frames).unwrap(), poller)
    });
    let offer = Offer::new().unwrap();
    let opened = Opened::new(&offer.ticket()).unwrap();
    (
        End { link: offer.accepted(a.0), poller: a.1, pool: SlotPool::default() },
        End { link: opened.link(b.0), poller: b.1, pool: SlotPool::default() },
    )
}

#[test]
fn everything_keeps_its_order_through_full_rings_and_cells_and_around_their_ends() {
    let (mut a, mut b) = two();
    let mut rng = SmallRng(7);
    let sizes = [0, 1, 4, 1000, 1024, 1025, 8000, 32 * 1024, 32 * 1024 + 1, 128 * 1024, PAYLOAD_BYTES_MAX];
    let (mut sent, mut received, mut flushed) = (Vec::new(), 0, 0);
    let mut held = VecDeque::new();
    while received < 6000 {
        for _ in 0..rng.below(40) {
            let number = sent.len() as u32;
            if number % 7 == 3 {
                // Some messages are longer than a record may be.
                let slots = (0..rng.below(3000) as u16).collect();
                a.link.send_message(&LinkMessage::Grant {
                    op: OpId { seq: Seq(sent.len() as u64), ..OpId::default() },
                    slots,
                });
                sent.push(None);
            } else {
                let bytes = sizes[rng.below(sizes.len())];
                a.put(number, bytes);
                sent.push(Some(bytes));
            }
        }
        flushed += a.flush().len();
        for _ in 0..rng.below(60) {
            match (sent.get(received), b.link.is_ready()) {
                (Some(Some(bytes)), true) => held.push_back(b.expect(received as u32, *bytes)),
                (Some(None), true) => match b.next().unwrap() {
                    Some(Arrival::Message(LinkMessage::Grant { op, .. })) => {
                        assert_eq!(op.seq, Seq(received as u64))
                    }
                    other => panic!("{other:?}"),
                },
                _ => break,
            }
            received += 1;
        }
        while held.len() > rng.below(60) {
            let payload = held.remove(rng.below(held.len())).unwrap();
            b.pool.give_back(payload);
        }
        b.flush();
    }
    while !a.link.backlog.is_empty() {
        flushed += a.flush().len();
        while b.next().unwrap().is_some() {}
        b.flush();
    }
    flushed += a.flush().len();
    assert_eq!(flushed, sent.iter().flatten().count(), "every put is told to have left, once");
}

#[test]
fn there_is_always_room_for_the_next_frame() {
    let (mut a, mut b) = two();
    let mut held = Vec::new();
    for number in 0..300 {
        let bytes = if number % 3 == 0 { PAYLOAD_BYTES_MAX } else { 33_000 };
        a.put(number, bytes);
        assert_eq!(a.flush(), [Ticket(u64::from(number))], "it has left at once");
        held.push(b.expect(number, bytes));
    }
    for (payload, number) in held.iter().zip(0u32..) {
        assert!(payload.as_slice().iter().all(|byte| *byte == number as u8), "what is held stays as it is");
    }
}

#[test]
fn frames_are_read_where_their_sender_put_them() {
    let (mut a, mut b) = two();
    a.put(1, 100_000);
    let payload = b.expect(1, 100_000);
    let start = payload.as_slice().as_ptr();
    drop(payload);
    a.put(2, 100_000);
    assert_eq!(b.expect(2, 100_000).as_slice().as_ptr(), start, "the same cells, used again");
}

#[test]
fn a_discarded_payload_releases_its_cells_at_once() {
    let (mut a, mut b) = two();
    for number in 0..100 {
        a.put(number, 200_000);
        assert_eq!(a.flush().len(), 1);
        let arrival = b.link.next(&mut b.pool, |_| FrameDecision::Discard).unwrap();
        assert!(matches!(arrival, Some(Arrival::Discarded(head, _)) if head.chunk == number));
    }
}

#[test]
fn a_cancelled_put_goes_out_without_its_bytes() {
    let (mut a, mut b) = two();
    for number in 0..60 {
        a.put(number, 250_000);
    }
    assert!(!a.link.cancel(Ticket(0)), "it has left");
    assert!(a.link.cancel(Ticket(59)) && !a.link.cancel(Ticket(59)));
    let mut flushed = a.flush();
    for number in 0..59 {
        drop(b.expect(number, 250_000));
        flushed.extend(a.flush());
    }
    let Some(Arrival::Frame(head, payload)) = b.next().unwrap() else { panic!("it was to come") };
    assert_eq!(head, header(59, 250_000));
    assert!(payload.as_slice().iter().all(|byte| *byte == 0));
    assert_eq!(flushed.len(), 59, "the medium tells of the cancelled one");
}

#[test]
fn the_socket_wakes_only_readers_that_sleep() {
    let (mut a, mut b) = two();
    a.put(0, 4);
    a.flush();
    assert!(!b.is_rung(Duration::from_millis(20)), "it is awake");
    assert!(b.link.prepare_sleep(), "there is something already");
    b.expect(0, 4);
    assert!(!b.link.prepare_sleep());
    a.put(1, 4);
    a.put(2, 4);
    a.flush();
    assert!(b.is_rung(LONG));
    b.link.handle_ready();
    assert!(!b.is_rung(Duration::ZERO), "once is enough");
    b.expect(1, 4);
    b.expect(2, 4);
    assert!(!b.link.prepare_sleep());
    b.link.cancel_sleep();
    a.put(3, 4);
    a.flush();
    assert!(!b.is_rung(Duration::from_millis(20)));
}

#[test]
fn a_writer_that_waits_for_room_is_woken() {
    let (mut a, mut b) = two();
    let mut number = 0;
    while a.link.backlog.is_empty() {
        a.put(number, 200_000);
        number += 1;
    }
    assert!(!a.link.prepare_sleep());
    let held: Vec<_> = (0..number - 1).map(|number| b.expect(number, 200_000)).collect();
    b.flush();
    assert!(a.is_rung(LONG));
    a.link.handle_ready();
    a.flush();
    drop(held);
    b.flush();
    a.flush();
    b.expect(number - 1, 200_000);
}

#[test]
fn what_was_sent_before_the_end_arrives_before_it() {
    let (mut a, mut b) = two();
    assert!(!b.link.prepare_sleep());
    for number in 0..40 {
        a.put(number, 150_000);
    }
    let closing =
        std::thread::spawn(move || close_all([a.link], Instant::now() + LONG, SharedLink::poll_closed));
    let mut number = 0;
    let error = loop {
        b.is_rung(Duration::from_millis(1));
        b.link.handle_ready();
        b.flush();
        match b.next() {
            Ok(Some(Arrival::Frame(head, payload))) => {
                assert_eq!(head.chunk, number);
                assert!(payload.as_slice().iter().all(|byte| *byte == number as u8));
                number += 1;
            }
            Ok(Some(other)) => panic!("{other:?}"),
            Ok(None) => {}
            Err(error) => break error,
        }
    };
    closing.join().unwrap();
    assert_eq!((number, error.kind()), (40, io::ErrorKind::UnexpectedEof));
}

#[test]
fn no_wake_up_is_lost_between_two_threads() {
    const ROUNDS: u32 = 30_000;
    let (a, b) = two();
    let play = |mut end: End, begins: bool| {
        let (mut rng, mut ready, mut number) = (SmallRng(3 + u64::from(begins)), Readiness::default(), 0);
        if begins {
            end.put(0, 8);
            end.flush();
        }
        while number < ROUNDS {
            if rng.below(3) == 0 && !end.link.prepare_sleep() {
                let slept = Instant::now();
                end.poller.wait(&mut ready, LONG).unwrap();
                assert!(slept.elapsed() < LONG / 2, "it was not woken");
                end.link.handle_ready();
            }
            end.link.cancel_sleep();
            while let Some(arrival) = end.next().unwrap() {
                assert!(matches!(arrival, Arrival::Frame(head, _) if head.chunk == number));
                number += 1;
                let answer = if begins { number } else { number - 1 };
                if answer < ROUNDS {
                    end.put(answer, [8, 2000][rng.below(2)]);
                }
            }
            end.flush();
        }
        // The other end may not have read all yet.
        end
    };
    let other = std::thread::spawn(move || play(b, false));
    play(a, true);
    other.join().unwrap();
}

/// The error of the reader after the other end has written this into its memory.
fn error_after(write: impl FnOnce(&LinkDirection)) -> String {
    let (mut a, mut b) = two();
    a.put(0, 4);
    a.flush();
    b.expect(0, 4);
    write(a.link.writer.direction());
    b.next().unwrap_err().to_string()
}

fn record(body_bytes: u32, cell_bytes: u32, first: u16, count: u16) -> impl FnOnce(&LinkDirection) {
    move |direction| {
        let mut prefix = Vec::new();
        prefix.extend(body_bytes.to_le_bytes());
        prefix.extend(cell_bytes.to_le_bytes());
        prefix.extend(first.to_le_bytes());
        prefix.extend(count.to_le_bytes());
        direction.ring(128, prefix.len()).copy_from(&prefix);
        direction.word(Word::Head).store(128 + 2048, Ordering::Release);
    }
}

#[test]
fn invalid_records_are_errors() {
    for head in [u64::MAX, 0, 64, 128 + 1, 128 + limits::SHARED_RING_BYTES as u64 + 64, 1 << 40] {
        let why = error_after(|direction| direction.word(Word::Head).store(head, Ordering::Release));
        assert!(why.contains("invalid head"), "{head}: {why}");
    }
    assert!(error_after(record(5000, 0, 0, 0)).contains("too long"));
    assert!(error_after(record(u32::MAX - 1, 0, 0, 0)).contains("too long"));
    assert!(error_after(record(0, 0, 0, 0)).contains("no whole frame"));
    assert!(error_after(record(u32::MAX, 0, 0, 0)).contains("incomplete"), "it skips what is not there");
    for (first, count) in [(64, 1), (63, 2), (0, 65), (u16::MAX, u16::MAX), (0, 0)] {
        assert!(error_after(record(80, 1, first, count)).contains("do not exist"), "{first} {count}");
    }
    assert!(error_after(record(80, 0, 0, 1)).contains("does not fit"));
    assert!(error_after(record(80, 32 * 1024 + 1, 0, 1)).contains("does not fit"));
    assert!(error_after(record(80, u32::MAX, 0, 64)).contains("does not fit"));
    assert!(!error_after(record(80, 2000, 0, 1)).is_empty(), "zeros are no frame");
}

#[test]
fn cells_that_are_held_cannot_be_sent_again() {
    let (mut a, mut b) = two();
    a.put(0, 40_000);
    let held = b.expect(0, 40_000);
    // The sender gives the cells back to itself.
    a.link.writer.direction().word(Word::Returned).store(0b11, Ordering::Release);
    a.put(1, 40_000);
    assert!(b.next().unwrap_err().to_string().contains("was not released"));
    drop(held);
}

#[test]
fn a_reader_that_releases_what_it_does_not_hold_is_an_error() {
    let (mut a, b) = two();
    b.link.reader.direction().word(Word::Returned).store(1 << 9, Ordering::Release);
    a.put(0, 40_000);
    assert!(a.next().unwrap_err().to_string().contains("was not in use"));
    for tail in [u64::MAX, 1 << 30] {
        let (mut a, b) = two();
        b.link.reader.direction().word(Word::Tail).store(tail, Ordering::Release);
        let mut number = 0;
        while a.link.end.is_none() {
            a.put(number, 1000);
            number += 1;
            assert!(number < 1000);
        }
        assert!(a.next().unwrap_err().to_string().contains("more was read"));
    }
}

#[test]
fn random_memory_causes_nothing_worse_than_an_error() {
    let mut rng = SmallRng(99);
    for round in 0..200 {
        let (mut a, mut b) = two();
        let directions = [a.link.writer.direction().clone(), a.link.reader.direction().clone()];
        let mut held = Vec::new();
        for step in 0..40 {
            let words = [Word::Head, Word::Tail, Word::Returned, Word::SleepMarks];
            match rng.below(6) {
                0 => {
                    let (direction, word) = (&directions[rng.below(2)], words[rng.below(4)]);
                    let near = direction.word(Word::Head).load(Ordering::Relaxed);
                    let value = [rng.next(), near + 64 * (rng.next() % 40), rng.next() % 4096];
                    direction.word(word).store(value[rng.below(3)], Ordering::Relaxed);
                }
                1 => {
                    let mut garbage = vec![0; 16 + rng.below(100)];
                    garbage.iter_mut().for_each(|byte| *byte = [rng.next() as u8, 0][rng.below(2)]);
                    let at = 64 * rng.below((limits::SHARED_RING_BYTES - 128) / 64);
                    directions[rng.below(2)].ring(at % 4096, garbage.len()).copy_from(&garbage);
                }
                2 => a.put(step, rng.below(PAYLOAD_BYTES_MAX)),
                3 => b.put(step, rng.below(3000)),
                4 => {
                    let _ = b.link.flush(&mut Vec::new());
                    let _ = a.link.flush(&mut Vec::new());
                }
                _ => {
                    let (a_came, b_came) = (a.next(), b.next());
                    if a_came.is_err() || b_came.is_err() {
                        break;
                    }
                    held.extend([a_came, b_came].into_iter().flatten().flatten());
                    held.truncate(rng.below(8));
                }
            }
        }
        drop((a, b, round));
        // Cells outlive their link.
        for arrival in &held {
            if let Arrival::Frame(head, payload) = arrival {
                assert_eq!(payload.as_slice().len(), head.length as usize);
            }
        }
    }
}
