//! Collectives in device memory: the votes are the machine's, the data is moved by the thread that made the call.
//!
//! That thread asks for the stages of its operation (`device_*`) until they have an answer, and tells its own.

use super::device_ops::DeviceAnswer;
use super::{Driver, Held, Reduction};
use crate::device_plan::DevicePlan;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::id::{CallId, OpId, PeerId};
use ringfold_proto::link_message::DeviceStage;
use std::sync::Arc;

impl Driver {
    /// What this peer computes of a collective that was started without buffers; none before it may begin.
    pub(crate) fn device_start(&mut self, call: CallId) -> Option<DeviceAnswer<Arc<DevicePlan>>> {
        let Some(Reduction { buffers: Held::Coming(start), .. }) = self.reductions.get(&call) else {
            return Some(DeviceAnswer::Ended);
        };
        let (op, descriptor) = (*start)?;
        let Some(plan) = self.plane.device_plan(op, &descriptor) else {
            return Some(DeviceAnswer::OnHost);
        };
        let others = || {
            let others = plan.members.iter().enumerate().filter(|(rank, _)| *rank != plan.me);
            others.map(|(_, peer)| *peer).collect()
        };
        self.device_ops.begin(op, others);
        Some(DeviceAnswer::All(plan))
    }

    /// The memory that the other members have offered, in rank order.
    pub(crate) fn device_offers(&self, call: CallId) -> Option<DeviceAnswer<Vec<Vec<u8>>>> {
        self.coming_op(call).map_or(Some(DeviceAnswer::Ended), |(op, _)| self.device_ops.offers(op))
    }

    /// Whether all members are ready.
    pub(crate) fn device_ready(&self, call: CallId) -> Option<DeviceAnswer<()>> {
        self.coming_op(call).map_or(Some(DeviceAnswer::Ended), |(op, _)| self.device_ops.ready(op))
    }

    /// Whether all members have computed their parts.
    pub(crate) fn device_folded(&self, call: CallId) -> Option<DeviceAnswer<()>> {
        self.coming_op(call).map_or(Some(DeviceAnswer::Ended), |(op, _)| self.device_ops.folded(op))
    }

    /// Tells all members that this one has reached a stage.
    pub(crate) fn tell_stage(&mut self, call: CallId, stage: &DeviceStage) {
        if let Some((op, _)) = self.coming_op(call) {
            self.send_stage(op, self.device_ops.others(op), stage);
            self.pump(self.clock.now());
        }
    }

    /// The result is complete in device memory: votes for it.
    pub(crate) fn finish_on_device(&mut self, call: CallId, moved_bytes: u64) {
        let Some((op, _)) = self.coming_op(call) else { return };
        if let Some(reduction) = self.reductions.get_mut(&call) {
            reduction.buffers = Held::OnDevice(op);
            (reduction.info.tx_bytes, reduction.info.rx_bytes) = (moved_bytes, moved_bytes);
        }
        self.machine.handle_op_done(op, None);
        self.pump(self.clock.now());
    }

    /// A member has reached a stage. If the operation runs in host memory here, the member is told.
    pub(super) fn hear_stage(&mut self, peer: PeerId, op: OpId, stage: DeviceStage) {
        let is_offer = matches!(stage, DeviceStage::Offered { .. });
        if is_offer && self.by_op.contains_key(&op) {
            return self.plane.send_stage(peer, op, DeviceStage::OnHost);
        }
        if self.device_ops.hear(op, peer, stage) {
            self.has_device_news = true;
        } else if is_offer {
            // The member then tells all others, also this one when it offers.
            self.plane.send_stage(peer, op, DeviceStage::OnHost);
        }
    }

    /// An operation begins in host memory: tells the members that have begun it in device memory.
    pub(super) fn tell_on_host(&mut self, op: OpId) {
        let told = self.device_ops.run_on_host(op);
        self.send_stage(op, told, &DeviceStage::OnHost);
    }

    /// Whether a decision is about an operation that the executor does not have; then it is released at once.
    pub(super) fn release_if_not_in_executor(&mut self, op: OpId) -> bool {
        self.device_ops.end(op);
        let is_it = |r: &&mut Reduction| match r.buffers {
            Held::Coming(Some((of, _))) | Held::OnDevice(of) => of == op,
            _ => false,
        };
        let Some(reduction) = self.reductions.values_mut().find(is_it) else { return false };
        reduction.buffers = Held::Never;
        self.plane.skip(op);
        self.machine.handle_op_released(op);
        true
    }

    pub(super) fn coming_op(&self, call: CallId) -> Option<(OpId, Descriptor)> {
        match self.reductions.get(&call)?.buffers {
            Held::Coming(start) => start,
            _ => None,
        }
    }

    fn send_stage(&mut self, op: OpId, to: Vec<PeerId>, stage: &DeviceStage) {
        for peer in to {
            self.plane.send_stage(peer, op, stage.clone());
        }
    }
}
