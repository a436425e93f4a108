//! Direct transfers: each rank receives its part from all others, reduces it, and sends the result to all. Two hops, the
//! traffic of the ring over all links. No scratch, unless it has to reduce in rank order.

use super::in_order::PartFolder;
use super::{Draft, Method, Task, in_turns};
use crate::cost::{Amount, Sizes};
use crate::parts::Span;
use crate::step::{Left, OpBuffer, Region, Step};
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Algorithm;

/// Two hops. In place, the final value of a part arrives only after its owner has received our data, so no fence is
/// needed.
pub const ALL_REDUCE: Method = Method {
    traffic: |task| 2 * task.once_to_all(),
    cost: |task| {
        let sizes = Sizes::of(task);
        let own = sizes.longest.times(sizes.others);
        let each_way = sizes.parts.without(sizes.longest).and(own);
        each_way.sent(2, each_way, own)
    },
    ..STRAIGHT
};

/// One hop; the reduction happens in the target.
pub const REDUCE_SCATTER: Method = Method {
    cost: |task| {
        let sizes = Sizes::of(task);
        let own = sizes.longest.times(sizes.others);
        sizes.parts.without(sizes.shortest).sent(1, own, own)
    },
    draft: reduce_scatter,
    ..STRAIGHT
};

/// One hop.
pub const ALL_GATHER: Method = Method { draft: all_gather, ..STRAIGHT };

const STRAIGHT: Method = Method {
    algorithm: Algorithm::Direct,
    needs_mesh: true,
    one_owner: true,
    traffic: |task| task.once_to_all(),
    cost: |task| {
        let sizes = Sizes::of(task);
        let own = sizes.longest.times(sizes.others);
        own.sent(1, sizes.parts.without(sizes.shortest), Amount::default())
    },
    draft: all_reduce,
};

fn all_reduce(task: &Task) -> Draft {
    let mut draft = Draft::default();
    contribute(task, &mut draft);
    let mut folder = PartFolder::new(task, 0);
    for chunk in task.cut(task.parts().of(task.me)) {
        let settled = folder.fold(&mut draft, chunk, chunk.at(OpBuffer::Target));
        for peer in task.others() {
            let region = chunk.at(OpBuffer::Target);
            draft.push(Step::send(peer, region).after(settled));
        }
    }
    take_parts(task, &mut draft);
    draft
}

fn reduce_scatter(task: &Task) -> Draft {
    let mut draft = Draft::default();
    contribute(task, &mut draft);
    let (mine, mut folder) = (task.parts().of(task.me), PartFolder::new(task, 0));
    for chunk in task.cut(mine) {
        folder.fold(&mut draft, chunk, chunk.within(mine).at(OpBuffer::Target));
    }
    draft
}

fn all_gather(task: &Task) -> Draft {
    let mut draft = Draft::default();
    let mine = task.parts().of(task.me);
    for chunk in task.cut(mine) {
        let own = chunk.within(mine).at(OpBuffer::Source);
        let there = draft.push(Step::copy(own, chunk.at(OpBuffer::Target)));
        for peer in task.others() {
            draft.push(Step::send(peer, chunk.at(OpBuffer::Target)).after(there));
        }
    }
    take_parts(task, &mut draft);
    draft
}

/// Sends each rank our data of its part, interleaved.
pub(super) fn contribute(task: &Task, draft: &mut Draft) {
    let parts = task.parts();
    let lists = task.others().map(|peer| (peer, task.cut(parts.of(peer)))).collect();
    in_turns(lists, |peer, chunk| {
        draft.push(Step::send(peer, chunk.at(OpBuffer::Source)));
    });
}

/// Reduces a chunk of our part, beginning with our own data, the others in rank order. It needs no scratch. Returns the last step.
pub(super) fn fold(task: &Task, draft: &mut Draft, chunk: Span, region: Region) -> u32 {
    let mut own = chunk.at(OpBuffer::Source);
    let mut lowest = task.me;
    let mut previous = None;
    let peers = (0..task.world()).map(Rank::from_index).filter(|peer| *peer != task.me);
    let last = if task.me.index() + 1 == task.world() { task.world() - 2 } else { task.world() - 1 };
    for peer in peers {
        let left = if peer < lowest { Left::Frame } else { Left::Own };
        let mut step = Step::receive_reduce(peer, own, region, left);
        step.after = previous;
        step.settle = peer.index() == last;
        previous = Some(draft.push(step));
        (own, lowest) = (region, lowest.min(peer));
    }
    previous.expect("a direct plan needs two or more ranks")
}

/// Receives the final parts of all other ranks.
pub(super) fn take_parts(task: &Task, draft: &mut Draft) {
    let parts = task.parts();
    for peer in task.others() {
        for chunk in task.cut(parts.of(peer)) {
            draft.push(Step::receive(peer, chunk.at(OpBuffer::Target)));
        }
    }
}
