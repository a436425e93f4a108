//! Ranks that read each other's memory, and ranks that may not.

use super::rank_process::{BootstrapDir, MEDIA, Rank, SOON, group, now_ns};
use std::time::Duration;

/// Starts ranks of which one has a setting, and connects them.
#[track_caller]
fn group_with(world: usize, odd_one: usize, setting: (&str, &str)) -> Vec<Rank> {
    let dir = BootstrapDir::new();
    let variables = [(setting.0, setting.1.to_owned())];
    let mut ranks: Vec<_> = (0..world)
        .map(|rank| Rank::start_in(format!("rank {rank}"), if rank == odd_one { &variables } else { &[] }))
        .collect();
    for (index, rank) in ranks.iter_mut().enumerate() {
        rank.send_command(format!("connect rank={index} world={world} at={}", dir.file()));
    }
    ranks.iter_mut().for_each(|rank| assert_eq!(rank.answer().ok(), "shared=true"));
    ranks
}

/// All ranks exchange pieces of unequal sizes around this many elements of 4 bytes.
#[track_caller]
fn exchange(ranks: &mut [Rank], count: usize) {
    for rank in &mut *ranks {
        rank.send_command(format!("exchange {count}"));
    }
    for rank in ranks {
        rank.answer().ok();
    }
}

#[test]
fn pieces_of_all_sizes_arrive_and_all_ranks_decide_the_same() {
    for world in [2, 3, 9] {
        let mut ranks = group(world, "auto", "");
        // Whether ranks may read each other's memory depends on the host.
        let decisions: Vec<_> = ranks.iter_mut().map(|rank| rank.ask("direct").ok()).collect();
        assert!(decisions.iter().all(|decision| *decision == decisions[0]), "{decisions:?}");
        for count in [0, 1, 1000, (64 << 10) / 4 - 2, (64 << 10) / 4 + 7, 40_000] {
            exchange(&mut ranks, count);
        }
        ranks.into_iter().for_each(Rank::exit);
    }
}

#[test]
fn one_rank_without_direct_copies_is_enough_for_all_to_use_slots() {
    for odd_one in [0, 2] {
        let mut ranks = group_with(3, odd_one, ("RINGFOLD_DIRECT_COPY", "false"));
        for rank in &mut ranks {
            let why = rank.ask("direct").ok();
            // Another rank may have a reason, too: a host may forbid all of them to read.
            let is_named = why == format!("rank {odd_one} has the setting direct_copy off");
            assert!(is_named || why.contains("cannot read the memory of"), "{why}");
        }
        exchange(&mut ranks, 100_000);
        ranks.into_iter().for_each(Rank::exit);
    }
}

#[test]
fn a_rank_killed_in_an_exchange_is_named_at_once() {
    for media in MEDIA {
        for count in [1000, 1 << 18] {
            let mut ranks = group(3, media, "");
            for rank in &mut ranks {
                rank.send_command(format!("endless-exchanges {count}"));
            }
            ranks.iter_mut().for_each(Rank::wait_begun);
            let killed_ns = now_ns();
            ranks.pop().expect("a rank").kill9().unwrap();
            for mut rank in ranks {
                let answer = rank.answer();
                assert!(answer.at_ns - killed_ns < SOON.as_nanos());
                let error = answer.error();
                assert!(error.contains("rank 2 ("), "{error}");
                rank.exit();
            }
        }
    }
}

#[test]
fn a_rank_stopped_in_an_exchange_is_named_at_the_timeout() {
    let mut ranks = group(3, "auto", "timeout_ms=1500");
    for rank in &mut ranks {
        rank.send_command(format!("endless-exchanges {}", 1 << 18));
    }
    ranks.iter_mut().for_each(Rank::wait_begun);
    let stopped_ns = now_ns();
    ranks[1].stop().unwrap();
    for index in [0, 2] {
        let answer = ranks[index].answer();
        let after = Duration::from_nanos((answer.at_ns - stopped_ns) as u64);
        let error = answer.error();
        assert!(error.contains("rank 1 ("), "{error}");
        assert!(after < Duration::from_secs(20), "{after:?}");
    }
    ranks[1].cont().unwrap();
    let error = ranks[1].answer().error();
    assert!(error.contains("rank 1 ("), "{error}");
    ranks.into_iter().for_each(Rank::exit);
}
