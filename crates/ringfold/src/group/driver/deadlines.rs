//! Operations that miss their deadline, and the ranks that caused it.

use super::{GroupDriver, Running, Stage};
use crate::limits;
use ringfold_proto::cause::{Cause, Wait};
use ringfold_proto::id::{OpId, Rank};
use ringfold_proto::time::Time;

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
        let mut waited_for = self.plane.awaits(op);
        let Some(running) = self.running.get_mut(&op) else { return };
        let plane = &self.plane;
        let members = &self.description.members;
        let is_recent = |at: Time| now.since(at) < running.sign_every * limits::SIGNS_MISSED_MAX;
        let waits = |rank: &Rank| plane.pinged_at(members[rank.index()].peer).is_some_and(is_recent);
        // Ranks that wait themselves know better which rank is missing, and their deadline passes now, too. A process that
        // finds out much too late was stopped, and the others report the cause.
        let all_wait = running.is_collective() && !waited_for.is_empty() && waited_for.iter().all(waits);
        let was_stopped = now.since(running.deadline) > running.sign_every;
        if !running.is_put_off && (all_wait || was_stopped) {
            (running.is_put_off, running.deadline) = (true, now + running.sign_every);
            return;
        }
        if all_wait {
            let me = self.me;
            let others = (0..members.len()).map(Rank::from_index).filter(|rank| *rank != me);
            let silent: Vec<_> = others.filter(|rank| !waits(rank)).collect();
            if !silent.is_empty() {
                waited_for = silent;
            }
        } else if running.is_collective() {
            waited_for.retain(|rank| !waits(rank));
        }
        let waited_for = self.names(waited_for.into_iter());
        self.fail(now, Cause::Timeout(Wait::for_peers(waited_for)));
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
