use super::*;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);
/// Set in the cached tail while a kernel reads the tail.
const READ_BIT: u64 = 1 << 63;

fn trigger(number: u64) -> Trigger {
    // The lap bit of a pushed trigger is ignored, and a word of zeros is valid.
    Trigger { fst: number, snd: if number.is_multiple_of(3) { 0 } else { number | LAP_BIT } }
}

/// Pushes like a kernel: takes a position, then waits for room. One of the waiting threads reads the tail for all.
fn push_like_a_kernel(fifo: &Fifo, trigger: Trigger) -> u64 {
    let ProducerCounters::Host(counters) = &fifo.producers else { unreachable!() };
    let at = counters.word(HEAD).fetch_add(1, Ordering::Relaxed);
    let until = Instant::now() + LONG;
    let seen = counters.word(TAIL_CACHE);
    loop {
        let before = seen.load(Ordering::Acquire);
        if at < fifo.size + (before & !READ_BIT) {
            break;
        }
        let reads = before & READ_BIT == 0
            && seen.compare_exchange(before, before | READ_BIT, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if reads {
            seen.store(fifo.tail.word(0).load(Ordering::Acquire), Ordering::Release);
        }
        assert!(Instant::now() < until, "no room");
        std::thread::yield_now();
    }
    let (slot, lap) = fifo.slot_of(at);
    fifo.triggers.word(slot).store(trigger.fst, Ordering::Relaxed);
    fifo.triggers.word(slot + 1).store(trigger.snd & !LAP_BIT | lap, Ordering::Release);
    at
}

fn take_with_timeout(fifo: &Fifo) -> Trigger {
    let until = Instant::now() + LONG;
    loop {
        if let Some(trigger) = fifo.take() {
            return trigger;
        }
        assert!(Instant::now() < until, "nothing came");
        std::thread::yield_now();
    }
}

#[test]
fn triggers_are_popped_in_order_over_many_laps() {
    for size in [1, 2, 3, 7, 64] {
        let fifo = Fifo::of_host(size);
        let (mut pushed, mut popped) = (0, 0);
        for round in 0..5 * size as u64 {
            for _ in 0..=round % size as u64 {
                assert_eq!(fifo.try_push(trigger(pushed)), Some(pushed));
                pushed += 1;
            }
            while let Some(next) = fifo.poll() {
                assert_eq!(next, Trigger::of_words(trigger(popped).fst, trigger(popped).snd));
                assert_eq!(fifo.poll(), Some(next), "polling consumes nothing");
                assert!(fifo.pop());
                popped += 1;
            }
            assert_eq!(popped, pushed);
        }
        assert!(!fifo.pop());
    }
}

#[test]
fn a_full_fifo_accepts_nothing_until_one_is_popped() {
    let fifo = Fifo::of_host(3);
    for number in 0..3 {
        assert!(fifo.try_push(trigger(number)).is_some());
    }
    assert_eq!(fifo.try_push(trigger(3)), None);
    assert!(fifo.take().is_some());
    assert_eq!(fifo.try_push(trigger(3)), None, "the taken trigger is not published");
    fifo.publish();
    assert_eq!(fifo.try_push(trigger(3)), Some(3));
}

#[test]
fn a_position_is_popped_when_published() {
    let fifo = Fifo::of_host(4);
    let (first, second) = (fifo.try_push(trigger(1)).unwrap(), fifo.try_push(trigger(2)).unwrap());
    assert!(!fifo.is_popped(first));
    assert!(fifo.take().is_some() && fifo.take().is_some());
    assert!(!fifo.is_popped(first), "the tail is not published");
    fifo.publish();
    assert!(fifo.is_popped(first) && fifo.is_popped(second));
    assert!(!fifo.is_popped(2));
}

#[test]
fn concurrent_pushes_are_neither_lost_nor_duplicated() {
    const PUSHERS: u64 = 4;
    // A queue of one trigger needs a switch of threads for each, which takes milliseconds on a busy machine.
    for (size, each) in [(1, 1_000), (5, 5_000), (128, 20_000)] {
        let fifo = Fifo::of_host(size);
        let mut next = [0; PUSHERS as usize];
        std::thread::scope(|scope| {
            for pusher in 0..PUSHERS {
                let fifo = &fifo;
                scope.spawn(move || {
                    for number in 0..each {
                        let trigger = Trigger { fst: pusher, snd: number };
                        push_like_a_kernel(fifo, trigger);
                    }
                });
            }
            for count in 0..each * PUSHERS {
                let trigger = take_with_timeout(&fifo);
                let expected = &mut next[trigger.fst as usize];
                assert_eq!(trigger.snd, *expected, "each producer's triggers are in order");
                *expected += 1;
                // Publish before all slots are taken.
                if size == 1 || count % (size as u64 / 2).max(1) == 0 {
                    fifo.publish();
                }
            }
        });
        assert_eq!(next, [each; PUSHERS as usize]);
        assert_eq!(fifo.take(), None);
    }
}

#[test]
fn host_threads_push_concurrently_and_wait_for_their_own_triggers() {
    const EACH: u64 = 5_000;
    let fifo = Fifo::of_host(8);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for number in 0..EACH {
                    let until = Instant::now() + LONG;
                    let at = loop {
                        match fifo.try_push(trigger(number)) {
                            Some(at) => break at,
                            None => std::thread::yield_now(),
                        }
                        assert!(Instant::now() < until);
                    };
                    while !fifo.is_popped(at) {
                        assert!(Instant::now() < until);
                        std::thread::yield_now();
                    }
                }
            });
        }
        for _ in 0..3 * EACH {
            take_with_timeout(&fifo);
            fifo.publish();
        }
    });
    assert_eq!(fifo.poll(), None);
}

#[test]
#[should_panic(expected = "invalid FIFO size 0")]
fn an_empty_fifo_is_rejected() {
    let _ = Fifo::of_host(0);
}
