//! Checks plans by running them: all ranks, through the real executor, over an in-memory medium, with symbolic elements,
//! under many orders of events.
//!
//! A case is run with minimal windows. In each run every rank must end with the right result and the same bits. Each
//! rank's data must be in each element exactly once, with the lowest rank on the left in each reduction. Averages must be
//! settled exactly once. Nothing may be overwritten while it is being sent. The source must not change unless the
//! operation is in place. The traffic must be what the method states, and the run must end. In place and out of place
//! must give the same bits.

mod checker_medium;
mod memory;
mod run;
mod schedule;
mod shares;
mod sweep;
mod symbol;

pub use schedule::{Schedule, SchedulePolicy};
pub use shares::Shares;
pub use sweep::{Sweep, SweepResult, random_network, shuffled};
pub use symbol::ElementFault;

use crate::choice;
use crate::layout::Layout;
use crate::method::Task;
use crate::plan::Plan;
use crate::shape::GroupShape;
use crate::step::OpBuffer;
use crate::structure::{self, Flaw, extent};
use core::fmt;
use memory::Memory;
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Tuning;
use symbol::Symbol;

/// The largest world that symbols support.
pub const WORLD_MAX: usize = 63;

/// The plans of all ranks for one collective, and their expected traffic.
#[derive(Clone, Debug)]
pub struct Case {
    /// The operation.
    pub descriptor: Descriptor,
    /// The sizes of all parts.
    pub shares: Shares,
    /// The layout that each rank knows.
    pub layouts: Vec<Layout>,
    /// The shape of the group.
    pub shape: GroupShape,
    /// The tuning of the group, including the windows.
    pub tuning: Tuning,
    /// Whether source and target share memory. For a reduce-scatter, and at the root of a scatter, the target is then a
    /// part of the source; for an all-gather, and at the root of a gather, the source is a part of the target.
    pub in_place: bool,
    /// One plan per rank.
    pub plans: Vec<Plan>,
    /// The elements that all ranks must send together.
    pub traffic: u64,
}

/// The result of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CaseResult {
    /// For each rank, the symbolic bits of its target.
    pub bits: Vec<Vec<u64>>,
    /// The number of events.
    pub events: u64,
}

/// The amount of successful checks.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Proof {
    pub runs: u64,
    pub events: u64,
}

/// A wait of a rank in a deadlock.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// For a frame, or until its step may take it.
    Receive { rank: Rank, step: u32, from: Rank, arrived: bool },
    /// For a slot, or for something to send.
    Send { rank: Rank, step: u32, to: Rank },
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Receive { rank, step, from, arrived: true } => {
                write!(f, "{rank} cannot take the frame of {from} in step {step}")
            }
            Self::Receive { rank, step, from, arrived: false } => {
                write!(f, "{rank} waits for {from} in step {step}")
            }
            Self::Send { rank, step, to } => write!(f, "{rank} has not sent step {step} to {to}"),
        }
    }
}

/// An error of a case.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Problem {
    /// A static check failed.
    #[error(transparent)]
    Structure(#[from] Flaw),
    /// A step did something wrong to an element.
    #[error("{rank}, step {step:?}: element {element} of its {buffer:?} {fault_kind}")]
    Step { rank: Rank, step: Option<u32>, buffer: OpBuffer, element: u64, fault_kind: ElementFault },
    /// Memory was overwritten while a frame was still to be read from it.
    #[error("{rank}: element {element} of its {buffer:?} is overwritten while it is being sent to {to}")]
    Overwritten { rank: Rank, to: Rank, buffer: OpBuffer, element: u64 },
    /// A rank ended with a wrong result.
    #[error("{rank} ends with a wrong element {element}")]
    Result { rank: Rank, element: u64 },
    /// Two ranks, or two runs, ended with different bits.
    #[error("{rank} ends with other bits than {other}")]
    Bits { rank: Rank, other: &'static str },
    /// The source was written out of place.
    #[error("{rank}: element {element} of the source was overwritten")]
    Source { rank: Rank, element: u64 },
    /// More or less was sent than the method says.
    #[error("{sent} elements were sent, not {expected}")]
    Traffic { sent: u64, expected: u64 },
    /// The ranks are deadlocked.
    #[error("deadlock: {}", list(waits))]
    Stuck { waits: Vec<Wait> },
    /// A rank left a barrier before all had entered it.
    #[error("{rank} leaves the barrier before {missing} has entered it")]
    LeftEarly { rank: Rank, missing: Rank },
    /// An executor reported an error, or violated the medium's contract.
    #[error("{rank}: {what}")]
    Executor { rank: Rank, what: String },
}

/// An error, its case and schedule.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct Failure {
    pub case: String,
    /// The order of events, if it was run.
    pub schedule: Option<Schedule>,
    pub problem: Problem,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.case)?;
        self.schedule.map_or(Ok(()), |schedule| write!(f, ", {schedule}"))?;
        write!(f, ": {}", self.problem)
    }
}

