//! Limits of messages: every list and text has a maximal length.
//!
//! The codec checks them on both sides, so decoded messages keep the limits of [`crate::limits`].

use crate::cause::{Cause, Departure, PeerName, Removal, StateRejection, Wait, WaitingPeer};
use crate::charter::Charter;
use crate::claim::{CertificateChain, Signature};
use crate::coordinator::MasterMessage;
use crate::cores::CoreShare;
use crate::descriptor::{Descriptor, Weight};
use crate::doctor::Finding;
use crate::epoch::{EpochDescription, Member, ResumedOp};
use crate::limits;
use crate::link_message::{DeviceStage, LinkMessage};
use crate::message::{
    Answer, EpochRecord, Join, Numbered, OpProgress, OpRecord, Outcome, Resume, ToMaster, ToPeer,
};
use crate::network::Network;
use crate::shared_state::{SyncOffer, SyncVerdict};
use crate::text::{name_problem, unprintable_problem};
use core::fmt;
use core::marker::PhantomData;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

/// A message with limits.
///
/// ```
/// use ringfold_proto::bounded::Bounded;
/// use ringfold_proto::id::PeerId;
/// use ringfold_proto::message::{Numbered, ToMaster};
///
/// let heard = vec![PeerId(1); 5000];
/// let beat = Numbered { number: 0, acknowledged: 0, message: ToMaster::Heartbeat { heard, ended: vec![] } };
/// assert_eq!(beat.check().unwrap_err().to_string(), "5000 peers exceed the limit of 1024");
/// ```
pub trait Bounded {
    /// Most bytes of the encoded message.
    const BYTES_MAX: usize;
    /// Most bytes of memory for the lists of the decoded message.
    const DECODED_BYTES_MAX: usize;

    /// Checks the limits.
    fn check(&self) -> Result<(), LimitExceeded>;
}

/// A message exceeds a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}", limit_text(.what, *.found, *.max))]
#[allow(missing_docs)] // Fields are named for what they hold.
pub struct LimitExceeded {
    /// What is limited.
    pub what: &'static str,
    pub found: usize,
    pub max: usize,
}

fn limit_text(what: &str, found: usize, max: usize) -> String {
    // What may not occur at all is a sentence of its own.
    if max == 0 { what.to_owned() } else { format!("{found} {what} exceed the limit of {max}") }
}

impl Bounded for Numbered<ToMaster> {
    const BYTES_MAX: usize = limits::CONTROL_BYTES_MAX;
    const DECODED_BYTES_MAX: usize = limits::CONTROL_DECODED_BYTES_MAX;

    fn check(&self) -> Result<(), LimitExceeded> {
        match &self.message {
            ToMaster::Join(join) | ToMaster::JoinRank { join, .. } => check_join(join),
            ToMaster::Resume(resume) | ToMaster::ResumeRank { resume, .. } => check_resume(resume),
            ToMaster::Vote { request, .. } => request.offer().map_or(Ok(()), check_offer),
            ToMaster::Started { descriptor, .. } | ToMaster::OpVote { descriptor, .. } => {
                check_descriptor(descriptor)
            }
            ToMaster::EpochReady { unreachable, .. } => check_peers(unreachable),
            ToMaster::Suspended { descriptor, held, .. } => {
                check_descriptor(descriptor)?;
                at_most("members with chunks", held.len(), limits::MESH_WORLD_MAX)
            }
            ToMaster::Measured(measured) => check_peers(&measured.links),
            ToMaster::Examined { findings, .. } => Finding::check_all(findings),
            ToMaster::Heartbeat { heard, ended } => {
                check_peers(heard)?;
                check_peers(ended)
            }
            ToMaster::LinkTrouble { .. }
            | ToMaster::Probed { .. }
            | ToMaster::SyncDone { .. }
            | ToMaster::Voter { .. }
            | ToMaster::Fetching { .. }
            | ToMaster::Leave => Ok(()),
        }
    }
}

impl Bounded for Numbered<ToPeer> {
    const BYTES_MAX: usize = limits::CONTROL_BYTES_MAX;
    const DECODED_BYTES_MAX: usize = limits::CONTROL_DECODED_BYTES_MAX;

