//! An open device: its primary context and internal streams.

use crate::api::{self, Address, Api};
use crate::block_cache::BlockCache;
use crate::context::{self, Context};
use crate::driver::Driver;
use crate::error::{CudaError, check, check_memory};
use crate::limits::SCRATCH_BYTES_MAX;
use crate::scratch::ScratchBlock;
use crate::stream::Stream;
use core::ffi::{c_int, c_uint, c_void};
use core::ops::Deref;
use core::sync::atomic::AtomicUsize;
use parking_lot::Mutex;

/// A device whose primary context is retained for the life of the process.
pub(crate) struct Device {
    pub(crate) context: Context,
    /// Copies from the host, which wait for little: downloads have streams of their own.
    pub(crate) upload_stream: Stream,
    /// Streams that are not lent.
    pub(crate) spare_streams: Mutex<Vec<Stream>>,
    /// For work that depends on no user work: zeroing, and setting a module's variables.
    pub(crate) side_stream: Stream,
    pub(crate) multiprocessors: u32,
    /// The compute capability.
    pub(crate) capability: (i32, i32),
    /// Unused scratch memory.
    pub(crate) scratch: Mutex<BlockCache<ScratchBlock>>,
    /// The bytes of all scratch memory, used and unused.
    pub(crate) scratch_bytes: AtomicUsize,
}

/// The open devices, by number. A context takes hundreds of megabytes of device memory, so each is opened once.
static OPEN: Mutex<Vec<Option<&'static Device>>> = Mutex::new(Vec::new());

impl Device {
    /// Returns a device, and retains its primary context, which all libraries of the process share, on first use.
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
        let attribute = |number| context::attribute(api, ordinal, number);
        let multiprocessors = u32::try_from(attribute(api::DEVICE_MULTIPROCESSORS)?).unwrap_or(0);
        let capability = (attribute(api::DEVICE_CAPABILITY_MAJOR)?, attribute(api::DEVICE_CAPABILITY_MINOR)?);
        let stream = || Stream::open(context);
        Ok(Self {
            context,
            upload_stream: stream()?,
            spare_streams: Mutex::default(),
            side_stream: stream()?,
            multiprocessors,
            capability,
            scratch: Mutex::new(BlockCache::new(SCRATCH_BYTES_MAX)),
            scratch_bytes: AtomicUsize::new(0),
        })
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

    /// The bytes that are not allocated, by any process.
    pub(crate) fn free_bytes(&self) -> Result<usize, CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both numbers can be written.
        let query = |api: &Api| unsafe { (api.memory_info)(&raw mut free, &raw mut total) };
        self.call("querying the memory of a CUDA device", query)?;
        Ok(free)
    }

    /// # Safety
    /// The address came from `allocate`, and nothing uses its memory.
    pub(crate) unsafe fn free(&self, address: Address) {
        // SAFETY: the caller's promise. An error means that the process ends and the driver is unloaded already.
        let _ = self.call("freeing CUDA memory", |api| unsafe { (api.free)(address) });
    }
}

/// Returns the number of the device that an address belongs to.
pub(crate) fn device_of_address(driver: &'static Driver, address: u64) -> Result<i32, CudaError> {
    let (mut kind, mut managed, mut ordinal): (c_uint, c_uint, c_int) = (0, 0, -1);
    let mut names = [api::ATTRIBUTE_MEMORY_TYPE, api::ATTRIBUTE_IS_MANAGED, api::ATTRIBUTE_DEVICE_ORDINAL];
    let mut values: [*mut c_void; 3] =
        [(&raw mut kind).cast(), (&raw mut managed).cast(), (&raw mut ordinal).cast()];
    // SAFETY: there are as many names as values, and each value has room for its attribute: numbers of four
    // bytes, and a flag of at most four. Any address may be queried.
    let mut query =
        || unsafe { (driver.api.pointer_attributes)(3, names.as_mut_ptr(), values.as_mut_ptr(), address) };
    let mut code = query();
    if code == api::INVALID_CONTEXT {
        // Some drivers require a current context, of any device.
        let _current = Device::with_ordinal(driver, 0)?.current()?;
        code = query();
    }
    check(&driver.api, "finding the device of an address", code)?;
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
