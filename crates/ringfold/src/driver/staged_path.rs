//! Collectives whose input arrives while they run, and whose result is copied while they run.

use super::{Driver, Held, Reduction};
use crate::all_reduce::HostBuffers;
use crate::workspace::FinalRanges;
use ringfold_proto::id::CallId;
use std::sync::Arc;

impl Driver {
    /// In which order a collective that was started without buffers reads the pieces of its input; none if that is not
    /// known yet.
    pub(crate) fn input_order(
        &mut self,
        call: CallId,
        bytes: usize,
        piece_bytes: usize,
    ) -> Option<Vec<usize>> {
        let (op, descriptor) = self.coming_op(call)?;
        self.plane.input_order(op, &descriptor, bytes, piece_bytes)
    }

    /// As [`Driver::supply`], with an input of which a part has arrived. What is final of the result is reported.
    pub(crate) fn supply_arriving(&mut self, call: CallId, buffers: HostBuffers, finals: Arc<FinalRanges>) {
        if let Some(reduction) = self.reductions.get_mut(&call) {
            reduction.finals = Some(finals);
        }
        self.supply(call, Some(buffers));
    }

    /// More of the input has arrived.
    pub(crate) fn note_input(&mut self, call: CallId) {
        if let Some(Reduction { buffers: Held::Lent(op), .. }) = self.reductions.get(&call) {
            self.plane.handle_input(*op);
            self.pump(self.clock.now());
        }
    }

    /// The rest of the input cannot be had: the collective is voted down.
    pub(crate) fn fail_input(&mut self, call: CallId) {
        let Some(reduction) = self.reductions.get_mut(&call) else { return };
        match &mut reduction.buffers {
            Held::Lent(op) => self.machine.handle_op_failed(*op),
            held @ Held::Here(_) => *held = Held::Never,
            Held::Coming(_) | Held::OnDevice(_) | Held::Never => {}
        }
        self.pump(self.clock.now());
    }

    /// Whether a call has not ended.
    pub(crate) fn is_running(&self, call: CallId) -> bool {
        self.reductions.contains_key(&call)
    }

    /// Whether a thread that copies results has something to do.
    pub(super) fn has_final_news(&self) -> bool {
        let mut finals = self.reductions.values().filter_map(|reduction| reduction.finals.as_ref());
        finals.any(|finals| finals.take_news())
    }
}
