//! What peers and the master say to each other on a control connection.

use crate::cause::{Cause, Removal, WaitWarning};
use crate::descriptor::Descriptor;
use crate::epoch::{Attributes, EpochDescription, MissingPair};
use crate::id::{CallId, EpochId, GroupId, Incarnation, OpId, PeerId, Revision, Seq, Tag};
use crate::shared_state::{SyncOffer, SyncVerdict};
use core::fmt;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A message with its place in the session (R7). Number 0 stands outside of the numbering.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Numbered<M> {
    /// Counts the sender's messages of this session from 1.
    pub number: u64,
    /// All of the other side's messages up to this one have arrived.
    pub acknowledged: u64,
    /// What is said.
    pub message: M,
}

/// How many rounds of each run-wide kind a peer has seen the end of. Requests carry these numbers, so
/// that after a restart of the master a peer that missed an answer can still be given it (R8).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RoundNumbers {
    /// Topology updates.
    pub topology: u64,
    /// Votes on whether peers are pending.
    pub pending: u64,
    /// Topology optimisations.
    pub optimise: u64,
    /// Shared-state syncs of the peer's group.
    pub sync: u64,
}

/// A phase that peers vote on together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Phase {
    /// Admit whoever is pending.
    Topology,
    /// Is anyone pending?
    Pending,
    /// Measure, and take a better ring.
    Optimise,
    /// Agree on the shared state.
    Sync,
}

impl Phase {
    /// All phases.
    pub const ALL: [Self; 4] = [Self::Topology, Self::Pending, Self::Optimise, Self::Sync];

    /// Whether all members of the run vote together, or those of one group.
    pub fn is_run_wide(self) -> bool {
        self != Self::Sync
    }

    /// Whether a peer in it makes no other call until it is answered; asking for pending peers is legal beside anything.
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
    /// The count of a phase.
    pub fn of(&self, phase: Phase) -> u64 {
        match phase {
            Phase::Topology => self.topology,
            Phase::Pending => self.pending,
            Phase::Optimise => self.optimise,
            Phase::Sync => self.sync,
        }
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

/// A newcomer introduces itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Join {
    /// The group that it wants to be in.
    pub group: GroupId,
    /// What errors shall call it.
    pub name: String,
    /// Its host.
    pub host: u64,
    /// Its site.
    pub site: u32,
    /// Where it listens. The master's driver puts the address that it sees in place of an unspecified one.
    pub addresses: Vec<SocketAddr>,
}

/// How far an operation has come on one peer, as that peer tells a restarted master.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum OpProgress {
    /// It was started and is not done here.
    Started,
    /// It is done here.
    Done,
    /// Its outcome is known here.
    Decided(Outcome),
}

/// One operation in a [`Resume`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OpRecord {
    /// The tag.
    pub tag: Tag,
    /// The sequence number.
    pub seq: Seq,
    /// What was asked for, where this peer did ask.
    pub descriptor: Option<Descriptor>,
    /// How far it has come.
    pub progress: OpProgress,
}

/// One epoch in a [`Resume`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EpochRecord {
    /// The epoch.
    pub description: EpochDescription,
    /// Whether this peer saw it open.
    pub opened: bool,
    /// Its operations: those undecided, and the outcomes that others may have missed.
    pub ops: Vec<OpRecord>,
}

/// A member returns: to a master that restarted, or on a new connection (R8).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Resume {
    /// As it introduced itself.
    pub join: Join,
    /// The life of the master that it was last a member under.
    pub incarnation: Incarnation,
    /// The life that that one took the run over from, if it did.
    pub previous: Option<Incarnation>,
    /// The last message of that master that it had.
    pub received: u64,
    /// When it joined, among all.
    pub seniority: u64,
    /// The epochs that it knows: the one that is open, and one that is proposed.
    pub epochs: Vec<EpochRecord>,
    /// The rounds that it saw the end of.
    pub rounds: RoundNumbers,
    /// The last answer to a vote on pending peers.
    pub last_pending: bool,
    /// The last revision that it completed a sync of.
    pub synced: Option<Revision>,
    /// The world sizes that it knows.
    pub attributes: Attributes,
}

/// What a peer votes for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Admit whoever is pending.
    UpdateTopology,
    /// Is anyone pending?
    ArePeersPending,
    /// Measure, and take a better ring.
    OptimizeTopology,
    /// Agree on the shared state.
    Sync(SyncOffer),
}

impl Request {
    /// The phase that the request is a vote in.
    pub fn phase(&self) -> Phase {
        match self {
            Self::UpdateTopology => Phase::Topology,
            Self::ArePeersPending => Phase::Pending,
            Self::OptimizeTopology => Phase::Optimise,
            Self::Sync(_) => Phase::Sync,
        }
    }
}

/// How an operation went on one peer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ballot {
    /// The result is there. The digest of it is optional.
    Done {
        /// A hash of the result, where peers compare them.
        digest: Option<u64>,
    },
    /// A peer's frames do not fit what was asked for here.
    Differs {
        /// That peer.
        from: PeerId,
    },
    /// A link broke while the operation needed it, and frames may be lost.
    LinkBroken {
        /// The other end.
        with: PeerId,
    },
    /// This peer can't run it.
    Unable,
    /// The deadline of this peer's call has passed.
    TimedOut,
}

