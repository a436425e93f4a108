//! The operations of a group, and the checks of their arguments.

use crate::Error;
use crate::error::invalid;
use core::time::Duration;
use ringfold_fabric::memory::{Memory, View};
use ringfold_plan::layout::Layout;
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::dtype::DType;
use ringfold_proto::group_call::{GroupCall, GroupCallKind};
use ringfold_proto::id::Rank;
use ringfold_proto::integrity::Integrity;
use ringfold_proto::reduce_op::ReduceOp;
use std::sync::Arc;

/// A collective, or one end of a transfer. Counts are in elements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GroupOp {
    /// Waits until all ranks have called it.
    Barrier,
    /// Reduces the data of all ranks; all ranks get the result.
    AllReduce(ReduceOp),
    /// Reduces the data of all ranks; the root gets the result.
    Reduce {
        /// The rank that gets the result.
        root: usize,
        /// The reduction.
        op: ReduceOp,
    },
    /// Copies the root's data to all ranks.
    Broadcast {
        /// The rank that has the data.
        root: usize,
    },
    /// Concatenates the data of all ranks, in rank order, on all ranks.
    AllGather,
    /// The same, with a count of elements per rank.
    AllGatherV(Vec<usize>),
    /// Reduces the data of all ranks; each rank gets its part of the result.
    ReduceScatter(ReduceOp),
    /// The same, with a count of elements per rank.
    ReduceScatterV(Vec<usize>, ReduceOp),
    /// Concatenates the data of all ranks, in rank order, on the root.
    Gather {
        /// The rank that gets the data.
        root: usize,
    },
    /// The same, with a count of elements per rank.
    GatherV {
        /// The rank that gets the data.
        root: usize,
        /// The count of each rank; only used on the root.
        counts: Vec<usize>,
    },
    /// Distributes the parts of the root's data.
    Scatter {
        /// The rank that has the data.
        root: usize,
    },
    /// The same, with a count of elements per rank.
    ScatterV {
        /// The rank that has the data.
        root: usize,
        /// The count of each rank; only used on the root.
        counts: Vec<usize>,
    },
    /// Sends one part of the input to each rank, and receives one part from each.
    AllToAll,
    /// The same, with a count of elements per pair.
    AllToAllV {
        /// The count sent to each rank.
        send: Vec<usize>,
        /// The count received from each rank.
        receive: Vec<usize>,
    },
    /// Sends data to another rank.
    Send {
        /// The destination.
        to: usize,
        /// Matches receives with the same tag. Sends with the same tag arrive in order.
        tag: TransferTag,
    },
    /// Receives data from another rank.
    Recv {
        /// The source.
        from: usize,
        /// Matches sends with the same tag.
        tag: TransferTag,
    },
}

impl GroupOp {
    /// Whether the operation supports one buffer for input and output.
    pub fn may_be_in_place(&self) -> bool {
        use GroupOp::{AllReduce, Broadcast, Recv, Reduce, Send};
        matches!(self, AllReduce(_) | Reduce { .. } | Broadcast { .. } | Send { .. } | Recv { .. })
    }
}

/// Identifies transfers between two ranks. Transfers with different tags are independent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct TransferTag(pub(super) u32);

impl TransferTag {
    /// The largest tag.
    pub const MAX: u32 = i32::MAX as u32;

    /// A tag; `None` if it is above [`TransferTag::MAX`].
    pub fn new(tag: u32) -> Option<Self> {
        (tag <= Self::MAX).then_some(Self(tag))
    }
}

/// The memory of an asynchronous operation. Inputs are never written.
#[derive(Debug)]
pub enum GroupBuffers {
    /// The result replaces the input.
    InPlace(Memory),
    /// Separate buffers. Input and output are each one buffer, one per rank, or none.
    OutOfPlace {
        /// The input of this rank.
        input: Vec<View>,
        /// The output of this rank.
        output: Vec<Memory>,
    },
}

