//! The messages of control connections.
#![allow(missing_docs)] // Fields are named for what they hold.

use crate::bounded;
use crate::cause::{Cause, Removal, Wait};
use crate::charter::{Charter, VoterRecord};
use crate::claim::{CertificateChain, Signature};
use crate::cores::CoreShare;
use crate::descriptor::Descriptor;
use crate::doctor::Finding;
use crate::epoch::{Attributes, EpochDescription, MissingPair, ResumedOp};
use crate::id::{CallId, EpochId, GroupId, Incarnation, OpId, PeerId, ReplicaId, Revision, Seq, Tag, Term};
use crate::limits;
use crate::network::{Measurement, Network};
use crate::shared_state::{SyncOffer, SyncVerdict};
use core::fmt;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A message with its number in the session (R7). Number 0 means unnumbered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Numbered<M> {
    /// Counts the sender's messages of this session from 1.
    pub number: u64,
    /// All messages of the other end up to this number have arrived.
    pub acknowledged: u64,
    /// The message.
    pub message: M,
}

/// The completed rounds of each phase. Votes carry these numbers, so that a peer that missed an answer gets it after a
/// restart of the master (R8).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RoundNumbers {
    pub topology: u64,
    pub pending: u64,
    pub optimise: u64,
    pub sync: u64,
}

/// A phase that peers vote on together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Phase {
    /// Admit pending peers.
    Topology,
    /// Ask whether peers are pending.
    Pending,
    /// Measure bandwidths and adopt a better ring.
    Optimise,
    /// Agree on the shared state.
    Sync,
}

impl Phase {
    pub const ALL: [Self; 4] = [Self::Topology, Self::Pending, Self::Optimise, Self::Sync];

    /// The phases in which all members of the run vote together.
    pub const RUN_WIDE: [Self; 3] = [Self::Topology, Self::Pending, Self::Optimise];

    /// Whether all members of the run vote together, not only those of a group.
    pub fn is_run_wide(self) -> bool {
        self != Self::Sync
    }

    /// Whether a peer in this phase can vote in no other such phase.
    pub fn is_exclusive(self) -> bool {
        self != Self::Pending
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Topology => "update_topology",
            Self::Pending => "are_peers_pending",
            Self::Optimise => "optimize_topology",
            Self::Sync => "sync_shared_state",
        })
    }
}

impl RoundNumbers {
    pub fn of(mut self, phase: Phase) -> u64 {
        *self.of_mut(phase)
    }

    /// The count of a phase, to be changed.
    pub fn of_mut(&mut self, phase: Phase) -> &mut u64 {
        match phase {
            Phase::Topology => &mut self.topology,
            Phase::Pending => &mut self.pending,
            Phase::Optimise => &mut self.optimise,
            Phase::Sync => &mut self.sync,
        }
    }
}

/// What a peer states when it joins.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Join {
    pub group: GroupId,
    pub name: String,
    pub host: u64,
    pub site: u32,
    /// The cores of its host that it may use.
    pub cores: CoreShare,
    /// Its listening addresses. The master's driver replaces unspecified ones by the address that it sees.
    pub addresses: Vec<SocketAddr>,
    /// Whether it relays the traffic of members that cannot reach each other.
    pub relays: bool,
}

/// The replica that a peer is a rank of. All its ranks are admitted together, each in another group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Replica {
    pub id: ReplicaId,
    /// The number of its ranks.
    pub ranks: u32,
}

/// The progress of an operation on one peer, for a restarted master.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum OpProgress {
    /// Started and not done.
    Started,
    /// Done.
    Done,
    /// The outcome is known.
    Decided(Outcome),
    /// Done, with the digest of the result; with [`Features::INTEGRITY`](crate::hello::Features::INTEGRITY).
    DoneWith { digest: u64 },
}

impl OpProgress {
    /// The vote of a peer that has the result: its digest, if the operation compares results.
    pub fn done(&self) -> Option<Option<u64>> {
        match self {
            Self::Done => Some(None),
            Self::DoneWith { digest } => Some(Some(*digest)),
            Self::Started | Self::Decided(_) => None,
        }
    }
}

/// One operation in a [`Resume`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OpRecord {
    pub tag: Tag,
    pub seq: Seq,
    /// The arguments, if this peer called it.
    pub descriptor: Option<Descriptor>,
    pub progress: OpProgress,
    /// A master's, over the outcome, if it is known and the run has certificates.
    pub signature: Option<Box<Signature>>,
}

/// One epoch in a [`Resume`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EpochRecord {
    pub description: EpochDescription,
    /// Whether this peer saw it open.
    pub opened: bool,
    /// A master's, if the run has certificates: that it was opened, or proposed.
    pub signature: Option<Box<Signature>>,
    /// Its undecided operations, and the outcomes that others may have missed.
    #[serde(deserialize_with = "bounded::list::<{ limits::OPS_IN_RESUME_MAX }, _, _>")]
    pub ops: Vec<OpRecord>,
}

