//! Windows of groups, for Python.

use crate::call::{deadline, detached, duration, try_detached, wait_interruptible};
use crate::exception::{ToException, invalid_group_argument};
use crate::fork_guard::ForkGuard;
use crate::group::{Group, optional_limit};
use crate::operands::BufferSpan;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ringfold::{SharedMemory, WindowMemory};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Memory that each rank of a group lets the others write.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct Window {
    window: ForkGuard<ringfold::Window>,
}

#[pymethods]
impl Window {
    /// Opens a window; all ranks call this. `file` is the descriptor and offset of the memory, if it lies in a file.
    #[staticmethod]
    fn open(
        py: Python<'_>,
        group: &Group,
        memory: &Bound<'_, PyAny>,
        file: Option<(i32, u64)>,
        about: &[u8],
        keep: Py<PyAny>,
    ) -> PyResult<Self> {
        let group = group.group.of_group(py)?;
        let memory = BufferSpan::of(memory)?.memory(&Arc::new(keep));
        let memory = match file {
            None => WindowMemory::Private(memory),
            Some((fd, offset)) => {
                let file = reopen(fd).map_err(|error| invalid_group_argument(py, &error))?;
                WindowMemory::Shared(SharedMemory::of(memory, file, offset))
            }
        };
        let window = try_detached(py, || group.window(memory, about))?;
        Ok(Self { window: ForkGuard::new(window) })
    }

    /// The size of a rank's memory in bytes.
    fn size(&self, py: Python<'_>, rank: usize) -> PyResult<usize> {
        self.window.of_group(py)?.bytes(rank).map_err(|error| error.to_exception(py))
    }

    /// The bytes that a rank passed as `about`.
    fn about<'py>(&self, py: Python<'py>, rank: usize) -> PyResult<Bound<'py, PyBytes>> {
        let about = self.window.of_group(py)?.about(rank).map_err(|error| error.to_exception(py))?;
        Ok(PyBytes::new(py, about))
    }

    /// Whether a rank's memory is mapped into this process.
    fn is_mapped(&self, py: Python<'_>, rank: usize) -> PyResult<bool> {
        self.window.of_group(py)?.is_mapped(rank).map_err(|error| error.to_exception(py))
    }

    /// The descriptor and offset of another rank's memory; open as long as the window is.
    fn file(&self, py: Python<'_>, rank: usize) -> PyResult<Option<(i32, u64)>> {
        let file = self.window.of_group(py)?.file(rank).map_err(|error| error.to_exception(py))?;
        Ok(file.map(|(file, offset)| (file.as_raw_fd(), offset)))
    }

    /// Starts a put.
    fn put(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        rank: usize,
        offset: usize,
        timeout: Option<f64>,
        keep: Py<PyAny>,
    ) -> PyResult<WindowWork> {
        let (window, timeout) = (self.window.of_group(py)?, optional_limit(py, timeout)?);
        let source = BufferSpan::of(source)?.view(&Arc::new(keep));
        let work = try_detached(py, || window.begin_put(source, rank, offset, timeout))?;
        Ok(WindowWork { work: ForkGuard::new(work) })
    }

    /// Signals a rank.
    fn signal(&self, py: Python<'_>, rank: usize, timeout: Option<f64>) -> PyResult<()> {
        let (window, timeout) = (self.window.of_group(py)?, optional_limit(py, timeout)?);
        try_detached(py, || window.signal(rank, timeout))
    }

    /// Starts to wait for a signal of a rank.
    fn wait_signal(&self, py: Python<'_>, rank: usize, timeout: Option<f64>) -> PyResult<WindowWork> {
        // A wait for a signal that ends at once fails nothing.
        let timeout = timeout.map(|seconds| duration(py, seconds)).transpose()?;
        let window = self.window.of_group(py)?;
        let work = window.begin_wait_signal(rank, timeout).map_err(|error| error.to_exception(py))?;
        Ok(WindowWork { work: ForkGuard::new(work) })
    }

    /// Closes the window; all ranks call this.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let window = self.window.of_group(py)?;
        try_detached(py, || window.close())
    }
}

/// A started put or wait for a signal. It goes on if this object is dropped.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct WindowWork {
    work: ForkGuard<ringfold::WindowWork>,
}

#[pymethods]
impl WindowWork {
    /// Waits for the end, up to `timeout` seconds. False if it has not ended by then.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let (work, deadline) = (self.work.of_group(py)?, deadline(py, timeout)?);
        match detached(py, || wait_interruptible(deadline, |timeout| work.wait_for(timeout)))? {
            None => Ok(false),
            Some(end) => end.map(|()| true).map_err(|error| error.to_exception(py)),
        }
    }

    /// Whether it has ended.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        let work = self.work.of_group(py)?;
        detached(py, || work.is_done())
    }
}

/// Opens the file of an open descriptor once more. The error is the text of an exception.
pub(crate) fn reopen(fd: i32) -> Result<OwnedFd, String> {
    let file = File::options().read(true).write(true).open(format!("/proc/self/fd/{fd}"));
    file.map(OwnedFd::from).map_err(|error| format!("opening file descriptor {fd} failed: {error}"))
}
