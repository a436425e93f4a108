//! What the master decides and what peers see happen, for logs, recorders, metrics and the simulator.
//!
//! Each event has a stable name, a level, a text, and fields with stable names (`Serialize`): `docs/events.md` lists them.

mod fields;
mod peer;
mod tally;

pub use peer::{LinkTransport, PeerEvent};
pub use tally::OpTally;

use crate::cause::{Cause, Departure, JoinRejection, PeerName, StateRejection, Wait};
use crate::id::{EpochId, GroupId, Incarnation, OpId, Revision, Term};
use crate::limits::NAMES_IN_ERROR_MAX;
use crate::message::{Direction, Outcome, Phase};
use core::fmt;
use core::time::Duration;
use std::net::SocketAddr;

/// How much an event matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// The normal course of a run.
    Debug,
    /// A change of the run.
    Info,
    /// Something that may need attention.
    Warn,
    /// A defect.
    Error,
}

impl Level {
    /// All levels, the least severe first.
    pub const ALL: [Self; 4] = [Self::Debug, Self::Info, Self::Warn, Self::Error];

    /// The name in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// The names and the usual levels of an enum's events.
macro_rules! event_names {
    ($type:ident: $($variant:ident $name:literal $level:ident,)*) => {
        impl $type {
            /// The stable names of all kinds of events.
            pub const NAMES: &'static [&'static str] = &[$($name),*];

            /// The stable name of its kind.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$variant { .. } => $name),* }
            }

            fn usual_level(&self) -> Level {
                match self { $(Self::$variant { .. } => Level::$level),* }
            }
        }
    };
}
use event_names;

event_names! { Event:
    Listening "listening" Info,
    Registered "registered" Info,
    JoinRejected "join_rejected" Warn,
    Accepted "accepted" Info,
    ReplicaIncomplete "replica_incomplete" Warn,
    Departed "departed" Warn,
    Suspected "suspected" Info,
    Reconnected "reconnected" Info,
    EpochProposed "epoch_proposed" Debug,
    EpochOpened "epoch_opened" Info,
    EdgeDistrusted "edge_distrusted" Warn,
    TourRequested "tour_requested" Debug,
    TourFound "tour_found" Debug,
    Replanned "replanned" Info,
    OpDecided "op_decided" Debug,
    OpResumed "op_resumed" Info,
    OutOfStep "out_of_step" Warn,
    RoundDecided "round_decided" Debug,
    RoundFailed "round_failed" Debug,
    StillWaiting "still_waiting" Warn,
    ProbeAssigned "probe_assigned" Debug,
    Probed "probed" Debug,
    StateElected "state_elected" Debug,
    StateRejected "state_rejected" Warn,
    RunEnded "run_ended" Info,
    AwaitsReturn "awaits_return" Warn,
    Recovered "recovered" Warn,
    RevisionReset "revision_reset" Warn,
    RestoreBegan "restore_began" Info,
    Returned "returned" Info,
    RestoreEnded "restore_ended" Info,
    EpochKept "epoch_kept" Info,
    Demoted "demoted" Info,
    Stands "stands" Info,
    Leads "leads" Info,
    SteppedDown "stepped_down" Warn,
    Follows "follows" Info,
    Leaderless "leaderless" Warn,
    MasterHere "master_here" Info,
    MasterGone "master_gone" Warn,
    ListsDiffer "lists_differ" Warn,
    NoMajority "no_majority" Warn,
    Draining "draining" Warn,
    Ended "ended" Info,
}

impl Event {
    /// How much it matters.
    pub fn level(&self) -> Level {
        match self {
            Self::Departed(_, Departure::Left) => Level::Info,
            _ => self.usual_level(),
        }
    }
}

