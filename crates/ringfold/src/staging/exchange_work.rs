//! The device's part of an exchange between peers: which kernels run, and in which order.

use super::{Staging, weights};
use crate::Error;
use crate::device_group::element;
use crate::device_plan::DevicePlan;
use core::ops::Range;
use ringfold_cuda::device_arena::{
    CombineKernel, ExchangeArea, KernelKind, PeerArea, QuantizeKernels, QuantizedChunk, QuantizedExchange,
    QuantizedSpecialisation, Specialisation, WeightKernels,
};
use ringfold_cuda::nvrtc::Compiler;
use ringfold_cuda::{CudaError, DefaultStreamMark, DeviceMemory, default_cache};
use ringfold_kernels::wire_bytes;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::dtype::DType;
use ringfold_proto::quantization::{Quantization, QuantizationAlgorithm};
use std::sync::Arc;

/// Quantised chunks begin at multiples of this.
const CHUNK_ALIGN: u64 = 16;

/// The work of one operation in an area.
pub(super) enum ExchangeWork<'a> {
    /// Elements are offered as they are.
    Plain {
        area: &'a ExchangeArea,
        kernel: CombineKernel,
        element_bytes: usize,
        /// The elements of the tensor. A weighted average has one more: the sum of weights.
        elements: u64,
        weight: Option<Arc<WeightKernels>>,
    },
    /// Integers are offered: the bytes of the own part, and of the others.
    Quantized { exchange: QuantizedExchange<'a>, own_bytes: u64, other_bytes: u64 },
}

/// The opened areas by rank; none is the own one.
pub(super) type PeerAreas = [Option<Arc<PeerArea>>];

/// The bytes that an area needs for an operation.
pub(super) fn capacity(descriptor: &Descriptor, plan: &DevicePlan, bytes: usize) -> usize {
    match descriptor.quantization {
        None => bytes,
        Some(quantization) => QuantizedExchange::capacity(chunks(quantization, plan).1, bytes),
    }
}

impl<'a> ExchangeWork<'a> {
    /// Loads the kernels, and queues what offers the input to the others.
    pub(super) fn start(
        staging: &Staging,
        plan: &DevicePlan,
        area: &'a ExchangeArea,
    ) -> Result<Self, CudaError> {
        let (descriptor, source) = (&staging.descriptor, &staging.pair.0);
        let compiler = Compiler::load(None).map_err(|error| CudaError::Unsupported(error.to_string()))?;
        let (gpu, cache, world) = (area.gpu(), default_cache(), plan.members.len());
        let unsupported = |error: Error| CudaError::Unsupported(error.to_string());
        let op = element::operation(descriptor.op, descriptor.dtype).map_err(unsupported)?;
        if let Some(quantization) = descriptor.quantization {
            let specialisation = quantized_specialisation(quantization, descriptor.dtype, op, world)?;
            let kernels = QuantizeKernels::load(&gpu, &specialisation, compiler, cache.as_deref())?;
            let (chunks, wire_bytes) = chunks(quantization, plan);
            let exchange = QuantizedExchange::new(area, kernels, &chunks, wire_bytes, plan.me)?;
            exchange.encode(source, &staging.queued)?;
            let own = chunks.iter().filter(|chunk| chunk.owner as usize == plan.me);
            let own_bytes = own.map(|chunk| quantized_bytes(quantization, chunk.count.into())).sum();
            return Ok(Self::Quantized { exchange, own_bytes, other_bytes: wire_bytes - own_bytes });
        }
        let element = element::reduced(descriptor.dtype);
        let (name, element_bytes, kind) = (element.name, element.bytes, KernelKind::Combine);
        let elements = (source.len() / descriptor.dtype.bytes()) as u64;
        let weight = match descriptor.weight {
            None => {
                area.load(source, &staging.queued)?;
                None
            }
            Some(weight) => {
                let kernels = WeightKernels::load(&gpu, name, compiler, cache.as_deref())?;
                let factor = weights::rounded(descriptor.dtype, weight.value());
                kernels.scale(area, source, elements, factor, &staging.queued)?;
                Some(kernels)
            }
        };
        // The sum of products is divided once, by the sum of weights.
        let op = if weight.is_some() { "Sum" } else { op };
        let specialisation = Specialisation { element: name, element_bytes, op, world, kind };
        let kernel = CombineKernel::load(&gpu, &specialisation, compiler, cache.as_deref())?;
        let element_bytes = descriptor.dtype.bytes();
        Ok(Self::Plain { area, kernel, element_bytes, elements, weight })
    }

    /// Whether the members have to wait for each other's parts. Of two peers that do not quantise each computes
    /// everything: it has to read as many bytes either way.
    pub(super) fn has_gather(&self, plan: &DevicePlan) -> bool {
        matches!(self, Self::Quantized { .. }) || plan.members.len() > 2
    }

    /// Queues the computation of this peer's parts. Returns how many bytes of others it reads.
    pub(super) fn fold(
        &self,
        plan: &DevicePlan,
        peers: &PeerAreas,
        source: &DeviceMemory,
    ) -> Result<u64, CudaError> {
        match self {
            Self::Quantized { exchange, own_bytes, .. } => {
                exchange.settle(source, &by_rank(peers))?;
                Ok(own_bytes * (peers.len() as u64 - 1))
            }
            Self::Plain { area, kernel, element_bytes, elements, .. } => {
                let mut moved_bytes = 0;
                let is_own = |rank: usize| rank == plan.me || !self.has_gather(plan);
                for part in plan.parts.iter().filter(|part| is_own(part.rank)) {
                    let inputs: Vec<_> = part.order.iter().map(|rank| peers[*rank].as_deref()).collect();
                    let range = bytes_of(&part.elements, *elements, *element_bytes);
                    moved_bytes += (range.len() * (inputs.len() - 1)) as u64;
                    area.fold(kernel, &inputs, range)?;
                }
                Ok(moved_bytes)
            }
        }
    }

