//! Memory that processes of one host share: a sealed, anonymous file, mapped by whoever holds its ticket.
//!
//! Nothing lies in a file system and nothing has to be cleaned up: the memory is gone with the last process that
//! has it mapped. Seals keep its size for ever, so that nobody can make the others fault by cutting it short.

#![cfg_attr(miri, allow(dead_code, unreachable_code, unused_variables, reason = "there, a stand-in is used"))]

use crate::limits::SEGMENT_BYTES_MAX;
use crate::random;
use crate::shared_bytes::SharedBytes;
use core::fmt;
use core::ptr::NonNull;
use rustix::fs::{FileType, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Memory that is mapped by this process and perhaps by others.
pub struct Segment {
    base: NonNull<u8>,
    ticket: Ticket,
    /// Whoever made the segment keeps its file, so that others can open it.
    _file: Option<OwnedFd>,
}

/// What another process of this host needs to open a segment. It is worth nothing without the right to look into
/// the process that it names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// The process that made the segment, as it is numbered in its own namespace.
    pub pid: u32,
    /// The number of the file there.
    pub fd: u32,
    /// The size of the segment.
    pub bytes: u64,
    /// What the segment begins with; tells it from whatever else may have these numbers.
    pub nonce: [u8; 16],
}

// SAFETY: a segment is an address and what belongs to it. Access goes by raw pointers, which is for their user to
// order.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Bytes at the start of a segment that belong to the segment itself, and are not to be written.
    pub const RESERVED_BYTES: usize = 64;

    const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

    /// A new segment of so many bytes, the [reserved](Self::RESERVED_BYTES) ones included: zeroed, sealed, and with
    /// all its memory set aside, if it is to be.
    pub fn create(bytes: usize, is_set_aside: bool) -> io::Result<Self> {
        check_size(bytes as u64)?;
        #[cfg(miri)]
        return stand_in::create(bytes);
        let file = File::from(anonymous_file()?);
        rustix::fs::ftruncate(&file, bytes as u64)?;
        if is_set_aside {
            // Asking for the memory here turns a lack of it into an error; later it would be a signal.
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes as u64)?;
        }
        let nonce = random::bytes()?;
        file.write_all_at(&nonce, 0)?;
        rustix::fs::fcntl_add_seals(&file, Self::SEALS)?;
        let base = map(&file, bytes)?;
        let ticket =
            Ticket { pid: std::process::id(), fd: file.as_raw_fd() as u32, bytes: bytes as u64, nonce };
        Ok(Self { base, ticket, _file: Some(file.into()) })
    }

    /// The segment that a ticket stands for, if this process can open it and it is the very one.
    pub fn open(ticket: &Ticket) -> io::Result<Self> {
        check_size(ticket.bytes)?;
        #[cfg(miri)]
        return stand_in::open(ticket);
        let path = format!("/proc/{}/fd/{}", ticket.pid, ticket.fd);
        // A look at the name spares us from opening what has effects when it is opened, such as a device.
        let name = rustix::fs::readlink(&*path, Vec::new())?;
        if !name.to_bytes().starts_with(b"/memfd:ringfold") {
            return Err(refusal("it is another file"));
        }
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::from(rustix::fs::open(&*path, flags, Mode::empty())?);
        let found = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(refusal("it is no memory"));
        }
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|_| refusal("it is no memory"))?;
        if !seals.contains(Self::SEALS) {
            return Err(refusal("it is not sealed"));
        }
        if found.st_size as u64 != ticket.bytes {
            return Err(refusal("it has another size"));
        }
        let mut nonce = [0; 16];
        file.read_exact_at(&mut nonce, 0)?;
        if nonce != ticket.nonce {
            return Err(refusal("it is another one"));
        }
        let base = map(&file, ticket.bytes as usize)?;
        Ok(Self { base, ticket: *ticket, _file: None })
    }

    /// Has all of it mapped at once, so that no use of it faults. Without this, each page faults when it is used for the
    /// first time.
    pub fn populate(&self) {
        #[cfg(miri)]
        return;
        let whole = (self.base.as_ptr().cast(), self.len());
        // Older kernels do not know the advice; there, first writes may fault.
        // SAFETY: this is the mapping that `map` made, and the advice changes no contents.
        let _ = unsafe { rustix::mm::madvise(whole.0, whole.1, Advice::LinuxPopulateWrite) };
    }

    /// What others open this segment with, for as long as the process that made it keeps it.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Its memory in this process, which begins with a page.
    #[inline]
    pub fn bytes(&self) -> SharedBytes<'_> {
        // SAFETY: it is mapped until the segment is dropped, and this is the only way to its memory.
        unsafe { SharedBytes::new(self.base, self.len()) }
    }

    /// How many bytes.
    #[expect(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(&self) -> usize {
        self.ticket.bytes as usize
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        #[cfg(miri)]
        return;
        // SAFETY: this is the mapping that `map` made, and nobody uses it after this value.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len()) };
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({} bytes of process {})", self.ticket.bytes, self.ticket.pid)
    }
}

impl Ticket {
    /// The size of a ticket on its way.
    pub const BYTES: usize = 40;

    /// What tickets begin with; another version of the format has another one.
    const MAGIC: [u8; 8] = *b"rf seg 1";

    /// The ticket as bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&Self::MAGIC);
        bytes[8..12].copy_from_slice(&self.pid.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.fd.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[24..].copy_from_slice(&self.nonce);
        bytes
    }

