//! A peer that executes commands, for tests with real processes.
//!
//! It reads commands from standard input, one per line, and prints one line of reply for each:
//! `ok COMMAND key=value ... us=TIME` or `failed COMMAND kind=KIND retryable=BOOL us=TIME message=TEXT`.
//!
//! ```text
//! connect | topology | pending | optimize | world | traffic | leave | sleep MS | exit
//! reduce TAG COUNT [OPTION...]     an all-reduce, checked
//! launch TAG COUNT [OPTION...]     the same, asynchronous; replies when it was launched
//! await TAG                        waits for a launched all-reduce, and checks it
//! sync REVISION BYTES KEYS [fill=N] [strategy=popular|receive|send] [unequal]
//! loop [until=REVISION] [steps=N] [count=N] [bytes=N] [keys=N] [tag=N] [pause=MS] [tags=N] [optimize=N]
//! stop                             ends a loop after its current step
//! background COMMAND...            runs a command on its own thread; replies when it has ended
//! ```
//! Options of a reduce: `op=sum|avg|prod|max|min`, `dtype=uint8...float64`, `out` (out of place), `quant=minmax:uint8`
//! or `quant=zps:int8`, `deadline=MS`, `step=N` (distinguishes uses of a tag; the same on all peers), `reproducible`.
//!
//! When standard input is closed, the peer executes the remaining commands and ends. It ends in any case after a
//! while, so that no process outlives a killed test.
#![forbid(unsafe_code)]

mod command;
mod reply_line;
mod session;
mod training;

use clap::Parser;
use command::Command;
use reply_line::ReplyLine;
use ringfold::Communicator;
use ringfold_lab::TimingPreset;
use session::Session;
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// A peer that executes the commands on its standard input.
#[derive(Parser)]
struct Arguments {
    /// The master's address.
    #[arg(long)]
    master: String,
    /// The unique number of this peer, which determines its contributions.
    #[arg(long)]
    number: u32,
    /// All peers have numbers below this; the same on all peers.
    #[arg(long, default_value_t = 12)]
    peers_max: u32,
    /// The peer group.
    #[arg(long, default_value_t = 0)]
    group: u32,
    /// The token of the master.
    #[arg(long)]
    token: Option<String>,
    /// The timeouts: default or short.
    #[arg(long, default_value = "short", value_parser = TimingPreset::named)]
    timing: TimingPreset,
    /// Connections to each neighbour; 0 for the default.
    #[arg(long, default_value_t = 0)]
    streams: u16,
    /// The address that other peers dial.
    #[arg(long)]
    advertise: Option<IpAddr>,
    /// The port to listen on; 0 for any free port.
    #[arg(long, default_value_t = 0)]
    listen_port: u16,
    /// The timeout for connecting to the master.
    #[arg(long, default_value_t = 10_000)]
    connect_timeout_ms: u64,
    /// A setting, NAME=VALUE; may be repeated.
    #[arg(long)]
    set: Vec<String>,
    /// How long the peer may run after its standard input was closed.
    #[arg(long, default_value_t = 60_000)]
    linger_ms: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    ringfold_lab::log::start();
    let communicator = match build(&arguments) {
        Ok(communicator) => communicator,
        Err(error) => {
            ReplyLine::failed("build", &error, Instant::now()).print();
            return ExitCode::FAILURE;
        }
    };
    let session = Arc::new(Session::new(communicator, arguments.number, arguments.peers_max));
    let (sender, commands) = mpsc::channel();
    let reader = Arc::clone(&session);
    let linger = Duration::from_millis(arguments.linger_ms);
    thread::spawn(move || read_commands(&reader, sender, linger));
    println!("ready");
    for line in commands {
        let background = line.strip_prefix("background ");
        let (line, in_background) = (background.unwrap_or(&line), background.is_some());
        let name = line.split_whitespace().next().unwrap_or_default().to_owned();
        match Command::parse(line) {
            Ok(Command::Exit) if !in_background => break,
            Ok(command) if in_background => {
                let session = Arc::clone(&session);
                thread::spawn(move || session.perform(&name, command).print());
            }
            Ok(command) => session.perform(&name, command).print(),
            Err(why) => ReplyLine::invalid_command(line, &why).print(),
        }
    }
    // The reader thread holds the session too, so it is not dropped here.
    session.communicator.leave();
    ExitCode::SUCCESS
}

fn build(arguments: &Arguments) -> Result<Communicator, ringfold::Error> {
    let mut builder = Communicator::builder(arguments.master.as_str())
        .peer_group(arguments.group)
        .name(format!("peer-{}", arguments.number))
        .streams(arguments.streams)
        .timing(arguments.timing.timing())
        .connect_timeout(Duration::from_millis(arguments.connect_timeout_ms));
    for (name, value) in arguments.set.iter().filter_map(|pair| pair.split_once('=')) {
        builder = builder.setting(name, value);
    }
    if let Some(token) = &arguments.token {
        builder = builder.token(token.as_str());
    }
    if let Some(address) = arguments.advertise {
        builder = builder.advertise(address);
    }
    if arguments.listen_port != 0 {
        builder = builder.listen_port(arguments.listen_port);
    }
    builder.build()
}

/// Reads standard input to its end. `stop` is not queued: it ends the running loop.
fn read_commands(session: &Session, sender: mpsc::Sender<String>, linger: Duration) {
    for line in std::io::stdin().lines() {
        let Ok(line) = line else { break };
        match line.trim() {
            "" => {}
            "stop" => session.stop.store(true, Ordering::Relaxed),
            line if sender.send(line.to_owned()).is_err() => return,
            _ => {}
        }
    }
    // Ends the process if a command hangs.
    thread::spawn(move || {
        thread::sleep(linger);
        println!("failed exit message=timed out waiting for the last command");
        std::process::exit(3);
    });
}
