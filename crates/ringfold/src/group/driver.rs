//! The links of a group of fixed ranks, and the operations that run over them.
//!
//! There is no master and no vote. The first failure ends the group, and the rank that detects it notifies the others.

mod deadlines;
mod decision;
mod events;
mod mismatch;
#[cfg(test)]
mod tests;
mod wait_schedule;
mod waits;

pub(super) use waits::{Awaited, WaitId, Waits};

use self::decision::Decisions;
use self::wait_schedule::WaitSchedule;
use super::notes::{NoteListener, Notes};
use super::operation::{OperationRequest, TransferTag};
use super::window_hub::WindowHub;
use crate::all_reduce::HostBuffers;
use crate::data_plane::{DataPlane, OpOptions, PlaneEvent};
use crate::journal::{PeerEvent, Source};
use crate::{Error, limits};
use core::time::Duration;
use foldhash::HashMap;
use ringfold_fabric::clock::Clock;
use ringfold_fabric::mesh::Mesh;
use ringfold_fabric::poller::Readiness;
use ringfold_fabric::reactor::{Callback, Drive, Expected, Outcomes, run_guarded};
use ringfold_proto::cause::{Cause, Departure, PeerName, Wait};
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::epoch::EpochDescription;
use ringfold_proto::group_call::GroupCall;
use ringfold_proto::hello::Purpose;
use ringfold_proto::id::{CallId, OpId, PeerId, Rank, Seq, Tag};
use ringfold_proto::limits::NAMES_IN_ERROR_MAX;
use ringfold_proto::time::Time;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// Runs when the group fails, under the lock of the driver.
pub(super) type Alarm = Box<dyn Fn(&Cause) + Send>;

/// The driver of a group's links.
pub(crate) struct GroupDriver {
    clock: Clock,
    plane: DataPlane,
    me: Rank,
    description: EpochDescription,
    /// While links are being made: the call that waits for that, and the members without a link.
    linking: Option<(CallId, BTreeSet<PeerId>)>,
    calls: u64,
    /// The number of the next operation of each tag.
    next: HashMap<Tag, Seq>,
    running: HashMap<OpId, Running>,
    /// Members that have left.
    left: BTreeSet<Rank>,
    /// Notes from members.
    notes: Notes,
    decisions: Decisions,
    /// The last operations that have ended, with the tags of transfers: for ranks that have made other calls.
    ended_calls: VecDeque<(OpId, Descriptor, u32)>,
    waits: Waits,
    /// Calls that end when no operation runs.
    awaits_quiet: Vec<CallId>,
    /// Why the group has failed.
    fault: Option<Cause>,
    alarm: Alarm,
    windows: Arc<WindowHub>,
    ended: Vec<(CallId, GroupEnded)>,
    /// Callbacks of the user, because the group has failed, and warnings.
    callbacks: Vec<Callback>,
    journal: Arc<Source>,
}

struct Running {
    /// The call that waits for it; none for a barrier that decides another operation.
    call: Option<CallId>,
    /// The operation that is decided when this one is done.
    decides: Option<OpId>,
    /// The operation of whose results this one gathers the digests.
    compares: Option<OpId>,
    stage: Stage,
    descriptor: Descriptor,
    /// The call, for texts.
    named: GroupCall,
    deadline: Time,
    /// Whether a caller waits for it; a transfer may only be posted.
    is_waited: bool,
    schedule: WaitSchedule,
    /// Whether the deadline was extended, because the awaited ranks wait themselves.
    is_put_off: bool,
    /// How often this rank pings the others while it waits, and when next.
    sign_every: Duration,
    next_sign: Time,
    /// For the journal: when it began, whether that was posted, and the bytes that it has sent and received.
    began: Time,
    is_posted: bool,
    moved: (u64, u64),
}

/// How far an operation is on this rank.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Working,
    /// This rank has the result. It is valid when all ranks have it, the same if results are compared.
    Done,
    /// The result is valid, whatever happens.
    Decided,
}

