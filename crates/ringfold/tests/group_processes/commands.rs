//! A rank that takes its commands from standard input, one per line, and answers each on standard output.

use super::rank_process::now_ns;
use ringfold::{Bootstrap, Error, Group, GroupBuilder, Media, ReduceOp, Tuning};
use ringfold_lab::Usage;
use std::collections::HashMap;
use std::io::BufRead;
use std::time::Duration;

/// What came of a command: something to tell, or an error's words.
type Told = Result<String, String>;

/// Does what it is told until there is nothing more, or an endless operation has failed.
pub fn play() {
    ringfold_lab::log::start();
    let mut group = None;
    // The test's harness has begun a line of its own.
    println!();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a command");
        let mut words = line.split_whitespace();
        let command = words.next().unwrap_or_default();
        let words: Vec<&str> = words.collect();
        let told = obey(&mut group, command, &words);
        let outcome = if told.is_ok() { "ok" } else { "failed" };
        let text = told.unwrap_or_else(|why| why);
        println!("{outcome} {command} {} {text}", now_ns());
        if command.starts_with("endless") {
            return;
        }
    }
}

fn obey(group: &mut Option<Group>, command: &str, words: &[&str]) -> Told {
    let number = |index: usize| words[index].parse::<usize>().expect("a number");
    match command {
        "connect" => {
            let made = described(words).connect().map_err(said)?;
            let told = format!("shared={}", made.is_shared());
            *group = Some(made);
            return Ok(told);
        }
        "groups" => return make_groups(number(0), &words[1..]),
        "leave" => {
            *group = None;
            return Ok(String::new());
        }
        "usage" => {
            let Usage { threads, descriptors, .. } = Usage::of_this_process().expect("usage");
            return Ok(format!("threads={threads} descriptors={descriptors}"));
        }
        _ => {}
    }
    let group = group.as_ref().expect("a group");
    match command {
        "reduce" => reduce(group, number(0)),
        "barrier" => group.barrier(),
        "send" => group.send(&vec![group.rank() as u32; number(1)], number(0)),
        "recv" => receive(group, number(0), number(1)),
        "endless-reduces" => endless(command, || reduce(group, number(0))),
        "endless-restored" => return Ok(restored(group, command, words[0], number(1))),
        "endless-broadcasts" => {
            let mut data = vec![group.rank() as f32; number(1)];
            endless(command, || group.broadcast(&mut data, number(0)))
        }
        "endless-sends" => {
            let data = vec![group.rank() as u32; number(1)];
            endless(command, || group.send(&data, number(0)))
        }
        "endless-recvs" => endless(command, || receive(group, number(0), number(1))),
        "failure" => group.failure().map_or(Ok(()), Err),
        _ => panic!("{command:?} is unknown"),
    }
    .map(|()| String::new())
    .map_err(said)
}

fn said(error: Error) -> String {
    error.to_string()
}

/// Does something until it fails, and tells when it has gone well for the first time.
fn endless(command: &str, mut work: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
    work()?;
    println!("begun {command}");
    loop {
        work()?;
    }
}

fn reduce(group: &Group, count: usize) -> Result<(), Error> {
    let world = group.world() as u32;
    let mut data = vec![group.rank() as u32; count];
    group.all_reduce(&mut data, ReduceOp::Sum)?;
    assert!(data.iter().all(|sum| *sum == world * (world - 1) / 2), "a sum is wrong");
    Ok(())
}

/// Operations in place until one fails: how many counted, and whether what the last one found is still there.
fn restored(group: &Group, command: &str, op: &str, count: usize) -> String {
    let (me, world) = (group.rank() as u32, group.world() as u32);
    for counted in 0_u32.. {
        let mut data = vec![me + counted; count];
        let (outcome, expected) = match op {
            "reduce" => {
                (group.all_reduce(&mut data, ReduceOp::Sum), world * (world - 1) / 2 + world * counted)
            }
            _ => (group.broadcast(&mut data, 0), counted),
        };
        match outcome {
            Ok(()) => assert!(data.iter().all(|value| *value == expected), "a result is wrong"),
            Err(error) => {
                let is_back = data.iter().all(|value| *value == me + counted);
                return format!("counted={counted} back={is_back} {error}");
            }
        }
        if counted == 0 {
            println!("begun {command}");
        }
    }
    unreachable!("an operation fails before that")
}

fn receive(group: &Group, from: usize, count: usize) -> Result<(), Error> {
    let mut data = vec![u32::MAX; count];
    group.recv(&mut data, from)?;
    assert!(data.iter().all(|value| *value == from as u32), "something else was received");
    Ok(())
}

/// Makes groups one after the other, and says what this process holds after the first and after the last.
fn make_groups(times: usize, words: &[&str]) -> Told {
    let settings = settings(words);
    let mut usages = Vec::new();
    for time in 0..=times {
        let at = meeting_place(&format!("{}-{time}", settings["at"]));
        let group = described(words).bootstrap(at).connect().map_err(said)?;
        reduce(&group, 100_000).map_err(said)?;
        group.barrier().map_err(said)?;
        drop(group);
        if time == 0 || time == times {
            let Usage { threads, descriptors, anonymous_bytes, .. } = settled(usages.first());
            usages.push((threads, descriptors, anonymous_bytes));
        }
    }
    Ok(format!("{usages:?}"))
}

/// What this process holds. Threads may take a moment to end.
fn settled(before: Option<&(usize, usize, u64)>) -> Usage {
    for _ in 0..200 {
        let usage = Usage::of_this_process().expect("usage");
        if before.is_some_and(|before| (usage.threads, usage.descriptors) == (before.0, before.1)) {
            return usage;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Usage::of_this_process().expect("usage")
}

fn settings<'a>(words: &[&'a str]) -> HashMap<&'a str, &'a str> {
    words.iter().map(|word| word.split_once('=').expect("key=value")).collect()
}

/// The group that `key=value` words describe.
fn described(words: &[&str]) -> GroupBuilder {
    let settings = settings(words);
    let mut builder = Group::builder();
    if settings.contains_key("environment") {
        builder = builder.environment().expect("an environment");
    }
    for (key, value) in settings {
        let number = || value.parse::<usize>().expect("a number");
        builder = match key {
            "rank" => builder.rank(number()),
            "world" => builder.world(number()),
            "at" => builder.bootstrap(meeting_place(value)),
            "name" => builder.name(value),
            "token" => builder.token(value),
            "chunk_bytes" => builder.tuning(Tuning { chunk_bytes: number() as u32, ..Tuning::default() }),
            "timeout_ms" => builder.timeout(Duration::from_millis(number() as u64)),
            "patience_ms" => builder.connect_timeout(Duration::from_millis(number() as u64)),
            "restoring" => builder.restore_on_failure(number() == 1),
            "media" => builder.media(match value {
                "tcp" => Media::Tcp,
                "shared" => Media::Shared,
                _ => Media::Auto,
            }),
            "environment" => builder,
            _ => panic!("{key:?} is unknown"),
        };
    }
    builder
}

fn meeting_place(text: &str) -> Bootstrap {
    text.strip_prefix("file:")
        .map_or_else(|| Bootstrap::Address(text.into()), |path| Bootstrap::File(path.into()))
}
