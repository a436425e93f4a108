//! The group that a rank measures, and the arguments that its process gets.

use super::pattern::PatternElement;
use super::point::Point;
use super::quantize::parse_quantization;
use super::setting::BenchMedium;
use super::variant::Variant;
use anyhow::Result;
use clap::Args;
use ringfold::{Integrity, Quantization};
use std::path::PathBuf;

/// The arguments of the hidden command `bench-rank`.
#[derive(Args, Clone, Debug)]
pub struct RankArguments {
    /// The Unix socket to read commands from.
    #[arg(long)]
    pub(crate) socket: PathBuf,
    #[arg(long)]
    pub(crate) rank: usize,
    #[arg(long)]
    pub(crate) world: usize,
    #[arg(long)]
    pub(crate) medium: BenchMedium,
    /// The address of the master, or the rendezvous file of the group.
    #[arg(long)]
    pub(crate) rendezvous: String,
    /// The core to bind to.
    #[arg(long)]
    pub(crate) core: Option<usize>,
    /// The number of operations that share a payload.
    #[arg(long, default_value_t = 1)]
    pub(crate) concurrent: usize,
    /// The tuning that this rank offers to the group.
    #[arg(long)]
    pub(crate) tuning: Option<PathBuf>,
    /// The quantisation of all-reduces.
    #[arg(long, value_parser = parse_quantization)]
    pub(crate) quantize: Option<Quantization>,
    /// What operations check.
    #[arg(long, default_value = "none")]
    pub(crate) integrity: Integrity,
    /// Whether reductions are reproducible.
    #[arg(long)]
    pub(crate) reproducible: bool,
    /// Whether buffers are allocated in shared memory.
    #[arg(long)]
    pub(crate) shared_buffers: bool,
}

impl RankArguments {
    pub(crate) fn variant(&self) -> Variant {
        Variant { integrity: self.integrity, reproducible: self.reproducible }
    }
}

/// A group whose calls are timed.
pub(crate) trait MeasuredGroup {
    /// A note about the group for the report.
    fn note(&self) -> Option<String>;

    /// Why the group does not support a point; none if it does.
    fn unsupported_reason(&self, point: &Point) -> Option<String>;

    /// Which plan the group uses for a point, and why.
    fn explain(&self, point: &Point) -> String;

    /// Makes one call. It is in place if `recv` is empty.
    fn call<T: PatternElement>(
        &mut self,
        point: &Point,
        send: &mut [T],
        recv: &mut [T],
    ) -> Result<(), ringfold::Error>;

    /// Waits until all ranks have called it.
    fn barrier(&mut self) -> Result<(), ringfold::Error>;
}
