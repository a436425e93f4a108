//! Events: positions in a stream that can be waited for.

use crate::api::{self, Api, DriverHandle};
use crate::context::Context;
use crate::error::{CudaError, check};
use crate::limits::{SPIN, WAIT_STEP_MAX, WAIT_STEP_MIN};
use core::time::Duration;
use std::time::Instant;

/// A position in a stream. It is complete when all work queued before it is done.
pub struct Event {
    pub(crate) context: Context,
    pub(crate) handle: DriverHandle,
}

impl Event {
    /// Creates an event, which streams may record repeatedly. It is complete until it is recorded.
    pub(crate) fn open(context: Context, flags: u32) -> Result<Self, CudaError> {
        let mut handle = 0;
        // SAFETY: the handle can be written.
        context.call("creating a CUDA event", |api| unsafe { (api.create_event)(&raw mut handle, flags) })?;
        Ok(Self { context, handle })
    }

    /// Whether the event is complete.
    pub fn query(&self) -> Result<bool, CudaError> {
        let _current = self.context.current()?;
        self.is_complete()
    }

    /// As [`Self::query`], for callers that have made the device current.
    fn is_complete(&self) -> Result<bool, CudaError> {
        // SAFETY: the event exists.
        let code = unsafe { (self.context.api.query_event)(self.handle) };
        if code == api::NOT_READY {
            return Ok(false);
        }
        check(self.context.api, WORKING, code).map(|()| true)
    }

    /// Waits until the event is complete.
    pub(crate) fn wait(&self) -> Result<(), CudaError> {
        let _current = self.context.current()?;
        if self.spin(Instant::now())? {
            return Ok(());
        }
        // SAFETY: the event exists.
        let code = unsafe { (self.context.api.wait_event)(self.handle) };
        check(self.context.api, WORKING, code)
    }

    /// Waits until the event is complete or the deadline passes.
    pub fn wait_until(&self, deadline: Instant) -> Result<(), CudaError> {
        let _current = self.context.current()?;
        let began = Instant::now();
        if self.spin(began)? {
            return Ok(());
        }
        let mut step = WAIT_STEP_MIN;
        while !self.is_complete()? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(CudaError::TimedOut { what: WORKING, after: began.elapsed() });
            }
            std::thread::sleep(step.min(left));
            step = (step * 2).min(WAIT_STEP_MAX);
        }
        Ok(())
    }

    /// The time on the device since another event. Both are complete, and were created with timing.
    pub(crate) fn elapsed_since(&self, start: &Self) -> Result<Duration, CudaError> {
        let unsupported = || CudaError::Unsupported("the CUDA driver does not time events".into());
        let (elapsed, mut ms) = (self.context.api.elapsed.ok_or_else(unsupported)?, 0.0_f32);
        // SAFETY: the time can be written, and both events exist.
        let query = |_: &Api| unsafe { elapsed(&raw mut ms, start.handle, self.handle) };
        self.context.call("timing CUDA events", query)?;
        Ok(Duration::try_from_secs_f64(f64::from(ms) / 1e3).unwrap_or_default())
    }

    /// Polls for [`SPIN`]. Returns whether the event is complete.
    fn spin(&self, began: Instant) -> Result<bool, CudaError> {
        loop {
            if self.is_complete()? {
                return Ok(true);
            }
            if began.elapsed() >= SPIN {
                return Ok(false);
            }
            core::hint::spin_loop();
        }
    }
}

/// Errors of kernels are reported here, too.
const WORKING: &str = "waiting for a CUDA device";

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event exists, and is not used after this.
        let destroy = |api: &Api| unsafe { (api.destroy_event)(self.handle) };
        let _ = self.context.call("destroying a CUDA event", destroy);
    }
}
