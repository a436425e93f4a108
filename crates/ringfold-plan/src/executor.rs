//! Runs plans. Each peer has one executor for all its epochs and links.
//!
//! The executor is pure; time is an argument. The driver passes input to it (`offer`, `handle_*`), runs it (`poll`) and
//! reads its events (`poll_event`). Each operation is a small state machine over the steps of its plan. No operation
//! blocks a link or another operation: it is parked while the receiver has no slot for it (R3).

mod credit;
mod eager;
mod epoch;
mod epoch_history;
mod in_flight_puts;
mod lane;
mod link;
mod liveness;
mod membership;
mod op;
mod output;
mod pair;
mod pending;
mod slots;

pub use membership::Membership;

use crate::event::{ExecutorEvent, Violation};
use crate::limits;
use crate::medium::{Medium, SlotId, Ticket};
use crate::ownership::Holding;
use crate::plan::Plan;
use crate::workspace::Workspace;
use core::time::Duration;
use epoch::{Epoch, FrameAction};
use epoch_history::EpochHistory;
use foldhash::HashMap;
use in_flight_puts::InFlightPuts;
use op::{Op, RunContext};
use output::Output;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::id::{EpochId, OpId, PeerId, Rank};
use ringfold_proto::link_message::LinkMessage;
use ringfold_proto::time::Time;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Runs the operations of one peer.
pub struct Executor<W> {
    epochs: BTreeMap<EpochId, Epoch<W>>,
    epoch_history: EpochHistory,
    puts: InFlightPuts,
    /// Aborted operations whose puts may still read their memory.
    aborted: HashMap<OpId, AbortedOp<W>>,
    out: Output<W>,
    stall_after: Duration,
    next_check: Option<Time>,
}

struct AbortedOp<W> {
    workspace: W,
    in_flight: usize,
}

/// What to do with the payload of a frame whose header has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameDecision {
    /// Read it into the slot that the header names, then call [`Executor::handle_frame`].
    Place,
    /// Read and drop it, then call [`Executor::handle_discarded`].
    Discard,
    /// The peer violated the protocol: close the link.
    Violation(Violation),
}

/// Why an epoch cannot be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// It is open or closed, or a newer one of its group and incarnation was opened.
    #[error("the epoch is open or in the past")]
    NotNew,
    /// Its members are invalid.
    #[error("invalid epoch: its members are not distinct, too many, or without this peer")]
    Invalid,
}

/// Why an operation cannot be started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StartError {
    /// Its epoch is not open.
    #[error("the epoch of the operation is not open")]
    NotOpen,
    /// It was started or decided before.
    #[error("the operation was started or decided before")]
    NotNew,
    /// Too many operations are in flight.
    #[error("too many operations are in flight")]
    TooMany,
    /// Its plan contains invalid ranks or steps.
    #[error("the plan of the operation does not match its epoch")]
    BadPlan,
}

/// An operation that was not started, with its workspace.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StartRejection<W> {
    pub why: StartError,
    pub workspace: W,
}

/// The error of a commit before the operation is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the operation is not done")]
pub struct NotDone;

impl<W: Workspace> Executor<W> {
    /// An executor without epochs and links. A link on which an operation waits is reported as stalled after
    /// `stall_after` without input.
    pub fn new(stall_after: Duration) -> Self {
        Self {
            epochs: BTreeMap::new(),
            epoch_history: EpochHistory::default(),
            puts: InFlightPuts::default(),
            aborted: HashMap::default(),
            out: Output::new(),
            stall_after,
            next_check: None,
        }
    }

    /// Opens an epoch: early frames are handled, and operations may start.
    pub fn open_epoch(&mut self, epoch: EpochId, mut membership: Membership) -> Result<(), OpenError> {
        if self.epochs.contains_key(&epoch) || self.epoch_history.is_past(epoch) {
            return Err(OpenError::NotNew);
        }
        if !membership.is_valid() {
            return Err(OpenError::Invalid);
        }
        membership.tuning = membership.tuning.bounded();
        let links = &self.puts.links;
        let is_up = |peer: PeerId| links.get(&peer).is_some_and(|link| !link.ignored);
        self.epochs.insert(epoch, Epoch::new(epoch, membership, is_up));
        self.epoch_history.opened(epoch);
        self.handle_pending(epoch);
        self.drop_past_pending();
        Ok(())
    }

