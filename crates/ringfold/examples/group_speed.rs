//! How fast an all-reduce of a group of fixed ranks is between real processes on this machine.
//!
//! `cargo run --release -p ringfold --example group_speed -- [world] [auto|tcp|shared] [bytes[,bytes...]]` starts so many
//! processes, which reduce `f32`s, and prints the median time and payload per second for each size.

use ringfold::{Bootstrap, Error, Group, Media, ReduceOp};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("--rank") => rank(&arguments[1..]),
        _ => run(&arguments),
    };
    result.map_or_else(
        |error| {
            eprintln!("{error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

fn run(arguments: &[String]) -> Outcome {
    let given = |at: usize, default: &str| arguments.get(at).cloned().unwrap_or(default.to_owned());
    let (world, media) = (given(0, "2"), given(1, "tcp"));
    let sizes = given(2, "4,4096,65536,1048576,8388608,67108864");
    let place = std::env::temp_dir().join(format!("ringfold-group-speed-{}", std::process::id()));
    let place = place.to_string_lossy().into_owned();
    let spawn = |rank: usize| {
        let arguments = ["--rank", &rank.to_string(), &world, &media, &sizes, &place];
        Command::new(std::env::current_exe()?).args(arguments).spawn()
    };
    let children: Result<Vec<_>, _> = (0..world.parse()?).map(spawn).collect();
    let ends: Vec<_> = children?.into_iter().map(|mut child| child.wait()).collect();
    let _ = std::fs::remove_file(place);
    match ends.into_iter().all(|end| end.is_ok_and(|status| status.success())) {
        true => Ok(()),
        false => Err("a rank failed".into()),
    }
}

fn rank(arguments: &[String]) -> Outcome {
    let [rank, world, media, sizes, place] = arguments else { return Err("five arguments".into()) };
    let (rank, world): (usize, usize) = (rank.parse()?, world.parse()?);
    let media = match media.as_str() {
        "tcp" => Media::Tcp,
        "shared" => Media::Shared,
        _ => Media::Auto,
    };
    let group = Group::builder()
        .rank(rank)
        .world(world)
        .bootstrap(Bootstrap::File(place.into()))
        .media(media)
        .connect()?;
    for bytes in sizes.split(',') {
        let bytes: usize = bytes.parse()?;
        let (mut times, rounds) = reduce(&group, bytes / 4)?;
        times.sort_unstable();
        if rank == 0 {
            let median = times[times.len() / 2];
            let speed = bytes as f64 / median.as_secs_f64() / 1e9;
            println!("{world} ranks, {bytes:>10} bytes, {rounds:>6} rounds: {median:>12?}, {speed:.2} GB/s");
        }
    }
    Ok(())
}

fn reduce(group: &Group, count: usize) -> Result<(Vec<Duration>, usize), Error> {
    let mut data = vec![1.0f32; count];
    let rounds = ((256 << 20) / (count * 4)).clamp(7, 10_000);
    let mut times = Vec::with_capacity(rounds);
    for round in 0..rounds + rounds.div_ceil(10) {
        let began = Instant::now();
        group.all_reduce(&mut data, ReduceOp::Max)?;
        if round >= rounds.div_ceil(10) {
            times.push(began.elapsed());
        }
    }
    Ok((times, rounds))
}
