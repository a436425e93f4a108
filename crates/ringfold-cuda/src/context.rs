//! A device's primary context, and the guard that makes it current for a thread.

use crate::api::{Api, Code, DEVICE_WRITES_WORDS, DriverHandle};
use crate::capture::RelaxedCapture;
use crate::error::{CudaError, check};
use core::cell::Cell;
use core::marker::PhantomData;

/// A device's primary context, which is retained for the life of the process.
#[derive(Clone, Copy)]
pub(crate) struct Context {
    pub(crate) api: &'static Api,
    pub(crate) ordinal: i32,
    /// Whether its streams support `cuStreamWriteValue64`.
    pub(crate) writes_words: bool,
    pub(crate) handle: DriverHandle,
}

impl Context {
    pub(crate) fn retain(api: &'static Api, ordinal: i32) -> Result<Self, CudaError> {
        let (mut device, mut handle) = (0, 0);
        // SAFETY: the device can be written.
        check(api, "selecting a CUDA device", unsafe { (api.device)(&raw mut device, ordinal) })?;
        let _capture = RelaxedCapture::begin(api);
        // SAFETY: the context can be written, and is not released before the process ends.
        let code = unsafe { (api.retain_context)(&raw mut handle, device) };
        check(api, "opening a CUDA device", code)?;
        let writes_words = api.write_word.is_some() && attribute(api, ordinal, DEVICE_WRITES_WORDS)? != 0;
        Ok(Self { api, ordinal, writes_words, handle })
    }

    /// Makes the context current for this thread, with relaxed capture mode, until the guard is dropped.
    ///
    /// Nested guards of the same context cost nothing.
    pub(crate) fn current(&self) -> Result<CurrentContext, CudaError> {
        let before = CURRENT.get();
        if before == self.handle {
            return Ok(CurrentContext { pushed: None, _not_send: PhantomData });
        }
        // SAFETY: the context is retained.
        check(self.api, "making a CUDA device current", unsafe { (self.api.push_context)(self.handle) })?;
        CURRENT.set(self.handle);
        let pushed = PushedContext { api: self.api, before, _capture: RelaxedCapture::begin(self.api) };
        Ok(CurrentContext { pushed: Some(pushed), _not_send: PhantomData })
    }

    /// Calls a driver function with the context current, and checks its result.
    pub(crate) fn call(
        &self,
        what: &'static str,
        function: impl FnOnce(&'static Api) -> Code,
    ) -> Result<(), CudaError> {
        let _current = self.current()?;
        check(self.api, what, function(self.api))
    }
}

/// Returns a device attribute (`CUdevice_attribute`).
pub(crate) fn attribute(api: &Api, ordinal: i32, number: i32) -> Result<i32, CudaError> {
    let mut value = 0;
    // SAFETY: the value can be written.
    let code = unsafe { (api.device_attribute)(&raw mut value, number, ordinal) };
    check(api, "reading an attribute of a CUDA device", code)?;
    Ok(value)
}

/// Keeps a device current for its thread. Guards of one thread must be dropped in reverse order.
pub struct CurrentContext {
    /// None if the context was current before.
    pushed: Option<PushedContext>,
    /// The driver's context stack belongs to one thread.
    _not_send: PhantomData<*const ()>,
}

struct PushedContext {
    api: &'static Api,
    /// The value of `CURRENT` to restore.
    before: DriverHandle,
    _capture: RelaxedCapture,
}

thread_local! {
    /// The context that the innermost guard of this thread has pushed; 0 if there is none.
    static CURRENT: Cell<DriverHandle> = const { Cell::new(0) };
}

impl Drop for CurrentContext {
    fn drop(&mut self) {
        if let Some(PushedContext { api, before, .. }) = &self.pushed {
            CURRENT.set(*before);
            let mut popped = 0;
            // SAFETY: the handle can be written, and this thread has pushed what is popped.
            let _ = unsafe { (api.pop_context)(&raw mut popped) };
        }
    }
}
