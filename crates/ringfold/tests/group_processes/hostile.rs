//! Other processes that connect to the bootstrap listener.

use super::rank_process::{BootstrapDir, Rank, address};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

fn start_rank(rank: usize, at: &str, more: &str) -> Rank {
    let mut rank_process = Rank::start(format!("rank {rank}"));
    rank_process.send_command(format!("connect rank={rank} world=2 at={at} {more}"));
    rank_process
}

/// Connects as soon as rank 0 listens.
fn dial(at: &str) -> TcpStream {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match TcpStream::connect(at) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[track_caller]
fn check_group_forms(mut first: Rank, at: &str) {
    let mut second = start_rank(1, at, "");
    first.answer().ok();
    second.answer().ok();
    first.send_command("reduce 10");
    second.ask("reduce 10").ok();
    first.answer().ok();
    first.exit();
    second.exit();
}

#[test]
fn silent_and_invalid_connections_do_not_disturb_the_bootstrap() {
    let at = address();
    let first = start_rank(0, &at, "");
    let silent: Vec<_> = (0..20).map(|_| dial(&at)).collect();
    let mut invalid: Vec<_> = (0..20).map(|_| dial(&at)).collect();
    for (index, stream) in invalid.iter_mut().enumerate() {
        // Some are closed before all is written.
        let _ = stream.write_all(&vec![index as u8 * 11; 10 + index * 5000]);
    }
    let mut asking = dial(&at);
    asking.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    asking.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut answer = Vec::new();
    // The connection is closed or reset.
    let _ = asking.read_to_end(&mut answer);
    assert!(answer.len() < 1000);
    let begun = Instant::now();
    check_group_forms(first, &at);
    assert!(begun.elapsed() < Duration::from_secs(20));
    drop((silent, invalid));
}

#[test]
fn many_silent_connections_delay_the_bootstrap_only_briefly() {
    let at = address();
    let first = start_rank(0, &at, "");
    let silent: Vec<_> = (0..600).map(|_| dial(&at)).collect();
    check_group_forms(first, &at);
    drop(silent);
}

#[test]
fn a_rank_with_a_wrong_token_is_rejected_with_a_reason() {
    let at = address();
    let mut first = start_rank(0, &at, "token=right");
    let mut wrong = start_rank(1, &at, "token=wrong connect_timeout_ms=1500");
    let error = wrong.answer().error();
    println!("{error}");
    assert!(error.contains("token") || error.contains("secret"), "{error}");
    wrong.exit();
    let mut right = start_rank(1, &at, "token=right");
    right.answer().ok();
    first.answer().ok();
    first.exit();
    right.exit();
}

#[test]
fn rank_0_names_ranks_with_a_wrong_token_when_it_times_out() {
    let at = address();
    let mut first = start_rank(0, &at, "token=right connect_timeout_ms=3000");
    let mut wrong = start_rank(1, &at, "token=wrong connect_timeout_ms=1500");
    wrong.answer().error();
    let error = first.answer().error();
    assert!(error.contains("waiting for rank 1") && error.contains("token"), "{error}");
    first.exit();
    wrong.exit();
}

#[test]
fn the_secret_in_the_file_is_required() {
    let dir = BootstrapDir::new();
    let first = start_rank(0, &dir.file(), "");
    let until = Instant::now() + Duration::from_secs(20);
    let text = loop {
        match std::fs::read_to_string(dir.path()) {
            Ok(text) => break text,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let address = text.splitn(4, ':').nth(3).and_then(|list| list.trim().split(',').next()).unwrap();
    let mut without_secret = start_rank(1, address, "connect_timeout_ms=500");
    without_secret.answer().error();
    check_group_forms(first, &dir.file());
}
