//! A user's program: a training loop, which may deviate from that of the other peers.

use crate::random_stream::RandomStream;
use crate::scenario::ProgramConfig;
use ringfold_proto::cause::StateRejection;
use ringfold_proto::dtype::DType;
use ringfold_proto::id::{Revision, Tag};
use ringfold_proto::peer::{Completion, Failure};
use ringfold_proto::shared_state::{StateEntry, SyncOffer, SyncStrategy};
use std::collections::BTreeMap;
use std::time::Duration;

/// What the program does next.
#[derive(Clone, Debug)]
pub enum Command {
    Connect,
    Topology,
    Pending,
    Optimise,
    Sync(SyncOffer),
    /// The same, while reduces run.
    SyncBeside(SyncOffer),
    Reduce {
        tag: Tag,
        count: u64,
        in_place: bool,
    },
    Compute(Duration),
    /// Make no call for a while, although others wait for it.
    StaySilent(Duration),
    /// End the process without leaving.
    Exit,
}

/// What the program waited for.
#[derive(Clone, Debug)]
pub enum Reply {
    /// A call other than a reduce ended.
    Call(Result<Completion, Failure>),
    /// A reduce ended, with the world and a digest of its result if it succeeded.
    Reduce(Tag, Result<(u32, u64), Failure>),
    Resume,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ProgramStep {
    Connect,
    Sync,
    Optimise,
    Reduce,
    Topology,
    Compute,
    Rejected,
    Silent,
}

/// How long a peer whose state was rejected for good makes no call before it exits: longer than any timeout.
const SILENCE: Duration = Duration::from_secs(8);

/// A state that a program saved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    pub revision: Revision,
    pub contents: Vec<u128>,
}

#[derive(Debug)]
pub struct Program {
    program_config: ProgramConfig,
    random: RandomStream,
    counts: u64,
    step: ProgramStep,
    outstanding: usize,
    pub revision: Revision,
    /// The states after its syncs.
    checkpoints: Vec<Checkpoint>,
    /// The revision of its last offer.
    pub offered: Revision,
    /// Whether it has loaded a checkpoint and not synced since.
    pub is_resuming: bool,
    /// The hashes of its tensors.
    pub contents: Vec<u128>,
    strategy: SyncStrategy,
    results: BTreeMap<Tag, u64>,
    failed: Vec<Tag>,
    attempts: u32,
    /// Whether the last offer had another layout.
    has_other_layout: bool,
    layout_random: RandomStream,
    worlds: Vec<u32>,
    /// Whether the program no longer deviates from its loop.
    pub calm: bool,
    /// The worlds of the last iterations in which every reduce succeeded; 1 if the peer was alone.
    pub healthy: Vec<u32>,
    /// Whether the peer is rank 0; set by the driver.
    pub leads: bool,
}

impl Program {
    pub fn new(seed: u64, peer: usize, program_config: ProgramConfig) -> Self {
        let mut random = RandomStream::new(seed, &format!("program {peer}"));
        let contents = (0..3).map(|_| random.bits128()).collect();
        Self {
            program_config,
            random,
            counts: seed,
            step: ProgramStep::Connect,
            outstanding: 0,
            revision: Revision(0),
            checkpoints: Vec::new(),
            offered: Revision(0),
            is_resuming: false,
            contents,
            strategy: SyncStrategy::EnforcePopular,
            results: BTreeMap::new(),
            failed: Vec::new(),
            attempts: 0,
            has_other_layout: false,
            layout_random: RandomStream::new(seed, &format!("odd {peer}")),
            worlds: Vec::new(),
            calm: false,
            healthy: Vec::new(),
            leads: false,
        }
    }

    /// The checkpoint before this many newer ones.
    pub fn checkpoint(&self, age: usize) -> Option<Checkpoint> {
        self.checkpoints.iter().rev().nth(age).or(self.checkpoints.first()).cloned()
    }

    pub fn load(&mut self, checkpoint: Checkpoint) {
        self.revision = checkpoint.revision;
        self.contents.clone_from(&checkpoint.contents);
        self.checkpoints.push(checkpoint);
        self.is_resuming = true;
    }

    pub fn begin(&mut self) -> Vec<Command> {
        self.outstanding = 1;
        vec![Command::Connect]
    }

