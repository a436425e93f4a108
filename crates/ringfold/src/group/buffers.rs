//! The buffers of a group's operations: their lengths, and how links use them.

use super::operation::{BufferLengths, BufferUse, GroupBuffers, GroupSlices, OperationRequest};
use crate::all_reduce::HostBuffers;
use ringfold_fabric::memory::{Memory, View};
use ringfold_proto::descriptor::Collective;

impl GroupSlices<'_> {
    pub(super) fn lengths(&self) -> BufferLengths {
        match self {
            Self::InPlace(both) => BufferLengths::InPlace(both.len()),
            Self::OutOfPlace { input, output } => {
                BufferLengths::OutOfPlace { input: input.len(), output: output.len() }
            }
            Self::Pieces { input, output } => BufferLengths::OutOfPlace {
                input: input.iter().map(|piece| piece.len()).sum(),
                output: output.iter().map(|piece| piece.len()).sum(),
            },
        }
    }

    /// Copies the input to the output: any collective in a group of one rank.
    pub(super) fn copy_through(self) {
        match self {
            Self::OutOfPlace { input, output } => output.copy_from_slice(input),
            Self::Pieces { input: [input], output: [output] } => output.copy_from_slice(input),
            Self::InPlace(_) | Self::Pieces { .. } => {}
        }
    }
}

/// Whether the output is a reduction of inputs of the same size.
pub(super) fn reduces(request: &OperationRequest) -> bool {
    matches!(request.descriptor.collective, Collective::AllReduce | Collective::Reduce { .. })
}

pub(super) fn lengths(buffers: &GroupBuffers) -> BufferLengths {
    match buffers {
        GroupBuffers::InPlace(both) => BufferLengths::InPlace(both.len()),
        GroupBuffers::OutOfPlace { input, output } => BufferLengths::OutOfPlace {
            input: input.iter().map(View::len).sum(),
            output: output.iter().map(Memory::len).sum(),
        },
    }
}

/// The buffers for the links, and how to convert them back.
pub(super) fn on_host(buffers: GroupBuffers, buffer_use: BufferUse) -> (HostBuffers, Unpack) {
    match (buffers, buffer_use) {
        (GroupBuffers::InPlace(both), BufferUse::ReadWrite | BufferUse::Write) => {
            (HostBuffers::InPlace(both), Unpack::AsIs)
        }
        (GroupBuffers::InPlace(both), BufferUse::Read) => {
            let target = Memory::zeroed(0);
            (HostBuffers::OutOfPlace { source: both.into_view(), target }, Unpack::AsIs)
        }
        (GroupBuffers::OutOfPlace { mut input, mut output }, _) if input.len() <= 1 && output.len() <= 1 => {
            let source = input.pop().unwrap_or_else(|| Memory::zeroed(0).into_view());
            let target = output.pop().unwrap_or_else(|| Memory::zeroed(0));
            (HostBuffers::OutOfPlace { source, target }, Unpack::AsIs)
        }
        (GroupBuffers::OutOfPlace { input, output }, _) => {
            let source = input.iter().map(View::as_slice).collect::<Vec<_>>().concat();
            // An unused output is not touched.
            let used = if buffer_use == BufferUse::Read { &[][..] } else { &output[..] };
            let target = Memory::zeroed(used.iter().map(Memory::len).sum());
            (HostBuffers::OutOfPlace { source: View::from(source), target }, Unpack::Pieces { input, output })
        }
    }
}

/// Converts the buffers of a finished operation back.
pub(super) enum Unpack {
    AsIs,
    Pieces { input: Vec<View>, output: Vec<Memory> },
}

impl Unpack {
    /// Lists of outputs are written only if the operation succeeded.
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
                GroupBuffers::OutOfPlace { input, output }
            }
            (Self::AsIs, Some(buffers)) => GroupBuffers::from(buffers),
            (Self::AsIs, None) => GroupBuffers::OutOfPlace { input: Vec::new(), output: Vec::new() },
        }
    }
}

impl From<HostBuffers> for GroupBuffers {
    fn from(buffers: HostBuffers) -> Self {
        match buffers {
            HostBuffers::InPlace(both) => Self::InPlace(both),
            HostBuffers::OutOfPlace { source, target } => {
                Self::OutOfPlace { input: vec![source], output: vec![target] }
            }
        }
    }
}
