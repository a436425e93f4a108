//! One open epoch: its members' pairs and its operations.

use super::eager::EagerLimits;
use super::membership::Membership;
use super::op::Op;
use super::output::Output;
use super::pair::Pair;
use crate::event::{ExecutorEvent, Violation};
use crate::workspace::Workspace;
use foldhash::HashMap;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::id::{EpochId, OpId, PeerId, Rank, Seq, Tag};
use ringfold_proto::link_message::LinkMessage;
use std::collections::BTreeMap;

/// An open epoch.
pub(super) struct Epoch<W> {
    pub(super) membership: Membership,
    ranks: HashMap<PeerId, Rank>,
    /// By rank; our own entry is not used.
    pub(super) pairs: Vec<Pair>,
    /// Boxed, because maps and events move them.
    pub(super) ops: BTreeMap<OpId, Box<Op<W>>>,
    /// For each tag, the first undecided operation.
    undecided: HashMap<Tag, Seq>,
}

/// What to do with a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FrameAction {
    /// Deliver it to its operation.
    Deliver { lane: usize },
    /// Hold it until its operation is started.
    Hold,
    /// Discard it and empty its slot.
    Discard,
    /// Discard it and report that the sender runs another operation under this id.
    Mismatch,
}

impl<W: Workspace> Epoch<W> {
    pub(super) fn new(id: EpochId, membership: Membership, is_up: impl Fn(PeerId) -> bool) -> Self {
        let eager = EagerLimits::of(&membership.tuning);
        let pairs = membership.members.iter().map(|peer| Pair::new(*peer, id, eager, is_up(*peer))).collect();
        let ranks =
            membership.members.iter().enumerate().map(|(i, peer)| (*peer, Rank::from_index(i))).collect();
        Self { membership, ranks, pairs, ops: BTreeMap::new(), undecided: HashMap::default() }
    }

    /// The rank of another member.
    pub(super) fn rank(&self, peer: PeerId) -> Option<Rank> {
        self.ranks.get(&peer).copied().filter(|rank| *rank != self.membership.me)
    }

    pub(super) fn is_decided(&self, op: OpId) -> bool {
        self.undecided.get(&op.tag).is_some_and(|next| op.seq < *next)
    }

    /// Checks a frame of a member, and decides what to do with it.
    pub(super) fn action_for(
        &self,
        from: Rank,
        header: &DataHeader,
        in_turn: bool,
    ) -> Result<FrameAction, Violation> {
        let pair = &self.pairs[from.index()];
        pair.slots.check(header.op, header.slot, header.eager)?;
        let Some(op) = self.ops.get(&header.op) else {
            return match (self.is_decided(header.op), header.eager) {
                (true, _) => Ok(FrameAction::Discard),
                (false, true) => Ok(FrameAction::Hold),
                (false, false) => Err(Violation::NotLent(header.slot)),
            };
        };
        if !op.matches(from, header) {
            return Ok(FrameAction::Mismatch);
        }
        if op.in_lane(from).is_some_and(|lane| op.ins[lane].broken || op.ins[lane].differs) {
            return Ok(FrameAction::Discard);
        }
        op.check(from, header, in_turn).map(|lane| FrameAction::Deliver { lane })
    }

    /// Handles a checked frame. If it was `placed`, its bytes are in the slot.
    pub(super) fn accept(
        &mut self,
        from: Rank,
        header: &DataHeader,
        action_for: FrameAction,
        placed: bool,
        out: &mut Output<W>,
    ) {
        let pair = &mut self.pairs[from.index()];
        match action_for {
            FrameAction::Deliver { lane } => {
                pair.slots.fill(header);
                self.deliver(from, lane, header, out);
            }
            FrameAction::Hold => pair.hold(*header),
            FrameAction::Discard | FrameAction::Mismatch => {
                if action_for == FrameAction::Mismatch {
                    self.report_mismatch(from, header.op, true, out);
                }
                self.pairs[from.index()].slots.fill(header);
                self.discard(from, header, placed, out);
            }
        }
    }

    /// Delivers a frame, whose slot is full, to its operation.
    fn deliver(&mut self, from: Rank, lane: usize, header: &DataHeader, out: &mut Output<W>) {
        if let Some(op) = self.ops.get_mut(&header.op) {
            op.arrive(lane, header, &mut self.pairs[from.index()]);
            wake(op, out);
        }
    }

    /// Discards a frame, whose slot is full.
    fn discard(&mut self, from: Rank, header: &DataHeader, placed: bool, out: &mut Output<W>) {
        let pair = &mut self.pairs[from.index()];
        if placed {
            out.release(pair.slot(header.slot));
        }
        pair.empty(header.slot, out);
        if let Some(op) = self.ops.get_mut(&header.op)
            && let Some(lane) = op.in_lane(from)
            && !header.eager
        {
            op.ins[lane].lent = op.ins[lane].lent.saturating_sub(1);
        }
    }

