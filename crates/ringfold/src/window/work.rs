//! Puts and waits for signals that go on while the caller computes.

use super::Pane;
use crate::Error;
use parking_lot::Mutex;
use ringfold_fabric::channel::Mark;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A put, or a wait for a signal, that was begun. Whoever drops it lets it go on.
pub struct WindowWork {
    pane: Arc<Pane>,
    kind: Kind,
    until: Instant,
    end: Mutex<Option<Result<(), Error>>>,
}

enum Kind {
    /// Puts to a rank that have left when all before the mark have.
    Put(usize, Option<Mark>),
    /// A signal of a rank.
    Signal(usize),
}

impl WindowWork {
    pub(super) fn put(pane: Arc<Pane>, to: usize, mark: Option<Mark>, until: Instant) -> Self {
        let end = Mutex::new(mark.is_none().then_some(Ok(())));
        Self { pane, kind: Kind::Put(to, mark), until, end }
    }

    pub(super) fn signal(pane: Arc<Pane>, from: usize, until: Instant) -> Self {
        Self { pane, kind: Kind::Signal(from), until, end: Mutex::new(None) }
    }

    /// Waits for the end. May be called again.
    pub fn wait(&self) -> Result<(), Error> {
        let mut end = self.end.lock();
        loop {
            if let Some(end) = &*end {
                return end.clone();
            }
            *end = self.advance(self.until);
        }
    }

    /// Waits for the end for so long; none if it has not ended by then.
    pub fn wait_for(&self, patience: Duration) -> Option<Result<(), Error>> {
        // Longer than any clock goes is for ever.
        let Some(until) = Instant::now().checked_add(patience) else { return Some(self.wait()) };
        // Whoever waits without end holds it.
        let mut end = self.end.try_lock_until(until)?;
        if end.is_none() {
            *end = self.advance(until.min(self.until));
        }
        end.clone()
    }

    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        // Whoever holds it waits for the end.
        let Some(mut end) = self.end.try_lock() else { return false };
        if end.is_none() {
            *end = self.advance(Instant::now());
        }
        end.is_some()
    }

    /// Goes on until a time; the end, if it is one.
    fn advance(&self, until: Instant) -> Option<Result<(), Error>> {
        let has_ended = match self.kind {
            Kind::Put(_, None) => Ok(true),
            Kind::Put(to, Some(mark)) => self.pane.flush_for_now(to, mark, until),
            Kind::Signal(from) => self.pane.hear(from, until),
        };
        match has_ended {
            Ok(true) => Some(Ok(())),
            Err(error) => Some(Err(error)),
            Ok(false) if Instant::now() < self.until => None,
            Ok(false) => Some(Err(match self.kind {
                Kind::Put(to, _) => self.pane.give_up_waiting(to),
                Kind::Signal(from) => self.pane.late(from),
            })),
        }
    }
}

impl Drop for WindowWork {
    fn drop(&mut self) {
        if let Kind::Signal(from) = self.kind
            && self.end.get_mut().is_none()
        {
            self.pane.owe(from);
        }
    }
}
