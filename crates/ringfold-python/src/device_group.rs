//! Collectives on CUDA devices, for Python.
//!
//! Tensors are addresses, and streams are the driver's handles. Operations run in the order of their stream, so
//! memory that is freed in stream order, as torch does, stays valid while it is used.

use crate::call::{deadline, drop_detached, duration, time_limit, try_detached};
use crate::cuda_compiler::add_search_dirs;
use crate::exception::{ToException, port_error};
use crate::fork_guard::ForkGuard;
use crate::group::{Group, element_type, operation, optional_limit, reduce_op};
use core::any::Any;
use core::time::Duration;
use parking_lot::Mutex;
use pyo3::prelude::*;
use ringfold::cuda::{CudaError, DeviceMemory, Gpu, Stream};
use ringfold::{CallEnd, DeviceTransfer, Error, KernelSources, Unsupported};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// A rank's membership in a group that runs collectives as kernels.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct DeviceGroup {
    /// None once it is closed.
    group: Mutex<Option<ForkGuard<Arc<ringfold::DeviceGroup>>>>,
    #[pyo3(get)]
    ordinal: i32,
    /// Otherwise it only does all-reduces.
    #[pyo3(get)]
    is_on_one_host: bool,
}

#[pymethods]
impl DeviceGroup {
    /// Connects the devices of all ranks, which all call this; `ordinal` -1 is no device.
    #[staticmethod]
    #[pyo3(signature = (group, ordinal, nvrtc=None, cache_dir=None))]
    fn open(
        py: Python<'_>,
        group: &Group,
        ordinal: i32,
        nvrtc: Option<PathBuf>,
        cache_dir: Option<PathBuf>,
    ) -> PyResult<Self> {
        add_search_dirs(py)?;
        let group = group.group.of_group(py)?;
        let sources = KernelSources { compiler: nvrtc, cache: cache_dir };
        let device = (ordinal >= 0).then_some(ordinal);
        let opened = try_detached(py, || ringfold::DeviceGroup::open(group, device, &sources))?;
        let group = opened.map_err(|Unsupported(why)| port_error(py, "unsupported", 0, &why))?;
        let (ordinal, is_on_one_host) = (group.ordinal(), group.is_on_one_host());
        let group = Mutex::new(Some(ForkGuard::new(Arc::new(group))));
        Ok(Self { group, ordinal, is_on_one_host })
    }

    /// Queues an all-reduce of `count` elements on a stream; or on `own` after what is on the stream, and returns the call.
    #[expect(clippy::too_many_arguments, reason = "called for each operation; an object would cost time")]
    fn all_reduce(
        &self,
        py: Python<'_>,
        source: u64,
        target: u64,
        count: usize,
        dtype: u8,
        reduce: u8,
        timeout: Option<f64>,
        stream: usize,
        own: Option<usize>,
    ) -> PyResult<Option<DeviceCall>> {
        let timeout = optional_limit(py, timeout)?;
        let (group, dtype, op) = (self.open_group(py)?, element_type(py, dtype)?, reduce_op(py, reduce)?);
        let bytes = count * dtype.bytes();
        try_detached(py, || {
            let _current = group.gpu()?.make_current()?;
            let from = lend(source, bytes, ())?;
            // In place, the driver is asked once whose memory it is.
            let to = if target == source { from.clone() } else { lend(target, bytes, ())? };
            issue(&group, stream, own, |on| group.all_reduce(&from, &to, dtype, op, on, timeout))
        })
    }

