//! The command `ringfold`.
#![forbid(unsafe_code)]

use ringfold_cli::command;
use ringfold_cli::invocation::Invocation;

fn main() {
    let arguments = std::env::args_os().skip(1).collect();
    command::end_process(command::ringfold(arguments, &Invocation::ThisProgram))
}
