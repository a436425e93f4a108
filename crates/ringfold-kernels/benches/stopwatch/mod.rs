//! Measures how long a call takes: enough for ratios between rows, and nothing to compile first.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Samples per row. A row's figure is their median.
const SAMPLES: usize = 31;
/// A sample repeats the call until it takes at least this long.
const SAMPLE_MIN: Duration = Duration::from_millis(10);

/// Measures a call and prints a row: the median time, the fastest and the slowest sample, and for a call on `bytes`
/// the throughput. A row is left out if no argument of the program is part of its name.
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
