//! Writes into memory that this process has mapped, or that is its own. What can't be reached so goes over TCP; and once
//! something did, everything does, so that nothing overtakes it.

use super::error::PortError;
use super::registered_memory::{Place, RegisteredMemory};
use super::tcp_road::TcpRoad;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// The way through memory of this host.
pub(super) struct SharedRoad {
    /// None if both sides are one.
    beside: Option<TcpRoad>,
    /// Whether something went beside.
    goes_beside: AtomicBool,
}

impl SharedRoad {
    pub(super) fn new(beside: Option<TcpRoad>) -> Self {
        Self { beside, goes_beside: AtomicBool::new(false) }
    }

    pub(super) fn write(
        &self,
        dst: &RegisteredMemory,
        dst_offset: u64,
        src: &RegisteredMemory,
        src_offset: u64,
        bytes: u64,
    ) -> Result<(), PortError> {
        if !self.goes_beside.load(Ordering::Acquire)
            && let (Ok(Place::Host(to)), Ok(Place::Host(from))) =
                (dst.place(dst_offset), src.place(src_offset))
        {
            // SAFETY: both have so many bytes from there on, as the caller has checked, and are held. Others may read and
            // write them meanwhile, and get some of both.
            unsafe { core::ptr::copy(from, to, bytes as usize) };
            return Ok(());
        }
        self.go_beside()?.write(dst, dst_offset, src, src_offset, bytes)
    }

    pub(super) fn update(&self, dst: &RegisteredMemory, offset: u64, value: u64) -> Result<(), PortError> {
        if !self.goes_beside.load(Ordering::Acquire)
            && let Ok(Place::Host(word)) = dst.place(offset)
        {
            let word = word.cast::<u64>();
            if !word.is_aligned() {
                return Err(PortError::Argument(format!("the word at {offset} is not aligned")));
            }
            // SAFETY: the word is within the memory, as the caller has checked, which is held; and it is aligned.
            unsafe { AtomicU64::from_ptr(word) }.store(value, Ordering::Release);
            return Ok(());
        }
        self.go_beside()?.update(dst, offset, value)
    }

    pub(super) fn flush(&self, deadline: Instant) -> Result<(), PortError> {
        match &self.beside {
            Some(beside) if self.goes_beside.load(Ordering::Acquire) => beside.flush(deadline),
            _ => Ok(()),
        }
    }

    fn go_beside(&self) -> Result<&TcpRoad, PortError> {
        let none =
            || PortError::Unsupported("memory of a device can't be reached this way: use CUDA IPC".into());
        let beside = self.beside.as_ref().ok_or_else(none)?;
        self.goes_beside.store(true, Ordering::Release);
        Ok(beside)
    }
}
