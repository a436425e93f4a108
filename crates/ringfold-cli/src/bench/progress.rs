//! How far it is, on standard error: one line that is written anew on a terminal, else a line per point.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Progress {
    terminal: bool,
    points: usize,
    done: usize,
    /// What is measured now.
    now: String,
    begin: Instant,
    drawn: Option<Instant>,
}

/// How often the line is written anew.
const REDRAW: Duration = Duration::from_millis(100);

impl Progress {
    pub(crate) fn new(points: usize) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { terminal, points, done: 0, now: String::new(), begin: Instant::now(), drawn: None }
    }

    /// The next point.
    pub(crate) fn point(&mut self, what: String) {
        self.done += 1;
        self.now = what;
        if !self.terminal {
            eprintln!("[{}/{}] {}", self.done, self.points, self.now);
        }
    }

    /// Something before the points, or between them.
    pub(crate) fn say(&mut self, what: &str) {
        if self.terminal {
            self.draw(what);
        } else {
            eprintln!("{what}");
        }
    }

    /// A part of the point.
    pub(crate) fn step(&mut self, what: &str) {
        // Writing to a terminal wakes others up, so it is not done more often than anyone can read.
        if self.terminal && self.drawn.is_none_or(|drawn| drawn.elapsed() > REDRAW) {
            let line = format!(
                "[{}/{}] {:.0} s  {}  {what}",
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

    /// Makes room for what is printed.
    pub(crate) fn clear(&mut self) {
        if self.terminal && self.drawn.take().is_some() {
            eprint!("\r\x1b[2K");
            let _ = std::io::stderr().flush();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