    fn check(&self) -> Result<(), LimitExceeded> {
        match &self.message {
            ToPeer::EpochProposed { description, ended, signature, attributes: _ } => {
                check_signature(signature.as_deref())?;
                check_description(description)?;
                check_cause(ended)
            }
            ToPeer::EpochOpened { missing, network, resumed, signature, .. } => {
                check_signature(signature.as_deref())?;
                check_resumed(resumed)?;
                at_most("pairs without a link", missing.len(), limits::MISSING_PAIRS_MAX)?;
                check_network(network.as_deref())
            }
            ToPeer::Decided { outcome, signature, .. } => {
                check_signature(signature.as_deref())?;
                check_outcome(outcome)
            }
            ToPeer::Answer { answer, .. } => match answer {
                Answer::StateRejected(rejection) => check_rejection(rejection),
                Answer::Failed(cause) => check_cause(cause),
                Answer::Topology | Answer::Pending(_) | Answer::Synced(_) => Ok(()),
            },
            ToPeer::Probe { addresses, .. } => check_addresses(addresses),
            ToPeer::SyncElected { verdict, .. } => check_verdict(verdict),
            ToPeer::Removed { reason: Removal::Departed(how) } => check_departure(how),
            ToPeer::Removed { reason: Removal::Rejected(_) } => Ok(()),
            ToPeer::Removed { reason: Removal::Disconnected(why) } => check_text(why),
            ToPeer::StillWaiting(wait) => check_wait(wait),
            ToPeer::Lead { charter, signature, .. } => {
                check_signature(signature.as_deref())?;
                charter.as_deref().map_or(Ok(()), check_charter)
            }
            ToPeer::Redirect { addresses } => check_addresses(addresses),
            ToPeer::Registered { .. }
            | ToPeer::Candidate { .. }
            | ToPeer::Rebound { .. }
            | ToPeer::Restoring { .. }
            | ToPeer::Restored { .. }
            | ToPeer::Demoted
            | ToPeer::Report
            | ToPeer::Examine { .. }
            | ToPeer::Heartbeat => Ok(()),
        }
    }
}

impl Bounded for MasterMessage {
    const BYTES_MAX: usize = limits::CONTROL_BYTES_MAX;
    const DECODED_BYTES_MAX: usize = limits::CONTROL_DECODED_BYTES_MAX;

    fn check(&self) -> Result<(), LimitExceeded> {
        match self {
            Self::Status(status) => check_charter(&status.voter.charter),
            Self::Ask { .. } => Ok(()),
        }
    }
}

impl Bounded for LinkMessage {
    const BYTES_MAX: usize = limits::LINK_MESSAGE_BYTES_MAX;
    const DECODED_BYTES_MAX: usize = limits::LINK_MESSAGE_DECODED_BYTES_MAX;

    fn check(&self) -> Result<(), LimitExceeded> {
        match self {
            Self::Grant { slots, .. } | Self::Return { slots, .. } => {
                at_most("slots", slots.len(), usize::from(limits::SLOTS_MAX))
            }
            Self::Abort { cause, .. } => check_cause(cause),
            Self::Note { text, .. } => check_text(text),
            Self::Device { stage: DeviceStage::Offered { memory }, .. } => {
                at_most("bytes of a memory offer", memory.len(), limits::MEMORY_OFFER_BYTES_MAX)
            }
            Self::Device {
                stage: DeviceStage::Ready | DeviceStage::OnHost | DeviceStage::Folded, ..
            }
            | Self::Want { .. }
            | Self::Fenced { .. }
            | Self::Mismatch { .. }
            | Self::Ping
            | Self::Inquiry { .. }
            | Self::Activity { .. }
            | Self::Goodbye { .. } => Ok(()),
        }
    }
}

/// Decodes a list, unless it claims more than `MAX` elements: then none of them is decoded.
pub(crate) fn list<'de, const MAX: usize, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    from.deserialize_seq(ListVisitor::<MAX, T>(PhantomData))
}

struct ListVisitor<const MAX: usize, T>(PhantomData<T>);

