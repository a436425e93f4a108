//! Checks of this host. What is read from the system is judged by pure functions.

use super::container::{self, ContainerLimits};
use ringfold_fabric::{host, segment::Segment};
use ringfold_proto::doctor::Finding;
use std::path::Path;

/// Fewer descriptors are too few for a peer with neighbours on other hosts.
const DESCRIPTORS_MIN: u64 = 256;
/// Fewer are too few for a master of many peers.
const DESCRIPTORS_GOOD: u64 = 1024;
/// The data loaders of PyTorch need more of `/dev/shm`.
const SHM_BYTES_MIN: u64 = 1 << 30;
/// Smaller windows slow down links with long round trips.
const WINDOW_BYTES_MIN: u64 = 4 << 20;
/// Smaller buffers lose packets of QUIC.
const DATAGRAM_BYTES_MIN: u64 = 200 << 10;

/// All checks of this host. None takes long.
pub(super) fn examine() -> Vec<Finding> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let sealed = Segment::create(1 << 20, true).map(drop).map_err(|error| error.to_string());
    let shm = rustix::fs::statvfs("/dev/shm").ok();
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = ContainerLimits::read(Path::new("/sys/fs/cgroup"), &own);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = container::memory_total(&read("/proc/meminfo"));
    let mut findings = vec![
        descriptors(limit.current, limit.maximum),
        shared_memory(sealed),
        shm_size(shm.map(|shm| (shm.f_blocks * shm.f_frsize, shm.f_bavail * shm.f_frsize))),
        huge_pages(&read("/sys/kernel/mm/transparent_hugepage/enabled")),
        governor(&governors()),
        socket_buffers(
            &sysctl("net/ipv4/tcp_rmem"),
            &sysctl("net/ipv4/tcp_wmem"),
            &sysctl("net/core/rmem_max"),
        ),
        congestion_control(
            &sysctl("net/ipv4/tcp_congestion_control"),
            &sysctl("net/ipv4/tcp_available_congestion_control"),
            &sysctl("net/ipv4/tcp_allowed_congestion_control"),
        ),
        clock(host::is_clock_synchronized()),
    ];
    findings.extend(container::findings(&limits, cpus, memory));
    findings
}

