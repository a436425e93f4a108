//! Two joined connections: what arrives on one is sent on the other.

use crate::connection::{CloseReason, Connection};
use crate::limits;
use crate::poller::Token;
use crate::token_bucket::TokenBucket;
use ringfold_proto::time::Time;
use ringfold_settings::bandwidth::Bandwidth;
use std::io;

/// Two joined connections. It holds at most two buffers of 64 KiB per direction: a connection is only read while nothing
/// waits to be sent on the other.
#[derive(Debug)]
pub(super) struct JoinedPair {
    ends: [Connection; 2],
    /// Whether each end has sent its last byte.
    has_ended: [bool; 2],
    /// Whether the end of the other was passed on to each end.
    is_finished: [bool; 2],
    /// Bytes from each end to the other.
    bytes: [u64; 2],
    /// The cap of both directions together, if there is one.
    budget: Option<TokenBucket>,
    /// When more may be copied, while the budget is used up.
    resumes_at: Option<Time>,
    /// When it is cut, once the end of one direction was passed on.
    deadline: Option<Time>,
    /// Why it ends, unless an end has closed it.
    reason: Option<String>,
}

/// What became of a turn.
#[derive(Debug)]
pub(super) enum Turn {
    /// It continues.
    Continues,
    /// It has ended: why.
    Ended(String),
}

impl JoinedPair {
    pub(super) fn new(ends: [Connection; 2], rate: Option<Bandwidth>) -> Self {
        Self {
            ends,
            has_ended: [false; 2],
            is_finished: [false; 2],
            bytes: [0; 2],
            budget: rate.map(|rate| TokenBucket::new(rate.bytes_per_second())),
            resumes_at: None,
            deadline: None,
            reason: None,
        }
    }

    pub(super) fn tokens(&self) -> [Token; 2] {
        [self.ends[0].token(), self.ends[1].token()]
    }

    /// Bytes from each end to the other.
    pub(super) fn bytes(&self) -> [u64; 2] {
        self.bytes
    }

    /// When to call [`JoinedPair::advance`] even if nothing is ready.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.deadline.into_iter().chain(self.resumes_at).min()
    }

    /// Copies what can be copied now, as much as one turn takes. A direction ends alone: what was sent in the other one
    /// still arrives.
    pub(super) fn advance(&mut self, now: Time) -> Turn {
        self.resumes_at = None;
        // Under a cap the direction that has copied less comes first, so that none starves.
        let first = usize::from(self.bytes[0] > self.bytes[1]);
        for from in [first, 1 - first] {
            if let Err(error) = self.copy(now, from) {
                self.reason.get_or_insert_with(|| error.to_string());
                // Nothing more can be sent there.
                self.ends[1 - from].unsent().for_each(drop);
                self.has_ended[from] = true;
                self.is_finished[1 - from] = true;
            }
        }
        for end in 0..2 {
            if self.has_ended[end] && self.is_finished[end] {
                // The poller would report its end again and again.
                self.ends[end].unwatch();
            }
        }
        if self.is_finished != [false; 2] {
            self.deadline.get_or_insert(now + limits::RELAY_HALF_CLOSED_MAX);
        }
        let is_late = self.deadline.is_some_and(|at| at <= now);
        if self.is_finished == [true; 2] || is_late {
            return Turn::Ended(self.reason.take().unwrap_or_else(|| "closed".into()));
        }
        Turn::Continues
    }

    /// Copies in one direction. It is an error if nothing can be sent any more.
    fn copy(&mut self, now: Time, from: usize) -> io::Result<()> {
        let to = 1 - from;
        if self.is_finished[to] {
            return Ok(());
        }
        let [first, second] = &mut self.ends;
        let (source, sink) = if from == 0 { (first, second) } else { (second, first) };
        sink.flush(&mut Vec::new())?;
        for _ in 0..limits::RELAY_READS_PER_TURN {
            self.resumes_at = self.budget.as_ref().map(TokenBucket::begin).filter(|at| *at > now);
            if sink.queued_bytes() > 0 || self.has_ended[from] || self.resumes_at.is_some() {
                break;
            }
            match source.fill_within(self.budget.as_ref().map_or(usize::MAX, TokenBucket::quantum)) {
                Ok(false) => break,
                Ok(true) => {}
                Err(error) => {
                    self.has_ended[from] = true;
                    if CloseReason::of(&error) != Some(CloseReason::Ended) {
                        self.reason.get_or_insert_with(|| error.to_string());
                    }
                }
            }
            let copied = source.take(|input| {
                let bytes = core::mem::take(input);
                sink.send(bytes);
                bytes.len()
            });
            self.bytes[from] += copied as u64;
            if let Some(budget) = &mut self.budget {
                budget.pay(now, copied);
            }
            // What cannot be sent now has the poller report room.
            sink.flush(&mut Vec::new())?;
        }
        let may_read = sink.queued_bytes() == 0 && self.resumes_at.is_none();
        if !may_read && !self.has_ended[from] {
            // The poller always reports that a connection is broken, also while it is not read.
            self.has_ended[from] = !matches!(source.take_error(), Ok(None));
        }
        if self.has_ended[from] && sink.queued_bytes() == 0 {
            self.is_finished[to] = true;
            sink.finish()?;
        }
        source.set_awaits_input(!self.has_ended[from] && may_read)
    }

    /// Both connections, to be closed.
    pub(super) fn into_ends(self) -> [Connection; 2] {
        self.ends
    }
}
