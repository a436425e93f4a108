//! Errors of devices and their memory.

use crate::api::{Api, Code, OUT_OF_MEMORY, SUCCESS};
use core::time::Duration;

/// Why an operation on a device or its memory failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no driver, or it does not work.
    #[error("no CUDA driver: {0}")]
    NoDriver(String),
    /// There is no device with this number.
    #[error("unknown CUDA device {0}")]
    NoDevice(i32),
    /// An address is not in a device's memory.
    #[error("{0:#x} is not an address in CUDA device memory")]
    NotOnDevice(u64),
    /// The device has not enough free memory.
    #[error("out of memory on CUDA device {device}: failed to allocate {bytes} bytes")]
    OutOfMemory {
        /// The device's number.
        device: i32,
        /// The size of the failed allocation.
        bytes: usize,
    },
    /// The host has not enough memory that can be page-locked.
    #[error("out of page-locked host memory: failed to allocate {0} bytes to stage CUDA tensors")]
    OutOfPinnedMemory(usize),
    /// A driver call failed.
    #[error("{what}: {why}")]
    Driver {
        /// The operation.
        what: &'static str,
        /// The driver's text.
        why: String,
        /// The driver's error code.
        code: i32,
    },
    /// A device did not complete its work before the deadline.
    #[error("{what}: timed out after {after:?}")]
    TimedOut {
        /// The operation.
        what: &'static str,
        /// How long the caller waited.
        after: Duration,
    },
    /// An argument is invalid.
    #[error("{0}")]
    Argument(String),
    /// This driver, device or kind of memory does not support the operation.
    #[error("{0}")]
    Unsupported(String),
}

impl CudaError {
    /// The driver's error code, or 0.
    pub fn code(&self) -> i32 {
        match self {
            Self::Driver { code, .. } => *code,
            Self::OutOfMemory { .. } | Self::OutOfPinnedMemory(_) => OUT_OF_MEMORY,
            _ => 0,
        }
    }

    /// The category: `cuda`, `argument`, `timeout` or `unsupported`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Driver { .. } | Self::OutOfMemory { .. } | Self::OutOfPinnedMemory(_) => "cuda",
            Self::NoDevice(_) | Self::NotOnDevice(_) | Self::Argument(_) => "argument",
            Self::TimedOut { .. } => "timeout",
            Self::NoDriver(_) | Self::Unsupported(_) => "unsupported",
        }
    }
}

pub(crate) fn check(api: &Api, what: &'static str, code: Code) -> Result<(), CudaError> {
    if code == SUCCESS {
        return Ok(());
    }
    Err(CudaError::Driver { what, why: api.describe(code), code })
}

/// As [`check`], for an allocation: returns `lacking` if memory ran out.
pub(crate) fn check_memory(
    api: &Api,
    what: &'static str,
    code: Code,
    lacking: CudaError,
) -> Result<(), CudaError> {
    if code == OUT_OF_MEMORY { Err(lacking) } else { check(api, what, code) }
}
