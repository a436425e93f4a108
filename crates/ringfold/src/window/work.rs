//! Handles of asynchronous puts and waits for signals.

use super::WindowInner;
use crate::Error;
use parking_lot::Mutex;
use ringfold_fabric::channel::Mark;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A handle of a put, or of a wait for a signal. Dropping it does not stop the operation.
pub struct WindowWork {
    inner: Arc<WindowInner>,
    kind: Kind,
    until: Instant,
    end: Mutex<Option<Result<(), Error>>>,
}

enum Kind {
    /// A put to a rank: done when everything before the mark is sent.
    Put(usize, Option<Mark>),
    /// A signal from a rank.
    Signal(usize),
}

impl WindowWork {
    pub(super) fn put(inner: Arc<WindowInner>, to: usize, mark: Option<Mark>, until: Instant) -> Self {
        let end = Mutex::new(mark.is_none().then_some(Ok(())));
        Self { inner, kind: Kind::Put(to, mark), until, end }
    }

    pub(super) fn signal(inner: Arc<WindowInner>, from: usize, until: Instant) -> Self {
        Self { inner, kind: Kind::Signal(from), until, end: Mutex::new(None) }
    }

    /// Waits for the end of the operation. May be called again.
    pub fn wait(&self) -> Result<(), Error> {
        let mut end = self.end.lock();
        loop {
            if let Some(end) = &*end {
                return end.clone();
            }
            *end = self.advance(self.until);
        }
    }

    /// As [`WindowWork::wait`], with a timeout; `None` if the operation has not ended by then.
    pub fn wait_for(&self, timeout: Duration) -> Option<Result<(), Error>> {
        let Some(until) = Instant::now().checked_add(timeout) else { return Some(self.wait()) };
        // A thread in `wait` holds the lock.
        let mut end = self.end.try_lock_until(until)?;
        if end.is_none() {
            *end = self.advance(until.min(self.until));
        }
        end.clone()
    }

    /// Whether the operation has ended.
    pub fn is_done(&self) -> bool {
        // A thread in `wait` holds the lock.
        let Some(mut end) = self.end.try_lock() else { return false };
        if end.is_none() {
            *end = self.advance(Instant::now());
        }
        end.is_some()
    }

    /// Waits until a deadline; returns the result if the operation has ended.
    fn advance(&self, until: Instant) -> Option<Result<(), Error>> {
        let has_ended = match self.kind {
            Kind::Put(_, None) => Ok(true),
            Kind::Put(to, Some(mark)) => self.inner.try_flush(to, mark, until),
            Kind::Signal(from) => self.inner.take_signal(from, until),
        };
        match has_ended {
            Ok(true) => Some(Ok(())),
            Err(error) => Some(Err(error)),
            Ok(false) if Instant::now() < self.until => None,
            Ok(false) => Some(Err(match self.kind {
                Kind::Put(to, _) => self.inner.fail_group(to),
                Kind::Signal(from) => self.inner.timed_out(from),
            })),
        }
    }
}

impl Drop for WindowWork {
    fn drop(&mut self) {
        if let Kind::Signal(from) = self.kind
            && self.end.get_mut().is_none()
        {
            self.inner.skip_signal(from);
        }
    }
}
