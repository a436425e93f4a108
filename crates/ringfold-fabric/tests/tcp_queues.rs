//! What the kernel holds of the TCP connections of a port.

use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);

/// Waits until all bytes that were sent from or to a port have reached the other socket.
pub fn await_delivered(port: u16) {
    await_queues(port, |unsent, _| unsent == 0);
}

/// Waits until all bytes that were sent from or to a port were read.
pub fn await_read(port: u16) {
    await_queues(port, |unsent, unread| unsent == 0 && unread == 0);
}

fn await_queues(port: u16, fits: impl Fn(u64, u64) -> bool) {
    let end = Instant::now() + LONG;
    while !queues(port).into_iter().all(|(unsent, unread)| fits(unsent, unread)) {
        assert!(Instant::now() < end, "timed out waiting for the bytes of port {port}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The bytes that were not acknowledged, and those that were not read, of each socket at a port or connected to it.
fn queues(port: u16) -> Vec<(u64, u64)> {
    // A line: `0: 0100007F:9C40 00000000:0000 0A 00000000:00000000 00:00000000 ...`.
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let queues = table.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().take(5).collect();
        let mut ports = words[1..3].iter().map(|address| hex(address.rsplit_once(':').unwrap().1));
        let (unsent, unread) = words[4].split_once(':').unwrap();
        ports.any(|one| one == u64::from(port)).then(|| (hex(unsent), hex(unread)))
    });
    queues.collect()
}
