//! Forming groups of processes, and failures of that.

use super::rank_process::{BootstrapDir, MEDIA, Rank, SOON, address, await_registered, await_waiting};
use std::time::{Duration, Instant};

/// Starts a rank that connects to the others.
fn start_rank(rank: usize, world: usize, at: &str, more: &str) -> Rank {
    let mut rank_process = Rank::start(format!("rank {rank} of {world}"));
    rank_process.send_command(format!("connect rank={rank} world={world} at={at} {more}"));
    rank_process
}

/// As [`start_rank`], and waits until the rank waits for others.
fn start_waiting(rank: usize, world: usize, at: &str) -> Rank {
    let mut rank_process = start_rank(rank, world, at, "");
    await_waiting(std::slice::from_mut(&mut rank_process));
    rank_process
}

/// Checks that ranks have formed a group.
#[track_caller]
fn check_group(mut ranks: Vec<Rank>) {
    for rank in &mut ranks {
        rank.answer().ok();
    }
    for rank in &mut ranks {
        rank.send_command("reduce 1000");
    }
    for rank in &mut ranks {
        rank.answer().ok();
    }
    ranks.into_iter().for_each(Rank::exit);
}

#[test]
fn ranks_connect_by_a_file_and_remove_it() {
    for media in MEDIA {
        let dir = BootstrapDir::new();
        let media = format!("media={media}");
        check_group((0..3).map(|rank| start_rank(rank, 3, &dir.file(), &media)).collect());
        assert_eq!(std::fs::read_dir(dir.folder()).unwrap().count(), 0);
    }
}

#[test]
fn ranks_connect_by_an_address_in_any_order() {
    for (order, last) in [([0, 1], 2), ([2, 1], 0)] {
        let at = address();
        let mut ranks: Vec<_> = order.into_iter().map(|rank| start_waiting(rank, 3, &at)).collect();
        ranks.push(start_rank(last, 3, &at, ""));
        check_group(ranks);
    }
}

#[test]
fn ranks_connect_by_their_environment() {
    let at = address();
    let (host, port) = at.split_once(':').unwrap();
    let rank = |rank: usize| {
        let variables = [("RANK", rank.to_string()), ("WORLD_SIZE", "3".into())];
        let dir = [("MASTER_ADDR", host.into()), ("MASTER_PORT", port.into())];
        let mut rank_process = Rank::start_in(format!("rank {rank}"), &[variables, dir].concat());
        rank_process.send_command("connect environment=yes");
        rank_process
    };
    check_group((0..3).map(rank).collect());
}

#[test]
fn a_file_of_an_earlier_run_does_no_harm() {
    let dir = BootstrapDir::new();
    // Rank 0 of the earlier run is killed while it waits, so that its file stays.
    let mut earlier = start_rank(0, 2, &dir.file(), "");
    let until = Instant::now() + SOON;
    while !dir.path().exists() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(5));
    }
    earlier.kill9().unwrap();
    let mut ranks = vec![start_waiting(1, 3, &dir.file()), start_waiting(2, 3, &dir.file())];
    ranks.push(start_rank(0, 3, &dir.file(), ""));
    check_group(ranks);

    // A silent listener at the address in the file of an earlier run.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let secret = "00112233445566778899aabbccddeeff";
    let file = format!("ringfold1:0123456789abcdef:{secret}:{}\n", silent.local_addr().unwrap());
    std::fs::write(dir.path(), file).unwrap();
    let mut ranks = vec![start_waiting(1, 2, &dir.file())];
    ranks.push(start_rank(0, 2, &dir.file(), ""));
    check_group(ranks);

    std::fs::write(dir.path(), "not an announcement").unwrap();
    let mut ranks = vec![start_waiting(1, 2, &dir.file())];
    ranks.push(start_rank(0, 2, &dir.file(), ""));
    check_group(ranks);
}

#[test]
fn a_late_rank_is_awaited() {
    let at = address();
    let mut ranks: Vec<_> = (0..2).map(|rank| start_rank(rank, 3, &at, "")).collect();
    await_registered(&mut ranks);
    ranks.push(start_rank(2, 3, &at, ""));
    check_group(ranks);
}

