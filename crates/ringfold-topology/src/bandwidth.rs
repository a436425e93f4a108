//! The bandwidth and state of a directed link.

use crate::limits::{BANDWIDTH_BYTES_PER_SECOND_MAX, BANDWIDTH_BYTES_PER_SECOND_MIN};

/// A bandwidth in bytes per second, within the limits of this crate.
///
/// ```
/// # use ringfold_topology::Bandwidth;
/// let link = Bandwidth::new(1.25e9).unwrap();
/// assert_eq!(link.bytes_per_second(), 1.25e9);
/// for garbage in [0.0, -1.0, f64::NAN, f64::INFINITY] {
///     assert!(Bandwidth::new(garbage).is_err());
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Bandwidth(f64);

impl Bandwidth {
    /// The least valid bandwidth.
    pub const MIN: Self = Self(BANDWIDTH_BYTES_PER_SECOND_MIN);

    /// Checks a number. Zero is invalid: use [`Link::Unreachable`] instead.
    pub fn new(bytes_per_second: f64) -> Result<Self, BandwidthError> {
        // NaN is in no range.
        let valid = BANDWIDTH_BYTES_PER_SECOND_MIN..=BANDWIDTH_BYTES_PER_SECOND_MAX;
        if valid.contains(&bytes_per_second) {
            Ok(Self(bytes_per_second))
        } else {
            Err(BandwidthError { bytes_per_second })
        }
    }

    /// The number itself.
    pub fn bytes_per_second(self) -> f64 {
        self.0
    }

    /// The cost of one byte, whose sum the objectives minimise.
    pub fn seconds_per_byte(self) -> f64 {
        1.0 / self.0
    }
}

/// An invalid bandwidth: zero, negative, NaN or out of range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("invalid bandwidth: {bytes_per_second} bytes per second")]
pub struct BandwidthError {
    /// The invalid number.
    pub bytes_per_second: f64,
}

/// The state of a directed link.
///
/// ```
/// # use ringfold_topology::{Bandwidth, Link};
/// assert_eq!(Link::measured(2e9).unwrap(), Link::Measured(Bandwidth::new(2e9).unwrap()));
/// assert!(Link::measured(f64::NAN).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Link {
    /// Unreachable: no ring may use this edge.
    Unreachable,
    /// Not measured: usable, with an estimated bandwidth.
    Unknown,
    /// Measured.
    Measured(Bandwidth),
}

impl Link {
    /// A measurement in bytes per second.
    pub fn measured(bytes_per_second: f64) -> Result<Self, BandwidthError> {
        Bandwidth::new(bytes_per_second).map(Self::Measured)
    }
}
