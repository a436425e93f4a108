//! Who reduces which elements of a resumable all-reduce, and where contributions are kept until then.
//!
//! A resumable all-reduce begins with one part per rank. When ranks are lost, each survivor keeps its spans and gets a share of
//! those of the lost ranks. The chunks of a span, and the place of each contribution in scratch, never change, so contributions
//! that have arrived stay where they are.

use crate::layout::Layout;
use crate::parts::{Chunking, Parts, Span};
use crate::step::{OpBuffer, Region};
use ringfold_proto::descriptor::{Descriptor, mix};
use ringfold_proto::id::{PeerId, Rank};
use ringfold_proto::tuning::Tuning;
use std::sync::Arc;

/// The spans of all ranks.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Ownership {
    chunking: u32,
    /// Chunks of partial results, at the start of scratch.
    window: u16,
    /// The number of ranks at the beginning.
    columns: u16,
    /// By rank.
    owners: Vec<Owner>,
}

/// The spans of a rank.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Owner {
    /// Its rank at the beginning, which says where its contributions are kept.
    column: u16,
    spans: Vec<Span>,
}

/// A chunk of a rank's spans.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnedChunk {
    /// The elements.
    pub chunk: Span,
    /// The span that it is a chunk of.
    span: Span,
    /// The first element of scratch for this span.
    base: u64,
}

impl Ownership {
    /// One part per rank.
    pub fn new(descriptor: &Descriptor, tuning: &Tuning, world: usize) -> Self {
        let parts = Parts::even(descriptor.count, world as u16);
        let owner = |rank: usize| Owner { column: rank as u16, spans: vec![parts.part(rank)] };
        Self {
            chunking: Chunking::of(descriptor, tuning).elements_max,
            window: tuning.window_slots.max(1),
            columns: world as u16,
            owners: (0..world).map(owner).collect(),
        }
    }

    /// The spans after ranks were lost. `survivors` are the others, in their new order; `None` if they are not distinct ranks.
    pub fn after(&self, survivors: &[Rank]) -> Option<Self> {
        let mut owners = Vec::with_capacity(survivors.len());
        for (index, rank) in survivors.iter().enumerate() {
            if survivors[..index].contains(rank) {
                return None;
            }
            owners.push(self.owners.get(rank.index())?.clone());
        }
        let is_lost = |rank: &usize| !survivors.contains(&Rank::from_index(*rank));
        for lost in (0..self.owners.len()).filter(is_lost) {
            for span in &self.owners[lost].spans {
                let shares = Parts::even(span.count, survivors.len() as u16);
                for (index, owner) in owners.iter_mut().enumerate() {
                    let share = shares.part(index);
                    owner.spans.push(Span { start: span.start + share.start, ..share });
                }
            }
        }
        Some(Self { owners, ..self.clone() })
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.owners.len()
    }

    /// The elements of all spans.
    pub fn count(&self) -> u64 {
        self.owners.iter().flat_map(|owner| &owner.spans).map(|span| span.count).sum()
    }

    /// The number of a rank's chunks.
    pub fn chunk_count(&self, rank: Rank) -> u64 {
        let chunking = Chunking { elements_max: self.chunking };
        self.owners[rank.index()].spans.iter().map(|span| chunking.chunks(*span)).sum()
    }

    /// The chunks of a rank's spans, in the order in which contributions to them are sent.
    pub fn chunks(&self, rank: Rank) -> impl Iterator<Item = OwnedChunk> + '_ {
        let chunking = Chunking { elements_max: self.chunking };
        let kept = u64::from(self.columns).saturating_sub(1);
        let mut next = u64::from(self.window) * u64::from(self.chunking);
        self.owners[rank.index()].spans.iter().flat_map(move |span| {
            let base = next;
            next += span.count * kept;
            chunking.cut(*span).map(move |chunk| OwnedChunk { chunk, span: *span, base })
        })
    }

    /// Where the owner of a chunk keeps the contribution of another rank.
    pub fn kept(&self, owner: Rank, owned: OwnedChunk, from: Rank) -> Region {
        let (own, column) = (self.owners[owner.index()].column, self.owners[from.index()].column);
        let row = u64::from(column - u16::from(column > own));
        let offset = owned.base + row * owned.span.count + (owned.chunk.start - owned.span.start);
        Region { offset, ..owned.chunk.at(OpBuffer::Scratch) }
    }

    /// Where a chunk is reduced: `number` counts the rank's chunks.
    pub fn partial(&self, owned: OwnedChunk, number: usize) -> Region {
        let turn = number as u64 % u64::from(self.window);
        Region { offset: turn * u64::from(self.chunking), ..owned.chunk.at(OpBuffer::Scratch) }
    }

    /// After how many chunks memory for partial results is used again.
    pub fn window(&self) -> usize {
        usize::from(self.window)
    }

    fn digest(&self, seed: u64) -> u64 {
        let head = [u64::from(self.chunking), u64::from(self.window), u64::from(self.columns)];
        let mut state = head.into_iter().fold(seed, mix);
        for owner in &self.owners {
            state = mix(mix(state, u64::from(owner.column)), owner.spans.len() as u64);
            state = owner.spans.iter().fold(state, |state, span| mix(mix(state, span.start), span.count));
        }
        state
    }
}

/// The state in which the survivors resume an all-reduce.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Resumption {
    /// The spans of the survivors.
    pub ownership: Ownership,
    /// For each owner, and then for each contributor: how many of the owner's first chunks it holds of the contributor.
    pub held: Vec<u32>,
}

