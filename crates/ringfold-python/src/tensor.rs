//! The memory of a Python tensor: address, element type, and the object that keeps it alive.
//!
//! Accepts objects with the buffer protocol (numpy arrays, `array.array`, `bytearray`) or DLPack (torch, cupy, jax).
//! Nothing is copied. A memoryview or a DLPack capsule keeps the bytes alive.

use crate::cuda_compiler::add_search_dirs;
use core::ffi::{CStr, c_void};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyDict, PyMemoryView};
use ringfold::cuda::DeviceMemory;
use ringfold::{DType, Memory, View};
use ringfold_bindings::address_range::AddressRange;
use ringfold_bindings::enum_values;

/// A tensor's memory.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct Tensor {
    #[pyo3(get, name = "address")]
    start: usize,
    #[pyo3(get)]
    count: usize,
    dtype: DType,
    device: Device,
    is_readonly: bool,
    /// Keeps the bytes alive; None if the user does.
    keeper: Option<Py<PyAny>>,
}

/// The kind of device of a tensor. The numbers are those of `pcclDeviceType_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Device {
    Cpu = 0,
    Cuda = 1,
}

#[pymethods]
impl Tensor {
    /// The writable memory of an object with the buffer protocol or DLPack; errors call it `name`.
    #[new]
    fn new(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        Self::of(object, name)?.writable(name)
    }

    /// `count` elements at an address. `keeper`, or the caller, keeps them alive.
    #[staticmethod]
    fn at(
        address: usize,
        count: usize,
        dtype: i32,
        device: i32,
        keeper: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let dtype = enum_values::parse_dtype(dtype).map_err(|f| PyValueError::new_err(f.text))?;
        let device = match device {
            0 => Device::Cpu,
            1 => Device::Cuda,
            other => return Err(PyValueError::new_err(format!("unknown device type {other}"))),
        };
        let start: *const c_void = core::ptr::without_provenance(address);
        AddressRange::of("the tensor", start, count, dtype).map_err(|f| PyValueError::new_err(f.text))?;
        Ok(Self { start: address, count, dtype, device, is_readonly: false, keeper })
    }

    /// The number of its element type.
    #[getter]
    fn dtype(&self) -> u8 {
        self.dtype as u8
    }

    /// The number of its kind of device.
    #[getter]
    fn device(&self) -> u8 {
        self.device as u8
    }

    fn __repr__(&self) -> String {
        format!("Tensor({} x {}, {:?}, {:#x})", self.count, self.dtype, self.device, self.start)
    }
}

