//! A master, for tests with real processes.
//!
//! Prints `listening on ADDRESS` for each address and then `ready`. SIGTERM and SIGINT end it cleanly.
#![forbid(unsafe_code)]

use anyhow::Context;
use clap::Parser;
use ringfold::Master;
use ringfold_lab::TimingPreset;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How often the signal flag is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A master, for tests with real processes.
#[derive(Parser)]
struct Arguments {
    /// The address to listen on; may be repeated. Port 0 means any free port.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: Vec<String>,
    /// The token that peers need to join.
    #[arg(long)]
    token: Option<String>,
    /// All masters, separated by commas.
    #[arg(long, value_delimiter = ',')]
    masters: Vec<String>,
    /// The lease that decides which master is active.
    #[arg(long)]
    lease: Option<String>,
    /// A relay; may be repeated.
    #[arg(long)]
    relay: Vec<String>,
    /// The timeouts: default or short.
    #[arg(long, default_value = "short", value_parser = TimingPreset::named)]
    timing: TimingPreset,
    /// A setting, NAME=VALUE; may be repeated.
    #[arg(long)]
    set: Vec<String>,
    /// Exit after this many commits, before all peers have received the last one.
    #[arg(long)]
    crash_after_commits: Option<u64>,
    /// End when standard input is closed, so that no process outlives a killed test.
    #[arg(long)]
    until_eof: bool,
}

fn main() -> ExitCode {
    ringfold_lab::log::start();
    match serve(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(arguments: &Arguments) -> anyhow::Result<()> {
    let mut builder = Master::builder().timing(arguments.timing.timing());
    for (name, value) in arguments.set.iter().filter_map(|pair| pair.split_once('=')) {
        builder = builder.setting(name, value);
    }
    for address in &arguments.listen {
        builder = builder.listen(address.as_str());
    }
    builder = builder.masters(&arguments.masters);
    if let Some(lease) = &arguments.lease {
        builder = builder.lease(lease.as_str());
    }
    for relay in &arguments.relay {
        builder = builder.relay(relay.as_str());
    }
    if let Some(token) = &arguments.token {
        builder = builder.token(token.as_str());
    }
    if let Some(commits) = arguments.crash_after_commits {
        builder = builder.crash_after_commits(commits);
    }
    let master = Arc::new(builder.build());
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ended)).context("cannot catch signals")?;
    }
    master.run()?;
    for address in master.addresses() {
        println!("listening on {address}");
    }
    println!("ready");
    if arguments.until_eof {
        let ended = Arc::clone(&ended);
        thread::spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            ended.store(true, Ordering::Relaxed);
        });
    }
    let interrupter = {
        let (master, ended) = (Arc::clone(&master), Arc::clone(&ended));
        thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                thread::sleep(POLL_INTERVAL);
            }
            master.interrupt();
        })
    };
    let outcome = master.wait();
    ended.store(true, Ordering::Relaxed);
    let _ = interrupter.join();
    outcome?;
    println!("ended");
    Ok(())
}
