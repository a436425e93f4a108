//! Ways to carry out a collective. Each file below has some; the choice between them is elsewhere.
//!
//! What all of them keep to:
//! - Own contributions are read as [`Place::Source`](crate::step::Place::Source) and nothing else is,
//!   so that a workspace can weigh them as it reads them even where source and target share memory.
//! - Where two operands meet, the one with the lowest rank in it stands on the left.
//! - Each element of a reduction is settled by one rank and forwarded verbatim from there, or (in the
//!   one-hop plan) folded in the same order by all.
//! - In place, a region is overwritten only by what could not have arrived without our own data having
//!   arrived elsewhere first; where that does not hold, the step is fenced.

pub mod alone;
pub mod barrier;
pub mod broadcast;
pub mod direct;
pub mod exchange;
pub mod halving;
pub mod one_shot;
pub mod reduce;
pub mod ring;

use crate::cost::{Amount, Cost};
use crate::layout::Layout;
use crate::parts::{Chunking, Parts, Span};
use crate::shape::GroupShape;
use crate::step::Step;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::{Algorithm, Tuning};

/// One way to carry out one collective, and what it asks for and promises.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// What tuning and fingerprints call it.
    pub algorithm: Algorithm,
    /// Whether it uses links beside the ring's edges.
    pub needs_mesh: bool,
    /// Whether each chunk has one owner that settles it, whose bytes the others take as they are.
    pub one_owner: bool,
    /// Whether the operand order depends on the member order alone, not on the ring's.
    pub member_order: bool,
    /// Elements that all ranks together send. Where the sizes of pairs are the ranks' own affair, those that
    /// this one sends.
    pub traffic: fn(&Task) -> u64,
    /// What it costs, in worlds of two and more; the same on all ranks, unless the sizes of pairs are the ranks'
    /// own affair.
    pub cost: fn(&Task) -> Cost,
    /// Writes a rank's steps, in worlds of two and more.
    pub draft: fn(&Task) -> Draft,
}

/// What a rank's steps are made from.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    /// What is asked for.
    pub descriptor: &'a Descriptor,
    /// How the whole is cut.
    pub layout: &'a Layout,
    /// Whose steps.
    pub me: Rank,
    /// The group.
    pub shape: &'a GroupShape,
    /// What the group agreed on.
    pub tuning: &'a Tuning,
}

impl Task<'_> {
    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.shape.world()
    }

    /// The whole.
    pub fn whole(&self) -> Span {
        Span { start: 0, count: self.descriptor.count }
    }

    /// The whole, cut into one part per rank.
    pub fn parts(&self) -> Parts {
        self.layout.parts(self.descriptor, self.world())
    }

    /// As many elements as bring the whole to everyone but one, once: what most methods send, or twice.
    pub fn once_to_all(&self) -> u64 {
        self.descriptor.count * (self.world() as u64 - 1)
    }

    /// So many elements that lie behind each other.
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

    /// How long chunks are.
    pub fn chunking(&self) -> Chunking {
        Chunking::of(self.descriptor, self.tuning)
    }

    /// All ranks but this one, the next one first: if each starts with another, nobody is flooded.
    pub fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        let (me, world) = (self.me.index(), self.world());
        (1..world).map(move |d| Rank::from_index((me + d) % world))
    }
}

/// Goes through several lists of chunks in turns: the first of each, then the second of each.
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

/// Steps as they are being written.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Draft {
    /// The steps.
    pub steps: Vec<Step>,
    /// Elements of scratch that they use.
    pub scratch: u64,
}

impl Draft {
    /// Adds a step; later ones can wait for the number that it gets.
    pub fn push(&mut self, step: Step) -> u32 {
        self.steps.push(step);
        (self.steps.len() - 1) as u32
    }
}
