//! The fields of events, by stable names. A name never changes its meaning; new ones may be added.

use super::{Event, OpTally, PeerEvent, StepDown};
use crate::cause::{Cause, PeerName, Wait};
use crate::descriptor::Descriptor;
use crate::id::{EpochId, OpId};
use crate::message::{Direction, Outcome};
use crate::peer::{Failure, FailureKind};
use core::fmt::Display;
use core::time::Duration;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

/// Names of a list that are written; the count of all is written too.
const NAMES_MAX: usize = 64;

/// A value that is written as its text.
struct Text<T>(T);

impl<T: Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// Writes the fields of one event.
struct Fields<M>(M);

impl<M: SerializeMap> Fields<M> {
    fn put(&mut self, name: &'static str, value: impl Serialize) -> Result<(), M::Error> {
        self.0.serialize_entry(name, &value)
    }

    fn text(&mut self, name: &'static str, value: impl Display) -> Result<(), M::Error> {
        self.put(name, Text(value))
    }

    fn peer(&mut self, who: &PeerName) -> Result<(), M::Error> {
        self.put("peer", &who.name)?;
        self.put("peer_id", who.peer.short())
    }

    fn pair(&mut self, from: &PeerName, to: &PeerName) -> Result<(), M::Error> {
        self.put("from", &from.name)?;
        self.put("to", &to.name)
    }

    /// The first names of a list.
    fn names<'a>(
        &mut self,
        name: &'static str,
        list: impl Iterator<Item = &'a PeerName>,
    ) -> Result<(), M::Error> {
        self.put(name, list.take(NAMES_MAX).map(|who| who.name.as_str()).collect::<Vec<_>>())
    }

    fn epoch(&mut self, epoch: &EpochId) -> Result<(), M::Error> {
        self.text("epoch", epoch)
    }

    fn op(&mut self, op: &OpId) -> Result<(), M::Error> {
        self.epoch(&op.epoch)?;
        self.put("tag", op.tag.0)?;
        self.put("seq", op.seq.0)
    }

    fn call(&mut self, call: &Descriptor) -> Result<(), M::Error> {
        self.text("call", call)?;
        self.put("bytes", call.bytes())
    }

    fn cause(&mut self, cause: &Cause) -> Result<(), M::Error> {
        self.put("failure", FailureKind::of_cause(cause).name())?;
        self.text("cause", cause)
    }

    fn failure(&mut self, failure: &Failure) -> Result<(), M::Error> {
        self.put("failure", failure.kind().name())?;
        self.text("cause", failure)
    }

    fn moved(&mut self, sent_bytes: u64, received_bytes: u64) -> Result<(), M::Error> {
        self.put("sent_bytes", sent_bytes)?;
        self.put("received_bytes", received_bytes)
    }

    fn duration(&mut self, name: &'static str, duration: Duration) -> Result<(), M::Error> {
        self.put(name, u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }

    fn waiting(&mut self, wait: &Wait) -> Result<(), M::Error> {
        if let Some(call) = wait.call {
            self.text("call", call)?;
        }
        self.duration("waited_us", Duration::from_millis(wait.waited_ms.into()))?;
        self.names("missing", wait.names())
    }

    fn outcome(&mut self, outcome: &Outcome) -> Result<(), M::Error> {
        match outcome {
            Outcome::Committed { .. } => self.put("outcome", "committed"),
            Outcome::Aborted(cause) => {
                self.put("outcome", "aborted")?;
                self.cause(cause)
            }
        }
    }
}

fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Outgoing => "outgoing",
        Direction::Incoming => "incoming",
        Direction::Both => "both",
    }
}

