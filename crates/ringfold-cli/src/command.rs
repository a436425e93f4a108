//! The commands as functions from arguments to an exit code. They do not end the process, which may be a Python
//! interpreter; `end_process` does.

use crate::bench::{Bench, CudaArguments, LossRankArguments, RankArguments, StateRankArguments};
use crate::config::ConfigArguments;
use crate::demo::{Demo, PeerArguments};
use crate::doctor::DoctorArguments;
use crate::exit_code::FAILURE;
use crate::invocation::Invocation;
use crate::keys::KeysArguments;
use crate::lab::Lab;
use crate::master::MasterArguments;
use crate::observe::{DrainArguments, EvictArguments, StatusArguments, TopArguments};
use crate::relay::RelayArguments;
use crate::replay::Replay;
use anyhow::Result;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use ringfold_bindings::log;
use std::ffi::OsString;
use std::io::Write;

/// Collective communication that survives the loss of peers.
#[derive(Parser)]
#[command(name = "ringfold", version)]
struct Ringfold {
    #[command(subcommand)]
    command: RingfoldCommand,
}

#[derive(Subcommand)]
enum RingfoldCommand {
    /// Run the master of an elastic run
    Master(Box<MasterArguments>),
    /// Show the state of a run: who is in it, who waits for whom, how fast it is
    ///
    /// The exit code is 0 if the run is healthy, 1 if it is degraded, 2 if no master answers.
    Status(StatusArguments),
    /// Show the state of a run live in this terminal
    Top(TopArguments),
    /// Remove a peer from its run
    Evict(EvictArguments),
    /// Refuse new peers, so that a run can end
    Drain(DrainArguments),
    /// Relay the traffic of peers that cannot reach each other, because both are behind a NAT
    ///
    /// All peers must reach the relay. Tell the master its address: ringfold master --relay HOST:PORT. Ends on SIGINT and
    /// SIGTERM with exit code 0.
    Relay(Box<RelayArguments>),
    /// Show the settings in force and where they come from, or check a file with settings
    Config(ConfigArguments),
    /// Make the secrets of a run
    Keys(KeysArguments),
    /// Say what is wrong with this host, with the way to the master, and between hosts
    Doctor(Box<DoctorArguments>),
    /// Show a run on this machine that loses a peer and adds a new one
    Demo(Demo),
    /// Measure collectives on this machine, optionally against Gloo and Open MPI
    Bench(Box<Bench>),
    /// Show what happened, from the flight recorders of several processes
    ///
    /// Processes record their last events in a file each if RINGFOLD_FLIGHT_DIR is set, or with --flight-dir. The files can be
    /// read after a crash, and while the processes run.
    Replay(Replay),
    /// Run programs on emulated hosts with emulated links between them
    Lab(Lab),
    /// One peer of the demo
    #[command(hide = true)]
    DemoPeer(PeerArguments),
    /// One measured rank
    #[command(hide = true)]
    BenchRank(RankArguments),
    /// All ranks on a CUDA device
    #[command(hide = true)]
    BenchCuda(CudaArguments),
    /// One rank of a measured fetch of shared state
    #[command(hide = true)]
    BenchStateRank(StateRankArguments),
    /// One rank of a measurement in which a rank is killed
    #[command(hide = true)]
    BenchLossRank(LossRankArguments),
}

/// The master of an elastic run. It accepts peers and coordinates them.
///
/// Ends on SIGINT and SIGTERM with exit code 0.
#[derive(Parser)]
#[command(version)]
struct MasterCommand {
    #[command(flatten)]
    arguments: MasterArguments,
}

/// Ends the process of a command with the command's exit code.
///
/// The destructors of libraries do not run: a thread that was left behind by Ctrl-C may still use these libraries, and
/// would die by a signal.
pub fn end_process(code: i32) -> ! {
    signal_hook::low_level::exit(code)
}

