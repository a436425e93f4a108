//! The state of `lab-peer`, and the execution of its commands.

use crate::command::{Command, Reduce, Sync};
use crate::reply_line::ReplyLine;
use crate::training;
use half::{bf16, f16};
use ringfold::{Communicator, DType, Error, ReduceInfo, SharedState, SyncInfo, SyncStrategy, Traffic};
use ringfold_lab::Participants;
use ringfold_lab::contributions::{ContributionElement, digest, mix};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// A peer, its shared state and its operations in flight.
pub struct Session {
    pub communicator: Communicator,
    pub number: u32,
    pub peers_max: u32,
    /// Set to end the running loop.
    pub stop: AtomicBool,
    state: Mutex<State>,
    launched: Mutex<BTreeMap<u64, Launched>>,
}

/// The shared state of this peer.
#[derive(Default)]
pub struct State {
    pub revision: u64,
    tensors: Vec<(String, Vec<u8>)>,
}

/// A started operation. Calling it waits for the result and checks it.
pub type Launched = Box<dyn FnOnce() -> Result<CheckedReduce, ReduceFailure> + Send>;

/// A successful reduce with a correct result.
pub struct CheckedReduce {
    pub info: ReduceInfo,
    pub participants: Participants,
    pub result_digest: u64,
    /// The time of the call, without the check.
    pub took: Duration,
}

/// Why a reduce did not succeed.
pub enum ReduceFailure {
    /// It failed, and the buffers were restored.
    Failed(Error),
    /// The library broke a guarantee.
    Broken(String),
}

impl Session {
    pub fn new(communicator: Communicator, number: u32, peers_max: u32) -> Self {
        let (state, launched) = (Mutex::default(), Mutex::default());
        Self { communicator, number, peers_max, stop: AtomicBool::new(false), state, launched }
    }

    /// Executes a command.
    pub fn perform(&self, name: &str, command: Command) -> ReplyLine {
        let began = Instant::now();
        let reply = |outcome: Result<(), Error>| match outcome {
            Ok(()) => self.with_world(ReplyLine::ok(name, began)),
            Err(error) => self.with_world(ReplyLine::failed(name, &error, began)),
        };
        match command {
            Command::Connect => reply(self.communicator.connect()),
            Command::Topology => reply(self.communicator.update_topology()),
            Command::Optimize => reply(self.communicator.optimize_topology()),
            Command::Pending => match self.communicator.are_peers_pending() {
                Ok(pending) => ReplyLine::ok(name, began).with("pending", pending),
                Err(error) => ReplyLine::failed(name, &error, began),
            },
            Command::World => reply(Ok(())),
            Command::Traffic => {
                let report = self.communicator.traffic();
                let of = |is_master: bool| {
                    let peers = report.peers.iter().filter(move |peer| (peer.name == "master") == is_master);
                    peers.map(|peer| peer.traffic).sum::<Traffic>()
                };
                ReplyLine::ok(name, began)
                    .with("sent", report.total.sent)
                    .with("received", report.total.received)
                    .with("peers_sent", of(false).sent)
                    .with("peers_received", of(false).received)
                    .with("master_sent", of(true).sent + of(true).local_sent)
            }
            Command::Leave => {
                self.communicator.leave();
                ReplyLine::ok(name, began)
            }
            Command::Sleep(time) => {
                std::thread::sleep(time);
                ReplyLine::ok(name, began)
            }
            Command::Reduce(reduce) => self.reduced(name, reduce.tag, self.reduce(&reduce), began),
            Command::Launch(reduce) => self.launched(name, &reduce, began),
            Command::Await { tag } => match lock(&self.launched).remove(&tag) {
                Some(launched) => self.reduced(name, tag, launched(), began),
                None => ReplyLine::invalid_command(name, "no operation was launched with this tag"),
            },
            Command::Sync(sync) => self.synced(name, &sync, began),
            Command::Loop(training) => training::run(self, &training, began),
            Command::Exit => ReplyLine::invalid_command(name, "exit cannot run in the background"),
        }
    }

