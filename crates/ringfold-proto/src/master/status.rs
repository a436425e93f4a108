//! A snapshot of the run, for `ringfold status` and the web page. It only reads what the machine decides by.

use super::Master;
use super::group::{EpochStage, Group};
use super::roster::{PeerRecord, PeerStatus as RosterStatus};
use super::wait_warning::OpenCall;
use crate::cause::{JointCall, PeerName, Wait};
use crate::event::Event;
use crate::id::{GroupId, PeerId};
use crate::status::{
    EdgeStatus, GroupStatus, Health, Membership, MissingStatus, PeerStatus, RunStatus, WaitStatus,
};
use crate::time::Time;
use std::collections::BTreeMap;

/// The fewest digits of an id that name a peer.
const ID_PREFIX_MIN: usize = 4;
/// Peers that an error lists.
const CANDIDATES_MAX: usize = 16;

impl Master {
    /// The state of the run.
    pub fn status(&self, now: Time) -> RunStatus {
        let mut open = self.open_calls();
        open.sort_by_key(|open| open.since);
        let verdict = self.problem(now, &open);
        let health = if verdict.is_some() { Health::Degraded } else { Health::Healthy };
        let calls = calls_of(&open, &self.roster.accepted().collect::<Vec<_>>());
        let mut records: Vec<_> = self.roster.iter().collect();
        records.sort_by_key(|record| record.seniority);
        RunStatus {
            verdict: verdict.unwrap_or_else(|| self.good_verdict()),
            health,
            epoch: self.groups.values().filter_map(|g| g.open_epoch()).map(|d| d.id.counter).max(),
            groups: self.group_ids().map(|id| self.group_status(id)).collect(),
            peers: records
                .into_iter()
                .map(|record| self.peer_status(now, record, calls.get(&record.peer)))
                .collect(),
            ring: self.groups.iter().flat_map(|(id, group)| self.edges(*id, group)).collect(),
            waits: open.iter().map(|open| self.wait_status(now, open)).collect(),
            draining: self.draining,
            masters: Vec::new(),
        }
    }

    /// The peer with this id; or else the only one with this name, or whose id or name begins so. An error lists candidates.
    pub fn find_peer(&self, text: &str) -> Result<PeerName, String> {
        let id = |record: &PeerRecord| format!("{:032x}", record.peer.0);
        let all: Vec<_> = self.roster.iter().collect();
        let find = |is_it: &dyn Fn(&PeerRecord) -> bool| -> Vec<_> {
            all.iter().copied().filter(|record| is_it(record)).collect()
        };
        // A short text that is a name may begin an id by chance.
        let begins_id = |r: &PeerRecord| text.len() >= ID_PREFIX_MIN && id(r).starts_with(text);
        let mut found = find(&|r| id(r) == text);
        if found.is_empty() {
            // A peer cannot hide another one by taking the beginning of its id as a name.
            found = find(&|r| r.join.name == text || begins_id(r));
        }
        if found.is_empty() && !text.is_empty() {
            found = find(&|r| r.join.name.starts_with(text));
        }
        let list = |records: &[&PeerRecord]| {
            let shown = records.iter().take(CANDIDATES_MAX);
            shown.map(|r| format!("{} ({})", r.join.name, id(r))).collect::<Vec<_>>().join(", ")
        };
        match found.as_slice() {
            [one] => Ok(self.peer_name(one.peer)),
            [] if all.is_empty() => Err(format!("no peer is called {text:?}: the run has none")),
            [] => Err(format!("no peer is called {text:?}: there are {}", list(&all))),
            several => Err(format!("several peers are called {text:?}: use an id of {}", list(several))),
        }
    }

    /// Refuses new peers, or accepts them again.
    pub fn drain(&mut self, draining: bool) {
        if core::mem::replace(&mut self.draining, draining) != draining {
            self.notify(Event::Draining(draining));
        }
    }

    fn good_verdict(&self) -> String {
        match (self.draining, self.roster.len()) {
            (true, peers) => format!("draining: no peer may join, {peers} are left"),
            (false, 0) if self.epoch_counter > 0 => {
                "healthy: all peers have left; the next one begins a new run".into()
            }
            (false, 0) => "healthy: no peer has joined yet".into(),
            (false, _) => "healthy".into(),
        }
    }

