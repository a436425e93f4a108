//! Whoever else comes to where ranks meet.

use super::rank_process::{Place, Rank, address};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

fn comer(rank: usize, at: &str, more: &str) -> Rank {
    let mut comer = Rank::start(format!("rank {rank}"));
    comer.tell(format!("connect rank={rank} world=2 at={at} {more}"));
    comer
}

/// Dials as soon as someone listens.
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
fn meet_all_the_same(mut first: Rank, at: &str) {
    let mut second = comer(1, at, "");
    first.answer().told();
    second.answer().told();
    first.tell("reduce 10");
    second.ask("reduce 10").told();
    first.answer().told();
    first.ends();
    second.ends();
}

#[test]
fn silent_and_invalid_connections_do_not_disturb_the_bootstrap() {
    let at = address();
    let first = comer(0, &at, "");
    let silent: Vec<_> = (0..20).map(|_| dial(&at)).collect();
    let mut babbling: Vec<_> = (0..20).map(|_| dial(&at)).collect();
    for (index, stream) in babbling.iter_mut().enumerate() {
        // Some are closed on before they have said it all.
        let _ = stream.write_all(&vec![index as u8 * 11; 10 + index * 5000]);
    }
    let mut asking = dial(&at);
    asking.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    asking.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut answer = Vec::new();
    // It is closed on, or reset; either way it learns little.
    let _ = asking.read_to_end(&mut answer);
    assert!(answer.len() < 1000);
    let begun = Instant::now();
    meet_all_the_same(first, &at);
    assert!(begun.elapsed() < Duration::from_secs(20));
    drop((silent, babbling));
}

#[test]
fn many_silent_connections_delay_the_bootstrap_only_briefly() {
    let at = address();
    let first = comer(0, &at, "");
    let silent: Vec<_> = (0..600).map(|_| dial(&at)).collect();
    meet_all_the_same(first, &at);
    drop(silent);
}

#[test]
fn a_rank_with_a_wrong_token_is_rejected_with_a_reason() {
    let at = address();
    let mut first = comer(0, &at, "token=right");
    let mut wrong = comer(1, &at, "token=wrong patience_ms=1500");
    let error = wrong.answer().error();
    println!("{error}");
    assert!(error.contains("token") || error.contains("secret"), "{error}");
    wrong.ends();
    let mut right = comer(1, &at, "token=right");
    right.answer().told();
    first.answer().told();
    first.ends();
    right.ends();
}

#[test]
fn rank_0_names_ranks_with_a_wrong_token_when_it_times_out() {
    let at = address();
    let mut first = comer(0, &at, "token=right patience_ms=3000");
    let mut wrong = comer(1, &at, "token=wrong patience_ms=1500");
    wrong.answer().error();
    let error = first.answer().error();
    assert!(error.contains("rank 1 did not come") && error.contains("token"), "{error}");
    first.ends();
    wrong.ends();
}

#[test]
fn the_secret_in_the_file_is_required() {
    let place = Place::new();
    let first = comer(0, &place.file(), "");
    let until = Instant::now() + Duration::from_secs(20);
    let text = loop {
        match std::fs::read_to_string(place.path()) {
            Ok(text) => break text,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let address = text.splitn(4, ':').nth(3).and_then(|list| list.trim().split(',').next()).unwrap();
    let mut guesser = comer(1, address, "patience_ms=500");
    guesser.answer().error();
    meet_all_the_same(first, &place.file());
}
