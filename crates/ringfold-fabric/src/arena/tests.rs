#[cfg(not(miri))]
mod processes;

use super::*;
use crate::waiter::{CancelToken, Policy};
use std::time::{Duration, Instant};

const SMALL: Geometry = Geometry { world: 3, slot_bytes: 128, depth: 4 };

/// How long a rank waits for one that never announces.
const SHORT: Duration = Duration::from_millis(100);

fn members(geometry: Geometry) -> (Arc<Arena>, Vec<ArenaMember>) {
    let arena = Arc::new(Arena::create(geometry).unwrap());
    let members = (0..geometry.world).map(|rank| arena.join(Rank::from_index(rank)).unwrap()).collect();
    (arena, members)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Waits until all of these ranks sleep.
fn await_asleep(arena: &Arena, ranks: Ranks) {
    let end = soon();
    while arena.word(geometry::SLEEPERS_AT).load(Ordering::SeqCst) & ranks.0 != ranks.0 {
        assert!(Instant::now() < end, "timed out waiting until {ranks:?} sleep");
        std::thread::yield_now();
    }
}

#[test]
fn what_a_rank_announces_the_others_read() {
    let (_, mut members) = members(SMALL);
    for (round, bytes) in [(0, 5), (1, 48), (2, 49), (3, 128)] {
        let [one, two, _] = &mut members[..] else { unreachable!() };
        assert!(!two.is_met(Need::Announced { round, by: Ranks::one(Rank(0)) }));
        assert!(one.may_fill(round));
        one.slots(Some(Fill { round, bytes }), None).own.fill(round as u8 + 7);
        one.announce(round, 99);
        assert_eq!(two.unannounced(round, Ranks::all(3)), Ranks(0b110));
        assert_eq!(two.differing(round, Ranks::one(Rank(0)), 99), Ranks::NONE);
        assert_eq!(two.differing(round, Ranks::one(Rank(0)), 98), Ranks(1));
        assert_eq!(two.slots(None, Some(round)).others.slot(Rank(0), bytes), vec![round as u8 + 7; bytes]);
    }
}

#[test]
fn a_slot_is_filled_again_only_when_all_ranks_have_released_it() {
    let (_, mut members) = members(SMALL);
    for round in 0..4 {
        assert!(members[0].may_fill(round));
        members[0].announce(round, 0);
    }
    assert!(!members[0].may_fill(4));
    for rank in 0..3 {
        assert_eq!(members[0].missing(Need::Space { round: 4 }).is_empty(), rank == 2);
        members[[1, 2, 0][rank]].release(1);
    }
    assert!(members[0].may_fill(4) && !members[0].may_fill(5));
}

#[test]
fn a_seat_is_taken_once_and_an_arena_is_opened_as_it_was_made() {
    let (arena, _seats) = members(SMALL);
    assert!(arena.join(Rank(0)).is_none() && arena.join(Rank(3)).is_none());
    assert!(Arc::new(Arena::open(&arena.ticket(), SMALL).unwrap()).join(Rank(1)).is_none());
    for other in [Geometry { world: 2, ..SMALL }, Geometry { depth: 8, ..SMALL }] {
        assert!(Arena::open(&arena.ticket(), other).is_err());
    }
    for unsound in [
        Geometry { world: 0, ..SMALL },
        Geometry { world: 65, ..SMALL },
        Geometry { depth: 5, ..SMALL },
        Geometry { slot_bytes: 0, ..SMALL },
        Geometry { slot_bytes: usize::MAX / 64 * 64, ..SMALL },
        Geometry { world: 64, slot_bytes: 16 << 20, depth: 256 },
    ] {
        assert!(Arena::create(unsound).is_err(), "{unsound:?}");
    }
}

#[test]
#[should_panic = "released"]
fn a_released_slot_cannot_be_read() {
    let (_, mut members) = members(SMALL);
    members[0].release(1);
    members[0].slots(None, Some(0));
}

#[test]
#[should_panic = "not announced"]
fn a_slot_that_was_not_announced_cannot_be_read() {
    let (_, mut members) = members(SMALL);
    members[0].slots(None, Some(0)).others.slot(Rank(1), 1);
}

#[test]
#[should_panic = "in use"]
fn an_announced_slot_cannot_be_written() {
    let (_, mut members) = members(SMALL);
    assert!(members[0].may_fill(0));
    members[0].announce(0, 0);
    members[0].slots(Some(Fill { round: 0, bytes: 8 }), None);
}

#[test]
fn a_wait_ends_at_its_deadline_and_names_who_is_missing() {
    let (_, mut members) = members(SMALL);
    assert!(members[2].may_fill(0));
    members[2].announce(0, 0);
    let deadline = Instant::now() + Duration::from_millis(30);
    let need = Need::Announced { round: 0, by: Ranks::all(3) };
    assert_eq!(members[0].wait(need, || deadline), Err(Stop::Late(Ranks(0b010))));
    assert!(Instant::now() >= deadline);
}

#[test]
fn a_rank_that_waits_for_another_is_not_named_as_late() {
    let (arena, mut members) = members(SMALL);
    let by = |rank: u16| Need::Announced { round: 0, by: Ranks::one(Rank(rank)) };
    let [zero, one, two] = &mut members[..] else { panic!("three ranks") };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let deadline = Instant::now() + SHORT * 600;
            assert_eq!(one.wait(by(2), || deadline), Ok(()));
        });
        await_asleep(&arena, Ranks::one(Rank(1)));
        let deadline = Instant::now() + SHORT;
        let late = zero.wait(by(1), || deadline);
        assert!(two.may_fill(0));
        two.announce(0, 0);
        assert_eq!(late, Err(Stop::Late(Ranks::one(Rank(2)))));
    });
}

