//! The command `ccoip_master`: a master that needs no arguments.
#![forbid(unsafe_code)]

use clap::Parser;
use ringfold_cli::{log, serve::Serve};
use std::process::ExitCode;

/// The master of a run: peers meet at it, and it decides for all of them.
///
/// Ends cleanly on SIGINT and SIGTERM. PCCL_LOG_LEVEL or RINGFOLD_LOG say what is logged (default: warnings).
#[derive(Parser)]
#[command(name = "ccoip_master", version)]
struct Arguments {
    #[command(flatten)]
    serve: Serve,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    log::start(None);
    match arguments.serve.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ccoip_master: {error:#}");
            ExitCode::FAILURE
        }
    }
}
