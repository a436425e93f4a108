//! The user's program: waits for its world, then reduces, step by step, with whoever is there.

use crate::memory::Buffers;
use crate::peer::{PeerDriver, Reduced};
use ringfold_kernels::tree_hash;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::dtype::DType;
use ringfold_proto::id::{CallId, Rank, Tag};
use ringfold_proto::peer::Failure;
use ringfold_proto::reduce_op::ReduceOp;
use std::error::Error;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Under this tag peers agree on the step that comes next; a newcomer learns it from the others.
const STEP_TAG: Tag = Tag(1000);

/// A call that fails so often in a row will not succeed.
const TRIES_MAX: usize = 20;

/// The pause between two looks at who wants to join.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// One collective of a step.
#[derive(Clone, Copy)]
struct Task {
    tag: Tag,
    op: ReduceOp,
    in_place: bool,
}

/// All collectives of a step. They are in flight together.
const TASKS: [Task; 4] = [
    Task { tag: Tag(0), op: ReduceOp::Sum, in_place: true },
    Task { tag: Tag(1), op: ReduceOp::Avg, in_place: true },
    Task { tag: Tag(2), op: ReduceOp::Sum, in_place: false },
    Task { tag: Tag(3), op: ReduceOp::Avg, in_place: false },
];

/// What the program is to do.
pub struct Program {
    /// Its peer's name, from which its values follow.
    pub name: String,
    /// Peers that it waits for before it begins.
    pub world: u32,
    /// Elements of each buffer.
    pub count: u64,
    /// Steps that the run has at least.
    pub steps: u32,
    /// The run does not end before so many peers have made a step together.
    pub until_world: u32,
    /// At this step, only one collective is started, and nothing follows it.
    pub hold_at: Option<u32>,
}

impl Program {
    /// Runs to the end.
    pub fn run(&self, peer: &mut PeerDriver) -> Result<(), Box<dyn Error>> {
        peer.call(|machine, now| machine.connect(now, None))??;
        say("connected")?;
        while peer.machine.attributes().group_world < self.world {
            self.update_topology(peer)?;
            let until = Instant::now() + LOOK_AGAIN;
            while Instant::now() < until {
                peer.turn()?;
            }
        }
        let (mut step, mut world) = (self.agree_on_step(peer, 0)?, 0);
        // All peers decide alike: those who were there made the last step together, and a newcomer has made
        // none, so that it goes on if they do.
        while step < self.steps || world < self.until_world {
            world = self.step(peer, step)?;
            self.update_topology(peer)?;
            step = self.agree_on_step(peer, step + 1)?;
        }
        peer.leave()
    }

    /// Lets in whoever waits. Calls that fail are made again, and no other is made before they have succeeded:
    /// that is how peers stay in step, since some may have seen a failure that others have not.
    fn update_topology(&self, peer: &mut PeerDriver) -> Result<(), Box<dyn Error>> {
        for _ in 0..TRIES_MAX {
            match peer.call(|machine, now| machine.update_topology(now, None))? {
                Ok(_) => return Ok(()),
                Err(failure) if failure.is_retryable() => say(&format!("failed vote: {failure}"))?,
                Err(failure) => return Err(failure.into()),
            }
        }
        Err("update_topology fails again and again".into())
    }

    /// The largest step that anyone has come to.
    fn agree_on_step(&self, peer: &mut PeerDriver, step: u32) -> Result<u32, Box<dyn Error>> {
        let descriptor = Descriptor::all_reduce(1, DType::U32, ReduceOp::Max);
        let input = step.to_ne_bytes().to_vec();
        let call = peer.start(STEP_TAG, descriptor, Buffers::in_place(input.clone()))?;
        let mut jobs = [Job { tag: STEP_TAG, descriptor, input, call, reduced: None }];
        finish_all(peer, &mut jobs)?;
        let [Job { reduced: Some(reduced), .. }] = jobs else { return Err("no step was agreed on".into()) };
        Ok(u32::from_ne_bytes(reduced.buffers.result().try_into()?))
    }

