//! The command `ccoip_master`: a master that needs no arguments.
#![forbid(unsafe_code)]

use ringfold_cli::command;
use std::process::ExitCode;

fn main() -> ExitCode {
    let code = command::ccoip_master(std::env::args_os().skip(1).collect());
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
