//! Device memory shared between processes (CUDA IPC).
//!
//! The driver shares whole allocations. Libraries with memory pools hand out parts of one, so a record carries the
//! offset in the allocation as well.

use crate::api::{self, IpcHandle};
use crate::driver::Driver;
use crate::error::{CudaError, check};
use crate::gpu::Gpu;
use crate::open_table::OpenTable;
use crate::release_queue::release_when_idle;
use std::sync::{Arc, LazyLock};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What another process needs to open memory.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct IpcRecord {
    /// The driver's handle of the allocation.
    pub handle: [u8; 64],
    /// The UUID of its device.
    pub gpu: [u8; 16],
    /// Size of the allocation.
    pub allocation_bytes: u64,
    /// Offset of the memory in the allocation.
    pub offset: u64,
    /// Size of the memory.
    pub bytes: u64,
}

impl IpcRecord {
    /// Creates the record of memory of this process, allocated by any library.
    pub fn export(address: u64, bytes: usize) -> Result<Self, CudaError> {
        let driver = Driver::loaded()?;
        let gpu = Gpu::of_address(address)?.ok_or(CudaError::NotOnDevice(address))?;
        let _current = gpu.context().current()?;
        let capable = driver.pointer_attribute(api::ATTRIBUTE_IS_IPC_CAPABLE, address);
        let (start, whole) = allocation_of(driver, address)?;
        let (offset, bytes) = (address - start, bytes as u64);
        if bytes > whole - offset {
            return Err(CudaError::Argument(format!(
                "{bytes} bytes at {address:#x} exceed their allocation, which ends after {} bytes",
                whole - offset
            )));
        }
        // Without an answer, the handle is requested anyway.
        if capable.is_ok_and(|capable| capable & 0xff == 0) {
            return Err(not_sharable(address, ""));
        }
        let mut handle = IpcHandle([0; 64]);
        // SAFETY: the handle can be written. Any address may be passed.
        let code = unsafe { (driver.api.ipc_handle)(&raw mut handle, start) };
        if code == api::INVALID_VALUE || code == api::NOT_SUPPORTED {
            return Err(not_sharable(address, &driver.api.describe(code)));
        }
        check(&driver.api, "sharing CUDA memory", code)?;
        Ok(Self { handle: handle.0, gpu: gpu.uuid()?, allocation_bytes: whole, offset, bytes })
    }

    /// Encodes the record.
    pub fn encode(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }

    /// Decodes a record; none if the bytes are invalid.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Self::read_from_bytes(bytes).ok().filter(Self::is_valid)
    }

    /// Whether the memory lies within its allocation.
    pub(crate) fn is_valid(&self) -> bool {
        self.fits(self.allocation_bytes)
    }

    /// Whether the memory lies within an allocation of `bytes`.
    fn fits(&self, bytes: u64) -> bool {
        self.offset.checked_add(self.bytes).is_some_and(|end| end <= bytes)
    }
}

debug_as!(IpcRecord, self => "{} bytes at {} of an allocation of {} bytes", self.bytes, self.offset, self.allocation_bytes);

/// Memory of another process, mapped for a device of this one.
///
/// The allocation is closed with the last clone of the last memory within it.
#[derive(Clone)]
pub struct IpcMemory {
    address: u64,
    bytes: usize,
    _opened: Arc<OpenAllocation>,
}

impl IpcMemory {
    /// Opens memory of another process for a device of this one. Fails for memory of this process.
    pub fn open(record: &IpcRecord, gpu: &Gpu) -> Result<Self, CudaError> {
        let opened = OpenAllocation::share(record, gpu)?;
        // The record is not trusted: the driver knows the size of the allocation.
        let whole = {
            let _current = gpu.context().current()?;
            allocation_of(Driver::loaded()?, opened.address)
                .map_or(record.allocation_bytes, |(start, whole)| start + whole - opened.address)
        };
        if !record.fits(whole) {
            return Err(CudaError::Argument(format!(
                "invalid memory record: the allocation has {whole} bytes, not {record:?}"
            )));
        }
        let bytes = usize::try_from(record.bytes).unwrap_or(usize::MAX);
        Ok(Self { address: opened.address + record.offset, bytes, _opened: opened })
    }