    /// Queues a collective, with the arguments of `Group.run`.
    #[expect(clippy::too_many_arguments, reason = "as for all_reduce")]
    fn run(
        &self,
        py: Python<'_>,
        op: &str,
        dtype: u8,
        reduce: u8,
        peer: i64,
        counts: Option<Vec<usize>>,
        others: Option<Vec<usize>>,
        inputs: Vec<(u64, usize)>,
        outputs: Vec<(u64, usize)>,
        timeout: Option<f64>,
        stream: usize,
        own: Option<usize>,
    ) -> PyResult<Option<DeviceCall>> {
        let (group, dtype) = (self.open_group(py)?, element_type(py, dtype)?);
        let op = operation(py, op, reduce, peer, counts, others, 0)?;
        let timeout = optional_limit(py, timeout)?;
        try_detached(py, || {
            let _current = group.gpu()?.make_current()?;
            let lend_all = |spans: &[(u64, usize)]| {
                spans.iter().map(|(address, bytes)| lend(*address, *bytes, ())).collect::<Result<Vec<_>, _>>()
            };
            let (from, to) = (lend_all(&inputs)?, lend_all(&outputs)?);
            issue(&group, stream, own, |on| group.run(&op, dtype, &from, &to, on, timeout))
        })
    }

    /// Queues sends and receives together, each given by whether it is a send, peer, address, bytes and type.
    fn transfer(
        &self,
        py: Python<'_>,
        batch: Vec<(bool, usize, u64, usize, u8)>,
        timeout: Option<f64>,
        stream: usize,
        own: Option<usize>,
    ) -> PyResult<Option<DeviceCall>> {
        let timeout = optional_limit(py, timeout)?;
        let group = self.open_group(py)?;
        let types = batch.iter().map(|one| element_type(py, one.4)).collect::<PyResult<Vec<_>>>()?;
        try_detached(py, || {
            let _current = group.gpu()?.make_current()?;
            let of = |((is_send, peer, address, bytes, _), dtype): (&(bool, usize, u64, usize, u8), _)| {
                let memory = lend(*address, *bytes, ())?;
                Ok(DeviceTransfer { is_send: *is_send, peer: *peer, memory, dtype })
            };
            let batch = batch.iter().zip(types).map(of).collect::<Result<Vec<_>, CudaError>>()?;
            issue(&group, stream, own, |on| group.transfer(&batch, on, timeout))
        })
    }

    /// Registers the allocation that memory is in, and waits until all ranks have opened it.
    fn register(&self, py: Python<'_>, address: u64, nbytes: usize) -> PyResult<()> {
        let group = self.open_group(py)?;
        let registered = try_detached(py, || group.register(&lend(address, nbytes, ())?))?;
        registered.map_err(|Unsupported(why)| port_error(py, "unsupported", 0, &why))
    }

    /// Makes the other ranks close the allocation that memory is in.
    fn deregister(&self, py: Python<'_>, address: u64, nbytes: usize) -> PyResult<()> {
        let group = self.open_group(py)?;
        try_detached(py, || group.deregister(&lend(address, nbytes, ())?))
    }

    /// Whether this memory of this rank is registered.
    fn is_registered(&self, py: Python<'_>, address: u64, nbytes: usize) -> PyResult<bool> {
        let group = self.open_group(py)?;
        let memory = lend(address, nbytes, ()).map_err(|error| Error::from(error).to_exception(py))?;
        Ok(group.is_registered(&memory))
    }

    /// Waits up to so many seconds for everything that was queued.
    fn synchronize(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let (group, timeout) = (self.open_group(py)?, duration(py, seconds)?);
        try_detached(py, || group.synchronize(timeout))
    }

    /// The number of unfinished operations, except those in graphs; None while another thread queues one.
    fn unfinished(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        let group = self.open_group(py)?;
        try_detached(py, || group.unfinished())
    }

    /// Sets how long kernels wait for a rank.
    fn set_timeout(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        self.open_group(py)?.set_timeout(time_limit(py, seconds)?);
        Ok(())
    }

    /// Aborts the group on all ranks.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let group = self.open_group(py)?;
        py.detach(|| group.abort());
        Ok(())
    }

    /// Why the group failed; None while it works.
    fn failure(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let group = self.open_group(py)?;
        let failure = py.detach(|| group.failure());
        Ok(failure.map(|error| error.to_exception(py).into_value(py).into_any()))
    }

    /// Frees the device's memory when what was queued is done.
    fn close(&self) {
        let group = self.group.lock().take();
        drop_detached(group);
    }
}

