//! Measures an all-reduce between processes on this machine.
//!
//! `cargo run --release -p ringfold --example reduce_speed -- [peers] [bytes] [rounds] [in|out]` starts a master and
//! this many peer processes, which reduce `f32`s, and prints the median time of a reduce, payload per second, and the
//! largest memory of a peer.

use ringfold::{AllReduce, Communicator, Error, Master};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("--peer") => peer(&arguments[1..]),
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

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn run(arguments: &[String]) -> Outcome {
    let given = |at: usize, default: &str| arguments.get(at).cloned().unwrap_or(default.to_owned());
    let (peers, bytes, rounds, place) = (given(0, "2"), given(1, "4"), given(2, "2000"), given(3, "in"));
    let master = match std::env::var("MASTER") {
        Ok(address) => (None, address),
        Err(_) => {
            let mut master = Command::new(std::env::current_exe()?)
                .args(["--peer", "master"])
                .stdout(Stdio::piped())
                .stdin(Stdio::piped())
                .spawn()?;
            let mut line = String::new();
            std::io::BufRead::read_line(
                &mut std::io::BufReader::new(master.stdout.take().ok_or("no output")?),
                &mut line,
            )?;
            (Some(master), line.trim().to_owned())
        }
    };
    let spawn = |number: u32| {
        Command::new(std::env::current_exe()?)
            .args(["--peer", &master.1, &peers, &bytes, &rounds, &place, &number.to_string()])
            .spawn()
    };
    let children: Result<Vec<_>, _> = (0..peers.parse()?).map(spawn).collect();
    for mut child in children? {
        if !child.wait()?.success() {
            return Err("a peer failed".into());
        }
    }
    if let Some(mut child) = master.0 {
        child.kill()?;
        child.wait()?;
    }
    Ok(())
}

fn peer(arguments: &[String]) -> Outcome {
    if arguments[0] == "master" {
        let master = Master::builder().listen("127.0.0.1:0").build();
        master.run()?;
        println!("{}", master.addresses()[0]);
        return Ok(master.wait()?);
    }
    let [address, world, bytes, rounds, place, number] = arguments else {
        return Err("six arguments".into());
    };
    let (world, rounds): (u32, usize) = (world.parse()?, rounds.parse()?);
    let count = bytes.parse::<usize>()? / 4;
    let communicator = Communicator::builder(address).name(format!("peer-{number}")).build()?;
    communicator.connect()?;
    while communicator.attributes().group_world < world {
        communicator.update_topology()?;
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut times = reduce(&communicator, count, rounds, place == "in")?;
    times.sort_unstable();
    if number == "0" {
        let median = times[times.len() / 2];
        let speed = (count * 4) as f64 / median.as_secs_f64() / 1e9;
        let status = std::fs::read_to_string("/proc/self/status")?;
        let memory = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("").to_owned();
        let ninety = times[times.len() * 9 / 10];
        println!(
            "{world} peers, {bytes} bytes: median {median:?}, p90 {ninety:?}, {speed:.2} GB/s, {memory}"
        );
    }
    Ok(())
}

fn reduce(
    communicator: &Communicator,
    count: usize,
    rounds: usize,
    in_place: bool,
) -> Result<Vec<Duration>, Error> {
    let mut data = vec![1.0f32; count];
    let mut target = vec![0.0f32; if in_place { 0 } else { count }];
    let warm_up = rounds.div_ceil(10);
    let mut times = Vec::with_capacity(rounds);
    for round in 0..rounds + warm_up {
        let began = Instant::now();
        if in_place {
            communicator.all_reduce(&mut data, AllReduce::avg())?;
        } else {
            communicator.all_reduce_into(&data, &mut target, AllReduce::sum())?;
        }
        if round >= warm_up {
            times.push(began.elapsed());
        }
    }
    Ok(times)
}
