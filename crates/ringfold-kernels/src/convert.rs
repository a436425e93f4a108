//! Conversions between float types.

use crate::element::{RealElement, elements, elements_mut, with_real};
use crate::isa::Isa;
use crate::level::{Kernel, Level};
use crate::number::Real;
use crate::packed::Packed;
use core::marker::PhantomData;
use ringfold_proto::dtype::{DType, NumberKind};

/// Converts floats to another float type, rounding once to nearest even. NaNs become canonical.
///
/// ```
/// use ringfold_kernels::convert;
/// use ringfold_proto::dtype::DType;
///
/// let mut out = [0; 2];
/// convert(DType::F32, DType::BF16, &1.5_f32.to_ne_bytes(), &mut out);
/// assert_eq!(u16::from_ne_bytes(out), 0x3fc0);
/// ```
///
/// # Panics
/// If a type is not a float, if a slice contains a partial element, or if the slices have different element counts.
pub fn convert(from: DType, to: DType, data: &[u8], out: &mut [u8]) {
    convert_at(Level::detect(), from, to, data, out);
}

/// [`convert`] with the instructions of `level`; panics if this machine does not have them.
pub fn convert_at(level: Level, from: DType, to: DType, data: &[u8], out: &mut [u8]) {
    assert!(
        from.kind() == NumberKind::Float && to.kind() == NumberKind::Float,
        "unsupported conversion of {from} to {to}"
    );
    assert_eq!(data.len() / from.bytes(), out.len() / to.bytes(), "data and result differ in length");
    with_real!(from, F => with_real!(to, T => level.run(Convert::<F, T> {
        data,
        out,
        elements: PhantomData,
    })));
}

struct Convert<'a, F, T> {
    data: &'a [u8],
    out: &'a mut [u8],
    elements: PhantomData<(F, T)>,
}

impl<F: RealElement, T: RealElement> Kernel for Convert<'_, F, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, _isa: I) {
        for (element, out) in elements::<F>(self.data).iter().zip(elements_mut::<T>(self.out)) {
            let wide = { element.0 }.widen().to_f64();
            // From f64 to 16 bits goes through f32; rounding twice would be wrong.
            let wide = if size_of::<T>() < 4 { to_odd_single(wide) } else { wide };
            *out = Packed(T::narrow(T::Wide::from_f64(wide).canonical()));
        }
    }
}

/// Rounds to f32, to the neighbour with an odd last place if the value is inexact.
///
/// The result is on the same side of every tie between shorter floats as the original, so rounding it again gives the
/// same result as rounding the original.
#[inline(always)]
fn to_odd_single(value: f64) -> f64 {
    let nearest = value as f32;
    let bits = nearest.to_bits();
    // Toward zero if the rounding went away from it; infinity becomes the largest number.
    let truncated = bits - u32::from(f64::from(nearest).abs() > value.abs());
    let is_inexact = (f64::from(nearest) < value) | (f64::from(nearest) > value);
    f64::from(f32::from_bits(truncated | u32::from(is_inexact)))
}
