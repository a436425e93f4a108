//! The combination of everyone's data at the root. Nobody else has a target: what passes through the others is
//! in scratch.

use super::ring::{Circle, pass_through};
use super::{Draft, Method, Task, direct, one_shot};
use crate::cost::Sizes;
use crate::step::{Place, Step};
use ringfold_proto::descriptor::Collective;
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Algorithm;

/// Along the ring from the rank after the root on, growing on the way: every edge carries the data once, each
/// rank adds to it once. Chunks follow each other through a window of scratch.
pub const CHAIN: Method = Method {
    algorithm: Algorithm::Ring,
    needs_mesh: false,
    one_owner: true,
    member_order: false,
    traffic: |task| task.once_to_all(),
    cost: |task| {
        let sizes = Sizes::of(task);
        sizes.along().sent(sizes.others, sizes.along(), sizes.along())
    },
    draft: chain,
};

/// Straight to the owners of parts, and from those to the root: two hops. In place at the root, the final value
/// of another's part arrives only after its owner had the root's own, so nothing needs a fence.
pub const STRAIGHT: Method = Method {
    algorithm: Algorithm::Direct,
    needs_mesh: true,
    member_order: true,
    traffic: |task| task.once_to_all() + task.descriptor.count - task.parts().of(root(task)).count,
    cost: |task| {
        let sizes = Sizes::of(task);
        let (others, own) = (sizes.parts.without(sizes.shortest), sizes.longest.times(sizes.others));
        others.sent(2, own.and(others), own)
    },
    draft: straight,
    ..CHAIN
};

/// Everything to the root, which folds it in rank order: one hop, for small messages.
pub const STAR: Method = Method {
    algorithm: Algorithm::OneShot,
    needs_mesh: true,
    member_order: true,
    cost: |task| {
        let sizes = Sizes::of(task);
        let all = sizes.whole.times(sizes.others);
        sizes.whole.sent(1, all, all)
    },
    draft: star,
    ..CHAIN
};

fn chain(task: &Task) -> Draft {
    let (circle, mut draft) = (Circle::new(task), Draft::default());
    let world = task.world();
    // The root is the last one that the data comes to.
    let behind_root = (task.shape.position(task.me) + world - task.shape.position(root(task))) % world;
    let added_by = if behind_root == 0 { world - 1 } else { behind_root - 1 };
    let chunks = task.cut(task.whole());
    if added_by == 0 {
        chunks.for_each(|chunk| {
            draft.push(Step::send(circle.next(), chunk.at(Place::Source)));
        });
        return draft;
    }
    let left = circle.left(added_by - 1);
    if task.me == root(task) {
        for chunk in chunks {
            let (own, region) = (chunk.at(Place::Source), chunk.at(Place::Target));
            draft.push(Step::receive_reduce(circle.previous(), own, region, left).settled());
        }
        return draft;
    }
    // Nobody waits for those before it on the way, so one chunk beside a window of them is enough.
    let turns = u64::from(task.tuning.window_slots) + 1;
    pass_through(task, &circle, &mut draft, &chunks.map(|chunk| (chunk, left)).collect::<Vec<_>>(), turns);
    draft
}

fn straight(task: &Task) -> Draft {
    let mut draft = Draft::default();
    direct::contribute(task, &mut draft);
    let (mine, root) = (task.parts().of(task.me), root(task));
    for chunk in task.cut(mine) {
        if task.me == root {
            direct::fold(task, &mut draft, chunk, chunk.at(Place::Target));
        } else {
            let region = chunk.within(mine).at(Place::Scratch);
            let settled = direct::fold(task, &mut draft, chunk, region);
            draft.push(Step::send(root, region).after(settled));
        }
    }
    if task.me == root {
        direct::take_parts(task, &mut draft);
    } else {
        draft.scratch = mine.count;
    }
    draft
}

fn star(task: &Task) -> Draft {
    if task.me == root(task) {
        return one_shot::folds(task, |_, _| {});
    }
    let mut draft = Draft::default();
    for chunk in task.cut(task.whole()) {
        draft.push(Step::send(root(task), chunk.at(Place::Source)));
    }
    draft
}

fn root(task: &Task) -> Rank {
    match task.descriptor.collective {
        Collective::Reduce { root } => root,
        _ => Rank(0),
    }
}
