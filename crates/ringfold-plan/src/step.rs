//! One step of a plan: the work on one chunk on one rank.
//!
//! A step may wait for a frame, combine it with own data, settle the result and send it, in one pass over memory. The
//! common combinations have names: [`Step::send`], [`Step::receive`], [`Step::receive_reduce`], each with
//! [`Step::then_send`] and [`Step::settled`].

use ringfold_proto::id::Rank;

/// A buffer of an operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum OpBuffer {
    /// The user's input. It is written only if the operation is in place and it is the target too.
    Source,
    /// The user's output.
    Target,
    /// Temporary memory of the size in the plan.
    Scratch,
}

/// Elements of one buffer: the content of one frame.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Region {
    /// The buffer.
    pub buffer: OpBuffer,
    /// The first element.
    pub offset: u64,
    /// The number of elements; may be 0 (a barrier's frames are empty).
    pub count: u32,
}

impl Region {
    /// The region of an empty frame.
    pub const EMPTY: Self = Self { buffer: OpBuffer::Scratch, offset: 0, count: 0 };

    /// The same elements of another buffer.
    pub fn at(self, buffer: OpBuffer) -> Self {
        Self { buffer, ..self }
    }
}

/// The left operand of a reduction: the one that contains the lowest rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// The local operand.
    Own,
    /// The received operand.
    Frame,
}

/// What a step does before it sends its region.
#[allow(missing_docs)] // Fields are named for what they hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Nothing.
    None,
    /// Copy a local region.
    Copy { own: Region },
    /// Store a received frame.
    Store { from: Rank },
    /// Reduce a received frame and a local region, which may be the step's region.
    Reduce { from: Rank, own: Region, left: Left },
    /// Reduce two local regions; one of them may be the step's region.
    Combine { left: Region, right: Region },
}

/// A step. Frames from and to a rank are in the order of the steps that receive and send them. Nothing else is ordered,
/// except by `after` and `fence`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// The action.
    pub action: Action,
    /// The region that is written and sent.
    pub region: Region,
    /// Whether the result is final: averages are divided, quantised values are rounded once. A settled region, or one
    /// stored from a settled frame, is sent verbatim.
    pub settle: bool,
    /// The receiver of the region.
    pub send: Option<Rank>,
    /// A step that must be done before this one.
    pub after: Option<u32>,
    /// Whether all frames of earlier steps must be flushed before this step, which overwrites their memory.
    pub fence: bool,
}

impl Step {
    fn new(action: Action, region: Region) -> Self {
        Self { action, region, settle: false, send: None, after: None, fence: false }
    }

    /// Sends a region.
    pub fn send(to: Rank, region: Region) -> Self {
        Self::new(Action::None, region).then_send(to)
    }

    /// Copies a local region.
    pub fn copy(own: Region, region: Region) -> Self {
        Self::new(Action::Copy { own }, region)
    }

    /// Stores a received frame.
    pub fn receive(from: Rank, region: Region) -> Self {
        Self::new(Action::Store { from }, region)
    }

    /// Reduces a received frame and a local region.
    pub fn receive_reduce(from: Rank, own: Region, region: Region, left: Left) -> Self {
        Self::new(Action::Reduce { from, own, left }, region)
    }

    /// Reduces two local regions.
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

    /// Waits until all earlier sends are flushed.
    pub fn fenced(self) -> Self {
        Self { fence: true, ..self }
    }

    /// The regions of the user's input that the step reads.
    pub fn inputs(&self) -> impl Iterator<Item = Region> + use<> {
        let own = match self.action {
            Action::None => [Some(self.region), None],
            Action::Store { .. } => [None, None],
            Action::Copy { own } | Action::Reduce { own, .. } => [Some(own), None],
            Action::Combine { left, right } => [Some(left), Some(right)],
        };
        own.into_iter().flatten().filter(|region| region.buffer == OpBuffer::Source)
    }

    /// Whether the step writes its region.
    pub fn writes(&self) -> bool {
        self.action != Action::None || self.settle
    }

    /// The sender of the frame that the step receives.
    pub fn receives_from(&self) -> Option<Rank> {
        match self.action {
            Action::Store { from } | Action::Reduce { from, .. } => Some(from),
            Action::None | Action::Copy { .. } | Action::Combine { .. } => None,
        }
    }
}
