//! The way in: a solver that a driver gives as much effort as it has time for.

use crate::chance::Seed;
use crate::exact::best_tour;
use crate::graph::Graph;
use crate::heuristic::Heuristic;
use crate::limits::EXACT_NODES_MAX;
use crate::matrix::BandwidthMatrix;
use crate::no_tour::{NoTour, quick_proof};
use crate::node::NodeIndex;
use crate::objective::Objective;
use crate::price::Prices;
use crate::tour::{Tour, TourError};
use std::sync::Arc;

/// Looks for the best tour of a matrix for as long as it is asked to.
///
/// It knows no clock: a driver that has a second calls [`Solver::improve`] with a modest effort until
/// the second is over. The tour depends on the matrix, the objective, the seed and the effort spent in
/// all, and on nothing else; in how many calls the effort was given makes no difference.
///
/// ```
/// use ringfold_topology::{BandwidthMatrix, Effort, NodeCount, Objective, Progress, Seed, Solver};
///
/// let matrix = BandwidthMatrix::new(NodeCount::new(30)?);
/// let mut solver = Solver::new(&matrix, Objective::SlowestThenSum, Seed(7));
/// assert!(solver.best().is_none());
/// for _ in 0..10 {
///     match solver.improve(Effort(10_000)) {
///         Progress::Better | Progress::Same => {} // Look at the clock, and go on.
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
    method: Method,
    /// Effort that was allowed and not spent yet. A step that overdraws it is paid for by later calls.
    allowance: i128,
}

#[derive(Clone, Debug)]
enum Method {
    Exact,
    Done(Result<Tour, NoTour>),
    Heuristic(Box<Heuristic>),
}

impl Solver {
    /// A solver that is exact up to [`EXACT_NODES_MAX`] nodes, and heuristic beyond. Nothing of note
    /// is computed before the first call of [`Solver::improve`], save for proofs that no ring exists
    /// and bounds on the slowest edge, which take about as long as sorting the matrix.
    pub fn new(matrix: &BandwidthMatrix, objective: Objective, seed: Seed) -> Self {
        Self::with_exact_up_to(EXACT_NODES_MAX, matrix, objective, seed)
    }

    /// A solver that is heuristic wherever there is a choice: to compare the two.
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
        let method = if let Some(refusal) = quick_proof(&Graph::reachable(&prices)) {
            Method::Done(Err(refusal))
        } else if prices.nodes() <= exact {
            Method::Exact
        } else {
            Method::Heuristic(Box::new(Heuristic::new(prices.clone(), objective, seed)))
        };
        Self { prices, objective, method, allowance: 0 }
    }

    /// Works until the effort is spent, or until no more of it can help. An exact solver does all its
    /// work in one call, however little it is given.
    pub fn improve(&mut self, effort: Effort) -> Progress {
        match &mut self.method {
            Method::Exact => self.method = Method::Done(best_tour(&self.prices, self.objective)),
            Method::Done(_) => {}
            Method::Heuristic(search) => {
                self.allowance += i128::from(effort.0);
                let mut progress = Progress::Same;
                while self.allowance > 0 {
                    let before = search.spent();
                    if search.step() {
                        progress = Progress::Better;
                    }
                    // Every step costs something, so the loop ends whatever the search does.
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
            Method::Exact => None,
            Method::Done(outcome) => outcome.as_ref().ok(),
            Method::Heuristic(search) => search.best(),
        }
    }

    /// The best tour so far, or why there is none.
    pub fn outcome(&self) -> Result<&Tour, NoTour> {
        match &self.method {
            Method::Exact => Err(NoTour::NotFound { nodes: Vec::new() }),
            Method::Done(outcome) => outcome.as_ref().map_err(Clone::clone),
            Method::Heuristic(search) => search.best().ok_or_else(|| search.refusal()),
        }
    }

    /// Makes a ring known that is in use already, so that the search starts from it and [`Solver::best`]
    /// is never worse. An exact solver needs no such help.
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
        if let Method::Heuristic(search) = &mut self.method {
            search.offer(tour);
        }
        Ok(())
    }
}

/// How much a solver may do: changes to a tour looked at, and nodes moved. A core does about a
/// hundred million of them in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Effort(pub u64);

/// What a call of [`Solver::improve`] has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A better tour than before the call.
    Better,
    /// Nothing new, so far.
    Same,
    /// The best tour there is; more effort is in vain.
    Optimal,
    /// The proof that there is no tour; more effort is in vain.
    Impossible,
}

/// The best tour that an effort can find.
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

/// Fewer nodes than these leave the local search nothing to exchange.
const HEURISTIC_NODES_MIN: usize = 4;