    /// What is wrong, the most important first.
    fn problem(&self, now: Time, open: &[OpenCall]) -> Option<String> {
        if self.restoration.is_some() {
            return Some("the master was restarted, and waits for its peers to return".into());
        }
        let lost = |group: &Group| group.lost.is_some();
        if let Some((id, _)) =
            self.groups.iter().find(|(id, g)| lost(g) && self.roster.group_world(**id) == 0)
        {
            let pending = self.group_pending(*id);
            return Some(match pending {
                0 => format!("all peers of {id} have gone, and with them its shared state: none is back"),
                _ => format!("all peers of {id} were lost: {pending} are back, and wait for the others"),
            });
        }
        let overdue = |since: Time| now.since(since) >= self.config.timing.warn_after;
        // Peers that wait for each other are a worse problem than one that computes.
        let wait = open.iter().find(|open| overdue(open.since) && !open.begun);
        if let Some(open) = wait {
            return Some(self.wait_of(now, open).to_string());
        }
        if let Some((peer, since)) = self.suspects.iter().min_by_key(|(_, since)| **since) {
            let (who, time) = (self.peer_name(*peer), now.since(*since).as_secs_f64());
            return Some(format!("the connection of {who} ended {time:.1} s ago: it may resume"));
        }
        let connecting = self.groups.iter().find_map(|(id, group)| match &group.stage {
            EpochStage::Proposed { description, round, .. } if overdue(round.opened) => {
                let members = description.members.iter().map(|member| member.peer);
                Some((*id, round.missing(members)))
            }
            _ => None,
        });
        if let Some((id, missing)) = connecting {
            let names: Vec<_> = self.peer_names(&missing).into_iter().map(|who| who.name).collect();
            return Some(format!("{id} connects its members: {} are not ready", names.join(", ")));
        }
        self.isolated.then(|| "no peer is heard: is the network of the master down?".into())
    }

    fn group_ids(&self) -> impl Iterator<Item = GroupId> {
        let ids = self.roster.iter().map(|record| record.join.group);
        ids.collect::<std::collections::BTreeSet<_>>().into_iter()
    }

    fn group_pending(&self, id: GroupId) -> usize {
        let is_pending = |r: &&PeerRecord| r.status != RosterStatus::Accepted && r.join.group == id;
        self.roster.iter().filter(is_pending).count()
    }

    fn group_status(&self, id: GroupId) -> GroupStatus {
        let group = self.groups.get(&id);
        GroupStatus {
            group: id.0,
            epoch: group.and_then(Group::open_epoch).map(|epoch| epoch.id.counter),
            stage: group.map_or("changing", |group| stage_name(&group.stage)).into(),
            members: self.roster.group_world(id),
            pending: self.group_pending(id),
            revision: group.and_then(Group::last_revision).map(|revision| revision.0),
            operations: group.map_or(0, |group| group.ops.len()),
        }
    }

    fn peer_status(&self, now: Time, record: &PeerRecord, call: Option<&(JointCall, Time)>) -> PeerStatus {
        let membership = match record.status {
            RosterStatus::Accepted => Membership::Member,
            RosterStatus::Pending => Membership::Pending,
            RosterStatus::Returned => Membership::Returned,
        };
        let sync = self.groups.get(&record.join.group).and_then(|group| group.sync.as_ref());
        let is_fetching = sync.is_some_and(|sync| sync.is_transferring(record.peer));
        let fetched = record.fetched.filter(|_| is_fetching);
        let fetched_percent = fetched.map(|(done, all)| percent(done, all));
        PeerStatus {
            name: record.join.name.clone(),
            id: format!("{:032x}", record.peer.0),
            address: record.join.addresses.first().map(ToString::to_string),
            group: record.join.group.0,
            replica: record.replica.map(|replica| format!("{:032x}", replica.id.0)),
            membership,
            state: match (membership, call) {
                _ if record.conn.is_none() => "disconnected".into(),
                (Membership::Pending, _) => "waiting to join".into(),
                (Membership::Returned, _) => "waiting for the run to continue".into(),
                _ if fetched_percent.is_some() => format!("fetching {} %", fetched_percent.unwrap_or(0)),
                _ if is_fetching => "serving or checking the state".into(),
                _ if self.is_connecting(record) => "connecting".into(),
                (_, Some((JointCall::Collective(kind, tag), _))) => format!("in {} {tag}", kind.name()),
                (_, Some((JointCall::Vote(phase), _))) => format!("voting in {phase}"),
                (_, Some((JointCall::Group(call), _))) => format!("in {call}"),
                (_, None) => "computing".into(),
            },
            call: call.map(|(call, _)| call.to_string()),
            call_s: call.map(|(_, since)| now.since(*since).as_secs_f64()),
            fetched_percent,
            heard_s: now.since(record.heard_at).as_secs_f64(),
            connected: record.conn.is_some(),
            revision: record.synced.map(|revision| revision.0),
        }
    }

