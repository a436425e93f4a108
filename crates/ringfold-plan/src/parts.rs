//! Divides a tensor into one part per rank, and each part into chunks, the same on all ranks.

use crate::step::{OpBuffer, Region};
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Tuning;
use std::sync::Arc;

/// Consecutive elements.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Span {
    /// The first element.
    pub start: u64,
    /// The number of elements.
    pub count: u64,
}

impl Span {
    /// The element after the last one.
    pub fn end(self) -> u64 {
        self.start + self.count
    }

    /// The same elements relative to the start of another span.
    pub fn within(self, base: Self) -> Self {
        Self { start: self.start - base.start, ..self }
    }

    /// The span in a buffer.
    ///
    /// # Panics
    /// If it is longer than a chunk.
    pub fn at(self, buffer: OpBuffer) -> Region {
        let count = u32::try_from(self.count).expect("a region is at most one chunk");
        Region { buffer, offset: self.start, count }
    }
}

/// A tensor divided into parts, even or of given sizes.
///
/// Even parts differ by at most one element; the first ones are longer. Part `r` is the output of rank `r` in a
/// reduce-scatter and its input in an all-gather; in an all-reduce rank `r` settles it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parts {
    count: u64,
    parts: u16,
    /// The starts of the parts and the end of the last one; none if they are even.
    bounds: Option<Arc<[u64]>>,
}

impl Parts {
    /// Even parts.
    pub fn even(count: u64, parts: u16) -> Self {
        Self { count, parts, bounds: None }
    }

    /// Parts of these sizes.
    pub fn sized(sizes: &[u64]) -> Self {
        let ends = sizes.iter().scan(0, |end, size| {
            *end += size;
            Some(*end)
        });
        let bounds: Arc<[u64]> = std::iter::once(0).chain(ends).collect();
        Self { count: bounds[sizes.len()], parts: sizes.len() as u16, bounds: Some(bounds) }
    }

    /// The part with this index.
    pub fn part(&self, index: usize) -> Span {
        if let Some(bounds) = &self.bounds {
            return Span { start: bounds[index], count: bounds[index + 1] - bounds[index] };
        }
        let (parts, index) = (u64::from(self.parts), index as u64);
        let (base, longer) = (self.count / parts, self.count % parts);
        Span { start: index * base + index.min(longer), count: base + u64::from(index < longer) }
    }

    /// A rank's part.
    pub fn of(&self, rank: Rank) -> Span {
        self.part(rank.index())
    }

    /// The longest part.
    pub fn longest(&self) -> Span {
        let last = if self.bounds.is_some() { usize::from(self.parts) } else { 1 };
        let parts = (0..last).map(|index| self.part(index));
        parts.max_by_key(|part| part.count).unwrap_or(Span { start: 0, count: 0 })
    }

    /// `len` consecutive parts from `first` on, as one span.
    pub fn run(&self, first: usize, len: usize) -> Span {
        let start = self.part(first).start;
        let end = if len == 0 { start } else { self.part(first + len - 1).end() };
        Span { start, count: end - start }
    }
}

/// The size of chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunking {
    /// The maximum number of elements of a chunk; at least 1.
    pub elements_max: u32,
}

impl Chunking {
    /// Chunks of at most the tuning's size in memory and on the wire, but at least one element.
    pub fn of(descriptor: &Descriptor, tuning: &Tuning) -> Self {
        let in_memory = descriptor.dtype.bytes();
        let on_wire = descriptor.quantization.map_or(0, |q| q.dtype.bytes());
        Self { elements_max: (tuning.chunk_bytes / in_memory.max(on_wire) as u32).max(1) }
    }

    /// Divides a span into chunks. All but the last are full; an empty span has none.
    pub fn cut(self, span: Span) -> impl Iterator<Item = Span> {
        let step = u64::from(self.elements_max);
        (0..self.chunks(span)).map(move |i| {
            let start = span.start + i * step;
            Span { start, count: step.min(span.end() - start) }
        })
    }

    /// The number of chunks of a span.
    pub fn chunks(self, span: Span) -> u64 {
        span.count.div_ceil(u64::from(self.elements_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_proto::dtype::DType;
    use ringfold_proto::quantization::{Quantization, QuantizationAlgorithm};
    use ringfold_proto::reduce_op::ReduceOp;

    #[test]
    fn parts_and_chunks_cover_everything_once_and_in_order() {
        for count in [0, 1, 2, 7, 16, 31, 101, 1000] {
            for parts in 1..=17 {
                let all = Parts::even(count, parts);
                let mut next = 0;
                for index in 0..usize::from(parts) {
                    let part = all.part(index);
                    assert_eq!(part.start, next);
                    assert!(part.count.abs_diff(count / u64::from(parts)) <= 1);
                    for chunk in (Chunking { elements_max: 3 }).cut(part) {
                        assert!(chunk.start == next && (1..=3).contains(&chunk.count));
                        next = chunk.end();
                    }
                    assert_eq!(next, part.end());
                }
                assert_eq!(next, count);
                assert_eq!(all.run(0, usize::from(parts)), Span { start: 0, count });
            }
        }
    }

    #[test]
    fn parts_of_given_sizes_are_contiguous() {
        let parts = Parts::sized(&[3, 0, 5]);
        let spans = [(0, 3), (3, 0), (3, 5)].map(|(start, count)| Span { start, count });
        assert_eq!([0, 1, 2].map(|index| parts.part(index)), spans);
        assert_eq!(parts.run(1, 2), spans[2]);
        assert_eq!(parts.longest(), spans[2]);
        assert_eq!(Parts::even(7, 3).longest().count, 3);
    }

    #[test]
    fn a_chunk_fits_a_frame_even_if_its_quantised_form_is_larger() {
        let tuning = Tuning { chunk_bytes: 64, ..Tuning::default() };
        let mut descriptor = Descriptor::all_reduce(1, DType::F16, ReduceOp::Sum);
        assert_eq!(Chunking::of(&descriptor, &tuning).elements_max, 32);
        let quantization = Quantization { algorithm: QuantizationAlgorithm::MinMax, dtype: DType::U32 };
        descriptor.quantization = Some(quantization);
        assert_eq!(Chunking::of(&descriptor, &tuning).elements_max, 16);
        descriptor.dtype = DType::C128;
        let tiny = Tuning { chunk_bytes: 1, ..tuning };
        assert_eq!(Chunking::of(&descriptor, &tiny).elements_max, 1);
    }
}
