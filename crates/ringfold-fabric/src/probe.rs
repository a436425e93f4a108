//! How many bytes a second a way takes, and the way back.
//!
//! ```text
//!  prober                           other
//!     │ bytes, until the reply ────→│  counts them by its own clock
//!     │←─ eight bytes: the rate     │
//!     │←─ bytes, until it is closed │
//! ```
//!
//! Only what arrived counts, since a sender merely sees what fits into buffers. What is still under way when a
//! direction has been measured is not waited for: on a slow way that would take seconds.

use crate::connection::{BlockingConnection, Connection, Intake};
use crate::limits;
use crate::memory::View;
use crate::poller::{Poller, Readiness};
use core::ops::Range;
use ringfold_plan::medium::Ticket;
use std::io::{self, ErrorKind};
use std::sync::Arc;
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
pub fn measure(connection: impl Into<BlockingConnection>) -> io::Result<Measured> {
    let mut probe = ProbeConnection::new(connection)?;
    let forward = probe.send_and_hear()?;
    let backward = probe.receive()?;
    check_forward(forward)?;
    Ok(Measured { forward, backward })
}

/// Measures only the way to the other end, which calls [`receive_rate`].
pub fn send_rate(connection: impl Into<BlockingConnection>) -> io::Result<u64> {
    let forward = ProbeConnection::new(connection)?.send_and_hear()?;
    check_forward(forward)?;
    Ok(forward)
}

/// Measures only the way from the other end, which calls [`send_rate`], and reports it.
pub fn receive_rate(connection: impl Into<BlockingConnection>) -> io::Result<u64> {
    let mut probe = ProbeConnection::new(connection)?;
    // The window of TCP takes some round trips to grow, too.
    let round_trip = probe.connection.round_trip().unwrap_or_default();
    let is_long = round_trip >= limits::QUIC_ROUND_TRIP_MIN;
    let rate = probe.receive_over(if is_long { round_trip } else { Duration::ZERO })?;
    probe.connection.send(&rate.to_le_bytes());
    // What still arrives is discarded until the other end has the report, and closes.
    let end = Instant::now() + limits::PROBE_DIRECTION_MAX;
    while Instant::now() < end {
        let sent = probe.connection.flush(&mut Vec::new());
        if sent.and_then(|()| probe.read()).is_err() {
            break;
        }
        probe.poller.wait(&mut probe.ready, end.saturating_duration_since(Instant::now()))?;
    }
    Ok(rate)
}

fn check_forward(rate: u64) -> io::Result<()> {
    match rate {
        0 => Err(io::Error::new(ErrorKind::InvalidData, "the other end reports that nothing arrived")),
        _ => Ok(()),
    }
}

