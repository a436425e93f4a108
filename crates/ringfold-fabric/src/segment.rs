//! Memory that processes of one host share: a sealed, anonymous file.
//!
//! Nothing has to be cleaned up: the memory is freed with the last process that has it mapped. Seals fix its size, so
//! that no process can make the others fault by truncating it.

#![cfg_attr(miri, allow(dead_code, unreachable_code, unused_variables, reason = "Miri uses a substitute"))]

use crate::limits::SEGMENT_BYTES_MAX;
use crate::random;
use crate::shared_bytes::SharedBytes;
use crate::shared_memory::Mapping;
use core::fmt;
use rustix::fs::{FileType, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::Advice;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Memory that this process has mapped, and perhaps others.
pub struct Segment {
    mapping: Mapping,
    ticket: Ticket,
    /// The creator keeps the file, so that others can open it.
    _file: Option<OwnedFd>,
}

/// What another process of this host needs to open a segment, besides the right to inspect the process that it names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Ticket {
    /// The process that created the segment, in its own namespace.
    pub pid: u32,
    /// The file descriptor there.
    pub fd: u32,
    /// The size of the segment.
    pub bytes: u64,
    /// The first bytes of the segment: other files may have the same numbers.
    pub nonce: [u8; 16],
}

impl Segment {
    /// Bytes at the start of a segment that must not be written.
    pub const RESERVED_BYTES: usize = 64;

    const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

    /// Creates a zeroed segment of so many bytes, the [reserved](Self::RESERVED_BYTES) ones included.
    pub fn create(bytes: usize, is_allocated: bool) -> io::Result<Self> {
        check_size(bytes as u64)?;
        #[cfg(miri)]
        return substitute::create(bytes);
        let file = File::from(anonymous_file()?);
        rustix::fs::ftruncate(&file, bytes as u64)?;
        if is_allocated {
            // A lack of memory is an error here, and a signal (SIGBUS) later.
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes as u64)?;
        }
        let nonce = random::bytes()?;
        file.write_all_at(&nonce, 0)?;
        rustix::fs::fcntl_add_seals(&file, Self::SEALS)?;
        let mapping = Mapping::new(&file, 0, bytes)?;
        let ticket =
            Ticket { pid: std::process::id(), fd: file.as_raw_fd() as u32, bytes: bytes as u64, nonce };
        Ok(Self { mapping, ticket, _file: Some(file.into()) })
    }

    /// Opens the segment of a ticket, if this process can and it is the right one.
    pub fn open(ticket: &Ticket) -> io::Result<Self> {
        #[cfg(miri)]
        return substitute::open(ticket);
        let file = Self::open_file(ticket, OFlags::RDWR)?;
        let mapping = Mapping::new(&file, 0, ticket.bytes as usize)?;
        Ok(Self { mapping, ticket: *ticket, _file: None })
    }

    /// Opens the file of a ticket, and checks that it is the right one and that nobody can change its size.
    pub(crate) fn open_file(ticket: &Ticket, access: OFlags) -> io::Result<File> {
        check_size(ticket.bytes)?;
        let path = format!("/proc/{}/fd/{}", ticket.pid, ticket.fd);
        // The name is checked first, since opening some files has effects: devices, for example.
        let name = rustix::fs::readlink(&*path, Vec::new())?;
        if !name.to_bytes().starts_with(b"/memfd:ringfold") {
            return Err(refusal("not a file of Ringfold"));
        }
        let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::from(rustix::fs::open(&*path, flags, Mode::empty())?);
        let found = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(refusal("not an anonymous file"));
        }
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|_| refusal("not an anonymous file"))?;
        if !seals.contains(Self::SEALS) {
            return Err(refusal("its file is not sealed"));
        }
        if found.st_size as u64 != ticket.bytes {
            return Err(refusal("its size differs"));
        }
        let mut nonce = [0; 16];
        file.read_exact_at(&mut nonce, 0)?;
        if nonce != ticket.nonce {
            return Err(refusal("its nonce differs"));
        }
        Ok(file)
    }

    /// Maps all pages now. Otherwise each page faults when it is first used.
    pub fn populate(&self) {
        #[cfg(miri)]
        return;
        let whole = (self.mapping.base.as_ptr().cast(), self.len());
        // Older kernels do not have this advice; there, first writes fault.
        // SAFETY: this is the whole mapping, and the advice changes no contents.
        let _ = unsafe { rustix::mm::madvise(whole.0, whole.1, Advice::LinuxPopulateWrite) };
    }

    /// What others need to open this segment, while its creator keeps it.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Its memory in this process, page-aligned.
    #[inline]
    pub fn bytes(&self) -> SharedBytes<'_> {
        // SAFETY: it is mapped until the segment is dropped, and this is the only way to its memory.
        unsafe { SharedBytes::new(self.mapping.base, self.len()) }
    }

    /// How many bytes.
    #[expect(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(&self) -> usize {
        self.ticket.bytes as usize
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({} bytes of process {})", self.ticket.bytes, self.ticket.pid)
    }
}

