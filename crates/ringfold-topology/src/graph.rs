//! The graph of usable edges, and quick proofs that it has no ring.

use crate::node::NodeIndex;
use crate::price::Prices;

/// The edges up to a price: the successors and predecessors of each node.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    successors: Vec<NodeSet>,
    predecessors: Vec<NodeSet>,
}

impl Graph {
    /// All edges up to the cap.
    pub(crate) fn capped(prices: &Prices, cap: f64) -> Self {
        let nodes = prices.nodes();
        let mut graph = Self {
            successors: vec![NodeSet::empty(nodes); nodes],
            predecessors: vec![NodeSet::empty(nodes); nodes],
        };
        for (cell, price) in prices.cells().enumerate() {
            if price <= cap && price.is_finite() {
                graph.successors[cell / nodes].insert(cell % nodes);
                graph.predecessors[cell % nodes].insert(cell / nodes);
            }
        }
        graph
    }

    /// All reachable edges.
    pub(crate) fn reachable(prices: &Prices) -> Self {
        Self::capped(prices, f64::INFINITY)
    }

    /// The subgraph of some nodes, in the given order.
    pub(crate) fn restricted_to(&self, kept: &[usize]) -> Self {
        let pick = |edges: &[NodeSet]| {
            let row = |&node: &usize| {
                let mut set = NodeSet::empty(kept.len());
                let linked = |other: &usize| edges[node].contains(kept[*other]);
                (0..kept.len()).filter(linked).for_each(|other| set.insert(other));
                set
            };
            kept.iter().map(row).collect()
        };
        Self { successors: pick(&self.successors), predecessors: pick(&self.predecessors) }
    }

    pub(crate) fn nodes(&self) -> usize {
        self.successors.len()
    }

    pub(crate) fn has(&self, from: usize, to: usize) -> bool {
        self.successors[from].contains(to)
    }

    /// Whether the necessary conditions for a ring hold: the graph is strongly connected, and each node can have its own
    /// successor. They are not sufficient.
    pub(crate) fn may_have_ring(&self) -> bool {
        let all = NodeSet::full(self.nodes());
        let spans = |edges: &[NodeSet]| reached(edges, 0, &all).len() == self.nodes();
        self.nodes() == 1
            || (spans(&self.successors)
                && spans(&self.predecessors)
                && self.ring_nodes_max(&all) == self.nodes())
    }

    /// The strongly connected components, largest first; a ring lies within one of them.
    pub(crate) fn components(&self) -> Vec<NodeSet> {
        let mut rest = NodeSet::full(self.nodes());
        let mut components = Vec::new();
        while let Some(start) = rest.first() {
            let mut component = reached(&self.successors, start, &rest);
            component.intersect(&reached(&self.predecessors, start, &rest));
            rest.subtract(&component);
            components.push(component);
        }
        components.sort_by_key(|component| std::cmp::Reverse(component.len()));
        components
    }

    /// The nodes without a predecessor in the maximum matching.
    pub(crate) fn unmatched(&self) -> Vec<NodeIndex> {
        let matched = self.matching(&NodeSet::full(self.nodes()));
        (0..self.nodes()).filter(|&node| matched[node].is_none()).map(NodeIndex::of).collect()
    }

    /// An upper bound on the nodes of a ring within the set: each needs its own successor. A single node is a ring of
    /// one.
    pub(crate) fn ring_nodes_max(&self, within: &NodeSet) -> usize {
        let matched = self.matching(within).iter().flatten().count();
        if matched < 2 { 1 } else { matched }
    }

    /// A maximum matching of predecessors and successors, by augmenting paths: for each node its predecessor.
    fn matching(&self, within: &NodeSet) -> Vec<Option<usize>> {
        let mut predecessor: Vec<Option<usize>> = vec![None; self.nodes()];
        let mut successor: Vec<Option<usize>> = vec![None; self.nodes()];
        let mut asked_by = vec![0; self.nodes()];
        for start in within.iter() {
            let Some(end) = self.free_end(start, within, &predecessor, &mut asked_by) else { continue };
            // Flip the matching along the path.
            let mut given = Some(end);
            while let Some(to) = given {
                let taker = asked_by[to];
                predecessor[to] = Some(taker);
                given = successor[taker].replace(to);
            }
        }
        predecessor
    }

    /// The end of an augmenting path from `start`: a node without a predecessor.
    fn free_end(
        &self,
        start: usize,
        within: &NodeSet,
        predecessor: &[Option<usize>],
        asked_by: &mut [usize],
    ) -> Option<usize> {
        let mut unseen = within.clone();
        let mut open = vec![start];
        while let Some(from) = open.pop() {
            while let Some(to) = unseen.first_common(&self.successors[from]) {
                unseen.remove(to);
                asked_by[to] = from;
                match predecessor[to] {
                    Some(owner) => open.push(owner),
                    None => return Some(to),
                }
            }
        }
        None
    }
}

/// A set of nodes as bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeSet {
    words: Vec<u64>,
}

impl NodeSet {
    pub(crate) fn empty(nodes: usize) -> Self {
        Self { words: vec![0; nodes.div_ceil(64)] }
    }

    pub(crate) fn full(nodes: usize) -> Self {
        let mut set = Self::empty(nodes);
        (0..nodes).for_each(|node| set.insert(node));
        set
    }

    pub(crate) fn insert(&mut self, node: usize) {
        self.words[node / 64] |= 1 << (node % 64);
    }

    pub(crate) fn remove(&mut self, node: usize) {
        self.words[node / 64] &= !(1 << (node % 64));
    }

    pub(crate) fn contains(&self, node: usize) -> bool {
        self.words[node / 64] & (1 << (node % 64)) != 0
    }

    pub(crate) fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    fn first(&self) -> Option<usize> {
        self.first_common(self)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().flat_map(|(at, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(at * 64 + bit)
            })
        })
    }

    fn first_common(&self, other: &Self) -> Option<usize> {
        let mut pairs = self.words.iter().zip(&other.words).enumerate();
        pairs.find_map(|(at, (a, b))| (a & b != 0).then(|| at * 64 + (a & b).trailing_zeros() as usize))
    }

    fn intersect(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(a, b)| *a &= b);
    }

    fn subtract(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(a, b)| *a &= !b);
    }
}

fn reached(edges: &[NodeSet], start: usize, within: &NodeSet) -> NodeSet {
    let mut unseen = within.clone();
    unseen.remove(start);
    let mut open = vec![start];
    while let Some(from) = open.pop() {
        while let Some(to) = unseen.first_common(&edges[from]) {
            unseen.remove(to);
            open.push(to);
        }
    }
    let mut reached = within.clone();
    reached.subtract(&unseen);
    reached
}
