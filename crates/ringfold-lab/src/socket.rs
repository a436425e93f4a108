//! The TCP sockets of a process: their ports and unread bytes.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// A TCP socket in `/proc/net/tcp`.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Socket {
    pub port: u16,
    /// The port of the other end; 0 if it listens.
    pub other_port: u16,
    pub listens: bool,
    /// Received bytes that the process has not read.
    pub unread_bytes: u64,
    pub inode: u64,
}

/// The TCP sockets of a process that listen or are connected.
pub fn sockets(pid: u32) -> io::Result<Vec<Socket>> {
    let owned: BTreeSet<u64> =
        crate::usage::descriptors(pid)?.iter().filter_map(|name| inode(name)).collect();
    let mut found = Vec::new();
    for file in ["tcp", "tcp6"] {
        // A machine may have no IPv6.
        let Ok(table) = fs::read_to_string(format!("/proc/{pid}/net/{file}")) else { continue };
        found.extend(table.lines().filter_map(parse).filter(|socket| owned.contains(&socket.inode)));
    }
    Ok(found)
}

/// The ports on which a process listens.
pub fn listening_ports(pid: u32) -> io::Result<BTreeSet<u16>> {
    Ok(sockets(pid)?.iter().filter(|socket| socket.listens).map(|socket| socket.port).collect())
}

/// A free port, for tests that have to name one before they listen on it.
///
/// It is below 32768, where the system's ephemeral ports begin. Each process gets different ports.
///
/// # Panics
/// If no port of the range is free.
pub fn free_port() -> u16 {
    const FIRST: u32 = 22_000;
    const PORTS: u32 = 10_000;
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let candidates = (0..PORTS).map(|_| {
        let number = GIVEN.fetch_add(1, Ordering::Relaxed);
        (FIRST + (std::process::id().wrapping_mul(16).wrapping_add(number)) % PORTS) as u16
    });
    let is_free = |port: &u16| TcpListener::bind(("0.0.0.0", *port)).is_ok();
    { candidates }.find(is_free).expect("a free port")
}

fn inode(descriptor: &str) -> Option<u64> {
    descriptor.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// A line of the table: `0: 0100007F:9C40 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1234 ...`.
fn parse(line: &str) -> Option<Socket> {
    const ESTABLISHED: &str = "01";
    const LISTENS: &str = "0A";
    let words: Vec<&str> = line.split_whitespace().take(10).collect();
    let [_, own, other, state, queues, _, _, _, _, inode] = words[..] else { return None };
    if state != ESTABLISHED && state != LISTENS {
        return None;
    }
    let port = |address: &str| u16::from_str_radix(address.rsplit_once(':')?.1, 16).ok();
    Some(Socket {
        port: port(own)?,
        other_port: port(other)?,
        listens: state == LISTENS,
        unread_bytes: u64::from_str_radix(queues.split_once(':')?.1, 16).ok()?,
        inode: inode.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn sockets_of_this_process_are_found_with_their_unread_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let mut dialled = TcpStream::connect(("127.0.0.1", port)).expect("connected");
        let (accepted, from) = listener.accept().expect("accepted");
        dialled.write_all(&[7; 100]).expect("written");
        assert!(listening_ports(std::process::id()).expect("ports").contains(&port));
        let all = sockets(std::process::id()).expect("sockets");
        let unread = all.iter().find(|socket| socket.port == port && socket.other_port == from.port());
        assert_eq!(unread.map(|socket| socket.unread_bytes), Some(100), "{all:?}");
        drop((accepted, dialled, listener));
        assert!(!listening_ports(std::process::id()).expect("ports").contains(&port));
    }
}
