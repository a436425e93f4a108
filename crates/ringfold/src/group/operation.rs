//! What a group is asked to do, and whether that makes sense.

use crate::Error;
use core::time::Duration;
use ringfold_fabric::memory::{Memory, View};
use ringfold_plan::layout::Layout;
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::dtype::DType;
use ringfold_proto::id::Rank;
use ringfold_proto::reduce_op::ReduceOp;
use std::sync::Arc;

/// A collective, or one end of a transfer. Ranks and counts of elements are as all ranks see them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GroupOp {
    /// Nobody goes on before everyone has come.
    Barrier,
    /// Everyone ends with the combination of everyone's data.
    AllReduce(ReduceOp),
    /// The root ends with the combination of everyone's data.
    Reduce {
        /// Who gets the result.
        root: usize,
        /// How elements are combined.
        op: ReduceOp,
    },
    /// Everyone ends with the root's data.
    Broadcast {
        /// Whose data it is.
        root: usize,
    },
    /// Everyone ends with everyone's data, in the order of ranks.
    AllGather,
    /// The same, where each rank brings as many elements as its count says.
    AllGatherV(Vec<usize>),
    /// Everyone ends with its part of the combination of everyone's data.
    ReduceScatter(ReduceOp),
    /// The same, where each rank's part has as many elements as its count says.
    ReduceScatterV(Vec<usize>, ReduceOp),
    /// The root ends with everyone's data, in the order of ranks.
    Gather {
        /// Who gets it.
        root: usize,
    },
    /// The same, where ranks bring different numbers of elements.
    GatherV {
        /// Who gets it.
        root: usize,
        /// What each rank brings; only the root's is looked at.
        counts: Vec<usize>,
    },
    /// Everyone ends with its part of the root's data.
    Scatter {
        /// Whose data it is.
        root: usize,
    },
    /// The same, where parts have different sizes.
    ScatterV {
        /// Whose data it is.
        root: usize,
        /// What each rank gets; only the root's is looked at.
        counts: Vec<usize>,
    },
    /// Everyone ends with its part of everyone's data.
    AllToAll,
    /// The same, where each pair has its own number of elements.
    AllToAllV {
        /// What goes to each rank.
        send: Vec<usize>,
        /// What comes from each rank.
        receive: Vec<usize>,
    },
    /// Data goes to one other rank.
    Send {
        /// Who gets it.
        to: usize,
        /// Which receive it is meant for: one with the same tag. What has one tag arrives in the order of sending.
        tag: TransferTag,
    },
    /// Data comes from one other rank.
    Recv {
        /// Whose it is.
        from: usize,
        /// Which sends it takes: those with the same tag.
        tag: TransferTag,
    },
}

impl GroupOp {
    /// Whether one buffer may hold the input and the output.
    pub fn may_be_in_place(&self) -> bool {
        use GroupOp::{AllReduce, Broadcast, Recv, Reduce, Send};
        matches!(self, AllReduce(_) | Reduce { .. } | Broadcast { .. } | Send { .. } | Recv { .. })
    }
}

/// What tells transfers between two ranks apart. Those of different tags wait for each other nowhere.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct TransferTag(pub(super) u32);

impl TransferTag {
    /// The largest tag.
    pub const MAX: u32 = i32::MAX as u32;

    /// A tag, if it is not above [`TransferTag::MAX`].
    pub fn new(tag: u32) -> Option<Self> {
        (tag <= Self::MAX).then_some(Self(tag))
    }
}

/// The memory of an operation. Inputs are never written.
#[derive(Debug)]
pub enum GroupBuffers {
    /// The result replaces the input.
    InPlace(Memory),
    /// The input stays as it is. Each side is one buffer, or one buffer per rank, or none.
    Apart {
        /// What this rank brings.
        input: Vec<View>,
        /// What it gets.
        output: Vec<Memory>,
    },
}

