//! Recursive halving and doubling: about 2·log₂(world) hops with the ring's traffic; a reduce-scatter has the first half.
//!
//! The first 2^k ranks, for the largest such k, do the work. Each extra rank sends its data to one of them first and
//! receives the result last. Rounds are sequential on every rank: each receive waits for the previous one.

use super::{Draft, Method, Task};
use crate::cost::{Amount, Cost};
use crate::parts::{Parts, Span};
use crate::step::{Left, OpBuffer, Region, Step};
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

/// log₂(world) hops, for small messages of many ranks. Each of the 2^k ranks also reduces the part of its extra rank.
/// Partial results are in scratch.
pub const REDUCE_SCATTER: Method = Method {
    traffic: |task| {
        let (core, parts) = (core_of(task), task.parts());
        let extras = (core..task.world()).map(|extra| task.descriptor.count + parts.part(extra).count);
        (core as u64 - 1) * task.descriptor.count + extras.sum::<u64>()
    },
    cost: |task| {
        let (rounds, extra) = (core_of(task).ilog2(), u64::from(!task.world().is_power_of_two()));
        let longest = task.parts().longest().count;
        let halves = (0..rounds).map(|round| task.amount(longest << round).times(1 + extra));
        let halved = halves.fold(Amount::default(), Amount::and);
        let received = halved.and(task.amount(task.descriptor.count).times(extra));
        let sent = halved.and(task.amount(longest).times(extra));
        sent.sent(u64::from(rounds) + 2 * extra, received, received)
    },
    draft: reduce_scatter,
    ..ALL_REDUCE
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

fn reduce_scatter(task: &Task) -> Draft {
    let (me, core, parts) = (task.me.index(), core_of(task), task.parts());
    let mine = parts.of(task.me);
    let into_target = |chunk: Span| chunk.within(mine).at(OpBuffer::Target);
    let mut rounds = Rounds::new(task);
    if me >= core {
        let partner = Rank::from_index(me - core);
        rounds.send(partner, task.whole());
        rounds.round(mine, |chunk| Step::receive(partner, into_target(chunk)));
        return rounds.finish();
    }
    let extra = (me + core < task.world()).then(|| Rank::from_index(me + core));
    if let Some(extra) = extra {
        rounds.reduce_in_scratch(extra, [task.whole()], Left::Own);
    }
    let (mut first, mut mask) = (0, core / 2);
    loop {
        let (partner, is_lower) = (Rank::from_index(me ^ mask), me & mask == 0);
        let (keep, give) = if is_lower { (first, first + mask) } else { (first + mask, first) };
        let left = if is_lower { Left::Own } else { Left::Frame };
        for span in with_extras(task, &parts, give, mask) {
            rounds.send(partner, span);
        }
        let kept = with_extras(task, &parts, keep, mask);
        if mask == 1 {
            let base = rounds.base;
            rounds.round(mine, |chunk| {
                Step::receive_reduce(partner, base.region(chunk), into_target(chunk), left).settled()
            });
            if let Some(extra) = extra {
                rounds.settle_in_scratch(partner, parts.of(extra), left);
                rounds.send(extra, parts.of(extra));
            }
            return rounds.finish();
        }
        rounds.reduce_in_scratch(partner, kept, left);
        (first, mask) = (keep, mask / 2);
    }
}

/// The number of ranks that do the work: the largest power of two.
pub(super) fn core_of(task: &Task) -> usize {
    1 << task.world().ilog2()
}

/// The parts of `len` ranks from `first` on, and those of their extra ranks.
pub(super) fn with_extras(task: &Task, parts: &Parts, first: usize, len: usize) -> [Span; 2] {
    let (core, world) = (core_of(task), task.world());
    let beyond = (core + first).min(world - 1);
    let extras = len.min(world.saturating_sub(core + first));
    [parts.run(first, len), parts.run(beyond, extras)]
}

/// The plan of an all-reduce whose rounds need 2^k ranks: `exchange` adds the rounds of rank `me` of the first `core` ranks.
/// Each extra rank sends its data to one of them before, and receives the result after.
pub(super) fn powers_of_two<'a>(
    task: &'a Task<'a>,
    exchange: impl FnOnce(usize, usize, &mut Rounds<'a>),
) -> Draft {
    let (me, core) = (task.me.index(), core_of(task));
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
    base: Base,
    taken: RoundReceives,
}

/// Where our data is: in the source until the first reduction.
#[derive(Clone, Copy)]
struct Base {
    buffer: OpBuffer,
    /// The element of the tensor with which it begins.
    start: u64,
}

impl Base {
    const SOURCE: Self = Self { buffer: OpBuffer::Source, start: 0 };
    const TARGET: Self = Self { buffer: OpBuffer::Target, start: 0 };

    fn region(self, chunk: Span) -> Region {
        Span { start: chunk.start - self.start, ..chunk }.at(self.buffer)
    }
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
    pub(super) fn new(task: &'a Task<'a>) -> Self {
        Self { task, draft: Draft::default(), base: Base::SOURCE, taken: RoundReceives::default() }
    }

    pub(super) fn finish(self) -> Draft {
        self.draft
    }

    pub(super) fn send(&mut self, to: Rank, span: Span) {
        for chunk in self.task.cut(span) {
            let mut step = Step::send(to, self.base.region(chunk));
            step.after = self.taken.ready(chunk);
            self.draft.push(step);
        }
    }

    pub(super) fn receive_reduce(&mut self, from: Rank, span: Span, left: Left, settle: bool) {
        let base = self.base;
        self.round(span, |chunk| {
            let step = Step::receive_reduce(from, base.region(chunk), chunk.at(OpBuffer::Target), left);
            if settle { step.settled() } else { step }
        });
        self.base = Base::TARGET;
    }

    /// Reduces these spans in scratch. Later rounds are about them alone.
    fn reduce_in_scratch<const N: usize>(&mut self, from: Rank, spans: [Span; N], left: Left) {
        let base = self.base;
        let scratch = match base.buffer {
            OpBuffer::Scratch => base,
            _ => {
                let filled = || spans.iter().filter(|span| span.count > 0);
                let start = filled().map(|span| span.start).min().unwrap_or(0);
                self.draft.scratch = filled().map(|span| span.end() - start).max().unwrap_or(0);
                Base { buffer: OpBuffer::Scratch, start }
            }
        };
        for span in spans {
            self.round(span, |chunk| {
                Step::receive_reduce(from, base.region(chunk), scratch.region(chunk), left)
            });
        }
        self.base = scratch;
    }

    /// Makes a span final, in scratch.
    fn settle_in_scratch(&mut self, from: Rank, span: Span, left: Left) {
        let base = self.base;
        self.round(span, |chunk| {
            Step::receive_reduce(from, base.region(chunk), base.region(chunk), left).settled()
        });
    }

    /// Copies our part to the target, where later rounds collect the other parts.
    pub(super) fn collect(&mut self, mine: Span) {
        self.round(mine, |chunk| {
            Step::copy(chunk.within(mine).at(OpBuffer::Source), chunk.at(OpBuffer::Target))
        });
        self.base = Base::TARGET;
    }

    /// Sends all data to a rank that sends all of its data, and reduces both, chunk by chunk: a fence waits for the chunks before, and
    /// not for a rank that waits for them.
    pub(super) fn exchange_reduce(&mut self, partner: Rank, left: Left, settle: bool) {
        let base = self.base;
        let mut previous = self.taken.last();
        let mut taken = RoundReceives { before: previous, chunks: Vec::new() };
        for chunk in self.task.cut(self.task.whole()) {
            let mut send = Step::send(partner, base.region(chunk));
            send.after = self.taken.ready(chunk);
            self.draft.push(send);
            let mut step =
                Step::receive_reduce(partner, base.region(chunk), chunk.at(OpBuffer::Target), left).fenced();
            step.after = previous;
            step.settle = settle;
            let number = self.draft.push(step);
            previous = Some(number);
            taken.chunks.push((chunk, number));
        }
        (self.taken, self.base) = (taken, Base::TARGET);
    }

    pub(super) fn receive(&mut self, from: Rank, span: Span) {
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
