//! Resource usage of this process: processor time, page faults, memory.

use rustix::time::{ClockId, clock_gettime};
use std::fs;

/// The counters at one point in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counters {
    /// Of all threads, including those that have ended.
    pub(crate) cpu_ns: u64,
    pub(crate) minor_faults: u64,
    pub(crate) major_faults: u64,
}

impl Counters {
    pub(crate) fn now() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let (minor_faults, major_faults) = faults(&stat);
        Self { cpu_ns: cpu_ns(), minor_faults, major_faults }
    }

    /// The difference from earlier counters.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            minor_faults: self.minor_faults.saturating_sub(before.minor_faults),
            major_faults: self.major_faults.saturating_sub(before.major_faults),
        }
    }
}

/// Processor time of all threads.
pub(crate) fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The 10th and 12th field of /proc/self/stat. The second field may contain spaces and parentheses.
fn faults(stat: &str) -> (u64, u64) {
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut numbers = rest.split_whitespace().map(|field| field.parse().unwrap_or(0));
    (numbers.nth(7).unwrap_or(0), numbers.nth(1).unwrap_or(0))
}

/// The resident memory.
pub(crate) fn resident_bytes() -> u64 {
    status("VmRSS:")
}

/// The peak of the resident memory since [`reset_peak`].
pub(crate) fn peak_bytes() -> u64 {
    status("VmHWM:")
}

/// Resets the peak. Without permission the peak is that of the whole process.
pub(crate) fn reset_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|rest| rest.split_whitespace().next()).and_then(|number| number.parse().ok());
    kib.unwrap_or(0_u64) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_unusual_names() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194304 1234 0 56 0 7 5 0 0 20 0 1";
        assert_eq!(faults(stat), (1234, 56));
        assert_eq!(faults(""), (0, 0));
    }

    #[test]
    fn touched_memory_counts_as_faults_and_in_the_peak() {
        let before = Counters::now();
        reset_peak();
        let base = resident_bytes();
        drop(vec![1_u8; 64 << 20]);
        assert!(peak_bytes() >= base + (48 << 20));
        let used = Counters::now().since(before);
        assert!(used.minor_faults > 0 && used.cpu_ns > 0, "{used:?}");
    }
}
