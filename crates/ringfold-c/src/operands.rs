//! What C asks of an all-reduce, looked at before anything is done.

use crate::result::Failure;
use crate::span::Span;
use crate::types::{QuantizationOptions, ReduceDescriptor};
use core::ffi::{c_int, c_void};
use ringfold::{
    AllReduce, Buffers, DType, Memory, Quantization, QuantizationAlgorithm, ReduceOp, Reduction, View,
};

/// An all-reduce whose arguments are sound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operands {
    pub send: Span,
    pub recv: Span,
    pub tag: u64,
    dtype: DType,
    options: AllReduce,
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
}

impl Operands {
    pub fn checked(
        sendbuf: *const c_void,
        recvbuf: *mut c_void,
        descriptor: &ReduceDescriptor,
    ) -> Result<Self, Failure> {
        let dtype = dtype(descriptor.src_descriptor.datatype)?;
        let hint = descriptor.src_descriptor.distribution_hint;
        if !(0..=2).contains(&hint) {
            return Err(Failure::argument(format!("{hint} is no distribution hint")));
        }
        let send = Span::of("sendbuf", sendbuf, descriptor.count, dtype)?;
        let recv = Span::of("recvbuf", recvbuf, descriptor.count, dtype)?;
        if send != recv && send.overlaps(recv) {
            return Err(Failure::argument("sendbuf and recvbuf overlap, and are not the same"));
        }
        let mut options = AllReduce::new(operation(descriptor.op)?).tag(descriptor.tag);
        if let Some(quantization) = quantization(&descriptor.quantization_options)? {
            options = options.quantized(quantization);
        }
        Ok(Self { send, recv, tag: descriptor.tag, dtype, options, sendbuf, recvbuf })
    }

    /// The operation with its memory.
    ///
    /// # Safety
    /// Until the operation has ended, the receive buffer is valid and nobody else's, and the send buffer is
    /// valid and not written.
    pub unsafe fn reduction(&self) -> Reduction {
        // SAFETY: the caller's promise.
        let target = unsafe { Memory::borrowed(self.recvbuf.cast(), self.recv.bytes) };
        let buffers = if self.send == self.recv {
            Buffers::InPlace(target)
        } else {
            // SAFETY: the caller's promise; the two do not overlap.
            let source = unsafe { View::borrowed(self.sendbuf.cast(), self.send.bytes) };
            Buffers::OutOfPlace { source, target }
        };
        Reduction { dtype: self.dtype, buffers, options: self.options }
    }
}

/// Whether one of several operations writes what another one uses.
pub(crate) fn require_apart(operands: &[Operands]) -> Result<(), Failure> {
    // By start, so that only what was begun and has not ended needs to be looked at.
    let spans = |(i, o): (usize, &Operands)| [(o.recv, true, i), (o.send, false, i)];
    let mut spans: Vec<_> = operands.iter().enumerate().flat_map(spans).filter(|s| s.0.bytes > 0).collect();
    spans.sort_unstable();
    let mut open: Vec<(Span, bool, usize)> = Vec::new();
    for next in spans {
        open.retain(|o| o.0.overlaps(next.0));
        if let Some(other) = open.iter().find(|o| o.2 != next.2 && (o.1 || next.1)) {
            return Err(Failure::argument(format!(
                "the buffers of tag {} and tag {} overlap",
                operands[other.2].tag, operands[next.2].tag
            )));
        }
        open.push(next);
    }
    Ok(())
}

/// The element type with this number.
pub(crate) fn dtype(number: c_int) -> Result<DType, Failure> {
    // The types after these have no name in pccl.h.
    let known = u8::try_from(number).ok().filter(|n| *n <= DType::F64 as u8).and_then(DType::from_number);
    known.ok_or_else(|| Failure::argument(format!("{number} is no data type")))
}

fn operation(number: c_int) -> Result<ReduceOp, Failure> {
    let known =
        u8::try_from(number).ok().filter(|n| *n <= ReduceOp::Min as u8).and_then(ReduceOp::from_number);
    known.ok_or_else(|| Failure::argument(format!("{number} is no reduce operation")))
}

fn quantization(options: &QuantizationOptions) -> Result<Option<Quantization>, Failure> {
    let algorithm = match options.algorithm {
        0 => return Ok(None),
        1 => QuantizationAlgorithm::MinMax,
        2 => QuantizationAlgorithm::ZeroPointScale,
        other => return Err(Failure::argument(format!("{other} is no quantisation algorithm"))),
    };
    Ok(Some(Quantization { algorithm, dtype: dtype(options.quantized_datatype)? }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ReduceOperandDescriptor;

    fn descriptor(count: usize) -> ReduceDescriptor {
        ReduceDescriptor {
            count,
            op: 0,
            tag: 0,
            src_descriptor: ReduceOperandDescriptor { datatype: 10, distribution_hint: 0 },
            quantization_options: QuantizationOptions { quantized_datatype: 0, algorithm: 0 },
        }
    }

    fn at(send: usize, recv: usize) -> Operands {
        checked(send, recv).unwrap()
    }

    fn checked(send: usize, recv: usize) -> Result<Operands, Failure> {
        let send: *const c_void = core::ptr::without_provenance(send);
        Operands::checked(send, core::ptr::without_provenance_mut(recv), &descriptor(4))
    }

    #[test]
    fn numbers_that_are_no_enum_values_are_refused() {
        for number in [-1, 12, 13, 256, c_int::MAX] {
            assert!(dtype(number).is_err() && operation(number).is_err(), "{number}");
        }
        assert!(operation(5).is_err(), "pccl.h has no premultiplied sum");
        assert_eq!(dtype(9), Ok(DType::BF16));
    }

    #[test]
    fn without_an_algorithm_the_quantised_type_may_be_anything() {
        let options = |quantized_datatype, algorithm| QuantizationOptions { quantized_datatype, algorithm };
        assert_eq!(quantization(&options(99, 0)), Ok(None));
        assert!(quantization(&options(99, 1)).is_err() && quantization(&options(0, 3)).is_err());
    }

    #[test]
    fn buffers_are_the_same_or_apart() {
        assert!(checked(4096, 4096).is_ok() && checked(4096, 4112).is_ok());
        assert!(checked(4096, 4111).is_err() && checked(4111, 4096).is_err());
    }

    #[test]
    fn several_may_read_the_same_memory_and_none_may_write_what_another_uses() {
        assert!(require_apart(&[at(4096, 8192), at(4096, 9000)]).is_ok());
        assert!(require_apart(&[at(4096, 4096), at(8192, 8192)]).is_ok());
        assert!(require_apart(&[at(4096, 8192), at(5000, 8200)]).is_err());
        assert!(require_apart(&[at(4096, 8192), at(8192, 9000)]).is_err());
    }
}
