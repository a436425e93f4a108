//! Windows of CUDA tensors, for Python. Addresses and streams are as for collectives on devices.

use crate::call::{drop_detached, try_detached};
use crate::device_group::{DeviceCall, DeviceGroup, borrow_stream, issue, lend};
use crate::exception::{ToException, port_error};
use crate::fork_guard::ForkGuard;
use crate::group::optional_limit;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ringfold::cuda::Stream;
use ringfold::{CallEnd, DeviceGroupWindow, Error, Unsupported};
use std::sync::Arc;

/// A window of device memory.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct DeviceWindow {
    group: Arc<ringfold::DeviceGroup>,
    /// None only while it is dropped.
    window: Option<ForkGuard<DeviceGroupWindow>>,
}

#[pymethods]
impl DeviceWindow {
    /// Opens a window with memory of this rank, which `keep` keeps alive. All ranks call this.
    #[staticmethod]
    fn open(
        py: Python<'_>,
        group: &DeviceGroup,
        address: u64,
        nbytes: usize,
        about: Vec<u8>,
        keep: Py<PyAny>,
    ) -> PyResult<Self> {
        let group = group.open_group(py)?;
        let opened = try_detached(py, || {
            let memory = if nbytes > 0 { Some(lend(address, nbytes, keep)?) } else { None };
            group.window(memory, &about)
        })?;
        let window = opened.map_err(|Unsupported(why)| port_error(py, "unsupported", 0, &why))?;
        Ok(Self { group, window: Some(ForkGuard::new(window)) })
    }

    /// Copies memory into that of a rank, at an offset in bytes.
    #[expect(clippy::too_many_arguments, reason = "as for DeviceGroup.all_reduce")]
    fn put(
        &self,
        py: Python<'_>,
        address: u64,
        nbytes: usize,
        to: usize,
        offset: u64,
        stream: usize,
        own: Option<usize>,
    ) -> PyResult<Option<DeviceCall>> {
        self.issue(py, stream, own, |window, on| {
            window.put(&lend(address, nbytes, ()).map_err(Error::from)?, to, offset, on)
        })
    }

    /// Copies a part of a rank's memory.
    #[expect(clippy::too_many_arguments, reason = "as for DeviceGroup.all_reduce")]
    fn get(
        &self,
        py: Python<'_>,
        address: u64,
        nbytes: usize,
        from: usize,
        offset: u64,
        stream: usize,
        own: Option<usize>,
    ) -> PyResult<Option<DeviceCall>> {
        self.issue(py, stream, own, |window, on| {
            window.get(&lend(address, nbytes, ()).map_err(Error::from)?, from, offset, on)
        })
    }

    /// Signals a rank.
    fn signal(
        &self,
        py: Python<'_>,
        to: usize,
        stream: usize,
        own: Option<usize>,
    ) -> PyResult<Option<DeviceCall>> {
        self.issue(py, stream, own, |window, on| window.signal(to, on))
    }

    /// Waits on the stream for the next signal of a rank.
    fn wait_signal(
        &self,
        py: Python<'_>,
        from: usize,
        timeout: Option<f64>,
        stream: usize,
        own: Option<usize>,
    ) -> PyResult<Option<DeviceCall>> {
        let timeout = optional_limit(py, timeout)?;
        self.issue(py, stream, own, |window, on| window.wait_signal(from, timeout, on))
    }

    /// The size of a rank's memory in bytes.
    fn size(&self, py: Python<'_>, rank: usize) -> PyResult<u64> {
        self.window(py)?.bytes(rank).map_err(|error| error.to_exception(py))
    }

    /// The address of a rank's memory in this process.
    fn address(&self, py: Python<'_>, rank: usize) -> PyResult<u64> {
        self.window(py)?.address(rank).map_err(|error| error.to_exception(py))
    }

    /// The window for kernels: the bytes of a `torchcomms::DeviceWindow`, and the address of a copy on the device.
    fn handle<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyBytes>, u64)> {
        let window = self.window(py)?;
        let (bytes, address) = try_detached(py, || window.handle())?;
        Ok((PyBytes::new(py, &bytes), address))
    }

    /// A rank's description.
    fn about<'py>(&self, py: Python<'py>, rank: usize) -> PyResult<Bound<'py, PyBytes>> {
        let about = self.window(py)?.about(rank).map_err(|error| error.to_exception(py))?;
        Ok(PyBytes::new(py, about))
    }

    /// Closes it, after what is queued on a stream. All ranks call this.
    fn close(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        let window = self.window(py)?;
        try_detached(py, || window.close(&borrow_stream(&self.group, stream)?))
    }
}

impl DeviceWindow {
    fn window(&self, py: Python<'_>) -> PyResult<&DeviceGroupWindow> {
        match &self.window {
            Some(window) => window.of_group(py),
            None => Err(Error::Left.to_exception(py)),
        }
    }

    fn issue(
        &self,
        py: Python<'_>,
        stream: usize,
        own: Option<usize>,
        queue: impl FnOnce(&DeviceGroupWindow, &Stream) -> Result<CallEnd, Error> + Send,
    ) -> PyResult<Option<DeviceCall>> {
        let window = self.window(py)?;
        try_detached(py, || {
            let _current = self.group.gpu()?.make_current()?;
            issue(&self.group, stream, own, |on| queue(window, on))
        })
    }
}

impl Drop for DeviceWindow {
    fn drop(&mut self) {
        // This may wait for kernels.
        drop_detached(self.window.take());
    }
}