/// The memory of a blocking operation, borrowed for the duration of the call.
#[derive(Debug)]
pub enum GroupSlices<'a> {
    /// The result replaces the input.
    InPlace(&'a mut [u8]),
    /// Separate buffers.
    OutOfPlace {
        /// The input of this rank.
        input: &'a [u8],
        /// The output of this rank.
        output: &'a mut [u8],
    },
    /// Separate buffers. Input and output are each one buffer, one per rank, or none.
    Pieces {
        /// The input of this rank.
        input: &'a [&'a [u8]],
        /// The output of this rank.
        output: &'a mut [&'a mut [u8]],
    },
}

/// An asynchronous operation.
#[derive(Debug)]
pub struct Operation {
    /// The operation.
    pub op: GroupOp,
    /// The type of the elements.
    pub dtype: DType,
    /// The memory of the elements.
    pub buffers: GroupBuffers,
    /// The timeout, after which the group fails. `None`: the timeout of the group.
    pub timeout: Option<Duration>,
}

/// The rank of this process and the number of ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankContext {
    pub(crate) me: usize,
    pub(crate) world: usize,
    /// Whether reductions are reproducible.
    pub(crate) reproducible: bool,
    /// What operations check.
    pub(crate) integrity: Integrity,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum BufferLengths {
    InPlace(usize),
    OutOfPlace { input: usize, output: usize },
}

/// A checked operation, in terms of the protocol.
#[derive(Clone, Debug)]
pub(crate) struct OperationRequest {
    pub(crate) descriptor: Descriptor,
    pub(crate) layout: Layout,
    pub(crate) buffer_use: BufferUse,
    /// The tag of a transfer.
    pub(crate) tag: TransferTag,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BufferUse {
    ReadWrite,
    Read,
    Write,
}

/// The required lengths of input and output, in elements.
struct RequiredCounts {
    input: u64,
    output: u64,
}

impl OperationRequest {
    /// The call of rank `me`, as texts name it.
    pub(crate) fn named(&self, me: Rank, number: u64) -> GroupCall {
        let Descriptor { collective, count, dtype, .. } = self.descriptor;
        let kind = match collective {
            Collective::Transfer { from, to } if from == me => GroupCallKind::Send { to },
            Collective::Transfer { from, .. } => GroupCallKind::Recv { from },
            collective => GroupCallKind::Collective(collective),
        };
        GroupCall { kind, number, tag: self.tag.0, count, dtype }
    }
}

impl RankContext {
    /// A rank of a group whose operations are neither reproducible nor checked.
    pub(crate) fn plain(me: usize, world: usize) -> Self {
        Self { me, world, reproducible: false, integrity: Integrity::NONE }
    }

    pub(crate) fn request(
        &self,
        op: &GroupOp,
        dtype: DType,
        lengths: BufferLengths,
    ) -> Result<OperationRequest, Error> {
        let (collective, reduce) = self.collective(op)?;
        if let Some(op) = reduce
            && (!op.supports(dtype) || op == ReduceOp::PremulSum)
        {
            return Err(invalid!("unsupported reduction {op} for {dtype}"));
        }
        let given = |bytes: usize| {
            if bytes.is_multiple_of(dtype.bytes()) {
                Ok((bytes / dtype.bytes()) as u64)
            } else {
                Err(invalid!("invalid length {bytes} bytes: not a multiple of the size of {dtype}"))
            }
        };
        let (input, output, in_place) = match lengths {
            BufferLengths::InPlace(bytes) => (given(bytes)?, given(bytes)?, true),
            BufferLengths::OutOfPlace { input, output } => (given(input)?, given(output)?, false),
        };
        let (count, layout, needs) = self.measure(op, input, output)?;
        let buffer_use = self.buffer_use(op);
        if in_place && !op.may_be_in_place() {
            return Err(invalid!("unsupported in-place buffer: {} needs a separate output", op.name()));
        }
        for (what, has, needed, counts) in [
            ("input", input, needs.input, buffer_use != BufferUse::Write),
            ("output", output, needs.output, buffer_use != BufferUse::Read),
        ] {
            if counts && has != needed {
                return Err(invalid!("invalid {what} of {}: {has} elements, expected {needed}", op.name()));
            }
        }
        let base = Descriptor::all_reduce(count, dtype, reduce.unwrap_or(ReduceOp::Sum));
        let tag = match op {
            GroupOp::Send { tag, .. } | GroupOp::Recv { tag, .. } => *tag,
            _ => TransferTag::default(),
        };
        let reproducible = self.reproducible && reduce.is_some();
        // Only all-reduces have the same result on all ranks, one in which all ranks take part.
        let results = self.integrity.results && collective == Collective::AllReduce;
        let integrity = Integrity { results, ..self.integrity };
        let descriptor = Descriptor { reproducible, integrity, ..base.with_collective(collective) };
        Ok(OperationRequest { descriptor, layout, buffer_use, tag })
    }

