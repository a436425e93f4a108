//! Several masters: which one leads, and when it may decide.

use super::signing::{assert_signed, signer};
use super::test_run::{ms, secs};
use ringfold_proto::charter::VoterRecord;
use ringfold_proto::coordinator::{Coordinator, MasterList, MasterMessage, MasterStatus};
use ringfold_proto::event::{Event, StepDown};
use ringfold_proto::id::{ConnId, GroupId, PeerId};
use ringfold_proto::master::{MasterAction, MasterConfig};
use ringfold_proto::message::{Join, Numbered, ToMaster, ToPeer};
use ringfold_proto::peer::{Peer, PeerAction, PeerConfig};
use ringfold_proto::recovery::RecoverySettings;
use ringfold_proto::time::Time;
use ringfold_proto::timing::Timing;
use ringfold_proto::tuning::Tuning;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Node {
    Master(usize),
    Peer(usize),
}
use Node::{Master, Peer as Member};

enum Packet {
    ToMaster(ConnId, Box<Numbered<ToMaster>>),
    ToPeer(ConnId, Box<Numbered<ToPeer>>),
    Masters(Box<MasterMessage>),
}

struct Voter {
    machine: Peer,
    next: usize,
    conn: Option<ConnId>,
}

/// Masters and peers, and messages that wait while two nodes are cut off from each other.
struct Council {
    now: Time,
    masters: Vec<Option<Coordinator>>,
    starts: u8,
    peers: Vec<Voter>,
    conns: BTreeMap<ConnId, (usize, usize)>,
    next_conn: u64,
    queue: VecDeque<(Node, Node, Packet)>,
    cuts: BTreeSet<(Node, Node)>,
    events: Vec<(usize, Event)>,
    /// The first two masters are swapped in the list of this one.
    swapped: Option<usize>,
}

fn address(master: usize) -> SocketAddr {
    ([127, 0, 0, 1], 1 + master as u16).into()
}

impl Council {
    /// Masters that are not started.
    fn new(masters: usize) -> Self {
        Self {
            now: Time(1_000_000_000_000),
            masters: (0..masters).map(|_| None).collect(),
            starts: 0,
            peers: Vec::new(),
            conns: BTreeMap::new(),
            next_conn: 0,
            queue: VecDeque::new(),
            cuts: BTreeSet::new(),
            events: Vec::new(),
            swapped: None,
        }
    }

    /// The master at a position of another one's list.
    fn listed(&self, index: usize, position: usize) -> usize {
        if self.swapped == Some(index) && position < 2 { 1 - position } else { position }
    }

    /// Masters that run, and peers that are members.
    fn with_members(masters: usize, peers: usize) -> Self {
        let mut council = Self::new(masters);
        (0..masters).for_each(|index| council.start(index));
        council.advance(ms(100));
        (0..peers).for_each(|group| council.join(group as u32, 0));
        council.admit();
        assert!(council.peers.iter().all(|peer| peer.machine.is_member()));
        council
    }

    fn start(&mut self, index: usize) {
        self.starts += 1;
        let config = MasterConfig {
            peers_max: ringfold_proto::limits::WORLD_MAX,
            timing: Timing::default(),
            recovery: RecoverySettings::default(),
            tuning: Tuning::default(),
            appraise: |_, _, _, _| 0,
            relays: Vec::new(),
            signer: signer(PeerId(u128::from(self.starts))),
            seed: [self.starts; 32],
        };
        let addresses = (0..self.masters.len()).map(|i| vec![address(self.listed(index, i))]).collect();
        let list = match self.masters.len() {
            1 => MasterList::single(),
            _ => MasterList { addresses, me: index as u16 },
        };
        self.masters[index] = Some(Coordinator::new(config, list));
    }

    fn kill(&mut self, index: usize) {
        self.masters[index] = None;
        self.queue.retain(|(from, to, _)| *from != Master(index) && *to != Master(index));
        for other in self.masters.iter_mut().flatten() {
            other.handle_master_lost(self.now, index as u16);
        }
        let lost: Vec<_> =
            self.conns.iter().filter(|(_, ends)| ends.1 == index).map(|(c, e)| (*c, e.0)).collect();
        lost.into_iter().for_each(|(conn, peer)| self.lose(conn, peer));
        self.settle();
    }

