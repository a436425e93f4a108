//! The commands as functions: arguments in, exit code out. Whoever calls them decides what becomes of the process,
//! be it a `main` or a Python interpreter.

use crate::bench::{Bench, RankArguments};
use crate::demo::{Demo, PeerArguments};
use crate::invocation::Invocation;
use crate::serve::Serve;
use anyhow::Result;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use ringfold_bindings::log;
use std::ffi::OsString;
use std::io::Write;

/// What a command answers when all went well.
pub const SUCCESS: i32 = 0;
/// What a command answers when something failed.
pub const FAILURE: i32 = 1;

/// Collective communication that keeps folding when peers come and go.
#[derive(Parser)]
#[command(name = "ringfold", version)]
struct Ringfold {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run a master, which peers meet at
    Master(Serve),
    /// Watch a run on this machine survive the loss of a peer and take in a new one
    Demo(Demo),
    /// Measure collectives on this machine, beside other libraries if they are there
    Bench(Box<Bench>),
    /// One peer of the demo
    #[command(hide = true)]
    DemoPeer(PeerArguments),
    /// One rank that is measured
    #[command(hide = true)]
    BenchRank(RankArguments),
}

/// The master of a run: peers meet at it, and it decides for all of them.
///
/// Ends cleanly on SIGINT and SIGTERM.
#[derive(Parser)]
#[command(version)]
struct MasterAlone {
    #[command(flatten)]
    serve: Serve,
}

/// Runs the command of this name, and returns its exit code; `None` if there is no such command. The arguments do
/// not include the name; `again` is how the command `ringfold` starts itself as another process.
pub fn named(name: &str, arguments: Vec<OsString>, again: &Invocation) -> Option<i32> {
    match name {
        "ringfold" => Some(ringfold(arguments, again)),
        "ccoip_master" => Some(ccoip_master(arguments)),
        "pccl_master" => Some(pccl_master(arguments)),
        _ => None,
    }
}

/// The command `ringfold`.
pub fn ringfold(arguments: Vec<OsString>, again: &Invocation) -> i32 {
    run("ringfold", arguments, |Ringfold { task }| match task {
        Task::Master(serve) => serve.run().map(|()| SUCCESS),
        Task::Demo(demo) => {
            log::start(None);
            demo.run(again)
        }
        Task::DemoPeer(peer) => {
            log::start(None);
            peer.run()
        }
        Task::Bench(bench) => {
            log::start(None);
            bench.run(again)
        }
        Task::BenchRank(rank) => {
            log::start(None);
            rank.run()
        }
    })
}

/// The command `ccoip_master`: a master that needs no arguments.
pub fn ccoip_master(arguments: Vec<OsString>) -> i32 {
    run("ccoip_master", arguments, master_alone)
}

/// The command `pccl_master`: `ccoip_master` under the name that users of the Python package know.
pub fn pccl_master(arguments: Vec<OsString>) -> i32 {
    run("pccl_master", arguments, master_alone)
}

fn master_alone(arguments: MasterAlone) -> Result<i32> {
    arguments.serve.run().map(|()| SUCCESS)
}

/// Understands the arguments, does the work, says what went wrong. It never ends the process.
fn run<A: CommandFactory + FromArgMatches>(
    name: &'static str,
    arguments: Vec<OsString>,
    work: impl FnOnce(A) -> Result<i32>,
) -> i32 {
    let words = std::iter::once(OsString::from(name)).chain(arguments);
    let parsed =
        A::command().name(name).try_get_matches_from(words).and_then(|matches| A::from_arg_matches(&matches));
    let code = match parsed {
        Ok(arguments) => work(arguments).unwrap_or_else(|error| {
            eprintln!("{name}: {error:#}");
            FAILURE
        }),
        // --help and --version come this way too. If nobody reads it, nobody misses it.
        Err(error) => {
            let _ = error.print();
            error.exit_code()
        }
    };
    // Where `main` is not ours nobody else does it.
    let _ = std::io::stdout().flush();
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(name: &str, arguments: &[&str]) -> Option<i32> {
        named(name, arguments.iter().map(OsString::from).collect(), &Invocation::ThisProgram)
    }

    #[test]
    fn whoever_asks_for_help_lives_on_with_0_and_whoever_errs_with_2() {
        for name in ["ringfold", "ccoip_master", "pccl_master"] {
            assert_eq!(answer(name, &["--help"]), Some(0));
            assert_eq!(answer(name, &["--version"]), Some(0));
            assert_eq!(answer(name, &["--nonsense"]), Some(2));
        }
        assert_eq!(answer("ringfold", &["master", "--help"]), Some(0));
        assert_eq!(answer("ringfold_master", &["--help"]), None);
    }

    #[test]
    fn the_help_of_a_master_names_the_command_that_was_typed() {
        for name in ["ccoip_master", "pccl_master"] {
            let mut command = MasterAlone::command().name(name);
            assert!(command.render_help().to_string().contains(&format!("Usage: {name} ")));
        }
    }
}
