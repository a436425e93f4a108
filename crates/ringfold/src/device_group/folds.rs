//! Derives what each rank's kernel computes from the plans of the host.

use crate::Error;
use core::ops::Range;
use parking_lot::Mutex;
use ringfold_plan::choice;
use ringfold_plan::fused::{self, Fold};
use ringfold_plan::layout::Layout;
use ringfold_plan::shape::GroupShape;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::{Algorithm, Tuning};
use std::collections::HashMap;

const KEPT_MAX: usize = 4096;

pub(super) struct Folds {
    me: usize,
    shape: GroupShape,
    kept: Mutex<HashMap<Descriptor, Range<u64>>>,
}

impl Folds {
    pub(super) fn new(me: usize, world: usize) -> Self {
        let shape = GroupShape { hosts: vec![0; world], ..GroupShape::uniform(world) };
        Self { me, shape, kept: Mutex::default() }
    }

    pub(super) fn of(&self, descriptor: &Descriptor) -> Result<Range<u64>, Error> {
        let mut kept = self.kept.lock();
        if let Some(range) = kept.get(descriptor) {
            return Ok(range.clone());
        }
        let all = plan(descriptor, &self.shape)?;
        let range = range(&all, self.me).ok_or_else(|| {
            Error::Internal(format!("no kernel computes {descriptor} as {:?}", all[self.me]))
        })?;
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(*descriptor, range.clone());
        Ok(range)
    }
}

/// The folds of all ranks. An all-reduce of any size is reduced in rank order, as in the one-shot plan,
/// so neither size nor registration changes its bits.
fn plan(descriptor: &Descriptor, shape: &GroupShape) -> Result<Vec<Vec<Fold>>, Error> {
    // Kernels need no chunks.
    let tuning = Tuning { forced: Some(Algorithm::OneShot), chunk_bytes: u32::MAX, ..Tuning::default() };
    let of = |rank| choice::plan(descriptor, &Layout::Even, Rank::from_index(rank), shape, &tuning);
    let plans: Result<Vec<_>, _> = (0..shape.world()).map(of).collect();
    let plans = plans.map_err(|none| Error::Internal(format!("{descriptor}: {none}")))?;
    let folds = fused::fuse(&plans).map_err(|why| Error::Internal(format!("{descriptor}: {why}")))?;
    Ok(fused::share(&folds))
}

/// One rank's part, if the kernels can compute it: at most one fold, from all ranks in order, to all ranks.
fn range(all: &[Vec<Fold>], me: usize) -> Option<Range<u64>> {
    let fold = match &all[me][..] {
        [] => return Some(0..0),
        [fold] => fold,
        _ => return None,
    };
    let start = fold.sources[0].offset;
    let are_all = |stretches: &[fused::RankOffset]| {
        stretches.len() == all.len()
            && stretches.iter().enumerate().all(|(rank, at)| at.rank.index() == rank && at.offset == start)
    };
    (are_all(&fold.sources) && are_all(&fold.targets)).then(|| start..start + fold.count)
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
                let mut next = 0;
                for me in 0..world {
                    let range = Folds::new(me, world).of(&reduce).unwrap();
                    assert!(range.is_empty() || range.start == next, "{world} ranks, {count} elements");
                    next += range.end - range.start;
                }
                assert_eq!(next, count);
            }
        }
    }
}
