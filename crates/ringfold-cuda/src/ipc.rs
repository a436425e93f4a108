//! Memory of a device that processes share.
//!
//! The driver shares whole allocations. What is shared may be a part of one, as libraries that keep pools hand out; so
//! the place in the allocation goes with it.

use crate::api::{self, IpcHandle};
use crate::cleaner::give_back;
use crate::driver::Driver;
use crate::error::{CudaError, check};
use crate::gpu::Gpu;
use crate::open_table::OpenTable;
use std::sync::{Arc, LazyLock};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What another process opens memory by.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct IpcRecord {
    /// The driver's handle of the allocation.
    pub handle: [u8; 64],
    /// The device that it is of.
    pub gpu: [u8; 16],
    /// How many bytes the allocation has.
    pub allocation_bytes: u64,
    /// Where in it the memory begins.
    pub offset: u64,
    /// How many bytes the memory has.
    pub bytes: u64,
}

impl IpcRecord {
    /// The record of memory of this process, whoever allocated it.
    pub fn export(address: u64, bytes: usize) -> Result<Self, CudaError> {
        let driver = Driver::loaded()?;
        let gpu = Gpu::of_address(address)?.ok_or(CudaError::NotOnDevice(address))?;
        let _current = gpu.context().current()?;
        let capable = driver.pointer_attribute(api::ATTRIBUTE_IS_IPC_CAPABLE, address);
        let (start, whole) = range(driver, address)?;
        let (offset, bytes) = (address - start, bytes as u64);
        if bytes > whole - offset {
            return Err(CudaError::Argument(format!(
                "{bytes} bytes at {address:#x} do not lie in one allocation: it ends after {}",
                whole - offset
            )));
        }
        // A driver that can't answer is asked for the handle anyway.
        if capable.is_ok_and(|capable| capable & 0xff == 0) {
            return Err(not_sharable(address, ""));
        }
        let mut handle = IpcHandle([0; 64]);
        // SAFETY: the handle can be written. Any address may be asked about.
        let code = unsafe { (driver.api.ipc_handle)(&raw mut handle, start) };
        if code == api::INVALID_VALUE || code == api::NOT_SUPPORTED {
            return Err(not_sharable(address, &driver.api.words(code)));
        }
        check(&driver.api, "sharing memory of a CUDA device", code)?;
        Ok(Self { handle: handle.0, gpu: gpu.uuid()?, allocation_bytes: whole, offset, bytes })
    }

    /// The record in bytes.
    pub fn encode(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }

    /// The record that these bytes are; none if they are none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Self::read_from_bytes(bytes).ok().filter(Self::is_valid)
    }

    /// Whether the memory lies in its allocation.
    pub(crate) fn is_valid(&self) -> bool {
        self.fits(self.allocation_bytes)
    }

    /// Whether the memory lies in an allocation of so many bytes.
    fn fits(&self, bytes: u64) -> bool {
        self.offset.checked_add(self.bytes).is_some_and(|end| end <= bytes)
    }
}

impl core::fmt::Debug for IpcRecord {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { bytes, offset, allocation_bytes, .. } = self;
        write!(f, "{bytes} bytes at {offset} of an allocation of {allocation_bytes} bytes")
    }
}

/// Memory of another process, in the memory of a device of this one. Clones are the same memory; it is closed with the
/// last one of all that lie in the same allocation.
#[derive(Clone)]
pub struct IpcMemory {
    address: u64,
    bytes: usize,
    _opened: Arc<Opened>,
}

impl IpcMemory {
    /// Opens it for a device of this process. Memory of this process can't be opened: it has an address here already.
    pub fn open(record: &IpcRecord, gpu: &Gpu) -> Result<Self, CudaError> {
        let opened = Opened::share(record, gpu)?;
        // The other process says how large the allocation is; the driver knows.
        let whole = {
            let _current = gpu.context().current()?;
            range(Driver::loaded()?, opened.address)
                .map_or(record.allocation_bytes, |(start, whole)| start + whole - opened.address)
        };
        if !record.fits(whole) {
            return Err(CudaError::Argument(format!(
                "{record:?} can't be: the allocation has {whole} bytes"
            )));
        }
        let bytes = usize::try_from(record.bytes).unwrap_or(usize::MAX);
        Ok(Self { address: opened.address + record.offset, bytes, _opened: opened })
    }

