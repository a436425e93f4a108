//! Division by the number of peers: the last step of an average.

use crate::element::{Element, elements_mut, with_element};
use crate::isa::Isa;
use crate::level::{Kernel, Level};
use crate::number::{Divisor, Number};
use core::marker::PhantomData;
use ringfold_proto::dtype::DType;

/// Divides every element by `by`.
///
/// Integers truncate toward zero; f16 and bf16 are divided in f32 and rounded to nearest even; complex numbers by parts.
///
/// ```
/// use ringfold_kernels::divide;
/// use ringfold_proto::dtype::DType;
///
/// let mut data = [7, (-7_i8) as u8];
/// divide(DType::I8, &mut data, 2);
/// assert_eq!(data, [3, (-3_i8) as u8]);
/// ```
///
/// # Panics
/// If `by` is zero, or if `data` contains a partial element.
pub fn divide(dtype: DType, data: &mut [u8], by: u64) {
    divide_at(Level::detect(), dtype, data, by);
}

/// [`divide`] with the instructions of `level`; panics if this machine does not have them.
pub fn divide_at(level: Level, dtype: DType, data: &mut [u8], by: u64) {
    let by = Divisor::new(by);
    with_element!(dtype, T => level.run(Divide::<T> { data, by, element: PhantomData }));
}

struct Divide<'a, T> {
    data: &'a mut [u8],
    by: Divisor,
    element: PhantomData<T>,
}

impl<T: Element> Kernel for Divide<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, _isa: I) {
        for element in elements_mut::<T>(self.data) {
            element.0 = T::narrow({ element.0 }.widen().divide(self.by));
        }
    }
}
