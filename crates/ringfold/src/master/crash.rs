//! Crashes the master between two messages of one decision, for tests of recovery.

use ringfold_proto::event::Event;
use ringfold_proto::id::OpId;
use ringfold_proto::message::{Outcome, ToPeer};

#[derive(Debug)]
pub(super) struct Crash {
    commits_left: u64,
    last: Option<OpId>,
}

impl Crash {
    pub fn after_commits(commits: u64) -> Self {
        Self { commits_left: commits, last: None }
    }

    /// Counts a commit. The machine reports events before it sends the messages.
    pub fn note(&mut self, event: &Event) {
        if let Event::OpDecided { op, outcome: Outcome::Committed { .. }, .. } = event
            && self.last.is_none()
        {
            self.commits_left = self.commits_left.saturating_sub(1);
            self.last = (self.commits_left == 0).then_some(*op);
        }
    }

    /// Whether to crash after this message.
    pub fn is_due(&self, message: &ToPeer) -> bool {
        matches!(message, ToPeer::Decided { op, .. } if self.last == Some(*op))
    }
}
