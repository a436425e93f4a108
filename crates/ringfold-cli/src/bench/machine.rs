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

/// The value behind a name and a colon.
fn after<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, rest)| rest.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_described_in_one_line() {
        let machine = Machine::detect();
        assert!(machine.cores > 0 && machine.memory_gib > 0 && !machine.to_string().contains('\n'));
        assert_eq!(after("a : b c\nd:e", "d"), Some("e"));
    }
}
