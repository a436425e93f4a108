//! What groups leave behind: nothing.

use super::rank_process::{MEDIA, Place, Rank, SOON, group};
use ringfold_lab::usage::descriptors;
use std::time::Instant;

#[test]
fn closed_groups_leave_no_threads_descriptors_memory_or_files() {
    for media in MEDIA {
        let place = Place::new();
        let mut ranks: Vec<_> = (0..3).map(|rank| Rank::start(format!("rank {rank}"))).collect();
        for (index, rank) in ranks.iter_mut().enumerate() {
            rank.tell(format!("groups 20 rank={index} world=3 media={media} at={}", place.file()));
        }
        for rank in &mut ranks {
            let told = rank.answer().told();
            println!("{media}: threads, descriptors and bytes before and after: {told}");
            let numbers: Vec<u64> = told
                .split(|sign: char| !sign.is_ascii_digit())
                .filter_map(|number| number.parse().ok())
                .collect();
            let [threads, open, bytes, threads_after, open_after, bytes_after] = numbers[..] else {
                panic!("{told}")
            };
            assert_eq!((threads, open), (threads_after, open_after), "{media}: {told}");
            assert!(bytes_after < bytes + (8 << 20), "{media}: {told}");
        }
        ranks.into_iter().for_each(Rank::ends);
        assert_eq!(std::fs::read_dir(place.folder()).unwrap().count(), 0);
    }
}

#[test]
fn a_group_has_no_name_in_any_file_system() {
    let ranks = group(3, "auto", "");
    for rank in &ranks {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", rank.pid())).unwrap();
        assert!(maps.contains("/memfd:ringfold"), "memory is shared");
        let places = maps.lines().map(str::to_owned).chain(descriptors(rank.pid()).unwrap());
        for place in places {
            assert!(!place.contains("/dev/shm"), "{place}");
            assert!(!place.contains("ringfold-meeting"), "{place}");
        }
    }
    ranks.into_iter().for_each(Rank::ends);
}

#[test]
fn a_failed_group_leaves_nothing_in_its_survivors() {
    for media in MEDIA {
        let mut ranks: Vec<_> = (0..3).map(|rank| Rank::start(format!("rank {rank}"))).collect();
        let before: Vec<_> = ranks.iter_mut().map(|rank| rank.ask("usage").told()).collect();
        let place = Place::new();
        for (index, rank) in ranks.iter_mut().enumerate() {
            rank.tell(format!("connect rank={index} world=3 media={media} at={}", place.file()));
        }
        for rank in &mut ranks {
            rank.answer().told();
        }
        ranks[0].tell("reduce 10");
        ranks[1].tell("reduce 10");
        ranks.pop().unwrap().kill9().unwrap();
        for (rank, before) in ranks.iter_mut().zip(before) {
            rank.answer().error();
            rank.ask("leave").told();
            let until = Instant::now() + SOON;
            loop {
                let now = rank.ask("usage").told();
                if now == before {
                    break;
                }
                let open = descriptors(rank.pid()).unwrap();
                assert!(Instant::now() < until, "{media}: {before} before, {now} now: {open:?}");
            }
        }
    }
}
