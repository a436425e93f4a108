//! Unaligned elements.

/// An element at any address: users' tensors need not be aligned.
///
/// Loops over slices of these compile to unaligned vector loads, which cost nothing extra on aligned data.
#[derive(Clone, Copy)]
#[repr(C, packed)]
pub(crate) struct Packed<T>(pub(crate) T);
