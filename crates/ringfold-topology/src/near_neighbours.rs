//! The edges of each node that a good ring is likely to use.

use crate::limits::NEAR_NODES_MAX;
use crate::price::Prices;

/// For each node the successors to try, cheapest first.
#[derive(Clone, Debug)]
pub(crate) struct NearNeighbours {
    starts: Vec<usize>,
    nodes: Vec<u16>,
}

impl NearNeighbours {
    /// The cheapest edges out of each node, and into each node, so that every node is in some list.
    pub(crate) fn of(prices: &Prices) -> Self {
        let nodes = prices.nodes();
        let mut lists: Vec<Vec<(f64, usize, usize)>> = vec![Vec::new(); nodes];
        let mut ranked = Vec::with_capacity(nodes);
        for node in 0..nodes {
            // Among equal prices the index distance decides, so that not all nodes prefer the same ones.
            let others = (0..nodes).filter(|&other| other != node);
            let distance = |other: usize| (other + nodes - node) % nodes;
            keep_cheapest(&mut ranked, others.clone().map(|to| (prices.at(node, to), distance(to), to)));
            lists[node].extend_from_slice(&ranked);
            keep_cheapest(&mut ranked, others.map(|from| (prices.at(from, node), distance(from), from)));
            for &(price, _, from) in &ranked {
                lists[from].push((price, (node + nodes - from) % nodes, node));
            }
        }
        let mut near = Self { starts: vec![0], nodes: Vec::new() };
        for mut list in lists {
            list.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            list.dedup();
            near.nodes.extend(list.iter().map(|&(_, _, node)| node as u16));
            near.starts.push(near.nodes.len());
        }
        near
    }

    pub(crate) fn successors(&self, node: usize) -> &[u16] {
        &self.nodes[self.starts[node]..self.starts[node + 1]]
    }
}

type Ranked = (f64, usize, usize);

fn keep_cheapest(ranked: &mut Vec<Ranked>, edges: impl Iterator<Item = Ranked>) {
    ranked.clear();
    ranked.extend(edges.filter(|edge| edge.0.is_finite()));
    if ranked.len() > NEAR_NODES_MAX {
        ranked.select_nth_unstable_by(NEAR_NODES_MAX, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        ranked.truncate(NEAR_NODES_MAX);
    }
}
