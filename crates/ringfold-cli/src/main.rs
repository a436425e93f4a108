//! The command `ringfold`.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use ringfold_cli::demo::{Demo, PeerArguments};
use ringfold_cli::log::{self, Level};
use ringfold_cli::serve::Serve;
use std::process::ExitCode;

/// Collective communication that keeps folding when peers come and go.
#[derive(Parser)]
#[command(name = "ringfold", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a master, which peers meet at
    Master {
        #[command(flatten)]
        serve: Serve,
        /// What to log: trace, debug, info, warn, error, off [default: RINGFOLD_LOG, PCCL_LOG_LEVEL, or warn]
        #[arg(long, value_name = "LEVEL")]
        log: Option<Level>,
    },
    /// Watch a run on this machine survive the loss of a peer and take in a new one
    Demo(Demo),
    /// One peer of the demo
    #[command(hide = true)]
    DemoPeer(PeerArguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Master { serve, log } => {
            log::start(log);
            serve.run().map(|()| ExitCode::SUCCESS)
        }
        Command::Demo(demo) => {
            log::start(None);
            demo.run()
        }
        Command::DemoPeer(arguments) => {
            log::start(None);
            arguments.run()
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("ringfold: {error:#}");
        ExitCode::FAILURE
    })
}
