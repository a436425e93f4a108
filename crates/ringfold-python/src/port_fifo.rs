//! The FIFO between kernels and a proxy, for Python programs that poll it themselves.

use crate::call::{detached, try_detached};
use crate::exception::{invalid_port_argument, port_error};
use crate::fork_guard::DetachedGuard;
use crate::port::wait_of;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ringfold::cuda::Gpu;
use ringfold::cuda::port::Fifo;
use ringfold::cuda::port::abort_page::process_page_address;
use ringfold::cuda::port::device_handle::HandleBytes;
use ringfold::cuda::port::fifo::FIFO_SIZE_MAX;
use ringfold::cuda::port::trigger::Trigger;
use std::sync::Arc;

/// A FIFO of triggers.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct PortFifo {
    fifo: DetachedGuard<Arc<Fifo>>,
    is_on_gpu: bool,
}

#[pymethods]
impl PortFifo {
    #[new]
    #[pyo3(signature = (size=512, on_gpu=None))]
    fn new(py: Python<'_>, size: usize, on_gpu: Option<bool>) -> PyResult<Self> {
        if !(1..=FIFO_SIZE_MAX).contains(&size) {
            let text = format!("invalid FIFO size {size}: must be 1..={FIFO_SIZE_MAX} triggers");
            return Err(invalid_port_argument(py, &text));
        }
        let is_on_gpu = on_gpu.unwrap_or_else(|| Gpu::unavailable_reason().is_none());
        let fifo = try_detached(py, || match is_on_gpu {
            true => Gpu::current().and_then(|gpu| Fifo::of_device(&gpu, size)),
            false => Ok(Fifo::of_host(size)),
        })?;
        Ok(Self { fifo: DetachedGuard::new(Arc::new(fifo)), is_on_gpu })
    }

    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.fifo.get(py)?.size())
    }

    /// The oldest trigger; it stays in the FIFO.
    fn poll(&self, py: Python<'_>) -> PyResult<Option<(u64, u64)>> {
        Ok(self.fifo.get(py)?.poll().map(|trigger| (trigger.fst, trigger.snd)))
    }

    /// Removes the oldest trigger. False if there is none.
    fn pop(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.fifo.get(py)?.pop())
    }

    /// Removes `count` triggers; returns how many came before the timeout.
    #[pyo3(signature = (count, timeout=None))]
    fn drain(&self, py: Python<'_>, count: u64, timeout: Option<f64>) -> PyResult<u64> {
        let fifo = self.fifo.get(py)?;
        let mut popped = 0;
        while popped < count {
            let wait = wait_of(py, timeout, -1)?;
            let some = || {
                let before = popped;
                while popped < count && fifo.pop() {
                    popped += 1;
                }
                (popped > before).then_some(())
            };
            if detached(py, || wait.poll(some))?.is_none() {
                break;
            }
        }
        Ok(popped)
    }

    /// The device handle, with which kernels push.
    #[getter]
    fn handle<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let fifo = self.fifo.get(py)?;
        let page = if self.is_on_gpu { detached(py, process_page_address)? } else { None };
        Ok(PyBytes::new(py, fifo.device_handle(page.unwrap_or(0)).bytes()))
    }

    /// Pushes from the host; returns the position.
    #[pyo3(signature = (fst, snd, timeout=None))]
    fn push(&self, py: Python<'_>, fst: u64, snd: u64, timeout: Option<f64>) -> PyResult<u64> {
        let fifo = self.fifo.get(py)?;
        if self.is_on_gpu {
            let text = "invalid push from the host: kernels push to this FIFO; make one with on_gpu=False";
            return Err(invalid_port_argument(py, text));
        }
        let wait = wait_of(py, timeout, -1)?;
        let trigger = Trigger::of_words(fst, snd);
        let pushed = detached(py, || wait.poll(|| fifo.try_push(trigger)))?;
        pushed.ok_or_else(|| port_error(py, "timeout", 0, "timed out pushing: the FIFO is full"))
    }

    /// Waits until the trigger at a position was popped.
    #[pyo3(signature = (position, timeout=None))]
    fn sync(&self, py: Python<'_>, position: u64, timeout: Option<f64>) -> PyResult<()> {
        let fifo = self.fifo.get(py)?;
        let wait = wait_of(py, timeout, -1)?;
        let synced = detached(py, || wait.poll(|| fifo.is_popped(position).then_some(())))?;
        synced.ok_or_else(|| {
            let text = format!("timed out waiting for the trigger at position {position} to be popped");
            port_error(py, "timeout", 0, &text)
        })
    }
}
