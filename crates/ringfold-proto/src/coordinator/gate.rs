//! The gate: decisions of the master that leads leave its process only while a quorum supports it.

use super::{Coordinator, LeaseState, OtherMaster, Role, unnumbered};
use crate::charter::{Charter, Electorate, Support};
use crate::claim::Signature;
use crate::event::StepDown;
use crate::id::{ConnId, PeerId, Term};
use crate::master::{Master, MasterAction};
use crate::message::{Numbered, ToMaster, ToPeer};
use crate::time::Time;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Beats whose time is remembered: more than a voter can be late with its echo and still count.
const BEATS_REMEMBERED: usize = 64;

/// What a voter has confirmed.
#[derive(Clone, Copy, Debug, Default)]
struct Confirmed {
    /// When the last beat was sent that it has heard.
    beat_sent_at: Option<Time>,
    /// The number of the newest charter that it knows.
    charter: (Term, u64),
}

/// The state of a master that leads.
pub(super) struct Leadership {
    pub term: Term,
    pub machine: Master,
    pub conns: BTreeMap<ConnId, PeerId>,
    /// Connections of peers that are to report again. What they send before that is for a master that they have not found.
    pub asked: BTreeSet<ConnId>,
    /// The highest term that a voter has promised.
    pub rival: Term,
    beat: u64,
    beats: VecDeque<(u64, Time)>,
    members: BTreeMap<PeerId, Confirmed>,
    masters: BTreeMap<u16, Confirmed>,
    /// Actions of the machine that wait for the quorum.
    held: VecDeque<MasterAction>,
    /// All beats of a quorum up to this time were heard.
    heard_by_quorum: Option<Time>,
    /// A member has heard the beat of this time.
    heard_by_member: Option<Time>,
    /// Since when there is no quorum.
    alone_since: Option<Time>,
}

impl Leadership {
    pub fn new(term: Term, machine: Master) -> Self {
        Self {
            term,
            machine,
            conns: BTreeMap::new(),
            asked: BTreeSet::new(),
            rival: Term(0),
            beat: 0,
            beats: VecDeque::new(),
            members: BTreeMap::new(),
            masters: BTreeMap::new(),
            held: VecDeque::new(),
            heard_by_quorum: None,
            heard_by_member: None,
            alone_since: None,
        }
    }

    pub fn handle_connected(&mut self, now: Time, conn: ConnId, peer: PeerId) {
        self.conns.insert(conn, peer);
        self.machine.handle_connected(now, conn, peer);
    }

    pub fn handle_message(&mut self, now: Time, conn: ConnId, message: Numbered<ToMaster>) {
        match message.message {
            ToMaster::Voter { promised, charter, beat } => {
                let Some(peer) = self.conns.get(&conn).copied() else { return };
                if promised == self.term {
                    let sent_at = self.sent_at(beat);
                    self.members.entry(peer).or_default().confirm(sent_at, charter);
                }
                self.rival = self.rival.max(promised);
            }
            _ => {
                if message.message.resume().is_some() {
                    self.asked.remove(&conn);
                }
                if !self.asked.contains(&conn) {
                    self.machine.handle_message(now, conn, message);
                }
            }
        }
    }

    /// A master of this term has confirmed a beat and a charter.
    pub fn confirm_master(&mut self, from: u16, beat: u64, charter: (Term, u64)) {
        let sent_at = self.sent_at(beat);
        self.masters.entry(from).or_default().confirm(sent_at, charter);
    }

    /// A voter granted its vote: it counts as heard from when it was asked.
    pub fn count_vote(&mut self, master: u16, at: Time) {
        self.masters.entry(master).or_default().beat_sent_at = Some(at);
    }

    pub fn beat(&mut self, now: Time) {
        self.beat += 1;
        self.beats.push_back((self.beat, now));
        if self.beats.len() > BEATS_REMEMBERED {
            self.beats.pop_front();
        }
    }

    pub fn last_beat(&self) -> u64 {
        self.beat
    }

    fn sent_at(&self, beat: u64) -> Option<Time> {
        self.beats.iter().find(|(number, _)| *number == beat).map(|(_, at)| *at)
    }

    /// Tells all peers that this master leads, with the charter for those that have not confirmed it.
    pub fn lead_messages(
        &self,
        charter: Option<&Charter>,
        signature: Option<&Signature>,
    ) -> Vec<MasterAction> {
        let message = |(conn, peer): (&ConnId, &PeerId)| {
            let known = self.members.get(peer).map(|confirmed| confirmed.charter);
            let charter = charter.filter(|charter| known != Some(charter.number())).cloned().map(Box::new);
            let signature = signature.filter(|_| charter.is_some()).cloned().map(Box::new);
            unnumbered(*conn, ToPeer::Lead { term: self.term, beat: self.beat, charter, signature })
        };
        self.conns.iter().map(message).collect()
    }

    /// Whether this master leads without needing that one, since it heard that the other has forgotten its promises.
    pub fn vouches_for(&self, other: Option<&OtherMaster>) -> bool {
        let blank_since = other.and_then(|other| other.blank_since);
        blank_since.is_some_and(|since| self.heard_by_quorum.is_some_and(|heard| heard > since))
    }

