//! A device, as users choose it.

use crate::api;
use crate::capture::relaxed_capture;
use crate::context::{Context, Current};
use crate::device::{Device, ordinal_of};
use crate::driver::Driver;
use crate::error::{CudaError, check};
use crate::event::Event;
use crate::host_words::HostWords;
use crate::stream::Stream;

/// A CUDA device that is open in this process: its primary context, which all libraries share, is retained.
#[derive(Clone, Copy)]
pub struct Gpu(pub(crate) &'static Device);

impl Gpu {
    /// The device with this number, counted as the driver does.
    pub fn open(ordinal: i32) -> Result<Self, CudaError> {
        Device::with_ordinal(Driver::loaded()?, ordinal).map(Self)
    }

    /// The device that the calling thread has turned to, or the first one.
    pub fn current() -> Result<Self, CudaError> {
        Self::open(Self::current_ordinal()?)
    }

    /// The number of the device that the calling thread has turned to, or 0. Opens nothing.
    pub fn current_ordinal() -> Result<i32, CudaError> {
        let api = &Driver::loaded()?.api;
        let (mut context, mut ordinal) = (core::ptr::null_mut(), 0);
        // SAFETY: the context can be written.
        let code = unsafe { (api.current_context)(&raw mut context) };
        check(api, "asking for the current CUDA device", code)?;
        if context.is_null() {
            return Ok(0);
        }
        // SAFETY: the ordinal can be written.
        let code = unsafe { (api.current_device)(&raw mut ordinal) };
        check(api, "asking for the current CUDA device", code)?;
        Ok(ordinal)
    }

    /// Has the calling thread turned to this device until the guard is dropped. Everything here does so by itself; whoever
    /// calls several things one after the other spares them that.
    pub fn turn_to(&self) -> Result<Current, CudaError> {
        self.context().current()
    }

    /// How many devices there are, or why there can be none.
    pub fn count() -> Result<usize, CudaError> {
        Driver::loaded().map(Driver::device_count)
    }

    /// Why no device can be used here; none if one can.
    pub fn why_not() -> Option<CudaError> {
        match Self::count() {
            Ok(0) => Some(CudaError::Unsupported("there is a CUDA driver here, but no CUDA device".into())),
            Ok(_) => None,
            Err(error) => Some(error),
        }
    }

    /// Whether an address is in a device's memory. Opens nothing.
    pub fn is_on_device(address: u64) -> bool {
        Driver::in_use().is_some_and(|driver| ordinal_of(driver, address).is_ok())
    }

    /// The device whose memory an address is in; none if it is the host's, or nobody's.
    pub fn of_address(address: u64) -> Result<Option<Self>, CudaError> {
        // Nobody can have memory of a device in a process that never used one.
        let Some(driver) = Driver::in_use().filter(|driver| driver.device_count() > 0) else {
            return Ok(None);
        };
        let _capture = relaxed_capture();
        match ordinal_of(driver, address) {
            Ok(ordinal) => Self::open(ordinal).map(Some),
            Err(CudaError::NotOnDevice(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The device with this name, if it is here.
    pub fn with_uuid(uuid: [u8; 16]) -> Result<Option<Self>, CudaError> {
        let driver = Driver::loaded()?;
        for ordinal in 0..i32::try_from(driver.device_count()).unwrap_or(0) {
            if uuid_of(driver, ordinal)? == uuid {
                return Self::open(ordinal).map(Some);
            }
        }
        Ok(None)
    }

    /// Its number.
    pub fn ordinal(&self) -> i32 {
        self.0.ordinal
    }

    /// How many multiprocessors it has.
    pub fn sms(&self) -> u32 {
        self.0.multiprocessors
    }

    /// What code for it is compiled for: `sm_90`, say.
    pub fn arch(&self) -> String {
        let (major, minor) = self.0.capability;
        format!("sm_{major}{minor}")
    }

    /// A number that the driver tells of it; which ones there are is in `CUdevice_attribute`.
    pub fn attribute(&self, number: i32) -> Result<i32, CudaError> {
        self.0.attribute(number)
    }

    /// Its name that is unlike that of any other, on any machine.
    pub fn uuid(&self) -> Result<[u8; 16], CudaError> {
        uuid_of(Driver::loaded()?, self.ordinal())
    }

    /// Whether a stream of it can set words by itself.
    pub fn writes_words(&self) -> bool {
        self.0.writes_words
    }

    /// A new stream of this device.
    pub fn create_stream(&self) -> Result<Stream, CudaError> {
        Stream::open(self.context())
    }

    /// A stream that others made, by its handle; 0 is the default stream.
    ///
    /// # Safety
    /// It is a stream of this device, for as long as the value lives.
    pub unsafe fn borrow_stream(&self, raw: usize) -> Stream {
        Stream::borrowed(self.context(), raw)
    }

    /// A new event. Before a stream has recorded it, it is reached.
    pub fn create_event(&self) -> Result<Event, CudaError> {
        Event::open(self.context(), api::EVENT_DISABLE_TIMING)
    }

    /// A new event that tells the time, too.
    pub fn create_timed_event(&self) -> Result<Event, CudaError> {
        Event::open(self.context(), api::EVENT_TIMED)
    }

    /// Zeroed, page-locked memory of the host of at least so many bytes, which all devices see.
    pub fn map_host_words(&self, bytes: usize) -> Result<HostWords, CudaError> {
        HostWords::mapped(self.context(), bytes)
    }

    pub(crate) fn context(&self) -> Context {
        self.0.context()
    }
}

fn uuid_of(driver: &Driver, ordinal: i32) -> Result<[u8; 16], CudaError> {
    let mut uuid = [0; 16];
    // A driver that can't tell them apart has them all of one name, and the driver itself refuses what can't be opened.
    if let Some(function) = driver.api.uuid {
        // SAFETY: the name can be written.
        let code = unsafe { function(&raw mut uuid, ordinal) };
        check(&driver.api, "asking for the name of a CUDA device", code)?;
    }
    Ok(uuid)
}

impl PartialEq for Gpu {
    fn eq(&self, other: &Self) -> bool {
        self.ordinal() == other.ordinal()
    }
}

impl Eq for Gpu {}

impl core::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "CUDA device {} ({})", self.ordinal(), self.arch())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_host_is_on_no_device_with_and_without_a_driver() {
        let word = 0_u64;
        assert!(Gpu::of_address((&raw const word).addr() as u64).unwrap().is_none());
    }

    #[test]
    fn a_device_that_is_not_there_has_words() {
        let words = Gpu::open(1000).unwrap_err().to_string();
        assert!(words.contains("no CUDA driver here") || words.contains("no CUDA device 1000"), "{words}");
    }
}
