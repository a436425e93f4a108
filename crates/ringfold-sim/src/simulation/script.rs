//! Recorded scenarios: the steps of peers and masters in their order, each after the decisions before it.

use super::{SimEvent, Simulation};
use crate::network::Node;
use crate::program::{Command, Reply, is_final};
use crate::recorded::{Decision, DecisionReader, Item, REPEATS_MAX, RunCall, Step, What};
use ringfold_proto::event::Event;
use ringfold_proto::id::{Revision, Tag};
use ringfold_proto::time::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// How long a decision or the end of calls is waited for: longer than any timeout of the simulated run.
const PATIENCE: Duration = Duration::from_secs(40);
/// The same, once one did not come.
const PATIENCE_AFTER: Duration = Duration::from_secs(10);
/// Longer pauses are shortened to this.
const PAUSE_MAX: Duration = Duration::from_millis(300);
/// How long after the last step calls may run.
const END: Duration = Duration::from_secs(2);
/// How long a cut lasts: longer than it takes to break connections and to try links again.
const CUT: Duration = Duration::from_secs(5);
/// As long as no run is simulated.
pub(super) const FOREVER: Duration = Duration::from_secs(1 << 24);
/// The pause before a killed master is back.
const MASTER_BACK: Duration = Duration::from_millis(200);

/// The execution of a scenario.
pub(super) struct ScriptRun {
    items: Vec<Item>,
    at: usize,
    /// The next step is not before this time.
    ready_at: Time,
    waits_since: Option<Time>,
    tick_at: Option<Time>,
    peers: BTreeMap<String, usize>,
    /// Element counts that stand for the recorded sizes.
    counts: BTreeMap<u64, u64>,
    reader: DecisionReader,
    pub decided: Vec<(Time, Decision)>,
    /// Decisions that no step has waited for yet.
    unmatched: Vec<Decision>,
    pub notes: Vec<String>,
}

/// A peer's part in a scenario.
#[derive(Debug, Default)]
pub(super) struct PeerScript {
    is_connected: bool,
    queue: VecDeque<Call>,
    votes: usize,
    reduces: BTreeSet<Tag>,
    /// Operations of these tags do not complete: they failed.
    pub fails: BTreeSet<Tag>,
}

#[derive(Clone, Debug)]
enum Call {
    Vote(RunCall),
    Sync(Revision, Vec<u128>),
    Reduce { tag: Tag, count: u64, fails: bool },
}

impl PeerScript {
    fn may_call(&self, call: &Call) -> bool {
        match call {
            Call::Reduce { tag, .. } => self.votes == 0 && !self.reduces.contains(tag),
            _ => self.votes == 0 && self.reduces.is_empty(),
        }
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.votes == 0 && self.reduces.is_subset(&self.fails)
    }
}

