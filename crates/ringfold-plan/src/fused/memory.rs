//! The symbolic memory of a rank: for each element, the operands that it was computed from.

use super::{NotFusible, RankOffset, span};
use crate::step::{OpBuffer, Region};
use ringfold_proto::id::Rank;

/// Contiguous elements with the same operands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) count: u64,
    /// The rank that read the source or reduced the operands.
    pub(super) maker: Rank,
    /// The operands, in the order of reduction.
    pub(super) operands: Vec<RankOffset>,
    pub(super) is_settled: bool,
}

impl Piece {
    fn part(&self, start: u64, count: u64) -> Self {
        let operands = self.operands.iter().map(|operand| operand.moved(start)).collect();
        Self { count, operands, ..*self }
    }
}

/// The target and scratch of a rank. The source does not change.
#[derive(Default)]
pub(super) struct Memory {
    /// Sorted by offset, without overlap.
    pieces: Vec<(OpBuffer, u64, Piece)>,
}

impl Memory {
    /// The pieces of a region.
    pub(super) fn read(&self, me: Rank, region: Region) -> Result<Vec<Piece>, NotFusible> {
        let wanted = span(region);
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        if region.buffer == OpBuffer::Source {
            let operands = vec![RankOffset { rank: me, offset: region.offset }];
            return Ok(vec![Piece { count: region.count.into(), maker: me, operands, is_settled: false }]);
        }
        let mut found = Vec::new();
        let mut next = wanted.start;
        for (buffer, offset, piece) in &self.pieces {
            let (begin, end) = (wanted.start.max(*offset), wanted.end.min(offset + piece.count));
            if *buffer == region.buffer && begin < end {
                if begin != next {
                    return Err(NotFusible::Unwritten);
                }
                found.push(piece.part(begin - offset, end - begin));
                next = end;
            }
        }
        if next == wanted.end { Ok(found) } else { Err(NotFusible::Unwritten) }
    }

    /// Overwrites a region with pieces.
    pub(super) fn write(&mut self, region: Region, pieces: Vec<Piece>) {
        let written = span(region);
        let mut kept = Vec::with_capacity(self.pieces.len() + pieces.len());
        for (buffer, offset, piece) in self.pieces.drain(..) {
            let end = offset + piece.count;
            if buffer != region.buffer || end <= written.start || offset >= written.end {
                kept.push((buffer, offset, piece));
                continue;
            }
            if offset < written.start {
                kept.push((buffer, offset, piece.part(0, written.start - offset)));
            }
            if end > written.end {
                kept.push((buffer, written.end, piece.part(written.end - offset, end - written.end)));
            }
        }
        let mut offset = written.start;
        for piece in pieces {
            let count = piece.count;
            kept.push((region.buffer, offset, piece));
            offset += count;
        }
        kept.sort_by_key(|(buffer, offset, _)| (*buffer, *offset));
        self.pieces = kept;
    }

    /// All pieces of a buffer.
    pub(super) fn all(&self, buffer: OpBuffer) -> impl Iterator<Item = (u64, &Piece)> {
        self.pieces.iter().filter(move |(at, ..)| *at == buffer).map(|(_, offset, piece)| (*offset, piece))
    }
}

/// The reduction of two operands of the same length.
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
    // Reductions are commutative to the bit, so one partial result may be on either side.
    let (chain, last) = match (left.operands.len(), right.operands.len()) {
        (_, 1) => (left, right),
        (1, _) => (right, left),
        _ => return Err(NotFusible::NotAChain),
    };
    let operands = [&chain.operands[..], &last.operands[..]].concat();
    Ok(Piece { count: left.count, maker: me, operands, is_settled: false })
}

/// Settles pieces.
pub(super) fn settle(pieces: Vec<Piece>) -> Result<Vec<Piece>, NotFusible> {
    if pieces.iter().any(|piece| piece.is_settled) {
        return Err(NotFusible::Settled);
    }
    Ok(pieces.into_iter().map(|piece| Piece { is_settled: true, ..piece }).collect())
}
