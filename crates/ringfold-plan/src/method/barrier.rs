//! Barriers. Their frames are empty.

use super::{Draft, Method, Task};
use crate::cost::Cost;
use crate::step::{Region, Step};
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Algorithm;

/// Two trips around the ring: the first collects all ranks, the second releases them.
pub const TWO_TRIPS: Method = Method {
    algorithm: Algorithm::Ring,
    needs_mesh: false,
    one_owner: true,
    traffic: |_| 0,
    cost: |task| Cost::empty(2 * task.world() as u64 - 1, 2),
    draft: two_trips,
};

/// Dissemination: in round k each rank signals the rank 2^k further that it, and all that have signalled it, have
/// arrived. log₂(world) hops, rounded up. If the number of ranks is a power of two, ranks signal each other in pairs, so that
/// what they return for a signal goes with the next one.
pub const DISSEMINATION: Method = Method {
    algorithm: Algorithm::Halving,
    needs_mesh: true,
    cost: |task| Cost::empty(rounds(task).into(), rounds(task).into()),
    draft: dissemination,
    ..TWO_TRIPS
};

fn rounds(task: &Task) -> u32 {
    task.world().next_power_of_two().ilog2()
}

fn two_trips(task: &Task) -> Draft {
    let mut draft = Draft::default();
    let (position, world) = (task.shape.position(task.me), task.world());
    let (previous, next) = (task.shape.ahead(task.me, world - 1), task.shape.ahead(task.me, 1));
    if position == 0 {
        draft.push(Step::send(next, Region::EMPTY));
        draft.push(Step::receive(previous, Region::EMPTY).then_send(next));
        return draft;
    }
    draft.push(Step::receive(previous, Region::EMPTY).then_send(next));
    let release = Step::receive(previous, Region::EMPTY);
    draft.push(if position + 1 < world { release.then_send(next) } else { release });
    draft
}

fn dissemination(task: &Task) -> Draft {
    let mut draft = Draft::default();
    let (me, world) = (task.me.index(), task.world());
    let mut previous = None;
    for distance in (0..rounds(task)).map(|round| 1 << round) {
        let (to, from) = match world.is_power_of_two() {
            true => (me ^ distance, me ^ distance),
            false => ((me + distance) % world, (me + world - distance) % world),
        };
        let mut send = Step::send(Rank::from_index(to), Region::EMPTY);
        let mut receive = Step::receive(Rank::from_index(from), Region::EMPTY);
        (send.after, receive.after) = (previous, previous);
        draft.push(send);
        previous = Some(draft.push(receive));
    }
    draft
}