/// A registered peer returns to a restarted master, or on a new connection (R8).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Resume {
    pub join: Join,
    /// The incarnation of the master that it was last a member under.
    pub incarnation: Incarnation,
    /// The incarnation that that one took the run over from, if any.
    pub previous: Option<Incarnation>,
    /// The number of the last message received from that master.
    pub received: u64,
    /// Its seniority among all peers that ever joined.
    pub seniority: u64,
    /// The open epoch if the peer was accepted, and the proposed one if any.
    pub epochs: Vec<EpochRecord>,
    pub rounds: RoundNumbers,
    pub last_pending: bool,
    /// The revision of its last completed sync.
    pub synced: Option<Revision>,
    pub attributes: Attributes,
    /// Its vote on who leads, in a run with several masters.
    pub voter: VoterRecord,
    /// A master's, over the charter, if the run has certificates.
    pub charter_signature: Option<Box<Signature>>,
    /// The certificates of the masters that signed. The driver fills them in.
    pub chains: Vec<CertificateChain>,
    /// Bytes of memory that it takes. The driver that received it fills them in.
    #[serde(skip)]
    pub held_bytes: usize,
}

/// A vote in a phase.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Admit pending peers.
    UpdateTopology,
    /// Ask whether peers are pending.
    ArePeersPending,
    /// Measure bandwidths and adopt a better ring.
    OptimizeTopology,
    /// Agree on the shared state.
    Sync(SyncOffer),
    /// The same, while collectives may run; with [`Features::SYNC_BESIDE`](crate::hello::Features::SYNC_BESIDE).
    SyncBeside(SyncOffer),
}

impl Request {
    pub fn phase(&self) -> Phase {
        match self {
            Self::UpdateTopology => Phase::Topology,
            Self::ArePeersPending => Phase::Pending,
            Self::OptimizeTopology => Phase::Optimise,
            Self::Sync(_) | Self::SyncBeside(_) => Phase::Sync,
        }
    }

    /// Whether the peer starts no collective until it is answered.
    pub fn excludes_collectives(&self) -> bool {
        self.phase().is_exclusive() && !matches!(self, Self::SyncBeside(_))
    }

    /// What it offers, if it is a sync.
    pub fn offer(&self) -> Option<&SyncOffer> {
        match self {
            Self::Sync(offer) | Self::SyncBeside(offer) => Some(offer),
            Self::UpdateTopology | Self::ArePeersPending | Self::OptimizeTopology => None,
        }
    }
}

/// A vote on an operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ballot {
    /// The result is complete here; with its digest, if the operation compares results.
    Done { digest: Option<u64> },
    /// The frames of a peer do not match this peer's arguments.
    Differs { from: PeerId },
    /// A link broke while the operation needed it, and frames may be lost.
    LinkBroken { with: PeerId },
    /// This peer cannot run the operation.
    Unable,
    /// The deadline of this peer's call has passed.
    TimedOut,
    /// A payload of a peer does not match its checksum; with
    /// [`Features::INTEGRITY`](crate::hello::Features::INTEGRITY).
    Corrupted { from: PeerId },
}

/// The direction in which a link makes no progress.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Direction {
    /// From the reporting peer.
    Outgoing,
    /// To the reporting peer.
    Incoming,
    /// Both directions.
    Both,
}

/// A message from a peer to the master.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToMaster {
    /// First message of a new peer.
    Join(Join),
    /// First message of a member that returns.
    Resume(Box<Resume>),
    /// A vote in a round of a phase. The answer repeats `call`. `deadline_ms` 0 is the default.
    Vote { call: CallId, round: u64, deadline_ms: u32, request: Request },
    /// An operation was started and is not done after [`crate::timing::Timing::announce_after`].
    Started { op: OpId, descriptor: Descriptor },
    /// An operation ended on this peer.
    OpVote { op: OpId, descriptor: Descriptor, ballot: Ballot },
    /// This peer has links with all neighbours of a proposed epoch, except for these.
    EpochReady { epoch: EpochId, unreachable: Vec<PeerId> },
    /// A link with a live member makes no progress (R9).
    LinkTrouble { epoch: EpochId, peer: PeerId, direction: Direction },
    /// The result of a probe, in bytes per second from the prober and back; `None` if the pair cannot connect.
    Probed { probe: u64, forward: Option<u64>, backward: Option<u64> },
    /// The fetches of a sync have ended; whether the elected content is complete here.
    SyncDone { round: u64, complete: bool },
    /// The peer is alive, and heard from these neighbours since its last heartbeat (R9). Its links with the peers in
    /// `ended` broke, and are not up again.
    Heartbeat { heard: Vec<PeerId>, ended: Vec<PeerId> },
    /// The peer leaves.
    Leave,
    /// What this peer has measured on its links.
    Measured(Measurement),
    /// This peer supports no master of an earlier term than `promised`, knows the charter of this number, and has heard this
    /// beat of its master.
    Voter { promised: Term, charter: (Term, u64), beat: u64 },
    /// First message of a new peer that is a rank of a replica; with
    /// [`Features::REPLICAS`](crate::hello::Features::REPLICAS).
    JoinRank { replica: Replica, join: Join },
    /// First message of a returning member that is a rank of a replica.
    ResumeRank { replica: Replica, resume: Box<Resume> },
    /// How much of the shared state this peer has fetched in a sync, for the status of the run.
    Fetching { done_bytes: u64, all_bytes: u64 },
    /// What the peer has found, for an examination of this number.
    Examined { examination: u64, findings: Vec<Finding> },
    /// A resumable operation was aborted because a member was lost, and this peer waits to resume it. It holds so many chunks of
    /// the contributions of each member.
    Suspended { op: OpId, descriptor: Descriptor, held: Vec<(PeerId, u32)> },
}

