//! The cyclic order that the local search changes.

/// The nodes of a ring in an array, and the position of each.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    order: Vec<u16>,
    place: Vec<u16>,
    scratch: Vec<u16>,
}

impl Ring {
    /// The order must contain every node once.
    pub(crate) fn of(order: Vec<u16>) -> Self {
        let mut place = vec![0; order.len()];
        for (at, &node) in order.iter().enumerate() {
            place[usize::from(node)] = at as u16;
        }
        let scratch = Vec::with_capacity(order.len());
        Self { order, place, scratch }
    }

    pub(crate) fn copy_from(&mut self, other: &Self) {
        self.order.copy_from_slice(&other.order);
        self.place.copy_from_slice(&other.place);
    }

    pub(crate) fn order(&self) -> &[u16] {
        &self.order
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn node_at(&self, place: usize) -> usize {
        usize::from(self.order[self.wrapped(place)])
    }

    pub(crate) fn next(&self, node: usize) -> usize {
        self.node_at(usize::from(self.place[node]) + 1)
    }

    pub(crate) fn previous(&self, node: usize) -> usize {
        self.node_at(usize::from(self.place[node]) + self.len() - 1)
    }

    /// The distance of a node from `origin`.
    pub(crate) fn steps(&self, origin: usize, node: usize) -> usize {
        self.wrapped(usize::from(self.place[node]) + self.len() - usize::from(self.place[origin]))
    }

    /// Swaps two adjacent segments: after `a` up to `b`, and after `b` up to `c`. The nodes must be in this order.
    pub(crate) fn exchange(&mut self, a: usize, b: usize, c: usize) {
        let first = self.steps(a, b);
        let second = self.steps(b, c);
        let third = self.len() - first - second;
        // On a ring, swapping any two of the three segments gives the same order, so the longest stays.
        if third >= first && third >= second {
            self.rewrite(usize::from(self.place[a]) + 1, [first, second]);
        } else if first >= second {
            self.rewrite(usize::from(self.place[b]) + 1, [second, third]);
        } else {
            self.rewrite(usize::from(self.place[c]) + 1, [third, first]);
        }
    }

    /// Reverses the order of three adjacent segments without reversing any of them. This double bridge changes four
    /// edges, and no swap of two segments undoes it.
    pub(crate) fn double_bridge(&mut self, start: usize, lengths: [usize; 3]) {
        self.rewrite(start, lengths);
    }

    /// Reverses the order of adjacent segments from `start` on.
    fn rewrite<const SEGMENTS: usize>(&mut self, start: usize, lengths: [usize; SEGMENTS]) {
        self.scratch.clear();
        let mut end: usize = start + lengths.iter().sum::<usize>();
        for length in lengths.into_iter().rev() {
            end -= length;
            for at in end..end + length {
                let node = self.order[self.wrapped(at)];
                self.scratch.push(node);
            }
        }
        for at in 0..self.scratch.len() {
            let (node, place) = (self.scratch[at], self.wrapped(start + at));
            self.order[place] = node;
            self.place[usize::from(node)] = place as u16;
        }
    }

    /// A position modulo the length; most are below twice the length.
    fn wrapped(&self, place: usize) -> usize {
        let len = self.order.len();
        if place < len {
            place
        } else if place < 2 * len {
            place - len
        } else {
            place % len
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swapping_two_segments_gives_the_same_ring_whichever_is_longest() {
        for turn in 0..9 {
            for (first, second) in [(1, 1), (1, 6), (6, 1), (2, 5), (3, 3), (5, 2)] {
                let mut order: Vec<u16> = (0..9).collect();
                order.rotate_left(turn);
                let mut ring = Ring::of(order);
                ring.exchange(8, first - 1, first + second - 1);
                let mut expected: Vec<usize> = (first..first + second).collect();
                expected.extend(0..first);
                expected.extend(first + second..9);
                let mut node = expected[8];
                for &next in &expected {
                    assert_eq!(ring.next(node), next, "{first} and {second} nodes, turned by {turn}");
                    assert_eq!(ring.previous(next), node);
                    node = next;
                }
            }
        }
    }

    #[test]
    fn a_double_bridge_changes_four_edges_and_keeps_every_node() {
        let mut ring = Ring::of((0..8).collect());
        ring.double_bridge(6, [1, 2, 3]);
        // From place 6 on: [6] [7, 0] [1, 2, 3] became [1, 2, 3] [7, 0] [6].
        let mut order = ring.order().to_vec();
        order.rotate_left(6);
        assert_eq!(order, [1, 2, 3, 7, 0, 6, 4, 5]);
    }
}
