//! Lost and stalled links (R9).

use super::data_flow::{sums, values};
use super::memory::Memory;
use super::net::{Net, STALL_AFTER, op, peer, tuning};
use super::plans::{descriptor, exchange, one_way, ring};
use ringfold_plan::event::ExecutorEvent;
use ringfold_proto::link_message::LinkMessage;
use ringfold_proto::message::Direction;

fn lost(net: &Net, at: usize) -> Vec<(u64, bool)> {
    let of = |event: &ExecutorEvent<Memory>| match event {
        ExecutorEvent::LinkLost { op, unfinished, .. } => Some((op.tag.0, *unfinished)),
        _ => None,
    };
    net.peers[at].events.iter().filter_map(of).collect()
}

fn stalls(net: &Net, at: usize) -> Vec<(u128, Direction)> {
    let of = |event: &ExecutorEvent<Memory>| match event {
        ExecutorEvent::Stalled { peer, direction } => Some((peer.0 - peer_base(), *direction)),
        _ => None,
    };
    net.peers[at].events.iter().filter_map(of).collect()
}

fn peer_base() -> u128 {
    peer(0).0
}

/// Lets time pass in small steps. Messages on live links arrive at once, and live peers send pings, as drivers do.
fn pass(net: &mut Net, times: u32, is_live: impl Fn(usize, usize) -> bool) {
    for _ in 0..times * 8 {
        net.now = net.now + STALL_AFTER / 8;
        for at in 0..net.peers.len() {
            let now = net.now;
            net.peers[at].executor.handle_timeout(now);
            net.poll(at);
        }
        let world = net.peers.len();
        let ways = (0..world).flat_map(|from| (0..world).map(move |to| (from, to)));
        for (from, to) in ways.filter(|(from, to)| from != to && is_live(*from, *to)) {
            net.drain(from, to);
            let now = net.now;
            net.peers[to].executor.handle_link_message(now, peer(from), LinkMessage::Ping);
        }
    }
}

#[test]
fn a_lost_link_is_reported_for_operations_that_had_begun_on_it_and_the_next_one_begins_anew() {
    let mut net = Net::open(2, tuning(2, 2), 7);
    let begun: Vec<_> = (0..2).map(|r| Memory::in_place(values(r, 6), 0)).collect();
    for (rank, memory) in begun.iter().enumerate() {
        net.start(rank, op(1, 0), descriptor(6), exchange(rank, 6, 1), memory);
    }
    for _ in 0..6 {
        net.stir();
    }
    net.cut(0, 1);
    for rank in 0..2 {
        assert_eq!(lost(&net, rank), [(1, true)]);
    }
    net.mend(0, 1);
    for rank in 0..2 {
        net.start(rank, op(2, 0), descriptor(6), exchange(rank, 6, 1), &Memory::in_place(values(rank, 6), 0));
    }
    net.settle();
    for (rank, memory) in begun.iter().enumerate() {
        assert!(net.is_done(rank, op(2, 0)), "a new operation has the new link's slots");
        assert!(!net.is_done(rank, op(1, 0)));
        net.abort(rank, op(1, 0));
        net.commit(rank, op(2, 0));
        assert_eq!(memory.source(), values(rank, 6));
    }
    net.settle();
    net.assert_clean();
}

#[test]
fn an_operation_that_had_not_used_the_lost_link_uses_the_next_one() {
    for frames in [1, 6] {
        let mut net = Net::open(2, tuning(2, 2), 7);
        let memory = Memory::out_of_place(values(0, 6), 6);
        net.start(1, op(1, 0), descriptor(6), one_way(1, frames, 1), &memory);
        net.settle();
        net.cut(0, 1);
        net.start(0, op(1, 0), descriptor(6), one_way(0, frames, 1), &memory);
        net.mend(0, 1);
        net.settle();
        assert!(lost(&net, 0).is_empty() && lost(&net, 1).is_empty());
        assert!(net.is_done(1, op(1, 0)), "{frames} frames");
        assert_eq!(memory.target()[..frames], values(0, 6)[..frames]);
    }
}

#[test]
fn a_finished_sender_reports_that_its_frames_may_be_lost() {
    let mut net = Net::open(2, tuning(2, 2), 7);
    net.start(0, op(1, 0), descriptor(1), one_way(0, 1, 1), &Memory::out_of_place(values(0, 1), 1));
    net.settle();
    net.cut(0, 1);
    assert_eq!(lost(&net, 0), [(1, false)]);
    assert_eq!(net.peers[1].executor.kept(), 0);
}

