//! The driver functions in use, by symbol name.
//!
//! Results are plain numbers: a newer driver may return a code that is unknown today.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use libloading::Library;

/// `CUDA_KERNEL_NODE_PARAMS`, first version: the parameters of a graph's kernel node.
#[repr(C)]
pub(crate) struct KernelNodeParams {
    function: DriverHandle,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
}

impl KernelNodeParams {
    /// One block of a kernel. The parameters are addresses of values.
    pub(crate) fn new(function: DriverHandle, threads: c_uint, parameters: &mut [*mut c_void]) -> Self {
        Self {
            function,
            grid: [1; 3],
            block: [threads, 1, 1],
            shared_bytes: 0,
            parameters: parameters.as_mut_ptr(),
            extra: core::ptr::null_mut(),
        }
    }
}

pub(crate) type Code = c_int;
pub(crate) type Ordinal = c_int;
pub(crate) type Address = u64;
/// A context, stream, event, module or function: an opaque pointer of the driver; 0 is null.
pub(crate) type DriverHandle = usize;

/// The driver's handle to open memory of another process. It is passed by value, as a struct of this size.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IpcHandle(pub(crate) [u8; 64]);

pub(crate) const SUCCESS: Code = 0;
pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const OUT_OF_MEMORY: Code = 2;
pub(crate) const INVALID_CONTEXT: Code = 201;
pub(crate) const NOT_FOUND: Code = 500;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const NOT_SUPPORTED: Code = 801;

/// The handle of the legacy default stream.
pub(crate) const LEGACY_STREAM: usize = 1;
pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
pub(crate) const EVENT_WITH_TIMING: c_uint = 0;
pub(crate) const EVENT_BLOCKING_SYNC: c_uint = 1;
pub(crate) const EVENT_DISABLE_TIMING: c_uint = 2;
pub(crate) const HOST_ALLOC_PORTABLE: c_uint = 1;
pub(crate) const HOST_ALLOC_MAPPED: c_uint = 2;
pub(crate) const ATTRIBUTE_MEMORY_TYPE: c_uint = 2;
pub(crate) const ATTRIBUTE_BUFFER_ID: c_uint = 7;
pub(crate) const ATTRIBUTE_IS_MANAGED: c_uint = 8;
pub(crate) const ATTRIBUTE_DEVICE_ORDINAL: c_uint = 9;
pub(crate) const ATTRIBUTE_IS_IPC_CAPABLE: c_uint = 10;
pub(crate) const MEMORY_OF_DEVICE: c_uint = 2;

pub(crate) const DEVICE_MULTIPROCESSORS: c_int = 16;
pub(crate) const DEVICE_COMPUTE_MODE: c_int = 20;
pub(crate) const COMPUTE_MODE_PROHIBITED: c_int = 2;
pub(crate) const COMPUTE_MODE_EXCLUSIVE: c_int = 3;
pub(crate) const DEVICE_CAPABILITY_MAJOR: c_int = 75;
pub(crate) const DEVICE_CAPABILITY_MINOR: c_int = 76;
pub(crate) const DEVICE_WRITES_WORDS: c_int = 122;
pub(crate) const DEVICE_MPS_ENABLED: c_int = 133;

pub(crate) const FUNCTION_MAX_THREADS: c_int = 0;
pub(crate) const FUNCTION_SHARED_BYTES: c_int = 1;
pub(crate) const FUNCTION_CONSTANT_BYTES: c_int = 2;
pub(crate) const FUNCTION_LOCAL_BYTES: c_int = 3;
pub(crate) const FUNCTION_REGISTERS: c_int = 4;
pub(crate) const FUNCTION_MAX_DYNAMIC_SHARED_BYTES: c_int = 8;

pub(crate) const CAPTURE_RELAXED: c_uint = 2;
pub(crate) const CAPTURE_STATUS_NONE: c_uint = 0;
pub(crate) const ADD_CAPTURE_DEPENDENCIES: c_uint = 0;
pub(crate) const SET_CAPTURE_DEPENDENCIES: c_uint = 1;
pub(crate) const IPC_LAZY_PEER_ACCESS: c_uint = 1;
pub(crate) const JIT_ERROR_LOG: c_uint = 5;
pub(crate) const JIT_ERROR_LOG_BYTES: c_uint = 6;

/// Keys in the `extra` list of a launch.
pub(crate) const PARAMETERS_END: usize = 0;
pub(crate) const PARAMETERS_POINTER: usize = 1;
pub(crate) const PARAMETERS_BYTES: usize = 2;

/// The library's name on Linux. The name without a version belongs to the toolkit and may be a stub.
pub(crate) const LIBRARY: &str = "libcuda.so.1";

