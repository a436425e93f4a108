//! What C asks of an all-reduce: looked at, and made into memory.

use crate::types::ReduceDescriptor;
use core::ffi::c_void;
use ringfold::{AllReduce, Buffers, Memory, Reduction, View};
use ringfold_face::number;
use ringfold_face::operands::Operands;
use ringfold_face::result::Failure;
use ringfold_face::span::Span;

/// An all-reduce whose arguments are sound, with the pointers that C gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub operands: Operands,
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
}

impl Request {
    pub fn checked(
        sendbuf: *const c_void,
        recvbuf: *mut c_void,
        descriptor: &ReduceDescriptor,
    ) -> Result<Self, Failure> {
        let ReduceDescriptor { count, op, tag, src_descriptor, quantization_options } = *descriptor;
        let dtype = number::dtype(src_descriptor.datatype)?;
        number::distribution_hint(src_descriptor.distribution_hint)?;
        let send = Span::of("sendbuf", sendbuf, count, dtype)?;
        let recv = Span::of("recvbuf", recvbuf, count, dtype)?;
        let mut options = AllReduce::new(number::operation(op)?);
        let (algorithm, quantized) =
            (quantization_options.algorithm, quantization_options.quantized_datatype);
        if let Some(quantization) = number::quantization(algorithm, quantized)? {
            options = options.quantized(quantization);
        }
        let operands = Operands::checked(send, recv, dtype, tag, options)?;
        Ok(Self { operands, sendbuf, recvbuf })
    }

    /// The operation with its memory.
    ///
    /// # Safety
    /// Until the operation has ended, the receive buffer is valid and nobody else's, and the send buffer is
    /// valid and not written.
    pub unsafe fn reduction(&self) -> Reduction {
        let Operands { send, recv, dtype, options, .. } = self.operands;
        // SAFETY: the caller's promise.
        let target = unsafe { Memory::borrowed(self.recvbuf.cast(), recv.bytes) };
        let buffers = if self.operands.is_in_place() {
            Buffers::InPlace(target)
        } else {
            // SAFETY: the caller's promise; the two do not overlap.
            let source = unsafe { View::borrowed(self.sendbuf.cast(), send.bytes) };
            Buffers::OutOfPlace { source, target }
        };
        Reduction { dtype, buffers, options }
    }
}
