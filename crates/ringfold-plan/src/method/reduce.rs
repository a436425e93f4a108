//! Reductions to the root. The other ranks have no target and use scratch.

use super::in_order::PartFolder;
use super::ring::{RingView, pass_through};
use super::{Draft, Method, Task, direct, one_shot};
use crate::cost::Sizes;
use crate::step::{OpBuffer, Step};
use ringfold_proto::tuning::Algorithm;

/// Along the ring from the rank after the root: every edge carries the data once, each rank reduces once. Chunks are
/// pipelined through a window of scratch.
pub const CHAIN: Method = Method {
    algorithm: Algorithm::Ring,
    needs_mesh: false,
    one_owner: true,
    traffic: |task| task.once_to_all(),
    cost: |task| {
        let sizes = Sizes::of(task);
        sizes.along().sent(sizes.others, sizes.along(), sizes.along())
    },
    draft: chain,
};

/// Directly to the owners of parts, and from those to the root: two hops. In place, the final value of a part arrives
/// only after its owner has received the root's data, so no fence is needed.
pub const STRAIGHT: Method = Method {
    algorithm: Algorithm::Direct,
    needs_mesh: true,
    traffic: |task| task.once_to_all() + task.descriptor.count - task.parts().of(task.root()).count,
    cost: |task| {
        let sizes = Sizes::of(task);
        let (others, own) = (sizes.parts.without(sizes.shortest), sizes.longest.times(sizes.others));
        others.sent(2, own.and(others), own)
    },
    draft: straight,
    ..CHAIN
};

/// All data to the root, which reduces it in rank order: one hop, for small messages.
pub const STAR: Method = Method {
    algorithm: Algorithm::OneShot,
    needs_mesh: true,
    cost: |task| {
        let sizes = Sizes::of(task);
        let all = sizes.whole.times(sizes.others);
        sizes.whole.sent(1, all, all)
    },
    draft: star,
    ..CHAIN
};

fn chain(task: &Task) -> Draft {
    let (ring_view, mut draft) = (RingView::new(task), Draft::default());
    let world = task.world();
    // The root is the last rank of the chain.
    let behind_root = (task.shape.position(task.me) + world - task.shape.position(task.root())) % world;
    let added_by = if behind_root == 0 { world - 1 } else { behind_root - 1 };
    let chunks = task.cut(task.whole());
    if added_by == 0 {
        chunks.for_each(|chunk| {
            draft.push(Step::send(ring_view.next(), chunk.at(OpBuffer::Source)));
        });
        return draft;
    }
    let left = ring_view.left(added_by - 1);
    if task.me == task.root() {
        for chunk in chunks {
            let (own, region) = (chunk.at(OpBuffer::Source), chunk.at(OpBuffer::Target));
            draft.push(Step::receive_reduce(ring_view.previous(), own, region, left).settled());
        }
        return draft;
    }
    // No rank waits for earlier ranks, so one chunk more than a window is enough.
    let turns = u64::from(task.tuning.window_slots) + 1;
    pass_through(task, &ring_view, &mut draft, &chunks.map(|chunk| (chunk, left)).collect::<Vec<_>>(), turns);
    draft
}

fn straight(task: &Task) -> Draft {
    let mut draft = Draft::default();
    direct::contribute(task, &mut draft);
    let (mine, root) = (task.parts().of(task.me), task.root());
    if task.me == root {
        let mut folder = PartFolder::new(task, 0);
        for chunk in task.cut(mine) {
            folder.fold(&mut draft, chunk, chunk.at(OpBuffer::Target));
        }
        direct::take_parts(task, &mut draft);
        return draft;
    }
    // Its results are in scratch, too.
    draft.scratch = mine.count;
    let mut folder = PartFolder::new(task, mine.count);
    for chunk in task.cut(mine) {
        let region = chunk.within(mine).at(OpBuffer::Scratch);
        let settled = folder.fold(&mut draft, chunk, region);
        draft.push(Step::send(root, region).after(settled));
    }
    draft
}

fn star(task: &Task) -> Draft {
    if task.me == task.root() {
        return one_shot::folds(task, |_, _| {});
    }
    let mut draft = Draft::default();
    for chunk in task.cut(task.whole()) {
        draft.push(Step::send(task.root(), chunk.at(OpBuffer::Source)));
    }
    draft
}
