//! Proves plans right, as far as running them can: executes all ranks' plans through the real executor,
//! over an in-memory medium, with symbols for elements, under many orders of events.
//!
//! A case is run with the tightest windows. In each run every rank must end with the right result, all
//! with the same bits; each rank's data must be in each element exactly once, with the lowest rank on the
//! left wherever two operands meet; averages must be settled exactly once; nothing may be overwritten
//! while it is being sent; the source must stay as it was unless the operation is in place; the traffic
//! must be what the method says; and it must end. In place and out of place must give the same bits.
//!
//! New methods are checked by calling [`check`] with what they claim to do.

mod memory;
mod port;
mod run;
mod schedule;
mod shares;
mod sweep;
mod symbol;

pub use schedule::{Policy, Schedule};
pub use shares::Shares;
pub use sweep::{Sweep, Swept, shuffled};
pub use symbol::Trouble;

use crate::choice;
use crate::layout::Layout;
use crate::method::Task;
use crate::plan::Plan;
use crate::shape::GroupShape;
use crate::step::Place;
use crate::structure::{self, Flaw, extent};
use core::fmt;
use memory::Memory;
use ringfold_proto::descriptor::{Collective, Descriptor};
use ringfold_proto::id::Rank;
use ringfold_proto::tuning::Tuning;
use symbol::Symbol;

/// The largest world that symbols can stand for.
pub const WORLD_MAX: usize = 63;

/// All ranks' plans of one collective, and what to hold them to.
#[derive(Clone, Debug)]
pub struct Case {
    /// What is asked for.
    pub descriptor: Descriptor,
    /// How the whole is shared out.
    pub shares: Shares,
    /// What each rank knows of that.
    pub layouts: Vec<Layout>,
    /// The group.
    pub shape: GroupShape,
    /// What the group agreed on; also the executors' windows.
    pub tuning: Tuning,
    /// Whether source and target are the same memory. For a reduce-scatter, and at the root of a scatter, the
    /// target is then the own part of the source; for an all-gather, and at the root of a gather, the source is
    /// the own part of the target.
    pub in_place: bool,
    /// One plan per rank.
    pub plans: Vec<Plan>,
    /// Elements that all ranks together shall send.
    pub traffic: u64,
}

/// What a run came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// For each rank, what stands for the bits of its target.
    pub bits: Vec<Vec<u64>>,
    /// How many events there were.
    pub events: u64,
}

/// What was proved.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Proof {
    /// Runs that were made.
    pub runs: u64,
    /// Events in them.
    pub events: u64,
}

/// A rank that waits, when nothing more can happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// For a frame, or for being allowed to take it.
    Receive {
        /// Who waits.
        rank: Rank,
        /// The step that would take it.
        step: u32,
        /// From whom it is.
        from: Rank,
        /// Whether it is there.
        arrived: bool,
    },
    /// For a slot, or for something to send.
    Send {
        /// Who waits.
        rank: Rank,
        /// The step that would send it.
        step: u32,
        /// To whom.
        to: Rank,
    },
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Receive { rank, step, from, arrived: true } => {
                write!(f, "{rank} cannot take what came from {from} for step {step}")
            }
            Self::Receive { rank, step, from, arrived: false } => {
                write!(f, "{rank} waits for {from} in step {step}")
            }
            Self::Send { rank, step, to } => write!(f, "{rank} has yet to send step {step} to {to}"),
        }
    }
}

/// What is wrong.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Problem {
    /// It does not even look right.
    #[error(transparent)]
    Structure(#[from] Flaw),
    /// A step did something wrong to an element.
    #[error("{rank}, step {step:?}: element {element} of its {place:?} {trouble}")]
    Step {
        /// Whose step.
        rank: Rank,
        /// Which, if it can be told.
        step: Option<u32>,
        /// Where.
        place: Place,
        /// Which element of that place.
        element: u64,
        /// What.
        trouble: Trouble,
    },
    /// Memory was overwritten while a frame was still to be read from it.
    #[error("{rank}: element {element} of its {place:?} is overwritten while it is being sent to {to}")]
    Overwritten {
        /// Whose memory.
        rank: Rank,
        /// Who should have got it.
        to: Rank,
        /// Where.
        place: Place,
        /// Which element of that place.
        element: u64,
    },
    /// A rank ended with a wrong result.
    #[error("{rank} ends with a wrong element {element}")]
    Result {
        /// Who.
        rank: Rank,
        /// Which element of its target.
        element: u64,
    },
    /// Two ranks, or two runs, ended with different bits.
    #[error("{rank} ends with other bits than {other}")]
    Bits {
        /// Who.
        rank: Rank,
        /// Who, or what, it differs from.
        other: &'static str,
    },
    /// The source was written out of place.
    #[error("{rank}: element {element} of the source was overwritten")]
    Source {
        /// Whose.
        rank: Rank,
        /// Which element.
        element: u64,
    },
    /// More or less was sent than the method says.
    #[error("{sent} elements were sent, not {expected}")]
    Traffic {
        /// Elements sent.
        sent: u64,
        /// What they should have been.
        expected: u64,
    },
    /// Nothing more can happen, and not all are done.
    #[error("nothing more can happen: {}", list(waits))]
    Stuck {
        /// Who waits for what.
        waits: Vec<Wait>,
    },
    /// A rank left a barrier before all had come.
    #[error("{rank} leaves the barrier before {missing} has come")]
    LeftEarly {
        /// Who left.
        rank: Rank,
        /// Who had not come.
        missing: Rank,
    },
    /// An executor complained, or broke a rule of the medium.
    #[error("{rank}: {what}")]
    Executor {
        /// Where.
        rank: Rank,
        /// What.
        what: String,
    },
}

