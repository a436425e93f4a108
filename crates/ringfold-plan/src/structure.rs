//! What must hold of a set of plans before anything runs: both ends of every pair list the same frames,
//! regions lie within their places, and what touches the same memory is ordered.
//!
//! The order of two steps of a rank that this sees is local: `after`, the order of frames from one rank,
//! and fences. That a frame has been taken before its memory is overwritten may also follow from what
//! other ranks do; that is for the [`checker`](crate::checker) to find out, by running the plans.

use crate::layout::{Layout, Pieces};
use crate::plan::Plan;
use crate::shape::GroupShape;
use crate::step::{Action, Place, Region, Step};
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::id::Rank;

/// What is wrong with a set of plans.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Flaw {
    /// Not one plan per rank.
    #[error("{plans} plans for a world of {world}")]
    World {
        /// Plans.
        plans: usize,
        /// Ranks.
        world: usize,
    },
    /// Ranks do not mean the same.
    #[error("{rank} has another algorithm or fingerprint than rank 0")]
    Disagreement {
        /// The first rank that differs.
        rank: Rank,
    },
    /// The two ends of a pair list different frames.
    #[error("{from} sends {to} {sent:?} elements as frame {ordinal}, which expects {expected:?}")]
    Frames {
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
        /// The first frame on which they differ.
        ordinal: usize,
        /// What the sender lists, if it lists so many frames.
        sent: Option<u32>,
        /// What the receiver lists.
        expected: Option<u32>,
    },
    /// A step talks to itself, to nobody, or along a link that the group does not have.
    #[error("{rank}, step {step}: there is no link with {peer}")]
    NoLink {
        /// Whose step.
        rank: Rank,
        /// Which.
        step: u32,
        /// With whom.
        peer: Rank,
    },
    /// A region is not within its place.
    #[error("{rank}, step {step}: {region:?} is not within the {extent} elements there")]
    Outside {
        /// Whose step.
        rank: Rank,
        /// Which.
        step: u32,
        /// Where it reaches.
        region: Region,
        /// How many elements there are.
        extent: u64,
    },
    /// Operands, or a copy and its original, are of different lengths.
    #[error("{rank}, step {step}: operands of different lengths")]
    Lengths {
        /// Whose step.
        rank: Rank,
        /// Which.
        step: u32,
    },
    /// A step writes the source by that name.
    #[error("{rank}, step {step}: writes the source")]
    WritesSource {
        /// Whose step.
        rank: Rank,
        /// Which.
        step: u32,
    },
    /// A step waits for itself or for one that is listed later.
    #[error("{rank}, step {step}: waits for step {after}, which is not listed before it")]
    After {
        /// Whose step.
        rank: Rank,
        /// Which.
        step: u32,
        /// For which it waits.
        after: u32,
    },
    /// Two steps touch the same elements, at least one writes them, and nothing orders them.
    #[error("{rank}: steps {first} and {second} both touch {region:?}, unordered")]
    Unordered {
        /// Whose steps.
        rank: Rank,
        /// The one listed first.
        first: u32,
        /// The other.
        second: u32,
        /// What the second touches.
        region: Region,
    },
    /// The plan asks for more scratch than its steps use.
    #[error("{rank} asks for {asked} elements of scratch and uses {used}")]
    Scratch {
        /// Whose plan.
        rank: Rank,
        /// What it asks for.
        asked: u64,
        /// What it uses.
        used: u64,
    },
}

/// How many elements a place of an operation has on a rank; scratch has what the plan asks for.
pub fn extent(descriptor: &Descriptor, layout: &Layout, world: usize, rank: Rank, place: Place) -> u64 {
    match (descriptor.collective, place) {
        (_, Place::Scratch) | (Collective::Barrier, _) => 0,
        (Collective::ReduceScatter, Place::Target) | (Collective::AllGather, Place::Source) => {
            layout.parts(descriptor, world).of(rank).count
        }
        (Collective::Reduce { root }, Place::Target) if rank != root => 0,
        (
            Collective::Gather { .. }
            | Collective::Scatter { .. }
            | Collective::AllToAll
            | Collective::Transfer { .. },
            place,
        ) => {
            let pieces = Pieces::of(descriptor, layout, world, rank);
            if place == Place::Source { pieces.sent() } else { pieces.received() }
        }
        _ => descriptor.count,
    }
}

