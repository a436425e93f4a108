//! The promises of media. A medium that passes all of them can be used by everything above.

use ringfold_fabric::channel::{Channel, ChannelError, ChannelId, Connection, Endpoint, Handle, Segment};
use ringfold_fabric::memory::Memory;
use std::thread::scope;
use std::time::{Duration, Instant};

/// Longer than anything here takes, on any machine.
pub const LONG: Duration = Duration::from_secs(30);

/// What takes milliseconds is done by then, on a loaded machine too.
pub const SOON: Duration = Duration::from_secs(5);

/// Makes two connected endpoints over a medium; they are called "ann" and "bob".
pub trait Pair {
    /// Ann, and Bob.
    fn pair() -> (Side, Side);
}

/// One of the two.
pub struct Side {
    // Dropped in this order: the connection ends before its endpoint.
    pub channel: Channel,
    pub connection: Connection,
    pub endpoint: Endpoint,
}

impl Side {
    /// With its first channel.
    pub fn new(endpoint: Endpoint, connection: Connection) -> Self {
        Self { channel: connection.channel(ChannelId(0)), connection, endpoint }
    }

    fn register(&self, bytes: Vec<u8>) -> Segment {
        self.endpoint.register(Memory::from(bytes)).unwrap()
    }
}

fn soon() -> Instant {
    Instant::now() + LONG
}

/// Bytes that differ from place to place.
fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let byte = |at: u64| (at.wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    (0..bytes as u64).map(byte).collect()
}

fn all(segment: &Segment) -> Vec<u8> {
    let mut bytes = vec![0; segment.len()];
    segment.read(0, &mut bytes).unwrap();
    bytes
}

pub fn bytes_arrive_where_they_were_put_and_nowhere_else<P: Pair>() {
    let (ann, bob) = P::pair();
    let from = ann.register(pattern(1000, 1));
    let to = bob.register(vec![0; 1000]);
    let handle = Handle::decode(&to.handle().encode());
    ann.channel.put(from.part(100..200).unwrap(), handle.at(300)).unwrap();
    ann.channel.put_with_signal(from.part(0..1).unwrap(), handle.at(999)).unwrap();
    bob.channel.wait(soon()).unwrap();
    let mut expected = vec![0; 1000];
    expected[300..400].copy_from_slice(&pattern(1000, 1)[100..200]);
    expected[999] = pattern(1000, 1)[0];
    assert_eq!(all(&to), expected);
}

pub fn a_signal_comes_after_the_puts_before_it<P: Pair>() {
    let (ann, bob) = P::pair();
    let from = ann.register(pattern(200_000, 2));
    let to = bob.register(vec![0; 200_000]);
    for round in 0..200 {
        // Each round overwrites the last one, and its last bytes are written last.
        let bytes = 1 + round * 997;
        ann.channel.put(from.part(round..round + bytes).unwrap(), to.handle().at(0)).unwrap();
        ann.channel.put(from.part(0..1).unwrap(), to.handle().at(bytes as u64 - 1)).unwrap();
        ann.channel.signal().unwrap();
        bob.channel.wait(soon()).unwrap();
        let mut got = vec![0; bytes];
        to.read(0, &mut got).unwrap();
        let whole = pattern(200_000, 2);
        assert_eq!(got[..bytes - 1], whole[round..round + bytes - 1], "round {round}");
        assert_eq!(got[bytes - 1], whole[0], "round {round}");
        bob.channel.signal().unwrap();
        ann.channel.wait(soon()).unwrap();
    }
}

pub fn a_later_put_wins_over_an_earlier_one<P: Pair>() {
    let (ann, bob) = P::pair();
    let size = 600_000;
    let segments: Vec<_> = (0..20).map(|seed| ann.register(vec![seed; size])).collect();
    let to = bob.register(vec![99; size]);
    for segment in &segments {
        ann.channel.put(segment.part(0..size).unwrap(), to.handle().at(0)).unwrap();
    }
    ann.channel.signal().unwrap();
    bob.channel.wait(soon()).unwrap();
    assert!(all(&to).iter().all(|byte| *byte == 19));
}

pub fn signals_are_counted_and_channels_do_not_mix<P: Pair>() {
    let (ann, bob) = P::pair();
    let (one, two) = (ann.connection.channel(ChannelId(1)), bob.connection.channel(ChannelId(1)));
    for _ in 0..1000 {
        ann.channel.signal().unwrap();
    }
    one.signal().unwrap();
    for _ in 0..1000 {
        bob.channel.wait(soon()).unwrap();
    }
    two.wait(soon()).unwrap();
    assert!(!bob.channel.poll().unwrap());
    assert!(!two.poll().unwrap());
}

