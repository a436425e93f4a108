//! The coordinator of one master: it decides, with the other masters and the members, which master leads.
//!
//! With one master it passes everything through. With several, one leads: it has a [`Master`] machine, and its decisions leave
//! this process only while a quorum of the [`charter`](crate::charter) supports it (`gate`). The others stand by. When no
//! master is heard from, one that a quorum of voters can support asks for their votes (`election`), starts a machine of its
//! own, and restores the run from what the members report (R8).
//!
//! State is kept in memory only. A master that restarted has forgotten its promises: it is blank, and its vote does not count
//! until a master that leads without it vouches for it, or one leads that all masters voted for. So all masters must be there
//! once when a run begins.
#![allow(missing_docs)] // Fields are named for what they hold.

mod election;
mod gate;
mod status;

use crate::charter::VoterRecord;
use crate::claim::{Claim, Signature};
use crate::event::{Event, StepDown};
use crate::id::{ConnId, Incarnation, PeerId, Term};
use crate::limits;
use crate::master::{Master, MasterAction, MasterConfig, TourSolution};
use crate::message::{Numbered, ToMaster, ToPeer};
use crate::time::Time;
use crate::timing::Timing;
use core::time::Duration;
use gate::Leadership;
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

/// How many heartbeats long a candidate asks for votes.
const CANDIDACY_BEATS: u32 = 2;

/// The listed masters of a run.
#[derive(Clone, Debug)]
pub struct MasterList {
    /// The addresses of each, for peers.
    pub addresses: Vec<Vec<SocketAddr>>,
    /// The position of this one.
    pub me: u16,
}

impl MasterList {
    /// A run with one master.
    pub fn single() -> Self {
        Self { addresses: vec![Vec::new()], me: 0 }
    }

    fn len(&self) -> u16 {
        self.addresses.len() as u16
    }
}

/// A lease outside of the run that decides which master leads, instead of votes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseState {
    /// Nobody is known to hold it.
    Unknown,
    /// This master holds it until then at least. Later holders have higher terms. `has_members`: the run has begun.
    Held { term: Term, until: Time, has_members: bool },
    /// Another master holds it, by its position in the list.
    HeldBy { by: u16, term: Term },
}

/// A message between two masters. Each master sends on connections that it has dialled.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MasterMessage {
    /// What the sender knows.
    Status(Box<MasterStatus>),
    /// The sender asks for the receiver's vote. `for_blank`: also if it has forgotten its promises.
    Ask { from: u16, term: Term, for_blank: bool },
}

impl MasterMessage {
    /// The position of the sender in the list.
    pub fn sender(&self) -> u16 {
        match self {
            Self::Status(status) => status.from,
            Self::Ask { from, .. } => *from,
        }
    }

    fn is_plausible(&self) -> bool {
        match self {
            Self::Status(status) => status.voter.is_plausible(),
            Self::Ask { term, .. } => term.0 <= limits::COUNTER_MAX,
        }
    }
}

/// What a master tells the others, regularly and when it changes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MasterStatus {
    pub from: u16,
    /// The position of the receiver in the sender's list.
    pub to: u16,
    /// How many masters its list has.
    pub masters: u16,
    /// Whether the sender has heard that the receiver's list is another one.
    pub differs: bool,
    pub voter: VoterRecord,
    /// Whether it may have forgotten promises.
    pub blank: bool,
    /// The number of this beat, if it leads in the promised term.
    pub leads: Option<u64>,
    /// The master that it hears lead.
    pub follows: Option<u16>,
    /// The last beat of the receiver that the sender has heard, and its term.
    pub echo: (Term, u64),
    /// The sender leads with a quorum that does not need the receiver: the receiver is not blank any more.
    pub vouches: bool,
}

