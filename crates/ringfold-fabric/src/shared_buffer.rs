//! Memory of this process that other processes of the host read in place.
//!
//! A [`SharedBuffer`] is used like any other memory. It lies in a [segment](crate::segment) that other processes can map to read,
//! as a [`MappedBuffer`]; their mappings cannot be written. They read it only during a collective in which the owner takes
//! part, so that its owner may write it at all other times.
//!
//! A process finds the buffer of an address by a table of all its buffers ([`BufferRange::of`]). So tensors of other libraries
//! are recognised, no matter which library made them.

use crate::memory::{Memory, Plain};
use crate::segment::{Segment, Ticket};
use crate::shared_bytes::SharedBytes;
use crate::shared_memory::Mapping;
use core::fmt;
use core::sync::atomic::Ordering;
use core::time::Duration;
use parking_lot::RwLock;
use rustix::fs::OFlags;
use rustix::mm::Advice;
use std::collections::BTreeMap;
use std::io;
use zerocopy::FromBytes as _;

/// Zeroed memory of this process that other processes of the host can map to read.
///
/// It takes a file descriptor and is freed when it is dropped. A process that has it mapped unmaps it at its next large
/// collective.
///
/// ```
/// use ringfold_fabric::shared_buffer::SharedBuffer;
///
/// # fn main() -> std::io::Result<()> {
/// let mut buffer = SharedBuffer::zeroed(4 * size_of::<f32>())?;
/// buffer.elements_mut::<f32>()[3] = 1.5;
/// assert_eq!(buffer.elements::<f32>(), [0.0, 0.0, 0.0, 1.5]);
/// # Ok(())
/// # }
/// ```
pub struct SharedBuffer {
    /// None if the buffer is empty.
    segment: Option<Segment>,
    bytes: usize,
}

/// A range of a [`SharedBuffer`] of this process, as other processes find it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufferRange {
    /// What opens the buffer.
    pub ticket: Ticket,
    /// Where in the buffer the range begins.
    pub offset: u64,
}

/// A buffer of another process, mapped to read.
pub struct MappedBuffer {
    mapping: Mapping,
    ticket: Ticket,
}

/// Where the bytes of a buffer begin in its segment.
const DATA_AT: usize = 4096;

/// A word that the owner sets when it has freed the buffer.
const FREED_AT: usize = Segment::RESERVED_BYTES;

/// The buffers of this process, by address.
static BUFFERS: RwLock<BTreeMap<usize, ListedBuffer>> = RwLock::new(BTreeMap::new());

#[derive(Clone, Copy)]
struct ListedBuffer {
    bytes: usize,
    ticket: Ticket,
}

/// The list is locked for a moment, except in a child that was forked at that moment: there, it stays locked.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(1);

impl SharedBuffer {
    /// Allocates a buffer of so many zeros. All memory is allocated now, so that a lack of memory is an error.
    pub fn zeroed(bytes: usize) -> io::Result<Self> {
        if bytes == 0 {
            return Ok(Self { segment: None, bytes });
        }
        let whole = bytes.saturating_add(DATA_AT);
        check_available(whole as u64)?;
        let buffer = Self { segment: Some(Segment::create(whole, true)?), bytes };
        if let Some(segment) = &buffer.segment {
            segment.populate();
        }
        buffer.list()?;
        Ok(buffer)
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Where the bytes begin.
    pub fn as_ptr(&self) -> *const u8 {
        self.as_slice().as_ptr()
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: other processes only read the memory, and within this process it is reached through this value.
        self.data().map_or(&[], |data| unsafe { data.assume_unwritten() })
    }

    /// The bytes, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: this value is borrowed exclusively. Other processes read the memory during collectives of its owner; one
        // that reads it at another time gets bytes that it does not use.
        self.data().map_or(&mut [], |data| unsafe { data.assume_exclusive() })
    }

    /// The elements, as many as fit.
    pub fn elements<T: Plain>(&self) -> &[T] {
        let whole = self.bytes / size_of::<T>() * size_of::<T>();
        // Buffers are page-aligned.
        <[T]>::ref_from_bytes(&self.as_slice()[..whole]).unwrap_or(&[])
    }

    /// The elements, to be written.
    pub fn elements_mut<T: Plain>(&mut self) -> &mut [T] {
        let whole = self.bytes / size_of::<T>() * size_of::<T>();
        <[T]>::mut_from_bytes(&mut self.as_mut_slice()[..whole]).unwrap_or(&mut [])
    }

    fn data(&self) -> Option<SharedBytes<'_>> {
        self.segment.as_ref().map(|segment| segment.bytes().part(DATA_AT..DATA_AT + self.bytes))
    }

    fn list(&self) -> io::Result<()> {
        let (Some(segment), Some(data)) = (&self.segment, self.data()) else { return Ok(()) };
        let busy =
            || io::Error::new(io::ErrorKind::TimedOut, "timed out waiting for the list of shared buffers");
        let mut buffers = BUFFERS.try_write_for(LOCK_WAIT_MAX).ok_or_else(busy)?;
        let pid = std::process::id();
        // A forked child has the list of its parent.
        buffers.retain(|_, buffer| buffer.ticket.pid == pid);
        buffers.insert(data.as_ptr().addr(), ListedBuffer { bytes: self.bytes, ticket: segment.ticket() });
        Ok(())
    }
}

