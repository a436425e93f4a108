//! The driver, loaded once per process.

use crate::api::{self, Api};
use crate::error::{CudaError, check};
use core::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;

/// The CUDA driver of this machine.
pub struct Driver {
    pub(crate) api: Api,
    device_count: usize,
}

static DRIVER: OnceLock<Result<Driver, CudaError>> = OnceLock::new();

impl Driver {
    /// The driver, which is loaded now if it was not, or why there is none.
    pub fn loaded() -> Result<&'static Self, CudaError> {
        DRIVER.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }

    /// The driver, if something of this process uses it already. Whoever does not can have no memory of a device,
    /// and shall not wait for the driver's start.
    pub fn in_use() -> Option<&'static Self> {
        if DRIVER.get().is_none() && !is_in_process() {
            return None;
        }
        Self::loaded().ok()
    }

    /// Whether there are a driver and a device.
    pub fn is_usable() -> bool {
        Self::loaded().is_ok_and(|driver| driver.device_count() > 0)
    }

    /// How many devices it knows.
    pub fn device_count(&self) -> usize {
        self.device_count
    }

    fn load() -> Result<Self, CudaError> {
        let api = Api::load(api::LIBRARY).map_err(CudaError::NoDriver)?;
        let no_driver = |code| CudaError::NoDriver(api.words(code));
        // SAFETY: it takes no memory of ours.
        let code = unsafe { (api.init)(0) };
        if code != api::SUCCESS {
            return Err(no_driver(code));
        }
        let mut count: c_int = 0;
        // SAFETY: the count can be written.
        let code = unsafe { (api.device_count)(&raw mut count) };
        if code != api::SUCCESS {
            return Err(no_driver(code));
        }
        Ok(Self { api, device_count: usize::try_from(count).unwrap_or(0) })
    }

    /// Something of an allocation that is told in eight bytes or fewer. The context of some device is current.
    pub(crate) fn pointer_attribute(
        &'static self,
        attribute: c_uint,
        address: u64,
    ) -> Result<u64, CudaError> {
        let (mut names, mut value) = ([attribute], 0_u64);
        let mut places: [*mut c_void; 1] = [(&raw mut value).cast()];
        // SAFETY: there is one name and one place, which has room for all that callers ask for.
        let code =
            unsafe { (self.api.pointer_attributes)(1, names.as_mut_ptr(), places.as_mut_ptr(), address) };
        check(&self.api, "asking about memory of a CUDA device", code)?;
        Ok(value)
    }
}

impl core::fmt::Debug for Driver {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "the CUDA driver, with {} devices", self.device_count())
    }
}

/// Whether the driver's library is loaded, by whomever.
fn is_in_process() -> bool {
    use libloading::os::unix::{Library, RTLD_LAZY};
    // SAFETY: nothing is loaded by this, so no initialiser runs.
    unsafe { Library::open(Some(api::LIBRARY), libc::RTLD_NOLOAD | RTLD_LAZY) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_there_are_words_and_with_one_there_are_devices() {
        match Driver::loaded() {
            Ok(driver) => assert!(format!("{driver:?}").contains("devices")),
            Err(why) => {
                assert!(why.to_string().starts_with("no CUDA driver here: "), "{why}");
                assert!(!Driver::is_usable());
                assert!(Driver::in_use().is_none());
            }
        }
    }
}
