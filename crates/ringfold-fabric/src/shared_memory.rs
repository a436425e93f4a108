//! User memory that other processes of this host may map: a part of a file.
//!
//! Unlike a [segment](crate::segment), it belongs to the user, who may have created the file. So nothing is written into
//! it: the file is identified by its device and inode, which no other file has while it is open.

use crate::memory::{Memory, RawMemory};
use crate::shared_bytes::SharedBytes;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use rustix::fs::{FallocateFlags, FileType, MemfdFlags, Mode, OFlags, SealFlags, Stat};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Memory of this process in a file, so that other processes of the host can map it.
#[derive(Debug)]
pub struct SharedMemory {
    memory: RawMemory,
    file: OwnedFd,
    offset: u64,
}

/// What another process of this host needs to map shared memory, besides the right to inspect the process that it names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct FileTicket {
    /// The process that has the file open, in its own namespace.
    pub pid: u32,
    /// The file descriptor there.
    pub fd: u32,
    /// The device of the file.
    pub device: u64,
    /// The inode of the file.
    pub inode: u64,
    /// Where in the file the memory begins.
    pub offset: u64,
    /// The size of the memory.
    pub bytes: u64,
}

/// Mapped memory of another process, which may write it at any time. It is only copied.
#[derive(Debug)]
pub struct MappedMemory {
    mapping: Mapping,
    /// Where in the mapping the memory begins: mappings are page-aligned.
    lead: usize,
    bytes: usize,
    file: OwnedFd,
    offset: u64,
}

/// Mappings begin at multiples of this, which the pages of all systems divide.
const PAGE_BYTES_MAX: u64 = 64 << 10;

impl SharedMemory {
    /// Creates zeroed memory, all of it allocated.
    pub fn create(bytes: usize) -> io::Result<Self> {
        let file =
            rustix::fs::memfd_create("ringfold-window", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        // A mapping cannot be empty.
        let mapped = bytes.max(1);
        rustix::fs::ftruncate(&file, mapped as u64)?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, mapped as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Mapping::new(&file, 0, mapped)?;
        let start = mapping.base.as_ptr();
        // SAFETY: the mapping lives as long as the memory, and nothing else in this process refers to it.
        let memory = unsafe { RawMemory::kept(start, bytes, Box::new(mapping)) };
        Ok(Self { memory, file, offset: 0 })
    }

    /// Memory that the caller has mapped from a file, from `offset` on. If it has not, others write elsewhere in the file.
    /// Others map it only if the file has the seal `F_SEAL_SHRINK`.
    pub fn of(memory: Memory, file: OwnedFd, offset: u64) -> Self {
        Self { memory: memory.into(), file, offset }
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// What others need to map it, while the file is kept open.
    pub fn ticket(&self) -> io::Result<FileTicket> {
        let found = rustix::fs::fstat(&self.file)?;
        let bytes = self.memory.len() as u64;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile
            || !holds(&found, self.offset, bytes)
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "invalid shared memory: it is not within the file",
            ));
        }
        check_seals(&self.file)?;
        Ok(FileTicket {
            pid: std::process::id(),
            fd: self.file.as_raw_fd() as u32,
            device: found.st_dev,
            inode: found.st_ino,
            offset: self.offset,
            bytes,
        })
    }

    /// The memory, and the file that has to be kept open for others.
    pub fn into_parts(self) -> (RawMemory, OwnedFd) {
        (self.memory, self.file)
    }
}

impl FileTicket {
    /// The size of an encoded ticket.
    pub const BYTES: usize = size_of::<Self>();

    /// Encodes the ticket.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(*self)
    }

    /// Decodes a ticket.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        zerocopy::transmute!(*bytes)
    }
}

