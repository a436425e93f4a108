//! Delivery of messages and actions.

use super::super::signing::assert_signed;
use super::test_peer::ProbeRequest;
use super::{OpState, PeerIndex, TestRun};
use ringfold_proto::bounded::Bounded;
use ringfold_proto::id::{ConnId, PeerId};
use ringfold_proto::master::{MasterAction, TourRequest, TourSolution};
use ringfold_proto::message::{Numbered, ToMaster, ToPeer};
use ringfold_proto::peer::{Completion, Failure, PeerAction};
use std::collections::VecDeque;
use std::time::Duration;

/// A control connection.
#[derive(Default)]
pub struct ControlConnection {
    /// `None` for a raw connection: messages to it are only recorded.
    who: Option<PeerIndex>,
    up: VecDeque<Numbered<ToMaster>>,
    down: VecDeque<Numbered<ToPeer>>,
    /// The peer closed or lost it. The master notices after the messages before that.
    ends_up: bool,
    /// The master closed it.
    ends_down: bool,
    /// The peer's end is closed, and the master does not notice.
    half_open: bool,
}

impl TestRun {
    /// Delivers all messages, and carries out all actions.
    pub fn settle(&mut self) {
        for _ in 0..100_000 {
            let acted = self.act_master() | self.act_peers();
            let heard = self.deliver();
            if !acted && !heard {
                return;
            }
        }
        panic!("the machines do not come to rest");
    }

    /// Advances the time, from one timeout to the next.
    pub fn advance_time(&mut self, duration: Duration) {
        let until = self.now + duration;
        self.settle();
        let mut still = 0;
        while let Some(next) = self.next_timeout().filter(|t| *t <= until) {
            still = if next <= self.now { still + 1 } else { 0 };
            assert!(still < 1000, "a timeout repeats at {}", self.now);
            self.now = self.now.max(next);
            self.fire();
        }
        self.now = until;
        self.settle();
    }

    fn fire(&mut self) {
        let now = self.now;
        if let Some(master) = self.master.as_mut().filter(|m| m.poll_timeout().is_some_and(|t| t <= now)) {
            master.handle_timeout(now);
        }
        for test_peer in self.peers.iter_mut().filter(|a| a.is_running()) {
            if test_peer.peer.poll_timeout().is_some_and(|t| t <= now) {
                test_peer.peer.handle_timeout(now);
            }
        }
        self.settle();
    }

    fn next_timeout(&self) -> Option<ringfold_proto::time::Time> {
        let peers = self.peers.iter().filter(|a| a.is_running()).filter_map(|a| a.peer.poll_timeout());
        peers.chain(self.master.as_ref().and_then(|m| m.poll_timeout())).min()
    }

    /// Ends a process. Its connections break after its messages have arrived.
    pub fn kill(&mut self, who: PeerIndex) {
        self.kill_together(&[who]);
    }

    /// Ends several processes at once.
    pub fn kill_together(&mut self, all: &[PeerIndex]) {
        self.settle();
        for who in all {
            self.peers[who.0].alive = false;
            self.end_control(*who);
        }
        self.settle();
        for who in all {
            let id = self.id(*who);
            for other in self.ends_of(*who) {
                self.linked.remove(&pair(*who, other));
                let now = self.now;
                self.peer(other).handle_link_lost(now, id);
            }
        }
        self.settle();
    }

    /// A peer leaves.
    pub fn leave(&mut self, who: PeerIndex) {
        self.peer(who).leave();
        self.settle();
    }

    /// Ends the master and all connections.
    pub fn crash_master(&mut self) {
        self.settle();
        self.master = None;
        for connection in std::mem::take(&mut self.connections) {
            if let Some(who) = connection.1.who.filter(|w| self.peers[w.0].alive) {
                let now = self.now;
                self.peer(who).handle_lost(now, connection.0);
            }
        }
        self.settle();
    }

