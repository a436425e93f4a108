//! The memory that a collective works on, and how it is cut.

use core::ops::Range;
use ringfold_fabric::arena::Ranks;
use ringfold_proto::id::Rank;

/// What a rank brings, in one piece or in one piece per rank.
#[derive(Clone, Copy, Debug)]
pub enum Pieces<'a> {
    /// All of it.
    One(&'a [u8]),
    /// One after the other, in rank order. A list of one piece is that piece, and an empty list is nothing.
    Many(&'a [&'a [u8]]),
}

/// What a rank gets, likewise.
#[derive(Debug)]
pub enum PiecesMut<'a> {
    /// All of it.
    One(&'a mut [u8]),
    /// One after the other, in rank order. A list of one piece is that piece, and an empty list is nothing.
    Many(&'a mut [&'a mut [u8]]),
}

/// The memory of one rank's part in a collective.
#[derive(Debug)]
pub enum Operands<'a> {
    /// The result replaces the input. An all-gather finds this rank's part where the result has it; a reduce-scatter
    /// puts the result where the input has this rank's part.
    InPlace(&'a mut [u8]),
    /// The input stays as it is.
    Apart {
        /// What is read.
        input: Pieces<'a>,
        /// What is written.
        output: PiecesMut<'a>,
    },
}

/// Where the parts of something begin and end, in bytes.
#[derive(Clone, Debug)]
pub(super) struct Cuts {
    bounds: [usize; Ranks::MAX + 1],
}

impl Cuts {
    /// Parts of these sizes, behind each other.
    pub(super) fn new(world: usize, bytes_of: impl Fn(Rank) -> usize) -> Self {
        let mut bounds = [0_usize; Ranks::MAX + 1];
        for rank in 0..world {
            let end = bounds[rank].checked_add(bytes_of(Rank::from_index(rank)));
            bounds[rank + 1] = end.expect("parts are within memory");
        }
        for rank in world..Ranks::MAX {
            bounds[rank + 1] = bounds[rank];
        }
        Self { bounds }
    }

    /// The bytes of a rank's part.
    pub(super) fn len(&self, rank: Rank) -> usize {
        self.bounds[rank.index() + 1] - self.bounds[rank.index()]
    }

    /// The bytes of the longest part.
    pub(super) fn longest(&self) -> usize {
        (0..Ranks::MAX).map(|rank| self.bounds[rank + 1] - self.bounds[rank]).max().unwrap_or(0)
    }

    /// The bytes of all parts.
    pub(super) fn total(&self) -> usize {
        self.bounds[Ranks::MAX]
    }

    /// Bytes of a rank's part, as they are counted over all parts.
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
            Self::Many(_) => panic!("one buffer was expected, and a list is given"),
        }
    }

    fn part(&self, cuts: &Cuts, rank: Rank, within: Range<usize>) -> &'a [u8] {
        match self {
            Self::Many(list) if list.len() > 1 => &list[rank.index()][within],
            _ => &self.whole()[cuts.of(rank, &within)],
        }
    }

    fn fits(&self, cuts: &Cuts) -> bool {
        match self {
            Self::Many(list) if list.len() > 1 => fits(list.iter().map(|piece| piece.len()), cuts),
            _ => self.whole().len() == cuts.total(),
        }
    }
}

impl PiecesMut<'_> {
    fn whole(&mut self) -> &mut [u8] {
        match self {
            Self::One(bytes) | Self::Many([bytes]) => bytes,
            Self::Many([]) => &mut [],
            Self::Many(_) => panic!("one buffer was expected, and a list is given"),
        }
    }

    fn part(&mut self, cuts: &Cuts, rank: Rank, within: Range<usize>) -> &mut [u8] {
        match self {
            Self::One(bytes) | Self::Many([bytes]) => &mut bytes[cuts.of(rank, &within)],
            Self::Many([]) => &mut [],
            Self::Many(list) => &mut list[rank.index()][within],
        }
    }

    fn fits(&mut self, cuts: &Cuts) -> bool {
        match self {
            Self::Many(list) if list.len() > 1 => fits(list.iter().map(|piece| piece.len()), cuts),
            one => one.whole().len() == cuts.total(),
        }
    }
}

