//! Carries out what the machine of the peer decides.

use super::worker_report::WorkerReport;
use super::{Driver, Ended, Held, Reduction, spawn};
use crate::all_reduce::{HostBuffers, ReduceInfo};
use crate::data_plane::OpOptions;
use crate::{Error, doctor, limits};
use ringfold_fabric::dialer::Credentials;
use ringfold_fabric::probe;
use ringfold_plan::layout::Layout;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::event::PeerEvent;
use ringfold_proto::handshake::{DialTarget, Identity, Secret};
use ringfold_proto::hello::Purpose;
use ringfold_proto::id::{CallId, ConnId, EpochId, OpId, PeerId};
use ringfold_proto::peer::{Completion, Failure, PeerAction};
use ringfold_proto::time::Time;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

impl Driver {
    pub(super) fn act(&mut self, now: Time, action: PeerAction) {
        match action {
            PeerAction::DialMaster => {
                if self.uplink.is_up() {
                    self.journal.post(PeerEvent::MasterSilent { master: self.uplink.master() });
                }
                self.uplink.dial(now);
                self.note_search(now);
            }
            PeerAction::PreferMaster(addresses) => self.uplink.prefer(&addresses),
            PeerAction::Send { conn, message } => {
                self.note_sent(&message.message);
                self.uplink.send(conn, *message);
            }
            PeerAction::Close { conn } => self.uplink.close(conn),
            PeerAction::Link { member, .. } if self.plane.has_link(member.peer) => {
                self.machine.handle_link_up(member.peer);
            }
            PeerAction::Link { member, epoch, key } => self.plane.mesh().request(now, member, epoch, &key),
            PeerAction::UseRelays(relays) => {
                self.plane.mesh().use_relays(now, relays);
                self.directory.set_relays(self.plane.mesh().relays().clone());
            }
            PeerAction::Unlink(peer) => {
                self.plane.mesh().forget(peer);
                self.plane.unlink(peer);
            }
            PeerAction::Ping(peer) => self.plane.ping(peer),
            PeerAction::OpenEpoch(description) => {
                let members: Vec<_> = description.members.iter().map(|member| member.peer).collect();
                let mesh = self.plane.mesh();
                self.exchange_pool.keep_members(members.clone());
                mesh.admit(description.id, &description.key, members);
                description.members.iter().for_each(|member| mesh.expect_member(member));
                self.directory.set_epoch(&description, mesh.visit_dialer());
                self.device_ops.open_epoch(description.id);
                if let Err(why) = self.plane.open_epoch(&description, self.machine.id()) {
                    self.journal.post(PeerEvent::EpochRejected { epoch: description.id, why });
                }
            }
            PeerAction::CloseEpoch(epoch) => {
                self.device_ops.close_epoch(epoch);
                self.plane.close_epoch(epoch);
            }
            PeerAction::StartOp { op, call, descriptor, network } => {
                if let Some(network) = network {
                    self.plane.use_network(op, &network);
                }
                self.start_op(now, op, call, descriptor);
            }
            PeerAction::CommitOp(op) => {
                if !self.release_if_not_in_executor(op) {
                    self.plane.commit(op);
                }
            }
            PeerAction::AbortOp(op) => {
                if !self.release_if_not_in_executor(op) {
                    self.plane.abort(op);
                }
            }
            PeerAction::SuspendOp(op) => self.suspend_op(op),
            PeerAction::ResumeOp { op, call, descriptor, held } => {
                self.resume_op(now, op, call, descriptor, &held);
            }
            PeerAction::SkipOp(op) => {
                self.device_ops.end(op);
                self.plane.skip(op);
            }
            PeerAction::Probe { probe, peer, addresses, epoch, key } => {
                self.probe(probe, peer, addresses, epoch, &key);
            }
            PeerAction::Sync { call, number, assignment } => {
                self.journal.note_assignment(&assignment);
                if let Some((_, transfer)) = self.syncing.as_mut().filter(|(of, _)| *of == call) {
                    transfer.assign(number, assignment);
                }
            }
            PeerAction::StillWaiting(wait) => {
                self.journal.post(PeerEvent::StillWaiting { group: String::new(), wait });
            }
            PeerAction::Notify(event) => self.journal.post(*event),
            PeerAction::Complete { call, result } => self.complete(call, result),
        }
    }

