//! The driver's handle of code in a device.

use crate::api::Handle;
use crate::gpu::Gpu;

/// Code that the driver has loaded, and unloads when this is dropped.
pub(crate) struct LoadedModule {
    pub(crate) gpu: Gpu,
    pub(crate) handle: Handle,
}

// SAFETY: modules may be used from any thread.
unsafe impl Send for LoadedModule {}
// SAFETY: as above.
unsafe impl Sync for LoadedModule {}

impl Drop for LoadedModule {
    fn drop(&mut self) {
        let context = self.gpu.context();
        if let Ok(_current) = context.current() {
            // SAFETY: it is loaded, and nobody can launch its kernels any more. The driver waits for those that run.
            let _ = unsafe { (context.api.unload_module)(self.handle) };
        }
    }
}
