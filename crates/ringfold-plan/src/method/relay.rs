//! Reproducible reductions without links besides the ring's edges: the data of all ranks travels around the ring unreduced, and every rank
//! that gets results reduces it in rank order.
//!
//! Chunks go around in groups. Within a group the data of each rank is one hop behind that of the next one.

use super::ring::RingView;
use super::{Draft, Method, Task};
use crate::cost::Sizes;
use crate::parts::Span;
use crate::step::{OpBuffer, Region, Step};
use ringfold_proto::descriptor::Collective;
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Algorithm;

/// `world` / 2 times the traffic of the ring. The scratch holds the data of all other ranks for a group of chunks.
pub const REDUCE: Method = Method {
    algorithm: Algorithm::Ring,
    needs_mesh: false,
    one_owner: false,
    traffic: |task| task.world() as u64 * task.once_to_all(),
    cost: |task| {
        let sizes = Sizes::of(task);
        let all = sizes.whole.times(sizes.others);
        all.sent(sizes.others, all, all)
    },
    draft,
};

/// Chunks of all ranks in scratch, if the world is smaller.
const SCRATCH_CHUNKS: usize = 64;

fn draft(task: &Task) -> Draft {
    let (ring_view, mut draft) = (RingView::new(task), Draft::default());
    let chunks = chunks(task);
    let most = usize::from(task.tuning.window_slots.max(1)).min(SCRATCH_CHUNKS / (task.world() - 1)).max(1);
    let mut reduced = None;
    for group in chunks.chunks(most) {
        reduced = relay(task, &ring_view, &mut draft, group, reduced);
        for (slot, chunk) in group.iter().enumerate() {
            reduced = fold(task, &mut draft, slot, *chunk, reduced);
        }
    }
    draft
}

/// The chunks of the whole tensor, none of which is in two parts.
fn chunks(task: &Task) -> Vec<Span> {
    match task.descriptor.collective {
        Collective::ReduceScatter => {
            let parts = task.parts();
            (0..task.world()).flat_map(|rank| task.cut(parts.part(rank))).collect()
        }
        _ => task.cut(task.whole()).collect(),
    }
}

/// Sends our data of some chunks around the ring. The data of the other ranks stays in scratch, which is free after the step `free`, and is
/// sent on. Returns the last step that stores.
fn relay(
    task: &Task,
    ring_view: &RingView,
    draft: &mut Draft,
    group: &[Span],
    free: Option<u32>,
) -> Option<u32> {
    let mut stored = Vec::new();
    for hop in 0..task.world() - 1 {
        let before = core::mem::take(&mut stored);
        for (slot, chunk) in group.iter().enumerate() {
            let region = place(task, slot, ring_view.behind(hop + 1), *chunk);
            draft.scratch = draft.scratch.max(region.offset + chunk.count);
            let mut step = Step::receive(ring_view.previous(), region);
            // The data of the group before was sent from this scratch.
            step.fence = hop == 0;
            step.after = free.filter(|_| hop == 0);
            stored.push(draft.push(step));
        }
        for (slot, chunk) in group.iter().enumerate() {
            draft.push(match hop {
                0 => Step::send(ring_view.next(), chunk.at(OpBuffer::Source)),
                _ => {
                    let region = place(task, slot, ring_view.behind(hop), *chunk);
                    Step::send(ring_view.next(), region).after(before[slot])
                }
            });
        }
    }
    // Frames are stored in their order, so the last one comes after all others.
    stored.last().copied()
}

/// Reduces a chunk of all ranks after the step `stored`, if we get its result. In place, it overwrites data that is being sent. Returns the last
/// step.
fn fold(task: &Task, draft: &mut Draft, slot: usize, chunk: Span, stored: Option<u32>) -> Option<u32> {
    let target = match task.descriptor.collective {
        Collective::ReduceScatter => {
            let mine = task.parts().of(task.me);
            let is_mine = mine.start <= chunk.start && chunk.end() <= mine.end();
            is_mine.then(|| chunk.within(mine).at(OpBuffer::Target))
        }
        Collective::Reduce { root } => (task.me == root).then(|| chunk.at(OpBuffer::Target)),
        _ => Some(chunk.at(OpBuffer::Target)),
    };
    let Some(target) = target else { return stored };
    let data = |rank: usize| match rank == task.me.index() {
        true => chunk.at(OpBuffer::Source),
        false => place(task, slot, Rank::from_index(rank), chunk),
    };
    let last = task.world() - 1;
    let (mut left, mut previous) = (data(0), stored);
    for rank in 1..=last {
        // Partial results replace data that was added, and was sent on before.
        let into = match (rank == last, left.buffer) {
            (true, _) => target,
            (false, OpBuffer::Source) => data(rank),
            (false, _) => left,
        };
        let mut step = Step::combine(left, data(rank), into).fenced();
        step.after = previous;
        previous = Some(draft.push(if rank == last { step.settled() } else { step }));
        left = into;
    }
    previous
}

/// Where the data of another rank is: scratch has a place for each chunk of a group and each other rank.
fn place(task: &Task, slot: usize, origin: Rank, chunk: Span) -> Region {
    let index = origin.index() - usize::from(origin > task.me);
    let number = (slot * (task.world() - 1) + index) as u64;
    let offset = number * u64::from(task.chunking().elements_max);
    Region { buffer: OpBuffer::Scratch, offset, count: chunk.count as u32 }
}
