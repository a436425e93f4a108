//! Checks the arguments of an all-reduce and wraps its buffers.

use crate::types::ReduceDescriptor;
use core::ffi::c_void;
use ringfold::cuda::{CudaError, DeviceMemory, Gpu};
use ringfold::{AllReduce, Buffers, Memory, Reduction, View};
use ringfold_bindings::address_range::AddressRange;
use ringfold_bindings::all_reduce_args::AllReduceArgs;
use ringfold_bindings::communicator_handle::CommunicatorHandle;
use ringfold_bindings::enum_values;
use ringfold_bindings::result::CallError;

/// An all-reduce with checked arguments, and the pointers from C.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub operands: AllReduceArgs,
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
}

impl Request {
    pub fn checked(
        sendbuf: *const c_void,
        recvbuf: *mut c_void,
        descriptor: &ReduceDescriptor,
        session: &CommunicatorHandle,
    ) -> Result<Self, CallError> {
        let ReduceDescriptor { count, op, tag, src_descriptor, quantization_options } = *descriptor;
        let dtype = enum_values::parse_dtype(src_descriptor.datatype)?;
        enum_values::check_distribution_hint(src_descriptor.distribution_hint)?;
        let send = AddressRange::of("sendbuf", sendbuf, count, dtype)?;
        let recv = AddressRange::of("recvbuf", recvbuf, count, dtype)?;
        let mut options = AllReduce::new(enum_values::parse_reduce_op(op)?);
        let (algorithm, quantized) =
            (quantization_options.algorithm, quantization_options.quantized_datatype);
        if let Some(quantization) = enum_values::parse_quantization(algorithm, quantized)? {
            options = options.quantized(quantization);
        }
        let options = session.with_settings(options);
        let operands = AllReduceArgs::new(send, recv, dtype, tag, options)?;
        Ok(Self { operands, sendbuf, recvbuf })
    }

    /// The operation with its buffers.
    ///
    /// # Safety
    /// Until the operation has ended, the receive buffer is valid and nobody else's, and the send buffer is
    /// valid and not written.
    pub unsafe fn reduction(&self) -> Result<Reduction, CallError> {
        let AllReduceArgs { send, recv, dtype, options, .. } = self.operands;
        let in_place = self.operands.is_in_place();
        let of_device = is_on_device(send);
        if !in_place && is_on_device(recv) != of_device {
            return Err(CallError::invalid_argument(
                "invalid buffers: one is in the memory of a CUDA device, the other is not",
            ));
        }
        if of_device {
            // SAFETY: the caller's promise.
            let buffers = unsafe { device_buffers(send, recv) }
                .map_err(|e| CallError::invalid_argument(e.to_string()))?;
            return Ok(Reduction { dtype, buffers, options });
        }
        // SAFETY: the caller's promise.
        let target = unsafe { Memory::kept(self.recvbuf.cast(), recv.bytes, Box::new(())) };
        let buffers = if in_place {
            Buffers::InPlace(target)
        } else {
            // SAFETY: the caller's promise; the two do not overlap.
            let source = unsafe { View::kept(self.sendbuf.cast(), send.bytes, Box::new(())) };
            Buffers::OutOfPlace { source, target }
        };
        Ok(Reduction { dtype, buffers, options })
    }
}

/// Whether a range is in the memory of a CUDA device.
fn is_on_device(span: AddressRange) -> bool {
    span.bytes > 0 && Gpu::is_on_device(span.start as u64)
}

/// # Safety
/// As of `Request::reduction`.
unsafe fn device_buffers(send: AddressRange, recv: AddressRange) -> Result<Buffers, CudaError> {
    // SAFETY: the caller's promise; nothing has to be kept for it.
    let borrowed =
        |span: AddressRange| unsafe { DeviceMemory::borrowed(span.start as u64, span.bytes, Box::new(())) };
    let source = borrowed(send)?;
    let target = if send == recv { source.clone() } else { borrowed(recv)? };
    Ok(Buffers::Device { source, target })
}
