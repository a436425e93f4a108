//! Anytime search for good tours of large matrices.

use crate::construct::{greedy, nearest_neighbour};
use crate::graph::Graph;
use crate::limits::CONSTRUCTION_STARTS_MAX;
use crate::local_search::{AllowedPrices, LocalSearch};
use crate::near_neighbours::NearNeighbours;
use crate::no_tour::NoTour;
use crate::node::NodeIndex;
use crate::objective::Objective;
use crate::price::Prices;
use crate::seeded_rng::{Seed, SeededRng};
use crate::tour::Tour;
use std::sync::Arc;

/// The search for a tour in short steps.
///
/// It constructs several tours and improves each. If the objective puts the slowest edge first, it then lowers the cap on
/// prices by bisection between the reached and the impossible: each attempt searches for a ring without edges above the
/// cap. Then it minimises the sum under the lowest cap reached. A failed attempt proves nothing, so it repeats the
/// rounds with more trials per attempt.
#[derive(Clone, Debug)]
pub(crate) struct Heuristic {
    prices: Arc<Prices>,
    objective: Objective,
    rng: SeededRng,
    near: NearNeighbours,
    search: LocalSearch,
    best: Option<Tour>,
    /// While no tour is known: the missing edges of the best abandoned attempt.
    nearest: Vec<(usize, usize)>,
    /// All prices in ascending order: the possible caps.
    levels: Vec<f64>,
    /// The lowest cap that may allow a ring.
    floor: usize,
    stage: SearchStage,
    round: u32,
    cap: f64,
    /// The least cost since the current start; infinite before the first trial.
    lowest: f64,
}

#[derive(Clone, Debug)]
enum SearchStage {
    /// Constructs tours; `kept` is the best so far with its cost.
    Construct { starts: usize, kept: Option<(f64, Vec<u16>)> },
    /// Searches for any ring; `trials` have failed since this start.
    Seek { trials: u64 },
    /// Searches for a ring under the cap `target`, with one known at `high` and failures below `low`.
    Lower { low: usize, target: usize, high: usize, trials: u64 },
    /// Minimises the sum under the reached cap.
    Polish { trials: u64 },
}

impl Heuristic {
    /// For four nodes or more. The caller has checked for a quick proof that there is no ring.
    pub(crate) fn new(prices: Arc<Prices>, objective: Objective, seed: Seed) -> Self {
        let near = NearNeighbours::of(&prices);
        let (mut levels, mut floor) = (Vec::new(), 0);
        if objective.slowest_comes_first() {
            levels = prices.levels();
            floor = levels.partition_point(|&cap| !Graph::capped(&prices, cap).may_have_ring());
        }
        Self {
            search: LocalSearch::new(&prices, near.clone()),
            stage: SearchStage::Construct { starts: 0, kept: None },
            rng: SeededRng::of(seed),
            best: None,
            nearest: Vec::new(),
            round: 0,
            cap: f64::INFINITY,
            lowest: f64::INFINITY,
            prices,
            objective,
            near,
            levels,
            floor,
        }
    }

    pub(crate) fn best(&self) -> Option<&Tour> {
        self.best.as_ref()
    }

    pub(crate) fn spent(&self) -> u64 {
        self.search.spent()
    }

    /// Adopts a known tour if it is the best.
    pub(crate) fn offer(&mut self, tour: Tour) -> bool {
        let cost = |tour: &Tour| tour.cost(self.objective);
        let better = self.best.as_ref().is_none_or(|best| cost(&tour) < cost(best));
        if better {
            self.best = Some(tour);
        }
        better
    }

    /// Why there is no tour yet.
    pub(crate) fn no_tour(&self) -> NoTour {
        let ends = self.nearest_attempt().into_iter().flat_map(|(from, to)| [from, to]);
        let mut nodes: Vec<NodeIndex> = ends.map(NodeIndex::of).collect();
        nodes.sort_unstable();
        nodes.dedup();
        NoTour::NotFound { nodes }
    }

