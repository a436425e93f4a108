//! Elections: which master leads.

use super::gate::Leadership;
use super::{
    CANDIDACY_BEATS, Coordinator, LeaseState, MasterMessage, MasterStatus, Role, WaitingPeer, unnumbered,
};
use crate::charter::{Electorate, Support};
use crate::event::{Event, StepDown};
use crate::id::{ConnId, PeerId, Term};
use crate::limits;
use crate::master::MasterAction;
use crate::message::{Numbered, ToMaster, ToPeer};
use crate::time::Time;

impl Coordinator {
    pub(super) fn handle_status(&mut self, now: Time, status: MasterStatus) {
        self.learn(&status.voter);
        let me = self.list.me;
        let is_blank = self.blank;
        let Some(other) = self.others.get_mut(&status.from) else { return };
        (other.heard_at, other.last_heard) = (Some(now), Some(now));
        other.blank_since = status.blank.then(|| other.blank_since.unwrap_or(now));
        if status.leads.is_some() && status.voter.promised >= self.voter.promised {
            self.voter.promised = status.voter.promised;
            if is_blank && (status.vouches || self.granted_blank == Some(status.voter.promised)) {
                self.blank = false;
            }
        }
        if let Role::Leader(leadership) = &mut self.role
            && !status.blank
            && status.voter.promised == leadership.term
            && status.echo.0 == leadership.term
        {
            leadership.confirm_master(status.from, status.echo.1, status.voter.charter.number());
        }
        let from = status.from;
        let is_new_beat = status.leads.is_some()
            && other.status.as_ref().is_none_or(|old| {
                old.leads != status.leads || old.voter.charter.number() != status.voter.charter.number()
            });
        other.status = Some(status);
        if is_new_beat && from != me {
            // Confirms the beat and the charter at once.
            self.send_status(from);
        }
    }

    /// Grants a vote, unless this master hears another one lead.
    pub(super) fn handle_ask(&mut self, now: Time, from: u16, term: Term, for_blank: bool) {
        let is_free = self.heard_leader(now).is_none() && !matches!(self.role, Role::Leader(_));
        if !self.others.contains_key(&from)
            || !is_free
            || term <= self.voter.promised.max(self.voter.charter.term)
            || (self.blank && !for_blank)
        {
            return;
        }
        self.voter.promised = term;
        self.granted_blank = self.blank.then_some(term);
        if matches!(self.role, Role::Candidate { .. }) {
            self.role = Role::Standby;
            self.stand_after = now + 2 * self.config.timing.heartbeat;
        }
        self.send_status(from);
    }

    /// The master that is heard to lead.
    pub(super) fn heard_leader(&self, now: Time) -> Option<u16> {
        let leading = self.others.iter().filter_map(|(index, other)| {
            let status = other.status.as_ref().filter(|status| status.leads.is_some())?;
            (other.is_heard(now, &self.config.timing) && status.voter.promised >= self.voter.promised)
                .then_some((status.voter.promised, *index))
        });
        leading.max().map(|(_, index)| index)
    }

    /// Advances the election.
    pub(super) fn elect(&mut self, now: Time) {
        if self.is_single() {
            return;
        }
        if let Some(lease) = self.lease {
            return self.follow_lease(now, lease);
        }
        match self.role {
            Role::Leader(_) => {}
            Role::Candidate { term, since, for_blank } => {
                let until = since + CANDIDACY_BEATS * self.config.timing.heartbeat;
                // A voter that has promised a later term supports another master, and this one is such a voter.
                let is_deposed = self.voter.promised.max(self.voter.charter.term) > term;
                if !is_deposed && self.is_elected(term, for_blank) {
                    self.lead(now, since, term, for_blank);
                } else if is_deposed || until <= now {
                    self.role = Role::Standby;
                    self.stand_after = now + self.config.timing.heartbeat * (1 + u32::from(self.list.me));
                }
            }
            Role::Standby => self.stand_by(now),
        }
    }

    /// The lease decides: leads, stops to lead, or sends peers to the master that leads.
    fn follow_lease(&mut self, now: Time, lease: LeaseState) {
        let led = match &self.role {
            Role::Leader(leadership) => Some(leadership.term),
            Role::Standby | Role::Candidate { .. } => None,
        };
        match (led, lease) {
            (Some(led), LeaseState::Held { term, until, .. }) if led == term && now < until => {}
            (Some(_), LeaseState::HeldBy { .. }) => self.stop_leading(now, StepDown::Deposed),
            (Some(_), _) => self.stop_leading(now, StepDown::LeaseLost),
            (None, LeaseState::Held { term, until, has_members })
                if now < until && term >= self.voter.promised =>
            {
                self.voter.promised = term;
                let mut machine = self.new_machine();
                if has_members {
                    machine.expect_members(now, &[], None);
                }
                self.start_leading(now, Leadership::new(term, machine));
            }
            (None, LeaseState::HeldBy { by, term }) if by != self.list.me => {
                self.voter.promised = self.voter.promised.max(term);
                self.blank = false;
                self.note_leader(Some(by));
                self.redirect_all(by);
            }
            (None, _) => self.note_leader(None),
        }
    }

