//! Replicas: their ranks are admitted together, and lost together.

use super::Master;
use super::roster::{PeerRecord, PeerStatus};
use crate::cause::{Departure, ReplicaRejection};
use crate::event::Event;
use crate::id::{GroupId, PeerId, ReplicaId};
use crate::limits;
use crate::message::Replica;
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};

impl Master {
    /// The pending peers that can be admitted now, oldest first: of a replica all, or none.
    pub(super) fn admissible(&self) -> Vec<PeerId> {
        let replicas = self.replicas();
        // The others would wait for a suspect. It is admitted after it has resumed.
        let is_ready = |rank: &&PeerRecord| match rank.status {
            PeerStatus::Pending => !self.suspects.contains_key(&rank.peer) && !self.is_held_back(rank.peer),
            // Another rank was demoted, or had no epoch yet when the master restarted.
            PeerStatus::Accepted => true,
            PeerStatus::Returned => false,
        };
        let mut free = limits::WORLD_MAX.saturating_sub(self.roster.world());
        let mut found = BTreeSet::new();
        for peer in self.roster.pending() {
            let Some(record) = self.roster.get(peer).filter(|_| !found.contains(&peer)) else { continue };
            let alone = [record];
            let ranks = record.replica.map_or(&alone[..], |replica| &replicas[&replica.id]);
            let is_whole = record.replica.is_none_or(|replica| ranks.len() >= replica.ranks as usize);
            let pending = || ranks.iter().filter(|rank| rank.status == PeerStatus::Pending);
            if is_whole && ranks.iter().all(is_ready) && pending().count() <= free {
                free -= pending().count();
                found.extend(pending().map(|rank| rank.peer));
            }
        }
        self.roster.pending().filter(|peer| found.contains(peer)).collect()
    }

    /// Whether all ranks of a peer's replica are here. A peer without a replica is whole.
    pub(super) fn is_whole(&self, peer: PeerId) -> bool {
        let replica = self.roster.get(peer).and_then(|record| record.replica);
        replica.is_none_or(|replica| self.other_ranks(peer).len() + 1 >= replica.ranks as usize)
    }

    /// Whether a rank of a peer's replica is more than pending.
    pub(super) fn is_replica_admitted(&self, peer: PeerId) -> bool {
        let is_admitted =
            |peer: &PeerId| self.roster.get(*peer).is_some_and(|r| r.status != PeerStatus::Pending);
        let has_replica = self.roster.get(peer).is_some_and(|record| record.replica.is_some());
        has_replica && [peer].iter().chain(&self.other_ranks(peer)).any(is_admitted)
    }

    /// Why a rank cannot join its replica. One that `returns` was registered by an earlier incarnation.
    pub(super) fn check_replica(
        &self,
        group: GroupId,
        replica: Replica,
        returns: bool,
    ) -> Option<ReplicaRejection> {
        let Replica { id, ranks: stated } = replica;
        if !(1..=limits::REPLICA_RANKS_MAX).contains(&stated) {
            return Some(ReplicaRejection::Ranks(stated));
        }
        let mut others = 0;
        for record in self.roster.iter() {
            let Some(known) = record.replica.filter(|known| known.id == id) else { continue };
            others += 1;
            if record.status != PeerStatus::Pending && !returns {
                return Some(ReplicaRejection::Admitted);
            }
            if known.ranks != stated {
                return Some(ReplicaRejection::RanksDiffer { stated, known: known.ranks });
            }
            if record.join.group == group {
                return Some(ReplicaRejection::GroupTaken(group));
            }
        }
        (others >= stated).then_some(ReplicaRejection::Complete(stated))
    }

