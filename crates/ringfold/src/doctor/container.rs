//! Limits of the control groups that this process is in.

use super::host::size;
use ringfold_proto::doctor::Finding;
use std::path::{Path, PathBuf};

/// Fewer threads are too few.
const THREADS_MIN: u64 = 256;
/// Less memory is too little for tensors and links.
const MEMORY_BYTES_MIN: u64 = 512 << 20;
/// Version 1 writes numbers from here on where there is no limit.
const UNLIMITED_FROM: u64 = 1 << 60;

/// The least of the limits of all control groups around this process.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(super) struct ContainerLimits {
    /// CPUs.
    pub cpus: Option<f64>,
    /// Bytes of memory, and those in use.
    pub memory: Option<(u64, u64)>,
    /// Processes and threads.
    pub threads: Option<u64>,
}

impl ContainerLimits {
    /// Reads the limits below `root`. `own` is the text of `/proc/self/cgroup`.
    pub fn read(root: &Path, own: &str) -> Self {
        let mut limits = Self::default();
        for line in own.lines() {
            let mut parts = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
                continue;
            };
            let has = |name| controllers.split(',').any(|controller| controller == name);
            if controllers.is_empty() {
                folders(root.to_owned(), path).iter().for_each(|folder| limits.add_version_2(folder));
            } else if has("cpu") {
                let base = root.join(controllers);
                folders(base, path).iter().for_each(|folder| limits.add_cpu_version_1(folder));
            } else if has("memory") {
                folders(root.join("memory"), path).iter().for_each(|folder| {
                    limits.add_memory(folder, "memory.limit_in_bytes", "memory.usage_in_bytes");
                });
            } else if has("pids") {
                folders(root.join("pids"), path).iter().for_each(|folder| limits.add_threads(folder));
            }
        }
        limits
    }

    fn add_version_2(&mut self, folder: &Path) {
        if let Some(text) = text(&folder.join("cpu.max")) {
            let mut numbers = text.split_whitespace().map(|word| word.parse::<f64>().ok());
            if let (Some(Some(quota)), Some(Some(period))) = (numbers.next(), numbers.next()) {
                self.add_cpus(quota, period);
            }
        }
        self.add_memory(folder, "memory.max", "memory.current");
        self.add_threads(folder);
    }

    fn add_cpu_version_1(&mut self, folder: &Path) {
        let number = |name: &str| text(&folder.join(name))?.parse::<f64>().ok();
        if let (Some(quota), Some(period)) = (number("cpu.cfs_quota_us"), number("cpu.cfs_period_us")) {
            self.add_cpus(quota, period);
        }
    }

    fn add_cpus(&mut self, quota: f64, period: f64) {
        if quota > 0.0 && period > 0.0 {
            let cpus = quota / period;
            self.cpus = Some(self.cpus.map_or(cpus, |least| least.min(cpus)));
        }
    }

    fn add_memory(&mut self, folder: &Path, limit: &str, usage: &str) {
        let number = |name: &str| text(&folder.join(name))?.parse::<u64>().ok();
        if let Some(limit) = number(limit).filter(|limit| *limit < UNLIMITED_FROM) {
            let found = (limit, number(usage).unwrap_or(0));
            let is_less = self.memory.is_none_or(|(least, used)| left(found) < left((least, used)));
            self.memory = if is_less { Some(found) } else { self.memory };
        }
    }

    fn add_threads(&mut self, folder: &Path) {
        if let Some(threads) = text(&folder.join("pids.max")).and_then(|text| text.parse().ok()) {
            self.threads = Some(self.threads.map_or(threads, |least| least.min(threads)));
        }
    }
}

fn left((limit, used): (u64, u64)) -> u64 {
    limit.saturating_sub(used)
}

fn text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// The folders of a control group and all around it. In a container only the root may be visible.
fn folders(root: PathBuf, path: &str) -> Vec<PathBuf> {
    let mut folders = vec![root.clone()];
    let mut folder = root;
    for part in path.split('/').filter(|part| !part.is_empty() && *part != "..") {
        folder = folder.join(part);
        folders.push(folder.clone());
    }
    folders
}

/// The bytes of memory in `/proc/meminfo`.
pub(super) fn memory_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Judges the limits. `cpus` are those that this process may run on.
pub(super) fn findings(limits: &ContainerLimits, cpus: usize, memory: Option<u64>) -> Vec<Finding> {
    vec![cpu_limit(limits.cpus, cpus), memory_limit(limits.memory, memory), thread_limit(limits.threads)]
}

