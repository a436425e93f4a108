//! `ringfold._native`: the native module under the Python packages `pccl`, `ringfold`, `torchcomms` and `mscclpp`.
//!
//! A thin binding: it finds the memory of Python's tensors, releases the interpreter's lock around every wait, and
//! turns errors into exceptions. The API that users see is written in Python, in `python/`.

mod bootstrap;
mod call;
mod command;
mod communicator;
mod cuda;
mod cuda_compiler;
mod cuda_memory;
mod cuda_module;
mod device_group;
mod device_window;
mod exception;
mod fork_guard;
mod group;
mod group_work;
mod master;
mod operands;
mod port;
mod port_connection;
mod port_fifo;
mod port_memory;
mod port_proxy;
mod port_semaphore;
mod settings;
mod shared_buffer;
mod tensor;
mod window;
mod work;

use pyo3::prelude::*;

/// The native part of Ringfold.
#[pymodule]
mod _native {
    use crate::{group, port};
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::{
        bootstrap::BootstrapListener,
        call::begin_interpreter_exit,
        command::command,
        communicator::Communicator,
        cuda::{
            cuda_arch, cuda_count, cuda_current, cuda_device_of, cuda_headers, cuda_multiprocessors,
            cuda_unavailable_reason, has_cuda,
        },
        cuda_compiler::{cuda_compile, cuda_compiler},
        cuda_memory::CudaMemory,
        cuda_module::{CudaFunction, CudaModule},
        device_group::DeviceCall,
        device_group::DeviceGroup,
        device_window::DeviceWindow,
        group::{Group, finish_retired},
        group_work::GroupWork,
        master::Master,
        port::{Port, PortOffer},
        port_connection::PortConnection,
        port_fifo::PortFifo,
        port_memory::PortMemory,
        port_proxy::{PortChannel, PortProxy, port_handle_sizes},
        port_semaphore::{PortSemaphore, PortSemaphoreCursor, PortSemaphoreOffer, memory_channel_handle},
        settings::{setting_is_on, setting_masters, setting_names, setting_seconds, setting_text},
        shared_buffer::SharedBuffer,
        start_log,
        tensor::Tensor,
        window::{Window, WindowWork},
        work::Work,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("OPERATIONS", group::operations(module.py())?)?;
        // Registered before all others, so that it runs last.
        let leave_ports = wrap_pyfunction!(port::leave_ports, module)?;
        module.py().import("atexit")?.call_method1("register", (leave_ports,))?;
        Ok(())
    }
}

/// Starts the log at the level of the setting `log`. Calling it again does nothing.
#[pyfunction]
fn start_log() {
    ringfold_bindings::log::start_once();
}
