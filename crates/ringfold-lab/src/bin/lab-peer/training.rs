//! The loop of a training program: accept peers, sync the state, reduce, step.

use crate::command::{Reduce, Training};
use crate::reply_line::ReplyLine;
use crate::session::{CheckedReduce, Launched, ReduceFailure, Session};
use ringfold::{Error, SyncInfo, SyncStrategy};
use ringfold_lab::Participants;
use ringfold_lab::contributions::mix;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// How often a call is tried before the loop gives up.
const TRIES_MAX: u32 = 200;
/// How long a peer that is alone waits before it checks for others again.
const ALONE_PAUSE: Duration = Duration::from_millis(20);

/// Why a loop ended early.
enum LoopError {
    Failed(&'static str, Error),
    Broken(String),
}

/// The result of a step.
enum StepResult {
    Done(Vec<CheckedReduce>),
    /// No other peer is left.
    Alone,
}

struct TrainingLoop<'a> {
    session: &'a Session,
    training: &'a Training,
    /// The number of retried calls.
    retries: u64,
    /// The number of aborted reduces.
    aborts: u64,
    /// When the first reduce of this step was aborted.
    failed_at: Option<SystemTime>,
}

pub fn run(session: &Session, training: &Training, began: Instant) -> ReplyLine {
    let mut state = TrainingLoop { session, training, retries: 0, aborts: 0, failed_at: None };
    session.state().resize(training.bytes, training.keys);
    let mut steps = 0;
    let line = match state.run(&mut steps) {
        Ok(()) => ReplyLine::ok("loop", began),
        Err(LoopError::Failed(call, error)) => ReplyLine::failed("loop", &error, began).with("call", call),
        Err(LoopError::Broken(what)) => ReplyLine::wrong("loop", &what, began).with("kind", "Broken"),
    };
    let revision = session.state().revision;
    let digest = session.state().digest();
    line.with("steps", steps)
        .with("revision", revision)
        .with("state", format!("{digest:016x}"))
        .with("retries", state.retries)
        .with("aborts", state.aborts)
}

