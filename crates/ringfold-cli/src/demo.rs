//! A whole run on one machine, with a death and a birth in the middle of it.

mod child;
mod event;
mod model;
mod parent;
mod peer;
mod report;
mod schedule;

pub use peer::PeerArguments;

use crate::invocation::Invocation;
use crate::size::ByteSize;
use anyhow::Result;
use clap::Args;
use std::time::Duration;

/// What the demo shows.
#[derive(Args, Clone, Debug)]
pub struct Demo {
    /// Peers at the start
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=24))]
    peers: u32,
    /// Steps of training
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    steps: u64,
    /// Gradients that every peer brings to each step
    #[arg(long, default_value = "16MiB", value_parser = gradient_size)]
    size: ByteSize,
    /// How long a peer pretends to compute in each step
    #[arg(long, value_name = "MS", default_value_t = 150, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    compute_ms: u64,
    /// Kill nobody and add nobody
    #[arg(long)]
    no_chaos: bool,
}

impl Demo {
    /// Runs it to its end, tells what happened and returns the exit code; it is 0 only if everything held. Master and
    /// peers are this command again, in processes of their own.
    pub fn run(&self, again: &Invocation) -> Result<i32> {
        parent::run(self, again)
    }

    fn compute(&self) -> Duration {
        Duration::from_millis(self.compute_ms)
    }
}

/// Between a page and what several peers of one machine can hold a few times over.
fn gradient_size(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse()?;
    if !(4096..=1 << 30).contains(&size.0) || !size.0.is_multiple_of(4) {
        return Err("it takes 4 KiB to 1 GiB, in whole numbers of 4 bytes".into());
    }
    Ok(size)
}
