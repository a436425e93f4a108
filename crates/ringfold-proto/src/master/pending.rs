//! Is anyone waiting to join? One answer for all who ask together.

use super::Master;
use crate::message::{Answer, Phase};

impl Master {
    pub(super) fn advance_pending(&mut self) -> bool {
        let complete = self.pending.as_ref().is_some_and(|p| p.round.is_complete(self.roster.accepted()));
        if !complete {
            return false;
        }
        let Some(phase) = self.pending.take() else { return false };
        self.last_pending = self.roster.pending().next().is_some();
        self.count_round(Phase::Pending);
        self.complete_phase(Phase::Pending, phase.round, Answer::Pending(self.last_pending));
        true
    }
}
