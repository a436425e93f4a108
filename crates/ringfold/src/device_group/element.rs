//! The names of element types and operations in kernels.

use crate::Error;
use crate::error::invalid;
use ringfold_proto::dtype::DType;
use ringfold_proto::reduce_op::ReduceOp;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KernelElement {
    pub(crate) name: &'static str,
    pub(crate) bytes: usize,
    /// Kernel elements per element of the data type: 2 for complex numbers.
    pub(crate) parts: u64,
}

pub(crate) fn reduced(dtype: DType) -> KernelElement {
    let (name, parts) = match dtype {
        DType::U8 => ("U8", 1),
        DType::I8 => ("I8", 1),
        DType::U16 => ("U16", 1),
        DType::I16 => ("I16", 1),
        DType::U32 => ("U32", 1),
        DType::I32 => ("I32", 1),
        DType::U64 => ("U64", 1),
        DType::I64 => ("I64", 1),
        DType::F16 => ("F16", 1),
        DType::BF16 => ("BF16", 1),
        DType::F32 => ("F32", 1),
        DType::F64 => ("F64", 1),
        DType::C64 => ("F32", 2),
        DType::C128 => ("F64", 2),
    };
    KernelElement { name, bytes: dtype.bytes() / parts as usize, parts }
}

/// The operation of kernels that only move data: any, since they do not use it.
pub(super) const MOVE: &str = "Sum";

/// The kernel element for copies: only the size matters.
pub(super) fn moved(dtype: DType) -> KernelElement {
    let (name, bytes) = match dtype.bytes() {
        1 => ("U8", 1),
        2 => ("U16", 2),
        4 => ("U32", 4),
        _ => ("U64", 8),
    };
    KernelElement { name, bytes, parts: (dtype.bytes() / bytes) as u64 }
}

pub(crate) fn operation(op: ReduceOp, dtype: DType) -> Result<&'static str, Error> {
    if !op.supports(dtype) {
        return Err(invalid!("unsupported reduction {op} for {dtype}"));
    }
    Ok(match op {
        ReduceOp::Sum => "Sum",
        ReduceOp::Avg => "Avg",
        ReduceOp::Prod => "Prod",
        ReduceOp::Max => "Max",
        ReduceOp::Min => "Min",
        ReduceOp::BitAnd => "BitAnd",
        ReduceOp::BitOr => "BitOr",
        ReduceOp::BitXor => "BitXor",
        ReduceOp::PremulSum => {
            return Err(invalid!(
                "unsupported reduction premul_sum on CUDA devices: multiply first, then sum"
            ));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_elements_have_the_size_of_data_types() {
        for &dtype in DType::ALL {
            for element in [reduced(dtype), moved(dtype)] {
                assert_eq!(element.bytes * element.parts as usize, dtype.bytes(), "{dtype}");
                assert!(element.name.ends_with(&(element.bytes * 8).to_string()), "{dtype}: {element:?}");
            }
        }
    }

    #[test]
    fn unsupported_operations_are_rejected() {
        let refused = |op, dtype| operation(op, dtype).unwrap_err().to_string();
        assert_eq!(refused(ReduceOp::BitAnd, DType::F32), "unsupported reduction band for float32");
        assert!(refused(ReduceOp::PremulSum, DType::F32).contains("multiply first"));
        for &op in ReduceOp::ALL.iter().filter(|op| **op != ReduceOp::PremulSum) {
            assert!(operation(op, DType::I32).is_ok(), "{op}");
        }
    }
}
