//! A rank that takes its commands from standard input, one per line, and answers each on standard output.

use super::rank_process::{LONG, now_ns};
use crate::blocked::this_thread;
use ringfold::{Bootstrap, Error, Group, GroupBuilder, Media, Memory, ReduceOp, SharedBuffer, Tuning};
use ringfold_lab::Usage;
use std::collections::HashMap;
use std::io::BufRead;
use std::time::{Duration, Instant};

/// The result of a command: a reply, or the text of an error.
type Reply = Result<String, String>;

/// Executes commands until standard input ends, or an endless operation has failed.
pub fn run() {
    ringfold_lab::log::start();
    let mut group = None;
    // The test harness has printed an incomplete line.
    println!();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a command");
        let mut words = line.split_whitespace();
        let command = words.next().unwrap_or_default();
        let words: Vec<&str> = words.collect();
        println!("calls {command} {}", this_thread());
        let reply = execute(&mut group, command, &words);
        let outcome = if reply.is_ok() { "ok" } else { "failed" };
        let text = reply.unwrap_or_else(|why| why);
        println!("{outcome} {command} {} {text}", now_ns());
        if command.starts_with("endless") {
            return;
        }
    }
}

fn execute(group: &mut Option<Group>, command: &str, words: &[&str]) -> Reply {
    let number = |index: usize| words[index].parse::<usize>().expect("a number");
    match command {
        "connect" => {
            let connected = builder(words).connect().map_err(text)?;
            let reply = format!("shared={}", connected.is_shared());
            *group = Some(connected);
            return Ok(reply);
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
        "wait-signal" => wait_signal(group, number(0)),
        "window" => group.window(Memory::zeroed(8), &[]).map(drop),
        "send" => group.send(&vec![group.rank() as u32; number(1)], number(0)),
        "recv" => receive(group, number(0), number(1)),
        "endless-reduces" => endless(command, || reduce(group, number(0))),
        "endless-restored" => return Ok(restored(group, command, words[0], number(1))),
        "endless-broadcasts" => {
            let mut data = vec![group.rank() as f32; number(1)];
            endless(command, || group.broadcast(&mut data, number(0)))
        }
        "direct" => return Ok(group.copies_directly().map_or_else(Into::into, |()| "direct".into())),
        "exchange" => Exchange::new(group, number(0)).run(group),
        "endless-exchanges" => {
            let exchange = Exchange::new(group, number(0));
            endless(command, || exchange.run(group))
        }
        "reduce-shared" => return reduce_shared(group, number(0)).map_err(text),
        "endless-shared-reduces" => return Ok(endless_shared_reduces(group, command, number(0))),
        "endless-sends" => {
            let data = vec![group.rank() as u32; number(1)];
            endless(command, || group.send(&data, number(0)))
        }
        "endless-recvs" => endless(command, || receive(group, number(0), number(1))),
        "failure" => group.failure().map_or(Ok(()), Err),
        _ => panic!("unknown command {command:?}"),
    }
    .map(|()| String::new())
    .map_err(text)
}

fn text(error: Error) -> String {
    error.to_string()
}

/// Repeats an operation until it fails; prints a line after the first success.
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
    assert!(data.iter().all(|sum| *sum == world * (world - 1) / 2), "wrong sum");
    Ok(())
}

/// Reduces shared buffers in place and out of place. Returns how many calls have read those of the others in place.
fn reduce_shared(group: &Group, count: usize) -> Result<String, Error> {
    let (me, world) = (group.rank() as u32, group.world() as u32);
    let [mut input, mut output] =
        [(); 2].map(|()| SharedBuffer::zeroed(count * size_of::<u32>()).expect("a shared buffer"));
    let sum = world * (world - 1) / 2;
    input.elements_mut().fill(me);
    group.all_reduce_into(input.elements::<u32>(), output.elements_mut(), ReduceOp::Sum)?;
    assert!(output.elements::<u32>().iter().all(|value| *value == sum), "wrong sum");
    assert!(input.elements::<u32>().iter().all(|value| *value == me), "the input has changed");
    group.all_reduce(input.elements_mut::<u32>(), ReduceOp::Sum)?;
    assert!(input.elements::<u32>().iter().all(|value| *value == sum), "wrong sum in place");
    Ok(group.shared_collectives().to_string())
}

/// Reduces a shared buffer until that fails. Returns whether anybody changes it afterwards, and the error.
fn endless_shared_reduces(group: &Group, command: &str, count: usize) -> String {
    let mut buffer = SharedBuffer::zeroed(count * size_of::<u32>()).expect("a shared buffer");
    let error = endless(command, || {
        buffer.elements_mut().fill(group.rank() as u32);
        group.all_reduce(buffer.elements_mut::<u32>(), ReduceOp::Sum)
    });
    // The call has returned, so the memory belongs to its owner.
    buffer.as_mut_slice().fill(0xab);
    std::thread::sleep(Duration::from_millis(100));
    let is_kept = buffer.as_slice().iter().all(|byte| *byte == 0xab);
    let in_place = group.shared_collectives() > 0;
    format!("in_place={in_place} kept={is_kept} {}", text(error.expect_err("it has failed")))
}

