//! Ring methods: each rank sends to the next one and receives from the previous one.
//!
//! Steps are ordered by hop, then by chunk. So chunk c of a hop is sent while chunk c+1 of the previous hop arrives, and
//! the outgoing link stays busy.

use super::{Draft, Method, Task};
use crate::cost::{Amount, Sizes};
use crate::parts::{Parts, Span};
use crate::step::{Left, OpBuffer, Region, Step};
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Algorithm;

/// Reduce-scatter, then all-gather. No scratch: the target holds partial results. The final value of a part arrives only
/// after our data has travelled around the ring in it, so no fence is needed in place.
pub const ALL_REDUCE: Method = Method {
    traffic: |task| 2 * task.once_to_all(),
    cost: |task| {
        let (sizes, once) = (Sizes::of(task), Sizes::of(task).around());
        once.times(2).sent(2 * sizes.others, once.times(2), once)
    },
    ..AROUND
};

/// Parts travel to their owners and are reduced on the way. The scratch holds the chunks of the longest part and a
/// window more.
pub const REDUCE_SCATTER: Method = Method {
    cost: |task| {
        let (sizes, once) = (Sizes::of(task), Sizes::of(task).around());
        once.sent(sizes.others, once, once)
    },
    draft: reduce_scatter,
    ..AROUND
};

/// Each part travels once around. No scratch, and no reduction whose order could matter.
pub const ALL_GATHER: Method = Method { draft: all_gather, ..AROUND };

const AROUND: Method = Method {
    algorithm: Algorithm::Ring,
    needs_mesh: false,
    one_owner: true,
    traffic: |task| task.once_to_all(),
    cost: |task| {
        let (sizes, once) = (Sizes::of(task), Sizes::of(task).around());
        once.sent(sizes.others, once, Amount::default())
    },
    draft: all_reduce,
};

/// The ring as one rank sees it.
pub(super) struct RingView {
    /// All ranks, in ring order, from this one on.
    from_me: Vec<Rank>,
}

impl RingView {
    pub(super) fn new(task: &Task) -> Self {
        let mut from_me = task.shape.ring.clone();
        from_me.rotate_left(task.shape.position(task.me));
        Self { from_me }
    }

    pub(super) fn next(&self) -> Rank {
        self.from_me[1]
    }

    pub(super) fn previous(&self) -> Rank {
        self.behind(1)
    }

    /// The rank `distance` positions back.
    pub(super) fn behind(&self, distance: usize) -> Rank {
        let world = self.from_me.len();
        self.from_me[(world - distance) % world]
    }

    /// The left operand at a hop: the frame contains the data of the `hop + 1` ranks before us.
    pub(super) fn left(&self, hop: usize) -> Left {
        let lowest = (1..=hop + 1).map(|distance| self.behind(distance)).min();
        if lowest < Some(self.from_me[0]) { Left::Frame } else { Left::Own }
    }

    /// The owner of the part that arrives at a hop: ourselves at the last one. A part starts at the rank after its owner.
    fn reduced_for(&self, hop: usize) -> Rank {
        self.behind(hop + 2)
    }

    fn hops(&self) -> usize {
        self.from_me.len() - 1
    }
}

fn all_reduce(task: &Task) -> Draft {
    let (ring_view, parts, mut draft) = (RingView::new(task), task.parts(), Draft::default());
    for chunk in task.cut(parts.of(ring_view.previous())) {
        draft.push(Step::send(ring_view.next(), chunk.at(OpBuffer::Source)));
    }
    for hop in 0..ring_view.hops() {
        let (owner, left) = (ring_view.reduced_for(hop), ring_view.left(hop));
        for chunk in task.cut(parts.of(owner)) {
            let (own, region) = (chunk.at(OpBuffer::Source), chunk.at(OpBuffer::Target));
            let step =
                Step::receive_reduce(ring_view.previous(), own, region, left).then_send(ring_view.next());
            draft.push(if owner == task.me { step.settled() } else { step });
        }
    }
    gather(task, &ring_view, &mut draft);
    draft
}

