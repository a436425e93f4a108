//! Good tours of large matrices: an anytime search whose every step is short.

use crate::chance::{Chance, Seed};
use crate::construct::{greedy, nearest_neighbour};
use crate::graph::Graph;
use crate::limits::CONSTRUCTION_STARTS_MAX;
use crate::local_search::{Below, LocalSearch};
use crate::near::Near;
use crate::no_tour::NoTour;
use crate::node::NodeIndex;
use crate::objective::Objective;
use crate::price::Prices;
use crate::tour::Tour;
use std::sync::Arc;

/// The search for a tour, one short step at a time.
///
/// It builds several first tours and improves each of them. For an objective in which the slowest edge
/// comes first it then lowers the cap on prices by bisection between what it has reached and what it
/// has proved unreachable, each attempt being a search for a ring without edges above the cap. What
/// remains of its time it spends on the sum under the lowest cap reached. Failing at a cap proves
/// nothing, so it returns to the caps round after round, with growing patience.
#[derive(Clone, Debug)]
pub(crate) struct Heuristic {
    prices: Arc<Prices>,
    objective: Objective,
    chance: Chance,
    near: Near,
    search: LocalSearch,
    best: Option<Tour>,
    /// While no tour is known: the missing edges of the nearest attempt that was given up.
    nearest: Vec<(usize, usize)>,
    /// Prices that occur, cheapest first: the caps to choose from.
    levels: Vec<f64>,
    /// The first cap that is not proved to be too low for any ring.
    floor: usize,
    stage: Stage,
    round: u32,
    cap: f64,
    /// The least cost that the search has met from its present start; infinite before it has looked.
    lowest: f64,
}

#[derive(Clone, Debug)]
enum Stage {
    /// Building first tours; `kept` is the best so far with its cost.
    Construct { starts: usize, kept: Option<(f64, Vec<u16>)> },
    /// Looking for any ring at all, in vain for so many trials from this start.
    Seek { trials: u64 },
    /// Looking for a ring under the cap `target`, knowing one at `high` and having failed below `low`.
    Lower { low: usize, target: usize, high: usize, trials: u64 },
    /// Lessening the sum under the cap that has been reached.
    Polish { trials: u64 },
}

