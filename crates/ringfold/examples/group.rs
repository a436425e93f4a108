//! A group of fixed ranks: collectives, a transfer, and asynchronous work.
//!
//! Run it once per rank:
//! `cargo run --release -p ringfold --example group -- --rank 0 --world 2 --at 127.0.0.1:29500`
//! `cargo run --release -p ringfold --example group -- --rank 1 --world 2 --at 127.0.0.1:29500`

use ringfold::{Bootstrap, DType, Error, Group, GroupBuffers, GroupBuilder, GroupOp, Media};
use ringfold::{Operation, ReduceOp, TransferTag, View};
use std::time::Duration;

const HELP: &str = "\
One rank of a group. Start as many as the group has ranks.

  group --rank R --world N --at ADDRESS [--media auto|tcp|shared] [--timeout SECONDS] [--token SECRET]
  group --environment [...]

  --rank R          the rank of this process, from 0
  --world N         the number of ranks
  --at ADDRESS      bootstrap: HOST:PORT, at which rank 0 listens, or file:PATH
  --environment     rank, world size and address from torchrun, mpirun or srun:
                    RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and similar
  --media MEDIA     auto (default): shared memory within a host, TCP between hosts
  --timeout SECONDS time limit of an operation, and of forming the group (default: 60)
  --token SECRET    the same secret on all ranks; other processes cannot join
";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.is_empty() || arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        print!("{HELP}");
        return;
    }
    let done = configure(&arguments).and_then(|builder| run(&builder.connect()?));
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
    println!("rank {me}: gathered {all:?}");

    // Each rank sends to the next one, and receives meanwhile, so that no rank waits for a cycle.
    if world > 1 {
        let (next, previous) = ((me + 1) % world, (me + world - 1) % world);
        let data = vec![me as u8; 1 << 20];
        let work = group.submit(Operation {
            op: GroupOp::Send { to: next, tag: TransferTag::default() },
            dtype: DType::U8,
            buffers: GroupBuffers::OutOfPlace { input: vec![View::from(data)], output: vec![] },
            timeout: None,
        })?;
        let mut received = vec![0_u8; 1 << 20];
        group.recv(&mut received, previous)?;
        work.wait()?;
        println!("rank {me}: received {} bytes from rank {}", received.len(), received[0]);
    }

    group.barrier()?;
    println!("rank {me}: all are done");
    Ok(())
}

fn configure(arguments: &[String]) -> Result<GroupBuilder, Error> {
    let bad = |what: String| Error::BadArgument(format!("{what}; see --help"));
    let mut builder = Group::builder();
    let mut words = arguments.iter();
    let mut seconds = 60;
    while let Some(word) = words.next() {
        if word == "--environment" {
            builder = builder.environment()?;
            continue;
        }
        let value = words.next().ok_or_else(|| bad(format!("missing value of {word}")))?;
        let number = || value.parse::<usize>().map_err(|_| bad(format!("invalid number {value:?}")));
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
                _ => return Err(bad(format!("invalid media {value:?}: expected auto, tcp or shared"))),
            }),
            "--token" => builder.token(value),
            "--timeout" => {
                seconds = number()?;
                builder
            }
            _ => return Err(bad(format!("unknown option {word:?}"))),
        };
    }
    let limit = Duration::from_secs(seconds as u64);
    Ok(builder.timeout(limit).connect_timeout(limit))
}
