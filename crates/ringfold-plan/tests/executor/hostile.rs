//! Mismatched operations, and protocol violations.

use super::data_flow::values;
use super::memory::Memory;
use super::net::{Net, epoch, op, peer, tuning};
use super::plans::{FINGERPRINT, descriptor, exchange, exchange_as, ring};
use proptest::prelude::*;
use ringfold_plan::event::{ExecutorEvent, Violation};
use ringfold_plan::executor::FrameDecision;
use ringfold_plan::limits;
use ringfold_plan::medium::SlotId;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::id::{OpId, Seq, Tag};
use ringfold_proto::link_message::LinkMessage;

fn mismatches(net: &Net, at: usize) -> Vec<String> {
    let only = |e: &&ExecutorEvent<Memory>| matches!(e, ExecutorEvent::Mismatch { .. });
    net.peers[at].events.iter().filter(only).map(|e| e.to_string()).collect()
}

#[test]
fn a_mismatch_writes_nothing_and_names_the_peer_on_both_sides() {
    for frames in [1, 7] {
        for held in [false, true] {
            let mut net = Net::open(2, tuning(2, 2), 5);
            let memories: Vec<_> = (0..2).map(|r| Memory::in_place(values(r, frames), 0)).collect();
            for (rank, memory) in memories.iter().enumerate() {
                let plan = exchange_as(FINGERPRINT + rank as u64, rank, frames, 1);
                net.start(rank, op(1, 0), descriptor(frames), plan, memory);
                if held {
                    net.settle();
                }
            }
            net.settle();
            for (rank, memory) in memories.iter().enumerate() {
                let named = format!("{} is another operation on {}", op(1, 0), peer(1 - rank).short());
                assert_eq!(mismatches(&net, rank), [named]);
                assert_eq!(memory.source(), values(rank, frames));
                net.abort(rank, op(1, 0));
            }
            net.settle();
            net.assert_clean();

            let memories: Vec<_> = (0..2).map(|r| Memory::in_place(values(r, frames), 0)).collect();
            for (rank, memory) in memories.iter().enumerate() {
                net.start(rank, op(1, 1), descriptor(frames), exchange(rank, frames, 1), memory);
            }
            net.settle();
            assert!(net.is_done(0, op(1, 1)) && net.is_done(1, op(1, 1)), "the next one finds all slots");
        }
    }
}

/// Sends a message to peer 0 as peer 1, and returns the violation.
fn say(net: &mut Net, message: LinkMessage) -> Option<Violation> {
    net.peers[0].executor.handle_link_message(net.now, peer(1), message);
    net.poll(0);
    violation(net)
}

fn violation(net: &Net) -> Option<Violation> {
    net.peers[0].events.iter().find_map(|event| match event {
        ExecutorEvent::Violation { why, .. } => Some(*why),
        _ => None,
    })
}

#[test]
fn requests_and_grants_for_operations_not_started_are_bounded() {
    let max = limits::OPS_IN_FLIGHT_MAX as u64;
    for of in [epoch(1), epoch(2)] {
        let mut net = Net::open(2, tuning(1, 1), 0);
        let id = |tag| OpId { epoch: of, tag: Tag(tag), seq: Seq(0) };
        for tag in 0..max {
            assert_eq!(say(&mut net, LinkMessage::Want { op: id(tag) }), None);
        }
        assert_eq!(say(&mut net, LinkMessage::Want { op: id(max) }), Some(Violation::TooManyWants));

        let mut net = Net::open(2, tuning(1, 1), 0);
        for tag in 0..max {
            assert_eq!(say(&mut net, LinkMessage::Grant { op: id(tag), slots: vec![7; 8] }), None);
        }
        let more = LinkMessage::Grant { op: id(max), slots: vec![7] };
        assert_eq!(say(&mut net, more), Some(Violation::TooManyGrants));

        let mut net = Net::open(2, tuning(1, 1), 0);
        let wide =
            LinkMessage::Grant { op: id(0), slots: vec![7; 1 + usize::from(limits::WINDOW_SLOTS_MAX)] };
        assert_eq!(say(&mut net, wide), Some(Violation::TooManyGrants));
    }
}

