//! Memory of CUDA devices, for Python: other libraries take it by DLPack, or by the CUDA array interface.

use crate::call::released;
use crate::owned::Owned;
use crate::port_error::{of_cuda, refused};
use core::ffi::{CStr, c_void};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use ringfold::cuda::{Gpu, GpuMemory};

/// DLPack's number of CUDA.
const CUDA: i32 = 2;
/// The name of a capsule that nobody has taken the tensor out of.
const CAPSULE: &CStr = c"dltensor";

/// Zeroed memory of a device. It is freed when this object and all arrays that were made of it are gone.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct CudaMemory {
    /// None only while it is dropped.
    memory: Option<Owned<GpuMemory>>,
    address: u64,
    bytes: usize,
    ordinal: i32,
}

#[pymethods]
impl CudaMemory {
    #[new]
    fn new(py: Python<'_>, nbytes: usize, ordinal: i32) -> PyResult<Self> {
        if nbytes == 0 {
            return Err(refused(py, "no memory has no bytes"));
        }
        let memory = released(py, || GpuMemory::zeroed(&Gpu::open(ordinal)?, nbytes))?;
        let memory = memory.map_err(|error| of_cuda(py, &error))?;
        let address = memory.address();
        Ok(Self { memory: Some(Owned::new(memory)), address, bytes: nbytes, ordinal })
    }

    /// Where it begins.
    #[getter]
    fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes it has.
    #[getter]
    fn nbytes(&self) -> usize {
        self.bytes
    }

    /// The number of its device.
    #[getter]
    fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// DLPack's numbers of its device.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (CUDA, self.ordinal)
    }

    /// Its bytes as a DLPack capsule. Nothing of ours is queued that a stream had to wait for.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<&Bound<'py, PyAny>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // Every version understands what the first one gave, and there is no work to be waited for.
        let _ = (stream, max_version);
        if copy == Some(true) || dl_device.is_some_and(|device| device != self.__dlpack_device__()) {
            return Err(PyBufferError::new_err(
                "memory of a CUDA device is given where it is, and never copied",
            ));
        }
        let memory = self.here(py)?.clone();
        let tensor = Managed::new(memory, self.bytes, self.ordinal);
        // SAFETY: the name lives for ever, and the destructor takes what the capsule holds.
        let capsule = unsafe { ffi::PyCapsule_New(tensor.cast(), CAPSULE.as_ptr(), Some(drop_capsule)) };
        // SAFETY: it is a new object, or null with an exception set.
        let capsule = unsafe { Bound::from_owned_ptr_or_err(py, capsule) };
        // SAFETY: no capsule holds the tensor.
        capsule.inspect_err(|_| unsafe { delete(tensor) })
    }

    /// Its bytes, as numba, cupy and torch understand them.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("shape", PyTuple::new(py, [self.bytes])?)?;
        dict.set_item("typestr", "|u1")?;
        dict.set_item("data", (self.address, false))?;
        dict.set_item("strides", py.None())?;
        dict.set_item("version", 3)?;
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        format!("CudaMemory({} bytes at {:#x} of device {})", self.bytes, self.address, self.ordinal)
    }
}

impl CudaMemory {
    fn here(&self, py: Python<'_>) -> PyResult<&GpuMemory> {
        let memory = self.memory.as_ref().and_then(Owned::here);
        memory.ok_or_else(|| refused(py, "memory of a CUDA device can't be used after a fork"))
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        let_go(self.memory.take());
    }
}

/// Lets go of something of a device. That may wait for a kernel, which may wait for another Python thread.
pub(crate) fn let_go<T: Send>(thing: T) {
    let mut thing = Some(thing);
    let _ = Python::try_attach(|py| py.detach(|| drop(thing.take())));
    // An interpreter that ends has no threads that could be kept waiting.
    drop(thing);
}

/// `DLManagedTensor`, and what its pointers point to.
#[repr(C)]
struct Managed {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    type_code: u8,
    type_bits: u8,
    type_lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    // The rest is ours.
    length: i64,
    memory: Owned<GpuMemory>,
}

// SAFETY: its pointers point to memory of a device and into itself.
unsafe impl Send for Managed {}

impl Managed {
    /// On the heap, until its deleter is called.
    fn new(memory: GpuMemory, bytes: usize, ordinal: i32) -> *mut Self {
        let address = usize::try_from(memory.address()).unwrap_or(0);
        let tensor = Box::into_raw(Box::new(Self {
            data: core::ptr::without_provenance_mut(address),
            device_type: CUDA,
            device_id: ordinal,
            dimensions: 1,
            // Unsigned integers.
            type_code: 1,
            type_bits: 8,
            type_lanes: 1,
            shape: core::ptr::null_mut(),
            strides: core::ptr::null_mut(),
            byte_offset: 0,
            context: core::ptr::null_mut(),
            deleter: Some(delete),
            length: i64::try_from(bytes).unwrap_or(i64::MAX),
            memory: Owned::new(memory),
        }));
        // SAFETY: it was made above, and nobody else knows of it.
        unsafe { (*tensor).shape = &raw mut (*tensor).length };
        tensor
    }
}

/// Lets go of a tensor that was given away. May be called without the interpreter's lock.
unsafe extern "C" fn delete(tensor: *mut Managed) {
    // SAFETY: DLPack's promise: it is one of ours, and this is called once for it.
    let tensor = unsafe { Box::from_raw(tensor) };
    let_go(tensor);
}

/// A capsule is gone. If nobody has taken the tensor out of it, that goes, too.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: it is a capsule of ours; takers rename it.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, CAPSULE.as_ptr()) == 1 {
            let tensor = ffi::PyCapsule_GetPointer(capsule, CAPSULE.as_ptr());
            delete(tensor.cast());
        }
    }
}
