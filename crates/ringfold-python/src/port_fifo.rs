//! The queue between kernels and a proxy, for Python programs that poll it themselves.

use crate::call::released;
use crate::port_error::{of_cuda, of_kind, refused};
use crate::port_owned::PortOwned;
use crate::port_wait::watched;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ringfold::cuda::Gpu;
use ringfold::cuda::port::Fifo;
use ringfold::cuda::port::abort_page::process_page_address;
use ringfold::cuda::port::fifo::FIFO_SIZE_MAX;
use ringfold::cuda::port::trigger::Trigger;
use std::sync::Arc;

/// A queue of triggers.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct PortFifo {
    fifo: PortOwned<Arc<Fifo>>,
    is_on_gpu: bool,
}

#[pymethods]
impl PortFifo {
    #[new]
    #[pyo3(signature = (size=512, on_gpu=None))]
    fn new(py: Python<'_>, size: usize, on_gpu: Option<bool>) -> PyResult<Self> {
        if !(1..=FIFO_SIZE_MAX).contains(&size) {
            return Err(refused(
                py,
                &format!("a FIFO has room for 1 to {FIFO_SIZE_MAX} triggers, not for {size}"),
            ));
        }
        let is_on_gpu = on_gpu.unwrap_or_else(|| Gpu::why_not().is_none());
        let made = released(py, || match is_on_gpu {
            true => Gpu::current().and_then(|gpu| Fifo::of_device(&gpu, size)),
            false => Ok(Fifo::of_host(size)),
        })?;
        let fifo = made.map_err(|error| of_cuda(py, &error))?;
        Ok(Self { fifo: PortOwned::new(Arc::new(fifo)), is_on_gpu })
    }

    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.here(py)?.size())
    }

    /// The oldest trigger that was not popped.
    fn poll(&self, py: Python<'_>) -> PyResult<Option<(u64, u64)>> {
        Ok(self.here(py)?.poll().map(|trigger| (trigger.fst, trigger.snd)))
    }

    /// Consumes it. False if there is none.
    fn pop(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.here(py)?.pop())
    }

    /// Consumes so many triggers without looking at them: how many there were in time.
    #[pyo3(signature = (count, timeout=None))]
    fn drain(&self, py: Python<'_>, count: u64, timeout: Option<f64>) -> PyResult<u64> {
        let fifo = self.here(py)?;
        let mut popped = 0;
        while popped < count {
            let wait = watched(py, timeout, None)?;
            let some = || {
                let before = popped;
                while popped < count && fifo.pop() {
                    popped += 1;
                }
                (popped > before).then_some(())
            };
            if released(py, || wait.poll(some))?.is_none() {
                break;
            }
        }
        Ok(popped)
    }

    /// What kernels push with.
    #[getter]
    fn handle<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let fifo = self.here(py)?;
        let page = if self.is_on_gpu { released(py, process_page_address)? } else { None };
        Ok(PyBytes::new(py, fifo.device_handle(page.unwrap_or(0)).bytes()))
    }

    /// Pushes from the host, and says at which position.
    #[pyo3(signature = (fst, snd, timeout=None))]
    fn push(&self, py: Python<'_>, fst: u64, snd: u64, timeout: Option<f64>) -> PyResult<u64> {
        let fifo = self.here(py)?;
        if self.is_on_gpu {
            return Err(refused(
                py,
                "kernels push to this FIFO: make one with on_gpu=False to push from the host",
            ));
        }
        let wait = watched(py, timeout, None)?;
        let trigger = Trigger::of_words(fst, snd);
        let pushed = released(py, || wait.poll(|| fifo.try_push(trigger)))?;
        pushed.ok_or_else(|| of_kind(py, "timeout", 0, "the FIFO stays full: nobody pops"))
    }

    /// Waits until what was pushed at a position was popped.
    #[pyo3(signature = (position, timeout=None))]
    fn sync(&self, py: Python<'_>, position: u64, timeout: Option<f64>) -> PyResult<()> {
        let fifo = self.here(py)?;
        let wait = watched(py, timeout, None)?;
        let synced = released(py, || wait.poll(|| fifo.is_popped(position).then_some(())))?;
        synced.ok_or_else(|| {
            of_kind(py, "timeout", 0, &format!("nobody pops what was pushed at position {position}"))
        })
    }
}

impl PortFifo {
    fn here(&self, py: Python<'_>) -> PyResult<&Arc<Fifo>> {
        self.fifo.require().map_err(|failure| refused(py, &failure.text))
    }
}