    /// Restarts the master; peers return at once.
    pub fn restart_master(&mut self) {
        self.crash_master();
        self.start_master();
        self.advance_time(Duration::from_secs(1));
    }

    /// Breaks a peer's connection. Messages in transit are lost, and the master does not notice.
    pub fn break_unnoticed(&mut self, who: PeerIndex) {
        let Some(conn) = self.peers[who.0].control.take() else { return };
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.half_open = true;
            connection.down.clear();
            connection.up.clear();
        }
        let now = self.now;
        self.peer(who).handle_lost(now, conn);
    }

    /// Resets a peer's connection. Messages in transit are lost, and both ends notice.
    pub fn reset_control(&mut self, who: PeerIndex) {
        let Some(conn) = self.peers[who.0].control.take() else { return };
        self.connections.remove(&conn);
        let now = self.now;
        self.master().handle_lost(now, conn);
        self.peer(who).handle_lost(now, conn);
        self.settle();
    }

    pub fn hold_down(&mut self, who: PeerIndex) {
        self.peers[who.0].held_down = true;
    }

    pub fn hold_up(&mut self, who: PeerIndex) {
        self.peers[who.0].held_up = true;
    }

    /// Ends all holds and cuts of a peer.
    pub fn release(&mut self, who: PeerIndex) {
        let test_peer = &mut self.peers[who.0];
        (test_peer.held_down, test_peer.held_up, test_peer.cut, test_peer.frozen) =
            (false, false, false, false);
        self.settle();
    }

    /// Cuts the link between two peers for good.
    pub fn cut(&mut self, a: PeerIndex, b: PeerIndex) {
        self.cuts.insert(pair(a, b));
        if self.linked.remove(&pair(a, b)) {
            let (now, ids) = (self.now, (self.id(a), self.id(b)));
            self.peer(a).handle_link_lost(now, ids.1);
            self.peer(b).handle_link_lost(now, ids.0);
        }
        self.settle();
    }

    /// The two can be linked again.
    pub fn mend(&mut self, a: PeerIndex, b: PeerIndex) {
        self.cuts.remove(&pair(a, b));
    }

    /// Requests for a link between the two are never answered.
    pub fn make_slow(&mut self, a: PeerIndex, b: PeerIndex) {
        self.slow.insert(pair(a, b));
    }

    /// Makes a link that was slow.
    pub fn complete_link(&mut self, a: PeerIndex, b: PeerIndex) {
        self.slow.remove(&pair(a, b));
        self.linked.insert(pair(a, b));
        let ids = (self.id(a), self.id(b));
        self.peer(a).handle_link_up(ids.1);
        self.peer(b).handle_link_up(ids.0);
        self.settle();
    }

    /// Breaks a link, which is made again at once.
    pub fn break_link(&mut self, a: PeerIndex, b: PeerIndex) {
        assert!(self.linked.remove(&pair(a, b)));
        let (now, ids) = (self.now, (self.id(a), self.id(b)));
        self.peer(a).handle_link_lost(now, ids.1);
        self.peer(b).handle_link_lost(now, ids.0);
        self.settle();
    }

    /// A connection without a peer machine, on which tests send arbitrary messages.
    pub fn raw_connection(&mut self, peer: PeerId) -> ConnId {
        self.next_conn += 1;
        let (now, conn) = (self.now, ConnId(self.next_conn));
        self.connections.insert(conn, ControlConnection::default());
        self.master().handle_connected(now, conn, peer);
        conn
    }

    /// Passes an unnumbered message to the master.
    pub fn forge_on(&mut self, conn: ConnId, message: ToMaster) {
        self.forge_numbered(conn, Numbered { number: 0, acknowledged: 0, message });
    }

    pub fn forge_numbered(&mut self, conn: ConnId, message: Numbered<ToMaster>) {
        message.check().expect("within the limits of the codec");
        let now = self.now;
        self.master().handle_message(now, conn, message);
        self.settle();
    }

    /// Sends a message that the machine of the peer would not send.
    pub fn forge(&mut self, who: PeerIndex, message: ToMaster) {
        let conn = self.peers[who.0].control.expect("a connection to the master");
        self.forge_on(conn, message);
    }

    fn act_master(&mut self) -> bool {
        let mut acted = false;
        while let Some(action) = self.master.as_mut().and_then(|m| m.poll_action()) {
            acted = true;
            match action {
                MasterAction::Send { conn, message } => {
                    message.check().expect("the master keeps within the bounds");
                    if let Some(connection) =
                        self.connections.get_mut(&conn).filter(|w| !w.half_open && !w.ends_down)
                    {
                        connection.down.push_back(*message);
                    }
                }
                MasterAction::Close { conn } => {
                    if let Some(connection) = self.connections.get_mut(&conn) {
                        connection.ends_down = true;
                    }
                    let now = self.now;
                    self.master().handle_lost(now, conn);
                }
                MasterAction::SolveTour(request) if self.solves && !request.unreachable.is_empty() => {
                    let answer = solve(&request);
                    let now = self.now;
                    self.master().handle_tour(now, request.id, answer);
                }
                MasterAction::SolveTour(request) => self.tour_requests.push_back(request),
                MasterAction::Notify(event) => self.events.push(event),
                MasterAction::SetMembers(_) | MasterAction::SendMaster { .. } => {}
            }
        }
        acted
    }

    fn act_peers(&mut self) -> bool {
        let mut acted = false;
        for who in (0..self.peers.len()).map(PeerIndex) {
            while self.peers[who.0].is_running()
                && let Some(action) = self.peer(who).poll_action()
            {
                acted = true;
                self.act(who, action);
            }
        }
        acted
    }

    fn act(&mut self, who: PeerIndex, action: PeerAction) {
        match action {
            PeerAction::DialMaster => self.dial(who),
            PeerAction::PreferMaster(_) => {}
            PeerAction::Send { conn, message } => {
                message.check().expect("peers keep within the bounds");
                if let Some(connection) =
                    self.connections.get_mut(&conn).filter(|w| !w.ends_up && !w.half_open)
                {
                    connection.up.push_back(*message);
                }
            }
            PeerAction::Close { conn } => {
                self.peers[who.0].control.take_if(|control| *control == conn);
                let cut = self.peers[who.0].cut;
                if let Some(connection) = self.connections.get_mut(&conn) {
                    // The master does not notice the end of a connection that is cut.
                    (connection.ends_up, connection.half_open) = (!cut, cut);
                }
            }
            PeerAction::Link { member, .. } => self.link(who, member.peer),
            PeerAction::UseRelays(relays) => self.peers[who.0].relays = relays,
            PeerAction::Unlink(peer) => {
                if let Some(other) = self.find(peer) {
                    self.linked.remove(&pair(who, other));
                }
            }
            PeerAction::Ping(peer) => {
                let (other, id) = (self.who(peer), self.id(who));
                if self.linked.contains(&pair(who, other)) && self.peers[other.0].is_running() {
                    self.peer(other).handle_heard(id);
                }
            }
            other => self.act_executor(who, other),
        }
    }

    fn act_executor(&mut self, who: PeerIndex, action: PeerAction) {
        let test_peer = &mut self.peers[who.0];
        match action {
            PeerAction::OpenEpoch(description) => test_peer.opened.push(*description),
            PeerAction::CloseEpoch(epoch) => test_peer.closed.push(epoch),
            PeerAction::StartOp { op, descriptor, .. } => {
                assert_eq!(test_peer.ops.insert(op, OpState::Running), None, "{op} is started once");
                test_peer.started.push((op, descriptor));
            }
            PeerAction::ResumeOp { op, descriptor, held, .. } => {
                assert_eq!(test_peer.ops.insert(op, OpState::Running), None, "{op} is started once");
                test_peer.started.push((op, descriptor));
                test_peer.resumed.push((op, held.to_vec()));
            }
            PeerAction::SuspendOp(op) => {
                let before = test_peer.ops.insert(op, OpState::Aborted);
                assert_eq!(before, Some(OpState::Running), "{op} is decided once");
                if !test_peer.keeps_buffers {
                    let held = test_peer.held.clone();
                    test_peer.peer.handle_op_suspended(op, held);
                }
            }
            PeerAction::CommitOp(op) | PeerAction::AbortOp(op) => {
                let commit = action == PeerAction::CommitOp(op);
                let state = if commit { OpState::Committed } else { OpState::Aborted };
                assert_eq!(test_peer.ops.insert(op, state), Some(OpState::Running), "{op} is decided once");
                if !test_peer.keeps_buffers {
                    test_peer.peer.handle_op_released(op);
                }
            }
            PeerAction::SkipOp(op) => {
                assert_eq!(test_peer.ops.insert(op, OpState::Skipped), None, "{op} was not started");
            }
            PeerAction::Probe { probe, peer, key, .. } => {
                test_peer.probes.push(ProbeRequest { probe, target: peer, key });
            }
            PeerAction::Sync { call, number, assignment } => {
                test_peer.assignments.push((call, number, assignment));
            }
            PeerAction::StillWaiting(note) => test_peer.warnings.push(note),
            PeerAction::Notify(_) => {}
            PeerAction::Complete { call, result } => {
                assert!(test_peer.results.insert(call, result).is_none(), "{call} ends once");
            }
            other => unreachable!("{other:?} is not the executor's"),
        }
    }

    fn dial(&mut self, who: PeerIndex) {
        let now = self.now;
        let id = self.id(who);
        if self.peers[who.0].cut || self.master.is_none() {
            return self.peer(who).handle_dial_failed(now, "no answer", true);
        }
        self.next_conn += 1;
        let conn = ConnId(self.next_conn);
        self.connections.insert(conn, ControlConnection { who: Some(who), ..ControlConnection::default() });
        self.peers[who.0].control = Some(conn);
        self.master().handle_connected(now, conn, id);
        self.peer(who).handle_connected(now, conn);
    }

    fn link(&mut self, who: PeerIndex, peer: PeerId) {
        let Some(other) = self.find(peer) else { return self.peer(who).handle_link_failed(peer) };
        if self.slow.contains(&pair(who, other)) {
            return;
        }
        if self.cuts.contains(&pair(who, other)) || !self.peers[other.0].alive {
            return self.peer(who).handle_link_failed(peer);
        }
        self.linked.insert(pair(who, other));
        self.peer(who).handle_link_up(peer);
    }

    fn ends_of(&self, who: PeerIndex) -> Vec<PeerIndex> {
        let other =
            |(a, b): &(PeerIndex, PeerIndex)| if *a == who { Some(*b) } else { (*b == who).then_some(*a) };
        self.linked.iter().filter_map(other).filter(|w| self.peers[w.0].alive).collect()
    }

    fn end_control(&mut self, who: PeerIndex) {
        if let Some(connection) =
            self.peers[who.0].control.take().and_then(|conn| self.connections.get_mut(&conn))
        {
            connection.ends_up = true;
        }
    }

    /// Delivers one message in every direction.
    fn deliver(&mut self) -> bool {
        let mut any = false;
        for conn in self.connections.keys().copied().collect::<Vec<_>>() {
            any |= self.deliver_up(conn) | self.deliver_down(conn);
        }
        let over = |w: &ControlConnection| {
            w.ends_down && w.down.is_empty() && (w.ends_up || w.half_open || w.who.is_none())
        };
        self.connections.retain(|_, w| !over(w));
        any
    }

    fn deliver_up(&mut self, conn: ConnId) -> bool {
        let Some(connection) = self.connections.get_mut(&conn) else { return false };
        let Some(who) = connection.who else { return false };
        let test_peer = &self.peers[who.0];
        if test_peer.held_up || test_peer.cut || connection.half_open || self.master.is_none() {
            return false;
        }
        let now = self.now;
        if let Some(mut message) = connection.up.pop_front() {
            if let Some(resume) = message.message.resume_mut() {
                assert_signed(resume);
                self.resumes.insert(who, resume.clone());
                if self.distrusted.contains(&who) {
                    resume.retain_signed_epochs(|_, _| false);
                }
            }
            self.master().handle_message(now, conn, message);
            return true;
        }
        if connection.ends_up && !connection.ends_down {
            connection.ends_down = true;
            self.master().handle_lost(now, conn);
            return true;
        }
        false
    }

    fn deliver_down(&mut self, conn: ConnId) -> bool {
        let Some(connection) = self.connections.get_mut(&conn) else { return false };
        let Some(who) = connection.who else {
            let told: Vec<_> = connection.down.drain(..).map(|m| m.message).collect();
            let any = !told.is_empty();
            self.replies.entry(conn).or_default().extend(told);
            return any;
        };
        let test_peer = &mut self.peers[who.0];
        if !test_peer.alive {
            connection.down.clear();
        }
        if test_peer.held_down || test_peer.cut || !test_peer.is_running() || connection.half_open {
            return false;
        }
        let now = self.now;
        if let Some(message) = connection.down.pop_front() {
            test_peer.peer.handle_message(now, conn, message);
            return true;
        }
        if connection.ends_down && !connection.ends_up {
            connection.ends_up = true;
            test_peer.control.take_if(|control| *control == conn);
            test_peer.peer.handle_lost(now, conn);
            return true;
        }
        false
    }

    /// Checks the results of calls.
    #[track_caller]
    pub fn assert_results(
        &self,
        calls: &[(PeerIndex, ringfold_proto::id::CallId)],
        want: &Result<Completion, Failure>,
    ) {
        for (who, call) in calls {
            assert_eq!(self.result(*who, *call), Some(want), "{}", self.name(*who));
        }
    }
}

