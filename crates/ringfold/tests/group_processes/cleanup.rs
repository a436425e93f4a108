//! Groups leave nothing behind.

use super::rank_process::{BootstrapDir, MEDIA, Rank, SOON, group};
use ringfold_lab::usage::descriptors;
use std::time::Instant;

#[test]
fn closed_groups_leave_no_threads_descriptors_memory_or_files() {
    for media in MEDIA {
        let dir = BootstrapDir::new();
        let mut ranks: Vec<_> = (0..3).map(|rank| Rank::start(format!("rank {rank}"))).collect();
        for (index, rank) in ranks.iter_mut().enumerate() {
            rank.send_command(format!("groups 20 rank={index} world=3 media={media} at={}", dir.file()));
        }
        for rank in &mut ranks {
            let reply = rank.answer().ok();
            println!("{media}: threads, descriptors and bytes before and after: {reply}");
            let numbers: Vec<u64> = reply
                .split(|sign: char| !sign.is_ascii_digit())
                .filter_map(|number| number.parse().ok())
                .collect();
            let [threads, open, bytes, threads_after, open_after, bytes_after] = numbers[..] else {
                panic!("{reply}")
            };
            assert_eq!((threads, open), (threads_after, open_after), "{media}: {reply}");
            assert!(bytes_after < bytes + (8 << 20), "{media}: {reply}");
        }
        ranks.into_iter().for_each(Rank::exit);
        assert_eq!(std::fs::read_dir(dir.folder()).unwrap().count(), 0);
    }
}

#[test]
fn a_group_has_no_name_in_any_file_system() {
    let ranks = group(3, "auto", "");
    for rank in &ranks {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", rank.pid())).unwrap();
        assert!(maps.contains("/memfd:ringfold"), "no shared memory");
        let paths = maps.lines().map(str::to_owned).chain(descriptors(rank.pid()).unwrap());
        for path in paths {
            assert!(!path.contains("/dev/shm"), "{path}");
            assert!(!path.contains("ringfold-bootstrap"), "{path}");
        }
    }
    ranks.into_iter().for_each(Rank::exit);
}

#[test]
fn a_failed_group_leaves_nothing_in_its_survivors() {
    for media in MEDIA {
        let mut ranks: Vec<_> = (0..3).map(|rank| Rank::start(format!("rank {rank}"))).collect();
        let before: Vec<_> = ranks.iter_mut().map(|rank| rank.ask("usage").ok()).collect();
        let dir = BootstrapDir::new();
        for (index, rank) in ranks.iter_mut().enumerate() {
            rank.send_command(format!("connect rank={index} world=3 media={media} at={}", dir.file()));
        }
        for rank in &mut ranks {
            rank.answer().ok();
        }
        ranks[0].send_command("reduce 10");
        ranks[1].send_command("reduce 10");
        ranks.pop().unwrap().kill9().unwrap();
        for (rank, before) in ranks.iter_mut().zip(before) {
            rank.answer().error();
            rank.ask("leave").ok();
            let until = Instant::now() + SOON;
            loop {
                let now = rank.ask("usage").ok();
                if now == before {
                    break;
                }
                let open = descriptors(rank.pid()).unwrap();
                assert!(Instant::now() < until, "{media}: {before} before, {now} now: {open:?}");
            }
        }
    }
}
