//! All-reduces that survivors of a lost member resume before the call returns.

use super::{Driver, Held};
use crate::all_reduce::HostBuffers;
use crate::data_plane::{KeptContributions, OpOptions};
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::event::PeerEvent;
use ringfold_proto::id::{CallId, OpId};
use ringfold_proto::time::Time;

impl Driver {
    /// Aborts an operation, and keeps what has arrived if it can be resumed.
    pub(super) fn suspend_op(&mut self, op: OpId) {
        if self.release_if_not_in_executor(op) {
            return;
        }
        // Results of this attempt that were copied meanwhile would not be those of the next one.
        let reduction = self.by_op.get(&op).and_then(|call| self.reductions.get(call));
        match reduction.is_some_and(|reduction| reduction.finals.is_none()) {
            true => self.plane.suspend(op),
            false => self.plane.abort(op),
        }
    }

    /// The memory of a suspended operation is free.
    pub(super) fn note_suspended(&mut self, op: OpId, buffers: HostBuffers, kept: KeptContributions) {
        let report = kept.holding.report();
        if let Some(reduction) = self.by_op.remove(&op).and_then(|call| self.reductions.get_mut(&call)) {
            reduction.buffers = Held::Here(buffers);
            reduction.kept = Some(kept);
        }
        self.started.remove(&op);
        self.machine.handle_op_suspended(op, Some(report));
    }

    /// Starts a suspended operation as another one.
    pub(super) fn resume_op(
        &mut self,
        now: Time,
        op: OpId,
        call: CallId,
        descriptor: Descriptor,
        held: &[u32],
    ) {
        let Some(reduction) = self.reductions.get_mut(&call) else { return self.refuse_op(op) };
        reduction.op = Some(op);
        let Some(KeptContributions { holding, scratch }) = reduction.kept.take() else {
            return self.refuse_op(op);
        };
        let layout = match holding.resume(self.plane.members(op.epoch), held) {
            Ok(layout) => layout,
            Err(why) => {
                self.journal.post(PeerEvent::OpRejected { op, why: why.into() });
                return self.refuse_op(op);
            }
        };
        match core::mem::replace(&mut reduction.buffers, Held::Lent(op)) {
            Held::Here(buffers) => {
                let options = OpOptions { resumed: Some(scratch), ..OpOptions::default() };
                self.start_on_host(now, op, call, (descriptor, &layout), buffers, options);
            }
            other => {
                reduction.buffers = other;
                self.refuse_op(op);
            }
        }
    }
}
