//! The ranks of `ringfold bench --cuda`: threads of one process, on one device.

use super::output::print;
use super::statistics::median;
use crate::exit_code::SUCCESS;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use ringfold::cuda::device_arena::packet_capacity;
use ringfold::cuda::{DeviceBuffer, Gpu, default_cache};
use ringfold::{Bootstrap, BootstrapListener, DType, DeviceGroup, Group, KernelSources, ReduceOp};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// The device of all ranks.
pub(super) const ORDINAL: i32 = 0;
/// The calls of a graph, and the launches of a run.
const CALLS: u32 = 20;
const LAUNCHES: u32 = 20;
/// How long kernels and calls wait for a rank.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a rank waits for all others at first; they may compile kernels.
const GROUP_TIMEOUT: Duration = Duration::from_secs(300);

/// The arguments of the hidden command `bench-cuda`.
#[derive(Args, Clone, Debug)]
pub struct CudaArguments {
    #[arg(long)]
    world: usize,
    /// The sizes in bytes.
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<u64>,
    #[arg(long)]
    runs: u32,
}

/// The times of a call, on the slowest rank.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, Debug)]
pub(super) struct SizeTimes {
    pub(super) bytes: u64,
    /// None if it does not fit into packets.
    pub(super) packets_us: Option<f64>,
    pub(super) in_place_us: f64,
}

/// The buffers of a size.
struct Buffers {
    source: DeviceBuffer,
    target: DeviceBuffer,
}

impl CudaArguments {
    /// Measures, prints a line of JSON, and returns the exit code.
    pub fn run(&self) -> Result<i32> {
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        let listener = BootstrapListener::open()?;
        let (sender, results) = channel();
        let mut times: Vec<SizeTimes> = Vec::new();
        std::thread::scope(|scope| {
            for rank in 0..self.world {
                let (sender, at) = (sender.clone(), listener.clone());
                scope.spawn(move || sender.send((rank, self.measure(rank, at))));
            }
            drop(sender);
            for _ in 0..self.world {
                // The first error is the cause of the others.
                let (rank, measured) = results.recv().context("a rank panicked")?;
                let measured = measured.with_context(|| format!("rank {rank}"))?;
                times = if times.is_empty() { measured } else { slowest(&times, &measured) };
            }
            anyhow::Ok(())
        })?;
        print(&serde_json::to_string(&times)?)?;
        Ok(SUCCESS)
    }

    /// The times of all sizes on one rank.
    fn measure(&self, rank: usize, listener: BootstrapListener) -> Result<Vec<SizeTimes>> {
        let at = match rank {
            0 => Bootstrap::Listener(listener),
            _ => Bootstrap::Announcement(listener.announcement()),
        };
        let builder = Group::builder().rank(rank).world(self.world).bootstrap(at);
        let group = builder.timeout(GROUP_TIMEOUT).connect_timeout(CALL_TIMEOUT).connect()?;
        // Allocated first, and freed last: the driver may wait for running kernels then.
        let mine = 1.0 + rank as f32;
        let buffers = |bytes: &u64| {
            let count = *bytes as usize / 4;
            let source = DeviceBuffer::new(ORDINAL, &mine.to_ne_bytes().repeat(count))?;
            anyhow::Ok(Buffers { source, target: DeviceBuffer::new(ORDINAL, &vec![0; count * 4])? })
        };
        let buffers = self.sizes.iter().map(buffers).collect::<Result<Vec<_>>>()?;
        let packets = self.times(&group, &buffers, true)?;
        let in_place = self.times(&group, &buffers, false)?;
        group.barrier()?;
        let both = self.sizes.iter().zip(packets.into_iter().zip(in_place));
        both.map(|(&bytes, (packets_us, in_place_us))| {
            let in_place_us = in_place_us.with_context(|| format!("no time of {bytes} bytes"))?;
            Ok(SizeTimes { bytes, packets_us, in_place_us })
        })
        .collect()
    }

    /// The times of all sizes in microseconds, by packets or in place. None where that is not possible.
    fn times(&self, group: &Group, buffers: &[Buffers], packets: bool) -> Result<Vec<Option<f64>>> {
        let sources = KernelSources { compiler: None, cache: default_cache() };
        let limit = if packets { u64::MAX } else { 0 };
        // Alone on the device: the groups before are closed.
        group.barrier()?;
        let device = DeviceGroup::open_with(group, Some(ORDINAL), &sources, Some(limit))??;
        device.set_timeout(CALL_TIMEOUT);
        let mut times = Vec::with_capacity(buffers.len());
        for buffers in buffers {
            let fits = buffers.source.memory().len() as u64 <= packet_capacity(self.world);
            times.push(if packets && !fits {
                None
            } else {
                Some(self.time(group, &device, buffers, packets)?)
            });
        }
        drop(device);
        group.barrier()?;
        Ok(times)
    }

    /// The median time of a size. Between barriers, the ranks do only what does not wait for running kernels.
    fn time(&self, group: &Group, device: &DeviceGroup, buffers: &Buffers, packets: bool) -> Result<f64> {
        let (source, target) = (buffers.source.memory(), buffers.target.memory());
        let what = (DType::F32, ReduceOp::Sum);
        buffers.target.write(&vec![0; target.len()])?;
        if !packets {
            for memory in [&source, &target] {
                device.register(memory)?.context("cannot register memory")?;
            }
        }
        let stream = Gpu::open(ORDINAL)?.create_stream()?;
        group.barrier()?;
        device.all_reduce(&source, &target, what.0, what.1, &stream, None)?;
        device.synchronize(CALL_TIMEOUT)?;
        group.barrier()?;
        let expected = (self.world * (self.world + 1) / 2) as f32;
        if buffers.target.read()?.chunks_exact(4).any(|element| element != expected.to_ne_bytes()) {
            bail!("wrong result of an all-reduce of {} bytes", target.len());
        }
        let graph = device.all_reduce_graph(&source, &target, what.0, what.1, CALLS)?;
        let mut runs = Vec::with_capacity(self.runs as usize);
        for _ in 0..self.runs {
            group.barrier()?;
            let time = graph.time(LAUNCHES, Instant::now() + CALL_TIMEOUT);
            device.failure().map_or(Ok(()), Err)?;
            runs.push(time?.as_secs_f64() * 1e6);
        }
        group.barrier()?;
        drop(graph);
        group.barrier()?;
        median(&runs).ok_or_else(|| anyhow!("no runs"))
    }
}

/// The larger times of two ranks.
fn slowest(one: &[SizeTimes], other: &[SizeTimes]) -> Vec<SizeTimes> {
    let larger = |(one, other): (&SizeTimes, &SizeTimes)| SizeTimes {
        bytes: one.bytes,
        packets_us: one.packets_us.zip(other.packets_us).map(|(one, other)| one.max(other)),
        in_place_us: one.in_place_us.max(other.in_place_us),
    };
    one.iter().zip(other).map(larger).collect()
}
