//! Tensor bytes as elements, wherever they begin.

use crate::element::Element;

/// An element that may lie at any address: users' tensors and slots need not be aligned.
///
/// Loops over slices of these compile to unaligned vector loads, which cost nothing on the
/// processors that matter when the data happens to be aligned.
#[derive(Clone, Copy)]
#[repr(C, packed)]
pub(crate) struct Packed<T>(pub(crate) T);

/// The elements in `bytes`.
///
/// # Panics
/// If `bytes` is not a whole number of elements.
#[inline(always)]
pub(crate) fn elements<T: Element>(bytes: &[u8]) -> &[Packed<T>] {
    let count = count::<T>(bytes.len());
    // SAFETY: `Packed<T>` has alignment 1, `count` elements cover exactly `bytes`, and an `Element` is
    // valid whatever its bits are.
    unsafe { core::slice::from_raw_parts(bytes.as_ptr().cast(), count) }
}

/// The elements in `bytes`, to be written.
///
/// # Panics
/// If `bytes` is not a whole number of elements.
#[inline(always)]
pub(crate) fn elements_mut<T: Element>(bytes: &mut [u8]) -> &mut [Packed<T>] {
    let count = count::<T>(bytes.len());
    // SAFETY: as in `elements`; the exclusive borrow of the bytes passes on to the elements, and an
    // `Element` has no padding, so that every byte stays initialised.
    unsafe { core::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), count) }
}

#[inline(always)]
fn count<T>(bytes: usize) -> usize {
    let size = size_of::<T>();
    assert!(bytes.is_multiple_of(size), "{bytes} bytes are not a whole number of {size}-byte elements");
    bytes / size
}
