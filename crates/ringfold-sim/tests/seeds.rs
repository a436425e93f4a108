//! Whole runs that must keep every promise: a block of seeds, and every seed that ever found a bug.

use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds that once broke a promise, and what was wrong then. Each is run for ever.
const REGRESSIONS: &[(u64, &str)] = &[
    (12, "a peer accepted too early was accused of voting while it waited again"),
    (138, "members that waited for a restarted master were put out as silent"),
    (205, "a member of an older master life was taken for one of the current run"),
    (627, "rounds that newcomers had among themselves were counted for the restored run"),
    (1945, "a newcomer that had to knock again went on with the epoch that it had been told of before"),
    (6827, "a broken link that was reported to a dying master was never reported again"),
    (11867, "a peer that was accepted again went on waiting for the topology update that had accepted it"),
    (21502, "one impatient peer failed the votes of all"),
    (1658, "a vote cast before a peer had to wait again was counted after it was accepted again"),
    (20550, "a link that was lost while no epoch needed it was taken for up in the next one"),
    (1379, "a deadline that followed a done vote made a peer forget its result"),
];

/// The test command runs at least so many.
const SEEDS: u64 = 600;

#[test]
fn six_hundred_runs_keep_every_promise() {
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= SEEDS {
                        return;
                    }
                    assert_kept(seed, "");
                }
            });
        }
    });
}

#[test]
fn seeds_that_found_a_bug_stay_clean() {
    for (seed, bug) in REGRESSIONS {
        assert_kept(*seed, bug);
    }
}

#[test]
fn a_seed_replays_exactly() {
    let (one, other) = (ringfold_sim::replay(42, None), ringfold_sim::replay(42, None));
    assert!(one.steps > 100);
    assert_eq!(one.log, other.log);
}

fn assert_kept(seed: u64, bug: &str) {
    let report = ringfold_sim::run(seed);
    let broken: Vec<_> = report.violations.iter().map(ToString::to_string).collect();
    assert!(
        broken.is_empty(),
        "{broken:?}\nwas: {bug}\nreplay: cargo run --release -p ringfold-sim -- --seed {seed}"
    );
}