/// The bytes of memory that this process may use: the limit of its control groups, or the memory of this host.
pub(crate) fn memory_bytes() -> Option<u64> {
    let limits = ContainerLimits::read(Path::new("/sys/fs/cgroup"), &read("/proc/self/cgroup"));
    let total = container::memory_total(&read("/proc/meminfo"));
    limits.memory.map(|(limit, _)| limit).into_iter().chain(total).min()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn sysctl(name: &str) -> String {
    read(&format!("/proc/sys/{name}"))
}

/// The governors of all CPUs, each as `driver governor`.
fn governors() -> Vec<String> {
    let Ok(folder) = std::fs::read_dir("/sys/devices/system/cpu") else { return Vec::new() };
    let mut found: Vec<String> = folder
        .flatten()
        .map(|entry| entry.path().join("cpufreq"))
        .filter_map(|folder| {
            let governor = std::fs::read_to_string(folder.join("scaling_governor")).ok()?;
            let driver = std::fs::read_to_string(folder.join("scaling_driver")).unwrap_or_default();
            Some(format!("{} {}", driver.trim(), governor.trim()))
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Bytes for people.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..0x10_0000 => format!("{} KiB", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

fn descriptors(soft: Option<u64>, hard: Option<u64>) -> Finding {
    const CHECK: &str = "host.descriptors";
    let Some(soft) = soft else { return Finding::ok(CHECK, "the number of open files is not limited") };
    let hard = hard.map_or("unlimited".to_owned(), |hard| hard.to_string());
    let text = format!("this process may open {soft} files (hard limit {hard})");
    let remedy = "raise the limit: `ulimit -n 65536`, LimitNOFILE= in systemd, --ulimit nofile= in Docker";
    match soft {
        0..DESCRIPTORS_MIN => {
            Finding::fail(CHECK, format!("{text}: too few for links to other hosts"), remedy)
        }
        DESCRIPTORS_MIN..DESCRIPTORS_GOOD => {
            Finding::warn(CHECK, format!("{text}: few for a large run"), remedy)
        }
        _ => Finding::ok(CHECK, text),
    }
}

fn shared_memory(sealed: Result<(), String>) -> Finding {
    const CHECK: &str = "host.shared-memory";
    match sealed {
        Ok(()) => Finding::ok(CHECK, "sealed memory files work: peers of this host can share memory"),
        Err(error) => Finding::warn(
            CHECK,
            format!("sealed memory files do not work ({error}): peers of this host use TCP with each other"),
            "allow memfd_create and its seals in the sandbox of this process, and give it more memory",
        ),
    }
}

/// The bytes of `/dev/shm`, and those that are free.
fn shm_size(shm: Option<(u64, u64)>) -> Finding {
    const CHECK: &str = "host.dev-shm";
    let remedy =
        "give the container more: `docker run --shm-size=8g`, or a volume with `medium: Memory` at /dev/shm";
    match shm {
        None => {
            Finding::warn(CHECK, "there is no /dev/shm: data loaders of PyTorch with workers fail", remedy)
        }
        Some((total, _)) if total < SHM_BYTES_MIN => Finding::warn(
            CHECK,
            format!(
                "/dev/shm has only {}: Ringfold does not use it, but data loaders of PyTorch do",
                size(total)
            ),
            remedy,
        ),
        Some((total, free)) if free < total / 20 => Finding::warn(
            CHECK,
            format!("/dev/shm is full: {} of {} are free", size(free), size(total)),
            "delete files that ended programs have left in /dev/shm",
        ),
        Some((total, free)) => {
            Finding::ok(CHECK, format!("/dev/shm has {}, of which {} are free", size(total), size(free)))
        }
    }
}

fn huge_pages(enabled: &str) -> Finding {
    const CHECK: &str = "host.huge-pages";
    let chosen = enabled.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    match chosen {
        None => Finding::ok(CHECK, "this kernel does not say whether it has transparent huge pages"),
        Some("never") => Finding::warn(
            CHECK,
            "transparent huge pages are off: large buffers cost more page faults",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        Some(mode) => Finding::ok(CHECK, format!("transparent huge pages are on ({mode})")),
    }
}

fn governor(found: &[String]) -> Finding {
    const CHECK: &str = "host.governor";
    // With these drivers the processor itself decides, within the policy.
    let is_slow = |text: &&String| {
        let (driver, governor) = text.split_once(' ').unwrap_or(("", text));
        matches!(governor, "powersave" | "conservative") && !driver.contains("pstate")
    };
    match found.iter().find(is_slow) {
        _ if found.is_empty() => {
            Finding::ok(CHECK, "the clock rate of the CPUs is not governed by this system")
        }
        Some(slow) => Finding::warn(
            CHECK,
            format!("the CPU governor is {}: CPUs stay slow during short waits", slow.trim()),
            "cpupower frequency-set -g performance",
        ),
        None => Finding::ok(CHECK, format!("the CPU governor is {}", found.join(", ").trim())),
    }
}

/// The largest of the three numbers of a buffer setting.
fn largest(setting: &str) -> Option<u64> {
    setting.split_whitespace().last()?.parse().ok()
}

fn socket_buffers(receive: &str, send: &str, datagrams: &str) -> Finding {
    const CHECK: &str = "host.socket-buffers";
    let (Some(receive), Some(send)) = (largest(receive), largest(send)) else {
        return Finding::ok(CHECK, "the limits of socket buffers are not visible here");
    };
    let udp = largest(datagrams);
    let of_udp = udp.map_or(String::new(), |bytes| format!(", buffers of UDP up to {}", size(bytes)));
    let text = format!("TCP windows up to {} receiving and {} sending{of_udp}", size(receive), size(send));
    if receive.min(send) < WINDOW_BYTES_MIN {
        let remedy =
            "sysctl -w net.ipv4.tcp_rmem='4096 131072 16777216' net.ipv4.tcp_wmem='4096 65536 16777216'";
        let mbit = receive.min(send) * 8 / 100_000;
        return Finding::warn(CHECK, format!("{text}: at most {mbit} Mbit/s per stream at 100 ms"), remedy);
    }
    match udp {
        Some(bytes) if bytes < DATAGRAM_BYTES_MIN => Finding::warn(
            CHECK,
            format!("{text}: too small for fast links by QUIC"),
            "sysctl -w net.core.rmem_max=8388608 net.core.wmem_max=8388608",
        ),
        _ => Finding::ok(CHECK, text),
    }
}

fn congestion_control(current: &str, available: &str, allowed: &str) -> Finding {
    const CHECK: &str = "host.congestion-control";
    if current.is_empty() {
        return Finding::ok(CHECK, "the congestion control of TCP is not visible here");
    }
    let has = |list: &str| list.split_whitespace().any(|name| name == "bbr");
    let bbr = match (current == "bbr", has(allowed), has(available)) {
        (true, ..) => return Finding::ok(CHECK, "TCP uses bbr"),
        (_, true, _) => "bbr may be chosen, and is for long links where UDP is blocked",
        (_, _, true) => {
            "bbr is there, but users may not choose it; long links use QUIC, which does not need it"
        }
        _ => "bbr is not there; long links use QUIC, which does not need it",
    };
    Finding::ok(CHECK, format!("TCP uses {current}; {bbr}"))
}

fn clock(is_synchronized: Option<bool>) -> Finding {
    const CHECK: &str = "host.clock";
    match is_synchronized {
        Some(true) => Finding::ok(CHECK, "the clock is synchronised"),
        Some(false) => Finding::warn(
            CHECK,
            "the kernel says that the clock is not synchronised: certificates may look expired, and logs are hard to compare",
            "run chrony or systemd-timesyncd; in a container, on its host",
        ),
        None => Finding::ok(CHECK, "the kernel does not say whether the clock is synchronised"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_proto::doctor::Judgement::{Fail, Ok as Good, Warn};

    #[test]
    fn descriptors_are_judged_by_the_soft_limit() {
        let judged = |soft| descriptors(soft, Some(4096)).judgement;
        assert_eq!((judged(Some(100)), judged(Some(512)), judged(Some(1024))), (Fail, Warn, Good));
        assert_eq!(judged(None), Good);
        assert!(descriptors(Some(100), None).text.contains("unlimited"));
    }

    #[test]
    fn shared_memory_is_judged() {
        assert_eq!(shared_memory(Ok(())).judgement, Good);
        let broken = shared_memory(Err("Function not implemented".into()));
        assert!(broken.judgement == Warn && broken.text.contains("Function not implemented"), "{broken:?}");
        let judged = |total, free| shm_size(Some((total, free))).judgement;
        assert_eq!((judged(64 << 20, 64 << 20), judged(8 << 30, 1 << 20)), (Warn, Warn));
        assert_eq!((judged(8 << 30, 4 << 30), shm_size(None).judgement), (Good, Warn));
        assert!(shm_size(Some((64 << 20, 0))).text.contains("64 MiB"));
    }

    #[test]
    fn huge_pages_and_governors_are_judged() {
        assert_eq!(huge_pages("always [madvise] never").judgement, Good);
        assert_eq!(huge_pages("always madvise [never]").judgement, Warn);
        assert_eq!(huge_pages("").judgement, Good);
        let judged =
            |text: &[&str]| governor(&text.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>()).judgement;
        assert_eq!(judged(&[]), Good);
        assert_eq!(judged(&["intel_pstate powersave"]), Good);
        assert_eq!(judged(&["acpi-cpufreq performance", "acpi-cpufreq powersave"]), Warn);
    }

    #[test]
    fn socket_buffers_are_judged_by_the_smaller_window() {
        let usual = socket_buffers("4096 131072 6291456", "4096 16384 4194304", "212992");
        assert!(
            usual.judgement == Good && usual.text.contains("6 MiB receiving and 4 MiB sending"),
            "{usual:?}"
        );
        let small = socket_buffers("4096 87380 262144", "4096 16384 4194304", "212992");
        assert!(small.judgement == Warn && small.text.contains("20 Mbit/s"), "{small:?}");
        assert_eq!(socket_buffers("4096 131072 6291456", "4096 16384 4194304", "65536").judgement, Warn);
        assert_eq!(socket_buffers("", "", "").judgement, Good);
    }

    #[test]
    fn congestion_control_and_clock_are_reported() {
        assert!(congestion_control("cubic", "reno cubic bbr", "reno cubic").text.contains("may not choose"));
        assert!(congestion_control("cubic", "reno cubic", "reno cubic").text.contains("not there"));
        assert!(congestion_control("cubic", "reno bbr", "reno bbr").text.contains("may be chosen"));
        assert!(congestion_control("bbr", "bbr", "bbr").text.contains("uses bbr"));
        assert_eq!((clock(Some(false)).judgement, clock(None).judgement), (Warn, Good));
    }

    #[test]
    fn this_host_has_a_finding_for_each_check() {
        let mut checks: Vec<_> = examine().into_iter().map(|finding| finding.check).collect();
        let all = checks.len();
        checks.sort();
        checks.dedup();
        assert!(checks.len() == all && all >= 10, "{checks:?}");
    }
}
