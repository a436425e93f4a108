//! Recursive halving, then doubling: about 2·log₂(world) hops with the ring's traffic.
//!
//! The largest power of two of the ranks, from 0 on, do the work; each of the ranks beyond hands its
//! data to one of them first and gets the result last. Rounds follow each other on every rank: takings
//! are chained, so one that is done has all earlier ones behind it.

use super::{Draft, Method, Task};
use crate::cost::{Amount, Cost};
use crate::parts::{Parts, Span};
use crate::step::{Left, Place, Step};
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Algorithm;

/// No scratch: the target holds what is not yet final. A final value arrives only after our own share in
/// it has arrived elsewhere, so nothing needs a fence in place.
pub const ALL_REDUCE: Method = Method {
    algorithm: Algorithm::Halving,
    needs_mesh: true,
    one_owner: false,
    member_order: true,
    traffic: |task| 2 * task.once_to_all(),
    cost,
    draft: all_reduce,
};

/// The busiest is a rank that stands for one beyond the power of two, if there are such.
fn cost(task: &Task) -> Cost {
    let (rounds, count) = (task.world().ilog2(), task.descriptor.count);
    let halves = (1..=rounds).map(|round| task.amount(count.div_ceil(1 << round)));
    let halved = halves.fold(Amount::default(), Amount::and);
    let extra = u64::from(!task.world().is_power_of_two());
    let beyond = task.amount(count).times(extra);
    let each_way = halved.times(2).and(beyond);
    each_way.sent(2 * (u64::from(rounds) + extra), each_way, halved.and(beyond))
}

fn all_reduce(task: &Task) -> Draft {
    let core = 1 << task.world().ilog2();
    let me = task.me.index();
    if me >= core {
        return beyond(task, Rank::from_index(me - core));
    }
    let extra = (me + core < task.world()).then(|| Rank::from_index(me + core));
    let parts = Parts::even(task.descriptor.count, core as u16);
    let mut rounds = Rounds { task, draft: Draft::default(), base: Place::Source, taken: Taken::default() };
    if let Some(extra) = extra {
        rounds.take_in(extra, task.whole(), Left::Own, false);
    }
    let (mut first, mut mask) = (0, core / 2);
    while mask > 0 {
        let partner = Rank::from_index(me ^ mask);
        let (keep, give) = if me & mask == 0 { (first, first + mask) } else { (first + mask, first) };
        let left = if me & mask == 0 { Left::Own } else { Left::Frame };
        rounds.give(partner, parts.run(give, mask));
        rounds.take_in(partner, parts.run(keep, mask), left, mask == 1);
        (first, mask) = (keep, mask / 2);
    }
    mask = 1;
    while mask < core {
        let partner = Rank::from_index(me ^ mask);
        rounds.give(partner, parts.run(first, mask));
        rounds.take(partner, parts.run(first ^ mask, mask));
        (first, mask) = (first & !mask, mask * 2);
    }
    if let Some(extra) = extra {
        rounds.give(extra, task.whole());
    }
    rounds.draft
}

/// A rank beyond the power of two: its data goes in whole, the result comes out whole.
fn beyond(task: &Task, partner: Rank) -> Draft {
    let mut draft = Draft::default();
    for chunk in task.cut(task.whole()) {
        draft.push(Step::send(partner, chunk.at(Place::Source)));
    }
    for chunk in task.cut(task.whole()) {
        draft.push(Step::receive(partner, chunk.at(Place::Target)));
    }
    draft
}

/// The rounds of one rank, as they are being written.
struct Rounds<'a> {
    task: &'a Task<'a>,
    draft: Draft,
    /// Where this rank's share is: the source until something was folded into it.
    base: Place,
    taken: Taken,
}

/// The takings of the latest round.
#[derive(Default)]
struct Taken {
    /// The last one of the round before.
    before: Option<u32>,
    /// What was taken by which step, both rising.
    chunks: Vec<(Span, u32)>,
}

impl Taken {
    fn last(&self) -> Option<u32> {
        self.chunks.last().map(|(_, step)| *step).or(self.before)
    }

    /// The step after which all of a span is there.
    fn ready(&self, span: Span) -> Option<u32> {
        let upto = self.chunks.partition_point(|(taken, _)| taken.start < span.end());
        let overlapping = self.chunks[..upto].last().filter(|(taken, _)| taken.end() > span.start);
        overlapping.map(|(_, step)| *step).or(self.before)
    }
}

impl Rounds<'_> {
    fn give(&mut self, to: Rank, span: Span) {
        for chunk in self.task.cut(span) {
            let mut step = Step::send(to, chunk.at(self.base));
            step.after = self.taken.ready(chunk);
            self.draft.push(step);
        }
    }

    fn take_in(&mut self, from: Rank, span: Span, left: Left, settle: bool) {
        let base = self.base;
        self.round(span, |chunk| {
            let step = Step::receive_reduce(from, chunk.at(base), chunk.at(Place::Target), left);
            if settle { step.settled() } else { step }
        });
        self.base = Place::Target;
    }

    fn take(&mut self, from: Rank, span: Span) {
        self.round(span, |chunk| Step::receive(from, chunk.at(Place::Target)));
    }

    fn round(&mut self, span: Span, step: impl Fn(Span) -> Step) {
        let mut previous = self.taken.last();
        let mut taken = Taken { before: previous, chunks: Vec::new() };
        for chunk in self.task.cut(span) {
            let mut step = step(chunk);
            step.after = previous;
            let number = self.draft.push(step);
            previous = Some(number);
            taken.chunks.push((chunk, number));
        }
        self.taken = taken;
    }
}
