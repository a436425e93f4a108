//! A peer that follows a script, for tests with real processes.
//!
//! Commands come on standard input, one per line; each is answered by one line on standard output:
//! `ok COMMAND key=value ... us=TIME` or `failed COMMAND kind=KIND retryable=BOOL us=TIME message=TEXT`.
//!
//! ```text
//! connect | topology | pending | optimize | world | leave | sleep MS | exit
//! reduce TAG COUNT [OPTION...]     an all-reduce, checked
//! launch TAG COUNT [OPTION...]     the same, in the background; answered when it was launched
//! await TAG                        the end of a launched one, checked
//! sync REVISION BYTES KEYS [fill=N] [strategy=popular|receive|send] [unequal]
//! loop [until=REVISION] [steps=N] [count=N] [bytes=N] [keys=N] [tag=N] [pause=MS] [tags=N] [optimize=N]
//! stop                             ends a loop after its step; and nothing else
//! background COMMAND...            runs it on a thread of its own; answered when it ended
//! ```
//! Options of a reduce: `op=sum|avg|prod|max|min`, `dtype=uint8...float64`, `out` (out of place), `quant=minmax:uint8`
//! or `quant=zps:int8`, `deadline=MS`, `step=N` (which use of the tag it is; the same on all peers), `reproducible`.
//!
//! When standard input ends, the commands that are still waiting are done, and then the peer ends; it ends in any
//! case after a while, so that nothing stays when a test is killed.
#![forbid(unsafe_code)]

mod command;
mod reply;
mod session;
mod training;

use clap::Parser;
use command::Command;
use reply::Reply;
use ringfold::Communicator;
use ringfold_lab::Pace;
use session::Session;
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// A peer that follows a script on its standard input.
#[derive(Parser)]
struct Arguments {
    /// The master's address.
    #[arg(long)]
    master: String,
    /// Which peer this is: decides what it contributes. No two have the same.
    #[arg(long)]
    number: u32,
    /// All peers have numbers below this. The same on all.
    #[arg(long, default_value_t = 12)]
    peers_max: u32,
    /// The group of peers that it reduces with.
    #[arg(long, default_value_t = 0)]
    group: u32,
    /// What the master wants to hear.
    #[arg(long)]
    token: Option<String>,
    /// The deadlines: default or short.
    #[arg(long, default_value = "short", value_parser = Pace::named)]
    timing: Pace,
    /// Connections to each neighbour; 0 for the default.
    #[arg(long, default_value_t = 0)]
    streams: u16,
    /// The address that others are told to dial.
    #[arg(long)]
    advertise: Option<IpAddr>,
    /// The port to listen on; 0 for any that is free.
    #[arg(long, default_value_t = 0)]
    listen_port: u16,
    /// How long to try to reach the master.
    #[arg(long, default_value_t = 10_000)]
    patience_ms: u64,
    /// How long the peer may live on when its standard input has ended.
    #[arg(long, default_value_t = 60_000)]
    linger_ms: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    ringfold_lab::log::start();
    let communicator = match build(&arguments) {
        Ok(communicator) => communicator,
        Err(error) => {
            Reply::failed("build", &error, Instant::now()).print();
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
        match Command::parse(&line) {
            Ok(Command::Exit) => break,
            Ok(Command::Background(command)) => {
                let session = Arc::clone(&session);
                thread::spawn(move || session.perform(*command).print());
            }
            Ok(command) => session.perform(command).print(),
            Err(why) => Reply::misunderstood(&line, &why).print(),
        }
    }
    // The thread that reads the script holds the session too, so it would not be dropped.
    session.communicator.leave();
    ExitCode::SUCCESS
}

fn build(arguments: &Arguments) -> Result<Communicator, ringfold::Error> {
    let mut builder = Communicator::builder(arguments.master.as_str())
        .peer_group(arguments.group)
        .name(format!("peer-{}", arguments.number))
        .streams(arguments.streams)
        .timing(arguments.timing.timing())
        .connect_patience(Duration::from_millis(arguments.patience_ms));
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

/// Reads standard input to its end. A `stop` is not queued: it is for the loop that runs.
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
    // Nobody is left who could end what hangs.
    thread::spawn(move || {
        thread::sleep(linger);
        println!("failed exit message=still busy when its time was over");
        std::process::exit(3);
    });
}
