//! Options, buffers and results of an all-reduce.

use crate::Error;
use crate::error::invalid;
use core::time::Duration;
use ringfold_cuda::DeviceMemory;
use ringfold_fabric::memory::{Memory, View};
use ringfold_proto::descriptor::{Descriptor, Weight};
use ringfold_proto::dtype::{DType, NumberKind};
use ringfold_proto::quantization::Quantization;
use ringfold_proto::reduce_op::ReduceOp;

/// The options of an all-reduce. All must be the same on all peers, except weight and deadline.
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
    pub(crate) error_feedback: bool,
    pub(crate) resume: bool,
}

impl AllReduce {
    /// An all-reduce with this operation and tag 0.
    pub fn new(op: ReduceOp) -> Self {
        Self {
            op,
            tag: 0,
            quantization: None,
            weight: None,
            deadline: None,
            reproducible: false,
            error_feedback: false,
            resume: false,
        }
    }

    /// The sum over all peers.
    pub fn sum() -> Self {
        Self::new(ReduceOp::Sum)
    }

    /// The mean over all peers.
    pub fn avg() -> Self {
        Self::new(ReduceOp::Avg)
    }

    /// Identifies the operation: those in flight at the same time must have different tags.
    pub fn tag(self, tag: u64) -> Self {
        Self { tag, ..self }
    }

    /// Quantizes the data on the wire.
    pub fn quantized(self, quantization: Quantization) -> Self {
        Self { quantization: Some(quantization), ..self }
    }

    /// Adds what this peer loses by quantising to its input of the next all-reduce with the same tag, type and length.
    ///
    /// Only for a quantized sum or average. Peers may differ in it. The error is one f32 per element and tag: kept until
    /// an all-reduce of the tag has another type or length, until [`Communicator::clear_error_feedback`], or until the
    /// peer leaves; a change of membership keeps it. While an operation runs there are two. An operation that fails
    /// leaves the error as it was.
    ///
    /// [`Communicator::clear_error_feedback`]: crate::Communicator::clear_error_feedback
    pub fn error_feedback(self) -> Self {
        Self { error_feedback: true, ..self }
    }

    /// Whether [`AllReduce::error_feedback`] is possible: for a quantized sum or average.
    pub fn supports_error_feedback(&self) -> bool {
        self.quantization.is_some() && matches!(self.op, ReduceOp::Sum | ReduceOp::Avg)
    }

    /// The weight of this peer in a weighted mean of floats. All peers must give one.
    ///
    /// Each peer's values are multiplied by its weight, and the sum is divided by the sum of the weights.
    pub fn weight(self, weight: f64) -> Self {
        Self { weight: Some(weight), ..self }
    }

    /// Aborts the operation, for the whole group, if it takes longer than this.
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// Gives the same bits whatever the plan, the transport, the chunks, and the number of peers per host.
    ///
    /// The data of all peers is reduced from left to right in the order of the members. A quantised all-reduce cannot be
    /// reproducible: elements of a chunk share their scale. [`CommunicatorBuilder::reproducible`] does it for all operations.
    ///
    /// [`CommunicatorBuilder::reproducible`]: crate::CommunicatorBuilder::reproducible
    pub fn reproducible(self) -> Self {
        Self { reproducible: true, ..self }
    }

    /// Resumes the operation when a peer is lost, instead of failing it.
    ///
    /// The peers keep the contributions of the others apart until the result is decided. If one is lost, the others send again
    /// only what is missing, and the results; [`ReduceInfo::world`] says how many peers are in the result. The call still
    /// fails if a new peer is admitted at the same time, if not all pairs of peers are linked, or for any other reason than the
    /// loss of a peer. It needs scratch memory of about the size of the buffer, and pays for large buffers on slow links.
    /// A quantised all-reduce cannot be resumed, and one of device memory is not. [`CommunicatorBuilder::resume`] does it for all
    /// operations that are not quantised.
    ///
    /// [`CommunicatorBuilder::resume`]: crate::CommunicatorBuilder::resume
    pub fn resume(self) -> Self {
        Self { resume: true, ..self }
    }

    /// [Resumes](AllReduce::resume) the operation unless it is quantised.
    pub fn resume_if_possible(self) -> Self {
        Self { resume: self.resume || self.quantization.is_none(), ..self }
    }

