//! One peer of the demo: a training loop as a user would write it.

use super::event::{PeerEvent, TimedEvent, Timestamp, one_line};
use super::model::{COUNTERS, Model};
use super::schedule::WorldWait;
use crate::exit_code::{FAILURE, SUCCESS};
use crate::serving::wait_for_end_of_stdin;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use ringfold::{AllReduce, Communicator, Error, SharedState, SyncStrategy};
use std::io::Write;
use std::time::{Duration, Instant};

/// How long a peer waits for others to join.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a call is retried before a peer gives up.
const RETRIES_MAX: u32 = 20;
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// The exit code of a peer whose parent has ended.
const ORPHANED: i32 = 3;

/// The arguments of the hidden command `demo-peer`.
#[derive(Args, Debug)]
pub struct PeerArguments {
    #[arg(long)]
    pub(crate) master: String,
    #[arg(long)]
    pub(crate) name: String,
    #[arg(long)]
    pub(crate) elements: usize,
    #[arg(long)]
    pub(crate) steps: u64,
    #[arg(long)]
    pub(crate) compute_ms: u64,
    #[arg(long)]
    pub(crate) wait: Vec<WorldWait>,
    /// The peer joins a run that has begun.
    #[arg(long)]
    pub(crate) late: bool,
}

impl PeerArguments {
    /// Trains, reports events on standard output, and returns the exit code.
    pub fn run(&self) -> Result<i32> {
        // The end of the parent closes our standard input, so no peer outlives it.
        std::thread::Builder::new().name("stdin".into()).spawn(|| {
            wait_for_end_of_stdin();
            std::process::exit(ORPHANED)
        })?;
        match DemoPeer::join(self).and_then(|mut peer| peer.train()) {
            Ok(()) => Ok(SUCCESS),
            Err(error) => {
                report(PeerEvent::Failed { why: one_line(&format!("{error:#}")) })?;
                Ok(FAILURE)
            }
        }
    }
}

struct DemoPeer<'a> {
    arguments: &'a PeerArguments,
    communicator: Communicator,
    model: Model,
    gradients: Vec<f32>,
    /// Steps done; also the revision of the shared state.
    step: u64,
}

/// The result of an all-reduce.
enum ReduceOutcome {
    Done { world: u32, took: Duration, retries: u32, tx_bytes: u64 },
    Alone,
}

impl<'a> DemoPeer<'a> {
    fn join(arguments: &'a PeerArguments) -> Result<Self> {
        let communicator = Communicator::builder(arguments.master.as_str())
            .name(arguments.name.as_str())
            .build()
            .context("cannot create the communicator")?;
        communicator.connect().context("cannot connect to the master")?;
        report(PeerEvent::Joined)?;
        let elements = arguments.elements;
        let model = if arguments.late { Model::untrained(elements) } else { Model::new(elements) };
        Ok(Self { arguments, communicator, model, gradients: vec![0.0; elements + COUNTERS], step: 0 })
    }

    /// The training loop. A peer that joins late begins with the sync, as the others do after their vote.
    fn train(&mut self) -> Result<()> {
        if !self.arguments.late {
            self.wait_for_peers()?;
        }
        loop {
            self.sync()?;
            self.compute();
            match self.reduce()? {
                ReduceOutcome::Done { world, took, retries, tx_bytes } => {
                    ensure!(
                        Model::counts(&self.gradients, world),
                        "wrong sum: the gradients of a peer are missing or counted twice"
                    );
                    self.model.apply(&self.gradients, world);
                    self.step += 1;
                    let (step, reduce) = (self.step, took);
                    let (loss, hash) = (self.model.loss(), self.model.hash());
                    report(PeerEvent::Stepped { step, world, reduce, retries, tx_bytes, loss, hash })?;
                }
                ReduceOutcome::Alone => {
                    report(PeerEvent::Alone { step: self.step })?;
                    self.wait_for_world(2)?;
                    continue;
                }
            }
            if self.step >= self.arguments.steps {
                break;
            }
            self.vote()?;
            self.wait_for_peers()?;
        }
        report(PeerEvent::Finished { step: self.step, hash: self.model.hash() })?;
        self.communicator.leave();
        Ok(())
    }

