//! What a scripted peer is between its commands, and how it does each of them.

use crate::command::{Command, Reduce, Sync};
use crate::reply::Reply;
use crate::training;
use half::{bf16, f16};
use ringfold::{Communicator, DType, Error, ReduceInfo, SharedState, SyncInfo, SyncStrategy};
use ringfold_lab::Parts;
use ringfold_lab::tally::{Value, digest, mix};
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
    /// Set when a loop is to end.
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

/// An operation that was started. Waits for its end and checks it.
pub type Launched = Box<dyn FnOnce() -> Result<Done, Trouble> + Send>;

/// A reduce that succeeded, and whose result is right.
pub struct Done {
    pub info: ReduceInfo,
    pub parts: Parts,
    pub parity: u64,
    /// How long the call itself took, without the check.
    pub took: Duration,
}

/// A reduce that did not succeed.
pub enum Trouble {
    /// It failed, and the buffers hold what they must then.
    Failed(Error),
    /// The library broke a promise.
    Broken(String),
}

impl Session {
    pub fn new(communicator: Communicator, number: u32, peers_max: u32) -> Self {
        let (state, launched) = (Mutex::default(), Mutex::default());
        Self { communicator, number, peers_max, stop: AtomicBool::new(false), state, launched }
    }

    /// Does what a line asks for.
    pub fn perform(&self, command: Command) -> Reply {
        let (name, began) = (command.name(), Instant::now());
        let answered = |outcome: Result<(), Error>| match outcome {
            Ok(()) => self.with_world(Reply::ok(name, began)),
            Err(error) => self.with_world(Reply::failed(name, &error, began)),
        };
        match command {
            Command::Connect => answered(self.communicator.connect()),
            Command::Topology => answered(self.communicator.update_topology()),
            Command::Optimize => answered(self.communicator.optimize_topology()),
            Command::Pending => match self.communicator.are_peers_pending() {
                Ok(pending) => Reply::ok(name, began).with("pending", pending),
                Err(error) => Reply::failed(name, &error, began),
            },
            Command::World => answered(Ok(())),
            Command::Leave => {
                self.communicator.leave();
                Reply::ok(name, began)
            }
            Command::Sleep(time) => {
                std::thread::sleep(time);
                Reply::ok(name, began)
            }
            Command::Reduce(reduce) => self.reduced(name, reduce.tag, self.reduce(&reduce), began),
            Command::Launch(reduce) => self.launched(name, &reduce, began),
            Command::Await { tag } => match lock(&self.launched).remove(&tag) {
                Some(launched) => self.reduced(name, tag, launched(), began),
                None => Reply::misunderstood(name, "nothing was launched with this tag"),
            },
            Command::Sync(sync) => self.synced(name, &sync, began),
            Command::Loop(training) => training::run(self, &training, began),
            Command::Background(command) => self.perform(*command),
            Command::Exit => Reply::misunderstood(name, "only the script itself can end"),
        }
    }

