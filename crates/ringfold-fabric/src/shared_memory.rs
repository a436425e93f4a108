//! Memory that others of this host may map: that of a file, and where in the file it lies.
//!
//! Unlike a [segment](crate::segment), it belongs to the user, who may have made the file with other means. So nothing
//! is written into it to know it by: it is known by its device and number, which no other file has while it is open.

use crate::memory::{Memory, RawMemory};
use crate::shared_bytes::SharedBytes;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use rustix::fs::{FallocateFlags, FileType, MemfdFlags, Mode, OFlags, SealFlags, Stat};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Memory of this process that lies in a file, so that others of the host can map it.
#[derive(Debug)]
pub struct SharedMemory {
    memory: RawMemory,
    file: OwnedFd,
    offset: u64,
}

/// What another process of this host needs to map shared memory. It is worth nothing without the right to look into the
/// process that it names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct FileTicket {
    /// The process that has the file open, as it is numbered in its own namespace.
    pub pid: u32,
    /// The number of the open file there.
    pub fd: u32,
    /// The device and the number on it that the file is known by.
    pub device: u64,
    /// See `device`.
    pub inode: u64,
    /// Where in the file the memory begins.
    pub offset: u64,
    /// How many bytes it has.
    pub bytes: u64,
}

/// Memory of another process, mapped. Whoever has it may write it at any time, so it is only copied from and to.
#[derive(Debug)]
pub struct MappedMemory {
    mapping: Mapping,
    /// Where in the mapping the memory begins: mappings begin with a page.
    lead: usize,
    bytes: usize,
    file: OwnedFd,
    offset: u64,
}

/// Mappings begin at multiples of this, which the pages of all systems divide.
const PAGE_BYTES_MAX: u64 = 64 << 10;