    /// Runs an all-reduce and checks its result.
    pub fn reduce(&self, reduce: &Reduce) -> Result<CheckedReduce, ReduceFailure> {
        match reduce.dtype {
            DType::U8 => self.reduce_as::<u8>(reduce),
            DType::I8 => self.reduce_as::<i8>(reduce),
            DType::U16 => self.reduce_as::<u16>(reduce),
            DType::I16 => self.reduce_as::<i16>(reduce),
            DType::U32 => self.reduce_as::<u32>(reduce),
            DType::I32 => self.reduce_as::<i32>(reduce),
            DType::U64 => self.reduce_as::<u64>(reduce),
            DType::I64 => self.reduce_as::<i64>(reduce),
            DType::F16 => self.reduce_as::<f16>(reduce),
            DType::BF16 => self.reduce_as::<bf16>(reduce),
            DType::F64 => self.reduce_as::<f64>(reduce),
            _ => self.reduce_as::<f32>(reduce),
        }
    }

    fn reduce_as<T: ContributionElement>(&self, reduce: &Reduce) -> Result<CheckedReduce, ReduceFailure> {
        let input: Vec<T> = reduce.contributions(self.peers_max).contribution(self.number, reduce.count);
        if reduce.in_place {
            let mut data = input.clone();
            let began = Instant::now();
            let outcome = self.communicator.all_reduce(&mut data, reduce.options());
            check_outcome(reduce, (self.number, self.peers_max), &input, &data, outcome, began.elapsed())
        } else {
            let send = input.clone();
            let mut data = vec![T::from_number(1); input.len()];
            let began = Instant::now();
            let outcome = self.communicator.all_reduce_into(&send, &mut data, reduce.options());
            let took = began.elapsed();
            if send != input {
                return Err(ReduceFailure::Broken(
                    "the input of an out-of-place operation was changed".into(),
                ));
            }
            let info = outcome.map_err(ReduceFailure::Failed)?;
            check_outcome(reduce, (self.number, self.peers_max), &input, &data, Ok(info), took)
        }
    }

    /// Starts an asynchronous all-reduce of f32 in place.
    pub fn launch(&self, reduce: &Reduce) -> Result<Launched, Error> {
        let (reduce, number, peers_max) = (*reduce, self.number, self.peers_max);
        let input: Vec<f32> = reduce.contributions(peers_max).contribution(number, reduce.count);
        let began = Instant::now();
        let pending = self.communicator.all_reduce_async(input.clone(), reduce.options())?;
        Ok(Box::new(move || {
            let (data, outcome) = pending.wait();
            check_outcome(&reduce, (number, peers_max), &input, &data, outcome, began.elapsed())
        }))
    }

    fn launched(&self, name: &str, reduce: &Reduce, began: Instant) -> ReplyLine {
        if reduce.dtype != DType::F32 || !reduce.in_place {
            return ReplyLine::invalid_command(name, "only float32 in place can be launched");
        }
        match self.launch(reduce) {
            Ok(launched) => {
                lock(&self.launched).insert(reduce.tag, launched);
                ReplyLine::ok(name, began).with("tag", reduce.tag)
            }
            Err(error) => ReplyLine::failed(name, &error, began).with("tag", reduce.tag),
        }
    }

    fn reduced(
        &self,
        name: &str,
        tag: u64,
        outcome: Result<CheckedReduce, ReduceFailure>,
        began: Instant,
    ) -> ReplyLine {
        let line = match outcome {
            Ok(done) => ReplyLine::ok(name, began)
                .with("world", done.info.world)
                .with("participants", done.participants)
                .with("digest", format!("{:016x}", done.result_digest))
                .with("tx", done.info.tx_bytes)
                .with("rx", done.info.rx_bytes)
                .with("call_us", done.took.as_micros()),
            Err(ReduceFailure::Failed(error)) => ReplyLine::failed(name, &error, began),
            Err(ReduceFailure::Broken(what)) => ReplyLine::wrong(name, &what, began).with("kind", "Broken"),
        };
        line.with("tag", tag)
    }

