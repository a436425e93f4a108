//! Slots: no deadlock, and no unused grants (R3).

use super::data_flow::{sums, values};
use super::memory::Memory;
use super::net::{Item, Net, op, tuning};
use super::plans::{descriptor, exchange, one_way, ring};
use ringfold_proto::link_message::LinkMessage;
use ringfold_proto::tuning::Tuning;

fn run_in_opposite_orders(frames: usize, seed: u64) {
    let mut net = Net::open(2, tuning(1, 1), seed);
    let count = frames * 2;
    let tags = 8;
    let memories: Vec<Vec<_>> =
        (0..2).map(|rank| (0..tags).map(|_| Memory::in_place(values(rank, count), 0)).collect()).collect();
    for i in 0..tags as usize {
        for (rank, tag) in [(0, i), (1, tags as usize - 1 - i)] {
            let plan = exchange(rank, frames, 2);
            net.start(rank, op(tag as u64, 0), descriptor(count), plan, &memories[rank][tag]);
            for _ in 0..net.random(6) {
                net.stir();
            }
        }
    }
    net.settle();
    for (rank, memories) in memories.iter().enumerate() {
        for (tag, memory) in memories.iter().enumerate() {
            assert!(net.is_done(rank, op(tag as u64, 0)), "seed {seed}: tag {tag} hangs on rank {rank}");
            assert_eq!(memory.target(), sums(2, count));
            net.commit(rank, op(tag as u64, 0));
        }
    }
    net.settle();
    net.assert_clean();
}

#[test]
fn operations_launched_in_opposite_orders_finish_with_one_eager_slot() {
    (0..100).for_each(|seed| run_in_opposite_orders(1, seed));
}

#[test]
fn long_operations_launched_in_opposite_orders_finish_by_grants() {
    (0..100).for_each(|seed| run_in_opposite_orders(5, seed));
}

#[test]
fn a_parked_operation_blocks_no_other_on_its_link() {
    let mut net = Net::open(2, tuning(1, 4), 1);
    let parked = Memory::out_of_place(values(0, 8), 8);
    net.start(0, op(1, 0), descriptor(8), one_way(0, 8, 1), &parked);
    net.settle();
    for tag in 2..6 {
        let memory = Memory::out_of_place(values(0, 8), 8);
        net.start(0, op(tag, 0), descriptor(8), one_way(0, 8, 1), &memory);
        net.start(1, op(tag, 0), descriptor(8), one_way(1, 8, 1), &memory);
        net.settle();
        assert!(net.is_done(1, op(tag, 0)));
        assert_eq!(memory.target(), values(0, 8));
    }
    net.start(1, op(1, 0), descriptor(8), one_way(1, 8, 1), &parked);
    net.settle();
    assert_eq!(parked.target(), values(0, 8));
}

#[test]
fn a_parked_operation_asks_once() {
    let mut net = Net::open(2, tuning(2, 2), 1);
    let memory = Memory::out_of_place(values(0, 2), 2);
    for tag in 0..4 {
        net.start(0, op(tag, 0), descriptor(2), one_way(0, 2, 1), &memory);
    }
    net.settle();
    let wants = |net: &Net| net.count_messages(0, |m| matches!(m, LinkMessage::Want { .. }));
    assert_eq!(wants(&net), 3, "the first has the eager slots");
    for tag in (0..4).rev() {
        net.start(1, op(tag, 0), descriptor(2), one_way(1, 2, 1), &memory);
        net.settle();
        assert!(net.is_done(1, op(tag, 0)));
    }
    assert_eq!(wants(&net), 3);
}

/// On a long link a request and its answer would take a round trip.
#[test]
fn of_many_eager_slots_half_are_enough_without_a_request() {
    let mut net = Net::open(2, Tuning { chunk_bytes: 16, ..tuning(16, 32) }, 1);
    let wants = |net: &Net| net.count_messages(0, |m| matches!(m, LinkMessage::Want { .. }));
    let grants = |net: &Net| net.count_messages(1, |m| matches!(m, LinkMessage::Grant { .. }));
    for (seq, frames) in [4, 4, 3, 4, 8, 8, 5, 8].into_iter().enumerate() {
        let granted = grants(&net);
        let count = 2 * frames;
        let memory = Memory::out_of_place(values(0, count), count);
        // The receiver starts first, and what it grants arrives.
        for rank in [1, 0] {
            net.start(rank, op(1, seq as u64), descriptor(count), one_way(rank, frames, 2), &memory);
            net.settle();
        }
        assert!(net.is_done(1, op(1, seq as u64)));
        assert_eq!(grants(&net) > granted, frames > 4, "{frames} frames");
        (0..2).for_each(|rank| net.commit(rank, op(1, seq as u64)));
    }
    assert_eq!(wants(&net), 0);
}

#[test]
fn a_receiver_hears_of_a_long_operation_for_which_there_is_no_eager_slot() {
    let mut net = Net::open(2, tuning(2, 4), 1);
    let (short, long) = (Memory::out_of_place(values(0, 2), 2), Memory::out_of_place(values(0, 20), 20));
    net.start(0, op(1, 0), descriptor(2), one_way(0, 2, 1), &short);
    net.start(0, op(2, 0), descriptor(20), one_way(0, 20, 1), &long);
    net.settle();
    // It may start operations only when they are offered, and in any order.
    assert!(net.peers[1].executor.is_offered(op(2, 0)));
    net.start(1, op(2, 0), descriptor(20), one_way(1, 20, 1), &long);
    net.settle();
    assert!(net.is_done(1, op(2, 0)));
    assert_eq!(long.target(), values(0, 20));
}