fn write<S: Serializer>(
    serializer: S,
    fields: impl FnOnce(&mut Fields<S::SerializeMap>) -> Result<(), S::Error>,
) -> Result<S::Ok, S::Error> {
    let mut map = Fields(serializer.serialize_map(None)?);
    fields(&mut map)?;
    map.0.end()
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write(serializer, |f| match self {
            Self::Listening(addresses) => f.put("addresses", addresses.iter().map(Text).collect::<Vec<_>>()),
            Self::Registered(who)
            | Self::Suspected(who)
            | Self::Reconnected(who)
            | Self::Returned(who)
            | Self::Demoted(who) => f.peer(who),
            Self::JoinRejected(who, why) => {
                f.peer(who)?;
                f.text("cause", why)
            }
            Self::Accepted(who, group) => {
                f.peer(who)?;
                f.put("group", group.0)
            }
            Self::ReplicaIncomplete { joined, missing } => {
                f.names("joined", joined.iter())?;
                f.put("missing", missing)
            }
            Self::Departed(who, how) => {
                f.peer(who)?;
                f.put("how", how.name())?;
                f.text("cause", how)
            }
            Self::EpochProposed(epoch, ring) => {
                f.epoch(epoch)?;
                f.put("group", epoch.group.0)?;
                f.put("world", ring.len())?;
                f.names("ring", ring.iter())
            }
            Self::EpochOpened(epoch, missing) => {
                f.epoch(epoch)?;
                f.put("missing_links", missing)
            }
            Self::EdgeDistrusted(from, to, which) => {
                f.pair(from, to)?;
                f.put("direction", direction(*which))
            }
            Self::TourRequested(group, peers) => {
                f.put("group", group.0)?;
                f.put("peers", peers)
            }
            Self::TourFound(group, used) => {
                f.put("group", group.0)?;
                f.put("used", used)
            }
            Self::Replanned(epoch, gain) => {
                f.epoch(epoch)?;
                f.put("gain_percent", gain)
            }
            Self::OpDecided { op, outcome, bytes } => {
                f.op(op)?;
                f.put("bytes", bytes)?;
                f.outcome(outcome)
            }
            Self::OpResumed { op, epoch } => {
                f.op(op)?;
                f.put("resumed_in", epoch.counter)
            }
            Self::OutOfStep(op) => f.op(op),
            Self::RoundDecided(phase, round) => {
                f.text("phase", phase)?;
                f.put("round", round)
            }
            Self::RoundFailed(phase, cause) => {
                f.text("phase", phase)?;
                f.cause(cause)
            }
            Self::StillWaiting(group, warning) => {
                if let Some(group) = group {
                    f.put("group", group.0)?;
                }
                f.waiting(warning)
            }
            Self::ProbeAssigned(from, to) => f.pair(from, to),
            Self::Probed(from, to, forward, backward) => {
                f.pair(from, to)?;
                f.put("forward", forward)?;
                f.put("backward", backward)
            }
            Self::StateElected(group, revision, holders, fetchers) => {
                f.put("group", group.0)?;
                f.put("revision", revision.0)?;
                f.put("holders", holders)?;
                f.put("fetchers", fetchers)
            }
            Self::StateRejected(who, why) => {
                f.peer(who)?;
                f.text("cause", why)
            }
            Self::RunEnded(group, revision) | Self::RevisionReset(group, revision) => {
                f.put("group", group.0)?;
                f.put("revision", revision.0)
            }
            Self::AwaitsReturn { group, returned, needed, left } => {
                f.put("group", group.0)?;
                f.names("returned", returned.iter())?;
                f.put("needed", needed)?;
                f.duration("left_us", *left)
            }
            Self::Recovered(group, state) => {
                f.put("group", group.0)?;
                f.put("revision", state.revision.0)?;
                f.names("holders", state.holders.iter())?;
                f.names("differing", state.differing.iter())?;
                f.names("others", state.others.iter().map(|(who, _)| who))
            }
            Self::RestoreBegan(incarnation) => f.text("incarnation", incarnation),
            Self::RestoreEnded(members) => f.put("members", members),
            Self::EpochKept(epoch) => f.epoch(epoch),
            Self::Stands(term) | Self::Leads(term) => f.put("term", term.0),
            Self::SteppedDown(term, why) => {
                f.put("term", term.0)?;
                f.put(
                    "why",
                    match why {
                        StepDown::Deposed => "deposed",
                        StepDown::NoMajority => "no_majority",
                        StepDown::NoMembers => "no_members",
                        StepDown::LeaseLost => "lease_lost",
                    },
                )
            }
            Self::Follows(master, term) => {
                f.put("master", master + 1)?;
                f.put("term", term.0)
            }
            Self::MasterHere(master, (here, all)) | Self::MasterGone(master, (here, all)) => {
                f.put("master", master + 1)?;
                f.put("here", here)?;
                f.put("masters", all)
            }
            Self::ListsDiffer { master, .. } => f.put("master", master + 1),
            Self::NoMajority { votes, voters, blank, missing } => {
                f.put("votes", votes)?;
                f.put("voters", voters)?;
                f.put("blank", blank)?;
                f.put("missing", missing.iter().map(|index| index + 1).collect::<Vec<_>>())
            }
            Self::Draining(on) => f.put("on", on),
            Self::Leaderless | Self::Ended => Ok(()),
        })
    }
}

