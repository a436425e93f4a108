//! Optimisation of the topology: measure the unmeasured pairs, request rings from the solver, adopt them.

use super::group::{EpochStage, Group};
use super::phase::PhaseRound;
use super::{Master, MasterAction};
use crate::event::Event;
use crate::id::{GroupId, PeerId};
use crate::message::{Answer, Phase, ToPeer};
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};

/// A running measurement of a pair.
#[derive(Debug)]
pub(super) struct RunningProbe {
    group: GroupId,
    prober: PeerId,
    target: PeerId,
    deadline: Time,
}

/// The steps after all have voted.
#[derive(Debug)]
pub(super) enum Optimisation {
    Measure { running: BTreeMap<u64, RunningProbe> },
    Solve { waiting: BTreeMap<u64, GroupId>, deadline: Time },
    Adopt,
}

impl Optimisation {
    pub fn deadline(&self) -> Option<Time> {
        match self {
            Self::Measure { running } => running.values().map(|p| p.deadline).min(),
            Self::Solve { deadline, .. } => Some(*deadline),
            Self::Adopt => None,
        }
    }
}

impl Master {
    pub(super) fn advance_optimise(&mut self, now: Time) -> bool {
        if self.restoration.is_some() {
            return false;
        }
        match &self.optimising {
            None => {
                let (world, roster) = (self.roster.world(), &self.roster);
                let complete = |votes: &&mut PhaseRound| {
                    votes.round.has(world) && votes.round.is_complete(roster.accepted())
                };
                let Some(votes) = self.votes.get_mut(&Phase::Optimise).filter(complete) else { return false };
                votes.acting = true;
                self.optimising = Some(Optimisation::Measure { running: BTreeMap::new() });
                self.count_round(Phase::Optimise);
                // Failed pairs are measured again.
                self.groups.values_mut().for_each(|g| g.bandwidth.retain(|_, speed| speed.is_some()));
                true
            }
            Some(Optimisation::Measure { running }) => {
                let idle = running.is_empty();
                // Probes are authenticated by the key of an open epoch.
                self.all_epochs_open()
                    && (self.assign_probes(now) || (idle && self.request_better_tours(now)))
            }
            Some(Optimisation::Solve { waiting, .. }) => {
                if !waiting.is_empty() {
                    return false;
                }
                self.optimising = Some(Optimisation::Adopt);
                true
            }
            Some(Optimisation::Adopt) => self.all_epochs_open() && self.finish_optimise(),
        }
    }

    /// Handles the result of a probe.
    pub(super) fn handle_probed(
        &mut self,
        peer: PeerId,
        probe: u64,
        forward: Option<u64>,
        backward: Option<u64>,
    ) {
        let Some(Optimisation::Measure { running }) = self.optimising.as_mut() else {
            return;
        };
        if running.get(&probe).is_none_or(|p| p.prober != peer) {
            return;
        }
        if let Some(probe) = running.remove(&probe) {
            self.record_probe(&probe, forward.filter(|b| *b > 0), backward.filter(|b| *b > 0));
        }
    }

    /// Records overdue probes as failed, and gives up waiting for an overdue solver.
    pub(super) fn expire_probes(&mut self, now: Time) {
        match self.optimising.as_mut() {
            Some(Optimisation::Measure { running }) => {
                let late: Vec<_> = running.extract_if(.., |_, p| p.deadline <= now).map(|(_, p)| p).collect();
                for probe in late {
                    self.record_probe(&probe, None, None);
                }
            }
            Some(Optimisation::Solve { waiting, deadline }) if *deadline <= now => waiting.clear(),
            _ => {}
        }
    }

    /// Ends the probes of a peer that departed.
    pub(super) fn forget_probes(&mut self, peer: PeerId) {
        if let Some(Optimisation::Measure { running }) = self.optimising.as_mut() {
            running.retain(|_, p| p.prober != peer && p.target != peer);
        }
    }

    /// Handles a ring for an optimisation, or an improvement after its end.
    pub(super) fn apply_better_tour(&mut self, request: u64, order: Vec<PeerId>) {
        let waiting = match self.optimising.as_mut() {
            Some(Optimisation::Solve { waiting, .. }) => waiting.remove(&request),
            _ => None,
        };
        let asked = |g: &&mut Group| g.improving == Some(request);
        let Some((id, group)) = self.groups.iter_mut().find(|(_, g)| asked(g)).map(|(id, g)| (*id, g)) else {
            return;
        };
        let members: BTreeSet<_> = group.ring.iter().copied().collect();
        let same = order.len() == members.len() && order.iter().copied().collect::<BTreeSet<_>>() == members;
        let taken = same && !is_same_ring(&order, &group.ring);
        if taken && waiting.is_some() {
            group.ring = order;
            group.stage = EpochStage::Stale;
        } else if taken {
            group.better_ring = Some(order);
        }
        self.notify(Event::TourFound(id, taken));
    }