/// What is known of another master.
#[derive(Clone, Debug, Default)]
struct OtherMaster {
    status: Option<MasterStatus>,
    /// `None` if its connection is lost.
    heard_at: Option<Time>,
    /// The same, also after its connection was lost.
    last_heard: Option<Time>,
    /// Since when it is known to be blank.
    blank_since: Option<Time>,
    /// Whether its list is another one. Nothing else that it says counts.
    differs: bool,
    /// Whether it was reported that it is here.
    is_reported: bool,
}

impl OtherMaster {
    fn is_heard(&self, now: Time, timing: &Timing) -> bool {
        self.heard_at.is_some_and(|at| at + timing.silence_max > now)
    }
}

/// A peer that is connected while this master does not lead. What a member reports when it returns is not kept: it may be long.
#[derive(Clone, Debug, Default)]
struct WaitingPeer {
    peer: PeerId,
    /// Its first message, if it joins.
    join: Option<Numbered<ToMaster>>,
    /// Whether it has returned from a run.
    is_returned: bool,
    promised: Term,
    is_member: bool,
}

enum Role {
    Standby,
    /// Asks for votes in this term, since then.
    Candidate {
        term: Term,
        since: Time,
        for_blank: bool,
    },
    Leader(Box<Leadership>),
}

/// The coordinator of one master.
pub struct Coordinator {
    config: MasterConfig,
    list: MasterList,
    rng: ChaCha12Rng,
    role: Role,
    voter: VoterRecord,
    /// The signature of this master over the charter of a number.
    charter_signature: Option<Box<Signature>>,
    signed_charter: Option<(Term, u64)>,
    blank: bool,
    /// The term of a master that this one voted for while it was blank. If that master leads, all masters voted for it.
    granted_blank: Option<Term>,
    others: BTreeMap<u16, OtherMaster>,
    waiting: BTreeMap<ConnId, WaitingPeer>,
    has_begun: bool,
    next_tick: Time,
    /// Since when no master is heard that leads.
    leaderless_since: Option<Time>,
    /// This master does not ask for votes before.
    stand_after: Time,
    /// When to say again that no master can lead.
    warn_at: Time,
    /// When to say again that a process claims to be a master that it cannot be.
    warn_impostor_at: Time,
    /// The lease that decides who leads, if there is one.
    lease: Option<LeaseState>,
    /// The master that is heard to lead.
    follows: Option<u16>,
    /// The same, as it was reported.
    reported: Option<u16>,
    actions: VecDeque<MasterAction>,
}

impl Coordinator {
    /// A coordinator. With a single master it leads at once.
    pub fn new(config: MasterConfig, list: MasterList) -> Self {
        let others = (0..list.len()).filter(|index| *index != list.me);
        let mut coordinator = Self {
            rng: ChaCha12Rng::from_seed(config.seed),
            role: Role::Standby,
            voter: VoterRecord::default(),
            charter_signature: None,
            signed_charter: None,
            blank: true,
            granted_blank: None,
            others: others.map(|index| (index, OtherMaster::default())).collect(),
            waiting: BTreeMap::new(),
            has_begun: false,
            next_tick: Time::ZERO,
            leaderless_since: None,
            stand_after: Time::ZERO,
            warn_at: Time::ZERO,
            warn_impostor_at: Time::ZERO,
            lease: None,
            follows: None,
            reported: None,
            actions: VecDeque::new(),
            config,
            list,
        };
        if coordinator.is_single() {
            let machine = Master::new(coordinator.config.clone());
            coordinator.role = Role::Leader(Box::new(Leadership::new(Term(0), machine)));
        }
        coordinator
    }

    /// Lets a lease decide who leads, instead of votes. The driver reports its state with [`Coordinator::handle_lease`].
    #[must_use]
    pub fn with_lease(mut self) -> Self {
        (self.lease, self.role) = (Some(LeaseState::Unknown), Role::Standby);
        self.others.clear();
        self
    }

    /// Handles the state of the lease.
    pub fn handle_lease(&mut self, now: Time, state: LeaseState) {
        self.begin(now);
        self.lease = Some(state);
        self.advance(now);
    }

