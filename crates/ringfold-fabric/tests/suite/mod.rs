//! The promises of media. A medium that passes all of them can be used by everything above.
//!
//! All media keep [`every_medium_promises`]. Those that queue what is put keep [`queueing_media_promise`], too, and those
//! where each end looks at what comes from the other keep [`guarded_media_promise`], even against one that lies.

#![allow(dead_code, reason = "not every medium has to do with all of it")]

pub mod blocked;

use blocked::Callers;
use std::ops::Range;
use std::thread::scope;
use std::time::{Duration, Instant};

/// Longer than anything here takes, on any machine.
pub const LONG: Duration = Duration::from_secs(30);

/// What takes milliseconds is done by then, on a loaded machine too.
pub const SOON: Duration = Duration::from_secs(5);

/// The channels that the promises are tried on.
pub const CHANNELS: [u32; 11] = [0, 1, 9, 100, 101, 102, 103, 104, 105, 106, 107];

/// Makes two connected sides over a medium.
pub trait Pair {
    /// One of the two.
    type Side: Side;
    /// What the first one is called in errors.
    const ANN: &str = "ann";
    /// And the second one.
    const BOB: &str = "bob";

    /// Ann, and Bob.
    fn pair() -> (Self::Side, Self::Side);
}

/// One of the two. When it is dropped it has left.
pub trait Side: Send + Sync {
    /// Registered memory of this side.
    type Memory: Send + Sync;
    /// Memory of the other side, as this one knows it.
    type Remote: Send + Sync;

    /// Registers memory with these bytes, aligned to words.
    fn register(&self, bytes: Vec<u8>) -> Self::Memory;
    /// What the other side is told of it.
    fn tell(&self, memory: &Self::Memory) -> Vec<u8>;
    /// What the other side has told.
    fn hear(&self, record: &[u8]) -> Self::Remote;
    /// Copies from memory of this side.
    fn read(&self, memory: &Self::Memory, at: usize, into: &mut [u8]);
    /// Copies to memory of this side.
    fn write(&self, memory: &Self::Memory, at: usize, from: &[u8]);
    /// A word of this side's memory, which the other side may set.
    fn word(&self, memory: &Self::Memory, at: usize) -> u64;

    /// Puts bytes there.
    fn put(
        &self,
        from: &Self::Memory,
        range: Range<usize>,
        to: &Self::Remote,
        at: u64,
    ) -> Result<(), Failure>;
    /// Sets a word there.
    fn set_word(&self, to: &Self::Remote, at: u64, value: u64) -> Result<(), Failure>;
    /// Signals on a channel, one of [`CHANNELS`].
    fn signal(&self, channel: u32) -> Result<(), Failure>;
    /// Waits for a signal.
    fn wait(&self, channel: u32, deadline: Instant) -> Result<(), Failure>;
    /// Takes a signal, if there is one.
    fn poll(&self, channel: u32) -> Result<bool, Failure>;
    /// Waits until our memory may be changed.
    fn flush(&self, deadline: Instant) -> Result<(), Failure>;
    /// Waits until all is where it belongs.
    fn confirm(&self, deadline: Instant) -> Result<(), Failure>;
    /// Gives it up, for both.
    fn abort(&self, why: &str);

    /// Puts, and signals on the first channel.
    fn put_with_signal(
        &self,
        from: &Self::Memory,
        range: Range<usize>,
        to: &Self::Remote,
        at: u64,
    ) -> Result<(), Failure> {
        self.put(from, range, to, at)?;
        self.signal(0)
    }
}

/// Why something did not happen, in the words of the medium.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// It was too late.
    Late(String),
    /// One of the two gave it up.
    Aborted(String),
    /// The other side is gone.
    Lost(String),
    /// The call is invalid.
    Misuse(String),
    /// Something else.
    Other(String),
}

fn soon() -> Instant {
    Instant::now() + LONG
}

/// Bytes that differ from place to place.
fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let byte = |at: u64| (at.wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    (0..bytes as u64).map(byte).collect()
}

/// Memory of one side with these bytes, and what the other side knows of it.
fn laid_open<S: Side>(side: &S, other: &S, bytes: Vec<u8>) -> (S::Memory, S::Remote) {
    let memory = side.register(bytes);
    let remote = other.hear(&side.tell(&memory));
    (memory, remote)
}

