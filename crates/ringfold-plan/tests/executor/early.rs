//! Frames before their operation or epoch are kept; frames after it are dropped (R2).

use super::data_flow::{sums, values};
use super::memory::Memory;
use super::net::{Net, epoch, op, tuning};
use super::plans::{descriptor, exchange, one_way};
use ringfold_proto::id::OpId;
use ringfold_proto::link_message::LinkMessage;

#[test]
fn a_fast_peers_next_operation_is_held_and_used() {
    let mut net = Net::open(2, tuning(2, 2), 0);
    let first = Memory::out_of_place(values(0, 1), 1);
    let second = Memory::out_of_place(values(1, 1), 1);
    for (seq, memory) in [(0, &first), (1, &second)] {
        net.start(0, op(1, seq), descriptor(1), one_way(0, 1, 1), memory);
    }
    net.settle();
    assert_eq!(net.peers[1].executor.kept(), 2);
    for (seq, memory) in [(0, &first), (1, &second)] {
        net.start(1, op(1, seq), descriptor(1), one_way(1, 1, 1), memory);
        assert!(net.is_done(1, op(1, seq)), "its frame was already here");
        net.commit(1, op(1, seq));
        assert_eq!(memory.target(), memory.source());
    }
}

fn run_into_an_unopened_epoch(frames: usize, tags: u64) {
    let mut net = Net::linked(2, frames as u64);
    let count = 2 * frames;
    let memories: Vec<Vec<_>> =
        (0..2).map(|r| (0..tags).map(|_| Memory::in_place(values(r, count), 0)).collect()).collect();
    for (rank, memories) in memories.iter().enumerate() {
        net.open_epoch(rank, epoch(1), tuning(2, 2));
        for (tag, memory) in memories.iter().enumerate() {
            net.start(rank, op(tag as u64, 0), descriptor(count), exchange(rank, frames, 2), memory);
        }
        net.settle();
    }
    for tag in 0..tags {
        assert!(net.is_done(0, op(tag, 0)) && net.is_done(1, op(tag, 0)));
        assert_eq!(memories[1][tag as usize].target(), sums(2, count));
    }
}

#[test]
fn frames_and_requests_for_an_epoch_that_is_not_open_are_kept_until_it_opens() {
    run_into_an_unopened_epoch(1, 1);
    run_into_an_unopened_epoch(2, 6);
    run_into_an_unopened_epoch(9, 3);
}

#[test]
fn frames_of_an_overtaken_epoch_are_dropped() {
    let mut net = Net::linked(2, 0);
    let memory = Memory::out_of_place(values(0, 4), 4);
    net.open_epoch(0, epoch(1), tuning(2, 2));
    net.start(0, op(1, 0), descriptor(2), one_way(0, 4, 1), &memory);
    net.settle();
    assert_eq!(net.peers[1].executor.kept(), 2);
    net.open_epoch(1, epoch(2), tuning(2, 2));
    assert_eq!(net.peers[1].executor.kept(), 0);
    assert_eq!(net.peers[1].wire.released, 2);

    net.peers[0].executor.close_epoch(epoch(1));
    net.open_epoch(0, epoch(2), tuning(2, 2));
    let id = OpId { epoch: epoch(2), ..op(1, 0) };
    let memory = Memory::out_of_place(values(0, 4), 4);
    for rank in 0..2 {
        net.start(rank, id, descriptor(4), one_way(rank, 4, 1), &memory);
    }
    net.settle();
    assert!(net.is_done(0, id) && net.is_done(1, id));
}

#[test]
fn frames_of_a_closed_epoch_are_dropped() {
    let mut net = Net::open(2, tuning(2, 2), 0);
    let memory = Memory::out_of_place(values(0, 2), 2);
    net.start(0, op(1, 0), descriptor(2), one_way(0, 2, 1), &memory);
    net.peers[1].executor.close_epoch(epoch(1));
    net.settle();
    assert_eq!(net.peers[1].executor.kept(), 0);
    assert!(net.peers[1].events.is_empty());
    assert_eq!(net.count_messages(1, |_| true), 0, "its slots are gone, and nothing is to be said of them");
}

#[test]
fn stale_frames_are_dropped_and_their_slots_returned() {
    let mut net = Net::open(2, tuning(1, 1), 0);
    let memory = Memory::out_of_place(values(0, 1), 1);
    for seq in 0..10 {
        // The first peer starts each operation, the second only hears that it was aborted: before the
        // frame comes, or after.
        let id = op(1, seq);
        if seq % 2 == 0 {
            net.peers[1].executor.decided(id);
        }
        net.start(0, id, descriptor(1), one_way(0, 1, 1), &memory);
        net.settle();
        net.peers[1].executor.decided(id);
        net.poll(1);
        net.settle();
        assert!(net.is_done(0, id), "seq {seq} found a slot");
        net.peers[0].executor.abort(id);
    }
    assert_eq!(net.count_messages(1, |m| matches!(m, LinkMessage::Return { .. })), 10);
    let memory = Memory::out_of_place(values(0, 3), 3);
    for rank in 0..2 {
        net.start(rank, op(1, 10), descriptor(3), one_way(rank, 3, 1), &memory);
    }
    net.settle();
    assert_eq!(memory.target(), values(0, 3));
}
