//! What a rank says when it waits, in its log and in errors.

use super::rank_process::{BootstrapDir, LONG, MEDIA, Rank, await_waiting, group};
use std::time::{Duration, Instant};

/// Warnings come after 0.5 s and 1 s.
const SOON: &str = "warn_after_ms=500";

/// The warnings in the log of a rank.
fn warnings(rank: &Rank) -> Vec<String> {
    rank.error_lines().into_iter().filter(|line| line.contains("still waiting")).collect()
}

/// Waits until a rank has warned with all these words in one line.
#[track_caller]
fn await_warning(rank: &Rank, words: &[&str]) -> String {
    let end = Instant::now() + LONG;
    loop {
        let all = warnings(rank);
        if let Some(line) = all.iter().find(|line| has_all(line, words)) {
            return line.clone();
        }
        assert!(Instant::now() < end, "no warning of {} with {words:?}: {all:#?}", rank.name());
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn has_all(text: &str, words: &[&str]) -> bool {
    words.iter().all(|word| text.contains(word))
}

#[test]
fn a_rank_that_does_not_call_is_named_in_warnings() {
    // In a ring, rank 0 waits for rank 3, which waits too.
    for (media, count) in [("auto", 1), ("tcp", 1 << 20)] {
        let mut ranks = group(4, media, SOON);
        for index in [0, 1, 3] {
            ranks[index].send_command(format!("reduce {count}"));
        }
        let missing = format!("still waiting for rank 2 ({}:{})", hostname(), ranks[2].pid());
        let call = format!(": it has not called all_reduce #1 ({count} uint32) (last heard ");
        for index in [0, 1, 3] {
            let words = ["WARN", &missing, &call, " s ago: alive, computing)"];
            println!("{media}: {}", await_warning(&ranks[index], &words));
        }
        ranks[2].send_command(format!("reduce {count}"));
        for rank in &mut ranks {
            rank.answer().ok();
        }
        ranks.into_iter().for_each(Rank::exit);
    }
}

#[test]
fn a_rank_in_another_call_is_named_with_it() {
    for (media, count) in [("tcp", 1), ("auto", 1 << 20)] {
        let mut ranks = group(3, media, &format!("{SOON} timeout_ms=1100"));
        ranks[2].send_command("recv 0 16");
        await_waiting(&mut ranks[2..]);
        ranks[0].send_command(format!("reduce {count}"));
        ranks[1].send_command(format!("reduce {count}"));
        let call = format!(": it has not called all_reduce #1 ({count} uint32) (last heard ");
        let known = ["rank 2 (", &call, "alive, waits in recv #1 from rank 0 (16 uint32) for "];
        await_warning(
            &ranks[0],
            &[&known[..], &["): do all ranks make the same calls in the same order?"]].concat(),
        );
        let error = ranks[0].answer().error();
        println!("{media}: {error}");
        // The deadline of the transfer, which waits for a rank in the collective, usually passes first. Deadlines that pass at
        // the same time on several ranks are each the cause there.
        let transfer = ["rank 0 (", ": it has not called send #1 to rank 2 (16 uint32) (last heard "];
        let collective = format!("alive, waits in all_reduce #1 ({count} uint32) for ");
        let transfer = [&transfer[..], &[&collective]].concat();
        let is_known = |error: &str| has_all(error, &transfer) || has_all(error, &known);
        assert!(is_known(&error), "{error}");
        for rank in &mut ranks[1..] {
            let error = rank.answer().error();
            assert!(is_known(&error), "{}: {error}", rank.name());
        }
        let all = warnings(&ranks[0]);
        assert!(all.len() <= 2, "too many warnings: {all:#?}");
        ranks.into_iter().for_each(Rank::exit);
    }
}

#[test]
fn a_stopped_rank_is_named_as_such() {
    for media in MEDIA {
        let mut ranks = group(3, media, &format!("{SOON} timeout_ms=1100"));
        ranks[1].stop().unwrap();
        ranks[0].send_command("barrier");
        ranks[2].send_command("barrier");
        // Ranks that use TCP by choice do not know that they are on one host.
        let state = if media == "tcp" { "it does not answer" } else { "its process is stopped" };
        for index in [0, 2] {
            await_warning(&ranks[index], &["rank 1 (", "it has not called barrier #1", state]);
            let error = ranks[index].answer().error();
            println!("{media}: {error}");
            let words = ["timed out waiting for rank 1 (", "it has not called barrier #1", state];
            assert!(has_all(&error, &words), "{error}");
        }
        ranks[1].cont().unwrap();
        ranks.into_iter().for_each(Rank::exit);
    }
}

#[test]
fn a_rank_that_is_killed_while_others_wait_is_named_as_dead() {
    for media in MEDIA {
        let mut ranks = group(2, media, SOON);
        ranks[0].send_command("barrier");
        await_warning(&ranks[0], &["rank 1 (", "it has not called barrier #1", "alive, computing"]);
        ranks[1].kill9().unwrap();
        let error = ranks[0].answer().error();
        println!("{media}: {error}");
        assert!(has_all(&error, &["rank 1 (", "died, or its connection broke"]), "{error}");
        ranks.remove(0).exit();
    }
}

#[test]
fn a_rank_that_does_not_connect_is_named_in_warnings() {
    let dir = BootstrapDir::new();
    let mut ranks: Vec<_> = (0..3).map(|rank| Rank::start(format!("rank {rank}"))).collect();
    let connect = |index: usize| format!("connect rank={index} world=3 media=auto at={} {SOON}", dir.file());
    ranks[0].send_command(connect(0));
    ranks[1].send_command(connect(1));
    await_warning(&ranks[0], &["still waiting for rank 2 for ", ": no connection at "]);
    await_warning(&ranks[1], &["still waiting for other ranks for ", ": they have not connected to rank 0"]);
    ranks[2].send_command(connect(2));
    for mut rank in ranks {
        rank.answer().ok();
        rank.exit();
    }
}

#[test]
fn waits_in_transfers_and_windows_are_reported() {
    for media in MEDIA {
        let mut ranks = group(3, media, &format!("{SOON} timeout_ms=1500"));
        ranks[0].send_command("recv 1 4");
        await_warning(
            &ranks[0],
            &["rank 1 (", "it has not called send #1 to rank 0 (4 uint32)", "computing"],
        );
        ranks[1].send_command("send 0 4");
        ranks[0].answer().ok();
        ranks[1].answer().ok();
        let windows = ["wait-signal 1", "window", "window"];
        for (rank, command) in ranks.iter_mut().zip(windows) {
            rank.send_command(command);
        }
        await_warning(&ranks[0], &["rank 1 (", "it has not called signal to rank 0", "computing"]);
        let error = ranks[0].answer().error();
        println!("{media}: {error}");
        let words = [
            "timed out waiting for a signal from rank 1 (",
            ") for ",
            " s (last heard ",
            "alive, computing)",
        ];
        assert!(has_all(&error, &words), "{error}");
        for rank in &mut ranks[1..] {
            rank.answer().ok();
        }
        ranks.into_iter().for_each(Rank::exit);
    }
}

#[test]
fn short_waits_are_not_reported() {
    for media in MEDIA {
        let mut ranks = group(2, media, "");
        for command in ["barrier", "reduce 1000"] {
            ranks[0].send_command(command);
            await_waiting(&mut ranks[..1]);
            std::thread::sleep(Duration::from_millis(500));
            ranks[1].send_command(command);
            for rank in &mut ranks {
                rank.answer().ok();
            }
        }
        let all: Vec<_> = ranks.iter().flat_map(warnings).collect();
        assert!(all.is_empty(), "{all:#?}");
        ranks.into_iter().for_each(Rank::exit);
    }
}

fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}
