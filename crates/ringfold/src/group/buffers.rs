//! The memory of a group's operations: its sizes, and how the links work on it.

use super::operation::{GroupBuffers, GroupSlices, Lengths, Request, Side};
use crate::all_reduce::HostBuffers;
use ringfold_fabric::memory::{Memory, View};
use ringfold_proto::descriptor::Collective;

impl GroupSlices<'_> {
    /// How many bytes they have.
    pub(super) fn lengths(&self) -> Lengths {
        match self {
            Self::InPlace(both) => Lengths::InPlace(both.len()),
            Self::Apart { input, output } => Lengths::Apart { input: input.len(), output: output.len() },
            Self::Pieces { input, output } => Lengths::Apart {
                input: input.iter().map(|piece| piece.len()).sum(),
                output: output.iter().map(|piece| piece.len()).sum(),
            },
        }
    }

    /// The output of a group of one: its input.
    pub(super) fn pass(self) {
        match self {
            Self::Apart { input, output } => output.copy_from_slice(input),
            Self::Pieces { input: [input], output: [output] } => output.copy_from_slice(input),
            Self::InPlace(_) | Self::Pieces { .. } => {}
        }
    }
}

/// Whether all of an output is the combination of inputs of its size.
pub(super) fn reduces(request: &Request) -> bool {
    matches!(request.descriptor.collective, Collective::AllReduce | Collective::Reduce { .. })
}

pub(super) fn lengths(buffers: &GroupBuffers) -> Lengths {
    match buffers {
        GroupBuffers::InPlace(both) => Lengths::InPlace(both.len()),
        GroupBuffers::Apart { input, output } => Lengths::Apart {
            input: input.iter().map(View::len).sum(),
            output: output.iter().map(Memory::len).sum(),
        },
    }
}

/// What the links work on, and what it takes to give it back as it came.
pub(super) fn on_host(buffers: GroupBuffers, side: Side) -> (HostBuffers, Unpack) {
    match (buffers, side) {
        (GroupBuffers::InPlace(both), Side::Both | Side::Output) => {
            (HostBuffers::InPlace(both), Unpack::AsIs)
        }
        (GroupBuffers::InPlace(both), Side::Input) => {
            let target = Memory::zeroed(0);
            (HostBuffers::OutOfPlace { source: both.into_view(), target }, Unpack::AsIs)
        }
        (GroupBuffers::Apart { mut input, mut output }, _) if input.len() <= 1 && output.len() <= 1 => {
            let source = input.pop().unwrap_or_else(|| Memory::zeroed(0).into_view());
            let target = output.pop().unwrap_or_else(|| Memory::zeroed(0));
            (HostBuffers::OutOfPlace { source, target }, Unpack::AsIs)
        }
        (GroupBuffers::Apart { input, output }, _) => {
            let source = input.iter().map(View::as_slice).collect::<Vec<_>>().concat();
            // What this rank has no use for stays as it is.
            let used = if side == Side::Input { &[][..] } else { &output[..] };
            let target = Memory::zeroed(used.iter().map(Memory::len).sum());
            (HostBuffers::OutOfPlace { source: View::from(source), target }, Unpack::Pieces { input, output })
        }
    }
}

/// How memory that was packed comes back.
pub(super) enum Unpack {
    AsIs,
    Pieces { input: Vec<View>, output: Vec<Memory> },
}

impl Unpack {
    /// What a failed operation has left stays where it is.
    pub(super) fn finish(self, buffers: Option<HostBuffers>, is_good: bool) -> GroupBuffers {
        match (self, buffers) {
            (Self::Pieces { input, mut output }, packed) => {
                if let Some(HostBuffers::OutOfPlace { target, .. }) = packed.filter(|_| is_good) {
                    let mut rest = target.as_slice();
                    for piece in &mut output {
                        let Some((bytes, others)) = rest.split_at_checked(piece.len()) else { break };
                        piece.as_mut_slice().copy_from_slice(bytes);
                        rest = others;
                    }
                }
                GroupBuffers::Apart { input, output }
            }
            (Self::AsIs, Some(buffers)) => GroupBuffers::from(buffers),
            (Self::AsIs, None) => GroupBuffers::Apart { input: Vec::new(), output: Vec::new() },
        }
    }
}

impl From<HostBuffers> for GroupBuffers {
    fn from(buffers: HostBuffers) -> Self {
        match buffers {
            HostBuffers::InPlace(both) => Self::InPlace(both),
            HostBuffers::OutOfPlace { source, target } => {
                Self::Apart { input: vec![source], output: vec![target] }
            }
        }
    }
}
