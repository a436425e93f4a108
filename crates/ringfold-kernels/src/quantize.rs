//! Quantisation: floats as integers of fewer bits on the wire.
//!
//! A chunk is sent as [`Quantization::PARAMETER_BYTES`] of parameters, two f64, and one integer per element; all
//! little-endian. Properties:
//!
//! - **Error**: at most half a step, which is the chunk's range divided by the largest integer (for zero-point
//!   quantisation the range includes zero, which is exact).
//! - **Equal elements** (all 42) are exact.
//! - **NaN and infinities**: a chunk that contains any is NaN as a whole at the receiver: an infinite range has no
//!   steps, and an overflowed gradient must not arrive as a finite number.
//! - **Huge ranges** work up to the largest finite numbers of the type, and never produce an infinity.
//! - **Tiny ranges**, below about 2⁻¹⁰¹⁰ times the number of steps (f64 only), collapse to one value.
//! - **Invalid parameters** (not finite, or out of order) give NaN. No wire data can cause a panic.

mod affine;

use crate::element::{Element, RealElement, elements, elements_mut, with_integer, with_real};
use crate::isa::Isa;
use crate::level::{Kernel, Level};
use crate::number::{Integer, Real};
use crate::packed::Packed;
use crate::reduce::reduce_into_at;
use affine::{Affine, Parameters};
use core::marker::PhantomData;
use ringfold_proto::dtype::DType;
use ringfold_proto::quantization::Quantization;
use ringfold_proto::reduce_op::ReduceOp;

/// The wire size of `count` elements: parameters and integers.
///
/// # Panics
/// If it exceeds `usize::MAX`.
pub fn wire_bytes(quantization: Quantization, count: usize) -> usize {
    count
        .checked_mul(quantization.dtype.bytes())
        .and_then(|bytes| bytes.checked_add(Quantization::PARAMETER_BYTES))
        .expect("a chunk fits into memory")
}

/// Quantises the elements of `data` into `wire`, as one chunk.
///
/// ```
/// use ringfold_kernels::{dequantize, quantize, wire_bytes};
/// use ringfold_proto::dtype::DType;
/// use ringfold_proto::quantization::{Quantization, QuantizationAlgorithm};
///
/// let quantization = Quantization { algorithm: QuantizationAlgorithm::MinMax, dtype: DType::U8 };
/// let data: Vec<u8> = [-1.0_f32, 0.5, 42.0].iter().flat_map(|x| x.to_ne_bytes()).collect();
/// let mut wire = vec![0; wire_bytes(quantization, 3)];
/// quantize(quantization, DType::F32, &data, &mut wire);
/// assert_eq!(wire.len(), 16 + 3);
///
/// let mut back = vec![0; data.len()];
/// dequantize(quantization, DType::F32, &wire, &mut back);
/// assert_eq!(back[8..], 42.0_f32.to_ne_bytes());
/// ```
///
/// # Panics
/// If the quantisation does not [support](Quantization::supports) the type, if `data` contains a partial element, or
/// if the length of `wire` is not [`wire_bytes`].
pub fn quantize(quantization: Quantization, dtype: DType, data: &[u8], wire: &mut [u8]) {
    quantize_at(Level::detect(), quantization, dtype, data, wire);
}

/// [`quantize`] with the instructions of `level`; panics if this machine does not have them.
pub fn quantize_at(level: Level, quantization: Quantization, dtype: DType, data: &[u8], wire: &mut [u8]) {
    check(quantization, dtype, ReduceOp::Sum, data.len(), wire.len());
    let (parameters, integers) = wire.split_first_chunk_mut().expect("the length was checked");
    let range = with_real!(dtype, T => level.run(FindRange::<T> { data, element: PhantomData }));
    with_integer!(quantization.dtype, Q => {
        let found = Parameters::of::<Q>(quantization.algorithm, range);
        *parameters = found.to_bytes();
        if range.is_none() {
            integers.fill(0);
            return;
        }
        with_real!(dtype, T => level.run(Quantize::<T, Q> {
            data,
            integers,
            affine: Affine::new::<Q, T>(quantization.algorithm, found),
            types: PhantomData,
        }))
    });
}

/// Dequantises a chunk.
///
/// # Panics
/// If the quantisation does not [support](Quantization::supports) the type, if `out` contains a partial element, or if
/// the length of `wire` is not [`wire_bytes`]; never because of the contents of `wire`.
pub fn dequantize(quantization: Quantization, dtype: DType, wire: &[u8], out: &mut [u8]) {
    dequantize_at(Level::detect(), quantization, dtype, wire, out);
}

/// [`dequantize`] with the instructions of `level`; panics if this machine does not have them.
pub fn dequantize_at(level: Level, quantization: Quantization, dtype: DType, wire: &[u8], out: &mut [u8]) {
    check(quantization, dtype, ReduceOp::Sum, out.len(), wire.len());
    let (parameters, integers) = wire.split_first_chunk().expect("the length was checked");
    dequantize_part(level, quantization, dtype, parameters, integers, out);
}

/// Dequantises a chunk and reduces it into `accumulator`, in one pass over memory.
///
/// Bit-identical to [`dequantize`] followed by [`reduce_into`](crate::reduce_into).
///
/// # Panics
/// If the quantisation does not [support](Quantization::supports) type and operation, if `accumulator` contains a
/// partial element, or if the length of `wire` is not [`wire_bytes`]; never because of the contents of `wire`.
pub fn dequantize_reduce(
    quantization: Quantization,
    dtype: DType,
    op: ReduceOp,
    wire: &[u8],
    accumulator: &mut [u8],
) {
    dequantize_reduce_at(Level::detect(), quantization, dtype, op, wire, accumulator);
}

