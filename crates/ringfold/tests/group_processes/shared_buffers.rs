//! Ranks that read each other's shared buffers.

use super::rank_process::{Rank, SOON, group, now_ns};
use std::time::Duration;

/// Elements of 4 bytes: more than the size from which on buffers are read in place.
const LARGE: usize = (1 << 20) + 77;

/// All ranks reduce shared buffers. Returns how many calls of each have read in place.
#[track_caller]
fn reduce(ranks: &mut [Rank], count: usize) -> Vec<String> {
    for rank in &mut *ranks {
        rank.send_command(format!("reduce-shared {count}"));
    }
    ranks.iter_mut().map(|rank| rank.answer().ok()).collect()
}

#[test]
fn processes_read_large_shared_buffers_in_place_and_small_ones_not() {
    for world in [2, 3, 4] {
        let mut ranks = group(world, "auto", "");
        for (count, uses) in [(LARGE, "2"), (1000, "2"), (0, "2"), (LARGE, "4"), (3 * LARGE, "6")] {
            assert_eq!(reduce(&mut ranks, count), vec![uses; world], "{count}");
        }
        // Memory and descriptors of freed buffers are freed.
        let usages: Vec<_> = ranks.iter_mut().map(|rank| rank.ask("usage").ok()).collect();
        reduce(&mut ranks, LARGE);
        let later: Vec<_> = ranks.iter_mut().map(|rank| rank.ask("usage").ok()).collect();
        assert_eq!(usages, later);
        ranks.into_iter().for_each(Rank::exit);
    }
}

#[test]
fn ranks_that_share_no_memory_reduce_shared_buffers_as_any_other() {
    let mut ranks = group(2, "tcp", "");
    assert_eq!(reduce(&mut ranks, LARGE), ["0", "0"]);
    ranks.into_iter().for_each(Rank::exit);
}

#[test]
fn a_rank_killed_in_the_middle_is_named_and_the_memory_of_the_others_is_theirs() {
    for world in [2, 3, 4] {
        for round in 0..3_u64 {
            let mut ranks = group(world, "auto", "");
            for rank in &mut ranks {
                rank.send_command(format!("endless-shared-reduces {LARGE}"));
            }
            ranks.iter_mut().for_each(Rank::wait_begun);
            // It is killed at a different point each time.
            std::thread::sleep(Duration::from_micros(20_000 + 777 * (world as u64 + 7 * round)));
            let killed_ns = now_ns();
            ranks.pop().expect("a rank").kill9().unwrap();
            for mut rank in ranks {
                let answer = rank.answer();
                assert!(answer.at_ns - killed_ns < SOON.as_nanos());
                let text = answer.ok();
                assert!(text.starts_with("in_place=true kept=true "), "{text}");
                assert!(text.contains(&format!("rank {} (", world - 1)), "{text}");
                rank.exit();
            }
        }
    }
}

#[test]
fn a_rank_stopped_in_the_middle_is_named_at_the_timeout() {
    let mut ranks = group(3, "auto", "timeout_ms=1500");
    for rank in &mut ranks {
        rank.send_command(format!("endless-shared-reduces {LARGE}"));
    }
    ranks.iter_mut().for_each(Rank::wait_begun);
    ranks[1].stop().unwrap();
    for index in [0, 2] {
        let text = ranks[index].answer().ok();
        assert!(text.starts_with("in_place=true kept=true ") && text.contains("rank 1 ("), "{text}");
    }
    // The others have returned, and use their memory for something else. It still fails.
    ranks[1].cont().unwrap();
    let text = ranks[1].answer().ok();
    assert!(text.contains("rank 1 ("), "{text}");
    ranks.into_iter().for_each(Rank::exit);
}
