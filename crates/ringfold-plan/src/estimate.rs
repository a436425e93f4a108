//! Estimates how long plans take on a network, by running them in virtual time with a few large chunks.

use crate::choice::{self, NoPlan};
use crate::layout::Layout;
use crate::method::{Method, Task};
use crate::network::NetworkView;
use crate::plan::{Plan, wire_bytes};
use crate::shape::GroupShape;
use crate::step::Action;
use core::cmp::Reverse;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::epoch::EpochDescription;
use ringfold_proto::id::Rank;
use ringfold_proto::network::Network;
use ringfold_proto::tuning::Tuning;
use std::collections::BinaryHeap;

/// A tensor has about so many chunks in an estimate.
const CHUNKS: u64 = 48;
/// A gain is estimated for at most so many bytes: the arguments of an operation are what a peer claims.
const CLAIMED_BYTES_MAX: u64 = 64 << 30;

/// How much faster an operation gets, in percent, if plans are chosen for the measured network instead of another one or
/// none. The measured one counts as the true one.
pub fn gain_percent(
    epoch: &EpochDescription,
    current: Option<&Network>,
    measured: &Network,
    descriptor: &Descriptor,
) -> u32 {
    let count = descriptor.count.min(CLAIMED_BYTES_MAX / descriptor.dtype.bytes() as u64);
    let descriptor = &Descriptor { count, ..*descriptor };
    let shape = |network: Option<&Network>| GroupShape::of(epoch).with_network(network);
    let (before, after) = (shape(current), shape(Some(measured)));
    let Some(view) = after.network.clone() else { return 0 };
    let tuning = coarse(descriptor, &epoch.tuning);
    let time = |shape: &GroupShape| -> Result<u64, NoPlan> {
        let of = |rank| choice::plan(descriptor, &Layout::Even, rank, shape, &tuning);
        let plans: Result<Vec<_>, _> = (0..shape.world()).map(Rank::from_index).map(of).collect();
        Ok(run(&plans?, descriptor, &view, &tuning))
    };
    match (time(&before), time(&after)) {
        (Ok(before), Ok(after)) if after < before => ((before - after) * 100 / before) as u32,
        _ => 0,
    }
}

/// The estimated time of a method, for layouts that all ranks know.
pub(crate) fn of_method(method: &Method, task: &Task, view: &NetworkView) -> u64 {
    let tuning = coarse(task.descriptor, task.tuning);
    let plan_of = |me| {
        let draft = (method.draft)(&Task { me, tuning: &tuning, ..*task });
        Plan::new(method.algorithm, 0, draft.scratch, draft.steps)
    };
    let plans: Vec<_> = (0..task.world()).map(Rank::from_index).map(plan_of).collect();
    run(&plans, task.descriptor, view, &tuning)
}

/// The tuning with larger chunks.
fn coarse(descriptor: &Descriptor, tuning: &Tuning) -> Tuning {
    let bytes = descriptor.count.saturating_mul(descriptor.dtype.bytes() as u64);
    let chunk_bytes = u32::try_from(bytes / CHUNKS).unwrap_or(u32::MAX).max(tuning.chunk_bytes);
    Tuning { chunk_bytes, ..*tuning }
}

/// What happens at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// A step can run.
    Ready { rank: usize, step: u32 },
    /// A frame arrives for this step.
    Frame { rank: usize, step: u32 },
}

/// One rank's progress.
struct Progress<'a> {
    plan: &'a Plan,
    /// What each step still waits for.
    waits: Vec<u8>,
    done: Vec<bool>,
    /// For each receiver, how many frames have left.
    sent: Vec<usize>,
}

