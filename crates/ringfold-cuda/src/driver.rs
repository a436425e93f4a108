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
    /// Returns the driver, and loads it on first use.
    pub fn loaded() -> Result<&'static Self, CudaError> {
        DRIVER.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }

    /// Returns the driver if this process uses it already, also through another library.
    ///
    /// A process that does not use it has no device memory, and is spared the driver's start-up time.
    pub fn in_use() -> Option<&'static Self> {
        if DRIVER.get().is_none() && !is_in_process() {
            return None;
        }
        Self::loaded().ok()
    }

    /// Whether there is a driver with at least one device.
    pub fn is_usable() -> bool {
        Self::loaded().is_ok_and(|driver| driver.device_count() > 0)
    }

    /// The number of devices.
    pub fn device_count(&self) -> usize {
        self.device_count
    }

    fn load() -> Result<Self, CudaError> {
        let api = Api::load(api::LIBRARY).map_err(CudaError::NoDriver)?;
        let mut count: c_int = 0;
        // SAFETY: the count can be written.
        let code = unsafe {
            match (api.init)(0) {
                api::SUCCESS => (api.device_count)(&raw mut count),
                code => code,
            }
        };
        if code != api::SUCCESS {
            return Err(CudaError::NoDriver(api.describe(code)));
        }
        Ok(Self { api, device_count: usize::try_from(count).unwrap_or(0) })
    }

    /// Returns a pointer attribute of at most eight bytes. A context must be current.
    pub(crate) fn pointer_attribute(
        &'static self,
        attribute: c_uint,
        address: u64,
    ) -> Result<u64, CudaError> {
        let (mut names, mut value) = ([attribute], 0_u64);
        let mut values: [*mut c_void; 1] = [(&raw mut value).cast()];
        // SAFETY: there is one name and one value, which has room for all attributes that callers query.
        let code =
            unsafe { (self.api.pointer_attributes)(1, names.as_mut_ptr(), values.as_mut_ptr(), address) };
        check(&self.api, "reading an attribute of CUDA memory", code)?;
        Ok(value)
    }
}

debug_as!(Driver, self => "the CUDA driver, with {} devices", self.device_count());

/// Whether any code of this process has loaded the driver's library.
fn is_in_process() -> bool {
    use libloading::os::unix::{Library, RTLD_LAZY};
    // SAFETY: nothing is loaded by this, so no initialiser runs.
    unsafe { Library::open(Some(api::LIBRARY), libc::RTLD_NOLOAD | RTLD_LAZY) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_driver_is_an_error() {
        match Driver::loaded() {
            Ok(driver) => assert!(format!("{driver:?}").contains("devices")),
            Err(why) => {
                assert!(why.to_string().starts_with("no CUDA driver: "), "{why}");
                assert!(!Driver::is_usable());
                assert!(Driver::in_use().is_none());
            }
        }
    }
}
