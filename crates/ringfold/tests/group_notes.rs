//! Tagged transfers, their senders, and notes.

use crate::rank_threads::run_on_both_media;
use ringfold::{DType, Error, Group, GroupOp, TransferTag};
use std::time::{Duration, Instant};

/// Runs a function in each rank of a group, over TCP and through shared memory.
fn ranks(world: usize, act: impl Fn(&Group) -> Result<(), Error> + Sync) {
    run_on_both_media(
        world,
        |builder| builder.timeout(Duration::from_secs(20)),
        |group| act(&group).and_then(|()| group.barrier()).expect("a rank failed"),
    );
}

fn send(group: &Group, tag: u32, to: usize, data: &[u8]) -> Result<(), Error> {
    let tag = TransferTag::new(tag).expect("a tag");
    group.run_bytes(GroupOp::Send { to, tag }, DType::U8, data, &mut [])
}

fn recv(group: &Group, tag: u32, from: usize, bytes: usize) -> Result<Vec<u8>, Error> {
    let tag = TransferTag::new(tag).expect("a tag");
    let mut data = vec![0; bytes];
    group.run_bytes(GroupOp::Recv { from, tag }, DType::U8, &[], &mut data)?;
    Ok(data)
}

#[test]
fn transfers_match_by_tag_in_any_order() {
    ranks(2, |group| {
        if group.rank() == 0 {
            for (tag, value) in [(7, 1), (0, 2), (7, 3), (TransferTag::MAX, 4)] {
                send(group, tag, 1, &[value; 9])?;
            }
        } else {
            for (tag, value) in [(TransferTag::MAX, 4), (0, 2), (7, 1), (7, 3)] {
                assert_eq!(recv(group, tag, 0, 9)?, [value; 9]);
            }
        }
        Ok(())
    });
    assert_eq!(TransferTag::new(TransferTag::MAX + 1), None);
}

#[test]
fn a_sender_is_visible_before_the_receive() {
    ranks(3, |group| {
        let tag = TransferTag::new(5).expect("a tag");
        if group.rank() > 0 {
            // Longer than what is sent eagerly.
            return send(group, 5, 0, &vec![group.rank() as u8; 1 << 22]);
        }
        let mut seen = Vec::new();
        let until = Instant::now() + Duration::from_secs(20);
        while seen.len() < 2 && Instant::now() < until {
            if let Some(from) = group.sender(tag)? {
                assert_eq!(recv(group, 5, from, 1 << 22)?, vec![from as u8; 1 << 22]);
                seen.push(from);
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, [1, 2]);
        assert_eq!(group.sender(tag)?, None);
        Ok(())
    });
}

#[test]
fn notes_arrive_and_a_missing_note_times_out() {
    ranks(3, |group| {
        if group.rank() == 0 {
            assert_eq!(group.recv_note(1, 9, Duration::from_secs(20))?.as_deref(), Some("here"));
            assert_eq!(group.recv_note(2, 9, Duration::from_millis(10))?, None);
            assert!(
                group.recv_note(0, 9, Duration::ZERO).is_err() && group.send_note(&[3], 9, "nobody").is_err()
            );
        } else if group.rank() == 1 {
            group.send_note(&[0, 2], 9, "here")?;
        }
        Ok(())
    });
}
