//! A master that dies at the worst moment, for tests of recovery.

use ringfold_proto::event::Event;
use ringfold_proto::id::OpId;
use ringfold_proto::message::{Outcome, ToPeer};

/// Counts commits, and knows when to die.
#[derive(Debug)]
pub(super) struct Crash {
    commits_left: u64,
    /// The operation of which only one peer is to hear.
    last: Option<OpId>,
}

impl Crash {
    pub fn after_commits(commits: u64) -> Self {
        Self { commits_left: commits, last: None }
    }

    /// The machine tells of a decision before it tells the peers of it.
    pub fn note(&mut self, event: &Event) {
        if let Event::OpDecided(op, Outcome::Committed) = event
            && self.last.is_none()
        {
            self.commits_left = self.commits_left.saturating_sub(1);
            self.last = (self.commits_left == 0).then_some(*op);
        }
    }

    /// Whether this message is the last that anyone is to hear.
    pub fn is_due(&self, message: &ToPeer) -> bool {
        matches!(message, ToPeer::Decided { op, .. } if self.last == Some(*op))
    }
}
