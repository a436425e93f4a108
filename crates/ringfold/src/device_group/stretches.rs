//! Which stretch of memory each rank gives to each rank, and where it stores what it takes.

use crate::Error;
use crate::error::invalid;
use crate::group::OperationRequest;
use ringfold_proto::descriptor::Collective;
use ringfold_proto::id::Rank;

/// Bytes of device memory. Nothing if there are none.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Stretch {
    pub(super) address: u64,
    pub(super) bytes: u64,
}

impl Stretch {
    fn overlaps(&self, other: &Self) -> bool {
        self.bytes > 0
            && other.bytes > 0
            && self.address < other.address + other.bytes
            && other.address < self.address + self.bytes
    }
}

/// A collective of one rank as what it gives and takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Stretches {
    /// What each rank gets, this one included.
    pub(super) gives: Vec<Stretch>,
    /// Where to store what each rank gives. If it is folded, all are the same stretch.
    pub(super) takes: Vec<Stretch>,
    /// Whether what is taken is folded, in rank order.
    pub(super) is_fold: bool,
    /// Whether all ranks get the same stretch of this rank.
    pub(super) is_alike: bool,
    /// The bytes of the largest stretch of all ranks, if all ranks know it.
    pub(super) agreed: Option<u64>,
}

impl Stretches {
    /// The stretches of a checked operation, which is neither an all-reduce nor a transfer.
    ///
    /// Input and output are one buffer each, one per rank, or none.
    pub(super) fn of(
        request: &OperationRequest,
        (me, world): (usize, usize),
        input: &[Stretch],
        output: &[Stretch],
    ) -> Result<Self, Error> {
        let OperationRequest { descriptor, layout, .. } = request;
        let element = descriptor.dtype.bytes() as u64;
        let parts = layout.parts(descriptor, world);
        let even = |rank: usize| parts.of(Rank::from_index(rank)).count;
        let sent = |rank| layout.sends(Rank::from_index(rank)).unwrap_or_else(|| even(rank)) * element;
        let received = |rank| layout.receives(Rank::from_index(rank)).unwrap_or_else(|| even(rank)) * element;
        let cut = |buffers: &[Stretch], size: &dyn Fn(usize) -> u64| cut(buffers, world, size);
        let whole = |buffers: &[Stretch]| buffers.first().copied().unwrap_or_default();
        let none = || vec![Stretch::default(); world];
        let only = |rank: usize, stretch: Stretch| {
            let mut all = none();
            all[rank] = stretch;
            all
        };
        let all = |stretch: Stretch| vec![stretch; world];
        let (gives, takes) = match descriptor.collective {
            Collective::Barrier => (none(), none()),
            Collective::AllGather => (all(whole(input)), cut(output, &received)),
            Collective::ReduceScatter => (cut(input, &sent), all(whole(output))),
            Collective::AllToAll => (cut(input, &sent), cut(output, &received)),
            Collective::Broadcast { root } if root.index() == me => {
                (all(whole(input)), only(me, whole(output)))
            }
            Collective::Broadcast { root } => (none(), only(root.index(), whole(output))),
            Collective::Reduce { root } if root.index() == me => (only(me, whole(input)), all(whole(output))),
            Collective::Reduce { root } => (only(root.index(), whole(input)), none()),
            Collective::Gather { root } if root.index() == me => {
                (only(me, whole(input)), cut(output, &received))
            }
            Collective::Gather { root } => (only(root.index(), whole(input)), none()),
            Collective::Scatter { root } if root.index() == me => {
                (cut(input, &sent), only(me, whole(output)))
            }
            Collective::Scatter { root } => (none(), only(root.index(), whole(output))),
            Collective::AllReduce | Collective::Transfer { .. } => {
                return Err(Error::Internal(format!("{descriptor} has no stretches")));
            }
        };
        let is_cut = !matches!(
            descriptor.collective,
            Collective::Broadcast { .. } | Collective::Reduce { .. } | Collective::Barrier
        );
        let largest = if is_cut { (0..world).map(even).max().unwrap_or(0) } else { descriptor.count };
        let stretches = Self {
            gives,
            takes,
            is_fold: matches!(descriptor.collective, Collective::ReduceScatter | Collective::Reduce { .. }),
            is_alike: matches!(descriptor.collective, Collective::AllGather | Collective::Broadcast { .. }),
            agreed: (!layout.is_pairwise()).then_some(largest * element),
        };
        stretches.check_overlaps(me)?;
        Ok(stretches)
    }

    /// What other ranks read must not be overwritten meanwhile. What a rank gives to itself may stay where it is.
    fn check_overlaps(&self, me: usize) -> Result<(), Error> {
        let takes = if self.is_fold { &self.takes[..1] } else { &self.takes[..] };
        for (from, take) in takes.iter().enumerate() {
            let is_own = self.is_fold || from == me;
            for (to, give) in self.gives.iter().enumerate() {
                let stays = is_own && take == &self.gives[me];
                if take.overlaps(give) && !(stays && (to == me || !self.is_fold)) {
                    return Err(invalid!("invalid buffers: input and output overlap"));
                }
            }
        }
        Ok(())
    }
}

