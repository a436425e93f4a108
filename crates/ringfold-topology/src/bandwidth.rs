//! One bandwidth, checked, and what is known about one directed link.

use crate::limits::{BANDWIDTH_BYTES_PER_SECOND_MAX, BANDWIDTH_BYTES_PER_SECOND_MIN};

/// A bandwidth in bytes per second: a positive, finite number within the crate's limits.
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
    /// The least bandwidth there is.
    pub const MIN: Self = Self(BANDWIDTH_BYTES_PER_SECOND_MIN);

    /// Checks a measured number. Zero is not a bandwidth: say [`Link::Unreachable`] instead.
    pub fn new(bytes_per_second: f64) -> Result<Self, BandwidthError> {
        // The comparison is written so that NaN, which is in no range, is refused too.
        let believable = BANDWIDTH_BYTES_PER_SECOND_MIN..=BANDWIDTH_BYTES_PER_SECOND_MAX;
        if believable.contains(&bytes_per_second) {
            Ok(Self(bytes_per_second))
        } else {
            Err(BandwidthError { bytes_per_second })
        }
    }

    /// The number itself.
    pub fn bytes_per_second(self) -> f64 {
        self.0
    }

    /// What one byte costs on this link: the quantity whose sum the objectives keep small.
    pub fn seconds_per_byte(self) -> f64 {
        1.0 / self.0
    }
}

/// A number that is no bandwidth: zero, negative, not a number, infinite, or beyond belief.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{bytes_per_second} bytes per second is not a usable bandwidth")]
pub struct BandwidthError {
    /// What was given.
    pub bytes_per_second: f64,
}

/// What is known about one directed link.
///
/// ```
/// # use ringfold_topology::{Bandwidth, Link};
/// assert_eq!(Link::measured(2e9).unwrap(), Link::Measured(Bandwidth::new(2e9).unwrap()));
/// assert!(Link::measured(f64::NAN).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Link {
    /// Nothing gets through; no ring may use this edge.
    Unreachable,
    /// Not measured yet, but not known to be broken either: usable, at an estimated bandwidth.
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