/// Answers someone who measures.
pub fn answer(connection: impl Into<BlockingConnection>) -> io::Result<()> {
    let mut probe = ProbeConnection::new(connection)?;
    let rate = probe.receive()?;
    probe.connection.send(&rate.to_le_bytes());
    probe.wait_until_quiet()?;
    match probe.flood(|_| false) {
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

/// The shortest time over which a rate is taken on a long path.
const RATE_WINDOW_MIN: Duration = Duration::from_millis(40);

fn has_closed(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof)
}

/// The connection that is measured, with a poller of its own.
struct ProbeConnection {
    connection: Connection,
    poller: Arc<Poller>,
    ready: Readiness,
    input: Vec<u8>,
}

impl ProbeConnection {
    fn new(connection: impl Into<BlockingConnection>) -> io::Result<Self> {
        let poller = Arc::new(Poller::new()?);
        let connection = Connection::new(connection, &poller, Intake::Frames)?;
        Ok(Self { connection, poller, ready: Readiness::default(), input: vec![0; BLOCK_BYTES] })
    }

    /// Sends until the other end reports at which rate that arrives.
    fn send_and_hear(&mut self) -> io::Result<u64> {
        let mut report = Vec::with_capacity(REPORT_BYTES);
        let sent = self.flood(|bytes| {
            // What lies behind the report is the way back already, and its first bytes count for nothing.
            report.extend_from_slice(&bytes[..bytes.len().min(REPORT_BYTES - report.len())]);
            report.len() == REPORT_BYTES
        })?;
        let told = report.first_chunk().map_or(0, |report| u64::from_le_bytes(*report));
        // Nobody can have received more than was sent, nor within less time than is measured.
        Ok(told.min(sent.saturating_mul(1000 / TAIL_MIN_MS)))
    }

    /// Sends until `heard` is content with what the other end said, and says how many bytes went out.
    fn flood(&mut self, mut heard: impl FnMut(&[u8]) -> bool) -> io::Result<u64> {
        let end = Instant::now() + limits::PROBE_DIRECTION_MAX;
        let noise = View::from(noise());
        let mut queued = 0;
        let mut flushed = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(ErrorKind::TimedOut, "the other end of a probe does not answer"));
            }
            if self.connection.queued_bytes() < BLOCK_BYTES && queued < limits::PROBE_BYTES_MAX {
                self.connection.send_put(&[], noise.lease(0..BLOCK_BYTES), Ticket(0));
                queued += BLOCK_BYTES as u64;
            }
            self.connection.flush(&mut flushed)?;
            flushed.clear();
            let is_blocked = self.connection.queued_bytes() > 0 || queued >= limits::PROBE_BYTES_MAX;
            self.poller.wait(&mut self.ready, if is_blocked { left } else { Duration::ZERO })?;
            let bytes = if self.ready.is_empty() { 0 } else { self.read()? };
            if bytes > 0 && heard(&self.input[..bytes.min(BLOCK_BYTES)]) {
                let sent = queued - self.connection.queued_bytes() as u64;
                // The rest is not sent, and nothing waits for room.
                self.connection.unsent().for_each(drop);
                self.connection.flush(&mut flushed)?;
                return Ok(sent);
            }
        }
    }

    /// Receives until the rate is known.
    fn receive(&mut self) -> io::Result<u64> {
        let round_trip = self.connection.quic().map(|quic| quic.round_trip());
        self.receive_over(round_trip.unwrap_or_default())
    }

    /// The same, on a path with this round trip.
    fn receive_over(&mut self, round_trip: Duration) -> io::Result<u64> {
        let end = Instant::now() + limits::PROBE_DIRECTION_MAX;
        let mut begun = None;
        let quic = self.connection.quic().cloned();
        let mut gauge = Gauge::for_path(round_trip);
        let mut packets_before = 0;
        loop {
            let now = Instant::now();
            let elapsed = begun.map_or(Duration::ZERO, |begun| now.duration_since(begun));
            if let Some(rate) = gauge.rate(elapsed) {
                return Ok(rate);
            }
            if now >= end || elapsed >= gauge.longest {
                return Err(io::Error::new(ErrorKind::TimedOut, "too little of a probe arrived"));
            }
            let timeout = if begun.is_some() { Duration::from_millis(5) } else { end - now };
            self.poller.wait(&mut self.ready, timeout)?;
            let mut bytes = self.read()? as u64;
            // What arrives behind a lost packet counts as well; the path has carried it.
            if let Some(quic) = &quic {
                let packets = quic.received_bytes();
                bytes = if begun.is_some() || bytes > 0 { packets - packets_before } else { 0 };
                packets_before = packets;
            }
            match begun {
                Some(begun) if bytes > 0 => gauge.count(begun.elapsed(), bytes),
                // The first bytes only start the clock; they were under way before it.
                None if bytes > 0 => begun = Some(Instant::now()),
                _ => {}
            }
        }
    }

    /// Waits until the path is empty, if it is a long one.
    fn wait_until_quiet(&mut self) -> io::Result<()> {
        let Some(quic) = self.connection.quic().cloned() else { return Ok(()) };
        let end = Instant::now() + limits::PROBE_QUIET_MAX;
        let mut last = (Instant::now(), quic.received_bytes());
        while Instant::now() < end && last.0.elapsed() < limits::PROBE_QUIET {
            self.connection.flush(&mut Vec::new())?;
            self.poller.wait(&mut self.ready, limits::PROBE_QUIET / 4)?;
            self.read()?;
            let received = quic.received_bytes();
            if received > last.1 {
                last = (Instant::now(), received);
            }
        }
        Ok(())
    }

    /// Reads what there is. Says how much; what lies behind a block is not kept.
    fn read(&mut self) -> io::Result<usize> {
        let bytes = self.connection.read_into(&mut self.input)?;
        Ok(bytes + self.connection.take(|input| core::mem::take(input).len()))
    }
}

/// What arrived when.
struct Gauge {
    /// How long it measures at least, and at most.
    shortest: Duration,
    longest: Duration,
    /// On a long path, the time over which a rate is taken.
    window: Option<Duration>,
    bytes: u64,
    /// Times, and what had arrived by then; a millisecond apart at least.
    marks: Vec<(Duration, u64)>,
}