    pub(super) fn start_op(&mut self, now: Time, op: OpId, call: CallId, descriptor: Descriptor) {
        let Some(reduction) = self.reductions.get_mut(&call) else { return self.refuse_op(op) };
        reduction.op = Some(op);
        match core::mem::replace(&mut reduction.buffers, Held::Lent(op)) {
            Held::Here(buffers) => {
                let (feedback, finals) = (reduction.feedback, reduction.finals.clone());
                let options = OpOptions { feedback, finals, resumed: None };
                self.start_on_host(now, op, call, (descriptor, &Layout::Even), buffers, options);
            }
            Held::Coming(_) => {
                reduction.buffers = Held::Coming(Some((op, descriptor)));
                self.has_device_news = true;
            }
            Held::Lent(_) | Held::OnDevice(_) | Held::Never => self.refuse_op(op),
        }
    }

    /// Starts an operation whose buffers are here.
    pub(super) fn start_on_host(
        &mut self,
        now: Time,
        op: OpId,
        call: CallId,
        (descriptor, layout): (Descriptor, &Layout),
        buffers: HostBuffers,
        options: OpOptions,
    ) {
        let Some(reduction) = self.reductions.get_mut(&call) else { return self.refuse_op(op) };
        match self.plane.start(now, op, descriptor, layout, buffers, options) {
            Ok(()) => {
                // The time of one whose input is still arriving says little about the network.
                if reduction.finals.is_none() {
                    self.started.insert(op, Instant::now());
                }
                self.by_op.insert(op, call);
                self.tell_on_host(op);
            }
            Err((why, buffers)) => {
                reduction.buffers = Held::Here(buffers);
                self.journal.post(PeerEvent::OpRejected { op, why });
                self.refuse_op(op);
            }
        }
    }

    /// Tells the master what was measured on links, if it has changed much.
    pub(super) fn report_links(&mut self) {
        if let Some(measurement) = self.measured.report(self.plane.measure()) {
            self.machine.handle_measured(measurement);
        }
    }

    /// Votes an operation down, and discards what arrives for it.
    pub(super) fn refuse_op(&mut self, op: OpId) {
        self.device_ops.end(op);
        self.plane.skip(op);
        self.machine.handle_op_refused(op);
    }

    pub(super) fn complete(&mut self, call: CallId, result: Result<Completion, Failure>) {
        let reduction = self.reductions.remove(&call);
        self.note_ended(call, reduction.as_ref(), &result);
        let (buffers, mut info) = match reduction {
            Some(Reduction { buffers: Held::Here(buffers), info, .. }) => (Some(buffers), info),
            Some(Reduction { info, .. }) => (None, info),
            None => (None, ReduceInfo::default()),
        };
        if let Ok(Completion::Reduced { world }) = &result {
            info.world = *world;
        }
        let transfer = self.syncing.take_if(|(of, _)| *of == call).map(|(_, transfer)| transfer);
        let result = result.map_err(Error::from);
        self.ended.push((call, Ended { result, info, buffers, transfer }));
    }

    /// Examines this host and the ways to the master and the neighbours, on a thread of its own. The master has a deadline for it.
    pub(super) fn examine(&mut self, conn: ConnId, examination: u64) {
        let (examining, notes, directory) =
            (self.examining.clone(), self.reports.sender(), self.directory.clone());
        if Arc::strong_count(&examining) > limits::EXAMINATIONS_MAX + 1 {
            return;
        }
        let master = self.uplink.examined_master();
        let examine = move || {
            let findings = doctor::examine_member(&directory, master.as_ref());
            notes.send(WorkerReport::Examined { conn, examination, findings });
            drop(examining);
        };
        spawn("ringfold-doctor", examine);
    }

    /// Measures the bandwidth to a peer, on a thread of its own.
    fn probe(
        &mut self,
        probe: u64,
        peer: PeerId,
        addresses: Vec<SocketAddr>,
        epoch: EpochId,
        key: &[u8; 32],
    ) {
        let credentials = Credentials {
            identity: Identity::new(self.machine.id(), self.directory.run()),
            target: DialTarget::member(Purpose::Probe, epoch, peer),
            secret: Secret::epoch_key(key),
        };
        let (notes, dialer) = (self.reports.sender(), self.directory.dialer());
        let (relays, head_start) = self.directory.relays_for(peer);
        let measure = move || {
            let connect_max = if head_start.is_zero() {
                limits::RELAYED_PROBE_CONNECT_MAX
            } else {
                limits::PROBE_CONNECT_MAX
            };
            let connection = dialer.dial(&addresses, connect_max, &credentials, (&relays, head_start));
            let measured = connection.and_then(probe::measure);
            if let Err(error) = &measured {
                tracing::warn!(peer = peer.short(), %error, "cannot measure the bandwidth to a peer");
            }
            let (forward, backward) = measured.map_or((None, None), |m| (Some(m.forward), Some(m.backward)));
            notes.send(WorkerReport::Probed { probe, forward, backward });
        };
        if !spawn("ringfold-probe", measure) {
            self.machine.handle_probed(probe, None, None);
        }
    }
}
