//! All ranks send all data to all others: one hop, for small messages.
//!
//! All ranks reduce in rank order, so that all have the same bits although each settles its own result.

use super::in_order::InOrder;
use super::{Draft, Method, Task};
use crate::cost::Sizes;
use crate::parts::Span;
use crate::step::{OpBuffer, Step};
use ringfold_proto::tuning::Algorithm;

/// One hop and `world` times the traffic of the input. Partial results are in scratch, at most a window of chunks. Only
/// the last step writes the target; it is fenced, because in place it overwrites data that is being sent.
pub const ALL_REDUCE: Method = Method {
    algorithm: Algorithm::OneShot,
    needs_mesh: true,
    one_owner: false,
    traffic: |task| task.world() as u64 * task.once_to_all(),
    cost: |task| {
        let sizes = Sizes::of(task);
        let all = sizes.whole.times(sizes.others);
        all.sent(1, all, all)
    },
    draft: all_reduce,
};

fn all_reduce(task: &Task) -> Draft {
    // The sends and the reduction of a chunk come before those of the next chunk, so that a fence does not wait for
    // fences of other ranks.
    folds(task, |draft, chunk| {
        for peer in task.others() {
            draft.push(Step::send(peer, chunk.at(OpBuffer::Source)));
        }
    })
}

/// Reduces the data of all ranks in rank order. `before` adds steps before each chunk.
pub(super) fn folds(task: &Task, before: impl Fn(&mut Draft, Span)) -> Draft {
    let (mut draft, mut folder) = (Draft::default(), InOrder::new(task, 0, true));
    for chunk in task.cut(task.whole()) {
        before(&mut draft, chunk);
        folder.fold(&mut draft, chunk, chunk.at(OpBuffer::Target));
    }
    draft
}
