//! Questions and commands for the thread of the master, of other threads of its process.

use super::status::Status;
use crate::Error;
use crate::error::invalid;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the thread of the master may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// What is asked.
#[derive(Clone, Debug)]
pub(super) enum Question {
    Status,
    Evict { peer: String, reason: String },
    Drain { on: bool },
}

/// What is answered.
#[derive(Debug)]
pub(super) enum Reply {
    Status(Box<Status>),
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
}

impl Inquiry {
    pub fn answer(self, reply: Reply) {
        *self.reply.reply.lock() = Some(reply);
        self.reply.ready.notify_all();
    }
}

/// The questions that wait.
#[derive(Default)]
pub(super) struct Inquiries {
    waiting: Mutex<VecDeque<Inquiry>>,
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
            Self::Done(text) | Self::Refused(text) => Err(Error::Internal(text)),
        }
    }

    pub fn done(self) -> Result<String, Error> {
        match self {
            Self::Done(text) => Ok(text),
            Self::Refused(text) => Err(invalid!("{text}")),
            Self::Status(_) => Err(Error::Internal("a status instead of an answer".into())),
        }
    }
}