    /// Where it begins, here.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl core::fmt::Debug for IpcMemory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} bytes at {:#x} of another process", self.bytes, self.address)
    }
}

/// No device has more memory than this, whatever its owner says.
const ALLOCATION_BYTES_MAX: u64 = 1 << 40;

/// A device here, and an allocation elsewhere.
type Key = (i32, [u8; 64]);

/// Allocations of others that are open. A process opens each once.
static OPEN: LazyLock<OpenTable<Key>> = LazyLock::new(OpenTable::new);

/// One use of an allocation that is open.
struct Opened {
    gpu: Gpu,
    key: Key,
    address: u64,
    /// How many bytes the allocation has, as its owner says.
    bytes: usize,
}

impl Opened {
    fn share(record: &IpcRecord, gpu: &Gpu) -> Result<Arc<Self>, CudaError> {
        let key = (gpu.ordinal(), record.handle);
        let address = OPEN.open(&key, || open_handle(record, gpu))?;
        let bytes = record.allocation_bytes.min(ALLOCATION_BYTES_MAX) as usize;
        Ok(Arc::new(Self { gpu: *gpu, key, address, bytes }))
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let (context, key) = (self.gpu.context(), self.key);
        give_back(self.bytes, move || {
            OPEN.close(&key, |address| {
                if let Ok(_current) = context.current() {
                    // SAFETY: it is open, and nobody uses it any more.
                    let _ = unsafe { (context.api.ipc_close)(address) };
                }
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
            "memory of a CUDA device was to be opened by the process that it belongs to".into(),
        ));
    }
    check(context.api, "opening another process's memory of a CUDA device", code)?;
    Ok(address)
}

/// A number of the allocation that an address is in, unlike that of any other allocation of this process, before or after.
pub fn buffer_id(address: u64) -> Result<u64, CudaError> {
    let gpu = Gpu::of_address(address)?.ok_or(CudaError::NotOnDevice(address))?;
    let _current = gpu.context().current()?;
    Driver::loaded()?.pointer_attribute(api::ATTRIBUTE_BUFFER_ID, address)
}

/// Where the allocation begins that an address is in, and how many bytes it has.
fn range(driver: &'static Driver, address: u64) -> Result<(u64, u64), CudaError> {
    let (mut start, mut bytes) = (0, 0_usize);
    // SAFETY: both can be written. Any address may be asked about.
    let code = unsafe { (driver.api.address_range)(&raw mut start, &raw mut bytes, address) };
    check(&driver.api, "asking for the bounds of memory of a CUDA device", code)?;
    Ok((start, bytes as u64))
}

fn not_sharable(address: u64, why: &str) -> CudaError {
    let why = if why.is_empty() { String::new() } else { format!(": {why}") };
    CudaError::Unsupported(format!(
        "the memory at {address:#x} can't be shared with other processes{why}. Memory of cudaMalloc can be; managed memory, \
         memory of stream-ordered pools (cudaMallocAsync, cupy's MemoryAsyncPool, torch's backend:cudaMallocAsync) and of \
         torch's expandable segments can't. Use a GpuBuffer, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False \
         before the memory is allocated"
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
    fn a_record_survives_being_written() {
        assert_eq!(IpcRecord::decode(record().as_bytes()), Some(record()));
    }

    #[test]
    fn bytes_that_are_no_record_are_refused() {
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
    fn memory_of_the_host_can_not_be_shared_and_there_are_words() {
        let word = 0_u64;
        let words = IpcRecord::export((&raw const word).addr() as u64, 8).unwrap_err().to_string();
        assert!(words.contains("no CUDA driver here") || words.contains("is no address in"), "{words}");
    }
}
