//! Trees that fit the network: each part of the tensor is reduced along a tree, and the result goes back along it.
//!
//! The trees share the paths between them: peers of one host or site cross to others once, slow ways out carry the data of
//! their rank once. Frames of all trees are interleaved, first those to the roots, then the results. All ranks use this one
//! order, so no frame waits for one that comes after it.

use super::{Draft, Method, Task};
use crate::cost::{Cost, Sizes};
use crate::network::{NetworkView, Tree};
use crate::parts::{Parts, Span};
use crate::step::{Left, OpBuffer, Step};
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Algorithm;

/// The traffic of the ring, over the edges of the trees. No scratch: the target holds partial results. In place, a final
/// value arrives only after our data has arrived elsewhere, so no fence is needed.
pub const ALL_REDUCE: Method = Method {
    algorithm: Algorithm::Trees,
    needs_mesh: false,
    one_owner: true,
    traffic: |task| 2 * task.once_to_all(),
    cost,
    draft: all_reduce,
};

/// The end of a part, for the order of frames.
const END: u128 = 1 << 32;

/// A rough cost for explanations; plans are chosen by [`crate::estimate`].
fn cost(task: &Task) -> Cost {
    let sizes = Sizes::of(task);
    sizes.whole.times(2).sent(2 * u64::from(task.world().ilog2()), sizes.whole.times(2), sizes.whole)
}

/// A chunk of a tree's part, towards the root or back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    is_result: bool,
    /// How far the chunk is in its tree's part.
    position: u128,
    tree: usize,
    chunk: Span,
}

fn all_reduce(task: &Task) -> Draft {
    let mut draft = Draft::default();
    let Some(view) = task.shape.network.as_deref() else { return draft };
    let trees = view.trees();
    let parts = Parts::sized(&sizes(task.descriptor.count, trees));
    let mut turns = Vec::new();
    for index in 0..trees.len() {
        let part = parts.part(index);
        for chunk in task.cut(part) {
            let position = u128::from(chunk.start - part.start) * END / u128::from(part.count.max(1));
            turns.extend([false, true].map(|is_result| Turn { is_result, position, tree: index, chunk }));
        }
    }
    turns.sort_unstable();
    // The last step of each chunk's reduction here, by the chunk's first element.
    let mut reduced = std::collections::HashMap::new();
    for turn in turns {
        let tree = &trees[turn.tree];
        if turn.is_result {
            let after = reduced.get(&turn.chunk.start).copied();
            spread(task, tree, &mut draft, turn.chunk, after);
        } else if let Some(last) = gather(task, view, tree, &mut draft, turn.chunk) {
            reduced.insert(turn.chunk.start, last);
        }
    }
    draft
}

/// The parts of the trees, by their weights.
fn sizes(count: u64, trees: &[Tree]) -> Vec<u64> {
    let total: u128 = trees.iter().map(|tree| u128::from(tree.weight)).sum();
    let mut weight = 0;
    let ends = trees.iter().map(|tree| {
        weight += u128::from(tree.weight);
        (u128::from(count) * weight / total.max(1)) as u64
    });
    let ends: Vec<_> = ends.collect();
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts.zip(&ends).map(|(start, end)| end - start).collect()
}

/// The longest delay from a rank below one.
fn reach(view: &NetworkView, tree: &Tree, rank: Rank) -> u64 {
    let below = tree.children(rank).map(|child| reach(view, tree, child) + view.delay_ns(child, rank));
    below.max().unwrap_or(0)
}

/// Reduces a chunk of the children and our own, and sends it to the parent. Near children come first: a frame of theirs must
/// not wait for one from far away. Returns the last step that writes the chunk here.
fn gather(task: &Task, view: &NetworkView, tree: &Tree, draft: &mut Draft, chunk: Span) -> Option<u32> {
    let (source, target) = (chunk.at(OpBuffer::Source), chunk.at(OpBuffer::Target));
    let parent = tree.parents[task.me.index()];
    let mut children: Vec<_> = tree.children(task.me).collect();
    children.sort_by_key(|child| (reach(view, tree, *child) + view.delay_ns(*child, task.me), *child));
    let mut children = children.into_iter().peekable();
    if let (None, Some(parent)) = (children.peek(), parent) {
        draft.push(Step::send(parent, source));
        return None;
    }
    let (mut own, mut lowest, mut previous) = (source, task.me, None);
    while let Some(child) = children.next() {
        let below = tree.lowest_below(child);
        let left = if below < lowest { Left::Frame } else { Left::Own };
        let mut step = Step::receive_reduce(child, own, target, left);
        step.after = previous;
        if children.peek().is_none() {
            step = match parent {
                Some(parent) => step.then_send(parent),
                None => step.settled(),
            };
        }
        previous = Some(draft.push(step));
        (own, lowest) = (target, lowest.min(below));
    }
    previous
}

/// Receives the result of a chunk from the parent, and sends it to the children.
fn spread(task: &Task, tree: &Tree, draft: &mut Draft, chunk: Span, reduced: Option<u32>) {
    let target = chunk.at(OpBuffer::Target);
    let there = match tree.parents[task.me.index()] {
        Some(parent) => {
            let mut step = Step::receive(parent, target);
            step.after = reduced;
            Some(draft.push(step))
        }
        None => reduced,
    };
    for child in tree.children(task.me) {
        let mut step = Step::send(child, target);
        step.after = there;
        draft.push(step);
    }
}
