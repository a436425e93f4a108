//! One device: its primary context, and streams of ours.

use crate::api::{self, Address, Api};
use crate::context::{self, Context};
use crate::driver::Driver;
use crate::error::{CudaError, check, check_memory};
use crate::stream::Stream;
use core::ffi::{c_int, c_uint, c_void};
use core::ops::Deref;
use parking_lot::Mutex;

/// A device whose primary context is retained.
pub(crate) struct Device {
    context: Context,
    /// Copies to the host, and copies from it: the two directions do not wait for each other.
    pub(crate) down: Stream,
    pub(crate) up: Stream,
    /// For what waits for nobody, whatever the user has queued: zeroing, and setting a module's words.
    pub(crate) aside: Stream,
    pub(crate) multiprocessors: u32,
    /// The compute capability.
    pub(crate) capability: (i32, i32),
}

/// The devices that are open, by number. A device's context takes hundreds of megabytes there.
static OPEN: Mutex<Vec<Option<&'static Device>>> = Mutex::new(Vec::new());

impl Device {
    /// The device with this number, with its primary context retained for the life of the process: it is the one
    /// that all libraries of the process share.
    pub(crate) fn with_ordinal(driver: &'static Driver, ordinal: i32) -> Result<&'static Self, CudaError> {
        let mut devices = OPEN.lock();
        devices.resize(driver.device_count(), None);
        let slot = usize::try_from(ordinal).ok().and_then(|index| devices.get_mut(index));
        let slot = slot.ok_or(CudaError::NoDevice(ordinal))?;
        if let Some(device) = slot {
            return Ok(device);
        }
        let device = Box::leak(Box::new(Self::open(&driver.api, ordinal)?));
        *slot = Some(device);
        Ok(device)
    }

    fn open(api: &'static Api, ordinal: i32) -> Result<Self, CudaError> {
        let context = Context::retain(api, ordinal)?;
        let ask = |number| context::attribute(api, ordinal, number);
        let multiprocessors = u32::try_from(ask(api::DEVICE_MULTIPROCESSORS)?).unwrap_or(0);
        let capability = (ask(api::DEVICE_CAPABILITY_MAJOR)?, ask(api::DEVICE_CAPABILITY_MINOR)?);
        let stream = || Stream::open(context);
        Ok(Self { context, down: stream()?, up: stream()?, aside: stream()?, multiprocessors, capability })
    }

    pub(crate) fn context(&self) -> Context {
        self.context
    }

    pub(crate) fn attribute(&self, number: i32) -> Result<i32, CudaError> {
        context::attribute(self.api, self.ordinal, number)
    }

    pub(crate) fn allocate(&self, bytes: usize) -> Result<Address, CudaError> {
        let _current = self.current()?;
        let mut address = 0;
        // SAFETY: the address can be written.
        let code = unsafe { (self.api.allocate)(&raw mut address, bytes) };
        let lacking = CudaError::OutOfMemory { device: self.ordinal, bytes };
        check_memory(self.api, "allocating memory of a CUDA device", code, lacking)?;
        Ok(address)
    }

    /// # Safety
    /// The address came from `allocate`, and nothing uses its memory.
    pub(crate) unsafe fn free(&self, address: Address) {
        if let Ok(_current) = self.current() {
            // SAFETY: the caller's promise. At the end of a process the driver may be gone already, and the memory too.
            let _ = unsafe { (self.api.free)(address) };
        }
    }
}

/// The device whose memory an address is in.
pub(crate) fn ordinal_of(driver: &'static Driver, address: u64) -> Result<i32, CudaError> {
    let (mut kind, mut managed, mut ordinal): (c_uint, c_uint, c_int) = (0, 0, -1);
    let mut names = [api::ATTRIBUTE_MEMORY_TYPE, api::ATTRIBUTE_IS_MANAGED, api::ATTRIBUTE_DEVICE_ORDINAL];
    let mut places: [*mut c_void; 3] =
        [(&raw mut kind).cast(), (&raw mut managed).cast(), (&raw mut ordinal).cast()];
    // SAFETY: there are as many names as places, and each place has room for what is asked for: numbers of four
    // bytes, and a flag of at most four. Any address may be asked about.
    let mut ask =
        || unsafe { (driver.api.pointer_attributes)(3, names.as_mut_ptr(), places.as_mut_ptr(), address) };
    let mut code = ask();
    if code == api::INVALID_CONTEXT {
        // Some drivers answer only a thread that has turned to a device, whichever.
        let _current = Device::with_ordinal(driver, 0)?.current()?;
        code = ask();
    }
    check(&driver.api, "asking whose memory an address is in", code)?;
    if (kind == api::MEMORY_OF_DEVICE || managed & 0xff != 0) && ordinal >= 0 {
        Ok(ordinal)
    } else {
        Err(CudaError::NotOnDevice(address))
    }
}

impl Deref for Device {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}
