//! A started operation: a state machine over the steps of its plan.

use super::in_flight_puts::InFlightPuts;
use super::lane::{InLane, OutLane, WaitingFrame};
use super::output::Output;
use super::pair::Pair;
use crate::event::{ExecutorEvent, Violation};
use crate::medium::{Medium, Ticket};
use crate::plan::{Plan, wire_bytes};
use crate::step::{Action, OpBuffer, Step};
use crate::workspace::Workspace;
use ringfold_proto::data_header::{DataHeader, frame_checksum};
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::id::{OpId, Rank};
use ringfold_proto::link_message::LinkMessage;
use ringfold_proto::time::Time;
use ringfold_proto::tuning::Tuning;
use std::collections::VecDeque;
use std::sync::Arc;

/// A started operation.
pub(super) struct Op<W> {
    pub(super) id: OpId,
    pub(super) plan: Arc<Plan>,
    pub(super) workspace: W,
    pub(super) started: Time,
    /// When something last arrived for it, or was flushed.
    pub(super) moved: Time,
    descriptor: Descriptor,
    done: Vec<bool>,
    /// The number of steps that are not done.
    remaining: usize,
    /// The number of frames that are not put.
    unsent: usize,
    /// The number of puts that are not flushed.
    in_flight: usize,
    /// Steps without a frame whose predecessor is done.
    ready: VecDeque<u32>,
    /// Ready steps that wait for flushes.
    fenced: Vec<u32>,
    /// Ready steps whose input cannot be read yet.
    starved: Vec<u32>,
    /// One lane for each entry of the plan's `sends`.
    pub(super) outs: Vec<OutLane>,
    /// One lane for each entry of the plan's `receives`.
    pub(super) ins: Vec<InLane>,
    tx_bytes: u64,
    rx_bytes: u64,
    /// Whether it was reported as done.
    pub(super) finished: bool,
    /// Whether the next poll runs it.
    pub(super) awake: bool,
    /// Ranks that were reported as mismatched.
    differing: Vec<Rank>,
    /// A payload did not match its checksum: nothing happens until the operation is decided.
    is_corrupted: bool,
}

/// The context for running an operation.
pub(super) struct RunContext<'a, M: Medium> {
    pub(super) now: Time,
    pub(super) tuning: Tuning,
    pub(super) pairs: &'a mut [Pair],
    pub(super) puts: &'a mut InFlightPuts,
    pub(super) out: &'a mut Output<M::Workspace>,
    pub(super) medium: &'a mut M,
}

impl<W: Workspace> Op<W> {
    pub(super) fn new(now: Time, id: OpId, descriptor: Descriptor, plan: Arc<Plan>, workspace: W) -> Self {
        let is_free = |step: &Step| step.after.is_none() && step.receives_from().is_none();
        let ready = plan.steps.iter().zip(0..).filter_map(|(step, i)| is_free(step).then_some(i)).collect();
        Self {
            id,
            workspace,
            started: now,
            moved: now,
            descriptor,
            done: vec![false; plan.steps.len()],
            remaining: plan.steps.len(),
            unsent: plan.sends.iter().map(|(_, steps)| steps.len()).sum(),
            in_flight: 0,
            ready,
            fenced: Vec::new(),
            starved: Vec::new(),
            outs: plan.sends.iter().map(|(_, steps)| OutLane::new(plan.fingerprint_of(steps))).collect(),
            ins: plan.receives.iter().map(|(_, steps)| InLane::new(plan.fingerprint_of(steps))).collect(),
            tx_bytes: 0,
            rx_bytes: 0,
            finished: false,
            awake: false,
            differing: Vec::new(),
            is_corrupted: false,
            plan,
        }
    }

    /// The lane of frames to a rank.
    pub(super) fn out_lane(&self, to: Rank) -> Option<usize> {
        self.plan.sends.binary_search_by_key(&to, |(rank, _)| *rank).ok()
    }

    /// The lane of frames from a rank.
    pub(super) fn in_lane(&self, from: Rank) -> Option<usize> {
        self.plan.receives.binary_search_by_key(&from, |(rank, _)| *rank).ok()
    }

    /// Whether a frame from a rank has the fingerprint of this operation.
    pub(super) fn matches(&self, from: Rank, header: &DataHeader) -> bool {
        let lane = self.in_lane(from);
        header.fingerprint == lane.map_or(self.plan.fingerprint, |lane| self.ins[lane].fingerprint)
    }