    /// Closes an epoch, which may not have been opened. Its operations are aborted, its later frames discarded.
    pub fn close_epoch(&mut self, epoch: EpochId) {
        let left: Vec<OpId> =
            self.epochs.get(&epoch).map_or_else(Vec::new, |epoch| epoch.ops.keys().copied().collect());
        for op in left {
            self.abort(op);
        }
        self.epochs.remove(&epoch);
        self.epoch_history.closed(epoch);
        self.drop_past_pending();
    }

    /// The membership of an open epoch.
    pub fn membership(&self, epoch: EpochId) -> Option<&Membership> {
        self.epochs.get(&epoch).map(|epoch| &epoch.membership)
    }

    /// Starts an operation. Operations of one tag are started in the order of their numbers.
    pub fn start(
        &mut self,
        now: Time,
        op: OpId,
        descriptor: Descriptor,
        plan: Arc<Plan>,
        workspace: W,
    ) -> Result<(), StartRejection<W>> {
        let Some(epoch) = self.epochs.get_mut(&op.epoch) else {
            return Err(StartRejection { why: StartError::NotOpen, workspace });
        };
        if epoch.ops.contains_key(&op) || epoch.is_decided(op) {
            return Err(StartRejection { why: StartError::NotNew, workspace });
        }
        if epoch.ops.len() >= limits::OPS_IN_FLIGHT_MAX {
            return Err(StartRejection { why: StartError::TooMany, workspace });
        }
        if !is_valid(&plan, &epoch.membership) {
            return Err(StartRejection { why: StartError::BadPlan, workspace });
        }
        let violations = epoch.start(Box::new(Op::new(now, op, descriptor, plan, workspace)), &mut self.out);
        for (peer, why) in violations {
            self.ignore_peer(peer, why);
        }
        self.schedule_check(now);
        Ok(())
    }

    /// Commits an operation. An event returns its workspace.
    pub fn commit(&mut self, op: OpId) -> Result<(), NotDone> {
        let epoch = self.epochs.get_mut(&op.epoch).ok_or(NotDone)?;
        if !epoch.ops.get(&op).is_some_and(|op| op.finished) {
            return Err(NotDone);
        }
        if let Some(removed) = epoch.remove(op, &mut self.out) {
            let mut workspace = removed.workspace;
            workspace.keep();
            self.out.emit(ExecutorEvent::Committed { op, workspace });
        }
        Ok(())
    }

    /// Aborts an operation. Once its puts are flushed, its workspace is restored and returned by an event. An operation
    /// that was not started here is remembered as decided.
    pub fn abort(&mut self, op: OpId) {
        let Some(epoch) = self.epochs.get_mut(&op.epoch) else { return };
        let Some(aborted) = epoch.abort(op, &mut self.out) else { return };
        let mut in_flight = 0;
        for ticket in aborted.tickets() {
            self.out.cancel(ticket);
            in_flight += 1;
        }
        self.aborted.insert(op, AbortedOp { workspace: aborted.workspace, in_flight });
        self.end_if_flushed(op);
    }

    /// What has arrived of a started operation that can be resumed. It stays in scratch when the operation is aborted.
    pub fn holding(&self, op: OpId) -> Option<Holding> {
        let Epoch { membership, ops, .. } = self.epochs.get(&op.epoch)?;
        let op = ops.get(&op)?;
        let start = op.plan.resumption.as_deref()?;
        Some(Holding::new(&membership.members, membership.me, start, |rank| op.kept_of(rank)))
    }

    /// Forgets an operation that was decided without having been started here.
    pub fn decided(&mut self, op: OpId) {
        self.abort(op);
    }

    /// Decides about a frame by its header, before its payload is read. It changes no state, so a medium that reads
    /// several streams of a link must itself prevent two frames in one slot.
    pub fn offer(&self, from: PeerId, header: &DataHeader) -> FrameDecision {
        match self.check_frame(from, header, false) {
            Ok(
                FrameEpoch::Open(_, FrameAction::Deliver { .. } | FrameAction::Hold) | FrameEpoch::NotYetOpen,
            ) => FrameDecision::Place,
            Ok(FrameEpoch::Open(_, FrameAction::Discard | FrameAction::Mismatch) | FrameEpoch::Past) => {
                FrameDecision::Discard
            }
            Err(why) => FrameDecision::Violation(why),
        }
    }

