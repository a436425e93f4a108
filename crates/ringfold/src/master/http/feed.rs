//! The last snapshot of the master: asked for once for all clients of a moment.

use super::limits;
use crate::master::inquiry::{Inquiries, PendingReply, Question, Reply};
use crate::master::snapshot::Snapshot;
use ringfold_fabric::memory::View;
use ringfold_fabric::poller::Poller;
use ringfold_proto::time::Time;
use std::sync::{Arc, OnceLock};

/// Asks the thread of the master, and keeps its last answer.
pub(super) struct Feed {
    inquiries: Arc<Inquiries>,
    /// Wakes the thread of the master.
    master: Arc<Poller>,
    /// Counts changes of the members: an older answer is not used any more.
    version: u64,
    asked: Option<Asked>,
    /// When it may be asked again.
    next: Time,
    is_wanted: bool,
    current: Option<(Time, u64, Arc<Supplied>)>,
}

struct Asked {
    at: Time,
    version: u64,
    reply: PendingReply,
}

/// A snapshot, and its text once somebody has needed it.
pub(super) struct Supplied {
    pub snapshot: Snapshot,
    json: OnceLock<View>,
}

impl Supplied {
    /// The status as JSON.
    pub(super) fn json(&self) -> View {
        let text = || serde_json::to_vec(&self.snapshot.status).unwrap_or_else(|_| b"{}".to_vec());
        self.json.get_or_init(|| text().into()).clone()
    }
}

impl Feed {
    pub(super) fn new(inquiries: Arc<Inquiries>, master: Arc<Poller>) -> Self {
        Self { inquiries, master, version: 0, asked: None, next: Time::ZERO, is_wanted: false, current: None }
    }

    /// A fresh status; if there is none, one is asked for as soon as possible.
    pub(super) fn supply(&mut self, now: Time) -> Option<Arc<Supplied>> {
        if let Some((taken, version, supplied)) = &self.current
            && *version == self.version
            && now.since(*taken) < limits::ASK_EVERY
        {
            return Some(supplied.clone());
        }
        self.is_wanted = true;
        self.ask(now);
        None
    }

    /// A status that has arrived since then. It may be older than the last change of the members: where they change all the time, there
    /// is no better one.
    pub(super) fn arrived_since(&self, begun: Time) -> Option<Arc<Supplied>> {
        let (taken, _, supplied) = self.current.as_ref()?;
        (*taken >= begun).then(|| supplied.clone())
    }

    fn ask(&mut self, now: Time) {
        if self.is_wanted && self.asked.is_none() && now >= self.next {
            let reply = self.post(Question::Snapshot);
            self.asked = Some(Asked { at: now, version: self.version, reply });
            (self.is_wanted, self.next) = (false, now + limits::ASK_EVERY);
        }
    }

    /// Passes a command on.
    pub(super) fn post(&self, question: Question) -> PendingReply {
        self.inquiries.post(question, || self.master.kick())
    }

    /// Notes changes, and takes the answer if it has arrived. Returns whether members have changed.
    pub(super) fn advance(&mut self, now: Time) -> bool {
        let has_changed = self.inquiries.take_change();
        self.version += u64::from(has_changed);
        if let Some(reply) = self.asked.as_ref().and_then(|asked| asked.reply.take()) {
            let version = self.asked.take().map_or(0, |asked| asked.version);
            if let Reply::Snapshot(snapshot) = reply {
                let supplied = Supplied { snapshot: *snapshot, json: OnceLock::new() };
                self.current = Some((now, version, Arc::new(supplied)));
            }
        }
        self.ask(now);
        has_changed
    }

    /// Whether the thread of the master has not answered for too long.
    pub(super) fn is_stalled(&self, now: Time) -> bool {
        self.asked.as_ref().is_some_and(|asked| now.since(asked.at) >= limits::ANSWER_MAX)
    }

    /// When to call [`Self::advance`] at the latest.
    pub(super) fn poll_timeout(&self, now: Time) -> Option<Time> {
        let overdue = self.asked.as_ref().map(|asked| asked.at + limits::ANSWER_MAX).filter(|at| *at > now);
        let next = (self.is_wanted && self.asked.is_none()).then_some(self.next);
        overdue.into_iter().chain(next).min()
    }
}