#[test]
fn epochs_that_are_not_open_are_bounded_and_make_room_when_they_open() {
    let mut net = Net::open(2, tuning(1, 1), 0);
    let want = |counter| LinkMessage::Want { op: OpId { epoch: epoch(counter), ..op(1, 0) } };
    for counter in 2..2 + limits::PENDING_EPOCHS_MAX as u64 {
        assert_eq!(say(&mut net, want(counter)), None);
    }
    net.open_epoch(0, epoch(3), tuning(1, 1));
    assert_eq!(net.peers[0].executor.kept(), limits::PENDING_EPOCHS_MAX - 1, "one overtaken, one taken up");
    assert_eq!(say(&mut net, want(100)), None);
    assert_eq!(say(&mut net, want(101)), None);
    assert_eq!(say(&mut net, want(102)), Some(Violation::PendingEpochs));
}

#[test]
fn frames_that_do_not_fit_the_plan_or_the_slots_are_violations() {
    let good = DataHeader {
        op: op(1, 0),
        fingerprint: FINGERPRINT,
        chunk: 0,
        offset: 0,
        length: 8,
        slot: 0,
        eager: true,
        checksum: None,
    };
    let bad = [
        (DataHeader { chunk: 2, ..good }, Violation::NoSuchFrame(2)),
        (DataHeader { chunk: 1, ..good }, Violation::OutOfOrder { got: 1, expected: 0 }),
        (DataHeader { length: 9, ..good }, Violation::BadLength { got: 9, expected: 8 }),
        (DataHeader { slot: 3, ..good }, Violation::NoSuchSlot(3)),
        (DataHeader { eager: false, ..good }, Violation::NoSuchSlot(0)),
        (DataHeader { slot: 4, eager: false, ..good }, Violation::NotLent(4)),
        (DataHeader { slot: u16::MAX, eager: false, ..good }, Violation::NoSuchSlot(u16::MAX)),
        (DataHeader { op: op(2, 0), slot: 4, eager: false, ..good }, Violation::NotLent(4)),
        (
            DataHeader { op: OpId { epoch: epoch(9), ..op(1, 0) }, slot: 99, ..good },
            Violation::NoSuchSlot(99),
        ),
    ];
    for (header, why) in bad {
        let mut net = Net::open(2, tuning(2, 2), 0);
        let memory = Memory::in_place(values(0, 2), 0);
        net.start(0, op(1, 0), descriptor(2), exchange(0, 2, 1), &memory);
        let is_early = matches!(why, Violation::OutOfOrder { .. });
        let expected = if is_early { FrameDecision::Place } else { FrameDecision::Violation(why) };
        assert_eq!(net.peers[0].executor.offer(peer(1), &header), expected);
        net.peers[0].executor.handle_frame(net.now, peer(1), header);
        net.poll(0);
        assert_eq!(violation(&net), Some(why));
        assert_eq!(
            net.peers[0].executor.offer(peer(1), &good),
            FrameDecision::Discard,
            "it is not listened to"
        );
        assert_eq!(memory.source(), values(0, 2));
    }
}

#[test]
fn a_slot_cannot_be_filled_twice_nor_returned_unused() {
    let mut net = Net::open(2, tuning(2, 2), 0);
    assert_eq!(
        say(&mut net, LinkMessage::Return { epoch: epoch(1), slots: vec![0] }),
        Some(Violation::BadReturn(0))
    );
    let mut net = Net::open(2, tuning(2, 2), 0);
    let memory = Memory::out_of_place(values(1, 1), 1);
    net.start(1, op(1, 0), descriptor(1), exchange(1, 1, 1), &memory);
    net.settle();
    let header = DataHeader {
        op: op(1, 1),
        fingerprint: FINGERPRINT,
        chunk: 0,
        offset: 0,
        length: 8,
        slot: 0,
        eager: true,
        checksum: None,
    };
    assert_eq!(
        net.peers[0].executor.offer(peer(1), &header),
        FrameDecision::Violation(Violation::SlotFull(0)),
        "the frame that is held there stays as it is"
    );
}

#[derive(Clone, Debug)]
enum Input {
    Frame(DataHeader, bool),
    Message(LinkMessage),
    Start(u64, u64),
    Abort(OpId),
    Open(u64),
    Close(u64),
    Timeout,
}

fn ops() -> impl Strategy<Value = OpId> {
    (0..6u64, 0..4u64, 0..3u64).prop_map(|(counter, tag, seq)| OpId { epoch: epoch(counter), ..op(tag, seq) })
}

fn slots() -> impl Strategy<Value = u16> {
    prop_oneof![8 => 0..6u16, 1 => any::<u16>()]
}

fn headers() -> impl Strategy<Value = DataHeader> {
    let length = prop_oneof![6 => Just(8u32), 1 => Just(0), 1 => any::<u32>()];
    let chunk = prop_oneof![8 => 0..4u32, 1 => any::<u32>()];
    (ops(), 0..5u64, chunk, length, slots(), any::<bool>()).prop_map(
        |(op, print, chunk, length, slot, eager)| {
            let fingerprint = FINGERPRINT + print / 4;
            DataHeader { op, fingerprint, chunk, offset: 0, length, slot, eager, checksum: None }
        },
    )
}