/// An event of the master: a decision of its machine, or its start and end.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Fields are named for what they hold.
pub enum Event {
    /// The master accepts connections at these addresses.
    Listening(Vec<SocketAddr>),
    Registered(PeerName),
    JoinRejected(PeerName, JoinRejection),
    Accepted(PeerName, GroupId),
    /// A replica waits for so many ranks that have not joined.
    ReplicaIncomplete {
        joined: Vec<PeerName>,
        missing: u32,
    },
    Departed(PeerName, Departure),
    /// Its connection ended. It may be dead, or resume.
    Suspected(PeerName),
    Reconnected(PeerName),
    /// An epoch was proposed, with this ring.
    EpochProposed(EpochId, Vec<PeerName>),
    /// An epoch opened, with so many pairs without a link.
    EpochOpened(EpochId, usize),
    /// A pair is not used as an edge of a ring for a while.
    EdgeDistrusted(PeerName, PeerName, Direction),
    /// A ring through so many peers was requested from the solver.
    TourRequested(GroupId, usize),
    /// The solver returned a ring, and whether it is used.
    TourFound(GroupId, bool),
    /// Plans of an epoch are chosen for newer measurements, which makes operations faster by this percentage.
    Replanned(EpochId, u32),
    /// An operation was decided, of buffers of so many bytes.
    OpDecided {
        op: OpId,
        outcome: Outcome,
        bytes: u64,
    },
    /// An operation that lost a member is resumed by the others, in another epoch.
    OpResumed {
        op: OpId,
        epoch: EpochId,
    },
    /// An operation waits in a circle with others after a failed epoch, and fails.
    OutOfStep(OpId),
    RoundDecided(Phase, u64),
    RoundFailed(Phase, Cause),
    /// A call of a group, or of the run, waits for live peers.
    StillWaiting(Option<GroupId>, Wait),
    /// The first peer measures its link to the second.
    ProbeAssigned(PeerName, PeerName),
    /// A link was measured: bytes per second in both directions.
    Probed(PeerName, PeerName, Option<u64>, Option<u64>),
    /// A revision was elected: the number of holders and of fetchers.
    StateElected(GroupId, Revision, usize, usize),
    StateRejected(PeerName, StateRejection),
    /// The last member of a group left; this revision would have been next.
    RunEnded(GroupId, Revision),
    /// An operator refuses new peers, or accepts them again.
    Draining(bool),
    /// Peers wait until enough of those that held the lost state of their group are back.
    AwaitsReturn {
        group: GroupId,
        returned: Vec<PeerName>,
        needed: usize,
        left: Duration,
    },
    /// The group continues from the state of these peers.
    Recovered(GroupId, RecoveredState),
    /// The group restarts at an earlier revision, because all holders of its state have departed.
    RevisionReset(GroupId, Revision),
    /// Members of an earlier incarnation of the master return.
    RestoreBegan(Incarnation),
    Returned(PeerName),
    /// The run continues with so many members.
    RestoreEnded(usize),
    /// A group kept its epoch over the restart of the master.
    EpochKept(EpochId),
    /// A peer that was accepted too early waits again.
    Demoted(PeerName),
    /// This one of several masters asks for votes.
    Stands(Term),
    /// This one of several masters leads.
    Leads(Term),
    /// This master does not lead any more.
    SteppedDown(Term, StepDown),
    /// Another master leads, by its position in the list.
    Follows(u16, Term),
    /// No master leads, as far as this one knows.
    Leaderless,
    /// Another master is here, by its position in the list; and how many of the listed ones are.
    MasterHere(u16, (usize, usize)),
    /// Another master is not here any more.
    MasterGone(u16, (usize, usize)),
    /// A master has another list, or says that this one has. Positions and lengths: of this master here, and as the other one
    /// has it.
    ListsDiffer {
        master: u16,
        here: (u16, u16),
        there: Option<(u16, u16)>,
    },
    /// No master leads, and this one cannot: it has so many of the votes. So many more masters are here that are new, or have
    /// restarted, and cannot vote yet. Those in `missing` are not heard, by their positions in the list.
    NoMajority {
        votes: usize,
        voters: usize,
        blank: usize,
        missing: Vec<u16>,
    },
    /// The master was interrupted.
    Ended,
}