fn all_gather(task: &Task) -> Draft {
    let (ring_view, mut draft) = (RingView::new(task), Draft::default());
    let mine = task.parts().of(task.me);
    for chunk in task.cut(mine) {
        let own = chunk.within(mine).at(OpBuffer::Source);
        draft.push(Step::copy(own, chunk.at(OpBuffer::Target)).then_send(ring_view.next()));
    }
    gather(task, &ring_view, &mut draft);
    draft
}

/// Receives all other final parts and forwards them, unless the next rank is the owner.
fn gather(task: &Task, ring_view: &RingView, draft: &mut Draft) {
    let parts = task.parts();
    for hop in 0..ring_view.hops() {
        for chunk in task.cut(parts.of(ring_view.behind(hop + 1))) {
            let step = Step::receive(ring_view.previous(), chunk.at(OpBuffer::Target));
            draft.push(if hop + 1 < ring_view.hops() { step.then_send(ring_view.next()) } else { step });
        }
    }
}

fn reduce_scatter(task: &Task) -> Draft {
    let (ring_view, parts, mut draft) = (RingView::new(task), task.parts(), Draft::default());
    for chunk in task.cut(parts.of(ring_view.previous())) {
        draft.push(Step::send(ring_view.next(), chunk.at(OpBuffer::Source)));
    }
    let mut passing = Vec::new();
    for hop in 0..ring_view.hops() - 1 {
        let left = ring_view.left(hop);
        passing.extend(task.cut(parts.of(ring_view.reduced_for(hop))).map(|chunk| (chunk, left)));
    }
    let turns = chunks_in_scratch(task, &parts);
    pass_through(task, &ring_view, &mut draft, &passing, turns);
    let (mine, last) = (parts.of(task.me), ring_view.hops() - 1);
    for chunk in task.cut(mine) {
        let (own, region) = (chunk.at(OpBuffer::Source), chunk.within(mine).at(OpBuffer::Target));
        let step = Step::receive_reduce(ring_view.previous(), own, region, ring_view.left(last));
        draft.push(step.settled());
    }
    draft
}

/// The number of chunks of scratch of a reduce-scatter. The chunks of one part are the minimum without deadlock for a
/// window of one slot: before our i-th chunk is free again, the next rank must have taken an earlier frame of its own
/// sequence than the one we are about to take, so a wait around the ring ends. The rest is a window in flight.
fn chunks_in_scratch(task: &Task, parts: &Parts) -> u64 {
    task.chunking().chunks(parts.longest()) + u64::from(task.tuning.window_slots.max(1))
}

/// Reduces and forwards chunks of others, in scratch for `turns` chunks. If scratch is reused, sends are separate steps:
/// each comes right before the step that overwrites its data, so that the fence of that step waits for nothing later.
pub(super) fn pass_through(
    task: &Task,
    ring_view: &RingView,
    draft: &mut Draft,
    passing: &[(Span, Left)],
    turns: u64,
) {
    let turns = turns.min(passing.len() as u64) as usize;
    let elements_max = u64::from(task.chunking().elements_max);
    let mut unsent = std::collections::VecDeque::<(u32, Region)>::new();
    let send = |(step, region): (u32, Region)| Step::send(ring_view.next(), region).after(step);
    for (i, (chunk, left)) in passing.iter().enumerate() {
        let offset = (i % turns) as u64 * elements_max;
        let region = Region { buffer: OpBuffer::Scratch, offset, count: chunk.count as u32 };
        draft.scratch = draft.scratch.max(offset + chunk.count);
        let own = chunk.at(OpBuffer::Source);
        let mut step = Step::receive_reduce(ring_view.previous(), own, region, *left);
        if turns == passing.len() {
            draft.push(step.then_send(ring_view.next()));
            continue;
        }
        if i >= turns {
            if let Some(oldest) = unsent.pop_front() {
                draft.push(send(oldest));
            }
            step = step.fenced();
        }
        unsent.push_back((draft.push(step), region));
    }
    for rest in unsent {
        draft.push(send(rest));
    }
}
