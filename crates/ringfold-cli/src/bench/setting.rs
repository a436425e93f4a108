//! What the processes of a set of points have in common.

use super::variant::Variant;
use clap::ValueEnum;
use ringfold::Quantization;

/// The transport between the ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub(crate) enum BenchMedium {
    /// A group of fixed ranks over shared memory
    Shm,
    /// A group of fixed ranks over TCP on loopback
    Tcp,
    /// The same, encrypted
    Tls,
    /// An elastic run with a master; only all_reduce
    Elastic,
    /// An elastic run on emulated hosts
    #[value(skip)]
    Lab,
}

impl BenchMedium {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Elastic => "elastic",
            Self::Lab => "lab",
        }
    }
}

/// Whether ranks are bound to cores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Bind {
    /// The default of each system: Open MPI binds ranks to cores, Ringfold and Gloo do not
    Own,
    /// No rank is bound
    None,
    /// Rank r is bound to core r, modulo the number of cores
    Core,
}

impl Bind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::None => "none",
            Self::Core => "core",
        }
    }
}

/// The world, transport and binding of a set of points.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Setting {
    pub(crate) medium: BenchMedium,
    pub(crate) world: usize,
    /// The number of operations that share a payload.
    pub(crate) concurrent: usize,
    pub(crate) bind: Bind,
    /// The quantisation of all-reduces.
    pub(crate) quantization: Option<Quantization>,
    pub(crate) variant: Variant,
    /// Whether buffers are allocated in shared memory.
    pub(crate) shared_buffers: bool,
}

impl Setting {
    /// The core that a rank is bound to, if it is.
    pub(crate) fn core(&self, rank: usize) -> Option<usize> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        (self.bind == Bind::Core).then_some(rank % cores)
    }
}
