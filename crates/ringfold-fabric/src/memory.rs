//! The memory that collectives work on: unsafe to create from a pointer, safe to use.
//!
//! [`Memory`] is exclusive: it may be written and split. [`View`] is shared and only read. [`RawMemory`] may be
//! written by other processes as well. A [`Lease`] is what a socket holds while it sends. All of them keep the owner of
//! the bytes alive. Borrowed bytes have none: [`lend`] and [`lend_mut`] wait until the last value is gone.

mod arrivals;

pub use arrivals::Arrivals;

use crate::shared_bytes::SharedBytes;
use core::any::Any;
use core::fmt;
use core::ops::Range;
use core::ptr::NonNull;
use core::time::Duration;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Bytes that only its holder reads and writes.
pub struct Memory {
    span: Span,
}

/// Bytes that every holder of a view may read, and nobody writes. Some may not have arrived yet: these cannot be read.
#[derive(Clone)]
pub struct View {
    span: Span,
    /// None if all bytes are there.
    arrivals: Option<Arc<Arrivals>>,
}

/// Bytes that other processes may write at any time. They are only copied, so there is never a reference to them.
pub struct RawMemory {
    span: Span,
}

/// Bytes to be sent. They are only copied or passed to the system, so they may be written meanwhile.
pub struct Lease {
    span: Span,
}

/// An address range, and what keeps it valid.
#[derive(Clone)]
struct Span {
    start: NonNull<u8>,
    bytes: usize,
    owner: Arc<Owner>,
}

/// What keeps bytes valid. None: somebody waits until there is only one reference to this.
struct Owner(Option<Box<dyn Any + Send + Sync>>);

/// Elements that any bytes are, and that are nothing but bytes.
pub trait Plain: FromBytes + IntoBytes + Immutable + Send + Sync + 'static {}

impl<T: FromBytes + IntoBytes + Immutable + Send + Sync + 'static> Plain for T {}

// SAFETY: a span is an address. The types around it rule who reads and writes it when: a `Memory` is not cloned and
// hands out `&mut` by `&mut self`, views are never written.
unsafe impl Send for Span {}
// SAFETY: as above; nothing is changed through a shared span.
unsafe impl Sync for Span {}

impl Memory {
    /// Zeroed memory of this process.
    pub fn zeroed(bytes: usize) -> Self {
        Self::from_vec(vec![0_u8; bytes])
    }

    /// The memory of a vector, which is not copied; [`Memory::into_vec`] returns it.
    pub fn from_vec<T: Plain>(data: Vec<T>) -> Self {
        Self { span: Span::owned(data) }
    }

    /// The elements: the vector that the memory was made from, if nothing else holds a part of it, or a copy.
    ///
    /// ```
    /// use ringfold_fabric::memory::Memory;
    ///
    /// let data = vec![1_u32, 2];
    /// let start = data.as_ptr();
    /// let back: Vec<u32> = Memory::from_vec(data).into_vec();
    /// assert_eq!((back.as_ptr(), back), (start, vec![1, 2]));
    /// ```
    pub fn into_vec<T: Plain>(mut self) -> Vec<T> {
        let (start, bytes) = (self.span.start.as_ptr(), self.span.bytes);
        if let Some(Owner(Some(owner))) = Arc::get_mut(&mut self.span.owner)
            && let Some(data) = owner.downcast_mut::<Vec<T>>()
            && data.as_mut_ptr().cast() == start
            && size_of_val(&data[..]) == bytes
        {
            return core::mem::take(data);
        }
        // Memory need not be aligned for the elements.
        let elements = self.as_slice().chunks_exact(size_of::<T>());
        elements.filter_map(|element| T::read_from_bytes(element).ok()).collect()
    }

    /// Memory that stays valid while `owner` lives. The owner is dropped when this value, all that it is split into,
    /// and all leases on it are gone, by the thread that holds the last of them.
    ///
    /// # Safety
    /// Until the owner is dropped, the bytes are valid for reads and writes, and nobody else reads or writes them.
    pub unsafe fn kept(start: *mut u8, bytes: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        Self { span: Span::kept(start, bytes, owner) }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.span.as_slice()
    }

    /// The bytes, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the span is valid, and exclusive to this value.
        unsafe { core::slice::from_raw_parts_mut(self.span.start.as_ptr(), self.span.bytes) }
    }

    /// Some of the bytes. Unlike for a part of [`Memory::as_slice`], the others may be in use meanwhile.
    ///
    /// # Panics
    /// If the range is not within the memory.
    pub fn part(&self, range: Range<usize>) -> &[u8] {
        self.span.slice(range)
    }

    /// As [`Memory::part`], to be written.
    ///
    /// # Panics
    /// If the range is not within the memory.
    pub fn part_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        self.span.check(&range);
        // SAFETY: the range is within the span, which is valid, and exclusive to this value.
        unsafe {
            core::slice::from_raw_parts_mut(
                self.span.start.as_ptr().add(range.start),
                range.end - range.start,
            )
        }
    }

    /// Splits it into two.
    ///
    /// # Panics
    /// If there are fewer bytes than `at`.
    pub fn split_at(self, at: usize) -> (Self, Self) {
        let bytes = self.span.bytes;
        (Self { span: self.span.part(0..at) }, Self { span: self.span.part(at..bytes) })
    }

    /// Bytes to be sent. What is written to them before they have left may be sent, or not.
    ///
    /// # Panics
    /// If the range is not within the memory.
    pub fn lease(&self, range: Range<usize>) -> Lease {
        Lease { span: self.span.part(range) }
    }

    /// Ends writing.
    pub fn into_view(self) -> View {
        View { span: self.span, arrivals: None }
    }

    /// As [`Memory::into_view`], for a memory that is read piece by piece, as the pieces are added to `arrivals`.
    pub fn into_arriving_view(self, arrivals: Arc<Arrivals>) -> View {
        View { span: self.span, arrivals: Some(arrivals) }
    }
}