fn all<S: Side>(side: &S, memory: &S::Memory, bytes: usize) -> Vec<u8> {
    let mut got = vec![0; bytes];
    side.read(memory, 0, &mut got);
    got
}

pub fn bytes_arrive_where_they_were_put_and_nowhere_else<P: Pair>() {
    let (ann, bob) = P::pair();
    let from = ann.register(pattern(1000, 1));
    let (to, there) = laid_open(&bob, &ann, vec![0; 1000]);
    ann.put(&from, 100..200, &there, 300).unwrap();
    ann.put_with_signal(&from, 0..1, &there, 999).unwrap();
    bob.wait(0, soon()).unwrap();
    let mut expected = vec![0; 1000];
    expected[300..400].copy_from_slice(&pattern(1000, 1)[100..200]);
    expected[999] = pattern(1000, 1)[0];
    assert_eq!(all(&bob, &to, 1000), expected);
}

pub fn a_signal_comes_after_the_puts_before_it<P: Pair>() {
    let (ann, bob) = P::pair();
    let from = ann.register(pattern(200_000, 2));
    let (to, there) = laid_open(&bob, &ann, vec![0; 200_000]);
    for round in 0..200 {
        // Each round overwrites the last one, and its last bytes are written last.
        let bytes = 1 + round * 997;
        ann.put(&from, round..round + bytes, &there, 0).unwrap();
        ann.put(&from, 0..1, &there, bytes as u64 - 1).unwrap();
        ann.signal(0).unwrap();
        bob.wait(0, soon()).unwrap();
        let mut got = vec![0; bytes];
        bob.read(&to, 0, &mut got);
        let whole = pattern(200_000, 2);
        assert_eq!(got[..bytes - 1], whole[round..round + bytes - 1], "round {round}");
        assert_eq!(got[bytes - 1], whole[0], "round {round}");
        bob.signal(0).unwrap();
        ann.wait(0, soon()).unwrap();
    }
}

pub fn a_later_put_wins_over_an_earlier_one<P: Pair>() {
    let (ann, bob) = P::pair();
    let size = 600_000;
    let memories: Vec<_> = (0..20).map(|seed| ann.register(vec![seed; size])).collect();
    let (to, there) = laid_open(&bob, &ann, vec![99; size]);
    for memory in &memories {
        ann.put(memory, 0..size, &there, 0).unwrap();
    }
    ann.signal(0).unwrap();
    bob.wait(0, soon()).unwrap();
    assert!(all(&bob, &to, size).iter().all(|byte| *byte == 19));
}

pub fn signals_are_counted_and_channels_do_not_mix<P: Pair>() {
    let (ann, bob) = P::pair();
    for _ in 0..1000 {
        ann.signal(0).unwrap();
    }
    ann.signal(1).unwrap();
    for _ in 0..1000 {
        bob.wait(0, soon()).unwrap();
    }
    bob.wait(1, soon()).unwrap();
    assert!(!bob.poll(0).unwrap());
    assert!(!bob.poll(1).unwrap());
}

pub fn a_word_comes_behind_the_puts_before_it_and_is_never_torn<P: Pair>() {
    let (ann, bob) = P::pair();
    let (to, there) = laid_open(&bob, &ann, vec![0; 4096]);
    let from = ann.register(pattern(4096, 5));
    scope(|scope| {
        let reader = scope.spawn(|| {
            let (end, mut last) = (soon(), 0);
            while last & 0xffff < 2000 {
                let word = bob.word(&to, 8);
                // All four parts of it are the same number.
                assert!([16, 32, 48].iter().all(|by| word >> by & 0xffff == word & 0xffff), "{word:016x}");
                assert!(word & 0xffff >= last & 0xffff, "words overtook each other");
                last = word;
                assert!(Instant::now() < end, "only {last:016x} came");
            }
        });
        for number in 1..=2000_u64 {
            ann.put(&from, 0..100, &there, 1000).unwrap();
            ann.set_word(&there, 8, number * 0x0001_0001_0001_0001).unwrap();
        }
        reader.join().unwrap();
    });
    let mut got = [0; 100];
    bob.read(&to, 1000, &mut got);
    assert_eq!(got[..], pattern(4096, 5)[..100]);
    let refused = [ann.set_word(&there, 4089, 1), ann.set_word(&there, u64::MAX - 3, 1)];
    for refused in refused {
        assert!(matches!(refused, Err(Failure::Misuse(_))), "{refused:?}");
    }
}