    /// Handles a frame in its slot. Frames and messages must be handled in the order of the link.
    pub fn handle_frame(&mut self, now: Time, from: PeerId, header: DataHeader) {
        self.receive(now, from, header, true);
    }

    /// Handles a frame that was read and dropped. In the order of the link.
    pub fn handle_discarded(&mut self, now: Time, from: PeerId, header: DataHeader) {
        self.receive(now, from, header, false);
    }

    /// Handles a message of a peer. In the order of the link.
    pub fn handle_link_message(&mut self, now: Time, from: PeerId, message: LinkMessage) {
        let Some(link) = self.puts.links.get_mut(&from) else { return };
        link.record_input(now);
        if link.ignored {
            return;
        }
        let of = match &message {
            LinkMessage::Grant { op, .. }
            | LinkMessage::Want { op }
            | LinkMessage::Fenced { op }
            | LinkMessage::Mismatch { op } => op.epoch,
            LinkMessage::Return { epoch, .. } => *epoch,
            // These are for the driver.
            LinkMessage::Ping
            | LinkMessage::Abort { .. }
            | LinkMessage::Goodbye { .. }
            | LinkMessage::Note { .. }
            | LinkMessage::Inquiry { .. }
            | LinkMessage::Activity { .. }
            | LinkMessage::Device { .. } => return,
        };
        let result = match self.epochs.get_mut(&of) {
            Some(epoch) => match epoch.rank(from) {
                Some(rank) => epoch.handle_message(rank, message, &mut self.out),
                None => Err(Violation::NotAMember),
            },
            None if self.epoch_history.is_past(of) => Ok(()),
            None => link.pending_for(of).and_then(|pending| pending.keep(message)),
        };
        if let Err(why) = result {
            self.ignore_peer(from, why);
        }
    }

    /// More of an operation's input can be read.
    pub fn handle_input(&mut self, op: OpId) {
        if let Some(op) = self.epochs.get_mut(&op.epoch).and_then(|epoch| epoch.ops.get_mut(&op)) {
            op.take_input();
            epoch::wake(op, &mut self.out);
        }
    }

    /// Handles the end of a put, which no longer reads our memory.
    pub fn handle_flushed(&mut self, now: Time, ticket: Ticket) {
        let Some(put) = self.puts.end(now, ticket) else { return };
        if let Some(op) = self.epochs.get_mut(&put.op.epoch).and_then(|e| e.ops.get_mut(&put.op)) {
            op.flush(put.lane, ticket);
            epoch::wake(op, &mut self.out);
        } else if let Some(aborted) = self.aborted.get_mut(&put.op) {
            aborted.in_flight -= 1;
            self.end_if_flushed(put.op);
        }
    }

    /// Handles a new link to a peer. An earlier link to it counts as lost.
    pub fn handle_link_up(&mut self, now: Time, peer: PeerId) {
        if self.puts.links.contains_key(&peer) {
            self.handle_link_lost(peer);
        }
        self.puts.link_up(now, peer);
        for epoch in self.epochs.values_mut() {
            epoch.link_up(peer, &mut self.out);
        }
    }

    /// Handles the loss of a link, with all slots of that pair. Its puts must still be reported as flushed.
    pub fn handle_link_lost(&mut self, peer: PeerId) {
        if self.puts.links.remove(&peer).is_none() {
            return;
        }
        self.out.forget_link(peer);
        for epoch in self.epochs.values_mut() {
            epoch.link_lost(peer, &mut self.out);
        }
    }

    /// Does all work that is possible now.
    pub fn poll<M: Medium<Workspace = W>>(&mut self, now: Time, medium: &mut M) {
        self.out.carry_out(medium);
        while let Some(id) = self.out.next_awake() {
            let Some(epoch) = self.epochs.get_mut(&id.epoch) else { continue };
            let Some(op) = epoch.ops.get_mut(&id) else { continue };
            op.awake = false;
            op.run(&mut RunContext {
                now,
                tuning: epoch.membership.tuning,
                pairs: &mut epoch.pairs,
                puts: &mut self.puts,
                out: &mut self.out,
                medium,
            });
            self.out.carry_out(medium);
        }
    }