/// Declares a struct of the functions of a library, with the library that holds them.
macro_rules! functions {
    (
        $visibility:vis struct $api:ident;
        required: { $($name:ident = $symbol:literal ($($argument:ty),* $(,)?) $(-> $result:ty)?),* $(,)? }
        optional: { $($maybe:ident = $maybe_symbol:literal ($($maybe_argument:ty),* $(,)?)),* $(,)? }
    ) => {
        $visibility struct $api {
            $($visibility $name: unsafe extern "C" fn($($argument),*) -> functions!(@result $($result)?),)*
            $($visibility $maybe: Option<unsafe extern "C" fn($($maybe_argument),*) -> Code>,)*
            _library: Library,
        }

        impl $api {
            /// Finds the functions; `name` is the library's in errors.
            fn from_library(library: Library, name: &str) -> Result<Self, String> {
                $(
                    // SAFETY: the symbol is a function of this type, by the library's documentation.
                    let $name = *unsafe { library.get($symbol.to_bytes_with_nul()) }
                        .map_err(|error| format!("{name} is too old: {}", loader_message(&error)))?;
                )*
                $(
                    // SAFETY: as above.
                    let $maybe = unsafe { library.get($maybe_symbol.to_bytes_with_nul()) }.ok().map(|function| *function);
                )*
                Ok(Self { $($name,)* $($maybe,)* _library: library })
            }
        }
    };
    (@result) => { Code };
    (@result $result:ty) => { $result };
}
pub(crate) use functions;

functions! {
    pub(crate) struct Api;
    required: {
        init = c"cuInit"(c_uint),
        device_count = c"cuDeviceGetCount"(*mut c_int),
        device = c"cuDeviceGet"(*mut Ordinal, c_int),
        retain_context = c"cuDevicePrimaryCtxRetain"(*mut DriverHandle, Ordinal),
        push_context = c"cuCtxPushCurrent_v2"(DriverHandle),
        pop_context = c"cuCtxPopCurrent_v2"(*mut DriverHandle),
        pointer_attributes = c"cuPointerGetAttributes"(c_uint, *mut c_uint, *mut *mut c_void, Address),
        allocate = c"cuMemAlloc_v2"(*mut Address, usize),
        free = c"cuMemFree_v2"(Address),
        memory_info = c"cuMemGetInfo_v2"(*mut usize, *mut usize),
        allocate_pinned = c"cuMemHostAlloc"(*mut *mut c_void, usize, c_uint),
        free_pinned = c"cuMemFreeHost"(*mut c_void),
        copy_down = c"cuMemcpyDtoHAsync_v2"(*mut c_void, Address, usize, DriverHandle),
        copy_up = c"cuMemcpyHtoDAsync_v2"(Address, *const c_void, usize, DriverHandle),
        create_stream = c"cuStreamCreate"(*mut DriverHandle, c_uint),
        stream_wait = c"cuStreamWaitEvent"(DriverHandle, DriverHandle, c_uint),
        stream_synchronize = c"cuStreamSynchronize"(DriverHandle),
        create_event = c"cuEventCreate"(*mut DriverHandle, c_uint),
        record_event = c"cuEventRecord"(DriverHandle, DriverHandle),
        query_event = c"cuEventQuery"(DriverHandle),
        wait_event = c"cuEventSynchronize"(DriverHandle),
        destroy_event = c"cuEventDestroy_v2"(DriverHandle),
        error_name = c"cuGetErrorName"(Code, *mut *const c_char),
        error_text = c"cuGetErrorString"(Code, *mut *const c_char),
        device_attribute = c"cuDeviceGetAttribute"(*mut c_int, c_int, Ordinal),
        current_context = c"cuCtxGetCurrent"(*mut DriverHandle),
        current_device = c"cuCtxGetDevice"(*mut Ordinal),
        capture_mode = c"cuThreadExchangeStreamCaptureMode"(*mut c_uint),
        address_range = c"cuMemGetAddressRange_v2"(*mut Address, *mut usize, Address),
        fill = c"cuMemsetD8Async"(Address, u8, usize, DriverHandle),
        copy_within = c"cuMemcpyDtoDAsync_v2"(Address, Address, usize, DriverHandle),
        copy = c"cuMemcpyAsync"(Address, Address, usize, DriverHandle),
        mapped_address = c"cuMemHostGetDevicePointer_v2"(*mut Address, *mut c_void, c_uint),
        lock_pages = c"cuMemHostRegister_v2"(*mut c_void, usize, c_uint),
        unlock_pages = c"cuMemHostUnregister"(*mut c_void),
        ipc_handle = c"cuIpcGetMemHandle"(*mut IpcHandle, Address),
        ipc_open = c"cuIpcOpenMemHandle_v2"(*mut Address, IpcHandle, c_uint),
        ipc_close = c"cuIpcCloseMemHandle"(Address),
        destroy_stream = c"cuStreamDestroy_v2"(DriverHandle),
        query_stream = c"cuStreamQuery"(DriverHandle),
        is_capturing = c"cuStreamIsCapturing"(DriverHandle, *mut c_uint),
        load_module = c"cuModuleLoadDataEx"(*mut DriverHandle, *const c_void, c_uint, *mut c_uint, *mut *mut c_void),
        unload_module = c"cuModuleUnload"(DriverHandle),
        function = c"cuModuleGetFunction"(*mut DriverHandle, DriverHandle, *const c_char),
        global = c"cuModuleGetGlobal_v2"(*mut Address, *mut usize, DriverHandle, *const c_char),
        function_attribute = c"cuFuncGetAttribute"(*mut c_int, c_int, DriverHandle),
        set_function_attribute = c"cuFuncSetAttribute"(DriverHandle, c_int, c_int),
        active_blocks = c"cuOccupancyMaxActiveBlocksPerMultiprocessor"(*mut c_int, DriverHandle, c_int, usize),
        launch = c"cuLaunchKernel"(
            DriverHandle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, DriverHandle, *mut *mut c_void, *mut *mut c_void,
        ),
    }
    optional: {
        driver_version = c"cuDriverGetVersion"(*mut c_int),
        device_name = c"cuDeviceGetName"(*mut c_char, c_int, Ordinal),
        can_access_peer = c"cuDeviceCanAccessPeer"(*mut c_int, Ordinal, Ordinal),
        uuid = c"cuDeviceGetUuid_v2"(*mut [u8; 16], Ordinal),
        write_word = c"cuStreamWriteValue64_v2"(DriverHandle, Address, u64, c_uint),
        stream_id = c"cuStreamGetId"(DriverHandle, *mut u64),
        load_function = c"cuFuncLoad"(DriverHandle),
        capture_info = c"cuStreamGetCaptureInfo_v2"(
            DriverHandle, *mut c_uint, *mut u64, *mut DriverHandle, *mut *const DriverHandle, *mut usize,
        ),
        update_capture = c"cuStreamUpdateCaptureDependencies"(DriverHandle, *mut DriverHandle, usize, c_uint),
        parameter = c"cuFuncGetParamInfo"(DriverHandle, usize, *mut usize, *mut usize),
        create_graph = c"cuGraphCreate"(*mut DriverHandle, c_uint),
        add_kernel = c"cuGraphAddKernelNode"(*mut DriverHandle, DriverHandle, *const DriverHandle, usize, *const KernelNodeParams),
        instantiate_graph = c"cuGraphInstantiateWithFlags"(*mut DriverHandle, DriverHandle, u64),
        change_kernel = c"cuGraphExecKernelNodeSetParams"(DriverHandle, DriverHandle, *const KernelNodeParams),
        launch_graph = c"cuGraphLaunch"(DriverHandle, DriverHandle),
        destroy_executable = c"cuGraphExecDestroy"(DriverHandle),
        begin_capture = c"cuStreamBeginCapture_v2"(DriverHandle, c_uint),
        end_capture = c"cuStreamEndCapture"(DriverHandle, *mut DriverHandle),
        elapsed = c"cuEventElapsedTime"(*mut f32, DriverHandle, DriverHandle),
        destroy_graph = c"cuGraphDestroy"(DriverHandle),
    }
}