/// Why a master does not lead any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepDown {
    /// A voter has promised its vote to another master.
    Deposed,
    /// It has not heard from a majority for too long.
    NoMajority,
    /// It has not heard from any member for too long, and another master may.
    NoMembers,
    /// It does not hold the lease any more.
    LeaseLost,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listening(addresses) => write!(f, "the master is listening on {}", list(addresses)),
            Self::Ended => write!(f, "the master ends: it was interrupted"),
            Self::Registered(who) => write!(f, "{who} is registered"),
            Self::JoinRejected(who, why) => write!(f, "rejected {who}: {why}"),
            Self::Accepted(who, group) => write!(f, "{who} is accepted into {group}"),
            Self::ReplicaIncomplete { joined, missing } => {
                write!(f, "a replica waits for {missing} of its ranks")?;
                write_names(f, "; those that have joined: ", joined.iter().map(|who| (who, None)))
            }
            Self::Departed(who, how) => write!(f, "{who} {how}"),
            Self::Suspected(who) => write!(f, "the connection of {who} ended: it may resume"),
            Self::Reconnected(who) => write!(f, "{who} reconnected"),
            Self::EpochProposed(epoch, ring) => write!(f, "{epoch} is proposed, ring {}", list(ring)),
            Self::EpochOpened(epoch, 0) => write!(f, "{epoch} is open"),
            Self::EpochOpened(epoch, missing) => {
                write!(f, "{epoch} is open ({missing} pairs without a link)")
            }
            Self::EdgeDistrusted(from, to, direction) => {
                write!(f, "no edge between {from} and {to} ({direction:?})")
            }
            Self::TourRequested(group, nodes) => write!(f, "{group}: searching a ring through {nodes} peers"),
            Self::TourFound(group, used) => {
                write!(f, "{group}: found a ring, {}", if *used { "used" } else { "not used" })
            }
            Self::Replanned(epoch, gain) => {
                write!(f, "{epoch}: new plans for the measured network, {gain} % faster")
            }
            Self::OpDecided { op, outcome: Outcome::Committed { .. }, .. } => write!(f, "{op} is committed"),
            Self::OpDecided { op, outcome: Outcome::Aborted(cause), .. } => {
                write!(f, "{op} is aborted: {cause}")
            }
            Self::OpResumed { op, epoch } => write!(f, "{op} is resumed in {epoch}"),
            Self::OutOfStep(op) => write!(f, "{op} waits for members that saw an operation before it fail"),
            Self::RoundDecided(phase, round) => write!(f, "{phase} {round} is decided"),
            Self::RoundFailed(phase, cause) => write!(f, "{phase} failed: {cause}"),
            Self::StillWaiting(None, wait) => write!(f, "still {wait}"),
            Self::StillWaiting(Some(group), wait) => write!(f, "{group}: still {wait}"),
            Self::ProbeAssigned(a, b) => write!(f, "{a} measures its link to {b}"),
            Self::Probed(a, b, forward, back) => write!(f, "{a} to {b}: {forward:?} B/s, back {back:?} B/s"),
            Self::StateElected(group, revision, holders, fetchers) => {
                write!(f, "{group}: {revision} is elected, {holders} hold it, {fetchers} fetch")
            }
            Self::StateRejected(who, why) => write!(f, "the state of {who} is rejected: {why}"),
            Self::AwaitsReturn { group, returned, needed, left } => {
                let (count, left) = (returned.len(), left.as_secs_f64().ceil());
                write!(f, "{group} waits for peers to come back: {count} of {needed}")?;
                write_names(f, " so far: ", returned.iter().map(|who| (who, None)))?;
                write!(f, "; it continues in {left} s at the latest")
            }
            Self::Recovered(group, state) => write!(f, "{group} continues from {state}"),
            Self::RevisionReset(group, revision) => {
                write!(f, "{group} restarts at {revision}: all holders of its state have departed")
            }
            Self::RunEnded(group, revision) => {
                write!(f, "the last member of {group} left before {revision}: its run is over")
            }
            Self::Draining(true) => write!(f, "the run is drained: new peers are refused"),
            Self::Draining(false) => write!(f, "the run is not drained any more: new peers may join"),
            Self::RestoreBegan(of) => write!(f, "members of incarnation {of} return"),
            Self::Returned(who) => write!(f, "{who} returned"),
            Self::RestoreEnded(returned) => write!(f, "the run continues with {returned} members"),
            Self::EpochKept(epoch) => write!(f, "{epoch} is kept"),
            Self::Demoted(who) => write!(f, "{who} waits again"),
            Self::Stands(term) => write!(f, "this master asks for votes in {term}"),
            Self::Leads(term) => write!(f, "this master is active, in {term}"),
            Self::SteppedDown(term, StepDown::Deposed) => {
                write!(f, "this master is not active any more: another one took over after {term}")
            }
            Self::SteppedDown(term, StepDown::LeaseLost) => {
                write!(f, "this master is not active any more ({term}): it could not renew its lease")
            }
            Self::SteppedDown(term, StepDown::NoMajority) => write!(
                f,
                "this master is not active any more ({term}): it does not hear from a majority of the members and masters"
            ),
            Self::SteppedDown(term, StepDown::NoMembers) => write!(
                f,
                "this master is not active any more ({term}): it hears none of the members, another master may"
            ),
            Self::Follows(master, term) => {
                write!(f, "this master stands by: master {} of the list is active, in {term}", master + 1)
            }
            Self::NoMajority { votes, voters, blank, missing } => {
                write!(f, "no master is active, and this one cannot take over: ")?;
                if !missing.is_empty() {
                    let numbers: Vec<_> = missing.iter().map(|index| (index + 1).to_string()).collect();
                    write!(f, "it does not hear from master {} of the list; ", numbers.join(", "))?;
                }
                write!(
                    f,
                    "{votes} of {voters} votes are here (of the members that were there last, and of the masters)"
                )?;
                if *blank > 0 {
                    write!(
                        f,
                        "; {blank} masters are new or were restarted, and cannot vote before all masters are here"
                    )?;
                }
                Ok(())
            }
            Self::Leaderless => write!(f, "no active master is known"),
            Self::MasterHere(master, (here, all)) => {
                write!(f, "master {} of the list is here: {here} of {all} masters are", master + 1)
            }
            Self::MasterGone(master, (here, all)) => {
                write!(
                    f,
                    "master {} of the list is not here any more: {here} of {all} masters are",
                    master + 1
                )
            }
            Self::ListsDiffer { master, here: (me, masters), there } => {
                write!(f, "ignoring master {}: ", master + 1)?;
                match there {
                    None => write!(f, "it has another list of masters than this one")?,
                    Some((to, theirs)) => write!(
                        f,
                        "in its list of masters this one is number {} of {theirs}, in the list of this one number {} of {masters}",
                        to + 1,
                        me + 1
                    )?,
                }
                write!(f, "; start all masters with the same list, in the same order")
            }
        }
    }
}

