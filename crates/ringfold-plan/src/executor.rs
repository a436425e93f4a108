//! Runs plans: one executor per peer, over all its epochs and links.
//!
//! It is pure. The driver feeds it what arrives (`offer`, `handle_*`), lets it work (`poll`), and reads
//! what came of it (`poll_event`); time is an argument. Inside, each operation is a small machine over
//! the steps of its plan, and no operation ever blocks a link or another operation: what lacks a slot at
//! the receiver is parked (R3).

mod credit;
mod epoch;
mod flight;
mod lane;
mod lineage;
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
use crate::plan::Plan;
use crate::workspace::Workspace;
use core::time::Duration;
use epoch::{Epoch, Fate};
use flight::Flights;
use lineage::Lineage;
use op::{Op, Surroundings};
use output::Output;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::id::{EpochId, OpId, PeerId, Rank};
use ringfold_proto::link_message::LinkMessage;
use ringfold_proto::time::Time;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Runs the operations of one peer.
pub struct Executor<W> {
    epochs: BTreeMap<EpochId, Epoch<W>>,
    lineage: Lineage,
    flights: Flights,
    /// Aborted operations whose puts may still read their memory.
    quiescing: HashMap<OpId, Quiescing<W>>,
    out: Output<W>,
    stall_after: Duration,
    next_look: Option<Time>,
}

struct Quiescing<W> {
    workspace: W,
    in_flight: usize,
}

/// What to do with the payload of a frame whose header has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Read it into the slot that the header names, then call [`Executor::handle_frame`].
    Place,
    /// Read it and throw it away, then call [`Executor::handle_discarded`].
    Discard,
    /// The peer is at fault: close the link.
    Violation(Violation),
}

/// Why an epoch is not opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// It is open, or was closed, or a newer one of its kind was opened.
    #[error("that epoch is open or in the past")]
    NotNew,
    /// Its members do not make sense.
    #[error("that epoch's members are not distinct, too many, or without us")]
    Unsound,
}

/// Why an operation is not started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StartError {
    /// Its epoch is not open.
    #[error("its epoch is not open")]
    NotOpen,
    /// It was started or decided before.
    #[error("it was started or decided before")]
    NotNew,
    /// Too many are in flight.
    #[error("too many operations are in flight")]
    TooMany,
    /// Its plan speaks of ranks or steps that do not exist.
    #[error("its plan does not fit its epoch")]
    BadPlan,
}

/// An operation that was not started, with its memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused<W> {
    /// Why.
    pub why: StartError,
    /// Its memory, handed back.
    pub workspace: W,
}

/// An operation cannot be committed where it is not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("it is not done here")]
pub struct NotDone;

impl<W: Workspace> Executor<W> {
    /// An executor without epochs and links. A link on which an operation waits is reported as stalled
    /// after so long without a sign of life.
    pub fn new(stall_after: Duration) -> Self {
        Self {
            epochs: BTreeMap::new(),
            lineage: Lineage::default(),
            flights: Flights::default(),
            quiescing: HashMap::new(),
            out: Output::new(),
            stall_after,
            next_look: None,
        }
    }

    /// Opens an epoch: frames that came early are taken up, and operations may start.
    pub fn open_epoch(&mut self, epoch: EpochId, mut membership: Membership) -> Result<(), OpenError> {
        if self.epochs.contains_key(&epoch) || self.lineage.is_past(epoch) {
            return Err(OpenError::NotNew);
        }
        if !membership.is_sound() {
            return Err(OpenError::Unsound);
        }
        membership.tuning = membership.tuning.bounded();
        let links = &self.flights.links;
        let is_up = |peer: PeerId| links.get(&peer).is_some_and(|link| !link.barred);
        self.epochs.insert(epoch, Epoch::new(epoch, membership, is_up));
        self.lineage.opened(epoch);
        self.take_up_pending(epoch);
        self.drop_past_pending();
        Ok(())
    }

    /// Closes an epoch: its slots are retired, its frames discarded from now on. Operations that are left
    /// in it are aborted. An epoch that will never be opened here may be closed too.
    pub fn close_epoch(&mut self, epoch: EpochId) {
        let left: Vec<OpId> =
            self.epochs.get(&epoch).map_or_else(Vec::new, |epoch| epoch.ops.keys().copied().collect());
        for op in left {
            self.abort(op);
        }
        self.epochs.remove(&epoch);
        self.lineage.closed(epoch);
        self.drop_past_pending();
    }

