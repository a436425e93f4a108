//! The driver's handle of a loaded module.

use crate::api::DriverHandle;
use crate::gpu::Gpu;

/// A module that is unloaded when this is dropped.
pub(crate) struct LoadedModule {
    pub(crate) gpu: Gpu,
    pub(crate) handle: DriverHandle,
}

// SAFETY: modules may be used from any thread.
unsafe impl Send for LoadedModule {}
// SAFETY: as above.
unsafe impl Sync for LoadedModule {}

impl Drop for LoadedModule {
    fn drop(&mut self) {
        let context = self.gpu.context();
        if let Ok(_current) = context.current() {
            // SAFETY: it is loaded, and no kernel of it can be launched any more. The driver waits for running ones.
            let _ = unsafe { (context.api.unload_module)(self.handle) };
        }
    }
}