/// Which way a link makes no progress.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Direction {
    /// From the reporting peer.
    Outgoing,
    /// To the reporting peer.
    Incoming,
    /// Neither way.
    Both,
}

/// From a peer to the master.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToMaster {
    /// First message of a newcomer.
    Join(Join),
    /// First message of a member that returns.
    Resume(Box<Resume>),
    /// A vote in a phase.
    Vote {
        /// The user's call, to be named in the answer.
        call: CallId,
        /// Which round of that phase.
        round: u64,
        /// How long the caller is willing to wait, 0 for the default.
        deadline_ms: u32,
        /// What for.
        request: Request,
    },
    /// An operation was started and was not done at once (one way).
    Started {
        /// The operation.
        op: OpId,
        /// What was asked for.
        descriptor: Descriptor,
    },
    /// An operation ended here.
    OpVote {
        /// The operation.
        op: OpId,
        /// What was asked for.
        descriptor: Descriptor,
        /// How it ended.
        ballot: Ballot,
    },
    /// This peer has a link with every neighbour of a proposed epoch, except for these.
    EpochReady {
        /// The epoch.
        epoch: EpochId,
        /// The members that could not be reached.
        unreachable: Vec<PeerId>,
    },
    /// A link with a live member makes no progress (R9).
    LinkTrouble {
        /// The epoch that the link serves.
        epoch: EpochId,
        /// The other end.
        peer: PeerId,
        /// Which way.
        direction: Direction,
    },
    /// What a probe measured, in bytes per second; none where the pair can't talk.
    Probed {
        /// The probe.
        probe: u64,
        /// From the prober to the other.
        forward: Option<u64>,
        /// From the other to the prober.
        backward: Option<u64>,
    },
    /// The fetches that a sync asked for have ended.
    SyncDone {
        /// The round.
        round: u64,
        /// Whether the elected content is here now.
        complete: bool,
    },
    /// Alive, and these neighbours were heard of since the last time (R9).
    Heartbeat {
        /// The neighbours.
        heard: Vec<PeerId>,
    },
    /// Goodbye.
    Leave,
}

/// How an operation ended, for everyone (R6).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// The result holds.
    Committed,
    /// What was overwritten is put back.
    Aborted(Cause),
}

/// The answer to a vote.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The topology is up to date, or optimised.
    Topology,
    /// Whether anyone is pending.
    Pending(bool),
    /// The sync is complete at this revision.
    Synced(Revision),
    /// The sync rejects this peer's state, or could not complete it.
    StateRejected(crate::cause::StateRejection),
    /// The vote failed, and does not count as a round.
    Failed(Cause),
}

/// From the master to a peer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToPeer {
    /// The newcomer is known and waits for acceptance.
    Registered {
        /// The life of this master.
        incarnation: Incarnation,
        /// The newcomer's place among all who ever joined.
        seniority: u64,
    },
    /// The connection is taken for the session's; what was missed follows.
    Rebound {
        /// The last message of the peer that the master had.
        received: u64,
    },
    /// The master has restarted and waits for the others; keep what you have to say.
    Restoring {
        /// The life of this master.
        incarnation: Incarnation,
    },
    /// The run goes on; what is undecided may be said again.
    Restored {
        /// The life of this master.
        incarnation: Incarnation,
        /// The rounds that someone saw the end of.
        rounds: RoundNumbers,
        /// The last answer to a vote on pending peers.
        last_pending: bool,
    },
    /// The peer was accepted before the members of an earlier life returned, and waits again.
    Demoted,
    /// An epoch is proposed: reach your neighbours.
    EpochProposed {
        /// The epoch.
        description: Box<EpochDescription>,
        /// Why the one before it ended, for operations of that which the master never heard of.
        ended: Cause,
        /// The world sizes at this time, for those whose operations end by it.
        attributes: Attributes,
    },
    /// All members are ready.
    EpochOpened {
        /// The epoch.
        epoch: EpochId,
        /// The pairs without a link.
        missing: Vec<MissingPair>,
        /// The world sizes from now on.
        attributes: Attributes,
        /// The rounds so far, for newcomers.
        rounds: RoundNumbers,
    },
    /// An operation was decided, whether this peer took part or not.
    Decided {
        /// The operation.
        op: OpId,
        /// How.
        outcome: Outcome,
        /// The world sizes from now on.
        attributes: Attributes,
    },
    /// The answer to a vote.
    Answer {
        /// The call that voted.
        call: CallId,
        /// The phase and, unless the answer is a failure, the round that it ends.
        phase: Phase,
        /// The round.
        round: u64,
        /// The answer.
        answer: Answer,
        /// The world sizes from now on.
        attributes: Attributes,
    },
    /// Measure the way to another peer and back.
    Probe {
        /// The probe.
        probe: u64,
        /// The other end.
        peer: PeerId,
        /// Where it listens.
        addresses: Vec<SocketAddr>,
        /// The epoch whose membership the connection has to prove.
        epoch: EpochId,
        /// With this key.
        key: [u8; 32],
    },
    /// The election is over: fetch, or serve.
    SyncElected {
        /// The round.
        round: u64,
        /// What to do.
        verdict: SyncVerdict,
    },
    /// The peer is no longer part of the run, for this reason.
    Removed {
        /// The reason.
        reason: Removal,
    },
    /// The master is alive.
    Heartbeat,
    /// A call of this peer's waits for others, for its log.
    StillWaiting(WaitWarning),
}