    fn lose(&mut self, conn: ConnId, peer: usize) {
        self.conns.remove(&conn);
        let voter = &mut self.peers[peer];
        if voter.conn == Some(conn) {
            voter.conn = None;
            voter.next = (voter.next + 1) % self.masters.len();
            voter.machine.handle_lost(self.now, conn);
        }
    }

    /// A new peer in a group of its own, which dials this master first.
    fn join(&mut self, group: u32, next: usize) {
        let peer = PeerId(self.peers.len() as u128 + 1);
        let join = Join {
            group: GroupId(group),
            name: format!("p{group}"),
            host: u64::from(group),
            site: 0,
            cores: Default::default(),
            addresses: Vec::new(),
            relays: false,
        };
        let mut machine = Peer::new(PeerConfig { peer, join, replica: None, timing: Timing::default() });
        machine.connect(self.now, None).expect("the first call");
        self.peers.push(Voter { machine, next, conn: None });
        self.settle();
    }

    /// The members accept the others.
    fn admit(&mut self) {
        self.advance(ms(100));
        for voter in self.peers.iter_mut().filter(|voter| voter.machine.is_member()) {
            voter.machine.update_topology(self.now, None).expect("a member may call");
        }
        self.advance(secs(1));
    }

    fn cut(&mut self, nodes: &[Node], others: &[Node]) {
        for a in nodes {
            others.iter().for_each(|b| self.cuts.extend([(*a, *b), (*b, *a)]));
        }
    }

    fn heal(&mut self) {
        self.cuts.clear();
        self.settle();
    }

    /// Lets time pass.
    fn advance(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end {
            self.now = self.now + ms(10);
            for master in self.masters.iter_mut().flatten() {
                if master.poll_timeout().is_some_and(|at| at <= self.now) {
                    master.handle_timeout(self.now);
                }
            }
            for voter in &mut self.peers {
                if voter.machine.poll_timeout().is_some_and(|at| at <= self.now) {
                    voter.machine.handle_timeout(self.now);
                }
            }
            self.settle();
        }
    }

    /// Carries out all actions, and delivers all messages that are not cut off.
    fn settle(&mut self) {
        loop {
            for index in 0..self.masters.len() {
                while let Some(action) = self.masters[index].as_mut().and_then(Coordinator::poll_action) {
                    self.act(index, action);
                }
            }
            for peer in 0..self.peers.len() {
                while let Some(action) = self.peers[peer].machine.poll_action() {
                    self.act_peer(peer, action);
                }
            }
            let Some(first) = self.queue.iter().position(|(a, b, _)| !self.cuts.contains(&(*a, *b))) else {
                return;
            };
            let Some((_, to, packet)) = self.queue.remove(first) else { return };
            match (to, packet) {
                (Master(index), Packet::ToMaster(conn, message)) if self.conns.contains_key(&conn) => {
                    if let Some(resume) = message.message.resume() {
                        assert_signed(resume);
                    }
                    let master = self.masters[index].as_mut();
                    master.into_iter().for_each(|m| m.handle_message(self.now, conn, (*message).clone()));
                }
                (Master(index), Packet::Masters(message)) => {
                    let master = self.masters[index].as_mut();
                    master.into_iter().for_each(|m| m.handle_master_message(self.now, (*message).clone()));
                }
                (Member(peer), Packet::ToPeer(conn, message)) => {
                    self.peers[peer].machine.handle_message(self.now, conn, *message);
                }
                _ => {}
            }
        }
    }

    fn act(&mut self, index: usize, action: MasterAction) {
        match action {
            MasterAction::Send { conn, message } => {
                if let Some((peer, _)) = self.conns.get(&conn) {
                    self.queue.push_back((Master(index), Member(*peer), Packet::ToPeer(conn, message)));
                }
            }
            MasterAction::Close { conn } => {
                // What was sent before still arrives.
                self.settle_pair(index, conn);
                if let Some((peer, _)) = self.conns.get(&conn).copied() {
                    self.lose(conn, peer);
                }
                self.masters[index].iter_mut().for_each(|m| m.handle_lost(self.now, conn));
            }
            MasterAction::SendMaster { to, message } => {
                let to = self.listed(index, usize::from(to));
                self.queue.push_back((Master(index), Master(to), Packet::Masters(message)));
            }
            MasterAction::Notify(event) => self.events.push((index, event)),
            MasterAction::SolveTour(_) | MasterAction::SetMembers(_) => {}
        }
    }