#[test]
fn a_point_is_recorded_unless_the_arena_is_sealed() {
    let (arena, _) = members(SMALL);
    assert!(arena.settle(2) && arena.settle(2) && arena.settle(1));
    assert_eq!(arena.seal(), 2);
    assert!(arena.settle(2) && !arena.settle(3));
    assert_eq!(arena.seal(), 2);
}

#[test]
fn a_wait_can_be_cancelled_while_that_is_allowed() {
    let (_, mut members) = members(SMALL);
    let asked = Arc::new(core::sync::atomic::AtomicUsize::new(0));
    let counts = asked.clone();
    let must_end = move || counts.fetch_add(1, Ordering::Relaxed) == 2;
    members[0].set_cancel(CancelToken::new(Duration::from_millis(5), must_end));
    let need = Need::Announced { round: 0, by: Ranks::one(Rank(1)) };
    let soon = || Instant::now() + Duration::from_millis(50);
    assert_eq!(members[0].wait(need, soon), Err(Stop::Late(Ranks::one(Rank(1)))));
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    members[0].set_cancellable(true);
    let never = || Instant::now() + Duration::from_secs(60);
    assert_eq!(members[0].wait(need, never), Err(Stop::Interrupted));
    assert_eq!(asked.load(Ordering::Relaxed), 3);
}

#[test]
fn an_abort_wakes_sleepers_at_once_and_its_first_reason_stays() {
    let (arena, mut members) = members(SMALL);
    std::thread::scope(|scope| {
        for member in &mut members {
            let need = Need::Announced { round: 0, by: Ranks::all(3) };
            scope.spawn(move || {
                assert_eq!(member.wait(need, soon), Err(Stop::Aborted));
            });
        }
        await_asleep(&arena, Ranks::all(3));
        let began = Instant::now();
        arena.abort(Rank(2), "the floor is wet");
        arena.abort(Rank(1), &"x".repeat(10_000));
        assert!(began.elapsed() < Duration::from_secs(5));
    });
    let expected = Abort { by: Rank(2), why: "the floor is wet".to_owned() };
    assert_eq!(arena.aborted(), Some(expected));
}

#[test]
fn a_wait_for_a_rank_that_has_left_fails() {
    let (arena, mut members) = members(SMALL);
    assert!(members[1].may_fill(0));
    members[1].announce(0, 0);
    std::thread::scope(|scope| {
        let [zero, one, two] = &mut members[..] else { unreachable!() };
        for (member, round) in [(zero, 1), (two, 2)] {
            let need = Need::Announced { round, by: Ranks::one(Rank(1)) };
            scope.spawn(move || assert_eq!(member.wait(need, soon), Err(Stop::Left(Ranks(0b10)))));
        }
        await_asleep(&arena, Ranks(0b101));
        one.leave();
    });
    let need = Need::Announced { round: 0, by: Ranks::one(Rank(1)) };
    assert_eq!((members[0].wait(need, soon), arena.left()), (Ok(()), Ranks(0b10)));
}

#[test]
fn a_long_reason_is_cut() {
    let (arena, _seats) = members(SMALL);
    arena.abort(Rank(1), &"x".repeat(10_000));
    let told = arena.aborted().unwrap();
    assert_eq!((told.by, told.why.len()), (Rank(1), geometry::REASON_BYTES_MAX));
}

/// Everyone sleeps for everyone in each round, so that every announcement may be the one that someone sleeps for. A
/// sleeper that nobody wakes looks around by itself after half a second, which no round takes otherwise.
#[test]
fn no_wake_up_is_lost() {
    for (world, looks) in [(2, 1), (2, 30), (3, 1), (5, 1), (5, 10)] {
        let (_, mut members) = members(Geometry { world, slot_bytes: 128, depth: 4 });
        let rounds = if cfg!(miri) { 12 } else { 4000 };
        std::thread::scope(|scope| {
            for member in &mut members {
                scope.spawn(move || {
                    let policy = Policy { checks: looks, ..Policy::BOARD.without_spin() };
                    member.set_policy(if looks == 1 { Policy { yields: 0, ..policy } } else { policy });
                    let mut longest = Duration::ZERO;
                    for round in 0..rounds {
                        let began = Instant::now();
                        let fill = Need::Space { round };
                        assert_eq!(member.wait(fill, soon), Ok(()));
                        member
                            .slots(Some(Fill { round, bytes: 8 }), None)
                            .own
                            .copy_from_slice(&round.to_le_bytes());
                        member.announce(round, round);
                        // Ranks read two rounds behind what they write, so that space is short as well.
                        if let Some(read) = round.checked_sub(2) {
                            let need = Need::Announced { round: read, by: Ranks::all(world) };
                            assert_eq!(member.wait(need, soon), Ok(()));
                            let others = member.slots(None, Some(read)).others;
                            for rank in 0..world {
                                assert_eq!(others.slot(Rank::from_index(rank), 8), read.to_le_bytes());
                            }
                            member.release(read + 1);
                        }
                        longest = longest.max(began.elapsed());
                    }
                    let is_prompt = longest < Duration::from_millis(450) || cfg!(miri);
                    assert!(is_prompt, "{longest:?} for a round of {world} ranks");
                });
            }
        });
    }
}
