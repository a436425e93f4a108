//! One step of a plan: what happens to one chunk on one rank.
//!
//! A step may wait for a frame, combine it with own data, settle the result and send it on: one pass
//! over memory per chunk and hop. The common combinations have names: [`Step::send`],
//! [`Step::receive`], [`Step::receive_reduce`], each with [`Step::then_send`] and [`Step::settled`].

use ringfold_proto::id::Rank;

/// Which memory of an operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// The user's input. Never written, unless the operation is in place and it is the target too.
    Source,
    /// The user's output.
    Target,
    /// Memory of our own, as much as the plan says that it needs.
    Scratch,
}

/// Elements of one place: the unit that travels in one frame.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Region {
    /// Where.
    pub place: Place,
    /// The first element.
    pub offset: u64,
    /// How many elements; none is legal (a barrier's frames are empty).
    pub count: u32,
}

impl Region {
    /// Nothing: what an empty frame holds.
    pub const EMPTY: Self = Self { place: Place::Scratch, offset: 0, count: 0 };

    /// The same elements in another place.
    pub fn at(self, place: Place) -> Self {
        Self { place, ..self }
    }
}

/// Which operand of a combination stands on the left; the one with the lowest rank in it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// What is here.
    Own,
    /// What arrived.
    Frame,
}

/// What is done before a step's result is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Nothing: the region is sent as it is.
    None,
    /// The region becomes a copy of other elements that are here.
    Copy {
        /// Those elements.
        own: Region,
    },
    /// The region becomes what arrives.
    Store {
        /// From whom.
        from: Rank,
    },
    /// The region becomes the combination of what arrives and what is here.
    Reduce {
        /// From whom.
        from: Rank,
        /// What is here; may be the region itself.
        own: Region,
        /// The order of the operands.
        left: Left,
    },
    /// The region becomes the combination of two others that are here, or of itself and another.
    Combine {
        /// The operand with the lowest rank in it.
        left: Region,
        /// The other one.
        right: Region,
    },
}

/// A step. Frames from one rank are taken in the order of the steps that take them; frames to one rank
/// are sent in the order of the steps that send them. Nothing else is ordered, except by `after` and
/// `fence`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// What is done first.
    pub action: Action,
    /// What is written, and what is sent.
    pub region: Region,
    /// Whether the result is final here: averages are divided, quantised values are rounded once.
    /// A settled region, and one that was stored from a settled frame, is sent on verbatim.
    pub settle: bool,
    /// To whom the region is sent.
    pub send: Option<Rank>,
    /// A step that must have been done before this one begins.
    pub after: Option<u32>,
    /// Whether every frame that the steps before this one send must have left our memory before this
    /// one begins: it overwrites, in place, what they send.
    pub fence: bool,
}

impl Step {
    fn new(action: Action, region: Region) -> Self {
        Self { action, region, settle: false, send: None, after: None, fence: false }
    }

    /// Sends what is here.
    pub fn send(to: Rank, region: Region) -> Self {
        Self::new(Action::None, region).then_send(to)
    }

    /// Copies what is here.
    pub fn copy(own: Region, region: Region) -> Self {
        Self::new(Action::Copy { own }, region)
    }

    /// Takes what arrives.
    pub fn receive(from: Rank, region: Region) -> Self {
        Self::new(Action::Store { from }, region)
    }

    /// Combines what arrives with what is here.
    pub fn receive_reduce(from: Rank, own: Region, region: Region, left: Left) -> Self {
        Self::new(Action::Reduce { from, own, left }, region)
    }

    /// Combines what is here with what is here.
    pub fn combine(left: Region, right: Region, region: Region) -> Self {
        Self::new(Action::Combine { left, right }, region)
    }

    /// Sends the result on.
    pub fn then_send(self, to: Rank) -> Self {
        Self { send: Some(to), ..self }
    }

    /// Makes the result final.
    pub fn settled(self) -> Self {
        Self { settle: true, ..self }
    }

    /// Waits for another step.
    pub fn after(self, step: u32) -> Self {
        Self { after: Some(step), ..self }
    }

    /// Waits until all earlier sends have left our memory.
    pub fn fenced(self) -> Self {
        Self { fence: true, ..self }
    }

    /// From whom the step takes a frame.
    pub fn receives_from(&self) -> Option<Rank> {
        match self.action {
            Action::Store { from } | Action::Reduce { from, .. } => Some(from),
            Action::None | Action::Copy { .. } | Action::Combine { .. } => None,
        }
    }
}