impl Resumption {
    /// How many of an owner's first chunks it holds of a contributor.
    pub fn held(&self, owner: Rank, from: Rank) -> u64 {
        u64::from(self.held[owner.index() * self.ownership.world() + from.index()])
    }

    /// Why it is invalid for an operation.
    pub fn flaw(&self, descriptor: &Descriptor, world: usize) -> Option<&'static str> {
        let ranks = || (0..world).map(Rank::from_index);
        let is_too_much =
            |owner| ranks().any(|from| self.held(owner, from) > self.ownership.chunk_count(owner));
        if !descriptor.is_resumable() {
            Some("this operation cannot be resumed")
        } else if self.ownership.world() != world || self.held.len() != world * world {
            Some("must have one owner per rank")
        } else if self.ownership.count() != descriptor.count {
            Some("the sum of the spans must be the count")
        } else {
            ranks().any(is_too_much).then_some("more chunks are held than an owner has")
        }
    }

    pub(crate) fn digest(&self, seed: u64) -> u64 {
        self.held.iter().fold(self.ownership.digest(seed), |state, held| mix(state, u64::from(*held)))
    }
}

/// What a peer holds of an operation that was aborted, until it is resumed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holding {
    /// The members of its epoch, in rank order.
    members: Vec<PeerId>,
    me: Rank,
    ownership: Ownership,
    /// For each member: how many of our first chunks are here.
    chunks: Vec<u32>,
}

impl Holding {
    /// What is here after so many more chunks of each rank have arrived than there were at the start.
    pub(crate) fn new(
        members: &[PeerId],
        me: Rank,
        start: &Resumption,
        arrived: impl Fn(Rank) -> u32,
    ) -> Self {
        let chunks = |rank: Rank| (start.held(me, rank) as u32).saturating_add(arrived(rank));
        let chunks = (0..members.len()).map(Rank::from_index).map(chunks).collect();
        Self { members: members.to_vec(), me, ownership: start.ownership.clone(), chunks }
    }

    /// How many chunks of each member are here.
    pub fn report(&self) -> Vec<(PeerId, u32)> {
        self.members.iter().copied().zip(self.chunks.iter().copied()).collect()
    }

    /// The layout in which these members resume the operation. `held` is what all of them have reported: for each owner, and
    /// then for each contributor.
    pub fn resume(&self, members: &[PeerId], held: &[u32]) -> Result<Layout, &'static str> {
        let rank_before = |peer: &PeerId| self.members.iter().position(|member| member == peer);
        let survivors: Option<Vec<usize>> = members.iter().map(rank_before).collect();
        let survivors = survivors.ok_or("a member was not a member before")?;
        let ranks: Vec<_> = survivors.iter().copied().map(Rank::from_index).collect();
        let ownership = self.ownership.after(&ranks).ok_or("the members are not distinct")?;
        let mine = survivors.iter().position(|rank| *rank == self.me.index()).ok_or("not a member")?;
        let here = survivors.iter().map(|rank| self.chunks[*rank]);
        let told = held.chunks_exact(members.len()).nth(mine).ok_or("one owner is missing")?;
        if !here.eq(told.iter().copied()) {
            return Err("other chunks are here than all members were told");
        }
        Ok(Layout::Resumed(Arc::new(Resumption { ownership, held: held.to_vec() })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_proto::dtype::DType;
    use ringfold_proto::reduce_op::ReduceOp;

    #[test]
    fn survivors_keep_their_spans_and_share_the_others() {
        let descriptor = Descriptor::all_reduce(103, DType::F32, ReduceOp::Sum);
        let tuning = Tuning { chunk_bytes: 16, window_slots: 2, ..Tuning::default() };
        let before = Ownership::new(&descriptor, &tuning, 4);
        let after = before.after(&[Rank(3), Rank(0), Rank(2)]).unwrap();
        assert_eq!(after.count(), 103);
        for (new, old) in [Rank(3), Rank(0), Rank(2)].into_iter().zip(0..) {
            let old = (Rank(old), new);
            let kept: Vec<_> = before.chunks(old.1).collect();
            assert!(after.chunks(old.0).take(kept.len()).eq(kept.iter().copied()), "chunks move");
            for chunk in kept {
                // The contribution of rank 0, which has rank 1 now.
                if old.1 != Rank(0) {
                    assert_eq!(after.kept(old.0, chunk, Rank(1)), before.kept(old.1, chunk, Rank(0)));
                }
            }
        }
        let again = after.after(&[Rank(0), Rank(2)]).unwrap();
        assert_eq!(again.count(), 103);
        assert_eq!(before.after(&[Rank(1), Rank(1)]), None);
        assert_eq!(before.after(&[Rank(4)]), None);
    }

    #[test]
    fn contributions_are_kept_apart() {
        let descriptor = Descriptor::all_reduce(31, DType::F32, ReduceOp::Sum);
        let tuning = Tuning { chunk_bytes: 16, window_slots: 3, ..Tuning::default() };
        let ownership = Ownership::new(&descriptor, &tuning, 5).after(&[Rank(0), Rank(2), Rank(4)]).unwrap();
        for owner in (0..3).map(Rank) {
            let mut used = std::collections::BTreeSet::new();
            for (number, owned) in ownership.chunks(owner).enumerate() {
                for from in (0..3).map(Rank).filter(|from| *from != owner) {
                    let Region { offset, count, .. } = ownership.kept(owner, owned, from);
                    assert!((offset..offset + u64::from(count)).all(|element| used.insert(element)));
                }
                let Region { offset, count, .. } = ownership.partial(owned, number);
                assert!(offset + u64::from(count) <= 12);
            }
            assert!(used.first().is_none_or(|first| *first >= 12));
        }
    }
}
