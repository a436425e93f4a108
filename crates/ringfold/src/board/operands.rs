//! The memory of a collective, and its division into parts.

use core::ops::Range;
use ringfold_fabric::arena::Ranks;
use ringfold_proto::id::Rank;

/// The input of a rank: one piece, or one per rank.
#[derive(Clone, Copy, Debug)]
pub enum Pieces<'a> {
    One(&'a [u8]),
    /// Consecutive pieces, in rank order. A list of one piece equals that piece; an empty list is empty.
    Many(&'a [&'a [u8]]),
}

/// The output of a rank: one piece, or one per rank.
#[derive(Debug)]
pub enum PiecesMut<'a> {
    One(&'a mut [u8]),
    /// Consecutive pieces, in rank order. A list of one piece equals that piece; an empty list is empty.
    Many(&'a mut [&'a mut [u8]]),
}

/// The buffers of one rank in a collective.
#[derive(Debug)]
pub enum Operands<'a> {
    /// The result replaces the input. In an all-gather or reduce-scatter this rank's part is at its position in the whole
    /// buffer.
    InPlace(&'a mut [u8]),
    OutOfPlace {
        /// The input.
        input: Pieces<'a>,
        output: PiecesMut<'a>,
    },
}

/// The bounds of consecutive parts, in bytes.
#[derive(Clone, Debug)]
pub(super) struct PartBounds {
    bounds: [usize; Ranks::MAX + 1],
}

impl PartBounds {
    /// Consecutive parts of these sizes.
    pub(super) fn new(world: usize, bytes_of: impl Fn(Rank) -> usize) -> Self {
        let mut bounds = [0_usize; Ranks::MAX + 1];
        for rank in 0..world {
            let end = bounds[rank].checked_add(bytes_of(Rank::from_index(rank)));
            bounds[rank + 1] = end.expect("parts fit into memory");
        }
        for rank in world..Ranks::MAX {
            bounds[rank + 1] = bounds[rank];
        }
        Self { bounds }
    }

    pub(super) fn len(&self, rank: Rank) -> usize {
        self.bounds[rank.index() + 1] - self.bounds[rank.index()]
    }

    /// Where a rank's part begins, relative to the whole.
    pub(super) fn start(&self, rank: Rank) -> usize {
        self.bounds[rank.index()]
    }

    pub(super) fn longest(&self) -> usize {
        (0..Ranks::MAX).map(|rank| self.bounds[rank + 1] - self.bounds[rank]).max().unwrap_or(0)
    }

    pub(super) fn total(&self) -> usize {
        self.bounds[Ranks::MAX]
    }

    /// A range of a rank's part, relative to the whole.
    fn of(&self, rank: Rank, within: &Range<usize>) -> Range<usize> {
        assert!(within.start <= within.end && within.end <= self.len(rank));
        let start = self.bounds[rank.index()];
        start + within.start..start + within.end
    }
}

impl<'a> Pieces<'a> {
    fn whole(&self) -> &'a [u8] {
        match self {
            Self::One(bytes) | Self::Many([bytes]) => bytes,
            Self::Many([]) => &[],
            Self::Many(_) => panic!("expected one buffer, not a list"),
        }
    }

    fn part(&self, parts: &PartBounds, rank: Rank, within: Range<usize>) -> &'a [u8] {
        match self {
            Self::Many(list) if list.len() > 1 => &list[rank.index()][within],
            _ => &self.whole()[parts.of(rank, &within)],
        }
    }

    fn fits(&self, parts: &PartBounds) -> bool {
        match self {
            Self::Many(list) if list.len() > 1 => fits(list.iter().map(|piece| piece.len()), parts),
            _ => self.whole().len() == parts.total(),
        }
    }
}

impl PiecesMut<'_> {
    fn whole(&mut self) -> &mut [u8] {
        match self {
            Self::One(bytes) | Self::Many([bytes]) => bytes,
            Self::Many([]) => &mut [],
            Self::Many(_) => panic!("expected one buffer, not a list"),
        }
    }

    fn part(&mut self, parts: &PartBounds, rank: Rank, within: Range<usize>) -> &mut [u8] {
        match self {
            Self::One(bytes) | Self::Many([bytes]) => &mut bytes[parts.of(rank, &within)],
            Self::Many([]) => &mut [],
            Self::Many(list) => &mut list[rank.index()][within],
        }
    }

    fn fits(&mut self, parts: &PartBounds) -> bool {
        match self {
            Self::Many(list) if list.len() > 1 => fits(list.iter().map(|piece| piece.len()), parts),
            one => one.whole().len() == parts.total(),
        }
    }
}

