//! The root's data to everyone: along the ring, down a tree, or from the root itself. Chunks follow
//! each other, so that one is passed on while the next arrives. No scratch anywhere.

use super::{Draft, Method, Task};
use crate::cost::{Amount, Sizes};
use crate::parts::Span;
use crate::step::{Place, Step};
use ringfold_proto::descriptor::Collective;
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Algorithm;

/// Along the ring from the root on: every edge carries the data once, which is the fastest for long
/// messages.
pub const CHAIN: Method = Method {
    algorithm: Algorithm::Ring,
    needs_mesh: false,
    one_owner: true,
    member_order: true,
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

/// From the root to everyone: one hop, for small worlds.
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
    let distance = (shape.position(task.me) + world - shape.position(root(task))) % world;
    let previous = (distance > 0).then(|| shape.ahead(task.me, world - 1));
    let next = (distance + 1 < world).then(|| shape.ahead(task.me, 1));
    relay(task, previous, next.as_slice())
}

fn tree(task: &Task) -> Draft {
    let (root, world) = (root(task).index(), task.world());
    let place = (task.me.index() + world - root) % world;
    let rank = |place: usize| Rank::from_index((place + root) % world);
    // In round k the first 2^k places hold the data, and each sends it 2^k places further. So a place
    // takes part in the rounds after the one that reached it, and its first child has the most below it.
    let reached_in = place.checked_ilog2();
    let parent = reached_in.map(|round| rank(place - (1 << round)));
    let rounds = reached_in.map_or(0, |round| round + 1)..;
    let children: Vec<_> =
        rounds.map(|round| place + (1 << round)).take_while(|child| *child < world).map(rank).collect();
    relay(task, parent, &children)
}

fn star(task: &Task) -> Draft {
    if task.me == root(task) {
        relay(task, None, &task.others().collect::<Vec<_>>())
    } else {
        relay(task, Some(root(task)), &[])
    }
}

/// Takes each chunk from `parent`, or from the own source, and passes it on.
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
            draft.push(Step::send(*child, chunk.at(Place::Target)).after(there));
        }
    }
    draft
}

fn take(parent: Option<Rank>, chunk: Span) -> Step {
    match parent {
        Some(parent) => Step::receive(parent, chunk.at(Place::Target)),
        None => Step::copy(chunk.at(Place::Source), chunk.at(Place::Target)),
    }
}

fn root(task: &Task) -> Rank {
    match task.descriptor.collective {
        Collective::Broadcast { root } => root,
        _ => Rank(0),
    }
}