    /// The voters that confirmed what is asked for.
    fn support(&self, me: u16, is_given: impl Fn(&Confirmed) -> bool) -> Support {
        let members = self.members.iter().filter(|(_, confirmed)| is_given(confirmed));
        let masters = self.masters.iter().filter(|(_, confirmed)| is_given(confirmed));
        Support {
            members: members.map(|(peer, _)| *peer).collect(),
            masters: masters.map(|(master, _)| *master).chain([me]).collect(),
        }
    }
}

impl Confirmed {
    fn confirm(&mut self, beat_sent_at: Option<Time>, charter: (Term, u64)) {
        self.beat_sent_at = self.beat_sent_at.max(beat_sent_at);
        self.charter = self.charter.max(charter);
    }
}

impl Coordinator {
    /// How long a quorum counts after the beat that it has heard. Shorter than others wait before they take over.
    fn lease(&self) -> Duration {
        self.config.timing.silence_max
    }

    /// Passes the machine's actions on, as far as a quorum supports this master.
    pub(super) fn release(&mut self, now: Time) {
        let (is_single, lease, masters, me) = (self.is_single(), self.lease(), self.list.len(), self.list.me);
        loop {
            let Role::Leader(leadership) = &mut self.role else { return };
            while let Some(action) = leadership.machine.poll_action() {
                match &action {
                    MasterAction::SetMembers(_) if is_single => {}
                    _ if is_single => self.actions.push_back(action),
                    MasterAction::SolveTour(_) => self.actions.push_back(action),
                    MasterAction::Send { message, .. } if message.message == ToPeer::Heartbeat => {
                        self.actions.push_back(action);
                    }
                    _ => leadership.held.push_back(action),
                }
            }
            if is_single {
                return;
            }
            if leadership.rival > leadership.term {
                return self.stop_leading(now, StepDown::Deposed);
            }
            if let Some(lease) = self.lease {
                let term = leadership.term;
                let is_held = matches!(lease, LeaseState::Held { term: held, until, .. } if held == term && now < until);
                match leadership.held.pop_front_if(|_| is_held) {
                    Some(MasterAction::SetMembers(_)) => continue,
                    Some(action) => self.actions.push_back(action),
                    None => return,
                }
                continue;
            }
            let charter = &self.voter.charter;
            // The newest beat that a quorum has heard. It is searched for only if the last one found gets old, or if a
            // restarted master waits for it.
            let is_asked = self
                .others
                .values()
                .any(|other| other.blank_since.is_some() && !leadership.vouches_for(Some(other)));
            if is_asked || leadership.heard_by_quorum.is_none_or(|heard| heard + lease / 4 <= now) {
                let mut heard: Vec<_> = leadership
                    .members
                    .values()
                    .chain(leadership.masters.values())
                    .filter_map(|c| c.beat_sent_at)
                    .collect();
                heard.push(now);
                heard.sort_unstable();
                let is_quorum = |since: &Time| {
                    let support = leadership.support(me, |c| c.beat_sent_at.is_some_and(|at| at >= *since));
                    charter.is_quorum(masters, &support)
                };
                heard.dedup();
                let found = heard.iter().rev().find(|since| is_quorum(since)).copied();
                leadership.heard_by_quorum = leadership.heard_by_quorum.max(found);
            }
            let is_supported = leadership.heard_by_quorum.is_some_and(|heard| heard + lease > now);
            if !is_supported {
                let since = *leadership.alone_since.get_or_insert(now);
                if since + lease <= now {
                    return self.stop_leading(now, StepDown::NoMajority);
                }
                return;
            }
            leadership.alone_since = None;
            // Its members have returned to it, and now it hears none of them: another master may.
            if leadership.heard_by_member.is_none_or(|at| at + lease <= now) {
                let heard =
                    charter.members().iter().filter_map(|peer| leadership.members.get(peer)?.beat_sent_at);
                leadership.heard_by_member = heard.max();
            }
            if leadership.heard_by_member.is_some_and(|at| at + lease <= now) {
                self.stop_leading(now, StepDown::NoMembers);
                self.stand_after = now + 2 * lease;
                return;
            }
            if !charter.is_settled() {
                let number = charter.number();
                let support = leadership.support(me, |c| c.charter == number);
                if !charter.is_quorum(masters, &support) {
                    return;
                }
                self.set_charter(charter.settled());
                continue;
            }
            let Some(action) = leadership.held.pop_front() else { return };
            match action {
                MasterAction::SetMembers(members) => {
                    let electorate = Electorate::new(members, me);
                    if charter.newest() != Some(&electorate) {
                        let term = leadership.term;
                        leadership.members.retain(|peer, _| {
                            electorate.members.contains(peer) || charter.members().contains(peer)
                        });
                        self.set_charter(charter.with(term, electorate));
                    }
                }
                action => self.actions.push_back(action),
            }
        }
    }

    /// Adopts a charter of this master, and tells all voters.
    pub(super) fn set_charter(&mut self, charter: Charter) {
        self.voter.charter = charter;
        self.tell_members();
        self.tell_masters();
    }
}
