//! The solver, which a driver gives as much effort as it has time for.

use crate::exact::best_tour;
use crate::graph::Graph;
use crate::heuristic::Heuristic;
use crate::limits::EXACT_NODES_MAX;
use crate::matrix::BandwidthMatrix;
use crate::no_tour::{NoTour, quick_proof};
use crate::node::NodeIndex;
use crate::objective::Objective;
use crate::price::Prices;
use crate::seeded_rng::Seed;
use crate::tour::{Tour, TourError};
use std::sync::Arc;

/// Searches for the best tour of a matrix.
///
/// It has no clock: a driver calls [`Solver::improve`] with a small effort until its time is over. The tour depends only
/// on the matrix, the objective, the seed and the total effort, not on the number of calls.
///
/// ```
/// use ringfold_topology::{BandwidthMatrix, Effort, NodeCount, Objective, Progress, Seed, Solver};
///
/// let matrix = BandwidthMatrix::new(NodeCount::new(30)?);
/// let mut solver = Solver::new(&matrix, Objective::SlowestThenSum, Seed(7));
/// assert!(solver.best().is_none());
/// for _ in 0..10 {
///     match solver.improve(Effort(10_000)) {
///         Progress::Better | Progress::Same => {} // Check the clock and continue.
///         Progress::Optimal | Progress::Impossible => break,
///     }
/// }
/// assert_eq!(solver.best().unwrap().order().len(), 30);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Solver {
    prices: Arc<Prices>,
    objective: Objective,
    method: SolverState,
    /// Unspent effort. A step may exceed it; later calls pay for that.
    allowance: i128,
}

#[derive(Clone, Debug)]
enum SolverState {
    Exact,
    Done(Result<Tour, NoTour>),
    Heuristic(Box<Heuristic>),
}

impl Solver {
    /// A solver that is exact up to [`EXACT_NODES_MAX`] nodes and heuristic beyond. It computes only quick proofs and
    /// bounds, which take about as long as sorting the matrix.
    pub fn new(matrix: &BandwidthMatrix, objective: Objective, seed: Seed) -> Self {
        Self::with_exact_up_to(EXACT_NODES_MAX, matrix, objective, seed)
    }

    /// A solver that is heuristic for four or more nodes, for comparison.
    ///
    /// ```
    /// use ringfold_topology::{BandwidthMatrix, Effort, NodeCount, Objective, Progress, Seed, Solver};
    ///
    /// let matrix = BandwidthMatrix::new(NodeCount::new(8)?);
    /// let mut exact = Solver::new(&matrix, Objective::Sum, Seed(1));
    /// let mut heuristic = Solver::heuristic(&matrix, Objective::Sum, Seed(1));
    /// assert_eq!(exact.improve(Effort(1)), Progress::Optimal);
    /// assert_eq!(heuristic.improve(Effort(1)), Progress::Better);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn heuristic(matrix: &BandwidthMatrix, objective: Objective, seed: Seed) -> Self {
        Self::with_exact_up_to(HEURISTIC_NODES_MIN - 1, matrix, objective, seed)
    }

    fn with_exact_up_to(exact: usize, matrix: &BandwidthMatrix, objective: Objective, seed: Seed) -> Self {
        let prices = Arc::new(Prices::of(matrix));
        let method = if let Some(no_tour) = quick_proof(&Graph::reachable(&prices)) {
            SolverState::Done(Err(no_tour))
        } else if prices.nodes() <= exact {
            SolverState::Exact
        } else {
            SolverState::Heuristic(Box::new(Heuristic::new(prices.clone(), objective, seed)))
        };
        Self { prices, objective, method, allowance: 0 }
    }

    /// Works until the effort is spent or the result is final. An exact solver does all its work in one call.
    pub fn improve(&mut self, effort: Effort) -> Progress {
        match &mut self.method {
            SolverState::Exact => self.method = SolverState::Done(best_tour(&self.prices, self.objective)),
            SolverState::Done(_) => {}
            SolverState::Heuristic(search) => {
                self.allowance += i128::from(effort.0);
                let mut progress = Progress::Same;
                while self.allowance > 0 {
                    let before = search.spent();
                    if search.step() {
                        progress = Progress::Better;
                    }
                    // Every step costs at least 1, so the loop ends.
                    self.allowance -= i128::from((search.spent() - before).max(1));
                }
                return progress;
            }
        }
        if self.best().is_some() { Progress::Optimal } else { Progress::Impossible }
    }

    /// The best tour so far.
    pub fn best(&self) -> Option<&Tour> {
        match &self.method {
            SolverState::Exact => None,
            SolverState::Done(outcome) => outcome.as_ref().ok(),
            SolverState::Heuristic(search) => search.best(),
        }
    }

    /// The best tour so far, or why there is none.
    pub fn outcome(&self) -> Result<&Tour, NoTour> {
        match &self.method {
            SolverState::Exact => Err(NoTour::NotFound { nodes: Vec::new() }),
            SolverState::Done(outcome) => outcome.as_ref().map_err(Clone::clone),
            SolverState::Heuristic(search) => search.best().ok_or_else(|| search.no_tour()),
        }
    }

    /// Offers the current ring, so that the search starts from it and [`Solver::best`] is never worse. An exact solver
    /// ignores it.
    ///
    /// ```
    /// # use ringfold_topology::{BandwidthMatrix, NodeCount, Objective, Seed, Solver};
    /// let matrix = BandwidthMatrix::new(NodeCount::new(20)?);
    /// let mut solver = Solver::new(&matrix, Objective::Sum, Seed(1));
    /// let in_use: Vec<_> = matrix.nodes().nodes().collect();
    /// solver.offer(&in_use)?;
    /// assert_eq!(solver.best().unwrap().order(), in_use);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn offer(&mut self, order: &[NodeIndex]) -> Result<(), TourError> {
        let tour = Tour::priced(&self.prices, order)?;
        if let SolverState::Heuristic(search) = &mut self.method {
            search.offer(tour);
        }
        Ok(())
    }
}

/// The effort of a solver: changes evaluated and nodes moved. A core does about a hundred million per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Effort(pub u64);

/// The result of a call of [`Solver::improve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A better tour than before.
    Better,
    /// No better tour yet.
    Same,
    /// The optimal tour.
    Optimal,
    /// A proof that there is no tour.
    Impossible,
}

/// The best tour found with an effort.
///
/// ```
/// use ringfold_topology::{BandwidthMatrix, Effort, Objective, Seed, solve};
///
/// let matrix = BandwidthMatrix::from_rows(&[
///     vec![0.0, 1e9, 2e9],
///     vec![2e9, 0.0, 1e9],
///     vec![1e9, 2e9, 0.0],
/// ])?;
/// let tour = solve(&matrix, Objective::SlowestThenSum, Effort(100_000), Seed(1))?;
/// assert_eq!(tour.order().iter().map(|node| node.0).collect::<Vec<_>>(), [0, 2, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn solve(
    matrix: &BandwidthMatrix,
    objective: Objective,
    effort: Effort,
    seed: Seed,
) -> Result<Tour, NoTour> {
    let mut solver = Solver::new(matrix, objective, seed);
    solver.improve(effort);
    solver.outcome().cloned()
}

/// The local search needs at least this many nodes.
const HEURISTIC_NODES_MIN: usize = 4;
