//! The driver's handle of a loaded module.

use crate::api::{Api, DriverHandle};
use crate::gpu::Gpu;

/// A module that is unloaded when this is dropped.
pub(crate) struct LoadedModule {
    pub(crate) gpu: Gpu,
    pub(crate) handle: DriverHandle,
}

impl Drop for LoadedModule {
    fn drop(&mut self) {
        // SAFETY: it is loaded, and no kernel of it can be launched any more. The driver waits for running ones.
        let unload = |api: &Api| unsafe { (api.unload_module)(self.handle) };
        let _ = self.gpu.context().call("unloading a module", unload);
    }
}