    /// Queues the copies of the other parts. Returns how many bytes of others it reads.
    pub(super) fn gather(
        &self,
        plan: &DevicePlan,
        peers: &PeerAreas,
        source: &DeviceMemory,
    ) -> Result<u64, CudaError> {
        match self {
            Self::Quantized { exchange, other_bytes, .. } => {
                exchange.decode(source, &by_rank(peers))?;
                Ok(*other_bytes)
            }
            Self::Plain { area, element_bytes, elements, .. } => {
                let mut moved_bytes = 0;
                for part in &plan.parts {
                    if let Some(peer) = &peers[part.rank] {
                        let range = bytes_of(&part.elements, *elements, *element_bytes);
                        moved_bytes += range.len() as u64;
                        area.gather(peer, range)?;
                    }
                }
                Ok(moved_bytes)
            }
        }
    }

    /// Queues the copy of the committed result to the user's memory. That of a weighted average is divided on the way.
    pub(super) fn store(
        &self,
        area: &ExchangeArea,
        target: &DeviceMemory,
        sum_of_weights: Option<f64>,
        after: &DefaultStreamMark,
    ) -> Result<(), CudaError> {
        match (self, sum_of_weights) {
            (Self::Plain { elements, weight: Some(kernels), .. }, Some(by)) => {
                kernels.divide(area, target, *elements, by, after)
            }
            _ => area.store(target, after),
        }
    }
}

fn by_rank(peers: &PeerAreas) -> Vec<Option<&PeerArea>> {
    peers.iter().map(|peer| peer.as_deref()).collect()
}

/// The bytes of a part; the sum of weights is not among them.
fn bytes_of(part: &Range<u64>, elements: u64, element_bytes: usize) -> Range<usize> {
    part.start.min(elements) as usize * element_bytes..part.end.min(elements) as usize * element_bytes
}

/// The chunks of a quantised tensor, and the bytes of their quantised form.
fn chunks(quantization: Quantization, plan: &DevicePlan) -> (Vec<QuantizedChunk>, u64) {
    let (mut chunks, mut wire) = (Vec::new(), 0);
    for part in &plan.parts {
        let mut first = part.elements.start;
        while first < part.elements.end {
            let count = plan.chunk_elements.min(part.elements.end - first);
            chunks.push(QuantizedChunk { first, wire, count: count as u32, owner: part.rank as u32 });
            wire += quantized_bytes(quantization, count);
            first += count;
        }
    }
    (chunks, wire)
}

/// The bytes of a chunk in quantised form, with padding.
fn quantized_bytes(quantization: Quantization, elements: u64) -> u64 {
    (wire_bytes(quantization, elements as usize) as u64).next_multiple_of(CHUNK_ALIGN)
}

fn quantized_specialisation(
    quantization: Quantization,
    dtype: DType,
    op: &'static str,
    world: usize,
) -> Result<QuantizedSpecialisation, CudaError> {
    let unsupported =
        || CudaError::Unsupported(format!("unsupported quantization of {dtype} on CUDA devices"));
    let (element, element_max) = match dtype {
        DType::F16 => ("F16", "65504.0"),
        DType::BF16 => ("BF16", "3.3895313892515355e38"),
        DType::F32 => ("F32", "3.4028234663852886e38"),
        DType::F64 => ("F64", "1.7976931348623157e308"),
        _ => return Err(unsupported()),
    };
    let integer = match quantization.dtype {
        DType::U8 => ["unsigned char", "0.0", "255.0"],
        DType::I8 => ["signed char", "-128.0", "127.0"],
        DType::U16 => ["unsigned short", "0.0", "65535.0"],
        DType::I16 => ["short", "-32768.0", "32767.0"],
        DType::U32 => ["unsigned int", "0.0", "4294967295.0"],
        DType::I32 => ["int", "-2147483648.0", "2147483647.0"],
        _ => return Err(unsupported()),
    };
    let is_min_max = quantization.algorithm == QuantizationAlgorithm::MinMax;
    Ok(QuantizedSpecialisation { element, element_max, op, world, integer, is_min_max })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_plan::DevicePart;

    #[test]
    fn chunks_do_not_overlap_and_are_aligned() {
        let part = |rank, elements| DevicePart { rank, order: Vec::new(), elements };
        let parts = vec![part(0, 0..25), part(1, 25..40)];
        let plan = DevicePlan { members: Vec::new(), me: 0, parts, chunk_elements: 10 };
        let quantization = Quantization { algorithm: QuantizationAlgorithm::MinMax, dtype: DType::U16 };
        let (chunks, bytes) = chunks(quantization, &plan);
        let found: Vec<_> = chunks.iter().map(|c| (c.first, c.wire, c.count, c.owner)).collect();
        // 16 bytes of parameters and two bytes per element, rounded up.
        let want = [(0, 0, 10, 0), (10, 48, 10, 0), (20, 96, 5, 0), (25, 128, 10, 1), (35, 176, 5, 1)];
        assert_eq!((found, bytes), (want.to_vec(), 208));
    }
}