    /// Does one step. Returns whether it found a better tour.
    pub(crate) fn step(&mut self) -> bool {
        match self.stage {
            SearchStage::Construct { starts, .. } if starts < CONSTRUCTION_STARTS_MAX => self.construct(),
            SearchStage::Construct { .. } => {
                self.end_construction();
                false
            }
            SearchStage::Seek { trials } => self.seek(trials),
            SearchStage::Lower { .. } => self.lower(),
            SearchStage::Polish { .. } => self.polish(),
        }
    }

    fn construct(&mut self) -> bool {
        let SearchStage::Construct { starts, kept } = &mut self.stage else { return false };
        let order = if *starts == 0 {
            greedy(&self.prices, &self.near, &mut self.rng)
        } else {
            nearest_neighbour(&self.prices, self.rng.below(self.prices.nodes()))
        };
        *starts += 1;
        self.search.start_from(order);
        if kept.as_ref().is_none_or(|(cost, _)| self.search.cost() < *cost) {
            *kept = Some((self.search.cost(), self.search.order().to_vec()));
        }
        self.consider()
    }

    fn end_construction(&mut self) {
        if self.best.is_some() {
            return self.begin_round();
        }
        if let SearchStage::Construct { kept: Some((_, order)), .. } = &self.stage {
            self.search.start_from(order.clone());
        }
        self.lowest = self.search.cost();
        self.stage = SearchStage::Seek { trials: 0 };
    }

    fn seek(&mut self, trials: u64) -> bool {
        if self.best.is_none() {
            self.trial();
        }
        let found = self.consider();
        if self.best.is_some() {
            self.round = 0;
            self.begin_round();
            return found;
        }
        self.stage = SearchStage::Seek { trials: trials + 1 };
        if trials >= self.trials_per_attempt() {
            self.nearest = self.nearest_attempt();
            self.begin_start(1 + u64::from(self.round) % (START_KINDS - 1));
            self.round = self.round.saturating_add(1);
            self.stage = SearchStage::Seek { trials: 0 };
        }
        false
    }

    /// The missing edges of the best attempt, abandoned or current.
    fn nearest_attempt(&self) -> Vec<(usize, usize)> {
        let broken: Vec<_> = self.search.broken().collect();
        let nearer = !self.nearest.is_empty() && self.nearest.len() < broken.len();
        if nearer { self.nearest.clone() } else { broken }
    }

    fn lower(&mut self) -> bool {
        if !self.search.is_clean() {
            self.trial();
        }
        let SearchStage::Lower { low, target, high, trials } = self.stage else { return false };
        if self.search.is_clean() {
            let found = self.consider();
            self.begin_lowering(low, self.reached_level().min(target));
            return found;
        }
        if trials <= 1 {
            self.begin_lowering(target + 1, high);
            return false;
        }
        self.stage = SearchStage::Lower { low, target, high, trials: trials - 1 };
        let trials_per_start = self.trials_per_attempt() / START_KINDS;
        if trials % trials_per_start == 1 {
            self.begin_start(START_KINDS - trials / trials_per_start);
        }
        false
    }

    /// Restarts an attempt. It begins at the best tour; later starts ignore prices under the cap, to avoid the same local
    /// optimum, and then begin at a random order.
    fn begin_start(&mut self, start: u64) {
        let allowed = if start == START_KINDS - 1 { AllowedPrices::Priced } else { AllowedPrices::Free };
        self.search.set_cap(&self.prices, self.cap, allowed);
        let order = match &self.best {
            Some(best) if start == 1 => best.order().iter().map(|node| node.0).collect(),
            _ => self.rng.order(self.prices.nodes()),
        };
        self.search.start_from(order);
        self.lowest = self.search.cost();
    }

