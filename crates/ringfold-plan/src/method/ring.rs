//! Around the ring: each rank sends to the next one and receives from the previous one, nothing else.
//!
//! Steps are listed hop by hop, and chunk by chunk within a hop. So chunk c of a hop leaves while chunk
//! c+1 of the hop before arrives, and the outgoing edge never idles for want of a decision.

use super::{Draft, Method, Task};
use crate::cost::{Amount, Sizes};
use crate::parts::{Parts, Span};
use crate::step::{Left, Place, Region, Step};
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Algorithm;

/// Reduce-scatter, then all-gather. No scratch: the target holds what is not yet final. Each part is
/// overwritten by its final value only after our own data has been all the way round in it, so no fence
/// is needed in place.
pub const ALL_REDUCE: Method = Method {
    traffic: |task| 2 * task.once_to_all(),
    cost: |task| {
        let (sizes, once) = (Sizes::of(task), Sizes::of(task).around());
        once.times(2).sent(2 * sizes.others, once.times(2), once)
    },
    ..AROUND
};

/// Parts travel to their owners and grow on the way. What passes through is kept in scratch: the chunks
/// of the longest part, and a window more.
pub const REDUCE_SCATTER: Method = Method {
    cost: |task| {
        let (sizes, once) = (Sizes::of(task), Sizes::of(task).around());
        once.sent(sizes.others, once, once)
    },
    draft: reduce_scatter,
    ..AROUND
};

/// Each part travels once around. No scratch, and no operands that could meet in another order.
pub const ALL_GATHER: Method = Method { member_order: true, draft: all_gather, ..AROUND };

const AROUND: Method = Method {
    algorithm: Algorithm::Ring,
    needs_mesh: false,
    one_owner: true,
    member_order: false,
    traffic: |task| task.once_to_all(),
    cost: |task| {
        let (sizes, once) = (Sizes::of(task), Sizes::of(task).around());
        once.sent(sizes.others, once, Amount::default())
    },
    draft: all_reduce,
};

/// The ring as one rank sees it.
pub(super) struct Circle {
    /// All ranks, in ring order, from this one on.
    from_me: Vec<Rank>,
}

impl Circle {
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

    /// The rank so many places back, which is ourselves after a whole turn.
    fn behind(&self, places: usize) -> Rank {
        let world = self.from_me.len();
        self.from_me[(world - places) % world]
    }

    /// What arrives at a hop of the reduction has been added to by the `hop + 1` ranks before us.
    pub(super) fn left(&self, hop: usize) -> Left {
        let lowest = (1..=hop + 1).map(|places| self.behind(places)).min();
        if lowest < Some(self.from_me[0]) { Left::Frame } else { Left::Own }
    }

    /// The owner of the part that arrives at a hop of the reduction: ourselves at the last one. A part
    /// sets out at the rank after its owner.
    fn reduced_for(&self, hop: usize) -> Rank {
        self.behind(hop + 2)
    }

    fn hops(&self) -> usize {
        self.from_me.len() - 1
    }
}

fn all_reduce(task: &Task) -> Draft {
    let (circle, parts, mut draft) = (Circle::new(task), task.parts(), Draft::default());
    for chunk in task.cut(parts.of(circle.previous())) {
        draft.push(Step::send(circle.next(), chunk.at(Place::Source)));
    }
    for hop in 0..circle.hops() {
        let (owner, left) = (circle.reduced_for(hop), circle.left(hop));
        for chunk in task.cut(parts.of(owner)) {
            let (own, region) = (chunk.at(Place::Source), chunk.at(Place::Target));
            let step = Step::receive_reduce(circle.previous(), own, region, left).then_send(circle.next());
            draft.push(if owner == task.me { step.settled() } else { step });
        }
    }
    gather(task, &circle, &mut draft);
    draft
}

fn all_gather(task: &Task) -> Draft {
    let (circle, mut draft) = (Circle::new(task), Draft::default());
    let mine = task.parts().of(task.me);
    for chunk in task.cut(mine) {
        let own = chunk.within(mine).at(Place::Source);
        draft.push(Step::copy(own, chunk.at(Place::Target)).then_send(circle.next()));
    }
    gather(task, &circle, &mut draft);
    draft
}

/// Takes everyone else's final part and passes it on, unless the next rank is its owner.
fn gather(task: &Task, circle: &Circle, draft: &mut Draft) {
    let parts = task.parts();
    for hop in 0..circle.hops() {
        for chunk in task.cut(parts.of(circle.behind(hop + 1))) {
            let step = Step::receive(circle.previous(), chunk.at(Place::Target));
            draft.push(if hop + 1 < circle.hops() { step.then_send(circle.next()) } else { step });
        }
    }
}

fn reduce_scatter(task: &Task) -> Draft {
    let (circle, parts, mut draft) = (Circle::new(task), task.parts(), Draft::default());
    for chunk in task.cut(parts.of(circle.previous())) {
        draft.push(Step::send(circle.next(), chunk.at(Place::Source)));
    }
    let mut passing = Vec::new();
    for hop in 0..circle.hops() - 1 {
        let left = circle.left(hop);
        passing.extend(task.cut(parts.of(circle.reduced_for(hop))).map(|chunk| (chunk, left)));
    }
    let turns = chunks_in_scratch(task, &parts);
    pass_through(task, &circle, &mut draft, &passing, turns);
    let (mine, last) = (parts.of(task.me), circle.hops() - 1);
    for chunk in task.cut(mine) {
        let (own, region) = (chunk.at(Place::Source), chunk.within(mine).at(Place::Target));
        let step = Step::receive_reduce(circle.previous(), own, region, circle.left(last));
        draft.push(step.settled());
    }
    draft
}

/// How many chunks of scratch a reduce-scatter takes turns with. One part's worth is the least that
/// cannot deadlock with a window of one slot: before our i-th chunk of scratch is free again, the next
/// rank must have taken a frame that is further back in its own sequence than the one that we are about
/// to take, so a wait around the ring ends. The rest lets a window be in flight meanwhile.
fn chunks_in_scratch(task: &Task, parts: &Parts) -> u64 {
    task.chunking().chunks(parts.longest()) + u64::from(task.tuning.window_slots.max(1))
}

/// Adds to chunks of others, in scratch that holds so many, and sends them on. The sends are steps of their
/// own where scratch is used more than once: each is listed right before the step that overwrites what it
/// sends, so that this step's fence waits for it and for nothing later.
pub(super) fn pass_through(
    task: &Task,
    circle: &Circle,
    draft: &mut Draft,
    passing: &[(Span, Left)],
    turns: u64,
) {
    let turns = turns.min(passing.len() as u64) as usize;
    let elements_max = u64::from(task.chunking().elements_max);
    let mut unsent = std::collections::VecDeque::<(u32, Region)>::new();
    let send = |(step, region): (u32, Region)| Step::send(circle.next(), region).after(step);
    for (i, (chunk, left)) in passing.iter().enumerate() {
        let offset = (i % turns) as u64 * elements_max;
        let region = Region { place: Place::Scratch, offset, count: chunk.count as u32 };
        draft.scratch = draft.scratch.max(offset + chunk.count);
        let own = chunk.at(Place::Source);
        let mut step = Step::receive_reduce(circle.previous(), own, region, *left);
        if turns == passing.len() {
            draft.push(step.then_send(circle.next()));
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
