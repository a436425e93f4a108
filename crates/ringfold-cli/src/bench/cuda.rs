//! Measures how CUDA tensors are reduced fastest: `ringfold bench --cuda`.
//!
//! The ranks are threads of a process of their own, on the first CUDA device. Each size is reduced by packets and in place.

use super::arguments::Bench;
use super::children::{Children, lines, next};
use super::cuda_ranks::{ORDINAL, SizeTimes};
use super::interrupt::Interrupt;
use super::output::print;
use super::tune::crossing;
use crate::invocation::Invocation;
use anyhow::{Context, Result, bail};
use ringfold::cuda::Gpu;
use ringfold::cuda::device_arena::{WORLD_MAX, packet_capacity};
use ringfold::{PacketLimit, TuningFile};
use std::process::Stdio;
use std::time::Duration;

/// How long the ranks of one world may take; compiling their kernels takes some seconds.
const WORLD_TIMEOUT: Duration = Duration::from_secs(600);
/// The sizes to measure if none are given: from this fraction of what fits into packets, to twice that.
const SMALLEST_SHARE: u64 = 64;

/// Explains, or measures, prints and writes the tuning.
pub(super) fn run(bench: &Bench, invocation: &Invocation, interrupt: &Interrupt) -> Result<()> {
    let worlds: Vec<_> = bench.world.iter().map(|world| *world as usize).collect();
    if let Some(world) = worlds.iter().find(|world| !(2..=WORLD_MAX).contains(*world)) {
        bail!("invalid number of ranks {world}: must be 2 to {WORLD_MAX} on CUDA devices");
    }
    if let Some(why) = Gpu::unavailable_reason() {
        bail!("--cuda needs a CUDA device: {why}");
    }
    let gpu = Gpu::open(ORDINAL).context("cannot open the CUDA device")?;
    let mut file = bench.tune.as_deref().map(TuningFile::read_or_default).transpose()?;
    for world in worlds {
        let limit = PacketLimit::of(gpu.capability(), world, bench.tuning.as_deref())?;
        let sizes = match bench.given_sizes() {
            Some(sizes) => sizes.iter().map(|size| whole_elements(size.0)).collect(),
            None => usual_sizes(world),
        };
        if bench.explain {
            for bytes in sizes {
                print(&explain(bytes, world, &limit))?;
            }
            continue;
        }
        let times = measure(world, &sizes, bench.effort().runs, invocation, interrupt)?;
        print(&table(&times, world, &limit, &format!("{gpu:?}")))?;
        if let Some(file) = &mut file {
            let best = best_limit(&times);
            print(&format!("{world} ranks: packets up to {best} bytes"))?;
            file.cuda_packet_bytes.insert(world, best);
        }
    }
    if let (Some(file), Some(path)) = (file, &bench.tune) {
        file.write(path)?;
    }
    Ok(())
}

/// A size of at least one f32, in whole ones.
fn whole_elements(bytes: u64) -> u64 {
    (bytes & !3).max(4)
}

/// Sizes around the limit, each twice the one before.
fn usual_sizes(world: usize) -> Vec<u64> {
    let capacity = packet_capacity(world);
    let sizes = std::iter::successors(Some(capacity * 2), |size| Some(size / 2));
    let mut sizes: Vec<_> =
        sizes.take_while(|size| *size >= capacity / SMALLEST_SHARE).map(whole_elements).collect();
    sizes.reverse();
    sizes
}

/// Which algorithm is used for a size, and why.
fn explain(bytes: u64, world: usize, limit: &PacketLimit) -> String {
    if bytes <= limit.bytes {
        format!("{bytes} bytes: packets: at most the limit of {world} ranks, {limit}")
    } else {
        format!(
            "{bytes} bytes: in place, or through staging areas if memory is not registered: more than the limit of \
             {world} ranks, {limit}"
        )
    }
}

