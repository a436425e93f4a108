//! A kernel.

use crate::api::{self, Handle};
use crate::context::Context;
use crate::error::{CudaError, check};
use crate::limits::PARAMETERS_MAX;
use crate::loaded_module::LoadedModule;
use core::ffi::c_void;
use parking_lot::Mutex;
use std::sync::Arc;

/// How many blocks there are, in three dimensions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grid {
    /// Along the first dimension.
    pub x: u32,
    /// Along the second.
    pub y: u32,
    /// Along the third.
    pub z: u32,
}

/// How many threads a block has, in three dimensions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Along the first dimension.
    pub x: u32,
    /// Along the second.
    pub y: u32,
    /// Along the third.
    pub z: u32,
}

/// What a kernel needs of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FunctionAttributes {
    /// Registers of a thread.
    pub registers: i32,
    /// Shared memory of a block that the source declares.
    pub shared_bytes: i32,
    /// Constants.
    pub constant_bytes: i32,
    /// Memory of a thread.
    pub local_bytes: i32,
    /// Threads that a block may have.
    pub max_threads: i32,
}

/// A kernel of a module, which stays loaded for it.
pub struct Function {
    module: Arc<LoadedModule>,
    handle: Handle,
    name: String,
    attributes: FunctionAttributes,
    /// How many bytes its parameters have, if the driver tells.
    parameter_bytes: Option<usize>,
    /// How much shared memory a launch may ask for, as it was set last.
    dynamic_max: Mutex<u32>,
}

// SAFETY: functions may be used from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    pub(crate) fn new(module: Arc<LoadedModule>, handle: Handle, name: &str) -> Result<Self, CudaError> {
        let context = module.gpu.context();
        let _current = context.current()?;
        if let Some(load) = context.api.load_function {
            // Loading it later might have to wait for a kernel that spins by then.
            // SAFETY: the function exists.
            check(context.api, "loading a kernel", unsafe { load(handle) })?;
        }
        let ask = |attribute| ask(context, handle, attribute);
        let attributes = FunctionAttributes {
            registers: ask(api::FUNCTION_REGISTERS)?,
            shared_bytes: ask(api::FUNCTION_SHARED_BYTES)?,
            constant_bytes: ask(api::FUNCTION_CONSTANT_BYTES)?,
            local_bytes: ask(api::FUNCTION_LOCAL_BYTES)?,
            max_threads: ask(api::FUNCTION_MAX_THREADS)?,
        };
        let dynamic_max = u32::try_from(ask(api::FUNCTION_MAX_DYNAMIC_SHARED_BYTES)?).unwrap_or(0);
        let parameter_bytes = parameter_bytes(context, handle);
        let name = name.to_owned();
        Ok(Self { module, handle, name, attributes, parameter_bytes, dynamic_max: Mutex::new(dynamic_max) })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it needs.
    pub fn attributes(&self) -> FunctionAttributes {
        self.attributes
    }

    /// How many bytes its parameters have together, if the driver tells.
    pub fn parameter_bytes(&self) -> Option<usize> {
        self.parameter_bytes
    }

    /// Launches it on a stream, by the driver's handle of that; 0 is the default stream. The parameters are as they lie in
    /// memory: each at a multiple of its alignment.
    ///
    /// # Safety
    /// The parameters are what the kernel expects, what they point to is there until it has ended, and nothing that the
    /// kernel is not ordered with uses it. The stream is one of the device's.
    pub unsafe fn launch(
        &self,
        parameters: &[u8],
        grid: Grid,
        block: Block,
        shared_bytes: u32,
        stream: usize,
    ) -> Result<(), CudaError> {
        if let Some(expected) = self.parameter_bytes.filter(|expected| *expected > parameters.len()) {
            return Err(CudaError::Argument(format!(
                "kernel {} has {expected} bytes of parameters, and {} were given",
                self.name,
                parameters.len()
            )));
        }
        // More than it has would be refused in words that nobody understands; what is beyond the end is padding.
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
        let stream: Handle = core::ptr::without_provenance_mut(stream);
        // SAFETY: the function exists, the list is as the driver wants it, and the driver copies the parameters. The rest is
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
            let CudaError::Refused { what, why, code } = error else { return error };
            let why = format!(
                "{why}: {}, {} x {} x {} blocks of {} x {} x {} threads, {shared_bytes} bytes of shared memory, {bytes} \
                 bytes of parameters; a block may have {} threads",
                self.name, grid.x, grid.y, grid.z, block.x, block.y, block.z, self.attributes.max_threads
            );
            CudaError::Refused { what, why, code }
        })
    }

    /// How many blocks of so many threads run on one multiprocessor at a time.
    pub fn max_active_blocks(&self, threads: u32, shared_bytes: u32) -> Result<u32, CudaError> {
        let context = self.module.gpu.context();
        let _current = context.current()?;
        self.allow_shared(context, shared_bytes)?;
        let mut blocks = 0;
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        // SAFETY: the number can be written, and the function exists.
        let code = unsafe {
            (context.api.active_blocks)(&raw mut blocks, self.handle, threads, shared_bytes as usize)
        };
        check(context.api, "asking how many blocks fit a CUDA device", code)?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// Kernels have to ask before they are given more shared memory than all devices have.
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
                "kernel {} can't have {bytes} bytes of shared memory on {:?}, besides the {} that it declares",
                self.name, self.module.gpu, self.attributes.shared_bytes
            )));
        }
        check(context.api, "asking for shared memory for a kernel", code)?;
        *max = bytes;
        Ok(())
    }
}

impl core::fmt::Debug for Function {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "kernel {} of {:?}", self.name, self.module.gpu)
    }
}

fn ask(context: Context, handle: Handle, attribute: i32) -> Result<i32, CudaError> {
    let mut value = 0;
    // SAFETY: the value can be written, and the function exists.
    let code = unsafe { (context.api.function_attribute)(&raw mut value, attribute, handle) };
    check(context.api, "asking for an attribute of a kernel", code)?;
    Ok(value)
}

/// Where the last parameter ends, if the driver tells.
fn parameter_bytes(context: Context, handle: Handle) -> Option<usize> {
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