    /// Starts the probes whose peers and hosts are in no other probe.
    fn assign_probes(&mut self, now: Time) -> bool {
        let Some(Optimisation::Measure { running }) = self.optimising.as_ref() else {
            return false;
        };
        let ends = |p: &RunningProbe| [p.prober, p.target];
        let mut busy: BTreeSet<_> =
            running.values().flat_map(ends).flat_map(|p| self.probe_resources(p)).collect();
        let mut assigned = Vec::new();
        for (id, group) in &self.groups {
            let members = self.roster.members(*id);
            for (i, a) in members.iter().enumerate() {
                for b in &members[i + 1..] {
                    let resources: Vec<_> =
                        self.probe_resources(*a).into_iter().chain(self.probe_resources(*b)).collect();
                    if group.bandwidth.contains_key(&(*a, *b)) || resources.iter().any(|h| busy.contains(h)) {
                        continue;
                    }
                    busy.extend(resources);
                    assigned.push((*id, *a, *b));
                }
            }
        }
        let any = !assigned.is_empty();
        for (group, prober, target) in assigned {
            self.start_probe(now, group, prober, target);
        }
        any
    }

    fn start_probe(&mut self, now: Time, group: GroupId, prober: PeerId, target: PeerId) {
        let number = self.next_number();
        let deadline = now + self.config.timing.probe_max;
        let open = self.groups.get(&group).and_then(|g| g.open_epoch());
        let Some((epoch, key)) = open.map(|d| (d.id, d.key)) else { return };
        let addresses = self.roster.get(target).map(|r| r.join.addresses.clone()).unwrap_or_default();
        if let Some(Optimisation::Measure { running }) = self.optimising.as_mut() {
            running.insert(number, RunningProbe { group, prober, target, deadline });
        }
        self.notify(Event::ProbeAssigned(self.peer_name(prober), self.peer_name(target)));
        self.send(prober, ToPeer::Probe { probe: number, peer: target, addresses, epoch, key });
    }

    fn record_probe(&mut self, probe: &RunningProbe, forward: Option<u64>, backward: Option<u64>) {
        let names = (self.peer_name(probe.prober), self.peer_name(probe.target));
        self.notify(Event::Probed(names.0, names.1, forward, backward));
        if let Some(group) = self.groups.get_mut(&probe.group) {
            group.bandwidth.insert((probe.prober, probe.target), forward);
            group.bandwidth.insert((probe.target, probe.prober), backward);
            for (from, to, bytes_per_s) in
                [(probe.prober, probe.target, forward), (probe.target, probe.prober, backward)]
            {
                if let Some(bytes_per_s) = bytes_per_s {
                    group.measured.record_bandwidth(from, to, bytes_per_s);
                }
            }
        }
    }

    /// All pairs are measured: adopts rings that were found since the last time, and requests new ones.
    fn request_better_tours(&mut self, now: Time) -> bool {
        let mut waiting = BTreeMap::new();
        for id in self.groups.keys().copied().collect::<Vec<_>>() {
            let members = self.roster.members(id);
            if members.len() < 3 {
                continue;
            }
            if let Some(group) = self.groups.get_mut(&id)
                && let Some(better) = group.better_ring.take()
            {
                group.ring = better;
                group.stage = EpochStage::Stale;
                continue;
            }
            let number = self.next_number();
            let request = self.tour_request(id, number, members);
            self.notify(Event::TourRequested(id, request.nodes.len()));
            self.actions.push_back(MasterAction::SolveTour(request));
            if let Some(group) = self.groups.get_mut(&id) {
                group.improving = Some(number);
            }
            waiting.insert(number, id);
        }
        let deadline = now + self.config.timing.tour_max;
        self.optimising = Some(Optimisation::Solve { waiting, deadline });
        true
    }

    fn finish_optimise(&mut self) -> bool {
        self.optimising = None;
        let Some(votes) = self.votes.remove(&Phase::Optimise) else { return false };
        self.complete_phase(Phase::Optimise, votes.round, Answer::Topology);
        true
    }

    /// What a probe of this peer occupies: the peer and its host.
    fn probe_resources(&self, peer: PeerId) -> Vec<u128> {
        let host = self.roster.get(peer).map(|r| u128::from(r.join.host));
        host.into_iter().chain([peer.0]).collect()
    }
}

/// Whether two rings have the same directed edges.
fn is_same_ring(a: &[PeerId], b: &[PeerId]) -> bool {
    let Some(shift) = a.first().and_then(|first| b.iter().position(|p| p == first)) else {
        return a.is_empty() && b.is_empty();
    };
    a.len() == b.len() && a.iter().enumerate().all(|(i, p)| b[(i + shift) % b.len()] == *p)
}