    /// Reports once that a member runs another operation under this id, and informs the member if `tell`.
    fn report_mismatch(&mut self, from: Rank, id: OpId, tell: bool, out: &mut Output<W>) {
        let peer = self.pairs[from.index()].peer;
        if let Some(op) = self.ops.get_mut(&id)
            && op.record_mismatch(from)
        {
            out.emit(ExecutorEvent::Mismatch { op: id, peer });
            if tell {
                out.send(peer, LinkMessage::Mismatch { op: id });
            }
        }
    }

    /// Adds an operation: handles its early input, and grants slots for lanes that are long or requested.
    pub(super) fn start(&mut self, mut op: Box<Op<W>>, out: &mut Output<W>) -> Vec<(PeerId, Violation)> {
        let id = op.id;
        let tuning = self.membership.tuning;
        for lane in 0..op.outs.len() {
            let pair = &mut self.pairs[op.plan.sends[lane].0.index()];
            if let Some(slots) = pair.credit.take_early(id) {
                op.outs[lane].granted = slots;
                op.outs[lane].was_granted = true;
            }
        }
        let plan = op.plan.clone();
        wake(&mut op, out);
        self.ops.insert(id, op);
        let violations = self.take_held(id, out);
        let Some(op) = self.ops.get_mut(&id) else { return violations };
        for (lane, (from, steps)) in plan.receives.iter().enumerate() {
            let pair = &mut self.pairs[from.index()];
            let is_asked = pair.take_want(id);
            op.ins[lane].lending = is_asked || steps.len() > tuning.eager_frames_max();
            op.lend(lane, pair, &tuning, out);
        }
        let mismatched: Vec<Rank> = self
            .pairs
            .iter_mut()
            .zip(0..)
            .filter_map(|(pair, rank)| {
                (pair.take_want(id) || pair.credit.take_early(id).is_some()).then_some(Rank(rank))
            })
            .collect();
        for rank in mismatched {
            self.report_mismatch(rank, id, true, out);
        }
        violations
    }

    /// Delivers the held frames of an operation.
    fn take_held(&mut self, id: OpId, out: &mut Output<W>) -> Vec<(PeerId, Violation)> {
        let mut violations = Vec::new();
        for from in (0..self.pairs.len()).map(Rank::from_index) {
            while let Some(header) = self.pairs[from.index()].take_held(id) {
                let Some(op) = self.ops.get(&id) else { break };
                if !op.matches(from, &header) {
                    self.report_mismatch(from, id, true, out);
                    self.discard(from, &header, true, out);
                    continue;
                }
                match op.check(from, &header, true) {
                    Ok(lane) => self.deliver(from, lane, &header, out),
                    Err(why) => {
                        violations.push((self.pairs[from.index()].peer, why));
                        self.discard(from, &header, true, out);
                    }
                }
            }
        }
        violations
    }

    /// Handles a message of a member.
    pub(super) fn handle_message(
        &mut self,
        from: Rank,
        message: LinkMessage,
        out: &mut Output<W>,
    ) -> Result<(), Violation> {
        let tuning = self.membership.tuning;
        let pair = &mut self.pairs[from.index()];
        match message {
            LinkMessage::Grant { op: id, slots } => return self.handle_grant(from, id, &slots, out),
            LinkMessage::Want { op: id } => {
                pair.return_emptied(true, out);
                if let Some(op) = self.ops.get_mut(&id) {
                    let Some(lane) = op.in_lane(from) else {
                        self.report_mismatch(from, id, true, out);
                        return Ok(());
                    };
                    op.ins[lane].lending = true;
                    op.lend(lane, pair, &tuning, out);
                } else if !self.is_decided(id) {
                    self.pairs[from.index()].keep_want(id)?;
                }
            }
            LinkMessage::Return { slots, .. } => {
                pair.credit.give_back(&slots)?;
                for id in std::mem::take(&mut pair.credit.parked) {
                    if let Some(op) = self.ops.get_mut(&id) {
                        if let Some(lane) = op.out_lane(from) {
                            op.outs[lane].parked = false;
                        }
                        wake(op, out);
                    }
                }
            }
            LinkMessage::Fenced { op: id } => {
                let reclaimed = pair.slots.reclaim(id);
                if let Some(op) = self.ops.get_mut(&id)
                    && let Some(lane) = op.in_lane(from)
                {
                    op.ins[lane].lent = 0;
                    op.ins[lane].fenced = true;
                }
                if reclaimed > 0 {
                    self.lend_again(from, out);
                }
            }
            LinkMessage::Mismatch { op } => self.report_mismatch(from, op, false, out),
            LinkMessage::Ping
            | LinkMessage::Abort { .. }
            | LinkMessage::Goodbye { .. }
            | LinkMessage::Note { .. }
            | LinkMessage::Inquiry { .. }
            | LinkMessage::Activity { .. }
            | LinkMessage::Device { .. } => {}
        }
        Ok(())
    }

