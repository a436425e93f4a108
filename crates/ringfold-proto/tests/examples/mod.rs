//! An example of every variant of every message. A new variant does not compile until it has an example here.

use ringfold_proto::cause::{
    Cause, Departure, JoinRejection, JointCall, MissingPeer, PeerName, PeerTrouble, ProtocolViolation,
    Removal, ReplicaRejection, StateRejection, Wait, WaitingPeer,
};
use ringfold_proto::charter::{Charter, Electorate, VoterRecord};
use ringfold_proto::claim::{CertificateChain, Signature};
use ringfold_proto::coordinator::{MasterMessage, MasterStatus};
use ringfold_proto::cores::{CoreShare, CpuQuota};
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::descriptor::{Collective, Descriptor, Weight};
use ringfold_proto::doctor::{DialBack, DoctorAnswer, DoctorRequest, Finding, Judgement};
use ringfold_proto::dtype::DType;
use ringfold_proto::epoch::{Attributes, EpochDescription, Member, MissingPair, RelayAddress, ResumedOp};
use ringfold_proto::group_call::{GroupCall, GroupCallKind};
use ringfold_proto::handshake::CertificateProblem;
use ringfold_proto::hello::{
    ConnectionRejection, Features, Hello, Nonce, Proof, Purpose, Status, Verdict, VersionRange, Welcome,
};
use ringfold_proto::id::{
    CallId, EpochId, GroupId, Incarnation, OpId, PeerId, Rank, ReplicaId, Revision, RunId, Seq, Tag, Term,
};
use ringfold_proto::integrity::Integrity;
use ringfold_proto::link_message::{DeviceStage, LinkMessage, RankActivity};
use ringfold_proto::message::{
    Answer, Ballot, Direction, EpochRecord, Join, Numbered, OpProgress, OpRecord, Outcome, Phase, Replica,
    Request, Resume, RoundNumbers, ToMaster, ToPeer,
};
use ringfold_proto::network::{MeasuredLink, Measurement, Network, Path, Throughput};
use ringfold_proto::observe::{ObserverAnswer, ObserverRequest};
use ringfold_proto::quantization::{Quantization, QuantizationAlgorithm};
use ringfold_proto::reduce_op::ReduceOp;
use ringfold_proto::shared_state::{Assignment, FetchItem, StateEntry, SyncOffer, SyncStrategy, SyncVerdict};
use ringfold_proto::tuning::{Algorithm, TransportCosts, Tuning};

