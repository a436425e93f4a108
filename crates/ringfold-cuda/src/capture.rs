//! Driver calls that do not invalidate stream captures.
//!
//! While a thread captures a stream into a graph, the driver rejects calls that might wait for a stream, and
//! invalidates the capture. Our calls touch no captured stream unless the user asks for it, so they are safe.

use crate::api::{Api, CAPTURE_RELAXED, SUCCESS};
use crate::driver::Driver;
use core::ffi::c_uint;
use core::marker::PhantomData;

/// Keeps this thread's calls from invalidating captures, of any thread, until it is dropped.
pub struct RelaxedCapture {
    /// The driver, and the mode to restore; none if there is no driver.
    before: Option<(&'static Api, c_uint)>,
    /// The mode belongs to the thread.
    _not_send: PhantomData<*const ()>,
}

/// Sets the relaxed capture mode for this thread. Costs nothing if the process does not use a driver.
#[must_use = "the mode is restored when the guard is dropped"]
pub fn relaxed_capture() -> RelaxedCapture {
    match Driver::in_use() {
        Some(driver) => RelaxedCapture::begin(&driver.api),
        None => RelaxedCapture { before: None, _not_send: PhantomData },
    }
}

impl RelaxedCapture {
    pub(crate) fn begin(api: &'static Api) -> Self {
        let before = exchange(api, CAPTURE_RELAXED).map(|mode| (api, mode));
        Self { before, _not_send: PhantomData }
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        if let Some((api, mode)) = self.before {
            let _ = exchange(api, mode);
        }
    }
}

fn exchange(api: &Api, mut mode: c_uint) -> Option<c_uint> {
    // SAFETY: the mode can be read and written.
    let code = unsafe { (api.capture_mode)(&raw mut mode) };
    (code == SUCCESS).then_some(mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_nest_with_and_without_a_driver() {
        let outer = relaxed_capture();
        drop(relaxed_capture());
        drop(outer);
    }
}
