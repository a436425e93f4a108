//! Why operations, votes and memberships failed, with the peers involved.
#![allow(missing_docs)] // Fields are named for what they hold.

use crate::descriptor::Collective;
use crate::group_call::{GroupCall, GroupCallKind};
use crate::id::{GroupId, OpId, PeerId, Revision, Seq, Tag};
use crate::limits;
use crate::message::Phase;
use crate::text::Printable;
use core::fmt;
use serde::{Deserialize, Serialize};

/// A peer's id, and the name for errors and logs (host:pid unless the user chose one).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct PeerName {
    pub peer: PeerId,
    pub name: String,
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// How a membership ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Departure {
    #[error("left")]
    Left,
    #[error("lost its connection to the master")]
    ConnectionLost,
    /// Neither the master nor a neighbour received anything from it for too long.
    #[error("was silent for too long")]
    Silent,
    /// An operator evicted it for this reason.
    #[error("was evicted: {}", Printable(.0))]
    Evicted(String),
    /// No ring through all members is left, and it is the newest of the members that block one.
    #[error("was evicted: its neighbours cannot reach it, and no other ring is left")]
    Unreachable,
    #[error("violated the protocol: {0}")]
    Misbehaved(ProtocolViolation),
    #[error("did not return after the master restarted")]
    NotReturned,
    /// Its connections broke before it had left.
    #[error("died, or its connection broke")]
    Died,
    #[error("was evicted: it did not reach its neighbours in time")]
    NotEstablished,
    /// An earlier incarnation of the master had evicted it.
    #[error("was evicted: the run continued without it")]
    EvictedBefore,
    /// Its shared state was rejected, and it made no call since, although others waited for it.
    #[error("was evicted: its shared state was rejected ({0}), and it made no call since")]
    StateRejected(StateRejection),
}

impl Departure {
    /// The stable name of its kind.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::ConnectionLost => "connection_lost",
            Self::Silent => "silent",
            Self::Evicted(_) => "evicted",
            Self::Unreachable => "unreachable",
            Self::Misbehaved(_) => "misbehaved",
            Self::NotReturned => "not_returned",
            Self::Died => "died",
            Self::NotEstablished => "not_established",
            Self::EvictedBefore => "evicted_before",
            Self::StateRejected(_) => "state_rejected",
        }
    }
}

/// How one side of a control connection violated the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum ProtocolViolation {
    #[error("message numbers out of sequence")]
    Numbering,
    #[error("too many messages without an acknowledgement")]
    NothingAcknowledged,
    /// A vote in a round that is not the next one.
    #[error("vote in round {voted} of {phase}, but {completed} rounds are complete")]
    Round { phase: Phase, voted: u64, completed: u64 },
    /// An operation that is not the next one of its tag.
    #[error("{op} is out of sequence, {next} is next")]
    Sequence { op: OpId, next: Seq },
    #[error("more than {max} operations in flight", max = limits::OPS_IN_FLIGHT_MAX)]
    TooManyOperations,
    #[error("invalid description of an epoch")]
    Epoch,
    #[error("invalid counters: no run can reach them")]
    Counters,
    #[error("commit of an operation that is not done")]
    PrematureCommit,
    #[error("assignment of an unknown entry of the shared state")]
    Assignment,
}

/// Why the master rejects a peer that joins or returns.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum JoinRejection {
    #[error("a peer with this id is already a member")]
    AlreadyMember,
    #[error("the run is full: it has as many peers as its master accepts")]
    RunFull,
    #[error("the run has had {max} groups, which is the maximum", max = limits::GROUPS_MAX)]
    TooManyGroups,
    #[error("it listens on more than {max} addresses", max = limits::ADDRESSES_MAX)]
    TooManyAddresses,
    /// It returns after its eviction.
    #[error("it was evicted before")]
    WasRemoved,
    #[error("the run continued without it after the master restarted")]
    TooLate,
    #[error("violated the protocol: {0}")]
    Misbehaved(ProtocolViolation),
    #[error("invalid replica: {0}")]
    Replica(ReplicaRejection),
    /// An operator drains the run.
    #[error("the run is being drained: it accepts no new peers (ringfold drain --off ends that)")]
    Draining,
}

