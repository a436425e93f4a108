//! Local search: small improvements of a ring, and random kicks that are kept if they help.

use crate::near_neighbours::NearNeighbours;
use crate::price::Prices;
use crate::ring::Ring;
use crate::seeded_rng::SeededRng;

/// A ring, its prices, and the nodes that may still allow improvements.
///
/// Prices are scaled so that an allowed edge costs at most 1, and a missing edge or one above the cap costs more than all
/// allowed edges of a ring together. So the search removes forbidden edges first.
#[derive(Clone, Debug)]
pub(crate) struct LocalSearch {
    prices: Vec<f64>,
    near: NearNeighbours,
    ring: Ring,
    before_kick: Ring,
    cost: f64,
    open: Vec<u16>,
    is_open: Vec<bool>,
    spent: u64,
}

impl LocalSearch {
    /// For four nodes or more, without a cap.
    pub(crate) fn new(prices: &Prices, near: NearNeighbours) -> Self {
        let nodes = prices.nodes();
        let ring = Ring::of((0..nodes as u16).collect());
        let mut search = Self {
            prices: Vec::new(),
            near,
            before_kick: ring.clone(),
            ring,
            cost: 0.0,
            open: Vec::with_capacity(nodes),
            is_open: vec![false; nodes],
            spent: 0,
        };
        search.set_cap(prices, f64::INFINITY, AllowedPrices::Priced);
        search
    }

    /// Forbids all edges above the cap.
    pub(crate) fn set_cap(&mut self, prices: &Prices, cap: f64, below: AllowedPrices) {
        let dearest = prices.cells().filter(|&price| price <= cap && price.is_finite()).fold(0.0, f64::max);
        let scale = if dearest > 0.0 && below == AllowedPrices::Priced { 1.0 / dearest } else { 0.0 };
        let forbidden = self.forbidden();
        let allowed = |price: f64| price <= cap && price.is_finite();
        self.prices.clear();
        self.prices
            .extend(prices.cells().map(|price| if allowed(price) { price * scale } else { forbidden }));
        self.spent += self.prices.len() as u64;
        self.recount();
    }

    /// Restarts from an order and improves it to a local optimum.
    pub(crate) fn start_from(&mut self, order: Vec<u16>) {
        self.ring = Ring::of(order);
        self.recount();
        for place in 0..self.ring.len() {
            self.reopen(self.ring.node_at(place));
        }
        self.cost -= self.settle();
    }

    pub(crate) fn order(&self) -> &[u16] {
        self.ring.order()
    }

    /// The scaled sum of prices; comparable for the same cap.
    pub(crate) fn cost(&self) -> f64 {
        self.cost
    }

    /// The effort so far: changes evaluated and nodes moved.
    pub(crate) fn spent(&self) -> u64 {
        self.spent
    }

    /// Whether every edge of the ring is allowed.
    pub(crate) fn is_clean(&self) -> bool {
        self.cost < self.forbidden()
    }

    /// The forbidden edges of the ring.
    pub(crate) fn broken(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let forbidden = self.forbidden();
        let edges =
            (0..self.ring.len()).map(|place| (self.ring.node_at(place), self.ring.node_at(place + 1)));
        edges.filter(move |&(from, to)| self.price(from, to) >= forbidden)
    }

    /// Kicks and improves the ring, and reverts that if the cost exceeds the ceiling.
    pub(crate) fn trial(&mut self, rng: &mut SeededRng, ceiling: f64) {
        self.before_kick.copy_from(&self.ring);
        self.spent += self.ring.len() as u64 / 8;
        let gain = self.kick(rng) + self.settle();
        if self.cost - gain <= ceiling {
            self.cost -= gain;
        } else {
            self.ring.copy_from(&self.before_kick);
        }
    }

    /// Recomputes the cost, since the sum depends on the order of additions.
    fn recount(&mut self) {
        self.cost = (0..self.ring.len())
            .map(|place| self.price(self.ring.node_at(place), self.ring.node_at(place + 1)))
            .sum();
        self.spent += self.ring.len() as u64;
    }

    fn forbidden(&self) -> f64 {
        2.0 * self.ring.len() as f64
    }

    fn price(&self, from: usize, to: usize) -> f64 {
        self.prices[from * self.ring.len() + to]
    }

    fn reopen(&mut self, node: usize) {
        if !self.is_open[node] {
            self.is_open[node] = true;
            self.open.push(node as u16);
        }
    }

