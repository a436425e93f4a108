//! Device memory borrowed from the user.

use crate::device::{Device, device_of_address};
use crate::driver::Driver;
use crate::error::CudaError;
use core::any::Any;
use std::sync::Arc;

/// Bytes in the memory of a CUDA device, which the host cannot access directly. Clones share the bytes.
#[derive(Clone)]
pub struct DeviceMemory {
    /// None if there are no bytes.
    device: Option<&'static Device>,
    address: u64,
    bytes: usize,
    _keeper: Arc<dyn Any + Send + Sync>,
}

impl DeviceMemory {
    /// Borrows memory at a device address, which determines the device.
    ///
    /// The keeper is dropped with the last clone, by the thread that drops it. Fails if the address is not in device
    /// memory.
    ///
    /// # Safety
    /// Until the keeper is dropped, the bytes stay allocated, and other accesses to them are queued before ours or
    /// after ours have completed.
    pub unsafe fn borrowed(
        address: u64,
        bytes: usize,
        keeper: Box<dyn Any + Send + Sync>,
    ) -> Result<Self, CudaError> {
        let device = if bytes == 0 {
            None
        } else {
            let driver = Driver::loaded()?;
            Some(Device::with_ordinal(driver, device_of_address(driver, address)?)?)
        };
        Ok(Self { device, address, bytes, _keeper: Arc::new(keeper) })
    }

    pub(crate) fn owned(
        device: &'static Device,
        address: u64,
        bytes: usize,
        keeper: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { device: (bytes > 0).then_some(device), address, bytes, _keeper: keeper }
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The device's number; none if there are no bytes.
    pub fn ordinal(&self) -> Option<i32> {
        self.device.map(|device| device.ordinal)
    }

    pub(crate) fn device(&self) -> Option<&'static Device> {
        self.device
    }
}

impl core::fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { address, bytes, .. } = self;
        match self.ordinal() {
            Some(ordinal) => write!(f, "{bytes} bytes at {address:#x} of CUDA device {ordinal}"),
            None => write!(f, "no bytes of a CUDA device"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_memory_is_rejected() {
        let bytes = [0_u8; 64];
        // SAFETY: the bytes outlive the value.
        let rejected = unsafe { DeviceMemory::borrowed(bytes.as_ptr().addr() as u64, 64, Box::new(())) };
        let error = rejected.unwrap_err().to_string();
        assert!(error.contains("no CUDA driver") || error.contains("not an address in"), "{error}");
    }

    #[test]
    fn empty_memory_needs_no_driver_and_holds_its_keeper() {
        let keeper = Arc::new(());
        // SAFETY: there are no bytes.
        let empty = unsafe { DeviceMemory::borrowed(0, 0, Box::new(keeper.clone())) }.unwrap();
        assert!(empty.is_empty() && empty.ordinal().is_none());
        let other = empty.clone();
        drop(empty);
        assert_eq!(Arc::strong_count(&keeper), 2);
        drop(other);
        assert_eq!(Arc::strong_count(&keeper), 1);
    }
}
