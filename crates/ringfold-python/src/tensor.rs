//! Where the bytes of a Python tensor lie, what they are, and what keeps them there.
//!
//! Objects with the buffer protocol (numpy arrays, `array.array`, `bytearray`) and with DLPack (torch, cupy, jax) are
//! understood; nothing is copied. What keeps the bytes is a Python object: the memoryview or the DLPack capsule.

use core::ffi::{CStr, c_void};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyDict, PyMemoryView};
use ringfold::cuda::DeviceMemory;
use ringfold::{DType, Memory, View};
use ringfold_bindings::number;
use ringfold_bindings::span::Span;

/// A tensor's memory.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct Tensor {
    start: usize,
    count: usize,
    dtype: DType,
    device: Device,
    is_readonly: bool,
    /// None if the user keeps the bytes.
    keeper: Option<Py<PyAny>>,
}

/// Where a tensor lies. The numbers are those of `pcclDeviceType_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Device {
    Cpu = 0,
    Cuda = 1,
}

#[pymethods]
impl Tensor {
    /// The memory of an object with the buffer protocol or DLPack, which may be written; `name` is what errors call it.
    #[new]
    fn new(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        Self::of(object, name)?.writable(name)
    }

    /// So many elements at an address. Whoever makes it keeps them there.
    #[staticmethod]
    fn at(
        address: usize,
        count: usize,
        dtype: i32,
        device: i32,
        keeper: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let dtype = number::dtype(dtype).map_err(|f| PyValueError::new_err(f.text))?;
        let device = match device {
            0 => Device::Cpu,
            1 => Device::Cuda,
            other => return Err(PyValueError::new_err(format!("{other} is no device type"))),
        };
        let start: *const c_void = core::ptr::without_provenance(address);
        Span::of("the tensor", start, count, dtype).map_err(|f| PyValueError::new_err(f.text))?;
        Ok(Self { start: address, count, dtype, device, is_readonly: false, keeper })
    }

    /// The number of the type of its elements.
    #[getter]
    fn dtype(&self) -> u8 {
        self.dtype as u8
    }

    /// How many elements it has.
    #[getter]
    fn count(&self) -> usize {
        self.count
    }

    /// The number of the kind of device that it lies on.
    #[getter]
    fn device(&self) -> u8 {
        self.device as u8
    }

    /// Where it begins.
    #[getter]
    fn address(&self) -> usize {
        self.start
    }

    fn __repr__(&self) -> String {
        format!("Tensor({} x {}, {:?}, {:#x})", self.count, self.dtype, self.device, self.start)
    }
}

