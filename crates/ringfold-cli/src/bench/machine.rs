//! The machine that the figures were measured on.

use serde::Serialize;
use std::fmt;
use std::fs;

/// The properties of the machine that figures depend on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: u64,
    pub(crate) system: String,
    /// The load average of the last minute at the start: other processes disturb the measurement.
    pub(crate) load: String,
}

impl Machine {
    pub(crate) fn detect() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let memory_kib: u64 = after(&meminfo, "MemTotal")
            .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
            .unwrap_or(0);
        Self {
            processor: after(&cpuinfo, "model name").unwrap_or("unknown processor").to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: memory_kib.div_ceil(1024 * 1024),
            system: format!("Linux {}", release.trim()),
            load: load.split_whitespace().next().unwrap_or("unknown").to_owned(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { processor, cores, memory_gib, system, load } = self;
        write!(f, "{processor}, {cores} cores, {memory_gib} GiB, {system}, load {load}")
    }
}

/// What the sockets and cores of this host mean for the reductions of so many ranks with so many threads each.
pub(crate) fn explain_cores(ranks: usize, threads: usize) -> String {
    let nodes = fs::read_dir("/sys/devices/system/node").map_or(0, |entries| {
        let is_node = |name: &str| name.strip_prefix("node").is_some_and(|n| n.parse::<u32>().is_ok());
        entries
            .filter(|entry| entry.as_ref().is_ok_and(|e| e.file_name().to_str().is_some_and(is_node)))
            .count()
    });
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    advise_on_cores(nodes.max(1), cores, ranks, threads)
}

fn advise_on_cores(nodes: usize, cores: usize, ranks: usize, threads: usize) -> String {
    let plural = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    let spare = cores / ranks.max(1);
    let mut text = format!(
        "{} per rank reduce shared buffers; {} and {}, {} per rank",
        plural(threads, "thread"),
        plural(nodes, "NUMA node"),
        plural(cores, "core"),
        spare
    );
    if spare > threads {
        text += &format!(": RINGFOLD_FOLD_THREADS={} would use them", spare.min(64));
    }
    if nodes > 1 {
        text += "; bind the ranks to cores, so that each reads the memory of the other node once and keeps its own on its node";
    }
    text
}

/// The value behind a name and a colon.
fn after<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, rest)| rest.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_and_nodes_are_explained() {
        let small = advise_on_cores(1, 2, 2, 1);
        assert_eq!(small, "1 thread per rank reduce shared buffers; 1 NUMA node and 2 cores, 1 per rank");
        let large = advise_on_cores(2, 64, 8, 1);
        assert!(large.contains("2 NUMA nodes and 64 cores, 8 per rank: RINGFOLD_FOLD_THREADS=8"), "{large}");
        assert!(large.contains("bind the ranks to cores"), "{large}");
        assert!(explain_cores(1, 1).contains("core"));
    }

    #[test]
    fn the_machine_is_described_in_one_line() {
        let machine = Machine::detect();
        assert!(machine.cores > 0 && machine.memory_gib > 0 && !machine.to_string().contains('\n'));
        assert_eq!(after("a : b c\nd:e", "d"), Some("e"));
    }
}