impl TrainingLoop<'_> {
    fn run(&mut self, steps: &mut u64) -> Result<(), LoopError> {
        let mut newly_accepted = true;
        loop {
            let done = *steps >= self.training.steps || self.session.state().revision >= self.training.until;
            if done || self.session.stop.swap(false, Ordering::Relaxed) {
                return Ok(());
            }
            let began = Instant::now();
            // A peer that was just accepted continues after the vote of the others.
            if !newly_accepted {
                self.accept_peers()?;
            }
            newly_accepted = false;
            if self.session.communicator.attributes().group_world < 2 {
                thread::sleep(ALONE_PAUSE);
                continue;
            }
            let synced = self.sync()?;
            if self.session.state().revision >= self.training.until {
                continue;
            }
            self.optimize();
            let StepResult::Done(done) = self.reduce_all()? else { continue };
            *steps += 1;
            self.report(*steps, synced, &done, began);
            thread::sleep(self.training.pause);
        }
    }

    fn accept_peers(&mut self) -> Result<(), LoopError> {
        let communicator = &self.session.communicator;
        if self.retry("pending", || communicator.are_peers_pending())? {
            self.retry("topology", || communicator.update_topology())?;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<SyncInfo, LoopError> {
        let session = self.session;
        self.retry("sync", || {
            session.state().sync(&session.communicator, SyncStrategy::EnforcePopular, false)
        })
    }

    /// Optimises the ring at some revisions. A failure does not end the loop.
    fn optimize(&mut self) {
        let revision = self.session.state().revision;
        if self.training.optimize > 0 && revision.is_multiple_of(self.training.optimize) {
            let outcome = self.session.communicator.optimize_topology();
            self.retries += u64::from(outcome.is_err());
        }
    }

    /// Reduces all tags of a step, each until it succeeds. An abort affects all peers that had started the reduce; the
    /// others take part in the next attempt.
    fn reduce_all(&mut self) -> Result<StepResult, LoopError> {
        let revision = self.session.state().revision;
        let training = self.training;
        let reduces = (0..training.tags).map(|i| Reduce::plain(training.tag + i, revision, training.count));
        let mut missing: Vec<Reduce> = reduces.collect();
        // By tag: after retries the order differs between peers.
        let mut done = BTreeMap::new();
        self.failed_at = None;
        for _ in 0..TRIES_MAX {
            let mut alone = false;
            for (reduce, outcome) in self.reduce_once(std::mem::take(&mut missing)) {
                match outcome {
                    Ok(one) => drop(done.insert(reduce.tag, one)),
                    Err(ReduceFailure::Broken(what)) => return Err(LoopError::Broken(what)),
                    Err(ReduceFailure::Failed(error)) if error.is_alone() => alone = true,
                    Err(ReduceFailure::Failed(error)) if error.is_retryable() => {
                        self.aborts += 1;
                        self.failed_at.get_or_insert_with(SystemTime::now);
                        missing.push(reduce);
                    }
                    Err(ReduceFailure::Failed(error)) => return Err(LoopError::Failed("reduce", error)),
                }
            }
            if alone {
                return Ok(StepResult::Alone);
            }
            if missing.is_empty() {
                return Ok(StepResult::Done(done.into_values().collect()));
            }
        }
        Err(LoopError::Broken(format!("a reduce was aborted {TRIES_MAX} times")))
    }

    /// Tries each reduce once: a single one in this thread, several concurrently.
    fn reduce_once(&self, reduces: Vec<Reduce>) -> Vec<(Reduce, Result<CheckedReduce, ReduceFailure>)> {
        if let [reduce] = reduces[..] {
            return vec![(reduce, self.session.reduce(&reduce))];
        }
        let launched: Vec<_> =
            reduces.into_iter().map(|reduce| (reduce, self.session.launch(&reduce))).collect();
        let wait = |(reduce, launched): (Reduce, Result<Launched, Error>)| match launched {
            Ok(launched) => (reduce, launched()),
            Err(error) => (reduce, Err(ReduceFailure::Failed(error))),
        };
        launched.into_iter().map(wait).collect()
    }

    /// Updates the state with the results and reports the step.
    fn report(&mut self, steps: u64, synced: SyncInfo, done: &[CheckedReduce], began: Instant) {
        let result_digest = done.iter().fold(0, |so_far, one| mix(so_far ^ one.result_digest));
        let mut state = self.session.state();
        let fill = mix(state.digest() ^ result_digest);
        state.fill(self.training.bytes, self.training.keys, fill);
        state.revision += 1;
        let worlds = done.iter().map(|one| one.info.world);
        ReplyLine::step("loop", began)
            .with("n", steps)
            .with("revision", state.revision)
            .with("world", worlds.min().unwrap_or(0))
            .with(
                "participants",
                Participants(
                    done.iter().fold(u64::MAX, |participants, one| participants & one.participants.0),
                ),
            )
            .with("digest", format!("{result_digest:016x}"))
            .with("state", format!("{:016x}", state.digest()))
            .with("reduce_us", done.iter().map(|one| one.took.as_micros()).max().unwrap_or(0))
            .with("fetched", synced.rx_bytes)
            .with("aborts", self.aborts)
            .with("retries", self.retries)
            .with("failed_at_us", self.failed_at.map_or(0, clock_us))
            .with("at_us", clock_us(SystemTime::now()))
            .print();
    }

    /// Repeats a call while its error is retryable.
    fn retry<T>(
        &mut self,
        call: &'static str,
        mut make: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, LoopError> {
        let mut tries = 1;
        loop {
            match make() {
                Ok(value) => return Ok(value),
                Err(error) if error.is_retryable() && tries < TRIES_MAX => {
                    tries += 1;
                    self.retries += 1;
                }
                Err(error) => return Err(LoopError::Failed(call, error)),
            }
        }
    }
}

/// Microseconds of the system clock, which all processes of a machine share.
fn clock_us(time: SystemTime) -> u128 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_micros())
}
