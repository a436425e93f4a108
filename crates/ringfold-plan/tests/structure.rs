//! Static checks of all plans.

use ringfold_plan::checker::{random_network, shuffled};
use ringfold_plan::choice::{methods, plan};
use ringfold_plan::layout::Layout;
use ringfold_plan::plan::Plan;
use ringfold_plan::shape::GroupShape;
use ringfold_plan::structure::check;
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::dtype::DType;
use ringfold_proto::id::Rank;
use ringfold_proto::reduce_op::ReduceOp;
use ringfold_proto::tuning::{Algorithm, Tuning};

#[test]
fn both_ends_of_every_pair_have_the_same_frames_in_all_plans() {
    for world in 1..=17 {
        let root = Rank::from_index(world / 2);
        let mut shape = GroupShape::uniform(world);
        shape.ring = shuffled(world, 1);
        let collectives = [
            Collective::AllReduce,
            Collective::ReduceScatter,
            Collective::AllGather,
            Collective::Broadcast { root },
            Collective::Barrier,
            Collective::Reduce { root },
            Collective::Gather { root },
            Collective::Scatter { root },
            Collective::AllToAll,
        ];
        for collective in collectives {
            let methods = |form: bool| methods(collective, form).iter().map(move |method| (form, method));
            for (reproducible, method) in methods(false).chain(methods(true)) {
                let has_trees = method.algorithm == Algorithm::Trees && world > 1;
                shape.mesh = method.needs_mesh || has_trees;
                let network = has_trees.then(|| random_network(world, 7));
                let shape = shape.clone().with_network(network.as_ref());
                for count in [0, 1, world as u64 - 1, world as u64, world as u64 + 1, 31, 101] {
                    let descriptor =
                        Descriptor::all_reduce(count, DType::F64, ReduceOp::Avg).with_collective(collective);
                    let descriptor = Descriptor { reproducible, ..descriptor };
                    let tuning = Tuning {
                        chunk_bytes: 24,
                        window_slots: 1,
                        forced: Some(method.algorithm),
                        ..Tuning::default()
                    };
                    let plans: Vec<Plan> = (0..world)
                        .map(|rank| plan(&descriptor, &Layout::Even, Rank::from_index(rank), &shape, &tuning))
                        .collect::<Result<_, _>>()
                        .unwrap();
                    assert!(world == 1 || plans[0].algorithm == method.algorithm);
                    if let Err(flaw) = check(&descriptor, &vec![Layout::Even; world], &shape, &plans) {
                        panic!("{descriptor} by {:?}, world {world}: {flaw}", method.algorithm);
                    }
                }
            }
        }
    }
}