fn fits(lengths: impl ExactSizeIterator<Item = usize>, cuts: &Cuts) -> bool {
    let named = lengths.len();
    let each = lengths.enumerate().all(|(rank, bytes)| bytes == cuts.len(Rank::from_index(rank)));
    each && (named..Ranks::MAX).all(|rank| cuts.len(Rank::from_index(rank)) == 0)
}

impl Operands<'_> {
    /// Nothing, as for a barrier.
    pub fn none() -> Self {
        Self::Apart { input: Pieces::One(&[]), output: PiecesMut::One(&mut []) }
    }

    pub(super) fn is_in_place(&self) -> bool {
        matches!(self, Self::InPlace(_))
    }

    /// Bytes of the output.
    pub(super) fn output_bytes(&self) -> usize {
        match self {
            Self::InPlace(bytes) | Self::Apart { output: PiecesMut::One(bytes), .. } => bytes.len(),
            Self::Apart { output: PiecesMut::Many(list), .. } => list.iter().map(|piece| piece.len()).sum(),
        }
    }

    /// Bytes of an input that is not cut.
    #[inline]
    pub(super) fn input(&self, range: Range<usize>) -> &[u8] {
        match self {
            Self::InPlace(bytes) => &bytes[range],
            Self::Apart { input, .. } => &input.whole()[range],
        }
    }

    /// Bytes of an output that is not cut.
    #[inline]
    pub(super) fn output(&mut self, range: Range<usize>) -> &mut [u8] {
        match self {
            Self::InPlace(bytes) => &mut bytes[range],
            Self::Apart { output, .. } => &mut output.whole()[range],
        }
    }

    /// Bytes of one part of an input that is cut.
    pub(super) fn input_part(&self, cuts: &Cuts, rank: Rank, within: Range<usize>) -> &[u8] {
        match self {
            Self::InPlace(bytes) => &bytes[cuts.of(rank, &within)],
            Self::Apart { input, .. } => input.part(cuts, rank, within),
        }
    }

    /// Bytes of one part of an output that is cut.
    pub(super) fn output_part(&mut self, cuts: &Cuts, rank: Rank, within: Range<usize>) -> &mut [u8] {
        match self {
            Self::InPlace(bytes) => &mut bytes[cuts.of(rank, &within)],
            Self::Apart { output, .. } => output.part(cuts, rank, within),
        }
    }

    /// Copies bytes of this rank's own part from an input that holds that alone to its place in the output.
    pub(super) fn keep(&mut self, cuts: &Cuts, rank: Rank, within: Range<usize>) {
        let Self::Apart { input, output } = self else { return };
        let from = &input.whole()[within.clone()];
        output.part(cuts, rank, within).copy_from_slice(from);
    }

    /// Copies bytes that a rank sends to itself.
    pub(super) fn pass(&mut self, send: &Cuts, receive: &Cuts, rank: Rank, within: Range<usize>) {
        let Self::Apart { input, output } = self else { return };
        let from = input.part(send, rank, within.clone());
        output.part(receive, rank, within).copy_from_slice(from);
    }

    /// Bytes of one part of an input that is cut, and as many of an output that is not; only if they are apart.
    pub(super) fn both(
        &mut self,
        cuts: &Cuts,
        rank: Rank,
        within: Range<usize>,
    ) -> Option<(&[u8], &mut [u8])> {
        match self {
            Self::InPlace(_) => None,
            Self::Apart { input, output } => {
                Some((input.part(cuts, rank, within.clone()), &mut output.whole()[within]))
            }
        }
    }

    /// # Panics
    /// If the input does not have these parts, or the output not those. `None` is for a side that is not looked at.
    pub(super) fn check(&mut self, input_cuts: Option<&Cuts>, output_cuts: Option<&Cuts>) {
        match self {
            Self::InPlace(bytes) => {
                let longest = input_cuts.map_or(0, Cuts::total).max(output_cuts.map_or(0, Cuts::total));
                assert_eq!(bytes.len(), longest, "the buffer is not as long as the collective needs");
            }
            Self::Apart { input, output } => {
                assert!(input_cuts.is_none_or(|cuts| input.fits(cuts)), "the input has another length");
                assert!(output_cuts.is_none_or(|cuts| output.fits(cuts)), "the output has another length");
            }
        }
    }
}