/// How long a wait ignores signals.
const WAIT_SLICE: Duration = Duration::from_millis(50);

/// A queued call.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct DeviceCall {
    end: CallEnd,
    gpu: Gpu,
    /// It may be closed before.
    group: ForkGuard<Weak<ringfold::DeviceGroup>>,
}

#[pymethods]
impl DeviceCall {
    /// Whether it has ended.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.end.is_done().map_err(|error| error.to_exception(py))
    }

    /// Waits up to so many seconds for its end. False if it has not ended by then; raises why the group has failed, if it has.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let deadline = deadline(py, timeout)?;
        loop {
            let slice = Instant::now() + WAIT_SLICE;
            let until = deadline.map_or(slice, |deadline| deadline.min(slice));
            if try_detached(py, || self.end.wait_until(until))? {
                break;
            }
            py.check_signals()?;
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(false);
            }
        }
        let failure = self.failure(py)?;
        failure.map_or(Ok(true), |error| Err(error.to_exception(py)))
    }

    /// The id of the capture that it is in; None outside of graphs.
    #[getter]
    fn capture(&self) -> Option<u64> {
        self.end.capture()
    }

    /// Makes later work on a stream wait for its end. Raises why the group has failed, if it has.
    fn order_after(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        // SAFETY: the caller promises that it is a stream of the device.
        let stream = unsafe { self.gpu.borrow_stream(stream) };
        let failure = self.failure(py)?;
        let ordered = self.end.order_after(&stream).and_then(|()| failure.map_or(Ok(()), Err));
        ordered.map_err(|error| error.to_exception(py))
    }
}

impl DeviceCall {
    /// Why the group has failed. A group that was closed has not.
    fn failure(&self, py: Python<'_>) -> PyResult<Option<Error>> {
        let group = self.group.of_group(py)?.upgrade();
        Ok(group.and_then(|group| group.failure()).filter(|error| *error != Error::Left))
    }
}

impl DeviceGroup {
    pub(crate) fn open_group(&self, py: Python<'_>) -> PyResult<Arc<ringfold::DeviceGroup>> {
        match &*self.group.lock() {
            Some(group) => group.of_group(py).cloned(),
            None => Err(Error::Left.to_exception(py)),
        }
    }
}

impl Drop for DeviceGroup {
    fn drop(&mut self) {
        self.close();
    }
}

/// The memory of a tensor, with the object that keeps it alive.
pub(crate) fn lend(
    address: u64,
    bytes: usize,
    keep: impl Any + Send + Sync,
) -> Result<DeviceMemory, CudaError> {
    // SAFETY: the caller of the Python function promises that the tensor is there until the stream that it is used on has
    // come to that, as for everything that is queued on streams; registered memory is kept by its Python object.
    unsafe { DeviceMemory::borrowed(address, bytes, Box::new(keep)) }
}

/// Queues a call on a stream; or on the `own` one, after what is on the stream.
pub(crate) fn issue(
    group: &Arc<ringfold::DeviceGroup>,
    stream: usize,
    own: Option<usize>,
    queue: impl FnOnce(&Stream) -> Result<CallEnd, Error>,
) -> Result<Option<DeviceCall>, Error> {
    let stream = borrow_stream(group, stream)?;
    let Some(own) = own else { return queue(&stream).map(|_| None) };
    let end = if stream.capture()?.is_some() {
        stream.branch(|| queue(&stream))??
    } else {
        let own = borrow_stream(group, own)?;
        group.fork(&stream, &own)?;
        queue(&own)?
    };
    let (gpu, group) = (group.gpu()?, ForkGuard::new(Arc::downgrade(group)));
    Ok(Some(DeviceCall { end, gpu, group }))
}

pub(crate) fn borrow_stream(group: &ringfold::DeviceGroup, handle: usize) -> Result<Stream, Error> {
    let gpu = group.gpu()?;
    // SAFETY: the caller of the Python function promises that it is a stream of the device.
    Ok(unsafe { gpu.borrow_stream(handle) })
}