    /// The ticket that these bytes are; `None` if they are none.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (pid, rest) = rest.split_first_chunk()?;
        let (fd, rest) = rest.split_first_chunk()?;
        let (size, nonce) = rest.split_first_chunk()?;
        (*magic == Self::MAGIC).then_some(Self {
            pid: u32::from_le_bytes(*pid),
            fd: u32::from_le_bytes(*fd),
            bytes: u64::from_le_bytes(*size),
            nonce: nonce.try_into().ok()?,
        })
    }
}

fn check_size(bytes: u64) -> io::Result<()> {
    if (Segment::RESERVED_BYTES as u64..=SEGMENT_BYTES_MAX as u64).contains(&bytes) {
        return Ok(());
    }
    let words = format!("a segment can't have {bytes} bytes");
    Err(io::Error::new(io::ErrorKind::InvalidInput, words))
}

fn refusal(why: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("this is not the shared memory that was announced: {why}"),
    )
}

fn anonymous_file() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create("ringfold", flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know that memory may be barred from being run.
        Err(Errno::INVAL) => Ok(rustix::fs::memfd_create("ringfold", flags)?),
        made => Ok(made?),
    }
}

fn map(file: &File, bytes: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that is there.
    let start = unsafe {
        rustix::mm::mmap(
            core::ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            file,
            0,
        )
    }?;
    NonNull::new(start.cast()).ok_or_else(|| io::Error::other("memory was mapped at address 0"))
}

/// Miri knows no shared mappings: there, segments are memory of the process, which is never given back.
#[cfg(miri)]
mod stand_in {
    use super::*;
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
        let base = found.ok_or_else(|| refusal("it is another one"))?;
        Ok(Segment { base, ticket: *ticket, _file: None })
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn byte(segment: &Segment, at: usize) -> u8 {
        let mut byte = [0];
        segment.bytes().part(at..at + 1).copy_to(&mut byte);
        byte[0]
    }

    #[test]
    fn what_one_mapping_writes_the_other_reads() {
        let made = Segment::create(10_000, true).unwrap();
        let opened = Segment::open(&made.ticket()).unwrap();
        assert_ne!(made.base, opened.base);
        assert_eq!((made.len(), opened.len()), (10_000, 10_000));
        assert_eq!(byte(&opened, 9_999), 0);
        made.bytes().part(9_999..10_000).copy_from(&[7]);
        assert_eq!(byte(&opened, 9_999), 7);
        drop(made);
        assert_eq!(byte(&opened, 9_999), 7, "the mapping outlives its maker");
        assert!(Segment::open(&opened.ticket()).is_err(), "its maker let go of it");
    }

    #[test]
    fn only_the_very_segment_is_opened() {
        let made = Segment::create(4096, true).unwrap();
        let right = made.ticket();
        let nonce = { right.nonce.map(|byte| byte ^ 1) };
        let plain = File::open("/proc/self/exe").unwrap();
        let loose = rustix::fs::memfd_create("ringfold", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&loose, 4096).unwrap();
        for wrong in [
            Ticket { nonce, ..right },
            Ticket { bytes: 8192, ..right },
            Ticket { bytes: 0, ..right },
            Ticket { bytes: u64::MAX, ..right },
            Ticket { fd: 9999, ..right },
            Ticket { fd: plain.as_raw_fd() as u32, ..right },
            Ticket { fd: loose.as_raw_fd() as u32, nonce: [0; 16], ..right },
            Ticket { pid: u32::MAX, ..right },
        ] {
            assert!(Segment::open(&wrong).is_err(), "{wrong:?}");
        }
        assert!(Segment::open(&right).is_ok());
    }

    #[test]
    fn a_segment_keeps_its_size() {
        let made = Segment::create(4096, true).unwrap();
        let path = format!("/proc/self/fd/{}", made.ticket().fd);
        let file = File::options().write(true).open(path).unwrap();
        assert!(file.set_len(0).is_err() && file.set_len(8192).is_err());
        assert!(rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE).is_err());
        assert!(Segment::create(0, true).is_err() && Segment::create(usize::MAX, true).is_err());
    }

    #[test]
    fn another_process_opens_it_and_leaves_nothing_behind() {
        const TICKET: &str = "RINGFOLD_TEST_SEGMENT";
        const NAME: &str = "segment::tests::another_process_opens_it_and_leaves_nothing_behind";
        if let Ok(text) = std::env::var(TICKET) {
            let bytes: Vec<u8> = text.split(',').map(|byte| byte.parse().unwrap()).collect();
            let opened = Segment::open(&Ticket::decode(&bytes.try_into().unwrap()).unwrap()).unwrap();
            opened.bytes().part(100..101).copy_from(&[42]);
            return;
        }
        let made = Segment::create(4096, true).unwrap();
        let text = made.ticket().encode().map(|byte| byte.to_string()).join(",");
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args([NAME, "--exact"])
            .env(TICKET, text)
            .stdout(std::process::Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        assert_eq!(byte(&made, 100), 42);
    }

    #[test]
    fn a_ticket_survives_its_way() {
        let ticket = Ticket { pid: 7, fd: 9, bytes: 1 << 40, nonce: [3; 16] };
        assert_eq!(Ticket::decode(&ticket.encode()), Some(ticket));
        let mut other = ticket.encode();
        other[7] = b'2';
        assert_eq!(Ticket::decode(&other), None);
    }
}