impl Tensor {
    /// The memory of an object; errors call it `name`.
    pub(crate) fn of(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        if let Ok(tensor) = object.cast::<Self>() {
            return Ok(tensor.get().clone_ref(object.py()));
        }
        // SAFETY: it is a Python object, and the interpreter is attached.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 1 {
            match PyMemoryView::from(object) {
                Ok(view) => return Self::of_buffer(view, name),
                // GPU arrays have the protocol too, but raise.
                Err(_) if has_dlpack(object)? => {}
                Err(error) => return Err(invalid_tensor(object.py(), name, &error)),
            }
        }
        if has_dlpack(object)? {
            return Self::of_dlpack(object, name);
        }
        Err(PyTypeError::new_err(format!(
            "invalid {name} of type {}: must be a numpy array, a torch tensor, or an object with the buffer protocol or \
             DLPack",
            object.get_type().name()?
        )))
    }

    /// The same memory as elements of another type. Only 16-bit integers may change: numpy has no bfloat16.
    pub(crate) fn reinterpret(mut self, dtype: DType, name: &str) -> PyResult<Self> {
        let is_allowed = matches!(self.dtype, DType::U16 | DType::I16)
            && matches!(dtype, DType::BF16 | DType::F16 | DType::U16 | DType::I16);
        if dtype != self.dtype && !is_allowed {
            return Err(PyTypeError::new_err(format!(
                "invalid element type of {name}: it has {}, but {dtype} is requested",
                self.dtype
            )));
        }
        self.dtype = dtype;
        Ok(self)
    }

    /// Rejects read-only memory.
    pub(crate) fn writable(self, name: &str) -> PyResult<Self> {
        if self.is_readonly {
            return Err(PyValueError::new_err(format!("{name} is read-only: it must be writable")));
        }
        Ok(self)
    }

    pub(crate) fn range(&self) -> AddressRange {
        AddressRange { start: self.start, bytes: self.bytes() }
    }

    pub(crate) fn elements(&self) -> DType {
        self.dtype
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn device_kind(&self) -> Device {
        self.device
    }

    fn bytes(&self) -> usize {
        self.count * self.dtype.bytes()
    }

    /// Memory that the engine reads and writes.
    pub(crate) fn memory(&self, py: Python<'_>) -> Memory {
        let start: *mut u8 = core::ptr::with_exposed_provenance_mut(self.start);
        let keeper = Box::new(self.keeper.as_ref().map(|keeper| keeper.clone_ref(py)));
        // SAFETY: the keeper keeps the bytes valid and in place. The documentation forbids other uses of them before the
        // operation has ended; a Python thread that uses them anyway mixes old and new values, as with any library that
        // runs beside the interpreter.
        unsafe { Memory::kept(start, self.bytes(), keeper) }
    }

    /// Memory of a device. The address tells which one.
    pub(crate) fn device_memory(&self, py: Python<'_>, name: &str) -> PyResult<DeviceMemory> {
        // Kernels for it may have to be compiled.
        static SEARCHED: PyOnceLock<()> = PyOnceLock::new();
        SEARCHED.get_or_try_init(py, || add_search_dirs(py))?;
        let keeper = Box::new(self.keeper.as_ref().map(|keeper| keeper.clone_ref(py)));
        // SAFETY: the keeper keeps the allocation. What torch had queued on the tensor's stream was joined to the default
        // stream when the tensor was exported; the user orders what is queued later, as for `memory`.
        let memory = unsafe { DeviceMemory::borrowed(self.start as u64, self.bytes(), keeper) };
        memory.map_err(|error| PyValueError::new_err(format!("invalid {name}: {error}")))
    }

    /// Memory that the engine reads.
    pub(crate) fn view(&self, py: Python<'_>) -> View {
        let start: *const u8 = core::ptr::with_exposed_provenance(self.start);
        let keeper = Box::new(self.keeper.as_ref().map(|keeper| keeper.clone_ref(py)));
        // SAFETY: as for `memory`.
        unsafe { View::kept(start, self.bytes(), keeper) }
    }

    /// Another reference to the same memory.
    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        let keeper = self.keeper.as_ref().map(|keeper| keeper.clone_ref(py));
        Self { keeper, ..*self }
    }

    fn of_buffer(keeper: Bound<'_, PyMemoryView>, name: &str) -> PyResult<Self> {
        let py = keeper.py();
        let mut view = ffi::Py_buffer::new();
        // SAFETY: the view is ours, and the memoryview lives.
        if unsafe { ffi::PyObject_GetBuffer(keeper.as_ptr(), &raw mut view, ffi::PyBUF_FULL_RO) } != 0 {
            return Err(invalid_tensor(py, name, &PyErr::fetch(py)));
        }
        let tensor = Self::of_view(&view, name);
        // SAFETY: it was filled above. The memoryview still holds the buffer.
        unsafe { ffi::PyBuffer_Release(&raw mut view) };
        Ok(Self { keeper: Some(keeper.into_any().unbind()), ..tensor? })
    }

    /// The tensor of a filled view, without a keeper.
    fn of_view(view: &ffi::Py_buffer, name: &str) -> PyResult<Self> {
        let format = if view.format.is_null() {
            c"B"
        } else {
            // SAFETY: a filled view has a string there, or null.
            unsafe { CStr::from_ptr(view.format) }
        };
        let itemsize = usize::try_from(view.itemsize).unwrap_or(0);
        let dtype = dtype_of_format(format.to_bytes(), itemsize).ok_or_else(|| {
            let order = if is_foreign(format.to_bytes()) {
                ", in another byte order than this machine's"
            } else {
                ""
            };
            PyTypeError::new_err(format!("unsupported element format {format:?} of {name}{order}"))
        })?;
        // SAFETY: the view is filled.
        if unsafe { ffi::PyBuffer_IsContiguous(view, b'C' as core::ffi::c_char) } == 0 {
            return Err(not_contiguous(name));
        }
        let count = usize::try_from(view.len).unwrap_or(0) / dtype.bytes();
        let start = view.buf.expose_provenance();
        Ok(Self { start, count, dtype, device: Device::Cpu, is_readonly: view.readonly != 0, keeper: None })
    }

    fn of_dlpack(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        let py = object.py();
        let invalid_tensor = |error: PyErr| invalid_tensor(py, name, &error);
        let capsule = export_dlpack(object).map_err(invalid_tensor)?.cast_into::<PyCapsule>()?;
        let managed = capsule.pointer_checked(Some(c"dltensor")).map_err(invalid_tensor)?;
        // SAFETY: a capsule of this name holds this struct, by DLPack's promise, and we hold the capsule. A capsule that
        // is never renamed calls the deleter when it is dropped.
        let tensor = unsafe { managed.cast::<dlpack::Tensor>().as_ref() };
        let device = match tensor.device_type {
            dlpack::CPU | dlpack::CUDA_HOST => Device::Cpu,
            dlpack::CUDA => Device::Cuda,
            other => {
                return Err(PyTypeError::new_err(format!(
                    "unsupported device of {name}: DLPack type {other}; must be main memory or CUDA"
                )));
            }
        };
        let dtype = dtype_of_dlpack(tensor.dtype).ok_or_else(|| unsupported_type(object, name))?;
        let dimensions = usize::try_from(tensor.ndim).unwrap_or(0);
        let shape = slice(tensor.shape, dimensions);
        if !tensor.strides.is_null() && !is_contiguous(shape, slice(tensor.strides, dimensions)) {
            return Err(not_contiguous(name));
        }
        let count = elements_of(shape)
            .ok_or_else(|| PyValueError::new_err(format!("invalid shape {shape:?} of {name}")))?;
        let offset = usize::try_from(tensor.byte_offset).unwrap_or(0);
        // Tensors that only wrap others have null here.
        AddressRange::of(name, tensor.data, count, dtype).map_err(|failure| {
            PyValueError::new_err(format!("{}: it has no plain memory of its own", failure.text))
        })?;
        let start = tensor.data.expose_provenance().wrapping_add(offset);
        let keeper = Some(capsule.into_any().unbind());
        Ok(Self { start, count, dtype, device, is_readonly: false, keeper })
    }
}

