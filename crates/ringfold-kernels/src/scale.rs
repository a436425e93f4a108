//! Multiplication by a factor: the first step of a premultiplied sum.

use crate::element::{Element, elements, elements_mut, with_element};
use crate::isa::Isa;
use crate::level::{Kernel, Level};
use crate::number::{Factor, Number};
use crate::packed::Packed;
use core::marker::PhantomData;
use ringfold_proto::dtype::DType;

/// `out[i] = data[i] × factor`.
///
/// f16, bf16 and f32 are multiplied by the factor as f32, f64 by the factor itself, complex numbers by parts. Integers
/// times an integral factor (up to 2⁵³) are exact and wrap; with other factors they are multiplied in f64, truncated
/// toward zero and clamped to their range (NaN gives zero).
///
/// ```
/// use ringfold_kernels::scale;
/// use ringfold_proto::dtype::DType;
///
/// let mut out = [0; 4];
/// scale(DType::F32, &3.0_f32.to_ne_bytes(), &mut out, 0.5);
/// assert_eq!(f32::from_ne_bytes(out), 1.5);
/// ```
///
/// # Panics
/// If the slices differ in length or contain a partial element.
pub fn scale(dtype: DType, data: &[u8], out: &mut [u8], factor: f64) {
    scale_at(Level::detect(), dtype, data, out, factor);
}

/// [`scale`] with the instructions of `level`; panics if this machine does not have them.
pub fn scale_at(level: Level, dtype: DType, data: &[u8], out: &mut [u8], factor: f64) {
    assert_eq!(data.len(), out.len(), "data and result differ in length");
    let factor = Factor::new(factor);
    with_element!(dtype, T => level.run(Scale::<T> { data, out, factor, element: PhantomData }));
}

/// [`scale`] in place: `data[i] = data[i] × factor`.
///
/// # Panics
/// If `data` contains a partial element.
pub fn scale_in_place(dtype: DType, data: &mut [u8], factor: f64) {
    scale_in_place_at(Level::detect(), dtype, data, factor);
}

/// [`scale_in_place`] with the instructions of `level`; panics if this machine does not have them.
pub fn scale_in_place_at(level: Level, dtype: DType, data: &mut [u8], factor: f64) {
    let factor = Factor::new(factor);
    with_element!(dtype, T => level.run(ScaleInPlace::<T> { data, factor, element: PhantomData }));
}

struct Scale<'a, T> {
    data: &'a [u8],
    out: &'a mut [u8],
    factor: Factor,
    element: PhantomData<T>,
}

impl<T: Element> Kernel for Scale<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, _isa: I) {
        for (element, out) in elements::<T>(self.data).iter().zip(elements_mut::<T>(self.out)) {
            *out = Packed(T::narrow({ element.0 }.widen().scale(self.factor)));
        }
    }
}

struct ScaleInPlace<'a, T> {
    data: &'a mut [u8],
    factor: Factor,
    element: PhantomData<T>,
}

impl<T: Element> Kernel for ScaleInPlace<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, _isa: I) {
        for element in elements_mut::<T>(self.data) {
            element.0 = T::narrow({ element.0 }.widen().scale(self.factor));
        }
    }
}
