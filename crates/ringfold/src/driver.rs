//! The machine, data plane and sockets of one peer.
//!
//! Nothing here waits: [`Driver::turn`] does what can be done, and the engine waits for sockets and time.

mod actions;
mod device_ops;
mod device_path;
mod directory;
mod events;
mod measured_links;
mod resumption;
mod staged_path;
mod worker_report;

pub(crate) use device_ops::DeviceAnswer;
pub(crate) use directory::Directory;
pub(crate) use worker_report::{ReportSender, WorkerReport, WorkerReports};

use crate::all_reduce::{HostBuffers, ReduceInfo};
use crate::data_plane::{DataPlane, KeptContributions, PlaneEvent};
use crate::journal::Source;
use crate::relay::VolunteerRelay;
use crate::shared_state::SyncCompany;
use crate::staging::ExchangePool;
use crate::transfer::Transfer;
use crate::uplink::{MasterSearch, Uplink, UplinkEvent};
use crate::workspace::FinalRanges;
use crate::{Error, limits};
use device_ops::DeviceOps;
use events::DriverJournal;
use measured_links::MeasuredLinks;
use ringfold_fabric::clock::Clock;
use ringfold_fabric::connection::BlockingConnection;
use ringfold_fabric::mesh::Mesh;
use ringfold_fabric::poller::Readiness;
use ringfold_fabric::probe;
use ringfold_fabric::reactor::{Drive, Expected, Outcomes};
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::epoch::{Attributes, Member};
use ringfold_proto::event::PeerEvent;
use ringfold_proto::hello::{Features, Purpose};
use ringfold_proto::id::{CallId, ConnId, OpId, PeerId, Tag};
use ringfold_proto::message::{Numbered, ToMaster, ToPeer};
use ringfold_proto::peer::{Completion, Failure, Peer, PeerConfig};
use ringfold_proto::shared_state::SyncOffer;
use ringfold_proto::time::Time;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The driver.
pub(crate) struct Driver {
    clock: Clock,
    machine: Peer,
    plane: DataPlane,
    uplink: Uplink,
    search: MasterSearch,
    reports: WorkerReports,
    directory: Arc<Directory>,
    reductions: HashMap<CallId, Reduction>,
    by_op: HashMap<OpId, CallId>,
    /// When operations were started.
    started: HashMap<OpId, Instant>,
    measured: MeasuredLinks,
    syncing: Option<(CallId, Transfer)>,
    ended: Vec<(CallId, Ended)>,
    /// Counts the threads that answer probes.
    answering: Arc<()>,
    /// Counts the threads that examine this host.
    examining: Arc<()>,
    relay: VolunteerRelay,
    device_ops: DeviceOps,
    exchange_pool: Arc<ExchangePool>,
    /// Whether a stage of an operation in device memory may have been reached since the last report.
    has_device_news: bool,
    journal: DriverJournal,
}

/// A collective that has not ended.
struct Reduction {
    buffers: Held,
    /// Whether its quantisation error is carried over.
    feedback: bool,
    /// Where it reports which parts of its result are final, for a thread that waits for them.
    finals: Option<Arc<FinalRanges>>,
    /// What is here of it while it is suspended.
    kept: Option<KeptContributions>,
    info: ReduceInfo,
    /// For the journal: the call, when it was made, and the operation that it became.
    tag: Tag,
    descriptor: Descriptor,
    began: Time,
    op: Option<OpId>,
}

/// Where the buffers of a collective are.
enum Held {
    /// Here, before and after its run.
    Here(HostBuffers),
    /// The executor has them, for this operation.
    Lent(OpId),
    /// Being copied from a device; and the operation to start then, if the machine has asked for it.
    Coming(Option<(OpId, Descriptor)>),
    /// In device memory, where the operation is complete.
    OnDevice(OpId),
    /// They cannot be had.
    Never,
}

