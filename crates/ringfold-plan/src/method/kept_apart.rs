//! Direct transfers for resumable all-reduces: the owner of a chunk keeps the contributions of all ranks apart until the
//! operation is decided, and reduces them from left to right in rank order.
//!
//! If ranks are lost, the others resume: they send only what owners do not hold, and the results. It needs scratch of
//! about the size of the tensor.

use super::direct;
use super::{Draft, Method, Task, in_turns};
use crate::layout::Layout;
use crate::ownership::{OwnedChunk, Ownership, Resumption};
use crate::step::{OpBuffer, Step};
use ringfold_proto::id::Rank;
use std::borrow::Cow;
use std::sync::Arc;

/// Two hops. No fences: see [`direct::ALL_REDUCE`].
pub const ALL_REDUCE: Method = Method {
    traffic: |task| KeptApart::new(task).traffic(),
    draft: |task| KeptApart::new(task).draft(),
    ..direct::ALL_REDUCE
};

/// Whether the contributions of an operation are kept apart.
pub(crate) fn is_possible(task: &Task) -> bool {
    task.descriptor.is_resumable() && task.shape.is_full_mesh() && task.world() > 1
}

/// What owners hold when an operation starts, if it can be resumed.
pub(crate) fn resumption(task: &Task) -> Option<Arc<Resumption>> {
    match task.layout {
        Layout::Resumed(resumption) => Some(resumption.clone()),
        _ if is_possible(task) => {
            let world = task.world();
            let ownership = Ownership::new(task.descriptor, task.tuning, world);
            Some(Arc::new(Resumption { ownership, held: vec![0; world * world] }))
        }
        _ => None,
    }
}

struct KeptApart<'a> {
    task: &'a Task<'a>,
    ownership: Cow<'a, Ownership>,
    resumption: Option<&'a Resumption>,
}

impl<'a> KeptApart<'a> {
    fn new(task: &'a Task<'a>) -> Self {
        match task.layout {
            Layout::Resumed(resumption) => {
                Self { task, ownership: Cow::Borrowed(&resumption.ownership), resumption: Some(resumption) }
            }
            _ => {
                let ownership = Ownership::new(task.descriptor, task.tuning, task.world());
                Self { task, ownership: Cow::Owned(ownership), resumption: None }
            }
        }
    }

    /// How many of an owner's first chunks it holds of a contributor.
    fn held(&self, owner: Rank, from: Rank) -> usize {
        self.resumption.map_or(0, |resumption| resumption.held(owner, from) as usize)
    }

    fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.task.world()).map(Rank::from_index)
    }

    /// The results go to all others, and so does what owners do not hold.
    fn traffic(&self) -> u64 {
        let missing = |owner: Rank, from: Rank| {
            let chunks = self.ownership.chunks(owner).skip(self.held(owner, from));
            chunks.map(|owned| owned.chunk.count).sum::<u64>()
        };
        let of_owner = |owner: Rank| {
            self.ranks().filter(|from| *from != owner).map(|from| missing(owner, from)).sum::<u64>()
        };
        self.task.once_to_all() + self.ranks().map(of_owner).sum::<u64>()
    }

    fn draft(&self) -> Draft {
        let (task, ownership) = (self.task, &self.ownership);
        let mut draft = Draft::default();
        let missing =
            |peer: Rank| ownership.chunks(peer).skip(self.held(peer, task.me)).map(|owned| owned.chunk);
        in_turns(task.others().map(|peer| (peer, missing(peer))).collect(), |peer, chunk| {
            draft.push(Step::send(peer, chunk.at(OpBuffer::Source)));
        });
        let mut settled = Vec::new();
        for (number, owned) in ownership.chunks(task.me).enumerate() {
            // Partial results of an earlier chunk have been in the same memory.
            let free = number.checked_sub(ownership.window()).map(|earlier| settled[earlier]);
            let arrived = self.take_contributions(&mut draft, number, owned, free);
            let result = self.fold(&mut draft, number, owned, arrived);
            settled.push(result);
            for peer in task.others() {
                draft.push(Step::send(peer, owned.chunk.at(OpBuffer::Target)).after(result));
            }
        }
        for peer in task.others() {
            for owned in ownership.chunks(peer) {
                draft.push(Step::receive(peer, owned.chunk.at(OpBuffer::Target)));
            }
        }
        draft
    }

    /// Receives what is missing of a chunk. Returns the last step, after which all of it is here.
    fn take_contributions(
        &self,
        draft: &mut Draft,
        number: usize,
        owned: OwnedChunk,
        mut previous: Option<u32>,
    ) -> Option<u32> {
        let me = self.task.me;
        for from in self.ranks().filter(|from| *from != me) {
            let region = self.ownership.kept(me, owned, from);
            draft.scratch = draft.scratch.max(region.offset + u64::from(region.count));
            if number >= self.held(me, from) {
                let mut step = Step::receive(from, region);
                step.after = previous;
                previous = Some(draft.push(step));
            }
        }
        previous
    }

    /// Reduces a chunk and settles it. Returns the last step.
    fn fold(&self, draft: &mut Draft, number: usize, owned: OwnedChunk, mut previous: Option<u32>) -> u32 {
        let (me, last) = (self.task.me, self.task.world() - 1);
        let operand = |rank: Rank| match rank == me {
            true => owned.chunk.at(OpBuffer::Source),
            false => self.ownership.kept(me, owned, rank),
        };
        let mut left = operand(Rank(0));
        for right in (1..=last).map(Rank::from_index) {
            let is_last = right.index() == last;
            let into = match is_last {
                true => owned.chunk.at(OpBuffer::Target),
                false => self.ownership.partial(owned, number),
            };
            let mut step = Step::combine(left, operand(right), into);
            step.after = previous;
            step.settle = is_last;
            previous = Some(draft.push(step));
            left = into;
        }
        previous.expect("a direct plan needs two or more ranks")
    }
}
