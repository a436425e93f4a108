//! The methods of collectives; [`choice`](crate::choice) selects one.
//!
//! The rules for all methods:
//! - Own contributions are read as [`OpBuffer::Source`](crate::step::OpBuffer::Source) and nothing else is,
//!   so that a workspace can weight them when it reads them, even if source and target share memory.
//! - In each reduction, the operand that contains the lowest rank is on the left.
//! - Each element of a reduction is settled by one rank and forwarded verbatim, or (in the one-hop plan) reduced in the
//!   same order by all ranks.
//! - The methods of reproducible reductions reduce from left to right in rank order.
//! - In place, a region is overwritten only by data that depends on our own data having arrived elsewhere; otherwise the
//!   step is fenced.

pub mod alone;
pub mod barrier;
pub mod broadcast;
pub mod bruck;
pub mod direct;
pub mod doubling;
pub mod exchange;
pub mod halving;
mod in_order;
pub mod kept_apart;
pub mod one_shot;
pub mod reduce;
pub mod relay;
pub mod ring;
pub mod trees;

use crate::cost::{Amount, Cost};
use crate::layout::Layout;
use crate::parts::{Chunking, Parts, Span};
use crate::shape::GroupShape;
use crate::step::Step;
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::{Algorithm, Tuning};

/// A method of a collective, its requirements and properties.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// Its name in tunings and fingerprints.
    pub algorithm: Algorithm,
    /// Whether it uses links besides the ring's edges.
    pub needs_mesh: bool,
    /// Whether each chunk has one owner that settles it, whose bytes the others store verbatim.
    pub one_owner: bool,
    /// The elements that all ranks send together; if sizes are per pair, those that this rank sends.
    pub traffic: fn(&Task) -> u64,
    /// Its cost in worlds of two or more: the same on all ranks, unless sizes are per pair.
    pub cost: fn(&Task) -> Cost,
    /// Writes a rank's steps, in worlds of two or more.
    pub draft: fn(&Task) -> Draft,
}

/// The input of a method.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    pub descriptor: &'a Descriptor,
    pub layout: &'a Layout,
    /// The rank to plan for.
    pub me: Rank,
    pub shape: &'a GroupShape,
    pub tuning: &'a Tuning,
}

impl Task<'_> {
    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.shape.world()
    }

    /// The root of a broadcast or reduction.
    fn root(&self) -> Rank {
        match self.descriptor.collective {
            Collective::Broadcast { root } | Collective::Reduce { root } => root,
            _ => Rank(0),
        }
    }

    /// The whole tensor.
    pub fn whole(&self) -> Span {
        Span { start: 0, count: self.descriptor.count }
    }

    /// The parts, one per rank.
    pub fn parts(&self) -> Parts {
        self.layout.parts(self.descriptor, self.world())
    }

    /// The elements that bring the whole tensor to all ranks but one.
    pub fn once_to_all(&self) -> u64 {
        self.descriptor.count * (self.world() as u64 - 1)
    }

    /// The size of contiguous elements.
    pub fn amount(&self, elements: u64) -> Amount {
        let descriptor = self.descriptor;
        let on_wire = descriptor.quantization.map_or(descriptor.dtype, |q| q.dtype).bytes();
        let frames = self.chunking().chunks(Span { start: 0, count: elements });
        let bytes = |each: usize| elements.saturating_mul(each as u64);
        Amount { bytes: bytes(on_wire), memory_bytes: bytes(descriptor.dtype.bytes()), frames }
    }

    /// The chunks of a span.
    pub fn cut(&self, span: Span) -> impl Iterator<Item = Span> + use<> {
        self.chunking().cut(span)
    }

    /// The size of chunks.
    pub fn chunking(&self) -> Chunking {
        Chunking::of(self.descriptor, self.tuning)
    }

    /// All other ranks, from the next one on. Each rank begins with another one, which spreads the load.
    pub fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        let (me, world) = (self.me.index(), self.world());
        (1..world).map(move |d| Rank::from_index((me + d) % world))
    }
}

/// Interleaves several lists of chunks: the first of each, then the second of each.
fn in_turns<I: Iterator<Item = Span>>(mut lists: Vec<(Rank, I)>, mut each: impl FnMut(Rank, Span)) {
    while !lists.is_empty() {
        lists.retain_mut(|(rank, chunks)| match chunks.next() {
            Some(chunk) => {
                each(*rank, chunk);
                true
            }
            None => false,
        });
    }
}

/// A plan under construction.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Draft {
    /// The steps.
    pub steps: Vec<Step>,
    /// Elements of scratch memory.
    pub scratch: u64,
}

impl Draft {
    /// Adds a step and returns its number.
    pub fn push(&mut self, step: Step) -> u32 {
        self.steps.push(step);
        (self.steps.len() - 1) as u32
    }
}