fn cpu_limit(limit: Option<f64>, cpus: usize) -> Finding {
    const CHECK: &str = "host.cpu-limit";
    match limit.filter(|limit| *limit < cpus as f64) {
        Some(limit) if limit < 1.0 => Finding::warn(
            CHECK,
            format!(
                "the container may use only {limit:.2} of {cpus} CPUs: the threads of a peer stop each other"
            ),
            "raise the CPU limit of the container to at least 2",
        ),
        Some(limit) => Finding::ok(CHECK, format!("the container may use {limit:.1} of {cpus} CPUs")),
        None => Finding::ok(CHECK, format!("this process may use {cpus} CPUs")),
    }
}

fn memory_limit(limit: Option<(u64, u64)>, memory: Option<u64>) -> Finding {
    const CHECK: &str = "host.memory-limit";
    let remedy = "raise the memory limit of the container";
    let limit = limit.filter(|(limit, _)| memory.is_none_or(|memory| *limit < memory));
    let Some((limit, used)) = limit else {
        let all =
            memory.map_or("all its memory".to_owned(), |bytes| format!("all {} of memory", size(bytes)));
        return Finding::ok(CHECK, format!("this process may use {all}"));
    };
    let text = format!("the container may use {} of memory, and uses {}", size(limit), size(used));
    match () {
        () if used > limit / 10 * 9 => Finding::warn(CHECK, format!("{text}: it may be killed soon"), remedy),
        () if limit < MEMORY_BYTES_MIN => Finding::warn(CHECK, format!("{text}: that is little"), remedy),
        () => Finding::ok(CHECK, text),
    }
}

fn thread_limit(limit: Option<u64>) -> Finding {
    const CHECK: &str = "host.thread-limit";
    match limit {
        Some(threads @ 0..THREADS_MIN) => Finding::warn(
            CHECK,
            format!("the container may have only {threads} threads"),
            "raise the limit: `docker run --pids-limit`, podPidsLimit of the kubelet, TasksMax= in systemd",
        ),
        Some(threads) => Finding::ok(CHECK, format!("the container may have {threads} threads")),
        None => Finding::ok(CHECK, "the number of threads is not limited by a container"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_proto::doctor::Judgement::{Ok as Good, Warn};

    fn tree(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("ringfold-cgroup-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_least_limit_of_all_control_groups_counts() {
        let root = tree(
            "two",
            &[
                ("a/cpu.max", "400000 100000\n"),
                ("a/b/cpu.max", "max 100000\n"),
                ("a/memory.max", "max"),
                ("a/b/memory.max", "1073741824"),
                ("a/b/memory.current", "1000"),
                ("a/b/pids.max", "max"),
                ("a/pids.max", "100"),
            ],
        );
        let limits = ContainerLimits::read(&root, "0::/a/b\n");
        let want = ContainerLimits { cpus: Some(4.0), memory: Some((1 << 30, 1000)), threads: Some(100) };
        assert_eq!(limits, want);
        assert_eq!(ContainerLimits::read(&root, "0::/../../c\n"), ContainerLimits::default());
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn version_1_is_understood() {
        let root = tree(
            "one",
            &[
                ("cpu,cpuacct/docker/x/cpu.cfs_quota_us", "50000"),
                ("cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000"),
                ("cpu,cpuacct/cpu.cfs_quota_us", "-1"),
                ("cpu,cpuacct/cpu.cfs_period_us", "100000"),
                ("memory/memory.limit_in_bytes", "9223372036854771712"),
                ("memory/docker/x/memory.limit_in_bytes", "268435456"),
                ("memory/docker/x/memory.usage_in_bytes", "260000000"),
            ],
        );
        let own = "4:cpu,cpuacct:/docker/x\n3:memory:/docker/x\n1:name=systemd:/docker/x\n";
        let limits = ContainerLimits::read(&root, own);
        assert_eq!((limits.cpus, limits.memory), (Some(0.5), Some((256 << 20, 260_000_000))));
        let judged: Vec<_> = findings(&limits, 8, Some(64 << 30)).iter().map(|f| f.judgement).collect();
        assert_eq!(judged, [Warn, Warn, Good]);
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn limits_above_what_there_is_are_none() {
        let limits = ContainerLimits { cpus: Some(64.0), memory: Some((1 << 40, 5)), threads: None };
        let found = findings(&limits, 8, Some(64 << 30));
        assert!(found.iter().all(|finding| finding.judgement == Good), "{found:?}");
        assert!(found[0].text.contains("8 CPUs") && found[1].text.contains("64.0 GiB"), "{found:?}");
        assert_eq!(memory_total("MemTotal:       16 kB\nMemFree: 1 kB"), Some(16 << 10));
    }
}