    /// Checks a list of buffers: it must have one per rank, of the length of that rank's part.
    ///
    /// `input` and `output` are the lengths of the buffers in bytes.
    pub(crate) fn check_pieces(
        &self,
        op: &GroupOp,
        request: &OperationRequest,
        input: &[usize],
        output: &[usize],
    ) -> Result<(), Error> {
        let OperationRequest { descriptor, layout, buffer_use, .. } = request;
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
        let is_input_fit =
            input.len() <= 1 || *buffer_use == BufferUse::Write || is_cut.0 && fits(input, &sent);
        let is_output_fit =
            output.len() <= 1 || *buffer_use == BufferUse::Read || is_cut.1 && fits(output, &received);
        if is_input_fit && is_output_fit {
            return Ok(());
        }
        let what = if is_input_fit { "output" } else { "input" };
        Err(invalid!(
            "invalid {what} of {}: expected one buffer, or one per rank of its part's length",
            op.name()
        ))
    }

    fn collective(&self, op: &GroupOp) -> Result<(Collective, Option<ReduceOp>), Error> {
        let rank = |rank: usize, what: &str| {
            if rank < self.world {
                Ok(Rank::from_index(rank))
            } else {
                Err(invalid!("{what} {rank} is out of range: ranks are 0 to {}", self.world - 1))
            }
        };
        let other = |other: usize, what: &str| {
            if other == self.me {
                return Err(invalid!("invalid rank {other}: a rank cannot {what} itself"));
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

    /// The total number of elements, their layout, and the required lengths of this rank's buffers.
    fn measure(&self, op: &GroupOp, input: u64, output: u64) -> Result<(u64, Layout, RequiredCounts), Error> {
        let (world, none) = (self.world as u64, RequiredCounts { input: 0, output: 0 });
        let even = |count, needs| Ok((count, Layout::Even, needs));
        match op {
            GroupOp::Barrier => even(0, none),
            GroupOp::AllReduce(_) => even(input, RequiredCounts { input, output: input }),
            GroupOp::Reduce { root, .. } => {
                even(input, RequiredCounts { input, output: if *root == self.me { input } else { output } })
            }
            GroupOp::Broadcast { root } => {
                let count = if *root == self.me { input } else { output };
                even(count, RequiredCounts { input: count, output: count })
            }
            GroupOp::AllGather => even(input * world, RequiredCounts { input, output: input * world }),
            GroupOp::ReduceScatter(_) => {
                even(output * world, RequiredCounts { input: output * world, output })
            }
            GroupOp::AllGatherV(counts) => {
                let (parts, total) = self.parts(counts)?;
                let needs = RequiredCounts { input: parts[self.me], output: total };
                Ok((total, Layout::Parts(parts), needs))
            }
            GroupOp::ReduceScatterV(counts, _) => {
                let (parts, total) = self.parts(counts)?;
                let needs = RequiredCounts { input: total, output: parts[self.me] };
                Ok((total, Layout::Parts(parts), needs))
            }
            GroupOp::Gather { root } => even(
                input * world,
                RequiredCounts { input, output: if *root == self.me { input * world } else { output } },
            ),
            GroupOp::Scatter { root } => even(
                output * world,
                RequiredCounts { input: if *root == self.me { output * world } else { input }, output },
            ),
            GroupOp::GatherV { root, counts } if *root == self.me => {
                let (receive, total) = self.parts(counts)?;
                let layout = Layout::Pairs { send: self.only(*root, receive[*root]), receive };
                Ok((0, layout, RequiredCounts { input: counts[self.me] as u64, output: total }))
            }
            GroupOp::GatherV { root, .. } => {
                let layout = Layout::Pairs { send: self.only(*root, input), receive: self.only(0, 0) };
                Ok((0, layout, RequiredCounts { input, output }))
            }
            GroupOp::ScatterV { root, counts } if *root == self.me => {
                let (send, total) = self.parts(counts)?;
                let layout = Layout::Pairs { receive: self.only(*root, send[*root]), send };
                Ok((0, layout, RequiredCounts { input: total, output: counts[self.me] as u64 }))
            }
            GroupOp::ScatterV { root, .. } => {
                let layout = Layout::Pairs { send: self.only(0, 0), receive: self.only(*root, output) };
                Ok((0, layout, RequiredCounts { input, output }))
            }
            GroupOp::AllToAll => {
                if !input.is_multiple_of(world) {
                    return Err(invalid!(
                        "invalid input of all_to_all: {input} elements are not a multiple of {world} ranks"
                    ));
                }
                even(input, RequiredCounts { input, output: input })
            }
            GroupOp::AllToAllV { send, receive } => {
                let ((send, sent), (receive, received)) = (self.parts(send)?, self.parts(receive)?);
                if send[self.me] != receive[self.me] {
                    return Err(invalid!(
                        "invalid counts: rank {} sends {} elements to itself, but receives {}",
                        self.me,
                        send[self.me],
                        receive[self.me]
                    ));
                }
                Ok((0, Layout::Pairs { send, receive }, RequiredCounts { input: sent, output: received }))
            }
            GroupOp::Send { .. } => even(input, RequiredCounts { input, output }),
            GroupOp::Recv { .. } => even(output, RequiredCounts { input, output }),
        }
    }

    fn buffer_use(&self, op: &GroupOp) -> BufferUse {
        match op {
            GroupOp::Send { .. } => BufferUse::Read,
            GroupOp::Recv { .. } => BufferUse::Write,
            GroupOp::Reduce { root, .. } | GroupOp::Gather { root } | GroupOp::GatherV { root, .. }
                if *root != self.me =>
            {
                BufferUse::Read
            }
            GroupOp::Broadcast { root } | GroupOp::Scatter { root } | GroupOp::ScatterV { root, .. }
                if *root != self.me =>
            {
                BufferUse::Write
            }
            _ => BufferUse::ReadWrite,
        }
    }

    fn parts(&self, counts: &[usize]) -> Result<(Arc<[u64]>, u64), Error> {
        if counts.len() != self.world {
            return Err(invalid!("invalid counts: {} for {} ranks", counts.len(), self.world));
        }
        let parts: Arc<[u64]> = counts.iter().map(|count| *count as u64).collect();
        let total = parts.iter().try_fold(0_u64, |sum, count| sum.checked_add(*count));
        total.map(|total| (parts, total)).ok_or_else(|| invalid!("invalid counts: their sum overflows"))
    }

    /// A count for one rank, and 0 for the others.
    fn only(&self, rank: usize, count: u64) -> Arc<[u64]> {
        (0..self.world).map(|other| if other == rank { count } else { 0 }).collect()
    }
}
