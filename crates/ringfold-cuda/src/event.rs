//! A place in a queue that one can wait for.

use crate::api::{self, Handle};
use crate::context::Context;
use crate::error::{CudaError, check};
use crate::limits::{SPIN, WAIT_STEP_MAX, WAIT_STEP_MIN};
use std::time::Instant;

/// A place in a stream's queue.
pub struct Event {
    pub(crate) context: Context,
    pub(crate) handle: Handle,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// One that a stream can record, again and again. Before that it is reached.
    pub(crate) fn open(context: Context, flags: u32) -> Result<Self, CudaError> {
        let _current = context.current()?;
        let mut handle: Handle = core::ptr::null_mut();
        // SAFETY: the handle can be written.
        let code = unsafe { (context.api.create_event)(&raw mut handle, flags) };
        check(context.api, "making a CUDA event", code)?;
        Ok(Self { context, handle })
    }

    /// Whether all before it is done.
    pub fn query(&self) -> Result<bool, CudaError> {
        let _current = self.context.current()?;
        self.is_reached()
    }

    /// How long after another one it was reached, in microseconds. Both are timed, and were reached.
    pub fn elapsed_us(&self, earlier: &Self) -> Result<f64, CudaError> {
        let _current = self.context.current()?;
        let mut milliseconds = 0_f32;
        // SAFETY: the number can be written, and both events exist.
        let code = unsafe { (self.context.api.elapsed)(&raw mut milliseconds, earlier.handle, self.handle) };
        check(self.context.api, "asking how long a CUDA device took", code)?;
        Ok(f64::from(milliseconds) * 1e3)
    }

    /// Whether all before it is done. The device is current.
    pub(crate) fn is_reached(&self) -> Result<bool, CudaError> {
        // SAFETY: the event exists.
        let code = unsafe { (self.context.api.query_event)(self.handle) };
        if code == api::NOT_READY {
            return Ok(false);
        }
        check(self.context.api, WORKING, code).map(|()| true)
    }

    /// Returns when all before it is done.
    pub(crate) fn wait(&self) -> Result<(), CudaError> {
        let _current = self.context.current()?;
        if self.is_reached_within_spin(Instant::now())? {
            return Ok(());
        }
        // SAFETY: the event exists.
        let code = unsafe { (self.context.api.wait_event)(self.handle) };
        check(self.context.api, WORKING, code)
    }

    /// Returns when all before it is done, or it is too late for that.
    pub fn wait_until(&self, deadline: Instant) -> Result<(), CudaError> {
        let _current = self.context.current()?;
        let began = Instant::now();
        if self.is_reached_within_spin(began)? {
            return Ok(());
        }
        let mut step = WAIT_STEP_MIN;
        while !self.is_reached()? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(CudaError::Late { what: WORKING, after: began.elapsed() });
            }
            std::thread::sleep(step.min(left));
            step = (step * 2).min(WAIT_STEP_MAX);
        }
        Ok(())
    }

    fn is_reached_within_spin(&self, began: Instant) -> Result<bool, CudaError> {
        loop {
            if self.is_reached()? {
                return Ok(true);
            }
            if began.elapsed() >= SPIN {
                return Ok(false);
            }
            core::hint::spin_loop();
        }
    }
}

/// What the device was doing, as far as an event tells. Errors of kernels come to light here, too.
const WORKING: &str = "waiting for work of a CUDA device";

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_current) = self.context.current() {
            // SAFETY: the event exists, and nobody uses it after this.
            let _ = unsafe { (self.context.api.destroy_event)(self.handle) };
        }
    }
}
