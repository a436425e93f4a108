//! Collectives on CUDA devices, for Python.
//!
//! Tensors come as addresses and streams as the driver's handles; what is queued with them is ordered by that stream, so
//! whoever allocates and frees by streams, as torch does, keeps the bytes there for as long as they are used.

use crate::call::released;
use crate::cuda_compiler::hint;
use crate::cuda_memory::let_go;
use crate::group::{Group, duration, element, reduction};
use crate::group_error::{raised, refused};
use crate::owned::Owned;
use crate::port_error::of_kind;
use core::any::Any;
use parking_lot::Mutex;
use pyo3::prelude::*;
use ringfold::cuda::{CudaError, DeviceMemory, Stream};
use ringfold::{Error, KernelSources, Unfit};
use std::path::PathBuf;
use std::sync::Arc;

/// Ranks of a group that carry out collectives by kernels.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct DeviceGroup {
    /// None once it is closed.
    group: Mutex<Option<Owned<Arc<ringfold::DeviceGroup>>>>,
    ordinal: i32,
}

/// Where a tensor is.
#[derive(Clone, Copy)]
struct Place {
    address: u64,
    bytes: usize,
}

#[pymethods]
impl DeviceGroup {
    /// Joins the devices of all ranks, which call this together; -1 is no device.
    #[staticmethod]
    #[pyo3(signature = (group, ordinal, nvrtc=None, cache_dir=None))]
    fn open(
        py: Python<'_>,
        group: &Group,
        ordinal: i32,
        nvrtc: Option<PathBuf>,
        cache_dir: Option<PathBuf>,
    ) -> PyResult<Self> {
        hint(py)?;
        let group = group.here(py)?;
        let sources = KernelSources { compiler: nvrtc, cache: cache_dir };
        let device = (ordinal >= 0).then_some(ordinal);
        let opened = released(py, || ringfold::DeviceGroup::open(group, device, &sources))?;
        match opened.map_err(|error| raised(py, &error))? {
            Ok(group) => {
                let ordinal = group.ordinal();
                Ok(Self { group: Mutex::new(Some(Owned::new(Arc::new(group)))), ordinal })
            }
            Err(Unfit(why)) => Err(of_kind(py, "unsupported", 0, &why)),
        }
    }

    /// The number of this rank's device.
    #[getter]
    fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// Queues an all-reduce of so many elements.
    #[expect(
        clippy::too_many_arguments,
        reason = "this is called for each operation, and an object would cost time"
    )]
    fn all_reduce(
        &self,
        py: Python<'_>,
        source: u64,
        target: u64,
        count: usize,
        dtype: u8,
        reduce: u8,
        stream: usize,
    ) -> PyResult<()> {
        let (group, dtype, op) = (self.here(py)?, element(py, dtype)?, reduction(py, reduce)?);
        let bytes = count * dtype.bytes();
        let (source, target) = (Place { address: source, bytes }, Place { address: target, bytes });
        let call = || {
            let _current = group.gpu()?.turn_to()?;
            let from = source.lend(())?;
            // Whose memory it is, is asked once.
            let to = if target.address == source.address { from.clone() } else { target.lend(())? };
            group.all_reduce(&from, &to, dtype, op, &queue(&group, stream)?)
        };
        released(py, call)?.map_err(|error| raised(py, &error))
    }

    /// Queues an all-gather of so many elements of each rank.
    fn all_gather(
        &self,
        py: Python<'_>,
        source: u64,
        target: u64,
        count: usize,
        dtype: u8,
        stream: usize,
    ) -> PyResult<()> {
        let (group, dtype) = (self.here(py)?, element(py, dtype)?);
        let bytes = count * dtype.bytes();
        let source = Place { address: source, bytes };
        let target = Place { address: target, bytes: bytes * group.world() };
        let call = || {
            let _current = group.gpu()?.turn_to()?;
            let (source, target) = (source.lend(())?, target.lend(())?);
            group.all_gather(&source, &target, dtype, &queue(&group, stream)?)
        };
        released(py, call)?.map_err(|error| raised(py, &error))
    }

    /// Has tensors in this memory read and written in place. All ranks call it together.
    fn register(&self, py: Python<'_>, address: u64, nbytes: usize, keep: Py<PyAny>) -> PyResult<()> {
        let group = self.here(py)?;
        let place = Place { address, bytes: nbytes };
        let call = || place.lend(keep).map_err(Error::from).and_then(|memory| group.register(&memory));
        match released(py, call)?.map_err(|error| raised(py, &error))? {
            Ok(()) => Ok(()),
            Err(Unfit(why)) => Err(of_kind(py, "unsupported", 0, &why)),
        }
    }

    /// Whether this memory of this rank was registered.
    fn is_registered(&self, py: Python<'_>, address: u64, nbytes: usize) -> PyResult<bool> {
        let group = self.here(py)?;
        let memory = Place { address, bytes: nbytes }.lend(()).map_err(|error| raised(py, &error.into()))?;
        Ok(group.is_registered(&memory))
    }

    /// Waits until all that was queued is done, for so many seconds.
    fn settle(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let (group, patience) = (self.here(py)?, duration(py, seconds)?);
        released(py, || group.settle(patience))?.map_err(|error| raised(py, &error))
    }

    /// How long kernels may wait for a rank.
    fn set_timeout(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        self.here(py)?.set_timeout(duration(py, seconds)?);
        Ok(())
    }

    /// Gives the group up, for everyone.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let group = self.here(py)?;
        py.detach(|| group.abort());
        Ok(())
    }

    /// Why it is over, if it is.
    fn failure(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let group = self.here(py)?;
        let failure = py.detach(|| group.failure());
        Ok(failure.map(|error| raised(py, &error).into_value(py).into_any()))
    }

    /// Lets go of the device's memory when what was queued is done.
    fn close(&self) {
        let group = self.group.lock().take();
        let_go(group);
    }
}

impl DeviceGroup {
    fn here(&self, py: Python<'_>) -> PyResult<Arc<ringfold::DeviceGroup>> {
        let group = self.group.lock();
        let Some(group) = &*group else { return Err(raised(py, &Error::Left)) };
        group.require().cloned().map_err(|failure| refused(py, &failure.text))
    }
}

impl Drop for DeviceGroup {
    fn drop(&mut self) {
        self.close();
    }
}

impl Place {
    /// The memory, kept by something for as long as it may be used.
    fn lend(self, keep: impl Any + Send + Sync) -> Result<DeviceMemory, CudaError> {
        // SAFETY: the caller of the Python function promises that the tensor is there until the stream that it is used on
        // has come to that, as for everything that is queued on streams; registered memory is kept by its Python object.
        unsafe { DeviceMemory::borrowed(self.address, self.bytes, Box::new(keep)) }
    }
}

/// The caller's stream.
fn queue(group: &ringfold::DeviceGroup, raw: usize) -> Result<Stream, Error> {
    let gpu = group.gpu()?;
    // SAFETY: the caller of the Python function promises that it is a stream of the device.
    Ok(unsafe { gpu.borrow_stream(raw) })
}
