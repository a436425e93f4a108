//! All ranks send all data to all others: one hop, for small messages.
//!
//! All ranks reduce in rank order, so that all have the same bits although each settles its own result.

use super::{Draft, Method, Task};
use crate::cost::Sizes;
use crate::parts::Span;
use crate::step::{Left, OpBuffer, Region, Step};
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Algorithm;

/// One hop and `world` times the traffic of the input. Partial results are in scratch, at most a window of chunks. Only
/// the last step writes the target; it is fenced, because in place it overwrites data that is being sent.
pub const ALL_REDUCE: Method = Method {
    algorithm: Algorithm::OneShot,
    needs_mesh: true,
    one_owner: false,
    member_order: true,
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
    let mut draft = Draft::default();
    let turns = usize::from(task.tuning.window_slots.max(1));
    let mut settled = Vec::new();
    for (i, chunk) in task.cut(task.whole()).enumerate() {
        before(&mut draft, chunk);
        let offset = (i % turns) as u64 * u64::from(task.chunking().elements_max);
        let scratch = Region { buffer: OpBuffer::Scratch, offset, count: chunk.count as u32 };
        let free = i.checked_sub(turns).map(|earlier| settled[earlier]);
        settled.push(fold(task, &mut draft, chunk, scratch, free));
        if task.world() > 2 {
            draft.scratch = draft.scratch.max(offset + chunk.count);
        }
    }
    draft
}

/// Reduces a chunk of all ranks in rank order. `free` is the step after which the scratch memory is free.
fn fold(task: &Task, draft: &mut Draft, chunk: Span, scratch: Region, free: Option<u32>) -> u32 {
    let (source, target) = (chunk.at(OpBuffer::Source), chunk.at(OpBuffer::Target));
    let (me, last) = (task.me.index(), task.world() - 1);
    let mut previous = free;
    for index in 0..=last {
        let rank = Rank::from_index(index);
        let into = if index == last || (me == last && me == 1) { target } else { scratch };
        let mut step = match index {
            // The first frame is stored, or reduced at once with our own data.
            0 if me == 0 => continue,
            0 if me == 1 => Step::receive_reduce(rank, source, into, Left::Frame),
            0 => Step::receive(rank, into),
            1 if me == 1 => continue,
            1 if me == 0 => Step::receive_reduce(rank, source, into, Left::Own),
            _ if index == me => Step::combine(scratch, source, into),
            _ => Step::receive_reduce(rank, scratch, into, Left::Own),
        };
        step.after = previous;
        if into.buffer == OpBuffer::Target {
            step = step.settled().fenced();
        }
        previous = Some(draft.push(step));
    }
    previous.expect("a one-shot plan needs two or more ranks")
}