    /// Whether a poll would do anything.
    pub fn wants_poll(&self) -> bool {
        self.out.is_pending()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<ExecutorEvent<W>> {
        self.out.next_event()
    }

    /// The number of operations that are started and not decided, or aborted and not flushed.
    pub fn in_flight(&self) -> usize {
        self.epochs.values().map(|epoch| epoch.ops.len()).sum::<usize>() + self.aborted.len()
    }

    /// The members that a started operation waits for: those whose frames are missing or, if there are none, those that
    /// have not granted slots. Empty if it is done or not started.
    pub fn awaits(&self, op: OpId) -> Vec<Rank> {
        let op = self.epochs.get(&op.epoch).and_then(|epoch| epoch.ops.get(&op));
        op.map_or_else(Vec::new, |op| op.awaits())
    }

    /// When a started operation last made progress; none if it is not started.
    pub fn moved_at(&self, op: OpId) -> Option<Time> {
        self.epochs.get(&op.epoch)?.ops.get(&op).map(|op| op.moved)
    }

    /// Whether a member has begun a started operation: it has sent frames of it, or granted slots.
    pub fn has_begun(&self, op: OpId, rank: Rank) -> bool {
        let op = self.epochs.get(&op.epoch).and_then(|epoch| epoch.ops.get(&op));
        op.is_some_and(|op| op.has_begun(rank))
    }

    /// When the last input of a peer arrived; none without a link.
    pub fn heard_at(&self, peer: PeerId) -> Option<Time> {
        self.puts.links.get(&peer).map(|link| link.input_at)
    }

    /// Whether an operation was decided, or its epoch closed.
    pub fn is_decided(&self, op: OpId) -> bool {
        match self.epochs.get(&op.epoch) {
            Some(epoch) => epoch.is_decided(op),
            None => self.epoch_history.is_past(op.epoch),
        }
    }

    /// Whether a peer has sent frames of an operation that is not started here, or requested slots for it.
    pub fn is_offered(&self, op: OpId) -> bool {
        let pairs = self.epochs.get(&op.epoch).into_iter().flat_map(|epoch| &epoch.pairs);
        pairs.into_iter().any(|pair| pair.offers(op))
    }

    /// The number of frames, requests and grants kept for operations and epochs that are not started here.
    pub fn kept(&self) -> usize {
        let pending = self.puts.links.values().flat_map(|link| &link.pending);
        let pairs = self.epochs.values().flat_map(|epoch| &epoch.pairs);
        pending.map(|pending| pending.kept()).sum::<usize>() + pairs.map(|pair| pair.kept()).sum::<usize>()
    }

    /// The number of slots created for granting, over all open epochs and links.
    pub fn slots_made(&self) -> usize {
        self.epochs.values().flat_map(|epoch| &epoch.pairs).map(|pair| pair.slots.grown()).sum()
    }
}

/// The epoch of a frame.
enum FrameEpoch {
    /// Open; with the rank of the sender and what to do with the frame.
    Open(Rank, FrameAction),
    /// Closed, or the link is lost or ignored.
    Past,
    /// Not open yet.
    NotYetOpen,
}

impl<W: Workspace> Executor<W> {
    fn check_frame(&self, from: PeerId, header: &DataHeader, in_turn: bool) -> Result<FrameEpoch, Violation> {
        let Some(link) = self.puts.links.get(&from).filter(|link| !link.ignored) else {
            return Ok(FrameEpoch::Past);
        };
        if header.length as usize > limits::PAYLOAD_BYTES_MAX {
            let expected = limits::PAYLOAD_BYTES_MAX as u32;
            return Err(Violation::BadLength { got: header.length, expected });
        }
        if let Some(epoch) = self.epochs.get(&header.op.epoch) {
            let rank = epoch.rank(from).ok_or(Violation::NotAMember)?;
            return epoch
                .action_for(rank, header, in_turn)
                .map(|action_for| FrameEpoch::Open(rank, action_for));
        }
        if self.epoch_history.is_past(header.op.epoch) {
            return Ok(FrameEpoch::Past);
        }
        link.check_pending(header).map(|()| FrameEpoch::NotYetOpen)
    }