impl Running {
    /// Whether all ranks take part in it.
    fn is_collective(&self) -> bool {
        !matches!(self.descriptor.collective, Collective::Transfer { .. })
    }
}

/// How a call ended.
pub(crate) struct GroupEnded {
    pub(crate) result: Result<(), Error>,
    pub(crate) buffers: Option<HostBuffers>,
}

impl GroupDriver {
    /// A group without links.
    pub(super) fn new(
        mesh: Mesh,
        me: Rank,
        description: EpochDescription,
        alarm: Alarm,
        stall_after: Duration,
        restores: bool,
        (journal, waits): (Arc<Source>, Waits),
    ) -> Result<Self, Error> {
        let windows = Arc::new(WindowHub::new(mesh.poller().clone()));
        let mut plane = DataPlane::new(mesh, stall_after, restores);
        let peers = description.members.iter().map(|member| member.peer).collect();
        plane.mesh().admit(description.id, &description.key, peers);
        plane
            .open_epoch(&description, description.members[me.index()].peer)
            .map_err(Error::BootstrapFailed)?;
        Ok(Self {
            clock: Clock::start(),
            plane,
            me,
            description,
            linking: None,
            calls: 0,
            next: HashMap::default(),
            running: HashMap::default(),
            left: BTreeSet::new(),
            notes: Notes::default(),
            decisions: Decisions::new(restores),
            ended_calls: VecDeque::new(),
            waits,
            awaits_quiet: Vec::new(),
            fault: None,
            alarm,
            windows,
            ended: Vec::new(),
            callbacks: Vec::new(),
            journal,
        })
    }

    /// Makes the links with all ranks.
    pub(super) fn link(&mut self) -> CallId {
        let call = self.call();
        let now = self.clock.now();
        let others: Vec<_> =
            self.others().map(|rank| self.description.members[rank.index()].clone()).collect();
        self.linking = Some((call, others.iter().map(|member| member.peer).collect()));
        for member in others {
            self.plane.mesh().request(now, member, self.description.id, &self.description.key);
        }
        self.pump(now);
        call
    }

    /// For tests: a bit of the result of the n-th all-reduce flips, counted from 1.
    pub(super) fn flip_result_of(&mut self, n: u64) {
        self.plane.flip_result_of(n);
    }

    /// Whether each rank of this host can have a core of its own.
    pub(crate) fn has_own_core(&self) -> bool {
        self.plane.has_own_core()
    }

    /// The number of links that use shared memory.
    pub(super) fn shared_links(&self) -> usize {
        self.plane.shared_links()
    }

    /// Starts an operation, or returns its buffers. `is_waited`: a caller waits for it from now on.
    pub(super) fn start(
        &mut self,
        request: &OperationRequest,
        buffers: HostBuffers,
        deadline: Instant,
        is_waited: bool,
    ) -> Result<CallId, Box<(Error, HostBuffers)>> {
        let OperationRequest { descriptor, layout, .. } = request;
        let descriptor = *descriptor;
        if let Some(error) = self.refusal(&descriptor) {
            return Err(Box::new((error, buffers)));
        }
        let tag = match descriptor.collective {
            Collective::Transfer { from, to } => transfer(from, to, request.tag),
            _ => Tag(0),
        };
        let next = self.next.entry(tag).or_insert(Seq(0));
        let op = OpId { epoch: self.description.id, tag, seq: *next };
        let now = self.clock.now();
        self.plane
            .start(now, op, descriptor, layout, buffers, OpOptions::default())
            .map_err(|(why, buffers)| Box::new((Error::Misuse(why), buffers)))?;
        next.0 += 1;
        let call = self.call();
        let timeout = deadline.saturating_duration_since(Instant::now());
        let sign_every = (timeout / limits::SIGNS_PER_TIMEOUT).min(limits::SIGN_EVERY_MAX);
        let (deadline, next_sign, is_put_off) = (now + timeout, now + sign_every, false);
        // The first collective is the barrier of connect.
        let number = op.seq.0 + u64::from(tag != Tag(0));
        let running = Running {
            call: Some(call),
            decides: None,
            compares: None,
            stage: Stage::Working,
            descriptor,
            named: request.named(self.me, number),
            deadline,
            is_waited,
            schedule: WaitSchedule::new(now),
            is_put_off,
            sign_every,
            next_sign,
            began: now,
            is_posted: false,
            moved: (0, 0),
        };
        self.running.insert(op, running);
        self.pump(now);
        self.check_left(now);
        Ok(call)
    }

