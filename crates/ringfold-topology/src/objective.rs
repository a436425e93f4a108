//! The objectives by which tours are compared.

use std::cmp::Ordering;

/// The objective of a solver.
///
/// A new objective needs a variant, its quantities in `Objective::cost`, and in `Objective::slowest_comes_first` whether
/// the search minimises the price of the slowest edge first.
///
/// ```
/// use ringfold_topology::{Effort, Objective, Seed, solve};
/// # use ringfold_topology::BandwidthMatrix;
/// // In one direction every edge has 5; in the other one edge has 3 and the rest 90.
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
    /// The fastest slowest edge; among those, the least sum of 1/bandwidth.
    #[default]
    SlowestThenSum,
    /// The least sum of 1/bandwidth.
    Sum,
}

impl Objective {
    pub(crate) fn cost(self, totals: TourTotals) -> TourCost {
        match self {
            Self::SlowestThenSum => TourCost { keys: [totals.slowest, totals.sum] },
            Self::Sum => TourCost { keys: [totals.sum, 0.0] },
        }
    }

    pub(crate) fn slowest_comes_first(self) -> bool {
        match self {
            Self::SlowestThenSum => true,
            Self::Sum => false,
        }
    }
}

/// The cost of a tour under one objective; less is better. Compare only costs of the same objective and matrix.
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
pub struct TourCost {
    keys: [f64; 2],
}

impl TourCost {
    /// The compared quantities in order, in seconds per byte.
    pub fn keys(self) -> [f64; 2] {
        self.keys
    }
}

impl Ord for TourCost {
    fn cmp(&self, other: &Self) -> Ordering {
        let [first, second] = self.keys;
        first.total_cmp(&other.keys[0]).then(second.total_cmp(&other.keys[1]))
    }
}

impl PartialOrd for TourCost {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for TourCost {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for TourCost {}

/// The quantities of a tour from which objectives compute its cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TourTotals {
    /// Seconds per byte of the slowest edge.
    pub(crate) slowest: f64,
    /// Seconds per byte of all edges together.
    pub(crate) sum: f64,
}
