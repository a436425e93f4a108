//! Registered memory of ports, for Python.

use crate::call::released;
use crate::port_error::{of_cuda, of_port, refused};
use crate::port_owned::PortOwned;
use crate::window::again;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ringfold::cuda::port::{Port, RegisteredMemory, Registrable, TransportFlags};
use ringfold::cuda::{DeviceMemory, Gpu};
use ringfold::{Memory, SharedMemory};

/// Registered memory, of this process or of another one.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct PortMemory {
    memory: PortOwned<RegisteredMemory>,
}

impl PortMemory {
    pub(crate) fn of(memory: RegisteredMemory) -> Self {
        Self { memory: PortOwned::new(memory) }
    }

    pub(crate) fn here(&self, py: Python<'_>) -> PyResult<&RegisteredMemory> {
        self.memory.require().map_err(|failure| refused(py, &failure.text))
    }

    /// Registers memory at an address, which `keep` keeps there.
    pub(crate) fn register(
        py: Python<'_>,
        port: &Port,
        (address, nbytes): (u64, u64),
        transports: u32,
        file: Option<(i32, u64)>,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let no_memory =
            || refused(py, &format!("{nbytes} bytes at address {address:#x} can't be anyone's memory"));
        let (start, bytes) = (usize::try_from(address), usize::try_from(nbytes));
        let (Ok(start), Ok(bytes)) = (start, bytes) else { return Err(no_memory()) };
        if start == 0 || isize::try_from(bytes).is_err() || start.checked_add(bytes).is_none() {
            return Err(no_memory());
        }
        let flags = TransportFlags::from_bits(transports)
            .ok_or_else(|| refused(py, &format!("{transports:#x} has bits that stand for no transport")))?;
        let file = file.map(|(fd, offset)| match again(fd) {
            Ok(file) => Ok((file, offset)),
            Err(error) => Err(refused(py, &format!("file {fd}: {error}"))),
        });
        let file = file.transpose()?;
        let gpu = released(py, || Gpu::of_address(address))?.map_err(|error| of_cuda(py, &error))?;
        let keeper = Box::new(keep);
        let memory = if gpu.is_some() {
            // SAFETY: the keeper, which lives as long as the registration, keeps the bytes allocated; what else uses them
            // when is for the user to order, as with any memory that others write.
            let memory = released(py, || unsafe { DeviceMemory::borrowed(address, bytes, keeper) })?;
            Registrable::Device(memory.map_err(|error| of_cuda(py, &error))?)
        } else {
            // SAFETY: the keeper keeps the bytes valid and in place. Others write them while Python may read them: that is
            // what they are registered for, and what is read then is some of both.
            let memory =
                unsafe { Memory::kept(core::ptr::with_exposed_provenance_mut(start), bytes, keeper) };
            match file {
                Some((file, offset)) => Registrable::Shared(SharedMemory::of(memory, file, offset)),
                None => Registrable::Host(memory),
            }
        };
        let registered = released(py, || port.register(memory, flags))?;
        registered.map(Self::of).map_err(|error| of_port(py, &error))
    }
}

#[pymethods]
impl PortMemory {
    /// Where it can be read and written from here; 0 if it can't.
    #[getter]
    fn address(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.here(py)?.data())
    }

    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.here(py)?.size())
    }

    #[getter]
    fn transports(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.here(py)?.transports().bits())
    }

    #[getter]
    fn is_device(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.here(py)?.is_device())
    }

    /// What is told to the other side.
    fn serialize<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let memory = self.here(py)?;
        memory.check_sharable().map_err(|error| of_port(py, &error))?;
        Ok(PyBytes::new(py, &memory.serialize()))
    }
}
