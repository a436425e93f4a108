//! The command `ringfold`.
#![forbid(unsafe_code)]

use ringfold_cli::command;
use ringfold_cli::invocation::Invocation;
use std::process::ExitCode;

fn main() -> ExitCode {
    let code = command::ringfold(std::env::args_os().skip(1).collect(), &Invocation::ThisProgram);
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
