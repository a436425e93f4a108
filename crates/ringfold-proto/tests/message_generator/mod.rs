//! Generates valid messages from arbitrary bytes, which choose variants, values and lengths. When the bytes are used up,
//! all values are zero and all lists empty.

use ringfold_proto::cause::{
    Cause, Departure, JoinRejection, JointCall, MissingPeer, PeerName, PeerTrouble, ProtocolViolation,
    Removal, ReplicaRejection, StateRejection, Wait, WaitingPeer,
};
use ringfold_proto::charter::{Charter, Electorate, VoterRecord};
use ringfold_proto::claim::{CertificateChain, Signature};
use ringfold_proto::cores::{CoreShare, CpuQuota};
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::descriptor::{Collective, Descriptor, Weight};
use ringfold_proto::doctor::{Finding, Judgement};
use ringfold_proto::dtype::DType;
use ringfold_proto::epoch::{Attributes, EpochDescription, Member, MissingPair, RelayAddress, ResumedOp};
use ringfold_proto::group_call::{GroupCall, GroupCallKind};
use ringfold_proto::id::{
    CallId, EpochId, GroupId, Incarnation, OpId, PeerId, Rank, ReplicaId, Revision, Seq, Tag, Term,
};
use ringfold_proto::integrity::Integrity;
use ringfold_proto::limits;
use ringfold_proto::link_message::{DeviceStage, LinkMessage, RankActivity};
use ringfold_proto::message::{
    Answer, Ballot, Direction, EpochRecord, Join, Numbered, OpProgress, OpRecord, Outcome, Phase, Replica,
    Request, Resume, RoundNumbers, ToMaster, ToPeer,
};
use ringfold_proto::network::{MeasuredLink, Measurement, Network, Path, Throughput};
use ringfold_proto::quantization::{Quantization, QuantizationAlgorithm};
use ringfold_proto::reduce_op::ReduceOp;
use ringfold_proto::shared_state::{Assignment, FetchItem, StateEntry, SyncOffer, SyncStrategy, SyncVerdict};
use ringfold_proto::tuning::{Algorithm, TransportCosts, Tuning};
use std::net::SocketAddr;

/// The remaining bytes.
pub struct MessageGenerator<'b>(pub &'b [u8]);