    /// What becomes of the other ranks of a replica when one departs.
    pub(super) fn departures_with(&mut self, peer: PeerId, how: &Departure) -> Vec<(PeerId, Departure)> {
        let Some(record) = self.roster.get(peer).filter(|record| record.replica.is_some()) else {
            return Vec::new();
        };
        let (status, was_demoted) = (record.status, record.outdated_before > 0);
        let others = self.other_ranks(peer);
        if *how == Departure::Left {
            // The others stay, and are the whole replica, unless it has never been admitted.
            let remain = others.iter().filter(|_| status == PeerStatus::Accepted || was_demoted);
            for other in remain {
                if let Some(replica) = self.roster.get_mut(*other).and_then(|r| r.replica.as_mut()) {
                    replica.ranks = replica.ranks.saturating_sub(1);
                }
            }
            return Vec::new();
        }
        if status == PeerStatus::Returned && self.restoration.is_some() {
            // It may return again. What the others report must not be lost: they are removed when the run continues.
            return Vec::new();
        }
        let why = format!("{}, a rank of its replica, {how}", self.peer_name(peer));
        others.into_iter().map(|other| (other, evicted(&why))).collect()
    }

    /// The run continues: removes members of replicas of which not all ranks have returned.
    pub(super) fn remove_incomplete_replicas(&mut self) {
        let mut departing = Vec::new();
        for ranks in self.replicas().into_values() {
            let is_whole =
                |rank: &&PeerRecord| rank.replica.is_none_or(|replica| ranks.len() >= replica.ranks as usize);
            if ranks.iter().any(|rank| rank.status == PeerStatus::Accepted) && !ranks.iter().all(is_whole) {
                let why = "not all ranks of its replica returned after the master restarted";
                departing.extend(ranks.iter().map(|rank| (rank.peer, evicted(why))));
            }
        }
        self.remove_all(departing);
    }

    /// The first rank of a replica has joined: the log says so if the others do not follow in time.
    pub(super) fn note_replica(&mut self, now: Time, peer: PeerId) {
        let replica = self.roster.get(peer).and_then(|record| record.replica);
        if let Some(replica) = replica.filter(|_| self.other_ranks(peer).is_empty()) {
            self.replica_waits.insert(replica.id, now + self.config.timing.warn_after);
        }
    }

    /// When the next warning is due.
    pub(super) fn replica_warning_timeout(&self) -> Option<Time> {
        self.replica_waits.values().min().copied()
    }

    /// Warns of replicas that wait for ranks that have not joined.
    pub(super) fn send_replica_warnings(&mut self, now: Time) {
        let due: Vec<_> = self.replica_waits.extract_if(.., |_, at| *at <= now).map(|(id, _)| id).collect();
        for id in due {
            let ranks = self.roster.iter().filter(|record| record.replica.is_some_and(|r| r.id == id));
            let ranks: Vec<_> = ranks.map(|record| record.peer).collect();
            let expected = ranks.first().and_then(|peer| self.roster.get(*peer)?.replica).map(|r| r.ranks);
            if let Some(expected) = expected.filter(|expected| (ranks.len() as u64) < u64::from(*expected)) {
                let joined = self.peer_names(&ranks);
                self.notify(Event::ReplicaIncomplete { joined, missing: expected - ranks.len() as u32 });
            }
        }
    }

    /// The other ranks of a peer's replica.
    fn other_ranks(&self, peer: PeerId) -> Vec<PeerId> {
        let Some(id) = self.roster.get(peer).and_then(|record| record.replica).map(|replica| replica.id)
        else {
            return Vec::new();
        };
        let others = self.roster.iter().filter(|r| r.peer != peer && r.replica.is_some_and(|r| r.id == id));
        others.map(|record| record.peer).collect()
    }

    fn replicas(&self) -> BTreeMap<ReplicaId, Vec<&PeerRecord>> {
        let mut replicas: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for record in self.roster.iter() {
            if let Some(replica) = record.replica {
                replicas.entry(replica.id).or_default().push(record);
            }
        }
        replicas
    }
}

fn evicted(why: &str) -> Departure {
    Departure::Evicted(super::admission::truncate_text(why, limits::TEXT_BYTES_MAX / 2))
}
