//! Operations that take too long, and whose fault that is.

use super::{GroupDriver, Running, Stage};
use crate::limits;
use ringfold_proto::cause::Cause;
use ringfold_proto::id::{OpId, Rank};
use ringfold_proto::time::Time;

impl GroupDriver {
    /// The first operation that has not ended in time ends the group.
    pub(super) fn check_deadlines(&mut self, now: Time) {
        let late = |driver: &Self| {
            let is_late =
                |(_, running): &(&OpId, &Running)| running.stage == Stage::Working && running.deadline <= now;
            driver.running.iter().find(is_late).map(|(op, _)| *op)
        };
        if self.fault.is_some() || late(self).is_none() {
            return;
        }
        // Someone else may have told already, if this process was stopped.
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
        // Those who wait themselves know better whose fault it is, and their time is up now, too. And whoever comes to
        // this far too late was stopped, and is told whose fault it is.
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
        self.fail(now, Cause::Timeout { waited_for });
    }

    /// In a collective that takes long, each rank shows the others that it waits as well: so that, if time runs out,
    /// those are named who do not.
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