    pub(crate) fn descriptor(&self, dtype: DType, count: u64) -> Result<Descriptor, Error> {
        if let Some(quantization) = self.quantization
            && !quantization.supports(dtype, self.op)
        {
            return Err(invalid!(
                "unsupported quantization {:?} to {} for {} of {dtype}",
                quantization.algorithm,
                quantization.dtype,
                self.op
            ));
        }
        if self.reproducible && self.quantization.is_some() {
            return Err(invalid!("unsupported quantization: a quantized all-reduce cannot be reproducible"));
        }
        if self.resume && self.quantization.is_some() {
            return Err(invalid!("unsupported quantization: a quantized all-reduce cannot be resumed"));
        }
        if self.error_feedback && !self.supports_error_feedback() {
            return Err(invalid!(
                "unsupported error feedback: only a quantized sum or average has one, not {}{}",
                self.op,
                if self.quantization.is_none() { " without quantization" } else { "" }
            ));
        }
        let weight = match self.weight {
            None => None,
            Some(_)
                if self.op != ReduceOp::Avg
                    || dtype.kind() != NumberKind::Float
                    || self.quantization.is_some() =>
            {
                return Err(invalid!(
                    "unsupported weight: only an average of floats without quantization has weights"
                ));
            }
            Some(weight) => Some(
                Weight::new(weight)
                    .ok_or_else(|| invalid!("invalid weight {weight}: must be finite and >= 0"))?,
            ),
        };
        let deadline_ms =
            self.deadline.map_or(0, |d| u32::try_from(d.as_millis()).unwrap_or(u32::MAX).max(1));
        let (op, reproducible, resume) = (self.op, self.reproducible, self.resume);
        // The sum of the weights travels as one more element.
        let count = count + u64::from(weight.is_some());
        let base = Descriptor::all_reduce(count, dtype, op);
        Ok(Descriptor { quantization: self.quantization, weight, reproducible, resume, deadline_ms, ..base })
    }
}

/// The memory of an all-reduce.
#[derive(Debug)]
pub enum Buffers {
    /// The result replaces the input. After a failure the input is restored.
    InPlace(Memory),
    /// The input is not changed. After a failure the result is undefined.
    OutOfPlace {
        /// The input.
        source: View,
        /// The result; has the length of the input.
        target: Memory,
    },
    /// Memory of CUDA devices, staged through the host. After a failure it is unchanged.
    Device {
        /// The input.
        source: DeviceMemory,
        /// The result; has the length of the input, and may be the same memory.
        target: DeviceMemory,
    },
}

/// The memory of an all-reduce that the data plane works on.
#[derive(Debug)]
pub(crate) enum HostBuffers {
    InPlace(Memory),
    OutOfPlace { source: View, target: Memory },
}

pub(crate) type DevicePair = (DeviceMemory, DeviceMemory);

impl Buffers {
    /// The number of elements, after checking the lengths of the buffers.
    pub(crate) fn check(&self, dtype: DType) -> Result<u64, Error> {
        let (bytes, target_bytes) = match self {
            Self::InPlace(memory) => (memory.len(), memory.len()),
            Self::OutOfPlace { source, target } => (source.len(), target.len()),
            Self::Device { source, target } => (source.len(), target.len()),
        };
        if target_bytes != bytes {
            return Err(invalid!("invalid buffers: the input has {bytes} bytes, the output {target_bytes}"));
        }
        if !bytes.is_multiple_of(dtype.bytes()) {
            return Err(invalid!("invalid length {bytes} bytes: not a multiple of the size of {dtype}"));
        }
        Ok((bytes / dtype.bytes()) as u64)
    }

    /// The buffers if they are on the host, else the pair to be staged.
    pub(crate) fn on_host(self) -> Result<HostBuffers, DevicePair> {
        match self {
            Self::InPlace(memory) => Ok(HostBuffers::InPlace(memory)),
            Self::OutOfPlace { source, target } => Ok(HostBuffers::OutOfPlace { source, target }),
            Self::Device { source, target } => Err((source, target)),
        }
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

/// An all-reduce: element type, buffers and options.
#[derive(Debug)]
pub struct Reduction {
    /// The type of the elements.
    pub dtype: DType,
    /// The memory of the elements.
    pub buffers: Buffers,
    /// The operation and its options.
    pub options: AllReduce,
}

/// Statistics of an all-reduce.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReduceInfo {
    /// Peers that took part.
    pub world: u32,
    /// Payload bytes sent.
    pub tx_bytes: u64,
    /// Payload bytes received.
    pub rx_bytes: u64,
}
