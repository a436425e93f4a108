//! Recursive halving and doubling: about 2·log₂(world) hops with the ring's traffic.
//!
//! The first 2^k ranks, for the largest such k, do the work. Each extra rank sends its data to one of them first and
//! receives the result last. Rounds are sequential on every rank: each receive waits for the previous one.

use super::{Draft, Method, Task};
use crate::cost::{Amount, Cost};
use crate::parts::{Parts, Span};
use crate::step::{Left, OpBuffer, Step};
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Algorithm;

/// No scratch: the target holds partial results. A final value arrives only after our data has arrived elsewhere, so no
/// fence is needed in place.
pub const ALL_REDUCE: Method = Method {
    algorithm: Algorithm::Halving,
    needs_mesh: true,
    one_owner: false,
    traffic: |task| 2 * task.once_to_all(),
    cost,
    draft: all_reduce,
};

/// The busiest rank is one with an extra rank, if there are any.
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
    powers_of_two(task, |me, core, rounds| {
        let parts = Parts::even(task.descriptor.count, core as u16);
        let (mut first, mut mask) = (0, core / 2);
        while mask > 0 {
            let partner = Rank::from_index(me ^ mask);
            let (keep, give) = if me & mask == 0 { (first, first + mask) } else { (first + mask, first) };
            let left = if me & mask == 0 { Left::Own } else { Left::Frame };
            rounds.send(partner, parts.run(give, mask));
            rounds.receive_reduce(partner, parts.run(keep, mask), left, mask == 1);
            (first, mask) = (keep, mask / 2);
        }
        mask = 1;
        while mask < core {
            let partner = Rank::from_index(me ^ mask);
            rounds.send(partner, parts.run(first, mask));
            rounds.receive(partner, parts.run(first ^ mask, mask));
            (first, mask) = (first & !mask, mask * 2);
        }
    })
}

/// The plan of an all-reduce whose rounds need 2^k ranks: `exchange` adds the rounds of rank `me` of the first `core` ranks.
/// Each extra rank sends its data to one of them before, and receives the result after.
pub(super) fn powers_of_two<'a>(
    task: &'a Task<'a>,
    exchange: impl FnOnce(usize, usize, &mut Rounds<'a>),
) -> Draft {
    let core = 1 << task.world().ilog2();
    let me = task.me.index();
    if me >= core {
        return beyond(task, Rank::from_index(me - core));
    }
    let extra = (me + core < task.world()).then(|| Rank::from_index(me + core));
    let mut rounds = Rounds::new(task);
    if let Some(extra) = extra {
        rounds.receive_reduce(extra, task.whole(), Left::Own, false);
    }
    exchange(me, core, &mut rounds);
    if let Some(extra) = extra {
        rounds.send(extra, task.whole());
    }
    rounds.finish()
}

/// The plan of an extra rank: sends all its data, receives the whole result.
fn beyond(task: &Task, partner: Rank) -> Draft {
    let mut draft = Draft::default();
    for chunk in task.cut(task.whole()) {
        draft.push(Step::send(partner, chunk.at(OpBuffer::Source)));
    }
    for chunk in task.cut(task.whole()) {
        draft.push(Step::receive(partner, chunk.at(OpBuffer::Target)));
    }
    draft
}

/// The rounds of one rank, under construction.
pub(super) struct Rounds<'a> {
    task: &'a Task<'a>,
    draft: Draft,
    /// The buffer of our data: the source until the first reduction.
    base: OpBuffer,
    taken: RoundReceives,
}

/// The receives of the latest round.
#[derive(Default)]
struct RoundReceives {
    /// The last receive of the previous round.
    before: Option<u32>,
    /// The received chunks and their steps, both ascending.
    chunks: Vec<(Span, u32)>,
}

impl RoundReceives {
    fn last(&self) -> Option<u32> {
        self.chunks.last().map(|(_, step)| *step).or(self.before)
    }

    /// The step after which a span is complete.
    fn ready(&self, span: Span) -> Option<u32> {
        let upto = self.chunks.partition_point(|(taken, _)| taken.start < span.end());
        let overlapping = self.chunks[..upto].last().filter(|(taken, _)| taken.end() > span.start);
        overlapping.map(|(_, step)| *step).or(self.before)
    }
}

impl<'a> Rounds<'a> {
    fn new(task: &'a Task<'a>) -> Self {
        Self { task, draft: Draft::default(), base: OpBuffer::Source, taken: RoundReceives::default() }
    }

    fn finish(self) -> Draft {
        self.draft
    }

    pub(super) fn send(&mut self, to: Rank, span: Span) {
        for chunk in self.task.cut(span) {
            let mut step = Step::send(to, chunk.at(self.base));
            step.after = self.taken.ready(chunk);
            self.draft.push(step);
        }
    }

    pub(super) fn receive_reduce(&mut self, from: Rank, span: Span, left: Left, settle: bool) {
        let base = self.base;
        self.round(span, |chunk| {
            let step = Step::receive_reduce(from, chunk.at(base), chunk.at(OpBuffer::Target), left);
            if settle { step.settled() } else { step }
        });
        self.base = OpBuffer::Target;
    }

    /// Sends all data to a rank that sends all of its data, and reduces both, chunk by chunk: a fence waits for the chunks before, and
    /// not for a rank that waits for them.
    pub(super) fn exchange_reduce(&mut self, partner: Rank, left: Left, settle: bool) {
        let base = self.base;
        let mut previous = self.taken.last();
        let mut taken = RoundReceives { before: previous, chunks: Vec::new() };
        for chunk in self.task.cut(self.task.whole()) {
            let mut send = Step::send(partner, chunk.at(base));
            send.after = self.taken.ready(chunk);
            self.draft.push(send);
            let mut step =
                Step::receive_reduce(partner, chunk.at(base), chunk.at(OpBuffer::Target), left).fenced();
            step.after = previous;
            step.settle = settle;
            let number = self.draft.push(step);
            previous = Some(number);
            taken.chunks.push((chunk, number));
        }
        (self.taken, self.base) = (taken, OpBuffer::Target);
    }

    fn receive(&mut self, from: Rank, span: Span) {
        self.round(span, |chunk| Step::receive(from, chunk.at(OpBuffer::Target)));
    }

    fn round(&mut self, span: Span, step: impl Fn(Span) -> Step) {
        let mut previous = self.taken.last();
        let mut taken = RoundReceives { before: previous, chunks: Vec::new() };
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