impl MappedMemory {
    /// Maps the memory of a ticket, if this process can open its file and it is the right one.
    pub fn open(ticket: &FileTicket) -> io::Result<Self> {
        let path = format!("/proc/{}/fd/{}", ticket.pid, ticket.fd);
        // The file is checked first, since opening some files has effects: devices, for example.
        check(&rustix::fs::stat(&*path)?, ticket)?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = rustix::fs::open(&*path, flags, Mode::empty())?;
        check_seals(&file)?;
        // Seals cannot be removed, so the file does not shrink from here on.
        check(&rustix::fs::fstat(&file)?, ticket)?;
        let lead = ticket.offset % PAGE_BYTES_MAX;
        let bytes = usize::try_from(ticket.bytes).map_err(|_| refusal("too large"))?;
        let mapped = (lead as usize).checked_add(bytes).ok_or_else(|| refusal("too large"))?;
        let mapping = Mapping::new(&file, ticket.offset - lead, mapped.max(1))?;
        Ok(Self { mapping, lead: lead as usize, bytes, file, offset: ticket.offset })
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The file, to be mapped by other means.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Where in the file the memory begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Copies into it.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn write(&self, at: usize, from: &[u8]) {
        self.place(at, from.len()).copy_from(from);
    }

    /// Copies from it.
    ///
    /// # Panics
    /// If there is not so much.
    pub fn read(&self, at: usize, into: &mut [u8]) {
        self.place(at, into.len()).copy_to(into);
    }

    /// Sets an aligned word, which others may read at the same time.
    ///
    /// # Panics
    /// If there is no such word, or it is not aligned.
    pub fn set_word(&self, at: usize, value: u64) {
        self.place(at, size_of::<u64>()).word(0).store(value, Ordering::Release);
    }

    /// Where it begins. Valid for `len` bytes as long as this value lives.
    pub fn start(&self) -> *mut u8 {
        self.place(0, 0).as_ptr()
    }

    fn place(&self, at: usize, bytes: usize) -> SharedBytes<'_> {
        let is_within = at.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(is_within, "{bytes} bytes at {at} are not within {} bytes", self.bytes);
        // SAFETY: it is mapped as long as this value lives, and only used by copies and atomics.
        let mapped = unsafe { SharedBytes::new(self.mapping.base, self.mapping.bytes) };
        mapped.part(self.lead + at..self.lead + at + bytes)
    }
}

/// Pages of a file.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) base: NonNull<u8>,
    pub(crate) bytes: usize,
}

// SAFETY: a mapping is an address and a size; its users order their accesses.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(file: impl AsFd, offset: u64, bytes: usize) -> io::Result<Self> {
        Self::with_rights(file, offset, bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// A mapping that must not be written.
    pub(crate) fn read_only(file: impl AsFd, bytes: usize) -> io::Result<Self> {
        Self::with_rights(file, 0, bytes, ProtFlags::READ)
    }

    fn with_rights(file: impl AsFd, offset: u64, bytes: usize, rights: ProtFlags) -> io::Result<Self> {
        let null = core::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that is there.
        let start = unsafe { rustix::mm::mmap(null, bytes, rights, MapFlags::SHARED, file, offset) }?;
        let base =
            NonNull::new(start.cast()).ok_or_else(|| io::Error::other("memory was mapped at address 0"))?;
        Ok(Self { base, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if cfg!(miri) {
            return;
        }
        // SAFETY: this is the mapping that `new` made, and nobody uses it after this value.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Whether so many bytes lie in a file.
fn holds(file: &Stat, offset: u64, bytes: u64) -> bool {
    offset.checked_add(bytes).is_some_and(|end| end <= file.st_size.try_into().unwrap_or(0))
}

fn check(found: &Stat, ticket: &FileTicket) -> io::Result<()> {
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(refusal("not a regular file"));
    }
    if (found.st_dev, found.st_ino) != (ticket.device, ticket.inode) {
        return Err(refusal("its device or inode differs"));
    }
    if !holds(found, ticket.offset, ticket.bytes) {
        return Err(refusal("the file is too small"));
    }
    Ok(())
}

/// A process that uses a mapped page behind the end of its file is killed (`SIGBUS`), so only sealed files are mapped.
fn check_seals(file: &OwnedFd) -> io::Result<()> {
    match rustix::fs::fcntl_get_seals(file) {
        Ok(seals) if seals.contains(SealFlags::SHRINK) => Ok(()),
        _ => Err(refusal("its file can shrink: use a memfd with the seal F_SEAL_SHRINK")),
    }
}

fn refusal(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("invalid shared memory: {why}"))
}

#[cfg(test)]
mod tests;