    fn synced(&self, name: &str, sync: &Sync, began: Instant) -> ReplyLine {
        let mut state = self.state();
        if let Some(fill) = sync.fill {
            state.fill(sync.bytes, sync.keys, fill);
        }
        state.resize(sync.bytes, sync.keys);
        state.revision = sync.revision;
        let line = match state.sync(&self.communicator, sync.strategy, sync.unequal) {
            Ok(info) => ReplyLine::ok(name, began)
                .with("revision", info.revision)
                .with("tx", info.tx_bytes)
                .with("rx", info.rx_bytes),
            Err(error) => ReplyLine::failed(name, &error, began),
        };
        line.with("state", format!("{:016x}", state.digest()))
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn with_world(&self, line: ReplyLine) -> ReplyLine {
        let attributes = self.communicator.attributes();
        line.with("world", attributes.group_world)
            .with("global", attributes.global_world)
            .with("groups", attributes.groups)
            .with("largest", attributes.largest_group_world)
            .with("shared", self.communicator.shared_links())
    }
}

impl State {
    /// Fills the state with pseudo-random bytes.
    pub fn fill(&mut self, bytes: usize, keys: usize, seed: u64) {
        self.resize(bytes, keys);
        for (key, (_, tensor)) in self.tensors.iter_mut().enumerate() {
            let mut word = mix(mix(seed) ^ key as u64);
            for chunk in tensor.chunks_mut(8) {
                chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
                word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            }
        }
    }

    /// Changes the layout of the state. Existing bytes stay, new bytes are zero.
    pub fn resize(&mut self, bytes: usize, keys: usize) {
        self.tensors.resize_with(keys, Default::default);
        for (key, (name, tensor)) in self.tensors.iter_mut().enumerate() {
            *name = format!("tensor-{key}");
            tensor.resize(bytes / keys + usize::from(key < bytes % keys), 0);
        }
    }

    pub fn sync(
        &mut self,
        communicator: &Communicator,
        strategy: SyncStrategy,
        unequal: bool,
    ) -> Result<SyncInfo, Error> {
        let mut shared = SharedState::new(self.revision);
        for (key, tensor) in &mut self.tensors {
            shared = if unequal { shared.add_unequal(key, tensor) } else { shared.add(key, tensor) };
        }
        let info = communicator.sync_shared_state(&mut shared, strategy)?;
        self.revision = info.revision;
        Ok(info)
    }

    pub fn digest(&self) -> u64 {
        self.tensors.iter().fold(0, |so_far, (_, tensor)| mix(so_far ^ digest(tensor)))
    }
}

/// Checks the end of an operation: a correct result, or an error and restored buffers.
fn check_outcome<T: ContributionElement>(
    reduce: &Reduce,
    (number, peers_max): (u32, u32),
    input: &[T],
    data: &[T],
    outcome: Result<ReduceInfo, Error>,
    took: Duration,
) -> Result<CheckedReduce, ReduceFailure> {
    let info = match outcome {
        Ok(info) => info,
        Err(error) if data == input => return Err(ReduceFailure::Failed(error)),
        Err(error) => {
            let at = data.iter().zip(input).position(|(now, before)| now != before).unwrap_or(data.len());
            let what = format!("element {at} of the buffer was not restored after: {error}");
            return Err(ReduceFailure::Broken(what));
        }
    };
    let participants =
        reduce.contributions(peers_max).check(data, info.world).map_err(ReduceFailure::Broken)?;
    let visible = participants.0.count_ones() == info.world;
    if visible && participants.0 >> number & 1 == 0 {
        return Err(ReduceFailure::Broken(format!("the result does not include this peer: {participants}")));
    }
    Ok(CheckedReduce { info, participants, result_digest: digest(data.as_bytes()), took })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
