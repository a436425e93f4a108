//! What stands where in a rank's memory: not numbers, but what they are made of.

use super::{NotFusible, Stretch, span};
use crate::step::{Place, Region};
use ringfold_proto::id::Rank;

/// Elements that are made alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) count: u64,
    /// Who has read the source, or combined the operands.
    pub(super) maker: Rank,
    /// What they are made of, in the order in which it was combined.
    pub(super) operands: Vec<Stretch>,
    pub(super) is_settled: bool,
}

impl Piece {
    fn part(&self, start: u64, count: u64) -> Self {
        let operands = self.operands.iter().map(|operand| operand.moved(start)).collect();
        Self { count, operands, ..*self }
    }
}

/// Target and scratch of a rank. Its source is what it was.
#[derive(Default)]
pub(super) struct Memory {
    /// Sorted by where they begin; they do not overlap.
    pieces: Vec<(Place, u64, Piece)>,
}

impl Memory {
    /// What is in a region, from its beginning to its end.
    pub(super) fn read(&self, me: Rank, region: Region) -> Result<Vec<Piece>, NotFusible> {
        let wanted = span(region);
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        if region.place == Place::Source {
            let operands = vec![Stretch { rank: me, offset: region.offset }];
            return Ok(vec![Piece { count: region.count.into(), maker: me, operands, is_settled: false }]);
        }
        let mut found = Vec::new();
        let mut next = wanted.start;
        for (place, offset, piece) in &self.pieces {
            let (begin, end) = (wanted.start.max(*offset), wanted.end.min(offset + piece.count));
            if *place == region.place && begin < end {
                if begin != next {
                    return Err(NotFusible::Unwritten);
                }
                found.push(piece.part(begin - offset, end - begin));
                next = end;
            }
        }
        if next == wanted.end { Ok(found) } else { Err(NotFusible::Unwritten) }
    }

    /// Puts pieces into a region, in the place of what was there.
    pub(super) fn write(&mut self, region: Region, pieces: Vec<Piece>) {
        let written = span(region);
        let mut kept = Vec::with_capacity(self.pieces.len() + pieces.len());
        for (place, offset, piece) in self.pieces.drain(..) {
            let end = offset + piece.count;
            if place != region.place || end <= written.start || offset >= written.end {
                kept.push((place, offset, piece));
                continue;
            }
            if offset < written.start {
                kept.push((place, offset, piece.part(0, written.start - offset)));
            }
            if end > written.end {
                kept.push((place, written.end, piece.part(written.end - offset, end - written.end)));
            }
        }
        let mut offset = written.start;
        for piece in pieces {
            let count = piece.count;
            kept.push((region.place, offset, piece));
            offset += count;
        }
        kept.sort_by_key(|(place, offset, _)| (*place, *offset));
        self.pieces = kept;
    }

    /// All that is in a place.
    pub(super) fn all(&self, place: Place) -> impl Iterator<Item = (u64, &Piece)> {
        self.pieces.iter().filter(move |(at, ..)| *at == place).map(|(_, offset, piece)| (*offset, piece))
    }
}

/// What a rank makes of two operands of one length.
pub(super) fn combine(me: Rank, left: &[Piece], right: &[Piece]) -> Result<Vec<Piece>, NotFusible> {
    let mut made = Vec::new();
    let (mut lefts, mut rights) = (left.iter(), right.iter());
    let (mut a, mut b) = (lefts.next().cloned(), rights.next().cloned());
    while let (Some(one), Some(other)) = (&a, &b) {
        let count = one.count.min(other.count);
        made.push(joined(me, &one.part(0, count), &other.part(0, count))?);
        let rest = |piece: &Piece| (piece.count > count).then(|| piece.part(count, piece.count - count));
        (a, b) = (rest(one), rest(other));
        a = a.or_else(|| lefts.next().cloned());
        b = b.or_else(|| rights.next().cloned());
    }
    Ok(made)
}

fn joined(me: Rank, left: &Piece, right: &Piece) -> Result<Piece, NotFusible> {
    if left.is_settled || right.is_settled {
        return Err(NotFusible::Settled);
    }
    // Operations commute to the bit, so a partial result may stand on either side; two of them may not.
    let (chain, last) = match (left.operands.len(), right.operands.len()) {
        (_, 1) => (left, right),
        (1, _) => (right, left),
        _ => return Err(NotFusible::NotAChain),
    };
    let operands = [&chain.operands[..], &last.operands[..]].concat();
    Ok(Piece { count: left.count, maker: me, operands, is_settled: false })
}

/// The same, settled.
pub(super) fn settle(pieces: Vec<Piece>) -> Result<Vec<Piece>, NotFusible> {
    if pieces.iter().any(|piece| piece.is_settled) {
        return Err(NotFusible::Settled);
    }
    Ok(pieces.into_iter().map(|piece| Piece { is_settled: true, ..piece }).collect())
}
