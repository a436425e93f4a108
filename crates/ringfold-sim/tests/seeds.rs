//! Whole runs that must keep every promise: a block of seeds, and every seed that ever found a bug.

use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds that find a bug which was once there, if its fix is taken out, and what was wrong then. Each is run
/// for ever. 175 needs two fixes taken out: since the one for 3105, such a vote no longer gets that far. Most
/// bugs that need rarer circumstances than these scenarios give have an example in
/// `ringfold-proto/tests/machines`.
const REGRESSIONS: &[(u64, &str)] = &[
    (130, "a member of an older master life was taken for one of the current run"),
    (175, "a peer accepted too early was accused of voting while it waited again"),
    (265, "a deadline that followed a done vote made a peer forget its result"),
    (2477, "rounds that newcomers had among themselves were counted for the restored run"),
    (3105, "a vote cast before a peer had to wait again was counted after it was accepted again"),
    (20550, "a link that was lost while no epoch needed it was taken for up in the next one"),
];

/// How many seeds `./test` runs, and how many `./test --long` runs.
const SEEDS: u64 = 600;
const SEEDS_LONG: u64 = 5000;

#[test]
fn six_hundred_runs_keep_every_promise() {
    let seeds = if std::env::var_os("RINGFOLD_LONG").is_some() { SEEDS_LONG } else { SEEDS };
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
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
