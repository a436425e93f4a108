//! A group of fixed ranks: some collectives, a transfer, and work that goes on in the background.
//!
//! Run it once per rank:
//! `cargo run --release -p ringfold --example group -- --rank 0 --world 2 --at 127.0.0.1:29500`
//! `cargo run --release -p ringfold --example group -- --rank 1 --world 2 --at 127.0.0.1:29500`

use ringfold::{Bootstrap, DType, Error, Group, GroupBuffers, GroupBuilder, GroupOp, Media};
use ringfold::{Operation, ReduceOp, TransferTag, View};
use std::time::Duration;

const HELP: &str = "\
One rank of a group. Start as many as the group has ranks.

  group --rank R --world N --at PLACE [--media auto|tcp|shared] [--timeout SECONDS] [--token SECRET]
  group --environment [...]

  --rank R          this process's number, from 0 on
  --world N         how many ranks there are
  --at PLACE        where they meet: HOST:PORT, at which rank 0 listens, or file:PATH
  --environment     rank, size and place as torchrun, mpirun and srun tell them:
                    RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and the like
  --media MEDIA     auto: memory within a host, TCP elsewhere (the default)
  --timeout SECONDS what an operation may take, and what the ranks may take to meet (60)
  --token SECRET    all ranks know it, strangers don't
";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.is_empty() || arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        print!("{HELP}");
        return;
    }
    let done = described(&arguments).and_then(|builder| run(&builder.connect()?));
    if let Err(error) = done {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run(group: &Group) -> Result<(), Error> {
    let (me, world) = (group.rank(), group.world());
    let through = if group.is_shared() { "shared memory" } else { "links" };
    println!("rank {me} of {world}, through {through}");

    let mut sum = [me as f32, 1.0];
    group.all_reduce(&mut sum, ReduceOp::Sum)?;
    println!("rank {me}: the sum of all is {sum:?}");

    let mut all = vec![0; world];
    group.all_gather(&[me as i32 * 10], &mut all)?;
    println!("rank {me}: all have {all:?}");

    // Each sends to the next, and does something else meanwhile: whatever is sent, nobody waits for nobody.
    if world > 1 {
        let (next, previous) = ((me + 1) % world, (me + world - 1) % world);
        let letter = vec![me as u8; 1 << 20];
        let work = group.submit(Operation {
            op: GroupOp::Send { to: next, tag: TransferTag::default() },
            dtype: DType::U8,
            buffers: GroupBuffers::OutOfPlace { input: vec![View::from(letter)], output: vec![] },
            timeout: None,
        })?;
        let mut heard = vec![0_u8; 1 << 20];
        group.recv(&mut heard, previous)?;
        work.wait()?;
        println!("rank {me}: rank {} wrote to me, {} bytes", heard[0], heard.len());
    }

    group.barrier()?;
    println!("rank {me}: all are done");
    Ok(())
}

fn described(arguments: &[String]) -> Result<GroupBuilder, Error> {
    let bad = |what: String| Error::BadArgument(format!("{what}; --help tells more"));
    let mut builder = Group::builder();
    let mut words = arguments.iter();
    let mut seconds = 60;
    while let Some(word) = words.next() {
        if word == "--environment" {
            builder = builder.environment()?;
            continue;
        }
        let value = words.next().ok_or_else(|| bad(format!("{word} needs a value")))?;
        let number = || value.parse::<usize>().map_err(|_| bad(format!("{value:?} is no number")));
        builder = match word.as_str() {
            "--rank" => builder.rank(number()?),
            "--world" => builder.world(number()?),
            "--at" => builder.bootstrap(match value.strip_prefix("file:") {
                Some(path) => Bootstrap::File(path.into()),
                None => Bootstrap::Address(value.clone()),
            }),
            "--media" => builder.media(match value.as_str() {
                "auto" => Media::Auto,
                "tcp" => Media::Tcp,
                "shared" => Media::Shared,
                _ => return Err(bad(format!("{value:?} is no medium"))),
            }),
            "--token" => builder.token(value),
            "--timeout" => {
                seconds = number()?;
                builder
            }
            _ => return Err(bad(format!("{word:?} is unknown"))),
        };
    }
    let limit = Duration::from_secs(seconds as u64);
    Ok(builder.timeout(limit).connect_timeout(limit))
}