pub fn what_was_confirmed_is_there_without_a_call_of_the_other_side<P: Pair>() {
    let (ann, bob) = P::pair();
    let size = 3_000_001;
    let (to, there) = laid_open(&bob, &ann, vec![0; size]);
    for round in 1..=10 {
        let from = ann.register(vec![round; size]);
        ann.put(&from, 0..size, &there, 0).unwrap();
        ann.confirm(soon()).unwrap();
        assert!(all(&bob, &to, size).iter().all(|byte| *byte == round), "round {round}");
    }
}

pub fn after_a_flush_memory_may_be_reused<P: Pair>() {
    let (ann, bob) = P::pair();
    let size = 1 << 20;
    let (to, there) = laid_open(&bob, &ann, vec![0; 8 * size]);
    let from = ann.register(vec![0; size]);
    for round in 0..8u8 {
        ann.write(&from, 0, &vec![round + 1; size]);
        ann.put(&from, 0..size, &there, u64::from(round) * size as u64).unwrap();
        ann.flush(soon()).unwrap();
    }
    ann.write(&from, 0, &vec![77; size]);
    ann.signal(0).unwrap();
    bob.wait(0, soon()).unwrap();
    for (round, chunk) in all(&bob, &to, 8 * size).chunks(size).enumerate() {
        assert!(chunk.iter().all(|byte| usize::from(*byte) == round + 1), "round {round}");
    }
}

pub fn puts_may_be_larger_than_any_buffer<P: Pair>() {
    let (ann, bob) = P::pair();
    let size = 48_000_001;
    let from = ann.register(pattern(size, 3));
    let (to, there) = laid_open(&bob, &ann, vec![0; size]);
    let begun = Instant::now();
    ann.put_with_signal(&from, 0..size, &there, 0).unwrap();
    bob.wait(0, soon()).unwrap();
    let rate = size as f64 / begun.elapsed().as_secs_f64() / 1e9;
    println!("one put of {size} bytes: {rate:.2} GB/s");
    assert!(all(&bob, &to, size) == pattern(size, 3));
    ann.flush(soon()).unwrap();
}

pub fn nothing_can_be_put<P: Pair>() {
    let (ann, bob) = P::pair();
    let from = ann.register(vec![0; 1]);
    let (to, there) = laid_open(&bob, &ann, vec![5; 10]);
    ann.put(&from, 0..0, &there, 10).unwrap();
    ann.put_with_signal(&from, 1..1, &there, 0).unwrap();
    ann.flush(soon()).unwrap();
    bob.wait(0, soon()).unwrap();
    assert_eq!(all(&bob, &to, 10), [5; 10]);
}

pub fn what_is_out_of_bounds_is_refused_before_it_is_sent<P: Pair>() {
    let (ann, bob) = P::pair();
    let from = ann.register(vec![1; 100]);
    let (to, there) = laid_open(&bob, &ann, vec![0; 64]);
    let refused = [
        ann.put(&from, 0..10, &there, 60),
        ann.put(&from, 0..10, &there, u64::MAX - 4),
        ann.put(&from, 90..101, &there, 0),
    ];
    for refused in refused {
        assert!(matches!(refused, Err(Failure::Misuse(_))), "{refused:?}");
    }
    // And nothing is broken.
    ann.put_with_signal(&from, 0..1, &there, 63).unwrap();
    bob.wait(0, soon()).unwrap();
    let got = all(&bob, &to, 64);
    assert_eq!((&got[..63], got[63]), (&[0; 63][..], 1));
}