    /// The lowest rank that has begun to send with this tag, and whose message was not received.
    pub(super) fn sender(&self, tag: TransferTag) -> Option<Rank> {
        self.others().find(|from| {
            let tag = transfer(*from, self.me, tag);
            let seq = self.next.get(&tag).copied().unwrap_or(Seq(0));
            self.plane.is_offered(OpId { epoch: self.description.id, tag, seq })
        })
    }

    /// Why an operation cannot start, if it cannot.
    fn refusal(&self, descriptor: &Descriptor) -> Option<Error> {
        if let Some(cause) = &self.fault {
            return Some(Error::GroupFailed(Box::new(cause.clone())));
        }
        // What a rank sent before it left can be received, but nothing can be sent to it.
        let Collective::Transfer { to, .. } = descriptor.collective else { return None };
        let gone = self.left.get(&to)?;
        Some(Error::GroupFailed(Box::new(self.lost(*gone, Departure::Left))))
    }

    /// Fails the group, because not all links were made in time.
    pub(super) fn give_up_linking(&mut self) {
        let now = self.clock.now();
        if let Some((_, missing)) = &self.linking {
            let waited_for = self.names(missing.iter().filter_map(|peer| self.description.rank_of(*peer)));
            self.fail(now, Cause::Timeout(Wait::for_peers(waited_for)));
        }
    }

    /// Fails the group for all ranks.
    pub(super) fn abort(&mut self, cause: Cause) {
        let now = self.clock.now();
        self.fail(now, cause);
    }

    /// Why it has failed, if it has.
    pub(super) fn fault(&self) -> Option<&Cause> {
        self.fault.as_ref()
    }

    /// The members of the group.
    pub(crate) fn description(&self) -> &EpochDescription {
        &self.description
    }

    /// What the group's windows share with it.
    pub(crate) fn windows(&self) -> &Arc<WindowHub> {
        &self.windows
    }

    /// Sends a note to some ranks.
    pub(super) fn send_note(&mut self, ranks: &[Rank], topic: u64, text: &str) {
        let now = self.clock.now();
        for rank in ranks {
            let peer = self.description.members[rank.index()].peer;
            self.plane.send_note(peer, self.description.id, topic, text.to_owned());
        }
        self.pump(now);
    }

    /// Takes the note of a rank, if it has arrived.
    pub(super) fn take_note(&mut self, from: Rank, topic: u64) -> Option<String> {
        self.notes.take(from, topic)
    }

    /// Passes the notes on a new topic to a listener.
    pub(super) fn listen_to_notes(&mut self, listener: NoteListener) -> u64 {
        self.notes.listen(listener)
    }

    /// A call that ends when a note of a rank has arrived, or the group has failed.
    pub(super) fn await_note(&mut self, from: Rank, topic: u64) -> CallId {
        let call = self.call();
        if self.notes.has(from, topic) || self.fault.is_some() {
            self.ended.push((call, GroupEnded { result: Ok(()), buffers: None }));
        } else {
            self.notes.wait(call, from, topic);
        }
        call
    }

    /// Ends the wait of such a call.
    pub(super) fn forget_note(&mut self, call: CallId) {
        self.notes.forget(call);
    }

    /// Why these ranks cannot form a group, as far as this one knows.
    pub(super) fn group_error(&self, ranks: &[Rank]) -> Option<Error> {
        let left = || ranks.iter().find(|rank| self.left.contains(rank));
        let cause = self.fault.clone().or_else(|| left().map(|rank| self.lost(*rank, Departure::Left)))?;
        Some(Error::GroupFailed(Box::new(cause)))
    }

