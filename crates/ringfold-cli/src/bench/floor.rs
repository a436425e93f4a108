//! What the machine itself can do: no collective is faster than copies of memory, and none that goes through the kernel is
//! faster than the kernel.

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

/// Each figure is the median of so many measurements.
const RUNS: usize = 5;
/// Larger than the caches.
const LARGE_BYTES: usize = 256 << 20;
/// Within the second-level cache of one core.
const SMALL_BYTES: usize = 256 << 10;
/// What a socket is given at a time.
const CHUNK_BYTES: usize = 256 << 10;
/// Through a socket in one measurement.
const STREAM_BYTES: usize = 1 << 30;
const ROUND_TRIPS: u32 = 20_000;
/// A peer that does not answer for so long is gone.
const PATIENCE: Duration = Duration::from_secs(60);

/// Copies are in bytes copied per second, in units of 10⁹: each is read once and written once.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Floor {
    /// A quarter of a GiB, by one core.
    copy_one_core_gb_per_s: f64,
    /// By all cores at once, each its own.
    copy_all_cores_gb_per_s: f64,
    /// Within the caches.
    copy_cached_gb_per_s: f64,
    /// One connection to this machine.
    tcp_gb_per_s: f64,
    /// One byte there and back, between threads that sleep.
    tcp_round_trip_us: f64,
    pipe_round_trip_us: f64,
    futex_round_trip_us: f64,
    /// Between threads that never sleep: what a cache line costs.
    cache_line_round_trip_us: f64,
}

impl Floor {
    /// Takes about ten seconds.
    pub(crate) fn measure(interrupt: &Interrupt, mut tell: impl FnMut(&str)) -> Result<Self> {
        let mut figure = |name: &str, measure: &dyn Fn() -> Result<f64>| -> Result<f64> {
            tell(&format!("floor: {name}"));
            // The first one touches the memory and wakes the processor up.
            measure()?;
            let mut runs = Vec::with_capacity(RUNS);
            for _ in 0..RUNS {
                interrupt.check()?;
                runs.push(measure()?);
            }
            median(&runs).context("nothing was measured")
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
            ("TCP on loopback, one byte there and back", self.tcp_round_trip_us, "us"),
            ("pipe, one byte there and back", self.pipe_round_trip_us, "us"),
            ("futex, there and back", self.futex_round_trip_us, "us"),
            ("a cache line, there and back", self.cache_line_round_trip_us, "us"),
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

/// Two ends of a connection within this machine.
fn connection() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").context("can't listen on loopback")?;
    let one = TcpStream::connect(listener.local_addr()?).context("can't connect on loopback")?;
    let (other, _) = listener.accept()?;
    for end in [&one, &other] {
        end.set_nodelay(true)?;
        end.set_read_timeout(Some(PATIENCE))?;
        end.set_write_timeout(Some(PATIENCE))?;
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

/// Sends a byte and waits for the answer, again and again. Whoever drops its end ends the other.
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
    let (here, there_out) = pipe().context("a pipe")?;
    let (there, here_out) = pipe().context("a pipe")?;
    round_trips((here, here_out), (there, there_out))
}

/// Two threads that put each other to sleep: on Linux that is a futex.
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
    // On one core nobody would ever see the other's store but for this.
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
    fn hand_overs_take_some_time_and_end() {
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
