//! A cap on the bandwidth of several connections together. Pure: callers pass the time.
//!
//! A connection moves up to a quantum of bytes, then pays for them. The payment says when it may move more: after
//! everything that all connections have moved so far is paid for. So connections take turns, and none starves.

use core::time::Duration;
use ringfold_proto::time::Time;

/// A quantum lasts this long at the capped rate, if the bounds below allow it.
const QUANTUM: Duration = Duration::from_millis(10);
const QUANTUM_BYTES_MIN: u64 = 4 * 1024;
const QUANTUM_BYTES_MAX: u64 = 256 * 1024;

/// Unused time that may be made up for, so that threads that wake up late do not lower the rate.
const CATCH_UP: Duration = Duration::from_millis(20);

/// A bucket that all connections of one direction share.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    /// Bytes per second.
    rate: u64,
    /// The time at which everything that was moved is paid for.
    paid_at: Time,
}

impl TokenBucket {
    /// A bucket for so many bytes per second.
    pub(crate) fn new(rate: u64) -> Self {
        Self { rate: rate.max(1), paid_at: Time::ZERO }
    }

    /// Bytes per second.
    pub(crate) fn rate(&self) -> u64 {
        self.rate
    }

    /// What was moved stays paid for as before.
    pub(crate) fn set_rate(&mut self, rate: u64) {
        self.rate = rate.max(1);
    }

    /// Bytes that a connection may move at once.
    pub(crate) fn quantum(&self) -> usize {
        let bytes = self.rate.saturating_mul(QUANTUM.as_millis() as u64) / 1000;
        bytes.clamp(QUANTUM_BYTES_MIN, QUANTUM_BYTES_MAX) as usize
    }

    /// When a connection that has moved nothing yet may begin.
    pub(crate) fn begin(&self) -> Time {
        self.paid_at
    }

    /// Pays for bytes that a connection has moved. Returns when it may move more.
    pub(crate) fn pay(&mut self, now: Time, bytes: usize) -> Time {
        // Rounded up, so that the average never exceeds the cap.
        let nanos = (bytes as u128 * 1_000_000_000).div_ceil(u128::from(self.rate));
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let earliest = Time(now.0.saturating_sub(CATCH_UP.as_nanos() as u64));
        self.paid_at = self.paid_at.max(earliest) + takes;
        self.paid_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: u64 = 1_000_000;

    /// Runs connections that always have something to move, each woken up `late` after its time. Returns the bytes of
    /// each.
    fn run(rate: u64, count: usize, late: Duration, end: Time) -> Vec<u64> {
        let mut bucket = TokenBucket::new(rate);
        let start = Time(50 * MILLI);
        let mut next = vec![start.max(bucket.begin()); count];
        let mut moved = vec![0; count];
        loop {
            let (at, index) = (0..count).map(|index| (next[index], index)).min().unwrap();
            if at > end {
                return moved;
            }
            let now = at + late;
            moved[index] += bucket.quantum() as u64;
            next[index] = bucket.pay(now, bucket.quantum()).max(now);
        }
    }

    #[test]
    fn the_average_is_the_cap_and_connections_share_it_evenly() {
        let seconds = 10;
        for rate in [125_000, 6_250_000, 125_000_000, 5_000_000_000] {
            for count in [1, 3, 40] {
                let moved = run(rate, count, Duration::ZERO, Time(50 * MILLI + seconds * 1000 * MILLI));
                let (total, quantum) = (moved.iter().sum::<u64>(), TokenBucket::new(rate).quantum() as u64);
                let slack = rate * CATCH_UP.as_millis() as u64 / 1000 + (count as u64 + 1) * quantum;
                assert!(total <= rate * seconds + slack, "{rate} × {count}: {total}");
                assert!(total + slack >= rate * seconds, "{rate} × {count}: {total}");
                let (least, most) = (moved.iter().min().unwrap(), moved.iter().max().unwrap());
                // The first one makes up for the time before it.
                assert!(most - least <= slack, "{rate} × {count}: {moved:?}");
            }
        }
    }

    #[test]
    fn waking_up_late_does_not_lower_the_rate() {
        let rate = 6_250_000;
        let total: u64 = run(rate, 1, Duration::from_millis(4), Time(10_050 * MILLI)).iter().sum();
        assert!(total >= rate * 10 * 99 / 100, "{total}");
    }

    #[test]
    fn time_that_was_not_used_is_lost_but_for_a_moment() {
        let mut bucket = TokenBucket::new(1_000_000);
        let now = Time(3_600_000 * MILLI);
        // 20 ms may be made up for: 20,000 bytes.
        assert_eq!(bucket.pay(now, 20_000), now);
        assert_eq!(bucket.pay(now, 10_000), now + Duration::from_millis(10));
        assert_eq!(bucket.begin(), now + Duration::from_millis(10));
    }

    #[test]
    fn no_amount_overflows() {
        let mut bucket = TokenBucket::new(0);
        bucket.pay(Time(u64::MAX), usize::MAX);
        assert_eq!(bucket.begin(), Time(u64::MAX));
    }
}
