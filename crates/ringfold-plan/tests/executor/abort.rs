//! Aborts restore memory, and free slots after the senders' fences (R4, R5).

use super::data_flow::{sums, values};
use super::memory::Memory;
use super::net::{Move, Net, op, tuning};
use super::plans::{descriptor, exchange, one_way, ring};
use ringfold_proto::link_message::LinkMessage;
use std::collections::BTreeSet;

const COUNT: usize = 3 * 4;

fn start_ring(net: &mut Net, seq: u64) -> Vec<Memory> {
    let world = net.peers.len();
    let memories: Vec<_> = (0..world).map(|r| Memory::in_place(values(r, COUNT), 0)).collect();
    for (rank, memory) in memories.iter().enumerate() {
        net.start(rank, op(1, seq), descriptor(COUNT), ring(rank, world, COUNT / world, 1), memory);
    }
    memories
}

/// Aborts after this many events. Returns whether there were as many.
fn abort_after(events: usize, seed: u64, eager: u16, window: u16) -> bool {
    let mut net = Net::open(3, tuning(eager, window), seed);
    let memories = start_ring(&mut net, 0);
    let lasted = (0..events).all(|_| net.stir());
    for rank in 0..3 {
        net.abort(rank, op(1, 0));
        for _ in 0..net.random(5) {
            net.stir();
        }
    }
    net.settle();
    for (rank, memory) in memories.iter().enumerate() {
        assert!(net.is_quiesced(rank, op(1, 0)));
        assert_eq!(memory.source(), values(rank, COUNT), "after {events} events, seed {seed}");
    }
    net.assert_clean();
    let memories = start_ring(&mut net, 1);
    net.settle();
    for (rank, memory) in memories.iter().enumerate() {
        assert_eq!(memory.target(), sums(3, COUNT), "a retry counts nothing twice");
        net.commit(rank, op(1, 1));
        assert!(net.peers[rank].executor.slots_made() <= usize::from(window), "every slot came back");
    }
    net.settle();
    net.assert_clean();
    lasted
}

#[test]
fn an_abort_at_any_time_restores_buffers_and_leaks_no_slot() {
    for (seed, eager, window) in [(1, 1, 1), (2, 1, 3), (3, 2, 2), (4, 4, 8), (5, 3, 1)] {
        let mut events = 0;
        while abort_after(events, seed, eager, window) {
            events += 1;
        }
        assert!(events > 50, "{events}");
    }
}

#[test]
fn memory_is_not_returned_before_the_last_put_is_flushed() {
    let mut net = Net::open(2, tuning(2, 2), 0);
    let memory = Memory::in_place(values(0, 2), 0);
    net.start(0, op(1, 0), descriptor(2), exchange(0, 2, 1), &memory);
    net.abort(0, op(1, 0));
    assert!(!net.is_quiesced(0, op(1, 0)));
    net.make(Move::Leave(0, 1));
    assert!(!net.is_quiesced(0, op(1, 0)), "one more is in flight");
    net.make(Move::Leave(0, 1));
    assert!(net.is_quiesced(0, op(1, 0)));
}

/// The slots that a peer has granted to an operation so far.
fn lent(net: &Net, from: usize, tag: u64) -> BTreeSet<u16> {
    let of = |message: &LinkMessage| match message {
        LinkMessage::Grant { op: o, slots } if o.tag == op(tag, 0).tag => slots.clone(),
        _ => Vec::new(),
    };
    net.messages.iter().filter(|(at, _, _)| *at == from).flat_map(|(_, _, message)| of(message)).collect()
}

#[test]
fn a_granted_slot_is_not_reused_before_the_senders_fence() {
    let mut net = Net::open(2, tuning(1, 4), 0);
    let memory = Memory::out_of_place(values(0, 8), 8);
    net.start(1, op(1, 0), descriptor(8), one_way(1, 8, 1), &memory);
    net.drain(1, 0);
    net.start(0, op(1, 0), descriptor(8), one_way(0, 8, 1), &memory);
    net.abort(1, op(1, 0));

    net.start(1, op(2, 0), descriptor(8), one_way(1, 8, 1), &memory);
    assert_eq!(lent(&net, 1, 1).len(), 4);
    assert_eq!(lent(&net, 1, 2).len(), 4);
    assert!(lent(&net, 1, 1).is_disjoint(&lent(&net, 1, 2)), "the first four may still be written");

    net.drain(0, 1);
    net.abort(0, op(1, 0));
    net.settle();
    net.start(1, op(3, 0), descriptor(8), one_way(1, 8, 1), &memory);
    assert!(lent(&net, 1, 3).is_subset(&lent(&net, 1, 1)), "the fence has come");
}