/// The state that a group continues from after its holders were lost.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Fields are named for what they hold.
pub struct RecoveredState {
    pub revision: Revision,
    /// The peers that hold it.
    pub holders: Vec<PeerName>,
    /// The peers that offered other contents of the same revision.
    pub differing: Vec<PeerName>,
    /// The peers that offered other revisions.
    pub others: Vec<(PeerName, Revision)>,
}

impl fmt::Display for RecoveredState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { revision, holders, differing, others } = self;
        let all = holders.len() + differing.len() + others.len();
        write!(f, "{revision}, held by {} of {all} peers", holders.len())?;
        write_names(f, ": ", holders.iter().map(|who| (who, None)))?;
        let with_revision = |(who, revision)| (who, Some(revision));
        let others = || others.iter().map(|(who, revision)| (who, *revision));
        write_names(f, "; behind: ", others().filter(|(_, r)| r < revision).map(with_revision))?;
        let ahead = others().filter(|(_, r)| r > revision).map(with_revision);
        write_names(f, "; set back, because too few hold their revision: ", ahead)?;
        let why = "; other contents of this revision, which fewer peers or no older peer holds: ";
        write_names(f, why, differing.iter().map(|who| (who, None)))
    }
}

/// Writes the first names of a list after an introduction; nothing if the list is empty.
fn write_names<'a>(
    f: &mut fmt::Formatter<'_>,
    introduction: &str,
    list: impl Iterator<Item = (&'a PeerName, Option<Revision>)>,
) -> fmt::Result {
    let list: Vec<_> = list.collect();
    for (i, (who, revision)) in list.iter().take(NAMES_IN_ERROR_MAX).enumerate() {
        write!(f, "{}{who}", if i == 0 { introduction } else { ", " })?;
        if let Some(revision) = revision {
            write!(f, " ({revision})")?;
        }
    }
    let more = list.len().saturating_sub(NAMES_IN_ERROR_MAX);
    if more > 0 { write!(f, " and {more} more") } else { Ok(()) }
}

fn list(items: &[impl fmt::Display]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