/// The time until all ranks are done.
fn run(plans: &[Plan], descriptor: &Descriptor, view: &NetworkView, tuning: &Tuning) -> u64 {
    let mut ranks: Vec<_> = plans.iter().map(Progress::new).collect();
    let mut free = vec![0; view.resource_count()];
    let mut queue = BinaryHeap::new();
    for (rank, progress) in ranks.iter().enumerate() {
        let ready = progress.waits.iter().zip(0..).filter(|(waits, _)| **waits == 0);
        queue.extend(ready.map(|(_, step)| Reverse((0, Happening::Ready { rank, step }))));
    }
    let mut end = 0;
    while let Some(Reverse((now, happening))) = queue.pop() {
        let (rank, step) = match happening {
            Happening::Frame { rank, step } => {
                if ranks[rank].settle(step) {
                    queue.push(Reverse((now, Happening::Ready { rank, step })));
                }
                continue;
            }
            Happening::Ready { rank, step } => (rank, step),
        };
        let plan = ranks[rank].plan;
        let this = &plan.steps[step as usize];
        let reduces = matches!(this.action, Action::Reduce { .. } | Action::Combine { .. });
        let bytes = u64::from(this.region.count) * descriptor.dtype.bytes() as u64;
        let work = if reduces { kib(bytes, u64::from(tuning.tcp.reduced_ns_per_kib)) } else { 0 };
        let now = now + work;
        end = end.max(now);
        ranks[rank].done[step as usize] = true;
        let next_receive = this.receives_from().and_then(|from| {
            let (_, list) = plan.receives.iter().find(|(peer, _)| *peer == from)?;
            list.get(list.binary_search(&step).ok()? + 1).copied()
        });
        for later in plan.dependents_of(step).chain(next_receive) {
            if ranks[rank].settle(later) {
                queue.push(Reverse((now, Happening::Ready { rank, step: later })));
            }
        }
        // Frames to a rank leave in order.
        let Some(line) = plan.sends.iter().position(|(peer, _)| Some(*peer) == this.send) else { continue };
        let (to, steps) = &plan.sends[line];
        while let Some(head) =
            steps.get(ranks[rank].sent[line]).filter(|head| ranks[rank].done[**head as usize])
        {
            let ordinal = ranks[rank].sent[line];
            ranks[rank].sent[line] += 1;
            let bytes = u64::from(wire_bytes(descriptor, plan.steps[*head as usize].region.count));
            let from = Rank::from_index(rank);
            let arrival = now.max(occupy(view, &mut free, now, bytes, from, *to)) + view.delay_ns(from, *to);
            let receives = &ranks[to.index()].plan.receives;
            let expected =
                receives.iter().find(|(peer, _)| *peer == from).and_then(|(_, list)| list.get(ordinal));
            if let Some(step) = expected.copied() {
                queue.push(Reverse((arrival, Happening::Frame { rank: to.index(), step })));
            }
        }
    }
    end
}

/// Occupies the resources of a transfer. Returns when the last of them is free again.
fn occupy(view: &NetworkView, free: &mut [u64], now: u64, bytes: u64, from: Rank, to: Rank) -> u64 {
    let mut end = now;
    for resource in view.resources(from, to) {
        free[resource] = free[resource].max(now) + kib(bytes, view.price(resource));
        end = end.max(free[resource]);
    }
    end
}

fn kib(bytes: u64, price: u64) -> u64 {
    (u128::from(bytes) * u128::from(price) / 1024) as u64
}

impl<'a> Progress<'a> {
    fn new(plan: &'a Plan) -> Self {
        let mut waits: Vec<_> = plan.steps.iter().map(|step| u8::from(step.after.is_some())).collect();
        for (_, list) in &plan.receives {
            for (i, step) in list.iter().enumerate() {
                // For its frame, and for the receive before it.
                waits[*step as usize] += 1 + u8::from(i > 0);
            }
        }
        Self { plan, waits, done: vec![false; plan.steps.len()], sent: vec![0; plan.sends.len()] }
    }

    /// One of the things that a step waits for has happened. Returns whether it was the last.
    fn settle(&mut self, step: u32) -> bool {
        let waits = &mut self.waits[step as usize];
        *waits = waits.saturating_sub(1);
        *waits == 0
    }
}
