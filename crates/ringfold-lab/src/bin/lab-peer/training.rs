//! The loop that a training program would run: let others in, agree on the state, reduce, step.

use crate::command::{Reduce, Training};
use crate::reply::Reply;
use crate::session::{Done, Launched, Session, Trouble};
use ringfold::{Error, SyncInfo, SyncStrategy};
use ringfold_lab::Parts;
use ringfold_lab::tally::mix;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// How often one call of a step is made again before the loop gives up.
const TRIES_MAX: u32 = 200;
/// How long a peer that is alone waits before it looks for others again.
const ALONE: Duration = Duration::from_millis(20);

/// Why a loop can't go on.
enum End {
    Failed(&'static str, Error),
    Broken(String),
}

/// What became of a step.
enum Step {
    Done(Vec<Done>),
    /// All others went away in the middle of it.
    Alone,
}

struct Loop<'a> {
    session: &'a Session,
    training: &'a Training,
    /// Calls that failed and were made again.
    retries: u64,
    /// Reduces that were aborted.
    aborts: u64,
    /// When the first reduce of this step was aborted.
    failed_at: Option<SystemTime>,
}

pub fn run(session: &Session, training: &Training, began: Instant) -> Reply {
    let mut state = Loop { session, training, retries: 0, aborts: 0, failed_at: None };
    session.state().resize(training.bytes, training.keys);
    let mut steps = 0;
    let ended = state.go_on(&mut steps);
    let reply = match ended {
        Ok(()) => Reply::ok("loop", began),
        Err(End::Failed(call, error)) => Reply::failed("loop", &error, began).with("call", call),
        Err(End::Broken(what)) => Reply::wrong("loop", &what, began).with("kind", "Broken"),
    };
    let revision = session.state().revision;
    let digest = session.state().digest();
    reply
        .with("steps", steps)
        .with("revision", revision)
        .with("state", format!("{digest:016x}"))
        .with("retries", state.retries)
        .with("aborts", state.aborts)
}

