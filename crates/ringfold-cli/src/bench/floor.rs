//! Measures the floor: the speed of memory copies, loopback TCP and thread wake-ups, which bounds every collective.

use super::interrupt::Interrupt;
use super::statistics::median;
use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt;
use std::hint::black_box;
use std::io::{Read, Write, pipe};
use std::net::{TcpListener, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The number of measurements per figure; the median is reported.
const RUNS: usize = 5;
/// Larger than the caches.
const LARGE_BYTES: usize = 256 << 20;
/// Within the second-level cache of one core.
const SMALL_BYTES: usize = 256 << 10;
/// The size of one write to a socket.
const CHUNK_BYTES: usize = 256 << 10;
/// The bytes sent through a socket per measurement.
const STREAM_BYTES: usize = 1 << 30;
const ROUND_TRIPS: u32 = 20_000;
const SOCKET_TIMEOUT: Duration = Duration::from_secs(60);

/// The floor of this machine. Bandwidths are in 10⁹ bytes per second; a copied byte counts once.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Floor {
    /// Copies of 256 MiB by one core.
    copy_one_core_gb_per_s: f64,
    /// By all cores at once, each with its own buffers.
    copy_all_cores_gb_per_s: f64,
    /// Copies within the caches.
    copy_cached_gb_per_s: f64,
    /// One connection over loopback.
    tcp_gb_per_s: f64,
    /// Round trips of one byte between threads that sleep.
    tcp_round_trip_us: f64,
    pipe_round_trip_us: f64,
    futex_round_trip_us: f64,
    /// Between threads that spin.
    cache_line_round_trip_us: f64,
}

impl Floor {
    /// Measures everything, in about ten seconds. `show` gets the progress.
    pub(crate) fn measure(interrupt: &Interrupt, mut show: impl FnMut(&str)) -> Result<Self> {
        let mut figure = |name: &str, measure: &dyn Fn() -> Result<f64>| -> Result<f64> {
            show(&format!("floor: {name}"));
            // Warm up.
            measure()?;
            let mut runs = Vec::with_capacity(RUNS);
            for _ in 0..RUNS {
                interrupt.check()?;
                runs.push(measure()?);
            }
            median(&runs).context("no measurement")
        };
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            copy_one_core_gb_per_s: {
                let buffers = std::sync::Mutex::new((vec![1; LARGE_BYTES], vec![2; LARGE_BYTES]));
                figure("copies by one core", &|| {
                    let mut buffers = buffers.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    let (from, to) = &mut *buffers;
                    Ok(copy(from, to, 2))
                })?
            },
            copy_all_cores_gb_per_s: figure("copies by all cores", &|| Ok(copy_at_once(cores)))?,
            copy_cached_gb_per_s: figure("copies within the caches", &|| {
                let (from, mut to) = (vec![1; SMALL_BYTES], vec![2; SMALL_BYTES]);
                copy(&from, &mut to, 100);
                Ok(copy(&from, &mut to, 4000))
            })?,
            tcp_gb_per_s: figure("a TCP connection", &tcp_stream)?,
            tcp_round_trip_us: figure("TCP round trips", &tcp_round_trips)?,
            pipe_round_trip_us: figure("pipe round trips", &pipe_round_trips)?,
            futex_round_trip_us: figure("futex round trips", &|| Ok(futex_round_trips()))?,
            cache_line_round_trip_us: figure("cache line round trips", &|| Ok(cache_line_round_trips()))?,
        })
    }

    fn rows(&self) -> [(&'static str, f64, &'static str); 8] {
        [
            ("copy of memory, 256 MiB, one core", self.copy_one_core_gb_per_s, "GB/s"),
            ("copy of memory, 256 MiB, all cores at once", self.copy_all_cores_gb_per_s, "GB/s"),
            ("copy of memory within the caches, 256 KiB", self.copy_cached_gb_per_s, "GB/s"),
            ("TCP on loopback, one connection", self.tcp_gb_per_s, "GB/s"),
            ("TCP on loopback, round trip of one byte", self.tcp_round_trip_us, "us"),
            ("pipe, round trip of one byte", self.pipe_round_trip_us, "us"),
            ("futex, round trip", self.futex_round_trip_us, "us"),
            ("cache line, round trip", self.cache_line_round_trip_us, "us"),
        ]
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text = String::from("| floor | |\n|---|---|\n");
        for (name, value, unit) in self.rows() {
            text += &format!("| {name} | {value:.2} {unit} |\n");
        }
        text
    }
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value, unit) in self.rows() {
            writeln!(f, "# {name:<45} {value:>8.2} {unit}")?;
        }
        Ok(())
    }
}

fn gb_per_s(bytes: usize, took: Duration) -> f64 {
    bytes as f64 / took.as_secs_f64().max(1e-9) / 1e9
}

fn copy(from: &[u8], to: &mut [u8], times: usize) -> f64 {
    let begin = Instant::now();
    for _ in 0..times {
        to.copy_from_slice(black_box(from));
        black_box(&mut *to);
    }
    gb_per_s(from.len() * times, begin.elapsed())
}