/// An encoded ticket.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct MarkedTicket {
    magic: [u8; 8],
    ticket: Ticket,
}

impl Ticket {
    /// The size of an encoded ticket.
    pub const BYTES: usize = size_of::<MarkedTicket>();

    /// The version of the format.
    const MAGIC: [u8; 8] = *b"rf seg 1";

    /// Encodes the ticket.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(MarkedTicket { magic: Self::MAGIC, ticket: *self })
    }

    /// Decodes a ticket; `None` if it is invalid.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let MarkedTicket { magic, ticket } = zerocopy::transmute!(*bytes);
        (magic == Self::MAGIC).then_some(ticket)
    }
}

fn check_size(bytes: u64) -> io::Result<()> {
    if (Segment::RESERVED_BYTES as u64..=SEGMENT_BYTES_MAX as u64).contains(&bytes) {
        return Ok(());
    }
    let why =
        format!("invalid segment size {bytes}: must be {}..={SEGMENT_BYTES_MAX}", Segment::RESERVED_BYTES);
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

fn refusal(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("invalid shared memory: {why}"))
}

fn anonymous_file() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create("ringfold", flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not have this flag.
        Err(Errno::INVAL) => Ok(rustix::fs::memfd_create("ringfold", flags)?),
        made => Ok(made?),
    }
}

/// Miri has no shared mappings: there, segments are memory of the process, which is never freed.
#[cfg(miri)]
mod substitute {
    use super::*;
    use core::ptr::NonNull;
    use std::alloc::{Layout, alloc_zeroed};
    use std::sync::Mutex;
    use std::sync::atomic::AtomicPtr;

    static ALL: Mutex<Vec<(Ticket, AtomicPtr<u8>)>> = Mutex::new(Vec::new());

    pub(super) fn create(bytes: usize) -> io::Result<Segment> {
        let layout = Layout::from_size_align(bytes, 4096).map_err(io::Error::other)?;
        let ticket = Ticket { pid: 0, fd: 0, bytes: bytes as u64, nonce: random::bytes()? };
        // SAFETY: no segment is empty.
        let base = unsafe { alloc_zeroed(layout) };
        ALL.lock().unwrap().push((ticket, AtomicPtr::new(base)));
        open(&ticket)
    }

    pub(super) fn open(ticket: &Ticket) -> io::Result<Segment> {
        let mut all = ALL.lock().unwrap();
        let found = all
            .iter_mut()
            .find(|(made, _)| made == ticket)
            .and_then(|(_, base)| NonNull::new(*base.get_mut()));
        let base = found.ok_or_else(|| refusal("its nonce differs"))?;
        let mapping = Mapping { base, bytes: ticket.bytes as usize };
        Ok(Segment { mapping, ticket: *ticket, _file: None })
    }
}

#[cfg(all(test, not(miri)))]
mod tests;
