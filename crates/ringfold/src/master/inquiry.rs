//! Questions and commands for the thread of the master, of other threads of its process.

use super::snapshot::Snapshot;
use super::status::Status;
use crate::Error;
use crate::error::invalid;
use parking_lot::{Condvar, Mutex};
use ringfold_fabric::poller::Poller;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the thread of the master may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// What is asked.
#[derive(Clone, Debug)]
pub(super) enum Question {
    Status,
    Snapshot,
    Evict { peer: String, reason: String },
    Drain { on: bool },
}

/// What is answered.
#[derive(Debug)]
pub(super) enum Reply {
    Status(Box<Status>),
    Snapshot(Box<Snapshot>),
    /// What was done.
    Done(String),
    /// Why it was not.
    Refused(String),
}

/// A question and the place of its answer.
pub(super) struct Inquiry {
    pub question: Question,
    reply: Arc<ReplySlot>,
}

#[derive(Default)]
struct ReplySlot {
    reply: Mutex<Option<Reply>>,
    ready: Condvar,
    /// Is kicked when the reply is there.
    waiter: Option<Arc<Poller>>,
}

/// A question whose answer has not been taken.
pub(super) struct PendingReply(Arc<ReplySlot>);

impl PendingReply {
    /// The answer, once it is there.
    pub fn take(&self) -> Option<Reply> {
        self.0.reply.lock().take()
    }
}

impl Inquiry {
    pub fn answer(self, reply: Reply) {
        *self.reply.reply.lock() = Some(reply);
        self.reply.ready.notify_all();
        if let Some(waiter) = &self.reply.waiter {
            waiter.kick();
        }
    }
}

/// The questions that wait.
#[derive(Default)]
pub(super) struct Inquiries {
    waiting: Mutex<VecDeque<Inquiry>>,
    /// The poller of a thread that wants to know of changes at once.
    watcher: Mutex<Option<Arc<Poller>>>,
    has_changed: AtomicBool,
}

impl std::fmt::Debug for Inquiries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inquiries").finish_non_exhaustive()
    }
}

impl Inquiries {
    /// The next question, for the thread of the master.
    pub fn next(&self) -> Option<Inquiry> {
        self.waiting.lock().pop_front()
    }

    /// Kicks this poller when the answer to [`Self::post`] or a change of the members is there.
    pub fn set_watcher(&self, poller: Arc<Poller>) {
        *self.watcher.lock() = Some(poller);
    }

    /// Members have changed, for the thread of the master.
    pub fn note_change(&self) {
        if let Some(watcher) = &*self.watcher.lock() {
            self.has_changed.store(true, Ordering::Release);
            watcher.kick();
        }
    }

    /// Whether members have changed since the last call.
    pub fn take_change(&self) -> bool {
        self.has_changed.swap(false, Ordering::AcqRel)
    }

    /// Asks, and does not wait. `wake` wakes the thread of the master.
    pub fn post(&self, question: Question, wake: impl FnOnce()) -> PendingReply {
        let slot = Arc::new(ReplySlot { waiter: self.watcher.lock().clone(), ..ReplySlot::default() });
        self.waiting.lock().push_back(Inquiry { question, reply: slot.clone() });
        wake();
        PendingReply(slot)
    }

    /// Asks, and waits for the answer. `wake` wakes the thread of the master.
    pub fn ask(&self, question: Question, wake: impl FnOnce()) -> Result<Reply, Error> {
        let slot = Arc::new(ReplySlot::default());
        self.waiting.lock().push_back(Inquiry { question, reply: slot.clone() });
        wake();
        let deadline = Instant::now() + ANSWER_MAX;
        let mut reply = slot.reply.lock();
        while reply.is_none() {
            if slot.ready.wait_until(&mut reply, deadline).timed_out() {
                break;
            }
        }
        reply.take().ok_or_else(|| Error::Misuse("the master has ended, or does not answer".into()))
    }
}

impl Reply {
    pub fn status(self) -> Result<Status, Error> {
        match self {
            Self::Status(status) => Ok(*status),
            Self::Snapshot(snapshot) => Ok(snapshot.status),
            Self::Done(text) | Self::Refused(text) => Err(Error::Internal(text)),
        }
    }

    pub fn done(self) -> Result<String, Error> {
        match self {
            Self::Done(text) => Ok(text),
            Self::Refused(text) => Err(invalid!("{text}")),
            Self::Status(_) | Self::Snapshot(_) => {
                Err(Error::Internal("a status instead of an answer".into()))
            }
        }
    }
}