/// How a call ended.
pub(crate) struct Ended {
    /// The answer.
    pub(crate) result: Result<Completion, Error>,
    /// What a collective moved, and its memory.
    pub(crate) info: ReduceInfo,
    pub(crate) buffers: Option<HostBuffers>,
    /// The transfer of a sync; to be stopped before the call returns.
    pub(crate) transfer: Option<Transfer>,
}

impl Driver {
    /// A peer that is not connected.
    pub(crate) fn new(
        config: PeerConfig,
        stall_after: Duration,
        mesh: Mesh,
        uplink: Uplink,
        reports: WorkerReports,
        journal: Arc<Source>,
    ) -> Self {
        let journal = DriverJournal::new(journal);
        let directory = Arc::new(Directory::new(config.peer, mesh.poller().clone(), mesh.visit_dialer()));
        Self {
            clock: Clock::start(),
            machine: Peer::new(config),
            plane: DataPlane::new(mesh, stall_after, true),
            uplink,
            search: MasterSearch::default(),
            reports,
            directory,
            reductions: HashMap::new(),
            by_op: HashMap::new(),
            started: HashMap::new(),
            measured: MeasuredLinks::default(),
            syncing: None,
            ended: Vec::new(),
            answering: Arc::default(),
            examining: Arc::default(),
            relay: VolunteerRelay::default(),
            device_ops: DeviceOps::default(),
            exchange_pool: Arc::default(),
            has_device_news: false,
            journal,
        }
    }

    /// Makes a call of the machine.
    pub(crate) fn call(
        &mut self,
        make: impl FnOnce(&mut Peer, Time) -> Result<CallId, Failure>,
    ) -> Result<CallId, Error> {
        let now = self.clock.now();
        let call = make(&mut self.machine, now)?;
        self.note_vote(now, call);
        self.pump(now);
        Ok(call)
    }

    /// Starts a collective. Its end returns the buffers. Without buffers it is in flight as well, and they have to be
    /// supplied.
    pub(crate) fn start(
        &mut self,
        tag: Tag,
        descriptor: Descriptor,
        feedback: bool,
        buffers: Option<HostBuffers>,
    ) -> Result<CallId, Error> {
        let now = self.clock.now();
        let call = self.machine.collective(now, tag, descriptor)?;
        let buffers = buffers.map_or(Held::Coming(None), Held::Here);
        let info = ReduceInfo::default();
        let reduction = Reduction {
            buffers,
            feedback,
            finals: None,
            kept: None,
            info,
            tag,
            descriptor,
            began: now,
            op: None,
        };
        self.reductions.insert(call, reduction);
        // The machine may ask for its start from here on.
        self.pump(now);
        Ok(call)
    }

    /// Supplies the buffers of a collective that was started without; none if they cannot be had: then it is voted down.
    /// If the collective has ended, they are dropped.
    pub(crate) fn supply(&mut self, call: CallId, buffers: Option<HostBuffers>) {
        let Some(Reduction { buffers: held @ Held::Coming(_), .. }) = self.reductions.get_mut(&call) else {
            return;
        };
        let supplied = buffers.map_or(Held::Never, Held::Here);
        let coming = core::mem::replace(held, supplied);
        let now = self.clock.now();
        if let Held::Coming(Some((op, descriptor))) = coming {
            self.start_op(now, op, call, descriptor);
        }
        self.pump(now);
    }

    /// Votes in a sync; the transfer serves and fetches until the call ends.
    pub(crate) fn sync(
        &mut self,
        offer: SyncOffer,
        company: SyncCompany,
        transfer: Transfer,
    ) -> Result<CallId, Box<(Error, Transfer)>> {
        let now = self.clock.now();
        let began = PeerEvent::SyncBegan { revision: offer.revision, entries: offer.entries.len() };
        let started = match company {
            SyncCompany::Alone => self.machine.sync_shared_state(now, None, offer),
            SyncCompany::Collectives if self.uplink.supports(Features::SYNC_BESIDE) => {
                self.machine.sync_beside(now, None, offer)
            }
            SyncCompany::Collectives => Err(Failure::Misuse(
                "the master is too old for a sync beside collectives: update it, or sync while nothing is in flight".into(),
            )),
        };
        match started {
            Ok(call) => {
                self.syncing = Some((call, transfer));
                self.journal.begin_sync(now, began);
                self.pump(now);
                Ok(call)
            }
            Err(failure) => Err(Box::new((failure.into(), transfer))),
        }
    }