/// The memory of an operation that is waited for, lent for the length of the call.
#[derive(Debug)]
pub enum GroupSlices<'a> {
    /// The result replaces the input.
    InPlace(&'a mut [u8]),
    /// The input stays as it is.
    Apart {
        /// What this rank brings.
        input: &'a [u8],
        /// What it gets.
        output: &'a mut [u8],
    },
    /// The same; each side is one buffer, or one buffer per rank, or none.
    Pieces {
        /// What this rank brings.
        input: &'a [&'a [u8]],
        /// What it gets.
        output: &'a mut [&'a mut [u8]],
    },
}

/// An operation that goes on while the caller computes.
#[derive(Debug)]
pub struct Operation {
    /// What.
    pub op: GroupOp,
    /// The type of the elements.
    pub dtype: DType,
    /// Their memory.
    pub buffers: GroupBuffers,
    /// Give up, for the whole group, after so long; the group's own limit if nothing is said.
    pub timeout: Option<Duration>,
}

/// What this rank is in a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) me: usize,
    pub(super) world: usize,
}

/// The bytes that an operation is given.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lengths {
    InPlace(usize),
    Apart { input: usize, output: usize },
}

/// What an operation comes to on this rank.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) descriptor: Descriptor,
    pub(super) layout: Layout,
    /// Whether this rank's input is taken from, and its output given to, the same memory.
    pub(super) side: Side,
    /// The tag of a transfer.
    pub(super) tag: TransferTag,
}

/// Which side of a buffer that is given in place counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Both,
    /// It is only read.
    Input,
    /// It is only written.
    Output,
}

/// Elements that a rank must bring and must have room for.
struct Needs {
    input: u64,
    output: u64,
}

impl Standing {
    /// Checks an operation, and says it in the words of the protocol.
    pub(super) fn request(&self, op: &GroupOp, dtype: DType, lengths: Lengths) -> Result<Request, Error> {
        let (collective, reduce) = self.collective(op)?;
        if let Some(op) = reduce
            && (!op.supports(dtype) || op == ReduceOp::PremulSum)
        {
            return Err(bad(format!("{op} can't be used for {dtype}")));
        }
        let given = |bytes: usize| {
            if bytes.is_multiple_of(dtype.bytes()) {
                Ok((bytes / dtype.bytes()) as u64)
            } else {
                Err(bad(format!("{bytes} bytes are no whole number of {dtype}")))
            }
        };
        let (input, output, in_place) = match lengths {
            Lengths::InPlace(bytes) => (given(bytes)?, given(bytes)?, true),
            Lengths::Apart { input, output } => (given(input)?, given(output)?, false),
        };
        let (count, layout, needs) = self.measure(op, input, output)?;
        let side = self.side(op);
        if in_place && !op.may_be_in_place() {
            return Err(bad(format!("{} needs an output of its own", op.name())));
        }
        for (what, has, needed, counts) in [
            ("input", input, needs.input, side != Side::Output),
            ("output", output, needs.output, side != Side::Input),
        ] {
            if counts && has != needed {
                return Err(bad(format!(
                    "the {what} of {} has {has} elements, but {needed} are needed",
                    op.name()
                )));
            }
        }
        let base = Descriptor::all_reduce(count, dtype, reduce.unwrap_or(ReduceOp::Sum));
        let tag = match op {
            GroupOp::Send { tag, .. } | GroupOp::Recv { tag, .. } => *tag,
            _ => TransferTag::default(),
        };
        Ok(Request { descriptor: base.with_collective(collective), layout, side, tag })
    }