#[test]
fn missing_ranks_are_named_on_all_connected_ranks() {
    let dir = BootstrapDir::new();
    let begun = Instant::now();
    let mut came: Vec<_> =
        [0, 1].into_iter().map(|rank| start_rank(rank, 4, &dir.file(), "connect_timeout_ms=2000")).collect();
    for rank in &mut came {
        let error = rank.answer().error();
        assert!(error.contains("waiting for ranks 2 and 3"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(2) + SOON);
    }
    came.into_iter().for_each(Rank::exit);
    assert_eq!(std::fs::read_dir(dir.folder()).unwrap().count(), 0);

    let mut alone = start_rank(1, 2, &address(), "connect_timeout_ms=1000");
    let error = alone.answer().error();
    // Another test may listen on the port meanwhile, and not answer.
    let says_why = error.contains("refused") || error.contains("no answer");
    assert!(error.contains("timed out connecting to rank 0") && says_why, "{error}");
    alone.exit();
}

#[test]
fn a_rank_killed_during_bootstrap_is_named_on_all_connected_ranks() {
    let at = address();
    let mut ranks: Vec<_> = (0..3).map(|rank| start_rank(rank, 4, &at, "connect_timeout_ms=20000")).collect();
    await_registered(&mut ranks);
    let begun = Instant::now();
    ranks[1].kill9().unwrap();
    for rank in [0, 2] {
        let error = ranks[rank].answer().error();
        assert!(error.contains("lost rank 1 while the group formed"), "{error}");
        assert!(begun.elapsed() < SOON);
    }
}

#[test]
fn waiting_ranks_report_that_rank_0_was_killed() {
    let at = address();
    let mut ranks: Vec<_> = (0..2).map(|rank| start_rank(rank, 3, &at, "connect_timeout_ms=20000")).collect();
    await_registered(&mut ranks);
    let begun = Instant::now();
    ranks[0].kill9().unwrap();
    let error = ranks[1].answer().error();
    assert!(error.contains("lost rank 0") && begun.elapsed() < SOON, "{error}");
}

#[test]
fn a_duplicate_rank_is_rejected_and_the_others_continue() {
    let at = address();
    let mut ranks: Vec<_> = (0..2).map(|rank| start_rank(rank, 3, &at, "")).collect();
    await_registered(&mut ranks);
    let mut twin = start_rank(1, 3, &at, "");
    let error = twin.answer().error();
    assert!(error.contains("rank 1 is taken by rank 1 ("), "{error}");
    twin.exit();
    ranks.push(start_rank(2, 3, &at, ""));
    check_group(ranks);
}

#[test]
fn a_second_rank_0_does_not_disturb_the_first() {
    let at = address();
    let mut ranks = vec![start_rank(0, 2, &at, "")];
    ranks[0].await_listener(&at);
    let mut twin = start_rank(0, 2, &at, "connect_timeout_ms=1000");
    let error = twin.answer().error();
    assert!(error.contains("cannot listen"), "{error}");
    ranks.push(start_rank(1, 2, &at, ""));
    check_group(ranks);
}

#[test]
fn different_world_sizes_are_rejected() {
    let at = address();
    let mut ranks = vec![start_rank(0, 2, &at, "")];
    let mut other = start_rank(1, 3, &at, "");
    let error = other.answer().error();
    assert!(error.contains("wrong world size 3: rank 0 has 2"), "{error}");
    let mut beyond = start_rank(2, 3, &at, "");
    assert!(beyond.answer().error().contains("world size 3"));
    ranks.push(start_rank(1, 2, &at, ""));
    check_group(ranks);
}

#[test]
fn groups_with_different_names_share_one_address() {
    let at = address();
    let mut ranks = Vec::new();
    for rank in [1, 0, 2] {
        for name in ["blue", "green"] {
            ranks.push((name, start_rank(rank, 3, &at, &format!("name={name}"))));
        }
    }
    let (blue, green): (Vec<_>, Vec<_>) = ranks.into_iter().partition(|(name, _)| *name == "blue");
    let strip = |ranks: Vec<(&str, Rank)>| ranks.into_iter().map(|(_, rank)| rank).collect();
    let green = std::thread::spawn({
        let green: Vec<Rank> = strip(green);
        move || check_group(green)
    });
    check_group(strip(blue));
    green.join().unwrap();
}
