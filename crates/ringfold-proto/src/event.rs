//! Every decision of a machine, typed. Simulator log, tracing, metrics and flight recorder read this
//! one stream.

use crate::cause::{Cause, Departure, JoinRefusal, PeerName, StateRejection, WaitNote};
use crate::id::{EpochId, GroupId, Incarnation, OpId, Revision};
use crate::message::{Direction, Outcome, Phase};
use core::fmt;

/// Something was decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A newcomer waits to be accepted.
    Registered(PeerName),
    /// A peer was not let in.
    Refused(PeerName, JoinRefusal),
    /// A peer became a member.
    Accepted(PeerName, GroupId),
    /// A peer is no longer part of the run.
    Departed(PeerName, Departure),
    /// A member came back on another connection.
    Rebound(PeerName),
    /// A membership was proposed, with its ring.
    EpochProposed(EpochId, Vec<PeerName>),
    /// All its members are ready.
    EpochOpened(EpochId, usize),
    /// A pair is not used as an edge for a while.
    EdgeDistrusted(PeerName, PeerName, Direction),
    /// A solver was asked for a ring.
    TourAsked(GroupId, usize),
    /// A ring came back and was taken, or was no better.
    TourAnswered(GroupId, bool),
    /// An operation was decided.
    OpDecided(OpId, Outcome),
    /// A round of a phase was decided.
    RoundDecided(Phase, u64),
    /// Votes of a phase failed.
    RoundFailed(Phase, Cause),
    /// Live peers of a group, or of the run, keep others waiting.
    StillWaiting(Option<GroupId>, WaitNote),
    /// A pair is being measured.
    ProbeAssigned(PeerName, PeerName),
    /// A pair was measured: bytes per second there and back.
    Probed(PeerName, PeerName, Option<u64>, Option<u64>),
    /// A revision was elected; how many hold it, how many fetch.
    StateElected(GroupId, Revision, usize, usize),
    /// A peer's state was not taken.
    StateRejected(PeerName, StateRejection),
    /// The last member of a group said goodbye; this revision would have come next.
    RunEnded(GroupId, Revision),
    /// Nobody is left who held the state, and the group begins anew at an earlier revision.
    RevisionReset(GroupId, Revision),
    /// The master found members of an earlier life.
    RestoreBegan(Incarnation),
    /// A member of an earlier life returned.
    Returned(PeerName),
    /// The run goes on: members that returned, and whether a group kept its epoch.
    RestoreEnded(usize),
    /// A group kept its epoch over the restart.
    EpochKept(EpochId),
    /// A peer accepted too early waits again.
    Demoted(PeerName),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registered(who) => write!(f, "{who} is registered"),
            Self::Refused(who, why) => write!(f, "{who} is refused: {why}"),
            Self::Accepted(who, group) => write!(f, "{who} is accepted into {group}"),
            Self::Departed(who, how) => write!(f, "{who} {how}"),
            Self::Rebound(who) => write!(f, "{who} came back on another connection"),
            Self::EpochProposed(epoch, ring) => write!(f, "{epoch} is proposed, ring {}", names(ring)),
            Self::EpochOpened(epoch, missing) => {
                write!(f, "{epoch} is open ({missing} pairs without a link)")
            }
            Self::EdgeDistrusted(from, to, way) => write!(f, "no edge between {from} and {to} ({way:?})"),
            Self::TourAsked(group, nodes) => write!(f, "{group}: a ring through {nodes} peers is sought"),
            Self::TourAnswered(group, taken) => {
                write!(f, "{group}: the ring found is {}", if *taken { "taken" } else { "no better" })
            }
            Self::OpDecided(op, Outcome::Committed) => write!(f, "{op} is committed"),
            Self::OpDecided(op, Outcome::Aborted(cause)) => write!(f, "{op} is aborted: {cause}"),
            Self::RoundDecided(phase, round) => write!(f, "{phase} {round} is decided"),
            Self::RoundFailed(phase, cause) => write!(f, "{phase} fails: {cause}"),
            Self::StillWaiting(None, note) => write!(f, "{note}"),
            Self::StillWaiting(Some(group), note) => write!(f, "{group}: {note}"),
            Self::ProbeAssigned(a, b) => write!(f, "{a} measures the way to {b}"),
            Self::Probed(a, b, there, back) => write!(f, "{a} to {b}: {there:?} there, {back:?} back"),
            Self::StateElected(group, revision, holders, fetchers) => {
                write!(f, "{group}: {revision} is elected, {holders} hold it, {fetchers} fetch")
            }
            Self::StateRejected(who, why) => write!(f, "the state of {who} is rejected: {why}"),
            Self::RevisionReset(group, revision) => {
                write!(f, "{group} begins anew at {revision}: nobody is left who held the state that it had")
            }
            Self::RunEnded(group, revision) => {
                write!(f, "the last member of {group} said goodbye before {revision}; its run is over")
            }
            Self::RestoreBegan(of) => write!(f, "members of master life {of} return"),
            Self::Returned(who) => write!(f, "{who} returned"),
            Self::RestoreEnded(returned) => write!(f, "the run goes on with {returned} members"),
            Self::EpochKept(epoch) => write!(f, "{epoch} is kept"),
            Self::Demoted(who) => write!(f, "{who} waits again"),
        }
    }
}

fn names(list: &[PeerName]) -> String {
    list.iter().map(|n| n.name.as_str()).collect::<Vec<_>>().join(", ")
}