fn inputs() -> impl Strategy<Value = Input> {
    let some = || proptest::collection::vec(slots(), 0..5);
    let messages = prop_oneof![
        (ops(), some()).prop_map(|(op, slots)| LinkMessage::Grant { op, slots }),
        ops().prop_map(|op| LinkMessage::Want { op }),
        (0..6u64, some()).prop_map(|(of, slots)| LinkMessage::Return { epoch: epoch(of), slots }),
        ops().prop_map(|op| LinkMessage::Fenced { op }),
        ops().prop_map(|op| LinkMessage::Mismatch { op }),
        Just(LinkMessage::Ping),
    ];
    prop_oneof![
        8 => (headers(), any::<bool>()).prop_map(|(header, offered)| Input::Frame(header, offered)),
        6 => messages.prop_map(Input::Message),
        4 => (0..4u64, 0..3u64).prop_map(|(tag, seq)| Input::Start(tag, seq)),
        1 => ops().prop_map(Input::Abort),
        1 => (0..6u64).prop_map(Input::Open),
        1 => (0..6u64).prop_map(Input::Close),
        1 => Just(Input::Timeout),
    ]
}

/// Sends input to peer 0 as peer 1, and reconnects the two after a violation.
fn feed(net: &mut Net, input: Input) {
    let now = net.now;
    match input {
        Input::Frame(header, is_offered) => {
            let victim = &mut net.peers[0];
            let slot = SlotId { from: peer(1), epoch: header.op.epoch, index: header.slot };
            let verdict = victim.executor.offer(peer(1), &header);
            if verdict == FrameDecision::Place {
                victim.wire.place(slot, vec![1; header.length as usize / 8]);
            }
            match verdict {
                FrameDecision::Discard if is_offered => {
                    victim.executor.handle_discarded(now, peer(1), header)
                }
                FrameDecision::Place => victim.executor.handle_frame(now, peer(1), header),
                _ => {}
            }
        }
        Input::Message(message) => net.peers[0].executor.handle_link_message(now, peer(1), message),
        Input::Start(tag, seq) => {
            let memory = Memory::in_place(values(0, 4), 0);
            let plan = if tag % 2 == 0 { exchange(0, 4, 1) } else { ring(0, 2, 2, 1) };
            let _ = net.peers[0].executor.start(now, op(tag, seq), descriptor(4), plan, memory);
        }
        Input::Abort(op) => net.peers[0].executor.abort(op),
        Input::Open(counter) => {
            let members = (0..2).map(peer).collect();
            let membership =
                ringfold_plan::executor::Membership::uniform(members, Default::default(), tuning(3, 2));
            let _ = net.peers[0].executor.open_epoch(epoch(counter), membership);
        }
        Input::Close(counter) => {
            net.peers[0].executor.close_epoch(epoch(counter));
            net.peers[0].wire.retire(epoch(counter));
        }
        Input::Timeout => {
            net.now = net.now + super::net::STALL_AFTER;
            net.peers[0].executor.handle_timeout(net.now);
        }
    }
    net.poll(0);
    let is_at_fault = net.peers[0].events.iter().any(|e| matches!(e, ExecutorEvent::Violation { .. }));
    net.peers[0].events.clear();
    if is_at_fault {
        net.cut(0, 1);
        net.mend(0, 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn nothing_that_a_peer_says_breaks_the_executor(said in proptest::collection::vec(inputs(), 1..120)) {
        let mut net = Net::open(2, tuning(3, 2), 0);
        for input in said {
            feed(&mut net, input);
            let executor = &net.peers[0].executor;
            prop_assert!(executor.kept() < 100 && executor.in_flight() <= 12 && executor.slots_made() < 50);
        }
        // Whatever it said, with a new link both can work in a new epoch.
        net.cut(0, 1);
        net.mend(0, 1);
        let id = OpId { epoch: epoch(10), ..op(0, 0) };
        let memories: Vec<_> = (0..2).map(|r| Memory::in_place(values(r, 8), 0)).collect();
        for (rank, memory) in memories.iter().enumerate() {
            net.open_epoch(rank, epoch(10), tuning(1, 1));
            net.start(rank, id, descriptor(8), exchange(rank, 8, 1), memory);
        }
        net.settle();
        prop_assert!(net.is_done(0, id) && net.is_done(1, id));
    }
}