    /// Whether memory that comes in several buffers has one per rank, as long as that rank's part, where there are
    /// parts. `input` and `output` are the bytes of the buffers.
    pub(super) fn check_pieces(
        &self,
        op: &GroupOp,
        request: &Request,
        input: &[usize],
        output: &[usize],
    ) -> Result<(), Error> {
        let Request { descriptor, layout, side, .. } = request;
        let parts = layout.parts(descriptor, self.world);
        let even = |rank: usize| parts.of(Rank::from_index(rank)).count;
        let sent = |rank: usize| layout.sends(Rank::from_index(rank)).unwrap_or_else(|| even(rank));
        let received = |rank: usize| layout.receives(Rank::from_index(rank)).unwrap_or_else(|| even(rank));
        let is_cut = match descriptor.collective {
            Collective::AllToAll => (true, true),
            Collective::AllGather | Collective::Gather { .. } => (false, true),
            Collective::ReduceScatter | Collective::Scatter { .. } => (true, false),
            _ => (false, false),
        };
        let fits = |buffers: &[usize], size: &dyn Fn(usize) -> u64| {
            let bytes = |rank: usize| size(rank).checked_mul(descriptor.dtype.bytes() as u64);
            buffers.len() == self.world
                && buffers.iter().enumerate().all(|(rank, has)| bytes(rank) == Some(*has as u64))
        };
        let is_input_fit = input.len() <= 1 || *side == Side::Output || is_cut.0 && fits(input, &sent);
        let is_output_fit = output.len() <= 1 || *side == Side::Input || is_cut.1 && fits(output, &received);
        if is_input_fit && is_output_fit {
            return Ok(());
        }
        let what = if is_input_fit { "output" } else { "input" };
        Err(bad(format!("the {what} of {} is neither one buffer nor one for each rank's part", op.name())))
    }

    fn collective(&self, op: &GroupOp) -> Result<(Collective, Option<ReduceOp>), Error> {
        let rank = |rank: usize, what: &str| {
            if rank < self.world {
                Ok(Rank::from_index(rank))
            } else {
                Err(bad(format!("{what} {rank} is out of range: ranks are 0 to {}", self.world - 1)))
            }
        };
        let other = |other: usize, what: &str| {
            if other == self.me {
                return Err(bad(format!("rank {other} can't {what} itself")));
            }
            rank(other, "rank")
        };
        let me = Rank::from_index(self.me);
        Ok(match op {
            GroupOp::Barrier => (Collective::Barrier, None),
            GroupOp::AllReduce(op) => (Collective::AllReduce, Some(*op)),
            GroupOp::Reduce { root, op } => (Collective::Reduce { root: rank(*root, "root")? }, Some(*op)),
            GroupOp::Broadcast { root } => (Collective::Broadcast { root: rank(*root, "root")? }, None),
            GroupOp::AllGather | GroupOp::AllGatherV(_) => (Collective::AllGather, None),
            GroupOp::ReduceScatter(op) | GroupOp::ReduceScatterV(_, op) => {
                (Collective::ReduceScatter, Some(*op))
            }
            GroupOp::Gather { root } | GroupOp::GatherV { root, .. } => {
                (Collective::Gather { root: rank(*root, "root")? }, None)
            }
            GroupOp::Scatter { root } | GroupOp::ScatterV { root, .. } => {
                (Collective::Scatter { root: rank(*root, "root")? }, None)
            }
            GroupOp::AllToAll | GroupOp::AllToAllV { .. } => (Collective::AllToAll, None),
            GroupOp::Send { to, .. } => (Collective::Transfer { from: me, to: other(*to, "send to")? }, None),
            GroupOp::Recv { from, .. } => {
                (Collective::Transfer { from: other(*from, "receive from")?, to: me }, None)
            }
        })
    }