pub fn after_a_flush_memory_may_be_reused<P: Pair>() {
    let (ann, bob) = P::pair();
    let size = 1 << 20;
    let to = bob.register(vec![0; 8 * size]);
    let from = ann.register(vec![0; size]);
    for round in 0..8u8 {
        from.write(0, &vec![round + 1; size]).unwrap();
        let place = to.handle().at(u64::from(round) * size as u64);
        ann.channel.put(from.part(0..size).unwrap(), place).unwrap();
        ann.channel.flush(soon()).unwrap();
    }
    from.write(0, &vec![77; size]).unwrap();
    ann.channel.signal().unwrap();
    bob.channel.wait(soon()).unwrap();
    for (round, chunk) in all(&to).chunks(size).enumerate() {
        assert!(chunk.iter().all(|byte| usize::from(*byte) == round + 1), "round {round}");
    }
}

pub fn puts_may_be_larger_than_any_buffer<P: Pair>() {
    let (ann, bob) = P::pair();
    let size = 48_000_001;
    let from = ann.register(pattern(size, 3));
    let to = bob.register(vec![0; size]);
    let begun = Instant::now();
    ann.channel.put_with_signal(from.part(0..size).unwrap(), to.handle().at(0)).unwrap();
    bob.channel.wait(soon()).unwrap();
    let rate = size as f64 / begun.elapsed().as_secs_f64() / 1e9;
    println!("one put of {size} bytes: {rate:.2} GB/s");
    assert!(all(&to) == pattern(size, 3));
    ann.channel.flush(soon()).unwrap();
}

pub fn nothing_can_be_put<P: Pair>() {
    let (ann, bob) = P::pair();
    let from = ann.register(Vec::new());
    let to = bob.register(vec![5; 10]);
    ann.channel.put(from.part(0..0).unwrap(), to.handle().at(10)).unwrap();
    ann.channel.put_with_signal(from.part(0..0).unwrap(), to.handle().at(0)).unwrap();
    ann.channel.flush(soon()).unwrap();
    bob.channel.wait(soon()).unwrap();
    assert_eq!(all(&to), [5; 10]);
}

pub fn what_is_out_of_bounds_is_refused_and_said<P: Pair>() {
    let (ann, bob) = P::pair();
    let from = ann.register(vec![1; 100]);
    let (before, to, behind) =
        (bob.register(vec![0; 64]), bob.register(vec![0; 64]), bob.register(vec![0; 64]));
    // Whoever has the true handle is stopped before anything is sent.
    let refused = ann.channel.put(from.part(0..10).unwrap(), to.handle().at(60));
    assert!(matches!(refused, Err(ChannelError::Misuse(_))), "{refused:?}");
    assert!(matches!(from.part(90..101), Err(ChannelError::Misuse(_))));
    // One that lies about its size gets through, as far as the other end.
    let mut forged = to.handle().encode();
    forged[8..].copy_from_slice(&u64::MAX.to_le_bytes());
    ann.channel.put_with_signal(from.part(0..10).unwrap(), Handle::decode(&forged).at(60)).unwrap();
    for side in [&bob, &ann] {
        let error = side.channel.wait(soon()).unwrap_err();
        let ChannelError::Aborted { by, why } = &error else { panic!("{error}") };
        assert_eq!(by, "bob");
        assert!(why.contains("outside of") && why.contains("10 bytes at 60"), "{why}");
    }
    assert!(ann.channel.signal().is_err());
    for segment in [&before, &to, &behind] {
        assert_eq!(all(segment), [0; 64]);
    }
}

pub fn what_is_no_longer_registered_is_refused<P: Pair>() {
    let (ann, bob) = P::pair();
    let from = ann.register(vec![1; 100]);
    let handle = bob.register(vec![0; 100]).handle();
    ann.channel.put(from.part(0..10).unwrap(), handle.at(0)).unwrap();
    let error = ann.channel.wait(soon()).unwrap_err();
    assert!(error.to_string().contains("not registered"), "{error}");
}

