//! A device's primary context, and what makes it the current one of a thread.

use crate::api::{Api, DEVICE_WRITES_WORDS, Handle};
use crate::capture::RelaxedCapture;
use crate::error::{CudaError, check};
use core::cell::Cell;
use core::marker::PhantomData;

/// A device's primary context, which is retained for the life of the process.
#[derive(Clone, Copy)]
pub(crate) struct Context {
    pub(crate) api: &'static Api,
    pub(crate) ordinal: i32,
    /// Whether its streams set words of memory by themselves.
    pub(crate) writes_words: bool,
    handle: Handle,
}

// SAFETY: contexts may be used from any thread; the driver locks what it has to.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The driver's handle.
    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    pub(crate) fn retain(api: &'static Api, ordinal: i32) -> Result<Self, CudaError> {
        let (mut device, mut handle): (i32, Handle) = (0, core::ptr::null_mut());
        // SAFETY: the device can be written.
        check(api, "choosing a CUDA device", unsafe { (api.device)(&raw mut device, ordinal) })?;
        let _capture = RelaxedCapture::begin(api);
        // SAFETY: the context can be written, and is not released before the process ends.
        let code = unsafe { (api.retain_context)(&raw mut handle, device) };
        check(api, "opening a CUDA device", code)?;
        let writes_words = api.write_word.is_some() && attribute(api, ordinal, DEVICE_WRITES_WORDS)? != 0;
        Ok(Self { api, ordinal, writes_words, handle })
    }

    /// Makes the device the one that this thread's calls are for, and those calls none that a capture forbids, until the
    /// guard is dropped. Within it that costs nothing more.
    pub(crate) fn current(&self) -> Result<Current, CudaError> {
        let before = HELD.get();
        if before == self.handle.addr() {
            return Ok(Current { turned: None, _of_this_thread: PhantomData });
        }
        // SAFETY: the context is retained.
        check(self.api, "turning to a CUDA device", unsafe { (self.api.push_context)(self.handle) })?;
        HELD.set(self.handle.addr());
        let turned = Turned { api: self.api, before, _capture: RelaxedCapture::begin(self.api) };
        Ok(Current { turned: Some(turned), _of_this_thread: PhantomData })
    }
}

/// A number that the driver tells of a device.
pub(crate) fn attribute(api: &Api, ordinal: i32, number: i32) -> Result<i32, CudaError> {
    let mut value = 0;
    // SAFETY: the value can be written.
    let code = unsafe { (api.device_attribute)(&raw mut value, number, ordinal) };
    check(api, "asking for an attribute of a CUDA device", code)?;
    Ok(value)
}

/// While it lives, a device is the one that its thread has turned to. Guards of one thread are dropped in the reverse order.
pub struct Current {
    /// None if it was current before.
    turned: Option<Turned>,
    /// Belongs to one thread, as the stack of contexts does.
    _of_this_thread: PhantomData<*const ()>,
}

/// What is undone at the end.
struct Turned {
    api: &'static Api,
    /// What the thread held before.
    before: usize,
    _capture: RelaxedCapture,
}

thread_local! {
    /// The context that this thread has turned to within a guard; 0 if there is none.
    static HELD: Cell<usize> = const { Cell::new(0) };
}

impl Drop for Current {
    fn drop(&mut self) {
        if let Some(Turned { api, before, .. }) = &self.turned {
            HELD.set(*before);
            let mut popped: Handle = core::ptr::null_mut();
            // SAFETY: the handle can be written, and this thread has pushed what is popped.
            let _ = unsafe { (api.pop_context)(&raw mut popped) };
        }
    }
}