pub fn a_wait_ends_by_its_deadline_and_names_whom_it_waited_for<P: Pair>() {
    let (ann, bob) = P::pair();
    let begun = Instant::now();
    let error = ann.wait(0, begun + Duration::from_millis(50)).unwrap_err();
    assert!(matches!(&error, Failure::Late(words) if words.contains(P::BOB)), "{error:?}");
    assert!((Duration::from_millis(50)..SOON).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    // And nothing is broken.
    bob.signal(0).unwrap();
    ann.wait(0, soon()).unwrap();
}

pub fn an_abort_unblocks_every_waiter_on_both_sides<P: Pair>() {
    let (ann, bob) = P::pair();
    let (waiters, callers) = ([(&bob, 0), (&bob, 9), (&bob, 0), (&ann, 0)], Callers::default());
    scope(|scope| {
        let callers = &callers;
        let waits = waiters.map(|(side, on)| {
            scope.spawn(move || {
                callers.add();
                (side.wait(on, soon()), Instant::now())
            })
        });
        callers.await_waiting(4);
        let begun = Instant::now();
        ann.abort("enough");
        for wait in waits {
            let (result, at) = wait.join().unwrap();
            assert!(matches!(&result, Err(Failure::Aborted(why)) if why.contains("enough")), "{result:?}");
            assert!(at.duration_since(begun) < SOON, "{:?}", at.duration_since(begun));
        }
    });
    assert!(bob.signal(0).is_err() && ann.signal(0).is_err());
}

pub fn a_lost_peer_unblocks_and_what_arrived_before_counts<P: Pair>() {
    let (ann, bob) = P::pair();
    let from = ann.register(pattern(5_000_000, 4));
    let (to, there) = laid_open(&bob, &ann, vec![0; 5_000_000]);
    scope(|scope| {
        let wait = scope.spawn(|| {
            bob.wait(0, soon()).unwrap();
            assert!(all(&bob, &to, 5_000_000) == pattern(5_000_000, 4));
            (bob.wait(0, soon()), Instant::now())
        });
        ann.put_with_signal(&from, 0..5_000_000, &there, 0).unwrap();
        drop(ann);
        let begun = Instant::now();
        let (result, at) = wait.join().unwrap();
        assert!(matches!(&result, Err(Failure::Lost(words)) if words.contains(P::ANN)), "{result:?}");
        assert!(at.saturating_duration_since(begun) < SOON);
    });
    assert!(matches!(bob.flush(soon()), Err(Failure::Lost(_))));
}

pub fn both_directions_at_once_do_not_block_each_other<P: Pair>() {
    let (ann, bob) = P::pair();
    let size = 24 << 20;
    fn work<S: Side>(me: &S, ours: &S::Memory, theirs: &S::Remote, size: usize) {
        let from = me.register(pattern(size, 7));
        let begun = Instant::now();
        for _ in 0..4 {
            me.put_with_signal(&from, 0..size, theirs, 0).unwrap();
        }
        for _ in 0..4 {
            me.wait(0, soon()).unwrap();
        }
        me.flush(soon()).unwrap();
        println!("both ways: {:.2} GB/s each", 4.0 * size as f64 / begun.elapsed().as_secs_f64() / 1e9);
        assert!(all(me, ours, size) == pattern(size, 7));
    }
    let (hers, at_her) = laid_open(&ann, &bob, vec![0; size]);
    let (his, at_him) = laid_open(&bob, &ann, vec![0; size]);
    scope(|scope| {
        scope.spawn(|| work(&ann, &hers, &at_him, size));
        scope.spawn(|| work(&bob, &his, &at_her, size));
    });
}

pub fn progress_needs_nobody_who_waits<P: Pair>() {
    let (ann, bob) = P::pair();
    let size = 16 << 20;
    let from = ann.register(vec![1; size]);
    let (to, there) = laid_open(&bob, &ann, vec![0; size]);
    ann.put(&from, 0..size, &there, 0).unwrap();
    let end = soon();
    let mut last = [0];
    while last == [0] && Instant::now() < end {
        bob.read(&to, size - 1, &mut last);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(last, [1], "although neither side waited");
}

pub fn ping_pong_ten_thousand_times<P: Pair>() {
    let (ann, bob) = P::pair();
    let rounds = 10_000u64;
    let (hers, at_her) = laid_open(&ann, &bob, vec![0; 8]);
    let (his, at_him) = laid_open(&bob, &ann, vec![0; 8]);
    let (source, echo) = (ann.register(vec![0; 8]), bob.register(vec![0; 8]));
    scope(|scope| {
        scope.spawn(|| {
            let mut ball = [0; 8];
            for _ in 0..rounds {
                bob.wait(0, soon()).unwrap();
                bob.read(&his, 0, &mut ball);
                bob.write(&echo, 0, &ball);
                bob.put_with_signal(&echo, 0..8, &at_her, 0).unwrap();
            }
        });
        let begun = Instant::now();
        for round in 0..rounds {
            ann.write(&source, 0, &round.to_le_bytes());
            ann.put_with_signal(&source, 0..8, &at_him, 0).unwrap();
            ann.wait(0, soon()).unwrap();
            let mut ball = [0; 8];
            ann.read(&hers, 0, &mut ball);
            assert_eq!(u64::from_le_bytes(ball), round);
        }
        println!("ping-pong: {:?} there and back", begun.elapsed() / rounds as u32);
    });
}

pub fn many_threads_share_a_connection<P: Pair>() {
    let (ann, bob) = P::pair();
    let (to, there) = laid_open(&bob, &ann, vec![0; 8 * 100_000]);
    scope(|scope| {
        for number in 0..8u32 {
            let (ann, bob, there) = (&ann, &bob, &there);
            scope.spawn(move || {
                let from = ann.register(vec![number as u8 + 1; 100_000]);
                for _ in 0..50 {
                    ann.put(&from, 0..100_000, there, u64::from(number) * 100_000).unwrap();
                    ann.signal(100 + number).unwrap();
                    ann.flush(soon()).unwrap();
                }
            });
            scope.spawn(move || (0..50).for_each(|_| bob.wait(100 + number, soon()).unwrap()));
        }
    });
    for (number, chunk) in all(&bob, &to, 8 * 100_000).chunks(100_000).enumerate() {
        assert!(chunk.iter().all(|byte| usize::from(*byte) == number + 1));
    }
}

/// Waits until the first byte of memory is no longer 0: the other side has begun to send.
fn await_first_byte<S: Side>(side: &S, memory: &S::Memory) {
    let (end, mut first) = (soon(), [0]);
    while first == [0] {
        assert!(Instant::now() < end, "nothing arrives");
        std::thread::sleep(Duration::from_millis(1));
        side.read(memory, 0, &mut first);
    }
}

pub fn an_abort_does_not_queue_behind_data<P: Pair>() {
    let (ann, bob) = P::pair();
    let size = 32 << 20;
    let from = ann.register(vec![1; size]);
    let (to, there) = laid_open(&bob, &ann, vec![0; size]);
    // Far more than can be sent in the time that an abort may take.
    for _ in 0..2000 {
        ann.put(&from, 0..size, &there, 0).unwrap();
    }
    let callers = Callers::default();
    scope(|scope| {
        let wait = scope.spawn(|| {
            callers.add();
            (bob.wait(0, soon()), Instant::now())
        });
        let flush = scope.spawn(|| {
            callers.add();
            (ann.flush(soon()), Instant::now())
        });
        callers.await_added(2);
        await_first_byte(&bob, &to);
        let begun = Instant::now();
        ann.abort("changed my mind");
        for waiter in [wait, flush] {
            let (result, at) = waiter.join().unwrap();
            assert!(
                matches!(&result, Err(Failure::Aborted(why)) if why.contains("changed my mind")),
                "{result:?}"
            );
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
    let (to, there) = laid_open(&bob, &ann, vec![0; size]);
    for _ in 0..2000 {
        ann.put(&from, 0..size, &there, 0).unwrap();
    }
    let callers = Callers::default();
    scope(|scope| {
        let flush = scope.spawn(|| {
            callers.add();
            ann.flush(soon())
        });
        callers.await_added(1);
        await_first_byte(&bob, &to);
        let begun = Instant::now();
        bob.abort(&"no more ".repeat(1000));
        let result = flush.join().unwrap();
        let Err(Failure::Aborted(why)) = &result else { panic!("{result:?}") };
        assert!(why.contains("no more") && why.len() <= 1100, "{result:?}");
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    });
}

/// Sides whose other end can be told something else than the truth.
pub trait Guarded: Pair {
    /// The same record, with another size in it.
    fn forged(record: &[u8], bytes: u64) -> Vec<u8>;
}

pub fn one_that_lies_about_bounds_is_found_out_at_the_other_end<P: Guarded>() {
    let (ann, bob) = P::pair();
    let from = ann.register(vec![1; 100]);
    let (before, to, behind) =
        (bob.register(vec![0; 64]), bob.register(vec![0; 64]), bob.register(vec![0; 64]));
    let forged = ann.hear(&P::forged(&bob.tell(&to), 1 << 40));
    ann.put(&from, 0..10, &forged, 60).unwrap();
    for side in [&bob, &ann] {
        let error = side.wait(0, soon()).unwrap_err();
        let Failure::Aborted(why) = &error else { panic!("{error:?}") };
        assert!(why.contains("outside of") && why.contains("10 bytes at 60"), "{why}");
    }
    assert!(ann.signal(0).is_err());
    for memory in [&before, &to, &behind] {
        assert_eq!(all(&bob, memory, 64), [0; 64]);
    }
}

pub fn words_beyond_the_end_or_unaligned_are_found_out_at_the_other_end<P: Guarded>() {
    for at in [60, 64, 1 << 39] {
        let (ann, bob) = P::pair();
        let (to, behind) = (bob.register(vec![0; 64]), bob.register(vec![0; 64]));
        let forged = ann.hear(&P::forged(&bob.tell(&to), 1 << 40));
        // One side may refuse what the other would not take.
        if ann.set_word(&forged, at, u64::MAX).is_ok() {
            assert!(matches!(bob.wait(0, soon()), Err(Failure::Aborted(_))));
        }
        for memory in [&to, &behind] {
            assert_eq!(all(&bob, memory, 64), [0; 64]);
        }
    }
}

pub fn what_is_no_longer_registered_is_refused<P: Pair>() {
    let (ann, bob) = P::pair();
    let from = ann.register(vec![1; 100]);
    let (to, there) = laid_open(&bob, &ann, vec![0; 100]);
    drop(to);
    ann.put(&from, 0..10, &there, 0).unwrap();
    let error = ann.wait(0, soon()).unwrap_err();
    let Failure::Aborted(why) = &error else { panic!("{error:?}") };
    assert!(why.contains("not registered"), "{why}");
}

/// What all media promise, as tests of one of them.
macro_rules! every_medium_promises {
    ($name:ident, $pair:ty $(, if $is_there:expr)?) => {
        suite::promises!($name, $pair $(, if $is_there)?;
            bytes_arrive_where_they_were_put_and_nowhere_else
            a_signal_comes_after_the_puts_before_it
            a_later_put_wins_over_an_earlier_one
            signals_are_counted_and_channels_do_not_mix
            a_word_comes_behind_the_puts_before_it_and_is_never_torn
            what_was_confirmed_is_there_without_a_call_of_the_other_side
            after_a_flush_memory_may_be_reused
            puts_may_be_larger_than_any_buffer
            nothing_can_be_put
            what_is_out_of_bounds_is_refused_before_it_is_sent
            a_wait_ends_by_its_deadline_and_names_whom_it_waited_for
            an_abort_unblocks_every_waiter_on_both_sides
            a_lost_peer_unblocks_and_what_arrived_before_counts
            both_directions_at_once_do_not_block_each_other
            progress_needs_nobody_who_waits
            ping_pong_ten_thousand_times
            many_threads_share_a_connection
        );
    };
}
pub(crate) use every_medium_promises;

/// What media promise that send what is put later.
macro_rules! queueing_media_promise {
    ($name:ident, $pair:ty) => {
        suite::promises!($name, $pair;
            an_abort_does_not_queue_behind_data
            the_side_that_receives_can_abort_too
        );
    };
}
pub(crate) use queueing_media_promise;

/// What media promise where each end looks at what the other one does.
macro_rules! guarded_media_promise {
    ($name:ident, $pair:ty) => {
        suite::promises!($name, $pair;
            one_that_lies_about_bounds_is_found_out_at_the_other_end
            words_beyond_the_end_or_unaligned_are_found_out_at_the_other_end
            what_is_no_longer_registered_is_refused
        );
    };
}
pub(crate) use guarded_media_promise;

/// Promises as tests, which are skipped where a medium is not to be had.
macro_rules! promises {
    ($name:ident, $pair:ty $(, if $is_there:expr)?; $($promise:ident)*) => {
        mod $name {
            use super::*;
            suite::promises!(@ $pair, ($($is_there)?): $($promise)*);
        }
    };
    (@ $pair:ty, (): $($promise:ident)*) => {
        $(#[test] fn $promise() { suite::$promise::<$pair>(); })*
    };
    (@ $pair:ty, ($is_there:expr): $($promise:ident)*) => {
        $(#[test] fn $promise() { if $is_there { suite::$promise::<$pair>(); } })*
    };
}
pub(crate) use promises;
