//! A user's program: a training loop such as people write, now and then astray.

use crate::chance::Chance;
use crate::scenario::Habits;
use ringfold_proto::cause::StateRejection;
use ringfold_proto::dtype::DType;
use ringfold_proto::id::{Revision, Tag};
use ringfold_proto::peer::{Completion, Failure};
use ringfold_proto::shared_state::{StateEntry, SyncOffer, SyncStrategy};
use std::collections::BTreeMap;
use std::time::Duration;

/// What the program wants to be called.
#[derive(Clone, Debug)]
pub enum Command {
    /// Connect to the master.
    Connect,
    /// Update the topology.
    Topology,
    /// Ask whether peers are pending.
    Pending,
    /// Optimise the topology.
    Optimise,
    /// Sync the shared state.
    Sync(SyncOffer),
    /// Reduce.
    Reduce {
        /// Under this tag.
        tag: Tag,
        /// So many elements.
        count: u64,
        /// Into the same buffer.
        in_place: bool,
    },
    /// Compute.
    Think(Duration),
    /// Make no call for a while, although the others need it.
    Silence(Duration),
    /// End the process without a word.
    Exit,
}

/// What came back.
#[derive(Clone, Debug)]
pub enum Reply {
    /// A call other than a reduce ended.
    Call(Result<Completion, Failure>),
    /// A reduce ended; if well, with a digest of its result.
    Reduce(Tag, Result<(u32, u64), Failure>),
    /// Time to go on.
    Thought,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Connect,
    Sync,
    Optimise,
    Reduce,
    Topology,
    Think,
    /// The state was rejected for good.
    Rejected,
    Silent,
}

/// How long a peer whose state was rejected for good makes no call before it ends: longer than any call waits.
const SILENCE: Duration = Duration::from_secs(8);

/// The program of one peer.
#[derive(Debug)]
pub struct Program {
    habits: Habits,
    chance: Chance,
    counts: u64,
    step: Step,
    outstanding: usize,
    /// The shared state: its revision, and what its tensors hash to.
    pub revision: Revision,
    /// See `revision`.
    pub contents: Vec<u128>,
    strategy: SyncStrategy,
    results: BTreeMap<Tag, u64>,
    failed: Vec<Tag>,
    attempts: u32,
    /// Whether the last offer had a layout of its own.
    odd: bool,
    odds: Chance,
    worlds: Vec<u32>,
    /// Whether the program keeps to its loop from now on.
    pub calm: bool,
    /// The worlds of the iterations in which every reduce succeeded; 1 for those spent alone.
    pub healthy: Vec<u32>,
    /// Whether the peer is the first of its epoch; set by the driver.
    pub leads: bool,
}

impl Program {
    /// A program that has done nothing.
    pub fn new(seed: u64, peer: usize, habits: Habits) -> Self {
        let mut chance = Chance::new(seed, &format!("program {peer}"));
        let contents = (0..3).map(|_| chance.bits128()).collect();
        Self {
            habits,
            chance,
            counts: seed,
            step: Step::Connect,
            outstanding: 0,
            revision: Revision(0),
            contents,
            strategy: SyncStrategy::EnforcePopular,
            results: BTreeMap::new(),
            failed: Vec::new(),
            attempts: 0,
            odd: false,
            odds: Chance::new(seed, &format!("odd {peer}")),
            worlds: Vec::new(),
            calm: false,
            healthy: Vec::new(),
            leads: false,
        }
    }

    /// The first command.
    pub fn begin(&mut self) -> Vec<Command> {
        self.outstanding = 1;
        vec![Command::Connect]
    }

    /// Something came back: what to do next, if it is this program's turn.
    pub fn reply(&mut self, reply: Reply) -> Vec<Command> {
        self.outstanding = self.outstanding.saturating_sub(1);
        match reply {
            Reply::Thought => {}
            Reply::Reduce(tag, result) => match result {
                Ok((world, digest)) => {
                    self.worlds.push(world);
                    self.results.insert(tag, digest);
                }
                Err(Failure::TooFewPeers) => {
                    self.worlds.push(1);
                    self.results.insert(tag, 0);
                }
                Err(why) if is_final(&why) => return self.exit(),
                Err(_) => self.failed.push(tag),
            },
            Reply::Call(Err(why)) if is_final(&why) => return self.exit(),
            Reply::Call(result) => self.call_ended(result),
        }
        if self.outstanding > 0 {
            return Vec::new();
        }
        self.go_on()
    }

    /// The state as it is offered. Now and then a peer is another program: it offers an old revision under other keys.
    fn offer(&mut self) -> SyncOffer {
        self.odd =
            !self.calm && self.revision.0 > 1 && self.odds.per_mille(self.habits.odd_layouts_per_mille);
        let (revision, prefix) = if self.odd { (Revision(0), "v") } else { (self.revision, "w") };
        let entry = |(i, hash): (usize, &u128)| StateEntry {
            key: format!("{prefix}{i}"),
            dtype: DType::F32,
            count: 8,
            allow_content_inequality: false,
            hash: *hash,
        };
        let entries = self.contents.iter().enumerate().map(entry).collect();
        SyncOffer { revision, strategy: self.strategy, entries }
    }

