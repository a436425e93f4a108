//! `ringfold._native`: the one native module under the Python packages `pccl` and `ringfold`.
//!
//! A thin face: it finds the memory of Python's tensors, releases the interpreter's lock around everything that waits,
//! and turns failures into exceptions. What users see is written in Python, in `python/`.

mod call;
mod command;
mod communicator;
mod cuda;
mod cuda_compiler;
mod cuda_memory;
mod cuda_module;
mod device_group;
mod error;
mod group;
mod group_error;
mod group_work;
mod master;
mod operands;
mod owned;
mod place;
mod port;
mod port_connection;
mod port_error;
mod port_fifo;
mod port_memory;
mod port_owned;
mod port_proxy;
mod port_semaphore;
mod port_wait;
mod tensor;
mod window;
mod work;

use pyo3::prelude::*;

/// The native part of Ringfold.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("OPERATIONS", group::operations(module.py())?)?;
    module.add_class::<communicator::Communicator>()?;
    module.add_class::<cuda_memory::CudaMemory>()?;
    module.add_class::<cuda_module::CudaFunction>()?;
    module.add_class::<cuda_module::CudaModule>()?;
    module.add_class::<device_group::DeviceGroup>()?;
    module.add_class::<group::Group>()?;
    module.add_class::<group_work::GroupWork>()?;
    module.add_class::<master::Master>()?;
    module.add_class::<place::MeetingPlace>()?;
    module.add_class::<port::Port>()?;
    module.add_class::<port_connection::PortConnection>()?;
    module.add_class::<port_fifo::PortFifo>()?;
    module.add_class::<port_memory::PortMemory>()?;
    module.add_class::<port::PortOffer>()?;
    module.add_class::<port_proxy::PortChannel>()?;
    module.add_class::<port_proxy::PortProxy>()?;
    module.add_class::<port_semaphore::PortSemaphore>()?;
    module.add_class::<port_semaphore::PortSemaphoreFace>()?;
    module.add_class::<port_semaphore::PortSemaphoreOffer>()?;
    module.add_class::<tensor::Tensor>()?;
    module.add_class::<window::Window>()?;
    module.add_class::<window::WindowWork>()?;
    module.add_class::<work::Work>()?;
    module.add_function(wrap_pyfunction!(command::command, module)?)?;
    module.add_function(wrap_pyfunction!(cuda::cuda_arch, module)?)?;
    module.add_function(wrap_pyfunction!(cuda_compiler::cuda_compile, module)?)?;
    module.add_function(wrap_pyfunction!(cuda_compiler::cuda_compiler, module)?)?;
    module.add_function(wrap_pyfunction!(cuda::cuda_count, module)?)?;
    module.add_function(wrap_pyfunction!(cuda::cuda_current, module)?)?;
    module.add_function(wrap_pyfunction!(cuda::cuda_device_of, module)?)?;
    module.add_function(wrap_pyfunction!(cuda::cuda_headers, module)?)?;
    module.add_function(wrap_pyfunction!(cuda::cuda_multiprocessors, module)?)?;
    module.add_function(wrap_pyfunction!(cuda::cuda_why_not, module)?)?;
    module.add_function(wrap_pyfunction!(group::finish_retired, module)?)?;
    module.add_function(wrap_pyfunction!(has_cuda, module)?)?;
    module.add_function(wrap_pyfunction!(call::interpreter_ends, module)?)?;
    module.add_function(wrap_pyfunction!(port_semaphore::memory_channel_handle, module)?)?;
    module.add_function(wrap_pyfunction!(port_proxy::port_handle_sizes, module)?)?;
    module.add_function(wrap_pyfunction!(start_log, module)?)?;
    // Before all others, so that it is the last that is done.
    module
        .py()
        .import("atexit")?
        .call_method1("register", (wrap_pyfunction!(port::leave_ports, module)?,))?;
    Ok(())
}

/// Starts the log, as PCCL_LOG_LEVEL or RINGFOLD_LOG say. May be called again.
#[pyfunction]
fn start_log() {
    ringfold_bindings::log::install();
}

/// Whether there are a CUDA driver and a device.
#[pyfunction]
fn has_cuda(py: Python<'_>) -> bool {
    py.detach(ringfold::cuda::Driver::is_usable)
}
