//! The command `ccoip_master`: a master that needs no arguments.
#![forbid(unsafe_code)]

use ringfold_cli::command;

fn main() {
    command::end_process(command::ccoip_master(std::env::args_os().skip(1).collect()))
}