#[test]
fn the_loss_of_one_link_stops_only_what_depends_on_it() {
    let mut net = Net::open(3, tuning(1, 2), 7);
    for rank in 0..2 {
        net.start(rank, op(1, 0), descriptor(9), exchange(rank, 9, 1), &Memory::in_place(values(rank, 9), 0));
    }
    for rank in 0..3 {
        net.start(rank, op(2, 0), descriptor(9), ring(rank, 3, 3, 1), &Memory::in_place(values(rank, 9), 0));
    }
    net.cut(1, 2);
    net.settle();
    assert!(net.is_done(0, op(1, 0)) && net.is_done(1, op(1, 0)));
    assert!((0..3).all(|rank| !net.is_done(rank, op(2, 0))));
    for rank in 0..3 {
        net.abort(rank, op(2, 0));
    }
    net.settle();
    assert!((0..3).all(|rank| net.is_quiesced(rank, op(2, 0))));
}

#[test]
fn a_silent_peer_is_reported_once_per_stall() {
    let mut net = Net::open(2, tuning(1, 1), 0);
    for rank in 0..2 {
        net.start(rank, op(1, 0), descriptor(6), exchange(rank, 6, 1), &Memory::in_place(values(rank, 6), 0));
    }
    for _ in 0..12 {
        net.stir();
    }
    pass(&mut net, 3, |from, _| from == 0);
    assert_eq!(stalls(&net, 0), [(1, Direction::Incoming)]);
    net.settle();
    assert!(net.is_done(0, op(1, 0)) && net.is_done(1, op(1, 0)), "it was only slow");
}

#[test]
fn unflushed_puts_are_an_outgoing_stall() {
    let mut net = Net::open(2, tuning(4, 4), 0);
    net.start(0, op(1, 0), descriptor(2), one_way(0, 2, 1), &Memory::out_of_place(values(0, 2), 2));
    pass(&mut net, 3, |from, _| from == 1);
    assert_eq!(stalls(&net, 0), [(1, Direction::Outgoing)]);
}

#[test]
fn a_live_peer_that_has_not_called_is_not_stalled() {
    let mut net = Net::open(2, tuning(1, 1), 0);
    let memories: Vec<_> = (0..2).map(|r| Memory::in_place(values(r, 6), 0)).collect();
    net.start(0, op(1, 0), descriptor(6), exchange(0, 6, 1), &memories[0]);
    pass(&mut net, 10, |_, _| true);
    assert!(stalls(&net, 0).is_empty());
    net.start(1, op(1, 0), descriptor(6), exchange(1, 6, 1), &memories[1]);
    net.settle();
    assert_eq!(memories[0].target(), sums(2, 6));
}

#[test]
fn a_link_that_was_cut_before_the_other_end_called_is_reported() {
    let mut net = Net::open(2, tuning(1, 1), 0);
    net.start(0, op(1, 0), descriptor(6), exchange(0, 6, 1), &Memory::in_place(values(0, 6), 0));
    net.settle();
    pass(&mut net, 3, |_, _| false);
    assert_eq!(stalls(&net, 0), [(1, Direction::Incoming)]);
}

#[test]
fn a_peer_that_waits_for_another_is_not_stalled() {
    let mut net = Net::open(3, tuning(1, 1), 0);
    for rank in 0..2 {
        net.start(rank, op(1, 0), descriptor(9), ring(rank, 3, 3, 1), &Memory::in_place(values(rank, 9), 0));
    }
    net.settle();
    pass(&mut net, 10, |_, _| true);
    assert!((0..2).all(|rank| stalls(&net, rank).is_empty()), "{:?} {:?}", stalls(&net, 0), stalls(&net, 1));
}

#[test]
fn time_is_asked_for_only_while_operations_are_in_flight() {
    let mut net = Net::open(2, tuning(1, 1), 0);
    assert_eq!(net.peers[0].executor.poll_timeout(), None);
    for rank in 0..2 {
        net.start(rank, op(1, 0), descriptor(6), exchange(rank, 6, 1), &Memory::in_place(values(rank, 6), 0));
    }
    assert!(net.peers[0].executor.poll_timeout().is_some());
    net.settle();
    net.commit(0, op(1, 0));
    pass(&mut net, 1, |_, _| true);
    assert_eq!(net.peers[0].executor.poll_timeout(), None);
}
