//! Runs the schedule of a rank step by step, each as soon as its inputs are available.

use super::BoardError;
use ringfold_fabric::arena::{ArenaMember, Fill, Need, Ranks, StepSlots, Stop, WaitTerms};
use ringfold_fabric::waiter::Deadline;
use ringfold_proto::id::Rank;

/// The steps of one rank in a collective.
///
/// All ranks go through the same rounds, each with its own steps. In a step a rank fills its slot of one round, reads the
/// slots of another, or both. Steps fill rounds in rising order. What a step needs must come from steps that all ranks
/// can reach without it, given the free slots.
pub(super) trait RoundSchedule {
    /// The number of rounds; the same on all ranks.
    fn rounds(&self) -> u64;

    fn steps(&self) -> u64;

    fn at(&self, index: u64) -> RoundStep;

    fn act(&mut self, index: u64, slots: StepSlots<'_>);
}

/// One step; rounds count from the start of the collective.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundStep {
    /// The slot that is filled, and announced afterwards.
    pub(super) fill: Option<Fill>,
    /// The round that is read, and whose slots.
    pub(super) read: Option<(u64, Ranks)>,
    /// Rounds before this one are no longer needed after the step.
    pub(super) released: u64,
}

#[derive(Debug)]
pub(super) struct Pipeline {
    /// The first round of the collective in the arena.
    first: u64,
    fingerprint: u64,
    next: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    Done,
    Moved,
    Blocked(Need),
}

/// Steps without a wait between two checks of the deadline.
const STEPS_PER_CHECK: u64 = 1024;

impl Pipeline {
    pub(super) fn new(first: u64, fingerprint: u64) -> Self {
        Self { first, fingerprint, next: 0 }
    }

    #[inline]
    pub(super) fn poll<S: RoundSchedule>(
        &mut self,
        member: &mut ArenaMember,
        schedule: &mut S,
    ) -> Result<Progress, BoardError> {
        if self.next == schedule.steps() {
            member.release(self.first + schedule.rounds());
            return Ok(Progress::Done);
        }
        let RoundStep { fill, read, released } = schedule.at(self.next);
        let fill = fill.map(|fill| Fill { round: self.first + fill.round, ..fill });
        let read = read.map(|(round, from)| (self.first + round, from));
        if let Some(Fill { round, .. }) = fill
            && !member.may_fill(round)
        {
            return Ok(Progress::Blocked(Need::Space { round }));
        }
        if let Some((round, from)) = read {
            let missing = member.unannounced(round, from);
            if !missing.is_empty() {
                return Ok(Progress::Blocked(Need::Announced { round, by: missing }));
            }
            if let Some(rank) = member.differing(round, from, self.fingerprint).next() {
                return Err(BoardError::Differs { rank });
            }
        }
        schedule.act(self.next, member.slots(fill, read.map(|(round, _)| round)));
        if let Some(Fill { round, .. }) = fill {
            member.announce(round, self.fingerprint);
        }
        member.release(self.first + released);
        self.next += 1;
        Ok(Progress::Moved)
    }

    #[inline]
    pub(super) fn run<'t, S: RoundSchedule>(
        &mut self,
        member: &mut ArenaMember,
        schedule: &mut S,
        terms: &mut impl FnMut() -> WaitTerms<'t>,
    ) -> Result<(), BoardError> {
        let mut steps = 0;
        loop {
            match self.poll(member, schedule)? {
                Progress::Done => return Ok(()),
                Progress::Blocked(need) => {
                    member.wait(need, &mut *terms).map_err(|stop| failure(member, stop))?
                }
                Progress::Moved => {
                    steps += 1;
                    if steps % STEPS_PER_CHECK == 0 {
                        check_abort_and_deadline(member, terms().deadline)?;
                    }
                }
            }
        }
    }
}

#[cold]
fn check_abort_and_deadline(member: &ArenaMember, deadline: Deadline) -> Result<(), BoardError> {
    if member.arena().aborted().is_some() {
        return Err(failure(member, Stop::Aborted));
    }
    if deadline.is_over() { Err(failure(member, Stop::Late(Ranks::NONE))) } else { Ok(()) }
}

#[cold]
fn failure(member: &ArenaMember, stop: Stop) -> BoardError {
    match stop {
        Stop::Late(missing) => BoardError::Timeout { missing: missing.collect() },
        Stop::Left(mut ranks) => BoardError::Left { rank: ranks.next().unwrap_or(Rank(0)) },
        Stop::Aborted => BoardError::aborted(member.arena()),
        Stop::Interrupted => BoardError::Interrupted,
    }
}