fn table(times: &[SizeTimes], world: usize, limit: &PacketLimit, device: &str) -> String {
    let mut text = format!(
        "# all_reduce of f32, {world} ranks on {device}, in a graph; the limit of packets is {limit}\n\
         {:>12}  {:>10}  {:>11}  used now\n",
        "bytes", "packets us", "in place us"
    );
    for SizeTimes { bytes, packets_us, in_place_us } in times {
        let packets = packets_us.map_or("-".into(), |us| format!("{us:.2}"));
        let used = if *bytes <= limit.bytes { "packets" } else { "in place" };
        text += &format!("{bytes:>12}  {packets:>10}  {in_place_us:>11.2}  {used}\n");
    }
    text
}

/// The largest size up to which packets are not slower; 0 if they are.
fn best_limit(times: &[SizeTimes]) -> u64 {
    let (mut sizes, mut packets, mut in_place) = (Vec::new(), Vec::new(), Vec::new());
    for time in times {
        sizes.push(time.bytes);
        packets.push(time.packets_us.unwrap_or(f64::INFINITY));
        in_place.push(time.in_place_us);
    }
    crossing(&sizes, &packets, &in_place)
}

/// Measures the sizes in another process.
fn measure(
    world: usize,
    sizes: &[u64],
    runs: u32,
    invocation: &Invocation,
    interrupt: &Interrupt,
) -> Result<Vec<SizeTimes>> {
    let sizes: Vec<_> = sizes.iter().map(u64::to_string).collect();
    let mut command = invocation.command()?;
    command.args(["bench-cuda", "--world", &world.to_string(), "--sizes", &sizes.join(",")]);
    command.args(["--runs", &runs.to_string()]);
    // Streams of one process share queues of the device, 8 by default: a kernel would wait behind one that waits for it.
    command.env("CUDA_DEVICE_MAX_CONNECTIONS", "32");
    let child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start the ranks")?;
    let mut ranks = Children(vec![child]);
    let lines = lines(ranks.0.first_mut().and_then(|child| child.stdout.take()))?;
    next(&lines, interrupt, WORLD_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(bytes: u64, packets_us: Option<f64>, in_place_us: f64) -> SizeTimes {
        SizeTimes { bytes, packets_us, in_place_us }
    }

    #[test]
    fn packets_are_used_up_to_the_last_size_at_which_they_win() {
        let times = [time(1024, Some(2.0), 7.0), time(2048, Some(7.0), 7.0), time(4096, Some(9.0), 8.0)];
        assert_eq!(best_limit(&times), 2048);
        assert_eq!(best_limit(&times[2..]), 0);
        assert_eq!(best_limit(&[times[0], time(4096, None, 8.0)]), 1024);
        assert_eq!(best_limit(&[]), 0);
    }

    #[test]
    fn sizes_are_around_what_fits_into_packets() {
        for world in 2..=WORLD_MAX {
            let (sizes, capacity) = (usual_sizes(world), packet_capacity(world));
            assert!(sizes.is_sorted() && sizes.contains(&capacity), "{world}: {sizes:?}");
            assert!(sizes.last() == Some(&(capacity * 2)) && sizes.iter().all(|size| size % 4 == 0));
        }
    }

    #[test]
    fn the_explanation_names_the_algorithm_the_limit_and_its_origin() {
        let path = std::env::temp_dir().join(format!("ringfold-cuda-explain-{}", std::process::id()));
        std::fs::write(&path, r#"{"cuda_packet_bytes": {"4": 4096}}"#).unwrap();
        let of = |world| PacketLimit::of((9, 0), world, Some(&path)).unwrap();
        assert_eq!(
            explain(65536, 2, &of(2)),
            "65536 bytes: packets: at most the limit of 2 ranks, 1048576, from the table for compute capability 9.0"
        );
        let text = explain(4100, 4, &of(4));
        assert!(text.starts_with("4100 bytes: in place, or through staging areas if"), "{text}");
        assert!(text.ends_with(&format!("the limit of 4 ranks, 4096, from {}", path.display())), "{text}");
        let rows = table(&[time(4096, Some(2.0), 7.0), time(8192, None, 8.0)], 4, &of(4), "a device");
        assert!(rows.contains("4096        2.00         7.00  packets\n"), "{rows}");
        assert!(rows.ends_with("8192           -         8.00  in place\n"), "{rows}");
        std::fs::remove_file(path).unwrap();
    }
}