    /// Forgets the quantisation errors of a tag, or of all.
    pub(crate) fn clear_residuals(&mut self, tag: Option<Tag>) {
        self.plane.clear_residuals(tag);
    }

    /// For tests: a bit of the result of the n-th operation flips.
    pub(crate) fn flip_result_of(&mut self, n: u64) {
        self.plane.flip_result_of(n);
    }

    /// The id of this peer.
    pub(crate) fn id(&self) -> PeerId {
        self.machine.id()
    }

    /// The members of the group, oldest first.
    pub(crate) fn members(&self) -> Arc<[Member]> {
        self.machine.members().clone()
    }

    /// World sizes.
    pub(crate) fn attributes(&self) -> Attributes {
        self.machine.attributes()
    }

    /// How many links go through shared memory.
    pub(crate) fn shared_links(&self) -> usize {
        self.plane.shared_links()
    }

    /// The addresses of members, for other threads.
    pub(crate) fn directory(&self) -> Arc<Directory> {
        self.directory.clone()
    }

    /// Device memory that peers of this host share.
    pub(crate) fn exchange_pool(&self) -> Arc<ExchangePool> {
        self.exchange_pool.clone()
    }

    /// Where threads leave notes.
    pub(crate) fn report_sender(&self) -> ReportSender {
        self.reports.sender()
    }

    fn read_link(&mut self, now: Time, peer: PeerId) {
        self.machine.handle_heard(peer);
        if let Err(error) = self.plane.read_link(now, peer) {
            self.lose_link(now, peer, &error.to_string());
        }
    }

    fn pass_time(&mut self, now: Time) {
        let is_due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        if is_due(self.uplink.poll_timeout()) {
            self.uplink.handle_ready(now);
        }
        if is_due(self.machine.poll_timeout()) {
            let progress = self.syncing.as_ref().and_then(|(_, transfer)| transfer.progress());
            self.machine.handle_fetching(progress);
            self.machine.handle_timeout(now);
        }
        self.plane.handle_time(now);
        if let Some((_, transfer)) = &self.syncing {
            self.journal.watch_sync(now, transfer);
        }
    }

    fn hear_master(&mut self, now: Time) {
        if self.search.has_begun() && self.machine.has_master() {
            self.search = MasterSearch::default();
        }
        while let Some(event) = self.uplink.next_event() {
            match event {
                UplinkEvent::Connected(conn, run) => {
                    self.plane.mesh().set_run(run);
                    self.directory.set_run(run);
                    self.machine.note_masters(self.uplink.troubles());
                    self.journal.post(PeerEvent::MasterConnected { master: self.uplink.master() });
                    self.machine.handle_connected(now, conn);
                }
                UplinkEvent::DialFailed { why, retryable } => {
                    self.machine.handle_dial_failed(now, &why, retryable);
                }
                UplinkEvent::Message(conn, message) => match message.message {
                    ToPeer::Examine { examination } => self.examine(conn, examination),
                    _ => self.machine.handle_message(now, conn, *message),
                },
                UplinkEvent::Lost(conn) => self.lose_master(now, conn),
            }
        }
    }

    fn lose_master(&mut self, now: Time, conn: ConnId) {
        self.journal.post(PeerEvent::MasterLost { master: self.uplink.master() });
        self.machine.handle_lost(now, conn);
    }

    /// Notes why masters could not be used, and warns if none is active for a while.
    fn note_search(&mut self, now: Time) {
        let troubles = self.uplink.troubles();
        if let Some(time) = self.search.dialled(now)
            && !troubles.is_empty()
        {
            self.journal.post(PeerEvent::NoActiveMaster { waited: time, known: troubles.clone() });
        }
        self.machine.note_masters(troubles);
    }

