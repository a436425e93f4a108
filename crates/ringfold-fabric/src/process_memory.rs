//! Memory of another process of this host, read with one copy by the kernel (`process_vm_readv`).
//!
//! No address of the other process is used here but by the kernel: an invalid one is an error of the system call. Each
//! call also reads a random number at a known address, so the bytes are those of the process that was meant, also if its
//! number has been given to another one.
//!
//! Memory is only read. A process that reads late, after its operation has failed, gets bytes that it does not use; one
//! that wrote late would change memory that its owner uses for something else by then.

#![cfg_attr(miri, allow(dead_code, unused_variables, reason = "Miri cannot read other processes"))]

use crate::random;
use core::sync::atomic::{Ordering, fence};
use std::io;
use std::sync::OnceLock;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What another process of this host needs to read memory of this one, besides the right to trace it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct ProcessTicket {
    /// The process, in its own namespace.
    pub pid: u64,
    /// Where its nonce is.
    pub nonce_at: u64,
    /// Random bytes: another process with this number has others.
    pub nonce: [u8; 16],
}

/// Memory of another process.
#[derive(Debug)]
pub struct ProcessMemory {
    ticket: ProcessTicket,
}

/// Bytes that one system call reads: between two calls a reader can stop.
const CALL_BYTES_MAX: usize = 1 << 20;

impl ProcessTicket {
    /// The size of an encoded ticket.
    pub const BYTES: usize = size_of::<Self>();

    /// The ticket of this process.
    pub fn own() -> io::Result<Self> {
        static NONCE: OnceLock<[u8; 16]> = OnceLock::new();
        let nonce = match NONCE.get() {
            Some(nonce) => nonce,
            None => {
                let bytes = random::bytes()?;
                NONCE.get_or_init(|| bytes)
            }
        };
        let pid = u64::from(std::process::id());
        Ok(Self { pid, nonce_at: nonce.as_ptr().expose_provenance() as u64, nonce: *nonce })
    }

    /// Encodes the ticket.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(*self)
    }

    /// Decodes a ticket.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        zerocopy::transmute!(*bytes)
    }
}

impl ProcessMemory {
    /// The memory of the process of a ticket, if this process may read it.
    pub fn open(ticket: ProcessTicket) -> io::Result<Self> {
        let memory = Self { ticket };
        memory.read_once(ticket.nonce_at, &mut [0; 16])?;
        Ok(memory)
    }

    /// Copies what lies at an address of the other process. `goes_on` is asked between two parts of a large copy.
    ///
    /// After an error the bytes are undefined.
    pub fn read(&self, address: u64, into: &mut [u8], goes_on: impl Fn() -> bool) -> io::Result<()> {
        let mut at = address;
        for part in into.chunks_mut(CALL_BYTES_MAX) {
            if at != address && !goes_on() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            self.read_once(at, part)?;
            at = at.checked_add(part.len() as u64).ok_or(io::ErrorKind::InvalidInput)?;
        }
        // What the caller checks next is read after the bytes.
        fence(Ordering::SeqCst);
        Ok(())
    }

    #[cfg(miri)]
    fn read_once(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    #[cfg(not(miri))]
    fn read_once(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        let mut nonce = [0_u8; 16];
        let expected = nonce.len() + into.len();
        let local = [local(&mut nonce), local(into)];
        let remote = [remote(self.ticket.nonce_at, nonce.len()), remote(address, into.len())];
        let pid = i32::try_from(self.ticket.pid).map_err(|_| io::ErrorKind::InvalidInput)?;
        let parts = local.len() as libc::c_ulong;
        // SAFETY: the kernel writes only what `local` lists, which this function borrows. It checks the remote addresses.
        let read = unsafe { libc::process_vm_readv(pid, local.as_ptr(), parts, remote.as_ptr(), parts, 0) };
        match usize::try_from(read) {
            Err(_) => Err(io::Error::last_os_error()),
            // A part of the range is not mapped, or cannot be read by other processes.
            Ok(read) if read != expected => Err(io::Error::from_raw_os_error(libc::EFAULT)),
            // The other process has ended, or runs another program.
            Ok(_) if nonce != self.ticket.nonce => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            Ok(_) => Ok(()),
        }
    }
}

#[cfg(not(miri))]
fn local(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

#[cfg(not(miri))]
fn remote(address: u64, bytes: usize) -> libc::iovec {
    // Never dereferenced here.
    libc::iovec { iov_base: core::ptr::without_provenance_mut(address as usize), iov_len: bytes }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn address(bytes: &[u8]) -> u64 {
        bytes.as_ptr().expose_provenance() as u64
    }

    #[test]
    fn bytes_of_a_process_are_copied() {
        let memory = ProcessMemory::open(ProcessTicket::own().unwrap()).unwrap();
        for bytes in [0, 1, 4097, CALL_BYTES_MAX, 2 * CALL_BYTES_MAX + 3] {
            let from: Vec<u8> = (0..bytes).map(|at| (at * 7 % 251) as u8).collect();
            let mut into = vec![0; bytes];
            memory.read(address(&from), &mut into, || true).unwrap();
            assert!(into == from, "{bytes} bytes");
        }
    }

    #[test]
    fn invalid_addresses_are_errors() {
        let memory = ProcessMemory::open(ProcessTicket::own().unwrap()).unwrap();
        let mut into = vec![0; 64];
        for address in [0, 8, u64::MAX - 20, 1 << 63] {
            let error = memory.read(address, &mut into, || true).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EFAULT), "{address}");
        }
    }

    #[test]
    fn another_process_with_the_number_is_detected() {
        let own = ProcessTicket::own().unwrap();
        let other = ProcessTicket { nonce: [7; 16], ..own };
        assert_eq!(ProcessMemory::open(other).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        for pid in [u64::MAX, 1 << 31, u64::from(u32::MAX)] {
            assert!(ProcessMemory::open(ProcessTicket { pid, ..own }).is_err());
        }
        assert_eq!(ProcessTicket::decode(&own.encode()), own);
    }

    #[test]
    fn a_reader_can_stop_between_two_parts() {
        let memory = ProcessMemory::open(ProcessTicket::own().unwrap()).unwrap();
        let from = vec![1; CALL_BYTES_MAX + 1];
        let mut into = vec![0; from.len()];
        let error = memory.read(address(&from), &mut into, || false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted);
        assert_eq!((into[0], into[CALL_BYTES_MAX]), (1, 0));
    }
}
