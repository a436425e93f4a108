//! Which processes are on one host, and may share memory.

use crate::random;
use ringfold_proto::cores::{CORES_MAX, CoreShare, CpuQuota};
use ringfold_proto::limits;
use ringfold_settings::{Settings, table};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A number that is equal for processes of one system, network namespace and user, with the same name, which may try to share
/// memory. If it cannot be determined, it is unique.
pub fn host_id(name: &str) -> u64 {
    identity(name).unwrap_or_else(|error| {
        tracing::debug!(%error, "cannot identify this host: shared memory is not used");
        unshared_host_id()
    })
}

/// The same for what has no builder.
pub fn host_id_without_builder() -> u64 {
    host_id(
        Settings::without_builder()
            .ok()
            .as_ref()
            .and_then(|settings| settings.text(&table::HOST))
            .unwrap_or(""),
    )
}

/// A unique number, for processes that do not share memory.
pub fn unshared_host_id() -> u64 {
    // Without randomness, time and process id are most likely unique.
    random::bytes().map(u64::from_le_bytes).unwrap_or_else(|_| {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        mix(since.as_nanos() as u64, u64::from(std::process::id()))
    })
}

/// Whether processes of one host may share memory, for what has no builder.
pub fn may_share() -> bool {
    Settings::without_builder().map_or_else(
        |error| {
            tracing::warn!("{error}; memory is shared");
            true
        },
        |settings| settings.is_on(&table::SHARED_MEMORY),
    )
}

/// The source addresses of packets to other hosts. Nothing is sent to find them.
pub fn outward_addresses() -> Vec<IpAddr> {
    // Both are reserved for documentation.
    let elsewhere =
        [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];
    let is_outward = |ip: &IpAddr| !ip.is_unspecified() && !ip.is_loopback();
    elsewhere.into_iter().filter_map(source_address).filter(is_outward).collect()
}

/// The source address of packets to an address; none without a route. Nothing is sent to find it.
pub fn source_address(to: IpAddr) -> Option<IpAddr> {
    let socket = connected_udp(SocketAddr::new(to, 9))?;
    socket.local_addr().ok().map(|address| address.ip())
}

fn connected_udp(to: SocketAddr) -> Option<UdpSocket> {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(to).ok()?;
    Some(socket)
}

/// The largest packet on the way to an address, as far as this host knows.
pub fn path_mtu(to: SocketAddr) -> Option<u16> {
    let socket = connected_udp(to)?;
    let (level, option) =
        if to.is_ipv4() { (libc::IPPROTO_IP, libc::IP_MTU) } else { (libc::IPPROTO_IPV6, libc::IPV6_MTU) };
    let mut mtu: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option is one number, and the place has room for it.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut mtu).cast(), &raw mut length)
    };
    (result == 0).then_some(u16::try_from(mtu).unwrap_or(u16::MAX))
}

/// Whether the clock of this host is synchronised with others, as the kernel knows it; none if it does not say.
pub fn is_clock_synchronized() -> Option<bool> {
    // SAFETY: all-zero is a valid value of this structure of numbers, and asks without changing anything.
    let mut state: libc::timex = unsafe { core::mem::zeroed() };
    // SAFETY: the structure is valid for reads and writes during the call.
    let result = unsafe { libc::adjtimex(&raw mut state) };
    (result >= 0).then_some(result != libc::TIME_ERROR && state.status & libc::STA_UNSYNC == 0)
}

/// A socket at an address. One of IPv6 takes IPv4 as well, whatever `net.ipv6.bindv6only` says.
pub fn bound_socket(address: SocketAddr, of: SocketType) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, of, SocketFlags::CLOEXEC, None)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    if of == SocketType::STREAM {
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

/// Opens a regular file to read it, in a directory where others may have put a FIFO or a link of its name.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// The cores that the calling thread may use, as far as they can be determined.
pub fn core_share() -> CoreShare {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return CoreShare::default() };
    let cores = (0..CORES_MAX).filter(|core| set.is_set(usize::from(*core)));
    CoreShare::new(cores, cpu_quota(set.count() as usize), limits::CORE_RUNS_MAX)
}