impl Gauge {
    /// For a long path with this round-trip time, or any path by TCP if it is zero. A QUIC connection begins with a small window
    /// and doubles it in each round trip; before that has ended, its rate says nothing of the path.
    fn for_path(round_trip: Duration) -> Self {
        let shortest = (limits::PROBE_ROUND_TRIPS_MIN * round_trip).max(limits::PROBE_MEASURE_MIN);
        let longest = (limits::PROBE_ROUND_TRIPS_MAX * round_trip).min(limits::PROBE_MEASURE_LONG_MAX);
        let longest = longest.max(limits::PROBE_MEASURE_MAX);
        let window = (!round_trip.is_zero()).then(|| round_trip.clamp(RATE_WINDOW_MIN, longest / 4));
        Self { shortest: shortest.min(longest), longest, window, bytes: 0, marks: Vec::new() }
    }

    fn count(&mut self, at: Duration, bytes: u64) {
        self.bytes += bytes;
        if self.marks.last().is_none_or(|(last, _)| at >= *last + Duration::from_millis(1)) {
            self.marks.push((at, self.bytes));
        }
    }

    /// The rate, if it is steady or the time is over. Of all that has been measured the first half counts for
    /// nothing, because a connection starts slowly, and shapers let the first bytes through.
    fn rate(&self, now: Duration) -> Option<u64> {
        if now < self.shortest {
            return None;
        }
        let (half, late) = (self.mark(now / 2), self.mark(now * 3 / 4));
        let end = (now, self.bytes);
        if let Some(window) = self.window {
            // After the start less is sent for a while, so that queues empty: the most that arrived is what the path carries.
            let (before, last) = (self.highest(window, half.0..late.0), self.highest(window, late.0..end.0));
            let best = before.max(last);
            let is_known = before.abs_diff(last) <= best / 10 || now >= self.longest;
            return (is_known && best > 0).then_some(best);
        }
        let (before, last) = (slope(half, late)?, slope(late, end)?);
        let is_steady = before.abs_diff(last) <= before.max(last) / 10;
        if is_steady && last > 0 {
            return slope(half, end);
        }
        // What it has come to is nearer to the truth than what it was on the way.
        let is_over = now >= self.longest || self.bytes >= limits::PROBE_BYTES_MAX;
        // Behind a lost packet nothing arrives for a while, so the longer time may be nearer.
        let best = last.max(slope(half, end)?);
        (is_over && self.bytes > 0)
            .then(|| if best > 0 { Some(best) } else { slope((Duration::ZERO, 0), end) })?
    }

    /// The highest rate over this time, ending within the range.
    fn highest(&self, window: Duration, ends: Range<Duration>) -> u64 {
        let ends = self.marks.iter().filter(|(at, _)| ends.contains(at) && *at >= window);
        ends.filter_map(|end| slope(self.mark(end.0 - window), *end)).max().unwrap_or(0)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn fed(rate_at: impl Fn(u64) -> u64, until_ms: u64) -> Gauge {
        fed_over(Duration::ZERO, rate_at, until_ms)
    }

    fn fed_over(round_trip: Duration, rate_at: impl Fn(u64) -> u64, until_ms: u64) -> Gauge {
        let mut gauge = Gauge::for_path(round_trip);
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

    #[test]
    fn a_long_path_is_measured_until_the_window_has_grown() {
        // 100 ms round trip: the rate doubles in each, from 4 to 50 MB/s.
        let rate = |ms: u64| (4_000_000 << (ms / 100)).min(50_000_000);
        let round_trip = Duration::from_millis(100);
        for ms in [80, 200, 400, 599] {
            let known = fed_over(round_trip, rate, ms).rate(Duration::from_millis(ms));
            assert_eq!(known, None, "at {ms} ms");
        }
        let known = fed_over(round_trip, rate, 700).rate(Duration::from_millis(700)).unwrap();
        assert!((45_000_000..=50_000_000).contains(&known), "{known}");
        // After the start, the queue is emptied.
        let sent = |ms: u64| if ms > 800 { 30_000_000 } else { rate(ms) };
        let known = fed_over(round_trip, sent, 1000).rate(Duration::from_millis(1000)).unwrap();
        assert!((49_000_000..=50_000_000).contains(&known), "{known}");
        let near = Gauge::for_path(Duration::from_millis(4));
        assert_eq!((near.shortest, near.longest), (limits::PROBE_MEASURE_MIN, limits::PROBE_MEASURE_MAX));
        let far = Gauge::for_path(Duration::from_secs(3));
        assert!(far.longest <= limits::PROBE_MEASURE_LONG_MAX && far.shortest <= far.longest);
    }
}
