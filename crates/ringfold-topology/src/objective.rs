//! What makes one tour better than another.

use std::cmp::Ordering;

/// What a solver looks for.
///
/// To add an objective, add a variant, say in `Objective::cost` which quantities it compares, and in
/// `Objective::slowest_comes_first` whether the search is to lower the price of the slowest edge before all else.
///
/// ```
/// use ringfold_topology::{Effort, Objective, Seed, solve};
/// # use ringfold_topology::BandwidthMatrix;
/// // Round one way every edge carries 5; the other way one edge carries 3, but the rest carry 90.
/// let matrix = BandwidthMatrix::from_rows(&[
///     vec![0.0, 5.0, 90.0],
///     vec![3.0, 0.0, 5.0],
///     vec![5.0, 90.0, 0.0],
/// ])?;
/// let fair = solve(&matrix, Objective::SlowestThenSum, Effort(1000), Seed(1))?;
/// let least = solve(&matrix, Objective::Sum, Effort(1000), Seed(1))?;
/// assert_eq!(fair.slowest().unwrap().bandwidth.bytes_per_second(), 5.0);
/// assert_eq!(least.slowest().unwrap().bandwidth.bytes_per_second(), 3.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Objective {
    /// The slowest edge as fast as can be; among those, the least sum of 1/bandwidth.
    #[default]
    SlowestThenSum,
    /// The least sum of 1/bandwidth, however slow the slowest edge is.
    Sum,
}

impl Objective {
    pub(crate) fn cost(self, tally: Tally) -> Cost {
        match self {
            Self::SlowestThenSum => Cost { keys: [tally.slowest, tally.sum] },
            Self::Sum => Cost { keys: [tally.sum, 0.0] },
        }
    }

    pub(crate) fn slowest_comes_first(self) -> bool {
        match self {
            Self::SlowestThenSum => true,
            Self::Sum => false,
        }
    }
}

/// What a tour costs under one objective: less is better. Costs of different objectives, or of
/// different matrices, should not be compared.
///
/// ```
/// # use ringfold_topology::{BandwidthMatrix, NodeIndex, Objective, Tour};
/// let matrix = BandwidthMatrix::from_rows(&[vec![0.0, 2.0], vec![4.0, 0.0]])?;
/// let tour = Tour::new(&matrix, &[NodeIndex(0), NodeIndex(1)])?;
/// assert_eq!(tour.cost(Objective::SlowestThenSum).keys(), [0.5, 0.75]);
/// assert_eq!(tour.cost(Objective::Sum).keys(), [0.75, 0.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    keys: [f64; 2],
}

impl Cost {
    /// The quantities in the order in which they are compared, in seconds per byte.
    pub fn keys(self) -> [f64; 2] {
        self.keys
    }

    /// Whether this cost is less than `other` by the margin, in the first quantity that decides.
    ///
    /// An earlier quantity that got worse, by however little, is not made up for by a later one; one
    /// that got better by less than the margin leaves the decision to the next.
    pub fn improves_on(self, other: Self, margin: Margin) -> bool {
        for (new, old) in self.keys.into_iter().zip(other.keys) {
            if new < old * (1.0 - margin.ratio) {
                return true;
            }
            if new > old {
                return false;
            }
        }
        false
    }
}

impl Ord for Cost {
    fn cmp(&self, other: &Self) -> Ordering {
        let [first, second] = self.keys;
        first.total_cmp(&other.keys[0]).then(second.total_cmp(&other.keys[1]))
    }
}

impl PartialOrd for Cost {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Cost {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Cost {}

/// By how much a tour must be better before it is worth changing to.
///
/// ```
/// # use ringfold_topology::Margin;
/// assert!(Margin::new(0.05).is_ok());
/// assert!(Margin::new(-0.1).is_err());
/// assert!(Margin::new(f64::NAN).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Margin {
    ratio: f64,
}

impl Margin {
    /// Better is better.
    pub const NONE: Self = Self { ratio: 0.0 };

    /// A ratio from 0 up to, but less than, 1.
    pub fn new(ratio: f64) -> Result<Self, MarginError> {
        if (0.0..1.0).contains(&ratio) { Ok(Self { ratio }) } else { Err(MarginError { ratio }) }
    }

    /// The ratio itself.
    pub fn ratio(self) -> f64 {
        self.ratio
    }
}

/// A number that is no margin.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("a margin lies from 0 up to, but below, 1; {ratio} does not")]
pub struct MarginError {
    /// What was given.
    pub ratio: f64,
}

/// The quantities of one tour from which every objective makes its cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    /// Seconds per byte of the slowest edge.
    pub(crate) slowest: f64,
    /// Seconds per byte of all edges together.
    pub(crate) sum: f64,
}