    /// Handles a reply. Returns the next commands once all replies have arrived.
    pub fn reply(&mut self, reply: Reply) -> Vec<Command> {
        self.outstanding = self.outstanding.saturating_sub(1);
        match reply {
            Reply::Resume => {}
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
        self.next_step()
    }

    /// The offer of the shared state. Some offers have other keys and an old revision, as of another program.
    pub fn offer(&mut self) -> SyncOffer {
        self.has_other_layout = !self.calm
            && self.revision.0 > 1
            && self.layout_random.with_probability(self.program_config.other_layouts_per_mille);
        let (revision, prefix) =
            if self.has_other_layout { (Revision(0), "v") } else { (self.revision, "w") };
        self.offered = revision;
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
            (ProgramStep::Sync, Ok(Completion::Synced(revision))) => {
                self.revision = revision;
                self.strategy = SyncStrategy::EnforcePopular;
                self.is_resuming = false;
                self.checkpoints.push(Checkpoint { revision, contents: self.contents.clone() });
            }
            (ProgramStep::Sync, Err(Failure::StateRejected(StateRejection::Layout { .. })))
                if self.has_other_layout =>
            {
                self.step = ProgramStep::Rejected;
            }
            (ProgramStep::Sync, Err(Failure::StateRejected(why))) => self.adapt(&why),
            _ => {}
        }
        if vote_failed && matches!(self.step, ProgramStep::Sync | ProgramStep::Optimise) {
            // Peers at different steps synchronize in the next topology update.
            self.step = ProgramStep::Compute;
        } else if vote_failed && self.step == ProgramStep::Topology {
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

    /// The next step, after all commands of the last one have ended.
    fn next_step(&mut self) -> Vec<Command> {
        match self.step {
            ProgramStep::Rejected => {
                (self.step, self.outstanding) = (ProgramStep::Silent, 1);
                return vec![Command::StaySilent(SILENCE)];
            }
            ProgramStep::Silent => return self.exit(),
            _ => {}
        }
        let deviates = !self.calm && self.random.with_probability(self.program_config.deviations_per_mille);
        match self.step {
            ProgramStep::Connect => {
                self.step = if self.program_config.syncs { ProgramStep::Sync } else { ProgramStep::Reduce }
            }
            ProgramStep::Sync if self.program_config.syncs_beside => {
                self.step = ProgramStep::Reduce;
                return self.next_step();
            }
            ProgramStep::Sync => {
                self.step =
                    if self.program_config.optimises { ProgramStep::Optimise } else { ProgramStep::Reduce }
            }
            ProgramStep::Optimise => self.step = ProgramStep::Reduce,
            ProgramStep::Reduce => {
                if !self.failed.is_empty() && self.attempts < self.program_config.retries {
                    self.attempts += 1;
                    let again = std::mem::take(&mut self.failed);
                    return self.reduce(again, false);
                }
                self.end_iteration();
                self.step = ProgramStep::Compute;
            }
            ProgramStep::Compute => self.step = ProgramStep::Topology,
            ProgramStep::Topology if self.attempts > 0 => self.attempts = 0,
            ProgramStep::Topology => {
                self.step = if self.program_config.syncs { ProgramStep::Sync } else { ProgramStep::Reduce }
            }
            ProgramStep::Rejected | ProgramStep::Silent => {}
        }
        if deviates {
            let steps =
                [ProgramStep::Sync, ProgramStep::Reduce, ProgramStep::Topology, ProgramStep::Optimise];
            self.step = steps[self.random.between(0, 4) as usize];
        }
        self.commands(deviates)
    }

    fn commands(&mut self, deviates: bool) -> Vec<Command> {
        self.outstanding = 1;
        match self.step {
            ProgramStep::Rejected | ProgramStep::Silent => Vec::new(),
            ProgramStep::Connect => vec![Command::Connect],
            ProgramStep::Sync if self.program_config.syncs_beside => {
                let sync = Command::SyncBeside(self.offer());
                let mut commands = self.first_reduces(deviates);
                let at = self.random.between(0, commands.len() as u64 + 1) as usize;
                commands.insert(at, sync);
                self.outstanding = commands.len();
                commands
            }
            ProgramStep::Sync => vec![Command::Sync(self.offer())],
            ProgramStep::Optimise => vec![Command::Optimise],
            ProgramStep::Topology => vec![Command::Topology],
            ProgramStep::Compute => {
                let max = self.program_config.compute_max.as_nanos() as u64;
                vec![Command::Compute(Duration::from_nanos(self.random.between(max / 4, max)))]
            }
            ProgramStep::Reduce => self.first_reduces(deviates),
        }
    }

    fn first_reduces(&mut self, deviates: bool) -> Vec<Command> {
        self.attempts = 0;
        self.results.clear();
        self.failed.clear();
        self.worlds.clear();
        self.reduce((0..self.program_config.tags).map(Tag).collect(), deviates)
    }

    /// Launches reduces in random order, and may ask for pending peers while they run.
    fn reduce(&mut self, mut tags: Vec<Tag>, deviates: bool) -> Vec<Command> {
        self.random.shuffle(&mut tags);
        let mut commands: Vec<_> = Vec::new();
        for tag in tags {
            let wrong = u64::from(deviates && self.random.with_probability(500));
            let count =
                (self.counts.wrapping_mul(tag.0 * 2 + 3) >> 7) % (self.program_config.count_max + 1) + wrong;
            let in_place = self.random.with_probability(600);
            commands.push(Command::Reduce { tag, count, in_place });
        }
        if self.program_config.asks_pending && self.attempts == 0 {
            let at = self.random.between(0, commands.len() as u64 + 1) as usize;
            commands.insert(at, Command::Pending);
        }
        self.outstanding = commands.len();
        commands
    }

    /// All reduces have ended: updates the state with their results.
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

/// Whether the communicator cannot be used any more.
pub fn is_final(why: &Failure) -> bool {
    matches!(why, Failure::MasterLost(_) | Failure::JoinRejected(_) | Failure::Removed(_) | Failure::Left)
}
