//! A minimal benchmark timer, without dependencies.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Samples per row, of which the median is printed.
const SAMPLES: usize = 31;
/// A sample repeats the call until it takes at least this long.
const SAMPLE_MIN: Duration = Duration::from_millis(10);

/// Whether the name of a row contains one of the program's arguments, or there are none.
fn is_wanted(name: &str) -> bool {
    let mut wanted = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).peekable();
    wanted.peek().is_none() || wanted.any(|part| name.contains(&part))
}

/// The seconds of each of `calls` calls, on average.
fn time<R>(calls: u32, call: &mut impl FnMut() -> R) -> f64 {
    let began = Instant::now();
    (0..calls).for_each(|_| drop(black_box(call())));
    began.elapsed().as_secs_f64() / f64::from(calls)
}

/// The number of calls that take at least `least`. Finding it also warms the caches and the clock of the processor.
fn calls_within<R>(least: Duration, call: &mut impl FnMut() -> R) -> u32 {
    let mut calls = 1;
    while time(calls, call) * f64::from(calls) < least.as_secs_f64() {
        calls *= 2;
    }
    calls
}

/// Measures a call and prints its median, fastest and slowest time, and the throughput if `bytes` is given.
///
/// Rows whose name contains none of the program's arguments are skipped.
pub fn measure<R>(name: &str, bytes: Option<usize>, mut call: impl FnMut() -> R) {
    if !is_wanted(name) {
        return;
    }
    let calls = calls_within(SAMPLE_MIN, &mut call);
    let mut seconds: Vec<f64> = (0..SAMPLES).map(|_| time(calls, &mut call)).collect();
    seconds.sort_by(f64::total_cmp);
    let [fastest, median, slowest] = [0, SAMPLES / 2, SAMPLES - 1].map(|index| seconds[index] * 1e6);
    let rate = bytes.map_or_else(String::new, |bytes| format!("{:8.2} GB/s", bytes as f64 / median / 1e3));
    println!("{name:48} {median:12.2} us  ({fastest:.2} to {slowest:.2}) {rate}");
}

/// Measures a call in turns with a baseline, so that other load of the machine affects both, and prints the median
/// throughput of both, and the call's speed divided by the baseline's: the median of the rounds, their quartiles, and the
/// ratio of the fastest rounds.
///
/// Rows are skipped as by [`measure`].
#[allow(dead_code)] // Not every benchmark compares.
pub fn compare<R>(name: &str, bytes: usize, mut baseline: impl FnMut() -> R, mut call: impl FnMut() -> R) {
    if !is_wanted(name) {
        return;
    }
    /// Rounds of a comparison.
    const ROUNDS: usize = 101;
    /// A round repeats each call until it takes at least this long.
    const ROUND_MIN: Duration = Duration::from_millis(1);
    let calls = [calls_within(ROUND_MIN, &mut baseline), calls_within(ROUND_MIN, &mut call)];
    let rounds: Vec<[f64; 2]> =
        (0..ROUNDS).map(|_| [time(calls[0], &mut baseline), time(calls[1], &mut call)]).collect();
    let sorted = |of: fn(&[f64; 2]) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let (baseline, call, ratio) = (sorted(|r| r[0]), sorted(|r| r[1]), sorted(|r| r[0] / r[1]));
    let rate = |seconds: &[f64]| bytes as f64 / seconds[ROUNDS / 2] / 1e9;
    let [lower, median, upper] = [ROUNDS / 4, ROUNDS / 2, ROUNDS - 1 - ROUNDS / 4].map(|index| ratio[index]);
    println!(
        "{name:40} {:7.2} GB/s, baseline {:7.2} GB/s, ratio {median:.3} ({lower:.3} to {upper:.3}), of the fastest {:.3}",
        rate(&call),
        rate(&baseline),
        baseline[0] / call[0],
    );
}