/// Examples with their names: `name, pattern => example`, one line per variant.
macro_rules! examples {
    ($(#[$doc:meta])* $function:ident: $type:ty { $($name:literal, $pattern:pat => $example:expr;)* }) => {
        $(#[$doc])*
        pub fn $function() -> Vec<(&'static str, $type)> {
            fn name(value: &$type) -> &'static str {
                match value { $($pattern => $name,)* }
            }
            let examples: Vec<(&'static str, $type)> = vec![$(($name, $example)),*];
            for (expected, example) in &examples {
                assert_eq!(name(example), *expected, "the example is of another variant");
            }
            examples
        }
    };
}

const A: PeerId = PeerId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
const B: PeerId = PeerId(0xb);
const EPOCH: EpochId = EpochId { group: GroupId(3), incarnation: Incarnation(0xfeed_beef), counter: 300 };
const OP: OpId = OpId { epoch: EPOCH, tag: Tag(5), seq: Seq(1000) };
const CALL: CallId = CallId(17);
const ATTRIBUTES: Attributes =
    Attributes { global_world: 4, group_world: 2, groups: 2, largest_group_world: 2 };
const REPLICA: Replica = Replica { id: ReplicaId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10), ranks: 200 };
const ROUNDS: RoundNumbers = RoundNumbers { topology: 1, pending: 2, optimise: 3, sync: 400 };

/// Every message to the master, numbered.
pub fn to_master() -> Vec<(&'static str, Numbered<ToMaster>)> {
    numbered(to_master_messages())
}

/// Every message to a peer, numbered.
pub fn to_peer() -> Vec<(&'static str, Numbered<ToPeer>)> {
    numbered(to_peer_messages())
}

fn numbered<M>(messages: Vec<(&'static str, M)>) -> Vec<(&'static str, Numbered<M>)> {
    let number = |(name, message)| (name, Numbered { number: 200, acknowledged: 7, message });
    messages.into_iter().map(number).collect()
}

examples! { to_master_messages: ToMaster {
    "join", ToMaster::Join(_) => ToMaster::Join(join());
    "resume", ToMaster::Resume(_) => ToMaster::Resume(Box::new(resume()));
    "vote", ToMaster::Vote { .. } =>
        ToMaster::Vote { call: CALL, round: 4, deadline_ms: 30_000, request: Request::Sync(offer()) };
    "started", ToMaster::Started { .. } => ToMaster::Started { op: OP, descriptor: descriptor() };
    "op-vote", ToMaster::OpVote { .. } => ToMaster::OpVote {
        op: OP,
        descriptor: Descriptor::all_reduce(9, DType::F32, ReduceOp::Sum),
        ballot: Ballot::Done { digest: None },
    };
    "epoch-ready", ToMaster::EpochReady { .. } =>
        ToMaster::EpochReady { epoch: EPOCH, unreachable: vec![B] };
    "link-trouble", ToMaster::LinkTrouble { .. } =>
        ToMaster::LinkTrouble { epoch: EPOCH, peer: B, direction: Direction::Incoming };
    "probed", ToMaster::Probed { .. } =>
        ToMaster::Probed { probe: 8, forward: Some(1 << 30), backward: None };
    "sync-done", ToMaster::SyncDone { .. } => ToMaster::SyncDone { round: 4, complete: true };
    "heartbeat", ToMaster::Heartbeat { .. } => ToMaster::Heartbeat { heard: vec![A, B], ended: vec![B] };
    "leave", ToMaster::Leave => ToMaster::Leave;
    "measured", ToMaster::Measured(_) => ToMaster::Measured(Measurement {
        links: vec![MeasuredLink { peer: B, path: network().paths[1] }],
        throughput: network().throughput[0],
    });
    "voter", ToMaster::Voter { .. } =>
        ToMaster::Voter { promised: Term(9), charter: (Term(6), 300), beat: 70 };
    "fetching", ToMaster::Fetching { .. } => ToMaster::Fetching { done_bytes: 1 << 20, all_bytes: 3 << 30 };
    "join-rank", ToMaster::JoinRank { .. } => ToMaster::JoinRank { replica: REPLICA, join: join() };
    "resume-rank", ToMaster::ResumeRank { .. } =>
        ToMaster::ResumeRank { replica: REPLICA, resume: Box::new(resume()) };
    "suspended", ToMaster::Suspended { .. } =>
        ToMaster::Suspended { op: OP, descriptor: descriptor(), held: vec![(A, 0), (B, 300)] };
    "examined", ToMaster::Examined { .. } => ToMaster::Examined { examination: 300, findings: findings() };
} }

examples! {
/// Every message between masters.
between_masters: MasterMessage {
    "status", MasterMessage::Status(_) => MasterMessage::Status(Box::new(MasterStatus {
        from: 2,
        to: 1,
        masters: 3,
        differs: true,
        voter: voter(),
        blank: true,
        leads: Some(70),
        follows: Some(1),
        echo: (Term(6), 69),
        vouches: true,
    }));
    "ask", MasterMessage::Ask { .. } => MasterMessage::Ask { from: 2, term: Term(9), for_blank: true };
} }

examples! {
    /// Every request of an observer.
    observer_requests: ObserverRequest {
    "status", ObserverRequest::Status => ObserverRequest::Status;
    "evict", ObserverRequest::Evict { .. } =>
        ObserverRequest::Evict { peer: "replica-3".into(), reason: "its disk is full".into() };
    "drain", ObserverRequest::Drain { .. } => ObserverRequest::Drain { on: true };
} }

examples! {
    /// Every answer to an observer.
    observer_answers: ObserverAnswer {
    "status", ObserverAnswer::Status(_) => ObserverAnswer::Status("{}".into());
    "done", ObserverAnswer::Done(_) => ObserverAnswer::Done("replica-3 is evicted".into());
    "refused", ObserverAnswer::Refused(_) => ObserverAnswer::Refused("no peer is called \"x\"".into());
} }

examples! { to_peer_messages: ToPeer {
    "registered", ToPeer::Registered { .. } =>
        ToPeer::Registered { incarnation: Incarnation(0xfeed_beef), seniority: 12 };
    "rebound", ToPeer::Rebound { .. } => ToPeer::Rebound { received: 199 };
    "restoring", ToPeer::Restoring { .. } => ToPeer::Restoring { incarnation: Incarnation(1) };
    "restored", ToPeer::Restored { .. } =>
        ToPeer::Restored { incarnation: Incarnation(2), rounds: ROUNDS, last_pending: true };
    "demoted", ToPeer::Demoted => ToPeer::Demoted;
    "epoch-proposed", ToPeer::EpochProposed { .. } =>
        {
            let (description, ended) = (Box::new(description()), Cause::EpochEnded);
            ToPeer::EpochProposed { description, ended, attributes: ATTRIBUTES, signature: signature(1) }
        };
    "epoch-opened", ToPeer::EpochOpened { .. } => ToPeer::EpochOpened {
        epoch: EPOCH,
        missing: vec![MissingPair(Rank(0), Rank(1))],
        network: Some(Box::new(network())),
        resumed: vec![resumed()],
        attributes: ATTRIBUTES,
        rounds: ROUNDS,
        signature: signature(2),
    };
    "decided", ToPeer::Decided { .. } => ToPeer::Decided {
        op: OP,
        outcome: Outcome::Aborted(Cause::PeerLost { who: named(B), how: Departure::Silent }),
        attributes: ATTRIBUTES,
        signature: signature(3),
    };
    "answer", ToPeer::Answer { .. } => ToPeer::Answer {
        call: CALL,
        phase: Phase::Sync,
        round: 4,
        answer: Answer::Synced(Revision(6)),
        attributes: ATTRIBUTES,
    };
    "probe", ToPeer::Probe { .. } =>
        ToPeer::Probe { probe: 8, peer: B, addresses: join().addresses, epoch: EPOCH, key: [0xab; 32] };
    "sync-elected", ToPeer::SyncElected { .. } =>
        ToPeer::SyncElected { round: 4, verdict: SyncVerdict::Elected(assignment()) };
    "removed", ToPeer::Removed { .. } => ToPeer::Removed { reason: Removal::Rejected(JoinRejection::RunFull) };
    "heartbeat", ToPeer::Heartbeat => ToPeer::Heartbeat;
    "lead", ToPeer::Lead { .. } =>
        {
            let charter = Some(Box::new(voter().charter));
            ToPeer::Lead { term: Term(6), beat: 70, charter, signature: signature(4) }
        };
    "candidate", ToPeer::Candidate { .. } => ToPeer::Candidate { term: Term(9) };
    "redirect", ToPeer::Redirect { .. } =>
        ToPeer::Redirect { addresses: vec!["192.0.2.9:48148".parse().unwrap()] };
    "report", ToPeer::Report => ToPeer::Report;
    "still-waiting", ToPeer::StillWaiting(_) => ToPeer::StillWaiting(Wait {
        call: Some(JointCall::Vote(Phase::Sync)),
        waited_ms: 42_000,
        begun: false,
        missing: vec![MissingPeer {
            who: named(B),
            waits_in: Some(JointCall::Collective(Collective::AllReduce, Tag(5))),
            waits_ms: 41_500,
            heard_ms: Some(300),
            trouble: None,
        }],
    });
    "examine", ToPeer::Examine { .. } => ToPeer::Examine { examination: 300 };
} }

examples! {
/// Every question of a doctor.
doctor_requests: DoctorRequest {
    "about", DoctorRequest::About { .. } => DoctorRequest::About { instance: 1 << 40, name: "a:811".into() };
    "echo", DoctorRequest::Echo { .. } => DoctorRequest::Echo { answer_bytes: 300, padding: vec![0, 200] };
    "time", DoctorRequest::Time => DoctorRequest::Time;
    "dial-back", DoctorRequest::DialBack { .. } => DoctorRequest::DialBack { port: 48_150, instance: 1 << 40 };
    "bandwidth", DoctorRequest::Bandwidth { .. } => DoctorRequest::Bandwidth { back: true };
    "datagram", DoctorRequest::Datagram { .. } => DoctorRequest::Datagram { content: [0xcd; 16] };
    "finish", DoctorRequest::Finish => DoctorRequest::Finish;
    "examine-all", DoctorRequest::ExamineAll => DoctorRequest::ExamineAll;
} }

examples! {
/// Every answer to a doctor.
doctor_answers: DoctorAnswer {
    "about", DoctorAnswer::About { .. } => DoctorAnswer::About {
        instance: 1 << 41,
        name: "b:702".into(),
        release: "0.1.0".into(),
        observed: "192.0.2.9:48148".parse().unwrap(),
    };
    "echo", DoctorAnswer::Echo { .. } => DoctorAnswer::Echo { padding: vec![0, 200] };
    "time", DoctorAnswer::Time { .. } => DoctorAnswer::Time { unix_us: 1_700_000_000_000_000 };
    "dialed-back", DoctorAnswer::DialedBack(_) =>
        DoctorAnswer::DialedBack(DialBack::Failed { why: "no answer".into() });
    "ready", DoctorAnswer::Ready => DoctorAnswer::Ready;
    "busy", DoctorAnswer::Busy => DoctorAnswer::Busy;
    "unsupported", DoctorAnswer::Unsupported => DoctorAnswer::Unsupported;
    "examined", DoctorAnswer::Examined { .. } =>
        DoctorAnswer::Examined { peer: "c:655".into(), findings: findings(), unanswered: Some("silent".into()) };
} }

examples! { dial_backs: DialBack {
    "reached", DialBack::Reached => DialBack::Reached;
    "stranger", DialBack::Stranger => DialBack::Stranger;
    "failed", DialBack::Failed { .. } => DialBack::Failed { why: "refused".into() };
    "busy", DialBack::Busy => DialBack::Busy;
} }

fn findings() -> Vec<Finding> {
    vec![Finding::ok("host.clock", "good"), Finding::fail("net.port", "closed", "open it")]
}

examples! {
    /// Every message on a data connection.
    link: LinkMessage {
    "grant", LinkMessage::Grant { .. } => LinkMessage::Grant { op: OP, slots: vec![0, 127, 128, 16_383] };
    "want", LinkMessage::Want { .. } => LinkMessage::Want { op: OP };
    "return", LinkMessage::Return { .. } => LinkMessage::Return { epoch: EPOCH, slots: vec![1, 2] };
    "fenced", LinkMessage::Fenced { .. } => LinkMessage::Fenced { op: OP };
    "mismatch", LinkMessage::Mismatch { .. } => LinkMessage::Mismatch { op: OP };
    "ping", LinkMessage::Ping => LinkMessage::Ping;
    "abort", LinkMessage::Abort { .. } =>
        LinkMessage::Abort { epoch: EPOCH, cause: Cause::Timeout(Wait::for_peers([named(B)])) };
    "goodbye", LinkMessage::Goodbye { .. } => LinkMessage::Goodbye { epoch: EPOCH };
    "note", LinkMessage::Note { .. } => LinkMessage::Note { epoch: EPOCH, topic: 300, text: "meet here".into() };
    "device", LinkMessage::Device { .. } =>
        LinkMessage::Device { op: OP, stage: DeviceStage::Offered { memory: vec![1, 2, 254] } };
    "inquiry", LinkMessage::Inquiry { .. } => LinkMessage::Inquiry { epoch: EPOCH };
    "activity", LinkMessage::Activity { .. } => LinkMessage::Activity {
        epoch: EPOCH,
        activity: RankActivity { waits_in: Some((receive(), 9_200)), launched: 300 },
    };
} }

fn receive() -> GroupCall {
    let kind = GroupCallKind::Recv { from: Rank(3) };
    GroupCall { kind, number: 412, tag: 7, count: 1024, dtype: DType::F32 }
}

examples! { causes: Cause {
    "peer-lost", Cause::PeerLost { .. } => Cause::PeerLost { who: named(B), how: Departure::Left };
    "link-lost", Cause::LinkLost { .. } => Cause::LinkLost { from: named(A), to: named(B) };
    "mismatch", Cause::Mismatch { .. } => Cause::Mismatch { one: waiting(A), other: waiting(B) };
    "timeout", Cause::Timeout(_) => Cause::Timeout(Wait {
        call: Some(receive().into()),
        waited_ms: 600_000,
        begun: true,
        missing: vec![
            MissingPeer { trouble: Some(PeerTrouble::NoAnswer), ..MissingPeer::unknown(named(A)) },
            MissingPeer::unknown(named(B)),
        ],
    });
    "unable", Cause::Unable { .. } => Cause::Unable { who: named(A) };
    "epoch-ended", Cause::EpochEnded => Cause::EpochEnded;
    "given-up", Cause::AbortedByUser { .. } => Cause::AbortedByUser { who: named(A) };
    "corrupted", Cause::Corrupted { .. } => Cause::Corrupted { from: named(A), to: named(B) };
    "results-differ", Cause::ResultsDiffer { .. } =>
        Cause::ResultsDiffer { who: vec![named(B)], agree: 2 };
} }

examples! { departures: Departure {
    "left", Departure::Left => Departure::Left;
    "connection-lost", Departure::ConnectionLost => Departure::ConnectionLost;
    "silent", Departure::Silent => Departure::Silent;
    "kicked", Departure::Evicted(_) => Departure::Evicted("by hand".into());
    "unreachable", Departure::Unreachable => Departure::Unreachable;
    "misbehaved", Departure::Misbehaved(_) => Departure::Misbehaved(ProtocolViolation::Numbering);
    "not-returned", Departure::NotReturned => Departure::NotReturned;
    "died", Departure::Died => Departure::Died;
    "not-established", Departure::NotEstablished => Departure::NotEstablished;
    "left-behind", Departure::EvictedBefore => Departure::EvictedBefore;
    "state-rejected", Departure::StateRejected(_) => Departure::StateRejected(StateRejection::HoldersLost);
} }

examples! { violations: ProtocolViolation {
    "numbering", ProtocolViolation::Numbering => ProtocolViolation::Numbering;
    "nothing-acknowledged", ProtocolViolation::NothingAcknowledged => ProtocolViolation::NothingAcknowledged;
    "round", ProtocolViolation::Round { .. } =>
        ProtocolViolation::Round { phase: Phase::Sync, voted: 9, completed: 4 };
    "sequence", ProtocolViolation::Sequence { .. } => ProtocolViolation::Sequence { op: OP, next: Seq(2) };
    "too-many-operations", ProtocolViolation::TooManyOperations => ProtocolViolation::TooManyOperations;
    "epoch", ProtocolViolation::Epoch => ProtocolViolation::Epoch;
    "counters", ProtocolViolation::Counters => ProtocolViolation::Counters;
    "premature-commit", ProtocolViolation::PrematureCommit => ProtocolViolation::PrematureCommit;
    "assignment", ProtocolViolation::Assignment => ProtocolViolation::Assignment;
} }

examples! { refusals: JoinRejection {
    "already-member", JoinRejection::AlreadyMember => JoinRejection::AlreadyMember;
    "run-full", JoinRejection::RunFull => JoinRejection::RunFull;
    "too-many-groups", JoinRejection::TooManyGroups => JoinRejection::TooManyGroups;
    "too-many-addresses", JoinRejection::TooManyAddresses => JoinRejection::TooManyAddresses;
    "was-removed", JoinRejection::WasRemoved => JoinRejection::WasRemoved;
    "too-late", JoinRejection::TooLate => JoinRejection::TooLate;
    "misbehaved", JoinRejection::Misbehaved(_) => JoinRejection::Misbehaved(ProtocolViolation::Counters);
    "draining", JoinRejection::Draining => JoinRejection::Draining;
    "replica", JoinRejection::Replica(_) => JoinRejection::Replica(ReplicaRejection::Admitted);
} }

examples! { replica_refusals: ReplicaRejection {
    "ranks", ReplicaRejection::Ranks(_) => ReplicaRejection::Ranks(0);
    "ranks-differ", ReplicaRejection::RanksDiffer { .. } =>
        ReplicaRejection::RanksDiffer { stated: 3, known: 2 };
    "group-taken", ReplicaRejection::GroupTaken(_) => ReplicaRejection::GroupTaken(GroupId(1));
    "complete", ReplicaRejection::Complete(_) => ReplicaRejection::Complete(2);
    "admitted", ReplicaRejection::Admitted => ReplicaRejection::Admitted;
} }

examples! { removals: Removal {
    "departed", Removal::Departed(_) => Removal::Departed(Departure::Silent);
    "refused", Removal::Rejected(_) => Removal::Rejected(JoinRejection::RunFull);
    "disconnected", Removal::Disconnected(_) => Removal::Disconnected("bad frame".into());
} }

examples! { rejections: StateRejection {
    "revision", StateRejection::RevisionIncrementViolation { .. } =>
        StateRejection::RevisionIncrementViolation { offered: Revision(9), next: Revision(7) };
    "layout", StateRejection::Layout { .. } => StateRejection::Layout { key: "weights".into() };
    "lost-election", StateRejection::LostElection { .. } => StateRejection::LostElection { winner: named(A) };
    "strategy", StateRejection::StrategyConflict { .. } => StateRejection::StrategyConflict { other: named(B) };
    "nobody-has-it", StateRejection::NoHolder { .. } =>
        StateRejection::NoHolder { next: Revision(7), orphaned: true };
    "holders-gone", StateRejection::HoldersLost => StateRejection::HoldersLost;
} }

examples! { answers: Answer {
    "topology", Answer::Topology => Answer::Topology;
    "pending", Answer::Pending(_) => Answer::Pending(true);
    "synced", Answer::Synced(_) => Answer::Synced(Revision(6));
    "state-rejected", Answer::StateRejected(_) => Answer::StateRejected(StateRejection::HoldersLost);
    "failed", Answer::Failed(_) => Answer::Failed(Cause::EpochEnded);
} }

examples! { requests: Request {
    "update-topology", Request::UpdateTopology => Request::UpdateTopology;
    "are-peers-pending", Request::ArePeersPending => Request::ArePeersPending;
    "optimize-topology", Request::OptimizeTopology => Request::OptimizeTopology;
    "sync", Request::Sync(_) => Request::Sync(offer());
    "sync-beside", Request::SyncBeside(_) => Request::SyncBeside(offer());
} }

examples! { ballots: Ballot {
    "done", Ballot::Done { .. } => Ballot::Done { digest: Some(0xd16e57) };
    "differs", Ballot::Differs { .. } => Ballot::Differs { from: B };
    "link-broken", Ballot::LinkBroken { .. } => Ballot::LinkBroken { with: B };
    "unable", Ballot::Unable => Ballot::Unable;
    "timed-out", Ballot::TimedOut => Ballot::TimedOut;
    "corrupted", Ballot::Corrupted { .. } => Ballot::Corrupted { from: B };
} }

examples! { outcomes: Outcome {
    "committed", Outcome::Committed { .. } => Outcome::Committed { network: Some(Box::new(network())) };
    "aborted", Outcome::Aborted(_) => Outcome::Aborted(Cause::EpochEnded);
} }

examples! { progresses: OpProgress {
    "started", OpProgress::Started => OpProgress::Started;
    "done", OpProgress::Done => OpProgress::Done;
    "decided", OpProgress::Decided(_) => OpProgress::Decided(Outcome::COMMITTED);
    "done-with", OpProgress::DoneWith { .. } => OpProgress::DoneWith { digest: 0xd16e57 };
} }

examples! { verdicts: SyncVerdict {
    "rejected", SyncVerdict::Rejected(_) => SyncVerdict::Rejected(StateRejection::HoldersLost);
    "elected", SyncVerdict::Elected(_) => SyncVerdict::Elected(assignment());
} }

examples! { directions: Direction {
    "outgoing", Direction::Outgoing => Direction::Outgoing;
    "incoming", Direction::Incoming => Direction::Incoming;
    "both", Direction::Both => Direction::Both;
} }

examples! { phases: Phase {
    "topology", Phase::Topology => Phase::Topology;
    "pending", Phase::Pending => Phase::Pending;
    "optimise", Phase::Optimise => Phase::Optimise;
    "sync", Phase::Sync => Phase::Sync;
} }

examples! { collectives: Collective {
    "all-reduce", Collective::AllReduce => Collective::AllReduce;
    "reduce-scatter", Collective::ReduceScatter => Collective::ReduceScatter;
    "all-gather", Collective::AllGather => Collective::AllGather;
    "broadcast", Collective::Broadcast { .. } => Collective::Broadcast { root: Rank(300) };
    "barrier", Collective::Barrier => Collective::Barrier;
    "reduce", Collective::Reduce { .. } => Collective::Reduce { root: Rank(1) };
    "gather", Collective::Gather { .. } => Collective::Gather { root: Rank(1) };
    "scatter", Collective::Scatter { .. } => Collective::Scatter { root: Rank(1) };
    "all-to-all", Collective::AllToAll => Collective::AllToAll;
    "transfer", Collective::Transfer { .. } => Collective::Transfer { from: Rank(0), to: Rank(1) };
} }

examples! { algorithms: Algorithm {
    "ring", Algorithm::Ring => Algorithm::Ring;
    "direct", Algorithm::Direct => Algorithm::Direct;
    "one-shot", Algorithm::OneShot => Algorithm::OneShot;
    "halving", Algorithm::Halving => Algorithm::Halving;
    "trees", Algorithm::Trees => Algorithm::Trees;
    "doubling", Algorithm::Doubling => Algorithm::Doubling;
} }

examples! { quantizations: QuantizationAlgorithm {
    "min-max", QuantizationAlgorithm::MinMax => QuantizationAlgorithm::MinMax;
    "zero-point-scale", QuantizationAlgorithm::ZeroPointScale => QuantizationAlgorithm::ZeroPointScale;
} }

examples! { strategies: SyncStrategy {
    "enforce-popular", SyncStrategy::EnforcePopular => SyncStrategy::EnforcePopular;
    "receive-only", SyncStrategy::ReceiveOnly => SyncStrategy::ReceiveOnly;
    "send-only", SyncStrategy::SendOnly => SyncStrategy::SendOnly;
} }

examples! { statuses: Status {
    "ok", Status::Ok => Status::Ok;
    "version", Status::Version => Status::Version;
    "wrong-run", Status::WrongRun => Status::WrongRun;
    "secret-missing", Status::SecretMissing => Status::SecretMissing;
    "secret-unexpected", Status::SecretUnexpected => Status::SecretUnexpected;
    "bad-proof", Status::BadProof => Status::BadProof;
    "unknown-epoch", Status::Rejected(ConnectionRejection::UnknownEpoch) => Status::Rejected(ConnectionRejection::UnknownEpoch);
    "not-a-member", Status::Rejected(ConnectionRejection::NotAMember) => Status::Rejected(ConnectionRejection::NotAMember);
    "wrong-purpose", Status::Rejected(ConnectionRejection::WrongPurpose) => Status::Rejected(ConnectionRejection::WrongPurpose);
    "itself", Status::Rejected(ConnectionRejection::Itself) => Status::Rejected(ConnectionRejection::Itself);
    "full", Status::Rejected(ConnectionRejection::Full) => Status::Rejected(ConnectionRejection::Full);
    "closing", Status::Rejected(ConnectionRejection::Closing) => Status::Rejected(ConnectionRejection::Closing);
    "plaintext", Status::Rejected(ConnectionRejection::Plaintext) => Status::Rejected(ConnectionRejection::Plaintext);
    "wrong-keys", Status::Rejected(ConnectionRejection::WrongKeys) => Status::Rejected(ConnectionRejection::WrongKeys);
    "certificate-missing", Status::Rejected(ConnectionRejection::Certificate(CertificateProblem::Missing)) => Status::Rejected(ConnectionRejection::Certificate(CertificateProblem::Missing));
    "certificate-wrong-ca", Status::Rejected(ConnectionRejection::Certificate(CertificateProblem::WrongCa)) => Status::Rejected(ConnectionRejection::Certificate(CertificateProblem::WrongCa));
    "certificate-expired", Status::Rejected(ConnectionRejection::Certificate(CertificateProblem::Expired)) => Status::Rejected(ConnectionRejection::Certificate(CertificateProblem::Expired));
    "certificate-not-yet-valid", Status::Rejected(ConnectionRejection::Certificate(CertificateProblem::NotYetValid)) => Status::Rejected(ConnectionRejection::Certificate(CertificateProblem::NotYetValid));
    "certificate-revoked", Status::Rejected(ConnectionRejection::Certificate(CertificateProblem::Revoked)) => Status::Rejected(ConnectionRejection::Certificate(CertificateProblem::Revoked));
    "certificate-wrong-role", Status::Rejected(ConnectionRejection::Certificate(CertificateProblem::WrongRole)) => Status::Rejected(ConnectionRejection::Certificate(CertificateProblem::WrongRole));
    "certificate-invalid", Status::Rejected(ConnectionRejection::Certificate(CertificateProblem::Invalid)) => Status::Rejected(ConnectionRejection::Certificate(CertificateProblem::Invalid));
    "no-admin", Status::Rejected(ConnectionRejection::NoAdmin) => Status::Rejected(ConnectionRejection::NoAdmin);
    "other", Status::Rejected(ConnectionRejection::Other(_)) => Status::Rejected(ConnectionRejection::Other(200));
} }

examples! { purposes: Purpose {
    "control", Purpose::Control => Purpose::Control;
    "data", Purpose::Data => Purpose::Data;
    "state", Purpose::State => Purpose::State;
    "probe", Purpose::Probe => Purpose::Probe;
    "window", Purpose::Window => Purpose::Window;
    "relay", Purpose::Relay => Purpose::Relay;
    "masters", Purpose::Masters => Purpose::Masters;
    "doctor", Purpose::Doctor => Purpose::Doctor;
    "observe", Purpose::Observe => Purpose::Observe;
    "admin", Purpose::Admin => Purpose::Admin;
} }

/// The encoding of every enum variant, by name.
pub fn vocabulary() -> Vec<(String, Vec<u8>)> {
    macro_rules! words {
        ($($list:ident: $examples:expr;)*) => {
            [$($examples.iter().map(|(name, word)| {
                let bytes = postcard::to_allocvec(word).expect("words can be encoded");
                (format!(concat!(stringify!($list), "/{}"), name), bytes)
            }).collect::<Vec<_>>()),*].concat()
        };
    }
    let dtypes: Vec<_> = DType::ALL.iter().map(|d| (d.name(), d)).collect();
    let judgements: Vec<_> = Judgement::ALL.iter().map(|j| (j.as_str(), j)).collect();
    let ops: Vec<_> = ReduceOp::ALL.iter().map(|op| (op.name(), op)).collect();
    words! {
        dtype: dtypes;
        op: ops;
        collective: collectives();
        quantization: quantizations();
        dial_back: dial_backs();
        judgement: judgements;
        algorithm: algorithms();
        phase: phases();
        request: requests();
        ballot: ballots();
        direction: directions();
        strategy: strategies();
        answer: answers();
        outcome: outcomes();
        progress: progresses();
        verdict: verdicts();
        cause: causes();
        departure: departures();
        rejection: rejections();
        violation: violations();
        refusal: refusals();
        replica_refusal: replica_refusals();
        removal: removals();
    }
}

/// Data headers with all fields set, and with none.
pub fn data_headers() -> Vec<(&'static str, DataHeader)> {
    let full = DataHeader {
        op: OP,
        fingerprint: 0x1122_3344_5566_7788,
        chunk: 9,
        offset: 1 << 40,
        length: 65_536,
        slot: 513,
        eager: true,
        checksum: Some(0xc0ff_ee00),
    };
    let bare = DataHeader { op: OpId::default(), length: 0, eager: false, checksum: None, ..full };
    vec![("full", full), ("bare", bare)]
}

/// The blocks of the handshake, with every status and purpose.
pub fn blocks() -> Vec<(String, Vec<u8>)> {
    let hello = Hello {
        versions: VersionRange { min: 1, max: 0x0203 },
        purpose: Purpose::Control,
        has_secret: true,
        features: Features(0x8000_0000_0000_0001),
        run: RunId(0x1111_2222_3333_4444_5555_6666_7777_8888),
        session: A,
        epoch: EPOCH,
        nonce: Nonce(core::array::from_fn(|i| i as u8)),
    };
    let welcome = Welcome {
        version: 1,
        status: Status::Ok,
        has_secret: true,
        versions: VersionRange { min: 1, max: 2 },
        features: Features(1),
        run: hello.run,
        session: B,
        nonce: Nonce([0xee; 32]),
    };
    let hellos = purposes().into_iter().map(|(name, purpose)| {
        (format!("hello/{name}"), Hello { purpose, has_secret: name != "probe", ..hello }.encode().to_vec())
    });
    let welcomes = statuses().into_iter().map(|(name, status)| {
        (format!("welcome/{name}"), Welcome { status, has_secret: name == "ok", ..welcome }.encode().to_vec())
    });
    let verdicts = statuses().into_iter().map(|(name, status)| {
        (format!("verdict/{name}"), Verdict { status, proof: [0x5a; 32] }.encode().to_vec())
    });
    let proof = ("proof".to_owned(), Proof([0xa5; 32]).0.to_vec());
    hellos.chain(welcomes).chain([proof]).chain(verdicts).collect()
}

fn named(peer: PeerId) -> PeerName {
    PeerName { peer, name: format!("host:{}", peer.0 & 0xff) }
}

fn waiting(peer: PeerId) -> WaitingPeer {
    WaitingPeer { who: named(peer), call: "all-reduce (sum of 4 x float32)".into() }
}

fn cores() -> CoreShare {
    CoreShare { runs: vec![(0, 8), (300, 1)], quota: Some(CpuQuota { cgroup: 77, cores: 2 }) }
}

fn join() -> Join {
    Join {
        group: GroupId(3),
        name: "Zoë:42".into(),
        host: 0xcafe,
        site: 2,
        cores: cores(),
        addresses: ["192.0.2.1:4000", "[2001:db8::1]:65535"].map(|a| a.parse().unwrap()).to_vec(),
        relays: true,
    }
}

fn descriptor() -> Descriptor {
    Descriptor {
        collective: Collective::Broadcast { root: Rank(1) },
        count: 1 << 33,
        dtype: DType::BF16,
        op: ReduceOp::Avg,
        quantization: Some(Quantization {
            algorithm: QuantizationAlgorithm::ZeroPointScale,
            dtype: DType::I8,
        }),
        weight: Weight::new(0.25),
        reproducible: true,
        resume: true,
        integrity: Integrity::NONE,
        priority: 200,
        deadline_ms: 60_000,
    }
}

fn network() -> Network {
    let path = |round_trip_us, kib_per_s| Path { round_trip_us, kib_per_s };
    let total = |up_kib_per_s, down_kib_per_s| Throughput { up_kib_per_s, down_kib_per_s };
    Network {
        paths: vec![path(0, 0), path(80_000, 24_000), path(80_100, 6000), path(0, 0)],
        throughput: vec![total(24_000, 6000), total(0, 24_000)],
    }
}

fn resumed() -> ResumedOp {
    ResumedOp { op: OP, held: vec![0, 300, 7, 0] }
}

fn description() -> EpochDescription {
    let member = |peer, name: &str| Member {
        peer,
        name: name.into(),
        host: 1,
        site: 0,
        cores: cores(),
        addresses: join().addresses,
    };
    EpochDescription {
        id: EPOCH,
        members: [member(A, "a:1"), member(B, "b:2")].into(),
        ring: vec![Rank(1), Rank(0)],
        mesh: true,
        missing: vec![MissingPair(Rank(0), Rank(1))],
        network: Some(Box::new(network())),
        resumed: vec![resumed()],
        tuning: Tuning {
            chunk_bytes: 65_536,
            window_slots: 8,
            eager_slots: 4,
            board_slot_bytes: 131_072,
            board_depth: 4,
            board_one_shot_bytes_max: 16_384,
            tcp: TransportCosts {
                hop_ns: 20_000,
                frame_ns: 3000,
                sent_ns_per_kib: 230,
                reduced_ns_per_kib: 100,
                beside_ring_percent: 125,
            },
            shared: TransportCosts {
                hop_ns: 2000,
                frame_ns: 1000,
                sent_ns_per_kib: 100,
                reduced_ns_per_kib: 60,
                beside_ring_percent: 100,
            },
            forced: Some(Algorithm::Direct),
        },
        key: [0x6b; 32],
        relays: vec![RelayAddress { peer: B, address: "192.0.2.9:48149".parse().unwrap() }],
    }
}

fn resume() -> Resume {
    let record = |seq, descriptor, progress, signature| {
        let (tag, seq) = (Tag(5), Seq(seq));
        OpRecord { tag, seq, descriptor, progress, signature }
    };
    let aborted = Outcome::Aborted(Cause::Timeout(Wait::for_peers([named(B)])));
    Resume {
        join: join(),
        incarnation: Incarnation(0xfeed_beef),
        previous: Some(Incarnation(1)),
        received: 77,
        seniority: 12,
        epochs: vec![EpochRecord {
            description: description(),
            opened: true,
            signature: signature(2),
            ops: vec![
                record(1, None, OpProgress::Decided(aborted), signature(3)),
                record(2, Some(descriptor()), OpProgress::Done, None),
            ],
        }],
        rounds: ROUNDS,
        last_pending: false,
        synced: Some(Revision(5)),
        attributes: ATTRIBUTES,
        voter: voter(),
        charter_signature: signature(4),
        chains: vec![CertificateChain(vec![vec![0x30, 0x82], vec![0x30]]), CertificateChain::default()],
        held_bytes: 0,
    }
}

fn signature(byte: u8) -> Option<Box<Signature>> {
    Some(Box::new(Signature { signer: A, bytes: vec![0x30, byte, 0xff] }))
}

fn voter() -> VoterRecord {
    let electorates = vec![Electorate::new([A, B], 1), Electorate::new([A], 2)];
    VoterRecord { promised: Term(9), charter: Charter { term: Term(6), version: 300, electorates } }
}

fn offer() -> SyncOffer {
    let entry = StateEntry {
        key: "layers.0.weight".into(),
        dtype: DType::F16,
        count: 4096,
        allow_content_inequality: false,
        hash: u128::MAX,
    };
    SyncOffer { revision: Revision(6), strategy: SyncStrategy::SendOnly, entries: vec![entry] }
}

fn assignment() -> Assignment {
    Assignment {
        revision: Revision(6),
        fetch: vec![FetchItem { entry: 3, hash: 0xabcdef }],
        sources: vec![A],
        fetchers: vec![B],
    }
}