/// Why the master rejects a rank of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum ReplicaRejection {
    #[error("invalid number of ranks {0}: must be 1..={max}", max = limits::REPLICA_RANKS_MAX)]
    Ranks(u32),
    /// Another rank has stated another number of ranks.
    #[error("this rank states {stated} ranks, another one {known}")]
    RanksDiffer { stated: u32, known: u32 },
    #[error("another rank of it is in {0} already")]
    GroupTaken(GroupId),
    #[error("it has all its {0} ranks already")]
    Complete(u32),
    /// Its ranks can only join together.
    #[error("it was admitted before, or was lost; start all its ranks again, with a new id")]
    Admitted,
}

/// Why a peer is not, or no longer, part of the run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Removal {
    /// It was a member, or waited to become one.
    #[error("{0}")]
    Departed(Departure),
    /// It was not admitted.
    #[error("{0}")]
    Rejected(JoinRejection),
    /// The master's driver closed its connection: an invalid message, or a limit was exceeded.
    #[error("{}", Printable(.0))]
    Disconnected(String),
}

/// How a peer lost its master. Not sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MasterLoss {
    /// No connection, or none that passed the handshake.
    #[error("could not reach the master at {0}")]
    Unreachable(String),
    /// Not accepted within the deadline of connect.
    #[error("the master did not accept this peer in time")]
    NotAccepted,
    /// What the driver knows of each master.
    #[error("the master is lost: it did not return in time ({0})")]
    NotReturned(String),
    /// Masters were connected to before this peer was registered, but none was active. What the driver knows of each.
    #[error("no active master answered in time ({0})")]
    NoneActive(String),
    /// A call got no answer within its deadline and the grace time after it.
    #[error("the master is lost: it did not answer in time")]
    NoAnswer,
    #[error("the master is lost: it violated the protocol: {0}")]
    Misbehaved(ProtocolViolation),
}

/// A peer and the call that it waits in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WaitingPeer {
    pub who: PeerName,
    /// The call, as text.
    pub call: String,
}

impl fmt::Display for WaitingPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} waits in {}", self.who, Printable(&self.call))
    }
}

/// A call that peers make together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JointCall {
    /// A vote.
    Vote(Phase),
    /// A collective with this tag.
    Collective(Collective, Tag),
    /// A call of a group of fixed ranks.
    Group(GroupCall),
}

/// The name of the call, as in programs.
impl fmt::Display for JointCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vote(phase) => phase.fmt(f),
            Self::Collective(collective, tag) => write!(f, "{} {tag}", collective.call()),
            Self::Group(call) => call.fmt(f),
        }
    }
}

impl From<GroupCall> for JointCall {
    fn from(call: GroupCall) -> Self {
        Self::Group(call)
    }
}

/// A peer that others wait for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MissingPeer {
    pub who: PeerName,
    /// The call that it waits in, if any.
    pub waits_in: Option<JointCall>,
    /// How long it has waited in it; 0 if that is not known.
    pub waits_ms: u32,
    /// How long ago it was last heard, by the master or a neighbour; `None` if that is not known.
    pub heard_ms: Option<u32>,
    /// Why it cannot do anything, as far as that is known.
    pub trouble: Option<PeerTrouble>,
}

/// Why a peer that others wait for cannot do anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PeerTrouble {
    /// Its process is stopped, by a signal or a debugger. Only a process on its host can tell.
    Stopped,
    /// It was asked what it does, and did not answer.
    NoAnswer,
}

impl MissingPeer {
    /// A peer of which nothing else is known.
    pub fn unknown(who: PeerName) -> Self {
        Self { who, waits_in: None, waits_ms: 0, heard_ms: None, trouble: None }
    }