    /// The address in this process.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

debug_as!(IpcMemory, self => "{} bytes at {:#x} of another process", self.bytes, self.address);

/// Cap on the size that a record claims: no device has more memory.
const ALLOCATION_BYTES_MAX: u64 = 1 << 40;

/// A device of this process, and the handle of an allocation of another one.
type AllocationKey = (i32, [u8; 64]);

/// The open allocations of other processes. Each is opened once per device.
static OPEN: LazyLock<OpenTable<AllocationKey>> = LazyLock::new(OpenTable::new);

/// One reference to an open allocation.
struct OpenAllocation {
    gpu: Gpu,
    key: AllocationKey,
    address: u64,
    /// Size of the allocation, as its owner claims.
    bytes: usize,
}

impl OpenAllocation {
    fn share(record: &IpcRecord, gpu: &Gpu) -> Result<Arc<Self>, CudaError> {
        let key = (gpu.ordinal(), record.handle);
        let address = OPEN.open(&key, || open_handle(record, gpu))?;
        let bytes = record.allocation_bytes.min(ALLOCATION_BYTES_MAX) as usize;
        Ok(Arc::new(Self { gpu: *gpu, key, address, bytes }))
    }
}

impl Drop for OpenAllocation {
    fn drop(&mut self) {
        let (context, key) = (self.gpu.context(), self.key);
        release_when_idle(self.bytes, move || {
            OPEN.close(&key, |address| {
                // SAFETY: it is open, and no longer used.
                let _ = context.call("closing CUDA memory", |api| unsafe { (api.ipc_close)(address) });
            });
        });
    }
}

fn open_handle(record: &IpcRecord, gpu: &Gpu) -> Result<u64, CudaError> {
    let context = gpu.context();
    let _current = context.current()?;
    let mut address = 0;
    // SAFETY: the address can be written. The driver checks handles.
    let code = unsafe {
        (context.api.ipc_open)(&raw mut address, IpcHandle(record.handle), api::IPC_LAZY_PEER_ACCESS)
    };
    if code == api::INVALID_CONTEXT {
        return Err(CudaError::Argument(
            "failed to open memory by CUDA IPC: it belongs to this process".into(),
        ));
    }
    check(context.api, "opening CUDA memory of another process", code)?;
    Ok(address)
}

/// An allocation of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Allocation {
    /// The first address.
    pub(crate) start: u64,
    /// The size.
    pub(crate) bytes: u64,
    /// The driver's id, which it never reuses.
    pub(crate) id: u64,
}

/// The id of the allocation that an address is in. The process never reuses an id.
pub fn buffer_id(address: u64) -> Result<u64, CudaError> {
    let driver = Driver::loaded()?;
    match driver.pointer_attribute(api::ATTRIBUTE_BUFFER_ID, address) {
        Err(CudaError::Driver { code: api::INVALID_CONTEXT, .. }) => {
            let gpu = Gpu::of_address(address)?.ok_or(CudaError::NotOnDevice(address))?;
            let _current = gpu.context().current()?;
            driver.pointer_attribute(api::ATTRIBUTE_BUFFER_ID, address)
        }
        result => result,
    }
}

/// The allocation that an address is in.
pub(crate) fn allocation_at(address: u64) -> Result<Allocation, CudaError> {
    let gpu = Gpu::of_address(address)?.ok_or(CudaError::NotOnDevice(address))?;
    let _current = gpu.context().current()?;
    let driver = Driver::loaded()?;
    let (start, bytes) = allocation_of(driver, address)?;
    Ok(Allocation { start, bytes, id: driver.pointer_attribute(api::ATTRIBUTE_BUFFER_ID, address)? })
}

/// Start and size of the allocation that an address is in.
fn allocation_of(driver: &'static Driver, address: u64) -> Result<(u64, u64), CudaError> {
    let (mut start, mut bytes) = (0, 0_usize);
    // SAFETY: both can be written. Any address may be passed.
    let code = unsafe { (driver.api.address_range)(&raw mut start, &raw mut bytes, address) };
    check(&driver.api, "querying the bounds of CUDA memory", code)?;
    Ok((start, bytes as u64))
}

fn not_sharable(address: u64, why: &str) -> CudaError {
    let why = if why.is_empty() { String::new() } else { format!(": {why}") };
    CudaError::Unsupported(format!(
        "memory at {address:#x} does not support CUDA IPC{why}: only memory of cudaMalloc does, not managed memory, \
         stream-ordered pools (cudaMallocAsync, cupy's MemoryAsyncPool, torch's backend:cudaMallocAsync) or torch's \
         expandable segments. Use a GpuBuffer, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False before the \
         memory is allocated"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> IpcRecord {
        let handle = core::array::from_fn(|index| index as u8);
        IpcRecord { handle, gpu: [9; 16], allocation_bytes: 1 << 21, offset: 512, bytes: 4096 }
    }

    #[test]
    fn a_record_round_trips() {
        assert_eq!(IpcRecord::decode(record().as_bytes()), Some(record()));
    }

    #[test]
    fn invalid_records_are_rejected() {
        let record = record();
        let bytes = record.as_bytes();
        assert_eq!(IpcRecord::decode(&bytes[1..]), None);
        assert_eq!(IpcRecord::decode(&[]), None);
        assert_eq!(IpcRecord::decode(&[bytes, &[0]].concat()), None);
        let too_long = IpcRecord { bytes: 1 << 21, ..record };
        assert_eq!(IpcRecord::decode(too_long.as_bytes()), None);
        let wrapping = IpcRecord { offset: u64::MAX, ..record };
        assert_eq!(IpcRecord::decode(wrapping.as_bytes()), None);
    }

    #[test]
    fn host_memory_cannot_be_exported() {
        let word = 0_u64;
        let error = IpcRecord::export((&raw const word).addr() as u64, 8).unwrap_err().to_string();
        assert!(error.contains("no CUDA driver") || error.contains("not an address in"), "{error}");
    }
}
