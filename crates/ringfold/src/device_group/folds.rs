//! Derives what each rank's kernel computes from the plans of the host.

use crate::Error;
use parking_lot::Mutex;
use ringfold_cuda::device_arena::FoldRange;
use ringfold_plan::choice;
use ringfold_plan::fused::{self, Fold};
use ringfold_plan::layout::Layout;
use ringfold_plan::shape::GroupShape;
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::{Algorithm, Tuning};
use std::collections::HashMap;

const KEPT_MAX: usize = 4096;

pub(super) struct Folds {
    me: usize,
    shape: GroupShape,
    kept: Mutex<HashMap<Descriptor, FoldRange>>,
}

impl Folds {
    pub(super) fn new(me: usize, world: usize) -> Self {
        let shape = GroupShape { hosts: vec![0; world], ..GroupShape::uniform(world) };
        Self { me, shape, kept: Mutex::default() }
    }

    pub(super) fn of(&self, descriptor: &Descriptor) -> Result<FoldRange, Error> {
        let mut kept = self.kept.lock();
        if let Some(range) = kept.get(descriptor) {
            return Ok(*range);
        }
        let all = plan(descriptor, &self.shape)?;
        let range = range(descriptor, &all, self.me).ok_or_else(|| {
            Error::Internal(format!("no kernel computes {descriptor} as {:?}", all[self.me]))
        })?;
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(*descriptor, range);
        Ok(range)
    }
}

/// The folds of all ranks. An all-reduce of any size is reduced in rank order, as in the one-shot plan,
/// so neither size nor registration changes its bits.
fn plan(descriptor: &Descriptor, shape: &GroupShape) -> Result<Vec<Vec<Fold>>, Error> {
    let forced = match descriptor.collective {
        Collective::AllReduce => Algorithm::OneShot,
        _ => Algorithm::Direct,
    };
    // Kernels need no chunks.
    let tuning = Tuning { forced: Some(forced), chunk_bytes: u32::MAX, ..Tuning::default() };
    let of = |rank| choice::plan(descriptor, &Layout::Even, Rank::from_index(rank), shape, &tuning);
    let plans: Result<Vec<_>, _> = (0..shape.world()).map(of).collect();
    let plans = plans.map_err(|none| Error::Internal(format!("{descriptor}: {none}")))?;
    let folds = fused::fuse(&plans).map_err(|why| Error::Internal(format!("{descriptor}: {why}")))?;
    Ok(fused::share(&folds))
}

/// One rank's fold, if the kernels can compute it: at most one fold, from all ranks in order or from this rank alone, to
/// all ranks.
fn range(descriptor: &Descriptor, all: &[Vec<Fold>], me: usize) -> Option<FoldRange> {
    let fold = match &all[me][..] {
        [] => return Some(FoldRange::default()),
        [fold] => fold,
        _ => return None,
    };
    let ranks =
        |stretches: &[fused::RankOffset]| stretches.iter().map(|s| s.rank.index()).collect::<Vec<_>>();
    let all_ranks: Vec<_> = (0..all.len()).collect();
    let sources = if descriptor.collective == Collective::AllReduce { all_ranks.clone() } else { vec![me] };
    let (source, target) = (fold.sources[0].offset, fold.targets[0].offset);
    let is_alike =
        fold.sources.iter().all(|s| s.offset == source) && fold.targets.iter().all(|t| t.offset == target);
    let is_known = ranks(&fold.sources) == sources && ranks(&fold.targets) == all_ranks && is_alike;
    is_known.then_some(FoldRange { source, target, count: fold.count })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_proto::dtype::DType;
    use ringfold_proto::reduce_op::ReduceOp;

    #[test]
    fn kernels_support_the_plans_of_every_world_size() {
        for world in 1..=16 {
            for count in [1, 5, 1000, 1 << 33] {
                let reduce = Descriptor::all_reduce(count, DType::F32, ReduceOp::Sum);
                let whole = count * world as u64;
                let gather = Descriptor::all_reduce(whole, DType::U8, ReduceOp::Sum)
                    .with_collective(Collective::AllGather);
                let (mut next, mut gathered) = (0, 0);
                for me in 0..world {
                    let folds = Folds::new(me, world);
                    let FoldRange { source, target, count: mine } = folds.of(&reduce).unwrap();
                    assert!(mine == 0 || (source, target) == (next, next), "{world} ranks, {count} elements");
                    next += mine;
                    let range = folds.of(&gather).unwrap();
                    assert_eq!(range, FoldRange { source: 0, target: gathered, count });
                    gathered += count;
                }
                assert_eq!(next, count);
            }
        }
    }
}
