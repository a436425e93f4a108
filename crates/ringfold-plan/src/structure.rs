//! Static checks of the plans of all ranks: both ends of every pair have the same frames, regions are within their
//! buffers, and steps on the same memory are ordered.
//!
//! Only local order counts: `after`, the order of frames from one rank, and fences. Whether a frame was sent before its
//! memory is overwritten may depend on other ranks; the [`checker`](crate::checker) finds that by running the plans.

use crate::layout::{Layout, Pieces};
use crate::plan::Plan;
use crate::shape::GroupShape;
use crate::step::{Action, OpBuffer, Region, Step};
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::id::Rank;

/// An error in the plans of a group.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Flaw {
    /// The number of plans is not the number of ranks.
    #[error("{plans} plans for a world of {world}")]
    World { plans: usize, world: usize },
    /// Ranks have different operations.
    #[error("{rank} has another algorithm or fingerprint than rank 0")]
    Disagreement { rank: Rank },
    /// The two ends of a pair have different frames.
    #[error("{from} sends {to} {sent:?} elements in frame {ordinal}, but {to} expects {expected:?}")]
    Frames { from: Rank, to: Rank, ordinal: usize, sent: Option<u32>, expected: Option<u32> },
    /// A step uses a link that the group does not have.
    #[error("{rank}, step {step}: no link with {peer}")]
    NoLink { rank: Rank, step: u32, peer: Rank },
    /// A region is not within its buffer.
    #[error("{rank}, step {step}: {region:?} is not within the {extent} elements of the buffer")]
    Outside { rank: Rank, step: u32, region: Region, extent: u64 },
    /// Operands have different lengths.
    #[error("{rank}, step {step}: operands of different lengths")]
    Lengths { rank: Rank, step: u32 },
    /// A step writes the source.
    #[error("{rank}, step {step}: writes the source")]
    WritesSource { rank: Rank, step: u32 },
    /// A step waits for itself or a later step.
    #[error("{rank}, step {step}: waits for step {after}, which is not before it")]
    After { rank: Rank, step: u32, after: u32 },
    /// Two steps use the same elements, at least one writes them, and they are not ordered.
    #[error("{rank}: steps {first} and {second} both use {region:?} and are not ordered")]
    Unordered { rank: Rank, first: u32, second: u32, region: Region },
    /// The scratch size of the plan is not what its steps use.
    #[error("{rank} has {asked} elements of scratch but uses {used}")]
    Scratch { rank: Rank, asked: u64, used: u64 },
}

/// The number of elements of a source or target on a rank; 0 for scratch, whose size is in the plan.
pub fn extent(descriptor: &Descriptor, layout: &Layout, world: usize, rank: Rank, buffer: OpBuffer) -> u64 {
    match (descriptor.collective, buffer) {
        (_, OpBuffer::Scratch) | (Collective::Barrier, _) => 0,
        (Collective::ReduceScatter, OpBuffer::Target) | (Collective::AllGather, OpBuffer::Source) => {
            layout.parts(descriptor, world).of(rank).count
        }
        (Collective::Reduce { root }, OpBuffer::Target) if rank != root => 0,
        (
            Collective::Gather { .. }
            | Collective::Scatter { .. }
            | Collective::AllToAll
            | Collective::Transfer { .. },
            buffer,
        ) => {
            let pieces = Pieces::of(descriptor, layout, world, rank);
            if buffer == OpBuffer::Source { pieces.sent() } else { pieces.received() }
        }
        _ => descriptor.count,
    }
}

/// Checks the plans of all ranks, in rank order, with their layouts. The time is quadratic in the length of a plan.
pub fn check(
    descriptor: &Descriptor,
    layouts: &[Layout],
    shape: &GroupShape,
    plans: &[Plan],
) -> Result<(), Flaw> {
    let world = shape.world();
    if plans.len() != world || layouts.len() != world {
        return Err(Flaw::World { plans: plans.len(), world });
    }
    for (index, plan) in plans.iter().enumerate() {
        let rank = Rank::from_index(index);
        if (plan.algorithm, plan.fingerprint) != (plans[0].algorithm, plans[0].fingerprint) {
            return Err(Flaw::Disagreement { rank });
        }
        let [source, target] = [OpBuffer::Source, OpBuffer::Target]
            .map(|buffer| extent(descriptor, &layouts[index], world, rank, buffer));
        let extent = |buffer| match buffer {
            OpBuffer::Source => source,
            OpBuffer::Target => target,
            OpBuffer::Scratch => plan.scratch,
        };
        for (step, s) in plan.steps.iter().enumerate() {
            check_step(rank, step as u32, s, shape, &extent)?;
        }
        check_scratch(rank, plan)?;
        check_order(rank, plan)?;
    }
    check_frames(plans)
}