    /// Whether a member establishes links for a proposed epoch.
    fn is_connecting(&self, record: &PeerRecord) -> bool {
        match self.groups.get(&record.join.group).map(|group| &group.stage) {
            Some(EpochStage::Proposed { round, .. }) => round.vote_of(record.peer).is_none(),
            _ => false,
        }
    }

    fn edges(&self, id: GroupId, group: &Group) -> Vec<EdgeStatus> {
        let Some(epoch) = group.open_epoch().filter(|epoch| epoch.ring.len() > 1) else { return Vec::new() };
        let peer_at = |at: usize| {
            let rank = epoch.ring.get(at % epoch.ring.len())?;
            epoch.members.get(rank.index()).map(|member| member.peer)
        };
        // Between two peers both directions are one edge each, as in a larger ring.
        let edge = |at: usize| {
            let (from, to) = (peer_at(at)?, peer_at(at + 1)?);
            let path = group.measured.path(from, to);
            let probed = group.bandwidth.get(&(from, to)).copied().flatten();
            let measured = (path.kib_per_s > 0).then(|| u64::from(path.kib_per_s) * 1024);
            Some(EdgeStatus {
                group: id.0,
                from: self.peer_name(from).name,
                to: self.peer_name(to).name,
                bytes_per_s: measured.or(probed),
                round_trip_s: (path.round_trip_us > 0).then(|| f64::from(path.round_trip_us) / 1e6),
            })
        };
        (0..epoch.ring.len()).filter_map(edge).collect()
    }

    fn wait_status(&self, now: Time, open: &OpenCall) -> WaitStatus {
        let wait: Wait = self.wait_of(now, open);
        let name = |peer: &PeerId| self.peer_name(*peer).name;
        WaitStatus {
            text: wait.to_string(),
            group: open.group.map(|group| group.0),
            call: open.call.to_string(),
            waited_s: now.since(open.since).as_secs_f64(),
            waiting: open.waiting.iter().map(name).collect(),
            missing: wait
                .missing
                .into_iter()
                .map(|missing| MissingStatus {
                    name: missing.who.name,
                    heard_s: missing.heard_ms.map(|ms| f64::from(ms) / 1e3),
                    waits_in: missing.waits_in.map(|call| call.to_string()),
                })
                .collect(),
        }
    }
}

/// The call of each peer that is in one, and when it began.
fn calls_of(open: &[OpenCall], members: &[PeerId]) -> BTreeMap<PeerId, (JointCall, Time)> {
    let mut calls = BTreeMap::new();
    for open in open {
        let begun: &[PeerId] = if open.begun { &open.missing } else { &[] };
        for peer in open.waiting.iter().chain(begun).filter(|peer| members.contains(peer)) {
            calls.entry(*peer).or_insert((open.call, open.since));
        }
    }
    calls
}

fn stage_name(stage: &EpochStage) -> &'static str {
    match stage {
        EpochStage::Open { .. } => "open",
        EpochStage::Proposed { .. } => "connecting",
        EpochStage::Solving { .. } => "planning",
        EpochStage::Stale | EpochStage::Empty => "changing",
    }
}

fn percent(done: u64, all: u64) -> u8 {
    let percent = u128::from(done) * 100 / u128::from(all.max(1));
    percent.min(100) as u8
}
