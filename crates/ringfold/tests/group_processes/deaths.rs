//! Ranks that are killed or stopped.

use super::rank_process::{MANY, MEDIA, Rank, SOON, await_waiting, group, now_ns};
use std::time::{Duration, Instant};

/// Kills the last rank. All others report it soon, and exit.
#[track_caller]
fn kill_last(what: &str, mut ranks: Vec<Rank>) {
    let mut victim = ranks.pop().expect("a rank");
    let name = format!("rank {} (", ranks.len());
    let killed_ns = now_ns();
    victim.kill9().unwrap();
    let mut slowest = 0;
    for mut rank in ranks {
        let answer = rank.answer();
        slowest = slowest.max(answer.at_ns - killed_ns);
        let error = answer.error();
        assert!(error.contains(&name), "{error}");
        rank.exit();
    }
    println!("killed in {what}: the last rank noticed after {:.1} ms", slowest as f64 / 1e6);
    assert!(slowest < SOON.as_nanos());
}

/// Waits until a rank reports a failure without a call, and returns it.
#[track_caller]
fn await_failure(rank: &mut Rank) -> String {
    let until = Instant::now() + SOON;
    loop {
        let answer = rank.ask("failure");
        if !answer.is_ok {
            return answer.text;
        }
        assert!(Instant::now() < until, "{}: the failure is not reported", rank.name());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_rank_killed_in_a_reduction_is_named_at_once() {
    for media in MEDIA {
        for (world, count) in [(3, 1), (4, 1), (4, 100_000), (3, MANY)] {
            let mut ranks = group(world, media, "");
            for rank in &mut ranks {
                rank.send_command(format!("endless-reduces {count}"));
            }
            ranks.iter_mut().for_each(Rank::wait_begun);
            // Then it is killed at any point of an operation.
            std::thread::sleep(Duration::from_millis(50));
            kill_last(&format!("{media} reductions of {count} among {world}"), ranks);
        }
    }
}

#[test]
fn a_rank_killed_in_a_broadcast_is_named_at_once() {
    for media in MEDIA {
        // The killed rank receives the data, or has it.
        for root in [0, 2] {
            let mut ranks = group(3, media, "");
            for rank in &mut ranks {
                rank.send_command(format!("endless-broadcasts {root} {}", 1 << 20));
            }
            ranks.iter_mut().for_each(Rank::wait_begun);
            // Then it is killed at any point of an operation.
            std::thread::sleep(Duration::from_millis(50));
            kill_last(&format!("{media} broadcasts of {root}"), ranks);
        }
    }
}

#[test]
fn a_rank_killed_in_a_transfer_is_named_at_once() {
    for media in MEDIA {
        for count in [1, MANY] {
            // Rank 1 has no call with it, but is notified too.
            for (first, last) in [("sends", "recvs"), ("recvs", "sends")] {
                let mut ranks = group(3, media, "");
                ranks[0].send_command(format!("endless-{first} 2 {count}"));
                ranks[2].send_command(format!("endless-{last} 0 {count}"));
                ranks[1].send_command("recv 0 10");
                ranks[0].wait_begun();
                ranks[2].wait_begun();
                kill_last(&format!("{media} {last} of {count}"), ranks);
            }
        }
    }
}

#[test]
fn a_rank_killed_outside_of_a_call_fails_the_running_call_and_the_next() {
    for media in MEDIA {
        let mut ranks = group(4, media, "");
        for rank in &mut ranks {
            rank.send_command("barrier");
        }
        for rank in &mut ranks {
            rank.answer().ok();
        }
        // Rank 0 waits for the victim; the others call later.
        ranks[0].send_command("reduce 10");
        await_waiting(&mut ranks[..1]);
        ranks[3].kill9().unwrap();
        let error = ranks[0].answer().error();
        assert!(error.contains("rank 3 ("), "{error}");
        let error = await_failure(&mut ranks[1]);
        assert!(error.contains("rank 3 ("), "{error}");
        for command in ["reduce 10", "send 0 1", "recv 0 1", "barrier"] {
            let error = ranks[2].ask(command).error();
            assert!(error.contains("rank 3 ("), "{command}: {error}");
        }
        ranks.remove(3);
        ranks.into_iter().for_each(Rank::exit);
    }
}

#[test]
fn a_rank_killed_while_all_are_idle_is_reported_without_a_call() {
    for media in MEDIA {
        let mut ranks = group(3, media, "");
        // All have answered that they are connected, and wait for commands.
        ranks.pop().unwrap().kill9().unwrap();
        for rank in &mut ranks {
            await_failure(rank);
        }
        ranks.into_iter().for_each(Rank::exit);
    }
}

#[test]
fn a_stopped_rank_is_named_at_the_timeout_and_sees_the_failure_when_it_continues() {
    for media in MEDIA {
        for count in [1, 1 << 20] {
            let mut ranks = group(4, media, "timeout_ms=1500");
            for rank in &mut ranks {
                rank.send_command(format!("endless-reduces {count}"));
            }
            ranks.iter_mut().for_each(Rank::wait_begun);
            let stopped_ns = now_ns();
            ranks[2].stop().unwrap();
            for index in [0, 1, 3] {
                let answer = ranks[index].answer();
                let after = Duration::from_nanos((answer.at_ns - stopped_ns) as u64);
                let error = answer.error();
                println!("{media}, {count} elements: rank {index} after {after:?}: {error}");
                assert!(error.contains("rank 2 ("), "{error}");
                assert!(after >= Duration::from_millis(1400) && after < Duration::from_secs(20), "{after:?}");
            }
            ranks[2].cont().unwrap();
            let error = ranks[2].answer().error();
            assert!(error.contains("rank 2 ("), "the stopped rank: {error}");
            ranks.into_iter().for_each(Rank::exit);
        }
    }
}

#[test]
fn a_rank_that_does_not_call_is_named_at_the_timeout() {
    for media in MEDIA {
        // In a ring, rank 0 waits for rank 3, which waits too.
        for count in [1, 1 << 20] {
            let mut ranks = group(4, media, "timeout_ms=1500");
            let mut idle = ranks.remove(2);
            for rank in &mut ranks {
                rank.send_command(format!("reduce {count}"));
            }
            for mut rank in ranks {
                let error = rank.answer().error();
                assert!(error.contains("rank 2 ("), "{media}, {count} elements: {error}");
                rank.exit();
            }
            assert!(idle.ask("reduce 1").error().contains("rank 2 ("));
            idle.exit();
        }
    }
}

#[test]
fn a_short_stop_is_not_a_failure() {
    for media in MEDIA {
        let mut ranks = group(3, media, "");
        for round in 0..3 {
            ranks[round].stop().unwrap();
            for rank in &mut ranks {
                rank.send_command("reduce 300000");
            }
            std::thread::sleep(Duration::from_millis(300));
            ranks[round].cont().unwrap();
            for rank in &mut ranks {
                rank.answer().ok();
            }
        }
        ranks.into_iter().for_each(Rank::exit);
    }
}