impl ToMaster {
    /// What the peer states, if it joins or returns.
    pub fn join_mut(&mut self) -> Option<&mut Join> {
        match self {
            Self::Join(join) | Self::JoinRank { join, .. } => Some(join),
            Self::Resume(resume) | Self::ResumeRank { resume, .. } => Some(&mut resume.join),
            _ => None,
        }
    }

    /// What a returning peer reports.
    pub fn resume(&self) -> Option<&Resume> {
        match self {
            Self::Resume(resume) | Self::ResumeRank { resume, .. } => Some(resume),
            _ => None,
        }
    }

    /// What a returning peer reports, to be changed.
    pub fn resume_mut(&mut self) -> Option<&mut Resume> {
        match self {
            Self::Resume(resume) | Self::ResumeRank { resume, .. } => Some(resume),
            _ => None,
        }
    }
}

/// How an operation ended, for all members (R6).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// The result is valid on all members. From the next operation of this tag on, plans are chosen for this network, if
    /// there is one here.
    Committed { network: Option<Box<Network>> },
    /// In-place buffers are restored.
    Aborted(Cause),
}

impl Outcome {
    /// A commit after which plans are chosen as before.
    pub const COMMITTED: Self = Self::Committed { network: None };
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The topology is updated, or optimised.
    Topology,
    /// Whether peers are pending.
    Pending(bool),
    /// The sync is complete at this revision.
    Synced(Revision),
    /// This peer's state was rejected, or could not be completed.
    StateRejected(crate::cause::StateRejection),
    Failed(Cause),
}

/// A message from the master to a peer. In a run with certificates the master signs what the peer may have to report to another
/// master ([`crate::claim`]).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToPeer {
    /// The new peer is registered, and waits to be accepted.
    Registered { incarnation: Incarnation, seniority: u64 },
    /// The session continues on this connection; messages after `received` must be repeated.
    Rebound { received: u64 },
    /// The master has restarted and waits for the other members; send nothing.
    Restoring { incarnation: Incarnation },
    /// The run continues; repeat what is undecided.
    Restored { incarnation: Incarnation, rounds: RoundNumbers, last_pending: bool },
    /// The peer was accepted before members of an earlier incarnation returned; it waits again.
    Demoted,
    /// An epoch is proposed: connect to your neighbours. `ended` is why the epoch before it ended, for operations that the
    /// master never heard of.
    EpochProposed {
        description: Box<EpochDescription>,
        ended: Cause,
        attributes: Attributes,
        signature: Option<Box<Signature>>,
    },
    /// All members of the epoch are ready. `missing` are the pairs without a link.
    EpochOpened {
        epoch: EpochId,
        missing: Vec<MissingPair>,
        network: Option<Box<Network>>,
        /// Operations of earlier epochs that are resumed.
        resumed: Vec<ResumedOp>,
        attributes: Attributes,
        rounds: RoundNumbers,
        /// Over the whole description of the epoch.
        signature: Option<Box<Signature>>,
    },
    /// An operation was decided, whether this peer took part or not.
    Decided { op: OpId, outcome: Outcome, attributes: Attributes, signature: Option<Box<Signature>> },
    /// The answer to a vote, and the round that it ends; round 0 if it failed.
    Answer { call: CallId, phase: Phase, round: u64, answer: Answer, attributes: Attributes },
    /// Measure the link to a peer, on a connection authenticated by the epoch's key.
    Probe { probe: u64, peer: PeerId, addresses: Vec<SocketAddr>, epoch: EpochId, key: [u8; 32] },
    /// The election of a sync is over: fetch or serve.
    SyncElected { round: u64, verdict: SyncVerdict },
    /// The peer is not, or no longer, part of the run.
    Removed { reason: Removal },
    /// The master is alive.
    Heartbeat,
    /// A call of this peer waits for others, for its log.
    StillWaiting(Wait),
    /// This master leads in a run with several masters. The charter is here until the peer has confirmed it.
    Lead { term: Term, beat: u64, charter: Option<Box<Charter>>, signature: Option<Box<Signature>> },
    /// This master asks for the peer's vote.
    Candidate { term: Term },
    /// Another master leads, or should lead: connect to it.
    Redirect { addresses: Vec<SocketAddr> },
    /// Examine this host and the ways to the master and the neighbours; with [`Features::EXAMINE`](crate::hello::Features::EXAMINE).
    Examine { examination: u64 },
    /// This master leads from now on, and has not kept what the peer reported when it returned: report it again.
    Report,
}
