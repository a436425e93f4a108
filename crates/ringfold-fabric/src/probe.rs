//! How many bytes a second a way takes, and the way back.
//!
//! ```text
//!  prober                           other
//!     │ bytes, until it is told ───→│  counts them by its own clock
//!     │←─ eight bytes: the rate     │
//!     │←─ bytes, until it is closed │
//! ```
//!
//! Only what arrived counts, since a sender merely sees what fits into buffers. What is still under way when a
//! direction has been measured is not waited for: on a slow way that would take seconds.

use crate::limits;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// What a probe found, in bytes per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measured {
    /// From the prober to the other end.
    pub forward: u64,
    /// From the other end to the prober.
    pub backward: u64,
}

/// Measures, on a connection that is proven and on which nothing was said yet. The other end answers.
pub fn measure(mut stream: TcpStream) -> io::Result<Measured> {
    let mut report = Vec::with_capacity(REPORT_BYTES);
    let sent = flood(&mut stream, |bytes| {
        // What lies behind the report is the way back already, and its first bytes count for nothing.
        report.extend_from_slice(&bytes[..bytes.len().min(REPORT_BYTES - report.len())]);
        report.len() == REPORT_BYTES
    })?;
    let told = report.first_chunk().map_or(0, |report| u64::from_le_bytes(*report));
    // Nobody can have received more than was sent, nor within less time than is measured.
    let forward = told.min(sent.saturating_mul(1000 / TAIL_MIN_MS));
    let backward = receive(&mut stream)?;
    if forward == 0 {
        return Err(io::Error::new(ErrorKind::InvalidData, "the other end reports that nothing arrived"));
    }
    Ok(Measured { forward, backward })
}

/// Answers someone who measures.
pub fn answer(mut stream: TcpStream) -> io::Result<()> {
    let rate = receive(&mut stream)?;
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(limits::PROBE_DIRECTION_MAX))?;
    stream.write_all(&rate.to_le_bytes())?;
    match flood(&mut stream, |_| false) {
        // That is how the prober says that it has enough.
        Err(error) if has_closed(error.kind()) => Ok(()),
        result => result.map(drop),
    }
}

/// Bytes of a report: the rate.
const REPORT_BYTES: usize = 8;

/// Bytes that are read or written at once.
const BLOCK_BYTES: usize = 256 * 1024;

/// The rate is taken over the last quarter of the shortest measurement at least.
const TAIL_MIN_MS: u64 = limits::PROBE_MEASURE_MIN.as_millis() as u64 / 4;

fn has_closed(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof)
}

/// Sends until `heard` is content with what the other end said, and says how many bytes went out.
fn flood(stream: &mut TcpStream, mut heard: impl FnMut(&[u8]) -> bool) -> io::Result<u64> {
    stream.set_nonblocking(true)?;
    let end = Instant::now() + limits::PROBE_DIRECTION_MAX;
    let (noise, mut input) = (noise(), vec![0; 64 * 1024]);
    let mut sent = 0;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let wanted = match sent < limits::PROBE_BYTES_MAX {
            true => PollFlags::IN | PollFlags::OUT,
            false => PollFlags::IN,
        };
        if left.is_zero() {
            return Err(io::Error::new(ErrorKind::TimedOut, "the other end of a probe does not answer"));
        }
        let ready = wait(stream, wanted, left)?;
        if ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR)
            && let Some(bytes) = unless_blocked(stream.read(&mut input))?
        {
            if bytes == 0 {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "the other end of a probe is gone"));
            }
            if heard(&input[..bytes]) {
                return Ok(sent);
            }
        }
        if ready.contains(PollFlags::OUT) {
            sent += unless_blocked(stream.write(&noise))?.unwrap_or(0) as u64;
        }
    }
}

/// Receives until the rate is known.
fn receive(stream: &mut TcpStream) -> io::Result<u64> {
    stream.set_nonblocking(true)?;
    let end = Instant::now() + limits::PROBE_DIRECTION_MAX;
    let mut input = vec![0; BLOCK_BYTES];
    let mut begun = None;
    let mut gauge = Gauge::default();
    loop {
        let now = Instant::now();
        let elapsed = begun.map_or(Duration::ZERO, |begun| now.duration_since(begun));
        if let Some(rate) = gauge.rate(elapsed) {
            return Ok(rate);
        }
        if now >= end || elapsed >= limits::PROBE_MEASURE_MAX {
            return Err(io::Error::new(ErrorKind::TimedOut, "too little of a probe arrived"));
        }
        let patience = if begun.is_some() { Duration::from_millis(10) } else { end - now };
        if wait(stream, PollFlags::IN, patience)?.is_empty() {
            continue;
        }
        if let Some(bytes) = unless_blocked(stream.read(&mut input))? {
            if bytes == 0 {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "the other end of a probe is gone"));
            }
            match begun {
                Some(begun) => gauge.count(begun.elapsed(), bytes as u64),
                // The first bytes only start the clock; they were under way before it.
                None => begun = Some(Instant::now()),
            }
        }
    }
}

