//! Matrices like measured ones, for tests, examples and benchmarks.
#![allow(dead_code, reason = "each of them uses a part")]

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use ringfold_topology::{BandwidthMatrix, Edge, Link, NodeCount};

/// How the links of a matrix depend on each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Every link on its own, from 10 MB/s to 10 GB/s, both directions unlike.
    Random,
    /// Sites with fast links inside and slow, uneven ones between.
    Clustered,
    /// A link is as fast as its sender's uplink and its receiver's downlink allow, so ties abound.
    Uplinks,
    /// Every link on its own, three in ten of them cut.
    Cut,
}

impl Shape {
    pub const ALL: [Self; 4] = [Self::Random, Self::Clustered, Self::Uplinks, Self::Cut];

    pub fn matrix(self, nodes: usize, seed: u64) -> BandwidthMatrix {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ ((self as u64) << 32) ^ ((nodes as u64) << 40));
        let count = NodeCount::new(nodes).expect("a test asks for a sensible world");
        let sites = nodes.div_ceil(5);
        let site: Vec<usize> = (0..nodes).map(|_| (unit(&mut rng) * sites as f64) as usize).collect();
        let between: Vec<f64> = (0..sites * sites).map(|_| log_uniform(&mut rng, 1e7, 1e9)).collect();
        let uplink: Vec<f64> = (0..nodes).map(|_| log_uniform(&mut rng, 1e7, 1e9)).collect();
        let downlink: Vec<f64> = (0..nodes).map(|_| log_uniform(&mut rng, 5e7, 5e9)).collect();
        BandwidthMatrix::from_fn(count, |Edge { from, to }| {
            let (from, to) = (from.index(), to.index());
            let noise = 0.8 + 0.4 * unit(&mut rng);
            let bytes_per_second = match self {
                Self::Random => log_uniform(&mut rng, 1e7, 1e10),
                Self::Clustered if site[from] == site[to] => 1e10 * noise,
                Self::Clustered => between[site[from] * sites + site[to]] * noise,
                Self::Uplinks => uplink[from].min(downlink[to]),
                Self::Cut if unit(&mut rng) < 0.3 => return Link::Unreachable,
                Self::Cut => log_uniform(&mut rng, 1e7, 1e10),
            };
            Link::measured(bytes_per_second).expect("the ranges above are sensible")
        })
    }
}

pub fn unit(rng: &mut ChaCha8Rng) -> f64 {
    f64::from(rng.next_u32()) / 2f64.powi(32)
}

fn log_uniform(rng: &mut ChaCha8Rng, low: f64, high: f64) -> f64 {
    low * (high / low).powf(unit(rng))
}
