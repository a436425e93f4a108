//! The plans of all ranks as a list of reductions: which rank computes which elements, from which operands in which
//! order, and for which targets.
//!
//! If every rank can access the memory of all ranks (GPUs with peer access), frames, slots and scratch are not needed.
//! [`fuse`] derives the reductions by running the plans symbolically. [`share`] divides reductions that all ranks would
//! compute among them, which changes neither operands nor order, and so no bit of the result.

mod memory;

use crate::parts::Parts;
use crate::plan::Plan;
use crate::step::{Action, Left, OpBuffer, Region, Step};
use memory::{Memory, Piece};
use ringfold_proto::id::Rank;
use std::collections::VecDeque;

/// A position in one rank's source or target.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RankOffset {
    pub rank: Rank,
    pub offset: u64,
}

impl RankOffset {
    fn moved(self, elements: u64) -> Self {
        Self { offset: self.offset + elements, ..self }
    }
}

/// A reduction of contiguous elements by one rank.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Fold {
    /// The operands, reduced from left to right. A single one is a copy.
    pub sources: Vec<RankOffset>,
    /// The targets of the result, by rank.
    pub targets: Vec<RankOffset>,
    /// The number of elements.
    pub count: u64,
    /// Whether the result is final: averages are divided.
    pub settle: bool,
}

impl Fold {
    /// `count` of its elements from `start` on.
    fn part(&self, start: u64, count: u64) -> Self {
        let moved = |all: &[RankOffset]| all.iter().map(|one| one.moved(start)).collect();
        Self { sources: moved(&self.sources), targets: moved(&self.targets), count, settle: self.settle }
    }

    /// Whether another fold continues this one in all sources and targets.
    fn is_continued_by(&self, next: &Self) -> bool {
        let meet = |all: &[RankOffset], others: &[RankOffset]| {
            all.len() == others.len() && all.iter().zip(others).all(|(a, b)| a.moved(self.count) == *b)
        };
        self.settle == next.settle && meet(&self.sources, &next.sources) && meet(&self.targets, &next.targets)
    }
}

/// Why plans cannot be fused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotFusible {
    /// The plans reduce two partial results.
    #[error("the plans reduce two partial results")]
    NotAChain,
    /// The plans compute with settled results.
    #[error("the plans compute with settled results")]
    Settled,
    /// The plans read unwritten memory.
    #[error("the plans read unwritten memory")]
    Unwritten,
    /// The plans deadlock.
    #[error("the plans deadlock")]
    Stuck,
}

/// The reductions of each rank in these plans. Each element of a target is in exactly one fold.
pub fn fuse(plans: &[Plan]) -> Result<Vec<Vec<Fold>>, NotFusible> {
    let mut ranks: Vec<_> = plans.iter().map(|plan| Runner::new(plan, plans.len())).collect();
    loop {
        let mut is_moving = false;
        for me in 0..ranks.len() {
            while let Some((to, pieces)) = ranks[me].advance(Rank::from_index(me), &mut is_moving)? {
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

/// Divides folds that all ranks compute alike: each rank computes a part for all.
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
        let targets =
            (0..world).map(|rank| RankOffset { rank: Rank::from_index(rank), offset: at }).collect();
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

/// The symbolic run of one rank's plan.
struct Runner<'a> {
    plan: &'a Plan,
    is_done: Vec<bool>,
    memory: Memory,
    /// The frames from each rank.
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

    /// Runs all ready steps up to the first that sends, and returns its frame.
    fn advance(&mut self, me: Rank, is_moving: &mut bool) -> Result<Option<(Rank, Vec<Piece>)>, NotFusible> {
        for index in 0..self.plan.steps.len() {
            if self.is_done[index] || !self.is_ready(index) {
                continue;
            }
            let step = self.plan.steps[index];
            self.execute(&step, me)?;
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

    fn execute(&mut self, step: &Step, me: Rank) -> Result<(), NotFusible> {
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

/// The contents of the targets, by the rank that computed them.
fn collect(ranks: &[Runner<'_>]) -> Vec<Vec<Fold>> {
    let mut folds: Vec<Vec<Fold>> = vec![Vec::new(); ranks.len()];
    for (rank, runner) in ranks.iter().enumerate() {
        for (offset, piece) in runner.memory.all(OpBuffer::Target) {
            let target = RankOffset { rank: Rank::from_index(rank), offset };
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
            let is_continued = fold.is_continued_by(next);
            if is_continued {
                fold.count += next.count;
            }
            is_continued
        });
    }
    folds
}

/// The elements of a region.
fn span(region: Region) -> core::ops::Range<u64> {
    region.offset..region.offset + u64::from(region.count)
}

#[cfg(test)]
mod tests;