fn check_step(
    rank: Rank,
    step: u32,
    s: &Step,
    shape: &GroupShape,
    extent: &dyn Fn(OpBuffer) -> u64,
) -> Result<(), Flaw> {
    for peer in s.send.into_iter().chain(s.receives_from()) {
        if peer.index() >= shape.world() || !shape.is_linked(rank, peer) {
            return Err(Flaw::NoLink { rank, step, peer });
        }
    }
    if let Some(after) = s.after.filter(|after| *after >= step) {
        return Err(Flaw::After { rank, step, after });
    }
    for region in reads(s).into_iter().flatten().chain([s.region]) {
        let extent = extent(region.buffer);
        if region.offset + u64::from(region.count) > extent {
            return Err(Flaw::Outside { rank, step, region, extent });
        }
        if region.count != s.region.count {
            return Err(Flaw::Lengths { rank, step });
        }
    }
    if written(s).is_some_and(|region| region.buffer == OpBuffer::Source) {
        return Err(Flaw::WritesSource { rank, step });
    }
    Ok(())
}

/// The local regions that a step reads.
fn reads(step: &Step) -> [Option<Region>; 2] {
    match step.action {
        Action::None | Action::Store { .. } => [None, None],
        Action::Copy { own } | Action::Reduce { own, .. } => [Some(own), None],
        Action::Combine { left, right } => [Some(left), Some(right)],
    }
}

/// The region that a step writes.
fn written(step: &Step) -> Option<Region> {
    (step.action != Action::None || step.settle).then_some(step.region)
}

fn check_scratch(rank: Rank, plan: &Plan) -> Result<(), Flaw> {
    let regions = plan.steps.iter().flat_map(|s| reads(s).into_iter().flatten().chain([s.region]));
    let in_scratch = regions.filter(|r| r.buffer == OpBuffer::Scratch && r.count > 0);
    let used = in_scratch.map(|r| r.offset + u64::from(r.count)).max().unwrap_or(0);
    if used == plan.scratch { Ok(()) } else { Err(Flaw::Scratch { rank, asked: plan.scratch, used }) }
}

fn check_frames(plans: &[Plan]) -> Result<(), Flaw> {
    let counts = |plan: &Plan, lists: &[(Rank, Vec<u32>)], peer: usize| -> Vec<u32> {
        let list = lists.iter().find(|(rank, _)| rank.index() == peer);
        list.map_or(Vec::new(), |(_, steps)| {
            steps.iter().map(|s| plan.steps[*s as usize].region.count).collect()
        })
    };
    for (p, sender) in plans.iter().enumerate() {
        for (q, receiver) in plans.iter().enumerate() {
            let sent = counts(sender, &sender.sends, q);
            let expected = counts(receiver, &receiver.receives, p);
            let frames = sent.len().max(expected.len());
            if let Some(ordinal) = (0..frames).find(|i| sent.get(*i) != expected.get(*i)) {
                let (sent, expected) = (sent.get(ordinal).copied(), expected.get(ordinal).copied());
                let (from, to) = (Rank::from_index(p), Rank::from_index(q));
                return Err(Flaw::Frames { from, to, ordinal, sent, expected });
            }
        }
    }
    Ok(())
}

/// Two steps that use the same elements must be ordered if one of them writes.
fn check_order(rank: Rank, plan: &Plan) -> Result<(), Flaw> {
    let before = predecessors(plan);
    for (second, later) in plan.steps.iter().enumerate() {
        for (first, earlier) in plan.steps[..second].iter().enumerate() {
            let Some(region) = clash(earlier, later) else { continue };
            if before[second][first / 64] >> (first % 64) & 1 == 0 {
                let (first, second) = (first as u32, second as u32);
                return Err(Flaw::Unordered { rank, first, second, region });
            }
        }
    }
    Ok(())
}

/// The region of the later of two steps that conflicts with the earlier one. Sends of the earlier one are left out:
/// their order may depend on other ranks.
fn clash(earlier: &Step, later: &Step) -> Option<Region> {
    let overlap = |a: &Region, b: &Region| {
        let before = |a: &Region, b: &Region| a.offset + u64::from(a.count) <= b.offset;
        a.buffer == b.buffer && a.count > 0 && b.count > 0 && !before(a, b) && !before(b, a)
    };
    let read_later = || reads(later).into_iter().flatten().chain([later.region]);
    let overwritten = written(earlier).and_then(|w| read_later().find(|r| overlap(&w, r)));
    let read_earlier = || reads(earlier).into_iter().flatten();
    overwritten.or_else(|| written(later).filter(|w| read_earlier().any(|r| overlap(&r, w))))
}

/// For each step, the bit set of the steps that are done before it begins.
fn predecessors(plan: &Plan) -> Vec<Vec<u64>> {
    let words = plan.steps.len().div_ceil(64);
    let mut before: Vec<Vec<u64>> = Vec::with_capacity(plan.steps.len());
    for (index, step) in plan.steps.iter().enumerate() {
        let earlier = |i: &usize| plan.steps[*i].receives_from() == step.receives_from();
        let same_source = step.receives_from().and_then(|_| (0..index).rev().find(earlier));
        let flushed = (0..index).filter(|i| step.fence && plan.steps[*i].send.is_some());
        let mut set = vec![0u64; words];
        for i in step.after.map(|a| a as usize).into_iter().chain(same_source).chain(flushed) {
            set.iter_mut().zip(&before[i]).for_each(|(word, other)| *word |= other);
            set[i / 64] |= 1 << (i % 64);
        }
        before.push(set);
    }
    before
}