    /// Checks that a frame is in the plan. Frames of several streams may be offered out of order, so the order is
    /// checked only `in_turn`.
    pub(super) fn check(&self, from: Rank, header: &DataHeader, in_turn: bool) -> Result<usize, Violation> {
        let unknown = Violation::NoSuchFrame(header.chunk);
        let lane = self.in_lane(from).ok_or(unknown)?;
        let step = self.plan.receives[lane].1.get(header.chunk as usize).ok_or(unknown)?;
        let due = self.ins[lane].arrived;
        if header.chunk as usize != due && (in_turn || (header.chunk as usize) < due) {
            return Err(Violation::OutOfOrder { got: header.chunk, expected: due as u32 });
        }
        let expected = wire_bytes(&self.descriptor, self.plan.steps[*step as usize].region.count);
        if header.length != expected {
            return Err(Violation::BadLength { got: header.length, expected });
        }
        Ok(lane)
    }

    /// Records a checked frame, whose slot is marked full.
    pub(super) fn arrive(&mut self, lane: usize, header: &DataHeader, pair: &mut Pair) {
        let frames = self.plan.receives[lane].1.len();
        let lane = &mut self.ins[lane];
        let DataHeader { slot, eager, checksum, .. } = *header;
        lane.waiting.push_back(WaitingFrame { slot, eager, checksum });
        lane.arrived += 1;
        if !header.eager {
            lane.lent -= 1;
            lane.full += 1;
        }
        self.rx_bytes += u64::from(header.length);
        if lane.arrived == frames && lane.lent > 0 {
            // The sender used eager slots before the grant arrived. It has no frame left for the granted slots, so the
            // last frame is a fence.
            lane.lent -= pair.slots.reclaim(self.id);
        }
    }

    /// More of the input can be read.
    pub(super) fn take_input(&mut self) {
        self.ready.extend(self.starved.drain(..));
    }

    /// Whether the input of a step can be read.
    fn has_input(&self, step: &Step) -> bool {
        step.inputs().all(|region| self.workspace.has_input(region))
    }

    /// Records a flushed put.
    pub(super) fn flush(&mut self, lane: usize, ticket: Ticket) {
        self.outs[lane].flush(ticket);
        self.in_flight -= 1;
    }

    /// Records that a rank runs another operation. Returns whether that is new.
    pub(super) fn record_mismatch(&mut self, rank: Rank) -> bool {
        if let Some(lane) = self.in_lane(rank) {
            self.ins[lane].differs = true;
        }
        let is_new = !self.differing.contains(&rank);
        if is_new {
            self.differing.push(rank);
        }
        is_new
    }

    /// Whether frames to or from a rank are missing.
    pub(super) fn depends_on(&self, rank: Rank) -> bool {
        let sends = |lane: usize| self.outs[lane].sent < self.plan.sends[lane].1.len();
        let receives = |lane: usize| self.ins[lane].arrived < self.plan.receives[lane].1.len();
        self.out_lane(rank).is_some_and(sends) || self.in_lane(rank).is_some_and(receives)
    }

    /// The ranks whose frames are missing; if there are none, those to which frames are not flushed.
    pub(super) fn awaits(&self) -> Vec<Rank> {
        let lanes = self.ins.iter().zip(&self.plan.receives);
        let senders = lanes.filter(|(lane, (_, steps))| lane.arrived < steps.len());
        let senders: Vec<Rank> = senders.map(|(_, (rank, _))| *rank).collect();
        if !senders.is_empty() || self.finished {
            return senders;
        }
        let lanes = self.outs.iter().zip(&self.plan.sends);
        lanes.filter(|(lane, (_, steps))| lane.flushed < steps.len()).map(|(_, (rank, _))| *rank).collect()
    }

    /// Whether a rank has sent frames, or granted slots.
    pub(super) fn has_begun(&self, rank: Rank) -> bool {
        self.in_lane(rank).is_some_and(|lane| self.ins[lane].arrived > 0)
            || self.out_lane(rank).is_some_and(|lane| self.outs[lane].was_granted)
    }

    /// The number of frames of a rank that were stored in scratch.
    pub(super) fn kept_of(&self, rank: Rank) -> u32 {
        let Some(lane) = self.in_lane(rank) else { return 0 };
        let taken = &self.plan.receives[lane].1[..self.ins[lane].taken];
        let is_kept = |step: &&u32| self.plan.steps[**step as usize].region.buffer == OpBuffer::Scratch;
        taken.iter().filter(is_kept).count() as u32
    }

