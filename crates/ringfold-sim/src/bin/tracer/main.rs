//! The tracer bullet: a master and peers as real processes, all-reducing over plain TCP through the real
//! machines and the real executor.
//!
//! It exists to prove that the interfaces of the pure crates can be driven by sockets, and is kept as a test.
//! It is no product: one thread per process that looks at all sockets in turn, copies where copying is simple,
//! loopback only.
#![forbid(unsafe_code)]

mod clock;
mod knock;
mod link;
mod master;
mod medium;
mod memory;
mod mesh;
mod peer;
mod program;
mod random;
mod socket;
mod timing;
mod uplink;

use clap::Parser;
use master::Server;
use peer::PeerDriver;
use program::Program;
use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

/// All-reduces among real processes, over TCP on the loopback.
#[derive(Parser)]
#[command(name = "tracer")]
enum Role {
    /// Serve a run until everyone who came has left again.
    Master {
        /// What peers must know to join.
        #[arg(long, default_value = "")]
        token: String,
        /// Tell every decision on stderr.
        #[arg(long)]
        verbose: bool,
        /// Give up after so long.
        #[arg(long, default_value_t = 120)]
        lifetime_s: u64,
    },
    /// Take part in a run.
    Peer {
        /// Where the master listens.
        #[arg(long)]
        master: SocketAddr,
        /// What the master wants peers to know.
        #[arg(long, default_value = "")]
        token: String,
        /// What others call this peer.
        #[arg(long)]
        name: String,
        /// Begin when there are so many peers.
        #[arg(long)]
        world: u32,
        /// Elements of each buffer.
        #[arg(long)]
        count: u64,
        /// Steps of the run, each with four all-reduces in flight.
        #[arg(long)]
        steps: u32,
        /// Go on with steps until so many peers have made one together; the same for all.
        #[arg(long, default_value_t = 0)]
        until_world: u32,
        /// At this step, start one collective and nothing more.
        #[arg(long)]
        hold_at: Option<u32>,
        /// Give up after so long.
        #[arg(long, default_value_t = 100)]
        lifetime_s: u64,
    },
}

fn main() -> ExitCode {
    match play(Role::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tracer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn play(role: Role) -> Result<(), Box<dyn Error>> {
    match role {
        Role::Master { token, verbose, lifetime_s } => {
            Server::open(&token, verbose)?.serve(Duration::from_secs(lifetime_s))
        }
        Role::Peer { master, token, name, world, count, steps, until_world, hold_at, lifetime_s } => {
            let mut peer = PeerDriver::new(master, &token, &name, Duration::from_secs(lifetime_s))?;
            Program { name, world, count, steps, until_world, hold_at }.run(&mut peer)
        }
    }
}
