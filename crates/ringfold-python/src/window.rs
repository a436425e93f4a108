//! Windows of groups, for Python.

use crate::call::{released, wait_until};
use crate::group::{Group, duration};
use crate::group_error::{raised, refused};
use crate::operands::Span;
use crate::owned::Owned;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ringfold::{SharedMemory, WindowMemory};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// A window.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct Window {
    window: Owned<ringfold::Window>,
}

#[pymethods]
impl Window {
    /// Opens a window, together with all other ranks. `file` is where in which file the memory lies, if it lies in one.
    #[staticmethod]
    fn open(
        py: Python<'_>,
        group: &Group,
        memory: &Bound<'_, PyAny>,
        file: Option<(i32, u64)>,
        about: &[u8],
        keep: Py<PyAny>,
    ) -> PyResult<Self> {
        let group = group.here(py)?;
        let memory = Span::of(memory)?.memory(&Arc::new(keep));
        let memory = match file {
            None => WindowMemory::Private(memory),
            Some((fd, offset)) => {
                let file = again(fd).map_err(|error| refused(py, &format!("file {fd}: {error}")))?;
                WindowMemory::Shared(SharedMemory::of(memory, file, offset))
            }
        };
        let window = released(py, || group.window(memory, about))?;
        window.map(|window| Self { window: Owned::new(window) }).map_err(|error| raised(py, &error))
    }

    /// How many bytes a rank has laid open.
    fn size(&self, py: Python<'_>, rank: usize) -> PyResult<usize> {
        self.here(py)?.bytes(rank).map_err(|error| raised(py, &error))
    }

    /// What a rank has told about its memory.
    fn about<'py>(&self, py: Python<'py>, rank: usize) -> PyResult<Bound<'py, PyBytes>> {
        let about = self.here(py)?.about(rank).map_err(|error| raised(py, &error))?;
        Ok(PyBytes::new(py, about))
    }

    /// Whether a rank's memory can be read and written as if it were this rank's own.
    fn is_mapped(&self, py: Python<'_>, rank: usize) -> PyResult<bool> {
        self.here(py)?.is_mapped(rank).map_err(|error| raised(py, &error))
    }

    /// The file that another rank's memory lies in, and where; open for as long as the window is.
    fn file(&self, py: Python<'_>, rank: usize) -> PyResult<Option<(i32, u64)>> {
        let file = self.here(py)?.file(rank).map_err(|error| raised(py, &error))?;
        Ok(file.map(|(file, offset)| (file.as_raw_fd(), offset)))
    }

    /// Begins to put.
    fn put(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        rank: usize,
        offset: usize,
        timeout: Option<f64>,
        keep: Py<PyAny>,
    ) -> PyResult<WindowWork> {
        let window = self.here(py)?;
        let timeout = timeout.map(|seconds| duration(py, seconds)).transpose()?;
        let source = Span::of(source)?.view(&Arc::new(keep));
        let begun = released(py, || window.begin_put(source, rank, offset, timeout))?;
        begun.map(WindowWork::new).map_err(|error| raised(py, &error))
    }

    /// Signals.
    fn signal(&self, py: Python<'_>, rank: usize) -> PyResult<()> {
        let window = self.here(py)?;
        released(py, || window.signal(rank))?.map_err(|error| raised(py, &error))
    }

    /// Begins to wait for a signal.
    fn wait_signal(&self, py: Python<'_>, rank: usize, timeout: Option<f64>) -> PyResult<WindowWork> {
        let timeout = timeout.map(|seconds| duration(py, seconds)).transpose()?;
        let begun = self.here(py)?.begin_wait_signal(rank, timeout);
        begun.map(WindowWork::new).map_err(|error| raised(py, &error))
    }

    /// Ends the window, together with all other ranks.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let window = self.here(py)?;
        released(py, || window.close())?.map_err(|error| raised(py, &error))
    }
}

impl Window {
    fn here(&self, py: Python<'_>) -> PyResult<&ringfold::Window> {
        self.window.require().map_err(|failure| refused(py, &failure.text))
    }
}

/// A put, or a wait for a signal, that was begun. Dropping it lets it go on.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct WindowWork {
    work: Owned<ringfold::WindowWork>,
}

#[pymethods]
impl WindowWork {
    /// Waits for the end, for so many seconds if that is said. False if it has not ended by then.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let work = self.here(py)?;
        let patience = timeout.map(|seconds| duration(py, seconds)).transpose()?;
        let until = patience.and_then(|patience| Instant::now().checked_add(patience));
        match released(py, || wait_until(until, |patience| work.wait_for(patience)))? {
            None => Ok(false),
            Some(end) => end.map(|()| true).map_err(|error| raised(py, &error)),
        }
    }

    /// Whether it has ended.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        let work = self.here(py)?;
        released(py, || work.is_done())
    }
}

impl WindowWork {
    fn new(work: ringfold::WindowWork) -> Self {
        Self { work: Owned::new(work) }
    }

    fn here(&self, py: Python<'_>) -> PyResult<&ringfold::WindowWork> {
        self.work.require().map_err(|failure| refused(py, &failure.text))
    }
}

/// The file that an open one is, opened once more.
pub(crate) fn again(fd: i32) -> std::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{fd}");
    File::options().read(true).write(true).open(path).map(OwnedFd::from)
}
