//! Kernels and their launches.

use crate::api::{self, DriverHandle};
use crate::context::Context;
use crate::error::{CudaError, check};
use crate::limits::PARAMETERS_MAX;
use crate::loaded_module::LoadedModule;
use core::ffi::c_void;
use parking_lot::Mutex;
use std::sync::Arc;

/// The blocks of a grid, or the threads of a block, in three dimensions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the dimensions")]
pub struct Dim3 {
    pub x: u32,
    pub y: u32,
    pub z: u32,
}

impl core::fmt::Display for Dim3 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} x {} x {}", self.x, self.y, self.z)
    }
}

/// The resources that a kernel needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FunctionAttributes {
    /// Registers per thread.
    pub registers: i32,
    /// Static shared memory per block.
    pub shared_bytes: i32,
    /// Constant memory.
    pub constant_bytes: i32,
    /// Local memory per thread.
    pub local_bytes: i32,
    /// The largest number of threads per block.
    pub max_threads: i32,
}

/// A kernel. It keeps its module loaded.
pub struct Function {
    module: Arc<LoadedModule>,
    handle: DriverHandle,
    name: String,
    attributes: FunctionAttributes,
    /// Total size of the parameters, if the driver reports it.
    parameter_bytes: Option<usize>,
    /// The dynamic shared memory that launches may use, as set last.
    dynamic_max: Mutex<u32>,
}

impl Function {
    pub(crate) fn new(
        module: Arc<LoadedModule>,
        handle: DriverHandle,
        name: &str,
    ) -> Result<Self, CudaError> {
        let context = module.gpu.context();
        let _current = context.current()?;
        if let Some(load) = context.api.load_function {
            // Lazy loading at the first launch might wait for a spinning kernel.
            // SAFETY: the function exists.
            check(context.api, "loading a kernel", unsafe { load(handle) })?;
        }
        let query = |attribute| query(context, handle, attribute);
        let attributes = FunctionAttributes {
            registers: query(api::FUNCTION_REGISTERS)?,
            shared_bytes: query(api::FUNCTION_SHARED_BYTES)?,
            constant_bytes: query(api::FUNCTION_CONSTANT_BYTES)?,
            local_bytes: query(api::FUNCTION_LOCAL_BYTES)?,
            max_threads: query(api::FUNCTION_MAX_THREADS)?,
        };
        let dynamic_max = u32::try_from(query(api::FUNCTION_MAX_DYNAMIC_SHARED_BYTES)?).unwrap_or(0);
        let parameter_bytes = parameter_bytes(context, handle);
        let name = name.to_owned();
        Ok(Self { module, handle, name, attributes, parameter_bytes, dynamic_max: Mutex::new(dynamic_max) })
    }

    /// The driver's handle.
    pub(crate) fn raw(&self) -> DriverHandle {
        self.handle
    }

    /// The kernel's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The resources it needs.
    pub fn attributes(&self) -> FunctionAttributes {
        self.attributes
    }

    /// Total size of the parameters, if the driver reports it.
    pub fn parameter_bytes(&self) -> Option<usize> {
        self.parameter_bytes
    }

