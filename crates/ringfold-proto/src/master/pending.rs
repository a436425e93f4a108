//! The vote on whether peers wait to join: one answer for all voters.

use super::Master;
use crate::message::{Answer, Phase};

impl Master {
    pub(super) fn advance_pending(&mut self) -> bool {
        let Some(votes) = self.take_complete(Phase::Pending) else { return false };
        self.last_pending = !self.admissible().is_empty();
        self.complete_phase(Phase::Pending, votes, Answer::Pending(self.last_pending));
        true
    }
}