/// Checks an operation, in place and out of place, under the schedules with these numbers.
pub fn check(
    descriptor: &Descriptor,
    shares: &Shares,
    shape: &GroupShape,
    tuning: &Tuning,
    schedules: core::ops::Range<u64>,
) -> Result<Proof, Box<Failure>> {
    let mut proof = Proof::default();
    let mut case = Case::new(descriptor, shares, shape, tuning);
    case.check_structure()?;
    let mut first = None;
    let never_in_place = matches!(descriptor.collective, Collective::AllToAll | Collective::Transfer { .. });
    let forms: &[bool] = if never_in_place { &[false] } else { &[false, true] };
    for n in schedules {
        for &in_place in forms {
            case.in_place = in_place;
            let outcome = case.run(Schedule::numbered(n))?;
            proof.runs += 1;
            proof.events += outcome.events;
            let expected = first.get_or_insert_with(|| outcome.bits.clone());
            if let Some(rank) = (0..shape.world()).find(|rank| outcome.bits[*rank] != expected[*rank]) {
                let rank = Rank::from_index(rank);
                let problem = Problem::Bits { rank, other: "in another run" };
                return Err(case.fail(Some(Schedule::numbered(n)), problem));
            }
        }
    }
    Ok(proof)
}

impl Case {
    /// The plans for an operation, out of place.
    ///
    /// # Panics
    /// If the world is larger than [`WORLD_MAX`], or there is no plan.
    pub fn new(descriptor: &Descriptor, shares: &Shares, shape: &GroupShape, tuning: &Tuning) -> Self {
        let world = shape.world();
        assert!(world <= WORLD_MAX, "symbols have a bit for each rank");
        let ranks = || (0..world).map(Rank::from_index);
        let layouts: Vec<_> = ranks().map(|rank| shares.layout(rank)).collect();
        let plan = |rank: Rank| choice::plan(descriptor, &layouts[rank.index()], rank, shape, tuning);
        let plan = |rank| plan(rank).unwrap_or_else(|none| panic!("{descriptor}: {none}"));
        let plans: Vec<_> = ranks().map(plan).collect();
        let of = |rank: Rank| {
            let task = Task { descriptor, layout: &layouts[rank.index()], me: rank, shape, tuning };
            let method = choice::method(&task).expect("plans were made by it");
            (method.traffic)(&task)
        };
        let traffic = if layouts[0].is_pairwise() { ranks().map(of).sum() } else { of(Rank(0)) };
        let (descriptor, shares) = (*descriptor, shares.clone());
        let (shape, tuning) = (shape.clone(), *tuning);
        Self { descriptor, shares, layouts, shape, tuning, in_place: false, plans, traffic }
    }

    /// Runs the static checks.
    pub fn check_structure(&self) -> Result<(), Box<Failure>> {
        structure::check(&self.descriptor, &self.layouts, &self.shape, &self.plans)
            .map_err(|flaw| self.fail(None, Problem::Structure(flaw)))
    }

    /// Runs all ranks by one schedule.
    pub fn run(&self, schedule: Schedule) -> Result<CaseResult, Box<Failure>> {
        let finished = run::CaseRun::new(self, schedule).and_then(run::CaseRun::finish);
        finished.map_err(|problem| self.fail(Some(schedule), problem))
    }