impl Tensor {
    /// The memory of an object; `name` is what errors call it.
    pub(crate) fn of(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        if let Ok(tensor) = object.cast::<Self>() {
            return Ok(tensor.get().another(object.py()));
        }
        // SAFETY: the object is one, and we are attached.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 1 {
            match PyMemoryView::from(object) {
                Ok(view) => return Self::of_buffer(view, name),
                // Arrays of GPUs have the protocol too, and refuse.
                Err(_) if has_dlpack(object)? => {}
                Err(error) => return Err(unfit(object.py(), name, &error)),
            }
        }
        if has_dlpack(object)? {
            return Self::of_dlpack(object, name);
        }
        Err(PyTypeError::new_err(format!(
            "{name} is a {}, and no array: a numpy array, a torch tensor, or anything with the buffer protocol or \
             DLPack is expected",
            object.get_type().name()?
        )))
    }

    /// The same memory, seen as elements of this type. Only 16 bits may be taken for something else: numpy has no name
    /// for bfloat16.
    pub(crate) fn seen_as(mut self, dtype: DType, name: &str) -> PyResult<Self> {
        let may_be_seen = matches!(self.dtype, DType::U16 | DType::I16)
            && matches!(dtype, DType::BF16 | DType::F16 | DType::U16 | DType::I16);
        if dtype != self.dtype && !may_be_seen {
            return Err(PyTypeError::new_err(format!(
                "{name} has elements of {}, but {dtype} is asked for",
                self.dtype
            )));
        }
        self.dtype = dtype;
        Ok(self)
    }

    /// It is to be written.
    pub(crate) fn writable(self, name: &str) -> PyResult<Self> {
        if self.is_readonly {
            return Err(PyValueError::new_err(format!("{name} is read-only, and has to be written")));
        }
        Ok(self)
    }

    pub(crate) fn span(&self) -> Span {
        Span { start: self.start, bytes: self.bytes() }
    }

    pub(crate) fn elements(&self) -> DType {
        self.dtype
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn place(&self) -> Device {
        self.device
    }

    fn bytes(&self) -> usize {
        self.count * self.dtype.bytes()
    }

    /// Memory that the engine reads and writes.
    pub(crate) fn memory(&self, py: Python<'_>) -> Memory {
        let start: *mut u8 = core::ptr::with_exposed_provenance_mut(self.start);
        let keeper = Box::new(self.keeper.as_ref().map(|keeper| keeper.clone_ref(py)));
        // SAFETY: the keeper keeps the bytes valid and in place. That nobody else uses them before the operation has
        // ended is what the documentation asks of users; a Python thread that does so anyway sees, or makes, values
        // that are half old and half new, as with any other library that works beside the interpreter.
        unsafe { Memory::kept(start, self.bytes(), keeper) }
    }

    /// Memory of a device, which is found by the address.
    pub(crate) fn device_memory(&self, py: Python<'_>, name: &str) -> PyResult<DeviceMemory> {
        let keeper = Box::new(self.keeper.as_ref().map(|keeper| keeper.clone_ref(py)));
        // SAFETY: the keeper keeps the allocation. What torch has queued on the tensor's stream was joined to the default
        // stream when the tensor was exported, and what it queues later is the user's to order, as for `memory`.
        let memory = unsafe { DeviceMemory::borrowed(self.start as u64, self.bytes(), keeper) };
        memory.map_err(|error| PyValueError::new_err(format!("{name} can't be used: {error}")))
    }

    /// Memory that the engine reads.
    pub(crate) fn view(&self, py: Python<'_>) -> View {
        let start: *const u8 = core::ptr::with_exposed_provenance(self.start);
        let keeper = Box::new(self.keeper.as_ref().map(|keeper| keeper.clone_ref(py)));
        // SAFETY: as for `memory`.
        unsafe { View::kept(start, self.bytes(), keeper) }
    }

    /// The same memory once more.
    pub(crate) fn another(&self, py: Python<'_>) -> Self {
        let keeper = self.keeper.as_ref().map(|keeper| keeper.clone_ref(py));
        Self { keeper, ..*self }
    }

    fn of_buffer(keeper: Bound<'_, PyMemoryView>, name: &str) -> PyResult<Self> {
        let py = keeper.py();
        let mut view = ffi::Py_buffer::new();
        // SAFETY: the view is ours, and the memoryview lives.
        if unsafe { ffi::PyObject_GetBuffer(keeper.as_ptr(), &raw mut view, ffi::PyBUF_FULL_RO) } != 0 {
            return Err(unfit(py, name, &PyErr::fetch(py)));
        }
        let tensor = Self::of_view(&view, name);
        // SAFETY: it was filled above. The memoryview still holds the buffer.
        unsafe { ffi::PyBuffer_Release(&raw mut view) };
        Ok(Self { keeper: Some(keeper.into_any().unbind()), ..tensor? })
    }

    /// What a filled view says; without a keeper.
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
            PyTypeError::new_err(format!(
                "{name} has elements of format {format:?}{order}, which can't be reduced or shared"
            ))
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
        let unfit = |error: PyErr| unfit(py, name, &error);
        let capsule = exported(object).map_err(unfit)?.cast_into::<PyCapsule>()?;
        let managed = capsule.pointer_checked(Some(c"dltensor")).map_err(unfit)?;
        // SAFETY: a capsule of this name holds this struct, by DLPack's promise, and we hold the capsule. A capsule that
        // is never renamed calls the deleter when it is dropped.
        let tensor = unsafe { managed.cast::<dlpack::Tensor>().as_ref() };
        let device = match tensor.device_type {
            dlpack::CPU | dlpack::CUDA_HOST => Device::Cpu,
            dlpack::CUDA => Device::Cuda,
            other => {
                return Err(PyTypeError::new_err(format!(
                    "{name} is on a device of DLPack's kind {other}; main memory and CUDA can be used"
                )));
            }
        };
        let dtype = dtype_of_dlpack(tensor.dtype).ok_or_else(|| {
            PyTypeError::new_err(format!("{name} has elements of a type that can't be reduced or shared"))
        })?;
        let dimensions = usize::try_from(tensor.ndim).unwrap_or(0);
        let shape = slice(tensor.shape, dimensions);
        if !tensor.strides.is_null() && !is_contiguous(shape, slice(tensor.strides, dimensions)) {
            return Err(not_contiguous(name));
        }
        let count = elements_of(shape).ok_or_else(|| {
            PyValueError::new_err(format!("{name} has a shape that no memory holds: {shape:?}"))
        })?;
        let offset = usize::try_from(tensor.byte_offset).unwrap_or(0);
        // Tensors that only wrap others have no memory of their own.
        Span::of(name, tensor.data, count, dtype).map_err(|failure| {
            PyValueError::new_err(format!("{}: it has no plain memory of its own", failure.text))
        })?;
        let start = tensor.data.expose_provenance().wrapping_add(offset);
        let keeper = Some(capsule.into_any().unbind());
        Ok(Self { start, count, dtype, device, is_readonly: false, keeper })
    }
}

/// The DLPack capsule of an object.
fn exported<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static TO_DLPACK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = object.py();
    // Torch's method is slow and refuses what takes part in autograd, whose values are the same without; for tensors in
    // main memory its function does neither.
    if object.getattr_opt(intern!(py, "is_cpu"))?.is_some_and(|is_cpu| is_cpu.is_truthy().unwrap_or(false))
        && let Ok(to_dlpack) = TO_DLPACK.import(py, "torch.utils.dlpack", "to_dlpack")
    {
        // Its memory holds the values with the other sign, and the function does not look.
        if object.call_method0(intern!(py, "is_neg"))?.is_truthy()? {
            return Err(PyValueError::new_err("it is a negated view: use .resolve_neg() or a copy of it"));
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
    // What is queued on the tensor's stream is to be seen by the legacy default stream, where we look.
    let stream = PyDict::new(py);
    stream.set_item(intern!(py, "stream"), 1)?;
    plain.call_method(intern!(py, "__dlpack__"), (), Some(&stream))
}

fn has_dlpack(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    object.hasattr(intern!(object.py(), "__dlpack__"))
}

fn unfit(py: Python<'_>, name: &str, why: &PyErr) -> PyErr {
    PyTypeError::new_err(format!("{name} can't be used: {}", why.value(py)))
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
    // SAFETY: there are as many as dimensions, by DLPack's promise; callers hold the capsule while they look.
    unsafe { core::slice::from_raw_parts(numbers, dimensions) }
}

/// How many elements a shape has, if that can be.
fn elements_of(shape: &[i64]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1_usize, |count, size| count.checked_mul(usize::try_from(*size).ok()?))
}

/// Whether elements lie one after the other, the last dimension's nearest to each other.
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

/// Whether a format of Python's `struct` module has its bytes the other way round.
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
