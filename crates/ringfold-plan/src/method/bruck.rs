//! An all-to-all in ⌈log₂(world)⌉ hops, by Bruck's algorithm: few messages of many blocks. For small messages of many ranks.
//!
//! Block `d` of a rank is for the rank `d` places further. In round `k` each rank sends the blocks with bit `k` in `d` to the rank
//! 2^k places further, as one message. So a block takes as many hops as `d` has bits.

use super::{Draft, Method, Task};
use crate::cost::{Amount, Cost};
use crate::parts::{Parts, Span};
use crate::step::{OpBuffer, Region, Step};
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Algorithm;

/// Not in place. The scratch holds the messages of all rounds.
pub const ALL_TO_ALL: Method = Method {
    algorithm: Algorithm::Doubling,
    needs_mesh: true,
    one_owner: false,
    traffic: |task| {
        let hops: u64 = (1..task.world()).map(|distance| u64::from(distance.count_ones())).sum();
        hops * task.descriptor.count
    },
    cost: |task| {
        let longest = task.parts().longest().count;
        let message = |round| task.amount(blocks_of(task, round).count() as u64 * longest);
        let all = (0..rounds(task)).map(message).fold(Amount::default(), Amount::and);
        // What is copied in memory costs about as much as what is reduced, and some copies as much as a frame.
        let copies =
            (0..rounds(task)).map(|round| blocks_of(task, round).count()).sum::<usize>() + task.world();
        let cost = all.sent(rounds(task).into(), all, all);
        Cost { frames: cost.frames + copies as u64 / COPIES_PER_FRAME, ..cost }
    },
    draft: all_to_all,
};

/// Short copies that take about as long as a frame.
const COPIES_PER_FRAME: u64 = 8;

fn rounds(task: &Task) -> u32 {
    task.world().next_power_of_two().ilog2()
}

/// The blocks that are sent in a round, by the distance of their receivers from their senders.
fn blocks_of(task: &Task, round: u32) -> impl Iterator<Item = usize> + use<> {
    (1..task.world()).filter(move |distance| distance >> round & 1 == 1)
}

/// Where blocks are before a round, and how long they are.
struct Blocks {
    world: usize,
    me: usize,
    parts: Parts,
    /// By distance: the buffer, and the first element.
    places: Vec<(OpBuffer, u64)>,
}

impl Blocks {
    fn rank(&self, position: usize) -> Rank {
        Rank::from_index(position % self.world)
    }

    /// The elements of a block that this rank sends in a round: it is `distance % 2^round` places away from its sender.
    fn sent(&self, distance: usize, round: u32) -> u64 {
        self.parts.of(self.rank(self.me + (distance >> round << round))).count
    }

    /// Those of a block that this rank receives.
    fn received(&self, distance: usize, round: u32) -> u64 {
        let sender = self.me + self.world - (1 << round);
        self.parts.of(self.rank(sender + (distance >> round << round))).count
    }
}

/// Copies are in order, and so are receives: a step that waits for the last one waits for all.
fn all_to_all(task: &Task) -> Draft {
    let (world, me) = (task.world(), task.me.index());
    let (parts, mut draft) = (task.parts(), Draft::default());
    let source = |distance: usize| (OpBuffer::Source, parts.part((me + distance) % world).start);
    let places = (0..world).map(source).collect();
    let mut blocks = Blocks { world, me, parts: parts.clone(), places };
    let mine = parts.of(task.me).count;
    let own = blocks.places[0];
    copy(task, &mut draft, own, (OpBuffer::Target, me as u64 * mine), mine, None);
    let mut last = None;
    for round in 0..rounds(task) {
        let (to, from) = (blocks.rank(me + (1 << round)), blocks.rank(me + world - (1 << round)));
        let (start, mut end) = (draft.scratch, draft.scratch);
        for distance in blocks_of(task, round) {
            let (count, place) = (blocks.sent(distance, round), blocks.places[distance]);
            last = copy(task, &mut draft, place, (OpBuffer::Scratch, end), count, last);
            end += count;
        }
        for chunk in task.cut(Span { start, count: end - start }) {
            let step = Step { after: last, ..Step::send(to, chunk.at(OpBuffer::Scratch)) };
            draft.push(step);
        }
        let start = end;
        for distance in blocks_of(task, round) {
            blocks.places[distance] = (OpBuffer::Scratch, end);
            end += blocks.received(distance, round);
        }
        for chunk in task.cut(Span { start, count: end - start }) {
            let step = Step { after: last, ..Step::receive(from, chunk.at(OpBuffer::Scratch)) };
            last = Some(draft.push(step));
        }
        draft.scratch = end;
    }
    for distance in 1..world {
        let sender = (me + world - distance) % world;
        let place = (OpBuffer::Target, sender as u64 * mine);
        last = copy(task, &mut draft, blocks.places[distance], place, mine, last);
    }
    draft
}

/// Copies elements, after a step. Returns the last step.
fn copy(
    task: &Task,
    draft: &mut Draft,
    from: (OpBuffer, u64),
    to: (OpBuffer, u64),
    count: u64,
    mut after: Option<u32>,
) -> Option<u32> {
    for chunk in task.cut(Span { start: 0, count }) {
        let at = |(buffer, start): (OpBuffer, u64)| -> Region {
            Span { start: start + chunk.start, ..chunk }.at(buffer)
        };
        after = Some(draft.push(Step { after, ..Step::copy(at(from), at(to)) }));
    }
    after
}