pub fn a_wait_ends_by_its_deadline_and_names_whom_it_waited_for<P: Pair>() {
    let (ann, bob) = P::pair();
    let begun = Instant::now();
    let error = ann.channel.wait(begun + Duration::from_millis(50)).unwrap_err();
    assert_eq!(error, ChannelError::Deadline { peer: "bob".into(), awaited: "signal" });
    assert!((Duration::from_millis(50)..SOON).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    // And nothing is broken.
    bob.channel.signal().unwrap();
    ann.channel.wait(soon()).unwrap();
}

pub fn an_abort_unblocks_every_waiter_on_both_sides<P: Pair>() {
    let (ann, bob) = P::pair();
    let other = bob.connection.channel(ChannelId(9));
    let waiters = [&bob.channel, &other, &bob.channel, &ann.channel];
    scope(|scope| {
        let waits = waiters.map(|channel| scope.spawn(|| (channel.wait(soon()), Instant::now())));
        std::thread::sleep(Duration::from_millis(50));
        let begun = Instant::now();
        ann.channel.abort("enough");
        for wait in waits {
            let (result, at) = wait.join().unwrap();
            assert_eq!(result, Err(ChannelError::Aborted { by: "ann".into(), why: "enough".into() }));
            assert!(at.duration_since(begun) < SOON, "{:?}", at.duration_since(begun));
        }
    });
    assert!(bob.channel.signal().is_err() && ann.channel.signal().is_err());
}

pub fn an_abort_does_not_queue_behind_data<P: Pair>() {
    let (ann, bob) = P::pair();
    let size = 32 << 20;
    let from = ann.register(vec![1; size]);
    let to = bob.register(vec![0; size]);
    // Far more than can be sent in the time that an abort may take.
    for _ in 0..2000 {
        ann.channel.put(from.part(0..size).unwrap(), to.handle().at(0)).unwrap();
    }
    scope(|scope| {
        let wait = scope.spawn(|| (bob.channel.wait(soon()), Instant::now()));
        let flush = scope.spawn(|| (ann.channel.flush(soon()), Instant::now()));
        std::thread::sleep(Duration::from_millis(50));
        let begun = Instant::now();
        ann.channel.abort("changed my mind");
        for waiter in [wait, flush] {
            let (result, at) = waiter.join().unwrap();
            let expected = ChannelError::Aborted { by: "ann".into(), why: "changed my mind".into() };
            assert_eq!(result, Err(expected));
            let took = at.duration_since(begun);
            println!("an abort with 60 GB queued took {took:?}");
            assert!(took < SOON, "{took:?}");
        }
    });
}

pub fn the_side_that_receives_can_abort_too<P: Pair>() {
    let (ann, bob) = P::pair();
    let size = 32 << 20;
    let from = ann.register(vec![1; size]);
    let to = bob.register(vec![0; size]);
    for _ in 0..2000 {
        ann.channel.put(from.part(0..size).unwrap(), to.handle().at(0)).unwrap();
    }
    scope(|scope| {
        let flush = scope.spawn(|| ann.channel.flush(soon()));
        std::thread::sleep(Duration::from_millis(50));
        let begun = Instant::now();
        bob.channel.abort(&"no more ".repeat(1000));
        let result = flush.join().unwrap();
        let Err(ChannelError::Aborted { by, why }) = &result else { panic!("{result:?}") };
        assert!(by == "bob" && why.starts_with("no more") && why.len() <= 1024, "{result:?}");
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    });
}

pub fn a_lost_peer_unblocks_and_what_arrived_before_counts<P: Pair>() {
    let (ann, bob) = P::pair();
    let from = ann.register(pattern(5_000_000, 4));
    let to = bob.register(vec![0; 5_000_000]);
    let place = to.handle().at(0);
    scope(|scope| {
        let wait = scope.spawn(|| {
            bob.channel.wait(soon()).unwrap();
            assert!(all(&to) == pattern(5_000_000, 4));
            (bob.channel.wait(soon()), Instant::now())
        });
        ann.channel.put_with_signal(from.part(0..5_000_000).unwrap(), place).unwrap();
        drop(ann);
        let begun = Instant::now();
        let (result, at) = wait.join().unwrap();
        assert!(matches!(&result, Err(ChannelError::Lost { peer, .. }) if peer == "ann"), "{result:?}");
        assert!(at.duration_since(begun) < SOON, "{:?}", at.duration_since(begun));
    });
    assert!(matches!(bob.channel.flush(soon()), Err(ChannelError::Lost { .. })));
}

pub fn both_directions_at_once_do_not_block_each_other<P: Pair>() {
    let (ann, bob) = P::pair();
    let size = 24 << 20;
    let work = |me: &Side, mine: Segment, theirs: Handle| {
        let (ours, from) = (mine, me.register(pattern(size, 7)));
        let begun = Instant::now();
        for _ in 0..4 {
            me.channel.put_with_signal(from.part(0..size).unwrap(), theirs.at(0)).unwrap();
        }
        for _ in 0..4 {
            me.channel.wait(soon()).unwrap();
        }
        me.channel.flush(soon()).unwrap();
        println!("both ways: {:.2} GB/s each", 4.0 * size as f64 / begun.elapsed().as_secs_f64() / 1e9);
        assert!(all(&ours) == pattern(size, 7));
    };
    let (hers, his) = (ann.register(vec![0; size]), bob.register(vec![0; size]));
    let (at_her, at_him) = (hers.handle(), his.handle());
    scope(|scope| {
        scope.spawn(|| work(&ann, hers, at_him));
        scope.spawn(|| work(&bob, his, at_her));
    });
}

pub fn progress_needs_nobody_who_waits<P: Pair>() {
    let (ann, bob) = P::pair();
    let size = 16 << 20;
    let from = ann.register(vec![1; size]);
    let to = bob.register(vec![0; size]);
    ann.channel.put(from.part(0..size).unwrap(), to.handle().at(0)).unwrap();
    let end = soon();
    let mut last = [0];
    while last == [0] && Instant::now() < end {
        to.read(size - 1, &mut last).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(last, [1], "although neither side waited");
}

pub fn ping_pong_ten_thousand_times<P: Pair>() {
    let (ann, bob) = P::pair();
    let rounds = 10_000u64;
    let (hers, his) = (ann.register(vec![0; 8]), bob.register(vec![0; 8]));
    let (source, echo) = (ann.register(vec![0; 8]), bob.register(vec![0; 8]));
    let (at_her, at_him) = (hers.handle(), his.handle());
    scope(|scope| {
        scope.spawn(|| {
            let mut ball = [0; 8];
            for _ in 0..rounds {
                bob.channel.wait(soon()).unwrap();
                his.read(0, &mut ball).unwrap();
                echo.write(0, &ball).unwrap();
                bob.channel.put_with_signal(echo.part(0..8).unwrap(), at_her.at(0)).unwrap();
            }
        });
        let begun = Instant::now();
        for round in 0..rounds {
            source.write(0, &round.to_le_bytes()).unwrap();
            ann.channel.put_with_signal(source.part(0..8).unwrap(), at_him.at(0)).unwrap();
            ann.channel.wait(soon()).unwrap();
            let mut ball = [0; 8];
            hers.read(0, &mut ball).unwrap();
            assert_eq!(u64::from_le_bytes(ball), round);
        }
        println!("ping-pong: {:?} there and back", begun.elapsed() / rounds as u32);
    });
}

pub fn many_threads_share_a_connection<P: Pair>() {
    let (ann, bob) = P::pair();
    let to = bob.register(vec![0; 8 * 100_000]);
    let place = to.handle();
    scope(|scope| {
        for number in 0..8u32 {
            let (ann, bob) = (&ann, &bob);
            scope.spawn(move || {
                let channel = ann.connection.channel(ChannelId(100 + number));
                let from = ann.register(vec![number as u8 + 1; 100_000]);
                for _ in 0..50 {
                    let at = place.at(u64::from(number) * 100_000);
                    channel.put_with_signal(from.part(0..100_000).unwrap(), at).unwrap();
                    channel.flush(soon()).unwrap();
                }
            });
            scope.spawn(move || {
                let channel = bob.connection.channel(ChannelId(100 + number));
                (0..50).for_each(|_| channel.wait(soon()).unwrap());
            });
        }
    });
    for (number, chunk) in all(&to).chunks(100_000).enumerate() {
        assert!(chunk.iter().all(|byte| usize::from(*byte) == number + 1));
    }
}

/// All promises, as tests of one medium.
macro_rules! every_medium_promises {
    ($name:ident, $pair:ty) => {
        suite::every_medium_promises!(@ $name, $pair:
            bytes_arrive_where_they_were_put_and_nowhere_else
            a_signal_comes_after_the_puts_before_it
            a_later_put_wins_over_an_earlier_one
            signals_are_counted_and_channels_do_not_mix
            after_a_flush_memory_may_be_reused
            puts_may_be_larger_than_any_buffer
            nothing_can_be_put
            what_is_out_of_bounds_is_refused_and_said
            what_is_no_longer_registered_is_refused
            a_wait_ends_by_its_deadline_and_names_whom_it_waited_for
            an_abort_unblocks_every_waiter_on_both_sides
            an_abort_does_not_queue_behind_data
            the_side_that_receives_can_abort_too
            a_lost_peer_unblocks_and_what_arrived_before_counts
            both_directions_at_once_do_not_block_each_other
            progress_needs_nobody_who_waits
            ping_pong_ten_thousand_times
            many_threads_share_a_connection
        );
    };
    (@ $name:ident, $pair:ty: $($promise:ident)*) => {
        mod $name {
            use super::*;
            $(#[test] fn $promise() { suite::$promise::<$pair>(); })*
        }
    };
}
pub(crate) use every_medium_promises;