/// The DLPack capsule of an object.
fn export_dlpack<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static TO_DLPACK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = object.py();
    // Torch's method is slow and rejects tensors that require grad. For tensors in main memory its function is fast and
    // accepts them.
    if object.getattr_opt(intern!(py, "is_cpu"))?.is_some_and(|is_cpu| is_cpu.is_truthy().unwrap_or(false))
        && let Ok(to_dlpack) = TO_DLPACK.import(py, "torch.utils.dlpack", "to_dlpack")
    {
        // Its memory holds the values with the other sign, which the function does not check.
        if object.call_method0(intern!(py, "is_neg"))?.is_truthy()? {
            return Err(PyValueError::new_err("it is a negated view: use .resolve_neg() or a copy"));
        }
        return to_dlpack.call1((object,));
    }
    let plain = match object.getattr_opt(intern!(py, "requires_grad"))? {
        Some(requires) if requires.is_truthy()? => object.call_method0(intern!(py, "detach"))?,
        _ => object.clone(),
    };
    let (kind, _): (i32, i32) = plain.call_method0(intern!(py, "__dlpack_device__"))?.extract()?;
    if kind != dlpack::CUDA {
        return plain.call_method0(intern!(py, "__dlpack__"));
    }
    // Orders what is queued on the tensor's stream before the legacy default stream, which we use.
    let stream = PyDict::new(py);
    stream.set_item(intern!(py, "stream"), 1)?;
    plain.call_method(intern!(py, "__dlpack__"), (), Some(&stream))
}

fn has_dlpack(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    object.hasattr(intern!(object.py(), "__dlpack__"))
}

/// Names the type as the tensor's library does.
fn unsupported_type(object: &Bound<'_, PyAny>, name: &str) -> PyErr {
    let own =
        object.getattr(intern!(object.py(), "dtype")).map_or_else(|_| String::new(), |it| format!(" {it}"));
    PyTypeError::new_err(format!("unsupported element type{own} of {name}"))
}

fn invalid_tensor(py: Python<'_>, name: &str, why: &PyErr) -> PyErr {
    PyTypeError::new_err(format!("invalid {name}: {}", why.value(py)))
}