    /// Makes a double bridge of short segments, next to a forbidden edge if there is one. Returns the gain, mostly
    /// negative.
    fn kick(&mut self, rng: &mut SeededRng) -> f64 {
        let nodes = self.ring.len();
        let longest = ((nodes - 1) / 3).min(SEGMENT_NODES_MAX);
        let lengths = [(); 3].map(|()| 1 + rng.below(longest));
        let mut start = rng.below(nodes);
        if !self.is_clean() {
            start = self.forbidden_place(start) + 1 + nodes - rng.below(lengths[0] + 1);
        }
        let cuts = [0, lengths[0], lengths[0] + lengths[1], lengths.iter().sum()].map(|after| start + after);
        let [s0, s1, s2, s3] = cuts.map(|cut| (self.ring.node_at(cut + nodes - 1), self.ring.node_at(cut)));
        let added = [(s0.0, s2.1), (s3.0, s1.1), (s2.0, s0.1), (s1.0, s3.1)];
        let mut gain = 0.0;
        for ((from, to), (new_from, new_to)) in [s0, s1, s2, s3].into_iter().zip(added) {
            gain += self.price(from, to) - self.price(new_from, new_to);
            self.reopen(from);
            self.reopen(to);
        }
        self.ring.double_bridge(start % nodes, lengths);
        gain
    }

    fn forbidden_place(&self, start: usize) -> usize {
        let forbidden = self.forbidden();
        (start..start + self.ring.len())
            .find(|&place| self.price(self.ring.node_at(place), self.ring.node_at(place + 1)) >= forbidden)
            .unwrap_or(start)
    }

    /// Improves the ring at the open nodes until none is left. Returns the gain.
    fn settle(&mut self) -> f64 {
        let mut gained = 0.0;
        while let Some(node) = self.open.pop() {
            let node = usize::from(node);
            self.is_open[node] = false;
            while let Some(exchange) = self.three_opt(node).or_else(|| self.or_opt(node)) {
                gained += exchange.gain;
                self.apply(exchange);
            }
        }
        gained
    }

    fn apply(&mut self, exchange: SegmentSwap) {
        let SegmentSwap { a, b, c, .. } = exchange;
        for node in [a, b, c] {
            self.reopen(node);
            self.reopen(self.ring.next(node));
        }
        self.ring.exchange(a, b, c);
        self.spent += self.ring.len() as u64 / 8;
    }

    /// The best directed 3-opt move that replaces the edge out of a node by a near one: the ring `a a'…b b'…c c'…`
    /// becomes `a b'…c a'…b c'…`. No segment is reversed, because edges are directed.
    fn three_opt(&mut self, a: usize) -> Option<SegmentSwap> {
        let mut best: Option<SegmentSwap> = None;
        let mut looked_at = 0;
        let a_next = self.ring.next(a);
        let removed = self.price(a, a_next);
        for &b_next in self.near.successors(a) {
            let b_next = usize::from(b_next);
            let added = self.price(a, b_next);
            looked_at += 1;
            if added >= removed {
                break;
            }
            let b = self.ring.previous(b_next);
            let open_gain = removed - added + self.price(b, b_next);
            let b_steps = self.ring.steps(a, b);
            for &c_next in self.near.successors(b) {
                let c_next = usize::from(c_next);
                let added = self.price(b, c_next);
                looked_at += 1;
                if added >= open_gain {
                    break;
                }
                let c = self.ring.previous(c_next);
                if self.ring.steps(a, c) <= b_steps {
                    continue;
                }
                let gain = open_gain - added + self.price(c, c_next) - self.price(c, a_next);
                if gain > best.map_or(GAIN_MIN, |best| best.gain) {
                    best = Some(SegmentSwap { a, b, c, gain });
                }
            }
        }
        self.spent += looked_at;
        best
    }

    /// The best move of one to three nodes, from this one on, to another position.
    fn or_opt(&mut self, first: usize) -> Option<SegmentSwap> {
        let nodes = self.ring.len();
        let a = self.ring.previous(first);
        let mut best: Option<SegmentSwap> = None;
        let mut b = first;
        for length in 1..=OR_OPT_NODES_MAX.min(nodes - 2) {
            if length > 1 {
                b = self.ring.next(b);
            }
            let after = self.ring.next(b);
            let open_gain = self.price(a, first) + self.price(b, after) - self.price(a, after);
            if open_gain <= GAIN_MIN {
                continue;
            }
            self.spent += nodes as u64;
            let mut c = after;
            for _ in 0..nodes - length - 1 {
                let c_next = self.ring.next(c);
                let gain = open_gain + self.price(c, c_next) - self.price(c, first) - self.price(b, c_next);
                if gain > best.map_or(GAIN_MIN, |best| best.gain) {
                    best = Some(SegmentSwap { a, b, c, gain });
                }
                c = c_next;
            }
        }
        best
    }
}

/// The prices of allowed edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllowedPrices {
    /// Those of the matrix.
    Priced,
    /// Zero: only forbidden edges count.
    Free,
}

/// Smaller gains are rounding errors, and could repeat for ever.
const GAIN_MIN: f64 = 1e-10;

/// The maximum number of nodes that an or-opt move takes along.
const OR_OPT_NODES_MAX: usize = 3;

/// The maximum number of nodes in each segment of a kick.
const SEGMENT_NODES_MAX: usize = 12;

/// The swap of the segments after `a` up to `b`, and after `b` up to `c`.
#[derive(Clone, Copy, Debug)]
struct SegmentSwap {
    a: usize,
    b: usize,
    c: usize,
    gain: f64,
}
