//! The network between the members of a group: what they measure, and when plans are chosen for it anew.
//!
//! The network of an epoch is part of its description. Later measurements take effect tag by tag: the commit of an
//! operation carries the newer network, and the next operation of that tag is planned for it. No member can begin that one
//! before it has heard of the commit, so all members choose the same plan, and nothing has to stop for it.

use super::Master;
use super::group::EpochStage;
use crate::epoch::EpochDescription;
use crate::event::Event;
use crate::id::{GroupId, OpId, PeerId, Rank, Tag};
use crate::limits;
use crate::message::Outcome;
use crate::network::{Measurement, Network, Path, Throughput};
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};

/// What the members of a group have measured.
#[derive(Debug, Default)]
pub(super) struct MeasuredPaths {
    paths: BTreeMap<(PeerId, PeerId), Path>,
    throughput: BTreeMap<PeerId, Throughput>,
}

/// The network that plans of the open epoch are chosen for.
#[derive(Debug, Default)]
pub(super) struct AdoptedNetwork {
    /// A later one than the epoch's.
    newer: Option<Box<Network>>,
    /// The tags whose operations are planned for it.
    tags: BTreeSet<Tag>,
    /// The operation that is moving the most data: a new network is judged by it.
    largest: Option<crate::descriptor::Descriptor>,
    appraised_at: Option<Time>,
}

impl MeasuredPaths {
    /// Records the bandwidth of a path, in bytes per second.
    pub fn record_bandwidth(&mut self, from: PeerId, to: PeerId, bytes_per_s: u64) {
        let kib_per_s = u32::try_from(bytes_per_s / 1024).unwrap_or(u32::MAX).max(1);
        self.paths.entry((from, to)).or_default().kib_per_s = kib_per_s;
    }

    /// What was measured from one peer to another.
    pub fn path(&self, from: PeerId, to: PeerId) -> Path {
        self.paths.get(&(from, to)).copied().unwrap_or_default()
    }

    /// Removes a peer that departed.
    pub fn forget(&mut self, peer: PeerId) {
        self.paths.retain(|(a, b), _| *a != peer && *b != peer);
        self.throughput.remove(&peer);
    }

    fn network(&self, members: &[PeerId]) -> Network {
        let mut network = Network::unknown(members.len());
        for (i, from) in members.iter().enumerate() {
            network.throughput[i] = self.throughput.get(from).copied().unwrap_or_default();
            for (j, to) in members.iter().enumerate() {
                *network.path_mut(Rank::from_index(i), Rank::from_index(j)) = self.path(*from, *to);
            }
        }
        network
    }
}

impl AdoptedNetwork {
    /// An operation is voted on.
    pub fn note_descriptor(&mut self, descriptor: &crate::descriptor::Descriptor) {
        let bytes = |d: &crate::descriptor::Descriptor| d.count.saturating_mul(d.dtype.bytes() as u64);
        if self.largest.as_ref().is_none_or(|largest| bytes(largest) < bytes(descriptor)) {
            self.largest = Some(*descriptor);
        }
    }
}

impl Master {
    /// Handles the measurements of a peer.
    pub(super) fn handle_measured(&mut self, now: Time, peer: PeerId, measurement: Measurement) {
        let Some(id) = self.roster.group_of(peer) else { return };
        let Some(group) = self.groups.get_mut(&id) else { return };
        let roster = &self.roster;
        let is_member = |other: PeerId| roster.is_accepted(other) && roster.group_of(other) == Some(id);
        for link in measurement.links.iter().filter(|link| is_member(link.peer)) {
            let known = group.measured.paths.entry((peer, link.peer)).or_default();
            let Path { round_trip_us, kib_per_s } = link.path;
            // What was not measured stays as it was.
            *known = Path {
                round_trip_us: if round_trip_us > 0 { round_trip_us } else { known.round_trip_us },
                kib_per_s: if kib_per_s > 0 { kib_per_s } else { known.kib_per_s },
            };
        }
        group.measured.throughput.insert(peer, measurement.throughput);
        self.appraise(now, id);
    }

    /// The network of a new epoch; none if plans do not depend on it: all members are near each other, alone on their
    /// hosts, or too few or too many.
    pub(super) fn network_of(&self, id: GroupId, description: &EpochDescription) -> Option<Box<Network>> {
        if !description.mesh || description.members.len() <= 2 {
            return None;
        }
        let members: Vec<_> = description.members.iter().map(|member| member.peer).collect();
        let network = self.groups.get(&id)?.measured.network(&members);
        let long = limits::LONG_ROUND_TRIP.as_micros();
        let is_long = network.paths.iter().any(|path| u128::from(path.round_trip_us) >= long);
        let hosts: BTreeSet<_> = description.members.iter().map(|member| member.host).collect();
        let has_several = hosts.len() > 1 && hosts.len() < members.len();
        (is_long || has_several).then(|| Box::new(network))
    }

    /// Adopts what was measured if plans for it would be much faster.
    fn appraise(&mut self, now: Time, id: GroupId) {
        let Some(group) = self.groups.get(&id) else { return };
        let EpochStage::Open { description } = &group.stage else { return };
        let again_at = group.plans.appraised_at.map(|at| at + self.config.timing.appraise_every);
        let Some(largest) = group.plans.largest.filter(|_| again_at.is_none_or(|at| at <= now)) else {
            return;
        };
        let Some(measured) = self.network_of(id, description) else { return };
        let current = group.plans.newer.as_ref().or(description.network.as_ref());
        if current == Some(&measured) {
            return;
        }
        let gain_percent = (self.config.appraise)(description, current.map(|n| &**n), &measured, &largest);
        let epoch = description.id;
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.plans.appraised_at = Some(now);
        if gain_percent > limits::REPLAN_GAIN_PERCENT {
            group.plans.newer = Some(measured);
            group.plans.tags.clear();
            self.notify(Event::Replanned(epoch, gain_percent));
        }
    }

    /// The outcome of an operation, with the network for the next one of its tag if there is a newer one.
    pub(super) fn with_newer_network(&mut self, op: OpId, outcome: Outcome) -> Outcome {
        let Some(group) = self.groups.get_mut(&op.epoch.group) else { return outcome };
        let Outcome::Committed { network: None } = &outcome else { return outcome };
        let Some(newer) = &group.plans.newer else { return outcome };
        // A member that returns to a restarted master repeats it for every tag.
        if group.plans.tags.len() >= limits::REPLANNED_TAGS_MAX || !group.plans.tags.insert(op.tag) {
            return outcome;
        }
        Outcome::Committed { network: Some(newer.clone()) }
    }
}
