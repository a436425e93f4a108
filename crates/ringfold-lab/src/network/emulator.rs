//! The thread that carries packets between the TUN devices of the hosts.

use super::model::{Model, Nanos};
use super::packet::destination;
use super::tun::Tun;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::setpriority_process;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Packets read from one host before the others get their turn.
const BATCH: usize = 64;
/// Events are handled in groups, to save wake-ups. Nothing is later than this, if the thread gets its core.
const GRANULARITY: Duration = Duration::from_micros(100);
/// The thread's priority, if the process may set it: what a busy machine does to it looks like jitter.
const NICENESS: i32 = -15;

/// Carries packets until it is dropped.
#[derive(Debug)]
pub(super) struct Emulator {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    began: Instant,
    tuns: Vec<Tun>,
    model: Mutex<Model>,
    /// Ends the thread.
    stop: OwnedFd,
}

impl Emulator {
    pub fn start(tuns: Vec<Tun>, seed: u64) -> Result<Self, String> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| format!("the emulator: {error}"))?;
        let model = Mutex::new(Model::new(tuns.len(), seed));
        let shared = Arc::new(Shared { began: Instant::now(), tuns, model, stop });
        let runs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("link emulator".into()).spawn(move || runs.run());
        let thread = thread.map_err(|error| format!("the emulator: {error}"))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The model, to change its settings or read its counters.
    pub fn model(&self) -> MutexGuard<'_, Model> {
        self.shared.model.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn now(&self) -> Nanos {
        self.shared.now()
    }

    pub fn tun(&self, host: usize) -> &Tun {
        &self.shared.tuns[host]
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.shared.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn now(&self) -> Nanos {
        self.began.elapsed().as_nanos() as Nanos
    }

    fn run(&self) {
        let _ = setpriority_process(None, NICENESS);
        let mut buffer = vec![0; 1 << 16];
        let devices = self.tuns.iter().map(|tun| PollFd::new(tun, PollFlags::IN));
        let mut polled: Vec<_> = devices.chain([PollFd::new(&self.stop, PollFlags::IN)]).collect();
        loop {
            let timeout = self.carry(&mut buffer);
            let timeout = timeout
                .map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
            match poll(&mut polled, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("the link emulator can't poll its devices: {error}"),
            }
            if polled.last().is_some_and(|stop| !stop.revents().is_empty()) {
                return;
            }
        }
    }

    /// Reads what hosts have sent and delivers what has arrived. Returns how long nothing happens by itself.
    fn carry(&self, buffer: &mut [u8]) -> Option<Duration> {
        let mut model = self.model.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut is_more = false;
        for (from, tun) in self.tuns.iter().enumerate() {
            let now = self.now();
            for read in 0..BATCH {
                let Some(bytes) = tun.receive(buffer) else { break };
                if let Some(to) = destination(&buffer[..bytes]).and_then(host_of) {
                    model.send(now, from, to, buffer[..bytes].to_vec());
                }
                is_more |= read + 1 == BATCH;
            }
        }
        let now = self.now();
        while let Some((to, packet)) = model.poll(now) {
            self.tuns[to].send(&packet);
        }
        if is_more {
            return Some(Duration::ZERO);
        }
        let wait = model.next_event()?.saturating_sub(self.now());
        Some(Duration::from_nanos(wait).max(GRANULARITY))
    }
}

/// The host with an address: its number is in the last byte, from 1.
fn host_of(address: IpAddr) -> Option<usize> {
    let last = match address {
        IpAddr::V4(address) if address.octets()[..3] == [10, 77, 0] => address.octets()[3],
        IpAddr::V6(address) if address.segments()[..2] == [0xfd00, 0x77] => address.octets()[15],
        _ => return None,
    };
    usize::from(last).checked_sub(1)
}
