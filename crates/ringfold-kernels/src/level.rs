//! The instruction sets of the kernels, detected at run time.

use crate::isa::{Isa, Portable};
use core::fmt;
use std::sync::OnceLock;

/// An instruction set that the kernels are compiled for.
///
/// All levels give bit-identical results. The plain functions of this crate use [`Level::detect`]; the `…_at` forms take
/// a level, for tests and benchmarks.
///
/// ```
/// use ringfold_kernels::Level;
///
/// assert!(Level::available().contains(&Level::Scalar));
/// assert!(Level::available().contains(&Level::detect()));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Level {
    /// The target's baseline, without intrinsics.
    Scalar,
    /// x86-64 with AVX2 and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL, besides AVX2 and F16C.
    Avx512,
    /// 64-bit ARM with NEON.
    Neon,
}

impl Level {
    /// All levels, supported or not.
    pub const ALL: &'static [Self] = &[Self::Scalar, Self::Avx2, Self::Avx512, Self::Neon];

    /// The fastest level of this machine, detected once per process.
    pub fn detect() -> Self {
        static DETECTED: OnceLock<Level> = OnceLock::new();
        *DETECTED.get_or_init(|| {
            let fastest_first = [Self::Avx512, Self::Avx2, Self::Neon];
            fastest_first.into_iter().find(|level| level.is_supported()).unwrap_or(Self::Scalar)
        })
    }

    /// The levels that this machine has.
    pub fn available() -> Vec<Self> {
        Self::ALL.iter().copied().filter(|level| level.is_supported()).collect()
    }

    /// Whether this machine has the level's instructions.
    pub fn is_supported(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_supported()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// Runs `kernel` compiled for this level.
    ///
    /// # Panics
    /// If this machine does not have the level.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // Nearly all calls use the detected level.
        assert!(self == Self::detect() || self.is_supported(), "unsupported instruction set {self}");
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the assertion above found AVX2 and F16C.
            Self::Avx2 => unsafe { run_avx2(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the assertion above found AVX-512 F, BW, DQ and VL, AVX2 and F16C.
            Self::Avx512 => unsafe { run_avx512(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: the assertion above found NEON.
            Self::Neon => unsafe { run_neon(kernel) },
            _ => kernel.run(Portable),
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "AVX2",
            Self::Avx512 => "AVX-512",
            Self::Neon => "NEON",
        })
    }
}

/// A loop that is compiled once for each level.
///
/// `run` and all functions it calls must be `#[inline(always)]`: inlined code is compiled for the instruction set of its
/// caller, which is how one plain loop becomes several vector loops.
pub(crate) trait Kernel {
    type Output;

    fn run<I: Isa>(self, isa: I) -> Self::Output;
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(crate::isa::Avx2::new())
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(crate::isa::Avx512::new())
}

// LLVM vectorises plain loops, including the conversions of 16-bit floats, to NEON.
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
fn run_neon<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Portable)
}