impl View {
    /// As [`Memory::kept`], for bytes that are only read.
    ///
    /// # Safety
    /// Until the owner is dropped, the bytes are valid for reads, and nobody writes them.
    pub unsafe fn kept(start: *const u8, bytes: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        Self { span: Span::kept(start.cast_mut(), bytes, owner), arrivals: None }
    }

    /// As [`View::kept`], for bytes that can be read when their piece has been added to `arrivals`.
    ///
    /// # Safety
    /// Until the owner is dropped, the bytes are valid for reads. Nobody writes a piece that was added to `arrivals`.
    pub unsafe fn arriving(
        start: *const u8,
        bytes: usize,
        owner: Box<dyn Any + Send + Sync>,
        arrivals: Arc<Arrivals>,
    ) -> Self {
        Self { span: Span::kept(start.cast_mut(), bytes, owner), arrivals: Some(arrivals) }
    }

    /// Whether all these bytes can be read.
    pub fn has(&self, range: Range<usize>) -> bool {
        self.arrivals.as_ref().is_none_or(|arrivals| arrivals.has(range))
    }

    /// The bytes.
    ///
    /// # Panics
    /// If some have not arrived.
    pub fn as_slice(&self) -> &[u8] {
        self.part(0..self.len())
    }

    /// Some of the bytes.
    ///
    /// # Panics
    /// If the range is not within the memory, or has not arrived.
    pub fn part(&self, range: Range<usize>) -> &[u8] {
        assert!(self.has(range.clone()), "{range:?} of {self:?} has not arrived");
        self.span.slice(range)
    }

    /// Bytes to be sent.
    ///
    /// # Panics
    /// If the range is not within the memory, or has not arrived.
    pub fn lease(&self, range: Range<usize>) -> Lease {
        assert!(self.has(range.clone()), "{range:?} of {self:?} has not arrived");
        Lease { span: self.span.part(range) }
    }
}

impl RawMemory {
    /// As [`Memory::kept`], for bytes that other processes may write.
    ///
    /// # Safety
    /// Until the owner is dropped, the bytes are valid for reads and writes, and nothing else in this process refers to
    /// them.
    pub(crate) unsafe fn kept(start: *mut u8, bytes: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        Self { span: Span::kept(start, bytes, owner) }
    }

    /// Where it begins, for users of the address. It is valid as long as this value lives.
    pub fn start(&self) -> *mut u8 {
        self.span.start.as_ptr()
    }

    /// Copies from it.
    ///
    /// # Panics
    /// If there are not so many bytes.
    pub fn read(&mut self, at: usize, into: &mut [u8]) {
        self.shared().part(at..at.saturating_add(into.len())).copy_to(into);
    }

    /// Copies to it.
    ///
    /// # Panics
    /// If there are not so many bytes.
    pub fn write(&mut self, at: usize, from: &[u8]) {
        self.shared().part(at..at.saturating_add(from.len())).copy_from(from);
    }

    /// The bytes, for copies and atomics.
    pub(crate) fn shared(&mut self) -> SharedBytes<'_> {
        // SAFETY: the span is valid, and within this process exclusive to this value.
        unsafe { SharedBytes::new(self.span.start, self.span.bytes) }
    }

    /// As [`Memory::lease`].
    ///
    /// # Panics
    /// If the range is not within the memory.
    pub fn lease(&self, range: Range<usize>) -> Lease {
        Lease { span: self.span.part(range) }
    }
}

impl From<Memory> for RawMemory {
    fn from(memory: Memory) -> Self {
        Self { span: memory.span }
    }
}

impl Lease {
    /// Copies them to where the other end reads them.
    pub(crate) fn copy_to(&self, target: SharedBytes<'_>) {
        assert_eq!(target.len(), self.span.bytes);
        // SAFETY: both are valid. Nothing refers to the target, and the span lies elsewhere.
        unsafe { core::ptr::copy_nonoverlapping(self.start(), target.as_ptr(), target.len()) };
    }

    /// As [`Lease::copy_to`], to memory of this process.
    pub(crate) fn read(&self, into: &mut [u8]) {
        assert_eq!(into.len(), self.span.bytes);
        // SAFETY: the span is valid. Nothing is borrowed from it, and `into` is elsewhere, since it is borrowed.
        unsafe { core::ptr::copy_nonoverlapping(self.start(), into.as_mut_ptr(), into.len()) };
    }