    /// The incarnation of the machine, if this master leads.
    pub fn incarnation(&self) -> Option<Incarnation> {
        self.leadership().map(|leadership| leadership.machine.incarnation())
    }

    /// The machine, if this master leads.
    pub fn machine(&self) -> Option<&Master> {
        self.leadership().map(|leadership| &leadership.machine)
    }

    /// The position in the list of the master that leads, as far as this one knows.
    pub fn leader(&self, now: Time) -> Option<u16> {
        match self.role {
            Role::Leader(_) => Some(self.list.me),
            _ => self.heard_leader(now),
        }
    }

    /// Handles an authenticated connection of a peer.
    pub fn handle_connected(&mut self, now: Time, conn: ConnId, peer: PeerId) {
        self.begin(now);
        match &mut self.role {
            Role::Leader(leadership) => leadership.handle_connected(now, conn, peer),
            _ => {
                self.waiting.insert(conn, WaitingPeer { peer, ..WaitingPeer::default() });
            }
        }
        self.advance(now);
    }

    /// Handles a message of a peer.
    pub fn handle_message(&mut self, now: Time, conn: ConnId, message: Numbered<ToMaster>) {
        self.begin(now);
        // A voter that claims impossible terms is not counted.
        if let Some(resume) = message.message.resume().filter(|resume| resume.voter.is_plausible()) {
            self.learn(&resume.voter);
        }
        if let ToMaster::Voter { promised, .. } = &message.message
            && promised.0 > limits::COUNTER_MAX
        {
            return;
        }
        match &mut self.role {
            Role::Leader(leadership) => leadership.handle_message(now, conn, message),
            _ => self.handle_waiting(conn, message),
        }
        self.advance(now);
    }

    /// Notes the round-trip time of a connection.
    pub fn handle_round_trip(&mut self, conn: ConnId, round_trip: Duration) {
        if let Role::Leader(leadership) = &mut self.role {
            leadership.machine.handle_round_trip(conn, round_trip);
        }
    }

    /// Handles the end of a peer's connection.
    pub fn handle_lost(&mut self, now: Time, conn: ConnId) {
        self.end_connection(now, conn, Master::handle_lost);
    }

    /// Handles a connection that the driver closed because of its peer, which is evicted.
    pub fn handle_closed(&mut self, now: Time, conn: ConnId) {
        self.end_connection(now, conn, Master::handle_closed);
    }

    fn end_connection(&mut self, now: Time, conn: ConnId, end: fn(&mut Master, Time, ConnId)) {
        self.begin(now);
        self.waiting.remove(&conn);
        if let Role::Leader(leadership) = &mut self.role {
            leadership.conns.remove(&conn);
            leadership.asked.remove(&conn);
            end(&mut leadership.machine, now, conn);
        }
        self.advance(now);
    }

    /// Handles a ring from the solver.
    pub fn handle_tour(&mut self, now: Time, request: u64, answer: TourSolution) {
        if let Role::Leader(leadership) = &mut self.role {
            leadership.machine.handle_tour(now, request, answer);
        }
        self.advance(now);
    }

    /// Refuses new peers, or accepts them again, as long as this master leads.
    pub fn drain(&mut self, now: Time, draining: bool) {
        if let Role::Leader(leadership) = &mut self.role {
            leadership.machine.drain(draining);
        }
        self.advance(now);
    }

    /// Evicts a peer.
    pub fn evict(&mut self, now: Time, peer: PeerId, reason: &str) {
        if let Role::Leader(leadership) = &mut self.role {
            leadership.machine.evict(now, peer, reason);
        }
        self.advance(now);
    }

    /// Handles a message of another master. A message of a master with another list is ignored.
    pub fn handle_master_message(&mut self, now: Time, message: MasterMessage) {
        self.begin(now);
        if self.lease.is_some() || !message.is_plausible() || !self.check_list(now, &message) {
            return;
        }
        match message {
            MasterMessage::Status(status) => {
                self.handle_status(now, *status);
                self.report_others(now);
            }
            MasterMessage::Ask { from, term, for_blank } => self.handle_ask(now, from, term, for_blank),
        }
        self.advance(now);
    }

