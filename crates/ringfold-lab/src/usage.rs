//! The resources of a process, for tests that look for leaks.

use std::fs;
use std::io;
use std::path::PathBuf;

/// The resources of a process at one time.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    pub descriptors: usize,
    pub threads: usize,
    pub resident_bytes: u64,
    pub anonymous_bytes: u64,
    /// Processor time of all threads in clock ticks (usually 10 ms).
    pub processor_ticks: u64,
}

impl Usage {
    /// The usage of a process.
    pub fn of(pid: u32) -> io::Result<Self> {
        let status = fs::read_to_string(proc(pid, "status"))?;
        let stat = fs::read_to_string(proc(pid, "stat"))?;
        Ok(Self {
            descriptors: fs::read_dir(proc(pid, "fd"))?.count(),
            threads: field(&status, "Threads:") as usize,
            resident_bytes: field(&status, "VmRSS:") * 1024,
            anonymous_bytes: field(&status, "RssAnon:") * 1024,
            processor_ticks: processor_ticks(&stat),
        })
    }

    /// The usage of this process.
    pub fn of_this_process() -> io::Result<Self> {
        Self::of(std::process::id())
    }
}

/// The targets of the open descriptors of a process (`socket:[123]`, `/tmp/x`, `/memfd:y`), sorted.
pub fn descriptors(pid: u32) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(proc(pid, "fd"))? {
        // A descriptor may be closed while the directory is read.
        if let Ok(target) = fs::read_link(entry?.path()) {
            found.push(target.to_string_lossy().into_owned());
        }
    }
    found.sort();
    Ok(found)
}

/// Whether the process exists and is not a zombie.
pub fn is_alive(pid: u32) -> bool {
    fs::read_to_string(proc(pid, "stat"))
        .is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z')))
}

fn proc(pid: u32, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{file}"))
}

/// A number in `status`; zero if it is missing, as with the memory of a zombie.
fn field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()).and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// User and system time: fields 14 and 15 of `stat`. The second field may contain spaces and parentheses.
fn processor_ticks(stat: &str) -> u64 {
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    rest.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_and_memory_of_this_process_are_counted() {
        let before = Usage::of_this_process().expect("usage");
        assert!(before.threads >= 1 && before.resident_bytes > 0 && before.anonymous_bytes > 0);
        let files: Vec<_> = (0..50).map(|_| fs::File::open("/proc/self/stat").expect("open")).collect();
        let memory = vec![1u8; 64 << 20];
        let after = Usage::of_this_process().expect("usage");
        // Other tests run in this process too, so the counts are not exact.
        assert!(after.descriptors >= before.descriptors + 40, "{before:?} {after:?}");
        assert!(after.resident_bytes >= before.resident_bytes + (40 << 20), "{before:?} {after:?}");
        assert!(descriptors(std::process::id()).expect("descriptors").iter().any(|d| d.ends_with("/stat")));
        drop((files, memory));
    }

    #[test]
    fn fields_of_stat_are_found_behind_unusual_names() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 0 10 0 0 0 7 5 0 0 20 0 1";
        assert_eq!(processor_ticks(stat), 12);
        assert_eq!(processor_ticks(""), 0);
    }

    #[test]
    fn a_process_that_does_not_exist_is_not_alive() {
        assert!(is_alive(std::process::id()));
        assert!(!is_alive(u32::MAX));
        assert!(Usage::of(u32::MAX).is_err());
    }
}
