//! Progress on standard error: one line that is redrawn on a terminal, otherwise a line per point.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct ProgressLine {
    terminal: bool,
    points: usize,
    done: usize,
    /// The current point.
    now: String,
    begin: Instant,
    drawn: Option<Instant>,
}

const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

impl ProgressLine {
    pub(crate) fn new(points: usize) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { terminal, points, done: 0, now: String::new(), begin: Instant::now(), drawn: None }
    }

    /// Whether it is shown on a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Begins the next point.
    pub(crate) fn start_point(&mut self, point: String) {
        self.done += 1;
        self.now = point;
        if !self.terminal {
            eprintln!("[{}/{}] {}", self.done, self.points, self.now);
        }
    }

    /// Shows a message between points.
    pub(crate) fn message(&mut self, text: &str) {
        if self.terminal {
            self.draw(text);
        } else {
            eprintln!("{text}");
        }
    }

    /// Shows a step of the current point.
    pub(crate) fn step(&mut self, text: &str) {
        // Each write wakes the terminal, which disturbs the measurement.
        if self.terminal && self.drawn.is_none_or(|drawn| drawn.elapsed() > REDRAW_INTERVAL) {
            let line = format!(
                "[{}/{}] {:.0} s  {}  {text}",
                self.done,
                self.points,
                self.begin.elapsed().as_secs_f64(),
                self.now
            );
            self.draw(&line);
        }
    }

    fn draw(&mut self, line: &str) {
        eprint!("\r\x1b[2K{line}");
        let _ = std::io::stderr().flush();
        self.drawn = Some(Instant::now());
    }

    /// Clears the line, before other output.
    pub(crate) fn clear(&mut self) {
        if self.terminal && self.drawn.take().is_some() {
            eprint!("\r\x1b[2K");
            let _ = std::io::stderr().flush();
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.clear();
    }
}
