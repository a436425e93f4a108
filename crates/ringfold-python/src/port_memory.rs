//! Registered memory of ports, for Python.

use crate::call::try_detached;
use crate::exception::{ToException, invalid_port_argument};
use crate::fork_guard::DetachedGuard;
use crate::window::reopen;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ringfold::cuda::port::{Port, RegisteredMemory, Registrable, TransportFlags};
use ringfold::cuda::{DeviceMemory, Gpu};
use ringfold::{Memory, SharedMemory};

/// Registered memory of this process or another one.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct PortMemory {
    pub(crate) memory: DetachedGuard<RegisteredMemory>,
}

impl PortMemory {
    pub(crate) fn of(memory: RegisteredMemory) -> Self {
        Self { memory: DetachedGuard::new(memory) }
    }

    /// Registers memory at an address. `keep` keeps it alive.
    pub(crate) fn register(
        py: Python<'_>,
        port: &Port,
        (address, nbytes): (u64, u64),
        transports: u32,
        file: Option<(i32, u64)>,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let memory = usize::try_from(address).ok().zip(usize::try_from(nbytes).ok());
        let memory = memory.filter(|(start, bytes)| {
            *start > 0 && isize::try_from(*bytes).is_ok() && start.checked_add(*bytes).is_some()
        });
        let (start, bytes) = memory.ok_or_else(|| {
            let text = format!("invalid memory: {nbytes} bytes at address {address:#x}");
            invalid_port_argument(py, &text)
        })?;
        let flags = TransportFlags::from_bits(transports)
            .ok_or_else(|| invalid_port_argument(py, &format!("unknown transports in {transports:#x}")))?;
        let reopen = |fd| reopen(fd).map_err(|error| invalid_port_argument(py, &error));
        let file = file.map(|(fd, offset)| reopen(fd).map(|file| (file, offset))).transpose()?;
        let gpu = try_detached(py, || Gpu::of_address(address))?;
        let keeper = Box::new(keep);
        let memory = if gpu.is_some() {
            // SAFETY: the keeper lives as long as the registration, and keeps the bytes allocated. The user orders other
            // uses of them, as with any memory that others write.
            let memory = try_detached(py, || unsafe { DeviceMemory::borrowed(address, bytes, keeper) })?;
            Registrable::Device(memory)
        } else {
            // SAFETY: the keeper keeps the bytes valid and in place. Others write them while Python may read them: that is
            // what registration is for, and a read during a write may see a part of it.
            let memory =
                unsafe { Memory::kept(core::ptr::with_exposed_provenance_mut(start), bytes, keeper) };
            match file {
                Some((file, offset)) => Registrable::Shared(SharedMemory::of(memory, file, offset)),
                None => Registrable::Host(memory),
            }
        };
        try_detached(py, || port.register(memory, flags)).map(Self::of)
    }
}

#[pymethods]
impl PortMemory {
    /// Its address in this process; 0 if it is not mapped.
    #[getter]
    fn address(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.memory.get(py)?.data())
    }

    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.memory.get(py)?.size())
    }

    #[getter]
    fn transports(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.memory.get(py)?.transports().bits())
    }

    #[getter]
    fn is_device(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.memory.get(py)?.is_device())
    }

    /// The record for other ranks.
    fn serialize<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let memory = self.memory.get(py)?;
        memory.check_sharable().map_err(|error| error.to_exception(py))?;
        Ok(PyBytes::new(py, &memory.serialize()))
    }
}