    /// A member has connected for shared state or a probe.
    fn receive(&mut self, peer: PeerId, purpose: Purpose, connection: BlockingConnection) {
        match purpose {
            Purpose::State => {
                // Outside of a sync nothing is served; a peer that is early connects again.
                if let Some((_, transfer)) = &mut self.syncing {
                    transfer.serve(peer, connection);
                }
            }
            Purpose::Probe => {
                // Each thread that answers holds a clone, also while it unwinds.
                let answering = self.answering.clone();
                if Arc::strong_count(&answering) > limits::PROBES_ANSWERED_MAX {
                    return;
                }
                let answer = move || {
                    if let Err(error) = probe::answer(connection) {
                        tracing::debug!(%error, "cannot answer a probe");
                    }
                    drop(answering);
                };
                spawn("ringfold-probed", answer);
            }
            Purpose::Relay => self.relay.add(peer, connection, self.directory.poller()),
            Purpose::Control
            | Purpose::Data
            | Purpose::Window
            | Purpose::Masters
            | Purpose::Doctor
            | Purpose::Observe
            | Purpose::Admin => {}
        }
    }

    fn take_notes(&mut self) {
        while let Some(note) = self.reports.next() {
            match note {
                WorkerReport::Fetched { number, complete } => {
                    if let Some((call, _)) = &self.syncing {
                        self.machine.handle_fetched(*call, number, complete);
                    }
                }
                WorkerReport::Probed { probe, forward, backward } => {
                    self.machine.handle_probed(probe, forward, backward);
                }
                WorkerReport::Examined { conn, examination, findings } => {
                    let message = ToMaster::Examined { examination, findings };
                    self.uplink.send(conn, Numbered { number: 0, acknowledged: 0, message });
                }
            }
        }
    }

    fn lose_link(&mut self, now: Time, peer: PeerId, why: &str) {
        if self.plane.unlink(peer) {
            self.note_lost_link(peer, why.to_owned());
            self.machine.handle_link_lost(now, peer);
        }
    }

    /// Runs machine, data plane and sockets until nothing can be done.
    fn pump(&mut self, now: Time) {
        loop {
            self.hear_master(now);
            if let Some(event) = self.plane.pump(now) {
                self.note_event(now, event);
            } else if let Some(action) = self.machine.poll_action() {
                self.act(now, action);
            } else {
                self.uplink.flush();
                if !self.uplink.is_down() || !self.hear_loss(now) {
                    return;
                }
            }
        }
    }

    /// Whether flushing has found the connection broken.
    fn hear_loss(&mut self, now: Time) -> bool {
        let Some(event) = self.uplink.next_event() else { return false };
        if let UplinkEvent::Lost(conn) = event {
            self.lose_master(now, conn);
        }
        true
    }