fn copy_at_once(cores: usize) -> f64 {
    let start = Barrier::new(cores);
    let of_core = || {
        let (from, mut to) = (vec![1; LARGE_BYTES / 2], vec![2; LARGE_BYTES / 2]);
        start.wait();
        copy(&from, &mut to, 4)
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(of_core)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).sum()
    })
}

/// Both ends of a connection over loopback.
fn connection() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on loopback")?;
    let one = TcpStream::connect(listener.local_addr()?).context("cannot connect on loopback")?;
    let (other, _) = listener.accept()?;
    for end in [&one, &other] {
        end.set_nodelay(true)?;
        end.set_read_timeout(Some(SOCKET_TIMEOUT))?;
        end.set_write_timeout(Some(SOCKET_TIMEOUT))?;
    }
    Ok((one, other))
}

fn tcp_stream() -> Result<f64> {
    let (mut one, mut other) = connection()?;
    thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let chunk = vec![1; CHUNK_BYTES];
            (0..STREAM_BYTES / CHUNK_BYTES).try_for_each(|_| one.write_all(&chunk))
        });
        let mut chunk = vec![0; CHUNK_BYTES];
        other.read_exact(&mut chunk)?;
        let begin = Instant::now();
        for _ in 1..STREAM_BYTES / CHUNK_BYTES {
            other.read_exact(&mut chunk)?;
        }
        let took = begin.elapsed();
        sender.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
        Ok(gb_per_s(STREAM_BYTES - CHUNK_BYTES, took))
    })
}

/// Measures round trips of one byte. The far thread ends when the near end is closed.
fn round_trips(mut near: (impl Read, impl Write), far: (impl Read + Send, impl Write + Send)) -> Result<f64> {
    thread::scope(|scope| {
        scope.spawn(move || {
            let (mut from, mut to) = far;
            let mut byte = [0];
            while from.read_exact(&mut byte).is_ok() && to.write_all(&byte).is_ok() {}
        });
        let mut byte = [0];
        let begin = Instant::now();
        for _ in 0..ROUND_TRIPS {
            near.1.write_all(&byte)?;
            near.0.read_exact(&mut byte)?;
        }
        let took = begin.elapsed();
        drop(near);
        Ok(took.as_secs_f64() * 1e6 / f64::from(ROUND_TRIPS))
    })
}

fn tcp_round_trips() -> Result<f64> {
    let (one, other) = connection()?;
    round_trips((one.try_clone()?, one), (other.try_clone()?, other))
}

fn pipe_round_trips() -> Result<f64> {
    let (near_in, far_out) = pipe().context("cannot create a pipe")?;
    let (far_in, near_out) = pipe().context("cannot create a pipe")?;
    round_trips((near_in, near_out), (far_in, far_out))
}

/// Two threads that park and unpark each other, which is a futex on Linux.
fn futex_round_trips() -> f64 {
    let turns = AtomicU64::new(0);
    let main = thread::current();
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            for turn in 0..u64::from(ROUND_TRIPS) {
                while turns.load(Ordering::Acquire) != 2 * turn + 1 {
                    thread::park();
                }
                turns.store(2 * turn + 2, Ordering::Release);
                main.unpark();
            }
        });
        let begin = Instant::now();
        for turn in 0..u64::from(ROUND_TRIPS) {
            turns.store(2 * turn + 1, Ordering::Release);
            other.thread().unpark();
            while turns.load(Ordering::Acquire) != 2 * turn + 2 {
                thread::park();
            }
        }
        begin.elapsed().as_secs_f64() * 1e6 / f64::from(ROUND_TRIPS)
    })
}

fn cache_line_round_trips() -> f64 {
    let turn = AtomicBool::new(false);
    // Yield sometimes: on one core the other thread would never run.
    let spin = |mine: bool| {
        let mut spins = 0;
        while turn.load(Ordering::Acquire) != mine {
            spins += 1;
            if spins % 10_000 == 0 {
                thread::yield_now();
            }
            std::hint::spin_loop();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUND_TRIPS {
                spin(true);
                turn.store(false, Ordering::Release);
            }
        });
        let begin = Instant::now();
        for _ in 0..ROUND_TRIPS {
            turn.store(true, Ordering::Release);
            spin(false);
        }
        begin.elapsed().as_secs_f64() * 1e6 / f64::from(ROUND_TRIPS)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_end_and_take_time() {
        for round_trip in [tcp_round_trips().unwrap(), pipe_round_trips().unwrap(), futex_round_trips()] {
            assert!(round_trip > 0.0 && round_trip < 1e5, "{round_trip}");
        }
        assert!(cache_line_round_trips() > 0.0);
    }

    #[test]
    fn copies_are_counted_in_bytes_per_second() {
        assert_eq!(gb_per_s(2_000_000_000, Duration::from_secs(2)), 1.0);
        assert!(copy(&[1; 4096], &mut [0; 4096], 100) > 0.0);
    }
}