/// One stretch for each rank: the buffers, or the parts of the only one in rank order.
fn cut(buffers: &[Stretch], world: usize, size: &dyn Fn(usize) -> u64) -> Vec<Stretch> {
    if buffers.len() == world && world > 1 {
        return buffers.to_vec();
    }
    let Some(first) = buffers.first() else { return vec![Stretch::default(); world] };
    let mut address = first.address;
    let mut next = |rank| {
        let part = Stretch { address, bytes: size(rank) };
        address += part.bytes;
        part
    };
    (0..world).map(&mut next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GroupOp;
    use crate::group::{BufferLengths, RankContext};
    use ringfold_proto::dtype::DType;
    use ringfold_proto::reduce_op::ReduceOp;

    fn at(address: u64, bytes: u64) -> Stretch {
        Stretch { address, bytes }
    }

    fn of(op: &GroupOp, me: usize, input: &[Stretch], output: &[Stretch]) -> Result<Stretches, Error> {
        let total = |buffers: &[Stretch]| buffers.iter().map(|buffer| buffer.bytes as usize).sum();
        let lengths = BufferLengths::OutOfPlace { input: total(input), output: total(output) };
        let request = RankContext::plain(me, 3).request(op, DType::F32, lengths)?;
        Stretches::of(&request, (me, 3), input, output)
    }

    /// What one rank gives another is what that one takes.
    fn assert_matches(
        op: impl Fn(usize) -> GroupOp,
        buffers: impl Fn(usize) -> (Vec<Stretch>, Vec<Stretch>),
    ) {
        let all: Vec<_> = (0..3)
            .map(|me| {
                let (input, output) = buffers(me);
                of(&op(me), me, &input, &output).unwrap()
            })
            .collect();
        for (from, giver) in all.iter().enumerate() {
            for (to, taker) in all.iter().enumerate() {
                let is_same = giver.gives[to].bytes == taker.takes[from].bytes;
                // A root that gives to all keeps its own.
                assert!(is_same || from == to, "{} from {from} to {to}: {all:?}", op(from).name());
            }
        }
        assert!(all.iter().all(|one| one.agreed == all[0].agreed), "{all:?}");
    }

    #[test]
    fn what_is_given_is_taken() {
        let one = |bytes| move |_| (vec![at(0x1000, bytes)], vec![at(0x9000, bytes)]);
        assert_matches(|_| GroupOp::Barrier, |_| (vec![], vec![]));
        assert_matches(|_| GroupOp::AllGather, |_| (vec![at(0x1000, 8)], vec![at(0x9000, 24)]));
        assert_matches(
            |_| GroupOp::AllGather,
            |_| (vec![at(0x1000, 8)], (1..4).map(|k| at(k << 16, 8)).collect()),
        );
        let counts = || vec![1, 0, 5];
        assert_matches(
            |_| GroupOp::AllGatherV(counts()),
            |me| (vec![at(0x1000, 4 * counts()[me] as u64)], vec![at(0x9000, 24)]),
        );
        assert_matches(
            |_| GroupOp::ReduceScatterV(counts(), ReduceOp::Sum),
            |me| (vec![at(0x1000, 24)], vec![at(0x9000, 4 * counts()[me] as u64)]),
        );
        assert_matches(|_| GroupOp::AllToAll, one(24));
        assert_matches(
            |me| GroupOp::AllToAllV { send: vec![me; 3], receive: vec![0, 1, 2] },
            |me| (vec![at(0x1000, 12 * me as u64)], vec![at(0x9000, 12)]),
        );
        for root in 0..3 {
            assert_matches(|_| GroupOp::Broadcast { root }, one(16));
            assert_matches(|_| GroupOp::Reduce { root, op: ReduceOp::Max }, one(16));
            assert_matches(
                |_| GroupOp::Gather { root },
                |me| (vec![at(0x1000, 8)], if me == root { vec![at(0x9000, 24)] } else { vec![] }),
            );
            assert_matches(
                |_| GroupOp::Scatter { root },
                |me| (if me == root { vec![at(0x1000, 24)] } else { vec![] }, vec![at(0x9000, 8)]),
            );
        }
    }

    #[test]
    fn parts_lie_in_rank_order() {
        let all = of(&GroupOp::AllToAll, 1, &[at(0x1000, 24)], &[at(0x9000, 24)]).unwrap();
        assert_eq!(all.gives, [at(0x1000, 8), at(0x1008, 8), at(0x1010, 8)]);
        assert_eq!(all.takes, [at(0x9000, 8), at(0x9008, 8), at(0x9010, 8)]);
        assert_eq!((all.agreed, all.is_alike, all.is_fold), (Some(8), false, false));
    }

    #[test]
    fn buffers_may_overlap_only_where_a_rank_keeps_its_own_part() {
        let (whole, own) = (at(0x1000, 24), at(0x1008, 8));
        let gather = |input| of(&GroupOp::AllGather, 1, &[input], &[whole]);
        assert!(gather(own).is_ok());
        assert!(gather(at(0x1000, 8)).is_err() && gather(at(0x100c, 8)).is_err());
        let scatter = |output| of(&GroupOp::ReduceScatter(ReduceOp::Sum), 1, &[whole], &[output]);
        assert!(scatter(own).is_ok());
        assert!(scatter(at(0x1000, 8)).is_err() && scatter(at(0x1004, 8)).is_err());
        assert!(of(&GroupOp::Reduce { root: 1, op: ReduceOp::Sum }, 1, &[whole], &[whole]).is_ok());
        assert!(of(&GroupOp::Broadcast { root: 1 }, 1, &[whole], &[whole]).is_ok());
        assert!(of(&GroupOp::Broadcast { root: 0 }, 1, &[whole], &[whole]).is_ok());
        assert!(of(&GroupOp::AllToAll, 1, &[whole], &[whole]).is_err());
    }
}
