//! How a rank gets through a collective: move by move, each as soon as what it needs is there.

use super::BoardError;
use ringfold_fabric::arena::{Desk, Fill, Need, Ranks, Seat, Stop};
use ringfold_proto::id::Rank;
use std::time::Instant;

/// What one rank does in a collective.
///
/// All ranks go through the same rounds. Each has its own moves: in a move a rank fills its slot of one round, or reads
/// the slots of another, or both. Moves fill rounds in rising order. Whatever a move needs must come from moves that
/// all ranks can get to without it, as far as slots are free.
pub(super) trait Script {
    /// Rounds of the collective, the same number for all ranks.
    fn rounds(&self) -> u64;

    /// Moves of this rank.
    fn moves(&self) -> u64;

    /// A move.
    fn at(&self, index: u64) -> Move;

    /// Carries the move out.
    fn act(&mut self, index: u64, desk: Desk<'_>);
}

/// One thing to do; rounds count from the start of the collective.
#[derive(Clone, Copy, Debug)]
pub(super) struct Move {
    /// The slot that is filled, and announced afterwards.
    pub(super) fill: Option<Fill>,
    /// The round that is read, and of whom.
    pub(super) read: Option<(u64, Ranks)>,
    /// Rounds before this one are needed no more afterwards.
    pub(super) released: u64,
}

/// Where a rank is in a script.
#[derive(Debug)]
pub(super) struct Pipeline {
    /// The collective's first round, as the arena counts.
    first: u64,
    fingerprint: u64,
    next: u64,
}

/// What came of an attempt to make the next move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// The script is at its end.
    Done,
    /// The move was made.
    Moved,
    /// It can't be made without this.
    Blocked(Need),
}

/// Moves without a wait between two looks at the deadline.
const MOVES_PER_LOOK: u64 = 1024;

impl Pipeline {
    pub(super) fn new(first: u64, fingerprint: u64) -> Self {
        Self { first, fingerprint, next: 0 }
    }

    /// Makes the next move, if it can be made.
    #[inline]
    pub(super) fn poll<S: Script>(
        &mut self,
        seat: &mut Seat,
        script: &mut S,
    ) -> Result<Progress, BoardError> {
        if self.next == script.moves() {
            seat.release(self.first + script.rounds());
            return Ok(Progress::Done);
        }
        let Move { fill, read, released } = script.at(self.next);
        let fill = fill.map(|fill| Fill { round: self.first + fill.round, ..fill });
        let read = read.map(|(round, from)| (self.first + round, from));
        if let Some(Fill { round, .. }) = fill
            && !seat.may_fill(round)
        {
            return Ok(Progress::Blocked(Need::Space { round }));
        }
        if let Some((round, from)) = read {
            let missing = seat.unannounced(round, from);
            if !missing.is_empty() {
                return Ok(Progress::Blocked(Need::Announced { round, by: missing }));
            }
            if let Some(rank) = seat.differing(round, from, self.fingerprint).next() {
                return Err(BoardError::Differs { rank });
            }
        }
        script.act(self.next, seat.desk(fill, read.map(|(round, _)| round)));
        if let Some(Fill { round, .. }) = fill {
            seat.announce(round, self.fingerprint);
        }
        seat.release(self.first + released);
        self.next += 1;
        Ok(Progress::Moved)
    }

    /// Gets to the end of the script.
    #[inline]
    pub(super) fn run<S: Script>(
        &mut self,
        seat: &mut Seat,
        script: &mut S,
        deadline: &mut impl FnMut() -> Instant,
    ) -> Result<(), BoardError> {
        let mut moves = 0;
        loop {
            match self.poll(seat, script)? {
                Progress::Done => return Ok(()),
                Progress::Blocked(need) => {
                    seat.wait(need, &mut *deadline).map_err(|stop| failure(seat, stop))?
                }
                Progress::Moved => {
                    moves += 1;
                    if moves % MOVES_PER_LOOK == 0 {
                        look_around(seat, deadline())?;
                    }
                }
            }
        }
    }
}

#[cold]
fn look_around(seat: &Seat, deadline: Instant) -> Result<(), BoardError> {
    if seat.arena().aborted().is_some() {
        return Err(failure(seat, Stop::Aborted));
    }
    if Instant::now() >= deadline { Err(failure(seat, Stop::Late(Ranks::NONE))) } else { Ok(()) }
}

#[cold]
fn failure(seat: &Seat, stop: Stop) -> BoardError {
    match stop {
        Stop::Late(missing) => BoardError::Timeout { missing: missing.collect() },
        Stop::Left(mut ranks) => BoardError::Left { rank: ranks.next().unwrap_or(Rank(0)) },
        Stop::Aborted => BoardError::aborted(seat.arena()),
        Stop::Interrupted => BoardError::Interrupted,
    }
}