    /// Where they begin; only for system calls and devices, since they may be written meanwhile.
    pub fn start(&self) -> *const u8 {
        self.span.start.as_ptr()
    }
}

/// Lends bytes to be read to `user`, and returns when it and all that it made of them are gone.
pub fn lend<R>(bytes: &[u8], user: impl FnOnce(View) -> R) -> R {
    let lent = Lent::default();
    user(View { span: lent.span(NonNull::from(bytes)), arrivals: None })
}

/// Lends bytes to be read and written to `user`, and returns when it and all that it made of them are gone.
///
/// ```
/// use ringfold_fabric::memory::lend_mut;
///
/// let mut bytes = [1, 2, 3];
/// lend_mut(&mut bytes, |mut memory| memory.as_mut_slice()[1] = 7);
/// assert_eq!(bytes, [1, 7, 3]);
/// ```
pub fn lend_mut<R>(bytes: &mut [u8], user: impl FnOnce(Memory) -> R) -> R {
    let lent = Lent::default();
    user(Memory { span: lent.span(NonNull::from(bytes)) })
}

/// As [`lend`], for many at once.
pub fn lend_all<'a, R>(bytes: impl Iterator<Item = &'a [u8]>, user: impl FnOnce(Vec<View>) -> R) -> R {
    let lent = Lent::default();
    user(bytes.map(|bytes| View { span: lent.span(NonNull::from(bytes)), arrivals: None }).collect())
}

/// As [`lend_mut`], for many at once.
///
/// ```
/// use ringfold_fabric::memory::lend_all_mut;
///
/// let (mut a, mut b) = ([1, 2], [3]);
/// lend_all_mut(vec![&mut a[..], &mut b[..]], |mut memories| memories[1].as_mut_slice()[0] = 7);
/// assert_eq!((a, b), ([1, 2], [7]));
/// ```
pub fn lend_all_mut<R>(bytes: Vec<&mut [u8]>, user: impl FnOnce(Vec<Memory>) -> R) -> R {
    let lent = Lent::default();
    user(bytes.into_iter().map(|bytes| Memory { span: lent.span(NonNull::from(bytes)) }).collect())
}

/// Bytes that are lent. Its drop waits until all spans are gone. That makes lending safe, also while a panic unwinds.
struct Lent(Arc<Owner>);

impl Default for Lent {
    fn default() -> Self {
        Self(Arc::new(Owner(None)))
    }
}

impl Lent {
    fn span(&self, bytes: NonNull<[u8]>) -> Span {
        Span { start: bytes.cast(), bytes: bytes.len(), owner: self.0.clone() }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        while Arc::strong_count(&self.0) > 1 {
            std::thread::sleep(Duration::from_micros(50));
        }
        // What others wrote before they dropped their spans is seen from here on.
        core::sync::atomic::fence(core::sync::atomic::Ordering::Acquire);
    }
}

impl Span {
    fn owned<T: Plain>(mut data: Vec<T>) -> Self {
        let (start, bytes) = (data.as_mut_ptr().cast(), size_of_val(&data[..]));
        Self::kept(start, bytes, Box::new(data))
    }

    fn kept(start: *mut u8, bytes: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        let bytes = if start.is_null() { 0 } else { bytes };
        let start = NonNull::new(start).unwrap_or(NonNull::dangling());
        Self { start, bytes, owner: Arc::new(Owner(Some(owner))) }
    }

    fn as_slice(&self) -> &[u8] {
        // SAFETY: the span is valid, and nobody writes it while the value around it is borrowed.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    fn slice(&self, range: Range<usize>) -> &[u8] {
        self.check(&range);
        // SAFETY: the range is within the span, which is valid, and nobody writes it while the value around it is borrowed.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr().add(range.start), range.end - range.start) }
    }

    fn check(&self, range: &Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} is not within {self:?}");
    }

    fn part(&self, range: Range<usize>) -> Self {
        self.check(&range);
        // SAFETY: the start of the range lies within the span, or at its end.
        let start = unsafe { self.start.add(range.start) };
        Self { start, bytes: range.end - range.start, owner: self.owner.clone() }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes)
    }
}

macro_rules! implement_for_all {
    ($($name:ident),*) => {$(
        impl $name {
            /// The number of bytes.
            pub fn len(&self) -> usize {
                self.span.bytes
            }

            /// Whether there are none.
            pub fn is_empty(&self) -> bool {
                self.span.bytes == 0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:?})"), self.span)
            }
        }
    )*};
}
implement_for_all!(Memory, View, RawMemory, Lease);

macro_rules! implement_from_bytes {
    ($($name:ident),*) => {$(
        impl From<Vec<u8>> for $name {
            fn from(bytes: Vec<u8>) -> Self {
                Self { span: Span::owned(bytes) }
            }
        }
    )*};
}
implement_from_bytes!(Memory, Lease);

impl From<Vec<u8>> for View {
    fn from(bytes: Vec<u8>) -> Self {
        Memory::from(bytes).into_view()
    }
}

#[cfg(test)]
mod tests;