    fn call_ended(&mut self, result: Result<Completion, Failure>) {
        let vote_failed = matches!(result, Err(Failure::VoteFailed(_)));
        match (self.step, result) {
            (Step::Sync, Ok(Completion::Synced(revision))) => {
                self.revision = revision;
                self.strategy = SyncStrategy::EnforcePopular;
            }
            (Step::Sync, Err(Failure::StateRejected(StateRejection::Layout { .. }))) if self.odd => {
                self.step = Step::Rejected;
            }
            (Step::Sync, Err(Failure::StateRejected(why))) => self.adapt(&why),
            _ => {}
        }
        if vote_failed && matches!(self.step, Step::Sync | Step::Optimise) {
            // Whoever is out of step with the others meets them in the next topology update.
            self.step = Step::Think;
        } else if vote_failed && self.step == Step::Topology {
            self.attempts += 1;
        }
    }

    fn adapt(&mut self, why: &StateRejection) {
        match why {
            StateRejection::NoHolder { orphaned: true, .. } => {
                self.strategy = if self.leads { SyncStrategy::SendOnly } else { SyncStrategy::ReceiveOnly };
            }
            StateRejection::RevisionIncrementViolation { .. } => self.revision = Revision(0),
            _ => self.strategy = SyncStrategy::EnforcePopular,
        }
    }

    /// The next step, when the last one has ended altogether.
    fn go_on(&mut self) -> Vec<Command> {
        match self.step {
            Step::Rejected => {
                (self.step, self.outstanding) = (Step::Silent, 1);
                return vec![Command::Silence(SILENCE)];
            }
            Step::Silent => return self.exit(),
            _ => {}
        }
        let stray = !self.calm && self.chance.per_mille(self.habits.strays_per_mille);
        match self.step {
            Step::Connect => self.step = if self.habits.syncs { Step::Sync } else { Step::Reduce },
            Step::Sync => self.step = if self.habits.optimises { Step::Optimise } else { Step::Reduce },
            Step::Optimise => self.step = Step::Reduce,
            Step::Reduce => {
                if !self.failed.is_empty() && self.attempts < self.habits.retries {
                    self.attempts += 1;
                    let again = std::mem::take(&mut self.failed);
                    return self.reduce(again, false);
                }
                self.end_iteration();
                self.step = Step::Think;
            }
            Step::Think => self.step = Step::Topology,
            Step::Topology if self.attempts > 0 => self.attempts = 0,
            Step::Topology => self.step = if self.habits.syncs { Step::Sync } else { Step::Reduce },
            Step::Rejected | Step::Silent => {}
        }
        if stray {
            let steps = [Step::Sync, Step::Reduce, Step::Topology, Step::Optimise];
            self.step = steps[self.chance.between(0, 4) as usize];
        }
        self.commands(stray)
    }

    fn commands(&mut self, stray: bool) -> Vec<Command> {
        self.outstanding = 1;
        match self.step {
            Step::Rejected | Step::Silent => Vec::new(),
            Step::Connect => vec![Command::Connect],
            Step::Sync => vec![Command::Sync(self.offer())],
            Step::Optimise => vec![Command::Optimise],
            Step::Topology => vec![Command::Topology],
            Step::Think => {
                let max = self.habits.think.as_nanos() as u64;
                vec![Command::Think(Duration::from_nanos(self.chance.between(max / 4, max)))]
            }
            Step::Reduce => {
                self.attempts = 0;
                self.results.clear();
                self.failed.clear();
                self.worlds.clear();
                self.reduce((0..self.habits.tags).map(Tag).collect(), stray)
            }
        }
    }

    /// Launches reduces in any order, and perhaps asks for pending peers while they run.
    fn reduce(&mut self, mut tags: Vec<Tag>, stray: bool) -> Vec<Command> {
        self.chance.shuffle(&mut tags);
        let mut commands: Vec<_> = Vec::new();
        for tag in tags {
            let wrong = u64::from(stray && self.chance.per_mille(500));
            let count = (self.counts.wrapping_mul(tag.0 * 2 + 3) >> 7) % (self.habits.count_max + 1) + wrong;
            let in_place = self.chance.per_mille(600);
            commands.push(Command::Reduce { tag, count, in_place });
        }
        if self.habits.asks_pending && self.attempts == 0 {
            let at = self.chance.between(0, commands.len() as u64 + 1) as usize;
            commands.insert(at, Command::Pending);
        }
        self.outstanding = commands.len();
        commands
    }

    /// All reduces have ended for good: the state moves on with what was agreed.
    fn end_iteration(&mut self) {
        for digest in self.results.values() {
            for content in &mut self.contents {
                *content = content.rotate_left(17) ^ u128::from(*digest).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            }
        }
        if self.failed.is_empty() {
            self.revision.0 += 1;
            self.healthy.push(self.worlds.iter().copied().min().unwrap_or(1));
        } else {
            self.healthy.clear();
        }
        self.failed.clear();
        self.attempts = 0;
    }

    fn exit(&mut self) -> Vec<Command> {
        self.outstanding = usize::MAX;
        vec![Command::Exit]
    }
}

/// Whether the communicator is of no use any more.
fn is_final(why: &Failure) -> bool {
    matches!(why, Failure::MasterLost(_) | Failure::JoinRejected(_) | Failure::Removed(_) | Failure::Left)
}