    /// Elements of the whole, how they are divided, and what this rank needs for its part.
    fn measure(&self, op: &GroupOp, input: u64, output: u64) -> Result<(u64, Layout, Needs), Error> {
        let (world, none) = (self.world as u64, Needs { input: 0, output: 0 });
        let even = |count, needs| Ok((count, Layout::Even, needs));
        match op {
            GroupOp::Barrier => even(0, none),
            GroupOp::AllReduce(_) => even(input, Needs { input, output: input }),
            GroupOp::Reduce { root, .. } => {
                even(input, Needs { input, output: if *root == self.me { input } else { output } })
            }
            GroupOp::Broadcast { root } => {
                let count = if *root == self.me { input } else { output };
                even(count, Needs { input: count, output: count })
            }
            GroupOp::AllGather => even(input * world, Needs { input, output: input * world }),
            GroupOp::ReduceScatter(_) => even(output * world, Needs { input: output * world, output }),
            GroupOp::AllGatherV(counts) => {
                let (parts, total) = self.parts(counts)?;
                let needs = Needs { input: parts[self.me], output: total };
                Ok((total, Layout::Parts(parts), needs))
            }
            GroupOp::ReduceScatterV(counts, _) => {
                let (parts, total) = self.parts(counts)?;
                let needs = Needs { input: total, output: parts[self.me] };
                Ok((total, Layout::Parts(parts), needs))
            }
            GroupOp::Gather { root } => even(
                input * world,
                Needs { input, output: if *root == self.me { input * world } else { output } },
            ),
            GroupOp::Scatter { root } => even(
                output * world,
                Needs { input: if *root == self.me { output * world } else { input }, output },
            ),
            GroupOp::GatherV { root, counts } if *root == self.me => {
                let (receive, total) = self.parts(counts)?;
                let layout = Layout::Pairs { send: self.only(*root, receive[*root]), receive };
                Ok((0, layout, Needs { input: counts[self.me] as u64, output: total }))
            }
            GroupOp::GatherV { root, .. } => {
                let layout = Layout::Pairs { send: self.only(*root, input), receive: self.only(0, 0) };
                Ok((0, layout, Needs { input, output }))
            }
            GroupOp::ScatterV { root, counts } if *root == self.me => {
                let (send, total) = self.parts(counts)?;
                let layout = Layout::Pairs { receive: self.only(*root, send[*root]), send };
                Ok((0, layout, Needs { input: total, output: counts[self.me] as u64 }))
            }
            GroupOp::ScatterV { root, .. } => {
                let layout = Layout::Pairs { send: self.only(0, 0), receive: self.only(*root, output) };
                Ok((0, layout, Needs { input, output }))
            }
            GroupOp::AllToAll => {
                if !input.is_multiple_of(world) {
                    return Err(bad(format!("{input} elements can't be divided among {world} ranks")));
                }
                even(input, Needs { input, output: input })
            }
            GroupOp::AllToAllV { send, receive } => {
                let ((send, sent), (receive, received)) = (self.parts(send)?, self.parts(receive)?);
                if send[self.me] != receive[self.me] {
                    return Err(bad(format!(
                        "rank {} keeps {} elements for itself, but expects {}",
                        self.me, send[self.me], receive[self.me]
                    )));
                }
                Ok((0, Layout::Pairs { send, receive }, Needs { input: sent, output: received }))
            }
            GroupOp::Send { .. } => even(input, Needs { input, output }),
            GroupOp::Recv { .. } => even(output, Needs { input, output }),
        }
    }

    fn side(&self, op: &GroupOp) -> Side {
        match op {
            GroupOp::Barrier => Side::Both,
            GroupOp::Reduce { root, .. } | GroupOp::Gather { root } | GroupOp::GatherV { root, .. } => {
                if *root == self.me {
                    Side::Both
                } else {
                    Side::Input
                }
            }
            GroupOp::Broadcast { root } | GroupOp::Scatter { root } | GroupOp::ScatterV { root, .. } => {
                if *root == self.me {
                    Side::Both
                } else {
                    Side::Output
                }
            }
            GroupOp::Send { .. } => Side::Input,
            GroupOp::Recv { .. } => Side::Output,
            _ => Side::Both,
        }
    }

    fn parts(&self, counts: &[usize]) -> Result<(Arc<[u64]>, u64), Error> {
        if counts.len() != self.world {
            return Err(bad(format!("{} counts were given for {} ranks", counts.len(), self.world)));
        }
        let parts: Arc<[u64]> = counts.iter().map(|count| *count as u64).collect();
        let total = parts.iter().try_fold(0_u64, |sum, count| sum.checked_add(*count));
        total.map(|total| (parts, total)).ok_or_else(|| bad("the counts add up to too much".into()))
    }

    /// So much for one rank, and nothing for the others.
    fn only(&self, rank: usize, count: u64) -> Arc<[u64]> {
        (0..self.world).map(|other| if other == rank { count } else { 0 }).collect()
    }
}

fn bad(why: String) -> Error {
    Error::BadArgument(why)
}