impl MessageGenerator<'_> {
    /// A message to the master.
    pub fn for_master(&mut self) -> Numbered<ToMaster> {
        let message = match self.below(18) {
            0 => ToMaster::Join(self.join()),
            1 => ToMaster::Resume(Box::new(self.resume())),
            2 => ToMaster::Vote {
                call: CallId(self.u64()),
                round: self.u64(),
                deadline_ms: self.u32(),
                request: self.request(),
            },
            3 => ToMaster::Leave,
            4 => ToMaster::Started { op: self.op(), descriptor: self.descriptor() },
            5 => ToMaster::OpVote { op: self.op(), descriptor: self.descriptor(), ballot: self.ballot() },
            6 => ToMaster::EpochReady { epoch: self.epoch(), unreachable: self.list(5, Self::peer) },
            7 => ToMaster::LinkTrouble {
                epoch: self.epoch(),
                peer: self.peer(),
                direction: self.one_of(&[Direction::Outgoing, Direction::Incoming, Direction::Both]),
            },
            8 => ToMaster::Probed {
                probe: self.u64(),
                forward: self.maybe(Self::u64),
                backward: self.maybe(Self::u64),
            },
            9 => ToMaster::SyncDone { round: self.u64(), complete: self.bool() },
            10 => ToMaster::Heartbeat {
                heard: self.list(limits::WORLD_MAX, Self::peer),
                ended: self.list(limits::WORLD_MAX, Self::peer),
            },
            11 => ToMaster::Measured(Measurement {
                links: self.list(20, |d| MeasuredLink { peer: d.peer(), path: d.path() }),
                throughput: self.throughput(),
            }),
            12 => ToMaster::JoinRank { replica: self.replica(), join: self.join() },
            13 => ToMaster::ResumeRank { replica: self.replica(), resume: Box::new(self.resume()) },
            16 => ToMaster::Suspended {
                op: self.op(),
                descriptor: self.descriptor(),
                held: self.list(5, |d| (d.peer(), d.u32())),
            },
            14 => ToMaster::Fetching { done_bytes: self.u64(), all_bytes: self.u64() },
            15 => ToMaster::Examined {
                examination: self.u64(),
                findings: self.list(5, |d| {
                    let judgement = d.one_of(&Judgement::ALL);
                    Finding { judgement, ..Finding::warn("host.clock", d.text(99), d.text(99)) }
                }),
            },
            _ => ToMaster::Voter {
                promised: Term(self.u64()),
                charter: (Term(self.u64()), self.u64()),
                beat: self.u64(),
            },
        };
        Numbered { number: self.u64(), acknowledged: self.u64(), message }
    }

    /// A message to a peer.
    pub fn for_peer(&mut self) -> Numbered<ToPeer> {
        let message = match self.below(19) {
            0 => ToPeer::Registered { incarnation: Incarnation(self.u64()), seniority: self.u64() },
            1 => ToPeer::Rebound { received: self.u64() },
            2 => ToPeer::Restoring { incarnation: Incarnation(self.u64()) },
            3 => ToPeer::Restored {
                incarnation: Incarnation(self.u64()),
                rounds: self.rounds(),
                last_pending: self.bool(),
            },
            4 => ToPeer::Demoted,
            5 => {
                let (description, ended) = (Box::new(self.description()), self.cause());
                let (attributes, signature) = (self.attributes(), self.signature());
                ToPeer::EpochProposed { description, ended, attributes, signature }
            }
            6 => ToPeer::EpochOpened {
                epoch: self.epoch(),
                missing: self.list(9, Self::pair),
                network: self.network(),
                resumed: self.list(3, Self::resumed),
                attributes: self.attributes(),
                rounds: self.rounds(),
                signature: self.signature(),
            },
            7 => ToPeer::Decided {
                op: self.op(),
                outcome: self.outcome(),
                attributes: self.attributes(),
                signature: self.signature(),
            },
            8 => ToPeer::Answer {
                call: CallId(self.u64()),
                phase: self.one_of(&Phase::ALL),
                round: self.u64(),
                answer: self.answer(),
                attributes: self.attributes(),
            },
            9 => ToPeer::Probe {
                probe: self.u64(),
                peer: self.peer(),
                addresses: self.list(limits::ADDRESSES_MAX, Self::address),
                epoch: self.epoch(),
                key: self.key(),
            },
            10 => ToPeer::SyncElected { round: self.u64(), verdict: self.verdict() },
            11 => ToPeer::Removed { reason: self.removal() },
            12 => ToPeer::StillWaiting(self.wait()),
            13 => ToPeer::Lead {
                term: Term(self.u64()),
                beat: self.u64(),
                charter: self.maybe(|d| Box::new(d.charter())),
                signature: self.signature(),
            },
            14 => ToPeer::Candidate { term: Term(self.u64()) },
            15 => ToPeer::Redirect { addresses: self.list(limits::ADDRESSES_MAX, Self::address) },
            16 => ToPeer::Examine { examination: self.u64() },
            17 => ToPeer::Report,
            _ => ToPeer::Heartbeat,
        };
        Numbered { number: self.u64(), acknowledged: self.u64(), message }
    }

    /// A message on a data connection.
    pub fn link(&mut self) -> LinkMessage {
        match self.below(12) {
            0 => LinkMessage::Grant { op: self.op(), slots: self.list(300, |d| d.u32() as u16) },
            1 => LinkMessage::Want { op: self.op() },
            2 => LinkMessage::Return { epoch: self.epoch(), slots: self.list(300, |d| d.u32() as u16) },
            3 => LinkMessage::Fenced { op: self.op() },
            4 => LinkMessage::Mismatch { op: self.op() },
            5 => LinkMessage::Abort { epoch: self.epoch(), cause: self.cause() },
            6 => LinkMessage::Goodbye { epoch: self.epoch() },
            7 => LinkMessage::Note { epoch: self.epoch(), topic: self.u64(), text: self.text(200) },
            8 => LinkMessage::Device { op: self.op(), stage: self.device_stage() },
            9 => LinkMessage::Inquiry { epoch: self.epoch() },
            10 => {
                let waits_in = self.maybe(|d| (d.group_call(), d.u32()));
                let activity = RankActivity { waits_in, launched: self.u64() };
                LinkMessage::Activity { epoch: self.epoch(), activity }
            }
            _ => LinkMessage::Ping,
        }
    }

    fn device_stage(&mut self) -> DeviceStage {
        match self.below(4) {
            0 => DeviceStage::Offered { memory: self.list(300, |d| d.u32() as u8) },
            1 => DeviceStage::Ready,
            2 => DeviceStage::OnHost,
            _ => DeviceStage::Folded,
        }
    }

    /// The header of a data frame.
    pub fn header(&mut self) -> DataHeader {
        DataHeader {
            op: self.op(),
            fingerprint: self.u64(),
            chunk: self.u32(),
            offset: self.u64(),
            length: self.below(2000) as u32,
            slot: self.u32() as u16,
            eager: self.bool(),
            checksum: self.maybe(Self::u32),
        }
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        usize::from(u16::from_le_bytes(self.take())) % end
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.0.split_at(self.0.len().min(N));
        self.0 = rest;
        let mut bytes = [0; N];
        bytes[..taken.len()].copy_from_slice(taken);
        bytes
    }

    fn bool(&mut self) -> bool {
        self.below(2) == 1
    }

    fn u32(&mut self) -> u32 {
        let shift = self.below(32);
        u32::from_le_bytes(self.take()) >> shift
    }

    fn u64(&mut self) -> u64 {
        let shift = self.below(64);
        u64::from_le_bytes(self.take()) >> shift
    }

    fn u128(&mut self) -> u128 {
        u128::from_le_bytes(self.take())
    }

    fn key(&mut self) -> [u8; 32] {
        self.take()
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn maybe<T>(&mut self, generator: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.bool().then(|| generator(self))
    }

    fn list<T>(&mut self, max: usize, generator: impl Fn(&mut Self) -> T) -> Vec<T> {
        (0..self.below(max + 1)).map(|_| generator(self)).collect()
    }

    /// Valid as a name, too.
    fn text(&mut self, bytes_max: usize) -> String {
        let bytes = self.list(bytes_max / 4, |d| d.take::<1>()[0]);
        bytes.into_iter().map(|b| char::from_u32(0xa1 + (u32::from(b) << 4)).unwrap_or('§')).collect()
    }

    fn peer(&mut self) -> PeerId {
        PeerId(self.u128())
    }

    fn epoch(&mut self) -> EpochId {
        EpochId { group: GroupId(self.u32()), incarnation: Incarnation(self.u64()), counter: self.u64() }
    }

    fn op(&mut self) -> OpId {
        OpId { epoch: self.epoch(), tag: Tag(self.u64()), seq: Seq(self.u64()) }
    }

    fn pair(&mut self) -> MissingPair {
        MissingPair(Rank(self.u32() as u16), Rank(self.u32() as u16))
    }

    fn address(&mut self) -> SocketAddr {
        let port = self.u32() as u16;
        if self.bool() { (self.take::<4>(), port).into() } else { (self.take::<16>(), port).into() }
    }

    fn cores(&mut self) -> CoreShare {
        let runs = self.list(4, |d| (d.u32() as u16, d.u32() as u16));
        let quota = CpuQuota { cgroup: self.u64(), cores: self.u32() as u16 };
        CoreShare { runs, quota: self.bool().then_some(quota) }
    }

    fn join(&mut self) -> Join {
        Join {
            group: GroupId(self.u32()),
            name: self.text(limits::NAME_ON_WIRE_BYTES_MAX),
            host: self.u64(),
            site: self.u32(),
            cores: self.cores(),
            addresses: self.list(limits::ADDRESSES_MAX, Self::address),
            relays: self.bool(),
        }
    }

    fn rounds(&mut self) -> RoundNumbers {
        RoundNumbers { topology: self.u64(), pending: self.u64(), optimise: self.u64(), sync: self.u64() }
    }

    fn attributes(&mut self) -> Attributes {
        Attributes {
            global_world: self.u32(),
            group_world: self.u32(),
            groups: self.u32(),
            largest_group_world: self.u32(),
        }
    }

    fn collective(&mut self) -> Collective {
        let collectives = [
            Collective::AllReduce,
            Collective::ReduceScatter,
            Collective::AllGather,
            Collective::Broadcast { root: Rank(self.u32() as u16) },
            Collective::Barrier,
        ];
        self.one_of(&collectives)
    }

    fn descriptor(&mut self) -> Descriptor {
        let quantizations = [QuantizationAlgorithm::MinMax, QuantizationAlgorithm::ZeroPointScale];
        Descriptor {
            collective: self.collective(),
            count: self.u64(),
            dtype: self.one_of(DType::ALL),
            op: self.one_of(ReduceOp::ALL),
            quantization: self
                .maybe(|d| Quantization { algorithm: d.one_of(&quantizations), dtype: d.one_of(DType::ALL) }),
            weight: self.maybe(|d| Weight::new(f64::from(d.u32()) / 7.0).expect("it is finite")),
            reproducible: self.bool(),
            resume: self.bool(),
            integrity: Integrity { payloads: self.bool(), results: self.bool() },
            priority: self.u32() as u8,
            deadline_ms: self.u32(),
        }
    }

    fn resumed(&mut self) -> ResumedOp {
        ResumedOp { op: self.op(), held: self.list(9, Self::u32) }
    }

    fn description(&mut self) -> EpochDescription {
        let algorithms =
            [Algorithm::Ring, Algorithm::Direct, Algorithm::OneShot, Algorithm::Halving, Algorithm::Doubling];
        EpochDescription {
            id: self.epoch(),
            members: self
                .list(6, |d| Member {
                    peer: d.peer(),
                    name: d.text(64),
                    host: d.u64(),
                    site: d.u32(),
                    cores: d.cores(),
                    addresses: d.list(limits::ADDRESSES_MAX, Self::address),
                })
                .into(),
            ring: self.list(limits::WORLD_MAX, |d| Rank(d.u32() as u16)),
            mesh: self.bool(),
            missing: self.list(9, Self::pair),
            network: self.network(),
            resumed: self.list(3, Self::resumed),
            tuning: Tuning {
                chunk_bytes: self.u32(),
                window_slots: self.u32() as u16,
                eager_slots: self.u32() as u16,
                board_slot_bytes: self.u32(),
                board_depth: self.u32() as u16,
                board_one_shot_bytes_max: self.u32(),
                tcp: self.prices(),
                shared: self.prices(),
                forced: self.maybe(|d| d.one_of(&algorithms)),
            },
            key: self.key(),
            relays: self.list(limits::RELAYS_MAX, |d| RelayAddress { peer: d.peer(), address: d.address() }),
        }
    }

    fn prices(&mut self) -> TransportCosts {
        TransportCosts {
            hop_ns: self.u32(),
            frame_ns: self.u32(),
            sent_ns_per_kib: self.u32(),
            reduced_ns_per_kib: self.u32(),
            beside_ring_percent: self.u32() as u16,
        }
    }

    fn replica(&mut self) -> Replica {
        Replica { id: ReplicaId(self.peer().0), ranks: self.u32() }
    }

    fn resume(&mut self) -> Resume {
        let progress = |d: &mut Self| match d.below(4) {
            0 => OpProgress::Started,
            3 => OpProgress::DoneWith { digest: d.u64() },
            1 => OpProgress::Done,
            _ => OpProgress::Decided(d.outcome()),
        };
        let record = |d: &mut Self| OpRecord {
            tag: Tag(d.u64()),
            seq: Seq(d.u64()),
            descriptor: d.maybe(Self::descriptor),
            progress: progress(d),
            signature: d.signature(),
        };
        Resume {
            join: self.join(),
            incarnation: Incarnation(self.u64()),
            previous: self.maybe(|d| Incarnation(d.u64())),
            received: self.u64(),
            seniority: self.u64(),
            epochs: self.list(limits::EPOCHS_IN_RESUME_MAX, |d| EpochRecord {
                description: d.description(),
                opened: d.bool(),
                signature: d.signature(),
                ops: d.list(7, record),
            }),
            rounds: self.rounds(),
            last_pending: self.bool(),
            synced: self.maybe(|d| Revision(d.u64())),
            attributes: self.attributes(),
            voter: VoterRecord { promised: Term(self.u64()), charter: self.charter() },
            charter_signature: self.signature(),
            chains: self.list(limits::CHAINS_IN_RESUME_MAX, |d| {
                let certificate = |d: &mut Self| d.list(40, |d| d.u32() as u8);
                CertificateChain(d.list(limits::CERTIFICATES_IN_CHAIN_MAX, certificate))
            }),
            held_bytes: 0,
        }
    }

    fn signature(&mut self) -> Option<Box<Signature>> {
        let bytes = |d: &mut Self| d.list(limits::SIGNATURE_BYTES_MAX, |d| d.u32() as u8);
        self.maybe(|d| Box::new(Signature { signer: d.peer(), bytes: bytes(d) }))
    }

    fn charter(&mut self) -> Charter {
        Charter {
            term: Term(self.u64()),
            version: self.u64(),
            electorates: self.list(limits::ELECTORATES_MAX, |d| Electorate {
                members: d.list(9, Self::peer),
                active: d.u32() as u16,
            }),
        }
    }

    fn request(&mut self) -> Request {
        let strategies = [SyncStrategy::EnforcePopular, SyncStrategy::ReceiveOnly, SyncStrategy::SendOnly];
        let is_beside = self.bool();
        let kind = if is_beside { Request::SyncBeside } else { Request::Sync };
        match self.below(4) {
            0 => Request::UpdateTopology,
            1 => Request::ArePeersPending,
            2 => Request::OptimizeTopology,
            _ => kind(SyncOffer {
                revision: Revision(self.u64()),
                strategy: self.one_of(&strategies),
                entries: self.list(20, |d| StateEntry {
                    key: d.text(limits::STATE_KEY_BYTES_MAX),
                    dtype: d.one_of(DType::ALL),
                    count: d.u64(),
                    allow_content_inequality: d.bool(),
                    hash: d.u128(),
                }),
            }),
        }
    }

    fn ballot(&mut self) -> Ballot {
        match self.below(6) {
            5 => Ballot::Corrupted { from: self.peer() },
            0 => Ballot::Done { digest: self.maybe(Self::u64) },
            1 => Ballot::Differs { from: self.peer() },
            2 => Ballot::LinkBroken { with: self.peer() },
            3 => Ballot::Unable,
            _ => Ballot::TimedOut,
        }
    }

    fn named(&mut self) -> PeerName {
        PeerName { peer: self.peer(), name: self.text(limits::NAME_BYTES_MAX) }
    }

    fn waiting(&mut self) -> WaitingPeer {
        WaitingPeer { who: self.named(), call: self.text(300) }
    }

    fn path(&mut self) -> Path {
        Path { round_trip_us: self.u32(), kib_per_s: self.u32() }
    }

    fn throughput(&mut self) -> Throughput {
        Throughput { up_kib_per_s: self.u32(), down_kib_per_s: self.u32() }
    }

    /// Of any size, also of one that fits no world.
    fn network(&mut self) -> Option<Box<Network>> {
        self.maybe(|d| {
            Box::new(Network {
                paths: d.list(limits::MESH_WORLD_MAX * limits::MESH_WORLD_MAX, Self::path),
                throughput: d.list(limits::MESH_WORLD_MAX, Self::throughput),
            })
        })
    }

    fn outcome(&mut self) -> Outcome {
        if self.bool() {
            Outcome::Committed { network: self.network() }
        } else {
            Outcome::Aborted(self.cause())
        }
    }

    fn cause(&mut self) -> Cause {
        match self.below(9) {
            7 => Cause::Corrupted { from: self.named(), to: self.named() },
            8 => Cause::ResultsDiffer { who: self.list(6, Self::named), agree: self.u32() },
            0 => Cause::PeerLost { who: self.named(), how: self.departure() },
            1 => Cause::LinkLost { from: self.named(), to: self.named() },
            2 => Cause::Mismatch { one: self.waiting(), other: self.waiting() },
            3 => Cause::Timeout(self.wait()),
            4 => Cause::Unable { who: self.named() },
            5 => Cause::AbortedByUser { who: self.named() },
            _ => Cause::EpochEnded,
        }
    }

    fn departure(&mut self) -> Departure {
        match self.below(10) {
            0 => Departure::Left,
            1 => Departure::ConnectionLost,
            2 => Departure::Silent,
            3 => Departure::Evicted(self.text(100)),
            4 => Departure::Unreachable,
            5 => Departure::Misbehaved(self.violation()),
            6 => Departure::NotEstablished,
            7 => Departure::EvictedBefore,
            8 => Departure::StateRejected(self.rejection()),
            _ => Departure::NotReturned,
        }
    }

    fn joint_call(&mut self) -> JointCall {
        match self.below(3) {
            0 => JointCall::Vote(self.one_of(&Phase::ALL)),
            1 => JointCall::Collective(self.collective(), Tag(self.u64())),
            _ => self.group_call().into(),
        }
    }

    fn group_call(&mut self) -> GroupCall {
        let rank = Rank(self.u32() as u16);
        let kinds = [
            GroupCallKind::Collective(self.collective()),
            GroupCallKind::Send { to: rank },
            GroupCallKind::Recv { from: rank },
            GroupCallKind::Put { to: rank },
            GroupCallKind::Signal { to: rank },
            GroupCallKind::WaitSignal { from: rank },
            GroupCallKind::CloseWindow,
            GroupCallKind::OnDevice,
        ];
        GroupCall {
            kind: self.one_of(&kinds),
            number: self.u64(),
            tag: self.u32(),
            count: self.u64(),
            dtype: self.one_of(DType::ALL),
        }
    }

    fn wait(&mut self) -> Wait {
        Wait {
            call: self.bool().then(|| self.joint_call()),
            waited_ms: self.u32(),
            missing: self.list(limits::NAMES_IN_ERROR_MAX, |d| MissingPeer {
                who: d.named(),
                waits_in: d.bool().then(|| d.joint_call()),
                waits_ms: d.u32(),
                heard_ms: d.bool().then(|| d.u32()),
                trouble: d.maybe(|d| d.one_of(&[PeerTrouble::Stopped, PeerTrouble::NoAnswer])),
            }),
            begun: self.bool(),
        }
    }

    fn violation(&mut self) -> ProtocolViolation {
        match self.below(4) {
            0 => ProtocolViolation::Numbering,
            1 => {
                let phase = self.one_of(&Phase::ALL);
                ProtocolViolation::Round { phase, voted: self.u64(), completed: self.u64() }
            }
            2 => ProtocolViolation::Sequence { op: self.op(), next: Seq(self.u64()) },
            _ => ProtocolViolation::TooManyOperations,
        }
    }

    fn removal(&mut self) -> Removal {
        match self.below(5) {
            0 => Removal::Departed(self.departure()),
            1 => Removal::Rejected(JoinRejection::RunFull),
            2 => Removal::Disconnected(self.text(200)),
            3 => Removal::Rejected(JoinRejection::Replica(match self.below(5) {
                0 => ReplicaRejection::Ranks(self.u32()),
                1 => ReplicaRejection::RanksDiffer { stated: self.u32(), known: self.u32() },
                2 => ReplicaRejection::GroupTaken(GroupId(self.u32())),
                3 => ReplicaRejection::Complete(self.u32()),
                _ => ReplicaRejection::Admitted,
            })),
            _ => Removal::Rejected(JoinRejection::Misbehaved(self.violation())),
        }
    }

    fn answer(&mut self) -> Answer {
        match self.below(5) {
            0 => Answer::Topology,
            1 => Answer::Pending(self.bool()),
            2 => Answer::Synced(Revision(self.u64())),
            3 => Answer::StateRejected(self.rejection()),
            _ => Answer::Failed(self.cause()),
        }
    }

    fn rejection(&mut self) -> StateRejection {
        match self.below(6) {
            0 => StateRejection::RevisionIncrementViolation {
                offered: Revision(self.u64()),
                next: Revision(self.u64()),
            },
            1 => StateRejection::Layout { key: self.text(limits::STATE_KEY_BYTES_MAX) },
            2 => StateRejection::LostElection { winner: self.named() },
            3 => StateRejection::StrategyConflict { other: self.named() },
            4 => StateRejection::NoHolder { next: Revision(self.u64()), orphaned: self.bool() },
            _ => StateRejection::HoldersLost,
        }
    }

    fn verdict(&mut self) -> SyncVerdict {
        if self.bool() {
            return SyncVerdict::Rejected(self.rejection());
        }
        SyncVerdict::Elected(Assignment {
            revision: Revision(self.u64()),
            fetch: self.list(20, |d| FetchItem { entry: d.u32(), hash: d.u128() }),
            sources: self.list(9, Self::peer),
            fetchers: self.list(9, Self::peer),
        })
    }
}
