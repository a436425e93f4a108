//! Plans give the right results.

use super::memory::Memory;
use super::net::{Net, op, tuning};
use super::plans::{descriptor, exchange, one_way, ring};
use ringfold_plan::event::ExecutorEvent;
use ringfold_plan::plan::Plan;
use ringfold_plan::step::{OpBuffer, Region, Step};
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Algorithm;
use std::sync::Arc;

pub fn values(rank: usize, count: usize) -> Vec<i64> {
    (0..count).map(|i| (1000 * (rank + 1) + i) as i64).collect()
}

pub fn sums(world: usize, count: usize) -> Vec<i64> {
    (0..count).map(|i| (0..world).map(|rank| values(rank, count)[i]).sum()).collect()
}

#[test]
fn a_ring_in_place_sums_in_any_order_of_events_with_a_window_of_one_slot() {
    for world in 1..=6 {
        for seed in 0..40 {
            let mut net = Net::open(world, tuning(1, 1), seed);
            let count = world * 3 * 2;
            let memories: Vec<_> = (0..world).map(|r| Memory::in_place(values(r, count), 0)).collect();
            for (rank, memory) in memories.iter().enumerate() {
                net.start(rank, op(1, 0), descriptor(count), ring(rank, world, 3, 2), memory);
            }
            net.settle();
            for (rank, memory) in memories.iter().enumerate() {
                let expected = if world == 1 { values(0, count) } else { sums(world, count) };
                assert_eq!(memory.target(), expected, "world {world}, seed {seed}");
                assert!(net.is_done(rank, op(1, 0)));
                net.commit(rank, op(1, 0));
            }
            net.settle();
            net.assert_clean();
        }
    }
}

#[test]
fn payload_bytes_are_counted_both_ways() {
    let mut net = Net::open(2, tuning(4, 8), 0);
    for rank in 0..2 {
        net.start(rank, op(1, 0), descriptor(6), exchange(rank, 3, 2), &Memory::in_place(values(rank, 6), 0));
    }
    net.settle();
    for peer in &net.peers {
        let [ExecutorEvent::Done { tx_bytes, rx_bytes, .. }] = peer.events[..] else {
            panic!("{:?}", peer.events);
        };
        assert_eq!((tx_bytes, rx_bytes), (48, 48));
    }
}

#[test]
fn frames_without_bytes_are_frames() {
    let mut net = Net::open(2, tuning(1, 1), 3);
    for rank in 0..2 {
        net.start(rank, op(1, 0), descriptor(0), exchange(rank, 5, 0), &Memory::in_place(vec![], 0));
    }
    net.settle();
    assert!(net.is_done(0, op(1, 0)) && net.is_done(1, op(1, 0)));
}

#[test]
fn a_fenced_step_waits_for_frames_before_it_and_not_for_those_after_it() {
    let region = |buffer, offset| Region { buffer, offset, count: 1 };
    let source = region(OpBuffer::Source, 0);
    let steps = vec![
        Step::send(Rank(1), source),
        Step::copy(region(OpBuffer::Source, 1), source.at(OpBuffer::Target)).fenced(),
        Step::send(Rank(1), region(OpBuffer::Source, 2)).after(1),
    ];
    let plan = Arc::new(Plan::new(Algorithm::Direct, super::plans::FINGERPRINT, 0, steps));
    let mut net = Net::open(2, tuning(4, 4), 0);
    let memory = Memory::in_place(vec![1, 2, 3], 0);
    net.start(0, op(1, 0), descriptor(3), plan, &memory);
    assert_eq!(memory.source(), [1, 2, 3], "the first frame has not left");
    assert_eq!(net.leaving[&(0, 1)].len(), 1);
    let first = net.moves()[0];
    net.make(first);
    assert_eq!(memory.source(), [2, 2, 3], "it has left, and nothing else counts");
    assert_eq!(net.leaving[&(0, 1)].len(), 1, "what comes after the fenced step goes out");
    assert!(!net.is_done(0, op(1, 0)), "not done while a frame can be read");
    net.settle();
    assert!(net.is_done(0, op(1, 0)));
}

#[test]
fn operations_of_one_tag_follow_each_other_without_waiting_for_slots() {
    let mut net = Net::open(2, tuning(4, 8), 9);
    for seq in 0..200 {
        let memory = Memory::out_of_place(values(0, 2), 2);
        for rank in 0..2 {
            net.start(rank, op(1, seq), descriptor(2), one_way(rank, 1, 2), &memory);
        }
        net.settle();
        assert_eq!(memory.target(), values(0, 2));
        net.commit(0, op(1, seq));
        net.commit(1, op(1, seq));
    }
    assert_eq!(net.count_messages(1, |_| true), 100, "one return for two of four eager slots, and no grant");
    assert_eq!(net.count_messages(0, |_| true), 0);
    net.assert_clean();
}