    /// Launches the kernel on a stream, given by its driver handle; 0 is the default stream.
    ///
    /// The parameters are packed as in memory, each aligned.
    ///
    /// # Safety
    /// The parameters are what the kernel expects. What they point to stays allocated until the kernel has ended, and is
    /// not used by work that is not ordered with the kernel. The stream belongs to the device.
    pub unsafe fn launch(
        &self,
        parameters: &[u8],
        grid: Dim3,
        block: Dim3,
        shared_bytes: u32,
        stream: usize,
    ) -> Result<(), CudaError> {
        if let Some(expected) = self.parameter_bytes.filter(|expected| *expected > parameters.len()) {
            return Err(CudaError::Argument(format!(
                "kernel {} expects {expected} bytes of parameters, got {}",
                self.name,
                parameters.len()
            )));
        }
        // The driver rejects excess bytes with an obscure error; what is beyond the end is padding.
        let mut bytes = self.parameter_bytes.unwrap_or(parameters.len());
        let context = self.module.gpu.context();
        let _current = context.current()?;
        self.allow_shared(context, shared_bytes)?;
        let mut extra: [*mut c_void; 5] = [
            core::ptr::without_provenance_mut(api::PARAMETERS_POINTER),
            parameters.as_ptr().cast_mut().cast(),
            core::ptr::without_provenance_mut(api::PARAMETERS_BYTES),
            (&raw mut bytes).cast(),
            core::ptr::without_provenance_mut(api::PARAMETERS_END),
        ];
        let extra = if bytes == 0 { core::ptr::null_mut() } else { extra.as_mut_ptr() };
        // SAFETY: the function exists, the list has the driver's format, and the driver copies the parameters. The rest is
        // the caller's promise.
        let code = unsafe {
            (context.api.launch)(
                self.handle,
                grid.x,
                grid.y,
                grid.z,
                block.x,
                block.y,
                block.z,
                shared_bytes,
                stream,
                core::ptr::null_mut(),
                extra,
            )
        };
        check(context.api, "launching a kernel", code).map_err(|error| {
            let CudaError::Driver { what, why, code } = error else { return error };
            let why = format!(
                "{why}: {}, {grid} blocks of {block} threads (at most {}), {shared_bytes} bytes of shared memory, \
                 {bytes} bytes of parameters",
                self.name, self.attributes.max_threads
            );
            CudaError::Driver { what, why, code }
        })
    }

    /// The number of blocks of `threads` that run on one multiprocessor at a time.
    pub fn max_active_blocks(&self, threads: u32, shared_bytes: u32) -> Result<u32, CudaError> {
        let context = self.module.gpu.context();
        let _current = context.current()?;
        self.allow_shared(context, shared_bytes)?;
        let mut blocks = 0;
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        context.call("querying the occupancy of a kernel", |api| {
            // SAFETY: the number can be written, and the function exists.
            unsafe { (api.active_blocks)(&raw mut blocks, self.handle, threads, shared_bytes as usize) }
        })?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// Raises the kernel's limit of dynamic shared memory, which the driver requires above 48 KiB.
    fn allow_shared(&self, context: Context, bytes: u32) -> Result<(), CudaError> {
        let mut max = self.dynamic_max.lock();
        if bytes <= *max {
            return Ok(());
        }
        let value = i32::try_from(bytes).unwrap_or(i32::MAX);
        let attribute = api::FUNCTION_MAX_DYNAMIC_SHARED_BYTES;
        // SAFETY: the function exists.
        let code = unsafe { (context.api.set_function_attribute)(self.handle, attribute, value) };
        if code == api::INVALID_VALUE {
            return Err(CudaError::Argument(format!(
                "kernel {}: {bytes} bytes of dynamic shared memory exceed the limit of {:?} ({} bytes are static)",
                self.name, self.module.gpu, self.attributes.shared_bytes
            )));
        }
        check(context.api, "reserving shared memory for a kernel", code)?;
        *max = bytes;
        Ok(())
    }
}

debug_as!(Function, self => "kernel {} of {:?}", self.name, self.module.gpu);

fn query(context: Context, handle: DriverHandle, attribute: i32) -> Result<i32, CudaError> {
    let mut value = 0;
    // SAFETY: the value can be written, and the function exists.
    let code = unsafe { (context.api.function_attribute)(&raw mut value, attribute, handle) };
    check(context.api, "reading an attribute of a kernel", code)?;
    Ok(value)
}

/// The end of the last parameter, if the driver reports it.
fn parameter_bytes(context: Context, handle: DriverHandle) -> Option<usize> {
    let parameter = context.api.parameter?;
    let mut end = 0;
    for index in 0..PARAMETERS_MAX {
        let (mut offset, mut bytes) = (0, 0);
        // SAFETY: both can be written, and the function exists.
        match unsafe { parameter(handle, index, &raw mut offset, &raw mut bytes) } {
            api::SUCCESS => end = offset + bytes,
            // There are no more.
            api::INVALID_VALUE => return Some(end),
            _ => return None,
        }
    }
    None
}