#[test]
fn a_grant_after_the_abort_is_answered_by_a_fence() {
    let mut net = Net::open(2, tuning(1, 4), 0);
    let memory = Memory::out_of_place(values(0, 8), 8);
    net.abort(0, op(1, 0));
    net.start(1, op(1, 0), descriptor(8), one_way(1, 8, 1), &memory);
    net.settle();
    assert_eq!(net.count_messages(0, |m| *m == LinkMessage::Fenced { op: op(1, 0) }), 1);
    net.abort(1, op(1, 0));
    net.start(1, op(2, 0), descriptor(8), one_way(1, 8, 1), &memory);
    assert_eq!(lent(&net, 1, 2), lent(&net, 1, 1));
}

/// Starts five operations on three peers and aborts every second one, in random order.
fn run_among_aborted(seed: u64) {
    let mut net = Net::open(3, tuning(1 + seed as u16 % 3, 1 + seed as u16 % 4), seed);
    let is_doomed = |tag: usize| tag % 2 == 1;
    let memories: Vec<Vec<_>> =
        (0..3).map(|r| (0..5).map(|_| Memory::in_place(values(r, COUNT), 0)).collect()).collect();
    let all = (0..3).flat_map(|rank| (0..5).map(move |tag| (rank, tag)));
    let mut to_do: Vec<_> = all.clone().map(|(rank, tag)| (rank, tag, true)).collect();
    to_do.extend(all.clone().filter(|(_, tag)| is_doomed(*tag)).map(|(rank, tag)| (rank, tag, false)));
    while !to_do.is_empty() {
        let next = net.random(to_do.len());
        let (rank, tag, is_start) = to_do.swap_remove(next);
        if is_start {
            let (id, plan) = (op(tag as u64, 0), ring(rank, 3, COUNT / 3, 1));
            let memory = memories[rank][tag].clone();
            // An operation that was aborted before it was started here is refused.
            let result = net.peers[rank].executor.start(net.now, id, descriptor(COUNT), plan, memory);
            assert!(result.is_ok() || is_doomed(tag));
            net.poll(rank);
        } else {
            net.abort(rank, op(tag as u64, 0));
        }
        for _ in 0..net.random(30) {
            net.stir();
        }
    }
    net.settle();
    for (rank, tag) in all {
        let memory = &memories[rank][tag];
        if is_doomed(tag) {
            assert_eq!(memory.source(), values(rank, COUNT), "seed {seed}");
        } else {
            assert!(net.is_done(rank, op(tag as u64, 0)), "seed {seed}: {tag} hangs on {rank}");
            assert_eq!(memory.target(), sums(3, COUNT), "seed {seed}");
            net.commit(rank, op(tag as u64, 0));
        }
    }
    net.settle();
    net.assert_clean();
}

#[test]
fn operations_finish_among_aborted_ones() {
    (0..150).for_each(run_among_aborted);
}

#[test]
fn closing_an_epoch_aborts_its_operations() {
    let mut net = Net::open(3, tuning(1, 2), 4);
    let memories = start_ring(&mut net, 0);
    for _ in 0..20 {
        net.stir();
    }
    for rank in 0..3 {
        net.peers[rank].executor.close_epoch(super::net::epoch(1));
        net.peers[rank].wire.retire(super::net::epoch(1));
        net.poll(rank);
    }
    net.settle();
    for (rank, memory) in memories.iter().enumerate() {
        assert!(net.is_quiesced(rank, op(1, 0)));
        assert_eq!(memory.source(), values(rank, COUNT));
    }
    net.assert_clean();
}
