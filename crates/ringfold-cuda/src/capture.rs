//! Calls that leave the captures of streams alone.
//!
//! While some thread captures a stream into a graph, the driver refuses what might wait for a stream, and spoils the
//! capture besides. None of our calls touches a stream that is captured unless its user says so, so they may be made.

use crate::api::{Api, CAPTURE_RELAXED, SUCCESS};
use crate::driver::Driver;
use core::ffi::c_uint;
use core::marker::PhantomData;

/// While it lives, no call of this thread disturbs a capture, whoever captures.
pub struct RelaxedCapture {
    /// The driver, and the mode that was there before; none if there is no driver.
    before: Option<(&'static Api, c_uint)>,
    /// The mode is the thread's.
    _of_this_thread: PhantomData<*const ()>,
}

/// Begins it. Costs next to nothing, and nothing at all where nobody uses a driver.
#[must_use = "the mode is as it was when the guard is dropped"]
pub fn relaxed_capture() -> RelaxedCapture {
    match Driver::in_use() {
        Some(driver) => RelaxedCapture::begin(&driver.api),
        None => RelaxedCapture { before: None, _of_this_thread: PhantomData },
    }
}

impl RelaxedCapture {
    pub(crate) fn begin(api: &'static Api) -> Self {
        let before = exchange(api, CAPTURE_RELAXED).map(|mode| (api, mode));
        Self { before, _of_this_thread: PhantomData }
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
    fn without_a_driver_it_is_nothing_and_may_be_nested() {
        let outer = relaxed_capture();
        drop(relaxed_capture());
        drop(outer);
    }
}