/// Checks the plans of all ranks, in rank order, each with its rank's layout. The time it takes grows with the
/// square of a plan's length: it is for tests and small counts.
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
        let [source, target] = [Place::Source, Place::Target]
            .map(|place| extent(descriptor, &layouts[index], world, rank, place));
        let extent = |place| match place {
            Place::Source => source,
            Place::Target => target,
            Place::Scratch => plan.scratch,
        };
        for (step, s) in plan.steps.iter().enumerate() {
            Located { rank, step: step as u32, s }.check(shape, &extent)?;
        }
        check_scratch(rank, plan)?;
        check_order(rank, plan)?;
    }
    check_frames(plans)
}

/// A step and where it stands.
struct Located<'a> {
    rank: Rank,
    step: u32,
    s: &'a Step,
}

impl Located<'_> {
    fn check(&self, shape: &GroupShape, extent: &dyn Fn(Place) -> u64) -> Result<(), Flaw> {
        let &Self { rank, step, s } = self;
        for peer in s.send.into_iter().chain(s.receives_from()) {
            if peer.index() >= shape.world() || !shape.is_linked(rank, peer) {
                return Err(Flaw::NoLink { rank, step, peer });
            }
        }
        if let Some(after) = s.after.filter(|after| *after >= step) {
            return Err(Flaw::After { rank, step, after });
        }
        for region in reads(s).into_iter().flatten().chain([s.region]) {
            let extent = extent(region.place);
            if region.offset + u64::from(region.count) > extent {
                return Err(Flaw::Outside { rank, step, region, extent });
            }
            if region.count != s.region.count {
                return Err(Flaw::Lengths { rank, step });
            }
        }
        if written(s).is_some_and(|region| region.place == Place::Source) {
            return Err(Flaw::WritesSource { rank, step });
        }
        Ok(())
    }
}

/// What a step's action reads, beside what arrives.
fn reads(step: &Step) -> [Option<Region>; 2] {
    match step.action {
        Action::None | Action::Store { .. } => [None, None],
        Action::Copy { own } | Action::Reduce { own, .. } => [Some(own), None],
        Action::Combine { left, right } => [Some(left), Some(right)],
    }
}

/// What a step writes.
fn written(step: &Step) -> Option<Region> {
    (step.action != Action::None || step.settle).then_some(step.region)
}

fn check_scratch(rank: Rank, plan: &Plan) -> Result<(), Flaw> {
    let in_scratch = plan.steps.iter().filter(|s| s.region.place == Place::Scratch && s.region.count > 0);
    let used = in_scratch.map(|s| s.region.offset + u64::from(s.region.count)).max().unwrap_or(0);
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

/// Any two steps that touch the same elements, one of them to write, must be ordered.
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

/// What the later of two steps touches, if one of them writes it. That the earlier one has sent what the
/// later one overwrites is left out: it may follow from what other ranks do.
fn clash(earlier: &Step, later: &Step) -> Option<Region> {
    let overlap = |a: &Region, b: &Region| {
        let before = |a: &Region, b: &Region| a.offset + u64::from(a.count) <= b.offset;
        a.place == b.place && a.count > 0 && b.count > 0 && !before(a, b) && !before(b, a)
    };
    let read_later = || reads(later).into_iter().flatten().chain([later.region]);
    let overwritten = written(earlier).and_then(|w| read_later().find(|r| overlap(&w, r)));
    let read_earlier = || reads(earlier).into_iter().flatten();
    overwritten.or_else(|| written(later).filter(|w| read_earlier().any(|r| overlap(&r, w))))
}

/// For each step, a set of bits: the steps that are certainly done before it begins.
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
