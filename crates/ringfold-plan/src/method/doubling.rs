//! Recursive doubling: log₂(world) hops in which pairs of ranks exchange all they have. For small messages of many ranks.
//!
//! The first 2^k ranks, for the largest such k, do the work, as in [`halving`](super::halving). In a reduction both ranks of a pair reduce the
//! same operands in the same order, so that all ranks have the same bits although each settles its own result.

use super::halving::{Rounds, core_of, powers_of_two, with_extras};
use super::{Draft, Method, Task};
use crate::cost::{Amount, Cost};
use crate::parts::Span;
use crate::step::Left;
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Algorithm;

/// No scratch: the target holds partial results. A round overwrites what it sends, so it is fenced.
pub const ALL_REDUCE: Method = Method {
    algorithm: Algorithm::Doubling,
    needs_mesh: true,
    one_owner: false,
    traffic: |task| {
        let core = 1 << task.world().ilog2();
        let extra = task.world() as u64 - core;
        (core * u64::from(task.world().ilog2()) + 2 * extra) * task.descriptor.count
    },
    cost,
    draft: all_reduce,
};

/// All parts in log₂(world) hops, with the traffic of direct transfers if there are no extra ranks.
pub const ALL_GATHER: Method = Method {
    algorithm: Algorithm::Doubling,
    needs_mesh: true,
    one_owner: false,
    traffic: |task| {
        let extras = (task.world() - core_of(task)) as u64;
        (core_of(task) as u64 - 1 + extras) * task.descriptor.count
    },
    cost: |task| {
        let (rounds, extra) = (core_of(task).ilog2(), u64::from(!task.world().is_power_of_two()));
        let longest = task.parts().longest().count;
        let doubles = (0..rounds).map(|round| task.amount(longest << round).times(1 + extra));
        let doubled = doubles.fold(Amount::default(), Amount::and);
        let sent = doubled.and(task.amount(task.descriptor.count).times(extra));
        let received = doubled.and(task.amount(longest).times(extra));
        sent.sent(u64::from(rounds) + 2 * extra, received, Amount::default())
    },
    draft: all_gather,
};

/// The busiest rank is one with an extra rank, if there are any.
fn cost(task: &Task) -> Cost {
    let (rounds, whole) = (u64::from(task.world().ilog2()), task.amount(task.descriptor.count));
    let extra = u64::from(!task.world().is_power_of_two());
    let each_way: Amount = whole.times(rounds + extra);
    each_way.sent(rounds + 2 * extra, each_way, each_way)
}

fn all_reduce(task: &Task) -> Draft {
    powers_of_two(task, |me, core, rounds| {
        let mut mask = 1;
        while mask < core {
            let partner = Rank::from_index(me ^ mask);
            let left = if me & mask == 0 { Left::Own } else { Left::Frame };
            rounds.exchange_reduce(partner, left, 2 * mask == core);
            mask *= 2;
        }
    })
}

fn all_gather(task: &Task) -> Draft {
    let (me, core, parts) = (task.me.index(), core_of(task), task.parts());
    let mut rounds = Rounds::new(task);
    rounds.collect(parts.of(task.me));
    if me >= core {
        let partner = Rank::from_index(me - core);
        rounds.send(partner, parts.of(task.me));
        for span in without(task, parts.of(task.me)) {
            rounds.receive(partner, span);
        }
        return rounds.finish();
    }
    let extra = (me + core < task.world()).then(|| Rank::from_index(me + core));
    if let Some(extra) = extra {
        rounds.receive(extra, parts.of(extra));
    }
    let mut mask = 1;
    while mask < core {
        let (partner, first) = (Rank::from_index(me ^ mask), me & !(mask - 1));
        for span in with_extras(task, &parts, first, mask) {
            rounds.send(partner, span);
        }
        for span in with_extras(task, &parts, first ^ mask, mask) {
            rounds.receive(partner, span);
        }
        mask *= 2;
    }
    if let Some(extra) = extra {
        for span in without(task, parts.of(extra)) {
            rounds.send(extra, span);
        }
    }
    rounds.finish()
}

/// The tensor before and after a span.
fn without(task: &Task, span: Span) -> [Span; 2] {
    let end = task.descriptor.count;
    [Span { start: 0, count: span.start }, Span { start: span.end(), count: end - span.end() }]
}
