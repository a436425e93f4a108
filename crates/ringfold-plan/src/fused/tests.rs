use super::*;
use crate::choice::plan;
use crate::layout::Layout;
use crate::shape::GroupShape;
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::dtype::DType;
use ringfold_proto::reduce_op::ReduceOp;
use ringfold_proto::tuning::{Algorithm, Tuning};

const COUNTS: [u64; 6] = [1, 2, 7, 31, 64, 1001];

fn plans(descriptor: &Descriptor, world: usize, forced: Algorithm, chunk_bytes: u32) -> Vec<Plan> {
    let tuning = Tuning { forced: Some(forced), chunk_bytes, ..Tuning::default() };
    let shape = GroupShape::uniform(world);
    let of = |rank| plan(descriptor, &Layout::Even, Rank::from_index(rank), &shape, &tuning).unwrap();
    (0..world).map(of).collect()
}

fn all_reduce(count: u64) -> Descriptor {
    Descriptor::all_reduce(count, DType::F32, ReduceOp::Sum)
}

/// What an element is made of: whose elements, in order; nothing if nobody makes it.
type Made = Option<Vec<(usize, u64)>>;

/// For each element of each target, what it is made of. Fails if an element is made twice.
fn elements(folds: &[Vec<Fold>], length: u64) -> Vec<Vec<Made>> {
    let mut made = vec![vec![None; length as usize]; folds.len()];
    for fold in folds.iter().flatten() {
        for target in &fold.targets {
            for i in 0..fold.count {
                let operands = fold.sources.iter().map(|s| (s.rank.index(), s.offset + i)).collect();
                let cell = &mut made[target.rank.index()][(target.offset + i) as usize];
                assert_eq!(cell.replace(operands), None, "an element is computed twice");
            }
        }
    }
    made
}

#[test]
fn shared_folds_of_a_one_shot_plan_reach_every_element_once_in_the_order_of_ranks() {
    for world in 1..=9 {
        for count in COUNTS {
            for chunk_bytes in [16, 1 << 30] {
                let plans = plans(&all_reduce(count), world, Algorithm::OneShot, chunk_bytes);
                let folds = fuse(&plans).unwrap();
                let shared = share(&folds);
                for folds in [&folds, &shared] {
                    let made = elements(folds, count);
                    for (target, i) in made.iter().flat_map(|target| target.iter().zip(0_u64..)) {
                        let expected: Vec<_> = (0..world).map(|rank| (rank, i)).collect();
                        assert_eq!(target.as_ref(), Some(&expected));
                    }
                    assert!(folds.iter().flatten().all(|fold| fold.settle));
                }
                // Chunks that lie behind each other are one fold, and nobody has more than its part of the work.
                assert!(folds.iter().all(|mine| mine.len() == 1), "{folds:?}");
                let most = count.div_ceil(world as u64);
                assert!(
                    shared.iter().flatten().all(|fold| fold.count <= most && fold.targets.len() == world)
                );
            }
        }
    }
}

#[test]
fn a_direct_plan_has_one_fold_per_owner_in_the_order_in_which_it_takes_frames() {
    for world in 2..=9 {
        for count in COUNTS {
            let folds = fuse(&plans(&all_reduce(count), world, Algorithm::Direct, 16)).unwrap();
            let parts = Parts::even(count, world as u16);
            elements(&folds, count).iter().flatten().for_each(|made| assert!(made.is_some()));
            for (me, mine) in folds.iter().enumerate() {
                assert_eq!(mine.iter().map(|fold| fold.count).sum::<u64>(), parts.part(me).count);
                for fold in mine {
                    assert_eq!((mine.len(), fold.targets.len(), fold.settle), (1, world, true));
                    // The first frame meets the own data, which has been there all the time.
                    let mut order: Vec<_> = (0..world).filter(|rank| *rank != me).collect();
                    order.insert(1.min(me), me);
                    let ranks: Vec<_> = fold.sources.iter().map(|source| source.rank.index()).collect();
                    assert_eq!(ranks, order);
                }
            }
            assert_eq!(share(&folds), folds, "what is dealt out already stays as it is");
        }
    }
}

#[test]
fn an_all_gather_copies_each_source_once_to_all_targets() {
    for world in 1..=9 {
        for count in COUNTS {
            let whole = count * world as u64;
            let descriptor = all_reduce(whole).with_collective(Collective::AllGather);
            let folds = fuse(&plans(&descriptor, world, Algorithm::Direct, 64)).unwrap();
            for (me, mine) in folds.iter().enumerate() {
                let rank = Rank::from_index(me);
                let everywhere =
                    |rank| RankOffset { rank: Rank::from_index(rank), offset: me as u64 * count };
                let expected = Fold {
                    sources: vec![RankOffset { rank, offset: 0 }],
                    targets: (0..world).map(everywhere).collect(),
                    count,
                    settle: false,
                };
                assert_eq!(mine, &[expected]);
            }
        }
    }
}

#[test]
fn plans_that_combine_partial_results_are_refused() {
    let plans = plans(&all_reduce(64), 8, Algorithm::Halving, 1 << 20);
    assert_eq!(fuse(&plans), Err(NotFusible::NotAChain));
}

#[test]
fn plans_that_do_not_fit_together_are_refused() {
    let mut plans = plans(&all_reduce(64), 3, Algorithm::Direct, 1 << 20);
    plans[1].steps.clear();
    plans[1].sends.clear();
    plans[1].receives.clear();
    assert_eq!(fuse(&plans), Err(NotFusible::Stuck));
}