impl Drop for SharedBuffer {
    fn drop(&mut self) {
        let (Some(segment), Some(data)) = (&self.segment, self.data()) else { return };
        // A forked child does not free the buffer of its parent.
        if segment.ticket().pid == std::process::id() {
            segment.bytes().word(FREED_AT).store(1, Ordering::Release);
            BUFFERS.write().remove(&data.as_ptr().addr());
        }
    }
}

impl From<SharedBuffer> for Memory {
    fn from(buffer: SharedBuffer) -> Self {
        let Some(data) = buffer.data() else { return Self::zeroed(0) };
        let (start, bytes) = (data.as_ptr(), data.len());
        // SAFETY: the buffer keeps the bytes mapped, and nobody reaches them through it any more. Other processes only read.
        unsafe { Self::kept(start, bytes, Box::new(buffer)) }
    }
}

impl BufferRange {
    /// The range of a buffer of this process in which these bytes lie; `None` if they do not lie within one.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let start = bytes.as_ptr().addr();
        let buffers = BUFFERS.try_read_for(LOCK_WAIT_MAX)?;
        let (base, buffer) = buffers.range(..=start).next_back()?;
        let offset = start - base;
        let is_within = offset.checked_add(bytes.len()).is_some_and(|end| end <= buffer.bytes);
        // Memory of a parent is not announced: a child and its parent may be ranks of one group.
        let is_own = buffer.ticket.pid == std::process::id();
        (is_within && is_own).then_some(Self { ticket: buffer.ticket, offset: offset as u64 })
    }
}

impl MappedBuffer {
    /// Maps the buffer of a ticket, if this process can open it and it is the right one.
    pub fn open(ticket: &Ticket) -> io::Result<Self> {
        #[cfg(miri)]
        return Err(io::ErrorKind::Unsupported.into());
        let file = Segment::open_file(ticket, OFlags::RDONLY)?;
        if ticket.bytes < DATA_AT as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "invalid shared buffer: it is too small"));
        }
        let mapping = Mapping::read_only(&file, ticket.bytes as usize)?;
        // Older kernels do not have this advice; there, the first reads fault.
        // SAFETY: this is the whole mapping, and the advice changes no contents.
        let _ = unsafe {
            rustix::mm::madvise(mapping.base.as_ptr().cast(), mapping.bytes, Advice::LinuxPopulateRead)
        };
        Ok(Self { mapping, ticket: *ticket })
    }

    /// What opened it.
    pub fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// Whether its owner has freed it.
    pub fn is_freed(&self) -> bool {
        self.shared().word(FREED_AT).load(Ordering::Acquire) != 0
    }

    /// A range of it; `None` if the buffer has no such range.
    ///
    /// These are the bytes of a payload: the owner does not write them while its collective lasts. If it has failed, they may
    /// change, and the reader does not use what it has computed from them.
    #[inline]
    pub fn payload(&self, offset: u64, bytes: usize) -> Option<&[u8]> {
        let start = usize::try_from(offset).ok()?.checked_add(DATA_AT)?;
        let end = start.checked_add(bytes)?;
        if end > self.mapping.bytes {
            return None;
        }
        // SAFETY: no thread of this process writes through a mapping that cannot be written. For the owner see above; what
        // happens if it writes at the same time is described at `SharedBytes`.
        Some(unsafe { self.shared().part(start..end).assume_unwritten() })
    }

    /// The mapping, which is only read.
    fn shared(&self) -> SharedBytes<'_> {
        // SAFETY: it is mapped as long as this value lives. It is used by `payload` and `is_freed`, which do not write.
        unsafe { SharedBytes::new(self.mapping.base, self.mapping.bytes) }
    }
}

/// Fails if the system has less memory: allocating more would make it end processes.
fn check_available(bytes: u64) -> io::Result<()> {
    let Ok(info) = std::fs::read_to_string("/proc/meminfo") else { return Ok(()) };
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    match kib.map(|kib| kib.saturating_mul(1024)) {
        Some(available) if available < bytes => Err(io::Error::new(
            io::ErrorKind::OutOfMemory,
            format!("{bytes} bytes of shared memory are wanted, and {available} are available"),
        )),
        _ => Ok(()),
    }
}

impl fmt::Debug for SharedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBuffer({} bytes)", self.bytes)
    }
}

impl fmt::Debug for MappedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ticket { pid, bytes, .. } = self.ticket;
        write!(f, "MappedBuffer({} bytes of process {pid})", bytes - DATA_AT as u64)
    }
}

#[cfg(all(test, not(miri)))]
mod tests;
