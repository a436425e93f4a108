//! How CUDA fails, in words for whoever owns the tensors.

use crate::api::{Api, Code, OUT_OF_MEMORY, SUCCESS};
use core::time::Duration;

/// Why a device, or memory of it, can't be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no driver, or it does not work.
    #[error("no CUDA driver here: {0}")]
    NoDriver(String),
    /// There is no such device.
    #[error("there is no CUDA device {0} here")]
    NoDevice(i32),
    /// An address is not in a device's memory.
    #[error("{0:#x} is no address in the memory of a CUDA device")]
    NotOnDevice(u64),
    /// The device has not enough memory.
    #[error("CUDA device {device} has no {bytes} bytes of memory left")]
    OutOfMemory {
        /// Its number.
        device: i32,
        /// What was asked for.
        bytes: usize,
    },
    /// The host has not enough memory that can be locked.
    #[error("there are no {0} bytes of page-locked memory to stage CUDA tensors in")]
    OutOfPinnedMemory(usize),
    /// The driver refused something.
    #[error("{what}: {why}")]
    Refused {
        /// What was being done.
        what: &'static str,
        /// What the driver says.
        why: String,
        /// The driver's number for that.
        code: i32,
    },
    /// A device did not do something in time.
    #[error("{what}: the CUDA device was not done after {after:?}")]
    Late {
        /// What was being done.
        what: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// An argument can't be used.
    #[error("{0}")]
    Argument(String),
    /// This driver, device or kind of memory can't do that.
    #[error("{0}")]
    Unsupported(String),
}

impl CudaError {
    /// The driver's number for it, or 0.
    pub fn code(&self) -> i32 {
        match self {
            Self::Refused { code, .. } => *code,
            Self::OutOfMemory { .. } | Self::OutOfPinnedMemory(_) => OUT_OF_MEMORY,
            _ => 0,
        }
    }

    /// What sort of failure it is, in a word: `cuda`, `argument`, `timeout` or `unsupported`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Refused { .. } | Self::OutOfMemory { .. } | Self::OutOfPinnedMemory(_) => "cuda",
            Self::NoDevice(_) | Self::NotOnDevice(_) | Self::Argument(_) => "argument",
            Self::Late { .. } => "timeout",
            Self::NoDriver(_) | Self::Unsupported(_) => "unsupported",
        }
    }
}

/// Nothing, or why it failed.
pub(crate) fn check(api: &Api, what: &'static str, code: Code) -> Result<(), CudaError> {
    if code == SUCCESS {
        return Ok(());
    }
    Err(CudaError::Refused { what, why: api.words(code), code })
}

/// As [`check`], of an allocation.
pub(crate) fn check_memory(
    api: &Api,
    what: &'static str,
    code: Code,
    lacking: CudaError,
) -> Result<(), CudaError> {
    if code == OUT_OF_MEMORY { Err(lacking) } else { check(api, what, code) }
}
