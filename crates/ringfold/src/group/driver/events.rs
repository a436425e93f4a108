//! What a rank posts to the journal about operations: failures, and those that take long.

use super::{GroupDriver, Running, Stage};
use crate::journal::{PeerEvent, SHORT_OP_MAX};
use ringfold_proto::cause::Cause;
use ringfold_proto::id::OpId;
use ringfold_proto::peer::Failure;
use ringfold_proto::time::Time;

impl GroupDriver {
    /// Posts operations that have been running for a while.
    pub(super) fn post_running(&mut self, now: Time) {
        if !self.journal.wants_ops() {
            return;
        }
        for (op, running) in &mut self.running {
            if is_due(running, now) {
                running.is_posted = true;
                self.journal.post(PeerEvent::OpStarted { op: *op, call: running.descriptor });
            }
        }
    }

    /// When the next operation is to be posted.
    pub(super) fn next_post(&self) -> Option<Time> {
        if !self.journal.wants_ops() {
            return None;
        }
        let unposted = self.running.values().filter(|running| is_unposted(running));
        unposted.map(|running| running.began + SHORT_OP_MAX).min()
    }

    /// An operation has ended.
    pub(super) fn note_ended(&self, op: OpId, running: &Running, fault: Option<&Cause>) {
        let is_wanted =
            if fault.is_some() { self.journal.wants_long_ops() } else { self.journal.wants_ops() };
        if !is_wanted {
            return;
        }
        let duration = self.clock.now().since(running.began);
        if fault.is_none() && duration < SHORT_OP_MAX {
            return;
        }
        let (sent_bytes, received_bytes) = running.moved;
        let world = self.description.members.len();
        let result = fault.map_or(Ok(world), |cause| Err(Failure::Aborted(Box::new(cause.clone()))));
        let call = running.descriptor;
        self.journal.post(PeerEvent::OpEnded {
            op: Some(op),
            tag: op.tag,
            call,
            result,
            sent_bytes,
            received_bytes,
            duration,
        });
    }
}

fn is_unposted(running: &Running) -> bool {
    !running.is_posted && running.stage == Stage::Working
}

fn is_due(running: &Running, now: Time) -> bool {
    is_unposted(running) && running.began + SHORT_OP_MAX <= now
}
