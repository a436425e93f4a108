//! Memory of a device that someone lends us.

use crate::device::{Device, ordinal_of};
use crate::driver::Driver;
use crate::error::CudaError;
use core::any::Any;
use std::sync::Arc;

/// Bytes in the memory of a CUDA device. Clones are the same bytes.
///
/// The host can't look at them; they are only copied, by the device.
#[derive(Clone)]
pub struct DeviceMemory {
    /// None if there are no bytes: then it does not matter where they are.
    device: Option<&'static Device>,
    address: u64,
    bytes: usize,
    _keeper: Arc<dyn Any + Send + Sync>,
}

impl DeviceMemory {
    /// Memory at an address of a device, which is found by it. The keeper is dropped when this value and all its
    /// clones are gone, by whichever thread holds the last of them.
    ///
    /// An address of the host's memory, or of nobody's, is refused.
    ///
    /// # Safety
    /// Until the keeper is dropped: the bytes are allocated, and what else reads or writes them is queued before us,
    /// or after we are done.
    pub unsafe fn borrowed(
        address: u64,
        bytes: usize,
        keeper: Box<dyn Any + Send + Sync>,
    ) -> Result<Self, CudaError> {
        let device = if bytes == 0 {
            None
        } else {
            let driver = Driver::loaded()?;
            Some(Device::with_ordinal(driver, ordinal_of(driver, address)?)?)
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

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Where they begin.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The number of their device; none if there are no bytes.
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
    fn memory_of_the_host_is_refused_with_words() {
        let bytes = [0_u8; 64];
        // SAFETY: the bytes live until after the value is gone.
        let refused = unsafe { DeviceMemory::borrowed(bytes.as_ptr().addr() as u64, 64, Box::new(())) };
        let words = refused.unwrap_err().to_string();
        assert!(words.contains("no CUDA driver here") || words.contains("is no address in"), "{words}");
    }

    #[test]
    fn no_bytes_need_no_driver_and_keep_their_keeper() {
        let told = Arc::new(());
        // SAFETY: there are no bytes.
        let none = unsafe { DeviceMemory::borrowed(0, 0, Box::new(told.clone())) }.unwrap();
        assert!(none.is_empty() && none.ordinal().is_none());
        let other = none.clone();
        drop(none);
        assert_eq!(Arc::strong_count(&told), 2);
        drop(other);
        assert_eq!(Arc::strong_count(&told), 1);
    }
}