    fn settle_pair(&mut self, index: usize, closed: ConnId) {
        let is_of = |packet: &Packet| matches!(packet, Packet::ToPeer(conn, _) if *conn == closed);
        while let Some(at) = self.queue.iter().position(|(_, _, packet)| is_of(packet)) {
            if let Some((from, Member(peer), Packet::ToPeer(conn, message))) = self.queue.remove(at) {
                assert_eq!(from, Master(index));
                self.peers[peer].machine.handle_message(self.now, conn, *message);
            }
        }
    }

    fn act_peer(&mut self, peer: usize, action: PeerAction) {
        match action {
            PeerAction::DialMaster => self.dial(peer),
            PeerAction::PreferMaster(addresses) => {
                let preferred = (0..self.masters.len()).find(|index| addresses.contains(&address(*index)));
                self.peers[peer].next = preferred.expect("the address of a master");
            }
            PeerAction::Send { conn, message } => {
                if let Some((_, master)) = self.conns.get(&conn) {
                    self.queue.push_back((Member(peer), Master(*master), Packet::ToMaster(conn, message)));
                }
            }
            PeerAction::Close { conn } => {
                if let Some((_, master)) = self.conns.remove(&conn) {
                    self.masters[master].iter_mut().for_each(|m| m.handle_lost(self.now, conn));
                }
            }
            _ => {}
        }
    }

    fn dial(&mut self, peer: usize) {
        let voter = &mut self.peers[peer];
        if voter.conn.take().is_some() {
            voter.next = (voter.next + 1) % self.masters.len();
        }
        for _ in 0..self.masters.len() {
            let index = voter.next;
            let is_cut = self.cuts.contains(&(Member(peer), Master(index)));
            if let Some(master) = self.masters[index].as_mut().filter(|_| !is_cut) {
                self.next_conn += 1;
                let conn = ConnId(self.next_conn);
                self.conns.insert(conn, (peer, index));
                voter.conn = Some(conn);
                master.handle_connected(self.now, conn, voter.machine.id());
                return voter.machine.handle_connected(self.now, conn);
            }
            voter.next = (voter.next + 1) % self.masters.len();
        }
        voter.machine.handle_dial_failed(self.now, "no answer", true);
    }

    /// The masters that lead, as far as they know.
    fn leaders(&self) -> Vec<usize> {
        let leads = |index: &usize| self.masters[*index].as_ref().is_some_and(|m| m.machine().is_some());
        (0..self.masters.len()).filter(leads).collect()
    }

    fn master_of(&self, peer: usize) -> Option<usize> {
        self.peers[peer].conn.and_then(|conn| self.conns.get(&conn)).map(|(_, master)| *master)
    }

    /// A master hears of another one that has this position and length of its list.
    fn hear(&mut self, index: usize, from: u16, (to, masters): (u16, u16)) {
        let status = MasterStatus {
            from,
            to,
            masters,
            differs: false,
            voter: VoterRecord::default(),
            blank: true,
            leads: None,
            follows: None,
            echo: Default::default(),
            vouches: false,
        };
        let message = MasterMessage::Status(Box::new(status));
        let now = self.now;
        self.masters[index].iter_mut().for_each(|m| m.handle_master_message(now, message.clone()));
        self.settle();
    }

    fn saw(&self, index: usize, is_it: impl Fn(&Event) -> bool) -> bool {
        self.events.iter().any(|(at, event)| *at == index && is_it(event))
    }
}

#[test]
fn a_single_master_leads_at_once() {
    let mut council = Council::new(1);
    council.start(0);
    assert_eq!(council.leaders(), [0]);
}

#[test]
fn one_master_leads_when_all_are_there() {
    for masters in [2, 3] {
        let mut council = Council::new(masters);
        (0..masters - 1).for_each(|index| council.start(index));
        council.advance(secs(20));
        assert!(council.leaders().is_empty(), "the last one may know of a run");
        council.start(masters - 1);
        council.advance(secs(2));
        assert_eq!(council.leaders(), [0], "the first of the list");
    }
}

