//! Writes to mapped memory of this host. Other memory is written over TCP.
//!
//! After the first write over TCP all writes use it, so that the order is kept.

use super::error::PortError;
use super::registered_memory::{LocalAddress, MemoryAt, RegisteredMemory};
use super::tcp_transport::TcpTransport;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

pub(super) struct SharedMemoryTransport {
    /// None for a connection of a port with itself.
    tcp: Option<TcpTransport>,
    /// Whether writes have switched to TCP.
    uses_tcp: AtomicBool,
}

impl SharedMemoryTransport {
    pub(super) fn new(tcp: Option<TcpTransport>) -> Self {
        Self { tcp, uses_tcp: AtomicBool::new(false) }
    }

    pub(super) fn write(&self, dst: MemoryAt<'_>, src: MemoryAt<'_>, bytes: u64) -> Result<(), PortError> {
        if !self.uses_tcp.load(Ordering::Acquire)
            && let (Ok(LocalAddress::Host(to)), Ok(LocalAddress::Host(from))) =
                (dst.0.local_address(dst.1), src.0.local_address(src.1))
        {
            // SAFETY: both ranges are in bounds, as the caller has checked, and are held. Concurrent accesses of others
            // may see a mix of old and new bytes.
            unsafe { core::ptr::copy(from, to, bytes as usize) };
            return Ok(());
        }
        self.switch_to_tcp()?.write(dst, src, bytes)
    }

    pub(super) fn update(&self, dst: &RegisteredMemory, offset: u64, value: u64) -> Result<(), PortError> {
        if !self.uses_tcp.load(Ordering::Acquire)
            && let Ok(LocalAddress::Host(word)) = dst.local_address(offset)
        {
            let word = word.cast::<u64>();
            if !word.is_aligned() {
                return Err(PortError::Argument(format!("the word at offset {offset} is not aligned")));
            }
            // SAFETY: the word is in bounds, as the caller has checked, aligned, and held.
            unsafe { AtomicU64::from_ptr(word) }.store(value, Ordering::Release);
            return Ok(());
        }
        self.switch_to_tcp()?.update(dst, offset, value)
    }

    pub(super) fn flush(&self, deadline: Instant) -> Result<(), PortError> {
        match &self.tcp {
            Some(tcp) if self.uses_tcp.load(Ordering::Acquire) => tcp.flush(deadline),
            _ => Ok(()),
        }
    }

    fn switch_to_tcp(&self) -> Result<&TcpTransport, PortError> {
        let none =
            || PortError::Unsupported("shared memory does not support device memory: use CUDA IPC".into());
        let tcp = self.tcp.as_ref().ok_or_else(none)?;
        self.uses_tcp.store(true, Ordering::Release);
        Ok(tcp)
    }
}