    /// Accepts waiting peers.
    fn vote(&self) -> Result<()> {
        let before = self.communicator.attributes().group_world;
        let begin = Instant::now();
        retry(|| self.communicator.update_topology()).context("the topology update failed")?;
        let world = self.communicator.attributes().group_world;
        if world != before {
            report(PeerEvent::Voted { took: begin.elapsed() })?;
        }
        Ok(())
    }

    fn wait_for_peers(&self) -> Result<()> {
        let wait = self.arguments.wait.iter().find(|wait| wait.step == self.step);
        wait.map_or(Ok(()), |wait| self.wait_for_world(wait.world))
    }

    fn wait_for_world(&self, world: u32) -> Result<()> {
        let begin = Instant::now();
        while self.communicator.attributes().group_world < world {
            if begin.elapsed() > JOIN_TIMEOUT {
                bail!("timed out after {JOIN_TIMEOUT:?} waiting for {world} peers");
            }
            std::thread::sleep(RETRY_PAUSE);
            self.vote()?;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        let begin = Instant::now();
        let Self { communicator, model, step, .. } = self;
        let mut state =
            SharedState::new(*step).add("weights", &mut model.weights).add("momentum", &mut model.momentum);
        let info = retry(|| communicator.sync_shared_state(&mut state, SyncStrategy::EnforcePopular))
            .context("the sync of the shared state failed")?;
        *step = info.revision;
        if info.rx_bytes > 0 {
            report(PeerEvent::Synced { rx_bytes: info.rx_bytes, took: begin.elapsed() })?;
        }
        Ok(())
    }

    /// Computes the toy gradients, which differ between peers, and waits for the rest of the computing time.
    fn compute(&mut self) {
        let begin = Instant::now();
        let name = self.arguments.name.bytes().fold(0, |seed, byte| seed * 256 + u64::from(byte));
        self.model.gradients(name << 32 | self.step, &mut self.gradients);
        std::thread::sleep(Duration::from_millis(self.arguments.compute_ms).saturating_sub(begin.elapsed()));
    }

    /// Reduces the gradients. An abort restores them, so the call is simply repeated.
    fn reduce(&mut self) -> Result<ReduceOutcome> {
        let step = self.step + 1;
        for retries in 0..=RETRIES_MAX {
            report(PeerEvent::Began { step })?;
            let begin = Instant::now();
            match self.communicator.all_reduce(&mut self.gradients, AllReduce::sum()) {
                Ok(info) => {
                    let (world, tx_bytes) = (info.world, info.tx_bytes);
                    return Ok(ReduceOutcome::Done { world, took: begin.elapsed(), retries, tx_bytes });
                }
                Err(error) if error.is_alone() => return Ok(ReduceOutcome::Alone),
                Err(error) if error.is_retryable() => {
                    report(PeerEvent::Aborted { step, why: one_line(&error.to_string()) })?;
                }
                Err(error) => return Err(error).context("the all-reduce failed"),
            }
        }
        bail!("the all-reduce was aborted {RETRIES_MAX} times")
    }
}

/// Repeats a call while its error is retryable.
fn retry<T>(mut call: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    let mut left = RETRIES_MAX;
    loop {
        match call() {
            Err(error) if error.is_retryable() && left > 0 => left -= 1,
            other => return other,
        }
        std::thread::sleep(RETRY_PAUSE);
    }
}

/// Sends an event to the parent.
fn report(event: PeerEvent) -> Result<()> {
    let line = serde_json::to_string(&TimedEvent { at: Timestamp::now(), event })?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("cannot write to the parent")
}
