//! The arguments of `ringfold demo`.

use crate::size::ByteSize;
use clap::Args;

/// The arguments of `ringfold demo`.
#[derive(Args, Clone, Debug)]
pub struct Demo {
    /// The number of peers at the start
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=24))]
    pub(super) peers: u32,
    /// The number of training steps
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(super) steps: u64,
    /// The size of the gradients that each peer reduces per step: 4KiB to 1GiB
    #[arg(long, default_value = "16MiB", value_parser = gradient_size)]
    pub(super) size: ByteSize,
    /// The simulated computing time per step
    #[arg(long, value_name = "MS", default_value_t = 150, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub(super) compute_ms: u64,
    /// Do not kill a peer and do not add one
    #[arg(long)]
    pub(super) no_chaos: bool,
}

fn gradient_size(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse()?;
    if !(4096..=1 << 30).contains(&size.0) || !size.0.is_multiple_of(4) {
        return Err("must be 4KiB to 1GiB, and a multiple of 4 bytes".into());
    }
    Ok(size)
}