    /// Whether a message is of a master with the same list. Reports one that has another list.
    fn check_list(&mut self, now: Time, message: &MasterMessage) -> bool {
        let from = message.sender();
        let here = (self.list.me, self.list.len());
        let (is_told, there) = match message {
            MasterMessage::Status(status) => (status.differs, Some((status.to, status.masters))),
            MasterMessage::Ask { .. } => (false, None),
        };
        let differs = is_told || there.is_some_and(|there| there != here);
        let event = Event::ListsDiffer { master: from, here, there: there.filter(|there| *there != here) };
        let Some(other) = self.others.get_mut(&from) else {
            if self.warn_impostor_at <= now {
                self.warn_impostor_at = now + self.config.timing.master_return_max;
                self.notify(event);
            }
            return false;
        };
        if there.is_none() {
            // A status comes before a request, and has told.
            return !other.differs && other.status.is_some();
        }
        let is_new = differs && !other.differs;
        if differs {
            *other = OtherMaster { is_reported: other.is_reported, ..OtherMaster::default() };
        }
        other.differs = differs;
        if is_new {
            self.notify(event);
            self.send_status(from);
        }
        !differs
    }

    /// Handles the end of the connection that another master had dialled.
    pub fn handle_master_lost(&mut self, now: Time, from: u16) {
        self.begin(now);
        if let Some(other) = self.others.get_mut(&from) {
            (other.heard_at, other.differs) = (None, false);
        }
        self.advance(now);
    }

    /// Reports masters that are here now, or not any more.
    fn report_others(&mut self, now: Time) {
        let timing = &self.config.timing;
        let here = 1 + self.others.values().filter(|other| other.is_heard(now, timing)).count();
        let mut events = Vec::new();
        for (index, other) in &mut self.others {
            let is_here = other.is_heard(now, timing);
            if core::mem::replace(&mut other.is_reported, is_here) != is_here {
                let masters = (here, usize::from(self.list.len()));
                events.push(match is_here {
                    true => Event::MasterHere(*index, masters),
                    false => Event::MasterGone(*index, masters),
                });
            }
        }
        events.into_iter().for_each(|event| self.notify(event));
    }

    /// The connection to another master is up.
    pub fn handle_master_connected(&mut self, now: Time, to: u16) {
        self.begin(now);
        self.send_status(to);
    }

    /// Handles expired deadlines; call it at [`Coordinator::poll_timeout`] or later.
    pub fn handle_timeout(&mut self, now: Time) {
        self.begin(now);
        if let Role::Leader(leadership) = &mut self.role
            && leadership.machine.poll_timeout().is_some_and(|at| at <= now)
        {
            leadership.machine.handle_timeout(now);
        }
        if !self.is_single() && self.next_tick <= now {
            self.next_tick = now + self.config.timing.heartbeat;
            self.tick(now);
        }
        self.advance(now);
    }

    /// The next action for the driver.
    pub fn poll_action(&mut self) -> Option<MasterAction> {
        self.actions.pop_front()
    }

    /// When to call [`Coordinator::handle_timeout`] at the latest.
    pub fn poll_timeout(&self) -> Option<Time> {
        let machine = self.leadership().and_then(|leadership| leadership.machine.poll_timeout());
        let stands = match self.role {
            Role::Candidate { since, .. } => Some(since + CANDIDACY_BEATS * self.config.timing.heartbeat),
            _ => None,
        };
        let tick = (!self.is_single()).then_some(self.next_tick);
        [machine, stands, tick].into_iter().flatten().min()
    }

    fn is_single(&self) -> bool {
        self.list.len() == 1 && self.lease.is_none()
    }