    /// The ranks that the plan sends to or receives from, some of them twice.
    pub(super) fn ranks(&self) -> impl Iterator<Item = Rank> + '_ {
        self.plan.sends.iter().chain(&self.plan.receives).map(|(rank, _)| *rank)
    }

    /// The puts that are not flushed.
    pub(super) fn tickets(&self) -> impl Iterator<Item = Ticket> + '_ {
        self.outs.iter().flat_map(OutLane::in_flight)
    }

    /// Grants slots to the other end of a lane.
    pub(super) fn lend(&mut self, lane: usize, pair: &mut Pair, tuning: &Tuning, out: &mut Output<W>) {
        let frames = self.plan.receives[lane].1.len();
        let lane = &mut self.ins[lane];
        let wanted = if pair.up { lane.to_lend(frames, usize::from(tuning.window_slots)) } else { 0 };
        if wanted == 0 {
            return;
        }
        let mut slots = Vec::with_capacity(wanted);
        while slots.len() < wanted
            && let Some(slot) = pair.slots.lend(self.id, lane.lent + lane.full + slots.len() == 0)
        {
            slots.push(slot);
        }
        lane.lent += slots.len();
        if !slots.is_empty() {
            out.send(pair.peer, LinkMessage::Grant { op: self.id, slots });
        }
    }

    /// Does all work that is possible now.
    pub(super) fn run<M: Medium<Workspace = W>>(&mut self, context: &mut RunContext<'_, M>) {
        if self.is_corrupted {
            return;
        }
        let plan = Arc::clone(&self.plan);
        self.moved = context.now;
        for lane in 0..self.outs.len() {
            self.send(lane, &plan, context);
        }
        self.ready.extend(self.fenced.drain(..));
        loop {
            let mut moved = self.begin_ready(&plan, context);
            for lane in 0..self.ins.len() {
                moved |= self.take(lane, &plan, context);
            }
            if !moved {
                break;
            }
        }
        if !self.finished && self.remaining == 0 && self.unsent == 0 && self.in_flight == 0 {
            self.finished = true;
            let (op, tx_bytes, rx_bytes) = (self.id, self.tx_bytes, self.rx_bytes);
            let digest = self.descriptor.integrity.results.then(|| self.workspace.digest());
            context.out.emit(ExecutorEvent::Done { op, tx_bytes, rx_bytes, digest });
        }
    }

    /// Runs ready steps without a frame.
    fn begin_ready<M>(&mut self, plan: &Plan, context: &mut RunContext<'_, M>) -> bool
    where
        M: Medium<Workspace = W>,
    {
        let mut moved = false;
        while let Some(index) = self.ready.pop_front() {
            let step = &plan.steps[index as usize];
            if step.fence && !self.is_flushed_before(index, plan) {
                self.fenced.push(index);
                continue;
            }
            if !self.has_input(step) {
                self.starved.push(index);
                continue;
            }
            match step.action {
                Action::Copy { own } => self.workspace.copy(own, step.region),
                Action::Combine { left, right } => self.workspace.combine(left, right, step.region),
                Action::None | Action::Store { .. } | Action::Reduce { .. } => {}
            }
            self.finish(index, plan, context);
            moved = true;
        }
        moved
    }

    /// Takes the waiting frames of a lane whose steps are ready.
    fn take<M>(&mut self, lane: usize, plan: &Plan, context: &mut RunContext<'_, M>) -> bool
    where
        M: Medium<Workspace = W>,
    {
        let (from, steps) = &plan.receives[lane];
        let mut moved = false;
        while !self.is_corrupted
            && let Some(arrival) = self.ins[lane].waiting.front().copied()
        {
            let index = steps[self.ins[lane].taken];
            let step = &plan.steps[index as usize];
            let is_after = step.after.is_none_or(|after| self.done[after as usize]);
            if !is_after || step.fence && !self.is_flushed_before(index, plan) || !self.has_input(step) {
                break;
            }
            let pair = &mut context.pairs[from.index()];
            let slot = pair.slot(arrival.slot);
            let frame = context.medium.frame(slot);
            if self.descriptor.integrity.payloads {
                let (chunk, fingerprint) = (self.ins[lane].taken as u32, self.ins[lane].fingerprint);
                let found = self.workspace.checksum(frame);
                if arrival.checksum != Some(frame_checksum(self.id, fingerprint, chunk, found)) {
                    self.is_corrupted = true;
                    context.out.emit(ExecutorEvent::Corrupted { op: self.id, peer: pair.peer });
                    return moved;
                }
            }
            match step.action {
                Action::Reduce { own, left, .. } => self.workspace.reduce(frame, own, step.region, left),
                _ => self.workspace.store(frame, step.region),
            }
            context.medium.release(slot);
            let state = &mut self.ins[lane];
            state.waiting.pop_front();
            state.taken += 1;
            if !arrival.eager {
                state.full -= 1;
            }
            pair.empty(arrival.slot, context.out);
            self.lend(lane, pair, &context.tuning, context.out);
            self.finish(index, plan, context);
            moved = true;
        }
        moved
    }

    /// Finishes a step after its action: settles the result, sends it, and readies the steps that wait for it.
    fn finish<M>(&mut self, index: u32, plan: &Plan, context: &mut RunContext<'_, M>)
    where
        M: Medium<Workspace = W>,
    {
        let step = &plan.steps[index as usize];
        if step.settle {
            self.workspace.settle(step.region);
        }
        self.workspace.note_done(index);
        self.done[index as usize] = true;
        self.remaining -= 1;
        for next in plan.dependents_of(index) {
            if plan.steps[next as usize].receives_from().is_none() {
                self.ready.push_back(next);
            }
        }
        if let Some(lane) = step.send.and_then(|to| self.out_lane(to)) {
            self.send(lane, plan, context);
        }
    }

    /// Puts the ready frames of a lane for which there are slots.
    fn send<M>(&mut self, lane: usize, plan: &Plan, context: &mut RunContext<'_, M>)
    where
        M: Medium<Workspace = W>,
    {
        let (to, steps) = &plan.sends[lane];
        let pair = &mut context.pairs[to.index()];
        let state = &mut self.outs[lane];
        if !pair.up || state.broken {
            return;
        }
        while state.sent < steps.len() && self.done[steps[state.sent] as usize] {
            let eager = !state.was_granted;
            let region = plan.steps[steps[state.sent] as usize].region;
            let length = wire_bytes(&self.descriptor, region.count);
            let slot = if eager { pair.credit.take_eager(length) } else { state.granted.pop() };
            let Some(slot) = slot else {
                Self::park(self.id, state, steps.len(), pair, &context.tuning, context.out);
                return;
            };
            let (chunk, fingerprint) = (state.sent as u32, state.fingerprint);
            let (payload, checksum) = if self.descriptor.integrity.payloads {
                let (payload, sum) = self.workspace.load_checked(region);
                (payload, Some(frame_checksum(self.id, fingerprint, chunk, sum)))
            } else {
                (self.workspace.load(region), None)
            };
            let header = DataHeader {
                op: self.id,
                fingerprint,
                chunk,
                offset: region.offset,
                length,
                slot,
                eager,
                checksum,
            };
            let ticket = context.medium.put(pair.peer, &header, payload);
            context.puts.begin(context.now, ticket, self.id, lane, pair.peer);
            state.put(ticket);
            self.unsent -= 1;
            self.in_flight += 1;
            self.tx_bytes += u64::from(header.length);
        }
    }

    /// Parks the operation until there is a slot, and requests one once. Long lanes of which frames have left need no
    /// request: the other end knows of the operation, and grants slots to them as soon as it starts it.
    fn park(
        id: OpId,
        lane: &mut OutLane,
        frames: usize,
        pair: &mut Pair,
        tuning: &Tuning,
        out: &mut Output<W>,
    ) {
        if !lane.parked {
            lane.parked = true;
            pair.credit.parked.push(id);
        }
        let is_unknown = lane.sent == 0 || frames <= tuning.eager_frames_max();
        if !lane.asked && !lane.was_granted && is_unknown {
            lane.asked = true;
            out.send(pair.peer, LinkMessage::Want { op: id });
        }
    }

    /// Whether all frames of earlier steps are flushed.
    fn is_flushed_before(&self, index: u32, plan: &Plan) -> bool {
        self.outs.iter().zip(&plan.sends).all(|(lane, (_, steps))| {
            steps.get(lane.flushed).is_none_or(|first_unflushed| *first_unflushed >= index)
        })
    }
}