/// [`dequantize_reduce`] with the instructions of `level`; panics if this machine does not have them.
pub fn dequantize_reduce_at(
    level: Level,
    quantization: Quantization,
    dtype: DType,
    op: ReduceOp,
    wire: &[u8],
    accumulator: &mut [u8],
) {
    /// Elements that are dequantised before they are reduced: few enough for the L1 cache.
    const TILE: usize = 512;
    check(quantization, dtype, op, accumulator.len(), wire.len());
    let (parameters, integers) = wire.split_first_chunk().expect("the length was checked");
    let mut tile = [0; TILE * 8];
    let integer_tiles = integers.chunks(TILE * quantization.dtype.bytes());
    for (accumulator, integers) in accumulator.chunks_mut(TILE * dtype.bytes()).zip(integer_tiles) {
        let tile = &mut tile[..accumulator.len()];
        dequantize_part(level, quantization, dtype, parameters, integers, tile);
        reduce_into_at(level, dtype, op, accumulator, tile);
    }
}

fn check(quantization: Quantization, dtype: DType, op: ReduceOp, data: usize, wire: usize) {
    assert!(
        quantization.supports(dtype, op),
        "unsupported quantisation: {op} of {dtype} to {} by {:?}",
        quantization.dtype,
        quantization.algorithm
    );
    let count = data / dtype.bytes();
    assert_eq!(data, count * dtype.bytes(), "{data} bytes are not a whole number of {dtype}");
    assert_eq!(wire, wire_bytes(quantization, count), "the wire's bytes for {count} elements");
}

fn dequantize_part(
    level: Level,
    quantization: Quantization,
    dtype: DType,
    parameters: &[u8; Quantization::PARAMETER_BYTES],
    integers: &[u8],
    out: &mut [u8],
) {
    let parameters = Parameters::from_bytes(*parameters);
    with_real!(dtype, T => with_integer!(quantization.dtype, Q => level.run(Dequantize::<T, Q> {
        integers,
        out,
        affine: Affine::new::<Q, T>(quantization.algorithm, parameters),
        types: PhantomData,
    })));
}

/// Finds the smallest and the largest value; none if a value is not finite, zeros for no values.
struct FindRange<'a, T> {
    data: &'a [u8],
    element: PhantomData<T>,
}

impl<T: RealElement> Kernel for FindRange<'_, T> {
    type Output = Option<(f64, f64)>;

    #[inline(always)]
    fn run<I: Isa>(self, _isa: I) -> Option<(f64, f64)> {
        let mut extremes = Extremes::<T::Wide>::NONE;
        let (blocks, rest) = elements::<T>(self.data).as_chunks::<LANES>();
        for block in blocks {
            for (lane, element) in block.iter().enumerate() {
                extremes.add(lane, { element.0 }.widen());
            }
        }
        for (lane, element) in rest.iter().enumerate() {
            extremes.add(lane, { element.0 }.widen());
        }
        if extremes.taint.iter().any(|taint| taint.is_nan()) {
            return None;
        }
        if self.data.is_empty() {
            return Some((0.0, 0.0));
        }
        let low = extremes.low.iter().fold(f64::INFINITY, |low, lane| low.min(lane.to_f64()));
        let high = extremes.high.iter().fold(f64::NEG_INFINITY, |high, lane| high.max(lane.to_f64()));
        // The sign of a zero depends on the lanes; adding zero makes it positive.
        Some((low + 0.0, high + 0.0))
    }
}

/// Independent searches, which the compiler vectorises.
const LANES: usize = 32;

struct Extremes<W> {
    low: [W; LANES],
    high: [W; LANES],
    /// NaN if a value was not finite, else zero.
    taint: [W; LANES],
}

impl<W: Real> Extremes<W> {
    const NONE: Self =
        Self { low: [W::INFINITY; LANES], high: [W::NEG_INFINITY; LANES], taint: [W::ZERO; LANES] };

    #[inline(always)]
    #[allow(clippy::eq_op, reason = "only a finite number minus itself is zero")]
    fn add(&mut self, lane: usize, value: W) {
        self.low[lane] = if value < self.low[lane] { value } else { self.low[lane] };
        self.high[lane] = if value > self.high[lane] { value } else { self.high[lane] };
        self.taint[lane] = self.taint[lane] + (value - value);
    }
}

struct Quantize<'a, T, Q> {
    data: &'a [u8],
    integers: &'a mut [u8],
    affine: Affine,
    types: PhantomData<(T, Q)>,
}

impl<T: RealElement, Q: Integer + Element> Kernel for Quantize<'_, T, Q> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, _isa: I) {
        for (element, integer) in elements::<T>(self.data).iter().zip(elements_mut::<Q>(self.integers)) {
            *integer = Packed(self.affine.integer::<Q>({ element.0 }.widen().to_f64()).swap_to_le());
        }
    }
}

struct Dequantize<'a, T, Q> {
    integers: &'a [u8],
    out: &'a mut [u8],
    affine: Affine,
    types: PhantomData<(T, Q)>,
}

impl<T: RealElement, Q: Integer + Element> Kernel for Dequantize<'_, T, Q> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, _isa: I) {
        for (integer, out) in elements::<Q>(self.integers).iter().zip(elements_mut::<T>(self.out)) {
            let value = self.affine.value({ integer.0 }.swap_to_le());
            *out = Packed(T::narrow(T::Wide::from_f64(value).canonical()));
        }
    }
}