    /// The name of a rank.
    pub(super) fn name(&self, rank: Rank) -> PeerName {
        self.description.members[rank.index()].peer_name()
    }

    /// The names of some ranks: the first few.
    pub(super) fn names(&self, ranks: impl Iterator<Item = Rank>) -> Vec<PeerName> {
        ranks.take(NAMES_IN_ERROR_MAX).map(|rank| self.name(rank)).collect()
    }

    fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        let me = self.me;
        (0..self.description.members.len()).map(Rank::from_index).filter(move |rank| *rank != me)
    }

    fn call(&mut self) -> CallId {
        self.calls += 1;
        CallId(self.calls)
    }

    fn lost(&self, rank: Rank, how: Departure) -> Cause {
        Cause::PeerLost { who: self.name(rank), how }
    }

    fn fail(&mut self, now: Time, cause: Cause) {
        if self.fault.is_some() {
            return;
        }
        self.journal.post(PeerEvent::GroupFailed { cause: cause.clone() });
        (self.alarm)(&cause);
        self.callbacks.extend(self.windows.fail(&cause));
        for rank in self.others() {
            let peer = self.description.members[rank.index()].peer;
            self.plane.tell_abort(peer, self.description.id, cause.clone());
        }
        // Results that are here may be valid for others; these have to report first.
        let restores = self.decisions.restores();
        let open = self.running.iter().filter(|(_, running)| !restores || running.stage != Stage::Done);
        let ops: Vec<_> = open.map(|(op, _)| *op).collect();
        for op in ops {
            self.plane.abort(op);
        }
        let aborted = || Err(Error::GroupFailed(Box::new(cause.clone())));
        let waiting: Vec<_> = self.notes.end().chain(self.linking.take().map(|(call, _)| call)).collect();
        for call in waiting {
            self.ended.push((call, GroupEnded { result: aborted(), buffers: None }));
        }
        self.fault = Some(cause);
        self.tell_decisions(now);
        self.pump(now);
    }

    fn lose_link(&mut self, now: Time, peer: PeerId, why: &str) {
        let Some(rank) = self.description.rank_of(peer) else { return };
        self.journal.post(PeerEvent::LinkLost { peer: self.name(rank), why: why.to_owned() });
        if self.left.contains(&rank) {
            // All that it sent has arrived.
            self.plane.detach(peer);
            self.check_left(now);
        } else {
            self.plane.unlink(peer);
            self.fail(now, self.lost(rank, Departure::Died));
        }
        self.hear_no_more(now, rank);
    }

    fn read(&mut self, now: Time, peer: PeerId) {
        if let Err(error) = self.plane.read_link(now, peer) {
            // What arrived before the end is valid.
            self.pump(now);
            self.lose_link(now, peer, &error.to_string());
        }
    }

    /// Fails the group if an operation waits for a rank that has left.
    fn check_left(&mut self, now: Time) {
        if self.left.is_empty() || self.fault.is_some() {
            return;
        }
        let waits = |op: &OpId| self.plane.awaits(*op).into_iter().find(|rank| self.left.contains(rank));
        if let Some(rank) = self.running.keys().find_map(waits) {
            self.fail(now, self.lost(rank, Departure::Left));
        }
    }

    fn note_link(&mut self, peer: PeerId) {
        if let Some((call, missing)) = &mut self.linking {
            missing.remove(&peer);
            if missing.is_empty() {
                self.ended.push((*call, GroupEnded { result: Ok(()), buffers: None }));
                self.linking = None;
            }
        }
    }

    /// A call that ends when no operation runs.
    pub(super) fn when_quiet(&mut self) -> CallId {
        let call = self.call();
        self.awaits_quiet.push(call);
        self.check_quiet();
        call
    }

    /// Whether no operation runs.
    pub(super) fn is_quiet(&self) -> bool {
        self.running.is_empty()
    }

    fn check_quiet(&mut self) {
        if self.running.is_empty() {
            let calls = core::mem::take(&mut self.awaits_quiet);
            self.ended
                .extend(calls.into_iter().map(|call| (call, GroupEnded { result: Ok(()), buffers: None })));
        }
    }

    fn pump(&mut self, now: Time) {
        while let Some(event) = self.plane.pump(now) {
            self.note(now, event);
        }
    }

    fn note(&mut self, now: Time, event: PlaneEvent) {
        match event {
            PlaneEvent::Done { op, tx_bytes, rx_bytes, digest } => {
                if let Some(running) = self.running.get_mut(&op) {
                    running.moved = (tx_bytes, rx_bytes);
                }
                self.note_done(now, op, digest);
            }
            PlaneEvent::Released { op, buffers } | PlaneEvent::Suspended { op, buffers, .. } => {
                let ended = self.running.remove(&op);
                if let Some(running) = &ended {
                    self.keep_call(op, running);
                }
                if let Some(Running { compares: Some(compared), .. }) = ended {
                    self.compare(now, compared, &buffers);
                } else if let Some(running @ Running { call: Some(call), stage, .. }) = ended {
                    let fault = self.fault.clone().filter(|_| stage != Stage::Decided);
                    self.note_ended(op, &running, fault.as_ref());
                    let result = fault.map_or(Ok(()), |cause| Err(Error::GroupFailed(Box::new(cause))));
                    self.ended.push((call, GroupEnded { result, buffers: Some(buffers) }));
                }
                self.check_quiet();
            }
            PlaneEvent::LinkUp { peer, transport } => {
                if let Some(rank) = self.description.rank_of(peer) {
                    self.journal.post(PeerEvent::LinkUp { peer: self.name(rank), transport });
                }
                self.note_link(peer);
            }
            PlaneEvent::NoLink { peer, why } => {
                if let Some(rank) = self.description.rank_of(peer) {
                    self.journal.post(PeerEvent::LinkFailed { peer: self.name(rank), why });
                    let cause = Cause::LinkLost { from: self.name(self.me), to: self.name(rank) };
                    self.fail(now, cause);
                }
            }
            PlaneEvent::Visitor { peer, purpose: Purpose::Window, connection } => {
                self.windows.receive(peer, connection);
            }
            // Groups have no shared state, no probes, and device groups of their own.
            PlaneEvent::Visitor { .. } | PlaneEvent::Device { .. } => {}
            PlaneEvent::Mismatch { op, peer } => self.tell_call(op, peer),
            PlaneEvent::Corrupted { peer, .. } => {
                if let Some(rank) = self.description.rank_of(peer) {
                    self.fail(now, Cause::Corrupted { from: self.name(rank), to: self.name(self.me) });
                }
            }
            PlaneEvent::Stalled { peer, direction } => {
                // A slow rank has until the operation's deadline.
                if let Some(rank) = self.description.rank_of(peer) {
                    let (peer, is_reported) = (self.name(rank), false);
                    self.journal.post(PeerEvent::LinkStalled { peer, direction, is_reported });
                }
            }
            PlaneEvent::LinkLost { peer, why } => self.lose_link(now, peer, &why),
            PlaneEvent::Aborted { cause, .. } => self.fail(now, cause),
            PlaneEvent::Note { peer, topic, text } => {
                if let Some(rank) = self.description.rank_of(peer)
                    && !self.hear_decisions(now, rank, topic, &text)
                    && !self.hear_mismatch(now, rank, topic, &text)
                {
                    for call in self.notes.keep(rank, topic, text) {
                        self.ended.push((call, GroupEnded { result: Ok(()), buffers: None }));
                    }
                }
            }
            PlaneEvent::Inquiry { peer } => self.answer(now, peer),
            PlaneEvent::Activity { peer, activity } => self.hear_answer(now, peer, activity),
            PlaneEvent::Goodbye { peer } => {
                if let Some(rank) = self.description.rank_of(peer) {
                    self.journal.post(PeerEvent::RankLeft { who: self.name(rank) });
                    self.left.insert(rank);
                    self.windows.leave(rank);
                    self.check_left(now);
                }
            }
        }
    }
}

