//! Reductions of a chunk of all ranks, on one of them.

use super::{Draft, Task, direct};
use crate::parts::Span;
use crate::step::{Left, OpBuffer, Region, Step};
use ringfold_proto::id::Rank;

/// Reduces chunks from left to right in rank order. Partial results are in scratch, at most a window of chunks.
pub(super) struct InOrder<'a> {
    task: &'a Task<'a>,
    /// The first element of its scratch.
    first: u64,
    /// Whether the target may hold data that is being sent.
    is_fenced: bool,
    /// The last step of each chunk.
    settled: Vec<u32>,
}

impl<'a> InOrder<'a> {
    pub(super) fn new(task: &'a Task<'a>, first: u64, is_fenced: bool) -> Self {
        Self { task, first, is_fenced, settled: Vec::new() }
    }

    /// Reduces a chunk and settles it. Returns the last step.
    pub(super) fn fold(&mut self, draft: &mut Draft, chunk: Span, target: Region) -> u32 {
        let (me, last) = (self.task.me.index(), self.task.world() - 1);
        let source = chunk.at(OpBuffer::Source);
        let turns = usize::from(self.task.tuning.window_slots.max(1));
        let turn = self.settled.len() % turns;
        let offset = self.first + turn as u64 * u64::from(self.task.chunking().elements_max);
        let scratch = Region { buffer: OpBuffer::Scratch, offset, count: target.count };
        if last > 1 {
            draft.scratch = draft.scratch.max(offset + chunk.count);
        }
        // The step after which the scratch is free.
        let mut previous = self.settled.len().checked_sub(turns).map(|earlier| self.settled[earlier]);
        for index in 0..=last {
            let rank = Rank::from_index(index);
            let is_last = index == last || (me == last && me == 1);
            let into = if is_last { target } else { scratch };
            let mut step = match index {
                // The first frame is stored, or reduced at once with our own data.
                0 if me == 0 => continue,
                0 if me == 1 => Step::receive_reduce(rank, source, into, Left::Frame),
                0 => Step::receive(rank, into),
                1 if me == 1 => continue,
                1 if me == 0 => Step::receive_reduce(rank, source, into, Left::Own),
                _ if index == me => Step::combine(scratch, source, into),
                _ => Step::receive_reduce(rank, scratch, into, Left::Own),
            };
            step.after = previous;
            if is_last {
                step = step.settled();
                step.fence = self.is_fenced;
            }
            previous = Some(draft.push(step));
        }
        let settled = previous.expect("a reduction needs two or more ranks");
        self.settled.push(settled);
        settled
    }
}

/// Reduces the chunks of the part that this rank owns: in rank order if the operation is reproducible, otherwise as it takes the least
/// memory.
pub(super) enum PartFolder<'a> {
    InOrder(InOrder<'a>),
    OwnFirst(&'a Task<'a>),
}

impl<'a> PartFolder<'a> {
    /// `first` is the first element of scratch that it may use.
    pub(super) fn new(task: &'a Task<'a>, first: u64) -> Self {
        match task.descriptor.reproducible {
            true => Self::InOrder(InOrder::new(task, first, false)),
            false => Self::OwnFirst(task),
        }
    }

    /// Reduces a chunk and settles it. Returns the last step.
    pub(super) fn fold(&mut self, draft: &mut Draft, chunk: Span, region: Region) -> u32 {
        match self {
            Self::InOrder(folder) => folder.fold(draft, chunk, region),
            Self::OwnFirst(task) => direct::fold(task, draft, chunk, region),
        }
    }
}