    /// Who is in an open epoch.
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
    ) -> Result<(), Refused<W>> {
        let Some(epoch) = self.epochs.get_mut(&op.epoch) else {
            return Err(Refused { why: StartError::NotOpen, workspace });
        };
        if epoch.ops.contains_key(&op) || epoch.is_decided(op) {
            return Err(Refused { why: StartError::NotNew, workspace });
        }
        if epoch.ops.len() >= limits::OPS_IN_FLIGHT_MAX {
            return Err(Refused { why: StartError::TooMany, workspace });
        }
        if !fits(&plan, &epoch.membership) {
            return Err(Refused { why: StartError::BadPlan, workspace });
        }
        let violations = epoch.start(Op::new(now, op, descriptor, plan, workspace), &mut self.out);
        for (peer, why) in violations {
            self.bar(peer, why);
        }
        self.look_soon(now);
        Ok(())
    }

    /// The operation was committed: its workspace forgets what it overwrote and is handed back by an
    /// event.
    pub fn commit(&mut self, op: OpId) -> Result<(), NotDone> {
        let epoch = self.epochs.get_mut(&op.epoch).ok_or(NotDone)?;
        if !epoch.ops.get(&op).is_some_and(|op| op.finished) {
            return Err(NotDone);
        }
        if let Some(Op { mut workspace, .. }) = epoch.remove(op, &mut self.out) {
            workspace.keep();
            self.out.tell(ExecutorEvent::Committed { op, workspace });
        }
        Ok(())
    }

    /// The operation was aborted. Its workspace is restored and handed back by an event, once nothing
    /// reads it any more. An operation that was never started here is only remembered as decided.
    pub fn abort(&mut self, op: OpId) {
        let Some(epoch) = self.epochs.get_mut(&op.epoch) else { return };
        let Some(aborted) = epoch.abort(op, &mut self.out) else { return };
        let mut in_flight = 0;
        for ticket in aborted.tickets() {
            self.out.cancel(ticket);
            in_flight += 1;
        }
        self.quiescing.insert(op, Quiescing { workspace: aborted.workspace, in_flight });
        self.end_if_quiet(op);
    }

    /// The operation was decided without having been started here: what came for it is let go.
    pub fn decided(&mut self, op: OpId) {
        self.abort(op);
    }

    /// Judges a frame by its header, before its payload is read. Nothing changes by it, so a medium that
    /// reads several streams of one link at once must itself see to it that a hostile peer does not have
    /// it write two frames into one slot at the same time.
    pub fn offer(&self, from: PeerId, header: &DataHeader) -> Verdict {
        match self.judge(from, header, false) {
            Ok(Judgement::Open(_, Fate::Deliver { .. } | Fate::Hold) | Judgement::NotYetOpen) => {
                Verdict::Place
            }
            Ok(Judgement::Open(_, Fate::Discard | Fate::Differs) | Judgement::Past) => Verdict::Discard,
            Err(why) => Verdict::Violation(why),
        }
    }

    /// A frame is in its slot. To be called in the order of the link, also with regard to messages.
    pub fn handle_frame(&mut self, now: Time, from: PeerId, header: DataHeader) {
        self.receive(now, from, header, true);
    }

    /// A frame was read and thrown away, as its verdict said. In the order of the link as well.
    pub fn handle_discarded(&mut self, now: Time, from: PeerId, header: DataHeader) {
        self.receive(now, from, header, false);
    }

    /// A peer said something. In the order of the link.
    pub fn handle_link_message(&mut self, now: Time, from: PeerId, message: LinkMessage) {
        let Some(link) = self.flights.links.get_mut(&from) else { return };
        link.hear(now);
        if link.barred {
            return;
        }
        let of = match &message {
            LinkMessage::Grant { op, .. }
            | LinkMessage::Want { op }
            | LinkMessage::Fenced { op }
            | LinkMessage::Mismatch { op } => op.epoch,
            LinkMessage::Return { epoch, .. } => *epoch,
            // Those are for whoever drives a group of fixed ranks.
            LinkMessage::Ping
            | LinkMessage::Abort { .. }
            | LinkMessage::Goodbye { .. }
            | LinkMessage::Note { .. } => return,
        };
        let result = match self.epochs.get_mut(&of) {
            Some(epoch) => match epoch.rank(from) {
                Some(rank) => epoch.hear(rank, message, &mut self.out),
                None => Err(Violation::NotAMember),
            },
            None if self.lineage.is_past(of) => Ok(()),
            None => link.pending_for(of).and_then(|pending| pending.keep(message)),
        };
        if let Err(why) = result {
            self.bar(from, why);
        }
    }

    /// The medium says that a put can no longer read our memory.
    pub fn handle_flushed(&mut self, now: Time, ticket: Ticket) {
        let Some(flight) = self.flights.end(now, ticket) else { return };
        if let Some(op) = self.epochs.get_mut(&flight.op.epoch).and_then(|e| e.ops.get_mut(&flight.op)) {
            op.flush(flight.lane, ticket);
            epoch::wake(op, &mut self.out);
        } else if let Some(quiescing) = self.quiescing.get_mut(&flight.op) {
            quiescing.in_flight -= 1;
            self.end_if_quiet(flight.op);
        }
    }

    /// There is a link to a peer. If there was one before and its loss was not told, it is lost now.
    pub fn handle_link_up(&mut self, now: Time, peer: PeerId) {
        if self.flights.links.contains_key(&peer) {
            self.handle_link_lost(peer);
        }
        self.flights.link_up(now, peer);
        for epoch in self.epochs.values_mut() {
            epoch.link_up(peer, &mut self.out);
        }
    }

    /// The link to a peer is gone, with every slot of that pair and what was in them. Its puts are still
    /// to be reported as flushed.
    pub fn handle_link_lost(&mut self, peer: PeerId) {
        if self.flights.links.remove(&peer).is_none() {
            return;
        }
        self.out.forget_link(peer);
        for epoch in self.epochs.values_mut() {
            epoch.link_lost(peer, &mut self.out);
        }
    }

    /// Does everything that can be done now.
    pub fn poll<M: Medium<Workspace = W>>(&mut self, now: Time, medium: &mut M) {
        self.out.carry_out(medium);
        while let Some(id) = self.out.next_awake() {
            let Some(epoch) = self.epochs.get_mut(&id.epoch) else { continue };
            let Some(op) = epoch.ops.get_mut(&id) else { continue };
            op.awake = false;
            op.run(&mut Surroundings {
                now,
                tuning: epoch.membership.tuning,
                pairs: &mut epoch.pairs,
                flights: &mut self.flights,
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

    /// What came of it.
    pub fn poll_event(&mut self) -> Option<ExecutorEvent<W>> {
        self.out.next_event()
    }

    /// Operations that are started and not decided, and those that are aborted and not quiet yet.
    pub fn in_flight(&self) -> usize {
        self.epochs.values().map(|epoch| epoch.ops.len()).sum::<usize>() + self.quiescing.len()
    }

    /// The members that a started operation waits for: those from whom frames are still to come or, if there
    /// are none, those that owe it slots. None if it is done, or not started.
    pub fn awaits(&self, op: OpId) -> Vec<Rank> {
        let op = self.epochs.get(&op.epoch).and_then(|epoch| epoch.ops.get(&op));
        op.map_or_else(Vec::new, Op::awaits)
    }

    /// Whether someone has sent frames of an operation that is not started here, or wants to.
    pub fn is_offered(&self, op: OpId) -> bool {
        let pairs = self.epochs.get(&op.epoch).into_iter().flat_map(|epoch| &epoch.pairs);
        pairs.into_iter().any(|pair| pair.offers(op))
    }

    /// How much is kept for operations and epochs that are not started here: frames, requests, grants.
    pub fn kept(&self) -> usize {
        let pending = self.flights.links.values().flat_map(|link| &link.pending);
        let pairs = self.epochs.values().flat_map(|epoch| &epoch.pairs);
        pending.map(|pending| pending.kept()).sum::<usize>() + pairs.map(|pair| pair.kept()).sum::<usize>()
    }

    /// Slots that were made for lending, over all open epochs and links.
    pub fn slots_made(&self) -> usize {
        self.epochs.values().flat_map(|epoch| &epoch.pairs).map(|pair| pair.slots.grown()).sum()
    }
}

/// What a frame is to the executor.
enum Judgement {
    /// One of an open epoch, from this member.
    Open(Rank, Fate),
    /// One of an epoch that is over, or from a link that is gone or barred.
    Past,
    /// One of an epoch that may still open.
    NotYetOpen,
}

impl<W: Workspace> Executor<W> {
    fn judge(&self, from: PeerId, header: &DataHeader, in_turn: bool) -> Result<Judgement, Violation> {
        let Some(link) = self.flights.links.get(&from).filter(|link| !link.barred) else {
            return Ok(Judgement::Past);
        };
        if header.length as usize > limits::PAYLOAD_BYTES_MAX {
            let expected = limits::PAYLOAD_BYTES_MAX as u32;
            return Err(Violation::BadLength { got: header.length, expected });
        }
        if let Some(epoch) = self.epochs.get(&header.op.epoch) {
            let rank = epoch.rank(from).ok_or(Violation::NotAMember)?;
            return epoch.fate(rank, header, in_turn).map(|fate| Judgement::Open(rank, fate));
        }
        if self.lineage.is_past(header.op.epoch) {
            return Ok(Judgement::Past);
        }
        link.check_pending(header).map(|()| Judgement::NotYetOpen)
    }

    fn receive(&mut self, now: Time, from: PeerId, header: DataHeader, placed: bool) {
        if let Some(link) = self.flights.links.get_mut(&from) {
            link.hear(now);
        }
        match self.judge(from, &header, true) {
            Ok(Judgement::Open(rank, fate)) => {
                if let Some(epoch) = self.epochs.get_mut(&header.op.epoch) {
                    epoch.accept(rank, &header, fate, placed, &mut self.out);
                }
            }
            Ok(Judgement::NotYetOpen) => {
                if let Some(link) = self.flights.links.get_mut(&from)
                    && let Ok(pending) = link.pending_for(header.op.epoch)
                {
                    pending.frames.push(header);
                }
            }
            Ok(Judgement::Past) => {
                // It was to be placed when it was offered, and has been overtaken since.
                if placed && self.flights.links.contains_key(&from) {
                    self.out.release(SlotId { from, epoch: header.op.epoch, index: header.slot });
                }
            }
            Err(why) => self.bar(from, why),
        }
    }

    /// Reports a violation, once per link; the peer is not listened to any more.
    fn bar(&mut self, peer: PeerId, why: Violation) {
        if let Some(link) = self.flights.links.get_mut(&peer)
            && !link.barred
        {
            link.barred = true;
            self.out.tell(ExecutorEvent::Violation { peer, why });
        }
    }

    /// An epoch was opened: what links had to say about it before is heard now.
    fn take_up_pending(&mut self, id: EpochId) {
        let peers: Vec<PeerId> = self.flights.links.keys().copied().collect();
        for peer in peers {
            let Some(link) = self.flights.links.get_mut(&peer) else { continue };
            let Some(found) = link.pending.iter().position(|pending| pending.epoch == id) else { continue };
            let pending = link.pending.remove(found);
            for header in pending.frames {
                match self.judge(peer, &header, true) {
                    Ok(Judgement::Open(rank, fate)) => {
                        if let Some(epoch) = self.epochs.get_mut(&id) {
                            epoch.accept(rank, &header, fate, true, &mut self.out);
                        }
                    }
                    Ok(Judgement::Past | Judgement::NotYetOpen) => {}
                    Err(why) => {
                        self.out.release(SlotId { from: peer, epoch: id, index: header.slot });
                        self.bar(peer, why);
                    }
                }
            }
            let Some(epoch) = self.epochs.get_mut(&id) else { continue };
            let Some(rank) = epoch.rank(peer) else { continue };
            let grants = pending.grants.into_iter().map(|(op, slots)| LinkMessage::Grant { op, slots });
            let wants = pending.wants.into_iter().map(|op| LinkMessage::Want { op });
            let heard = grants.chain(wants).try_for_each(|message| epoch.hear(rank, message, &mut self.out));
            if let Err(why) = heard {
                self.bar(peer, why);
            }
        }
    }

    /// Lets go of what was kept for epochs that will never open.
    fn drop_past_pending(&mut self) {
        for (peer, link) in &mut self.flights.links {
            for pending in link.pending.extract_if(.., |pending| self.lineage.is_past(pending.epoch)) {
                for header in pending.frames {
                    self.out.release(SlotId { from: *peer, epoch: pending.epoch, index: header.slot });
                }
            }
        }
    }

    /// Ends an aborted operation if nothing of it is in flight.
    fn end_if_quiet(&mut self, op: OpId) {
        if self.quiescing.get(&op).is_some_and(|quiescing| quiescing.in_flight == 0)
            && let Some(mut quiet) = self.quiescing.remove(&op)
        {
            quiet.workspace.restore();
            self.out.tell(ExecutorEvent::Quiesced { op, workspace: quiet.workspace });
        }
    }
}

/// Whether a plan speaks only of steps and of other ranks that exist.
fn fits(plan: &Plan, membership: &Membership) -> bool {
    let is_other = |rank: Rank| rank.index() < membership.members.len() && rank != membership.me;
    plan.sends.iter().chain(&plan.receives).all(|(rank, _)| is_other(*rank))
        && plan.steps.iter().all(|step| step.after.is_none_or(|after| (after as usize) < plan.steps.len()))
}