impl Drop for GroupDriver {
    /// A driver that is dropped before [`Drive::finish`] has panicked: the group has failed, and no window waits on.
    fn drop(&mut self) {
        if self.windows.is_closed() {
            return;
        }
        if self.fault.is_none() {
            let cause = self.lost(self.me, Departure::Died);
            (self.alarm)(&cause);
            self.callbacks.extend(self.windows.fail(&cause));
        }
        self.callbacks.drain(..).for_each(|callback| run_guarded("a callback", callback));
        self.windows.close(Instant::now(), || {});
    }
}

impl Drive for GroupDriver {
    type Ended = GroupEnded;
    type Error = Error;

    const LINGER: Duration = limits::LINGER;
    const DRIVES_IN_CALLS: bool = true;

    fn turn(&mut self, ready: &Readiness) {
        let now = self.clock.now();
        for peer in self.plane.begin_turn() {
            self.read(now, peer);
        }
        for token in ready.tokens() {
            if let Some(peer) = self.plane.handle_ready(now, token) {
                self.read(now, peer);
            }
        }
        self.plane.handle_time(now);
        self.check_deadlines(now);
        self.show_waiting(now);
        self.post_running(now);
        self.check_waits(now);
        if self.doubts_until().is_some_and(|at| at <= now) {
            self.end_doubt(now);
        }
        self.pump(now);
    }

