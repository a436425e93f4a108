//! Recursive doubling: log₂(world) hops in which pairs of ranks exchange all they have. For small messages of many ranks.
//!
//! The first 2^k ranks, for the largest such k, do the work, as in [`halving`](super::halving). Both ranks of a pair reduce the
//! same operands in the same order, so that all ranks have the same bits although each settles its own result.

use super::halving::powers_of_two;
use super::{Draft, Method, Task};
use crate::cost::{Amount, Cost};
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
