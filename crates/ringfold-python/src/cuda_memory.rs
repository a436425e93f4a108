//! Memory of CUDA devices, for Python. Other libraries use it through DLPack or the CUDA array interface.

use crate::call::{drop_detached, try_detached};
use crate::exception::invalid_port_argument;
use crate::fork_guard::{DetachedGuard, ForkGuard};
use core::ffi::{CStr, c_void};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use ringfold::cuda::{Gpu, GpuMemory};

/// DLPack's device type for CUDA.
const CUDA: i32 = 2;
/// The name of a capsule that still owns its tensor.
const CAPSULE: &CStr = c"dltensor";

/// Zeroed memory of a device. It is freed with this object and the last array that uses it.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct CudaMemory {
    memory: DetachedGuard<GpuMemory>,
    #[pyo3(get)]
    address: u64,
    #[pyo3(get)]
    nbytes: usize,
    #[pyo3(get)]
    ordinal: i32,
}

#[pymethods]
impl CudaMemory {
    #[new]
    fn new(py: Python<'_>, nbytes: usize, ordinal: i32) -> PyResult<Self> {
        if nbytes == 0 {
            return Err(invalid_port_argument(py, "invalid size 0 of CUDA memory: must be at least 1 byte"));
        }
        let memory = try_detached(py, || GpuMemory::zeroed(&Gpu::open(ordinal)?, nbytes))?;
        let address = memory.address();
        Ok(Self { memory: DetachedGuard::new(memory), address, nbytes, ordinal })
    }

    /// The device as DLPack's type and number.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (CUDA, self.ordinal)
    }

    /// The bytes as a DLPack capsule. No stream has to wait: nothing is queued on the memory.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<&Bound<'py, PyAny>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // All versions accept the structure of the first one.
        let _ = (stream, max_version);
        if copy == Some(true) || dl_device.is_some_and(|device| device != self.__dlpack_device__()) {
            return Err(PyBufferError::new_err(
                "unsupported copy: CUDA memory is exported in place, on its own device",
            ));
        }
        let memory = self.memory.get(py)?.clone();
        let tensor = ManagedTensor::new(memory, self.nbytes, self.ordinal);
        // SAFETY: the name is static, and the destructor deletes what the capsule holds.
        let capsule = unsafe { ffi::PyCapsule_New(tensor.cast(), CAPSULE.as_ptr(), Some(drop_capsule)) };
        // SAFETY: it is a new object, or null with an exception set.
        let capsule = unsafe { Bound::from_owned_ptr_or_err(py, capsule) };
        // SAFETY: no capsule holds the tensor.
        capsule.inspect_err(|_| unsafe { delete(tensor) })
    }

    /// The bytes in the form that numba, cupy and torch read.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("shape", PyTuple::new(py, [self.nbytes])?)?;
        dict.set_item("typestr", "|u1")?;
        dict.set_item("data", (self.address, false))?;
        dict.set_item("strides", py.None())?;
        dict.set_item("version", 3)?;
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        format!("CudaMemory({} bytes at {:#x} of device {})", self.nbytes, self.address, self.ordinal)
    }
}

/// `DLManagedTensor`, with the shape that it points to and the memory that it keeps.
#[repr(C)]
struct ManagedTensor {
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
    deleter: Option<unsafe extern "C" fn(*mut ManagedTensor)>,
    // Not part of DLPack's structure.
    length: i64,
    memory: ForkGuard<GpuMemory>,
}

// SAFETY: its pointers refer to device memory and into itself.
unsafe impl Send for ManagedTensor {}

impl ManagedTensor {
    /// Allocates one; its deleter frees it.
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
            memory: ForkGuard::new(memory),
        }));
        // SAFETY: it was made above, and nothing else refers to it.
        unsafe { (*tensor).shape = &raw mut (*tensor).length };
        tensor
    }
}

/// Frees an exported tensor. May be called without the interpreter's lock.
unsafe extern "C" fn delete(tensor: *mut ManagedTensor) {
    // SAFETY: DLPack calls this once, for a tensor that was made here.
    let tensor = unsafe { Box::from_raw(tensor) };
    drop_detached(tensor);
}

/// Destroys a capsule, and the tensor if no consumer took it.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule was made here; a consumer that takes the tensor renames it.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, CAPSULE.as_ptr()) == 1 {
            let tensor = ffi::PyCapsule_GetPointer(capsule, CAPSULE.as_ptr());
            delete(tensor.cast());
        }
    }
}