impl Loop<'_> {
    fn go_on(&mut self, steps: &mut u64) -> Result<(), End> {
        let mut newly_accepted = true;
        loop {
            let done = *steps >= self.training.steps || self.session.state().revision >= self.training.until;
            if done || self.session.stop.swap(false, Ordering::Relaxed) {
                return Ok(());
            }
            let began = Instant::now();
            // Whoever was just let in was so by the others' vote, and goes on with them behind it.
            if !newly_accepted {
                self.let_others_in()?;
            }
            newly_accepted = false;
            if self.session.communicator.attributes().group_world < 2 {
                thread::sleep(ALONE);
                continue;
            }
            let synced = self.agree()?;
            if self.session.state().revision >= self.training.until {
                continue;
            }
            self.optimize();
            let Step::Done(done) = self.reduce_all()? else { continue };
            *steps += 1;
            self.report(*steps, synced, &done, began);
            thread::sleep(self.training.pause);
        }
    }

    fn let_others_in(&mut self) -> Result<(), End> {
        let communicator = &self.session.communicator;
        if self.persist("pending", || communicator.are_peers_pending())? {
            self.persist("topology", || communicator.update_topology())?;
        }
        Ok(())
    }

    fn agree(&mut self) -> Result<SyncInfo, End> {
        let session = self.session;
        self.persist("sync", || {
            session.state().sync(&session.communicator, SyncStrategy::EnforcePopular, false)
        })
    }

    /// A ring that can't be bettered now is no reason to end.
    fn optimize(&mut self) {
        let revision = self.session.state().revision;
        if self.training.optimize > 0 && revision.is_multiple_of(self.training.optimize) {
            let outcome = self.session.communicator.optimize_topology();
            self.retries += u64::from(outcome.is_err());
        }
    }

    /// All tags of a step, each until it succeeded. What is aborted is so for all that had started it; who had not
    /// takes part in the others' next try.
    fn reduce_all(&mut self) -> Result<Step, End> {
        let revision = self.session.state().revision;
        let training = self.training;
        let reduces = (0..training.tags).map(|i| Reduce::plain(training.tag + i, revision, training.count));
        let mut missing: Vec<Reduce> = reduces.collect();
        // By tag: peers that were late for the first try have them in another order.
        let mut done = BTreeMap::new();
        self.failed_at = None;
        for _ in 0..TRIES_MAX {
            let mut alone = false;
            for (reduce, outcome) in self.reduce_once(std::mem::take(&mut missing)) {
                match outcome {
                    Ok(one) => drop(done.insert(reduce.tag, one)),
                    Err(Trouble::Broken(what)) => return Err(End::Broken(what)),
                    Err(Trouble::Failed(error)) if error.is_alone() => alone = true,
                    Err(Trouble::Failed(error)) if error.is_retryable() => {
                        self.aborts += 1;
                        self.failed_at.get_or_insert_with(SystemTime::now);
                        missing.push(reduce);
                    }
                    Err(Trouble::Failed(error)) => return Err(End::Failed("reduce", error)),
                }
            }
            if alone {
                return Ok(Step::Alone);
            }
            if missing.is_empty() {
                return Ok(Step::Done(done.into_values().collect()));
            }
        }
        Err(End::Broken(format!("a reduce was aborted {TRIES_MAX} times")))
    }

    /// Each reduce once: a single one in this thread, several in flight at once.
    fn reduce_once(&self, reduces: Vec<Reduce>) -> Vec<(Reduce, Result<Done, Trouble>)> {
        if let [reduce] = reduces[..] {
            return vec![(reduce, self.session.reduce(&reduce))];
        }
        let launched: Vec<_> =
            reduces.into_iter().map(|reduce| (reduce, self.session.launch(&reduce))).collect();
        let wait = |(reduce, launched): (Reduce, Result<Launched, Error>)| match launched {
            Ok(launched) => (reduce, launched()),
            Err(error) => (reduce, Err(Trouble::Failed(error))),
        };
        launched.into_iter().map(wait).collect()
    }

    /// The result becomes part of the state, and the step is told.
    fn report(&mut self, steps: u64, synced: SyncInfo, done: &[Done], began: Instant) {
        let parity = done.iter().fold(0, |so_far, one| mix(so_far ^ one.parity));
        let mut state = self.session.state();
        let fill = mix(state.digest() ^ parity);
        state.fill(self.training.bytes, self.training.keys, fill);
        state.revision += 1;
        let worlds = done.iter().map(|one| one.info.world);
        Reply::step("loop", began)
            .with("n", steps)
            .with("revision", state.revision)
            .with("world", worlds.min().unwrap_or(0))
            .with("parts", Parts(done.iter().fold(u64::MAX, |parts, one| parts & one.parts.0)))
            .with("parity", format!("{parity:016x}"))
            .with("state", format!("{:016x}", state.digest()))
            .with("reduce_us", done.iter().map(|one| one.took.as_micros()).max().unwrap_or(0))
            .with("fetched", synced.rx_bytes)
            .with("aborts", self.aborts)
            .with("retries", self.retries)
            .with("failed_at_us", self.failed_at.map_or(0, clock_us))
            .with("at_us", clock_us(SystemTime::now()))
            .print();
    }

    /// Makes a call again while that may help.
    fn persist<T>(
        &mut self,
        call: &'static str,
        mut make: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, End> {
        let mut tries = 1;
        loop {
            match make() {
                Ok(value) => return Ok(value),
                Err(error) if error.is_retryable() && tries < TRIES_MAX => {
                    tries += 1;
                    self.retries += 1;
                }
                Err(error) => return Err(End::Failed(call, error)),
            }
        }
    }
}

/// Microseconds on the clock that all processes of a machine share, so that others can tell what came first.
fn clock_us(time: SystemTime) -> u128 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_micros())
}
