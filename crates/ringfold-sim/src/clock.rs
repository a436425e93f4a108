//! Clocks that run fast or slow.

use ringfold_proto::time::Time;

/// The clock of a process.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Its rate, in thousandths.
    rate: u64,
}

impl Clock {
    /// A clock that shows the time of the simulation.
    pub const EXACT: Self = Self { rate: 1_000 };

    pub fn with_rate(per_mille: u64) -> Self {
        Self { rate: per_mille.max(1) }
    }

    /// What it shows at a time of the simulation.
    pub fn reading(self, now: Time) -> Time {
        Time(scale(now.0, self.rate, 1_000, 0))
    }

    /// When it shows this time, or later.
    pub fn when(self, reading: Time) -> Time {
        Time(scale(reading.0, 1_000, self.rate, self.rate - 1))
    }
}

fn scale(value: u64, by: u64, of: u64, round: u64) -> u64 {
    let scaled = (u128::from(value) * u128::from(by) + u128::from(round)) / u128::from(of);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