    /// The number of ticks if each link carries one frame per tick and everything else takes no time: the hops of a
    /// short message, and the utilisation of links by a long one.
    pub fn ticks(&self) -> Result<u64, Box<Failure>> {
        let finished = run::CaseRun::new(self, Schedule::numbered(0)).and_then(run::CaseRun::in_step);
        finished.map_err(|problem| self.fail(None, problem))
    }

    fn fail(&self, schedule: Option<Schedule>, problem: Problem) -> Box<Failure> {
        let algorithm =
            self.plans.first().map_or("no plan".to_owned(), |plan| format!("{:?}", plan.algorithm));
        let form = if self.in_place { "in place" } else { "out of place" };
        let world = self.shape.world();
        let mut case = format!("{} by {algorithm} in a world of {world}, {form}", self.descriptor);
        if self.shares != Shares::Even {
            case += &format!(", {:?}", self.shares);
        }
        Box::new(Failure { case, schedule, problem })
    }

    /// Checks the result of a rank, and returns its symbolic bits.
    fn check_result(&self, rank: Rank, memory: &Memory) -> Result<Vec<u64>, Problem> {
        let world = self.shape.world();
        let length = |buffer| extent(&self.descriptor, &self.layouts[rank.index()], world, rank, buffer);
        if !self.in_place {
            let first = match self.descriptor.collective {
                Collective::AllGather => self.start_of(rank),
                _ => 0,
            };
            let own = |i| Symbol::own(rank.index(), first + i);
            let touched =
                (0..length(OpBuffer::Source)).find(|i| memory.cell(OpBuffer::Source, *i) != Some(own(*i)));
            if let Some(element) = touched {
                return Err(Problem::Source { rank, element });
            }
        }
        let mut bits = Vec::with_capacity(length(OpBuffer::Target) as usize);
        for element in 0..length(OpBuffer::Target) {
            let symbol = memory.cell(OpBuffer::Target, element);
            match symbol.filter(|symbol| self.is_right(rank, element, symbol)) {
                Some(symbol) => bits.push(symbol.bits),
                None => return Err(Problem::Result { rank, element }),
            }
        }
        match self.expected(rank, length(OpBuffer::Target)) {
            Some(_) => Err(Problem::Result { rank, element: length(OpBuffer::Target) }),
            None => Ok(bits),
        }
    }

    /// Whether an element of a rank's target is right.
    fn is_right(&self, rank: Rank, index: u64, symbol: &Symbol) -> bool {
        let found = (symbol.element, symbol.ranks, symbol.settled);
        !symbol.raw && self.expected(rank, index) == Some(found)
    }

    /// The expected content of a rank's target at an index: the element, the ranks in it, and whether it is settled.
    fn expected(&self, rank: Rank, index: u64) -> Option<(u64, u64, bool)> {
        let (world, count) = (self.shape.world(), self.descriptor.count);
        let sizes = self.shares.sizes(count, world);
        let everyone = (1 << world) - 1;
        let is_within = |length: u64| (index < length).then_some(());
        match self.descriptor.collective {
            Collective::AllReduce => is_within(count).map(|()| (index, everyone, true)),
            Collective::Reduce { root } => {
                is_within(count).filter(|()| rank == root).map(|()| (index, everyone, true))
            }
            Collective::ReduceScatter => {
                is_within(sizes[rank.index()]).map(|()| (self.start_of(rank) + index, everyone, true))
            }
            Collective::AllGather => {
                let is_there = |r: &usize| index < sizes[..=*r].iter().sum();
                (0..world).find(is_there).map(|owner| (index, 1 << owner, false))
            }
            Collective::Broadcast { root } => is_within(count).map(|()| (index, 1 << root.index(), false)),
            Collective::Barrier => None,
            Collective::Gather { .. }
            | Collective::Scatter { .. }
            | Collective::AllToAll
            | Collective::Transfer { .. } => {
                let origin = self.shares.origin(&self.descriptor, world, rank, index);
                origin.map(|(from, element)| (element, 1 << from, false))
            }
        }
    }

    /// The start of a rank's part.
    fn start_of(&self, rank: Rank) -> u64 {
        let sizes = self.shares.sizes(self.descriptor.count, self.shape.world());
        sizes[..rank.index()].iter().sum()
    }
}

fn list(waits: &[Wait]) -> String {
    waits.iter().map(Wait::to_string).collect::<Vec<_>>().join("; ")
}