impl<'de, const MAX: usize, T: Deserialize<'de>> Visitor<'de> for ListVisitor<MAX, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {MAX} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, elements: A) -> Result<Vec<T>, A::Error> {
        match elements.size_hint() {
            Some(count) if count <= MAX => Vec::deserialize(SeqAccessDeserializer::new(elements)),
            count => Err(A::Error::invalid_length(count.unwrap_or(usize::MAX), &self)),
        }
    }
}

pub(crate) fn at_most(what: &'static str, found: usize, max: usize) -> Result<(), LimitExceeded> {
    if found <= max { Ok(()) } else { Err(LimitExceeded { what, found, max }) }
}

pub(crate) fn check_name(name: &str) -> Result<(), LimitExceeded> {
    at_most("bytes of a name", name.len(), limits::NAME_ON_WIRE_BYTES_MAX)?;
    unprintable_problem(name).map_or(Ok(()), |what| at_most(what, 1, 0))
}

/// Checks the length of a text other than a name.
pub fn check_text(text: &str) -> Result<(), LimitExceeded> {
    at_most("bytes of text", text.len(), limits::TEXT_BYTES_MAX)
}

fn check_addresses<T>(addresses: &[T]) -> Result<(), LimitExceeded> {
    at_most("addresses", addresses.len(), limits::ADDRESSES_MAX)
}

fn check_peers<T>(peers: &[T]) -> Result<(), LimitExceeded> {
    at_most("peers", peers.len(), limits::WORLD_MAX)
}

fn check_charter(charter: &Charter) -> Result<(), LimitExceeded> {
    at_most("electorates", charter.electorates.len(), limits::ELECTORATES_MAX)?;
    charter.electorates.iter().try_for_each(|electorate| check_peers(&electorate.members))
}

fn check_join(join: &Join) -> Result<(), LimitExceeded> {
    check_name(&join.name)?;
    name_problem(&join.name).map_or(Ok(()), |what| at_most(what, 1, 0))?;
    check_cores(&join.cores)?;
    check_addresses(&join.addresses)
}

fn check_resume(resume: &Resume) -> Result<(), LimitExceeded> {
    check_join(&resume.join)?;
    check_charter(&resume.voter.charter)?;
    check_signature(resume.charter_signature.as_deref())?;
    at_most("certificate chains", resume.chains.len(), limits::CHAINS_IN_RESUME_MAX)?;
    resume.chains.iter().try_for_each(check_chain)?;
    at_most("epochs", resume.epochs.len(), limits::EPOCHS_IN_RESUME_MAX)?;
    let ops = resume.epochs.iter().map(|epoch| epoch.ops.len()).sum();
    at_most("operations", ops, limits::OPS_IN_RESUME_MAX)?;
    resume.epochs.iter().try_for_each(|EpochRecord { description, ops, signature, .. }| {
        check_signature(signature.as_deref())?;
        check_description(description)?;
        ops.iter().try_for_each(check_record)
    })
}

fn check_signature(signature: Option<&Signature>) -> Result<(), LimitExceeded> {
    let bytes = signature.map_or(0, |signature| signature.bytes.len());
    at_most("bytes of a signature", bytes, limits::SIGNATURE_BYTES_MAX)
}

fn check_chain(CertificateChain(certificates): &CertificateChain) -> Result<(), LimitExceeded> {
    at_most("certificates of a chain", certificates.len(), limits::CERTIFICATES_IN_CHAIN_MAX)?;
    certificates.iter().try_for_each(|certificate| {
        at_most("bytes of a certificate", certificate.len(), limits::CERTIFICATE_BYTES_MAX)
    })
}

fn check_record(record: &OpRecord) -> Result<(), LimitExceeded> {
    check_signature(record.signature.as_deref())?;
    record.descriptor.as_ref().map_or(Ok(()), check_descriptor)?;
    match &record.progress {
        OpProgress::Started | OpProgress::Done | OpProgress::DoneWith { .. } => Ok(()),
        OpProgress::Decided(outcome) => check_outcome(outcome),
    }
}

