//! Transfers with tags, and what ranks learn of each other beside operations.

use ringfold::{Bootstrap, DType, Error, Group, GroupOp, Media, TransferTag};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

static MEETINGS: AtomicUsize = AtomicUsize::new(0);

/// Runs a function in each rank of a group, over memory and over TCP.
fn ranks(world: usize, act: impl Fn(&Group) -> Result<(), Error> + Sync) {
    for media in [Media::Auto, Media::Tcp] {
        let number = MEETINGS.fetch_add(1, Ordering::Relaxed);
        let file = std::env::temp_dir().join(format!("ringfold-aside-{}-{number}", std::process::id()));
        std::thread::scope(|scope| {
            let act = &act;
            let all: Vec<_> = (0..world)
                .map(|rank| {
                    let at = Bootstrap::File(file.clone());
                    scope.spawn(move || {
                        let builder = Group::builder().rank(rank).world(world).bootstrap(at).media(media);
                        let group = builder.timeout(Duration::from_secs(20)).connect()?;
                        act(&group)?;
                        group.barrier()
                    })
                })
                .collect();
            for rank in all {
                rank.join().expect("a rank panicked").expect("a rank failed");
            }
        });
    }
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
fn transfers_meet_those_of_their_own_tag_whatever_the_order() {
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
fn one_sees_who_sends_before_one_receives() {
    ranks(3, |group| {
        let tag = TransferTag::new(5).expect("a tag");
        if group.rank() > 0 {
            // Longer than what is sent without being asked for.
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
fn what_is_told_is_heard_and_what_is_not_harms_nothing() {
    ranks(3, |group| {
        if group.rank() == 0 {
            assert_eq!(group.hear(1, 9, Duration::from_secs(20))?.as_deref(), Some("here"));
            assert_eq!(group.hear(2, 9, Duration::from_millis(10))?, None);
            assert!(group.hear(0, 9, Duration::ZERO).is_err() && group.tell(&[3], 9, "nobody").is_err());
        } else if group.rank() == 1 {
            group.tell(&[0, 2], 9, "here")?;
        }
        Ok(())
    });
}