    fn leadership(&self) -> Option<&Leadership> {
        match &self.role {
            Role::Leader(leadership) => Some(leadership),
            _ => None,
        }
    }

    fn begin(&mut self, now: Time) {
        if !self.has_begun {
            self.has_begun = true;
            self.next_tick = now;
            self.leaderless_since = Some(now);
        }
    }

    /// Keeps what another voter knows. A charter of a later term is that of a later master.
    fn learn(&mut self, voter: &VoterRecord) {
        self.voter.adopt(&voter.charter);
        if let Role::Leader(leadership) = &mut self.role {
            leadership.rival = leadership.rival.max(voter.promised).max(voter.charter.term);
        }
    }

    /// Sends what is due regularly.
    fn tick(&mut self, now: Time) {
        if let Role::Leader(leadership) = &mut self.role {
            leadership.beat(now);
        }
        self.tell_members();
        self.report_others(now);
        self.tell_masters();
        if !matches!(self.role, Role::Leader(_)) {
            self.greet_waiting();
        }
    }

    /// Tells all peers that this master leads, with the charter for those that have not confirmed it.
    fn tell_members(&mut self) {
        let Role::Leader(leadership) = &self.role else { return };
        let charter = Some(&self.voter.charter).filter(|_| self.lease.is_none());
        let number = charter.map(|charter| charter.number());
        if self.signed_charter != number {
            // Also one that another master made: what this one passes on, it has checked.
            let signature = charter.and_then(|charter| self.config.signer.sign(Claim::Charter(charter)));
            (self.signed_charter, self.charter_signature) = (number, signature);
        }
        let messages = leadership.lead_messages(charter, self.charter_signature.as_deref());
        self.actions.extend(messages);
    }

    /// Does what can be done now.
    fn advance(&mut self, now: Time) {
        self.elect(now);
        self.release(now);
    }

    fn stop_leading(&mut self, now: Time, why: StepDown) {
        let Role::Leader(leadership) = core::mem::replace(&mut self.role, Role::Standby) else { return };
        self.notify(Event::SteppedDown(leadership.term, why));
        self.leaderless_since = Some(now);
        self.stand_after = now + self.config.timing.heartbeat;
        for conn in leadership.conns.into_keys() {
            self.actions.push_back(MasterAction::Close { conn });
        }
        self.tell_masters();
    }

    fn notify(&mut self, event: Event) {
        self.actions.push_back(MasterAction::Notify(event));
    }

    fn tell_masters(&mut self) {
        for to in self.others.keys().copied().collect::<Vec<_>>() {
            self.send_status(to);
        }
    }

    fn send_status(&mut self, to: u16) {
        let leadership = self.leadership();
        let status = MasterStatus {
            from: self.list.me,
            to,
            masters: self.list.len(),
            differs: self.others.get(&to).is_some_and(|other| other.differs),
            voter: self.voter.clone(),
            blank: self.blank,
            leads: leadership.map(|leadership| leadership.last_beat()),
            follows: self.follows,
            echo: self.echo_for(to),
            vouches: leadership.is_some_and(|leadership| leadership.vouches_for(self.others.get(&to))),
        };
        let message = Box::new(MasterMessage::Status(Box::new(status)));
        self.actions.push_back(MasterAction::SendMaster { to, message });
    }

    fn echo_for(&self, to: u16) -> (Term, u64) {
        let status = self.others.get(&to).and_then(|other| other.status.as_ref());
        status.and_then(|status| Some((status.voter.promised, status.leads?))).unwrap_or_default()
    }

    /// A machine that is new for each time that this master leads.
    fn new_machine(&mut self) -> Master {
        let mut seed = [0; 32];
        self.rng.fill_bytes(&mut seed);
        Master::new(MasterConfig { seed, ..self.config.clone() })
    }
}

fn unnumbered(conn: ConnId, message: ToPeer) -> MasterAction {
    let message = Box::new(Numbered { number: 0, acknowledged: 0, message });
    MasterAction::Send { conn, message }
}