impl Heuristic {
    /// For four nodes or more. The caller has looked for a quick proof that no ring exists.
    pub(crate) fn new(prices: Arc<Prices>, objective: Objective, seed: Seed) -> Self {
        let near = Near::of(&prices);
        let (mut levels, mut floor) = (Vec::new(), 0);
        if objective.slowest_comes_first() {
            levels = prices.levels();
            floor = levels.partition_point(|&cap| !Graph::capped(&prices, cap).may_have_ring());
        }
        Self {
            search: LocalSearch::new(&prices, near.clone()),
            stage: Stage::Construct { starts: 0, kept: None },
            chance: Chance::of(seed),
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

    /// Takes a tour that is known already, if it is the best.
    pub(crate) fn offer(&mut self, tour: Tour) -> bool {
        let cost = |tour: &Tour| tour.cost(self.objective);
        let better = self.best.as_ref().is_none_or(|best| cost(&tour) < cost(best));
        if better {
            self.best = Some(tour);
        }
        better
    }

    /// What is known while no tour is.
    pub(crate) fn refusal(&self) -> NoTour {
        let ends = self.nearest_attempt().into_iter().flat_map(|(from, to)| [from, to]);
        let mut nodes: Vec<NodeIndex> = ends.map(NodeIndex::of).collect();
        nodes.sort_unstable();
        nodes.dedup();
        NoTour::NotFound { nodes }
    }

    /// Does one step. Returns whether it found a better tour.
    pub(crate) fn step(&mut self) -> bool {
        match self.stage {
            Stage::Construct { starts, .. } if starts < CONSTRUCTION_STARTS_MAX => self.construct(),
            Stage::Construct { .. } => {
                self.end_construction();
                false
            }
            Stage::Seek { trials } => self.seek(trials),
            Stage::Lower { .. } => self.lower(),
            Stage::Polish { .. } => self.polish(),
        }
    }

    fn construct(&mut self) -> bool {
        let Stage::Construct { starts, kept } = &mut self.stage else { return false };
        let order = if *starts == 0 {
            greedy(&self.prices, &self.near, &mut self.chance)
        } else {
            nearest_neighbour(&self.prices, self.chance.below(self.prices.nodes()))
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
        if let Stage::Construct { kept: Some((_, order)), .. } = &self.stage {
            self.search.start_from(order.clone());
        }
        self.lowest = self.search.cost();
        self.stage = Stage::Seek { trials: 0 };
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
        self.stage = Stage::Seek { trials: trials + 1 };
        if trials >= self.patience() {
            self.nearest = self.nearest_attempt();
            self.begin_stretch(1 + u64::from(self.round) % (STRETCHES - 1));
            self.round = self.round.saturating_add(1);
            self.stage = Stage::Seek { trials: 0 };
        }
        false
    }

    /// The missing edges of the nearest attempt, be it given up or not.
    fn nearest_attempt(&self) -> Vec<(usize, usize)> {
        let broken: Vec<_> = self.search.broken().collect();
        let nearer = !self.nearest.is_empty() && self.nearest.len() < broken.len();
        if nearer { self.nearest.clone() } else { broken }
    }

    fn lower(&mut self) -> bool {
        if !self.search.is_clean() {
            self.trial();
        }
        let Stage::Lower { low, target, high, trials } = self.stage else { return false };
        if self.search.is_clean() {
            let found = self.consider();
            self.begin_lowering(low, self.reached_level().min(target));
            return found;
        }
        if trials <= 1 {
            self.begin_lowering(target + 1, high);
            return false;
        }
        self.stage = Stage::Lower { low, target, high, trials: trials - 1 };
        let stretch = self.patience() / STRETCHES;
        if trials % stretch == 1 {
            self.begin_stretch(STRETCHES - trials / stretch);
        }
        false
    }

    /// An attempt goes on from the best tour as long as its first stretch. When that leads nowhere,
    /// prices under the cap stop counting, lest they lead to the same place again, and then chance
    /// chooses where to start.
    fn begin_stretch(&mut self, stretch: u64) {
        let below = if stretch == STRETCHES - 1 { Below::Priced } else { Below::Free };
        self.search.set_cap(&self.prices, self.cap, below);
        let order = match &self.best {
            Some(best) if stretch == 1 => best.order().iter().map(|node| node.0).collect(),
            _ => self.chance.order(self.prices.nodes()),
        };
        self.search.start_from(order);
        self.lowest = self.search.cost();
    }

    fn polish(&mut self) -> bool {
        let Stage::Polish { trials } = self.stage else { return false };
        let known = self.lowest;
        if known.is_finite() {
            self.trial();
        } else {
            // The start itself may be better than what it started from.
            self.lowest = self.search.cost();
        }
        let found = self.lowest < known && self.consider();
        self.stage = Stage::Polish { trials: trials.saturating_sub(1) };
        if found && self.objective.slowest_comes_first() && self.reached_price() < self.cap {
            // The slowest edge got faster by the way, and what is slower is of no use any more.
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

    /// Chooses the next cap between two levels, or goes on to the sum when there is none between.
    fn begin_lowering(&mut self, low: usize, high: usize) {
        if low >= high {
            return self.begin_polishing(self.levels.get(high).copied().unwrap_or(f64::INFINITY));
        }
        // The bound is often the truth, so it is tried before the middle.
        let target = if low == self.floor { low } else { low.midpoint(high) };
        self.restart(self.levels[target]);
        self.stage = Stage::Lower { low, target, high, trials: self.patience() };
    }

    fn begin_polishing(&mut self, cap: f64) {
        self.restart(cap);
        if self.round % 3 == 2 {
            // What the best tour does not lead to, another start may.
            let start = self.chance.below(self.prices.nodes());
            self.search.start_from(nearest_neighbour(&self.prices, start));
        }
        self.lowest = f64::INFINITY;
        self.stage = Stage::Polish { trials: POLISH_SHARE * self.patience() };
    }

    /// Goes on from the best tour under another cap.
    fn restart(&mut self, cap: f64) {
        self.cap = cap;
        self.search.set_cap(&self.prices, cap, Below::Priced);
        if let Some(best) = &self.best {
            self.search.start_from(best.order().iter().map(|node| node.0).collect());
        }
        self.lowest = self.search.cost();
    }

    /// Under a cap that the ring does not keep to yet, any ring that breaks it no more often than the
    /// best one will do; for the rest, any that is hardly worse.
    fn trial(&mut self) {
        let slack = if self.search.is_clean() { self.lowest * SLACK } else { self.prices.nodes() as f64 };
        self.search.trial(&mut self.chance, self.lowest + slack);
        self.lowest = self.lowest.min(self.search.cost());
    }

    /// Trials of one attempt in this round: twice as many every third round.
    fn patience(&self) -> u64 {
        (STRETCHES * 2 * self.prices.nodes() as u64) << (self.round / 3).min(DOUBLINGS_MAX)
    }

    /// Takes the ring of the search, if it is one and the best.
    fn consider(&mut self) -> bool {
        if !self.search.is_clean() {
            return false;
        }
        let order: Vec<NodeIndex> = self.search.order().iter().copied().map(NodeIndex).collect();
        Tour::priced(&self.prices, &order).is_ok_and(|tour| self.offer(tour))
    }

    /// The lowest cap that the best tour keeps to.
    fn reached_level(&self) -> usize {
        let slowest = self.reached_price();
        self.levels.partition_point(|&level| level < slowest)
    }

    fn reached_price(&self) -> f64 {
        self.best.as_ref().map_or(f64::INFINITY, |best| best.tally().slowest)
    }
}

/// Starts of different kinds that one attempt at a cap is made from.
const STRETCHES: u64 = 4;

/// Polishing takes this many times the trials of one attempt at a cap.
const POLISH_SHARE: u64 = 4;

/// By what part a ring may be worse than the best of its stage and still be worked on.
const SLACK: f64 = 0.002;

/// Patience doubles no more often than this, lest it overflow.
const DOUBLINGS_MAX: u32 = 24;