/// The tightest quota of the cgroups of this process.
fn cpu_quota(cores: usize) -> Option<CpuQuota> {
    let root = Path::new("/sys/fs/cgroup");
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let quota = |dir: &Path| {
        let cores = whole_cores(&std::fs::read_to_string(dir.join("cpu.max")).ok()?)?;
        Some(CpuQuota { cgroup: std::fs::metadata(dir).ok()?.ino(), cores })
    };
    let leaf = root.join(own);
    let all = leaf.ancestors().take_while(|dir| dir.starts_with(root)).filter_map(quota);
    // Of equal ones the outermost counts: it has the most processes.
    let tightest = all.reduce(|inner, outer| if outer.cores <= inner.cores { outer } else { inner });
    // The standard library knows the older kind of cgroups, too. Then all processes count as members of one.
    let usable = std::thread::available_parallelism().map_or(cores, usize::from);
    let older = || (usable < cores).then_some(CpuQuota { cgroup: 0, cores: usable as u16 });
    tightest.or_else(older)
}

/// The whole cores of a quota such as `200000 100000`, at least one; none for `max`.
fn whole_cores(text: &str) -> Option<u16> {
    let (quota, period) = text.trim().split_once(' ')?;
    let cores = quota.parse::<u64>().ok()?.checked_div(period.parse().ok()?)?;
    Some(u16::try_from(cores).unwrap_or(u16::MAX).max(1))
}

fn identity(name: &str) -> io::Result<u64> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id")?;
    let network = std::fs::metadata("/proc/self/ns/net")?;
    let user = rustix::process::geteuid().as_raw();
    let bytes = boot.iter().chain(name.as_bytes());
    let host = bytes.fold(0, |host, byte| mix(host, u64::from(*byte)));
    Ok(mix(mix(mix(host, network.dev()), network.ino()), u64::from(user)))
}

/// Mixes two numbers: each bit of both affects all bits.
fn mix(left: u64, right: u64) -> u64 {
    let mut mixed = (left ^ right).wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_id_is_stable_and_unique_numbers_differ() {
        assert_eq!(host_id(""), host_id(""));
        assert_ne!(host_id("a"), host_id("b"));
        assert_ne!(unshared_host_id(), unshared_host_id());
        assert_ne!(unshared_host_id(), host_id(""));
    }

    #[test]
    fn a_bound_thread_has_one_core_of_those_of_the_process() {
        let all = core_share();
        let bound = std::thread::spawn(|| {
            let mut one = rustix::thread::CpuSet::new();
            let allowed = rustix::thread::sched_getaffinity(None).unwrap();
            let last = (0..usize::from(CORES_MAX)).rev().find(|core| allowed.is_set(*core)).unwrap();
            one.set(last);
            rustix::thread::sched_setaffinity(None, &one).unwrap();
            (last as u16, core_share())
        });
        let (core, bound) = bound.join().unwrap();
        assert_eq!(bound.runs, [(core, 1)]);
        assert!(all.runs.iter().any(|(first, count)| (*first..*first + *count).contains(&core)));
    }

    #[test]
    fn quotas_are_whole_cores() {
        let cores =
            ["200000 100000\n", "150000 100000", "50000 100000", "max 100000", "1 0", "", "9999999999 1"];
        assert_eq!(cores.map(whole_cores), [Some(2), Some(1), Some(1), None, None, None, Some(u16::MAX)]);
    }

    #[test]
    fn a_difference_in_any_part_is_another_host() {
        let id = |parts: [u64; 4]| parts.into_iter().fold(0, mix);
        let one = id([1, 2, 3, 4]);
        for other in [[0, 2, 3, 4], [1, 0, 3, 4], [1, 2, 0, 4], [1, 2, 3, 0], [2, 1, 3, 4], [1, 2, 4, 3]] {
            assert_ne!(one, id(other));
        }
    }
}