/// Runs a command by name and returns its exit code; `None` if the name is unknown.
///
/// The arguments do not include the name. `invocation` starts the command `ringfold` as another process.
pub fn named(name: &str, arguments: Vec<OsString>, invocation: &Invocation) -> Option<i32> {
    match name {
        "ringfold" => Some(ringfold(arguments, invocation)),
        "ccoip_master" => Some(ccoip_master(arguments)),
        "pccl_master" => Some(pccl_master(arguments)),
        _ => None,
    }
}

/// The command `ringfold`.
pub fn ringfold(arguments: Vec<OsString>, invocation: &Invocation) -> i32 {
    run("ringfold", arguments, |Ringfold { command }| {
        if !matches!(command, RingfoldCommand::Master(_) | RingfoldCommand::Relay(_)) {
            log::start_once();
        }
        match command {
            RingfoldCommand::Master(master) => master.run(),
            RingfoldCommand::Status(status) => status.run(),
            RingfoldCommand::Top(top) => top.run(),
            RingfoldCommand::Evict(evict) => evict.run(),
            RingfoldCommand::Drain(drain) => drain.run(),
            RingfoldCommand::Relay(relay) => relay.run(),
            RingfoldCommand::Config(config) => config.run(),
            RingfoldCommand::Keys(keys) => keys.run(),
            RingfoldCommand::Replay(replay) => replay.run(),
            RingfoldCommand::Doctor(doctor) => doctor.run(invocation),
            RingfoldCommand::Demo(demo) => demo.run(invocation),
            RingfoldCommand::DemoPeer(peer) => peer.run(),
            RingfoldCommand::Bench(bench) => bench.run(invocation),
            RingfoldCommand::BenchRank(rank) => rank.run(),
            RingfoldCommand::BenchCuda(ranks) => ranks.run(),
            RingfoldCommand::BenchStateRank(rank) => rank.run(),
            RingfoldCommand::BenchLossRank(rank) => rank.run(),
            RingfoldCommand::Lab(lab) => lab.run(invocation),
        }
    })
}

/// The command `ccoip_master`: a master that needs no arguments.
pub fn ccoip_master(arguments: Vec<OsString>) -> i32 {
    run("ccoip_master", arguments, |command: MasterCommand| command.arguments.run())
}

/// The command `pccl_master`: `ccoip_master` under the name of the Python package.
pub fn pccl_master(arguments: Vec<OsString>) -> i32 {
    run("pccl_master", arguments, |command: MasterCommand| command.arguments.run())
}

/// Parses the arguments, does the work, and prints an error.
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
        // Also --help and --version.
        Err(error) => {
            let _ = error.print();
            error.exit_code()
        }
    };
    // Nothing else would flush Rust's standard output at the end of a Python interpreter or in `end_process`.
    let _ = std::io::stdout().flush();
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit_code(name: &str, arguments: &[&str]) -> Option<i32> {
        named(name, arguments.iter().map(OsString::from).collect(), &Invocation::ThisProgram)
    }

    #[test]
    fn help_and_version_return_0_and_invalid_arguments_2() {
        for name in ["ringfold", "ccoip_master", "pccl_master"] {
            assert_eq!(exit_code(name, &["--help"]), Some(0));
            assert_eq!(exit_code(name, &["--version"]), Some(0));
            assert_eq!(exit_code(name, &["--nonsense"]), Some(2));
        }
        assert_eq!(exit_code("ringfold", &["master", "--help"]), Some(0));
        assert_eq!(exit_code("ringfold", &["relay", "--help"]), Some(0));
        assert_eq!(exit_code("ringfold_master", &["--help"]), None);
    }

    #[test]
    fn the_help_of_a_master_names_its_command() {
        for name in ["ccoip_master", "pccl_master"] {
            let mut command = MasterCommand::command().name(name);
            assert!(command.render_help().to_string().contains(&format!("Usage: {name} ")));
        }
    }
}
