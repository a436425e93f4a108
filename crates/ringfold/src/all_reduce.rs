//! What an all-reduce is asked to do, and what it reports.

use crate::Error;
use core::time::Duration;
use ringfold_cuda::DeviceMemory;
use ringfold_fabric::memory::{Memory, View};
use ringfold_proto::descriptor::{Descriptor, Weight};
use ringfold_proto::dtype::{DType, Kind};
use ringfold_proto::quantization::Quantization;
use ringfold_proto::reduce_op::ReduceOp;

/// The options of an all-reduce. All peers of the group must give the same, but for weight and deadline.
///
/// ```
/// use ringfold::{AllReduce, DType, Quantization, QuantizationAlgorithm};
/// use std::time::Duration;
///
/// let plain = AllReduce::sum();
/// let other = AllReduce::avg()
///     .tag(3)
///     .quantized(Quantization { algorithm: QuantizationAlgorithm::MinMax, dtype: DType::U8 })
///     .deadline(Duration::from_secs(60));
/// # let _ = (plain, other);
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AllReduce {
    pub(crate) op: ReduceOp,
    pub(crate) tag: u64,
    pub(crate) quantization: Option<Quantization>,
    pub(crate) weight: Option<f64>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) reproducible: bool,
}

impl AllReduce {
    /// With this operation, under tag 0.
    pub fn new(op: ReduceOp) -> Self {
        Self { op, tag: 0, quantization: None, weight: None, deadline: None, reproducible: false }
    }

    /// The sum of all.
    pub fn sum() -> Self {
        Self::new(ReduceOp::Sum)
    }

    /// The sum of all, divided by their number.
    pub fn avg() -> Self {
        Self::new(ReduceOp::Avg)
    }

    /// The product of all.
    pub fn prod() -> Self {
        Self::new(ReduceOp::Prod)
    }

    /// The largest of all.
    pub fn max() -> Self {
        Self::new(ReduceOp::Max)
    }

    /// The smallest of all.
    pub fn min() -> Self {
        Self::new(ReduceOp::Min)
    }

    /// Operations that are in flight at the same time have different tags.
    pub fn tag(self, tag: u64) -> Self {
        Self { tag, ..self }
    }

    /// Fewer bits on the wire than in memory.
    pub fn quantized(self, quantization: Quantization) -> Self {
        Self { quantization: Some(quantization), ..self }
    }

    /// The share of this peer in an average of floats: each value counts as often as its peer's weight says, and the
    /// sum is divided by the sum of the weights. Every peer must give one, 1.0 perhaps.
    pub fn weight(self, weight: f64) -> Self {
        Self { weight: Some(weight), ..self }
    }

    /// Give up, for the whole group, after so long.
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// The order of the operands depends on who takes part, not on the ring.
    pub fn reproducible(self) -> Self {
        Self { reproducible: true, ..self }
    }

    /// What the protocol calls it.
    pub(crate) fn descriptor(&self, dtype: DType, count: u64) -> Result<Descriptor, Error> {
        if let Some(quantization) = self.quantization
            && !quantization.supports(dtype, self.op)
        {
            return Err(Error::BadArgument(format!(
                "{:?} to {} can't be used for {} of {dtype}",
                quantization.algorithm, quantization.dtype, self.op
            )));
        }
        let weight = match self.weight {
            None => None,
            Some(_)
                if self.op != ReduceOp::Avg || dtype.kind() != Kind::Float || self.quantization.is_some() =>
            {
                return Err(Error::BadArgument(
                    "a weight can be given for an average of floats that is not quantised".into(),
                ));
            }
            Some(weight) => Some(Weight::new(weight).ok_or_else(|| {
                Error::BadArgument(format!("a weight is finite and not negative, and not {weight}"))
            })?),
        };
        let deadline_ms =
            self.deadline.map_or(0, |d| u32::try_from(d.as_millis()).unwrap_or(u32::MAX).max(1));
        let (op, reproducible) = (self.op, self.reproducible);
        // The sum of the weights travels as one more element.
        let count = count + u64::from(weight.is_some());
        let base = Descriptor::all_reduce(count, dtype, op);
        Ok(Descriptor { quantization: self.quantization, weight, reproducible, deadline_ms, ..base })
    }
}

/// The memory of an all-reduce.
#[derive(Debug)]
pub enum Buffers {
    /// The result replaces the input. What is overwritten is kept until the outcome is known.
    InPlace(Memory),
    /// The input stays as it is. The result's memory is undefined after a failure.
    OutOfPlace {
        /// The input.
        source: View,
        /// The result; as long as the input.
        target: Memory,
    },
    /// Memory of CUDA devices, which is staged through the host. After a failure it is as before.
    Device {
        /// The input.
        source: DeviceMemory,
        /// The result; as long as the input, and perhaps the same.
        target: DeviceMemory,
    },
}

/// The memory of an all-reduce that the data plane works on.
#[derive(Debug)]
pub(crate) enum HostBuffers {
    InPlace(Memory),
    OutOfPlace { source: View, target: Memory },
}

/// What has to be staged: input and result.
pub(crate) type DevicePair = (DeviceMemory, DeviceMemory);

impl Buffers {
    /// How many elements there are, if the buffers fit each other and the type.
    pub(crate) fn check(&self, dtype: DType) -> Result<u64, Error> {
        let bytes = self.len();
        let target_bytes = match self {
            Self::InPlace(_) => bytes,
            Self::OutOfPlace { target, .. } => target.len(),
            Self::Device { target, .. } => target.len(),
        };
        if target_bytes != bytes {
            return Err(Error::BadArgument(format!(
                "the input has {bytes} bytes, but the output has {target_bytes}"
            )));
        }
        if !bytes.is_multiple_of(dtype.bytes()) {
            return Err(Error::BadArgument(format!("{bytes} bytes are no whole number of {dtype}")));
        }
        Ok((bytes / dtype.bytes()) as u64)
    }

    /// Bytes of the input.
    pub fn len(&self) -> usize {
        match self {
            Self::InPlace(memory) => memory.len(),
            Self::OutOfPlace { source, .. } => source.len(),
            Self::Device { source, .. } => source.len(),
        }
    }

    /// What the data plane can work on; else what has to be staged first.
    pub(crate) fn on_host(self) -> Result<HostBuffers, DevicePair> {
        match self {
            Self::InPlace(memory) => Ok(HostBuffers::InPlace(memory)),
            Self::OutOfPlace { source, target } => Ok(HostBuffers::OutOfPlace { source, target }),
            Self::Device { source, target } => Err((source, target)),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<HostBuffers> for Buffers {
    fn from(buffers: HostBuffers) -> Self {
        match buffers {
            HostBuffers::InPlace(memory) => Self::InPlace(memory),
            HostBuffers::OutOfPlace { source, target } => Self::OutOfPlace { source, target },
        }
    }
}

/// One all-reduce of many.
#[derive(Debug)]
pub struct Reduction {
    /// The type of the elements.
    pub dtype: DType,
    /// Their memory.
    pub buffers: Buffers,
    /// What to do with them.
    pub options: AllReduce,
}

/// What an all-reduce reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReduceInfo {
    /// Peers that took part.
    pub world: u32,
    /// Payload bytes that were sent.
    pub tx_bytes: u64,
    /// Payload bytes that arrived.
    pub rx_bytes: u64,
}