/// What is wrong, with what, and when.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct Failure {
    /// The case, in words.
    pub case: String,
    /// The order of events, where it needed one.
    pub schedule: Option<Schedule>,
    /// What is wrong.
    pub problem: Problem,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.case)?;
        self.schedule.map_or(Ok(()), |schedule| write!(f, ", {schedule}"))?;
        write!(f, ": {}", self.problem)
    }
}

/// Checks what is asked for, in place and out of place, under the schedules of these numbers.
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
    // What goes straight from all to all cannot be put where it came from.
    let is_apart = matches!(descriptor.collective, Collective::AllToAll | Collective::Transfer { .. });
    let places: &[bool] = if is_apart { &[false] } else { &[false, true] };
    for n in schedules {
        for &in_place in places {
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
    /// The plans that would be made for this, out of place.
    ///
    /// # Panics
    /// If the world is larger than [`WORLD_MAX`], or if there is no plan.
    pub fn new(descriptor: &Descriptor, shares: &Shares, shape: &GroupShape, tuning: &Tuning) -> Self {
        let world = shape.world();
        assert!(world <= WORLD_MAX, "symbols keep a bit for each rank");
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

    /// Checks what can be seen without running.
    pub fn check_structure(&self) -> Result<(), Box<Failure>> {
        structure::check(&self.descriptor, &self.layouts, &self.shape, &self.plans)
            .map_err(|flaw| self.fail(None, Problem::Structure(flaw)))
    }

    /// Runs all ranks by one schedule.
    pub fn run(&self, schedule: Schedule) -> Result<Outcome, Box<Failure>> {
        let finished = run::Run::new(self, schedule).and_then(run::Run::finish);
        finished.map_err(|problem| self.fail(Some(schedule), problem))
    }

    /// How many ticks it takes if each link carries one frame per tick, and all else takes no time: the
    /// hops of a short message, and whether a long one keeps its links busy.
    pub fn ticks(&self) -> Result<u64, Box<Failure>> {
        let finished = run::Run::new(self, Schedule::numbered(0)).and_then(run::Run::in_step);
        finished.map_err(|problem| self.fail(None, problem))
    }

    fn fail(&self, schedule: Option<Schedule>, problem: Problem) -> Box<Failure> {
        let algorithm =
            self.plans.first().map_or("no plan".to_owned(), |plan| format!("{:?}", plan.algorithm));
        let place = if self.in_place { "in place" } else { "out of place" };
        let world = self.shape.world();
        let mut case = format!("{} by {algorithm} in a world of {world}, {place}", self.descriptor);
        if self.shares != Shares::Even {
            case += &format!(", {:?}", self.shares);
        }
        Box::new(Failure { case, schedule, problem })
    }

    /// Compares what a rank ended with to what it should have, and returns what stands for its bits.
    fn judge(&self, rank: Rank, memory: &Memory) -> Result<Vec<u64>, Problem> {
        let world = self.shape.world();
        let length = |place| extent(&self.descriptor, &self.layouts[rank.index()], world, rank, place);
        if !self.in_place {
            let first = match self.descriptor.collective {
                Collective::AllGather => self.start_of(rank),
                _ => 0,
            };
            let own = |i| Symbol::own(rank.index(), first + i);
            let touched =
                (0..length(Place::Source)).find(|i| memory.cell(Place::Source, *i) != Some(own(*i)));
            if let Some(element) = touched {
                return Err(Problem::Source { rank, element });
            }
        }
        let mut bits = Vec::with_capacity(length(Place::Target) as usize);
        for element in 0..length(Place::Target) {
            let symbol = memory.cell(Place::Target, element);
            match symbol.filter(|symbol| self.is_right(rank, element, symbol)) {
                Some(symbol) => bits.push(symbol.bits),
                None => return Err(Problem::Result { rank, element }),
            }
        }
        match self.expected(rank, length(Place::Target)) {
            Some(_) => Err(Problem::Result { rank, element: length(Place::Target) }),
            None => Ok(bits),
        }
    }

    /// Whether an element of a rank's target is what was asked for.
    fn is_right(&self, rank: Rank, index: u64, symbol: &Symbol) -> bool {
        let found = (symbol.element, symbol.ranks, symbol.settled);
        !symbol.raw && self.expected(rank, index) == Some(found)
    }

    /// What should be at an index of a rank's target: which element, of which ranks, and whether it is settled.
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

    /// Where a rank's part begins.
    fn start_of(&self, rank: Rank) -> u64 {
        let sizes = self.shares.sizes(self.descriptor.count, self.shape.world());
        sizes[..rank.index()].iter().sum()
    }
}

fn list(waits: &[Wait]) -> String {
    waits.iter().map(Wait::to_string).collect::<Vec<_>>().join("; ")
}