fn fits(lengths: impl ExactSizeIterator<Item = usize>, parts: &PartBounds) -> bool {
    let count = lengths.len();
    let each = lengths.enumerate().all(|(rank, bytes)| bytes == parts.len(Rank::from_index(rank)));
    each && (count..Ranks::MAX).all(|rank| parts.len(Rank::from_index(rank)) == 0)
}

impl Operands<'_> {
    /// No buffers, for a barrier.
    pub fn none() -> Self {
        Self::OutOfPlace { input: Pieces::One(&[]), output: PiecesMut::One(&mut []) }
    }

    pub(super) fn is_in_place(&self) -> bool {
        matches!(self, Self::InPlace(_))
    }

    /// The input, if it is one buffer.
    pub(super) fn one_input(&self) -> Option<&[u8]> {
        match self {
            Self::InPlace(bytes) => Some(bytes),
            Self::OutOfPlace { input: Pieces::One(bytes) | Pieces::Many([bytes]), .. } => Some(bytes),
            Self::OutOfPlace { .. } => None,
        }
    }

    /// The output, if it is one buffer.
    pub(super) fn one_output(&self) -> Option<&[u8]> {
        match self {
            Self::InPlace(bytes) => Some(bytes),
            Self::OutOfPlace { output: PiecesMut::One(bytes) | PiecesMut::Many([bytes]), .. } => Some(bytes),
            Self::OutOfPlace { .. } => None,
        }
    }

    pub(super) fn output_bytes(&self) -> usize {
        match self {
            Self::InPlace(bytes) | Self::OutOfPlace { output: PiecesMut::One(bytes), .. } => bytes.len(),
            Self::OutOfPlace { output: PiecesMut::Many(list), .. } => {
                list.iter().map(|piece| piece.len()).sum()
            }
        }
    }

    #[inline]
    pub(super) fn input(&self, range: Range<usize>) -> &[u8] {
        match self {
            Self::InPlace(bytes) => &bytes[range],
            Self::OutOfPlace { input, .. } => &input.whole()[range],
        }
    }

    #[inline]
    pub(super) fn output(&mut self, range: Range<usize>) -> &mut [u8] {
        match self {
            Self::InPlace(bytes) => &mut bytes[range],
            Self::OutOfPlace { output, .. } => &mut output.whole()[range],
        }
    }

    pub(super) fn input_part(&self, parts: &PartBounds, rank: Rank, within: Range<usize>) -> &[u8] {
        match self {
            Self::InPlace(bytes) => &bytes[parts.of(rank, &within)],
            Self::OutOfPlace { input, .. } => input.part(parts, rank, within),
        }
    }

    pub(super) fn output_part(&mut self, parts: &PartBounds, rank: Rank, within: Range<usize>) -> &mut [u8] {
        match self {
            Self::InPlace(bytes) => &mut bytes[parts.of(rank, &within)],
            Self::OutOfPlace { output, .. } => output.part(parts, rank, within),
        }
    }

    /// Copies a range of this rank's part from an input that has only that to the output.
    pub(super) fn keep(&mut self, parts: &PartBounds, rank: Rank, within: Range<usize>) {
        let Self::OutOfPlace { input, output } = self else { return };
        let from = &input.whole()[within.clone()];
        output.part(parts, rank, within).copy_from_slice(from);
    }

    pub(super) fn copy_own(
        &mut self,
        send: &PartBounds,
        receive: &PartBounds,
        rank: Rank,
        within: Range<usize>,
    ) {
        let Self::OutOfPlace { input, output } = self else { return };
        let from = input.part(send, rank, within.clone());
        output.part(receive, rank, within).copy_from_slice(from);
    }

    /// A range of one part of the input, and the same range of an output without parts; `None` in place.
    pub(super) fn both(
        &mut self,
        parts: &PartBounds,
        rank: Rank,
        within: Range<usize>,
    ) -> Option<(&[u8], &mut [u8])> {
        match self {
            Self::InPlace(_) => None,
            Self::OutOfPlace { input, output } => {
                Some((input.part(parts, rank, within.clone()), &mut output.whole()[within]))
            }
        }
    }

    /// # Panics
    /// If input or output do not have these parts. `None`: not checked.
    pub(super) fn check(&mut self, input_parts: Option<&PartBounds>, output_parts: Option<&PartBounds>) {
        match self {
            Self::InPlace(bytes) => {
                let longest =
                    input_parts.map_or(0, PartBounds::total).max(output_parts.map_or(0, PartBounds::total));
                assert_eq!(bytes.len(), longest, "invalid length of the buffer");
            }
            Self::OutOfPlace { input, output } => {
                assert!(input_parts.is_none_or(|parts| input.fits(parts)), "invalid length of the input");
                assert!(output_parts.is_none_or(|parts| output.fits(parts)), "invalid length of the output");
            }
        }
    }
}