    fn stand_by(&mut self, now: Time) {
        let leader = self.heard_leader(now);
        self.note_leader(leader);
        if let Some(leader) = leader {
            self.leaderless_since = None;
            return self.redirect_all(leader);
        }
        let since = *self.leaderless_since.get_or_insert(now);
        let Some((for_blank, rank)) = self.prospects(now) else { return self.warn(now) };
        // The first of those that can lead asks at once, the next one a little later. When a run begins it waits until those
        // before it have heard the others as well: the first in the list leads.
        let timing = &self.config.timing;
        let stand_at = if for_blank {
            let last = self.others.values().filter_map(|other| other.blank_since).max();
            last.unwrap_or(since).max(since) + timing.silence_max * rank
        } else {
            since + timing.heartbeat * rank
        };
        if self.stand_after.max(stand_at) <= now {
            self.stand(now, for_blank);
        }
    }

    /// Notes the leader, for the other masters, and reports it once this master can vote.
    fn note_leader(&mut self, leader: Option<u16>) {
        let standby_of = leader.filter(|_| !self.blank);
        if self.reported != standby_of {
            self.reported = standby_of;
            let term = self.voter.promised;
            self.notify(standby_of.map_or(Event::Leaderless, |index| Event::Follows(index, term)));
        }
        if self.follows != leader {
            self.follows = leader;
            self.tell_masters();
        }
    }

    /// Whether the voters that hear no leader are a quorum: whether votes of blank masters are needed for that, and how many of
    /// the masters before this one in the list may lead as well.
    fn prospects(&self, now: Time) -> Option<(bool, u32)> {
        let charter = &self.voter.charter;
        if charter.electorates.len() + 1 > limits::ELECTORATES_MAX {
            return None;
        }
        let (free, blank) = self.free_voters(now);
        let masters = self.list.len();
        let rank = free.masters.iter().filter(|index| **index < self.list.me).count() as u32;
        let are_all_here = free.masters.len() == usize::from(masters);
        let mut remembering = free.clone();
        blank.iter().for_each(|index| _ = remembering.masters.remove(index));
        if remembering.masters.contains(&self.list.me) && charter.is_quorum(masters, &remembering) {
            return Some((false, rank));
        }
        // Without a charter a master may be new, or have forgotten it: the run may go on elsewhere.
        are_all_here.then_some((true, rank))
    }

    /// The voters here that hear no leader, and which of the masters among them have forgotten their promises.
    fn free_voters(&self, now: Time) -> (Support, Vec<u16>) {
        let mut free = Support {
            members: self.waiting.values().filter(|w| w.is_member).map(|w| w.peer).collect(),
            masters: [self.list.me].into(),
        };
        let mut blank = if self.blank { vec![self.list.me] } else { Vec::new() };
        for (index, other) in &self.others {
            let Some(status) = &other.status else { continue };
            if other.is_heard(now, &self.config.timing) && status.leads.is_none() && status.follows.is_none()
            {
                free.masters.insert(*index);
                blank.extend(status.blank.then_some(*index));
            }
        }
        (free, blank)
    }

    /// Says from time to time that no master can lead.
    fn warn(&mut self, now: Time) {
        let is_due = self.leaderless_since.is_some_and(|since| since + self.config.timing.warn_after <= now);
        if !is_due || now < self.warn_at {
            return;
        }
        self.warn_at = now + self.config.timing.warn_after;
        let (free, blank) = self.free_voters(now);
        let newest = self.voter.charter.newest();
        let is_member = |peer: &&PeerId| newest.is_some_and(|electorate| electorate.members.contains(peer));
        let votes = free.members.iter().filter(is_member).count() + free.masters.len() - blank.len();
        let voters = self.voter.charter.members().len() + usize::from(self.list.len());
        let missing = self.others.keys().filter(|index| !free.masters.contains(index)).copied().collect();
        self.notify(Event::NoMajority { votes, voters, blank: blank.len(), missing });
    }

    /// Asks for votes, in a term that no other master uses.
    fn stand(&mut self, now: Time, for_blank: bool) {
        let masters = u64::from(self.list.len());
        let waiting = self.waiting.values().map(|w| w.promised);
        let others = self.others.values().filter_map(|o| o.status.as_ref()).map(|s| s.voter.promised);
        let highest = waiting.chain(others).chain([self.voter.promised, self.voter.charter.term]).max();
        let round = highest.unwrap_or_default().0 / masters + 1;
        let term = Term(round * masters + u64::from(self.list.me));
        self.voter.promised = term;
        self.role = Role::Candidate { term, since: now, for_blank };
        self.notify(Event::Stands(term));
        let from = self.list.me;
        for to in self.others.keys().copied().collect::<Vec<_>>() {
            // A master that has forgotten the charter learns it before it votes.
            self.send_status(to);
            let message = Box::new(MasterMessage::Ask { from, term, for_blank });
            self.actions.push_back(MasterAction::SendMaster { to, message });
        }
        self.greet_waiting();
        self.elect(now);
    }

