//! Modules: code loaded into a device.

use crate::api::{self, DriverHandle};
use crate::error::{CudaError, check};
use crate::function::Function;
use crate::gpu::Gpu;
use crate::limits::{IMAGE_LOG_BYTES, ZEROING_MAX};
use crate::loaded_module::LoadedModule;
use crate::port::abort_page;
use core::ffi::{CStr, c_void};
use std::ffi::CString;
use std::sync::Arc;
use std::time::Instant;

/// The module variable that points to the abort page; the device headers declare it.
const ABORT_PAGE: &CStr = c"mscclppAbortPage";

/// Code loaded into a device. It is unloaded when the module and all its functions are dropped.
#[derive(Clone)]
pub struct Module {
    loaded: Arc<LoadedModule>,
}

impl Module {
    /// Loads a cubin, a fatbin, or PTX, which the driver compiles.
    ///
    /// Spinning kernels of the module are ended through the process's abort page.
    pub fn load(gpu: &Gpu, image: &[u8]) -> Result<Self, CudaError> {
        if image.is_empty() {
            return Err(CudaError::Argument("invalid module image: it is empty".into()));
        }
        let handle = load(gpu, image)?;
        let module = Self { loaded: Arc::new(LoadedModule { gpu: *gpu, handle }) };
        if let (Some(page), Some((variable, 8))) =
            (abort_page::process_page_address(), module.global(ABORT_PAGE)?)
        {
            let stream = &gpu.0.side_stream;
            // SAFETY: the variable is the module's, and no kernel of it runs yet.
            unsafe { stream.set(variable, &page.to_ne_bytes(), Instant::now() + ZEROING_MAX) }?;
        }
        Ok(module)
    }

    /// Finds a kernel by its symbol, which is its name if it is declared `extern "C"`.
    pub fn function(&self, name: &str) -> Result<Function, CudaError> {
        let text = CString::new(name).map_err(|_| {
            CudaError::Argument(format!("invalid kernel name {name:?}: it contains a NUL byte"))
        })?;
        let context = self.loaded.gpu.context();
        let _current = context.current()?;
        let mut handle = 0;
        // SAFETY: the handle can be written, the module is loaded, and the name is a string.
        let code = unsafe { (context.api.function)(&raw mut handle, self.loaded.handle, text.as_ptr()) };
        if code == api::NOT_FOUND {
            return Err(CudaError::Argument(format!(
                "unknown kernel {name}: declare kernels extern \"C\" __global__ so that they keep their name"
            )));
        }
        check(context.api, "finding a kernel", code)?;
        Function::new(self.loaded.clone(), handle, name)
    }

    /// The device that it is loaded into.
    pub fn gpu(&self) -> Gpu {
        self.loaded.gpu
    }

    /// Address and size of a variable; none if there is no such variable.
    fn global(&self, name: &CStr) -> Result<Option<(u64, usize)>, CudaError> {
        let context = self.loaded.gpu.context();
        let _current = context.current()?;
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: both can be written, the module is loaded, and the name is a string.
        let code = unsafe {
            (context.api.global)(&raw mut address, &raw mut bytes, self.loaded.handle, name.as_ptr())
        };
        if code == api::NOT_FOUND {
            return Ok(None);
        }
        check(context.api, "finding a variable of a module", code)?;
        Ok(Some((address, bytes)))
    }
}

debug_as!(Module, self => "a module of {:?}", self.gpu());

fn load(gpu: &Gpu, image: &[u8]) -> Result<DriverHandle, CudaError> {
    // PTX is a text that ends with a zero; the other formats contain their sizes.
    let mut image = image.to_vec();
    image.push(0);
    let context = gpu.context();
    let _current = context.current()?;
    let mut handle = 0;
    let mut log = vec![0_u8; IMAGE_LOG_BYTES];
    let mut options = [api::JIT_ERROR_LOG, api::JIT_ERROR_LOG_BYTES];
    let mut values: [*mut c_void; 2] =
        [log.as_mut_ptr().cast(), core::ptr::without_provenance_mut(IMAGE_LOG_BYTES)];
    // SAFETY: the handle can be written; the image ends with a zero; there are two options with two values, and the log
    // has the stated size.
    let code = unsafe {
        let image = image.as_ptr().cast();
        (context.api.load_module)(&raw mut handle, image, 2, options.as_mut_ptr(), values.as_mut_ptr())
    };
    check(context.api, "loading code into a CUDA device", code)
        .map_err(|error| with_log(error, &log, gpu))?;
    Ok(handle)
}

/// Appends the log of the driver's compiler to its error.
fn with_log(error: CudaError, log: &[u8], gpu: &Gpu) -> CudaError {
    let log = log.split(|byte| *byte == 0).next().unwrap_or_default();
    let log = String::from_utf8_lossy(log);
    match error {
        CudaError::Driver { what, why, code } => {
            let log = if log.trim().is_empty() { String::new() } else { format!("\n{}", log.trim_end()) };
            CudaError::Driver { what, why: format!("{why}, on {gpu:?}{log}"), code }
        }
        other => other,
    }
}