    fn polish(&mut self) -> bool {
        let SearchStage::Polish { trials } = self.stage else { return false };
        let known = self.lowest;
        if known.is_finite() {
            self.trial();
        } else {
            // The start itself may be an improvement.
            self.lowest = self.search.cost();
        }
        let found = self.lowest < known && self.consider();
        self.stage = SearchStage::Polish { trials: trials.saturating_sub(1) };
        if found && self.objective.slowest_comes_first() && self.reached_price() < self.cap {
            // The slowest edge got faster, so the cap can be lowered.
            self.begin_polishing(self.reached_price());
        } else if trials <= 1 {
            self.round += 1;
            self.begin_round();
        }
        found
    }

    fn begin_round(&mut self) {
        if self.objective.slowest_comes_first() {
            self.begin_lowering(self.floor, self.reached_level());
        } else {
            self.begin_polishing(f64::INFINITY);
        }
    }

    /// Chooses the next cap between two levels, or starts to minimise the sum if there is none.
    fn begin_lowering(&mut self, low: usize, high: usize) {
        if low >= high {
            return self.begin_polishing(self.levels.get(high).copied().unwrap_or(f64::INFINITY));
        }
        // The lower bound is often reachable, so it is tried first.
        let target = if low == self.floor { low } else { low.midpoint(high) };
        self.restart(self.levels[target]);
        self.stage = SearchStage::Lower { low, target, high, trials: self.trials_per_attempt() };
    }

    fn begin_polishing(&mut self, cap: f64) {
        self.restart(cap);
        if self.round % 3 == 2 {
            // Sometimes start from another tour than the best.
            let start = self.rng.below(self.prices.nodes());
            self.search.start_from(nearest_neighbour(&self.prices, start));
        }
        self.lowest = f64::INFINITY;
        self.stage = SearchStage::Polish { trials: POLISH_SHARE * self.trials_per_attempt() };
    }

    /// Restarts from the best tour under another cap.
    fn restart(&mut self, cap: f64) {
        self.cap = cap;
        self.search.set_cap(&self.prices, cap, AllowedPrices::Priced);
        if let Some(best) = &self.best {
            self.search.start_from(best.order().iter().map(|node| node.0).collect());
        }
        self.lowest = self.search.cost();
    }

    /// Makes a trial. While the ring has forbidden edges, it accepts any ring with no more of them; otherwise any that is
    /// slightly worse.
    fn trial(&mut self) {
        let slack = if self.search.is_clean() { self.lowest * SLACK } else { self.prices.nodes() as f64 };
        self.search.trial(&mut self.rng, self.lowest + slack);
        self.lowest = self.lowest.min(self.search.cost());
    }

    /// The trials of one attempt in this round; they double every third round.
    fn trials_per_attempt(&self) -> u64 {
        (START_KINDS * 2 * self.prices.nodes() as u64) << (self.round / 3).min(DOUBLINGS_MAX)
    }

    /// Adopts the ring of the search if it is valid and the best.
    fn consider(&mut self) -> bool {
        if !self.search.is_clean() {
            return false;
        }
        let order: Vec<NodeIndex> = self.search.order().iter().copied().map(NodeIndex).collect();
        Tour::priced(&self.prices, &order).is_ok_and(|tour| self.offer(tour))
    }

    /// The lowest cap of the best tour.
    fn reached_level(&self) -> usize {
        let slowest = self.reached_price();
        self.levels.partition_point(|&level| level < slowest)
    }

    fn reached_price(&self) -> f64 {
        self.best.as_ref().map_or(f64::INFINITY, |best| best.totals().slowest)
    }
}

/// The number of starts of one attempt.
const START_KINDS: u64 = 4;

/// The trials of polishing relative to those of one attempt.
const POLISH_SHARE: u64 = 4;

/// The fraction by which an accepted ring may be worse than the best of its stage.
const SLACK: f64 = 0.002;

/// The maximum number of doublings, to avoid overflow.
const DOUBLINGS_MAX: u32 = 24;