    /// When it was heard, and what it does; none if nothing is known.
    pub fn state(&self) -> Option<String> {
        if self.heard_ms.is_none() && self.waits_in.is_none() && self.trouble.is_none() {
            return None;
        }
        let heard = self.heard_ms.map(|ms| format!("last heard {} s ago: ", tenths(ms)));
        let since = Some(self.waits_ms).filter(|ms| *ms > 0).map(|ms| format!(" for {} s", tenths(ms)));
        let does = match (self.trouble, self.waits_in) {
            (Some(PeerTrouble::Stopped), _) => "its process is stopped".into(),
            (Some(PeerTrouble::NoAnswer), _) => "it does not answer".into(),
            // A peer that is known to wait is alive, whenever it was heard.
            (None, Some(call)) => {
                let who = if heard.is_some() { "alive," } else { "it" };
                format!("{who} waits in {call}{}", since.unwrap_or_default())
            }
            (None, None) if self.heard_ms.is_some_and(|ms| ms < limits::HEARD_LATELY_MS) => {
                "alive, computing".into()
            }
            (None, None) => "silent".into(),
        };
        Some(heard.unwrap_or_default() + &does)
    }
}

/// Milliseconds as seconds with one digit.
fn tenths(ms: u32) -> String {
    format!("{}.{}", ms / 1000, ms % 1000 / 100)
}

/// A call that waits for peers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Wait {
    /// `None` if it is not known.
    pub call: Option<JointCall>,
    /// How long it has waited; 0 if that is not known.
    pub waited_ms: u32,
    /// The first few live peers that have not made the call, or are not done with it; none if the master did not answer.
    pub missing: Vec<MissingPeer>,
    /// Whether they have made the call, and are not done.
    pub begun: bool,
}

impl Wait {
    /// A wait of which only the peers are known.
    pub fn for_peers(peers: impl IntoIterator<Item = PeerName>) -> Self {
        let missing = peers.into_iter().map(MissingPeer::unknown).collect();
        Self { call: None, waited_ms: 0, missing, begun: false }
    }

    /// A wait for the master.
    pub fn for_master() -> Self {
        Self::for_peers([])
    }

    /// Whether a missing peer waits in another call. The peers may then wait for each other until a deadline.
    pub fn is_mutual(&self) -> bool {
        self.missing.iter().any(|missing| missing.waits_in.is_some())
    }

    /// How long it has waited, as in ` for 42 s`; empty if that is not known.
    pub fn duration(&self) -> String {
        match self.waited_ms {
            0 => String::new(),
            short @ ..1000 => format!(" for {} s", tenths(short)),
            short @ ..10_000 => format!(" for {} s", tenths(short).trim_end_matches(".0")),
            long => format!(" for {} s", (u64::from(long) + 500) / 1000),
        }
    }

    /// The peers that it waits for.
    pub fn names(&self) -> impl Iterator<Item = &PeerName> {
        self.missing.iter().map(|missing| &missing.who)
    }
}

/// One sentence: whom it waits for, since when, for what, and when they were last heard.
impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.names().map(|who| who.name.as_str()).collect();
        match (names.is_empty(), self.call) {
            // A group has no master.
            (true, Some(JointCall::Group(call))) => write!(f, "waiting in {call}")?,
            (true, _) => write!(f, "waiting for the master")?,
            (false, _) => write!(f, "waiting for {}", names.join(", "))?,
        }
        f.write_str(&self.duration())?;
        if let Some(call) = self.call.filter(|_| !names.is_empty()) {
            let they = if names.len() == 1 { "it has" } else { "they have" };
            let what = match call {
                JointCall::Group(GroupCall { kind: GroupCallKind::Put { .. }, .. }) => "taken",
                _ if self.begun => "finished",
                _ => "called",
            };
            write!(f, ": {they} not {what} {call}")?;
        }
        let known = self.missing.iter().filter_map(|missing| {
            let who = if names.len() > 1 { format!("{}: ", missing.who) } else { String::new() };
            missing.state().map(|state| who + &state)
        });
        let known: Vec<_> = known.collect();
        if known.is_empty() { Ok(()) } else { write!(f, " ({})", known.join("; ")) }
    }
}