impl Api {
    /// Loads the library, or returns the reason that it cannot be loaded.
    pub(crate) fn load(library: &str) -> Result<Self, String> {
        // SAFETY: the driver's library may be loaded anywhere: its initialisers have no visible effect.
        let library = unsafe { Library::new(library) }.map_err(|error| loader_message(&error))?;
        Self::from_library(library, "the driver")
    }

    /// The driver's text for a result.
    pub(crate) fn describe(&self, code: Code) -> String {
        let text_of = |function: unsafe extern "C" fn(Code, *mut *const c_char) -> Code| {
            let mut text = core::ptr::null();
            // SAFETY: the function writes a pointer to a static text of the library, or null.
            unsafe { function(code, &raw mut text) };
            // SAFETY: as above; it is not null.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        match (text_of(self.error_name), text_of(self.error_text)) {
            (Some(name), Some(text)) => format!("{text} ({name})"),
            _ => format!("CUDA error {code}"),
        }
    }
}

/// The dynamic loader's message of an error.
pub(crate) fn loader_message(error: &libloading::Error) -> String {
    core::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_in_the_error() {
        let error = Api::load("libcuda-of-nowhere.so.1").err().unwrap();
        assert!(error.contains("libcuda-of-nowhere.so.1"), "{error}");
    }

    #[test]
    fn a_library_without_the_functions_is_rejected() {
        let error = Api::load("libc.so.6").err().unwrap();
        assert!(error.contains("too old") && error.contains("cuInit"), "{error}");
    }
}
