//! Handles of asynchronous puts and waits for signals.

use super::WindowInner;
use crate::Error;
use crate::group::WatchedWait;
use parking_lot::Mutex;
use ringfold_fabric::channel::Mark;
use ringfold_fabric::limits::LONG_WAIT;
use ringfold_proto::group_call::{GroupCall, GroupCallKind};
use ringfold_proto::id::Rank;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A handle of a put, or of a wait for a signal. Dropping it does not stop the operation.
pub struct WindowWork {
    inner: Arc<WindowInner>,
    kind: Kind,
    until: Instant,
    state: Mutex<State>,
}

enum Kind {
    /// A put to a rank: done when everything before the mark is sent.
    Put(usize, Option<Mark>),
    /// A signal from a rank.
    Signal(usize),
}

#[derive(Default)]
struct State {
    end: Option<Result<(), Error>>,
    /// When a caller first waited for the end.
    waited_since: Option<Instant>,
    /// The wait, if it takes long.
    watched: Option<WatchedWait>,
}

impl WindowWork {
    pub(super) fn put(inner: Arc<WindowInner>, to: usize, mark: Option<Mark>, until: Instant) -> Self {
        let state = State { end: mark.is_none().then_some(Ok(())), ..State::default() };
        Self { inner, kind: Kind::Put(to, mark), until, state: Mutex::new(state) }
    }

    pub(super) fn signal(inner: Arc<WindowInner>, from: usize, until: Instant) -> Self {
        Self { inner, kind: Kind::Signal(from), until, state: Mutex::default() }
    }

    /// Waits for the end of the operation. May be called again.
    pub fn wait(&self) -> Result<(), Error> {
        let mut state = self.state.lock();
        loop {
            if let Some(end) = &state.end {
                return end.clone();
            }
            self.wait_watched(&mut state, self.until);
        }
    }

    /// As [`WindowWork::wait`], with a timeout; `None` if the operation has not ended by then.
    pub fn wait_for(&self, timeout: Duration) -> Option<Result<(), Error>> {
        let Some(until) = Instant::now().checked_add(timeout) else { return Some(self.wait()) };
        // A thread in `wait` holds the lock.
        let mut state = self.state.try_lock_until(until)?;
        if state.end.is_none() {
            self.wait_watched(&mut state, until.min(self.until));
        }
        state.end.clone()
    }

    /// Whether the operation has ended.
    pub fn is_done(&self) -> bool {
        // A thread in `wait` holds the lock.
        let Some(mut state) = self.state.try_lock() else { return false };
        if state.end.is_none() {
            self.advance(&mut state, Instant::now());
        }
        state.end.is_some()
    }

    /// Waits until a deadline, and has the group report it if it takes long.
    fn wait_watched(&self, state: &mut State, until: Instant) {
        let began = *state.waited_since.get_or_insert_with(Instant::now);
        if state.watched.is_none() {
            self.advance(state, until.min(began + LONG_WAIT));
            if state.end.is_some() || until <= began + LONG_WAIT {
                return;
            }
            let (kind, rank) = match self.kind {
                Kind::Put(to, _) => (GroupCallKind::Put { to: Rank::from_index(to) }, to),
                Kind::Signal(from) => (GroupCallKind::WaitSignal { from: Rank::from_index(from) }, from),
            };
            state.watched = self.inner.group.watch(GroupCall::plain(kind), rank, began, self.until);
        }
        self.advance(state, until);
    }

    /// Waits until a deadline; sets the result if the operation has ended.
    fn advance(&self, state: &mut State, until: Instant) {
        let has_ended = match self.kind {
            Kind::Put(_, None) => Ok(true),
            Kind::Put(to, Some(mark)) => self.inner.try_flush(to, mark, until),
            Kind::Signal(from) => self.inner.take_signal(from, until),
        };
        state.end = match has_ended {
            Ok(true) => Some(Ok(())),
            Err(error) => Some(Err(error)),
            Ok(false) if Instant::now() < self.until => None,
            Ok(false) => Some(Err(match self.kind {
                Kind::Put(to, _) => self.inner.fail_group(to, state.watched.as_ref()),
                Kind::Signal(from) => self.inner.timed_out(from, state.watched.as_ref()),
            })),
        };
        if state.end.is_some() {
            state.watched = None;
        }
    }
}

impl Drop for WindowWork {
    fn drop(&mut self) {
        if let Kind::Signal(from) = self.kind
            && self.state.get_mut().end.is_none()
        {
            self.inner.skip_signal(from);
        }
    }
}
