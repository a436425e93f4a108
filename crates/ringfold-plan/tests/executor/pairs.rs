//! Sizes that only the two ends of a pair know, and who is waited for.

use super::data_flow::values;
use super::memory::Memory;
use super::net::{Net, op, peer};
use super::plans::descriptor;
use ringfold_plan::choice::plan;
use ringfold_plan::event::ExecutorEvent;
use ringfold_plan::layout::Layout;
use ringfold_plan::plan::Plan;
use ringfold_plan::shape::GroupShape;
use ringfold_proto::descriptor::Collective;
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Tuning;
use std::sync::Arc;

/// Two elements to a frame.
const TUNING: Tuning = Tuning { chunk_bytes: 16, window_slots: 2, eager_slots: 2, ..Tuning::DEFAULT };

const GATHER: Collective = Collective::Gather { root: Rank(0) };

/// A rank's plan of a gather by rank 0, in which this rank thinks of these sizes.
fn gather(rank: usize, sizes: &[u64]) -> Arc<Plan> {
    let world = sizes.len();
    let only = |at: usize| (0..world).map(|r| if r == at { sizes[rank] } else { 0 }).collect();
    let receive = if rank == 0 { sizes.into() } else { vec![0; world].into() };
    let layout = Layout::Pairs { send: only(0), receive };
    let descriptor = descriptor(0).with_collective(GATHER);
    let plan = plan(&descriptor, &layout, Rank::from_index(rank), &GroupShape::uniform(world), &TUNING);
    Arc::new(plan.unwrap())
}

fn start(net: &mut Net, rank: usize, seq: u64, sizes: &[u64]) -> Memory {
    let memory = Memory::out_of_place(values(rank, sizes[rank] as usize), sizes.iter().sum::<u64>() as usize);
    net.start(rank, op(1, seq), descriptor(0).with_collective(GATHER), gather(rank, sizes), &memory);
    memory
}

#[test]
fn ranks_that_disagree_on_the_size_of_their_pair_notice_it_and_keep_their_link() {
    for (thought_by_root, sent) in [(5, 3), (3, 5), (0, 5), (5, 0), (2, 40), (40, 2), (4, 3)] {
        for late in [None, Some(0), Some(1)] {
            let mut net = Net::open(2, TUNING, 7);
            let mut memories = [None, None];
            for rank in [1, 0].map(|rank| if late == Some(1) { 1 - rank } else { rank }) {
                let sizes = [2, if rank == 0 { thought_by_root } else { sent }];
                memories[rank] = Some(start(&mut net, rank, 0, &sizes));
                if late.is_some() {
                    net.settle();
                }
            }
            net.settle();
            for rank in 0..2 {
                let named = |event: &&ExecutorEvent<Memory>| match event {
                    ExecutorEvent::Mismatch { peer: who, .. } => *who == peer(1 - rank),
                    ExecutorEvent::Violation { why, .. } => panic!("{why}"),
                    _ => false,
                };
                assert_eq!(net.peers[rank].events.iter().filter(named).count(), 1);
            }
            let target = memories[0].as_ref().unwrap().target();
            assert!(target[2..].iter().all(|value| *value == 0), "nothing of it was written");
            net.abort(0, op(1, 0));
            net.abort(1, op(1, 0));
            net.settle();
            net.assert_clean();

            let memories = [0, 1].map(|rank| start(&mut net, rank, 1, &[2, 5]));
            net.settle();
            assert!(net.is_done(0, op(1, 1)) && net.is_done(1, op(1, 1)), "the next one finds all slots");
            assert_eq!(memories[0].target(), [values(0, 2), values(1, 5)].concat());
        }
    }
}

#[test]
fn a_waiting_operation_names_those_whose_frames_or_slots_it_lacks() {
    let sizes = [1, 9, 0, 2];
    let mut net = Net::open(4, TUNING, 3);
    let awaits = |net: &Net, rank: usize| net.peers[rank].executor.awaits(op(1, 0));
    assert_eq!(awaits(&net, 0), [], "it is not started");
    start(&mut net, 1, 0, &sizes);
    net.settle();
    assert_eq!(awaits(&net, 1), [Rank(0)], "the root owes slots");
    start(&mut net, 0, 0, &sizes);
    net.settle();
    assert_eq!(awaits(&net, 1), [], "it is done");
    assert_eq!(awaits(&net, 0), [Rank(2), Rank(3)]);
    start(&mut net, 2, 0, &sizes);
    net.settle();
    assert_eq!(awaits(&net, 0), [Rank(3)]);
}