/// Pieces of unequal sizes that a rank sends to all ranks, and what it receives.
struct Exchange {
    send: Vec<usize>,
    receive: Vec<usize>,
    input: Vec<u32>,
    expected: Vec<u32>,
}

impl Exchange {
    fn new(group: &Group, count: usize) -> Self {
        let (me, world) = (group.rank(), group.world());
        let size = |from: usize, to: usize| count + (7 * from + 3 * to) % 5;
        let piece = |from: usize, to: usize| {
            let first = ((from * world + to) * 1000) as u32;
            first..first + size(from, to) as u32
        };
        Self {
            send: (0..world).map(|to| size(me, to)).collect(),
            receive: (0..world).map(|from| size(from, me)).collect(),
            input: (0..world).flat_map(|to| piece(me, to)).collect(),
            expected: (0..world).flat_map(|from| piece(from, me)).collect(),
        }
    }

    fn run(&self, group: &Group) -> Result<(), Error> {
        let Self { send, receive, input, expected } = self;
        let mut output = vec![u32::MAX; expected.len()];
        group.all_to_all_v(input, send, &mut output, receive)?;
        assert!(output == *expected, "wrong data exchanged");
        let root = group.world() - 1;
        let first: usize = receive[..root].iter().sum();
        let mut output = vec![u32::MAX; receive[root]];
        let input = if group.rank() == root { &input[..] } else { &[] };
        group.scatter_v(input, &mut output, send, root)?;
        assert!(output == expected[first..first + receive[root]], "wrong data scattered");
        Ok(())
    }
}

/// Repeats in-dir operations until one fails. Returns how many succeeded, and whether the last buffer was restored.
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
            Ok(()) => assert!(data.iter().all(|value| *value == expected), "wrong result"),
            Err(error) => {
                let is_restored = data.iter().all(|value| *value == me + counted);
                return format!("counted={counted} restored={is_restored} {error}");
            }
        }
        if counted == 0 {
            println!("begun {command}");
        }
    }
    unreachable!("an operation fails before")
}

/// Waits for a signal that does not come.
fn wait_signal(group: &Group, from: usize) -> Result<(), Error> {
    let window = group.window(Memory::zeroed(8), &[])?;
    window.wait_signal(from, None)
}

fn receive(group: &Group, from: usize, count: usize) -> Result<(), Error> {
    let mut data = vec![u32::MAX; count];
    group.recv(&mut data, from)?;
    assert!(data.iter().all(|value| *value == from as u32), "wrong data received");
    Ok(())
}

/// Forms groups one after the other. Returns the resource usage of the process after the first and after the last.
fn make_groups(times: usize, words: &[&str]) -> Reply {
    let settings = settings(words);
    let mut usages = Vec::new();
    for time in 0..=times {
        let at = bootstrap(&format!("{}-{time}", settings["at"]));
        let group = builder(words).bootstrap(at).connect().map_err(text)?;
        reduce(&group, 100_000).map_err(text)?;
        group.barrier().map_err(text)?;
        drop(group);
        if time == 0 || time == times {
            let Usage { threads, descriptors, anonymous_bytes, .. } = settled_usage(usages.first());
            usages.push((threads, descriptors, anonymous_bytes));
        }
    }
    Ok(format!("{usages:?}"))
}

/// The usage of this process. Threads may take a moment to end: two seconds the first time, then until it is as before.
fn settled_usage(before: Option<&(usize, usize, u64)>) -> Usage {
    let until = Instant::now() + if before.is_some() { LONG / 2 } else { Duration::from_secs(2) };
    while Instant::now() < until {
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

/// A group configured by `key=value` words.
fn builder(words: &[&str]) -> GroupBuilder {
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
            "at" => builder.bootstrap(bootstrap(value)),
            "name" => builder.name(value),
            "token" => builder.token(value),
            "chunk_bytes" => builder.tuning(Tuning { chunk_bytes: number() as u32, ..Tuning::default() }),
            "warn_after_ms" => builder.warn_after(Duration::from_millis(number() as u64)),
            "timeout_ms" => builder.timeout(Duration::from_millis(number() as u64)),
            "connect_timeout_ms" => builder.connect_timeout(Duration::from_millis(number() as u64)),
            "restoring" => builder.restore_on_failure(number() == 1),
            "media" => builder.media(match value {
                "tcp" => Media::Tcp,
                "shared" => Media::Shared,
                _ => Media::Auto,
            }),
            "environment" => builder,
            _ => panic!("unknown setting {key:?}"),
        };
    }
    builder
}

fn bootstrap(text: &str) -> Bootstrap {
    text.strip_prefix("file:")
        .map_or_else(|| Bootstrap::Address(text.into()), |path| Bootstrap::File(path.into()))
}