/// Why an operation or a vote failed. The master sends it to the peers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Cause {
    /// A member departed while its part was still missing.
    #[error("{who} {how}")]
    PeerLost { who: PeerName, how: Departure },
    /// Two live members cannot reach each other; the ring is being rebuilt without that edge.
    #[error("{from} and {to} cannot reach each other")]
    LinkLost { from: PeerName, to: PeerName },
    /// Two peers made different calls.
    #[error("{one}, but {other}")]
    Mismatch { one: WaitingPeer, other: WaitingPeer },
    /// Live peers did not take part in time, or the master did not answer.
    #[error("timed out {0}")]
    Timeout(Wait),
    #[error("{who} cannot run the operation")]
    Unable { who: PeerName },
    #[error("the membership changed")]
    EpochEnded,
    #[error("{who} aborted the group")]
    AbortedByUser { who: PeerName },
    /// A payload from one peer to another one does not match its checksum.
    #[error("corrupted payload from {from} to {to}: its checksum does not match")]
    Corrupted { from: PeerName, to: PeerName },
    /// The results of peers differ: those of `who` from that of `agree` peers, the majority. If that is 0 there is no
    /// majority, and `who` are the first few of all peers.
    #[error("{}", differing_results(.who, *.agree))]
    ResultsDiffer { who: Vec<PeerName>, agree: u32 },
}

/// Whose results differ from those of so many peers.
fn differing_results(who: &[PeerName], agree: u32) -> String {
    let names: Vec<_> = who.iter().map(|who| who.name.as_str()).collect();
    let names = names.join(", ");
    match agree {
        0 => format!("the results of {names} differ, and there is no majority"),
        _ => format!("the result of {names} differs from that of the other {agree} peers"),
    }
}

/// What to do about a state without holders.
const ORPHANED: &str = ", and all peers that held the state have departed: sync one peer with the send-only strategy to \
    set the run to its revision";

/// Why the master rejects a peer's shared state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum StateRejection {
    /// The offered revision is beyond the next one.
    #[error("REVISION_INCREMENT_VIOLATION: offered {offered}, but {next} is next")]
    RevisionIncrementViolation { offered: Revision, next: Revision },
    /// Keys, types, counts or flags differ from those of the elected state, first at this key.
    #[error("the state's layout differs from the elected one at key {key:?}")]
    Layout { key: String },
    #[error("the content of {winner} was elected instead")]
    LostElection { winner: PeerName },
    /// The strategy excludes that of another peer.
    #[error("invalid strategy: it cannot be mixed with that of {other}")]
    StrategyConflict { other: PeerName },
    /// No peer offers revision `next`. If `orphaned`, its last holder has departed: a send-only peer may set another revision.
    #[error("no peer offers {next}{}", if *.orphaned { ORPHANED } else { "" })]
    NoHolder { next: Revision, orphaned: bool },
    #[error("all peers that held the elected state departed during the transfer")]
    HoldersLost,
}

impl StateRejection {
    /// Whether the same offer may be accepted later.
    pub fn is_retryable(&self) -> bool {
        crate::peer::FailureKind::of_rejection(self).is_retryable()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_waits_have_a_digit_behind_the_point() {
        let texts = [0, 300, 1500, 1999, 5000, 5049, 9999, 10_600].map(|waited_ms| {
            let wait = Wait { waited_ms, ..Wait::for_master() };
            wait.duration()
        });
        let expected = ["", "0.3", "1.5", "1.9", "5", "5", "9.9", "11"];
        let with_unit = expected.map(|n| if n.is_empty() { String::new() } else { format!(" for {n} s") });
        assert_eq!(texts, with_unit);
    }
}
