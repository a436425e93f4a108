//! The public handle of a device.

use crate::api;
use crate::capture::relaxed_capture;
use crate::context::{self, Context, CurrentContext};
use crate::device::{Device, device_of_address};
use crate::driver::Driver;
use crate::error::{CudaError, check};
use crate::event::Event;
use crate::host_words::HostWords;
use crate::stream::Stream;

/// A CUDA device whose primary context, which all libraries share, this process has retained.
#[derive(Clone, Copy)]
pub struct Gpu(pub(crate) &'static Device);

impl Gpu {
    /// Opens the device with this driver ordinal.
    pub fn open(ordinal: i32) -> Result<Self, CudaError> {
        Device::with_ordinal(Driver::loaded()?, ordinal).map(Self)
    }

    /// The calling thread's current device, or device 0.
    pub fn current() -> Result<Self, CudaError> {
        Self::open(Self::current_ordinal()?)
    }

    /// The number of the calling thread's current device, or 0. Opens no device.
    pub fn current_ordinal() -> Result<i32, CudaError> {
        let api = &Driver::loaded()?.api;
        let (mut context, mut ordinal) = (0, 0);
        // SAFETY: the context can be written.
        let code = unsafe { (api.current_context)(&raw mut context) };
        check(api, "querying the current CUDA device", code)?;
        if context == 0 {
            return Ok(0);
        }
        // SAFETY: the ordinal can be written.
        let code = unsafe { (api.current_device)(&raw mut ordinal) };
        check(api, "querying the current CUDA device", code)?;
        Ok(ordinal)
    }

    /// Makes this device current for the calling thread until the guard is dropped.
    ///
    /// All functions of this crate do so themselves; a guard around several calls makes each of them cheaper.
    pub fn make_current(&self) -> Result<CurrentContext, CudaError> {
        self.context().current()
    }

    /// The number of devices; fails without a driver.
    pub fn count() -> Result<usize, CudaError> {
        Driver::loaded().map(Driver::device_count)
    }

    /// Why no device is usable; none if one is.
    pub fn unavailable_reason() -> Option<CudaError> {
        match Self::count() {
            Ok(0) => Some(CudaError::Unsupported("no CUDA device: the CUDA driver reports none".into())),
            Ok(_) => None,
            Err(error) => Some(error),
        }
    }

    /// Whether an address is in a device's memory. Opens no device.
    pub fn is_on_device(address: u64) -> bool {
        Driver::in_use().is_some_and(|driver| device_of_address(driver, address).is_ok())
    }

    /// The device that an address belongs to; none if it is not in device memory.
    pub fn of_address(address: u64) -> Result<Option<Self>, CudaError> {
        // A process that does not use the driver has no device memory.
        let Some(driver) = Driver::in_use().filter(|driver| driver.device_count() > 0) else {
            return Ok(None);
        };
        let _capture = relaxed_capture();
        match device_of_address(driver, address) {
            Ok(ordinal) => Self::open(ordinal).map(Some),
            Err(CudaError::NotOnDevice(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The device's number.
    pub fn ordinal(&self) -> i32 {
        self.0.ordinal
    }

    /// The number of multiprocessors.
    pub fn sms(&self) -> u32 {
        self.0.multiprocessors
    }

    /// The architecture to compile for, such as `sm_90`.
    pub fn arch(&self) -> String {
        let (major, minor) = self.0.capability;
        format!("sm_{major}{minor}")
    }

    /// The compute capability, major and minor number.
    pub fn capability(&self) -> (i32, i32) {
        self.0.capability
    }

    /// A device attribute (`CUdevice_attribute`).
    pub fn attribute(&self, number: i32) -> Result<i32, CudaError> {
        context::attribute(self.0.api, self.0.ordinal, number)
    }

    /// The device's UUID.
    pub fn uuid(&self) -> Result<[u8; 16], CudaError> {
        let mut uuid = [0; 16];
        // Without driver support all devices have the same UUID; opening a wrong one fails in the driver.
        if let Some(function) = self.0.api.uuid {
            // SAFETY: the UUID can be written.
            let code = unsafe { function(&raw mut uuid, self.ordinal()) };
            check(self.0.api, "reading the UUID of a CUDA device", code)?;
        }
        Ok(uuid)
    }

    /// Whether its streams support `cuStreamWriteValue64`.
    pub fn writes_words(&self) -> bool {
        self.0.writes_words
    }

    /// Creates a stream.
    pub fn create_stream(&self) -> Result<Stream, CudaError> {
        Stream::open(self.context())
    }

    /// Wraps a stream given by its driver handle; 0 is the default stream.
    ///
    /// # Safety
    /// It is a stream of this device for as long as the value lives.
    pub unsafe fn borrow_stream(&self, raw: usize) -> Stream {
        Stream::borrowed(self.context(), raw)
    }

    /// Creates an event. It is complete until a stream records it.
    pub fn create_event(&self) -> Result<Event, CudaError> {
        Event::open(self.context(), api::EVENT_DISABLE_TIMING)
    }

    /// Allocates zeroed, page-locked host memory of at least `bytes`, mapped for all devices.
    pub fn map_host_words(&self, bytes: usize) -> Result<HostWords, CudaError> {
        HostWords::mapped(self.context(), bytes)
    }

    pub(crate) fn context(&self) -> Context {
        self.0.context
    }
}

impl PartialEq for Gpu {
    fn eq(&self, other: &Self) -> bool {
        self.ordinal() == other.ordinal()
    }
}

impl Eq for Gpu {}

debug_as!(Gpu, self => "CUDA device {} ({})", self.ordinal(), self.arch());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_memory_is_on_no_device() {
        let word = 0_u64;
        assert!(Gpu::of_address((&raw const word).addr() as u64).unwrap().is_none());
    }

    #[test]
    fn an_unknown_device_is_an_error() {
        let error = Gpu::open(1000).unwrap_err().to_string();
        assert!(error.contains("no CUDA driver") || error.contains("unknown CUDA device 1000"), "{error}");
    }
}
