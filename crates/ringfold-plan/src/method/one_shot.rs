//! Everyone sends everything to everyone: one hop, for messages so small that hops are what costs.
//!
//! All ranks fold in rank order, so that they agree on every bit although each settles for itself.

use super::{Draft, Method, Task};
use crate::cost::Sizes;
use crate::parts::Span;
use crate::step::{Left, Place, Region, Step};
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Algorithm;

/// One hop and `world` times the traffic of the input. The fold is kept in scratch, a window of chunks
/// at most; only its last step writes the target, and is fenced, because in place that overwrites what
/// is still being sent.
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
    // A chunk's sends and its fold are listed before the next chunk's: the fence then waits for nothing
    // that needs the others to get past their own fences first.
    folds(task, |draft, chunk| {
        for peer in task.others() {
            draft.push(Step::send(peer, chunk.at(Place::Source)));
        }
    })
}

/// Folds all of everyone's data in rank order, with something before each chunk.
pub(super) fn folds(task: &Task, before: impl Fn(&mut Draft, Span)) -> Draft {
    let mut draft = Draft::default();
    let turns = usize::from(task.tuning.window_slots.max(1));
    let mut settled = Vec::new();
    for (i, chunk) in task.cut(task.whole()).enumerate() {
        before(&mut draft, chunk);
        let offset = (i % turns) as u64 * u64::from(task.chunking().elements_max);
        let scratch = Region { place: Place::Scratch, offset, count: chunk.count as u32 };
        let free = i.checked_sub(turns).map(|earlier| settled[earlier]);
        settled.push(fold(task, &mut draft, chunk, scratch, free));
        if task.world() > 2 {
            draft.scratch = draft.scratch.max(offset + chunk.count);
        }
    }
    draft
}

/// Folds a chunk of all ranks' data in rank order. `free` is the step after which the scratch is.
fn fold(task: &Task, draft: &mut Draft, chunk: Span, scratch: Region, free: Option<u32>) -> u32 {
    let (source, target) = (chunk.at(Place::Source), chunk.at(Place::Target));
    let (me, last) = (task.me.index(), task.world() - 1);
    let mut previous = free;
    for index in 0..=last {
        let rank = Rank::from_index(index);
        let into = if index == last || (me == last && me == 1) { target } else { scratch };
        let mut step = match index {
            // The first of others is either kept as it is, or combined at once with our own data.
            0 if me == 0 => continue,
            0 if me == 1 => Step::receive_reduce(rank, source, into, Left::Frame),
            0 => Step::receive(rank, into),
            1 if me == 1 => continue,
            1 if me == 0 => Step::receive_reduce(rank, source, into, Left::Own),
            _ if index == me => Step::combine(scratch, source, into),
            _ => Step::receive_reduce(rank, scratch, into, Left::Own),
        };
        step.after = previous;
        if into.place == Place::Target {
            step = step.settled().fenced();
        }
        previous = Some(draft.push(step));
    }
    previous.expect("a one-shot plan is for two and more")
}