/// What arrived when.
#[derive(Default)]
struct Gauge {
    bytes: u64,
    /// Times, and what had arrived by then; a millisecond apart at least.
    marks: Vec<(Duration, u64)>,
}

impl Gauge {
    fn count(&mut self, at: Duration, bytes: u64) {
        self.bytes += bytes;
        if self.marks.last().is_none_or(|(last, _)| at >= *last + Duration::from_millis(1)) {
            self.marks.push((at, self.bytes));
        }
    }

    /// The rate, if it is steady or the time is over. Of all that has been measured the first half counts for
    /// nothing, because a connection starts slowly, and shapers let the first bytes through.
    fn rate(&self, now: Duration) -> Option<u64> {
        if now < limits::PROBE_MEASURE_MIN {
            return None;
        }
        let (half, late) = (self.mark(now / 2), self.mark(now * 3 / 4));
        let end = (now, self.bytes);
        let (before, last) = (slope(half, late)?, slope(late, end)?);
        let is_steady = before.abs_diff(last) <= before.max(last) / 10;
        if is_steady && last > 0 {
            return slope(half, end);
        }
        // What it has come to is nearer to the truth than what it was on the way.
        let is_over = now >= limits::PROBE_MEASURE_MAX || self.bytes >= limits::PROBE_BYTES_MAX;
        (is_over && self.bytes > 0)
            .then(|| if last > 0 { Some(last) } else { slope((Duration::ZERO, 0), end) })?
    }

    /// The last mark before a time.
    fn mark(&self, at: Duration) -> (Duration, u64) {
        let next = self.marks.partition_point(|(time, _)| *time <= at);
        next.checked_sub(1).map_or((Duration::ZERO, 0), |mark| self.marks[mark])
    }
}

/// Bytes per second between two marks.
fn slope(from: (Duration, u64), to: (Duration, u64)) -> Option<u64> {
    let nanos = to.0.checked_sub(from.0).filter(|time| !time.is_zero())?.as_nanos();
    u64::try_from(u128::from(to.1 - from.1) * 1_000_000_000 / nanos).ok()
}

/// Bytes that no link can compress.
fn noise() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    core::iter::repeat_with(next).take(BLOCK_BYTES / 8).flatten().collect()
}

/// Waits until something can be done, for so long at most.
fn wait(stream: &TcpStream, wanted: PollFlags, patience: Duration) -> io::Result<PollFlags> {
    let timeout = Timespec {
        tv_sec: patience.as_secs().min(1 << 30) as i64,
        tv_nsec: i64::from(patience.subsec_nanos()),
    };
    let mut fds = [PollFd::new(stream, wanted)];
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) => Ok(fds[0].revents()),
        Err(rustix::io::Errno::INTR) => Ok(PollFlags::empty()),
        Err(error) => Err(error.into()),
    }
}

fn unless_blocked(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fed(rate_at: impl Fn(u64) -> u64, until_ms: u64) -> Gauge {
        let mut gauge = Gauge::default();
        for ms in 1..=until_ms {
            gauge.count(Duration::from_millis(ms), rate_at(ms) / 1000);
        }
        gauge
    }

    #[test]
    fn a_steady_rate_is_known_soon() {
        let gauge = fed(|_| 50_000_000, 80);
        assert_eq!(gauge.rate(Duration::from_millis(79)), None);
        assert_eq!(gauge.rate(Duration::from_millis(80)), Some(50_000_000));
    }

    #[test]
    fn a_burst_at_the_start_does_not_count() {
        let rate = |ms| if ms <= 100 { 400_000_000 } else { 10_000_000 };
        for ms in [100, 120, 150, 199] {
            let known = fed(rate, ms).rate(Duration::from_millis(ms));
            assert!(ms == 100 || known.is_none_or(|rate| rate < 11_000_000), "{known:?} at {ms} ms");
        }
        assert_eq!(fed(rate, 400).rate(Duration::from_millis(400)), Some(10_000_000));
    }

    #[test]
    fn what_still_grows_is_judged_by_where_it_got_to() {
        let gauge = fed(|ms| ms * 1_000_000, 400);
        assert_eq!(gauge.rate(Duration::from_millis(300)), None);
        let rate = gauge.rate(Duration::from_millis(400)).unwrap();
        assert!((340_000_000..=400_000_000).contains(&rate), "{rate}");
    }
}