impl SharedMemory {
    /// New memory, zeroed, and all there: a lack of it shows here.
    pub fn create(bytes: usize) -> io::Result<Self> {
        let file =
            rustix::fs::memfd_create("ringfold-window", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        // No mapping is empty.
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

    /// Memory that is the file's, from `offset` on. That it is, is the caller's word: if it is not, others write elsewhere
    /// in the file. Others map it only if the file has the seal `F_SEAL_SHRINK`.
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

    /// What others map it with, as long as the file is kept open.
    pub fn ticket(&self) -> io::Result<FileTicket> {
        let found = rustix::fs::fstat(&self.file)?;
        let bytes = self.memory.len() as u64;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile
            || !holds(&found, self.offset, bytes)
        {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the memory does not lie in this file"));
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

    /// The memory, and the file that has to be kept open for others to map it.
    pub fn into_parts(self) -> (RawMemory, OwnedFd) {
        (self.memory, self.file)
    }
}

impl FileTicket {
    /// The size of a ticket on its way.
    pub const BYTES: usize = size_of::<Self>();

    /// The ticket as bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(*self)
    }

    /// The ticket that these bytes are.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        zerocopy::transmute!(*bytes)
    }
}

impl MappedMemory {
    /// The memory that a ticket stands for, if this process can open it and it is the very one.
    pub fn open(ticket: &FileTicket) -> io::Result<Self> {
        let path = format!("/proc/{}/fd/{}", ticket.pid, ticket.fd);
        // A look before it is opened spares us from opening what has effects when it is, such as a device.
        check(&rustix::fs::stat(&*path)?, ticket)?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = rustix::fs::open(&*path, flags, Mode::empty())?;
        check_seals(&file)?;
        // Seals are never taken away, so the size that is found now stays.
        check(&rustix::fs::fstat(&file)?, ticket)?;
        let lead = ticket.offset % PAGE_BYTES_MAX;
        let bytes = usize::try_from(ticket.bytes).map_err(|_| refusal("it is too large"))?;
        let mapped = (lead as usize).checked_add(bytes).ok_or_else(|| refusal("it is too large"))?;
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

    /// The file, for those who map it by other means.
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

    /// Where it begins, for those who use it by its address. It is valid as long as this value lives, and for `len` bytes.
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
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is an address and a size; who uses the memory when is for its users to order.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: impl AsFd, offset: u64, bytes: usize) -> io::Result<Self> {
        let (null, rights) = (core::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that is there.
        let start = unsafe { rustix::mm::mmap(null, bytes, rights, MapFlags::SHARED, file, offset) }?;
        let base =
            NonNull::new(start.cast()).ok_or_else(|| io::Error::other("memory was mapped at address 0"))?;
        Ok(Self { base, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
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
        return Err(refusal("it is no memory"));
    }
    if (found.st_dev, found.st_ino) != (ticket.device, ticket.inode) {
        return Err(refusal("it is another file"));
    }
    if !holds(found, ticket.offset, ticket.bytes) {
        return Err(refusal("it is smaller"));
    }
    Ok(())
}

/// A process that touches a mapped page behind the end of its file is killed (`SIGBUS`). So only files that nobody can
/// shrink are mapped.
fn check_seals(file: &OwnedFd) -> io::Result<()> {
    match rustix::fs::fcntl_get_seals(file) {
        Ok(seals) if seals.contains(SealFlags::SHRINK) => Ok(()),
        _ => Err(refusal("its file can be shrunk: it needs the seal F_SEAL_SHRINK, which a memfd can have")),
    }
}

fn refusal(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("this is not the memory that was announced: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn what_others_write_is_in_the_memory() {
        let made = SharedMemory::create(10_000).unwrap();
        let mapped = MappedMemory::open(&made.ticket().unwrap()).unwrap();
        mapped.write(9_990, b"ten bytes!");
        let (mut memory, _file) = made.into_parts();
        let mut bytes = [0; 10_000];
        memory.read(0, &mut bytes);
        assert_eq!(&bytes[9_990..], b"ten bytes!");
        mapped.set_word(8, 77);
        memory.read(8, &mut bytes[..8]);
        assert_eq!(bytes[..8], 77_u64.to_ne_bytes());
        drop(memory);
        let mut again = [0; 3];
        mapped.read(9_990, &mut again);
        assert_eq!(&again, b"ten");
    }

    #[test]
    fn memory_may_begin_anywhere_in_a_file() {
        let mut made = SharedMemory::create(20_000).unwrap();
        let whole = made.ticket().unwrap();
        let part = FileTicket { offset: 5_003, bytes: 100, ..whole };
        let mapped = MappedMemory::open(&part).unwrap();
        assert_eq!((mapped.len(), mapped.offset()), (100, 5_003));
        mapped.write(99, &[7]);
        let mut byte = [0];
        made.memory.read(5_102, &mut byte);
        assert_eq!(byte, [7]);
        let none = MappedMemory::open(&FileTicket { offset: 20_000, bytes: 0, ..whole }).unwrap();
        none.write(0, &[]);
    }

    #[test]
    #[should_panic(expected = "not within 100 bytes")]
    fn nothing_beyond_the_memory_is_written() {
        let made = SharedMemory::create(20_000).unwrap();
        let part = FileTicket { bytes: 100, ..made.ticket().unwrap() };
        MappedMemory::open(&part).unwrap().write(1, &[0; 100]);
    }

    #[test]
    fn only_the_very_file_is_opened() {
        let made = SharedMemory::create(4096).unwrap();
        let right = made.ticket().unwrap();
        let device = File::open("/dev/null").unwrap();
        let other = SharedMemory::create(4096).unwrap();
        for wrong in [
            FileTicket { inode: right.inode ^ 1, ..right },
            FileTicket { device: right.device ^ 1, ..right },
            FileTicket { bytes: 4097, ..right },
            FileTicket { offset: u64::MAX, ..right },
            FileTicket { bytes: u64::MAX, offset: 1, ..right },
            FileTicket { fd: device.as_raw_fd() as u32, ..right },
            FileTicket { fd: other.file.as_raw_fd() as u32, ..right },
            FileTicket { pid: u32::MAX, ..right },
        ] {
            assert!(MappedMemory::open(&wrong).is_err(), "{wrong:?}");
        }
        assert!(MappedMemory::open(&right).is_ok());
        assert_eq!(FileTicket::decode(&right.encode()), right);
    }

    /// In a process of its own: if the file were mapped, the signal would end it.
    #[test]
    fn a_file_that_its_owner_can_shrink_is_neither_offered_nor_mapped() {
        const CHILD: &str = "RINGFOLD_TEST_UNSEALED";
        const NAME: &str =
            "shared_memory::tests::a_file_that_its_owner_can_shrink_is_neither_offered_nor_mapped";
        if std::env::var(CHILD).is_err() {
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            let status = child.args([NAME, "--exact"]).env(CHILD, "1").status().unwrap();
            assert!(status.success(), "{status}");
            return;
        }
        let file = File::from(rustix::fs::memfd_create("unsealed", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(8192).unwrap();
        let found = rustix::fs::fstat(&file).unwrap();
        let (pid, fd) = (std::process::id(), file.as_raw_fd() as u32);
        let ticket =
            FileTicket { pid, fd, device: found.st_dev, inode: found.st_ino, offset: 0, bytes: 8192 };
        if let Ok(mapped) = MappedMemory::open(&ticket) {
            file.set_len(0).unwrap();
            mapped.read(0, &mut [0]);
        }
        assert!(MappedMemory::open(&ticket).unwrap_err().to_string().contains("F_SEAL_SHRINK"));
        assert!(SharedMemory::of(Memory::zeroed(8192), file.into(), 0).ticket().is_err());
    }

    #[test]
    fn memory_that_does_not_lie_in_the_file_gets_no_ticket() {
        let file = SharedMemory::create(10).unwrap().into_parts().1;
        assert!(SharedMemory::of(Memory::zeroed(11), file, 0).ticket().is_err());
    }
}
