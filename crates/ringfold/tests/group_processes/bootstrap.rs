//! How ranks find each other, or don't.

use super::rank_process::{MEDIA, Place, Rank, SOON, address};
use std::time::{Duration, Instant};

/// Starts a rank that meets the others somewhere.
fn comer(rank: usize, world: usize, at: &str, more: &str) -> Rank {
    let mut comer = Rank::start(format!("rank {rank} of {world}"));
    comer.tell(format!("connect rank={rank} world={world} at={at} {more}"));
    comer
}

/// All have come, and work together.
#[track_caller]
fn are_a_group(mut ranks: Vec<Rank>) {
    for rank in &mut ranks {
        rank.answer().told();
    }
    for rank in &mut ranks {
        rank.tell("reduce 1000");
    }
    for rank in &mut ranks {
        rank.answer().told();
    }
    ranks.into_iter().for_each(Rank::ends);
}

#[test]
fn ranks_connect_by_a_file_and_remove_it() {
    for media in MEDIA {
        let place = Place::new();
        let media = format!("media={media}");
        are_a_group((0..3).map(|rank| comer(rank, 3, &place.file(), &media)).collect());
        assert_eq!(std::fs::read_dir(place.folder()).unwrap().count(), 0);
    }
}

#[test]
fn ranks_connect_by_an_address_in_any_order() {
    for order in [[0, 1, 2], [2, 1, 0]] {
        let at = address();
        let come = |rank| {
            std::thread::sleep(Duration::from_millis(100));
            comer(rank, 3, &at, "")
        };
        are_a_group(order.into_iter().map(come).collect());
    }
}

#[test]
fn ranks_connect_by_their_environment() {
    let at = address();
    let (host, port) = at.split_once(':').unwrap();
    let rank = |rank: usize| {
        let variables = [("RANK", rank.to_string()), ("WORLD_SIZE", "3".into())];
        let place = [("MASTER_ADDR", host.into()), ("MASTER_PORT", port.into())];
        let mut comer = Rank::start_in(format!("rank {rank}"), &[variables, place].concat());
        comer.tell("connect environment=yes");
        comer
    };
    are_a_group((0..3).map(rank).collect());
}

#[test]
fn a_file_of_an_earlier_run_does_no_harm() {
    let place = Place::new();
    // Rank 0 of the earlier run is killed while it waits, so that its file stays.
    let mut earlier = comer(0, 2, &place.file(), "");
    let until = Instant::now() + SOON;
    while !place.path().exists() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(5));
    }
    earlier.kill9().unwrap();
    let mut ranks = vec![comer(1, 3, &place.file(), ""), comer(2, 3, &place.file(), "")];
    std::thread::sleep(Duration::from_millis(300));
    ranks.push(comer(0, 3, &place.file(), ""));
    are_a_group(ranks);

    // Someone else listens now where the file of an earlier run points, and never says a word.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let secret = "00112233445566778899aabbccddeeff";
    let file = format!("ringfold1:0123456789abcdef:{secret}:{}\n", silent.local_addr().unwrap());
    std::fs::write(place.path(), file).unwrap();
    let mut ranks = vec![comer(1, 2, &place.file(), "")];
    std::thread::sleep(Duration::from_millis(300));
    ranks.push(comer(0, 2, &place.file(), ""));
    are_a_group(ranks);

    std::fs::write(place.path(), "something else altogether").unwrap();
    let mut ranks = vec![comer(1, 2, &place.file(), "")];
    std::thread::sleep(Duration::from_millis(100));
    ranks.push(comer(0, 2, &place.file(), ""));
    are_a_group(ranks);
}

#[test]
fn a_late_rank_is_awaited() {
    let at = address();
    let mut ranks: Vec<_> = (0..2).map(|rank| comer(rank, 3, &at, "")).collect();
    ranks[0].await_visitors(1);
    ranks.push(comer(2, 3, &at, ""));
    are_a_group(ranks);
}

#[test]
fn missing_ranks_are_named_on_all_connected_ranks() {
    let place = Place::new();
    let begun = Instant::now();
    let mut came: Vec<_> =
        [0, 1].into_iter().map(|rank| comer(rank, 4, &place.file(), "patience_ms=2000")).collect();
    for rank in &mut came {
        let error = rank.answer().error();
        assert!(error.contains("waiting for ranks 2 and 3"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(2) + SOON);
    }
    came.into_iter().for_each(Rank::ends);
    assert_eq!(std::fs::read_dir(place.folder()).unwrap().count(), 0);

    let mut alone = comer(1, 2, &address(), "patience_ms=1000");
    let error = alone.answer().error();
    assert!(error.contains("timed out connecting to rank 0") && error.contains("refused"), "{error}");
    alone.ends();
}

#[test]
fn a_rank_killed_during_bootstrap_is_named_on_all_connected_ranks() {
    let at = address();
    let mut ranks: Vec<_> = (0..3).map(|rank| comer(rank, 4, &at, "patience_ms=20000")).collect();
    ranks[0].await_visitors(2);
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
    let mut ranks: Vec<_> = (0..2).map(|rank| comer(rank, 3, &at, "patience_ms=20000")).collect();
    ranks[0].await_visitors(1);
    let begun = Instant::now();
    ranks[0].kill9().unwrap();
    let error = ranks[1].answer().error();
    assert!(error.contains("lost rank 0") && begun.elapsed() < SOON, "{error}");
}

#[test]
fn a_duplicate_rank_is_rejected_and_the_others_continue() {
    let at = address();
    let mut ranks: Vec<_> = (0..2).map(|rank| comer(rank, 3, &at, "")).collect();
    ranks[0].await_visitors(1);
    let mut twin = comer(1, 3, &at, "");
    let error = twin.answer().error();
    assert!(error.contains("rank 1 is taken by rank 1 ("), "{error}");
    twin.ends();
    ranks.push(comer(2, 3, &at, ""));
    are_a_group(ranks);
}

#[test]
fn a_second_rank_0_does_not_disturb_the_first() {
    let at = address();
    let mut ranks = vec![comer(0, 2, &at, "")];
    ranks[0].await_listener(&at);
    let mut twin = comer(0, 2, &at, "patience_ms=1000");
    let error = twin.answer().error();
    assert!(error.contains("can't listen"), "{error}");
    ranks.push(comer(1, 2, &at, ""));
    are_a_group(ranks);
}

#[test]
fn different_world_sizes_are_rejected() {
    let at = address();
    let mut ranks = vec![comer(0, 2, &at, "")];
    let mut other = comer(1, 3, &at, "");
    let error = other.answer().error();
    assert!(error.contains("wrong world size 3: rank 0 has 2"), "{error}");
    let mut beyond = comer(2, 3, &at, "");
    assert!(beyond.answer().error().contains("world size 3"));
    ranks.push(comer(1, 2, &at, ""));
    are_a_group(ranks);
}

#[test]
fn groups_with_different_names_share_one_address() {
    let at = address();
    let mut ranks = Vec::new();
    for rank in [1, 0, 2] {
        for name in ["blue", "green"] {
            ranks.push((name, comer(rank, 3, &at, &format!("name={name}"))));
        }
    }
    let (blue, green): (Vec<_>, Vec<_>) = ranks.into_iter().partition(|(name, _)| *name == "blue");
    let strip = |ranks: Vec<(&str, Rank)>| ranks.into_iter().map(|(_, rank)| rank).collect();
    let green = std::thread::spawn({
        let green: Vec<Rank> = strip(green);
        move || are_a_group(green)
    });
    are_a_group(strip(blue));
    green.join().unwrap();
}
