//! From a set of members to an open epoch: choose a ring, let members connect, open when all edges of the ring are up.

use super::group::{EpochStage, Group};
use super::{Master, MasterAction, TourRequest, TourSolution};
use crate::cause::{Cause, Departure};
use crate::claim::Claim;
use crate::epoch::{EpochDescription, Member, MissingPair, RelayAddress};
use crate::event::Event;
use crate::id::{EpochId, GroupId, PeerId, Rank};
use crate::limits;
use crate::message::{Direction, ToPeer};
use crate::round::Round;
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl Master {
    /// A member has links with its neighbours, except for some.
    pub(super) fn handle_ready(&mut self, peer: PeerId, epoch: EpochId, unreachable: Vec<PeerId>) {
        let Some(group) = self.groups.get_mut(&epoch.group) else { return };
        let Some(record) = self.roster.get(peer).filter(|record| record.is_in(epoch)) else { return };
        if let EpochStage::Proposed { description, round, .. } = &mut group.stage
            && description.id == epoch
        {
            let is_other = |p: &PeerId| *p != peer && self.roster.get(*p).is_some_and(|r| r.is_in(epoch));
            let unreachable: BTreeSet<_> = unreachable.into_iter().filter(is_other).collect();
            let neighbours = record.seat.iter().flat_map(|seat| &seat.neighbours).copied();
            let linked: Vec<_> = neighbours.filter(|p| !unreachable.contains(p)).collect();
            round.vote(peer, unreachable);
            linked.into_iter().for_each(|other| self.roster.link_established(peer, other));
        }
    }

    /// A link between two live members makes no progress: the ring is rebuilt without it (R9).
    pub(super) fn handle_link_trouble(
        &mut self,
        now: Time,
        peer: PeerId,
        epoch: EpochId,
        other: PeerId,
        direction: Direction,
    ) {
        let until = now + self.config.timing.edge_distrust;
        let Some(group) = self.groups.get_mut(&epoch.group) else { return };
        let current = group.open_epoch().filter(|d| d.id == epoch);
        let both = current.is_some_and(|d| d.rank_of(peer).is_some() && d.rank_of(other).is_some());
        if !both || peer == other {
            return;
        }
        group.distrust(peer, other, until);
        self.notify(Event::EdgeDistrusted(self.peer_name(peer), self.peer_name(other), direction));
        let cause = Cause::LinkLost { from: self.peer_name(peer), to: self.peer_name(other) };
        self.end_epoch(epoch.group, &cause);
    }

    /// Aborts the undecided operations of a group's epoch, and ends it.
    pub(super) fn end_epoch(&mut self, id: GroupId, cause: &Cause) {
        self.abort_all_ops(id, cause);
        if let Some(group) = self.groups.get_mut(&id) {
            group.stage = EpochStage::Stale;
            group.ended = Some(cause.clone());
        }
    }

    pub(super) fn all_epochs_open(&self) -> bool {
        self.groups.values().all(|g| matches!(g.stage, EpochStage::Open { .. } | EpochStage::Empty))
    }

    pub(super) fn advance_establishing(&mut self, now: Time) -> bool {
        if self.restoration.is_some() {
            return false;
        }
        let ids: Vec<_> = self.groups.keys().copied().collect();
        ids.into_iter().any(|id| self.advance_group(now, id))
    }

    /// Handles a ring from the solver, for a group that waits for it or as a later improvement.
    pub fn handle_tour(&mut self, now: Time, request: u64, answer: TourSolution) {
        let asked = |g: &Group| matches!(g.stage, EpochStage::Solving { request: r, .. } if r == request);
        if let Some(id) = self.groups.iter().find(|(_, g)| asked(g)).map(|(id, _)| *id) {
            self.apply_tour(now, id, answer);
        } else {
            self.apply_better_tour(request, answer.order);
        }
        self.advance(now);
    }

    pub(super) fn expire_establishing(&mut self, now: Time) {
        for id in self.groups.keys().copied().collect::<Vec<_>>() {
            let Some(group) = self.groups.get_mut(&id) else { continue };
            match &group.stage {
                EpochStage::Solving { deadline, .. } if *deadline <= now => {
                    // Try all edges again: a ring that may fail is better than none.
                    group.distrusted.clear();
                    group.stage = EpochStage::Stale;
                }
                EpochStage::Proposed { round, deadline, .. } if *deadline <= now => {
                    for peer in round.missing(self.roster.members(id)) {
                        self.remove(peer, Departure::NotEstablished);
                    }
                }
                _ => {}
            }
        }
    }

    /// Advances one group by a step, if possible.
    fn advance_group(&mut self, now: Time, id: GroupId) -> bool {
        let world = self.roster.group_world(id);
        let Some(group) = self.groups.get_mut(&id) else { return false };
        match &group.stage {
            EpochStage::Stale if world == 0 => {
                if group.next_revision.is_some() || group.ended_before.is_some() || group.lost.is_some() {
                    // Peers that join later must match its revision, and its rounds continue to count.
                    group.stage = EpochStage::Empty;
                } else {
                    self.groups.remove(&id);
                }
                true
            }
            EpochStage::Stale => {
                self.propose(now, id, self.roster.members(id));
                true
            }
            EpochStage::Proposed { round, .. }
                if round.has(world) && round.is_complete(self.roster.members(id)) =>
            {
                self.open_or_rebuild(now, id);
                true
            }
            _ => false,
        }
    }

    fn propose(&mut self, now: Time, id: GroupId, members: Vec<PeerId>) {
        self.abort_all_ops(id, &Cause::EpochEnded);
        let timing = self.config.timing;
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.distrusted.retain(|_, until| *until > now);
        let is_member: BTreeSet<_> = members.iter().copied().collect();
        group.ring.retain(|p| is_member.contains(p));
        let old: BTreeSet<_> = group.ring.iter().copied().collect();
        group.ring.extend(members.iter().filter(|p| !old.contains(p)).copied());
        let edges = (0..group.ring.len()).map(|i| (group.ring[i], group.ring[(i + 1) % group.ring.len()]));
        if members.len() > 1 && edges.clone().any(|(a, b)| group.distrusts(a, b)) {
            return self.request_tour(now, id, members);
        }
        let ring: Vec<_> = group.ring.clone();
        let ended = group.ended.clone().unwrap_or(Cause::EpochEnded);
        let description = self.describe(id, &members, &ring);
        let ring_names = ring.iter().map(|p| self.peer_name(*p)).collect();
        self.notify(Event::EpochProposed(description.id, ring_names));
        let attributes = self.attributes(id);
        let signature = self.config.signer.sign(Claim::Proposed(&description));
        let description_sent = Box::new(description.clone());
        let message = ToPeer::EpochProposed { description: description_sent, ended, attributes, signature };
        self.send_all(members.iter().copied(), &message);
        let Some(group) = self.groups.get_mut(&id) else { return };
        let mut round = Round::new(now);
        if let [only] = members[..] {
            // A single member has no links to report.
            round.vote(only, BTreeSet::new());
        }
        let deadline = now + timing.establish_max;
        self.roster.seat(&description);
        group.stage = EpochStage::Proposed { description, round, deadline };
    }

    fn describe(&mut self, id: GroupId, members: &[PeerId], ring: &[PeerId]) -> EpochDescription {
        let member = |p: &PeerId| {
            self.roster.get(*p).map(|r| Member {
                peer: *p,
                name: r.join.name.clone(),
                host: r.join.host,
                site: r.join.site,
                cores: r.join.cores.clone(),
                addresses: r.join.addresses.clone(),
            })
        };
        // The round trip between two members is at most the sum of theirs to the master.
        let round_trip = |p: &PeerId| self.round_trips.get(&self.roster.get(*p)?.conn?).copied();
        let mut round_trips: Vec<_> = members.iter().filter_map(round_trip).collect();
        round_trips.sort_unstable();
        let longest = round_trips.iter().rev().take(2).sum();
        let described: Arc<[Member]> = members.iter().filter_map(member).collect();
        let ranks: BTreeMap<_, _> =
            members.iter().enumerate().map(|(i, p)| (*p, Rank::from_index(i))).collect();
        let rank = |p: &PeerId| ranks.get(p).copied();
        EpochDescription {
            id: self.next_epoch(id),
            members: described,
            ring: ring.iter().filter_map(rank).collect(),
            mesh: members.len() <= limits::MESH_WORLD_MAX,
            missing: Vec::new(),
            network: None,
            resumed: Vec::new(),
            tuning: self.config.tuning.for_round_trip(longest).bounded(),
            key: self.random_key(),
            relays: self.relays(members),
        }
    }

    /// The relays of the configuration, then the members that volunteer.
    fn relays(&self, members: &[PeerId]) -> Vec<RelayAddress> {
        let configured = self.config.relays.iter().map(|at| RelayAddress { peer: PeerId(0), address: *at });
        let volunteers = members.iter().filter_map(|peer| {
            let join = &self.roster.get(*peer)?.join;
            let address = *join.addresses.first().filter(|_| join.relays)?;
            Some(RelayAddress { peer: *peer, address })
        });
        configured.chain(volunteers).take(limits::RELAYS_MAX).collect()
    }

    fn request_tour(&mut self, now: Time, id: GroupId, members: Vec<PeerId>) {
        let number = self.next_number();
        let deadline = now + self.config.timing.tour_max;
        let request = self.tour_request(id, number, members);
        self.notify(Event::TourRequested(id, request.nodes.len()));
        self.actions.push_back(MasterAction::SolveTour(request));
        if let Some(group) = self.groups.get_mut(&id) {
            group.stage = EpochStage::Solving { request: number, deadline };
        }
    }

    /// A request with all measurements and distrusted pairs of a group.
    pub(super) fn tour_request(&self, id: GroupId, number: u64, nodes: Vec<PeerId>) -> TourRequest {
        let positions: BTreeMap<_, _> = nodes.iter().enumerate().map(|(at, peer)| (*peer, at)).collect();
        let at = |p: &PeerId| positions.get(p).copied();
        let mut bandwidth = Vec::new();
        let mut unreachable = Vec::new();
        if let Some(group) = self.groups.get(&id) {
            for ((from, to), speed) in &group.bandwidth {
                let (Some(from), Some(to)) = (at(from), at(to)) else { continue };
                match speed {
                    Some(speed) => bandwidth.push((from, to, *speed)),
                    None => unreachable.push((from, to)),
                }
            }
            for (a, b) in group.distrusted.keys() {
                let (Some(a), Some(b)) = (at(a), at(b)) else { continue };
                unreachable.extend([(a, b), (b, a)]);
            }
        }
        unreachable.sort_unstable();
        unreachable.dedup();
        bandwidth.retain(|(from, to, _)| unreachable.binary_search(&(*from, *to)).is_err());
        TourRequest { id: number, nodes, bandwidth, unreachable }
    }

    fn apply_tour(&mut self, now: Time, id: GroupId, answer: TourSolution) {
        let left_out = answer.left_out.iter().filter(|p| self.roster.group_of(**p) == Some(id));
        let (old, new): (Vec<PeerId>, Vec<PeerId>) =
            left_out.partition(|p| self.roster.get(**p).is_some_and(|r| r.had_epoch));
        let waits = !old.is_empty() && !self.is_ring_overdue(now, id);
        let evicted = if waits { new } else { [old, new].concat() };
        for peer in &evicted {
            self.remove(*peer, Departure::Unreachable);
        }
        if waits {
            return self.try_links_later(now, id);
        }
        let members = self.roster.members(id);
        let Some(group) = self.groups.get_mut(&id) else { return };
        let members: BTreeSet<_> = members.into_iter().collect();
        let order: Vec<_> = answer.order.into_iter().filter(|p| members.contains(p)).collect();
        let whole = order.len() == members.len() && order.iter().copied().collect::<BTreeSet<_>>() == members;
        if whole {
            group.ring = order;
        } else {
            group.distrusted.clear();
        }
        group.stage = EpochStage::Stale;
        self.notify(Event::TourFound(id, whole));
    }

    /// No ring is left: whether it was so for too long. A link between two members that have worked together may be down
    /// for a while.
    fn is_ring_overdue(&mut self, now: Time, id: GroupId) -> bool {
        let wait_max = self.config.timing.establish_max;
        let Some(group) = self.groups.get_mut(&id) else { return true };
        let earlier = group.no_ring.filter(|(_, last)| *last + wait_max > now);
        let since = earlier.map_or(now, |(since, _)| since);
        group.no_ring = Some((since, now));
        since + wait_max <= now
    }

    /// Proposes an epoch with all edges after a pause.
    fn try_links_later(&mut self, now: Time, id: GroupId) {
        let (request, deadline) = (self.next_number(), now + self.config.timing.heartbeat);
        if let Some(group) = self.groups.get_mut(&id) {
            group.stage = EpochStage::Solving { request, deadline };
        }
        self.notify(Event::TourFound(id, false));
    }

    /// All members have reported: opens the epoch, or rebuilds the ring if one of its edges failed.
    fn open_or_rebuild(&mut self, now: Time, id: GroupId) {
        let until = now + self.config.timing.edge_distrust;
        let Some(group) = self.groups.get_mut(&id) else { return };
        let EpochStage::Proposed { description, round, .. } = core::mem::take(&mut group.stage) else {
            return;
        };
        let mut missing = BTreeSet::new();
        for (peer, unreachable) in round.into_votes() {
            for other in unreachable {
                let (Some(a), Some(b)) = (description.rank_of(peer), description.rank_of(other)) else {
                    continue;
                };
                missing.insert((MissingPair(a.min(b), a.max(b)), peer, other));
            }
        }
        let broken: Vec<_> =
            missing.iter().filter(|(pair, ..)| description.are_ring_neighbours(pair.0, pair.1)).collect();
        if !broken.is_empty() {
            let broken: Vec<_> = broken.into_iter().map(|(_, a, b)| (*a, *b)).collect();
            for (a, b) in &broken {
                group.distrust(*a, *b, until);
            }
            for (a, b) in broken {
                self.notify(Event::EdgeDistrusted(self.peer_name(a), self.peer_name(b), Direction::Both));
            }
            return;
        }
        // A distrusted link may connect and still make no progress.
        let ranks = |(a, b): &(PeerId, PeerId)| Some((description.rank_of(*a)?, description.rank_of(*b)?));
        let distrusted =
            group.distrusted.keys().filter_map(ranks).map(|(a, b)| MissingPair(a.min(b), a.max(b)));
        let pairs: BTreeSet<_> = missing.into_iter().map(|(pair, ..)| pair).chain(distrusted).collect();
        let missing = pairs.into_iter().collect();
        let network = self.network_of(id, &description);
        let description = EpochDescription { missing, network, ..description };
        let resumed = self.resumed_ops(id, &description);
        self.open(id, EpochDescription { resumed, ..description });
    }

    fn open(&mut self, id: GroupId, description: EpochDescription) {
        self.notify(Event::EpochOpened(description.id, description.missing.len()));
        self.announce_open(id, &description);
        if let Some(group) = self.groups.get_mut(&id) {
            group.ops.clear();
            group.decided.clear();
            group.plans = Default::default();
            group.began_after = group.ended.take();
            for member in description.members.iter() {
                if let Some(record) = self.roster.get_mut(member.peer) {
                    record.had_epoch = true;
                }
            }
            group.stage = EpochStage::Open { description };
        }
    }

    /// Tells all members that the epoch is open.
    pub(super) fn announce_open(&mut self, id: GroupId, description: &EpochDescription) {
        let (attributes, rounds) = (self.attributes(id), self.rounds_of(id));
        let (missing, network) = (description.missing.clone(), description.network.clone());
        let resumed = description.resumed.clone();
        let signature = self.config.signer.sign(Claim::Opened(description));
        let epoch = description.id;
        let message = ToPeer::EpochOpened { epoch, missing, network, resumed, attributes, rounds, signature };
        self.send_all(description.members.iter().map(|member| member.peer), &message);
    }
}
