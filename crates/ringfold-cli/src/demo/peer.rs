//! One peer of the demo: a training loop as a user would write it.

use super::event::{Event, Line, Moment};
use super::model::{Model, WITNESSES};
use super::schedule::Gathering;
use crate::command::{FAILURE, SUCCESS};
use crate::serve::end_of_stdin;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use ringfold::{AllReduce, Communicator, Error, SharedState, SyncStrategy};
use std::io::Write;
use std::time::{Duration, Instant};

/// How long peers wait for others to come.
const GATHER_MAX: Duration = Duration::from_secs(30);
/// How often a vote or a reduce is tried again before a peer gives up.
const RETRIES_MAX: u32 = 20;
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// The exit code of a peer whose parent is gone.
const ORPHANED: i32 = 3;

/// What the parent tells a peer.
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
    pub(crate) gather: Vec<Gathering>,
    /// It joins a run that goes on already.
    #[arg(long)]
    pub(crate) late: bool,
}

impl PeerArguments {
    /// Trains to the end, tells of it on standard output, and returns the exit code.
    pub fn run(&self) -> Result<i32> {
        // Whatever kills the parent closes our standard input: so no peer outlives it.
        std::thread::Builder::new().name("stdin".into()).spawn(|| {
            end_of_stdin();
            std::process::exit(ORPHANED)
        })?;
        match Peer::join(self).and_then(|mut peer| peer.train()) {
            Ok(()) => Ok(SUCCESS),
            Err(error) => {
                tell(Event::Failed { why: format!("{error:#}") })?;
                Ok(FAILURE)
            }
        }
    }
}

struct Peer<'a> {
    arguments: &'a PeerArguments,
    communicator: Communicator,
    model: Model,
    gradients: Vec<f32>,
    /// Steps done; also the revision of the shared state.
    step: u64,
}

/// What became of a reduce.
enum Reduced {
    Done { world: u32, took: Duration, retries: u32, tx_bytes: u64 },
    Alone,
}

impl<'a> Peer<'a> {
    fn join(arguments: &'a PeerArguments) -> Result<Self> {
        let communicator = Communicator::builder(arguments.master.as_str())
            .name(arguments.name.as_str())
            .build()
            .context("can't make a communicator")?;
        let begin = Instant::now();
        communicator.connect().context("can't connect")?;
        let world = communicator.attributes().group_world;
        tell(Event::Joined { world, waited: begin.elapsed() })?;
        let elements = arguments.elements;
        let model = if arguments.late { Model::untrained(elements) } else { Model::new(elements) };
        Ok(Self { arguments, communicator, model, gradients: vec![0.0; elements + WITNESSES], step: 0 })
    }

    /// Whoever has just joined goes on where all others do after the vote that let it in: with the sync.
    fn train(&mut self) -> Result<()> {
        if !self.arguments.late {
            self.gather()?;
        }
        loop {
            self.sync()?;
            self.compute();
            match self.reduce()? {
                Reduced::Done { world, took, retries, tx_bytes } => {
                    ensure!(
                        Model::counts(&self.gradients, world),
                        "a peer was not counted, or counted twice"
                    );
                    self.model.apply(&self.gradients, world);
                    self.step += 1;
                    let (step, reduce) = (self.step, took);
                    let (loss, hash) = (self.model.loss(), self.model.hash());
                    tell(Event::Stepped { step, world, reduce, retries, tx_bytes, loss, hash })?;
                }
                Reduced::Alone => {
                    tell(Event::Alone { step: self.step })?;
                    self.wait_for_world(2)?;
                    continue;
                }
            }
            if self.step >= self.arguments.steps {
                break;
            }
            self.vote()?;
            self.gather()?;
        }
        tell(Event::Finished { step: self.step, hash: self.model.hash() })?;
        self.communicator.leave();
        Ok(())
    }

    /// Lets in whoever waits, and drops whoever is gone.
    fn vote(&self) -> Result<()> {
        let before = self.communicator.attributes().group_world;
        let begin = Instant::now();
        persistently(|| self.communicator.update_topology()).context("the vote on the topology failed")?;
        let world = self.communicator.attributes().group_world;
        if world != before {
            tell(Event::Voted { world, took: begin.elapsed() })?;
        }
        Ok(())
    }

    fn gather(&self) -> Result<()> {
        match self.arguments.gather.iter().find(|gathering| gathering.step == self.step) {
            Some(gathering) => self.wait_for_world(gathering.world),
            None => Ok(()),
        }
    }

    fn wait_for_world(&self, world: u32) -> Result<()> {
        let begin = Instant::now();
        while self.communicator.attributes().group_world < world {
            if begin.elapsed() > GATHER_MAX {
                bail!("there are not {world} peers after {} s", GATHER_MAX.as_secs());
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
        let info = persistently(|| communicator.sync_shared_state(&mut state, SyncStrategy::EnforcePopular))
            .context("the sync of the shared state failed")?;
        *step = info.revision;
        if info.rx_bytes > 0 {
            let (revision, rx_bytes) = (info.revision, info.rx_bytes);
            tell(Event::Synced { revision, rx_bytes, took: begin.elapsed() })?;
        }
        Ok(())
    }

    /// Fake gradients, different on each peer, after a pause for the look of it.
    fn compute(&mut self) {
        let begin = Instant::now();
        let name = self.arguments.name.bytes().fold(0, |seed, byte| seed * 256 + u64::from(byte));
        self.model.gradients(name << 32 | self.step, &mut self.gradients);
        std::thread::sleep(Duration::from_millis(self.arguments.compute_ms).saturating_sub(begin.elapsed()));
    }

    /// After an abort the gradients are what they were before the call, so it is simply made again.
    fn reduce(&mut self) -> Result<Reduced> {
        let step = self.step + 1;
        for retries in 0..=RETRIES_MAX {
            tell(Event::Began { step })?;
            let begin = Instant::now();
            match self.communicator.all_reduce(&mut self.gradients, AllReduce::sum()) {
                Ok(info) => {
                    let (world, tx_bytes) = (info.world, info.tx_bytes);
                    return Ok(Reduced::Done { world, took: begin.elapsed(), retries, tx_bytes });
                }
                Err(error) if error.is_alone() => return Ok(Reduced::Alone),
                Err(error) if error.is_retryable() => tell(Event::Aborted { step, why: error.to_string() })?,
                Err(error) => return Err(error).context("the all-reduce failed"),
            }
        }
        bail!("the all-reduce was aborted {RETRIES_MAX} times")
    }
}

/// Makes a call again as long as that may help.
fn persistently<T>(mut call: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    let mut left = RETRIES_MAX;
    loop {
        match call() {
            Err(error) if error.is_retryable() && left > 0 => left -= 1,
            other => return other,
        }
        std::thread::sleep(RETRY_PAUSE);
    }
}

/// A parent that can't be told is gone.
fn tell(event: Event) -> Result<()> {
    let line = Line { at: Moment::now(), event };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("the parent does not listen")
}