/// Weights are decoded from bits, so they may be invalid.
fn check_descriptor(descriptor: &Descriptor) -> Result<(), LimitExceeded> {
    let valid = descriptor.weight.is_none_or(|weight| Weight::new(weight.value()).is_some());
    at_most("weights that are negative or not finite", usize::from(!valid), 0)
}

/// Checks an epoch's description.
pub fn check_description(description: &EpochDescription) -> Result<(), LimitExceeded> {
    at_most("members", description.members.len(), limits::WORLD_MAX)?;
    at_most("ranks of a ring", description.ring.len(), limits::WORLD_MAX)?;
    at_most("pairs without a link", description.missing.len(), limits::MISSING_PAIRS_MAX)?;
    check_network(description.network.as_deref())?;
    check_resumed(&description.resumed)?;
    at_most("relays", description.relays.len(), limits::RELAYS_MAX)?;
    description.members.iter().try_for_each(check_member)
}

fn check_cores(cores: &CoreShare) -> Result<(), LimitExceeded> {
    at_most("runs of cores", cores.runs.len(), limits::CORE_RUNS_MAX)
}

/// Checks a member.
pub fn check_member(Member { name, addresses, cores, .. }: &Member) -> Result<(), LimitExceeded> {
    check_name(name)?;
    check_cores(cores)?;
    check_addresses(addresses)
}

fn check_offer(offer: &SyncOffer) -> Result<(), LimitExceeded> {
    at_most("entries", offer.entries.len(), limits::STATE_ENTRIES_MAX)?;
    offer.entries.iter().try_for_each(|entry| check_key(&entry.key))
}

fn check_key(key: &str) -> Result<(), LimitExceeded> {
    at_most("bytes of a key", key.len(), limits::STATE_KEY_BYTES_MAX)
}

fn check_verdict(verdict: &SyncVerdict) -> Result<(), LimitExceeded> {
    match verdict {
        SyncVerdict::Rejected(rejection) => check_rejection(rejection),
        SyncVerdict::Elected(assignment) => {
            at_most("entries", assignment.fetch.len(), limits::STATE_ENTRIES_MAX)?;
            check_peers(&assignment.sources)?;
            check_peers(&assignment.fetchers)
        }
    }
}

fn check_rejection(rejection: &StateRejection) -> Result<(), LimitExceeded> {
    match rejection {
        StateRejection::Layout { key } => check_key(key),
        StateRejection::LostElection { winner: who } | StateRejection::StrategyConflict { other: who } => {
            check_name(&who.name)
        }
        StateRejection::RevisionIncrementViolation { .. }
        | StateRejection::NoHolder { .. }
        | StateRejection::HoldersLost => Ok(()),
    }
}

fn check_outcome(outcome: &Outcome) -> Result<(), LimitExceeded> {
    match outcome {
        Outcome::Committed { network } => check_network(network.as_deref()),
        Outcome::Aborted(cause) => check_cause(cause),
    }
}

/// Only worlds in which all pairs are linked have one.
fn check_network(network: Option<&Network>) -> Result<(), LimitExceeded> {
    let Some(network) = network else { return Ok(()) };
    at_most("members with paths", network.throughput.len(), limits::MESH_WORLD_MAX)?;
    at_most("paths", network.paths.len(), limits::MESH_WORLD_MAX * limits::MESH_WORLD_MAX)
}

/// Only worlds in which all pairs are linked resume operations.
fn check_resumed(resumed: &[ResumedOp]) -> Result<(), LimitExceeded> {
    at_most("resumed operations", resumed.len(), limits::RESUMED_OPS_MAX)?;
    let most = limits::MESH_WORLD_MAX * limits::MESH_WORLD_MAX;
    resumed.iter().try_for_each(|resumed| at_most("pairs with chunks", resumed.held.len(), most))
}

fn check_wait(wait: &Wait) -> Result<(), LimitExceeded> {
    check_peers(&wait.missing)?;
    wait.names().try_for_each(|PeerName { name, .. }| check_name(name))
}