    fn next_timeout(&self) -> Option<Duration> {
        // After a failure, operations end as soon as nothing reads their memory.
        let working = self.running.values().filter(|running| running.stage == Stage::Working);
        let due = working.map(|running| {
            if running.is_collective() { running.deadline.min(running.next_sign) } else { running.deadline }
        });
        let deadline = due.min().filter(|_| self.fault.is_none());
        let reports = [self.next_post(), self.next_wait_report()].into_iter().flatten().min();
        self.plane.next_timeout(&self.clock, [deadline, self.doubts_until(), reports])
    }

    fn has_input(&self) -> bool {
        self.plane.has_input()
    }

    fn look(&mut self) -> Option<bool> {
        self.plane.look()
    }

    fn prepare_sleep(&mut self) -> bool {
        self.plane.prepare_sleep()
    }

    fn expects(&self) -> Expected {
        self.plane.expects()
    }

    fn is_busy(&self) -> bool {
        self.plane.in_flight() > 0
    }

    fn report(&mut self, outcomes: &mut Outcomes<GroupEnded>) {
        // Asked at every look at the sockets.
        if self.ended.is_empty() && self.callbacks.is_empty() {
            return;
        }
        self.ended.drain(..).for_each(|(call, ended)| outcomes.end(call, ended));
        self.callbacks.drain(..).for_each(|callback| outcomes.call_back(callback));
    }

    /// Waits for no rank, but sends what is queued.
    fn leave(&mut self) {
        let now = self.clock.now();
        if !self.running.is_empty() {
            self.fail(now, Cause::AbortedByUser { who: self.name(self.me) });
        }
        self.journal.post(PeerEvent::Left);
        self.give_up_doubt(now);
        for rank in self.others() {
            let peer = self.description.members[rank.index()].peer;
            self.plane.say_goodbye(peer, self.description.id);
        }
        self.pump(now);
    }

    fn finish(mut self, deadline: Instant) {
        let Self { plane, windows, .. } = &mut self;
        windows.close(deadline, || plane.close_links(deadline));
    }

    fn failed(error: Error) -> GroupEnded {
        GroupEnded { result: Err(error), buffers: None }
    }
}

/// The tag of transfers: each direction of each pair has its own order for each tag.
fn transfer(from: Rank, to: Rank, tag: TransferTag) -> Tag {
    Tag(1 << 63 | u64::from(tag.0) << 32 | u64::from(from.0) << 16 | u64::from(to.0))
}
