//! Plans of all ranks, collapsed into folds: who computes which elements, from whose data in which order, and who gets
//! the result.
//!
//! Where every rank can reach every other rank's memory (a GPU, or several with peer access) frames, slots and scratch
//! are only in the way: what is left of a plan is what it computes. [`fuse`] finds that out by running the very plans
//! that the executor would run, with names in the place of numbers. [`share`] deals what all ranks would compute alike
//! out among them, which changes neither operands nor their order, and so no bit of the result.

mod memory;

use crate::parts::Parts;
use crate::plan::Plan;
use crate::step::{Action, Left, Place, Region, Step};
use core::fmt;
use memory::{Memory, Piece};
use ringfold_proto::id::Rank;
use std::collections::VecDeque;

/// Elements of one rank's source or target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stretch {
    /// Whose.
    pub rank: Rank,
    /// The first element.
    pub offset: u64,
}

impl Stretch {
    fn moved(self, elements: u64) -> Self {
        Self { offset: self.offset + elements, ..self }
    }
}

/// Elements that one rank computes at one go.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Fold {
    /// What is combined: the first with the second, the result with the third, and so on. One alone is a copy.
    pub sources: Vec<Stretch>,
    /// Where the result goes, by rank.
    pub targets: Vec<Stretch>,
    /// How many elements.
    pub count: u64,
    /// Whether the result is final: averages are divided.
    pub settle: bool,
}

impl Fold {
    /// So many of its elements, from one on.
    fn part(&self, start: u64, count: u64) -> Self {
        let moved = |all: &[Stretch]| all.iter().map(|one| one.moved(start)).collect();
        Self { sources: moved(&self.sources), targets: moved(&self.targets), count, settle: self.settle }
    }

    /// Whether another one goes on where this one ends, everywhere.
    fn goes_on_in(&self, next: &Self) -> bool {
        let meet = |all: &[Stretch], others: &[Stretch]| {
            all.len() == others.len() && all.iter().zip(others).all(|(a, b)| a.moved(self.count) == *b)
        };
        self.settle == next.settle && meet(&self.sources, &next.sources) && meet(&self.targets, &next.targets)
    }
}

/// Why plans can't be collapsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotFusible {
    /// Two partial results are combined, where a fold takes one operand after the other.
    NotAChain,
    /// Something is computed on after it was settled.
    Settled,
    /// Something is read that nobody has written.
    Unwritten,
    /// The ranks wait for each other.
    Stuck,
}

impl fmt::Display for NotFusible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAChain => {
                "the plans combine partial results, where a fold takes one operand after the other"
            }
            Self::Settled => "the plans compute with settled results",
            Self::Unwritten => "the plans read what nobody has written",
            Self::Stuck => "the plans wait for each other",
        })
    }
}

/// What each rank computes if the ranks carry out these plans. Each element of a target is in exactly one fold.
pub fn fuse(plans: &[Plan]) -> Result<Vec<Vec<Fold>>, NotFusible> {
    let mut ranks: Vec<_> = plans.iter().map(|plan| Runner::new(plan, plans.len())).collect();
    loop {
        let mut is_moving = false;
        for me in 0..ranks.len() {
            while let Some((to, pieces)) = ranks[me].turn(Rank::from_index(me), &mut is_moving)? {
                ranks[to.index()].inbox[me].push_back(pieces);
            }
        }
        if ranks.iter().all(Runner::is_done) {
            return Ok(collect(&ranks));
        }
        if !is_moving {
            return Err(NotFusible::Stuck);
        }
    }
}

/// Where all ranks compute the same from the same, each for itself, each computes a part of it for all.
pub fn share(folds: &[Vec<Fold>]) -> Vec<Vec<Fold>> {
    let world = folds.len();
    let alike = |mine: &[Fold], me: usize| {
        mine.len() == folds[0].len()
            && mine.iter().zip(&folds[0]).all(|(a, b)| {
                let is_own = a.targets.len() == 1 && a.targets[0].rank.index() == me;
                let at = |fold: &Fold| fold.targets.first().map(|target| target.offset);
                is_own && (a.count, a.settle, at(a)) == (b.count, b.settle, at(b)) && a.sources == b.sources
            })
    };
    if !folds.iter().zip(0..).all(|(mine, me)| alike(mine, me)) {
        return folds.to_vec();
    }
    let mut shared = vec![Vec::new(); world];
    for fold in &folds[0] {
        let at = fold.targets[0].offset;
        let targets = (0..world).map(|rank| Stretch { rank: Rank::from_index(rank), offset: at }).collect();
        let for_all = Fold { targets, ..fold.clone() };
        let parts = Parts::even(fold.count, world as u16);
        for (rank, mine) in shared.iter_mut().enumerate() {
            let part = parts.part(rank);
            if part.count > 0 {
                mine.push(for_all.part(part.start, part.count));
            }
        }
    }
    shared
}

