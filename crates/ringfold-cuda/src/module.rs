//! Code for a device.

use crate::api::{self, Handle};
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

/// The pointer in a module to the page that ends its spins; the device headers declare it.
const ABORT_PAGE: &CStr = c"mscclppAbortPage";

/// Code that is loaded into a device. It is unloaded when this and all functions of it are gone.
#[derive(Clone)]
pub struct Module {
    loaded: Arc<LoadedModule>,
}

impl Module {
    /// Loads a cubin, a fatbin, or PTX, which the driver compiles. Spins of its kernels end when those of this process
    /// are to end.
    pub fn load(gpu: &Gpu, image: &[u8]) -> Result<Self, CudaError> {
        if image.is_empty() {
            return Err(CudaError::Argument("there is no code in no bytes".into()));
        }
        let handle = load(gpu, image)?;
        let module = Self { loaded: Arc::new(LoadedModule { gpu: *gpu, handle }) };
        if let (Some(page), Some((place, 8))) =
            (abort_page::process_page_address(), module.global(ABORT_PAGE)?)
        {
            let stream = &gpu.0.aside;
            // SAFETY: the word is the module's, and no kernel of it runs yet.
            unsafe { stream.set(place, &page.to_ne_bytes(), Instant::now() + ZEROING_MAX) }?;
        }
        Ok(module)
    }

    /// A kernel, by the name that it has in the code: that of the source if it is `extern "C"`.
    pub fn function(&self, name: &str) -> Result<Function, CudaError> {
        let text = CString::new(name).map_err(|_| CudaError::Argument(format!("{name:?} is no name")))?;
        let context = self.loaded.gpu.context();
        let _current = context.current()?;
        let mut handle: Handle = core::ptr::null_mut();
        // SAFETY: the handle can be written, the module is loaded, and the name is a string.
        let code = unsafe { (context.api.function)(&raw mut handle, self.loaded.handle, text.as_ptr()) };
        if code == api::NOT_FOUND {
            return Err(CudaError::Argument(format!(
                "there is no kernel {name} in the code: a kernel keeps its name if it is declared extern \"C\" __global__"
            )));
        }
        check(context.api, "looking for a kernel", code)?;
        Function::new(self.loaded.clone(), handle, name)
    }

    /// The device that it is loaded into.
    pub fn gpu(&self) -> Gpu {
        self.loaded.gpu
    }

    /// Where a variable lies, and how many bytes it has; none if there is no such variable.
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
        check(context.api, "looking for a variable of a module", code)?;
        Ok(Some((address, bytes)))
    }
}

impl core::fmt::Debug for Module {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "a module of {:?}", self.gpu())
    }
}

fn load(gpu: &Gpu, image: &[u8]) -> Result<Handle, CudaError> {
    // PTX is a text, whose end is a zero; the other kinds know their sizes, and don't mind it.
    let mut image = image.to_vec();
    image.push(0);
    let context = gpu.context();
    let _current = context.current()?;
    let mut handle: Handle = core::ptr::null_mut();
    let mut log = vec![0_u8; IMAGE_LOG_BYTES];
    let mut options = [api::JIT_ERROR_LOG, api::JIT_ERROR_LOG_BYTES];
    let mut values: [*mut c_void; 2] =
        [log.as_mut_ptr().cast(), core::ptr::without_provenance_mut(IMAGE_LOG_BYTES)];
    // SAFETY: the handle can be written; the image ends with a zero; there are two options with two values, and the log
    // has as many bytes as is said.
    let code = unsafe {
        let image = image.as_ptr().cast();
        (context.api.load_module)(&raw mut handle, image, 2, options.as_mut_ptr(), values.as_mut_ptr())
    };
    check(context.api, "loading code into a CUDA device", code)
        .map_err(|error| with_log(error, &log, gpu))?;
    Ok(handle)
}

/// What the driver's compiler has to say goes with its error.
fn with_log(error: CudaError, log: &[u8], gpu: &Gpu) -> CudaError {
    let log = log.split(|byte| *byte == 0).next().unwrap_or_default();
    let log = String::from_utf8_lossy(log);
    match error {
        CudaError::Refused { what, why, code } => {
            let log = if log.trim().is_empty() { String::new() } else { format!("\n{}", log.trim_end()) };
            CudaError::Refused { what, why: format!("{why}, on {gpu:?}{log}"), code }
        }
        other => other,
    }
}
