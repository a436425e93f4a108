//! Broadcasts: along the ring, down a tree, or directly from the root. Chunks are pipelined. No scratch.

use super::{Draft, Method, Task};
use crate::cost::{Amount, Sizes};
use crate::parts::Span;
use crate::step::{OpBuffer, Step};
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Algorithm;

/// Along the ring from the root: every edge carries the data once, which is best for long messages.
pub const CHAIN: Method = Method {
    algorithm: Algorithm::Ring,
    needs_mesh: false,
    one_owner: true,
    traffic: |task| task.once_to_all(),
    cost: |task| {
        let sizes = Sizes::of(task);
        sizes.along().sent(sizes.others, sizes.along(), Amount::default())
    },
    draft: chain,
};

/// A binomial tree: log₂(world) hops, for short messages.
pub const TREE: Method = Method {
    algorithm: Algorithm::Halving,
    needs_mesh: true,
    cost: |task| {
        let (rounds, whole) = (u64::from(task.world().next_power_of_two().ilog2()), Sizes::of(task).whole);
        whole.times(rounds).sent(rounds, whole, Amount::default())
    },
    draft: tree,
    ..CHAIN
};

/// From the root to all ranks: one hop, for small worlds.
pub const STAR: Method = Method {
    algorithm: Algorithm::Direct,
    needs_mesh: true,
    cost: |task| {
        let sizes = Sizes::of(task);
        sizes.whole.times(sizes.others).sent(1, sizes.whole, Amount::default())
    },
    draft: star,
    ..CHAIN
};

fn chain(task: &Task) -> Draft {
    let (shape, world) = (task.shape, task.world());
    let distance = (shape.position(task.me) + world - shape.position(task.root())) % world;
    let previous = (distance > 0).then(|| shape.ahead(task.me, world - 1));
    let next = (distance + 1 < world).then(|| shape.ahead(task.me, 1));
    relay(task, previous, next.as_slice())
}

fn tree(task: &Task) -> Draft {
    let (root, world) = (task.root().index(), task.world());
    let position = (task.me.index() + world - root) % world;
    let rank = |position: usize| Rank::from_index((position + root) % world);
    // In round k the first 2^k positions have the data, and each sends it 2^k positions further. A position sends in
    // the rounds after the one that reached it; its first child has the largest subtree.
    let reached_in = position.checked_ilog2();
    let parent = reached_in.map(|round| rank(position - (1 << round)));
    let rounds = reached_in.map_or(0, |round| round + 1)..;
    let children: Vec<_> =
        rounds.map(|round| position + (1 << round)).take_while(|child| *child < world).map(rank).collect();
    relay(task, parent, &children)
}

fn star(task: &Task) -> Draft {
    if task.me == task.root() {
        relay(task, None, &task.others().collect::<Vec<_>>())
    } else {
        relay(task, Some(task.root()), &[])
    }
}

/// Receives each chunk from `parent`, or copies it from the source, and sends it to the children.
fn relay(task: &Task, parent: Option<Rank>, children: &[Rank]) -> Draft {
    let mut draft = Draft::default();
    for chunk in task.cut(task.whole()) {
        let step = take(parent, chunk);
        let Some((first, others)) = children.split_first() else {
            draft.push(step);
            continue;
        };
        let there = draft.push(step.then_send(*first));
        for child in others {
            draft.push(Step::send(*child, chunk.at(OpBuffer::Target)).after(there));
        }
    }
    draft
}

fn take(parent: Option<Rank>, chunk: Span) -> Step {
    match parent {
        Some(parent) => Step::receive(parent, chunk.at(OpBuffer::Target)),
        None => Step::copy(chunk.at(OpBuffer::Source), chunk.at(OpBuffer::Target)),
    }
}