#[test]
fn the_first_of_the_list_leads_also_if_it_starts_last_or_hears_of_the_others_late() {
    let mut council = Council::new(3);
    (1..3).for_each(|index| council.start(index));
    council.advance(secs(20));
    council.cuts.insert((Master(1), Master(0)));
    council.start(0);
    council.advance(secs(1));
    assert!(council.leaders().is_empty());
    council.heal();
    council.advance(ms(100));
    assert_eq!(council.leaders(), [0]);
}

#[test]
fn a_master_that_hears_no_member_leaves_them_to_another_one() {
    for masters in [2, 3] {
        let mut council = Council::with_members(masters, 2);
        let epoch = council.peers[0].machine.epoch().map(|epoch| epoch.id);
        council.cut(&[Master(0)], &[Member(0), Member(1)]);
        council.advance(secs(12));
        assert!(council.saw(0, |event| matches!(event, Event::SteppedDown(_, StepDown::NoMembers))));
        assert!(!council.events.iter().any(|(_, event)| matches!(event, Event::Departed(..))));
        assert_eq!(council.leaders(), [1]);
        assert!((0..2).all(|peer| council.master_of(peer) == Some(1)));
        assert_eq!(council.peers[0].machine.epoch().map(|epoch| epoch.id), epoch, "the epoch is kept");
    }
}

#[test]
fn a_standby_takes_over_with_the_votes_of_the_members() {
    for masters in [2, 3] {
        let mut council = Council::with_members(masters, 2);
        let epoch = council.peers[0].machine.epoch().map(|epoch| epoch.id);
        council.kill(0);
        council.advance(secs(2));
        assert_eq!(council.leaders(), [1]);
        assert!((0..2).all(|peer| council.master_of(peer) == Some(1)));
        assert!(council.saw(1, |event| *event == Event::RestoreEnded(2)));
        assert_eq!(council.peers[0].machine.epoch().map(|epoch| epoch.id), epoch, "the epoch is kept");
    }
}

#[test]
fn a_restarted_master_votes_when_the_active_one_vouches_for_it() {
    let mut council = Council::with_members(2, 2);
    council.kill(0);
    council.advance(secs(2));
    council.start(0);
    council.advance(secs(2));
    assert_eq!(council.leaders(), [1]);
    council.kill(1);
    council.advance(secs(2));
    assert_eq!(council.leaders(), [0]);
    assert!(council.peers.iter().all(|peer| peer.machine.is_member()));
}

#[test]
fn a_restarted_master_that_was_cut_off_leads_when_all_masters_are_there() {
    let mut council = Council::with_members(2, 2);
    council.kill(1);
    council.cut(&[Master(1)], &[Master(0)]);
    council.start(1);
    council.advance(secs(2));
    council.kill(0);
    council.advance(secs(8));
    assert!(council.leaders().is_empty(), "it may have promised its vote before");
    let missing = vec![0];
    let warning = Event::NoMajority { votes: 2, voters: 4, blank: 1, missing };
    assert!(council.saw(1, |event| *event == warning));
    assert!(
        warning.to_string().contains("it does not hear from master 1 of the list; 2 of 4 votes are here")
    );
    council.heal();
    council.start(0);
    council.advance(secs(3));
    assert_eq!(council.leaders().len(), 1);
    assert!(council.peers.iter().all(|peer| peer.machine.is_member() && peer.machine.epoch().is_some()));
}

#[test]
fn a_master_that_restarted_cut_off_does_not_begin_another_run() {
    let mut council = Council::with_members(2, 2);
    council.kill(0);
    council.advance(secs(2));
    council.cut(&[Master(0)], &[Master(1), Member(0), Member(1)]);
    council.start(0);
    council.join(7, 0);
    council.advance(secs(10));
    assert_eq!(council.leaders(), [1]);
    assert_eq!(council.master_of(2), Some(1), "a peer does not wait at a master that cannot lead");
}

#[test]
fn a_standby_redirects_peers() {
    let mut council = Council::with_members(2, 1);
    council.join(7, 1);
    assert_eq!(council.master_of(1), None);
    council.advance(ms(300));
    assert_eq!(council.master_of(1), Some(0));
}