impl Serialize for PeerEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write(serializer, |f| match self {
            Self::MasterConnected { master }
            | Self::MasterLost { master }
            | Self::MasterSilent { master } => f.put("master", master),
            Self::NoActiveMaster { waited, known } => {
                f.duration("waited_us", *waited)?;
                f.put("known", known)
            }
            Self::Accepted { group } => f.put("group", group.0),
            Self::EpochProposed { epoch, world } => {
                f.epoch(epoch)?;
                f.put("world", world)
            }
            Self::EpochOpened { epoch, rank, world } => {
                f.epoch(epoch)?;
                f.put("rank", rank.0)?;
                f.put("world", world)
            }
            Self::EpochRejected { epoch, why } => {
                f.epoch(epoch)?;
                f.put("why", why)
            }
            Self::EpochClosed { epoch, cause } => {
                f.epoch(epoch)?;
                cause.as_ref().map_or(Ok(()), |cause| f.cause(cause))
            }
            Self::OpStarted { op, call } => {
                f.op(op)?;
                f.call(call)
            }
            Self::OpRunning { call, waited } => {
                f.text("call", call)?;
                f.duration("waited_us", *waited)
            }
            Self::OpRejected { op, why } => {
                f.op(op)?;
                f.put("why", why)
            }
            Self::OpEnded { op, tag, call, result, sent_bytes, received_bytes, duration } => {
                match op {
                    Some(op) => f.op(op)?,
                    None => f.put("tag", tag.0)?,
                }
                f.call(call)?;
                match result {
                    Ok(world) => {
                        f.put("outcome", "committed")?;
                        f.put("world", world)?;
                    }
                    Err(failure) => {
                        f.put("outcome", "aborted")?;
                        f.failure(failure)?;
                    }
                }
                f.moved(*sent_bytes, *received_bytes)?;
                f.duration("duration_us", *duration)
            }
            Self::VoteBegan { phase } => f.text("phase", phase),
            Self::VoteEnded { phase, failure, duration } => {
                f.text("phase", phase)?;
                failure.as_ref().map_or(Ok(()), |failure| f.failure(failure))?;
                f.duration("duration_us", *duration)
            }
            Self::SyncBegan { revision, entries } => {
                f.put("revision", revision.0)?;
                f.put("entries", entries)
            }
            Self::SyncAssigned { revision, fetches, sources, fetchers } => {
                f.put("revision", revision.0)?;
                f.put("fetches", fetches)?;
                f.put("sources", sources)?;
                f.put("fetchers", fetchers)
            }
            Self::SyncProgress { sent_bytes, received_bytes } => f.moved(*sent_bytes, *received_bytes),
            Self::SyncEnded { result, sent_bytes, received_bytes, duration } => {
                match result {
                    Ok(revision) => f.put("revision", revision.0)?,
                    Err(failure) => f.failure(failure)?,
                }
                f.moved(*sent_bytes, *received_bytes)?;
                f.duration("duration_us", *duration)
            }
            Self::LinkUp { peer, transport } => {
                f.peer(peer)?;
                f.put("transport", transport.name())
            }
            Self::LinkLost { peer, why } | Self::LinkFailed { peer, why } => {
                f.peer(peer)?;
                f.put("why", why)
            }
            Self::LinkStalled { peer, direction: which, is_reported } => {
                f.peer(peer)?;
                f.put("direction", direction(*which))?;
                f.put("reported", is_reported)
            }
            Self::StillWaiting { group, wait } => {
                if !group.is_empty() {
                    f.put("group", group)?;
                }
                f.waiting(wait)
            }
            Self::GroupFormed { group, rank, world, shares_memory } => {
                f.put("group", group)?;
                f.put("rank", rank.0)?;
                f.put("world", world)?;
                f.put("shares_memory", shares_memory)
            }
            Self::GroupFailed { cause } => f.cause(cause),
            Self::RankLeft { who } => f.peer(who),
            Self::MembershipEnded { why } => f.failure(why),
            Self::Registered | Self::Restored | Self::Demoted | Self::Left => Ok(()),
        })
    }
}

impl Serialize for OpTally {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { first, last, count, sent_bytes, received_bytes, span, longest } = self;
        write(serializer, |f| {
            f.op(last)?;
            f.put("first_tag", first.tag.0)?;
            f.put("first_seq", first.seq.0)?;
            f.put("count", count)?;
            f.moved(*sent_bytes, *received_bytes)?;
            f.duration("span_us", *span)?;
            f.duration("longest_us", *longest)
        })
    }
}