    fn note_event(&mut self, now: Time, event: PlaneEvent) {
        match event {
            PlaneEvent::Done { op, tx_bytes, rx_bytes, digest } => {
                if let Some(reduction) = self.by_op.get(&op).and_then(|call| self.reductions.get_mut(call)) {
                    (reduction.info.tx_bytes, reduction.info.rx_bytes) = (tx_bytes, rx_bytes);
                }
                if let Some(began) = self.started.remove(&op).filter(|_| self.plane.is_alone_on_host()) {
                    let now = Instant::now();
                    self.measured.note_operation(now, tx_bytes, rx_bytes, now - began);
                }
                self.machine.handle_op_done(op, digest);
            }
            PlaneEvent::Released { op, buffers } => {
                if let Some(reduction) =
                    self.by_op.remove(&op).and_then(|call| self.reductions.get_mut(&call))
                {
                    reduction.buffers = Held::Here(buffers);
                }
                self.started.remove(&op);
                self.device_ops.end(op);
                self.machine.handle_op_released(op);
                self.report_links();
            }
            PlaneEvent::Suspended { op, buffers, kept } => self.note_suspended(op, buffers, kept),
            PlaneEvent::LinkUp { peer, transport } => {
                self.journal.post(PeerEvent::LinkUp { peer: self.machine.name_of(peer), transport });
                self.measured.forget(peer);
                self.report_links();
                self.directory.set_relayed(peer, self.plane.mesh().is_relayed(peer));
                self.machine.handle_link_up(peer);
            }
            PlaneEvent::NoLink { peer, why } => {
                self.journal.post(PeerEvent::LinkFailed { peer: self.machine.name_of(peer), why });
                self.machine.handle_link_failed(peer);
            }
            PlaneEvent::Visitor { peer, purpose, connection } => {
                self.receive(peer, purpose, connection);
            }
            PlaneEvent::Mismatch { op, peer } => self.machine.handle_op_mismatch(op, peer),
            PlaneEvent::Corrupted { op, peer } => self.machine.handle_op_corrupted(op, peer),
            PlaneEvent::Stalled { peer, direction } => {
                let name = self.machine.name_of(peer);
                self.journal.post(PeerEvent::LinkStalled { peer: name, direction, is_reported: true });
                self.machine.handle_link_stalled(peer, direction);
            }
            // Only groups of fixed ranks send these.
            PlaneEvent::Aborted { .. }
            | PlaneEvent::Goodbye { .. }
            | PlaneEvent::Note { .. }
            | PlaneEvent::Inquiry { .. }
            | PlaneEvent::Activity { .. } => {}
            PlaneEvent::Device { peer, op, stage } => self.hear_stage(peer, op, stage),
            PlaneEvent::LinkLost { peer, why } => {
                self.note_lost_link(peer, why);
                self.machine.handle_link_lost(now, peer);
            }
        }
    }
}

impl Drive for Driver {
    type Ended = Ended;
    type Error = Error;

    const LINGER: Duration = limits::LINGER;

    fn report(&mut self, outcomes: &mut Outcomes<Ended>) {
        self.ended.drain(..).for_each(|(call, ended)| outcomes.end(call, ended));
        if core::mem::take(&mut self.has_device_news) | self.has_final_news() {
            outcomes.notify();
        }
    }

    fn has_input(&self) -> bool {
        self.plane.has_input()
    }

    fn prepare_sleep(&mut self) -> bool {
        self.plane.prepare_sleep()
    }

    fn expects(&self) -> Expected {
        match self.plane.expects() {
            // The master may need a core, too.
            Expected::Nothing if self.plane.in_flight() > 0 => match self.plane.has_spare_core() {
                true => Expected::Master,
                false => Expected::OnSharedCores,
            },
            expected => expected,
        }
    }

    fn is_busy(&self) -> bool {
        self.plane.in_flight() > 0
    }

    fn next_timeout(&self) -> Option<Duration> {
        self.plane.next_timeout(&self.clock, [self.machine.poll_timeout(), self.uplink.poll_timeout()])
    }

    fn turn(&mut self, ready: &Readiness) {
        let now = self.clock.now();
        for peer in self.plane.begin_turn() {
            self.read_link(now, peer);
        }
        for token in ready.tokens() {
            if self.uplink.owns(token) {
                self.uplink.handle_ready(now);
                self.hear_master(now);
            } else if let Some(peer) = self.plane.handle_ready(now, token) {
                self.read_link(now, peer);
            }
        }
        self.take_notes();
        self.pass_time(now);
        self.pump(now);
    }

    fn leave(&mut self) {
        self.machine.leave();
        let now = self.clock.now();
        self.pump(now);
    }

    fn finish(mut self, deadline: Instant) {
        self.uplink.finish(deadline);
        tracing::info!("{} in this run", self.directory.poller().network().total());
    }

    fn failed(error: Error) -> Ended {
        Ended { result: Err(error), info: ReduceInfo::default(), buffers: None, transfer: None }
    }
}

/// Starts a thread that is not joined. Returns whether that succeeded.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> bool {
    let spawned = std::thread::Builder::new().name(name.into()).spawn(work);
    if let Err(error) = &spawned {
        tracing::error!(%error, name, "cannot start a thread");
    }
    spawned.is_ok()
}