#[test]
fn a_master_that_lost_its_majority_steps_down_and_follows_the_next_one() {
    let mut council = Council::with_members(3, 2);
    council.cut(&[Master(0)], &[Master(1), Master(2), Member(0), Member(1)]);
    council.advance(secs(12));
    assert_eq!(council.leaders(), [1]);
    assert!(council.saw(0, |event| matches!(event, Event::SteppedDown(_, StepDown::NoMajority))));
    council.heal();
    council.advance(secs(2));
    assert!(council.saw(0, |event| matches!(event, Event::Follows(1, _))));
    assert_eq!(council.leaders(), [1]);
}

#[test]
fn a_master_that_voters_have_left_is_deposed() {
    let mut council = Council::with_members(3, 2);
    council.kill(0);
    council.advance(secs(2));
    let term = council.events.iter().filter_map(|(_, event)| match event {
        Event::Leads(term) => Some(*term),
        _ => None,
    });
    let term = term.max().expect("one leads");
    council.start(0);
    council.advance(secs(2));
    // Another master asks the members for their votes in a later term.
    let candidate = ToPeer::Candidate { term: ringfold_proto::id::Term(term.0 + 1) };
    let conn = council.peers[0].conn.expect("it is connected");
    let message = Numbered { number: 0, acknowledged: 0, message: candidate };
    council.peers[0].machine.handle_message(council.now, conn, message);
    council.settle();
    assert!(council.saw(1, |event| *event == Event::SteppedDown(term, StepDown::Deposed)));
    council.advance(secs(4));
    assert_eq!(council.leaders().len(), 1);
    assert!(council.peers.iter().all(|peer| peer.machine.is_member()));
}

#[test]
fn decisions_wait_for_the_majority() {
    let mut council = Council::with_members(3, 2);
    council.cut(&[Master(0)], &[Master(1), Master(2), Member(0), Member(1)]);
    council.advance(ms(2_600));
    assert_eq!(council.leaders(), [0]);
    council.join(7, 0);
    let is_registered = |event: &Event| matches!(event, Event::Registered(who) if who.name == "p7");
    assert!(!council.saw(0, is_registered));
    council.heal();
    council.advance(ms(600));
    assert!(council.saw(0, is_registered) || council.saw(1, is_registered));
}

#[test]
fn a_master_with_another_list_is_ignored_and_all_say_so() {
    let mut council = Council::new(3);
    council.swapped = Some(2);
    (0..3).for_each(|index| council.start(index));
    council.advance(secs(10));
    assert!(council.leaders().is_empty(), "not all are there with the same list");
    let differs = |event: &Event, with| matches!(event, Event::ListsDiffer { master, .. } if *master == with);
    for (index, with) in [(0, 2), (1, 2), (2, 0), (2, 1)] {
        let warnings =
            council.events.iter().filter(|(at, event)| *at == index && differs(event, with as u16));
        assert_eq!(warnings.count(), 1, "{index} of {with}");
    }
    assert!(!council.saw(0, |event| differs(event, 1)));
    // It is started again with the right list.
    council.kill(2);
    council.swapped = None;
    council.start(2);
    council.advance(secs(3));
    assert_eq!(council.leaders(), [0]);
}

#[test]
fn a_master_with_a_longer_list_is_ignored() {
    let mut council = Council::with_members(2, 1);
    assert_eq!(council.leaders(), [0]);
    council.hear(0, 1, (0, 3));
    let is_it = |event: &Event| matches!(event, Event::ListsDiffer { master: 1, there: Some((0, 3)), .. });
    assert!(council.saw(0, is_it));
    // One that claims to be this master.
    council.hear(0, 0, (1, 2));
    assert!(council.saw(0, |event| matches!(event, Event::ListsDiffer { master: 0, .. })));
}

#[test]
fn masters_that_come_and_go_are_reported() {
    let mut council = Council::with_members(3, 2);
    assert!(council.saw(0, |event| *event == Event::MasterHere(2, (3, 3))));
    council.kill(2);
    council.advance(secs(1));
    for index in [0, 1] {
        assert!(council.saw(index, |event| *event == Event::MasterGone(2, (2, 3))));
    }
    let before = council.events.len();
    council.start(2);
    council.advance(secs(1));
    assert!(council.events[before..].contains(&(0, Event::MasterHere(2, (3, 3)))));
}
