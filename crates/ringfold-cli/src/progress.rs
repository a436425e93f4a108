//! Progress on standard error: a bar or a spinner on a terminal, otherwise plain lines.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::HashSet;
use std::time::Duration;

/// Each redraw wakes the terminal, which disturbs measurements.
const REDRAWS_PER_SECOND: u8 = 10;
const SPINNER_INTERVAL: Duration = Duration::from_millis(100);

const BAR: &str = "{bar:20.cyan} {pos}/{len}  {elapsed}  {wide_msg}";
const SPINNER: &str = "{spinner:.cyan} {elapsed}  {wide_msg}";

/// The progress of a command. It is erased when it is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    /// The current point.
    point: String,
    points: usize,
    begun: usize,
    /// Lines that were printed, if there is no terminal.
    printed: HashSet<String>,
}

impl Progress {
    /// A bar for a number of points.
    pub(crate) fn new(points: usize) -> Self {
        let target = ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND);
        let bar = ProgressBar::with_draw_target(Some(points as u64), target);
        Self::with(bar, BAR, points)
    }

    /// A spinner, where nobody knows how long it takes.
    pub(crate) fn spinner() -> Self {
        let target = ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND);
        let progress = Self::with(ProgressBar::with_draw_target(None, target), SPINNER, 0);
        if !progress.bar.is_hidden() {
            progress.bar.enable_steady_tick(SPINNER_INTERVAL);
        }
        progress
    }

    fn with(bar: ProgressBar, template: &str, points: usize) -> Self {
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style);
        Self { bar, point: String::new(), points, begun: 0, printed: HashSet::new() }
    }

    /// Begins the next point.
    pub(crate) fn start_point(&mut self, point: String) {
        self.begun += 1;
        if self.bar.is_hidden() {
            eprintln!("[{}/{}] {point}", self.begun, self.points);
        }
        self.bar.set_position(self.begun as u64 - 1);
        self.bar.set_message(point.clone());
        self.point = point;
    }

    /// Says what is done at the moment. Without a terminal, a text that was printed before is left out.
    pub(crate) fn message(&mut self, text: &str) {
        if self.bar.is_hidden() && self.printed.insert(text.to_owned()) {
            eprintln!("{text}");
        }
        self.bar.set_message(text.to_owned());
    }

    /// Shows a step of the current point, on a terminal only.
    pub(crate) fn step(&mut self, text: &str) {
        self.bar.set_message(format!("{}  {text}", self.point));
    }

    /// Prints something else meanwhile.
    pub(crate) fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