fn check_cause(cause: &Cause) -> Result<(), LimitExceeded> {
    let waiting = |peer: &WaitingPeer| check_name(&peer.who.name).and_then(|()| check_text(&peer.call));
    match cause {
        Cause::PeerLost { who, how } => check_name(&who.name).and_then(|()| check_departure(how)),
        Cause::LinkLost { from, to } => check_name(&from.name).and_then(|()| check_name(&to.name)),
        Cause::Mismatch { one, other } => waiting(one).and_then(|()| waiting(other)),
        Cause::Timeout(wait) => check_wait(wait),
        Cause::Corrupted { from, to } => check_name(&from.name).and_then(|()| check_name(&to.name)),
        Cause::ResultsDiffer { who, .. } => {
            check_peers(who)?;
            who.iter().try_for_each(|who| check_name(&who.name))
        }
        Cause::Unable { who } | Cause::AbortedByUser { who } => check_name(&who.name),
        Cause::EpochEnded => Ok(()),
    }
}

fn check_departure(how: &Departure) -> Result<(), LimitExceeded> {
    match how {
        Departure::Evicted(why) => check_text(why),
        Departure::StateRejected(why) => check_rejection(why),
        Departure::Left
        | Departure::ConnectionLost
        | Departure::Silent
        | Departure::Unreachable
        | Departure::Misbehaved(_)
        | Departure::NotReturned
        | Departure::Died
        | Departure::NotEstablished
        | Departure::EvictedBefore => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::id::{OpId, Revision};
    use crate::message::Request;
    use crate::reduce_op::ReduceOp;
    use crate::shared_state::{StateEntry, SyncStrategy};

    #[test]
    fn a_longer_list_than_allowed_is_not_decoded() {
        #[derive(serde::Deserialize)]
        struct Listed(#[serde(deserialize_with = "list::<3, _, _>")] Vec<u16>);
        let decode = |bytes: &[u8]| postcard::from_bytes(bytes).map(|Listed(list)| list).ok();
        assert_eq!(decode(&[3, 7, 8, 9]), Some(vec![7, 8, 9]));
        assert_eq!(decode(&[4, 7, 8, 9, 10]), None);
        assert_eq!(decode(&[200, 1]), None);
    }

    fn to_master(message: ToMaster) -> Result<(), LimitExceeded> {
        Numbered { number: 1, acknowledged: 0, message }.check()
    }

    #[test]
    fn a_key_that_is_too_long_is_named() {
        let entry = |bytes: usize| StateEntry {
            key: "k".repeat(bytes),
            dtype: DType::F32,
            count: 1,
            allow_content_inequality: false,
            hash: 0,
        };
        let vote = |bytes| ToMaster::Vote {
            call: Default::default(),
            round: 0,
            deadline_ms: 0,
            request: Request::Sync(SyncOffer {
                revision: Revision(0),
                strategy: SyncStrategy::EnforcePopular,
                entries: vec![entry(1), entry(bytes)],
            }),
        };
        assert_eq!(to_master(vote(limits::STATE_KEY_BYTES_MAX)), Ok(()));
        assert_eq!(to_master(vote(limits::STATE_KEY_BYTES_MAX + 1)).unwrap_err().what, "bytes of a key");
    }

    #[test]
    fn an_invalid_weight_is_rejected() {
        let descriptor = Descriptor::all_reduce(1, DType::F32, ReduceOp::Sum);
        assert_eq!(to_master(ToMaster::Started { op: OpId::default(), descriptor }), Ok(()));
        let nan = postcard::to_allocvec(&f64::NAN.to_bits()).unwrap();
        let weight: Weight = postcard::from_bytes(&nan).unwrap();
        let descriptor = Descriptor { weight: Some(weight), ..descriptor };
        assert!(to_master(ToMaster::Started { op: OpId::default(), descriptor }).is_err());
    }

    #[test]
    fn a_grant_of_too_many_slots_is_rejected() {
        let grant = |count: u16| LinkMessage::Grant { op: OpId::default(), slots: (0..count).collect() };
        assert!(grant(limits::SLOTS_MAX).check().is_ok() && grant(limits::SLOTS_MAX + 1).check().is_err());
    }
}