    fn is_elected(&self, term: Term, for_blank: bool) -> bool {
        let members = self.waiting.values().filter(|w| w.is_member && w.promised == term).map(|w| w.peer);
        let granted = |index: &&u16| {
            let status = self.others.get(*index).and_then(|other| other.status.as_ref());
            status.is_some_and(|status| status.voter.promised == term && (for_blank || !status.blank))
        };
        let masters = self.others.keys().filter(granted).copied().chain([self.list.me]);
        let support = Support { members: members.collect(), masters: masters.collect() };
        let are_all_here = support.masters.len() == usize::from(self.list.len());
        are_all_here || (!for_blank && self.voter.charter.is_quorum(self.list.len(), &support))
    }

    /// Becomes the master that leads: starts a machine, which waits for the members.
    fn lead(&mut self, now: Time, asked_at: Time, term: Term, for_blank: bool) {
        let charter = &self.voter.charter;
        let electorate = Electorate::new(charter.members().iter().copied(), self.list.me);
        let next = charter.with(term, electorate);
        let mut machine = self.new_machine();
        let charter = &self.voter.charter;
        if !charter.is_initial() {
            let heirs = charter.electorates.iter().flat_map(|electorate| &electorate.members);
            machine.expect_members(now, charter.members(), Some(heirs.copied().collect()));
        }
        let mut leadership = Leadership::new(term, machine);
        for (index, other) in &self.others {
            let status = other.status.as_ref().filter(|status| status.voter.promised == term);
            if status.is_some_and(|status| for_blank || !status.blank) {
                leadership.count_vote(*index, asked_at);
            }
        }
        self.start_leading(now, leadership);
        self.set_charter(next);
    }

    /// Leads, and hands the machine the peers that wait here.
    fn start_leading(&mut self, now: Time, mut leadership: Leadership) {
        let term = leadership.term;
        leadership.rival = term;
        self.blank = false;
        self.leaderless_since = None;
        (self.follows, self.reported) = (None, None);
        self.notify(Event::Leads(term));
        for (conn, WaitingPeer { peer, join, is_returned, .. }) in core::mem::take(&mut self.waiting) {
            leadership.handle_connected(now, conn, peer);
            if let Some(join) = join {
                leadership.handle_message(now, conn, join);
            }
            if is_returned {
                leadership.asked.insert(conn);
                self.actions.push_back(unnumbered(conn, ToPeer::Report));
            }
        }
        leadership.beat(now);
        self.role = Role::Leader(Box::new(leadership));
    }

    /// Handles a message of a peer while this master does not lead.
    pub(super) fn handle_waiting(&mut self, conn: ConnId, message: Numbered<ToMaster>) {
        let Some(waiting) = self.waiting.get_mut(&conn) else { return };
        match &message.message {
            ToMaster::Join(_) | ToMaster::JoinRank { .. } => waiting.join = Some(message),
            ToMaster::Resume(resume) | ToMaster::ResumeRank { resume, .. } => {
                if resume.voter.is_plausible() {
                    waiting.promised = resume.voter.promised;
                }
                waiting.is_member = resume.epochs.iter().any(|epoch| epoch.opened);
                waiting.is_returned = true;
                if let Role::Candidate { term, .. } = self.role {
                    self.actions.push_back(unnumbered(conn, ToPeer::Candidate { term }));
                }
            }
            ToMaster::Voter { promised, .. } => waiting.promised = waiting.promised.max(*promised),
            ToMaster::Leave => {
                self.waiting.remove(&conn);
                self.actions.push_back(MasterAction::Close { conn });
            }
            _ => {}
        }
    }

    /// Tells waiting peers that this master is there, and asks for their votes if it is a candidate.
    pub(super) fn greet_waiting(&mut self) {
        let message = match self.role {
            Role::Candidate { term, .. } => ToPeer::Candidate { term },
            _ => ToPeer::Heartbeat,
        };
        let sends = self.waiting.keys().map(|conn| unnumbered(*conn, message.clone()));
        self.actions.extend(sends);
    }

    fn redirect_all(&mut self, to: u16) {
        let addresses = self.list.addresses.get(usize::from(to)).cloned().unwrap_or_default();
        let waiting: Vec<_> = self
            .waiting
            .iter()
            .filter(|(_, w)| w.join.is_some() || w.is_returned)
            .map(|(conn, _)| *conn)
            .collect();
        for conn in waiting {
            self.waiting.remove(&conn);
            self.actions.push_back(unnumbered(conn, ToPeer::Redirect { addresses: addresses.clone() }));
            self.actions.push_back(MasterAction::Close { conn });
        }
    }
}
