//! Operations that miss their deadline, and the ranks that caused it.

use super::{GroupDriver, Running, Stage};
use crate::limits;
use ringfold_proto::cause::Cause;
use ringfold_proto::id::{OpId, Rank};
use ringfold_proto::time::Time;

/// The ranks that are missing in an operation.
pub(super) struct Missing {
    pub(super) ranks: Vec<Rank>,
    /// Whether all ranks that the operation waits for directly wait themselves.
    all_wait: bool,
}

impl GroupDriver {
    /// Fails the group if an operation has missed its deadline.
    pub(super) fn check_deadlines(&mut self, now: Time) {
        let late = |driver: &Self| {
            let is_late =
                |(_, running): &(&OpId, &Running)| running.stage == Stage::Working && running.deadline <= now;
            driver.running.iter().find(is_late).map(|(op, _)| *op)
        };
        if self.fault.is_some() || late(self).is_none() {
            return;
        }
        // If this process was stopped, another rank may have reported the failure already.
        for rank in self.others() {
            self.read(now, self.description.members[rank.index()].peer);
        }
        self.pump(now);
        let Some(op) = late(self).filter(|_| self.fault.is_none()) else { return };
        let missing = self.missing(now, op);
        let Some(running) = self.running.get_mut(&op) else { return };
        // Ranks that wait themselves know better which rank is missing, and their deadline passes now, too. A process that
        // finds out much too late was stopped, and the others report the cause.
        let was_stopped = now.since(running.deadline) > running.sign_every;
        if !running.is_put_off && (missing.all_wait || was_stopped) {
            (running.is_put_off, running.deadline) = (true, now + running.sign_every);
            return;
        }
        let wait = self.wait_in_op(now, op, missing.ranks);
        self.fail(now, Cause::Timeout(wait));
    }

    /// The ranks that an operation waits for and that do not wait themselves; all that it waits for if there are none.
    pub(super) fn missing(&self, now: Time, op: OpId) -> Missing {
        let mut ranks = self.plane.awaits(op);
        let Some(running) = self.running.get(&op).filter(|running| running.is_collective()) else {
            return Missing { ranks, all_wait: false };
        };
        let is_recent = |at: Time| now.since(at) < running.sign_every * limits::SIGNS_MISSED_MAX;
        let peer = |rank: &Rank| self.description.members[rank.index()].peer;
        let waits = |rank: &Rank| self.plane.pinged_at(peer(rank)).is_some_and(is_recent);
        let all_wait = !ranks.is_empty() && ranks.iter().all(waits);
        if all_wait {
            let silent: Vec<_> = self.others().filter(|rank| !waits(rank)).collect();
            if !silent.is_empty() {
                ranks = silent;
            }
        } else {
            ranks.retain(|rank| !waits(rank));
        }
        Missing { ranks, all_wait }
    }

    /// In a long collective each rank pings the others, so that a timeout names the ranks that do not wait.
    pub(super) fn show_waiting(&mut self, now: Time) {
        let mut is_due = false;
        for running in self.running.values_mut().filter(|running| running.is_collective()) {
            if running.stage == Stage::Working && running.next_sign <= now {
                (running.next_sign, is_due) = (now + running.sign_every, true);
            }
        }
        if is_due && self.fault.is_none() {
            for rank in self.others() {
                self.plane.ping(self.description.members[rank.index()].peer);
            }
        }
    }
}