    /// Makes a step; how many made it together.
    fn step(&self, peer: &mut PeerDriver, step: u32) -> Result<u32, Box<dyn Error>> {
        let inputs = TASKS.map(|task| self.values(task.tag, step));
        let id = peer.machine.id();
        let rank = peer.machine.epoch().and_then(|epoch| epoch.rank_of(id)).unwrap_or(Rank(0)).index();
        let begun = Instant::now();
        let mut jobs = Vec::new();
        // Everyone starts with another one: the order is nobody's business (R3).
        for i in (0..TASKS.len()).map(|i| (i + rank) % TASKS.len()) {
            let (task, input) = (TASKS[i], inputs[i].clone());
            let copy = input.clone();
            let buffers = if task.in_place { Buffers::in_place(copy) } else { Buffers::out_of_place(copy) };
            let descriptor = Descriptor::all_reduce(self.count, DType::F32, task.op);
            let call = peer.start(task.tag, descriptor, buffers)?;
            jobs.push(Job { tag: task.tag, descriptor, input, call, reduced: None });
            if self.hold_at == Some(step) {
                hold(peer)?;
            }
        }
        finish_all(peer, &mut jobs)?;
        let took_ms = begun.elapsed().as_secs_f64() * 1e3;
        jobs.sort_by_key(|job| job.tag);
        let (mut hashes, mut world) = (Vec::new(), u32::MAX);
        for (task, job) in TASKS.iter().zip(&jobs) {
            let reduced = job.reduced.as_ref().ok_or("a collective has no result")?;
            if !task.in_place && reduced.buffers.source() != job.input {
                return Err(format!("{} changed its input", job.tag).into());
            }
            check(*task, step, reduced)?;
            hashes.extend_from_slice(&tree_hash(reduced.buffers.result()).0.to_le_bytes());
            world = world.min(reduced.members.len() as u32);
        }
        let hash = tree_hash(&hashes);
        say(&format!("step {step} world {world} hash {hash} in {took_ms:.3} ms"))?;
        Ok(world)
    }

    fn values(&self, tag: Tag, step: u32) -> Vec<u8> {
        let seed = seed(&self.name, tag, step);
        (0..self.count).flat_map(|i| value(seed, i).to_ne_bytes()).collect()
    }
}

/// A collective that was called, and is called again until it succeeds.
struct Job {
    tag: Tag,
    descriptor: Descriptor,
    input: Vec<u8>,
    call: CallId,
    reduced: Option<Reduced>,
}

/// Waits for collectives. The inputs of those that were aborted must be as they were, and they are called
/// again, but only after all others have ended: whoever waits for one before it has called the next again
/// waits for ever for a peer that does so in another order.
fn finish_all(peer: &mut PeerDriver, jobs: &mut [Job]) -> Result<(), Box<dyn Error>> {
    for _ in 0..TRIES_MAX {
        let mut aborted = Vec::new();
        for job in jobs.iter_mut().filter(|job| job.reduced.is_none()) {
            let reduced = peer.finish(job.call)?;
            match reduced.result {
                Ok(_) => job.reduced = Some(reduced),
                Err(failure @ Failure::Aborted(_)) => {
                    say(&format!("aborted {}: {failure}", job.tag))?;
                    if reduced.buffers.source() != job.input {
                        return Err(format!("{} was aborted, and its input is not as it was", job.tag).into());
                    }
                    aborted.push((job, reduced.buffers));
                }
                Err(failure) => return Err(failure.into()),
            }
        }
        if aborted.is_empty() {
            return Ok(());
        }
        for (job, buffers) in aborted {
            job.call = peer.start(job.tag, job.descriptor, buffers)?;
        }
    }
    Err("collectives fail again and again".into())
}

/// Says so, and does nothing more but keep the connections alive.
fn hold(peer: &mut PeerDriver) -> Result<(), Box<dyn Error>> {
    say("holding")?;
    loop {
        peer.turn()?;
    }
}

/// Holds a result against what its members put in.
fn check(task: Task, step: u32, reduced: &Reduced) -> Result<(), Box<dyn Error>> {
    let world = reduced.members.len() as f64;
    let divisor = if task.op == ReduceOp::Avg { world } else { 1.0 };
    let seeds: Vec<_> = reduced.members.iter().map(|name| seed(name, task.tag, step)).collect();
    let (elements, _) = reduced.buffers.result().as_chunks::<4>();
    for (i, bytes) in (0..).zip(elements) {
        let sum: f64 = seeds.iter().map(|seed| f64::from(value(*seed, i))).sum();
        let (expected, found) = (sum / divisor, f64::from(f32::from_ne_bytes(*bytes)));
        // Each of the additions may round once.
        if (found - expected).abs() > expected * f64::from(f32::EPSILON) * world {
            return Err(format!("{}: element {i} is {found}, not {expected}", task.tag).into());
        }
    }
    Ok(())
}

/// What the values of one peer in one collective follow from.
fn seed(name: &str, tag: Tag, step: u32) -> u64 {
    let start = tag.0 << 32 | u64::from(step);
    name.bytes().fold(start, |seed, byte| (seed ^ u64::from(byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// An element of them: between 1/2 and 3/2, all bits of the mantissa in use, so that additions round.
fn value(seed: u64, i: u64) -> f32 {
    let mixed = (seed ^ i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let bits = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 41;
    0.5 + bits as f32 / (1 << 23) as f32
}

/// Tells whoever started this process, at once.
fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
