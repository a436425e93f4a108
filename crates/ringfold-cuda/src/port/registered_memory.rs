//! Memory that the other side of a connection may write, or that is read for it.

use super::error::PortError;
use super::memory_record::MemoryRecord;
use super::transport::TransportFlags;
use crate::DeviceMemory;
use ringfold_fabric::memory::Memory;
use ringfold_fabric::shared_memory::SharedMemory;
use std::sync::Arc;

/// What can be registered. Whatever keeps it is let go of when the last registration is gone, by whichever thread
/// holds it. Several registrations may lie in one allocation, and overlap.
#[derive(Debug)]
pub enum Registrable {
    /// Memory of the host that only this process has.
    Host(Memory),
    /// Memory of the host that lies in a file, so that others of the host can map it.
    Shared(SharedMemory),
    /// Memory of a device.
    Device(DeviceMemory),
}

/// Registered memory: of this process, or of another one that has told of it. Clones are the same memory.
#[derive(Clone)]
pub struct RegisteredMemory {
    inner: Arc<Registered>,
}

pub(super) struct Registered {
    record: MemoryRecord,
}

impl RegisteredMemory {
    /// What is told to the other side.
    pub fn serialize(&self) -> Vec<u8> {
        self.inner.record.encode()
    }

    /// Where it can be read and written from here; 0 if it can't.
    pub fn data(&self) -> u64 {
        0
    }

    /// How many bytes.
    pub fn size(&self) -> u64 {
        self.inner.record.bytes
    }

    /// The ways that it was registered for.
    pub fn transports(&self) -> TransportFlags {
        self.inner.record.transports
    }

    /// Whether it is memory of a device.
    pub fn is_device(&self) -> bool {
        self.inner.record.is_device
    }

    pub(super) fn later() -> PortError {
        PortError::Unsupported("not yet".into())
    }
}

impl core::fmt::Debug for RegisteredMemory {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let MemoryRecord { bytes, address, transports, .. } = &self.inner.record;
        write!(out, "RegisteredMemory({bytes} bytes at {address:#x} for {transports:?})")
    }
}