    /// An all-reduce from start to end.
    pub fn reduce(&self, reduce: &Reduce) -> Result<Done, Trouble> {
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

    fn reduce_as<T: Value>(&self, reduce: &Reduce) -> Result<Done, Trouble> {
        let input: Vec<T> = reduce.tally(self.peers_max).contribution(self.number, reduce.count);
        if reduce.in_place {
            let mut data = input.clone();
            let began = Instant::now();
            let outcome = self.communicator.all_reduce(&mut data, reduce.options());
            self.judge(reduce, &input, &data, outcome, began.elapsed())
        } else {
            let send = input.clone();
            let mut data = vec![T::from_number(1); input.len()];
            let began = Instant::now();
            let outcome = self.communicator.all_reduce_into(&send, &mut data, reduce.options());
            let took = began.elapsed();
            if send != input {
                return Err(Trouble::Broken("the input of an out-of-place operation was written to".into()));
            }
            match outcome {
                Err(error) => Err(Trouble::Failed(error)),
                Ok(info) => self.judge(reduce, &input, &data, Ok(info), took),
            }
        }
    }

    /// Starts an all-reduce of floats in place.
    pub fn launch(&self, reduce: &Reduce) -> Result<Launched, Error> {
        let (reduce, number, peers_max) = (*reduce, self.number, self.peers_max);
        let input: Vec<f32> = reduce.tally(peers_max).contribution(number, reduce.count);
        let began = Instant::now();
        let pending = self.communicator.all_reduce_async(input.clone(), reduce.options())?;
        Ok(Box::new(move || {
            let (data, outcome) = pending.wait();
            let took = began.elapsed();
            judge(&reduce, number, peers_max, &input, &data, outcome).map(|done| Done { took, ..done })
        }))
    }

    fn judge<T: Value>(
        &self,
        reduce: &Reduce,
        input: &[T],
        data: &[T],
        outcome: Result<ReduceInfo, Error>,
        took: Duration,
    ) -> Result<Done, Trouble> {
        let judged = judge(reduce, self.number, self.peers_max, input, data, outcome);
        judged.map(|done| Done { took, ..done })
    }

    fn launched(&self, name: &str, reduce: &Reduce, began: Instant) -> Reply {
        if reduce.dtype != DType::F32 || !reduce.in_place {
            return Reply::misunderstood(name, "only floats in place can be launched");
        }
        match self.launch(reduce) {
            Ok(launched) => {
                lock(&self.launched).insert(reduce.tag, launched);
                Reply::ok(name, began).with("tag", reduce.tag)
            }
            Err(error) => Reply::failed(name, &error, began).with("tag", reduce.tag),
        }
    }

    fn reduced(&self, name: &str, tag: u64, outcome: Result<Done, Trouble>, began: Instant) -> Reply {
        let reply = match outcome {
            Ok(done) => Reply::ok(name, began)
                .with("world", done.info.world)
                .with("parts", done.parts)
                .with("parity", format!("{:016x}", done.parity))
                .with("tx", done.info.tx_bytes)
                .with("rx", done.info.rx_bytes)
                .with("call_us", done.took.as_micros()),
            Err(Trouble::Failed(error)) => Reply::failed(name, &error, began),
            Err(Trouble::Broken(what)) => Reply::wrong(name, &what, began).with("kind", "Broken"),
        };
        reply.with("tag", tag)
    }

    fn synced(&self, name: &str, sync: &Sync, began: Instant) -> Reply {
        let mut state = self.state();
        if let Some(fill) = sync.fill {
            state.fill(sync.bytes, sync.keys, fill);
        }
        state.resize(sync.bytes, sync.keys);
        state.revision = sync.revision;
        let reply = match state.sync(&self.communicator, sync.strategy, sync.unequal) {
            Ok(info) => Reply::ok(name, began)
                .with("revision", info.revision)
                .with("tx", info.tx_bytes)
                .with("rx", info.rx_bytes),
            Err(error) => Reply::failed(name, &error, began),
        };
        reply.with("state", format!("{:016x}", state.digest()))
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn with_world(&self, reply: Reply) -> Reply {
        let attributes = self.communicator.attributes();
        reply
            .with("world", attributes.group_world)
            .with("global", attributes.global_world)
            .with("groups", attributes.groups)
            .with("largest", attributes.largest_group_world)
            .with("shared", self.communicator.shared_links())
    }
}

impl State {
    /// Fills so many bytes under so many keys with what the number says.
    pub fn fill(&mut self, bytes: usize, keys: usize, fill: u64) {
        self.resize(bytes, keys);
        for (key, (_, tensor)) in self.tensors.iter_mut().enumerate() {
            let mut word = mix(mix(fill) ^ key as u64);
            for chunk in tensor.chunks_mut(8) {
                chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
                word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            }
        }
    }

    /// Gives the state this layout; what fits stays as it is, new bytes are zero.
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

/// Whether an operation ended as it must: a right result, or what was there before.
fn judge<T: Value>(
    reduce: &Reduce,
    number: u32,
    peers_max: u32,
    input: &[T],
    data: &[T],
    outcome: Result<ReduceInfo, Error>,
) -> Result<Done, Trouble> {
    let info = match outcome {
        Ok(info) => info,
        Err(error) if data == input => return Err(Trouble::Failed(error)),
        Err(error) => {
            let at = data.iter().zip(input).position(|(now, before)| now != before).unwrap_or(data.len());
            let what = format!("after a failure ({error}) element {at} of the buffer is not what it was");
            return Err(Trouble::Broken(what));
        }
    };
    let parts = reduce.tally(peers_max).check(data, info.world).map_err(Trouble::Broken)?;
    let visible = parts.0.count_ones() == info.world;
    if visible && parts.0 >> number & 1 == 0 {
        return Err(Trouble::Broken(format!("the result has no part of this peer: {parts}")));
    }
    Ok(Done { info, parts, parity: digest(data.as_bytes()), took: Duration::ZERO })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