#[test]
fn of_many_eager_slots_a_few_are_for_full_chunks_and_the_others_for_short_frames() {
    let mut net = Net::open(2, Tuning { chunk_bytes: 16, ..tuning(64, 16) }, 1);
    let long = Memory::out_of_place(values(0, 80), 80);
    net.start(0, op(1, 0), descriptor(80), one_way(0, 40, 2), &long);
    assert_eq!(net.leaving[&(0, 1)].len(), 4);
    let (short, empty) = (Memory::out_of_place(values(0, 2), 2), Memory::out_of_place(Vec::new(), 0));
    net.start(0, op(2, 0), descriptor(2), one_way(0, 1, 2), &short);
    for tag in 3..60 {
        net.start(0, op(tag, 0), descriptor(0), one_way(0, 1, 0), &empty);
    }
    net.settle();
    assert!(!net.is_done(0, op(2, 0)), "there is no room for a fifth chunk");
    assert!((3..60).all(|tag| net.is_done(0, op(tag, 0))));
    let wants = |net: &Net| net.count_messages(0, |m| matches!(m, LinkMessage::Want { .. }));
    assert_eq!(wants(&net), 1);
    for (tag, frames, width, memory) in [(1, 40, 2, &long), (2, 1, 2, &short)] {
        net.start(1, op(tag, 0), descriptor(frames * width), one_way(1, frames, width), memory);
        net.settle();
        assert!(net.is_done(0, op(tag, 0)) && net.is_done(1, op(tag, 0)), "tag {tag}");
    }
    assert_eq!(wants(&net), 1);
}

#[test]
fn slots_are_reused_and_limited_to_a_window() {
    let mut net = Net::open(3, tuning(2, 4), 5);
    for seq in 0..50 {
        let memories: Vec<_> = (0..3).map(|r| Memory::in_place(values(r, 30), 0)).collect();
        for (rank, memory) in memories.iter().enumerate() {
            net.start(rank, op(1, seq), descriptor(30), ring(rank, 3, 10, 1), memory);
        }
        net.settle();
        for (rank, memory) in memories.iter().enumerate() {
            assert_eq!(memory.target(), sums(3, 30));
            net.commit(rank, op(1, seq));
        }
    }
    for peer in &net.peers {
        assert!(peer.executor.slots_made() <= 4, "{} slots", peer.executor.slots_made());
    }
    net.settle();
    net.assert_clean();
}

#[test]
fn grants_come_by_half_windows() {
    let mut net = Net::open(2, tuning(1, 8), 5);
    let memory = Memory::out_of_place(values(0, 400), 400);
    for rank in 0..2 {
        net.start(rank, op(1, 0), descriptor(400), one_way(rank, 400, 1), &memory);
    }
    net.settle();
    assert_eq!(memory.target(), values(0, 400));
    let grants = net.count_messages(1, |m| matches!(m, LinkMessage::Grant { .. }));
    assert!(grants <= 400 / 4 + 2, "{grants} grants");
}

#[test]
fn unused_granted_slots_are_freed_by_the_last_frame() {
    let mut net = Net::open(2, tuning(2, 8), 5);
    for seq in 0..30 {
        let memory = Memory::out_of_place(values(0, 3), 3);
        // The sender fills its eager slots before it knows that three more are lent to it.
        for rank in 0..2 {
            net.start(rank, op(1, seq), descriptor(3), one_way(rank, 3, 1), &memory);
        }
        net.settle();
        assert_eq!(memory.target(), values(0, 3));
        net.commit(0, op(1, seq));
        net.commit(1, op(1, seq));
    }
    assert_eq!(net.peers[1].executor.slots_made(), 3);
}

#[test]
fn a_sender_that_requests_slots_gets_emptied_ones_at_once() {
    let mut net = Net::open(2, tuning(4, 4), 5);
    let memory = Memory::out_of_place(values(0, 1), 1);
    net.start(1, op(0, 0), descriptor(1), one_way(1, 1, 1), &memory);
    for tag in 0..5 {
        net.start(0, op(tag, 0), descriptor(1), one_way(0, 1, 1), &memory);
        net.settle();
    }
    assert!(net.is_done(0, op(4, 0)), "it has the slot that the first one left");
    net.start(0, op(5, 0), descriptor(1), one_way(0, 1, 1), &memory);
    net.settle();
    assert!(!net.is_done(0, op(5, 0)), "four frames are held");
    net.start(1, op(1, 0), descriptor(1), one_way(1, 1, 1), &memory);
    net.settle();
    assert!(net.is_done(0, op(5, 0)), "one of them was taken, and its slot was waited for");
}

#[test]
fn an_operation_with_granted_slots_leaves_eager_ones_to_others() {
    let mut net = Net::open(2, tuning(2, 3), 5);
    let long = Memory::out_of_place(values(0, 20), 20);
    net.start(1, op(1, 0), descriptor(20), one_way(1, 20, 1), &long);
    net.drain(1, 0);
    net.start(0, op(1, 0), descriptor(20), one_way(0, 20, 1), &long);
    let eager = net.leaving[&(0, 1)].iter().map(|item| matches!(item, Item::Put(header, ..) if header.eager));
    assert_eq!(eager.collect::<Vec<_>>(), [false; 3], "its window, and no more");
    let short = Memory::out_of_place(values(0, 2), 2);
    net.start(0, op(2, 0), descriptor(2), one_way(0, 2, 1), &short);
    assert_eq!(net.leaving[&(0, 1)].len(), 5, "the other one asks nobody");
}