fn not_contiguous(name: &str) -> PyErr {
    PyValueError::new_err(format!(
        "{name} is not contiguous in memory: use .contiguous() of torch, or numpy.ascontiguousarray"
    ))
}

/// The numbers of a DLPack tensor's shape or strides.
fn slice<'a>(numbers: *const i64, dimensions: usize) -> &'a [i64] {
    if numbers.is_null() || dimensions == 0 {
        return &[];
    }
    // SAFETY: DLPack promises one per dimension; callers hold the capsule while they use them.
    unsafe { core::slice::from_raw_parts(numbers, dimensions) }
}

/// The number of elements of a shape, if it is valid.
fn elements_of(shape: &[i64]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1_usize, |count, size| count.checked_mul(usize::try_from(*size).ok()?))
}

/// Whether elements are adjacent in row-major order.
fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = 1_i64;
    shape.iter().zip(strides).rev().all(|(size, stride)| {
        let fits = *size == 1 || *stride == expected;
        expected = expected.saturating_mul(*size);
        fits
    })
}

/// Whether a format of Python's `struct` module has the other byte order.
fn is_foreign(format: &[u8]) -> bool {
    let foreign: &[u8] = if cfg!(target_endian = "little") { b">!" } else { b"<" };
    format.first().is_some_and(|first| foreign.contains(first))
}

/// The element type of a format of Python's `struct` module.
fn dtype_of_format(format: &[u8], itemsize: usize) -> Option<DType> {
    let code = match format {
        [code] | [b'@' | b'=', code] => *code,
        [b'<', code] if cfg!(target_endian = "little") => *code,
        [b'>' | b'!', code] if cfg!(target_endian = "big") => *code,
        _ => return None,
    };
    Some(match (code, itemsize) {
        (b'B', 1) => DType::U8,
        (b'b', 1) => DType::I8,
        (b'h', 2) => DType::I16,
        (b'H', 2) => DType::U16,
        (b'i' | b'l' | b'q' | b'n', 4) => DType::I32,
        (b'I' | b'L' | b'Q' | b'N', 4) => DType::U32,
        (b'i' | b'l' | b'q' | b'n', 8) => DType::I64,
        (b'I' | b'L' | b'Q' | b'N', 8) => DType::U64,
        (b'e', 2) => DType::F16,
        (b'f', 4) => DType::F32,
        (b'd', 8) => DType::F64,
        _ => return None,
    })
}

fn dtype_of_dlpack(dtype: dlpack::DataType) -> Option<DType> {
    if dtype.lanes != 1 {
        return None;
    }
    Some(match (dtype.code, dtype.bits) {
        (dlpack::INT, 8) => DType::I8,
        (dlpack::INT, 16) => DType::I16,
        (dlpack::INT, 32) => DType::I32,
        (dlpack::INT, 64) => DType::I64,
        (dlpack::UINT, 8) => DType::U8,
        (dlpack::UINT, 16) => DType::U16,
        (dlpack::UINT, 32) => DType::U32,
        (dlpack::UINT, 64) => DType::U64,
        (dlpack::FLOAT, 16) => DType::F16,
        (dlpack::FLOAT, 32) => DType::F32,
        (dlpack::FLOAT, 64) => DType::F64,
        (dlpack::BFLOAT, 16) => DType::BF16,
        _ => return None,
    })
}

/// DLPack's structs and numbers, as far as they are needed.
mod dlpack {
    use super::c_void;

    pub(super) const CPU: i32 = 1;
    pub(super) const CUDA: i32 = 2;
    pub(super) const CUDA_HOST: i32 = 3;

    pub(super) const INT: u8 = 0;
    pub(super) const UINT: u8 = 1;
    pub(super) const FLOAT: u8 = 2;
    pub(super) const BFLOAT: u8 = 4;

    /// `DLDataType`.
    #[derive(Clone, Copy)]
    #[repr(C)]
    pub(super) struct DataType {
        pub code: u8,
        pub bits: u8,
        pub lanes: u16,
    }

    /// `DLTensor`, which `DLManagedTensor` begins with.
    #[repr(C)]
    pub(super) struct Tensor {
        pub data: *mut c_void,
        pub device_type: i32,
        pub device_id: i32,
        pub ndim: i32,
        pub dtype: DataType,
        pub shape: *const i64,
        pub strides: *const i64,
        pub byte_offset: u64,
    }
}
