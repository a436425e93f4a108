//! Operations that survivors of a lost peer resume.

use super::Simulation;
use super::calls::PendingCall;
use super::peer::SimPeer;
use crate::buffer::SymbolWorkspace;
use crate::oracle::Guarantee;
use crate::planted_bug::PlantedBug;
use ringfold_plan::choice;
use ringfold_plan::ownership::Holding;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::id::{CallId, OpId};

impl SimPeer {
    /// What is here of a suspended operation.
    pub(super) fn suspended_call(&mut self, op: OpId) -> Option<&mut Holding> {
        self.pending.values_mut().find_map(|call| match call {
            PendingCall::Reduce { op: of, holding: Some(holding), .. } if *of == Some(op) => Some(holding),
            _ => None,
        })
    }
}

impl Simulation {
    /// Aborts an operation and keeps what has arrived.
    pub(super) fn suspend_op(&mut self, peer: usize, op: OpId) {
        let state = &mut self.peers[peer];
        let held = state.executor.holding(op);
        let is_it =
            |call: &&mut PendingCall| matches!(call, PendingCall::Reduce { op: of, .. } if *of == Some(op));
        if let Some(PendingCall::Reduce { holding, .. }) = state.pending.values_mut().find(is_it) {
            *holding = held;
        }
        state.executor.abort(op);
        self.alter_abort(peer, op);
    }

    /// The memory of a suspended operation is free.
    pub(super) fn report_holding(&mut self, peer: usize, op: OpId) {
        let state = &mut self.peers[peer];
        let report = state.suspended_call(op).map(|holding| holding.report());
        state.machine.handle_op_suspended(op, report);
    }

    /// Starts a suspended operation as another one.
    pub(super) fn resume_op(
        &mut self,
        peer: usize,
        op: OpId,
        call: CallId,
        descriptor: Descriptor,
        held: &[u32],
    ) {
        let now = self.now;
        self.oracle.resumed += 1;
        let state = &mut self.peers[peer];
        let Some(PendingCall::Reduce { buffer, op: slot, holding, .. }) = state.pending.get_mut(&call) else {
            return;
        };
        *slot = Some(op);
        let (buffer, holding) = (buffer.clone(), holding.take());
        if buffer.borrow().flips_result {
            self.flipped_results.insert((op, state.id));
        }
        let Some(membership) = state.executor.membership(op.epoch) else {
            let what = format!("p{peer}: {op} has no open epoch");
            return self.oracle.report_violation(now, Guarantee::NoFalseAccusation, what);
        };
        let layout = holding.ok_or("nothing is here").and_then(|h| h.resume(&membership.members, held));
        let layout = match layout {
            Ok(layout) => layout,
            Err(why) => {
                let what = format!("p{peer} cannot resume {op}: {why}");
                return self.oracle.report_violation(now, Guarantee::NoFalseAccusation, what);
            }
        };
        let members = membership.members.iter().filter_map(|m| self.by_id.get(m)).copied().collect();
        let plan = choice::plan(&descriptor, &layout, membership.me, &membership.shape, &membership.tuning);
        self.oracle.op_started(op, peer, buffer.borrow().contribution, members);
        let forgets = self.planted_bug == Some(PlantedBug::ForgetKeptChunks);
        self.run_plan(peer, op, descriptor, plan, |scratch| match forgets {
            true => SymbolWorkspace::new(buffer, scratch),
            false => SymbolWorkspace::resumed(buffer, scratch),
        });
    }
}
