//! A minimal benchmark timer, without dependencies.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Samples per row, of which the median is printed.
const SAMPLES: usize = 31;
/// A sample repeats the call until it takes at least this long.
const SAMPLE_MIN: Duration = Duration::from_millis(10);

/// Measures a call and prints its median, fastest and slowest time, and the throughput if `bytes` is given.
///
/// Rows whose name contains none of the program's arguments are skipped.
pub fn measure<R>(name: &str, bytes: Option<usize>, mut call: impl FnMut() -> R) {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if !wanted.is_empty() && !wanted.iter().any(|part| name.contains(part)) {
        return;
    }
    let mut sample = |calls: u32| {
        let began = Instant::now();
        (0..calls).for_each(|_| drop(black_box(call())));
        began.elapsed()
    };
    let mut calls = 1;
    // This also warms the caches and the clock of the processor.
    while sample(calls) < SAMPLE_MIN {
        calls *= 2;
    }
    let mut seconds: Vec<f64> =
        (0..SAMPLES).map(|_| sample(calls).as_secs_f64() / f64::from(calls)).collect();
    seconds.sort_by(f64::total_cmp);
    let [fastest, median, slowest] = [0, SAMPLES / 2, SAMPLES - 1].map(|index| seconds[index] * 1e6);
    let rate = bytes.map_or_else(String::new, |bytes| format!("{:8.2} GB/s", bytes as f64 / median / 1e3));
    println!("{name:48} {median:12.2} us  ({fastest:.2} to {slowest:.2}) {rate}");
}