/// A pair in canonical order.
pub fn pair(a: PeerIndex, b: PeerIndex) -> (PeerIndex, PeerIndex) {
    (a.min(b), a.max(b))
}

/// Tries all rings. Leaves out members that block one, the newest first.
fn solve(request: &TourRequest) -> TourSolution {
    let count = request.nodes.len();
    let is_cut = |a: usize, b: usize| request.unreachable.contains(&(a, b));
    let mut left_out = Vec::new();
    loop {
        let here: Vec<_> = (0..count).filter(|i| !left_out.contains(i)).collect();
        if let Some(ring) = find_ring(&mut vec![here[0]], &here, &is_cut) {
            let ids = |of: &[usize]| of.iter().map(|i| request.nodes[*i]).collect();
            return TourSolution { order: ids(&ring), left_out: ids(&left_out) };
        }
        // The newest of those with the fewest links.
        let links = |i: &usize| here.iter().filter(|j| *j != i && !is_cut(*i, **j)).count();
        let worst = here.iter().copied().min_by_key(|i| (links(i), usize::MAX - i));
        left_out.extend(worst);
    }
}

fn find_ring(
    begun: &mut Vec<usize>,
    all: &[usize],
    is_cut: &dyn Fn(usize, usize) -> bool,
) -> Option<Vec<usize>> {
    let last = *begun.last()?;
    if begun.len() == all.len() {
        let closes = all.len() == 1 || !is_cut(last, begun[0]);
        return closes.then(|| begun.clone());
    }
    for next in all.iter().copied() {
        if !begun.contains(&next) && !is_cut(last, next) {
            begun.push(next);
            if let Some(ring) = find_ring(begun, all, is_cut) {
                return Some(ring);
            }
            begun.pop();
        }
    }
    None
}