    /// Grants freed slots to lanes that need some.
    fn lend_again(&mut self, from: Rank, out: &mut Output<W>) {
        let tuning = self.membership.tuning;
        let pair = &mut self.pairs[from.index()];
        for op in self.ops.values_mut() {
            if let Some(lane) = op.in_lane(from) {
                op.lend(lane, pair, &tuning, out);
            }
        }
    }

    fn handle_grant(
        &mut self,
        from: Rank,
        id: OpId,
        slots: &[u16],
        out: &mut Output<W>,
    ) -> Result<(), Violation> {
        let is_decided = self.is_decided(id);
        let pair = &mut self.pairs[from.index()];
        let Some(op) = self.ops.get_mut(&id) else {
            if is_decided {
                out.send(pair.peer, LinkMessage::Fenced { op: id });
                return Ok(());
            }
            return pair.credit.keep_early(id, slots);
        };
        let Some(lane) = op.out_lane(from) else {
            self.report_mismatch(from, id, true, out);
            return Ok(());
        };
        let state = &mut op.outs[lane];
        pair.credit.check_grant(state.granted.len(), slots)?;
        state.was_granted = true;
        // A grant after the last frame is void on both ends: that frame was the fence.
        if state.sent < op.plan.sends[lane].1.len() {
            state.granted.extend_from_slice(slots);
            wake(op, out);
        }
        Ok(())
    }

    /// Removes an aborted operation. Its frames are discarded. Slots that we granted to it are freed by the other end's
    /// fence; we send ours.
    pub(super) fn abort(&mut self, id: OpId, out: &mut Output<W>) -> Option<Box<Op<W>>> {
        let op = self.remove(id, out)?;
        for (lane, (from, _)) in op.ins.iter().zip(&op.plan.receives) {
            let pair = &mut self.pairs[from.index()];
            for frame in &lane.waiting {
                out.release(pair.slot(frame.slot));
                pair.empty(frame.slot, out);
            }
        }
        for (lane, (to, _)) in op.outs.iter().zip(&op.plan.sends) {
            let pair = &mut self.pairs[to.index()];
            if lane.parked {
                pair.credit.parked.retain(|other| *other != id);
            }
            if lane.was_granted {
                out.send(pair.peer, LinkMessage::Fenced { op: id });
            }
        }
        Some(op)
    }

    /// Removes a decided operation, and drops what was kept for it and those before it.
    pub(super) fn remove(&mut self, id: OpId, out: &mut Output<W>) -> Option<Box<Op<W>>> {
        let op = self.ops.remove(&id);
        let next = Seq(id.seq.0.saturating_add(1));
        let undecided = self.undecided.entry(id.tag).or_insert(next);
        *undecided = next.max(*undecided);
        for pair in &mut self.pairs {
            pair.forget_until(id, out);
        }
        op
    }

    /// Handles the loss of a link. Operations that have exchanged frames over it are reported; the others can use the
    /// next link.
    pub(super) fn link_lost(&mut self, peer: PeerId, out: &mut Output<W>) {
        let Some(rank) = self.rank(peer) else { return };
        for (id, op) in &mut self.ops {
            let (inward, outward) = (op.in_lane(rank), op.out_lane(rank));
            let has_received = inward.is_some_and(|lane| op.ins[lane].arrived > 0);
            let is_waiting = inward.is_some_and(|lane| !op.ins[lane].waiting.is_empty());
            let unfinished = op.depends_on(rank) || is_waiting;
            let has_sent = outward.is_some_and(|lane| op.outs[lane].sent > 0);
            if let Some(lane) = inward {
                op.ins[lane].lose(has_received || has_sent);
            }
            if let Some(lane) = outward {
                op.outs[lane].lose(has_received || has_sent);
            }
            if has_sent || has_received && unfinished {
                out.emit(ExecutorEvent::LinkLost { op: *id, peer, unfinished });
            }
        }
        self.pairs[rank.index()].reset(false);
    }

    /// Handles a new link to a member.
    pub(super) fn link_up(&mut self, peer: PeerId, out: &mut Output<W>) {
        let Some(rank) = self.rank(peer) else { return };
        let tuning = self.membership.tuning;
        let pair = &mut self.pairs[rank.index()];
        pair.reset(true);
        for op in self.ops.values_mut() {
            if let Some(lane) = op.in_lane(rank) {
                op.ins[lane].lending = op.plan.receives[lane].1.len() > tuning.eager_frames_max();
                op.lend(lane, pair, &tuning, out);
            }
            wake(op, out);
        }
    }
}

/// Lets the next poll run this operation.
pub(super) fn wake<W>(op: &mut Op<W>, out: &mut Output<W>) {
    if !op.awake {
        op.awake = true;
        out.wake(op.id);
    }
}