impl ScriptRun {
    pub fn new(items: Vec<Item>) -> Self {
        let sizes: BTreeSet<_> = items
            .iter()
            .filter_map(|item| match &item.what {
                What::Step(Step::Reduce { bytes, .. }) => Some(bytes / 4),
                _ => None,
            })
            .collect();
        // Small buffers have their size; larger ones are different sizes above.
        let (small, large): (Vec<_>, Vec<_>) = sizes.into_iter().partition(|count| *count <= 32);
        let large = large.into_iter().enumerate().map(|(index, count)| (count, 33 + index as u64 % 32));
        let counts = small.into_iter().map(|count| (count, count)).chain(large).collect();
        Self {
            items,
            at: 0,
            ready_at: Time::ZERO,
            waits_since: None,
            tick_at: None,
            peers: BTreeMap::new(),
            counts,
            reader: DecisionReader::default(),
            decided: Vec::new(),
            unmatched: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Whether the step is a departure, and the next step is one too, before anything else is decided.
    fn is_followed_by_departure(&self, step: &Step) -> bool {
        let is_departure = |step: &Step| matches!(step, Step::Leave { .. } | Step::Kill { .. });
        let mut next = self.items[self.at..].iter().map(|item| &item.what);
        let next = next.find(|what| !matches!(what, What::Decision(Decision::Departed { .. })));
        is_departure(step) && matches!(next, Some(What::Step(next)) if is_departure(next))
    }

    fn patience(&self) -> Duration {
        if self.notes.is_empty() { PATIENCE } else { PATIENCE_AFTER }
    }
}

impl Simulation {
    /// Notes what a master decided.
    pub(super) fn note_decision(&mut self, event: &Event) {
        let Some(script) = &mut self.script else { return };
        let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(event) else { return };
        if let Some(decision) = script.reader.read(event.name(), &fields) {
            script.unmatched.push(decision.clone());
            script.decided.push((self.now, decision));
        }
    }

    /// Takes the steps that are due. Whether the scenario is over.
    pub(super) fn advance_script(&mut self) -> bool {
        loop {
            let is_idle = self.is_idle();
            let now = self.now;
            let Some(script) = &mut self.script else { return false };
            if script.tick_at.is_some_and(|at| at <= now) {
                script.tick_at = None;
            }
            if now < script.ready_at {
                let at = script.ready_at;
                self.tick(at);
                return false;
            }
            let Some(item) = script.items.get(script.at).cloned() else {
                return self.end_script(is_idle);
            };
            let waited = now.since(*script.waits_since.get_or_insert(now));
            let is_over = waited >= script.patience();
            let is_due = match &item.what {
                What::Decision(Decision::Committed { .. }) => true,
                What::Decision(decision) => {
                    let found = script.unmatched.iter().position(|made| made == decision);
                    found.map(|index| script.unmatched.swap_remove(index)).is_some()
                }
                What::Step(_) => is_idle,
            };
            if !is_due && !is_over {
                let at = now + (script.patience() - waited);
                self.tick(at);
                return false;
            }
            if !is_due {
                script.notes.push(match &item.what {
                    What::Decision(decision) => format!("{now}: does not come: {decision}"),
                    What::Step(step) => format!("{now}: calls have not ended before {step:?}"),
                });
            }
            (script.at, script.waits_since) = (script.at + 1, None);
            let next = script.items.get(script.at).map_or(item.at_us, |next| next.at_us);
            let pause = Duration::from_micros(next.saturating_sub(item.at_us)).min(PAUSE_MAX);
            if let What::Step(step) = item.what {
                let fails = matches!(step, Step::Reduce { fails: true, .. });
                let pause = pause.max(Duration::from_millis(if fails { 60 } else { 0 }));
                let pause = pause.max(Duration::from_micros(self.random.between(500, 20_000)));
                if let Some(script) = &mut self.script {
                    // Peers that left before an epoch opened leave at once.
                    let pause = if script.is_followed_by_departure(&step) { Duration::ZERO } else { pause };
                    script.ready_at = now + pause;
                }
                self.take_step(step);
            }
        }
    }

    /// Waits until the last calls have ended.
    fn end_script(&mut self, is_idle: bool) -> bool {
        let now = self.now;
        let Some(script) = &mut self.script else { return false };
        let waited = now.since(*script.waits_since.get_or_insert(now));
        if waited >= PATIENCE || (is_idle && waited >= END) {
            return true;
        }
        let at = now + if waited < END { END - waited } else { PATIENCE - waited };
        self.tick(at);
        false
    }

    fn tick(&mut self, at: Time) {
        let Some(script) = &mut self.script else { return };
        if script.tick_at.is_none_or(|set| at < set) {
            script.tick_at = Some(at);
            self.at(at, SimEvent::Script);
        }
    }

    /// Whether all calls have ended, except operations that must fail.
    fn is_idle(&self) -> bool {
        let runs = self.peers.iter().filter(|peer| peer.alive && peer.busy_until <= self.now);
        runs.filter_map(|peer| peer.script.as_ref()).all(PeerScript::is_idle)
    }

    fn scripted(&self, label: &str) -> Option<usize> {
        let peer = self.script.as_ref()?.peers.get(label).copied()?;
        self.peers[peer].alive.then_some(peer)
    }

    fn take_step(&mut self, step: Step) {
        match step {
            Step::Join { peer, group } => {
                let index = self.peers.len();
                if let Some(script) = &mut self.script {
                    script.peers.insert(peer.clone(), index);
                }
                self.next_name = Some(peer);
                self.spawn_with(group, None, None);
            }
            Step::Call { peers, call, times } => self.queue_calls(&peers, times, &Call::Vote(call)),
            Step::Reduce { peers, tag, bytes, times, fails } => {
                let count = self.script.as_ref().and_then(|script| script.counts.get(&(bytes / 4)).copied());
                let call = Call::Reduce { tag: Tag(tag), count: count.unwrap_or(0), fails };
                self.queue_calls(&peers, times, &call);
            }
            Step::Sync { peers, revision, fetchers } => self.queue_sync(&peers, revision, &fetchers),
            Step::KillMaster { restarts } => {
                let index = self.active_master().unwrap_or(0);
                self.kill_master(index, if restarts { MASTER_BACK } else { FOREVER });
            }
            Step::Cut { from, to } => {
                if let (Some(from), Some(to)) = (self.scripted(&from), self.scripted(&to)) {
                    self.cut(Node::Peer(from), Node::Peer(to), CUT, true);
                }
            }
            Step::Leave { peer }
            | Step::Kill { peer }
            | Step::Stop { peer }
            | Step::Evict { peer }
            | Step::Reset { peer }
            | Step::Isolate { peer }
                if self.scripted(&peer).is_none() => {}
            Step::Leave { ref peer }
            | Step::Kill { ref peer }
            | Step::Stop { ref peer }
            | Step::Evict { ref peer }
            | Step::Reset { ref peer }
            | Step::Isolate { ref peer } => {
                let Some(index) = self.scripted(peer) else { return };
                self.fault_of(index, &step);
            }
        }
    }

    fn fault_of(&mut self, peer: usize, step: &Step) {
        match step {
            Step::Leave { .. } => self.leave(peer),
            Step::Kill { .. } => self.end_process(peer, "is killed"),
            Step::Stop { .. } => self.slow_down(peer, FOREVER, Duration::ZERO),
            Step::Evict { .. } => self.evict(self.peers[peer].id),
            Step::Reset { .. } => self.reset(Node::Peer(peer), super::ConnKind::Control),
            _ => {
                self.disturbed_until = self.now + CUT + super::SETTLING;
                for other in self.living().filter(|other| *other != peer).collect::<Vec<_>>() {
                    self.cut(Node::Peer(peer), Node::Peer(other), CUT, true);
                }
            }
        }
    }

    fn queue_calls(&mut self, peers: &[String], times: u64, call: &Call) {
        for index in peers.iter().filter_map(|label| self.scripted(label)).collect::<Vec<_>>() {
            if let Some(script) = &mut self.peers[index].script {
                script.queue.extend((0..times.min(REPEATS_MAX)).map(|_| call.clone()));
            }
            self.call_next(index);
        }
    }

    fn queue_sync(&mut self, peers: &[String], revision: u64, fetchers: &[String]) {
        for label in peers {
            let Some(index) = self.scripted(label) else { continue };
            let group = self.peers[index].group;
            let held: Vec<u128> =
                (0..3).map(|at| u128::from(revision) << 64 | u128::from(group) << 8 | at).collect();
            let (revision, contents) = match fetchers.contains(label) {
                true => (0, held.iter().map(|hash| hash | (index as u128 + 1) << 40).collect()),
                false => (revision, held),
            };
            if let Some(script) = &mut self.peers[index].script {
                script.queue.push_back(Call::Sync(Revision(revision), contents));
            }
            self.call_next(index);
        }
    }

    /// Makes the next calls of a peer.
    fn call_next(&mut self, peer: usize) {
        loop {
            let state = &mut self.peers[peer];
            let Some(script) = state.script.as_mut().filter(|script| script.is_connected) else { return };
            if !script.queue.front().is_some_and(|call| script.may_call(call)) {
                return;
            }
            let Some(call) = script.queue.pop_front() else { return };
            let command = match call {
                Call::Reduce { tag, count, fails } => {
                    script.reduces.insert(tag);
                    if fails {
                        script.fails.insert(tag);
                    } else {
                        script.fails.remove(&tag);
                    }
                    Command::Reduce { tag, count, in_place: true }
                }
                call => {
                    script.votes += 1;
                    match call {
                        Call::Vote(RunCall::UpdateTopology) => Command::Topology,
                        Call::Vote(RunCall::ArePeersPending) => Command::Pending,
                        Call::Vote(RunCall::OptimizeTopology) => Command::Optimise,
                        Call::Sync(revision, contents) => {
                            (state.program.revision, state.program.contents) = (revision, contents);
                            Command::Sync(state.program.offer())
                        }
                        Call::Reduce { .. } => return,
                    }
                }
            };
            self.run_commands(peer, vec![command]);
            self.pump(peer);
        }
    }

    /// A call of a peer ended. Whether it is one of a recorded scenario.
    pub(super) fn scripted_reply(&mut self, peer: usize, reply: &Reply) -> bool {
        let Some(script) = &mut self.peers[peer].script else { return false };
        let failure = match reply {
            Reply::Call(result) => {
                if script.is_connected {
                    script.votes = script.votes.saturating_sub(1);
                }
                script.is_connected = true;
                result.as_ref().err()
            }
            Reply::Reduce(tag, result) => {
                script.reduces.remove(tag);
                script.fails.remove(tag);
                result.as_ref().err()
            }
            Reply::Resume => None,
        };
        if failure.is_some_and(is_final) {
            self.end_process(peer, "exits");
        } else {
            // Not at once: the machine may be in the middle of its actions.
            self.after(Duration::from_micros(50), SimEvent::CallNext(peer));
        }
        true
    }

    pub(super) fn handle_script_event(&mut self, event: &SimEvent) {
        if let SimEvent::CallNext(peer) = event
            && self.peers[*peer].alive
        {
            self.call_next(*peer);
        }
    }
}
