#[cfg(not(miri))]
mod model;

use super::sleep::WakeFlag;
use super::*;
use core::sync::atomic::{AtomicU32, Ordering};

fn pauses(policy: Policy, wait: &Wait<'_>) -> usize {
    let mut waiter = Waiter::start(policy, wait);
    (0..100_000_000).take_while(|_| waiter.pause(wait)).count()
}

#[test]
fn a_wait_ends_at_its_deadline_and_blocks_before() {
    let begun = Instant::now();
    let pauses = pauses(Policy::POLLED, &Wait::within(Duration::from_millis(60)));
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_millis(60) && waited < Duration::from_secs(5), "{waited:?}");
    assert!(pauses < 1_000_000, "it blocks in the end: {pauses}");
}

#[test]
fn a_deadline_that_has_passed_leaves_only_the_first_checks() {
    let over = Wait::until(Instant::now());
    assert_eq!(pauses(Policy::POLLED, &over), Policy::POLLED.checks as usize);
}

#[test]
fn checks_are_counted_and_not_blocked_between() {
    let counted = |most| Wait { checks_max: Some(most), ..Wait::default() };
    let begun = Instant::now();
    for most in [0, 1, 31, 32, 100, 1_000_000] {
        assert_eq!(pauses(Policy::POLLED, &counted(most)), most as usize);
    }
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_token_cancels_a_wait_and_is_asked_once_per_interval() {
    let asked = std::sync::Arc::new(AtomicU32::new(0));
    let count = asked.clone();
    let token =
        CancelToken::new(Duration::from_millis(5), move || count.fetch_add(1, Ordering::Relaxed) == 2);
    let begun = Instant::now();
    pauses(Policy::BOARD, &Wait::within(Duration::from_secs(60)).or_cancelled(Some(&token)));
    assert!(begun.elapsed() >= Duration::from_millis(15) && begun.elapsed() < Duration::from_secs(30));
    assert_eq!(asked.load(Ordering::Relaxed), 3);
}

#[test]
fn a_spin_that_does_not_pay_becomes_shorter_and_one_that_would_have_paid_longer() {
    let mut waiter = Waiter::new(Policy::DRIVER);
    for _ in 0..20 {
        waiter.learn(Duration::from_millis(5));
    }
    assert_eq!(waiter.spin, Policy::DRIVER.spin_min);
    for _ in 0..20 {
        waiter.learn(Duration::from_micros(40));
    }
    assert_eq!(waiter.spin, Policy::DRIVER.spin_max);
    let mut fixed = Waiter::new(Policy::SIGNAL);
    fixed.learn(Duration::from_secs(1));
    assert_eq!(fixed.spin, Policy::SIGNAL.spin_max);
}

#[test]
fn a_slow_phase_does_not_end_spinning_for_ever() {
    for policy in [Policy::BOARD, Policy::DRIVER] {
        let mut waiter = Waiter::new(policy);
        let slow = |waiter: &mut Waiter| {
            waiter.learn(Duration::from_millis(5));
            waiter.spin
        };
        for _ in 0..1000 {
            slow(&mut waiter);
        }
        // Waking takes longer than the longest spin: only a full spin can show that spinning pays again.
        let spins: Vec<_> = (0..10 * FULL_SPIN_EVERY).map(|_| slow(&mut waiter)).collect();
        assert_eq!(spins.iter().filter(|spin| **spin == policy.spin_max).count(), 10);
        assert_eq!(spins.iter().filter(|spin| **spin == policy.spin_min).count(), spins.len() - 10);
        while slow(&mut waiter) != policy.spin_max {}
        waiter.begin_at(Instant::now());
        waiter.finish();
        assert_eq!((waiter.spin, waiter.slow_waits), (policy.spin_max, 0));
    }
}

#[test]
fn slow_yields_are_charged_and_their_debt_decays() {
    let (mut debt, now) = (SlowYields::default(), Instant::now());
    let after = |millis| now + Duration::from_millis(millis);
    assert!(debt.are_paid(now));
    debt.charge(now, Duration::from_millis(2));
    assert!(!debt.are_paid(after(31)) && debt.are_paid(after(32)));
    debt.charge(after(16), Duration::from_millis(1));
    assert!(!debt.are_paid(after(47)) && debt.are_paid(after(48)));
    // The longest one is forgotten, too, and a slow yield after it costs no more than the first.
    debt.charge(after(48), Duration::from_secs(9));
    assert!(!debt.are_paid(after(247)) && debt.are_paid(after(248)));
    debt.charge(after(300), Duration::from_millis(2));
    assert!(debt.are_paid(after(332)));
}

#[test]
fn after_a_yield_that_took_long_the_next_waits_do_not_yield() {
    let policy = Policy { yields: 3, yield_max: Duration::ZERO, ..Policy::BOARD.without_spin() };
    let wait = Wait::default();
    let yields = |waiter: &mut Waiter| {
        waiter.begin();
        (0..100).take_while(|_| !matches!(waiter.step(&wait), Step::Block(_))).count() - 1
    };
    let mut waiter = Waiter::new(policy);
    assert_eq!(yields(&mut waiter), 1);
    waiter.slow_yields.charge(Instant::now(), Duration::from_secs(60));
    assert_eq!(yields(&mut waiter), 0);
    waiter.slow_yields = SlowYields::default();
    assert_eq!(yields(&mut waiter), 1);
}

#[test]
fn a_thread_that_blocks_is_woken_at_once() {
    const ROUNDS: u32 = 200;
    let (flag, asked, done) = (WakeFlag::default(), AtomicU32::new(0), AtomicU32::new(0));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while done.load(Ordering::Acquire) < ROUNDS {
                let is_there = || asked.load(Ordering::Acquire) > done.load(Ordering::Acquire);
                if is_there() {
                    done.fetch_add(1, Ordering::Release);
                } else {
                    flag.block(Duration::from_secs(60), is_there);
                }
            }
        });
        for round in 1..=ROUNDS {
            asked.store(round, Ordering::Release);
            flag.wake();
            while done.load(Ordering::Acquire) < round {
                assert!(begun.elapsed() < Duration::from_secs(50), "a wake-up was lost");
                std::thread::yield_now();
            }
        }
    });
}