/// One rank on its way through its plan.
struct Runner<'a> {
    plan: &'a Plan,
    is_done: Vec<bool>,
    memory: Memory,
    /// What has come from each rank.
    inbox: Vec<VecDeque<Vec<Piece>>>,
}

impl<'a> Runner<'a> {
    fn new(plan: &'a Plan, world: usize) -> Self {
        let inbox = (0..world).map(|_| VecDeque::new()).collect();
        Self { plan, is_done: vec![false; plan.steps.len()], memory: Memory::default(), inbox }
    }

    fn is_done(&self) -> bool {
        self.is_done.iter().all(|done| *done)
    }

    /// Does all steps that can be done, up to the first that sends something.
    fn turn(&mut self, me: Rank, is_moving: &mut bool) -> Result<Option<(Rank, Vec<Piece>)>, NotFusible> {
        for index in 0..self.plan.steps.len() {
            if self.is_done[index] || !self.is_ready(index) {
                continue;
            }
            let step = self.plan.steps[index];
            self.carry_out(&step, me)?;
            self.is_done[index] = true;
            *is_moving = true;
            if let Some(to) = step.send {
                return Ok(Some((to, self.memory.read(me, step.region)?)));
            }
        }
        Ok(None)
    }

    fn is_ready(&self, index: usize) -> bool {
        let step = &self.plan.steps[index];
        let is_first = |lists: &[(Rank, Vec<u32>)], peer: Rank| {
            let list = lists.iter().find(|(rank, _)| *rank == peer).map_or(&[][..], |(_, list)| list);
            list.iter().find(|other| !self.is_done[**other as usize]) == Some(&(index as u32))
        };
        step.after.is_none_or(|after| self.is_done[after as usize])
            && step.send.is_none_or(|to| is_first(&self.plan.sends, to))
            && step.receives_from().is_none_or(|from| {
                is_first(&self.plan.receives, from) && !self.inbox[from.index()].is_empty()
            })
    }

    fn carry_out(&mut self, step: &Step, me: Rank) -> Result<(), NotFusible> {
        let mut take = |from: Rank| self.inbox[from.index()].pop_front().ok_or(NotFusible::Stuck);
        let pieces = match step.action {
            Action::None if !step.settle => return Ok(()),
            Action::None => self.memory.read(me, step.region)?,
            Action::Copy { own } => self.memory.read(me, own)?,
            Action::Store { from } => take(from)?,
            Action::Reduce { from, own, left } => {
                let (frame, own) = (take(from)?, self.memory.read(me, own)?);
                match left {
                    Left::Own => memory::combine(me, &own, &frame)?,
                    Left::Frame => memory::combine(me, &frame, &own)?,
                }
            }
            Action::Combine { left, right } => {
                memory::combine(me, &self.memory.read(me, left)?, &self.memory.read(me, right)?)?
            }
        };
        let pieces = if step.settle { memory::settle(pieces)? } else { pieces };
        self.memory.write(step.region, pieces);
        Ok(())
    }
}

/// What stands in the targets, by who made it.
fn collect(ranks: &[Runner<'_>]) -> Vec<Vec<Fold>> {
    let mut folds: Vec<Vec<Fold>> = vec![Vec::new(); ranks.len()];
    for (rank, runner) in ranks.iter().enumerate() {
        for (offset, piece) in runner.memory.all(Place::Target) {
            let target = Stretch { rank: Rank::from_index(rank), offset };
            let mine = &mut folds[piece.maker.index()];
            let same = mine.iter_mut().find(|fold| {
                fold.sources == piece.operands && fold.count == piece.count && fold.settle == piece.is_settled
            });
            match same {
                Some(fold) => fold.targets.push(target),
                None => mine.push(Fold {
                    sources: piece.operands.clone(),
                    targets: vec![target],
                    count: piece.count,
                    settle: piece.is_settled,
                }),
            }
        }
    }
    for mine in &mut folds {
        mine.sort_by_key(|fold| fold.targets[0].offset);
        mine.dedup_by(|next, fold| {
            let goes_on = fold.goes_on_in(next);
            if goes_on {
                fold.count += next.count;
            }
            goes_on
        });
    }
    folds
}

/// A region without its place: where it is within that.
fn span(region: Region) -> core::ops::Range<u64> {
    region.offset..region.offset + u64::from(region.count)
}

#[cfg(test)]
mod tests;