    fn receive(&mut self, now: Time, from: PeerId, header: DataHeader, placed: bool) {
        if let Some(link) = self.puts.links.get_mut(&from) {
            link.record_input(now);
        }
        match self.check_frame(from, &header, true) {
            Ok(FrameEpoch::Open(rank, action_for)) => {
                if let Some(epoch) = self.epochs.get_mut(&header.op.epoch) {
                    epoch.accept(rank, &header, action_for, placed, &mut self.out);
                }
            }
            Ok(FrameEpoch::NotYetOpen) => {
                if let Some(link) = self.puts.links.get_mut(&from)
                    && let Ok(pending) = link.pending_for(header.op.epoch)
                {
                    pending.frames.push(header);
                }
            }
            Ok(FrameEpoch::Past) => {
                // The epoch was closed after the frame was offered.
                if placed && self.puts.links.contains_key(&from) {
                    self.out.release(SlotId { from, epoch: header.op.epoch, index: header.slot });
                }
            }
            Err(why) => self.ignore_peer(from, why),
        }
    }

    /// Reports a violation, once per link, and ignores the peer.
    fn ignore_peer(&mut self, peer: PeerId, why: Violation) {
        if let Some(link) = self.puts.links.get_mut(&peer)
            && !link.ignored
        {
            link.ignored = true;
            self.out.emit(ExecutorEvent::Violation { peer, why });
        }
    }

    /// Handles what links have sent for an epoch before it was opened.
    fn handle_pending(&mut self, id: EpochId) {
        let peers: Vec<PeerId> = self.puts.links.keys().copied().collect();
        for peer in peers {
            let Some(link) = self.puts.links.get_mut(&peer) else { continue };
            let Some(found) = link.pending.iter().position(|pending| pending.epoch == id) else { continue };
            let pending = link.pending.remove(found);
            for header in pending.frames {
                match self.check_frame(peer, &header, true) {
                    Ok(FrameEpoch::Open(rank, action_for)) => {
                        if let Some(epoch) = self.epochs.get_mut(&id) {
                            epoch.accept(rank, &header, action_for, true, &mut self.out);
                        }
                    }
                    Ok(FrameEpoch::Past | FrameEpoch::NotYetOpen) => {}
                    Err(why) => {
                        self.out.release(SlotId { from: peer, epoch: id, index: header.slot });
                        self.ignore_peer(peer, why);
                    }
                }
            }
            let Some(epoch) = self.epochs.get_mut(&id) else { continue };
            let Some(rank) = epoch.rank(peer) else { continue };
            let grants = pending.grants.into_iter().map(|(op, slots)| LinkMessage::Grant { op, slots });
            let wants = pending.wants.into_iter().map(|op| LinkMessage::Want { op });
            let mut messages = grants.chain(wants);
            let handled = messages.try_for_each(|message| epoch.handle_message(rank, message, &mut self.out));
            if let Err(why) = handled {
                self.ignore_peer(peer, why);
            }
        }
    }

    /// Drops what was kept for epochs that will never open.
    fn drop_past_pending(&mut self) {
        for (peer, link) in &mut self.puts.links {
            for pending in link.pending.extract_if(.., |pending| self.epoch_history.is_past(pending.epoch)) {
                for header in pending.frames {
                    self.out.release(SlotId { from: *peer, epoch: pending.epoch, index: header.slot });
                }
            }
        }
    }

    /// Ends an aborted operation if all its puts are flushed.
    fn end_if_flushed(&mut self, op: OpId) {
        if self.aborted.get(&op).is_some_and(|aborted| aborted.in_flight == 0)
            && let Some(mut flushed) = self.aborted.remove(&op)
        {
            flushed.workspace.restore();
            self.out.emit(ExecutorEvent::Quiesced { op, workspace: flushed.workspace });
        }
    }
}

/// Whether all ranks and steps in a plan exist.
fn is_valid(plan: &Plan, membership: &Membership) -> bool {
    let is_other = |rank: Rank| rank.index() < membership.members.len() && rank != membership.me;
    plan.sends.iter().chain(&plan.receives).all(|(rank, _)| is_other(*rank))
        && plan.steps.iter().all(|step| step.after.is_none_or(|after| (after as usize) < plan.steps.len()))
}
