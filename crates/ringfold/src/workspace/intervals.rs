//! A set of byte ranges.

use core::ops::Range;

/// Disjoint, non-adjacent ranges in rising order. Plans process memory chunk by chunk, so there are few.
#[derive(Default)]
pub(super) struct Intervals {
    ranges: Vec<Range<usize>>,
}

impl Intervals {
    /// Adds a range, and calls `is_new` for each part that is new, in rising order.
    pub(super) fn insert(&mut self, range: Range<usize>, mut is_new: impl FnMut(Range<usize>)) {
        if range.is_empty() {
            return;
        }
        let first = self.ranges.partition_point(|known| known.end < range.start);
        let (mut merged, mut at, mut last) = (range.clone(), range.start, first);
        while let Some(known) = self.ranges.get(last).filter(|known| known.start <= range.end) {
            if at < known.start {
                is_new(at..known.start);
            }
            at = known.end;
            merged = merged.start.min(known.start)..merged.end.max(known.end);
            last += 1;
        }
        if at < range.end {
            is_new(at..range.end);
        }
        self.ranges.splice(first..last, [merged]);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.ranges.iter().cloned()
    }

    pub(super) fn clear(&mut self) {
        self.ranges.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_new_once_and_neighbours_become_one() {
        let mut state = 7_u32;
        let mut below = |n: u32| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state % n) as usize
        };
        for _ in 0..200 {
            let (mut intervals, mut naive) = (Intervals::default(), [false; 64]);
            for _ in 0..12 {
                let start = below(60);
                let range = start..(start + below(20)).min(64);
                let expected: Vec<_> = range.clone().filter(|i| !naive[*i]).collect();
                naive[range.clone()].fill(true);
                let mut new = Vec::new();
                intervals.insert(range, |gap| new.extend(gap));
                assert_eq!(new, expected);
                let covered: Vec<_> = intervals.iter().flatten().collect();
                assert_eq!(covered, (0..64).filter(|i| naive[*i]).collect::<Vec<_>>());
                assert!(intervals.ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            }
        }
    }
}
